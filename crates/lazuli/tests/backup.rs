//! `lazuli backup` and `lazuli restore` with a real server.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lazuli_account::DEVELOPMENT_KEY;
use lazuli_protocol::ServiceKind;
use support::{
    DEVELOPMENT_ACCOUNT, Reply, Server, eventually, fail, http, lazuli, noise, run, signed_head, succeed,
    text,
};

const MIB: usize = 1 << 20;

fn blob(server: &Server, method: &str, target: &str, body: &[u8]) -> Reply {
    let target = format!("/{DEVELOPMENT_ACCOUNT}{target}");
    let head =
        signed_head(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, ServiceKind::Blob, method, &target, body.len());
    http(server.address("blob"), &head, body)
}

fn make_container(server: &Server) {
    assert_eq!(blob(server, "PUT", "/data?restype=container", b"").status, 201);
}

const BLOCK_LIST: &[u8] =
    b"<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList><Latest>AAAA</Latest></BlockList>";

fn put(server: &Server, name: &str, body: &[u8]) {
    let staged = blob(server, "PUT", &format!("/data/{name}?comp=block&blockid=AAAA"), body);
    assert_eq!(staged.status, 201, "{}", staged.text());
    let done = blob(server, "PUT", &format!("/data/{name}?comp=blocklist"), BLOCK_LIST);
    assert_eq!(done.status, 201, "{}", done.text());
}

fn get(server: &Server, name: &str) -> Option<Vec<u8>> {
    let reply = blob(server, "GET", &format!("/data/{name}"), b"");
    assert!(matches!(reply.status, 200 | 404), "{name}: {} {}", reply.status, reply.text());
    (reply.status == 200).then_some(reply.body)
}

fn chunks(repository: &Path) -> Vec<(PathBuf, u64)> {
    let Ok(folders) = std::fs::read_dir(repository.join("chunks")) else { return vec![] };
    let folders = folders.map(|folder| folder.unwrap().path()).filter(|path| path.is_dir());
    let files = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap());
    files.map(|file| file.unwrap()).map(|file| (file.path(), file.metadata().unwrap().len())).collect()
}

fn chunk_bytes(repository: &Path) -> u64 {
    chunks(repository).iter().map(|(_, length)| length).sum()
}

fn back_up(data: &Path, to: &Path) -> String {
    succeed(&["backup", "--data", data.to_str().unwrap(), "--to", to.to_str().unwrap()])
}

fn restore(from: &Path, into: &Path) -> String {
    succeed(&["restore", "--from", from.to_str().unwrap(), "--into", into.to_str().unwrap()])
}

/// Counts of submitted and acknowledged requests per writer.
#[derive(Default)]
struct WriterHistory {
    submitted: AtomicU64,
    acknowledged: AtomicU64,
}

/// Returns the body of a writer's nth version: its repeated number, which reveals a torn body, in a varying
/// length.
fn version(n: u64) -> Vec<u8> {
    let length = [100, 6_000, 40_000, 300_000][n as usize % 4];
    n.to_le_bytes().repeat(length / 8)
}

const JSON: &str = "Content-Type: application/json\nAccept: application/json;odata=nometadata";

fn make_table_queue_and_share(server: &Server) {
    for (service, method, path, headers, body) in [
        (ServiceKind::Table, "POST", "/Tables", JSON, "{\"TableName\":\"events\"}"),
        (ServiceKind::Queue, "PUT", "/jobs", "", ""),
        (ServiceKind::File, "PUT", "/docs?restype=share", "", ""),
    ] {
        let made = server.send(service, method, path, headers, body.as_bytes());
        assert_eq!(made.status, 201, "{path}: {}", made.text());
    }
}

