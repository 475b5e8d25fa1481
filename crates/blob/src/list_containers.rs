//! List Containers.
//!
//! A container's partition holds its current row first, then rows of deleted generations. Without deleted containers the
//! first row of each partition is all that is read; with them, every row is, and the marker names a row.

use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::listing::{MAX_RESULTS, Page};
use lazuli_protocol::{Refusal, Request, Response, ServiceKind, Version, date, xml};
use lazuli_store::{Row, SpaceId, Which, prefix_range};

use crate::container::generation::version_text;
use crate::container::{ACCOUNT_KEY_SCOPE, is_system};
use crate::list::known;
use crate::record::{Container, Deleted};
use crate::{BlobService, XML, keys, reply};

/// Rows that are read at once.
const CHUNK: usize = 1024;
/// Rows that are read for one page, which may be short of entries then. What is not shown, such as garbage that waits to be
/// swept, counts.
const MAX_ROWS: usize = 16_384;
/// A page ends when it is this large.
const MAX_PAGE_BYTES: usize = 8 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Include {
    Metadata,
    Deleted,
    System,
}

/// The words of `include`, and the version that brought each.
const INCLUDES: [(&str, Include, Version); 3] = [
    ("metadata", Include::Metadata, Version::OLDEST),
    ("deleted", Include::Deleted, Version::new(2019, 12, 12)),
    ("system", Include::System, Version::new(2020, 10, 2)),
];

impl BlobService {
    /// List Containers.
    pub(crate) async fn list_containers(&self, request: Request) -> Result<Response, Refusal> {
        let page = Page::parse(ServiceKind::Blob, &request.query, MAX_RESULTS)?;
        let include = request.query.list("include", &known(&INCLUDES, request.version))?;
        let account = keys::containers(&request.account);
        let all = prefix_range(&[&account, page.prefix.as_bytes()].concat());
        let which = if include.contains(&Include::Deleted) { Which::All } else { Which::First };
        let mut from = page.start.as_deref().map_or_else(Default::default, |start| position(&account, start));
        if from.0 < all.start {
            from = (all.start, Bytes::new());
        }

        let mut listing =
            Listing { request: &request, include, now: self.store.now(), xml: xml::Writer::new() };
        listing.open(&page);
        let (mut listed, mut read) = (0, 0);
        let next = 'page: loop {
            let limit = CHUNK.min(page.limit + 1);
            let scan = self.store.scan_space(
                SpaceId::ROOT,
                from,
                Some((all.end.clone(), Bytes::new())),
                which,
                limit,
            );
            let rows = scan.await.map_err(reply::unreadable)?;
            read += rows.rows.len();
            for (partition, row) in rows.rows {
                let Some(container) = listing.shown(&partition, &row)? else { continue };
                if listed == page.limit || listing.xml.written() >= MAX_PAGE_BYTES {
                    break 'page Some((partition, row.key));
                }
                listing.write(&partition, &row, &container);
                listed += 1;
            }
            match rows.next {
                Some(next) if read < MAX_ROWS => from = next,
                next => break next,
            }
        };
        let mut xml = listing.xml;
        xml.close();
        Page::write_next(&mut xml, next.map(|next| marker(&account, next)).as_deref());
        Ok(Response::with_body(StatusCode::OK, XML, xml.finish()))
    }
}

/// The marker of a row: its container, a zero byte, its key.
fn marker(account: &[u8], (partition, key): (Bytes, Bytes)) -> Vec<u8> {
    [partition.strip_prefix(account).unwrap_or_default(), &[0], &key].concat()
}

/// Where a marker says that the page begins.
fn position(account: &[u8], marker: &[u8]) -> (Bytes, Bytes) {
    let mut parts = marker.splitn(2, |byte| *byte == 0);
    let (name, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    ([account, name].concat().into(), Bytes::copy_from_slice(key))
}

/// Takes a marker that a client made up.
pub(crate) fn fuzz_marker(marker: &[u8]) {
    let account = b"account/";
    assert!(position(account, marker).0.starts_with(account));
}

struct Listing<'a> {
    request: &'a Request,
    include: Vec<Include>,
    now: Timestamp,
    xml: xml::Writer,
}

