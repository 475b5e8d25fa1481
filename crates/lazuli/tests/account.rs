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

#[test]
fn default_output_is_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let added = succeed(&["account", "add", "alpha", "--data", data]);
    assert_eq!(added.lines().count(), 4, "{added}");
    assert!(added.starts_with("NAME ") && added.contains("alpha key 2: "), "{added}");
    let listed = succeed(&["account", "list", "--data", data]);
    assert!(listed.contains("alpha  enabled") && !listed.contains("key 1"), "{listed}");
    assert_eq!(succeed(&["account", "remove", "alpha", "--data", data]), "");
}
