//! List Ranges: the written ranges of a file, or the changes since a snapshot of the share.

use std::ops::Range;

use http::StatusCode;
use lazuli_concurrency::FileUse;
use lazuli_content::content_refusal;
use lazuli_extents::{Change, ContentHold, Diff, Error, Ranges};
use lazuli_protocol::{ByteRange, ErrorCode, Headers, Query, Refusal, Request, Response, xml};
use lazuli_service::SpaceScan;
use lazuli_service::reply::{put, put_validators};
use lazuli_store::{Partition, SpaceId, Which};

use crate::FileService;
use crate::rest::snapshot_id;
use crate::rest::target::{self, Target};
use crate::tree::children::At;
use crate::tree::keys;
use crate::tree::listing::Listing;
use crate::tree::record::{File, Node};
use crate::tree::rules::MAX_FILE_BYTES;

/// Maximum number of ranges in a response.
const MAX_RANGES: usize = 100_000;
/// Maximum number of ranges in a page, if a client asks for pages.
const MAX_RESULTS: u16 = 10_000;
/// Number of directories that a search reads at once.
const CHUNK: usize = 256;
const PREVIOUS: &str = "prevsharesnapshot";
/// Whether to find a file that had another name or directory in the snapshot.
const SUPPORT_RENAME: &str = "x-ms-file-support-rename";

impl FileService {
    /// Handles List Ranges.
    pub(crate) async fn list_ranges(&self, request: Request) -> Result<Response, Refusal> {
        let range = ByteRange::of_file_read(&request.headers)?;
        let page = Page::parse(&request.query)?;
        let pin = self.extents.pins().pin();
        let (node, _) = self.file_to_read(&request, FileUse::Read, target::touched(None)).await?;
        let Some(file) = &node.file else { return Err(ErrorCode::ResourceTypeMismatch.into()) };
        let _held = pin.hold([&file.content]);
        let length = file.content.len();
        let previous = self.previous(&request, file).await?;
        let (content, extents) = (&file.content, &self.extents);
        let mut changes = match &previous {
            None => Changes::All(Ranges::new(extents, content, page.rest(part(range, length)))),
            Some((older, _)) => {
                // A truncated part counts as cleared, so the longer length applies.
                let older = older.file.as_ref().map(|file| &file.content);
                let older = older.ok_or(ErrorCode::ResourceTypeMismatch)?;
                let part = page.rest(part(range, length.max(older.len())));
                Changes::Since(Diff::new(extents, older, content, part))
            }
        };
        let mut xml = xml::Writer::new();
        xml.open("Ranges");
        let mut listed = 0;
        while let Some(change) = changes.next().await.map_err(content_refusal)? {
            let (element, range) = match change {
                Change::Written(range) => ("Range", range),
                Change::Cleared(range) => ("ClearRange", range),
            };
            listed += 1;
            if page.limit.is_some_and(|limit| listed > limit) {
                xml.text("NextMarker", range.start);
                break;
            }
            if listed > MAX_RANGES {
                return Err(ErrorCode::OutOfRangeInput.into());
            }
            xml.open(element).text("Start", range.start).text("End", range.end - 1).close();
        }
        xml.close();
        let mut response = Response::xml(xml.finish());
        put_validators(&mut response.headers, node.validators());
        put(&mut response.headers, "x-ms-content-length", length.to_string());
        Ok(response)
    }

    /// Returns the file as the snapshot to compare with shows it.
    async fn previous(
        &self,
        request: &Request,
        newer: &File,
    ) -> Result<Option<(Node, ContentHold)>, Refusal> {
        let follows = request.headers.flag(SUPPORT_RENAME)?;
        let Some(id) = snapshot_id::parse(&request.query, PREVIOUS)? else {
            return match follows {
                None => Ok(None),
                Some(_) => {
                    Err(Refusal::new(ErrorCode::UnsupportedHeader).detail("HeaderName", SUPPORT_RENAME))
                }
            };
        };
        let follows = follows.unwrap_or_default();
        if snapshot_id::named(&request.query)?.is_some_and(|own| own < id) {
            return Err(ErrorCode::PreviousSnapshotCannotBeNewer.into());
        }
        let target = self.target(request).await?;
        let share = self.share(&request.account, &request.container).await?;
        let share = self.snapshot_of(&request.account, &request.container, &share, id).await?;
        let at = share.snapshot.map_or(At::Now, |snapshot| At::Epoch(snapshot.epoch));
        let pin = self.extents.pins().pin();
        let is_same = |node: &Node| node.file.as_ref().is_some_and(|it| it.incarnation == newer.incarnation);
        let space = share.space;
        let found = match self.find_target(&Target { share, at, ..target }).await {
            Ok((node, _)) => Some(node),
            Err(refusal) if refusal.status() == StatusCode::NOT_FOUND => None,
            Err(refusal) => return Err(refusal),
        };
        if found.is_none() && !follows {
            return Err(ErrorCode::PreviousSnapshotNotFound.into());
        }
        let node = match found.filter(is_same) {
            None if follows => self.search(space, at, is_same).await?,
            found => found,
        };
        let node = node.ok_or(ErrorCode::FileGenerationMismatch)?;
        let held = pin.hold(node.file.as_ref().map(|file| &file.content));
        Ok(Some((node, held)))
    }

    /// Searches the whole share for a file.
    async fn search(
        &self,
        space: SpaceId,
        at: At,
        is_it: impl Fn(&Node) -> bool,
    ) -> Result<Option<Node>, Refusal> {
        let mut scan = SpaceScan::new(&*self.store, space, &[keys::DIRECTORIES], Which::First, CHUNK);
        while let Some(rows) = scan.next().await? {
            for (directory, _) in rows {
                let mut listing = Listing::new(Partition::new(space, directory), b"", b"", at);
                while let Some(children) = self.next_children(&mut listing, usize::MAX).await? {
                    if let Some((_, found)) = children.into_iter().find(|(_, node)| is_it(node)) {
                        return Ok(Some(found));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// The requested part of the list.
struct Page {
    /// The start: a marker is an offset.
    start: u64,
    /// The length, if pages were requested.
    limit: Option<usize>,
}

impl Page {
    fn parse(query: &Query) -> Result<Self, Refusal> {
        let marker = query.number("marker", 0..=MAX_FILE_BYTES)?;
        let limit = query.max_results(MAX_RESULTS)?;
        let has_pages = marker.is_some() || query.contains("maxresults");
        Ok(Self { start: marker.unwrap_or_default().unsigned_abs(), limit: has_pages.then_some(limit) })
    }

    /// Returns the part of a range that was not on earlier pages.
    fn rest(&self, range: Range<u64>) -> Range<u64> {
        let start = range.start.max(self.start);
        start..range.end.max(start)
    }
}

/// Returns the requested part of the file; empty if it is past the end.
fn part(range: Option<ByteRange>, length: u64) -> Range<u64> {
    let whole = 0..length;
    range.map_or(whole, |range| range.within(length).unwrap_or(length..length))
}

/// A source of ranges.
enum Changes {
    /// All written ranges.
    All(Ranges),
    /// Changes since an older state.
    Since(Diff),
}

impl Changes {
    async fn next(&mut self) -> Result<Option<Change>, Error> {
        match self {
            Self::All(ranges) => Ok(ranges.next().await?.map(Change::Written)),
            Self::Since(diff) => diff.next().await,
        }
    }
}
