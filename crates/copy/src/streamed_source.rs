//! The source of a copy whose content cannot be shared: read in pieces as a client would, over HTTP or from
//! another service of this server.
//!
//! The first reply of the source fixes its version: every further request requires that version, and a reply
//! with another version ends the copy. A broken connection fails the request in flight, not the copy.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_MATCH, IF_UNMODIFIED_SINCE,
    LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use http_body::Frame;
use lazuli_outbound::{Error, Outbound, OutboundReply};
use lazuli_protocol::request::{Body, BodyError, RequestBody, next_data};
use lazuli_protocol::{ErrorCode, Headers, Refusal, ServiceKind, Version};
use lazuli_service::internal_error;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::local_services::LocalSource;
use crate::minimum_rate::{MinimumRate, TooSlow};
use crate::unverified;

/// Bytes requested at a time.
const REQUEST_BYTES: u64 = 32 << 20;
/// Number of consecutive requests without any bytes after which the copy fails, and the first pause between
/// them.
const MAX_FAILURES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Pieces that are read ahead of the consumer.
const QUEUED_PIECES: usize = 4;

/// A source in a fixed version.
#[derive(Clone)]
pub struct StreamedSource {
    /// How the source is read.
    pub(crate) transport: Transport,
    /// The URL of the source.
    pub uri: Uri,
    /// The `Authorization` header to send.
    pub authorization: Option<HeaderValue>,
    /// The protocol version to send.
    pub version: Version,
    /// The version of the source, from its first reply.
    pub seen: SourceVersion,
}

/// Identifies one version of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceVersion {
    /// Length of the content in bytes.
    pub length: u64,
    etag: Option<String>,
    modified: Option<String>,
}

/// How a source is read.
#[derive(Clone)]
pub(crate) enum Transport {
    Http(Outbound),
    Local(Box<LocalSource>),
}

/// A reply of a source.
struct SourceResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: SourceBody,
}

/// The body of a reply.
enum SourceBody {
    Http(Box<OutboundReply>),
    Local(Body),
}

/// Why a request failed.
enum ReadError {
    /// Another request may succeed.
    Transient(Refusal),
    /// The copy has failed.
    Permanent(Refusal),
    /// The reader of the bytes was dropped.
    ReaderDropped,
}

impl ReadError {
    /// Returns the refusal to send to the client if the first request failed.
    fn refusal(self) -> Refusal {
        match self {
            Self::Transient(refusal) | Self::Permanent(refusal) => refusal,
            Self::ReaderDropped => internal_error("the reader of a copy's source was dropped"),
        }
    }
}

impl StreamedSource {
    /// Opens a source under these conditions. Also returns the headers of its reply.
    pub(crate) async fn open(
        transport: Transport,
        uri: Uri,
        authorization: Option<HeaderValue>,
        conditions: HeaderMap,
        version: Version,
    ) -> Result<(Self, HeaderMap), Refusal> {
        let mut this = Self { transport, uri, authorization, version, seen: SourceVersion::default() };
        // Use GET instead of HEAD, because a URL may be signed for GET only. The body is not read.
        let response = this.get(conditions).await.map_err(ReadError::refusal)?;
        if response.status != StatusCode::OK {
            return Err(this.refused(&response));
        }
        let length = response.headers.value("content-length", |text| text.parse().ok());
        let length =
            length.ok().flatten().ok_or_else(|| this.unusable("The source does not tell its length."))?;
        let text = |name| response.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        this.seen = SourceVersion { length, etag: text(ETAG), modified: text(LAST_MODIFIED) };
        Ok((this, response.headers))
    }

    /// Returns the service of this server that the source belongs to, or `None` if the source is remote.
    pub fn service(&self) -> Option<ServiceKind> {
        match &self.transport {
            Transport::Http(_) => None,
            Transport::Local(local_source) => Some(local_source.kind),
        }
    }

    /// Returns the length of the content in bytes.
    pub fn length(&self) -> u64 {
        self.seen.length
    }

    /// Returns a part of the content as a request body.
    pub fn body(&self, part: Range<u64>) -> RequestBody {
        let streamed = self.clone();
        spawn_body(part.end - part.start, |sender| async move { streamed.send(part, &sender).await })
    }

