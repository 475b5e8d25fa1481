//! Shares, directories and files.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode};
use lazuli_client::client::Call;
use lazuli_protocol::{ServiceKind, names};

use super::blob_copy::{ContentDigest, listed_ranges, pieces};
use super::directories::{DirectoryCopy, ShareCopy, release};
use super::journal::record;
use super::pages::ListingPages;
use super::xml::XmlElement;
use super::{
    Job, Jobs, Link, Links, Refused, Shared, copy_policies, copy_service_properties, exists_already,
    header_text, listed_metadata, metadata_of,
};
use crate::calls::{header, metadata};

const SERVICE: ServiceKind = ServiceKind::File;
/// Ranges are listed for this much of a file at a time.
const WINDOW: u64 = 64 << 20;
/// Maximum number of directories in each other. The service allows 250.
const MAX_DEPTH: usize = 256;
/// Properties of content: the header that returns each, and the one that sets it.
const CONTENT: [(&str, &str); 6] = [
    ("content-type", "x-ms-content-type"),
    ("content-encoding", "x-ms-content-encoding"),
    ("content-language", "x-ms-content-language"),
    ("content-disposition", "x-ms-content-disposition"),
    ("cache-control", "x-ms-cache-control"),
    ("content-md5", "x-ms-content-md5"),
];

pub(super) async fn import(import: &Arc<Shared>) {
    let mut links = import.links();
    let mut pages = ListingPages::new(SERVICE, "", "comp=list&include=metadata,snapshots");
    loop {
        let page = match pages.next(&mut links.source).await {
            Ok(Some(page)) => page,
            Ok(None) => break,
            Err(reason) => return import.left_out("the shares", reason),
        };
        for share in page {
            if import.give_up().is_some() {
                return;
            }
            let name = share.value("Name").to_owned();
            if !share.value("Snapshot").is_empty() {
                let object = format!("snapshot {} of share {name}", share.value("Snapshot"));
                import.not_possible(object, "snapshots of shares are not imported");
            } else if let Err(reason) = import_share(import, &mut links, &share, &name).await {
                import.left_out(format_args!("share {name}"), reason);
            }
        }
    }
    copy_service_properties(import, &mut links, SERVICE).await;
}

async fn import_share(
    import: &Arc<Shared>,
    links: &mut Links,
    share: &XmlElement,
    name: &str,
) -> Result<(), Refused> {
    names::check_share(name).map_err(|_| "the name is invalid")?;
    let none = XmlElement::default();
    let properties = share.child("Properties").unwrap_or(&none);
    if properties.value("EnabledProtocols") == "NFS" {
        return Err("shares of NFS are not imported".into());
    }
    let mut is_new = true;
    if !import.is_dry_run {
        is_new = create_share(import, links, share, name, properties).await?;
    }
    import.imported("shares", 0);
    let share = ShareCopy::new(name, is_new);
    let mut jobs = Jobs::new(import);
    let walked = walk(import, links, &mut jobs, DirectoryCopy::root(share)).await;
    jobs.finish().await;
    walked
}

/// Creates the share with its properties. Returns false if it existed before.
async fn create_share(
    import: &Shared,
    links: &mut Links,
    share: &XmlElement,
    name: &str,
    properties: &XmlElement,
) -> Result<bool, Refused> {
    let values = listed_metadata(import, share);
    let path = format!("/{name}");
    let mut create = Call::new(Method::PUT, path.clone(), "restype=share");
    metadata(&mut create, Some(&values))?;
    for (element, set_by) in [("Quota", "x-ms-share-quota"), ("AccessTier", "x-ms-access-tier")] {
        let value = properties.value(element);
        if !value.is_empty() {
            header(&mut create, set_by, value)?;
        }
    }
    let expected = [StatusCode::CREATED, StatusCode::CONFLICT];
    let reply =
        links.target.send(SERVICE, &create, &expected).await.map_err(|failure| failure.to_string())?;
    let is_new = reply.status == StatusCode::CREATED;
    if !is_new {
        if !exists_already(&reply) {
            return Err(header_text(&reply.headers, "x-ms-error-code"));
        }
        let mut call = Call::new(Method::PUT, path.clone(), "restype=share&comp=metadata");
        metadata(&mut call, Some(&values))?;
        links.target.send(SERVICE, &call, &[StatusCode::OK]).await.map_err(|failure| failure.to_string())?;
    }
    copy_policies(links, SERVICE, &path, "restype=share&comp=acl", None).await?;
    Ok(is_new)
}

