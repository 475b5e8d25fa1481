//! `lazuli restore --only account:NAME`: a whole account of a backup, into a running server.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lazuli_account::DEVELOPMENT_KEY;
use lazuli_protocol::ServiceKind;
use lazuli_protocol::ServiceKind::{Blob, File, Queue, Table};
use rustix::fs::{FileType, Mode};
use rustix::process::Signal;
use serde_json::Value;
use support::{DEVELOPMENT_ACCOUNT, Reply, Server, eventually, fail, lazuli, noise, succeed};

const MIB: usize = 1 << 20;
const JSON: &str = "Content-Type: application/json\nAccept: application/json;odata=nometadata";
const BLOB: &str = "x-ms-blob-type: BlockBlob";
const LEASE: &str = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
const BLOB_PROPERTIES: &str = "/?restype=service&comp=properties";

/// Replies to clients of an account, by target.
type Everything = BTreeMap<String, Vec<u8>>;

/// A client of an account, with its key.
#[derive(Clone)]
struct AccountClient<'a> {
    server: &'a Server,
    account: String,
    key: String,
}

impl<'a> AccountClient<'a> {
    fn new(server: &'a Server, account: &str, key: &str) -> Self {
        Self { server, account: account.into(), key: key.into() }
    }

    fn status(&self, service: ServiceKind, path: &str) -> u16 {
        self.server.send_as((&self.account, &self.key), service, "GET", path, "", b"").status
    }

    fn send(&self, service: ServiceKind, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let reply = self.server.send_as((&self.account, &self.key), service, method, path, headers, body);
        assert!((200..300).contains(&reply.status), "{method} {path}: {} {}", reply.status, reply.text());
        reply
    }

    fn get(&self, service: ServiceKind, path: &str) -> Reply {
        self.send(service, "GET", path, JSON, b"")
    }

    /// Records the reply to a read, with the headers in `shown`.
    fn note(&self, all: &mut Everything, service: ServiceKind, path: &str, shown: &[&str]) {
        let reply = self.get(service, path);
        let headers = shown.iter().map(|name| format!("{name}: {:?}\n", header(&reply, name)));
        let noted = [headers.collect::<String>().into_bytes(), reply.body].concat();
        all.insert(format!("{} {path}", service.name()), noted);
    }

    /// Reads everything that clients see of the account.
    fn everything(&self) -> Everything {
        let mut all = BTreeMap::new();
        for service in [Blob, Queue, Table, File] {
            self.note(&mut all, service, BLOB_PROPERTIES, &[]);
        }
        for container in self.names(Blob, "/?comp=list", "Name") {
            self.note(&mut all, Blob, &format!("/{container}?restype=container"), &["x-ms-meta-owner"]);
            let list =
                format!("/{container}?restype=container&comp=list&include=snapshots,versions,deleted,tags");
            let listed = self.get(Blob, &list).text();
            for blob in values(&listed, "Name") {
                let shown = ["etag", "last-modified", "x-ms-meta-a", "x-ms-tag-count", "content-md5"];
                self.note(&mut all, Blob, &format!("/{container}/{blob}"), &shown);
            }
            for snapshot in values(&listed, "Snapshot") {
                self.note(&mut all, Blob, &format!("/{container}/large?snapshot={snapshot}"), &["etag"]);
            }
        }
        let tables: Value = serde_json::from_str(&self.get(Table, "/Tables").text()).unwrap();
        for table in tables["value"].as_array().unwrap() {
            let table = table["TableName"].as_str().unwrap();
            let reply = self.get(Table, &format!("/{table}()"));
            let mut entities: Value = serde_json::from_str(&reply.text()).unwrap();
            for entity in entities["value"].as_array_mut().unwrap() {
                // A restored entity has a new timestamp.
                entity.as_object_mut().unwrap().remove("Timestamp");
            }
            all.insert(format!("table {table}"), entities.to_string().into_bytes());
        }
        for queue in self.names(Queue, "/?comp=list", "Name") {
            let shown = ["x-ms-meta-kind", "x-ms-approximate-messages-count"];
            self.note(&mut all, Queue, &format!("/{queue}?comp=metadata"), &shown);
            // Message ids include the space of their queue.
            let messages =
                self.get(Queue, &format!("/{queue}/messages?peekonly=true&numofmessages=32")).text();
            let messages =
                values(&messages, "MessageText").join(" ") + &values(&messages, "InsertionTime").join(" ");
            all.insert(format!("messages of {queue}"), messages.into_bytes());
        }
        let shares = self.get(File, "/?comp=list&include=snapshots").text();
        for share in values(&shares, "Name") {
            self.note(
                &mut all,
                File,
                &format!("/{share}?restype=share"),
                &["x-ms-meta-team", "x-ms-share-quota"],
            );
            self.note(&mut all, File, &format!("/{share}/dir/report"), &["etag", "x-ms-file-permission-key"]);
            self.note(&mut all, File, &format!("/{share}?restype=share&comp=stats"), &[]);
        }
        for snapshot in values(&shares, "Snapshot") {
            self.note(&mut all, File, &format!("/docs/dir/report?sharesnapshot={snapshot}"), &["etag"]);
        }
        all
    }

