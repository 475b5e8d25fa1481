//! List Blobs, flat and hierarchical.
//!
//! Names are read in order, one row of each blob unless snapshots or versions are asked for. With a delimiter, everything
//! under a common prefix is one entry: once it is written, the scan goes on behind the prefix, whatever lies under it, so
//! a page costs as much as it shows. [`entry`] writes the entries.

mod entry;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_protocol::listing::{MAX_RESULTS, Page};
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Query, Refusal, Request, Response, ServiceKind, Version, xml};
use lazuli_store::{Partition, Reads, Row, SpaceId, Which, prefix_range};

use crate::keys::{self, RowKind};
use crate::precondition::may_see_tags;
use crate::record::{self, Blob};
use crate::{BlobService, XML, reply};

/// Rows that are read at once.
const CHUNK: usize = 1024;
/// Rows that are read at once where a delimiter makes it likely that most of them are skipped. Doubles while they are not.
const FIRST_CHUNK: usize = 16;
/// Rows that are read for one page, which may be short of entries then. What is not shown, such as deleted blobs, counts.
const MAX_ROWS: usize = 16_384;
/// A page ends when it is this large.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// So many entries tell how long a page is going to be.
const TYPICAL: usize = 512;
/// In a marker, the place of the current state, which comes after everything else about its blob.
const LAST: Bytes = Bytes::from_static(&[0xFF]);

impl BlobService {
    /// List Blobs.
    pub(crate) async fn list_blobs(&self, request: Request) -> Result<Response, Refusal> {
        let page = Page::parse(ServiceKind::Blob, &request.query, MAX_RESULTS)?;
        let include = Include::parse(&request.query, request.version)?;
        check_parameters(&request, &page, include)?;
        let container = self.container(&request.account, &request.container).await?;
        let mut listing = Listing::new(&request, &page, include, self.store.now())?;
        let next = self.walk(container.space, &mut listing).await?;
        // What was read is the container's only if it was not deleted, and swept, meanwhile.
        let header = self.store.space(container.space).await.map_err(reply::unreadable)?;
        if !header.is_some_and(|header| header.open) {
            return Err(crate::container_gone());
        }
        let mut xml = listing.xml;
        xml.close();
        Page::write_next(&mut xml, next.map(Position::marker).as_deref());
        Ok(Response::with_body(StatusCode::OK, XML, xml.finish()))
    }

    /// Fills a page. Returns where the next one begins.
    async fn walk(&self, space: SpaceId, listing: &mut Listing<'_>) -> Result<Option<Position>, Refusal> {
        let mut from = listing.begin();
        if !from.key.is_empty() {
            // The page begins in the midst of a blob, whose current state is yet to come.
            let partition = Partition::new(space, from.partition.clone());
            let set = self.store.read(&partition, &Reads::key(keys::BASE)).await;
            let row = set.map_err(reply::unreadable)?.rows.into_iter().next().flatten();
            listing.enter(from.partition.clone());
            listing.group.base = record::blob(row.as_ref())?;
        }
        let which = if listing.include.every_row() { Which::All } else { Which::First };
        let end = listing.end.clone();
        let (mut chunk, mut read) = (listing.first_chunk(), 0);
        loop {
            let start = (from.partition.clone(), from.key.clone());
            let rows =
                self.store.scan_space(space, start, Some((end.clone(), Bytes::new())), which, chunk).await;
            let rows = rows.map_err(reply::unreadable)?;
            read += rows.rows.len();
            for (partition, row) in &rows.rows {
                if let Some(full) = listing.row(partition, row)? {
                    return Ok(Some(full));
                }
            }
            let Some(next) = rows.next else { return listing.leave() };
            let next = Position { partition: next.0, key: next.1 };
            if next.partition != listing.group.partition
                && let Some(full) = listing.leave()?
            {
                return Ok(Some(full));
            }
            from = listing.go_on(next.clone());
            chunk = if from == next { (chunk * 2).min(CHUNK) } else { listing.first_chunk() };
            if read >= MAX_ROWS {
                return Ok(Some(from));
            }
            // Others have requests too.
            tokio::task::yield_now().await;
        }
    }
}

