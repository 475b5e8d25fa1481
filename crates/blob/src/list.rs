//! List Blobs, flat and hierarchical.
//!
//! Names are read in order, one row of each blob unless snapshots or versions are asked for. With a
//! delimiter, everything under a common prefix is one entry: once it is written, the scan goes on behind the
//! prefix, whatever lies under it, so a page costs as much as it shows. [`states`] sees to the order of a
//! blob's snapshots and versions, [`entry`] writes the entries.

mod entry;
mod include;
mod states;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_protocol::listing::{MAX_RESULTS, PageRequest};
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Refusal, Request, Response, ServiceKind, xml};
use lazuli_store::{Row, SpaceId, Which, prefix_range};

use crate::model::keys::{self, RowKind};
use crate::model::record::{self, Blob};
use crate::rules::precondition::may_see_tags;
use crate::{BlobService, reply};

use include::BlobInclude;
pub(crate) use include::known;

/// Rows that are read at once.
const CHUNK: usize = 1024;
/// Rows that are read at once where a delimiter makes it likely that most of them are skipped. Doubles while
/// they are not.
const FIRST_CHUNK: usize = 16;
/// Rows that are read for one page, which may be short of entries then. What is not shown, such as deleted
/// blobs, counts.
const MAX_ROWS: usize = 16_384;
/// A page ends when it is this large.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// The size of this many entries predicts the size of the page.
const TYPICAL: usize = 512;
/// In a marker, the place of the current state, which comes after everything else about its blob.
const LAST: Bytes = Bytes::from_static(&[0xFF]);

impl BlobService {
    /// List Blobs.
    pub(crate) async fn list_blobs(&self, request: Request) -> Result<Response, Refusal> {
        let page = PageRequest::parse(ServiceKind::Blob, &request.query, MAX_RESULTS)?;
        let include = BlobInclude::parse(&request.query, request.version)?;
        check_parameters(&request, &page, include)?;
        let container = self.container(&request.account, &request.container).await?;
        let mut listing = Listing::new(&request, &page, include, self.store.now())?;
        let next = self.walk(container.space, &mut listing).await?;
        // What was read is the container's only if it was not deleted, and swept, meanwhile.
        let header = self.store.space(container.space).await.map_err(reply::read_refusal)?;
        if !header.is_some_and(|header| header.open) {
            return Err(ErrorCode::ContainerNotFound.into());
        }
        let mut xml = listing.xml;
        xml.close();
        PageRequest::write_next(&mut xml, next.map(Position::marker).as_deref());
        Ok(Response::xml(xml.finish()))
    }

    /// Fills a page. Returns where the next one begins.
    async fn walk(&self, space: SpaceId, listing: &mut Listing<'_>) -> Result<Option<Position>, Refusal> {
        let mut from = listing.begin();
        let mut read = 0;
        if !from.key.is_empty() {
            if let Some(full) = self.resume(space, listing, &from, &mut read).await? {
                return Ok(Some(full));
            }
            from.key = LAST;
        }
        let which = if listing.include.every_row() { Which::All } else { Which::First };
        let end = listing.end.clone();
        let mut chunk = listing.first_chunk();
        loop {
            let start = (from.partition.clone(), from.key.clone());
            let rows =
                self.store.scan_space(space, start, Some((end.clone(), Bytes::new())), which, chunk).await;
            let rows = rows.map_err(reply::read_refusal)?;
            read += rows.rows.len();
            for (partition, row) in &rows.rows {
                let full = match listing.row(partition, row)? {
                    ListStep::Next => None,
                    ListStep::Full(position) => Some(position),
                    ListStep::Merge => self.write_states(space, listing, Bytes::new(), &mut read).await?,
                };
                if full.is_some() {
                    return Ok(full);
                }
            }
            let Some(next) = rows.next else { return listing.leave() };
            let next = Position { partition: next.0, key: next.1, latest: Bytes::new() };
            if next.partition != listing.group.partition
                && let Some(full) = listing.leave()?
            {
                return Ok(Some(full));
            }
            from = listing.go_on(next.clone());
            chunk = if from == next { (chunk * 2).min(CHUNK) } else { listing.first_chunk() };
            if read >= MAX_ROWS {
                return Ok(Some(listing.end_early(from)));
            }
            // Others have requests too.
            tokio::task::yield_now().await;
        }
    }
}

