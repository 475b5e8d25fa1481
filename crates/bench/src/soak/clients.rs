//! The clients of a soak. Each has its own objects, so it knows every byte that a read must return.
//!
//! The content of a [slot](Slots) is a function of the slot and a version. After a failed write the content
//! is unknown, so the slot is written again before it is read.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{Method, StatusCode};
use lazuli_protocol::ServiceKind;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::super::client::{Call, Client, OperationFailure, TargetAccount};
use super::super::round::Worker;
use super::super::rows::scatter;
use super::super::workload::{encode, fresh_name, with};
use super::smb::Smb;

/// Maximum bytes of a read. The client keeps no more of a body, and every byte is compared.
const READ_BYTES: usize = 64 << 10;
/// Bytes of a block of a large blob.
const BLOCK_BYTES: usize = 256 << 10;
/// Bytes of a large blob.
const LARGE: usize = 1 << 20;
/// Sizes of blobs, and the number of blobs of each size per client.
const BLOBS: [(usize, u64); 4] = [(100, 100), (4 << 10, 200), (64 << 10, 96), (LARGE, 4)];
/// Entities per client.
const ENTITIES: u64 = 2000;
/// Entities per partition.
const PARTITION: u64 = 100;
/// Entities that a query returns.
const QUERIED: u64 = 40;
const ENTITY_BYTES: usize = 450;
/// Messages in each queue.
const MESSAGES: u64 = 200;
const MESSAGE_BYTES: usize = 500;
/// Files per client.
const FILES: u64 = 16;
/// Parts of a file. Each is a slot.
const PARTS: u64 = 16;
/// Bytes of a part.
const PART_BYTES: usize = 16 << 10;

/// The expected contents of a client's objects.
struct Slots {
    seed: u64,
    /// The version of each slot; `None` if its content is unknown.
    versions: Vec<Option<u64>>,
    writes: u64,
}

impl Slots {
    fn new(seed: u64, count: u64) -> Self {
        Self { seed: scatter(seed), versions: vec![None; count as usize], writes: 0 }
    }

    /// Returns a new version and its content. The slot is unknown until [`Self::written`] is called.
    fn begin(&mut self, slot: u64, length: usize) -> (u64, Bytes) {
        self.writes += 1;
        self.versions[slot as usize] = None;
        (self.writes, self.content(slot, self.writes, length))
    }

    fn written(&mut self, slot: u64, version: u64) {
        self.versions[slot as usize] = Some(version);
    }

    /// Marks the parts of a file as unknown.
    fn forget_file(&mut self, file: u64) {
        self.versions[(file * PARTS) as usize..((file + 1) * PARTS) as usize].fill(None);
    }

    /// Returns the content of a slot, if it is known.
    fn known(&self, slot: u64, length: usize) -> Option<Bytes> {
        self.versions[slot as usize].map(|version| self.content(slot, version, length))
    }

