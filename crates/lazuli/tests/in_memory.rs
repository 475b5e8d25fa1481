//! `lazuli serve --in-memory`: serves like a server with a directory, without writing files.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use lazuli_protocol::ServiceKind;
use rustix::process::Signal;
use support::{FREE_PORTS, Server, eventually, fail, lazuli, text};

const MIB: usize = 1 << 20;

/// The lines of the ready block, with the variables of their ports.
const SERVICES_AND_VARIABLES: [(&str, &str); 6] = [
    ("blob", "LAZULI_BLOB_PORT"),
    ("queue", "LAZULI_QUEUE_PORT"),
    ("table", "LAZULI_TABLE_PORT"),
    ("file", "LAZULI_FILE_PORT"),
    ("smb", "LAZULI_SMB_PORT"),
    ("console", "LAZULI_CONSOLE_PORT"),
];

/// Starts a server that uses `dir` as its working directory, home and folder for temporary files.
fn start(dir: &Path, arguments: &[&str]) -> Server {
    let mut command = lazuli();
    command.current_dir(dir).env("HOME", dir).env("TMPDIR", dir).env("XDG_RUNTIME_DIR", dir);
    Server::spawn(command.args(["serve", "--in-memory"]).args(FREE_PORTS).args(arguments))
}

fn assert_empty(dir: &Path) {
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Puts a block blob of `mib` MiB. Returns the status.
fn put_blob(server: &Server, name: &str, mib: usize) -> u16 {
    let headers = "x-ms-blob-type: BlockBlob";
    server.send(ServiceKind::Blob, "PUT", &format!("/con/{name}"), headers, &vec![7; mib * MIB]).status
}

#[test]
fn in_memory_server_serves_all_services_and_writes_nothing_to_disk() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), &[]);
    assert_eq!(server.ready["data"], "in memory: lost when the process ends");
    assert_eq!(server.console("/readyz"), (200, "ready (in memory: nothing is stored on disk)\n".into()));
    // Commands find it by its console.
    let asked = |command: &str| {
        let mut asking = lazuli();
        asking.args([command, "--data"]).arg(dir.path().join("none"));
        for (service, variable) in SERVICES_AND_VARIABLES {
            asking.env(variable, server.address(service).rsplit(':').next().unwrap());
        }
        let output = asking.output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    let status = asked("status");
    assert!(status.starts_with("a server with data in memory answers at 127.0.0.1:"), "{status}");
    let doctor = asked("doctor");
    assert!(doctor.contains("nothing is stored on disk"), "{doctor}");
    assert!(doctor.contains("the server answers on all of them"), "{doctor}");
    let create = |kind, target: &str, headers: &str, body: &[u8]| {
        let method = if kind == ServiceKind::Table { "POST" } else { "PUT" };
        let reply = server.send(kind, method, target, headers, body);
        assert_eq!(reply.status, 201, "{target}: {}", reply.text());
    };
    create(ServiceKind::Blob, "/con?restype=container", "", b"");
    create(ServiceKind::Queue, "/que", "", b"");
    let json = "Content-Type: application/json\nAccept: application/json;odata=nometadata";
    create(ServiceKind::Table, "/Tables", json, b"{\"TableName\":\"people\"}");
    create(ServiceKind::Table, "/people", json, b"{\"PartitionKey\":\"p\",\"RowKey\":\"r\",\"n\":1}");
    create(ServiceKind::File, "/docs?restype=share", "", b"");
    let file = format!("x-ms-type: file\nx-ms-content-length: {MIB}");
    create(ServiceKind::File, "/docs/f", &file, b"");
    assert_eq!(put_blob(&server, "b", 20), 201);
    let read = server.send(ServiceKind::Blob, "GET", "/con/b", "", b"");
    assert!(read.status == 200 && read.body == vec![7; 20 * MIB]);
    let metrics = server.console("/metrics").1;
    for series in
        ["lazuli_memory_bytes{what=\"content\"} 2", "lazuli_memory_bytes{what=\"rows\"} ", "lazuli_rows "]
    {
        assert!(metrics.contains(series), "{series}");
    }
    assert_empty(dir.path());

    server.signal(Signal::KILL);
    server.wait();
    assert_empty(dir.path());
    let server = start(dir.path(), &[]);
    assert_eq!(
        server.send(ServiceKind::Blob, "GET", "/con/b", "", b"").status,
        404,
        "a new process has no data"
    );
    let log = server.stop();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("lost when the process ends")).collect();
    assert!(matches!(warnings[..], [line] if line.contains("WARN")), "{log}");
    assert_empty(dir.path());
}

#[test]
fn memory_is_bounded_and_released_by_deletes() {
    let dir = tempfile::tempdir().unwrap();
    // Content may use three quarters of the memory.
    let server = start(dir.path(), &["--memory-bytes=8MiB"]);
    server.send(ServiceKind::Blob, "PUT", "/con?restype=container", "", b"");
    let statuses: Vec<_> = (0..8).map(|n| put_blob(&server, &format!("b{n}"), 1)).collect();
    assert_eq!(statuses, [201, 201, 201, 201, 201, 503, 503, 503]);
    // The state lasts until a sweep frees the remains of the refused upload.
    eventually("readiness reports that memory is full", || {
        put_blob(&server, "more", 1) == 503
            && server.console("/readyz")
                == (200, "degraded: no memory left for content: uploads are refused\n".into())
    });
    for n in 0..5 {
        assert_eq!(server.send(ServiceKind::Blob, "DELETE", &format!("/con/b{n}"), "", b"").status, 202);
    }
    eventually("memory is released", || put_blob(&server, "again", 1) == 201);
    eventually("the server is ready again", || server.console("/readyz").1.starts_with("ready"));
}

#[test]
fn in_memory_server_accepts_accounts_and_creates_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), &["--account=mine:c2VjcmV0", "--tls-self-signed"]);
    assert!(server.ready["blob"].starts_with("https://") && server.ready["blob"].ends_with("/mine"));
    assert!(server.ready["connect"].contains("AccountKey=(as configured);"), "{}", server.ready["connect"]);
    assert_empty(dir.path());
}

#[test]
fn in_memory_conflicts_with_data_directory_options() {
    for option in ["--data=d", "--cache-bytes=1MiB", "--scrub-rate=1MiB"] {
        let said = fail(&["serve", "--in-memory", option], 2);
        assert!(said.contains("--in-memory cannot be combined with"), "{said}");
    }
    let output = lazuli().args(["serve", "--in-memory"]).env("LAZULI_DATA", "d").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(fail(&["serve", "--memory-bytes=1MiB"], 2).contains("requires --in-memory"));
}
