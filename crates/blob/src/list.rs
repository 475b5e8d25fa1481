//! List Blobs, flat and hierarchical.
//!
//! The scan reads names in order: one row of each blob, or all rows if the client asks for snapshots or
//! versions. With a delimiter, all blobs under a common prefix are one entry. After writing it, the scan
//! skips the rest of the prefix, so the cost of a page depends only on its entries. [`states`] orders the
//! snapshots and versions of a blob, [`entry`] writes the entries.

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
use lazuli_store::{Row, RowPosition, SpaceId, Which, prefix_range};

use crate::model::keys::{self, RowKind};
use crate::model::record::{self, Blob};
use crate::rules::precondition::may_read_tags;
use crate::{BlobService, reply};

use include::BlobInclude;
pub(crate) use include::values_of_version;

/// Rows that are read at once.
const CHUNK: usize = 1024;
/// Rows that are read at once with a delimiter, which probably skips most of them. Doubles as long as no rows
/// are skipped.
const FIRST_CHUNK: usize = 16;
/// Maximum number of rows that are read for one page, which may then have few entries. Counts rows that are
/// not shown, such as deleted blobs.
const MAX_ROWS: usize = 16_384;
/// Length at which a page ends, in bytes.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// Entries after which the length of the page is estimated.
const TYPICAL: usize = 512;
/// The key of the current state in a marker. Sorts after all other rows of the blob.
const LAST: Bytes = Bytes::from_static(&[0xFF]);

impl BlobService {
    /// Handles List Blobs.
    pub(crate) async fn list_blobs(&self, request: Request) -> Result<Response, Refusal> {
        let page = PageRequest::parse(ServiceKind::Blob, &request.query, MAX_RESULTS)?;
        let include = BlobInclude::parse(&request.query, request.version)?;
        check_parameters(&request, &page, include)?;
        let container = self.container(&request.account, &request.container).await?;
        let mut listing = BlobListing::new(&request, container.space, &page, include, self.store.now())?;
        let next = self.fill_page(container.space, &mut listing).await?;
        // The rows are those of the container only if it was not deleted and swept during the scan.
        let header = self.store.space(container.space).await.map_err(reply::read_refusal)?;
        if !header.is_some_and(|header| header.open) {
            return Err(ErrorCode::ContainerNotFound.into());
        }
        let mut xml = listing.xml;
        xml.close();
        PageRequest::write_next(&mut xml, next.map(Position::marker).as_deref());
        Ok(Response::xml(xml.finish()))
    }

    /// Fills a page. Returns the position of the next page.
    async fn fill_page(
        &self,
        space: SpaceId,
        listing: &mut BlobListing<'_>,
    ) -> Result<Option<Position>, Refusal> {
        let mut from = listing.begin();
        let mut read = 0;
        if !from.key.is_empty() {
            if let Some(full) = self.resume(space, listing, &from, &mut read).await? {
                return Ok(Some(full));
            }
            from.key = LAST;
        }
        let which = if listing.include.needs_every_row() { Which::All } else { Which::First };
        let end = listing.end.clone();
        let mut chunk = listing.first_chunk();
        loop {
            let start = (from.partition.clone(), from.key.clone());
            let rows =
                self.store.scan_space(space, start, Some((end.clone(), Bytes::new())), which, chunk).await;
            let rows = rows.map_err(reply::read_refusal)?;
            read += rows.rows.len();
            for (partition, row) in &rows.rows {
                let full = match listing.process_row(partition, row)? {
                    ListStep::Next => None,
                    ListStep::Full(position) => Some(position),
                    ListStep::Merge => self.write_states(space, listing, Bytes::new(), &mut read).await?,
                };
                if full.is_some() {
                    return Ok(full);
                }
            }
            let Some(next) = rows.next else { return listing.finish_blob() };
            let next = Position { partition: next.0, key: next.1, latest: Bytes::new() };
            if next.partition != listing.current.partition
                && let Some(full) = listing.finish_blob()?
            {
                return Ok(Some(full));
            }
            from = listing.continue_at(next.clone());
            chunk = if from == next { (chunk * 2).min(CHUNK) } else { listing.first_chunk() };
            if read >= MAX_ROWS {
                return Ok(Some(listing.position_before(from)));
            }
            // Yield to other requests.
            tokio::task::yield_now().await;
        }
    }
}

/// Refuses combinations of parameters that are not supported, and blobs that the caller may not see.
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
    if include.tags && !may_read_tags(&request.caller) {
        return Err(ErrorCode::AuthorizationPermissionMismatch.into());
    }
    Ok(())
}

/// A position in the order of rows: a partition and a row in it. An empty key is the first row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Position {
    partition: Bytes,
    key: Bytes,
    /// The key of the latest version before this position, which the next page may have to show. Empty if
    /// there is none.
    latest: Bytes,
}