/// Refuses what the parameters ask for together, and what the caller may not see.
fn check_parameters(request: &Request, page: &PageRequest<'_>, include: BlobInclude) -> Result<(), Refusal> {
    if page.delimiter.is_some() && include.snapshots {
        let reason = "Snapshots cannot be listed with a delimiter.";
        return Err(Refusal::invalid_query("include", "snapshots", reason));
    }
    if let Some(value) = request.query.get("showonly").filter(|value| !value.is_empty()) {
        let reason = "Only accounts with a hierarchical namespace know this parameter.";
        return Err(Refusal::invalid_query("showonly", value, reason));
    }
    // Public access does not include deleted and uncommitted blobs.
    let is_hidden = include.deleted || include.deleted_with_versions || include.uncommitted;
    if is_hidden && request.caller == Caller::Anonymous {
        return Err(ErrorCode::ResourceNotFound.into());
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
    /// The row of the latest version before that place, which may have to be shown after it. Empty if there
    /// is none.
    latest: Bytes,
}

impl Position {
    fn at(partition: impl Into<Bytes>) -> Self {
        Self { partition: partition.into(), ..Self::default() }
    }

    /// The name, and if it is not the blob's first row, a zero byte, the latest version's row after its
    /// length, and the key. Names hold no zero byte.
    fn marker(self) -> Vec<u8> {
        let name = self.partition.strip_prefix(keys::BLOBS).unwrap_or_default();
        if self.key.is_empty() {
            return name.to_vec();
        }
        [name, &[0, self.latest.len() as u8], &self.latest, &self.key].concat()
    }

    fn parse(marker: &[u8]) -> Self {
        let mut parts = marker.splitn(2, |byte| *byte == 0);
        let (name, place) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (length, rows) = place.split_first().unwrap_or((&0, &[]));
        let (latest, key) = rows.split_at_checked((*length).into()).unwrap_or_default();
        let [latest, key] = [latest, key].map(Bytes::copy_from_slice);
        Self { partition: [keys::BLOBS, name].concat().into(), key, latest }
    }
}

/// A page in the making.
struct Listing<'a> {
    request: &'a Request,
    page: &'a PageRequest<'a>,
    include: BlobInclude,
    now: Timestamp,
    xml: xml::Writer,
    written: usize,
    /// Partitions below this are not looked at.
    start: Bytes,
    /// Nor are those from here on.
    end: Bytes,
    /// A directory that the caller is confined to, if the prefix alone does not see to that.
    directory: Option<&'a str>,
    /// From this row of a blob on, its states are in the order of time as they stand.
    in_order: Bytes,
    group: Group,
}

/// The blob whose rows are being read.
#[derive(Default)]
struct Group {
    /// Empty before the first.
    partition: Bytes,
    base: Option<Blob>,
    /// The latest version and its row, if it has to be known.
    latest: Option<(Bytes, Blob)>,
    /// All states but the current one are written.
    is_merged: bool,
}

/// The next step after a row.
enum ListStep {
    Next,
    /// The page is full. The entry belongs at this position of the next one.
    Full(Position),
    /// The states of the blob must be merged.
    Merge,
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
        page: &'a PageRequest<'a>,
        include: BlobInclude,
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
            in_order: states::last_kind(include),
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

    /// Takes the next row.
    fn row(&mut self, partition: &Bytes, row: &Row) -> Result<ListStep, Refusal> {
        if *partition < self.start {
            return Ok(ListStep::Next);
        }
        if *partition != self.group.partition {
            if let Some(full) = self.leave()? {
                return Ok(ListStep::Full(full));
            }
            // What was left may have been folded together with this one.
            if *partition < self.start || !self.enter(partition.clone()) {
                return Ok(ListStep::Next);
            }
        }
        match keys::row_kind(&row.key).filter(|kind| self.include.reads(*kind)) {
            Some(RowKind::Base) => self.group.base = Some(Blob::decode(&row.value)?),
            Some(_) if self.group.is_merged => {}
            Some(_) if row.key < self.in_order => {
                self.group.is_merged = true;
                return Ok(ListStep::Merge);
            }
            Some(_) => return Ok(self.state(row)?.map_or(ListStep::Next, ListStep::Full)),
            None => {}
        }
        Ok(ListStep::Next)
    }

