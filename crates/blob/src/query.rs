//! Query Blob Contents.
//!
//! [`lazuli_query`] has the language, the formats and the form of the reply. As with Get Blob, a request
//! reads one state of the blob to its end, even if the blob changes meanwhile. Content is read only as fast
//! as the client takes the reply.

mod document;

use futures_util::stream;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use lazuli_protocol::request::{Body, BodyError};
use lazuli_protocol::{ErrorCode, Refusal, Request, Response};
use lazuli_query::{Query, QueryReply, ReplyStep};
use time::OffsetDateTime;

use crate::access::target::PinnedState;
use crate::content::cipher::no_random_numbers;
use crate::content::sealed::PlainReader;
use crate::model::record::Kind;
use crate::{BlobService, reply};
use document::{QueryRequest, parse};

/// Maximum length of the request's body, in bytes. An expression has at most half of that.
const MAX_DOCUMENT: usize = 512 << 10;

impl BlobService {
    /// Handles Query Blob Contents.
    pub(crate) async fn query_blob_contents(&self, mut request: Request) -> Result<Response, Refusal> {
        let document = self.receive_document(&mut request, MAX_DOCUMENT).await?;
        let QueryRequest { expression, input, output } = parse(&document.bytes)?;
        let query = Query::parse(&expression, &input).map_err(|malformed| {
            Refusal::new(ErrorCode::InvalidInput)
                .message(malformed.to_string())
                .detail("Reason", malformed.reason)
        })?;
        let found = self.find_to_read_of(&request, |kind| matches!(kind, Kind::Block)).await?;
        let PinnedState { blob, is_current, held, now } = found;
        if blob.tier.is_archived(now) {
            return Err(ErrorCode::BlobArchived.into());
        }
        let seal = self.unseal(&request, &blob)?;
        let mut response = Response::empty(StatusCode::OK);
        let headers = &mut response.headers;
        reply::properties(headers, &blob, is_current, request.version, now);
        // These headers would describe the blob, not the reply.
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("avro/binary"));
        headers.remove(CONTENT_ENCODING);
        let md5 = blob.headers.content_md5.as_ref().map(reply::md5_text);
        reply::put_optional(headers, "x-ms-blob-content-md5", md5);
        let length = blob.content.len();
        let reader = self.read_plain(&blob, seal.as_ref(), 0..length, held).await?;
        let moment = OffsetDateTime::from_unix_timestamp_nanos(now.unix_nanos());
        let moment = moment.unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let mut sync = [0; 16];
        getrandom::fill(&mut sync).map_err(no_random_numbers)?;
        response.body = body(QueryReply::new(query, (input, output), length, moment, sync), reader);
        Ok(response)
    }
}

/// Parses a document and the statement in it. Returns whether both are valid.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(data: &[u8]) -> bool {
    parse(data).is_ok_and(|request| Query::parse(&request.expression, &request.input).is_ok())
}

/// Streams the reply while the blob is read.
fn body(reply: QueryReply, reader: PlainReader) -> Body {
    let frames = stream::try_unfold((reply, reader), |(mut reply, mut reader)| async {
        loop {
            match reply.step() {
                ReplyStep::Send(bytes) => {
                    return Ok::<_, BodyError>(Some((Frame::data(bytes), (reply, reader))));
                }
                ReplyStep::Done => return Ok(None),
                ReplyStep::Pause => {}
                ReplyStep::Feed => match reader.next().await.map_err(reply::content_refusal)? {
                    Some(bytes) => reply.feed(bytes),
                    None => reply.finish(),
                },
            }
            // A query may read much content from memory without sending anything.
            tokio::task::yield_now().await;
        }
    });
    Body::stream(StreamBody::new(frames))
}
