//! `lazuli account` on a running server and on a stopped one.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use lazuli_account::DEVELOPMENT_KEY;
use lazuli_protocol::ServiceKind;
use serde_json::Value;
use support::{DEVELOPMENT_ACCOUNT, Server, fail, succeed};

const PROPERTIES: &str = "/?restype=service&comp=properties";

fn account(data: &Path, arguments: &[&str]) -> Value {
    let mut all = vec!["account"];
    all.extend(arguments);
    all.extend(["--json", "--data", data.to_str().unwrap()]);
    serde_json::from_str(&succeed(&all)).unwrap()
}

fn names(accounts: &Value) -> Vec<&str> {
    accounts.as_array().unwrap().iter().map(|account| account["name"].as_str().unwrap()).collect()
}

/// Adds, changes and removes an account. `status` returns the reply's status for a key, if a server runs.
fn account_lifecycle(data: &Path, status: impl Fn(&str, Option<u16>)) {
    let added = account(data, &["add", "alpha"]);
    let keys: Vec<_> = added[0]["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
    assert_eq!(keys.len(), 2);
    status(keys[0], Some(200));
    status(keys[1], Some(200));

    let rotated = account(data, &["rotate-key", "alpha", "--key", "2"]);
    let new = rotated[0]["keys"][1].as_str().unwrap();
    assert_ne!(new, keys[1]);
    status(new, Some(200));
    status(keys[0], Some(200));
    status(keys[1], Some(403));

    let changes = [
        "set",
        "alpha",
        "--blob-versioning",
        "on",
        "--container-soft-delete",
        "7",
        "--role",
        "me=blob:owner",
    ];
    let set = account(data, &changes);
    assert_eq!(set[0]["settings"]["blob_versioning"], true);
    assert_eq!(set[0]["settings"]["container_delete_retention_days"], 7);
    assert!(set[0].get("keys").is_none(), "{set}");
    account(data, &["set", "alpha", "--disabled", "on"]);
    status(keys[0], Some(403));
    account(data, &["set", "alpha", "--disabled", "off"]);
    status(keys[0], Some(200));

    let listed = account(data, &["list", "--keys"]);
    assert_eq!(listed[0]["keys"][1], new);
    assert_eq!(listed[0]["roles"][0]["subject"], "me");
    assert!(account(data, &["list"])[0].get("keys").is_none());

    account(data, &["remove", "alpha"]);
    status(keys[0], Some(403));
    assert!(!names(&account(data, &["list"])).contains(&"alpha"));
}

#[test]
fn running_server_applies_account_changes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert_eq!(names(&account(dir.path(), &["list"])), [DEVELOPMENT_ACCOUNT]);
    account_lifecycle(dir.path(), |key, expected| {
        let reply = server.call_as("alpha", key, ServiceKind::Blob, "GET", PROPERTIES, "");
        assert_eq!(Some(reply.status), expected, "{}", reply.text());
    });
    assert_eq!(names(&account(dir.path(), &["list"])), [DEVELOPMENT_ACCOUNT]);
}

#[test]
fn account_changes_offline_apply_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    account(&data, &["add", "first", "--create-data"]);
    account(&data, &["remove", "first"]);
    account_lifecycle(&data, |_, _| ());
    account(&data, &["add", "beta", "--key", "a2V5"]);
    let server = Server::start(&data);
    assert_eq!(server.call_as("beta", "a2V5", ServiceKind::File, "GET", PROPERTIES, "").status, 200);
    let development =
        server.call_as(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, ServiceKind::File, "GET", PROPERTIES, "");
    assert_eq!(development.status, 403, "with another account, the development account is not created");
}

#[test]
fn invalid_account_commands_fail_without_changes() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").to_str().unwrap().to_owned();
    let data = data.as_str();
    let none = fail(&["account", "list", "--data", data], 1);
    assert!(none.contains("is not a Lazuli data directory"), "{none}");
    assert!(!Path::new(data).exists(), "only `add` creates a directory");

    let _server = Server::start(Path::new(data));
    for (arguments, code, expected) in [
        (&["add", DEVELOPMENT_ACCOUNT][..], 1, "already"),
        (&["add", "Not-A-Name"], 1, "lower-case"),
        (&["add", "alpha", "--key", "***"], 2, "not Base64"),
        (&["set", "nobody", "--disabled", "on"], 1, "no account"),
        (&["set", DEVELOPMENT_ACCOUNT], 2, "required"),
        (&["set", DEVELOPMENT_ACCOUNT, "--container-soft-delete", "400"], 1, "365"),
        (&["rotate-key", "nobody"], 1, "no account"),
        (&["rotate-key", DEVELOPMENT_ACCOUNT, "--key", "3"], 2, "key 1 and a key 2"),
        (&["remove", "nobody"], 1, "no account"),
    ] {
        let mut all = vec!["account", "--data", data];
        all.extend(arguments);
        let said = fail(&all, code);
        assert!(said.contains(expected) && !said.contains("***"), "{arguments:?}: {said}");
    }
    assert_eq!(names(&account(Path::new(data), &["list"])), [DEVELOPMENT_ACCOUNT]);
}

