//! `lazuli check` and `lazuli compact` on directories of stopped servers.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use lazuli_protocol::ServiceKind;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use support::{Server, fail, fail_to_serve, lazuli, run, succeed, text};

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

/// Returns the modification time of every file and folder, and the bytes of every file.
fn everything(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
    let folders =
        |path: &Path| std::iter::successors(Some(path.to_owned()), |path| path.parent().map(Path::to_owned));
    let paths = files(dir).into_iter().flat_map(|path| folders(&path).collect::<Vec<_>>());
    let paths = paths.filter(|path| path.starts_with(dir));
    let state = |path: &Path| {
        let bytes = if path.is_file() { std::fs::read(path).unwrap() } else { vec![] };
        (path.symlink_metadata().unwrap().modified().unwrap(), bytes)
    };
    paths.map(|path| (path.clone(), state(&path))).collect()
}

#[test]
fn check_of_a_sound_directory_passes_without_changes() {
    let dir = tempfile::tempdir().unwrap();
    served(dir.path());
    // Opening the tree for writing would remove both files.
    std::fs::write(dir.path().join("store/tree/v0"), b"a manifest that was replaced").unwrap();
    std::fs::write(dir.path().join("store/tree/tables/999"), b"a table that a crash left").unwrap();
    let before = everything(dir.path());
    let said = succeed(&["check", dir.path().to_str().unwrap()]);
    assert!(said.contains("no damage found"), "{said}");
    assert!(!said.contains("rows: 0 read"), "{said}");
    let after = everything(dir.path());
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    for (path, state) in &before {
        assert!(&after[path] == state, "{} has changed", path.display());
    }
}

#[test]
fn check_on_a_terminal_shows_its_progress() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let blob = ServiceKind::Blob;
    assert_eq!(server.send(blob, "PUT", "/things?restype=container", "", b"").status, 201);
    let put = server.send(blob, "PUT", "/things/b", "x-ms-blob-type: BlockBlob", &[7; 200_000]);
    assert_eq!(put.status, 201);
    server.stop();
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();
    let name = ptsname(&terminal, vec![]).unwrap().into_string().unwrap();
    let inner = std::fs::File::options().read(true).write(true).open(name).unwrap();
    let mut command = lazuli();
    command.arg("check").arg(dir.path()).env("TERM", "xterm").stdout(Stdio::null()).stderr(inner);
    let mut child = command.spawn().unwrap();
    // Drop the command's handle of the terminal, so that the terminal closes with the child.
    drop(command);
    let (mut terminal, mut shown) = (std::fs::File::from(terminal), vec![]);
    // Linux reports the end of the terminal as an error.
    let _ = terminal.read_to_end(&mut shown);
    assert!(child.wait().unwrap().success());
    let shown = text(&shown);
    for what in [" rows", " tables", " segments"] {
        // The progress shows a count of a total.
        let mut places = shown.match_indices(what).map(|(at, _)| &shown[..at]);
        assert!(places.any(|before| before.ends_with(|c: char| c.is_ascii_digit())), "{what}: {shown:?}");
    }
}

#[test]
fn check_works_on_a_read_only_mount() {
    let dir = tempfile::tempdir().unwrap();
    let (data, mounted) = (dir.path().join("data"), dir.path().join("mounted"));
    served(&data);
    std::fs::create_dir(&mounted).unwrap();
    if let Err(error) = rustix::mount::mount_bind(&data, &mounted) {
        println!("skipped: only root may mount ({error})");
        return;
    }
    let mounted = Mounted(mounted);
    rustix::mount::mount_remount(&mounted.0, MountFlags::BIND | MountFlags::RDONLY, c"").unwrap();
    assert!(std::fs::write(mounted.0.join("file"), b"").is_err(), "the mount is read-only");
    let path = mounted.0.to_str().unwrap();
    assert!(succeed(&["check", path]).contains("no damage found"));
    // A copy that no server has used has no lock file.
    std::fs::remove_file(data.join("LOCK")).unwrap();
    assert!(succeed(&["check", path]).contains("no damage found"));
}

/// A mount that is unmounted on drop.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn damaged_manifest_is_reported_by_check_and_refused_by_the_server() {
    let dir = tempfile::tempdir().unwrap();
    served(dir.path());
    let tree = dir.path().join("store/tree");
    let current = std::fs::read(tree.join("current")).unwrap();
    let manifest = tree.join(format!("v{}", u64::from_le_bytes(*current.first_chunk().unwrap())));
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&manifest, bytes).unwrap();
    let before = everything(dir.path());
    let output = run(&["check", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let named = manifest.to_str().unwrap();
    assert!(text(&output.stdout).contains(&format!("rows: {named}: damaged")), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("is damaged in 1 places"), "{}", text(&output.stderr));
    assert!(everything(dir.path()) == before, "the check changed a file");
    let said = fail_to_serve(&["--data", dir.path().to_str().unwrap()]);
    assert!(said.contains(named) && said.contains("damaged"), "{said}");
}

#[test]
fn check_lists_damage_and_exits_with_1() {
    let dir = tempfile::tempdir().unwrap();
    served(dir.path());
    let path = dir.path().to_str().unwrap();
    let damaged = files(&dir.path().join("store")).into_iter().find(|path| {
        let bytes = std::fs::read(path).unwrap();
        // Files with an account: a table, or the log. Spare log segments do not count.
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
fn missing_files_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    served(dir.path());
    std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    let output = run(&["check", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("is missing"), "{}", text(&output.stdout));
}

#[test]
fn check_refuses_a_served_directory_and_a_foreign_one() {
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
fn compact_keeps_all_current_data() {
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