    fn names(&self, service: ServiceKind, list: &str, tag: &str) -> Vec<String> {
        values(&self.get(service, list).text(), tag)
    }
}

/// Fails at the first difference between two accounts.
fn assert_same(found: &Everything, expected: &Everything) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (place, bytes) in found {
        let start = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(1000)]).into_owned();
        let expected = &expected[place];
        assert!(bytes == expected, "{place}:\n{}\nand not\n{}", start(bytes), start(expected));
    }
}

fn header(reply: &Reply, name: &str) -> Option<String> {
    reply.head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

/// Returns the distinct values of a tag in a document.
fn values(text: &str, tag: &str) -> Vec<String> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let found = text.split(&open[..]).skip(1).filter_map(|rest| rest.split_once(&close[..]));
    let mut found: Vec<_> = found.map(|(value, _)| value.to_owned()).collect();
    found.dedup();
    found
}

fn account(data: &Path, arguments: &[&str]) -> Value {
    let mut all = vec!["account"];
    all.extend(arguments);
    all.extend(["--json", "--data", data.to_str().unwrap()]);
    serde_json::from_str(&succeed(&all)).unwrap()
}

fn names(accounts: &Value) -> Vec<&str> {
    accounts.as_array().unwrap().iter().map(|account| account["name"].as_str().unwrap()).collect()
}

fn restore<'a>(data: &'a str, backups: &'a str, only: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["restore", "--from", backups, "--data", data, "--only", only];
    all.extend(more);
    all
}

/// Parses the keys in the output of a restore.
fn keys(printed: &str) -> Vec<&str> {
    printed
        .lines()
        .filter_map(|line| line.split_once(" key ")?.1.split_once(": "))
        .map(|(_, key)| key)
        .collect()
}

/// Puts objects of every kind into the account.
fn fill(client: &AccountClient<'_>) {
    let cors = "<StorageServiceProperties><Cors><CorsRule><AllowedOrigins>http://a.example</AllowedOrigins>\
         <AllowedMethods>GET</AllowedMethods><AllowedHeaders/><ExposedHeaders/><MaxAgeInSeconds>5</MaxAgeInSeconds>\
         </CorsRule></Cors></StorageServiceProperties>";
    client.send(Queue, "PUT", BLOB_PROPERTIES, "", cors.as_bytes());
    let keep = "<StorageServiceProperties><ShareDeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days>\
         </ShareDeleteRetentionPolicy></StorageServiceProperties>";
    client.send(File, "PUT", BLOB_PROPERTIES, "", keep.as_bytes());

    for container in ["con", "empty", "gone"] {
        client.send(Blob, "PUT", &format!("/{container}?restype=container"), "x-ms-meta-owner: me", b"");
    }
    let head = format!("{BLOB}\nx-ms-meta-a: b\nx-ms-tags: k=v");
    client.send(Blob, "PUT", "/con/large", &head, &noise(1, 3 * MIB));
    client.send(Blob, "PUT", "/con/large?comp=snapshot", "", b"");
    client.send(Blob, "PUT", "/con/large", BLOB, &noise(2, 2 * MIB));
    client.send(Blob, "PUT", "/con/small", BLOB, b"small");
    client.send(Blob, "PUT", "/gone/blob", BLOB, b"of a deleted container");
    client.send(Blob, "DELETE", "/gone?restype=container", "", b"");
    // A new container has the name now.
    client.send(Blob, "PUT", "/gone?restype=container", "", b"");

    client.send(Table, "POST", "/Tables", JSON, b"{\"TableName\":\"Events\"}");
    for n in 0..300 {
        let entity = format!("/Events(PartitionKey='{}',RowKey='{n}')", n % 3);
        client.send(Table, "PUT", &entity, JSON, format!("{{\"N\":{n}}}").as_bytes());
    }
    client.send(Queue, "PUT", "/jobs", "x-ms-meta-kind: urgent", b"");
    for n in 0..40 {
        let message = format!("<QueueMessage><MessageText>job-{n}</MessageText></QueueMessage>");
        client.send(Queue, "POST", "/jobs/messages", "", message.as_bytes());
    }
    for share in ["docs", "old"] {
        let path = format!("/{share}?restype=share");
        client.send(File, "PUT", &path, "x-ms-meta-team: a\nx-ms-share-quota: 3", b"");
        client.send(File, "PUT", &format!("/{share}/dir?restype=directory"), "", b"");
        let head =
            "x-ms-type: file\nx-ms-content-length: 100000\nx-ms-file-permission: O:SYG:SYD:(A;;FA;;;SY)";
        client.send(File, "PUT", &format!("/{share}/dir/report"), head, b"");
        let range = "x-ms-write: update\nx-ms-range: bytes=0-99999";
        let path = format!("/{share}/dir/report?comp=range");
        client.send(File, "PUT", &path, range, &noise(3, 100_000));
    }
    client.send(File, "PUT", "/docs?restype=share&comp=snapshot", "", b"");
    let range = "x-ms-write: update\nx-ms-range: bytes=0-99999";
    client.send(File, "PUT", "/docs/dir/report?comp=range", range, &noise(4, 100_000));
    client.send(File, "DELETE", "/old?restype=share", "", b"");
}