impl Listing<'_> {
    fn open(&mut self, page: &Page<'_>) {
        let endpoint = &self.request.endpoint;
        let root = "EnumerationResults";
        if self.request.version.at_least(2013, 8, 15) {
            self.xml.open_with(root, &[("ServiceEndpoint", &format!("{endpoint}/"))]);
        } else {
            self.xml.open_with(root, &[("AccountName", endpoint)]);
        }
        page.write_echo(&mut self.xml);
        self.xml.open("Containers");
    }

    /// The container of a row, if it is to be listed.
    fn shown(&self, partition: &[u8], row: &Row) -> Result<Option<Container>, Refusal> {
        if keys::garbage_space(&row.key).is_some() {
            return Ok(None);
        }
        let is_hidden = !self.include.contains(&Include::System)
            && keys::container_name(partition).is_some_and(is_system);
        let container = Container::decode(&row.value)?;
        let is_there = match container.deleted {
            Some(deleted) => self.include.contains(&Include::Deleted) && deleted.until > self.now,
            None => true,
        };
        Ok(Some(container).filter(|_| is_there && !is_hidden))
    }

    fn write(&mut self, partition: &[u8], row: &Row, container: &Container) {
        let version = self.request.version;
        let name = keys::container_name(partition).unwrap_or_default();
        let xml = &mut self.xml;
        xml.open("Container").text("Name", name);
        if !version.at_least(2013, 8, 15) {
            xml.text("Url", format_args!("{}/{name}", self.request.endpoint));
        }
        if container.deleted.is_some() {
            xml.text("Deleted", true);
            xml.optional("Version", keys::deleted_stamp(&row.key).map(version_text));
        }
        xml.open("Properties");
        xml.text("Last-Modified", date::rfc1123(container.modified));
        xml.text("Etag", container.etag);
        xml.text("LeaseStatus", container.lease.status(self.now));
        if version.at_least(2012, 2, 12) {
            xml.text("LeaseState", container.lease.state(self.now));
            xml.optional("LeaseDuration", container.lease.duration(self.now));
        }
        if version.at_least(2016, 5, 31) {
            xml.optional("PublicAccess", container.public_access.name());
        }
        if version.at_least(2019, 2, 2) {
            let scope = container.default_encryption_scope.as_deref().unwrap_or(ACCOUNT_KEY_SCOPE);
            xml.text("DefaultEncryptionScope", scope);
            xml.text("DenyEncryptionScopeOverride", container.deny_encryption_scope_override);
        }
        if version.at_least(2017, 11, 9) {
            xml.text("HasImmutabilityPolicy", false).text("HasLegalHold", false);
        }
        if version.at_least(2020, 6, 12) {
            xml.text("ImmutableStorageWithVersioningEnabled", false);
        }
        if let Some(deleted) = container.deleted {
            deleted.write_xml(xml, self.now);
        }
        xml.close();
        if self.include.contains(&Include::Metadata) {
            container.metadata.write_xml(xml);
        }
        xml.close();
    }
}

impl Deleted {
    /// Writes when it was deleted, and for how many whole days it can still be restored.
    pub(crate) fn write_xml(&self, xml: &mut xml::Writer, now: Timestamp) {
        const TICKS_PER_DAY: u64 = 86_400 * lazuli_concurrency::time::TICKS_PER_SECOND;
        xml.text("DeletedTime", date::rfc1123(self.at));
        xml.text("RemainingRetentionDays", self.until.since(now).ticks() / TICKS_PER_DAY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_leads_back_to_its_row_and_never_out_of_the_account() {
        let account = b"blob/lapis/0000/";
        let row = (
            Bytes::from_static(b"blob/lapis/0000/con"),
            keys::deleted_container(lazuli_concurrency::Stamp::from_ticks(7)),
        );
        assert_eq!(position(account, &marker(account, row.clone())), row);
        for made_up in [&b""[..], b"\0\0\0", b"con", b"../../x\0y"] {
            assert!(position(account, made_up).0.starts_with(account));
        }
    }
}
