//! The content of files: Get File, Put Range, and a new length by Set File Properties.
//!
//! Building new content takes I/O between reading a row and committing it. So the rule judges first, then the
//! content is built, and the commit succeeds only if the row is unchanged.

use std::ops::Range;

use futures_util::stream;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use lazuli_concurrency::FileUse;
use lazuli_content::content_refusal;
use lazuli_extents::{ContentReader, Writer};
use lazuli_protocol::lease::lease_id;
use lazuli_protocol::range::content_range;
use lazuli_protocol::request::{Body, BodyError};
use lazuli_protocol::{ByteRange, ErrorCode, Headers, Refusal, Request, Response, date};
use lazuli_service::log_failed_rule;
use lazuli_service::reply::{put, put_validators};
use lazuli_store::{Change, View};
use md5::{Digest as _, Md5};

use crate::FileService;
use crate::lock_order::{HeldRank, Rank};
use crate::opens::Admission;
use crate::rest::digest::{CheckedBody, base64};
use crate::rest::file::{content_headers, properties};
use crate::rest::smb_properties::{Purpose, SentProperties, written};
use crate::rest::target;
use crate::tree::change::{Entry, entry};
use crate::tree::children;
use crate::tree::content::ContentEdit;
use crate::tree::move_record::NameReservation;
use crate::tree::moves::MAX_ATTEMPTS;
use crate::tree::record::Node;
use crate::tree::rules::{
    MAX_FILE_BYTES, MAX_RANGE_WRITE, admit_write, check_no_pending_copy, check_writable, existing_file,
    extent_bytes, with_lease,
};
use crate::tree::spot::Spot;
use crate::tree::usage::QuotaReservation;
use crate::tree::usage::epoch;

impl FileService {
    /// Handles Get File.
    pub(crate) async fn get_file(&self, request: Request) -> Result<Response, Refusal> {
        let range = ByteRange::of_file_read(&request.headers)?;
        let wants_md5 = request.headers.flag("x-ms-range-get-content-md5")?.unwrap_or_default();
        let pin = self.extents.pins().pin();
        let touched = target::touched(range);
        let (node, parent) = self.file_to_read(&request, FileUse::Read, touched).await?;
        let Some(file) = &node.file else { return Err(ErrorCode::ResourceTypeMismatch.into()) };
        let held = pin.hold([&file.content]);
        let length = file.content.len();
        let part = range.map(|range| range.within(length)).transpose()?;
        // The requested range counts or, if it has no end, the existing part of it.
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
        let mut reader = ContentReader::new(&self.extents, &file.content, part, held);
        if wants_md5 {
            let mut bytes = Vec::new();
            while let Some(more) = reader.next().await.map_err(content_refusal)? {
                bytes.extend_from_slice(&more);
            }
            put(&mut response.headers, "content-md5", base64(&Md5::digest(&bytes)));
            response.body = Body::whole(bytes);
        } else {
            response.body = body(reader);
        }
        Ok(response)
    }

