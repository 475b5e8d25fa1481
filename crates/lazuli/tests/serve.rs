//! The server from an operator's view: start, health, configuration, stop.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use lazuli_account::DEVELOPMENT_KEY;
use lazuli_protocol::ServiceKind;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use support::{
    DEVELOPMENT_ACCOUNT, Server, eventually, fail, fail_to_serve, lazuli, read_reply, signed_head, text,
};

const PROPERTIES: &str = "/?restype=service&comp=properties";
const CORS: &str = "<StorageServiceProperties><Cors><CorsRule><AllowedOrigins>http://a.example</AllowedOrigins>\
     <AllowedMethods>GET</AllowedMethods><AllowedHeaders/><ExposedHeaders/><MaxAgeInSeconds>5</MaxAgeInSeconds>\
     </CorsRule></Cors></StorageServiceProperties>";

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn default_server_has_the_development_account_and_prints_a_connection_string() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data);
    let mut expected = format!(
        "DefaultEndpointsProtocol=http;AccountName={DEVELOPMENT_ACCOUNT};AccountKey={DEVELOPMENT_KEY};"
    );
    for (name, line) in [("Blob", "blob"), ("Queue", "queue"), ("Table", "table"), ("File", "file")] {
        assert!(server.ready[line].starts_with("http://127.0.0.1:"), "{}", server.ready[line]);
        expected += &format!("{name}Endpoint={};", server.ready[line]);
    }
    assert_eq!(server.ready["connect"], expected);
    assert_eq!(server.ready["data"], path(&data.canonicalize().unwrap()));
}

#[test]
fn console_serves_health_readiness_and_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert_eq!(server.console("/healthz"), (200, "ok\n".into()));
    assert_eq!(server.console("/readyz"), (200, "ready\n".into()));
    server.call(ServiceKind::Blob, "GET", PROPERTIES, "");
    let (status, metrics) = server.console("/metrics");
    assert_eq!(status, 200);
    assert!(
        metrics.contains("GetBlobServiceProperties") || metrics.contains("Get Blob Service Properties"),
        "{metrics}"
    );
}

#[test]
fn service_properties_are_set_for_each_service_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for service in ServiceKind::ALL {
        let fresh = server.call(service, "GET", PROPERTIES, "");
        assert_eq!(fresh.status, 200, "{}", fresh.text());
        assert!(!fresh.text().contains("a.example"), "{}", fresh.text());
        let set = server.call(service, "PUT", PROPERTIES, CORS);
        assert_eq!(set.status, 202, "{}", set.text());
    }
    server.stop();
    let server = Server::start(dir.path());
    for service in ServiceKind::ALL {
        let kept = server.call(service, "GET", PROPERTIES, "");
        assert!(kept.text().contains("http://a.example"), "{}", kept.text());
    }
}

#[test]
fn acknowledged_change_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert_eq!(server.call(ServiceKind::Queue, "PUT", PROPERTIES, CORS).status, 202);
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start(dir.path());
    assert!(server.call(ServiceKind::Queue, "GET", PROPERTIES, "").text().contains("http://a.example"));
}

#[test]
fn a_wrong_key_and_an_unknown_account_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    for account in [DEVELOPMENT_ACCOUNT, "stranger"] {
        let reply = server.call_as(account, "AAAA", ServiceKind::Blob, "GET", PROPERTIES, "");
        assert_eq!(reply.status, 403);
        assert!(reply.head.contains("x-ms-error-code: AuthenticationFailed"), "{}", reply.head);
    }
    let listed = server.call(ServiceKind::Blob, "GET", "/?comp=list", "");
    assert_eq!(listed.status, 200, "{}", listed.text());
}

#[test]
fn signal_stops_the_server_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path());
        server.signal(signal);
        let (status, log) = server.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(log.contains("stopped"), "{log}");
    }
}

#[test]
fn hang_up_signal_does_not_stop_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    server.signal(Signal::HUP);
    assert_eq!(server.call(ServiceKind::Blob, "GET", PROPERTIES, "").status, 200);
    let log = server.stop();
    assert!(log.contains("no certificate files and no access log are configured"), "{log}");
}