    async fn get(&self, mut headers: HeaderMap) -> Result<SourceResponse, ReadError> {
        let outbound = match &self.transport {
            Transport::Http(outbound) => outbound,
            Transport::Local(local_source) => {
                let answered = local_source.get(headers, self.version).await;
                let response = answered.map_err(|refusal| self.service_error(&refusal))?;
                let body = SourceBody::Local(response.body);
                return Ok(SourceResponse { status: response.status, headers: response.headers, body });
            }
        };
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Ok(version) = HeaderValue::try_from(self.version.to_string()) {
            headers.insert(HeaderName::from_static("x-ms-version"), version);
        }
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let reply = Box::pin(outbound.get(&self.uri, headers)).await.map_err(|error| match error {
            Error::Url | Error::NotAllowed => ReadError::Permanent(self.unreachable(&error)),
            _ => ReadError::Transient(self.unreachable(&error)),
        })?;
        let (status, headers) = (reply.status, reply.headers.clone());
        Ok(SourceResponse { status, headers, body: SourceBody::Http(Box::new(reply)) })
    }

    /// Returns the next bytes of a reply.
    async fn next(&self, response: &mut SourceResponse) -> Result<Option<Bytes>, ReadError> {
        let body = match &mut response.body {
            SourceBody::Http(reply) => {
                return reply.next().await.map_err(|error| ReadError::Transient(self.unreachable(&error)));
            }
            SourceBody::Local(body) => body,
        };
        next_data(Pin::new(body)).await.map_err(|refusal| self.service_error(&refusal))
    }

    /// Converts the refusal of another service of this server.
    fn service_error(&self, refusal: &Refusal) -> ReadError {
        let (status, code) = (refusal.status(), refusal.code().name());
        let service_error = unverified(status, Some(code), refusal.text(), self.version);
        if status.is_server_error() {
            ReadError::Transient(service_error)
        } else {
            ReadError::Permanent(service_error)
        }
    }

    /// Sends a part of the content, up to its end or a refusal.
    async fn send(&self, part: Range<u64>, sender: &PieceSender) {
        let (mut at, mut failures) = (part.start, 0);
        let mut rate = MinimumRate::new(self.needs_minimum_rate());
        while at < part.end {
            let before = at;
            let refusal = match self.step(&mut at, part.end, &mut rate, sender).await {
                Ok(()) => self.unusable("The source ends before its declared length."),
                Err(ReadError::ReaderDropped) => return,
                Err(ReadError::Transient(refusal)) => refusal,
                Err(ReadError::Permanent(refusal)) => return drop(sender.send(Err(refusal)).await),
            };
            failures = if at > before { 0 } else { failures + 1 };
            if failures == MAX_FAILURES {
                return drop(sender.send(Err(refusal)).await);
            }
            if failures > 0 {
                tokio::time::sleep(FIRST_PAUSE * (1 << failures)).await;
            }
        }
    }

    /// Returns whether the source holds one of the connections that all requests share.
    fn needs_minimum_rate(&self) -> bool {
        matches!(&self.transport, Transport::Http(outbound) if outbound.limits_connections())
    }

