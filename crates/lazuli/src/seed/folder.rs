//! The folder of `--seed`:
//!
//! ```text
//! blob/CONTAINER/PATH    a blob                   queue/NAME.txt     a message in each line
//! share/NAME/PATH        a file                   table/NAME.json    an array of entities
//! ```

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use bytes::Bytes;
use http::{Method, StatusCode};
use lazuli_protocol::{ErrorCode, Refusal, ServiceKind, names};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{LocalAccount, failed, is_existing, unreadable};
use crate::Failure;

/// Bytes of one request. Longer blobs are sent in blocks, longer files in ranges.
const PART_BYTES: usize = 4 << 20;
/// Maximum size of a file with entities.
const MAX_TABLE_BYTES: u64 = 256 << 20;
/// Maximum length of a message.
const MAX_MESSAGE_BYTES: u64 = 64 << 10;
/// Metadata of a file or queue that is not complete yet.
const PARTIAL: (&str, &str) = ("x-ms-meta-lazuliseed", "partial");

/// Loads what the folder holds and the account lacks. Returns the number of new objects.
pub(super) async fn load(local: &LocalAccount<'_>, folder: &Path) -> Result<u64, Failure> {
    let mut count = 0;
    for (kind, resource) in resources(folder)? {
        count += match kind {
            ServiceKind::Blob | ServiceKind::File => load_tree(local, kind, &resource).await?,
            ServiceKind::Queue => load_queue(local, &resource).await?,
            ServiceKind::Table => load_table(local, &resource).await?,
        };
    }
    Ok(count)
}

/// Checks the names of the resources, and that all files can be opened. Parses the tables.
pub(super) fn examine(folder: &Path) -> Result<(), Failure> {
    for (kind, path) in resources(folder)? {
        let resource = match kind {
            ServiceKind::Blob | ServiceKind::File => {
                examine_tree(&path)?;
                name(&path)?
            }
            ServiceKind::Queue => {
                File::open(&path).map_err(|error| unreadable(&path, error))?;
                stem(&path, ".txt")?
            }
            ServiceKind::Table => {
                entities(&path)?;
                stem(&path, ".json")?
            }
        };
        let checked = match kind {
            ServiceKind::Blob => names::check_container(resource),
            ServiceKind::Queue => names::check_queue(resource),
            ServiceKind::Table => names::check_table(resource),
            ServiceKind::File => names::check_share(resource),
        };
        checked.map_err(|refusal| failed(&shown(&path), &refusal))?;
    }
    Ok(())
}

/// Checks that all files below a folder can be opened.
fn examine_tree(folder: &Path) -> Result<(), Failure> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder)? {
            name(&path)?;
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                File::open(&path).map_err(|error| unreadable(&path, error))?;
            } else {
                return Err(unreadable(&path, "expected a file or folder"));
            }
        }
    }
    Ok(())
}

/// Returns the paths of all resources, with their services.
fn resources(folder: &Path) -> Result<Vec<(ServiceKind, PathBuf)>, Failure> {
    let mut found = vec![];
    for entry in entries(folder)? {
        let kind = entry.file_name().and_then(OsStr::to_str);
        let kind = match (kind, entry.is_dir()) {
            (Some("blob"), true) => ServiceKind::Blob,
            (Some("queue"), true) => ServiceKind::Queue,
            (Some("table"), true) => ServiceKind::Table,
            (Some("share"), true) => ServiceKind::File,
            _ => return Err(unreadable(&entry, "expected the folders blob, queue, table and share only")),
        };
        found.extend(entries(&entry)?.into_iter().map(|path| (kind, path)));
    }
    Ok(found)
}

/// Returns the entries of a folder in the order of their names.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let read = std::fs::read_dir(folder).map_err(|error| unreadable(folder, error))?;
    let paths = read.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<_> = paths.collect::<Result<_, _>>().map_err(|error| unreadable(folder, error))?;
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> Result<&str, Failure> {
    let name = path.file_name().and_then(OsStr::to_str);
    name.ok_or_else(|| unreadable(path, "its name is not UTF-8"))
}

/// Returns the name of a file without its extension, which must be the expected one.
fn stem<'a>(path: &'a Path, extension: &str) -> Result<&'a str, Failure> {
    let stem = name(path)?.strip_suffix(extension).filter(|stem| !stem.is_empty() && path.is_file());
    stem.ok_or_else(|| unreadable(path, format!("expected a file NAME{extension}")))
}