/// Sends the head of a request without its body, and waits until the server has read it.
fn half_a_request(server: &Server) -> TcpStream {
    let target = format!("/{DEVELOPMENT_ACCOUNT}{PROPERTIES}");
    let queue = ServiceKind::Queue;
    let head = signed_head(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, queue, "PUT", &target, CORS.len());
    let mut stream = TcpStream::connect(server.address("queue")).unwrap();
    write!(stream, "{head}Host: x\r\n\r\n").unwrap();
    stream.write_all(&CORS.as_bytes()[..10]).unwrap();
    eventually("the request has begun", || {
        let (_, metrics) = server.console("/metrics");
        let line = metrics.lines().find(|line| line.contains("in_flight") && line.contains("queue"));
        line.is_some_and(|line| line.ends_with(" 1"))
    });
    stream
}

#[test]
fn draining_finishes_requests_in_flight_and_reports_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let mut request = half_a_request(&server);
    server.signal(Signal::TERM);
    eventually("readiness reports the draining", || server.console("/readyz").0 == 503);
    assert!(server.console("/readyz").1.contains("draining"));
    request.write_all(&CORS.as_bytes()[10..]).unwrap();
    assert_eq!(read_reply(request).status, 202);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    let server = Server::start(dir.path());
    assert!(server.call(ServiceKind::Queue, "GET", PROPERTIES, "").text().contains("http://a.example"));
}

#[test]
fn second_signal_ends_the_server_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let _request = half_a_request(&server);
    server.signal(Signal::TERM);
    eventually("readiness reports the draining", || server.console("/readyz").0 == 503);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().0.code(), Some(1));
}

#[test]
fn serve_refuses_a_directory_in_use_or_of_unknown_format() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let said = fail_to_serve(&["--data", path(dir.path())]);
    assert!(said.contains("in use by another process (pid "), "{said}");
    server.stop();

    std::fs::write(dir.path().join("FORMAT"), "lazuli 99\n").unwrap();
    let said = fail_to_serve(&["--data", path(dir.path())]);
    assert!(said.contains("has format 99") && said.contains("newer"), "{said}");

    let foreign = tempfile::tempdir().unwrap();
    std::fs::write(foreign.path().join("thesis.txt"), "years of work").unwrap();
    let said = fail_to_serve(&["--data", path(foreign.path())]);
    assert!(said.contains("is not a Lazuli data directory"), "{said}");
}

#[test]
fn port_in_use_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = fail(&["serve", "--data", path(dir.path()), "--blob-port", &port], 1);
    assert!(said.contains(&format!("cannot listen on 127.0.0.1:{port} for blob")), "{said}");
}

#[test]
fn development_key_is_refused_for_other_machines_unless_explicitly_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let everywhere = ["--data", path(dir.path()), "--host", "0.0.0.0"];
    let said = fail_to_serve(&everywhere);
    assert!(said.contains("well-known development key") && said.contains("--insecure-dev-key"), "{said}");

    // The refused start stored no account, so a start with a configured account needs no flag.
    let mine = ["--host", "0.0.0.0", "--account", "mine:c2VjcmV0"];
    let server = Server::start_with(dir.path(), &mine, &[]);
    assert_eq!(server.call_as("mine", "c2VjcmV0", ServiceKind::Blob, "GET", PROPERTIES, "").status, 200);
    assert!(!server.ready["connect"].contains("c2VjcmV0"), "a key must not get into a log");
    let said = fail(&["account", "add", "open", "--key", DEVELOPMENT_KEY, "--data", path(dir.path())], 1);
    assert!(said.contains("well-known development key"), "{said}");
    server.stop();
    let known = format!("mine:{DEVELOPMENT_KEY}");
    assert!(fail_to_serve(&[&everywhere[..], &["--account", &known]].concat()).contains("account mine has"));

    // If the account is already stored, the message names a remedy that works.
    let dir = tempfile::tempdir().unwrap();
    Server::start(dir.path()).stop();
    let everywhere = ["--data", path(dir.path()), "--host", "0.0.0.0", "--account", "mine:c2VjcmV0"];
    let said = fail_to_serve(&everywhere);
    assert!(!said.contains("account remove"), "the way out keeps the data: {said}");
    let server = Server::start_with(dir.path(), &["--host", "0.0.0.0", "--insecure-dev-key"], &[]);
    assert_eq!(server.call(ServiceKind::Blob, "PUT", "/kept?restype=container", "").status, 201);
    server.stop();
    let named = format!("lazuli account rotate-key devstoreaccount1 --data {}", path(dir.path()));
    assert!(said.contains(&named), "{said}");
    let arguments: Vec<_> = named.split(' ').skip(1).chain(["--json"]).collect();
    let rotated: serde_json::Value = serde_json::from_str(&support::succeed(&arguments)).unwrap();
    let key = rotated[0]["keys"][0].as_str().unwrap();
    let server = Server::start_with(dir.path(), &mine, &[]);
    let kept = "/kept?restype=container";
    assert_eq!(server.call_as(DEVELOPMENT_ACCOUNT, key, ServiceKind::Blob, "GET", kept, "").status, 200);
    server.stop();
}