/// What a page holds beside current blobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Include {
    pub(crate) snapshots: bool,
    pub(crate) metadata: bool,
    pub(crate) uncommitted: bool,
    pub(crate) copy: bool,
    pub(crate) deleted: bool,
    pub(crate) tags: bool,
    pub(crate) versions: bool,
    pub(crate) deleted_with_versions: bool,
    pub(crate) immutability_policy: bool,
    pub(crate) legal_hold: bool,
}

type Set = fn(&mut Include);

/// The words of `include`, what each asks for, and the version that brought it.
const INCLUDES: [(&str, Set, Version); 11] = [
    ("snapshots", |i| i.snapshots = true, Version::OLDEST),
    ("metadata", |i| i.metadata = true, Version::OLDEST),
    ("uncommittedblobs", |i| i.uncommitted = true, Version::OLDEST),
    ("copy", |i| i.copy = true, Version::new(2012, 2, 12)),
    ("deleted", |i| i.deleted = true, Version::new(2017, 7, 29)),
    ("tags", |i| i.tags = true, Version::new(2019, 12, 12)),
    ("versions", |i| i.versions = true, Version::new(2019, 12, 12)),
    ("deletedwithversions", |i| i.deleted_with_versions = true, Version::new(2020, 10, 2)),
    ("immutabilitypolicy", |i| i.immutability_policy = true, Version::new(2020, 6, 12)),
    ("legalhold", |i| i.legal_hold = true, Version::new(2020, 6, 12)),
    // Only accounts with directories have permissions to show.
    ("permissions", |_| {}, Version::new(2020, 6, 12)),
];

/// The words that a version knows.
pub(crate) fn known<T: Copy>(
    words: &[(&'static str, T, Version)],
    version: Version,
) -> Vec<(&'static str, T)> {
    let since = words.iter().filter(|(_, _, since)| version >= *since);
    since.map(|(word, meaning, _)| (*word, *meaning)).collect()
}

impl Include {
    /// What a query asks for, of what that version knows.
    pub(crate) fn parse(query: &Query, version: Version) -> Result<Self, Refusal> {
        let mut include = Self::default();
        for set in query.list("include", &known(&INCLUDES, version))? {
            set(&mut include);
        }
        Ok(include)
    }

    /// Whether the first row of a blob is not enough.
    const fn every_row(self) -> bool {
        self.snapshots || self.versions || self.deleted_with_versions
    }

    /// Whether rows of that kind are of any use.
    const fn reads(self, kind: RowKind<'_>) -> bool {
        match kind {
            RowKind::Base => true,
            RowKind::Snapshot(_) => self.snapshots,
            RowKind::DeletedSnapshot(_) => self.snapshots && self.deleted,
            RowKind::Version(_) => self.versions || self.deleted_with_versions,
            RowKind::DeletedVersion(_) => (self.versions && self.deleted) || self.deleted_with_versions,
            RowKind::StagedCount | RowKind::Staged(_) => false,
        }
    }
}

/// Refuses what the parameters ask for together, and what the caller may not see.
fn check_parameters(request: &Request, page: &Page<'_>, include: Include) -> Result<(), Refusal> {
    if page.delimiter.is_some() && include.snapshots {
        let reason = "Snapshots cannot be listed with a delimiter.";
        return Err(Refusal::invalid_query("include", "snapshots", reason));
    }
    if let Some(value) = request.query.get("showonly").filter(|value| !value.is_empty()) {
        let reason = "Only accounts with a hierarchical namespace know this parameter.";
        return Err(Refusal::invalid_query("showonly", value, reason));
    }
    if include.tags && !may_see_tags(&request.caller) {
        return Err(ErrorCode::AuthorizationPermissionMismatch.into());
    }
    Ok(())
}

/// A place in the order of rows: a partition, and a row in it. An empty key is the first row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Position {
    partition: Bytes,
    key: Bytes,
}

impl Position {
    fn at(partition: impl Into<Bytes>) -> Self {
        Self { partition: partition.into(), key: Bytes::new() }
    }

    /// The name, and if it is not the blob's first row, a zero byte and the key. Names hold no zero byte.
    fn marker(self) -> Vec<u8> {
        let name = self.partition.strip_prefix(keys::BLOBS).unwrap_or_default();
        if self.key.is_empty() { name.to_vec() } else { [name, &[0], &self.key].concat() }
    }

    fn parse(marker: &[u8]) -> Self {
        let mut parts = marker.splitn(2, |byte| *byte == 0);
        let (name, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        Self { partition: [keys::BLOBS, name].concat().into(), key: Bytes::copy_from_slice(key) }
    }
}

/// A page in the making.
struct Listing<'a> {
    request: &'a Request,
    page: &'a Page<'a>,
    include: Include,
    now: Timestamp,
    xml: xml::Writer,
    written: usize,
    /// Partitions below this are not looked at.
    start: Bytes,
    /// Nor are those from here on.
    end: Bytes,
    /// A directory that the caller is confined to, if the prefix alone does not see to that.
    directory: Option<&'a str>,
    group: Group,
}

/// The blob whose rows are being read.
#[derive(Default)]
struct Group {
    /// Empty before the first.
    partition: Bytes,
    base: Option<Blob>,
    /// The latest version, if it has to be known.
    latest: Option<Blob>,
}

/// A state of a blob that an entry shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Current,
    Snapshot(Stamp),
    Version,
    /// The latest version, in the place of a current state that there is none of.
    VersionsOnly,
}

