//! The index of tags, and Find Blobs by Tags. Why it is as it is: `docs/decisions/0008-tag-index.md`.
//!
//! Each tag has a partition with a row for each blob that has it, ordered by value and name. A blob and its rows in the
//! index are different partitions and never change together. Instead, a write that gives a blob tags
//!
//! 1. draws a stamp, the *claim*, and inserts rows with this claim in their keys,
//! 2. commits the blob, whose row says under which claim its tags are indexed,
//! 3. removes the rows of the claim that the blob had before.
//!
//! A query reads rows and believes only those whose claim the blob has. So between any two steps, and after a crash
//! there, the index is right: rows too many are not believed, and rows too few cannot be, because nobody removes rows of
//! a claim before the blob has another. What a crash left behind is removed once its claim is too old to be committed.

use std::ops::ControlFlow;

use bytes::Bytes;
use futures_util::future::join_all;
use http::StatusCode;
use lazuli_concurrency::{Span, Stamp, Timestamp};
use lazuli_extents::Pace;
use lazuli_protocol::listing::{MAX_RESULTS, Page};
use lazuli_protocol::{ErrorCode, Refusal, Request, Response, ServiceKind, xml};
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, Row, SpaceId, View, Which, prefix_range};

use crate::keys::{self, RowKind};
use crate::protection::Protecting;
use crate::record::{self, Blob, Tags};
use crate::tag_query::TagQuery;
use crate::{BlobService, XML, reply};

/// How often a write may find that the tags to be indexed have changed.
const MAX_ROUNDS: usize = 16;
/// Rows, and containers, that are read at once, and after which others have their turn.
const READ_AT_ONCE: usize = 256;
/// Rows of the index, containers, and where versions are looked for rows of blobs, that are looked at for one page.
const MAX_LOOKED_AT: usize = 20_000;
/// A page ends when so many bytes of names and tags were found.
const MAX_FOUND_BYTES: usize = 4 << 20;
/// What is written of a match beside its names and tags, at least.
const MATCH_BYTES: usize = 128;

/// How long after it was drawn a claim can be committed. Far longer than any request takes from there.
const CLAIM_LASTS: Span = Span::seconds(3600);

/// The tags of a blob in the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Indexed {
    pub(crate) tags: Tags,
    /// None if there are no tags.
    pub(crate) claim: Option<Stamp>,
}

impl Indexed {
    /// The tags under which a current state is found.
    pub(crate) fn of(blob: &Blob) -> Self {
        Self { tags: blob.tags.clone(), claim: blob.tags_claim }
    }

    /// The claim can be committed before this moment.
    pub(crate) fn valid_until(&self) -> Option<Timestamp> {
        self.claim.map(|claim| claim.timestamp() + CLAIM_LASTS)
    }
}

/// What a rule that gives a blob tags decides.
#[derive(Debug)]
pub(crate) enum Tagging<T> {
    /// These have to be in the index first.
    Index(Tags),
    /// It is done, and instead of these.
    Done(T, Indexed),
}