/// Stores an object in each service; returns what requests for them answer.
fn fill(server: &Server, alpha: (&str, &str)) {
    let send = |service, method: &str, path: &str, headers: &str, body: &[u8]| {
        let reply = server.send_as(alpha, service, method, path, headers, body);
        assert!((200..300).contains(&reply.status), "{method} {path}: {}", reply.text());
    };
    send(ServiceKind::Blob, "PUT", "/con?restype=container", "", b"");
    send(ServiceKind::Blob, "PUT", "/con/blob", "x-ms-blob-type: BlockBlob", &[7; 100_000]);
    send(ServiceKind::Blob, "PUT", "/con/other", "x-ms-blob-type: BlockBlob", b"small");
    send(ServiceKind::Queue, "PUT", "/queue1", "", b"");
    let message = b"<QueueMessage><MessageText>x</MessageText></QueueMessage>";
    send(ServiceKind::Queue, "POST", "/queue1/messages", "", message);
    let json = "Content-Type: application/json\nAccept: application/json";
    send(ServiceKind::Table, "POST", "/Tables", json, b"{\"TableName\":\"things\"}");
    send(ServiceKind::Table, "POST", "/things", json, b"{\"PartitionKey\":\"p\",\"RowKey\":\"r\"}");
    send(ServiceKind::File, "PUT", "/share1?restype=share", "", b"");
    send(ServiceKind::File, "PUT", "/share1/dir?restype=directory", "", b"");
    assert_is_there(server, alpha);
}

fn assert_is_there(server: &Server, alpha: (&str, &str)) {
    for (service, path, part) in [
        (ServiceKind::Blob, "/con/other", "small"),
        (ServiceKind::Queue, "/queue1/messages?peekonly=true", "<MessageText>x<"),
        (ServiceKind::Table, "/things(PartitionKey='p',RowKey='r')", "RowKey"),
        (ServiceKind::File, "/share1?restype=directory&comp=list", "<Name>dir<"),
    ] {
        let headers = if service == ServiceKind::Table { "Accept: application/json" } else { "" };
        let reply = server.send_as(alpha, service, "GET", path, headers, b"");
        assert!(reply.status == 200 && reply.text().contains(part), "{path}: {}", reply.text());
    }
}

#[test]
fn an_account_with_data_is_removed_only_on_request_and_can_be_restored() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let server = Server::start(dir.path());
    succeed(&["account", "add", "alpha", "--key", "a2V5", "--data", data]);
    let alpha = ("alpha", "a2V5");
    fill(&server, alpha);
    let remove = ["account", "remove", "alpha", "--data", data];
    let refused = fail(&remove, 1);
    for part in [
        "1 container with 2 blobs",
        "1 queue with 1 message,",
        "1 table with 1 entity",
        "1 share with 1 file or directory",
        "KiB in all",
        "--delete-data",
        "lazuli account restore alpha",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_is_there(&server, alpha);

    let removed = support::run(&[&remove[..], &["--delete-data"]].concat());
    let note = support::text(&removed.stderr);
    assert!(removed.status.success() && note.contains("1 container with 2 blobs"), "{note}");
    assert!(note.contains("lazuli account restore alpha restores it"), "{note}");
    assert_eq!(server.send_as(alpha, ServiceKind::Blob, "GET", "/con/other", "", b"").status, 403);
    let listed = succeed(&["account", "list", "--removed", "--data", data]);
    assert!(listed.starts_with("NAME ") && listed.contains("\nalpha "), "{listed}");
    // Another account of that name sees nothing of it, and keeps it from being restored.
    succeed(&["account", "add", "alpha", "--key", "a2V5", "--data", data]);
    assert_eq!(server.send_as(alpha, ServiceKind::Blob, "GET", "/con/other", "", b"").status, 404);
    let in_use = fail(&["account", "restore", "alpha", "--data", data], 1);
    assert!(in_use.contains("remove this one first, then add --removed 20"), "{in_use}");
    let (_, when) = in_use.split_once("--removed ").unwrap();
    let when = when.split(' ').next().unwrap();
    // The times of both removals must differ, and they have whole seconds.
    std::thread::sleep(std::time::Duration::from_secs(1));
    succeed(&remove);
    // The sweeps of a start leave it alone too.
    server.stop();
    let server = Server::start(dir.path());
    let swept = |server: &Server| {
        let (_, metrics) = server.console("/metrics");
        let line =
            metrics.lines().find(|line| line.starts_with("lazuli_chore_seconds_count{chore=\"deleted_cont"));
        line.is_some_and(|line| !line.ends_with(" 0"))
    };
    support::eventually("a sweep has ended", || swept(&server));
    let several = fail(&["account", "restore", "alpha", "--data", data], 1);
    assert!(several.contains("2 removed accounts") && several.contains(when), "{several}");
    let never = fail(&["account", "restore", "alpha", "--removed", "2020-01-01", "--data", data], 1);
    assert!(never.contains("no account alpha was removed at 2020-01-01"), "{never}");
    // The account with data is the older one.
    succeed(&["account", "restore", "alpha", "--removed", when, "--data", data]);
    assert_is_there(&server, alpha);
    succeed(&[&remove[..], &["--delete-data"]].concat());
    server.stop();
    // On a stopped server, the commands are the same.
    let refused = fail(&["account", "restore", "beta", "--data", data], 1);
    assert!(refused.contains("no removed account \"beta\""), "{refused}");
    let removed: Value =
        serde_json::from_str(&succeed(&["account", "list", "--removed", "--json", "--data", data])).unwrap();
    assert_eq!(removed.as_array().unwrap().len(), 2, "{removed}");
}

