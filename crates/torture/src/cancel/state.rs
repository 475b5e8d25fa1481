//! The state of an account as clients see it: a text without times, ETags and ids. Accounts in the same state
//! have the same text.
//!
//! All content is read. It is an error if a listed resource cannot be read, or if the usage of a share is not
//! the sum of the lengths of its files.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use lazuli_protocol::{Account, ServiceKind};

use super::server::{AllServices, TestReply};

/// Elements whose text differs between runs.
const MASKED: [&str; 17] = [
    "CopyDestinationSnapshot",
    "Etag",
    "Last-Modified",
    "Creation-Time",
    "Snapshot",
    "VersionId",
    "Version",
    "DeletedTime",
    "CopyId",
    "CopySource",
    "CopyCompletionTime",
    "AccessTierChangeTime",
    "Expiry-Time",
    "NextAllowedQuotaDowngradeTime",
    "ImmutabilityPolicyUntilDate",
    "TagCount",
    "FileId",
];
const HEADERS: [&str; 5] =
    ["x-ms-file-attributes", "content-type", "x-ms-lease-status", "x-ms-meta-a", "x-ms-copy-status"];

/// Reads the state of an account.
pub(crate) struct StateReader<'a> {
    pub(crate) server: &'a AllServices,
    pub(crate) account: &'a Arc<Account>,
}

