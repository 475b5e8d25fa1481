//! The content of files: Get File, Put Range, and a new length by Set File Properties.
//!
//! Content is built from what was there, which takes I/O between reading a row and committing it. So the rule judges first,
//! the content is built, and the commit holds only if the row is still the one that was judged.

use std::ops::Range;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use lazuli_concurrency::FileUse;
use lazuli_extents::{Content, Edit, Reader, Writer};
use lazuli_protocol::lease::lease_id;
use lazuli_protocol::range::content_range;
use lazuli_protocol::request::{Body, BodyError};
use lazuli_protocol::{ByteRange, ErrorCode, Headers, Refusal, Request, Response, date};
use lazuli_store::{Attempts, Change, TransactError, View};
use md5::{Digest as _, Md5};

use crate::digest::Checked;
use crate::directory::written;
use crate::file::{MAX_FILE_BYTES, admit_write, check_writable, existing_file, properties, with_lease};
use crate::moves::MAX_ATTEMPTS;
use crate::pending::check_no_pending_copy;
use crate::record::{ContentHeaders, Node};
use crate::reply::{put, validators};
use crate::smb_properties::{Purpose, SentProperties};
use crate::tree::{Entry, Spot, check_kind, entry};
use crate::usage::{Reservation, epoch};
use crate::{FileService, children, opens, share_gone};

/// Bytes that one request can write.
pub(crate) const MAX_RANGE_WRITE: u64 = 4 << 20;
/// What is cleared is freed in units of so many bytes.
const UNIT: u64 = 512;

/// A change of content.
#[derive(Clone, Debug)]
pub(crate) enum ContentEdit {
    Keep,
    Write(u64, Bytes),
    Clear(Range<u64>),
    Resize(u64),
}

