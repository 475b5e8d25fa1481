//! Find Blobs by Tags, in the account or in a container.
//!
//! The index of tags has the current states of blobs, see [`crate::index::tag_index`]. Earlier versions are
//! not indexed, so a query for them scans all blobs.

use std::ops::ControlFlow;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_protocol::listing::{MAX_RESULTS, PageRequest};
use lazuli_protocol::{Refusal, Request, Response, ServiceKind, xml};
use lazuli_store::{Partition, Reads, Row, RowPosition, SpaceId, Which, prefix_range};

use crate::index::tag_query::TagQuery;
use crate::model::keys::{self, RowKind};
use crate::model::record::{self, Blob, Damage, Tags};
use crate::{BlobService, reply};

/// Rows or containers that are read at once, and after which the task yields.
const READ_AT_ONCE: usize = 256;
/// Maximum number of containers and rows that are examined for one page.
const MAX_EXAMINED: usize = 20_000;
/// A page ends after this many bytes of names and tags.
const MAX_FOUND_BYTES: usize = 4 << 20;
/// Estimated bytes of a match in the reply, without its names and tags.
const MATCH_BYTES: usize = 128;

impl BlobService {
    /// Handles Find Blobs by Tags in the account.
    pub(crate) async fn find_blobs_by_tags(&self, request: Request) -> Result<Response, Refusal> {
        let query = tag_query(&request, true)?;
        let page = PageRequest::parse(ServiceKind::Blob, &request.query, MAX_RESULTS)?;
        let mut search = TagSearch::new(self, &query, &page, includes_versions(&request)?);
        let next = match query.containers.as_slice() {
            [] => search.search_account(&request).await?,
            [name] => match self.containers.find(&request.account, name).await? {
                Some(container) => search.search_container(name, container.space).await?,
                None => None,
            },
            _ => None,
        };
        Ok(search.reply(&request, next))
    }

    /// Handles Find Blobs by Tags in a container.
    pub(crate) async fn find_blobs_by_tags_in_container(
        &self,
        request: Request,
    ) -> Result<Response, Refusal> {
        let query = tag_query(&request, false)?;
        let page = PageRequest::parse(ServiceKind::Blob, &request.query, MAX_RESULTS)?;
        let versions = includes_versions(&request)?;
        let container = self.container(&request.account, &request.container).await?;
        let mut search = TagSearch::new(self, &query, &page, versions);
        let next = search.search_container(&request.container, container.space).await?;
        Ok(search.reply(&request, next))
    }
}

fn tag_query(request: &Request, may_name_container: bool) -> Result<TagQuery, Refusal> {
    let text = request.query.required("where")?;
    TagQuery::parse(text, may_name_container).map_err(|reason| Refusal::invalid_query("where", text, reason))
}

/// Returns whether the request includes earlier versions.
fn includes_versions(request: &Request) -> Result<bool, Refusal> {
    let include = request.query.list("include", &[("none", false), ("versions", true)])?;
    Ok(include.contains(&true))
}

/// The search for one page of results.
struct TagSearch<'a> {
    service: &'a BlobService,
    query: &'a TagQuery,
    page: &'a PageRequest<'a>,
    /// Whether to include earlier versions.
    versions: bool,
    found: Vec<TagMatch>,
    found_bytes: usize,
    examined: usize,
    /// The blob whose versions are being scanned. The stamp is the version that its current state had when it
    /// was read, or was about to get. Rows with this version or a later one were written after that read.
    current: Option<(Bytes, Stamp)>,
}

struct TagMatch {
    container: String,
    name: String,
    tags: Tags,
    /// In a search for versions: the version, and whether it is the current one.
    version: Option<(Stamp, bool)>,
}

/// The position of the next page: a container, and a row of its index. In a search for versions, a row of its
/// blobs.
type NextPage = Option<(String, Bytes)>;

impl<'a> TagSearch<'a> {
    fn new(service: &'a BlobService, query: &'a TagQuery, page: &'a PageRequest<'a>, versions: bool) -> Self {
        let found = vec![];
        Self { service, query, page, versions, found, found_bytes: 0, examined: 0, current: None }
    }

    /// Returns the container and the row at which the page begins.
    fn start(&self) -> (&str, &[u8]) {
        let marker = self.page.start.as_deref().unwrap_or_default();
        let (name, row) = marker.split_at(marker.iter().position(|byte| *byte == 0).unwrap_or(marker.len()));
        (std::str::from_utf8(name).unwrap_or_default(), row.get(1..).unwrap_or_default())
    }