impl StateReader<'_> {
    /// Returns the state of one service.
    pub(crate) async fn state(&self, service: ServiceKind) -> Result<String, String> {
        let mut text = match service {
            ServiceKind::Blob => self.blobs().await?,
            ServiceKind::Queue => self.queues().await?,
            ServiceKind::Table => self.tables().await?,
            ServiceKind::File => self.files().await?,
        };
        let properties = self.get(service, "/?restype=service&comp=properties").await?;
        text += &properties.text();
        Ok(text.replace(&self.account.name, "ACCOUNT").replace("><", ">\n<"))
    }

    async fn send(&self, service: ServiceKind, request: &str) -> Result<TestReply, String> {
        self.server.call(self.account, service, request).await.map_err(|error| format!("{request}: {error}"))
    }

    async fn get(&self, service: ServiceKind, target: &str) -> Result<TestReply, String> {
        let accept = "accept: application/json;odata=nometadata";
        let reply = self.send(service, &format!("GET {target}\n{accept}")).await?;
        match reply.is_success() {
            true => Ok(reply),
            false => Err(format!("GET {target}: {} {}", reply.status, reply.text())),
        }
    }

    async fn blobs(&self) -> Result<String, String> {
        let blob = ServiceKind::Blob;
        let containers = self.get(blob, "/?comp=list&include=metadata,deleted").await?.text();
        let mut text = masked(&containers);
        for container in all(&containers, "Container").filter(|xml| one(xml, "Deleted") != "true") {
            let container = one(container, "Name");
            let include = "snapshots,metadata,uncommittedblobs,copy,deleted,tags,versions,\
                deletedwithversions,immutabilitypolicy,legalhold";
            let target = format!("/{container}?restype=container&comp=list&include={include}");
            let listed = self.get(blob, &target).await?.text();
            text += &masked(&listed);
            text += &self.get(blob, &format!("/{container}?restype=container&comp=acl")).await?.text();
            for entry in all(&listed, "Blob").filter(|xml| one(xml, "Deleted") != "true") {
                text += &self.blob(container, entry).await?;
            }
        }
        let found = self.get(blob, "/?comp=blobs&where=%22color%22%3D%27blue%27").await?.text();
        Ok(text + &masked(&found))
    }

    /// Returns the content of a listed blob.
    async fn blob(&self, container: &str, entry: &str) -> Result<String, String> {
        let name = one(entry, "Name");
        let mut target = format!("/{container}/{name}");
        match (one(entry, "Snapshot"), one(entry, "VersionId")) {
            ("", "") => {}
            ("", version) => target += &format!("?versionid={version}"),
            (snapshot, _) => target += &format!("?snapshot={snapshot}"),
        }
        let reply = self.send(ServiceKind::Blob, &format!("GET {target}")).await?;
        let length = one(entry, "Content-Length");
        if reply.is_success() {
            if reply.body.len().to_string() != length {
                return Err(format!("{target} is listed with {length} bytes and has {}", reply.body.len()));
            }
            let mut text = format!("{name} {}\n", hash(&reply));
            if one(entry, "BlobType") == "BlockBlob" && !target.contains('?') {
                let blocks = format!("{target}?comp=blocklist&blocklisttype=all");
                text += &self.get(ServiceKind::Blob, &blocks).await?.text();
            }
            return Ok(text);
        }
        // Only the blob's snapshots can be read.
        if reply.status == 409 && reply.text().contains("OperationNotAllowedOnIncrementalCopyBlob") {
            return Ok(format!("{name} is an incremental copy\n"));
        }
        // The blob has only uncommitted blocks.
        if reply.status == 404 && length == "0" {
            let target = format!("/{container}/{name}?comp=blocklist&blocklisttype=all");
            return Ok(self.get(ServiceKind::Blob, &target).await?.text());
        }
        Err(format!("{target} is listed and cannot be read: {} {}", reply.status, reply.text()))
    }

    async fn queues(&self) -> Result<String, String> {
        let queue = ServiceKind::Queue;
        let queues = self.get(queue, "/?comp=list&include=metadata").await?.text();
        let mut text = masked(&queues);
        for name in all(&queues, "Queue").map(|xml| one(xml, "Name")) {
            text += &self.get(queue, &format!("/{name}?comp=acl")).await?.text();
            let count = self.get(queue, &format!("/{name}?comp=metadata")).await?;
            let messages =
                self.get(queue, &format!("/{name}/messages?peekonly=true&numofmessages=32")).await?;
            let messages = messages.text();
            let visible: Vec<_> = all(&messages, "QueueMessage").map(|xml| one(xml, "MessageText")).collect();
            text += &format!("{name} {} {visible:?}\n", count.header("x-ms-approximate-messages-count"));
        }
        Ok(text)
    }

    async fn tables(&self) -> Result<String, String> {
        let table = ServiceKind::Table;
        let tables = self.get(table, "/Tables").await?.text();
        let mut text = tables.clone();
        for name in tables.split("\"TableName\":\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            text += &self.get(table, &format!("/{name}?comp=acl")).await?.text();
            let entities = self.get(table, &format!("/{name}()")).await?.text();
            for (i, part) in entities.split("\"Timestamp\":\"").enumerate() {
                text += if i == 0 { part } else { part.split_once('"').map_or("", |(_, rest)| rest) };
            }
        }
        Ok(text)
    }

    async fn files(&self) -> Result<String, String> {
        let file = ServiceKind::File;
        let shares = self.get(file, "/?comp=list&include=metadata,deleted,snapshots").await?.text();
        let mut text = masked(&shares);
        for share in all(&shares, "Share").filter(|xml| one(xml, "Deleted") != "true") {
            let (name, snapshot) = (one(share, "Name"), one(share, "Snapshot"));
            let suffix = match snapshot {
                "" => String::new(),
                snapshot => format!("&sharesnapshot={snapshot}"),
            };
            let (tree, sum) = self.tree(name, &suffix).await?;
            text += &tree;
            if snapshot.is_empty() {
                text += &self.get(file, &format!("/{name}?restype=share&comp=acl")).await?.text();
                let stats = self.get(file, &format!("/{name}?restype=share&comp=stats")).await?.text();
                if one(&stats, "ShareUsageBytes") != sum.to_string() {
                    return Err(format!("the files of a share have {sum} bytes: {stats}"));
                }
            }
        }
        Ok(text)
    }

    /// Returns everything in a share or snapshot, and the sum of the lengths.
    async fn tree(&self, share: &str, suffix: &str) -> Result<(String, u64), String> {
        let (mut text, mut sum) = (String::new(), 0);
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            let target = format!("/{share}{directory}?restype=directory&comp=list{suffix}");
            let listed = self.get(ServiceKind::File, &target).await?.text();
            for name in all(&listed, "Directory").map(|xml| one(xml, "Name")) {
                let path = format!("{directory}/{name}");
                text += &self.file(&format!("/{share}{path}?restype=directory{suffix}"), None).await?;
                directories.push(path);
            }
            for entry in all(&listed, "File") {
                let length = one(entry, "Content-Length");
                sum += length.parse::<u64>().map_err(|error| format!("{listed}: {error}"))?;
                let suffix = suffix.replacen('&', "?", 1);
                let target = format!("/{share}{directory}/{}{suffix}", one(entry, "Name"));
                text += &self.file(&target, Some(length)).await?;
            }
        }
        Ok((text, sum))
    }

    async fn file(&self, target: &str, length: Option<&str>) -> Result<String, String> {
        let reply = self.get(ServiceKind::File, target).await?;
        if length.is_some_and(|length| reply.body.len().to_string() != length) {
            return Err(format!("{target} is listed with {length:?} bytes and has {}", reply.body.len()));
        }
        let headers: Vec<_> = HEADERS.iter().map(|name| reply.header(name)).collect();
        let path = target.split('?').next().unwrap_or_default();
        Ok(format!("{path} {headers:?} {}\n", hash(&reply)))
    }
}

fn hash(reply: &TestReply) -> String {
    let mut hasher = DefaultHasher::new();
    reply.body.hash(&mut hasher);
    format!("{} bytes, {:016x}", reply.body.len(), hasher.finish())
}

/// Returns the text in each element called `name`.
pub(crate) fn all<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&open)?;
        let (inner, after) = after.split_once(&close)?;
        rest = after;
        Some(inner)
    })
}

/// Returns the text in the first element called `name`, or an empty text.
pub(crate) fn one<'a>(xml: &'a str, name: &str) -> &'a str {
    all(xml, name).next().unwrap_or_default()
}

fn masked(xml: &str) -> String {
    let mut text = xml.to_owned();
    for name in MASKED {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let mut parts = text.split(&open);
        let mut next = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let after = part.split_once(&close).map_or(part, |(_, after)| after);
            next += &format!("<{name}/>{after}");
        }
        text = next;
    }
    text + "\n"
}