impl FileService {
    /// Get File.
    pub(crate) async fn get_file(&self, request: Request) -> Result<Response, Refusal> {
        let range = ByteRange::of_file_read(&request.headers)?;
        let wants_md5 = request.headers.flag("x-ms-range-get-content-md5")?.unwrap_or_default();
        let pin = self.extents.pins().pin();
        let touched = opens::touched(range);
        let (node, parent) = self.file_to_read(&request, FileUse::Read, touched).await?;
        let Some(file) = &node.file else { return Err(ErrorCode::ResourceTypeMismatch.into()) };
        let held = pin.hold([&file.content]);
        let length = file.content.len();
        let part = range.map(|range| range.within(length)).transpose()?;
        // The range that was asked for counts, or if it has no end, what there is of it.
        let asked = range.and_then(|range| range.last.map(|last| last - range.first));
        let too_long = asked.is_some_and(|asked| asked >= MAX_RANGE_WRITE)
            || part.as_ref().is_none_or(|part| part.end - part.start > MAX_RANGE_WRITE);
        if wants_md5 && too_long {
            return Err(Refusal::invalid_header("x-ms-range-get-content-md5", "true"));
        }
        let status = if part.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let mut response = written(status, &node, parent);
        let headers = &mut response.headers;
        properties(headers, &node, request.version);
        put(headers, "accept-ranges", "bytes");
        let md5 = file.headers.content_md5.as_ref().map(|md5| base64(md5));
        if let Some(part) = &part {
            headers.insert(CONTENT_RANGE, content_range(part, length));
            if let Some(md5) = md5 {
                put(headers, "x-ms-content-md5", md5);
            }
        } else if let Some(md5) = md5 {
            put(headers, "content-md5", md5);
        }
        let part = part.unwrap_or(0..length);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(part.end - part.start));
        request.caller.override_headers(headers);
        let mut reader = Reader::new(&self.extents, &file.content, part, held);
        if wants_md5 {
            let mut bytes = Vec::new();
            while let Some(more) = reader.next().await.map_err(unreadable)? {
                bytes.extend_from_slice(&more);
            }
            put(&mut response.headers, "content-md5", base64(&Md5::digest(&bytes)));
            response.body = Body::whole(bytes);
        } else {
            response.body = body(reader);
        }
        Ok(response)
    }

    /// Put Range.
    pub(crate) async fn put_range(&self, mut request: Request) -> Result<Response, Refusal> {
        let range = ByteRange::of_write(&request.headers)?;
        let is_clear = request.headers.one_of("x-ms-write", &[("update", false), ("clear", true)])?;
        let is_clear = is_clear.ok_or_else(|| Refusal::missing_header("x-ms-write"))?;
        let length = request.content_length.ok_or(ErrorCode::MissingContentLengthHeader)?;
        let mut checked = None;
        let edit = if is_clear {
            if length != 0 {
                return Err(Refusal::invalid_header("content-length", length.to_string()));
            }
            ContentEdit::Clear(range.clone())
        } else {
            if range.end - range.start > MAX_RANGE_WRITE {
                let refusal = Refusal::new(ErrorCode::RequestBodyTooLarge);
                return Err(refusal.detail("MaxLimit", MAX_RANGE_WRITE.to_string()));
            }
            if length != range.end - range.start {
                return Err(Refusal::invalid_header("content-length", length.to_string()));
            }
            let body = Checked::read(&mut request).await?;
            checked = Some(body.sum);
            ContentEdit::Write(range.start, body.bytes)
        };
        let node = self.write_range(&request, range, edit).await?;
        let mut response = range_written(&node);
        if let Some(sum) = checked {
            sum.tell(&mut response.headers).await?;
        }
        Ok(response)
    }

    /// Changes a range of the file that a request addresses.
    pub(crate) async fn write_range(
        &self,
        request: &Request,
        range: Range<u64>,
        edit: ContentEdit,
    ) -> Result<Node, Refusal> {
        let keeps_time = request
            .headers
            .one_of("x-ms-file-last-write-time", &[("now", false), ("preserve", true)])?
            .unwrap_or_default();
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let id = lease_id(&request.headers)?;
        let target = self.target(request).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        self.edit(&spot, FileUse::PutRange, |view, mut node| {
            let lease = admit_write(&node, id)?;
            conditions.evaluate_write(node.validators())?;
            check_writable(&node)?;
            if range.end > node.length() {
                return Err(ErrorCode::InvalidRange.into());
            }
            let last_write = node.properties.last_write;
            node.touch(view.stamp, view.now);
            node.properties.last_write = if keeps_time { last_write } else { view.now };
            Ok((with_lease(node, lease), edit.clone()))
        })
        .await
    }

    /// Set File Properties.
    pub(crate) async fn set_file_properties(&self, request: Request) -> Result<Response, Refusal> {
        const LENGTH: &str = "x-ms-content-length";
        let sent = SentProperties::parse(&request.headers, request.version, Purpose::Set)?;
        let names_headers = CONTENT_HEADERS.iter().any(|name| request.headers.contains_key(*name));
        let mut headers = ContentHeaders::parse(&request.headers)?;
        headers.content_type.get_or_insert_default();
        let length = match request.headers.number(LENGTH, i64::MIN..=MAX_FILE_BYTES)? {
            Some(..0) => return Err(ErrorCode::OutOfRangeInput.into()),
            length => length.map(i64::unsigned_abs),
        };
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let id = lease_id(&request.headers)?;
        let target = self.target(&request).await?;
        let permission = self.permission_key(target.share.space, sent.permission.as_ref()).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        let usage = if length.is_some() { FileUse::PutRange } else { FileUse::Write };
        let node = self.edit(&spot, usage, |view, mut node| {
            let lease = admit_write(&node, id)?;
            conditions.evaluate_write(node.validators())?;
            if !sent.clears_read_only() {
                check_writable(&node)?;
            }
            node.touch(view.stamp, view.now);
            if length.is_some() && !sent.sets_last_write() {
                node.properties.last_write = view.now;
            }
            sent.apply(&mut node.properties, false, permission.clone(), view.now);
            if let Some(file) = &mut node.file {
                file.copy = None;
                if names_headers || length.is_none() {
                    file.headers = headers.clone();
                }
            }
            let edit = length.map_or(ContentEdit::Keep, ContentEdit::Resize);
            Ok((with_lease(node, lease), edit))
        });
        Ok(written(StatusCode::OK, &node.await?, spot.parent))
    }

    /// Changes the file at a spot as the rule decides, content included.
    async fn edit(
        &self,
        spot: &Spot,
        usage: FileUse,
        mut rule: impl FnMut(&View<'_>, Node) -> Result<(Node, ContentEdit), Refusal>,
    ) -> Result<Node, Refusal> {
        let refusal = |error: TransactError<_>| lazuli_account::refusal(error.widen(), share_gone);
        let (partition, writer) = (spot.partition(), self.extents.pins().writer());
        let mut admission = self.admission(spot);
        let mut writes = self.writers.one(&partition).await;
        let mut attempts = Attempts::new(&*self.store, &self.gate, &partition);
        let mut met = 0;
        let mut reserved: Option<Reservation> = None;
        loop {
            // A sweep waits for pins, so none is held in a line.
            attempts.wait_turn().await;
            let pin = self.extents.pins().pin();
            let attempt = attempts.begin(children::reads_to_change(&spot.name)).await.map_err(refusal)?;
            let view = attempt.view();
            let old = match entry(spot, &view)? {
                Entry::Free(old) => existing_file(old)?,
                Entry::Reserved(reservation) => {
                    met += 1;
                    if met == MAX_ATTEMPTS {
                        return Err(ErrorCode::ServerBusy.into());
                    }
                    // Whoever ends it has to wait in the line that this may stand in.
                    drop(attempts);
                    self.end(spot.space, &reservation).await?;
                    attempts = Attempts::new(&*self.store, &self.gate, &partition);
                    continue;
                }
            };
            check_kind(&old, false)?;
            if let Some(file) = &old.file {
                writer.hold(pin, [&file.content]);
            }
            let file = spot.file(old.id);
            let mut judge = || {
                admission.check(file)?;
                let judged = rule(&view, old.clone())?;
                check_no_pending_copy(&old)?;
                admission.admit(file, usage)?;
                Ok(judged)
            };
            let (mut node, edit) = match judge() {
                Ok(judged) => judged,
                Err(refusal) => {
                    // Nobody else has to wait for that client.
                    drop((attempts, writes));
                    reserved.take().into_iter().for_each(Reservation::cancel);
                    if !self.again(&mut admission).await {
                        return Err(refusal);
                    }
                    writes = self.writers.one(&partition).await;
                    attempts = Attempts::new(&*self.store, &self.gate, &partition);
                    continue;
                }
            };
            if let Some(file) = &mut node.file {
                file.content = self.edited(&writer, &file.content, edit).await?;
            }
            let mutations = children::replace(&view, &spot.name, Some(&old), Some(node.clone()))?;
            let grown = children::growth(Some(&old), Some(&node));
            if !self.usages.admit(&mut reserved, spot, grown, &view) {
                // Leave the line first: a request that holds a reservation may wait in it.
                drop((attempts, writes));
                reserved = Some(self.reserve(spot.space, grown, spot.limit(), epoch(&view)).await?);
                writes = self.writers.one(&partition).await;
                attempts = Attempts::new(&*self.store, &self.gate, &partition);
                continue;
            }
            let before = crate::file::allocated(&old);
            if attempts.commit(attempt, Change::of(mutations)).await.map_err(refusal)? {
                reserved.into_iter().for_each(Reservation::keep);
                admission.done();
                self.extents.released(before.saturating_sub(crate::file::allocated(&node)));
                return Ok(node);
            }
        }
    }

    /// The content after a change, durable.
    pub(crate) async fn edited(
        &self,
        writer: &Writer,
        content: &Content,
        change: ContentEdit,
    ) -> Result<Content, Refusal> {
        if matches!(change, ContentEdit::Keep) {
            return Ok(content.clone());
        }
        let content = self.changed(writer, content, change).await.map_err(unreadable)?;
        if content.as_inline().is_none() {
            self.extents.sync().await.map_err(unreadable)?;
        }
        Ok(content)
    }

    /// The content after a change, which is not durable yet.
    pub(crate) async fn changed(
        &self,
        writer: &Writer,
        content: &Content,
        change: ContentEdit,
    ) -> Result<Content, lazuli_extents::Error> {
        let mut edit = Edit::new(&self.extents, writer, content);
        match change {
            ContentEdit::Keep => return Ok(content.clone()),
            ContentEdit::Write(offset, bytes) => edit.write(offset, &Content::inline(bytes)).await?,
            ContentEdit::Resize(length) => edit.resize(length).await?,
            ContentEdit::Clear(range) => {
                // Whole units are freed; what is left of the range at its edges becomes zeros.
                let inner = range.start.next_multiple_of(UNIT)..range.end / UNIT * UNIT;
                let edges = match inner.start < inner.end {
                    true => [range.start..inner.start, inner.end..range.end],
                    false => [range.clone(), range.end..range.end],
                };
                for edge in edges.into_iter().filter(|edge| edge.start < edge.end) {
                    let zeros = Content::inline(vec![0; (edge.end - edge.start) as usize]);
                    edit.write(edge.start, &zeros).await?;
                }
                if inner.start < inner.end {
                    edit.clear(inner).await?;
                }
            }
        }
        edit.finish().await
    }
}

