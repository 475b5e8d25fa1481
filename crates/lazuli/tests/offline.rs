//! `lazuli check` and `lazuli compact` on directories that a server left behind.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};

use support::{Server, fail, run, succeed, text};

fn served(data: &Path) {
    Server::start(data).stop();
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    // The lock tells who had it last. Opening the tree removes manifests that it has replaced (v0, v1, …); the one
    // that counts is named in `current`.
    let old =
        |path: &PathBuf| path.parent().is_some_and(|dir| dir.ends_with("tree")) && !path.ends_with("current");
    let data = files(dir).into_iter().filter(|path| !path.ends_with("LOCK") && !old(path));
    data.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn a_sound_directory_passes_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    served(dir.path());
    let before = contents(dir.path());
    let said = succeed(&["check", dir.path().to_str().unwrap()]);
    assert!(said.contains("no damage found"), "{said}");
    assert!(!said.contains("rows: 0 read"), "{said}");
    let after = contents(dir.path());
    let names = |files: &[(PathBuf, Vec<u8>)]| files.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after, "{} has changed", before.0.display());
    }
}

#[test]
fn damage_is_listed_and_the_exit_code_tells() {
    let dir = tempfile::tempdir().unwrap();
    served(dir.path());
    let path = dir.path().to_str().unwrap();
    let damaged = files(&dir.path().join("store")).into_iter().find(|path| {
        let bytes = std::fs::read(path).unwrap();
        // Whatever holds an account: a table, or the log. What is in a file that waits to be used again is nobody's.
        !path.ends_with("spare") && bytes.windows(9).any(|window| window == b"devstorea")
    });
    let damaged = damaged.unwrap();
    let mut bytes = std::fs::read(&damaged).unwrap();
    let at = bytes.windows(9).position(|window| window == b"devstorea").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();

    let output = run(&["check", path]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let listed = text(&output.stdout);
    assert!(listed.contains("rows: "), "{listed}");
    assert!(!listed.contains("no damage found"), "{listed}");
    assert!(text(&output.stderr).contains("is damaged in 1 places"), "{}", text(&output.stderr));
}

#[test]
fn what_is_missing_is_damage_too() {
    let dir = tempfile::tempdir().unwrap();
    served(dir.path());
    std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    let output = run(&["check", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("is missing"), "{}", text(&output.stdout));
}

#[test]
fn a_directory_that_is_served_or_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let path = dir.path().to_str().unwrap();
    for command in ["check", "compact"] {
        let said = fail(&[command, path], 1);
        assert!(said.contains("in use") && said.contains("Stop the server first"), "{said}");
        let said = fail(&[command, "/no/such/directory"], 1);
        assert!(said.contains("is not a Lazuli data directory"), "{said}");
    }
    server.stop();
}

#[test]
fn compacting_keeps_everything_that_lives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let server = Server::start(dir.path());
    for i in 0..5 {
        succeed(&["account", "add", &format!("account{i}"), "--data", path]);
    }
    for i in 0..4 {
        succeed(&["account", "remove", &format!("account{i}"), "--data", path]);
    }
    server.stop();
    let said = succeed(&["compact", path]);
    assert!(said.contains("rows: ") && said.contains("content: "), "{said}");
    assert!(succeed(&["check", path]).contains("no damage found"));
    let listed = succeed(&["account", "list", "--data", path]);
    assert!(listed.contains("account4") && listed.contains("devstoreaccount1"), "{listed}");
    assert_eq!(listed.lines().count(), 3, "{listed}");
}