    fn is_full(&self) -> bool {
        self.found.len() >= self.page.limit
            || self.examined >= MAX_EXAMINED
            || self.found_bytes >= MAX_FOUND_BYTES
    }

    /// Counts an examined row or container, and yields after every [`READ_AT_ONCE`].
    async fn count_examined(&mut self) {
        self.examined += 1;
        if self.examined.is_multiple_of(READ_AT_ONCE) {
            tokio::task::yield_now().await;
        }
    }

    fn push_match(&mut self, found: TagMatch) {
        let tags = found.tags.0.iter().map(|(tag, value)| tag.len() + value.len()).sum::<usize>();
        self.found_bytes += MATCH_BYTES + found.container.len() + found.name.len() + tags;
        self.found.push(found);
    }

    /// Searches all containers of an account, in the order of their names.
    async fn search_account(&mut self, request: &Request) -> Result<NextPage, Refusal> {
        let mut from = Some(self.start().0.as_bytes().to_vec());
        loop {
            let mut containers = vec![];
            let next = self.service.containers.list(&request.account, "", from.as_deref(), false, |entry| {
                if containers.len() == READ_AT_ONCE {
                    return ControlFlow::Break(());
                }
                containers.push((entry.name.to_owned(), entry.record.space));
                ControlFlow::Continue(())
            });
            from = next.await?;
            for (name, space) in containers {
                if self.is_full() {
                    return Ok(Some((name, Bytes::new())));
                }
                self.count_examined().await;
                if let Some(next) = self.search_container(&name, space).await? {
                    return Ok(Some(next));
                }
            }
            if from.is_none() {
                return Ok(None);
            }
        }
    }

    /// Searches one container.
    async fn search_container(&mut self, name: &str, space: SpaceId) -> Result<NextPage, Refusal> {
        if self.versions {
            self.search_states(name, space).await
        } else {
            self.search_index(name, space).await
        }
    }

    /// Searches the index of a container.
    async fn search_index(&mut self, name: &str, space: SpaceId) -> Result<NextPage, Refusal> {
        let index = keys::tag(space, self.query.tag());
        let mut rows = self.query.rows();
        let (first, row) = self.start();
        if first == name && rows.start < row {
            rows.start = Bytes::copy_from_slice(row);
        }
        while rows.start < rows.end {
            if self.is_full() {
                return Ok(Some((name.to_owned(), rows.start)));
            }
            let reads = Reads::default().and_range(rows.clone(), READ_AT_ONCE);
            let read = self.service.store.read(&index, &reads).await.map_err(reply::read_refusal)?;
            let Some(scanned) = read.ranges.into_iter().next() else { break };
            for row in scanned.rows {
                if self.is_full() {
                    return Ok(Some((name.to_owned(), row.key)));
                }
                self.count_examined().await;
                if let Some((blob, claim)) = keys::blob_of_tag_entry(&row.key)
                    && let Some(tags) = self.verify(&keys::blob(space, blob), claim).await?
                {
                    let (container, name) = (name.to_owned(), blob.to_owned());
                    self.push_match(TagMatch { container, name, tags, version: None });
                }
            }
            if !scanned.more {
                break;
            }
            rows.start = scanned.range.end;
        }
        Ok(None)
    }

    /// Scans all blobs of a container and their versions.
    async fn search_states(&mut self, name: &str, space: SpaceId) -> Result<NextPage, Refusal> {
        let (first, row_text) = self.start();
        let mut from;
        (from, self.current) = parse_marker_row(if first == name { row_text } else { &[] });
        let end = (prefix_range(keys::BLOBS).end, Bytes::new());
        loop {
            if self.is_full() {
                return Ok(Some((name.to_owned(), self.marker_row(&from))));
            }
            let scan =
                self.service.store.scan_space(space, from, Some(end.clone()), Which::All, READ_AT_ONCE);
            let page = scan.await.map_err(reply::read_refusal)?;
            if !page.space.is_some_and(|space| space.open) {
                return Ok(None);
            }
            for (partition, row) in page.rows {
                if self.is_full() {
                    return Ok(Some((name.to_owned(), self.marker_row(&(partition, row.key)))));
                }
                self.count_examined().await;
                let found = self.match_state(name, &partition, &row);
                let place = || RowPosition { space, partition: partition.clone(), key: row.key.clone() };
                if let Some(found) = found.map_err(|damage| damage.at(place()))? {
                    self.push_match(found);
                }
            }
            let Some(next) = page.next else { return Ok(None) };
            from = next;
        }
    }