/// The reply to a range that was written.
pub(crate) fn range_written(node: &Node) -> Response {
    let mut response = Response::empty(StatusCode::CREATED);
    validators(&mut response.headers, node.validators());
    put(&mut response.headers, "x-ms-request-server-encrypted", "true");
    put(&mut response.headers, "x-ms-file-last-write-time", date::iso8601(node.properties.last_write));
    response
}

/// The headers that Set File Properties replaces together.
const CONTENT_HEADERS: [&str; 6] = [
    "x-ms-content-type",
    "x-ms-content-encoding",
    "x-ms-content-language",
    "x-ms-content-disposition",
    "x-ms-cache-control",
    "x-ms-content-md5",
];

/// Streams what a reader reads.
fn body(reader: Reader) -> Body {
    let frames = stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match reader.next().await {
            Ok(Some(bytes)) => Some((Ok(Frame::data(bytes)), Some(reader))),
            Ok(None) => None,
            Err(error) => {
                tracing::error!(%error, "content cannot be read");
                Some((Err(BodyError::from(error)), None))
            }
        }
    });
    Body::stream(StreamBody::new(frames))
}

pub(crate) fn base64(digest: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(digest)
}

/// Content cannot be read or written.
pub(crate) fn unreadable(error: lazuli_extents::Error) -> Refusal {
    tracing::error!(%error, "content cannot be read or written");
    match error {
        lazuli_extents::Error::Full => {
            Refusal::new(ErrorCode::ServerBusy).message("There is no space left on the server.")
        }
        lazuli_extents::Error::Busy(_) => ErrorCode::ServerBusy.into(),
        _ => ErrorCode::InternalError.into(),
    }
}
