//! Get Page Ranges: the pages of a page blob that were written, or that have changed since a snapshot.
//!
//! The reply is streamed while the ranges are read. Clients of old versions cannot ask for a part of the
//! list, which can be of any length.

use std::fmt::Write as _;
use std::ops::Range;

use bytes::Bytes;
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use lazuli_concurrency::Stamp;
use lazuli_extents::{Change, ContentHold, Diff, Error, Ranges};
use lazuli_protocol::request::BodyError;
use lazuli_protocol::{Body, ByteRange, ErrorCode, Headers, Query, Refusal, Request, Response, date};
use percent_encoding::percent_decode_str;

use crate::access::target::{PinnedState, State, Target};
use crate::model::record::{Blob, Kind, MAX_PAGE_BLOB, PAGE};
use crate::{BlobService, reply};

/// Maximum number of ranges in one reply, in versions with markers.
const MAX_RESULTS: u16 = 10_000;
/// Bytes of the list that are written at once.
const PIECE: usize = 32 << 10;

impl BlobService {
    /// Handles Get Page Ranges, for all pages or for those that differ from an earlier snapshot.
    pub(crate) async fn get_page_ranges(&self, request: Request) -> Result<Response, Refusal> {
        let range = ByteRange::of_read(&request.headers);
        let page = ListPart::parse(&request)?;
        let previous = previous_snapshot(&request)?;
        let found = self.find_to_read_of(&request, |kind| matches!(kind, Kind::Page { .. })).await?;
        let length = found.blob.content.len();
        let range = range.map(|range| range.within(length)).transpose()?.unwrap_or(0..length);
        // Use whole pages, and continue at the end of the previous reply.
        let start = (range.start / PAGE * PAGE).max(page.start);
        let range = start..range.end.next_multiple_of(PAGE).max(start);
        let mut response = Response::empty(StatusCode::OK);
        let headers = &mut response.headers;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        reply::validators(headers, found.blob.validators(), request.version);
        reply::put(headers, "x-ms-blob-content-length", length.to_string());
        let (source, held) = match previous {
            None => {
                (RangeSource::All(Ranges::new(&self.extents, &found.blob.content, range)), vec![found.held])
            }
            Some(snapshot) => {
                let target = self.target(&request).await?;
                let older = self.find_previous(target, snapshot, &found.blob).await?;
                let diff = Diff::new(&self.extents, &older.blob.content, &found.blob.content, range);
                (RangeSource::Since(diff), vec![found.held, older.held])
            }
        };
        let changes = PageChanges::new(source);
        let list = PageList { changes, limit: page.limit, begun: false, _held: held };
        response.body = Body::stream(StreamBody::new(stream::try_unfold(Some(list), |list| async {
            let Some(mut list) = list else { return Ok::<_, BodyError>(None) };
            let (piece, more) = list.piece().await.map_err(reply::content_refusal)?;
            Ok(Some((Frame::data(piece), more.then_some(list))))
        })));
        Ok(response)
    }

    /// Finds the snapshot that a state is compared with.
    async fn find_previous(
        &self,
        target: Target,
        snapshot: Stamp,
        newer: &Blob,
    ) -> Result<PinnedState, Refusal> {
        if matches!(target.state, State::Snapshot(own) if own < snapshot) {
            return Err(ErrorCode::PreviousSnapshotCannotBeNewer.into());
        }
        let older = self.find(&Target { state: State::Snapshot(snapshot), ..target }).await?;
        let older = older.ok_or(ErrorCode::PreviousSnapshotNotFound)?;
        if older.blob.incarnation != newer.incarnation {
            return Err(ErrorCode::BlobOverwritten.into());
        }
        Ok(older)
    }
}

/// The part of the list that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListPart {
    /// Offset at which the part begins. Markers are offsets.
    start: u64,
    /// Maximum number of ranges. `None` in versions without markers, which have no limit.
    limit: Option<usize>,
}

impl ListPart {
    fn parse(request: &Request) -> Result<Self, Refusal> {
        let marker = request.query.number("marker", 0..=MAX_PAGE_BLOB as i64)?;
        let has_pages = request.version.at_least(2020, 10, 2);
        let limit = request.query.max_results(MAX_RESULTS)?;
        Ok(Self { start: marker.unwrap_or(0).unsigned_abs(), limit: has_pages.then_some(limit) })
    }
}

/// Returns the snapshot to compare with, if the request names one by its id or its URL.
fn previous_snapshot(request: &Request) -> Result<Option<Stamp>, Refusal> {
    const QUERY: &str = "prevsnapshot";
    const URL: &str = "x-ms-previous-snapshot-url";
    let stamp = |text: &str| date::parse_snapshot(text).map(|moment| Stamp::from_ticks(moment.ticks()));
    let by_id = request.query.get(QUERY).filter(|text| !text.is_empty());
    match (by_id, request.headers.filled(URL)?) {
        (None, None) => Ok(None),
        (Some(text), None) => {
            let refusal = || Refusal::invalid_query(QUERY, text, "This is not a time.");
            stamp(text).ok_or_else(refusal).map(Some)
        }
        (None, Some(url)) => {
            let snapshot =
                snapshot_in_url(url, &request.container, &request.object).and_then(|id| stamp(&id));
            snapshot.ok_or_else(|| Refusal::invalid_header(URL, url)).map(Some)
        }
        (Some(_), Some(url)) => Err(Refusal::invalid_header(URL, url)),
    }
}