/// One directory of the walk: its listing, and the objects of the current page that are still to be visited.
struct WalkedDirectory {
    directory: Arc<DirectoryCopy>,
    pages: ListingPages,
    objects: std::vec::IntoIter<XmlElement>,
}

impl WalkedDirectory {
    fn new(directory: Arc<DirectoryCopy>) -> Self {
        let pages = ListingPages::new(SERVICE, directory.encoded_path(), "restype=directory&comp=list");
        Self { directory, pages, objects: vec![].into_iter() }
    }

    /// Returns the next object; `None` at the end of the directory.
    async fn next(&mut self, link: &mut Link) -> Result<Option<XmlElement>, Refused> {
        loop {
            if let Some(object) = self.objects.next() {
                return Ok(Some(object));
            }
            match self.pages.next(link).await? {
                Some(page) => self.objects = page.into_iter(),
                None => return Ok(None),
            }
        }
    }
}

/// Visits a directory and everything in it, and starts a job for each file.
async fn walk(
    import: &Arc<Shared>,
    links: &mut Links,
    jobs: &mut Jobs,
    root: Arc<DirectoryCopy>,
) -> Result<(), Refused> {
    if !import.is_dry_run {
        root.create(links).await?;
    }
    let mut open = vec![WalkedDirectory::new(root)];
    while let Some(current) = open.last_mut() {
        if import.give_up().is_some() {
            return Ok(());
        }
        let next = current.next(&mut links.source).await;
        let directory = current.directory.clone();
        let (name, object) = match next.and_then(|object| match object {
            Some(object) => Ok(Some((checked_name(&object)?, object))),
            None => Ok(None),
        }) {
            Ok(Some(found)) => found,
            Ok(None) => {
                open.pop();
                finish(import, links, directory).await;
                continue;
            }
            Err(reason) => {
                import
                    .left_out(format_args!("directory {}/{}", directory.share.name, directory.path), reason);
                open.pop();
                finish(import, links, directory).await;
                continue;
            }
        };
        if object.name == "File" {
            let length =
                object.child("Properties").map_or("", |properties| properties.value("Content-Length"));
            match import.is_dry_run {
                true => import.imported("files", length.parse().unwrap_or(0)),
                false => jobs.start(FileCopy { directory, name }).await,
            }
            continue;
        }
        let child = directory.child(&name);
        drop(directory);
        let created = match (open.len() >= MAX_DEPTH, import.is_dry_run) {
            (true, _) => Err("the directories are nested too deeply".into()),
            (false, true) => Ok(()),
            (false, false) => child.create(links).await,
        };
        match created {
            Ok(()) => open.push(WalkedDirectory::new(child)),
            Err(reason) => {
                import.left_out(format_args!("directory {}/{}", child.share.name, child.path), reason)
            }
        }
    }
    Ok(())
}

async fn finish(import: &Shared, links: &mut Links, directory: Arc<DirectoryCopy>) {
    match import.is_dry_run {
        true => import.imported("directories", 0),
        false => release(import, links, directory).await,
    }
}

/// Returns the name of a file or directory. Refuses names that would lead to another directory.
fn checked_name(object: &XmlElement) -> Result<String, Refused> {
    let name = object.object_name()?;
    match name.as_str() {
        "" | "." | ".." => Err(format!("the name {name:?} is invalid")),
        other if other.contains(['/', '\\']) => Err(format!("the name {name:?} is invalid")),
        _ => Ok(name),
    }
}

/// A file in a directory.
struct FileCopy {
    directory: Arc<DirectoryCopy>,
    name: String,
}

impl Job for FileCopy {
    async fn run(self, import: &Arc<Shared>, links: &mut Links) {
        let path = self.directory.path_of(&self.name);
        let share = self.directory.share.clone();
        match copy_file(import, links, &share, &path).await {
            Ok(Some(bytes)) => import.imported("files", bytes),
            Ok(None) => import.unchanged("files"),
            Err(reason) => import.left_out(format_args!("file {}/{path}", share.name), reason),
        }
        release(import, links, self.directory).await;
    }
}