impl Position {
    fn at(partition: impl Into<Bytes>) -> Self {
        Self { partition: partition.into(), ..Self::default() }
    }

    /// Returns the marker of this position: the name and, except at a blob's first row, a zero byte, the
    /// length and the key of the latest version, and the key. Names contain no zero byte.
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

/// A page that is being written.
struct BlobListing<'a> {
    request: &'a Request,
    space: SpaceId,
    page: &'a PageRequest<'a>,
    include: BlobInclude,
    now: Timestamp,
    xml: xml::Writer,
    written: usize,
    /// Partitions below this one are skipped.
    start: Bytes,
    /// The first partition after the listing.
    end: Bytes,
    /// The directory that the caller is confined to, if the prefix does not already exclude all other blobs.
    directory: Option<&'a str>,
    /// From this key on, the states of a blob are stored in time order.
    ordered_from: Bytes,
    current: CurrentBlob,
}

/// The blob whose rows are being read.
#[derive(Default)]
struct CurrentBlob {
    /// Empty before the first blob.
    partition: Bytes,
    base: Option<Blob>,
    /// The latest version and its key, if they are needed.
    latest: Option<(Bytes, Blob)>,
    /// Whether all states except the current one are written.
    is_merged: bool,
}

/// The next step after a row.
enum ListStep {
    Next,
    /// The page is full. The next page begins with this entry.
    Full(Position),
    /// The states of the blob must be merged.
    Merge,
}

/// The state of a blob that an entry shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListedState {
    Current,
    Snapshot(Stamp),
    Version,
    /// The latest version of a blob without a current state.
    VersionsOnly,
}