    /// Takes the row of a snapshot or version. Returns its place if it does not fit any more.
    fn state(&mut self, row: &Row) -> Result<Option<Position>, Refusal> {
        let blob = Blob::decode(&row.value)?;
        let shown = match keys::row_kind(&row.key) {
            Some(RowKind::Snapshot(stamp) | RowKind::DeletedSnapshot(stamp)) => Shown::Snapshot(stamp),
            _ => Shown::Version,
        };
        let is_wanted = shown != Shown::Version || self.include.versions;
        let fits = !is_wanted || !self.is_visible(&blob) || self.write(&blob, shown)?;
        if shown == Shown::Version {
            self.see_version(&row.key, blob);
        }
        Ok((!fits).then(|| self.place(row.key.clone())))
    }

    /// The place of a row of the blob that is being read.
    fn place(&self, key: Bytes) -> Position {
        let Group { partition, latest, .. } = &self.group;
        let latest = latest.as_ref().map(|(row, _)| row.clone()).unwrap_or_default();
        Position { partition: partition.clone(), key, latest }
    }

    /// Keeps the latest version in mind; if there are any that are not deleted, the latest of these.
    fn see_version(&mut self, key: &Bytes, blob: Blob) {
        let is_kept = |latest: &(Bytes, Blob)| latest.1.deleted.is_none() && blob.deleted.is_some();
        if !blob.has_expired(self.now) && !self.group.latest.as_ref().is_some_and(is_kept) {
            self.group.latest = Some((key.clone(), blob));
        }
    }

    /// Begins a blob, unless it is one that the caller must not see.
    fn enter(&mut self, partition: Bytes) -> bool {
        if let Some(directory) = self.directory {
            let name = &partition[keys::BLOBS.len()..];
            let rest = name.strip_prefix(directory.as_bytes()).unwrap_or(b"?");
            if !rest.is_empty() && !rest.starts_with(b"/") {
                // Names such as `directory!` come between the directory and what is in it, others come after
                // that.
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
        let Group { partition, base, latest, .. } = std::mem::take(&mut self.group);
        // Before the first blob, or in one that was folded into a prefix already.
        if partition.is_empty() || partition < self.start {
            return Ok(None);
        }
        let base = base.filter(|base| self.is_visible(base));
        let (row, blob, shown) = match (base, latest) {
            (Some(base), _) => (Bytes::new(), base, Shown::Current),
            (None, Some((row, latest))) if self.include.deleted_with_versions => {
                (row, latest, Shown::VersionsOnly)
            }
            _ => return Ok(None),
        };
        self.group.partition = partition.clone();
        let fits = self.write(&blob, shown)?;
        self.group.partition = Bytes::new();
        Ok((!fits).then_some(Position { partition, key: LAST, latest: row }))
    }

    /// Where the next page begins if this one ends before that row, which was not read.
    fn end_early(&self, next: Position) -> Position {
        if next.partition != self.group.partition {
            return Position::at(next.partition);
        }
        // The first of several kinds of rows was reached, but nothing of the blob is written.
        if !self.group.is_merged && next.key < self.in_order {
            return self.place(keys::BASE);
        }
        self.place(next.key)
    }

    /// Where to read on: there, unless what comes is known not to be wanted.
    fn go_on(&self, next: Position) -> Position {
        if next.partition < self.start {
            return Position::at(self.start.clone());
        }
        if self.group.is_merged && next.partition == self.group.partition {
            return self.place(LAST);
        }
        if keys::row_kind(&next.key).is_none_or(|kind| self.include.reads(kind)) {
            return next;
        }
        // A blob can have more rows of a kind that the client did not ask for than a page has entries.
        let wanted = states::kinds().into_iter().filter(|(kind, _)| self.include.reads(*kind));
        let key = wanted.map(|(_, start)| start).find(|start| *start > next.key).unwrap_or(LAST);
        Position { key, ..next }
    }

    fn is_visible(&self, blob: &Blob) -> bool {
        !blob.has_expired(self.now)
            && (blob.committed || self.include.uncommitted)
            && (blob.deleted.is_none() || self.include.deleted)
    }

    /// Writes an entry of the blob that is being read, or the prefix that it is folded into. False if the
    /// page is full.
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

/// Takes a marker that a client made up.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz_marker(marker: &[u8]) {
    let position = Position::parse(marker);
    if !position.key.is_empty() {
        assert_eq!(position.marker(), marker);
    }
}

/// Returns the common prefix that a name is folded into: up to the first delimiter after the prefix.
fn fold<'a>(name: &'a str, page: &PageRequest<'_>) -> Option<&'a str> {
    let (delimiter, prefix) = (page.delimiter?, page.prefix.len());
    let at = name.get(prefix..)?.find(delimiter)?;
    name.get(..prefix + at + delimiter.len())
}