    /// Returns the match for a row, if there is one. The rows of a blob may be read at different times. A
    /// version that was created in between is left out, because the page may already show it as the current
    /// state.
    fn match_state(
        &mut self,
        container: &str,
        partition: &Bytes,
        row: &Row,
    ) -> Result<Option<TagMatch>, Damage> {
        let is_current = match keys::row_kind(&row.key) {
            Some(RowKind::Base) => true,
            Some(RowKind::Version(version)) if self.is_later(partition, version) => return Ok(None),
            Some(RowKind::Version(_)) => false,
            _ => return Ok(None),
        };
        let blob = Blob::decode(&row.value)?;
        if !blob.is_live(self.service.store.now()) {
            return Ok(None);
        }
        if is_current {
            // The version that the state has, or gets when it is replaced.
            self.current = Some((partition.clone(), blob.version.unwrap_or_else(|| blob.etag.stamp())));
        }
        if !self.query.matches(&blob.tags) {
            return Ok(None);
        }
        let name = keys::blob_name(partition).ok_or(Damage::Undecodable)?.to_owned();
        let version = blob.version.map(|version| (version, is_current));
        Ok(Some(TagMatch { container: container.to_owned(), name, tags: blob.tags, version }))
    }

    /// Returns whether a version was made after the current state of its blob was read.
    fn is_later(&self, partition: &Bytes, version: Stamp) -> bool {
        self.current.as_ref().is_some_and(|(of, current)| of == partition && version >= *current)
    }

    /// Encodes a row of a blob for a marker: the name, a zero byte, the version of the current state (zeros
    /// if that was not read), and the key. Names contain no zero byte.
    fn marker_row(&self, (partition, key): &(Bytes, Bytes)) -> Bytes {
        let name = partition.strip_prefix(keys::BLOBS).unwrap_or_default();
        let current = self.current.as_ref().filter(|(of, _)| of == partition);
        let version = current.map_or(0, |(_, version)| version.ticks());
        [name, &[0], &version.to_be_bytes(), key].concat().into()
    }

    /// Returns the tags of a blob if it has this claim and matches the query.
    async fn verify(&self, blob: &Partition, claim: Stamp) -> Result<Option<Tags>, Refusal> {
        let store = &self.service.store;
        let set = store.read(blob, &Reads::key(keys::BASE)).await.map_err(reply::read_refusal)?;
        if !set.space.is_some_and(|space| space.open) {
            return Ok(None);
        }
        let found = record::blob(set.rows.first().and_then(Option::as_ref));
        let blob = found.map_err(|damage| damage.at(blob))?;
        let is_found = |blob: &Blob| {
            blob.is_live(store.now()) && blob.tags_claim == Some(claim) && self.query.matches(&blob.tags)
        };
        Ok(blob.filter(is_found).map(|blob| blob.tags))
    }

    fn reply(&self, request: &Request, next: NextPage) -> Response {
        let mut document = xml::Writer::new();
        let endpoint = format!("{}/", request.endpoint);
        document.open_with("EnumerationResults", &[("ServiceEndpoint", &endpoint)]);
        document.text("Where", request.query.get("where").unwrap_or_default());
        document.open("Blobs");
        for TagMatch { container, name, tags, version } in &self.found {
            document.open("Blob").name("Name", name).text("ContainerName", container);
            if request.version.at_least(2020, 4, 8) {
                tags.write_xml(&mut document, |tag| self.query.names(tag));
            } else {
                document.optional("TagValue", tags.get(self.query.tag()));
            }
            if let Some((version, is_current)) = version {
                document.text("VersionId", reply::stamp_text(*version));
                document.optional("IsCurrentVersion", is_current.then_some(true));
            }
            document.close();
        }
        document.close();
        let next = next.map(|(container, row)| [container.as_bytes(), &[0], &row].concat());
        PageRequest::write_next(&mut document, next.as_deref());
        Response::xml(document.finish())
    }
}

/// Decodes a row in a marker, and the version of the current state. An empty text means the first row.
fn parse_marker_row(row_text: &[u8]) -> ((Bytes, Bytes), Option<(Bytes, Stamp)>) {
    let mut parts = row_text.splitn(2, |byte| *byte == 0);
    let name = parts.next().unwrap_or_default();
    let partition = Bytes::from([keys::BLOBS, name].concat());
    let Some((version, key)) = parts.next().and_then(<[u8]>::split_first_chunk) else {
        return ((partition, Bytes::new()), None);
    };
    let version = Some(u64::from_be_bytes(*version)).filter(|version| *version > 0);
    let current = version.map(|version| (partition.clone(), Stamp::from_ticks(version)));
    ((partition, Bytes::copy_from_slice(key)), current)
}