impl<'a> BlobListing<'a> {
    fn new(
        request: &'a Request,
        space: SpaceId,
        page: &'a PageRequest<'a>,
        include: BlobInclude,
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        let named = |name: &str| Bytes::from([keys::BLOBS, name.as_bytes()].concat());
        let parameter = |name: &str| request.query.get(name).filter(|value| !value.is_empty()).map(named);
        let all = prefix_range(&named(page.prefix));
        let mut listing = Self {
            request,
            space,
            page,
            include,
            now,
            xml: xml::Writer::new(),
            written: 0,
            start: parameter("startfrom").map_or(all.start.clone(), |from| from.max(all.start)),
            end: parameter("endbefore").map_or(all.end.clone(), |before| before.min(all.end)),
            directory: None,
            ordered_from: states::last_needed_kind(include),
            current: CurrentBlob::default(),
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

    /// Returns the position at which the page begins: that of the marker, if it is within the listing.
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

    /// Processes the next row.
    fn process_row(&mut self, partition: &Bytes, row: &Row) -> Result<ListStep, Refusal> {
        if *partition < self.start {
            return Ok(ListStep::Next);
        }
        if *partition != self.current.partition {
            if let Some(full) = self.finish_blob()? {
                return Ok(ListStep::Full(full));
            }
            // Ending the previous blob may have written a prefix that contains this one.
            if *partition < self.start || !self.begin_blob(partition.clone()) {
                return Ok(ListStep::Next);
            }
        }
        match keys::row_kind(&row.key).filter(|kind| self.include.needs_kind(*kind)) {
            Some(RowKind::Base) => self.current.base = Some(self.decode(row)?),
            Some(_) if self.current.is_merged => {}
            Some(_) if row.key < self.ordered_from => {
                self.current.is_merged = true;
                return Ok(ListStep::Merge);
            }
            Some(_) => return Ok(self.process_state(row)?.map_or(ListStep::Next, ListStep::Full)),
            None => {}
        }
        Ok(ListStep::Next)
    }

    /// Decodes a row of the current blob.
    fn decode(&self, row: &Row) -> Result<Blob, Refusal> {
        let place = || {
            let (partition, key) = (self.current.partition.clone(), row.key.clone());
            RowPosition { space: self.space, partition, key }
        };
        Blob::decode(&row.value).map_err(|damage| damage.at(place()))
    }

    /// Processes the row of a snapshot or version. Returns its position if the page is full.
    fn process_state(&mut self, row: &Row) -> Result<Option<Position>, Refusal> {
        let blob = self.decode(row)?;
        let shown = match keys::row_kind(&row.key) {
            Some(RowKind::Snapshot(stamp) | RowKind::DeletedSnapshot(stamp)) => ListedState::Snapshot(stamp),
            _ => ListedState::Version,
        };
        let is_wanted = shown != ListedState::Version || self.include.versions;
        let fits = !is_wanted || !self.is_visible(&blob) || self.write(&blob, shown)?;
        if shown == ListedState::Version {
            self.remember_version(&row.key, blob);
        }
        Ok((!fits).then(|| self.position_of(row.key.clone())))
    }

    /// Returns the position of a row of the current blob.
    fn position_of(&self, key: Bytes) -> Position {
        let CurrentBlob { partition, latest, .. } = &self.current;
        let latest = latest.as_ref().map(|(row, _)| row.clone()).unwrap_or_default();
        Position { partition: partition.clone(), key, latest }
    }

    /// Remembers the latest version. Prefers versions that are not deleted.
    fn remember_version(&mut self, key: &Bytes, blob: Blob) {
        let is_kept = |latest: &(Bytes, Blob)| latest.1.deleted.is_none() && blob.deleted.is_some();
        if !blob.has_expired(self.now) && !self.current.latest.as_ref().is_some_and(is_kept) {
            self.current.latest = Some((key.clone(), blob));
        }
    }

    /// Begins a blob. Returns false if the caller must not see it.
    fn begin_blob(&mut self, partition: Bytes) -> bool {
        if let Some(directory) = self.directory {
            let name = &partition[keys::BLOBS.len()..];
            let rest = name.strip_prefix(directory.as_bytes()).unwrap_or(b"?");
            if !rest.is_empty() && !rest.starts_with(b"/") {
                // Names such as `directory!` sort between the directory and the blobs in it; others sort
                // after these.
                let inside = [keys::BLOBS, directory.as_bytes(), b"/"].concat();
                self.start = if partition < inside { inside.into() } else { self.end.clone() };
                return false;
            }
        }
        self.current = CurrentBlob { partition, ..CurrentBlob::default() };
        true
    }

    /// Ends a blob by writing its current state, which comes last. Returns its position if the page is full.
    fn finish_blob(&mut self) -> Result<Option<Position>, Refusal> {
        let CurrentBlob { partition, base, latest, .. } = std::mem::take(&mut self.current);
        // No blob was read yet, or this one is part of a prefix that was already written.
        if partition.is_empty() || partition < self.start {
            return Ok(None);
        }
        let base = base.filter(|base| self.is_visible(base));
        let (row, blob, shown) = match (base, latest) {
            (Some(base), _) => (Bytes::new(), base, ListedState::Current),
            (None, Some((row, latest))) if self.include.deleted_with_versions => {
                (row, latest, ListedState::VersionsOnly)
            }
            _ => return Ok(None),
        };
        self.current.partition = partition.clone();
        let fits = self.write(&blob, shown)?;
        self.current.partition = Bytes::new();
        Ok((!fits).then_some(Position { partition, key: LAST, latest: row }))
    }

    /// Returns the position of the next page if this page ends before the row at `next`, which was not read.
    fn position_before(&self, next: Position) -> Position {
        if next.partition != self.current.partition {
            return Position::at(next.partition);
        }
        // The row belongs to a kind that has to be merged with others, and no state of the blob is written
        // yet.
        if !self.current.is_merged && next.key < self.ordered_from {
            return self.position_of(keys::BASE);
        }
        self.position_of(next.key)
    }

    /// Returns the position from which to continue the scan: `next`, or the first wanted row after it.
    fn continue_at(&self, next: Position) -> Position {
        if next.partition < self.start {
            return Position::at(self.start.clone());
        }
        if self.current.is_merged && next.partition == self.current.partition {
            return self.position_of(LAST);
        }
        if keys::row_kind(&next.key).is_none_or(|kind| self.include.needs_kind(kind)) {
            return next;
        }
        // A blob can have more unwanted rows of one kind than a page has entries, so skip the kind.
        let wanted = states::kinds().into_iter().filter(|(kind, _)| self.include.needs_kind(*kind));
        let key = wanted.map(|(_, start)| start).find(|start| *start > next.key).unwrap_or(LAST);
        Position { key, ..next }
    }

    fn is_visible(&self, blob: &Blob) -> bool {
        !blob.has_expired(self.now)
            && (blob.committed || self.include.uncommitted)
            && (blob.deleted.is_none() || self.include.deleted)
    }

    /// Writes an entry of the current blob, or the prefix that contains it. Returns false if the page is
    /// full.
    fn write(&mut self, blob: &Blob, shown: ListedState) -> Result<bool, Refusal> {
        if self.written == self.page.limit || self.xml.written() >= MAX_PAGE_BYTES {
            return Ok(false);
        }
        let partition = self.current.partition.clone();
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

/// Parses an arbitrary marker. Returns whether it has the form of a listing's marker.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz_marker(marker: &[u8]) -> bool {
    let position = Position::parse(marker);
    let has_key = !position.key.is_empty();
    if has_key {
        assert_eq!(position.marker(), marker);
    }
    has_key
}

/// Returns the common prefix that stands for a name: it ends with the first delimiter after the requested
/// prefix.
fn fold<'a>(name: &'a str, page: &PageRequest<'_>) -> Option<&'a str> {
    let (delimiter, prefix) = (page.delimiter?, page.prefix.len());
    let at = name.get(prefix..)?.find(delimiter)?;
    name.get(..prefix + at + delimiter.len())
}