/// Puts the nth entity, message and file of a writer, in this order.
fn put_other_kinds(server: &Server, writer: usize, n: u64) {
    let sent = |service, method: &str, path: &str, headers: &str, body: &[u8], status: u16| {
        let reply = server.send(service, method, path, headers, body);
        assert_eq!(reply.status, status, "{path}: {}", reply.text());
    };
    let entity = format!("/events(PartitionKey='{writer}',RowKey='{n}')");
    sent(ServiceKind::Table, "PUT", &entity, JSON, format!("{{\"N\":{n}}}").as_bytes(), 204);
    let message = format!("<QueueMessage><MessageText>{writer}-{n}</MessageText></QueueMessage>");
    sent(ServiceKind::Queue, "POST", "/jobs/messages", "", message.as_bytes(), 201);
    let (file, bytes) = (format!("/docs/{writer}-{n}"), version(n));
    let length = format!("x-ms-type: file\nx-ms-content-length: {}", bytes.len());
    sent(ServiceKind::File, "PUT", &file, &length, b"", 201);
    let range = format!("x-ms-write: update\nx-ms-range: bytes=0-{}", bytes.len() - 1);
    sent(ServiceKind::File, "PUT", &format!("{file}?comp=range"), &range, &bytes, 201);
}

/// Returns all messages of the queue.
fn messages(server: &Server) -> Vec<String> {
    let mut messages = vec![];
    loop {
        let path = "/jobs/messages?numofmessages=32&visibilitytimeout=3600";
        let reply = server.send(ServiceKind::Queue, "GET", path, "", b"");
        assert_eq!(reply.status, 200, "{}", reply.text());
        let text = reply.text();
        let found: Vec<_> = text
            .split("<MessageText>")
            .skip(1)
            .map(|rest| rest.split('<').next().unwrap().to_owned())
            .collect();
        if found.is_empty() {
            return messages;
        }
        messages.extend(found);
    }
}

/// Returns which of a writer's nth entity, message and file a restored server has. Fails if a file is torn.
fn has_other_kinds(server: &Server, messages: &[String], writer: usize, n: u64) -> [bool; 3] {
    let entity = format!("/events(PartitionKey='{writer}',RowKey='{n}')");
    let entity = server.send(ServiceKind::Table, "GET", &entity, JSON, b"");
    assert!(matches!(entity.status, 200 | 404), "{}", entity.text());
    assert!(entity.status == 404 || entity.text().contains(&format!("\"N\":{n}")), "{}", entity.text());
    let count = messages.iter().filter(|message| **message == format!("{writer}-{n}")).count();
    assert!(count <= 1, "message {writer}-{n} occurs {count} times");
    let file = server.send(ServiceKind::File, "GET", &format!("/docs/{writer}-{n}"), "", b"");
    assert!(matches!(file.status, 200 | 404), "{}", file.text());
    let is_whole = file.status == 200 && file.body == version(n);
    assert!(
        file.status == 404 || is_whole || file.body.iter().all(|byte| *byte == 0),
        "file {writer}-{n} is torn"
    );
    [entity.status == 200, count == 1, is_whole]
}