/// Returns the id of the snapshot that a URL names, if it is a snapshot of this blob.
pub(crate) fn snapshot_in_url(url: &str, container: &str, blob: &str) -> Option<String> {
    let (path, query) = url.split_once('?')?;
    let path = percent_decode_str(path).decode_utf8().ok()?.replace('\\', "/");
    let own = path.strip_suffix(blob)?.strip_suffix('/')?.strip_suffix(container)?;
    own.ends_with('/').then_some(())?;
    Some(Query::parse(query).ok()?.get("snapshot")?.to_owned())
}

/// The source of the listed ranges.
pub(crate) enum RangeSource {
    /// All written ranges.
    All(Ranges),
    /// The changes since an older state.
    Since(Diff),
}

impl RangeSource {
    async fn next(&mut self) -> Result<Option<Change>, Error> {
        match self {
            Self::All(ranges) => Ok(ranges.next().await?.map(Change::Written)),
            Self::Since(diff) => diff.next().await,
        }
    }
}

/// Merges changes into ranges of whole pages. Small content is compared byte by byte, so a change may be
/// smaller than a page, and a page may have several changes.
pub(crate) struct PageChanges {
    source: RangeSource,
    /// The last change, which the next one may extend.
    open: Option<Change>,
}

impl PageChanges {
    pub(crate) const fn new(source: RangeSource) -> Self {
        Self { source, open: None }
    }

    /// Returns the next change.
    pub(crate) async fn next(&mut self) -> Result<Option<Change>, Error> {
        loop {
            let next = self.source.next().await?.map(whole_pages);
            match (&mut self.open, next) {
                (Some(Change::Written(open)), Some(Change::Written(next))) if next.start <= open.end => {
                    open.end = next.end;
                }
                (open @ None, Some(next)) => *open = Some(next),
                (open, next) => return Ok(std::mem::replace(open, next)),
            }
        }
    }
}

fn whole_pages(change: Change) -> Change {
    let whole = |range: Range<u64>| range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE);
    match change {
        Change::Written(range) => Change::Written(whole(range)),
        Change::Cleared(range) => Change::Cleared(whole(range)),
    }
}

/// The list while it is streamed.
struct PageList {
    changes: PageChanges,
    limit: Option<usize>,
    begun: bool,
    _held: Vec<ContentHold>,
}

impl PageList {
    /// Renders the next piece of the document. Returns whether more follow.
    async fn piece(&mut self) -> Result<(Bytes, bool), Error> {
        let mut out = String::with_capacity(PIECE + 256);
        if !std::mem::replace(&mut self.begun, true) {
            out.push_str("<?xml version=\"1.0\" encoding=\"utf-8\"?><PageList>");
        }
        while out.len() < PIECE {
            // Writing to a string cannot fail.
            let _ = match (self.changes.next().await?, &mut self.limit) {
                (Some(change), Some(0)) => {
                    write!(out, "<NextMarker>{}</NextMarker>", range(&change).start)
                }
                (Some(change), limit) => {
                    *limit = limit.map(|limit| limit - 1);
                    push_range(&mut out, &change);
                    continue;
                }
                (None, Some(_)) => write!(out, "<NextMarker />"),
                (None, None) => Ok(()),
            };
            out.push_str("</PageList>");
            return Ok((out.into(), false));
        }
        Ok((out.into(), true))
    }
}

fn range(change: &Change) -> &Range<u64> {
    match change {
        Change::Written(range) | Change::Cleared(range) => range,
    }
}

fn push_range(out: &mut String, change: &Change) {
    let element = match change {
        Change::Written(_) => "PageRange",
        Change::Cleared(_) => "ClearRange",
    };
    let Range { start, end } = range(change);
    let _ = write!(out, "<{element}><Start>{start}</Start><End>{}</End></{element}>", end - 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_names_only_a_snapshot_of_its_own_blob() {
        let id = "2026-01-02T03:04:05.0000000Z";
        for (url, found) in [
            (format!("http://h:1/account/box/a%20b/c?snapshot={id}"), true),
            (format!("https://account.blob.host/box/a%20b/c?sig=x&snapshot={id}"), true),
            (format!("http://h:1/account/box/c?snapshot={id}"), false),
            (format!("http://h:1/account/mailbox/a%20b/c?snapshot={id}"), false),
            ("http://h:1/account/box/a%20b/c".to_owned(), false),
            ("http://h:1/account/box/a%20b/c?snapshots=1".to_owned(), false),
            (String::new(), false),
        ] {
            let named = snapshot_in_url(&url, "box", "a b/c");
            assert_eq!(named.as_deref(), found.then_some(id), "{url}");
        }
    }
}