/// Copies a file and reads it back. Returns `None` if both sides are equal already.
async fn copy_file(
    import: &Shared,
    links: &mut Links,
    share: &ShareCopy,
    path: &str,
) -> Result<Option<u64>, Refused> {
    let url = share.encoded_path(path);
    let wanted = head(&mut links.source, &url).await?.ok_or("it was deleted at the source")?;
    let etag = header_text(&wanted, "etag");
    let length = content_length(&wanted)?;
    let found = if share.is_new { None } else { head(&mut links.target, &url).await? };
    let file = |found: &HeaderMap| record(&["file", &share.name, path, &etag, &header_text(found, "etag")]);
    if let Some(found) = &found {
        if import.journal.has(file(found)) {
            return Ok(None);
        }
        if difference(links, share, &wanted, found).await?.is_none()
            && read_digest(&mut links.source, &url, length).await?
                == read_digest(&mut links.target, &url, length).await?
        {
            import.remember(file(found));
            return Ok(None);
        }
    }
    let digest = write_file(links, share, &url, &wanted, length).await?;
    let Some(found) = head(&mut links.target, &url).await? else {
        return Err("it is missing at the destination after the copy".into());
    };
    if let Some(name) = difference(links, share, &wanted, &found).await? {
        let (found, wanted) = (header_text(&found, name), header_text(&wanted, name));
        return Err(format!("{name} is {found:?} instead of {wanted:?}"));
    }
    if read_digest(&mut links.target, &url, length).await? != digest {
        return Err("what was read back has another content".into());
    }
    if head(&mut links.source, &url).await?.is_none_or(|now| header_text(&now, "etag") != etag) {
        return Err("it was changed at the source meanwhile".into());
    }
    if header_text(&wanted, "x-ms-lease-state") == "leased" {
        import.progress.lost("leases: the protocol does not reveal their identifiers");
    }
    import.remember(file(&found));
    Ok(Some(length))
}

/// Writes the content, and then the properties, which writing the content would change.
async fn write_file(
    links: &mut Links,
    share: &ShareCopy,
    url: &str,
    wanted: &HeaderMap,
    length: u64,
) -> Result<Vec<u8>, Refused> {
    let mut create = Call::new(Method::PUT, url, "");
    let values = metadata_of(wanted);
    metadata(&mut create, Some(&values))?;
    header(&mut create, "x-ms-type", "file")?;
    header(&mut create, "x-ms-content-length", &length.to_string())?;
    for (name, value) in [
        ("x-ms-file-permission", "inherit"),
        ("x-ms-file-attributes", "None"),
        ("x-ms-file-creation-time", "now"),
        ("x-ms-file-last-write-time", "now"),
    ] {
        header(&mut create, name, value)?;
    }
    put(&mut links.target, &create, StatusCode::CREATED).await?;
    let mut digest = ContentDigest::new();
    let mut from = 0;
    while from < length {
        for (start, end) in ranges(&mut links.source, url, from, WINDOW.min(length - from)).await? {
            for (offset, count) in pieces(start, end) {
                let body = read(&mut links.source, url, offset, count).await?;
                digest.add_pages(offset, &body);
                let mut call = Call::new(Method::PUT, url, "comp=range").body(body);
                header(&mut call, "x-ms-write", "update")?;
                header(&mut call, "x-ms-range", &format!("bytes={offset}-{}", offset + count - 1))?;
                put(&mut links.target, &call, StatusCode::CREATED).await?;
            }
        }
        from += WINDOW;
    }
    let mut set = Call::new(Method::PUT, url, "comp=properties");
    for (name, value) in content_properties(wanted) {
        header(&mut set, name, &value)?;
    }
    share.add_properties(links, &mut set, wanted).await?;
    put(&mut links.target, &set, StatusCode::OK).await?;
    Ok(digest.finish().0)
}

/// Returns the properties of content by the headers that set them.
fn content_properties(headers: &HeaderMap) -> BTreeMap<&'static str, String> {
    let values = CONTENT.iter().map(|(name, set_by)| (*set_by, header_text(headers, name)));
    values.filter(|(_, value)| !value.is_empty()).collect()
}