#[test]
fn accounts_are_read_from_flags_or_azurite_accounts() {
    let dir = tempfile::tempdir().unwrap();
    let azurite = [("AZURITE_ACCOUNTS", "account1:a2V5MQ==:a2V5Mg==;account2:a2V5Mw==")];
    let server = Server::start_with(dir.path(), &[], &azurite);
    let status = |server: &Server, account, key| {
        server.call_as(account, key, ServiceKind::Table, "GET", PROPERTIES, "").status
    };
    for (account, key, expected) in [
        ("account1", "a2V5MQ==", 200),
        ("account1", "a2V5Mg==", 200),
        ("account1", "a2V5Mw==", 403),
        ("account2", "a2V5Mw==", 200),
        (DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, 403),
    ] {
        assert_eq!(status(&server, account, key), expected, "{account} {key}");
    }
    server.stop();

    // Configured keys replace stored ones; other accounts stay.
    let server = Server::start_with(dir.path(), &["--account", "account1:bmV3"], &azurite);
    for (account, key, expected) in
        [("account1", "bmV3", 200), ("account1", "a2V5MQ==", 403), ("account2", "a2V5Mw==", 200)]
    {
        assert_eq!(status(&server, account, key), expected, "{account} {key}");
    }
    server.stop();
}

#[test]
fn variables_and_flags_override_the_configuration_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("lazuli.toml");
    let data = dir.path().join("data");
    let toml = format!(
        "data = '{}'\nblob-port = 0\nqueue-port = 'off'\ntable-port = 'off'\nfile-port = 'off'\nsmb-port = 'off'\nconsole-port = 'off'\n\
         account = ['fromfile:a2V5']\nlog = 'text'\nlog-level = 'info'\n",
        path(&data)
    );
    std::fs::write(&config, toml).unwrap();
    let mut command = lazuli();
    command.args(["serve", "--config", path(&config), "--queue-port=0"]);
    command.env("LAZULI_LOG", "json").env("LAZULI_TABLE_PORT", "0").env("LAZULI_ACCESS_LOG", "stderr");
    let server = Server::spawn(&mut command);
    let mut lines: Vec<_> = server.ready.keys().map(String::as_str).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["Lazuli", "blob", "connect", "data", "queue", "table"]);
    assert_eq!(server.call_as("fromfile", "a2V5", ServiceKind::Blob, "GET", PROPERTIES, "").status, 200);
    let log = server.stop();
    let access = log.lines().find(|line| line.contains("\"total_us\":")).unwrap_or_else(|| panic!("{log}"));
    assert!(access.contains("\"account\":\"fromfile\"") && access.contains("\"status\":200"), "{access}");
    assert!(!log.contains("SharedKey"), "{log}");
}

#[test]
fn requests_have_lines_only_in_the_access_log_which_a_signal_reopens() {
    let dir = tempfile::tempdir().unwrap();
    let (data, old) = (dir.path().join("data"), dir.path().join("access.log.1"));
    let access = dir.path().join("access.log");
    let server = Server::start_with(&data, &["--access-log", path(&access)], &[]);
    let lines = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(server.call(ServiceKind::Queue, "PUT", "/before", "").status, 201);
    std::fs::rename(&access, &old).unwrap();
    server.signal(Signal::HUP);
    support::eventually("the file is created again", || access.exists());
    assert_eq!(server.call(ServiceKind::Queue, "PUT", "/after", "").status, 201);
    let log = server.stop();
    let (before, after) = (lines(&old), lines(&access));
    assert!(before.contains("/before ") && !before.contains("/after"), "{before}");
    assert!(after.contains(" path=/devstoreaccount1/after status=201 "), "{after}");
    assert!(!log.contains("/before") && !log.contains("/after") && !log.contains('\u{1b}'), "{log}");
    assert!(log.contains("reopened the access log"), "{log}");
    // Lower layers are silent at INFO.
    for line in log.lines().filter(|line| line.contains(" INFO ")) {
        assert!(line.contains(" lazuli::") || line.contains(" lazuli_telemetry::"), "{line}");
    }
    let said =
        fail_to_serve(&["--data", path(&dir.path().join("other")), "--access-log", "/no/such/dir/log"]);
    assert!(said.contains("--access-log: /no/such/dir/log: "), "{said}");
    assert!(!dir.path().join("other").exists());
}