    /// Sends one request for the bytes from `at` on, and advances `at` by the bytes that were forwarded.
    async fn step(
        &self,
        at: &mut u64,
        end: u64,
        rate: &mut MinimumRate,
        sender: &PieceSender,
    ) -> Result<(), ReadError> {
        let too_slow = |TooSlow| ReadError::Permanent(self.too_slow());
        let requested = *at..end.min(*at + REQUEST_BYTES);
        let response = rate.wait(Box::pin(self.get(self.headers_of(&requested)))).await;
        let mut response = response.map_err(too_slow)??;
        // A source that ignores ranges sends everything from the beginning.
        let (mut skip, until) = match response.status {
            StatusCode::PARTIAL_CONTENT => (0, requested.end),
            StatusCode::OK => (requested.start, end),
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Err(ReadError::Transient(self.refused(&response)));
            }
            StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(ReadError::Permanent(self.changed()));
            }
            _ => return Err(ReadError::Permanent(self.refused(&response))),
        };
        if !self.is_same(&response, &requested) {
            return Err(ReadError::Permanent(self.changed()));
        }
        while *at < until {
            let next = rate.wait(self.next(&mut response)).await.map_err(too_slow)?;
            let Some(mut bytes) = next? else { break };
            rate.received(bytes.len() as u64);
            let skipped = bytes.len().min(usize::try_from(skip).unwrap_or(usize::MAX));
            skip -= skipped as u64;
            let _ = bytes.split_to(skipped);
            bytes.truncate(usize::try_from(until - *at).unwrap_or(usize::MAX));
            if !bytes.is_empty() {
                let length = bytes.len() as u64;
                sender.send(Ok(bytes)).await.map_err(|_| ReadError::ReaderDropped)?;
                *at += length;
            }
        }
        Ok(())
    }

    /// Returns the headers that request a range of the fixed version. A weak ETag cannot be a precondition;
    /// it is compared in the reply instead.
    fn headers_of(&self, range: &Range<u64>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut put = |name: HeaderName, value: Option<&str>| {
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                headers.insert(name, value);
            }
        };
        put(RANGE, Some(&format!("bytes={}-{}", range.start, range.end - 1)));
        match self.seen.etag.as_deref().filter(|etag| !etag.starts_with("W/")) {
            Some(etag) => put(IF_MATCH, Some(etag)),
            None => put(IF_UNMODIFIED_SINCE, self.seen.modified.as_deref()),
        }
        headers
    }

    /// Returns whether a reply has the fixed version and the requested range.
    fn is_same(&self, response: &SourceResponse, requested: &Range<u64>) -> bool {
        let text = |name| response.headers.get(name).and_then(|value| value.to_str().ok());
        let same = |name, seen: &Option<String>| seen.as_deref().is_none_or(|seen| text(name) == Some(seen));
        let length = self.length().to_string();
        let is_that_range = match response.status {
            StatusCode::PARTIAL_CONTENT => text(CONTENT_RANGE).is_some_and(|range| {
                let range = range.strip_prefix("bytes ").and_then(|range| range.split_once('/'));
                range.is_some_and(|(part, total)| {
                    total == length && part.split('-').next() == Some(requested.start.to_string().as_str())
                })
            }),
            _ => text(CONTENT_LENGTH) == Some(&length),
        };
        is_that_range && same(ETAG, &self.seen.etag) && same(LAST_MODIFIED, &self.seen.modified)
    }

    fn unreachable(&self, error: &Error) -> Refusal {
        if matches!(error, Error::Busy) {
            return ErrorCode::ServerBusy.into();
        }
        let status = match error {
            Error::Url => StatusCode::BAD_REQUEST,
            Error::TimedOut | Error::Busy => StatusCode::INTERNAL_SERVER_ERROR,
            // Use the same status for both, or clients could find out which names resolve in the server's
            // network.
            Error::NotAllowed | Error::Unreachable(_) => StatusCode::NOT_FOUND,
            Error::Broken(_) | Error::TooLarge => StatusCode::NOT_FOUND,
        };
        // The network's error could reveal hosts that the client cannot see.
        let message = match error {
            Error::TimedOut => "The source did not answer in time.",
            _ => "The source cannot be reached, or the server is not allowed to reach it.",
        };
        tracing::debug!(host = self.uri.host(), %error, "cannot read the source of a copy");
        unverified(status, None, message, self.version)
    }

    /// Returns the refusal for a reply that does not have the requested bytes.
    fn refused(&self, response: &SourceResponse) -> Refusal {
        let code = response.headers.get("x-ms-error-code").and_then(|code| code.to_str().ok());
        let message = response.status.canonical_reason().unwrap_or("The source refused.");
        let status = match response.status {
            // Do not pass on statuses that would have another meaning for the client.
            status if status.is_redirection() && status != StatusCode::NOT_MODIFIED => StatusCode::CONFLICT,
            status if status.is_success() => StatusCode::CONFLICT,
            status => status,
        };
        unverified(status, code, message, self.version)
    }

    /// Returns the refusal of a source that cannot be copied.
    pub fn unusable(&self, message: &str) -> Refusal {
        unverified(StatusCode::CONFLICT, None, message, self.version)
    }

    fn too_slow(&self) -> Refusal {
        let message = "The source sends too slowly to be copied within a request.";
        unverified(StatusCode::INTERNAL_SERVER_ERROR, None, message, self.version)
    }

    fn changed(&self) -> Refusal {
        Refusal::new(ErrorCode::SourceConditionNotMet)
            .message("The source changed while it was being copied.")
    }
}

/// The sending side of a body that a task produces.
pub type PieceSender = mpsc::Sender<Result<Bytes, Refusal>>;

/// Returns a body of `length` bytes that a task produces slightly ahead of the reader.
pub fn spawn_body<F>(length: u64, produce: impl FnOnce(PieceSender) -> F) -> RequestBody
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(QUEUED_PIECES);
    Box::pin(SpawnedBody {
        receiver,
        remaining: length,
        task: tokio::spawn(produce(sender).in_current_span()),
    })
}

struct SpawnedBody {
    receiver: mpsc::Receiver<Result<Bytes, Refusal>>,
    remaining: u64,
    task: JoinHandle<()>,
}

impl http_body::Body for SpawnedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.receiver.poll_recv(cx).map(|piece| match piece {
            Some(Ok(bytes)) => {
                self.remaining = self.remaining.saturating_sub(bytes.len() as u64);
                Some(Ok(Frame::data(bytes)))
            }
            Some(Err(refusal)) => Some(Err(refusal.into())),
            None if self.remaining == 0 => None,
            None => Some(Err(internal_error("the task that reads a copy's source ended early").into())),
        })
    }
}

impl Drop for SpawnedBody {
    fn drop(&mut self) {
        self.task.abort();
    }
}