/// Returns the name of a property that differs.
async fn difference(
    links: &mut Links,
    share: &ShareCopy,
    wanted: &HeaderMap,
    found: &HeaderMap,
) -> Result<Option<&'static str>, Refused> {
    for (name, _) in CONTENT {
        if header_text(wanted, name) != header_text(found, name) {
            return Ok(Some(name));
        }
    }
    if header_text(wanted, "content-length") != header_text(found, "content-length") {
        return Ok(Some("content-length"));
    }
    if metadata_of(wanted) != metadata_of(found) {
        return Ok(Some("x-ms-meta"));
    }
    share.difference(links, wanted, found).await
}

async fn head(link: &mut Link, url: &str) -> Result<Option<HeaderMap>, Refused> {
    let call = Call::new(Method::HEAD, url, "");
    let reply = link.send(SERVICE, &call, &[StatusCode::OK, StatusCode::NOT_FOUND]).await;
    let reply = reply.map_err(|failure| failure.to_string())?;
    Ok((reply.status == StatusCode::OK).then_some(reply.headers))
}

fn content_length(headers: &HeaderMap) -> Result<u64, Refused> {
    let length = header_text(headers, "content-length");
    length.parse().map_err(|_| format!("the length {length:?} is not a number"))
}

async fn read_digest(link: &mut Link, url: &str, length: u64) -> Result<Vec<u8>, Refused> {
    let mut digest = ContentDigest::new();
    let mut from = 0;
    while from < length {
        for (start, end) in ranges(link, url, from, WINDOW.min(length - from)).await? {
            for (offset, count) in pieces(start, end) {
                digest.add_pages(offset, &read(link, url, offset, count).await?);
            }
        }
        from += WINDOW;
    }
    Ok(digest.finish().0)
}

/// Returns the written ranges of a part of a file.
async fn ranges(link: &mut Link, url: &str, from: u64, length: u64) -> Result<Vec<(u64, u64)>, Refused> {
    let mut call = Call::new(Method::GET, url, "comp=rangelist");
    header(&mut call, "x-ms-range", &format!("bytes={from}-{}", from + length - 1))?;
    let reply = link.send(SERVICE, &call, &[StatusCode::OK]).await.map_err(|failure| failure.to_string())?;
    // Ranges begin and end at whole pages, apart from the end of the file.
    let listed = listed_ranges(&reply, "Range", from, from + length)?;
    Ok(whole_pages(listed, from + length))
}

/// Extends ranges to whole pages, because the digest compares pages, and joins those that meet.
fn whole_pages(ranges: Vec<(u64, u64)>, until: u64) -> Vec<(u64, u64)> {
    const PAGE: u64 = 512;
    let mut whole: Vec<(u64, u64)> = vec![];
    for (start, end) in ranges {
        let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE).min(until));
        match whole.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => whole.push((start, end)),
        }
    }
    whole
}

async fn read(link: &mut Link, url: &str, offset: u64, length: u64) -> Result<bytes::Bytes, Refused> {
    let mut call = Call::new(Method::GET, url, "");
    header(&mut call, "x-ms-range", &format!("bytes={offset}-{}", offset + length - 1))?;
    let expected = [StatusCode::OK, StatusCode::PARTIAL_CONTENT];
    let reply = link.send(SERVICE, &call, &expected).await.map_err(|failure| failure.to_string())?;
    if reply.length != length {
        return Err(format!("the server sent {} of {length} bytes", reply.length));
    }
    Ok(reply.body)
}

async fn put(link: &mut Link, call: &Call, expected: StatusCode) -> Result<(), Refused> {
    let sent = link.send(SERVICE, call, &[expected]).await;
    sent.map(drop).map_err(|failure| failure.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_to_another_directory_are_refused() {
        let name = |text: &str| {
            let document = format!("<File><Name Encoded=\"true\">{text}</Name></File>");
            checked_name(&XmlElement::parse(document.as_bytes()).unwrap())
        };
        for refused in ["", ".", "..", "a/b", "a%2Fb", "..%5Ca", "%FF"] {
            assert!(name(refused).is_err(), "{refused}");
        }
        assert_eq!(name("..a%3F%25"), Ok("..a?%".into()));
    }

    #[test]
    fn ranges_are_extended_to_pages_and_joined() {
        let ranges = vec![(0, 10), (20, 600), (2048, 2049), (4096, 5000)];
        assert_eq!(whole_pages(ranges, 5000), [(0, 1024), (2048, 2560), (4096, 5000)]);
    }
}
