//! List Ranges: which parts of a file were written, or what became of them since a snapshot of the share.

use std::ops::Range;

use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::FileUse;
use lazuli_extents::{Change, Diff, Error, Held, Ranges};
use lazuli_protocol::{ByteRange, ErrorCode, Headers, Query, Refusal, Request, Response, xml};
use lazuli_store::{Partition, SpaceId, Which, prefix_range};

use crate::children::At;
use crate::content::unreadable;
use crate::file::MAX_FILE_BYTES;
use crate::level::Listing;
use crate::record::{File, Node};
use crate::reply::{put, validators};
use crate::tree::Target;
use crate::{FileService, XML, keys, opens, snapshot};

/// Ranges that a reply lists.
const MAX_RANGES: usize = 100_000;
/// Ranges of a page, for clients who ask for pages.
const MAX_RESULTS: u16 = 10_000;
/// Directories that a search takes at once.
const CHUNK: usize = 256;
const PREVIOUS: &str = "prevsharesnapshot";
/// Whether a file is found that had another name then, or was in another directory.
const SUPPORT_RENAME: &str = "x-ms-file-support-rename";

impl FileService {
    /// List Ranges.
    pub(crate) async fn list_ranges(&self, request: Request) -> Result<Response, Refusal> {
        let range = ByteRange::of_file_read(&request.headers)?;
        let page = Page::parse(&request.query)?;
        let pin = self.extents.pins().pin();
        let (node, _) = self.file_to_read(&request, FileUse::Read, opens::touched(None)).await?;
        let Some(file) = &node.file else { return Err(ErrorCode::ResourceTypeMismatch.into()) };
        let _held = pin.hold([&file.content]);
        let length = file.content.len();
        let previous = self.previous(&request, file).await?;
        let (content, extents) = (&file.content, &self.extents);
        let mut changes = match &previous {
            None => Changes::All(Ranges::new(extents, content, page.rest(part(range, length)))),
            Some((older, _)) => {
                // What was cut off since is cleared, so the longer one counts.
                let older = older.file.as_ref().map(|file| &file.content).ok_or(ErrorCode::InternalError)?;
                let part = page.rest(part(range, length.max(older.len())));
                Changes::Since(Diff::new(extents, older, content, part))
            }
        };
        let mut xml = xml::Writer::new();
        xml.open("Ranges");
        let mut listed = 0;
        while let Some(change) = changes.next().await.map_err(unreadable)? {
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
        let mut response = Response::with_body(StatusCode::OK, XML, xml.finish());
        validators(&mut response.headers, node.validators());
        put(&mut response.headers, "x-ms-content-length", length.to_string());
        Ok(response)
    }

    /// What the file was in the snapshot that a request compares it with.
    async fn previous(&self, request: &Request, newer: &File) -> Result<Option<(Node, Held)>, Refusal> {
        let follows = request.headers.flag(SUPPORT_RENAME)?;
        let Some(id) = snapshot::parse(&request.query, PREVIOUS)? else {
            return match follows {
                None => Ok(None),
                Some(_) => {
                    Err(Refusal::new(ErrorCode::UnsupportedHeader).detail("HeaderName", SUPPORT_RENAME))
                }
            };
        };
        let follows = follows.unwrap_or_default();
        if snapshot::named(&request.query)?.is_some_and(|own| own < id) {
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

    /// Looks for a file in the whole share, directory by directory, in no order.
    async fn search(
        &self,
        space: SpaceId,
        at: At,
        is_it: impl Fn(&Node) -> bool,
    ) -> Result<Option<Node>, Refusal> {
        let all = prefix_range(&[keys::DIRECTORIES]);
        let end = (all.end, Bytes::new());
        let mut from = (all.start, Bytes::new());
        loop {
            let page = self.store.scan_space(space, from, Some(end.clone()), Which::First, CHUNK);
            let page = page.await.map_err(lazuli_generations::unreadable)?;
            for (directory, _) in page.rows {
                let mut listing = Listing::new(Partition::new(space, directory), b"", b"", at);
                while let Some(children) = self.more(&mut listing, usize::MAX).await? {
                    if let Some((_, found)) = children.into_iter().find(|(_, node)| is_it(node)) {
                        return Ok(Some(found));
                    }
                }
            }
            let Some(next) = page.next else { return Ok(None) };
            from = next;
        }
    }
}

/// The part of the list that a request asks for.
struct Page {
    /// Where it begins: a marker is an offset.
    start: u64,
    /// How long it is, if pages were asked for.
    limit: Option<usize>,
}

impl Page {
    fn parse(query: &Query) -> Result<Self, Refusal> {
        let marker = query.number("marker", 0..=MAX_FILE_BYTES)?;
        let limit = query.max_results(MAX_RESULTS)?;
        let has_pages = marker.is_some() || query.contains("maxresults");
        Ok(Self { start: marker.unwrap_or_default().unsigned_abs(), limit: has_pages.then_some(limit) })
    }

    /// What of a range was not on the pages before.
    fn rest(&self, range: Range<u64>) -> Range<u64> {
        let start = range.start.max(self.start);
        start..range.end.max(start)
    }
}

/// The part of so many bytes that is asked for; nothing if it lies behind them.
fn part(range: Option<ByteRange>, length: u64) -> Range<u64> {
    let whole = 0..length;
    range.map_or(whole, |range| range.within(length).unwrap_or(length..length))
}

/// Where ranges come from.
enum Changes {
    /// Everything that was written.
    All(Ranges),
    /// What changed since an older state.
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
