//! Both sides of the control socket.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use lazuli_concurrency::SystemClock;
use lazuli_extents::{Error, Extents, LocalExtents};
use lazuli_store::{Embedded, Options};

use super::*;

async fn accounts(dir: &Path) -> AccountDirectory {
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let store = Embedded::open(dir, Arc::new(SystemClock), options).unwrap();
    AccountDirectory::open(Arc::new(store)).await.unwrap()
}

fn extents(dir: &Path) -> LocalExtents {
    LocalExtents::open(dir, Default::default()).unwrap()
}

fn key(byte: u8) -> Key {
    Key::from_bytes(vec![byte; 64])
}

async fn send_in_thread(dir: &Path, command: Command) -> Option<Reply> {
    let dir = dir.to_owned();
    tokio::task::spawn_blocking(move || send_command(&dir, &command).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_server_carries_out_commands_and_a_stopped_server_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = accounts(dir.path()).await;
    assert_eq!(send_in_thread(dir.path(), Command::List).await, None);
    // As left by a killed server.
    drop(std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET)).unwrap());
    assert_eq!(send_in_thread(dir.path(), Command::List).await, None);

    let control = Control::start(
        dir.path(),
        extents(dir.path()),
        accounts.clone(),
        DevelopmentKey::Accepted,
        None,
        None,
    )
    .unwrap();
    let mode = std::fs::metadata(dir.path().join(SOCKET)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let add = Command::Add { name: "alpha".into(), keys: vec![key(1)] };
    let added = send_in_thread(dir.path(), add.clone()).await.unwrap().unwrap();
    assert_eq!(added.accounts[0].keys, [key(1)]);
    let refused = send_in_thread(dir.path(), add).await.unwrap().unwrap_err();
    assert!(refused.contains("already"), "{refused}");
    let rotate = Command::RotateKey { name: "alpha".into(), slot: KeySlot::Key2, key: key(2) };
    send_in_thread(dir.path(), rotate).await.unwrap().unwrap();
    let set = Command::Set { name: "alpha".into(), changes: vec![Setting::Disabled(true)] };
    send_in_thread(dir.path(), set).await.unwrap().unwrap();
    let seen = accounts.get("alpha").await.unwrap().unwrap();
    assert!(seen.settings.disabled && seen.keys == [key(1), key(2)]);
    let listed = send_in_thread(dir.path(), Command::List).await.unwrap().unwrap();
    assert_eq!(listed.accounts, [Account::clone(&seen)]);
    let remove = Command::Remove { name: "alpha".into(), delete_data: false, immediately: false };
    send_in_thread(dir.path(), remove).await.unwrap().unwrap();
    assert!(accounts.list().await.unwrap().is_empty());

    drop(control);
    assert!(!dir.path().join(SOCKET).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_directory_with_a_long_path_has_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("d".repeat(120));
    let store = dir.path().join("store");
    for made in [&long, &store] {
        std::fs::create_dir(made).unwrap();
    }
    let accounts = accounts(&store).await;
    let _control =
        Control::start(&long, extents(&long), accounts, DevelopmentKey::Accepted, None, None).unwrap();
    assert!(long.join(SOCKET).exists());
    assert_eq!(send_in_thread(&long, Command::List).await, Some(Ok(Done::default())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_command_gets_an_error_reply_and_does_not_stop_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = accounts(dir.path()).await;
    let _control =
        Control::start(dir.path(), extents(dir.path()), accounts, DevelopmentKey::Accepted, None, None)
            .unwrap();
    for (sent, expected) in [
        (&b"\n"[..], "does not understand"),
        (b"{\"Explode\":{}}\n", "does not understand"),
        (&[0xFF; 3 << 20], "does not understand"),
    ] {
        let path = dir.path().join(SOCKET);
        let sent = sent.to_vec();
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = UnixStream::connect(path).unwrap();
            // The server may close before it has read the whole line.
            let _ = stream.write_all(&sent);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8(answer).unwrap()
        });
        let answer = answer.await.unwrap();
        assert!(answer.contains(expected), "{answer}");
    }
    assert_eq!(send_in_thread(dir.path(), Command::List).await, Some(Ok(Done::default())));
}

#[tokio::test]
async fn development_key_is_refused_if_other_machines_can_reach_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = accounts(dir.path()).await;
    let add = |keys| Command::Add { name: "alpha".into(), keys };
    let rotate = |key| Command::RotateKey { name: "alpha".into(), slot: KeySlot::Key1, key };
    for (rule, command, carried_out) in [
        (DevelopmentKey::Refused, add(vec![key(1), development_key()]), false),
        (DevelopmentKey::Refused, add(vec![key(1)]), true),
        (DevelopmentKey::Refused, rotate(development_key()), false),
        (DevelopmentKey::Accepted, rotate(development_key()), true),
    ] {
        let reply = execute(&accounts, None, rule, command.clone()).await;
        assert_eq!(reply.is_ok(), carried_out, "{command:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_snapshot_keeps_content_and_is_removed_on_disconnect() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    std::fs::create_dir(&store).unwrap();
    std::fs::write(dir.path().join("FORMAT"), "lazuli 1\n").unwrap();
    let accounts = accounts(&store).await;
    let extents = extents(dir.path());
    let folder = dir.path().join("snapshot");
    // As left by a killed server.
    std::fs::create_dir(&folder).unwrap();
    let rule = DevelopmentKey::Accepted;
    let _control = Control::start(dir.path(), extents.clone(), accounts, rule, None, None).unwrap();
    assert!(!folder.exists());

    let path = dir.path().to_owned();
    let held = tokio::task::spawn_blocking(move || hold_snapshot(&path).unwrap().unwrap().0).await.unwrap();
    assert!(folder.join("store/tree/current").exists() && folder.join("store/log").exists());
    assert!(matches!(extents.begin_mark().await, Err(Error::Busy(_))));
    tokio::task::spawn_blocking(move || held.finish().unwrap()).await.unwrap();
    while folder.exists() || extents.begin_mark().await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