/// Loads a folder as a container or share.
async fn load_tree(local: &LocalAccount<'_>, kind: ServiceKind, folder: &Path) -> Result<u64, Failure> {
    let resource = name(folder)?;
    if !folder.is_dir() {
        return Err(unreadable(folder, "expected a folder"));
    }
    local.create(kind, resource).await.map_err(|refusal| failed(&shown(folder), &refusal))?;
    let (mut count, mut folders) = (0, vec![(folder.to_owned(), String::new())]);
    while let Some((folder, prefix)) = folders.pop() {
        for path in entries(&folder)? {
            let object = format!("{prefix}{}", name(&path)?);
            let target = format!("/{resource}/{}", encoded(&object));
            if path.is_dir() {
                if kind == ServiceKind::File {
                    create_directory(local, &target)
                        .await
                        .map_err(|refusal| failed(&shown(&path), &refusal))?;
                }
                folders.push((path, format!("{object}/")));
            } else if path.is_file() {
                let loaded = match kind {
                    ServiceKind::Blob => load_blob(local, &target, &path).await,
                    _ => load_file(local, &target, &path).await,
                };
                count += u64::from(loaded?);
            } else {
                return Err(unreadable(&path, "expected a file or folder"));
            }
        }
    }
    Ok(count)
}

fn shown(path: &Path) -> String {
    format!("--seed: {}", path.display())
}

/// Encodes a path for a target. Slashes stay.
fn encoded(path: &str) -> String {
    let parts: Vec<_> =
        path.split('/').map(|part| utf8_percent_encode(part, NON_ALPHANUMERIC).to_string()).collect();
    parts.join("/")
}

async fn create_directory(local: &LocalAccount<'_>, target: &str) -> Result<(), Refusal> {
    let target = format!("{target}?restype=directory");
    match local.call(ServiceKind::File, Method::PUT, &target, &[], Bytes::new()).await {
        Err(refusal) if !is_existing(&refusal) => Err(refusal),
        _ => Ok(()),
    }
}

/// Reads the next part of a file. The last one is shorter, or empty.
fn next_part(file: &mut File) -> std::io::Result<Bytes> {
    let mut part = Vec::with_capacity(PART_BYTES);
    Read::by_ref(file).take(PART_BYTES as u64).read_to_end(&mut part)?;
    Ok(part.into())
}

/// Returns whether the object exists.
async fn exists(local: &LocalAccount<'_>, kind: ServiceKind, target: &str) -> Result<bool, Refusal> {
    match local.call(kind, Method::HEAD, target, &[], Bytes::new()).await {
        Ok(response) => Ok(response.headers.get(PARTIAL.0).is_none()),
        Err(refusal) if matches!(refusal.code(), ErrorCode::BlobNotFound | ErrorCode::ResourceNotFound) => {
            Ok(false)
        }
        Err(refusal) => Err(refusal),
    }
}

/// Loads a blob unless it exists. Returns whether it did not.
async fn load_blob(local: &LocalAccount<'_>, target: &str, path: &Path) -> Result<bool, Failure> {
    const BLOB: ServiceKind = ServiceKind::Blob;
    let refused = |refusal: Refusal| failed(&shown(path), &refusal);
    let io = |error: std::io::Error| unreadable(path, error);
    if exists(local, BLOB, target).await.map_err(refused)? {
        return Ok(false);
    }
    let mut file = File::open(path).map_err(io)?;
    let first = next_part(&mut file).map_err(io)?;
    let content_type = content_type(path);
    // A client may have created the blob meanwhile.
    let created = if first.len() < PART_BYTES {
        let headers = [
            ("x-ms-blob-type", "BlockBlob"),
            ("x-ms-blob-content-type", content_type),
            ("if-none-match", "*"),
        ];
        local.call(BLOB, Method::PUT, target, &headers, first).await
    } else {
        let mut list = String::from("<BlockList>");
        let (mut part, mut number) = (first, 0_u64);
        while !part.is_empty() {
            let id = base64::engine::general_purpose::STANDARD.encode(format!("{number:012}"));
            let block = format!("{target}?comp=block&blockid={}", encoded(&id));
            local.call(BLOB, Method::PUT, &block, &[], part).await.map_err(refused)?;
            list += &format!("<Latest>{id}</Latest>");
            part = next_part(&mut file).map_err(io)?;
            number += 1;
        }
        list += "</BlockList>";
        let headers = [("x-ms-blob-content-type", content_type), ("if-none-match", "*")];
        let target = format!("{target}?comp=blocklist");
        local.call(BLOB, Method::PUT, &target, &headers, list.into()).await
    };
    match created {
        Ok(_) => Ok(true),
        Err(refusal) if is_existing(&refusal) => Ok(false),
        Err(refusal) => Err(refused(refusal)),
    }
}

/// Loads a file unless it exists. Returns whether it did not. A file that an earlier start did not complete
/// is loaded again.
async fn load_file(local: &LocalAccount<'_>, target: &str, path: &Path) -> Result<bool, Failure> {
    const FILE: ServiceKind = ServiceKind::File;
    let refused = |refusal: Refusal| failed(&shown(path), &refusal);
    let io = |error: std::io::Error| unreadable(path, error);
    if exists(local, FILE, target).await.map_err(refused)? {
        return Ok(false);
    }
    let mut file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len().to_string();
    let headers = [
        ("x-ms-type", "file"),
        ("x-ms-content-length", &length[..]),
        ("x-ms-content-type", content_type(path)),
        PARTIAL,
    ];
    local.call(FILE, Method::PUT, target, &headers, Bytes::new()).await.map_err(refused)?;
    let mut at = 0;
    loop {
        let part = next_part(&mut file).map_err(io)?;
        if part.is_empty() {
            break;
        }
        let range = format!("bytes={at}-{}", at + part.len() as u64 - 1);
        at += part.len() as u64;
        let headers = [("x-ms-write", "update"), ("x-ms-range", &range[..])];
        let target = format!("{target}?comp=range");
        local.call(FILE, Method::PUT, &target, &headers, part).await.map_err(refused)?;
    }
    let target = format!("{target}?comp=metadata");
    local.call(FILE, Method::PUT, &target, &[], Bytes::new()).await.map_err(refused)?;
    Ok(true)
}