#[test]
fn invalid_arguments_exit_with_2_and_help_with_0() {
    for arguments in [
        &["serve", "--blob-port", "seventy"][..],
        &["serve", "--no-such-flag"],
        &["serve", "--dfs-port", "10004"],
        &["serve", "--config", "/no/such/file"],
        &["serve", "--tls-cert", "x"],
        &["dance"],
        &[],
    ] {
        let said = fail(arguments, 2);
        assert!(!said.is_empty(), "{arguments:?}");
    }
    assert!(fail(&["serve", "--dfs-port", "10004"], 2).contains("not served by this version"));
    let help = support::succeed(&["serve", "--help"]);
    assert!(help.contains("LAZULI_BLOB_PORT") && help.contains("[default: 10000]"), "{help}");
}

#[test]
fn created_files_are_accessible_only_to_their_user() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data);
    for (entry, mode) in [("", 0o700), ("control.sock", 0o600), ("store", 0o700), ("FORMAT", 0o600)] {
        let found = std::fs::metadata(data.join(entry)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{entry:?} has {found:o}");
    }
    let log = server.stop();
    assert!(!data.join("control.sock").exists(), "{log}");
    assert!(!text(log.as_bytes()).is_empty());
}

#[test]
fn keys_stay_out_of_core_dumps() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
    server.stop();
}

#[test]
fn keys_in_the_environment_are_hidden_from_processes_of_the_same_user() {
    const UNPRIVILEGED: u32 = 65534;
    let dir = tempfile::tempdir().unwrap();
    let mut command = support::lazuli();
    // Root may read everything, so the server has to be another user's.
    if rustix::process::geteuid().is_root() {
        let program = dir.path().join("lazuli");
        std::fs::copy(env!("CARGO_BIN_EXE_lazuli"), &program).unwrap();
        for path in [dir.path(), &program] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        command = std::process::Command::new(program);
        command.env_clear().uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    command.args(["serve", "--in-memory"]).args(support::FREE_PORTS).current_dir(dir.path());
    command.env("LAZULI_ACCOUNT", "alpha:a2V5").stdout(std::process::Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let owner = |file: &str| std::fs::metadata(format!("/proc/{}{file}", server.id())).unwrap().uid();
    let owners = ["/environ", "/mem"].map(owner);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(line.contains("is ready"), "{line}");
    assert!(!status.contains("Uid:\t0\t"), "{status}");
    assert_eq!(owners, [0, 0], "root's");
}

#[test]
fn sweeps_run_on_a_separate_low_priority_thread() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let mut found = vec![];
    for thread in std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap() {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        let (name, fields) = stat.split_once('(').unwrap().1.rsplit_once(") ").unwrap();
        // `fields` begins with the state, the third field; nice is the 19th.
        found.push((name.to_owned(), fields.split(' ').nth(16).unwrap().parse::<i32>().unwrap()));
    }
    assert!(found.iter().any(|(name, nice)| name == "lazuli-chores" && *nice >= 10), "{found:?}");
}

#[test]
fn the_log_is_colored_on_a_terminal_unless_no_color_is_set() {
    for (no_color, is_colored) in [("", true), ("1", false)] {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, vec![]).unwrap().into_string().unwrap();
        let client = File::options().read(true).write(true).open(name).unwrap();
        let mut command = lazuli();
        command.args(["serve", "--in-memory"]).args(support::FREE_PORTS);
        command.env("NO_COLOR", no_color).env("TERM", "xterm").stdout(Stdio::piped()).stderr(client);
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_ready = |line: &str| line.trim().starts_with("connect");
        while !lines.next().is_some_and(|line| is_ready(&line.unwrap())) {}
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        // Reading a terminal that all clients have closed fails.
        let (mut log, mut terminal) = (vec![], File::from(terminal));
        let _ = terminal.read_to_end(&mut log);
        assert!(child.wait().unwrap().success());
        let log = text(&log);
        assert!(log.contains("draining") && log.contains('\u{1b}') == is_colored, "{no_color:?}: {log:?}");
    }
}