#[test]
fn backup_under_load_has_all_writes_acknowledged_before_and_none_submitted_after() {
    const WRITERS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let (data, repository) = (dir.path().join("data"), dir.path().join("backups"));
    let server = Server::start(&data);
    make_container(&server);
    make_table_queue_and_share(&server);
    let histories: Vec<WriterHistory> = (0..WRITERS).map(|_| WriterHistory::default()).collect();
    let stop = AtomicBool::new(false);
    let counts = |which: fn(&WriterHistory) -> &AtomicU64| -> Vec<u64> {
        histories.iter().map(|history| which(history).load(Ordering::SeqCst)).collect()
    };
    let mut backups = vec![];
    std::thread::scope(|scope| {
        for (i, history) in histories.iter().enumerate() {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                for n in 1.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    history.submitted.store(n, Ordering::SeqCst);
                    put(server, &format!("{i}-{n}"), &version(n));
                    put(server, &format!("{i}"), &version(n));
                    put_other_kinds(server, i, n);
                    history.acknowledged.store(n, Ordering::SeqCst);
                }
            });
        }
        for round in 1..=3 {
            eventually("writers write", || counts(|h| &h.acknowledged).iter().all(|n| *n >= 3 * round));
            let before = counts(|history| &history.acknowledged);
            back_up(&data, &repository);
            backups.push((before, counts(|history| &history.submitted)));
        }
        stop.store(true, Ordering::SeqCst);
    });
    server.stop();
    let listed = succeed(&["backup", "list", "--to", repository.to_str().unwrap()]);
    let ids: Vec<_> = listed.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(ids.len(), backups.len(), "{listed}");
    for (id, (before, after)) in ids.iter().zip(&backups) {
        let into = dir.path().join(format!("restored-{id}"));
        let (from, into_text) = (repository.to_str().unwrap(), into.to_str().unwrap());
        succeed(&["restore", "--from", from, "--backup", id, "--into", into_text]);
        let restored = Server::start(&into);
        let messages = messages(&restored);
        for (i, (before, after)) in before.iter().zip(after).enumerate() {
            let last = get(&restored, &format!("{i}")).unwrap();
            let n = u64::from_le_bytes(*last.first_chunk().unwrap());
            assert!(last == version(n), "{id}: blob {i} is torn");
            assert!((*before..=*after).contains(&n), "{id}: {before} to {after}, but {n} of {i}");
            // A writer creates a blob, then changes another one, so the later change implies the earlier one.
            for m in 1..=n {
                assert!(get(&restored, &format!("{i}-{m}")).as_ref() == Some(&version(m)), "{id}: {i}-{m}");
            }
            assert_eq!(
                get(&restored, &format!("{i}-{}", after + 1)),
                None,
                "{id}: has a blob submitted after the backup"
            );
            for m in 1..=after + 1 {
                let has = has_other_kinds(&restored, &messages, i, m);
                // The other kinds are written after the blob of the same number, in this order.
                assert!(has.is_sorted_by(|a, b| a >= b), "{id}: {i}-{m}: {has:?}");
                assert!(has == [true; 3] || m > *before && m >= n, "{id}: {i}-{m} of {n}: {has:?}");
                assert!(has == [false; 3] || m <= n, "{id}: {i}-{m} exists before blob {n}: {has:?}");
            }
        }
        restored.stop();
    }
}

#[test]
fn second_backup_after_one_percent_of_changes_writes_at_most_three_percent() {
    const BLOBS: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let (data, repository) = (dir.path().join("data"), dir.path().join("backups"));
    let server = Server::start(&data);
    make_container(&server);
    for i in 0..BLOBS {
        put(&server, &format!("large{i}"), &noise(i, 3 * MIB));
        for j in 0..6 {
            // Small enough to be inline.
            put(&server, &format!("small{i}-{j}"), &noise(i * 10 + j, 7_000));
        }
    }
    // Stopping flushes the rows to tables.
    server.stop();
    back_up(&data, &repository);
    let first = chunk_bytes(&repository);
    assert!(first >= BLOBS * 3 * MIB as u64, "{first}");

    let server = Server::start(&data);
    put(&server, "large7", &noise(1000, 3 * MIB * BLOBS as usize / 100));
    for j in 0..3 {
        put(&server, &format!("small7-{j}"), &noise(2000 + j, 7_000));
    }
    let said = back_up(&data, &repository);
    let written = chunk_bytes(&repository) - first;
    println!("first {first} bytes, second {written} bytes: {said}");
    assert!(written * 100 <= first * 3, "{written} of {first} bytes: {said}");
    server.stop();

    // A backup killed midway does not affect earlier ones.
    let server = Server::start(&data);
    for i in 0..16 {
        put(&server, &format!("more{i}"), &noise(3000 + i, 3 * MIB));
    }
    let before = chunks(&repository).len();
    let mut command = lazuli();
    command.arg("backup").arg("--data").arg(&data).arg("--to").arg(&repository);
    let mut child = command.spawn().unwrap();
    eventually("the backup writes chunks", || chunks(&repository).len() > before + 4);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the server removes the snapshot", || !data.join("snapshot").exists());
    let listed = succeed(&["backup", "list", "--to", repository.to_str().unwrap()]);
    println!("after the kill: {listed}");
    // The next backup must not trust a torn chunk of the killed one.
    let new =
        chunks(&repository).into_iter().max_by_key(|(path, _)| path.metadata().unwrap().modified().unwrap());
    if listed.lines().count() == 2 {
        std::fs::write(new.unwrap().0, b"torn").unwrap();
    }
    let restored = dir.path().join("restored");
    let second = listed.lines().nth(1).unwrap().split(' ').next().unwrap();
    let (from, into) = (repository.to_str().unwrap(), restored.to_str().unwrap());
    succeed(&["restore", "--from", from, "--backup", second, "--into", into]);
    std::fs::remove_dir_all(&restored).unwrap();

    back_up(&data, &repository);
    let kept = succeed(&["backup", "prune", "--to", from, "--keep", "1"]);
    assert!(kept.contains("removed 000001-"), "{kept}");
    restore(&repository, &restored);
    let restored = Server::start(&restored);
    assert!(get(&restored, "large7").unwrap() == noise(1000, 3 * MIB * BLOBS as usize / 100));
    assert!(get(&restored, "more15").unwrap() == noise(3015, 3 * MIB));
    assert!(get(&restored, "small7-1").unwrap() == noise(2001, 7_000));
    restored.stop();
    server.stop();
}