    /// Handles Put Range.
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
            let body = CheckedBody::read(&mut request).await?;
            checked = Some(body.sum);
            ContentEdit::Write(range.start, body.bytes)
        };
        let node = self.write_range(&request, range, edit).await?;
        let mut response = range_written(&node);
        if let Some(sum) = checked {
            sum.write_header(&mut response.headers).await?;
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

    /// Handles Set File Properties.
    pub(crate) async fn set_file_properties(&self, request: Request) -> Result<Response, Refusal> {
        const LENGTH: &str = "x-ms-content-length";
        let sent = SentProperties::parse(&request.headers, request.version, Purpose::Set)?;
        let names_headers = CONTENT_HEADERS.iter().any(|name| request.headers.contains_key(*name));
        let mut headers = content_headers(&request.headers)?;
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

    /// Changes a file as the rule decides, including its content.
    async fn edit(
        &self,
        spot: &Spot,
        usage: FileUse,
        mut rule: impl FnMut(&View<'_>, Node) -> Result<(Node, ContentEdit), Refusal>,
    ) -> Result<Node, Refusal> {
        let writer = self.extents.pins().writer();
        let mut admission = self.admission(spot);
        let (mut reserved, mut reservations_met) = (None, 0);
        loop {
            match self.try_edit(spot, usage, &writer, &mut admission, &mut reserved, &mut rule).await? {
                EditOutcome::Done(node) => {
                    admission.done();
                    return Ok(node);
                }
                EditOutcome::Refused(refusal) => {
                    if !self.flush_or_wait(&mut admission).await {
                        return Err(refusal);
                    }
                }
                EditOutcome::NameReserved(reservation) => {
                    reservations_met += 1;
                    if reservations_met == MAX_ATTEMPTS {
                        return Err(ErrorCode::ServerBusy.into());
                    }
                    self.finish_intent(spot.space, &reservation).await?;
                }
                EditOutcome::QuotaNeeded(grown, epoch) => {
                    reserved = Some(self.reserve(spot.space, grown, spot.limit(), epoch).await?);
                }
            }
        }
    }

    /// Edits the file until it would have to wait for clients, moves or the quota. Holds no lock on return.
    async fn try_edit(
        &self,
        spot: &Spot,
        usage: FileUse,
        writer: &Writer,
        admission: &mut Admission,
        reserved: &mut Option<QuotaReservation>,
        rule: &mut impl FnMut(&View<'_>, Node) -> Result<(Node, ContentEdit), Refusal>,
    ) -> Result<EditOutcome, Refusal> {
        let partition = spot.partition();
        let refusal = |error| self.rows.refusal(&partition, error);
        let _directory = self.directory_locks.shared(&partition).await;
        let _queue = HeldRank::wait(Rank::Partition);
        let mut attempts = self.rows.attempts(&partition);
        loop {
            // Sweeps wait for pins, so no pin is held in the queue.
            attempts.wait_turn().await;
            let pin = self.extents.pins().pin();
            let attempt = attempts.begin(children::reads_to_change(&spot.name)).await.map_err(refusal)?;
            let view = attempt.view();
            let entry = entry(spot, &view).inspect_err(|refusal| log_failed_rule(&partition, &view, refusal));
            let old = match entry? {
                Entry::Free(old) => existing_file(old)?,
                Entry::Reserved(reservation) => return Ok(EditOutcome::NameReserved(reservation)),
            };
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
                    reserved.take().into_iter().for_each(QuotaReservation::cancel);
                    return Ok(EditOutcome::Refused(refusal));
                }
            };
            if let Some(file) = &mut node.file {
                file.content = self.build_durable_content(writer, &file.content, edit).await?;
            }
            let mutations = children::replace(&view, &spot.name, Some(&old), Some(node.clone()))?;
            let grown = children::growth(Some(&old), Some(&node));
            if !self.usages.admit(reserved, spot, grown, &view) {
                return Ok(EditOutcome::QuotaNeeded(grown, epoch(&view)));
            }
            if attempts.commit(attempt, Change::of(mutations)).await.map_err(refusal)? {
                reserved.take().into_iter().for_each(QuotaReservation::commit);
                self.extents.released(extent_bytes(&old).saturating_sub(extent_bytes(&node)));
                return Ok(EditOutcome::Done(node));
            }
        }
    }
}

/// Result of [`FileService::try_edit`].
#[expect(clippy::large_enum_variant, reason = "every value is destructured at once")]
enum EditOutcome {
    /// The file was changed.
    Done(Node),
    /// The rule refused, or a client has to act first.
    Refused(Refusal),
    /// A move has reserved the name and has to be finished first.
    NameReserved(NameReservation),
    /// The length grows by this much in an epoch, which does not fit into the slice of the quota.
    QuotaNeeded(i64, Option<u64>),
}

/// Makes the response to a written range.
pub(crate) fn range_written(node: &Node) -> Response {
    let mut response = Response::empty(StatusCode::CREATED);
    put_validators(&mut response.headers, node.validators());
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

/// Streams content.
fn body(reader: ContentReader) -> Body {
    let frames = stream::try_unfold(reader, |mut reader| async {
        let bytes = reader.next().await.map_err(content_refusal)?;
        Ok::<_, BodyError>(bytes.map(|bytes| (Frame::data(bytes), reader)))
    });
    Body::stream(StreamBody::new(frames))
}