    fn content(&self, slot: u64, version: u64, length: usize) -> Bytes {
        let mut content = vec![0; length];
        SmallRng::seed_from_u64(self.seed ^ scatter(slot << 32 ^ version)).fill_bytes(&mut content);
        content.into()
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn check_bytes(wrong: &'static str, found: &[u8], expected: &[u8]) -> Result<(), OperationFailure> {
    if found == expected { Ok(()) } else { Err(OperationFailure::Wrong(wrong)) }
}

/// A client of one service.
pub(super) enum SoakClient {
    Blobs(Blobs),
    Entities(Entities),
    Messages(Messages),
    Files(Files),
    Smb(SmbFiles),
}

impl SoakClient {
    /// Returns all clients of a soak.
    pub(super) fn all(target: &TargetAccount, smb_port: u16) -> Result<Vec<Self>, OperationFailure> {
        let client = |service: ServiceKind| {
            let absent =
                || OperationFailure::Request(format!("the account has no {} service", service.name()));
            Client::new(target, service).ok_or_else(absent)
        };
        let mut clients = vec![];
        for number in 0..4 {
            clients.push(Self::Blobs(Blobs::new(client(ServiceKind::Blob)?, number)));
        }
        for number in 4..6 {
            clients.push(Self::Entities(Entities::new(client(ServiceKind::Table)?, number)));
            clients.push(Self::Messages(Messages::new(client(ServiceKind::Queue)?, number)));
            clients.push(Self::Files(Files::new(client(ServiceKind::File)?, number)));
            clients.push(Self::Smb(SmbFiles::new(target, client(ServiceKind::File)?, smb_port, number)));
        }
        Ok(clients)
    }

    /// Returns the bytes of content in the client's working set.
    pub(super) fn live_bytes(&self) -> u64 {
        match self {
            Self::Blobs(_) => BLOBS.iter().map(|(size, count)| *size as u64 * count).sum(),
            Self::Entities(_) => ENTITIES * 2 * ENTITY_BYTES as u64,
            Self::Messages(_) => MESSAGES * 2 * MESSAGE_BYTES as u64,
            Self::Files(_) | Self::Smb(_) => FILES * PARTS * PART_BYTES as u64,
        }
    }

    /// Creates the client's working set.
    pub(super) async fn prepare(&mut self) -> Result<(), String> {
        match self {
            Self::Blobs(client) => client.prepare().await.map_err(|failure| failure.to_string()),
            Self::Entities(client) => client.prepare().await.map_err(|failure| failure.to_string()),
            Self::Messages(client) => client.prepare().await.map_err(|failure| failure.to_string()),
            Self::Files(client) => client.prepare().await.map_err(|failure| failure.to_string()),
            Self::Smb(client) => client.prepare().await,
        }
    }
}

impl Worker for SoakClient {
    async fn once(&mut self) -> Result<(), String> {
        let done = match self {
            Self::Blobs(client) => client.once().await,
            Self::Entities(client) => client.once().await,
            Self::Messages(client) => client.once().await,
            Self::Files(client) => client.once().await,
            Self::Smb(client) => return client.once().await,
        };
        done.map_err(|failure| failure.to_string())
    }
}

/// Block blobs of several sizes.
pub(super) struct Blobs {
    client: Client,
    container: String,
    random: SmallRng,
    slots: Slots,
    containers_created: u64,
}

impl Blobs {
    fn new(client: Client, number: u64) -> Self {
        let count = BLOBS.iter().map(|(_, count)| count).sum();
        let container = format!("/{}-{number}", fresh_name());
        Self {
            client,
            container,
            random: SmallRng::seed_from_u64(number),
            slots: Slots::new(number, count),
            containers_created: 0,
        }
    }

    fn size(mut slot: u64) -> usize {
        for (size, count) in BLOBS {
            if slot < count {
                return size;
            }
            slot -= count;
        }
        0
    }

    fn path(&self, slot: u64) -> String {
        format!("{}/directory/{slot:06}", self.container)
    }

    async fn prepare(&mut self) -> Result<(), OperationFailure> {
        self.make_container(self.container.clone()).await?;
        for slot in 0..self.slots.versions.len() as u64 {
            self.put(slot).await?;
        }
        Ok(())
    }

    async fn make_container(&mut self, path: String) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, path, "restype=container");
        self.client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn put(&mut self, slot: u64) -> Result<(), OperationFailure> {
        let (path, size) = (self.path(slot), Self::size(slot));
        let (version, content) = self.slots.begin(slot, size);
        if size <= READ_BYTES {
            let call = Call::new(Method::PUT, path, "").header("x-ms-blob-type", "BlockBlob");
            self.client.send(call.body(content)).await?.expect(StatusCode::CREATED)?;
        } else {
            let mut list = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
            for number in 0..size / BLOCK_BYTES {
                let id = ["QUFB", "QUFC", "QUFD", "QUFE"][number % 4];
                let call = Call::new(Method::PUT, &path, format!("comp=block&blockid={id}"));
                let block = content.slice(number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES);
                self.client.send(call.body(block)).await?.expect(StatusCode::CREATED)?;
                let _ = write!(list, "<Latest>{id}</Latest>");
            }
            list.push_str("</BlockList>");
            let call = Call::new(Method::PUT, path, "comp=blocklist").body(list.into());
            self.client.send(call).await?.expect(StatusCode::CREATED)?;
        }
        self.slots.written(slot, version);
        Ok(())
    }

    async fn get(&mut self, slot: u64) -> Result<(), OperationFailure> {
        let size = Self::size(slot);
        let Some(content) = self.slots.known(slot, size) else { return self.put(slot).await };
        let call = Call::new(Method::GET, self.path(slot), "");
        let (call, status, part) = if size <= READ_BYTES {
            (call, StatusCode::OK, 0..size)
        } else {
            let at = self.random.random_range(0..(size - READ_BYTES) as u64) as usize;
            let range = format!("bytes={at}-{}", at + READ_BYTES - 1);
            (with(call, "x-ms-range", range), StatusCode::PARTIAL_CONTENT, at..at + READ_BYTES)
        };
        let reply = self.client.send(call).await?.expect(status)?;
        check_bytes("wrong bytes of a blob", &reply.body, &content[part])
    }

    async fn delete(&mut self, slot: u64) -> Result<(), OperationFailure> {
        if self.slots.versions[slot as usize].take().is_some() {
            let call = Call::new(Method::DELETE, self.path(slot), "");
            self.client.send(call).await?.expect(StatusCode::ACCEPTED)?;
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<(), OperationFailure> {
        let query = "restype=container&comp=list&maxresults=40&prefix=directory%2F";
        let call = Call::new(Method::GET, &self.container, query);
        let reply = self.client.send(call).await?.expect(StatusCode::OK)?;
        let (listed, mut names) = (String::from_utf8_lossy(&reply.body), 0);
        for slot in (0..).filter(|slot| self.slots.versions[*slot].is_some()).take(40) {
            names += usize::from(listed.contains(&format!("<Name>directory/{slot:06}</Name>")));
        }
        if names == 40 { Ok(()) } else { Err(OperationFailure::Wrong("a blob is missing in a listing")) }
    }

    /// Creates a container with a blob and deletes it.
    async fn container(&mut self) -> Result<(), OperationFailure> {
        self.containers_created += 1;
        let path = format!("{}-{}", self.container, self.containers_created);
        self.make_container(path.clone()).await?;
        let call = Call::new(Method::PUT, format!("{path}/blob"), "").header("x-ms-blob-type", "BlockBlob");
        let content = self.slots.content(0, self.containers_created, 4 << 10);
        self.client.send(call.body(content)).await?.expect(StatusCode::CREATED)?;
        let call = Call::new(Method::DELETE, path, "restype=container");
        self.client.send(call).await?.expect(StatusCode::ACCEPTED).map(drop)
    }

    async fn once(&mut self) -> Result<(), OperationFailure> {
        let slot = self.random.random_range(0..self.slots.versions.len() as u64);
        match self.random.random_range(0..100) {
            0..45 => self.get(slot).await,
            45..80 => self.put(slot).await,
            80..85 => {
                self.delete(slot).await?;
                self.put(slot).await
            }
            85..98 => self.list().await,
            _ => self.container().await,
        }
    }
}

/// Entities of one table.
pub(super) struct Entities {
    client: Client,
    table: String,
    random: SmallRng,
    slots: Slots,
}

impl Entities {
    fn new(client: Client, number: u64) -> Self {
        let table = format!("{}x{number}", fresh_name().replace('-', ""));
        Self { client, table, random: SmallRng::seed_from_u64(number), slots: Slots::new(number, ENTITIES) }
    }

    fn call(method: Method, path: String, query: impl Into<String>) -> Call {
        Call::new(method, path, query)
            .header("accept", "application/json;odata=nometadata")
            .header("content-type", "application/json")
            .header("dataserviceversion", "3.0")
    }

    fn path(&self, slot: u64) -> String {
        let (partition, row) = (slot / PARTITION, slot % PARTITION);
        format!("/{}(PartitionKey='p{partition:03}',RowKey='r{row:03}')", self.table)
    }

    async fn prepare(&mut self) -> Result<(), OperationFailure> {
        let body = format!(r#"{{"TableName":"{}"}}"#, self.table);
        let call = Self::call(Method::POST, "/Tables".into(), "").body(body.into());
        self.client.send(call).await?.expect(StatusCode::CREATED)?;
        for slot in 0..ENTITIES {
            self.put(slot, Method::PUT).await?;
        }
        Ok(())
    }

    async fn put(&mut self, slot: u64, method: Method) -> Result<(), OperationFailure> {
        let (version, content) = self.slots.begin(slot, ENTITY_BYTES);
        let body = format!(r#"{{"Number":{version},"Value":"{}"}}"#, hex(&content));
        let call = Self::call(method, self.path(slot), "").body(body.into());
        self.client.send(call).await?.expect(StatusCode::NO_CONTENT)?;
        self.slots.written(slot, version);
        Ok(())
    }

    fn value(&self, slot: u64) -> Option<String> {
        let content = self.slots.known(slot, ENTITY_BYTES)?;
        Some(format!("\"Value\":\"{}\"", hex(&content)))
    }

    async fn get(&mut self, slot: u64) -> Result<(), OperationFailure> {
        let Some(value) = self.value(slot) else { return self.put(slot, Method::PUT).await };
        let call = Self::call(Method::GET, self.path(slot), "");
        let reply = self.client.send(call).await?.expect(StatusCode::OK)?;
        let found = String::from_utf8_lossy(&reply.body).contains(&value);
        if found { Ok(()) } else { Err(OperationFailure::Wrong("wrong value of an entity")) }
    }

    async fn delete(&mut self, slot: u64) -> Result<(), OperationFailure> {
        if self.slots.versions[slot as usize].take().is_some() {
            let mut call = Self::call(Method::DELETE, self.path(slot), "");
            call.headers.insert(http::header::IF_MATCH, http::HeaderValue::from_static("*"));
            self.client.send(call).await?.expect(StatusCode::NO_CONTENT)?;
        }
        Ok(())
    }

    async fn query(&mut self, slot: u64) -> Result<(), OperationFailure> {
        let partition = slot / PARTITION;
        let filter = format!("PartitionKey eq 'p{partition:03}'");
        let query = format!("$filter={}&$top={QUERIED}", encode(&filter));
        let call = Self::call(Method::GET, format!("/{}()", self.table), query);
        let reply = self.client.send(call).await?.expect(StatusCode::OK)?;
        let found = String::from_utf8_lossy(&reply.body);
        let first = partition * PARTITION;
        let known = (first..first + PARTITION).filter_map(|slot| self.value(slot)).take(QUERIED as usize);
        match known.into_iter().all(|value| found.contains(&value)) {
            true => Ok(()),
            false => Err(OperationFailure::Wrong("an entity is missing in a query or has a wrong value")),
        }
    }

    async fn once(&mut self) -> Result<(), OperationFailure> {
        let slot = self.random.random_range(0..ENTITIES);
        match self.random.random_range(0..100) {
            0..40 => self.get(slot).await,
            40..65 => self.put(slot, Method::PUT).await,
            65..80 => self.put(slot, Method::from_bytes(b"MERGE").unwrap_or(Method::PUT)).await,
            80..85 => {
                self.delete(slot).await?;
                self.put(slot, Method::PUT).await
            }
            _ => self.query(slot).await,
        }
    }
}

/// Messages of one queue. Each text begins with a number that determines the rest, so it can be checked.
pub(super) struct Messages {
    client: Client,
    queue: String,
    random: SmallRng,
    slots: Slots,
    messages_put: u64,
}

impl Messages {
    fn new(client: Client, number: u64) -> Self {
        let queue = format!("/{}-{number}", fresh_name());
        Self {
            client,
            queue,
            random: SmallRng::seed_from_u64(number),
            slots: Slots::new(number, 1),
            messages_put: 0,
        }
    }

    async fn prepare(&mut self) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, &self.queue, "");
        self.client.send(call).await?.expect(StatusCode::CREATED)?;
        for _ in 0..MESSAGES {
            self.put().await?;
        }
        Ok(())
    }

    fn text(&self, number: u64) -> String {
        format!("{number}-{}", hex(&self.slots.content(0, number, MESSAGE_BYTES)))
    }

    async fn put(&mut self) -> Result<(), OperationFailure> {
        self.messages_put += 1;
        let text = self.text(self.messages_put);
        let body = format!("<QueueMessage><MessageText>{text}</MessageText></QueueMessage>");
        let call = Call::new(Method::POST, format!("{}/messages", self.queue), "")
            .header("content-type", "application/xml")
            .body(body.into());
        self.client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    /// Gets or peeks at a message and checks its text. Returns its ID and receipt.
    async fn get(&mut self, query: &str) -> Result<(String, String), OperationFailure> {
        let call = Call::new(Method::GET, format!("{}/messages", self.queue), query);
        let reply = self.client.send(call).await?.expect(StatusCode::OK)?;
        let document = String::from_utf8_lossy(&reply.body);
        let element = |name| {
            let (_, rest) = document.split_once(&format!("<{name}>"))?;
            rest.split_once('<').map(|(text, _)| text.to_owned())
        };
        let text =
            element("MessageText").ok_or(OperationFailure::Wrong("no message in a queue that has many"))?;
        let number = text.split_once('-').and_then(|(number, _)| number.parse().ok()).unwrap_or(0);
        check_bytes("wrong text of a message", text.as_bytes(), self.text(number).as_bytes())?;
        Ok((element("MessageId").unwrap_or_default(), element("PopReceipt").unwrap_or_default()))
    }

    async fn once(&mut self) -> Result<(), OperationFailure> {
        if self.random.random_range(0..100) < 20 {
            return self.get("peekonly=true").await.map(drop);
        }
        self.put().await?;
        let (id, receipt) = self.get("visibilitytimeout=30").await?;
        let query = format!("popreceipt={}", encode(&receipt));
        let call = Call::new(Method::DELETE, format!("{}/messages/{id}", self.queue), query);
        self.client.send(call).await?.expect(StatusCode::NO_CONTENT).map(drop)
    }
}

/// Files of one share over REST.
pub(super) struct Files {
    client: Client,
    share: String,
    random: SmallRng,
    slots: Slots,
}

impl Files {
    fn new(client: Client, number: u64) -> Self {
        let share = format!("/{}-{number}", fresh_name());
        Self {
            client,
            share,
            random: SmallRng::seed_from_u64(number),
            slots: Slots::new(number, FILES * PARTS),
        }
    }

    async fn create_share(client: &mut Client, share: &str) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, share, "restype=share");
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn prepare(&mut self) -> Result<(), OperationFailure> {
        Self::create_share(&mut self.client, &self.share).await?;
        for file in 0..FILES {
            self.create(file).await?;
        }
        Ok(())
    }

    /// Creates or replaces a file and writes all parts.
    async fn create(&mut self, file: u64) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, format!("{}/f{file}", self.share), "").header("x-ms-type", "file");
        let call = with(call, "x-ms-content-length", (PARTS as usize * PART_BYTES).to_string());
        self.slots.forget_file(file);
        self.client.send(call).await?.expect(StatusCode::CREATED)?;
        for part in 0..PARTS {
            self.put(file * PARTS + part).await?;
        }
        Ok(())
    }

    fn path_and_range(&self, slot: u64) -> (String, String) {
        let at = (slot % PARTS) as usize * PART_BYTES;
        (format!("{}/f{}", self.share, slot / PARTS), format!("bytes={at}-{}", at + PART_BYTES - 1))
    }

    async fn put(&mut self, slot: u64) -> Result<(), OperationFailure> {
        let (version, content) = self.slots.begin(slot, PART_BYTES);
        let (path, range) = self.path_and_range(slot);
        let call = Call::new(Method::PUT, path, "comp=range").header("x-ms-write", "update");
        let call = with(call, "x-ms-range", range).body(content);
        self.client.send(call).await?.expect(StatusCode::CREATED)?;
        self.slots.written(slot, version);
        Ok(())
    }

    async fn get(&mut self, slot: u64) -> Result<(), OperationFailure> {
        let Some(content) = self.slots.known(slot, PART_BYTES) else { return self.put(slot).await };
        let (path, range) = self.path_and_range(slot);
        let call = with(Call::new(Method::GET, path, ""), "x-ms-range", range);
        let reply = self.client.send(call).await?.expect(StatusCode::PARTIAL_CONTENT)?;
        check_bytes("wrong bytes of a file", &reply.body, &content)
    }

    async fn list(&mut self) -> Result<(), OperationFailure> {
        let call = Call::new(Method::GET, &self.share, "restype=directory&comp=list");
        let reply = self.client.send(call).await?.expect(StatusCode::OK)?;
        let listed = String::from_utf8_lossy(&reply.body);
        match (0..FILES).all(|file| listed.contains(&format!("<Name>f{file}</Name>"))) {
            true => Ok(()),
            false => Err(OperationFailure::Wrong("a file is missing in a listing")),
        }
    }

    async fn once(&mut self) -> Result<(), OperationFailure> {
        let slot = self.random.random_range(0..FILES * PARTS);
        match self.random.random_range(0..100) {
            0..45 => self.get(slot).await,
            45..85 => self.put(slot).await,
            85..98 => self.list().await,
            _ => self.create(slot / PARTS).await,
        }
    }
}

/// Files of one share over SMB. Reconnects now and then.
pub(super) struct SmbFiles {
    rest: Client,
    user: String,
    password: String,
    port: u16,
    share: String,
    connection: Option<Smb>,
    random: SmallRng,
    slots: Slots,
}

impl SmbFiles {
    fn new(target: &TargetAccount, rest: Client, port: u16, number: u64) -> Self {
        Self {
            rest,
            user: target.account.name.clone(),
            password: target.account.key.to_base64(),
            port,
            share: format!("{}-s{number}", fresh_name()),
            connection: None,
            random: SmallRng::seed_from_u64(number + 100),
            slots: Slots::new(number + 100, FILES * PARTS),
        }
    }