#[test]
fn restore_refuses_damage_and_nonempty_targets_and_dry_run_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (data, repository) = (dir.path().join("data"), dir.path().join("backups"));
    let (restored, to) = (dir.path().join("restored"), repository.to_str().unwrap());
    let server = Server::start(&data);
    make_container(&server);
    put(&server, "blob", &noise(1, MIB));
    succeed(&["backup", "--data", data.to_str().unwrap(), "--to", to, "--dry-run"]);
    assert!(!repository.exists());
    back_up(&data, &repository);
    back_up(&data, &repository);
    server.stop();

    let into = restored.to_str().unwrap();
    succeed(&["restore", "--from", to, "--into", into, "--dry-run"]);
    assert!(!restored.exists());
    let said = fail(&["restore", "--from", to, "--into", data.to_str().unwrap()], 1);
    assert!(said.contains("is not empty"), "{said}");
    let before = chunks(&repository).len();
    succeed(&["backup", "prune", "--to", to, "--keep", "1", "--dry-run"]);
    assert_eq!(chunks(&repository).len(), before);

    let (largest, _) = chunks(&repository).into_iter().max_by_key(|(_, length)| *length).unwrap();
    let sound = std::fs::read(&largest).unwrap();
    let mut damaged = sound.clone();
    damaged[1000] ^= 1;
    std::fs::write(&largest, damaged).unwrap();
    for extra in [&["--dry-run"][..], &[]] {
        let output = run(&[&["restore", "--from", to, "--into", into][..], extra].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("the chunk is damaged"), "{}", text(&output.stderr));
        assert!(!restored.join("FORMAT").exists() && !restored.join("store").exists());
    }
    std::fs::write(&largest, sound).unwrap();
    // The remains of a killed attempt are replaced.
    std::fs::create_dir_all(restored.join("incoming/store")).unwrap();
    restore(&repository, &restored);
    assert!(succeed(&["check", into]).contains("no damage found"));
    let manifest = std::fs::read_dir(repository.join("backups")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&manifest, bytes).unwrap();
    let said = fail(&["backup", "--data", data.to_str().unwrap(), "--to", to], 1);
    assert!(said.contains("damaged"), "{said}");
}

fn files_of(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_of(&path) } else { vec![path] }).collect()
}