impl<'a> Listing<'a> {
    fn new(
        request: &'a Request,
        page: &'a Page<'a>,
        include: Include,
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        let named = |name: &str| Bytes::from([keys::BLOBS, name.as_bytes()].concat());
        let parameter = |name: &str| request.query.get(name).filter(|value| !value.is_empty()).map(named);
        let all = prefix_range(&named(page.prefix));
        let mut listing = Self {
            request,
            page,
            include,
            now,
            xml: xml::Writer::new(),
            written: 0,
            start: parameter("startfrom").map_or(all.start.clone(), |from| from.max(all.start)),
            end: parameter("endbefore").map_or(all.end.clone(), |before| before.min(all.end)),
            directory: None,
            group: Group::default(),
        };
        if let Caller::Sas(grant) = &request.caller
            && let Some(directory) = grant.directory.as_deref().filter(|directory| !directory.is_empty())
        {
            match page.prefix.strip_prefix(directory) {
                Some("") => listing.directory = Some(directory),
                Some(rest) if rest.starts_with('/') => {}
                _ => return Err(ErrorCode::AuthorizationPermissionMismatch.into()),
            }
        }
        listing.open();
        Ok(listing)
    }

    /// Where the page begins: where the last one ended, if that is a place where it can have.
    fn begin(&self) -> Position {
        match self.page.start.as_deref().map(Position::parse) {
            Some(at) if at.partition >= self.end => Position::at(self.end.clone()),
            Some(at) if at.partition >= self.start => at,
            _ => Position::at(self.start.clone()),
        }
    }

    fn first_chunk(&self) -> usize {
        if self.page.delimiter.is_some() { FIRST_CHUNK } else { CHUNK.min(self.page.limit + 1) }
    }

    /// Takes the next row. Returns its place if it does not fit any more.
    fn row(&mut self, partition: &Bytes, row: &Row) -> Result<Option<Position>, Refusal> {
        if *partition < self.start {
            return Ok(None);
        }
        if *partition != self.group.partition {
            if let Some(full) = self.leave()? {
                return Ok(Some(full));
            }
            // What was left may have been folded together with this one.
            if *partition < self.start || !self.enter(partition.clone()) {
                return Ok(None);
            }
        }
        let kind = keys::row_kind(&row.key);
        let Some(kind) = kind.filter(|kind| self.include.reads(*kind)) else { return Ok(None) };
        let blob = Blob::decode(&row.value)?;
        let shown = match kind {
            RowKind::Base => {
                self.group.base = Some(blob);
                return Ok(None);
            }
            RowKind::Snapshot(stamp) | RowKind::DeletedSnapshot(stamp) => Shown::Snapshot(stamp),
            _ => Shown::Version,
        };
        let is_wanted = shown != Shown::Version || self.include.versions;
        let fits = !is_wanted || !self.is_visible(&blob) || self.write(&blob, shown)?;
        if shown == Shown::Version && !blob.has_expired(self.now) {
            self.group.latest = Some(blob);
        }
        Ok((!fits).then(|| Position { partition: partition.clone(), key: row.key.clone() }))
    }