/// Creates a queue and puts its messages, unless the queue exists. A queue that an earlier start did not
/// complete is cleared and loaded again.
async fn load_queue(local: &LocalAccount<'_>, path: &Path) -> Result<u64, Failure> {
    let name = stem(path, ".txt")?;
    let refused = |refusal: Refusal| failed(&shown(path), &refusal);
    let mut lines = BufReader::new(File::open(path).map_err(|error| unreadable(path, error))?);
    if !begin_queue(local, name).await.map_err(refused)? {
        return Ok(0);
    }
    let mut count = 0;
    loop {
        let mut line = String::new();
        let read = Read::by_ref(&mut lines).take(MAX_MESSAGE_BYTES + 2).read_line(&mut line);
        if read.map_err(|error| unreadable(path, error))? == 0 {
            break;
        }
        let message = line.trim_end_matches(['\n', '\r']);
        let body = format!("<QueueMessage><MessageText>{}</MessageText></QueueMessage>", escaped(message));
        // The time to live of minus one means that the message does not expire.
        let target = format!("/{name}/messages?messagettl=-1");
        local.call(ServiceKind::Queue, Method::POST, &target, &[], body.into()).await.map_err(refused)?;
        count += 1;
    }
    let target = format!("/{name}?comp=metadata");
    local.call(ServiceKind::Queue, Method::PUT, &target, &[], Bytes::new()).await.map_err(refused)?;
    Ok(count)
}

/// Creates an incomplete queue, or clears one. Returns false if the queue exists and is complete.
async fn begin_queue(local: &LocalAccount<'_>, name: &str) -> Result<bool, Refusal> {
    const QUEUE: ServiceKind = ServiceKind::Queue;
    match local.call(QUEUE, Method::PUT, &format!("/{name}"), &[PARTIAL], Bytes::new()).await {
        Ok(response) if response.status == StatusCode::CREATED => return Ok(true),
        Err(refusal) if !is_existing(&refusal) => return Err(refusal),
        _ => {}
    }
    let metadata = format!("/{name}?comp=metadata");
    let found = local.call(QUEUE, Method::GET, &metadata, &[], Bytes::new()).await?;
    let is_partial = found.headers.get(PARTIAL.0).is_some();
    if is_partial {
        let messages = format!("/{name}/messages");
        local.call(QUEUE, Method::DELETE, &messages, &[], Bytes::new()).await?;
    }
    Ok(is_partial)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Reads the entities of a file.
fn entities(path: &Path) -> Result<Vec<Value>, Failure> {
    let io = |error: std::io::Error| unreadable(path, error);
    let mut text = Vec::new();
    File::open(path).map_err(io)?.take(MAX_TABLE_BYTES + 1).read_to_end(&mut text).map_err(io)?;
    if text.len() as u64 > MAX_TABLE_BYTES {
        return Err(unreadable(path, "it is larger than 256 MiB: split it, or use lazuli import"));
    }
    serde_json::from_slice(&text).map_err(|error| unreadable(path, error))
}

/// Creates a table and inserts the entities that it lacks.
async fn load_table(local: &LocalAccount<'_>, path: &Path) -> Result<u64, Failure> {
    let name = stem(path, ".json")?;
    let refused = |refusal: Refusal| failed(&shown(path), &refusal);
    let entities = entities(path)?;
    local.create(ServiceKind::Table, name).await.map_err(refused)?;
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json;odata=nometadata"),
        ("prefer", "return-no-content"),
    ];
    let mut count = 0;
    for entity in entities {
        let target = format!("/{name}");
        let body = entity.to_string().into();
        match local.call(ServiceKind::Table, Method::POST, &target, &headers, body).await {
            Ok(_) => count += 1,
            Err(refusal) if is_existing(&refusal) => {}
            Err(refusal) => return Err(refused(refusal)),
        }
    }
    Ok(count)
}

/// Returns the content type of a file by its extension.
fn content_type(path: &Path) -> &'static str {
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default().to_ascii_lowercase();
    match &extension[..] {
        "html" | "htm" => "text/html",
        "css" => "text/css",
        "js" | "mjs" => "text/javascript",
        "txt" => "text/plain",
        "csv" => "text/csv",
        "md" => "text/markdown",
        "json" => "application/json",
        "xml" => "application/xml",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        _ => "application/octet-stream",
    }
}