#[test]
fn imported_data_has_the_same_etags_and_exports_identically() {
    let dir = tempfile::tempdir().unwrap();
    let (data, imported) = (dir.path().join("data"), dir.path().join("imported"));
    let (out, again) = (dir.path().join("stream"), dir.path().join("again"));
    let (data_text, into) = (data.to_str().unwrap(), imported.to_str().unwrap());
    let (out_text, again_text) = (out.to_str().unwrap(), again.to_str().unwrap());
    let server = Server::start(&data);
    make_container(&server);
    put(&server, "large", &noise(1, 5 * MIB));
    put(&server, "small", &noise(2, 700));
    put(&server, "old", &noise(3, 100_000));
    // The snapshot shares its bytes with the blob.
    assert_eq!(blob(&server, "PUT", "/data/large?comp=snapshot", b"").status, 201);
    assert_eq!(blob(&server, "PUT", "/data/staged?comp=block&blockid=AAAA", &noise(4, MIB)).status, 201);
    assert_eq!(server.call(ServiceKind::Queue, "PUT", "/queue", "").status, 201);
    assert_eq!(blob(&server, "DELETE", "/data/old", b"").status, 202);
    let etag = |server: &Server| {
        let reply = blob(server, "GET", "/data/large", b"");
        reply.head.lines().find(|line| line.to_lowercase().starts_with("etag:")).unwrap().to_owned()
    };
    let tag = etag(&server);
    succeed(&["export", data_text, "--out", out_text]);
    let bytes = std::fs::read(&out).unwrap();
    assert!((6 * MIB..8 * MIB).contains(&bytes.len()), "shared content is exported once: {}", bytes.len());
    server.stop();

    succeed(&["import", "stream", out_text, "--into", into, "--dry-run"]);
    assert!(!imported.exists());
    succeed(&["import", "stream", out_text, "--into", into]);
    succeed(&["export", into, "--out", again_text]);
    assert!(std::fs::read(&again).unwrap() == bytes, "the second export differs");
    let server = Server::start(&imported);
    assert_eq!(etag(&server), tag);
    assert!(get(&server, "large").unwrap() == noise(1, 5 * MIB));
    assert!(get(&server, "small").unwrap() == noise(2, 700));
    assert_eq!(get(&server, "old"), None);
    let done = blob(&server, "PUT", "/data/staged?comp=blocklist", BLOCK_LIST);
    assert_eq!(done.status, 201, "{}", done.text());
    assert!(get(&server, "staged").unwrap() == noise(4, MIB));
    // New stamps are above those of the stream.
    put(&server, "large", b"new");
    assert!(get(&server, "large").unwrap() == b"new");
    server.stop();

    let refused = dir.path().join("refused");
    for (what, damage) in
        [("cut", bytes.len() - 40), ("cut", 17), ("cut", 3 * MIB), ("flipped", 5 * MIB), ("flipped", 40)]
    {
        let mut stream = bytes.clone();
        if what == "cut" {
            stream.truncate(damage)
        } else {
            stream[damage] ^= 1
        }
        std::fs::write(&again, stream).unwrap();
        for extra in [&["--dry-run"][..], &[]] {
            let arguments =
                [&["import", "stream", again_text, "--into", refused.to_str().unwrap()][..], extra];
            fail(&arguments.concat(), 1);
            assert!(!refused.exists() || files_of(&refused).is_empty(), "{what} at {damage}");
        }
    }
}

/// Creates a file with an age identity. Returns it with its recipient.
fn identity(dir: &Path, name: &str) -> (PathBuf, String) {
    use age::secrecy::ExposeSecret;
    let identity = age::x25519::Identity::generate();
    let path = dir.join(name);
    std::fs::write(&path, format!("# {name}\n{}\n", identity.to_string().expose_secret())).unwrap();
    (path, identity.to_public().to_string())
}