    async fn prepare(&mut self) -> Result<(), String> {
        let share = format!("/{}", self.share);
        Files::create_share(&mut self.rest, &share).await.map_err(|failure| failure.to_string())?;
        for file in 0..FILES {
            self.create(file).await?;
        }
        Ok(())
    }

    async fn connection(&mut self) -> Result<&mut Smb, String> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Smb::connect(self.port, &self.user, &self.password, &self.share).await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Writes all parts of a file.
    async fn create(&mut self, file: u64) -> Result<(), String> {
        let id = self.connection().await?.open(&format!("f{file}"), false).await?;
        for slot in file * PARTS..(file + 1) * PARTS {
            let (version, content) = self.slots.begin(slot, PART_BYTES);
            self.connection().await?.write(id, (slot % PARTS) * PART_BYTES as u64, &content).await?;
            self.slots.written(slot, version);
        }
        self.connection().await?.close(id).await
    }

    /// Opens a file, may write a part, reads another one, may flush, and closes the file.
    async fn use_file(&mut self, slot: u64) -> Result<(), String> {
        let (file, at) = (slot / PARTS, (slot % PARTS) * PART_BYTES as u64);
        let id = self.connection().await?.open(&format!("f{file}"), false).await?;
        if self.slots.known(slot, PART_BYTES).is_none() || self.random.random_range(0..2) == 0 {
            let (version, content) = self.slots.begin(slot, PART_BYTES);
            self.connection().await?.write(id, at, &content).await?;
            self.slots.written(slot, version);
        }
        let other = file * PARTS + self.random.random_range(0..PARTS);
        if let Some(content) = self.slots.known(other, PART_BYTES) {
            let at = (other % PARTS) * PART_BYTES as u64;
            let found = self.connection().await?.read(id, at, PART_BYTES as u32).await?;
            if found != content {
                return Err("wrong bytes of a file over SMB".into());
            }
        }
        if self.random.random_range(0..10) == 0 {
            self.connection().await?.flush(id).await?;
        }
        self.connection().await?.close(id).await
    }