#[test]
fn a_removed_account_comes_back_with_its_keys_settings_and_data() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let server = Server::start(dir.path());
    succeed(&["account", "add", "alpha", "--key", "a2V5", "--data", data]);
    succeed(&["account", "set", "alpha", "--blob-versioning", "on", "--data", data]);
    let alpha = ("alpha", "a2V5");
    fill(&server, alpha);
    server.stop();
    // Removed while the server is stopped, and restored while it runs.
    succeed(&["account", "remove", "alpha", "--delete-data", "--data", data]);
    let server = Server::start(dir.path());
    assert_eq!(server.send_as(alpha, ServiceKind::Blob, "GET", "/con/other", "", b"").status, 403);
    let restored = account(dir.path(), &["restore", "alpha"]);
    assert_eq!(restored[0]["settings"]["blob_versioning"], true);
    assert_is_there(&server, alpha);
    // Without the time to think about it, the data is gone at once.
    succeed(&["account", "remove", "alpha", "--delete-data", "--immediately", "--data", data]);
    let gone = fail(&["account", "restore", "alpha", "--data", data], 1);
    assert!(gone.contains("no removed account"), "{gone}");
    server.stop();
    assert!(succeed(&["check", data]).contains("no damage found"));
}

#[test]
fn the_development_account_stays_removed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    Server::start(dir.path()).stop();
    succeed(&["account", "remove", DEVELOPMENT_ACCOUNT, "--data", data]);
    let server = Server::start(dir.path());
    assert!(server.ready["accounts"].contains("lazuli account add NAME"), "{:?}", server.ready);
    assert_eq!(names(&account(dir.path(), &["list"])), [""; 0]);
    let reply = server.call(ServiceKind::Blob, "GET", PROPERTIES, "");
    assert_eq!(reply.status, 403, "{}", reply.text());
    account(dir.path(), &["restore", DEVELOPMENT_ACCOUNT]);
    assert_eq!(server.call(ServiceKind::Blob, "GET", PROPERTIES, "").status, 200);
    assert!(server.stop().contains("there is no account"));
}

#[test]
fn accounts_of_the_configuration_are_shown_as_such_and_stay_when_they_leave_it() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let origins = || {
        let listed = account(dir.path(), &["list"]);
        let origin = |account: &Value| account["settings"]["origin"].as_str().unwrap().to_owned();
        listed.as_array().unwrap().iter().map(origin).collect::<Vec<_>>()
    };
    let azurite = [("AZURITE_ACCOUNTS", "alpha:a2V5;beta:a2V5")];
    let server = Server::start_with(dir.path(), &[], &azurite);
    succeed(&["account", "add", "gamma", "--data", data]);
    assert_eq!(origins(), ["configuration", "configuration", "command"]);
    let listed = succeed(&["account", "list", "--data", data]);
    assert!(listed.contains("alpha  enabled  configuration"), "{listed}");
    server.stop();
    let server = Server::start_with(dir.path(), &["--account", "alpha:a2V5"], &[]);
    assert_eq!(origins(), ["configuration", "former-configuration", "command"]);
    assert_eq!(server.call_as("beta", "a2V5", ServiceKind::Blob, "GET", PROPERTIES, "").status, 200);
    let removed = support::run(&["account", "remove", "alpha", "--data", data]);
    let note = support::text(&removed.stderr);
    assert!(note.contains("the next start adds it again"), "{note}");
    let log = server.stop();
    assert!(log.contains("lazuli account remove beta"), "{log}");
}

#[test]
fn default_output_is_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let refused = fail(&["account", "add", "alpha", "--data", data], 1);
    assert!(refused.contains("--create-data"), "{refused}");
    assert!(!std::fs::exists(data).unwrap());
    let added = succeed(&["account", "add", "alpha", "--create-data", "--data", data]);
    assert_eq!(added.lines().count(), 4, "{added}");
    assert!(added.starts_with("NAME ") && added.contains("alpha key 2: "), "{added}");
    let listed = succeed(&["account", "list", "--data", data]);
    assert!(listed.contains("alpha  enabled") && !listed.contains("key 1"), "{listed}");
    assert_eq!(succeed(&["account", "remove", "alpha", "--data", data]), "");
}