impl BlobService {
    /// Runs a rule on a blob's partition that gives the blob tags. It is told which tags are in the index for it.
    pub(crate) async fn transact_tagged<T>(
        &self,
        protecting: Option<&Protecting<'_>>,
        partition: &Partition,
        reads: Reads,
        mut rule: impl FnMut(&View<'_>, &Indexed) -> Result<Decision<Tagging<T>>, Refusal>,
    ) -> Result<T, Refusal> {
        let mut indexed = Indexed::default();
        for _ in 0..MAX_ROUNDS {
            let ruled = |view: &View<'_>| rule(view, &indexed);
            let outcome = self.transact_protecting(protecting, partition, reads.clone(), ruled).await;
            match self.settle_index(partition, indexed, outcome).await? {
                ControlFlow::Break(answer) => return Ok(answer),
                ControlFlow::Continue(next) => indexed = next,
            }
        }
        self.unindex(partition, indexed).await;
        Err(ErrorCode::ServerBusy.into())
    }

    /// Brings the index in line with what a write came to for which these tags were in the index. It may have to be tried
    /// again, with others.
    pub(crate) async fn settle_index<T>(
        &self,
        partition: &Partition,
        indexed: Indexed,
        outcome: Result<Tagging<T>, Refusal>,
    ) -> Result<ControlFlow<T, Indexed>, Refusal> {
        match outcome {
            Ok(Tagging::Done(answer, replaced)) => {
                self.unindex(partition, replaced).await;
                Ok(ControlFlow::Break(answer))
            }
            Ok(Tagging::Index(tags)) => {
                self.unindex(partition, indexed).await;
                self.index(partition, tags).await.map(ControlFlow::Continue)
            }
            Err(refusal) => {
                // After an internal error the write may have happened.
                if refusal.code() != ErrorCode::InternalError {
                    self.unindex(partition, indexed).await;
                }
                Err(refusal)
            }
        }
    }

    /// Inserts rows for a blob under a new claim.
    pub(crate) async fn index(&self, blob: &Partition, tags: Tags) -> Result<Indexed, Refusal> {
        if tags.is_empty() {
            return Ok(Indexed::default());
        }
        let indexed = Indexed { tags, claim: Some(self.store.stamp()) };
        let inserts = entries(blob, &indexed).map(|(partition, key)| async move {
            let put = Mutation::Put(key, Bytes::new());
            let rule = |_: &View<'_>| Ok(Decision::Write(Change::of([put.clone()]), ()));
            self.transact(&partition, Reads::default(), rule).await
        });
        let inserted: Result<(), Refusal> = join_all(inserts).await.into_iter().collect();
        if let Err(refusal) = inserted {
            self.unindex(blob, indexed).await;
            return Err(refusal);
        }
        Ok(indexed)
    }

    /// Removes rows under a claim that the blob does not have, and will not. If that fails they stay, and nobody believes
    /// them.
    pub(crate) async fn unindex(&self, blob: &Partition, indexed: Indexed) {
        let removals = entries(blob, &indexed)
            .map(|(partition, row)| async move { self.remove_entry(&partition, row).await });
        for refusal in join_all(removals).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%refusal, "a row of the tag index stays behind");
        }
    }

    /// Removes rows of a container's index that no blob has claimed, or will.
    pub(crate) async fn sweep_index(&self, space: SpaceId, pace: Pace) -> Result<(), Refusal> {
        let all = prefix_range(keys::TAGS);
        let mut from = (all.start, Bytes::new());
        loop {
            let scan = self.store.scan_space(
                space,
                from,
                Some((all.end.clone(), Bytes::new())),
                Which::All,
                READ_AT_ONCE,
            );
            let page = scan.await.map_err(reply::unreadable)?;
            for (partition, row) in page.rows {
                let Some((name, claim)) = keys::blob_of_tag_entry(&row.key) else { continue };
                if claim.timestamp() + CLAIM_LASTS > self.store.now() {
                    continue;
                }
                let blob = keys::blob(space, name);
                let base = self.read(&blob, &Reads::key(keys::BASE)).await?;
                let base = record::blob(base.rows.first().and_then(Option::as_ref))?;
                if base.is_none_or(|base| base.tags_claim != Some(claim)) {
                    self.remove_entry(&Partition::new(space, partition), row.key).await?;
                }
            }
            let Some(next) = page.next else { return Ok(()) };
            from = next;
            pace.rest().await;
        }
    }

    async fn remove_entry(&self, index: &Partition, row: Bytes) -> Result<(), Refusal> {
        let rule = |_: &View<'_>| Ok(Decision::Write(Change::of([Mutation::Delete(row.clone())]), ()));
        self.transact(index, Reads::default(), rule).await
    }

    /// Find Blobs by Tags, in the account.
    pub(crate) async fn find_blobs_by_tags(&self, request: Request) -> Result<Response, Refusal> {
        let query = tag_query(&request, true)?;
        let page = Page::parse(ServiceKind::Blob, &request.query, MAX_RESULTS)?;
        let mut search = Search::new(self, &query, &page, includes_versions(&request)?);
        let next = match query.containers.as_slice() {
            [] => search.account(&request).await?,
            [name] => match self.containers.find(&request.account, name).await? {
                Some(container) => search.container(name, container.space).await?,
                None => None,
            },
            _ => None,
        };
        Ok(search.reply(&request, next))
    }

    /// Find Blobs by Tags, in a container.
    pub(crate) async fn find_blobs_by_tags_in_container(
        &self,
        request: Request,
    ) -> Result<Response, Refusal> {
        let query = tag_query(&request, false)?;
        let page = Page::parse(ServiceKind::Blob, &request.query, MAX_RESULTS)?;
        let versions = includes_versions(&request)?;
        let container = self.container(&request.account, &request.container).await?;
        let mut search = Search::new(self, &query, &page, versions);
        let next = search.container(&request.container, container.space).await?;
        Ok(search.reply(&request, next))
    }
}