#[test]
fn encrypted_backups_are_incremental_and_restored_only_by_their_recipients() {
    let dir = tempfile::tempdir().unwrap();
    let [data, to] = ["data", "backups"].map(|name| dir.path().join(name));
    let ((key, mine), (foreign, _)) = (identity(dir.path(), "key"), identity(dir.path(), "foreign"));
    let recipients = dir.path().join("recipients");
    std::fs::write(&recipients, format!("# for backups\n{mine}\n")).unwrap();
    let arg = |path: &Path| -> &'static str { path.to_str().unwrap().to_owned().leak() };
    let back_up = ["backup", "--data", arg(&data), "--to", arg(&to)];
    let sealed = [&back_up[..], &["--recipients-file", arg(&recipients)]].concat();

    let server = Server::start(&data);
    make_container(&server);
    let first = noise(1, 3 * MIB);
    put(&server, "first", &first);
    succeed(&sealed);
    let before = chunks(&to);
    put(&server, "second", b"small");
    succeed(&sealed);
    let after = chunks(&to);
    let added: u64 = after.iter().filter(|chunk| !before.contains(chunk)).map(|(_, bytes)| bytes).sum();
    assert!(before.iter().all(|chunk| after.contains(chunk)) && added < 2 * MIB as u64, "{added} bytes more");
    for (path, _) in &after {
        let bytes = std::fs::read(path).unwrap();
        assert!(bytes.starts_with(b"age-encryption.org/v1\n"), "{}", path.display());
    }
    server.stop();

    // An encrypted folder takes no plain backup.
    assert!(fail(&back_up, 1).contains("are encrypted"));
    // Nor one for other recipients, which could not read the existing chunks.
    let (_, other) = identity(dir.path(), "other");
    let said = fail(&[&back_up[..], &["--recipient", &mine, "--recipient", &other]].concat(), 1);
    assert!(said.contains("other recipients"), "{said}");
    let said = fail(&[&back_up[..], &["--recipients-file", arg(&key)]].concat(), 2);
    assert!(said.contains("not an age X25519 recipient") && !said.contains("AGE-SECRET"), "{said}");
    let restored = dir.path().join("restored");
    let restore = ["restore", "--from", arg(&to), "--into", arg(&restored)];
    assert!(fail(&restore, 2).contains("--identity is missing"));
    fail(&[&restore[..], &["--identity", arg(&foreign)]].concat(), 1);
    assert!(!restored.exists() || std::fs::read_dir(&restored).unwrap().next().is_none());
    succeed(&[&restore[..], &["--identity", arg(&foreign), "--identity", arg(&key)]].concat());
    let server = Server::start(&restored);
    assert_eq!(get(&server, "first"), Some(first));
    assert_eq!(get(&server, "second").as_deref(), Some(&b"small"[..]));
    server.stop();
    succeed(&["backup", "list", "--to", arg(&to)]);
    succeed(&["backup", "prune", "--to", arg(&to), "--keep", "1"]);
    succeed(&[&restore[..4], &[arg(&dir.path().join("again"))], &["--identity", arg(&key)]].concat());
}

#[test]
fn encrypted_export_is_imported_only_with_its_identity() {
    let dir = tempfile::tempdir().unwrap();
    let [data, stream, into] = ["data", "stream", "into"].map(|name| dir.path().join(name));
    let ((key, mine), (foreign, _)) = (identity(dir.path(), "key"), identity(dir.path(), "foreign"));
    let arg = |path: &Path| -> &'static str { path.to_str().unwrap().to_owned().leak() };
    let server = Server::start(&data);
    make_container(&server);
    let content = noise(2, 2 * MIB);
    put(&server, "b", &content);
    succeed(&["export", arg(&data), "--out", arg(&stream), "--recipient", &mine]);
    server.stop();
    let sealed = std::fs::read(&stream).unwrap();
    assert!(sealed.starts_with(b"age-encryption.org/v1\n"));
    assert!(!sealed.windows(64).any(|window| window == &content[..64]));
    let import = ["import", "stream", arg(&stream), "--into", arg(&into)];
    fail(&import, 1);
    fail(&[&import[..], &["--identity", arg(&foreign)]].concat(), 1);
    succeed(&[&import[..], &["--identity", arg(&key)]].concat());
    let server = Server::start(&into);
    assert_eq!(get(&server, "b"), Some(content));
    server.stop();
    // Truncate the last piece of the stream.
    std::fs::write(&stream, &sealed[..sealed.len() - 20]).unwrap();
    let cut = dir.path().join("cut");
    fail(&["import", "stream", arg(&stream), "--into", arg(&cut), "--identity", arg(&key)], 1);
    assert!(!cut.exists() || std::fs::read_dir(&cut).unwrap().next().is_none());
}
