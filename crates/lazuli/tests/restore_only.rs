//! `lazuli restore --only`: restores one container, table, queue or share of a backup into a running server
//! under a new name.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lazuli_protocol::ServiceKind;
use lazuli_torture::{Fault, FaultKind, LossyFs, PathFilter};
use rustix::fs::{FileType, Mode};
use rustix::process::Signal;
use support::{DEVELOPMENT_ACCOUNT as ACCOUNT, Reply, Server, eventually, fail, lazuli, noise, succeed};

const MIB: usize = 1 << 20;
const JSON: &str = "Content-Type: application/json\nAccept: application/json;odata=nometadata";
const BLOB: &str = "x-ms-blob-type: BlockBlob";

fn sent(
    server: &Server,
    service: ServiceKind,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Reply {
    let reply = server.send(service, method, path, headers, body);
    assert!((200..300).contains(&reply.status), "{method} {path}: {} {}", reply.status, reply.text());
    reply
}

fn header(reply: &Reply, name: &str) -> Option<String> {
    reply.head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

fn restore(data: &Path, backups: &Path, only: &str, name: &str) -> String {
    let (data, backups) = (data.to_str().unwrap(), backups.to_str().unwrap());
    succeed(&["restore", "--from", backups, "--data", data, "--only", only, "--as", name])
}

#[test]
fn each_kind_is_restored_under_a_new_name_next_to_its_current_state() {
    let dir = tempfile::tempdir().unwrap();
    let (data, backups) = (dir.path().join("data"), dir.path().join("backups"));
    let (blob, table, queue, file) =
        (ServiceKind::Blob, ServiceKind::Table, ServiceKind::Queue, ServiceKind::File);
    let server = Server::start(&data);

    sent(&server, blob, "PUT", "/con?restype=container", "x-ms-meta-owner: me", b"");
    let large = sent(
        &server,
        blob,
        "PUT",
        "/con/large",
        &format!("{BLOB}\nx-ms-meta-a: b\nx-ms-tags: k=v"),
        &noise(1, 3 * MIB),
    );
    let snapshot = sent(&server, blob, "PUT", "/con/large?comp=snapshot", "", b"");
    let snapshot = header(&snapshot, "x-ms-snapshot").unwrap();
    sent(&server, blob, "PUT", "/con/small", BLOB, b"small");
    let lease = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    sent(&server, blob, "PUT", "/con/small?comp=lease", lease, b"");
    sent(&server, blob, "PUT", "/con?restype=container&comp=lease", lease, b"");

    sent(&server, table, "POST", "/Tables", JSON, b"{\"TableName\":\"Events\"}");
    for n in 0..300 {
        let entity = format!("/Events(PartitionKey='{}',RowKey='{n}')", n % 3);
        sent(&server, table, "PUT", &entity, JSON, format!("{{\"N\":{n}}}").as_bytes());
    }
    sent(&server, queue, "PUT", "/jobs", "x-ms-meta-kind: urgent", b"");
    for n in 0..40 {
        let message = format!("<QueueMessage><MessageText>job-{n}</MessageText></QueueMessage>");
        sent(&server, queue, "POST", "/jobs/messages", "", message.as_bytes());
    }
    sent(&server, file, "PUT", "/docs?restype=share", "x-ms-meta-team: a", b"");
    sent(&server, file, "PUT", "/docs/dir?restype=directory", "", b"");
    let permission = "x-ms-file-permission: O:SYG:SYD:(A;;FA;;;SY)";
    let head = format!("x-ms-type: file\nx-ms-content-length: 100000\n{permission}");
    let made = sent(&server, file, "PUT", "/docs/dir/report", &head, b"");
    let permission_key = header(&made, "x-ms-file-permission-key").unwrap();
    let range = "x-ms-write: update\nx-ms-range: bytes=0-99999";
    sent(&server, file, "PUT", "/docs/dir/report?comp=range", range, &noise(2, 100_000));
    let share_snapshot = sent(&server, file, "PUT", "/docs?restype=share&comp=snapshot", "", b"");
    let share_snapshot = header(&share_snapshot, "x-ms-snapshot").unwrap();
    sent(&server, file, "PUT", "/docs/dir/report?comp=range", range, &noise(3, 100_000));
    sent(&server, file, "PUT", "/docs/dir/report?comp=lease", lease, b"");

    succeed(&["backup", "--data", data.to_str().unwrap(), "--to", backups.to_str().unwrap()]);

    // Change every object after the backup.
    sent(&server, blob, "PUT", "/con/large", BLOB, b"new");
    sent(&server, table, "DELETE", "/Tables('Events')", JSON, b"");
    sent(&server, queue, "DELETE", "/jobs/messages", "", b"");
    sent(&server, file, "PUT", "/docs/dir/report?comp=lease", "x-ms-lease-action: break", b"");
    sent(&server, file, "DELETE", "/docs/dir/report", "", b"");

    restore(&data, &backups, &format!("container:{ACCOUNT}/con"), "con2");
    let found = sent(&server, blob, "GET", "/con2/large", "", b"");
    assert!(found.body == noise(1, 3 * MIB));
    assert_eq!(header(&found, "etag"), header(&large, "etag"));
    assert_eq!(header(&found, "x-ms-meta-a").as_deref(), Some("b"));
    let old = sent(&server, blob, "GET", &format!("/con2/large?snapshot={snapshot}"), "", b"");
    assert!(old.body == noise(1, 3 * MIB));
    let tags = sent(&server, blob, "GET", "/con2/large?comp=tags", "", b"").text();
    assert!(tags.contains("<Key>k</Key><Value>v</Value>"), "{tags}");
    // A restore drops leases, because their holders do not know the copy.
    sent(&server, blob, "PUT", "/con2/small", BLOB, b"changed");
    let container = sent(&server, blob, "GET", "/con2?restype=container", "", b"");
    assert_eq!(header(&container, "x-ms-lease-state").as_deref(), Some("available"));
    assert_eq!(header(&container, "x-ms-meta-owner").as_deref(), Some("me"));
    assert_eq!(sent(&server, blob, "GET", "/con/large", "", b"").body, b"new");

    restore(&data, &backups, &format!("table:{ACCOUNT}/Events"), "Events2");
    for n in 0..300 {
        let entity = format!("/Events2(PartitionKey='{}',RowKey='{n}')", n % 3);
        let found = sent(&server, table, "GET", &entity, JSON, b"").text();
        assert!(found.contains(&format!("\"N\":{n}")), "{found}");
    }
    restore(&data, &backups, &format!("queue:{ACCOUNT}/jobs"), "jobs2");
    let count = sent(&server, queue, "GET", "/jobs2?comp=metadata", "", b"");
    assert_eq!(header(&count, "x-ms-approximate-messages-count").as_deref(), Some("40"));
    assert_eq!(header(&count, "x-ms-meta-kind").as_deref(), Some("urgent"));
    let messages = sent(&server, queue, "GET", "/jobs2/messages?numofmessages=32", "", b"").text();
    assert_eq!(messages.matches("<MessageText>job-").count(), 32, "{messages}");

    restore(&data, &backups, &format!("share:{ACCOUNT}/docs"), "docs2");
    let found = sent(&server, file, "GET", "/docs2/dir/report", "", b"");
    assert!(found.body == noise(3, 100_000));
    assert_eq!(header(&found, "x-ms-file-permission-key"), Some(permission_key.clone()));
    let path = "/docs2?restype=share&comp=filepermission";
    let permission =
        sent(&server, file, "GET", path, &format!("x-ms-file-permission-key: {permission_key}"), b"");
    assert!(permission.text().contains("(A;;FA;;;SY)"), "{}", permission.text());
    let old =
        sent(&server, file, "GET", &format!("/docs2/dir/report?sharesnapshot={share_snapshot}"), "", b"");
    assert!(old.body == noise(2, 100_000), "the snapshot has the content at the backup");
    sent(&server, file, "DELETE", "/docs2/dir/report", "", b"");

    let (data_text, backups_text) = (data.to_str().unwrap(), backups.to_str().unwrap());
    for (only, name, why) in [
        (format!("container:{ACCOUNT}/con"), "con2", "already exists"),
        (format!("container:{ACCOUNT}/none"), "con3", "the backup has no container none"),
        ("container:missing/con".to_owned(), "con3", "the backup has no account missing"),
        (format!("container:{ACCOUNT}/con"), "missing/con3", "there is no account missing"),
    ] {
        let said =
            fail(&["restore", "--from", backups_text, "--data", data_text, "--only", &only, "--as", name], 1);
        assert!(said.to_lowercase().contains(why), "{said}");
    }
    server.stop();
    assert!(succeed(&["check", data_text]).contains("no damage found"));
    let server = Server::start(&data);
    assert!(sent(&server, blob, "GET", "/con2/large", "", b"").body == noise(1, 3 * MIB));
    server.stop();
}

/// Finds the chunk with these bytes in a folder of backups.
fn chunk_with(backups: &Path, needle: &[u8]) -> PathBuf {
    let folders = std::fs::read_dir(backups.join("chunks")).unwrap().map(|folder| folder.unwrap().path());
    let files = folders.filter(|path| path.is_dir()).flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let mut files = files.map(|file| file.unwrap().path());
    let holds =
        |path: &PathBuf| std::fs::read(path).unwrap().windows(needle.len()).any(|window| window == needle);
    files.find(holds).unwrap()
}

#[test]
fn killed_restore_leaves_no_trace_and_its_space_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let (data, backups) = (dir.path().join("data"), dir.path().join("backups"));
    let (data_text, backups_text) = (data.to_str().unwrap(), backups.to_str().unwrap());
    let blob = ServiceKind::Blob;
    let server = Server::start(&data);
    sent(&server, blob, "PUT", "/con?restype=container", "", b"");
    for n in 0..24 {
        sent(&server, blob, "PUT", &format!("/con/{n}"), BLOB, &noise(n, 2 * MIB));
    }
    succeed(&["backup", "--data", data_text, "--to", backups_text]);
    let metric = |server: &Server, name: &str| -> f64 {
        let (_, text) = server.console("/metrics");
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let only = format!("container:{ACCOUNT}/con");
    let rows = "lazuli_rows ";
    // A client that reads this chunk blocks in the middle of the restore.
    let chunk = chunk_with(&backups, &noise(20, 2 * MIB)[MIB..MIB + 64]);
    let aside = chunk.with_extension("aside");
    std::fs::rename(&chunk, &aside).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &chunk, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let before = metric(&server, rows);
    let spawn = || {
        let mut command = lazuli();
        command.args([
            "restore",
            "--from",
            backups_text,
            "--data",
            data_text,
            "--only",
            &only,
            "--as",
            "con2",
        ]);
        command.spawn().unwrap()
    };
    let is_visible =
        |server: &Server| server.send(blob, "GET", "/con2?restype=container", "", b"").status != 404;

    // Kill the client.
    let mut child = spawn();
    eventually("rows arrive", || metric(&server, rows) >= before + 4.0);
    assert!(!is_visible(&server));
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the sweep removes the rows", || metric(&server, rows) <= before);
    assert!(!is_visible(&server));

    // Kill the server.
    let mut child = spawn();
    eventually("rows arrive", || metric(&server, rows) >= before + 4.0);
    server.signal(Signal::KILL);
    server.wait();
    child.kill().unwrap();
    child.wait().unwrap();
    let server = Server::start(&data);
    assert!(!is_visible(&server));
    eventually("the sweep removes the rows", || metric(&server, rows) <= before);
    std::fs::rename(&aside, &chunk).unwrap();
    restore(&data, &backups, &only, "con2");
    for n in 0..24 {
        assert!(sent(&server, blob, "GET", &format!("/con2/{n}"), "", b"").body == noise(n, 2 * MIB), "{n}");
    }
    server.stop();
    assert!(succeed(&["check", data_text]).contains("no damage found"));
}

#[test]
fn sweep_during_a_restore_frees_none_of_its_content() {
    if !lazuli_torture::require() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (original, data, backups) =
        (dir.path().join("original"), dir.path().join("data"), dir.path().join("backups"));
    let blob = ServiceKind::Blob;
    let server = Server::start(&original);
    sent(&server, blob, "PUT", "/con?restype=container", "", b"");
    sent(&server, blob, "PUT", "/con/blob", BLOB, &noise(1, 32 * MIB));
    succeed(&["backup", "--data", original.to_str().unwrap(), "--to", backups.to_str().unwrap()]);
    server.stop();

    // The other server's content is on a separate disk whose syncs can be held up.
    Server::start(&data).stop();
    let disk = LossyFs::mount_temporary().unwrap();
    std::fs::remove_dir_all(data.join("segments")).unwrap();
    std::os::unix::fs::symlink(disk.path(), data.join("segments")).unwrap();
    let server = Server::start(&data);
    // Begin a segment first, so that the next sync is the one before the last commit.
    sent(&server, blob, "PUT", "/first?restype=container", "", b"");
    sent(&server, blob, "PUT", "/first/blob", BLOB, &noise(2, MIB));

    let held = disk.fault(Fault::always(FaultKind::HeldSync, PathFilter::Files("/".into())));
    let sweeps = || {
        let (_, text) = server.console("/metrics");
        let count = text.lines().find_map(|line| line.strip_prefix("lazuli_sweeps_total "));
        count.unwrap().parse::<u64>().unwrap()
    };
    std::thread::scope(|scope| {
        let restoring = scope.spawn(|| restore(&data, &backups, &format!("container:{ACCOUNT}/con"), "con2"));
        eventually("the content is stored and its sync waits", || disk.struck(held) > 0);
        // Write enough content for a sweep. A sweep that frees content also waits for the disk, so it may not
        // end.
        let before = sweeps();
        scope.spawn(|| sent(&server, blob, "PUT", "/first/more", BLOB, &noise(3, 32 * MIB)));
        let until = Instant::now() + Duration::from_secs(3);
        while sweeps() == before && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        disk.heal(held);
        restoring.join().unwrap();
    });
    assert!(sent(&server, blob, "GET", "/con2/blob", "", b"").body == noise(1, 32 * MIB));
    server.stop();
    assert!(succeed(&["check", data.to_str().unwrap()]).contains("no damage found"));
}