/// The rows of the index that a blob has under a claim.
fn entries(blob: &Partition, indexed: &Indexed) -> impl Iterator<Item = (Partition, Bytes)> {
    let name = keys::blob_name(&blob.key).unwrap_or_default();
    let entry = |claim: Stamp, (tag, value): &(String, String)| {
        (keys::tag(blob.space, tag), keys::tag_entry(value, name, claim))
    };
    let entries: Vec<_> =
        indexed.claim.iter().flat_map(|claim| indexed.tags.0.iter().map(|tag| entry(*claim, tag))).collect();
    entries.into_iter()
}

fn tag_query(request: &Request, may_name_container: bool) -> Result<TagQuery, Refusal> {
    let text = request.query.required("where")?;
    TagQuery::parse(text, may_name_container).map_err(|reason| Refusal::invalid_query("where", text, reason))
}

/// Whether earlier versions are looked for, too.
fn includes_versions(request: &Request) -> Result<bool, Refusal> {
    let include = request.query.list("include", &[("none", false), ("versions", true)])?;
    Ok(include.contains(&true))
}

/// A page of what a query finds.
struct Search<'a> {
    service: &'a BlobService,
    query: &'a TagQuery,
    page: &'a Page<'a>,
    /// Earlier versions are looked for, too.
    versions: bool,
    found: Vec<Match>,
    found_bytes: usize,
    looked_at: usize,
    /// The blob whose versions are being looked through, and the version that is, or will be, its current state as that was
    /// read. What has this version or a later one was made since: it was the current state, or is no older than that.
    current: Option<(Bytes, Stamp)>,
}

struct Match {
    container: String,
    name: String,
    tags: Tags,
    /// If versions are looked for and it is one, which, and whether it is the current one.
    version: Option<(Stamp, bool)>,
}

/// Where the next page begins: a container, and a row of its index, or of its blobs if versions are looked for.
type Next = Option<(String, Bytes)>;

impl<'a> Search<'a> {
    fn new(service: &'a BlobService, query: &'a TagQuery, page: &'a Page<'a>, versions: bool) -> Self {
        let found = vec![];
        Self { service, query, page, versions, found, found_bytes: 0, looked_at: 0, current: None }
    }

    /// The container and the row at which the page begins.
    fn start(&self) -> (&str, &[u8]) {
        let marker = self.page.start.as_deref().unwrap_or_default();
        let (name, row) = marker.split_at(marker.iter().position(|byte| *byte == 0).unwrap_or(marker.len()));
        (std::str::from_utf8(name).unwrap_or_default(), row.get(1..).unwrap_or_default())
    }

    fn is_full(&self) -> bool {
        self.found.len() >= self.page.limit
            || self.looked_at >= MAX_LOOKED_AT
            || self.found_bytes >= MAX_FOUND_BYTES
    }

    /// One more row, or container, is looked at.
    async fn look(&mut self) {
        self.looked_at += 1;
        if self.looked_at.is_multiple_of(READ_AT_ONCE) {
            // Others have requests too.
            tokio::task::yield_now().await;
        }
    }

    fn find(&mut self, found: Match) {
        let tags = found.tags.0.iter().map(|(tag, value)| tag.len() + value.len()).sum::<usize>();
        self.found_bytes += MATCH_BYTES + found.container.len() + found.name.len() + tags;
        self.found.push(found);
    }