/// Undeletes the deleted container and share, like a client.
fn undelete(client: &AccountClient<'_>) {
    let listed = client.get(Blob, "/?comp=list&include=deleted").text();
    let version = values(&listed, "Version").pop().unwrap();
    client.send(Blob, "DELETE", "/gone?restype=container", "", b"");
    let head = format!("x-ms-deleted-container-name: gone\nx-ms-deleted-container-version: {version}");
    client.send(Blob, "PUT", "/gone?restype=container&comp=undelete", &head, b"");
    assert_eq!(client.get(Blob, "/gone/blob").body, b"of a deleted container");
    let listed = client.get(File, "/?comp=list&include=deleted").text();
    let version = values(&listed, "Version").pop().unwrap();
    let head = format!("x-ms-deleted-share-name: old\nx-ms-deleted-share-version: {version}");
    client.send(File, "PUT", "/old?restype=share&comp=undelete", &head, b"");
    assert!(client.get(File, "/old/dir/report").body == noise(3, 100_000));
}

#[test]
fn restored_account_is_complete_under_a_new_name_and_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (data, backups) = (dir.path().join("data"), dir.path().join("backups"));
    let (data_text, backups_text) = (data.to_str().unwrap(), backups.to_str().unwrap());
    let server = Server::start(&data);
    let added = account(&data, &["add", "lapis"]);
    let lapis = AccountClient::new(&server, "lapis", added[0]["keys"][0].as_str().unwrap());
    let settings = ["--container-soft-delete", "7", "--default-tier", "cool", "--role", "me=blob:owner"];
    account(&data, &[&["set", "lapis"][..], &settings].concat());
    fill(&lapis);
    let before = lapis.everything();
    assert_eq!(before.len(), 17, "{:?}", before.keys());
    // Restores drop leases. No recorded reply shows them.
    lapis.send(Blob, "PUT", "/con/small?comp=lease", LEASE, b"");
    succeed(&["backup", "--data", data_text, "--to", backups_text]);

    let again = restore(data_text, backups_text, "account:lapis", &["--as", "azure"]);
    let printed = succeed(&again);
    let said =
        "restored account lapis as azure: 3 containers, 1 table, 1 queue, 1 share, 2 deleted and kept; ";
    assert!(printed.starts_with(said), "{printed}");
    let new_keys = keys(&printed);
    assert_eq!(new_keys.len(), 2);
    assert!(!new_keys.contains(&lapis.key.as_str()), "a copy has new keys");
    let azure = AccountClient::new(&server, "azure", new_keys[1]);
    assert_eq!(AccountClient::new(&server, "azure", &lapis.key).status(Blob, "/?comp=list"), 403);
    assert_same(&azure.everything(), &before);
    azure.send(Blob, "PUT", "/con/small", BLOB, b"changed");
    undelete(&azure);
    assert_eq!(lapis.get(Blob, "/con/small").body, b"small");
    let listed = account(&data, &["list"]);
    assert_eq!(names(&listed), ["azure", DEVELOPMENT_ACCOUNT, "lapis"]);
    assert_eq!(listed[0]["settings"], listed[2]["settings"]);
    assert_eq!(listed[0]["roles"], listed[2]["roles"]);

    for (only, name, why) in [
        ("account:lapis", "azure", "account \"azure\" exists already"),
        ("account:lapis", "lapis", "account \"lapis\" exists already"),
        ("account:lapis", "No", "lower-case"),
        ("account:missing", "other", "the backup has no account missing"),
    ] {
        let said = fail(&restore(data_text, backups_text, only, &["--as", name]), 1);
        assert!(said.contains(why), "{said}");
    }
    let said = fail(&restore(data_text, backups_text, "account:lapis", &[]), 1);
    assert!(said.contains("account \"lapis\" exists already"), "{said}");
    let said = fail(&restore(data_text, backups_text, "container:lapis/con", &[]), 2);
    assert!(said.contains("--as"), "{said}");

    // The restore brings back the keys, but not the remains of the removed account.
    lapis.send(Blob, "PUT", "/later?restype=container", "", b"");
    account(&data, &["remove", "lapis", "--delete-data"]);
    let printed = succeed(&restore(data_text, backups_text, "account:lapis", &[]));
    assert_eq!(keys(&printed), Vec::<&str>::new(), "the account keeps its keys");
    assert_same(&lapis.everything(), &before);

    let (azure, lapis) = ((azure.account, azure.key), (lapis.account, lapis.key));
    server.stop();
    assert!(succeed(&["check", data_text]).contains("no damage found"));
    let server = Server::start(&data);
    assert_same(&AccountClient::new(&server, &lapis.0, &lapis.1).everything(), &before);
    let azure = AccountClient::new(&server, &azure.0, &azure.1);
    assert_eq!(azure.get(Blob, "/gone/blob").body, b"of a deleted container");
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
fn killed_account_restore_leaves_no_trace_and_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let (data, backups) = (dir.path().join("data"), dir.path().join("backups"));
    let (data_text, backups_text) = (data.to_str().unwrap(), backups.to_str().unwrap());
    let server = Server::start(&data);
    let client = AccountClient::new(&server, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY);
    for container in ["first", "second"] {
        client.send(Blob, "PUT", &format!("/{container}?restype=container"), "", b"");
    }
    for n in 0..20 {
        client.send(Blob, "PUT", &format!("/first/{n}"), BLOB, b"small");
        client.send(Blob, "PUT", &format!("/second/{n}"), BLOB, &noise(n, MIB));
    }
    succeed(&["backup", "--data", data_text, "--to", backups_text]);
    let rows = |server: &Server| -> f64 {
        let (_, text) = server.console("/metrics");
        let line = text.lines().find(|line| line.starts_with("lazuli_rows ")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    // A client that reads this chunk blocks: the first container is visible to the server and the second is
    // being filled.
    let chunk = chunk_with(&backups, &noise(18, MIB)[MIB / 2..MIB / 2 + 64]);
    let aside = chunk.with_extension("aside");
    std::fs::rename(&chunk, &aside).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &chunk, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let before = rows(&server);
    let only = format!("account:{DEVELOPMENT_ACCOUNT}");
    let arguments = restore(data_text, backups_text, &only, &["--as", "copy"]);
    let spawn = || lazuli().args(&arguments).spawn().unwrap();
    let is_visible = |server: &Server| {
        let listed = account(&data, &["list"]);
        let reply = server.send_as(("copy", DEVELOPMENT_KEY), Blob, "GET", "/first/0", "", b"");
        names(&listed).contains(&"copy") || reply.status != 403
    };

    // Kill the client.
    let mut child = spawn();
    eventually("rows arrive", || rows(&server) >= before + 24.0);
    assert!(!is_visible(&server));
    for refused in [&arguments[..], &["account", "add", "copy", "--data", data_text]] {
        let said = fail(refused, 1);
        assert!(said.contains("account \"copy\" is being restored"), "{said}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the sweep removes the rows", || rows(&server) <= before);
    assert!(!is_visible(&server));

    // Kill the server.
    let mut child = spawn();
    eventually("rows arrive", || rows(&server) >= before + 24.0);
    server.signal(Signal::KILL);
    server.wait();
    child.kill().unwrap();
    child.wait().unwrap();
    let server = Server::start(&data);
    assert!(!is_visible(&server));

    // The sweep may still be running.
    std::fs::rename(&aside, &chunk).unwrap();
    let printed = succeed(&arguments);
    let copy = AccountClient::new(&server, "copy", keys(&printed)[0]);
    for n in 0..20 {
        assert_eq!(copy.get(Blob, &format!("/first/{n}")).body, b"small");
        assert!(copy.get(Blob, &format!("/second/{n}")).body == noise(n, MIB), "{n}");
    }
    account(&data, &["remove", "copy", "--delete-data", "--immediately"]);
    eventually("the remains of the restores are swept", || rows(&server) <= before);
    server.stop();
    assert!(succeed(&["check", data_text]).contains("no damage found"));
}