    async fn act(&mut self, slot: u64) -> Result<(), String> {
        match self.random.random_range(0..100) {
            0..97 => self.use_file(slot).await,
            97..99 => {
                let file = slot / PARTS;
                let id = self.connection().await?.open(&format!("f{file}"), true).await?;
                self.slots.forget_file(file);
                self.connection().await?.close(id).await?;
                self.create(file).await
            }
            _ => {
                self.connection = None;
                self.use_file(slot).await
            }
        }
    }

    async fn once(&mut self) -> Result<(), String> {
        let slot = self.random.random_range(0..FILES * PARTS);
        let done = self.act(slot).await;
        if done.is_err() {
            // The server may drop a write that it accepted, if Flush or Close then reports a failure.
            self.slots.forget_file(slot / PARTS);
            self.connection = None;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_differs_between_slots_and_versions() {
        let mut slots = Slots::new(1, 2);
        assert_eq!(slots.known(0, 10), None);
        let (version, first) = slots.begin(0, 10);
        assert_eq!(slots.known(0, 10), None, "not written yet");
        slots.written(0, version);
        assert_eq!(slots.known(0, 10), Some(first.clone()));
        let (_, second) = slots.begin(0, 10);
        assert_ne!(first, second);
        assert_ne!(slots.begin(1, 10).1, second);
        assert_eq!((first.len(), hex(&[0, 255])), (10, "00ff".into()));
    }

    #[test]
    fn working_set_is_about_70_mib() {
        let target = TargetAccount {
            account: std::sync::Arc::new(super::super::super::account::StorageAccount::development()),
            tls: None,
        };
        let clients = SoakClient::all(&target, 1).unwrap();
        let live: u64 = clients.iter().map(SoakClient::live_bytes).sum();
        assert!((60..80).contains(&(live >> 20)), "{live}");
    }
}