    /// Begins a blob, unless it is one that the caller must not see.
    fn enter(&mut self, partition: Bytes) -> bool {
        if let Some(directory) = self.directory {
            let name = &partition[keys::BLOBS.len()..];
            let rest = name.strip_prefix(directory.as_bytes()).unwrap_or(b"?");
            if !rest.is_empty() && !rest.starts_with(b"/") {
                // Names such as `directory!` come between the directory and what is in it, others come after that.
                let inside = [keys::BLOBS, directory.as_bytes(), b"/"].concat();
                self.start = if partition < inside { inside.into() } else { self.end.clone() };
                return false;
            }
        }
        self.group = Group { partition, ..Group::default() };
        true
    }

    /// Ends a blob: its current state comes last. Returns its place if it does not fit any more.
    fn leave(&mut self) -> Result<Option<Position>, Refusal> {
        let Group { partition, base, latest } = std::mem::take(&mut self.group);
        // Before the first blob, or in one that was folded into a prefix already.
        if partition.is_empty() || partition < self.start {
            return Ok(None);
        }
        let base = base.filter(|base| self.is_visible(base));
        let (blob, shown) = match (base, latest) {
            (Some(base), _) => (base, Shown::Current),
            (None, Some(latest)) if self.include.deleted_with_versions => (latest, Shown::VersionsOnly),
            _ => return Ok(None),
        };
        self.group.partition = partition.clone();
        let fits = self.write(&blob, shown)?;
        self.group.partition = Bytes::new();
        Ok((!fits).then_some(Position { partition, key: LAST }))
    }

    /// Where to read on: there, unless what comes is known not to be wanted.
    fn go_on(&self, next: Position) -> Position {
        if next.partition < self.start {
            return Position::at(self.start.clone());
        }
        if keys::row_kind(&next.key).is_none_or(|kind| self.include.reads(kind)) {
            return next;
        }
        // A blob can have more rows of a kind that nobody asked for than a page has entries.
        let wanted = kinds().into_iter().filter(|(kind, _)| self.include.reads(*kind));
        let key = wanted.map(|(_, start)| start).find(|start| *start > next.key).unwrap_or(LAST);
        Position { key, ..next }
    }

    fn is_visible(&self, blob: &Blob) -> bool {
        !blob.has_expired(self.now)
            && (blob.committed || self.include.uncommitted)
            && (blob.deleted.is_none() || self.include.deleted)
    }

    /// Writes an entry of the blob that is being read, or the prefix that it is folded into. False if the page is full.
    fn write(&mut self, blob: &Blob, shown: Shown) -> Result<bool, Refusal> {
        if self.written == self.page.limit || self.xml.written() >= MAX_PAGE_BYTES {
            return Ok(false);
        }
        let partition = self.group.partition.clone();
        let name = keys::blob_name(&partition).ok_or(record::Damage::Undecodable)?;
        match fold(name, self.page) {
            Some(prefix) => {
                self.write_prefix(prefix);
                self.start = prefix_range(&[keys::BLOBS, prefix.as_bytes()].concat()).end;
            }
            None => self.write_blob(name, blob, shown)?,
        }
        self.written += 1;
        if self.written == TYPICAL {
            let rest = (self.page.limit - TYPICAL) * (self.xml.written() / TYPICAL);
            self.xml.reserve(rest.min(MAX_PAGE_BYTES));
        }
        Ok(true)
    }
}

/// The kinds of rows that entries are made of beside the current state, in order, each with where it begins.
fn kinds() -> [(RowKind<'static>, Bytes); 4] {
    const FIRST: Stamp = Stamp::from_ticks(0);
    let (snapshots, versions) = (keys::snapshots().start, keys::versions().start);
    [
        (RowKind::DeletedSnapshot(FIRST), keys::deleted(&snapshots)),
        (RowKind::DeletedVersion(FIRST), keys::deleted(&versions)),
        (RowKind::Snapshot(FIRST), snapshots),
        (RowKind::Version(FIRST), versions),
    ]
}

/// Takes a marker that a client made up.
pub(crate) fn fuzz_marker(marker: &[u8]) {
    let position = Position::parse(marker);
    if !position.key.is_empty() {
        assert_eq!(position.marker(), marker);
    }
}

/// What a name is folded into: up to the first delimiter after the prefix.
fn fold<'a>(name: &'a str, page: &Page<'_>) -> Option<&'a str> {
    let (delimiter, prefix) = (page.delimiter?, page.prefix.len());
    let at = name.get(prefix..)?.find(delimiter)?;
    name.get(..prefix + at + delimiter.len())
}