    /// Looks through all containers of an account, by name.
    async fn account(&mut self, request: &Request) -> Result<Next, Refusal> {
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
                self.look().await;
                if let Some(next) = self.container(&name, space).await? {
                    return Ok(Some(next));
                }
            }
            if from.is_none() {
                return Ok(None);
            }
        }
    }

    /// Looks through one container.
    async fn container(&mut self, name: &str, space: SpaceId) -> Result<Next, Refusal> {
        if self.versions { self.states(name, space).await } else { self.indexed(name, space).await }
    }

    /// Looks through the index of a container: there are its blobs as they are now.
    async fn indexed(&mut self, name: &str, space: SpaceId) -> Result<Next, Refusal> {
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
            let read = self.service.store.read(&index, &reads).await.map_err(reply::unreadable)?;
            let Some(scanned) = read.ranges.into_iter().next() else { break };
            for row in scanned.rows {
                if self.is_full() {
                    return Ok(Some((name.to_owned(), row.key)));
                }
                self.look().await;
                if let Some((blob, claim)) = keys::blob_of_tag_entry(&row.key)
                    && let Some(tags) = self.verify(&keys::blob(space, blob), claim).await?
                {
                    let (container, name) = (name.to_owned(), blob.to_owned());
                    self.find(Match { container, name, tags, version: None });
                }
            }
            if !scanned.more {
                break;
            }
            rows.start = scanned.range.end;
        }
        Ok(None)
    }

    /// Looks through all blobs of a container and their versions, which are not in the index.
    async fn states(&mut self, name: &str, space: SpaceId) -> Result<Next, Refusal> {
        let (first, place) = self.start();
        let mut from;
        (from, self.current) = parse_place(if first == name { place } else { &[] });
        let end = (prefix_range(keys::BLOBS).end, Bytes::new());
        loop {
            if self.is_full() {
                return Ok(Some((name.to_owned(), self.place(&from))));
            }
            let scan =
                self.service.store.scan_space(space, from, Some(end.clone()), Which::All, READ_AT_ONCE);
            let page = scan.await.map_err(reply::unreadable)?;
            if !page.space.is_some_and(|space| space.open) {
                return Ok(None);
            }
            for (partition, row) in page.rows {
                if self.is_full() {
                    return Ok(Some((name.to_owned(), self.place(&(partition, row.key)))));
                }
                self.look().await;
                if let Some(found) = self.state(name, &partition, &row)? {
                    self.find(found);
                }
            }
            let Some(next) = page.next else { return Ok(None) };
            from = next;
        }
    }

    /// What a row of a blob shows, if it is a state that is looked for. Rows of one blob may be read one after the other: what
    /// was made between is not shown, for its current state may have been, as the current one.
    fn state(&mut self, container: &str, partition: &Bytes, row: &Row) -> Result<Option<Match>, Refusal> {
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
            // The version that it is, or becomes.
            self.current = Some((partition.clone(), blob.version.unwrap_or_else(|| blob.etag.stamp())));
        }
        if !self.query.matches(&blob.tags) {
            return Ok(None);
        }
        let name = keys::blob_name(partition).ok_or(record::Damage::Undecodable)?.to_owned();
        let version = blob.version.map(|version| (version, is_current));
        Ok(Some(Match { container: container.to_owned(), name, tags: blob.tags, version }))
    }

    /// Whether a version was made since the current state of its blob was read.
    fn is_later(&self, partition: &Bytes, version: Stamp) -> bool {
        self.current.as_ref().is_some_and(|(of, current)| of == partition && version >= *current)
    }

    /// A row of a blob in a marker: the name, a zero byte, the version of its current state if that was read, else zeros, the
    /// key. Names hold no zero byte.
    fn place(&self, (partition, key): &(Bytes, Bytes)) -> Bytes {
        let name = partition.strip_prefix(keys::BLOBS).unwrap_or_default();
        let current = self.current.as_ref().filter(|(of, _)| of == partition);
        let version = current.map_or(0, |(_, version)| version.ticks());
        [name, &[0], &version.to_be_bytes(), key].concat().into()
    }

    /// The tags of a blob, if they are indexed under this claim and are what the query looks for.
    async fn verify(&self, blob: &Partition, claim: Stamp) -> Result<Option<Tags>, Refusal> {
        let store = &self.service.store;
        let set = store.read(blob, &Reads::key(keys::BASE)).await.map_err(reply::unreadable)?;
        if !set.space.is_some_and(|space| space.open) {
            return Ok(None);
        }
        let blob = record::blob(set.rows.first().and_then(Option::as_ref))?;
        let is_found = |blob: &Blob| {
            blob.is_live(store.now()) && blob.tags_claim == Some(claim) && self.query.matches(&blob.tags)
        };
        Ok(blob.filter(is_found).map(|blob| blob.tags))
    }

    fn reply(&self, request: &Request, next: Next) -> Response {
        let mut document = xml::Writer::new();
        let endpoint = format!("{}/", request.endpoint);
        document.open_with("EnumerationResults", &[("ServiceEndpoint", &endpoint)]);
        document.text("Where", request.query.get("where").unwrap_or_default());
        document.open("Blobs");
        for Match { container, name, tags, version } in &self.found {
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
        Page::write_next(&mut document, next.as_deref());
        Response::with_body(StatusCode::OK, XML, document.finish())
    }
}

/// The row that such a text names, the first one if it names none; and the version of the current state.
fn parse_place(place: &[u8]) -> ((Bytes, Bytes), Option<(Bytes, Stamp)>) {
    let mut parts = place.splitn(2, |byte| *byte == 0);
    let name = parts.next().unwrap_or_default();
    let partition = Bytes::from([keys::BLOBS, name].concat());
    let Some((version, key)) = parts.next().and_then(<[u8]>::split_first_chunk) else {
        return ((partition, Bytes::new()), None);
    };
    let version = Some(u64::from_be_bytes(*version)).filter(|version| *version > 0);
    let current = version.map(|version| (partition.clone(), Stamp::from_ticks(version)));
    ((partition, Bytes::copy_from_slice(key)), current)
}
