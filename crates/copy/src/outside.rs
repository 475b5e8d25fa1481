//! A source of a copy that is not in this server: read over HTTP, some of it at a time.
//!
//! What the source said of itself at first holds to the end: every further request asks for the same version, and what
//! answers with another one ends the copy. A connection that breaks costs what was under way on it, not the copy.

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
use lazuli_outbound::{Error, Outbound, Reply};
use lazuli_protocol::request::{BodyError, RequestBody};
use lazuli_protocol::{ErrorCode, Headers, Refusal, Version};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::unverified;

/// Bytes that one request asks for.
const STEP: u64 = 32 << 20;
/// How often in a row nothing comes before the copy is given up, and how long the first pause between is.
const MAX_FAILURES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Pieces that wait to be stored.
const WAITING: usize = 4;

/// Something on the web that can be read, in the version that was found first.
#[derive(Clone, Debug)]
pub struct Outside {
    /// What fetches it.
    pub outbound: Outbound,
    /// Where it is.
    pub uri: Uri,
    /// What lets its holder read.
    pub authorization: Option<HeaderValue>,
    /// The version of the protocol that it is asked in.
    pub version: Version,
    /// What it said of itself at first.
    pub seen: Seen,
}

/// What tells one version of a source from another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its length.
    pub length: u64,
    etag: Option<String>,
    modified: Option<String>,
}

/// Why a request brought nothing more.
enum Trouble {
    /// Another one may.
    Passing(Refusal),
    /// The copy is over.
    Final(Refusal),
    /// Nobody waits for the bytes any more.
    Unwanted,
}

impl Outside {
    /// Asks what is there, under these conditions. The headers are what it says of itself.
    pub async fn open(
        outbound: &Outbound,
        uri: Uri,
        authorization: Option<HeaderValue>,
        conditions: HeaderMap,
        version: Version,
    ) -> Result<(Self, HeaderMap), Refusal> {
        let (outbound, seen) = (outbound.clone(), Seen::default());
        let mut this = Self { outbound, uri, authorization, version, seen };
        // Not HEAD: a URL may be signed for GET alone. The body is left unread.
        let reply = this.get(conditions).await.map_err(|error| this.unreachable(&error))?;
        if reply.status != StatusCode::OK {
            return Err(this.refused(&reply));
        }
        let length = reply.headers.value("content-length", |text| text.parse().ok());
        let length =
            length.ok().flatten().ok_or_else(|| this.unusable("The source does not tell its length."))?;
        let text = |name| reply.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        this.seen = Seen { length, etag: text(ETAG), modified: text(LAST_MODIFIED) };
        Ok((this, reply.headers))
    }

    /// Its length.
    pub fn length(&self) -> u64 {
        self.seen.length
    }

    /// The bytes of a part, as if a client sent them.
    pub fn body(&self, part: Range<u64>) -> RequestBody {
        let outside = self.clone();
        feed(part.end - part.start, |sender| async move { outside.send(part, &sender).await })
    }

    async fn get(&self, mut headers: HeaderMap) -> Result<Reply, Error> {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Ok(version) = HeaderValue::try_from(self.version.to_string()) {
            headers.insert(HeaderName::from_static("x-ms-version"), version);
        }
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        self.outbound.get(&self.uri, headers).await
    }

    /// Sends a part, to the end or to a refusal.
    async fn send(&self, part: Range<u64>, sender: &Feed) {
        let (mut at, mut failures) = (part.start, 0);
        while at < part.end {
            let before = at;
            let refusal = match self.step(&mut at, part.end, sender).await {
                Ok(()) => self.unusable("The source ends before its declared length."),
                Err(Trouble::Unwanted) => return,
                Err(Trouble::Passing(refusal)) => refusal,
                Err(Trouble::Final(refusal)) => return drop(sender.send(Err(refusal)).await),
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

    /// Makes one request for what follows `at`, and moves `at` over what it sent on.
    async fn step(&self, at: &mut u64, end: u64, sender: &Feed) -> Result<(), Trouble> {
        let asked = *at..end.min(*at + STEP);
        let reply = self.get(self.headers_of(&asked)).await;
        let mut reply = reply.map_err(|error| match error {
            Error::Url | Error::NotAllowed => Trouble::Final(self.unreachable(&error)),
            _ => Trouble::Passing(self.unreachable(&error)),
        })?;
        // Who ignores ranges sends it all, from the beginning.
        let (mut skip, until) = match reply.status {
            StatusCode::PARTIAL_CONTENT => (0, asked.end),
            StatusCode::OK => (asked.start, end),
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Err(Trouble::Passing(self.refused(&reply)));
            }
            StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(Trouble::Final(self.changed()));
            }
            _ => return Err(Trouble::Final(self.refused(&reply))),
        };
        if !self.is_same(&reply, &asked) {
            return Err(Trouble::Final(self.changed()));
        }
        while *at < until {
            let next = reply.next().await.map_err(|error| Trouble::Passing(self.unreachable(&error)))?;
            let Some(mut bytes) = next else { break };
            let skipped = bytes.len().min(usize::try_from(skip).unwrap_or(usize::MAX));
            skip -= skipped as u64;
            let _ = bytes.split_to(skipped);
            bytes.truncate(usize::try_from(until - *at).unwrap_or(usize::MAX));
            if !bytes.is_empty() {
                let length = bytes.len() as u64;
                sender.send(Ok(bytes)).await.map_err(|_| Trouble::Unwanted)?;
                *at += length;
            }
        }
        Ok(())
    }

    /// Asks for a range of the version that was seen. A weak tag is no precondition, but it is compared all the same.
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

    /// Whether a reply is of the version that was seen, and of the range that was asked for.
    fn is_same(&self, reply: &Reply, asked: &Range<u64>) -> bool {
        let text = |name| reply.headers.get(name).and_then(|value| value.to_str().ok());
        let same = |name, seen: &Option<String>| seen.as_deref().is_none_or(|seen| text(name) == Some(seen));
        let length = self.length().to_string();
        let is_that_range = match reply.status {
            StatusCode::PARTIAL_CONTENT => text(CONTENT_RANGE).is_some_and(|range| {
                let range = range.strip_prefix("bytes ").and_then(|range| range.split_once('/'));
                range.is_some_and(|(part, total)| {
                    total == length && part.split('-').next() == Some(asked.start.to_string().as_str())
                })
            }),
            _ => text(CONTENT_LENGTH) == Some(&length),
        };
        is_that_range && same(ETAG, &self.seen.etag) && same(LAST_MODIFIED, &self.seen.modified)
    }

    fn unreachable(&self, error: &Error) -> Refusal {
        let status = match error {
            Error::Url => StatusCode::BAD_REQUEST,
            Error::NotAllowed => StatusCode::FORBIDDEN,
            Error::TimedOut => StatusCode::INTERNAL_SERVER_ERROR,
            Error::Unreachable(_) | Error::Broken(_) | Error::TooLarge => StatusCode::NOT_FOUND,
        };
        // What the network said may tell of places that the client cannot see.
        let message = match error {
            Error::NotAllowed => "The server is not allowed to reach the source.",
            Error::TimedOut => "The source did not answer in time.",
            _ => "The source cannot be reached.",
        };
        tracing::debug!(host = self.uri.host(), %error, "a copy source cannot be read");
        unverified(status, None, message, self.version)
    }

    /// The source did not send what it was asked for.
    fn refused(&self, reply: &Reply) -> Refusal {
        let code = reply.headers.get("x-ms-error-code").and_then(|code| code.to_str().ok());
        let message = reply.status.canonical_reason().unwrap_or("The source refused.");
        let status = match reply.status {
            // Nothing that has a meaning of its own for our client.
            status if status.is_redirection() && status != StatusCode::NOT_MODIFIED => StatusCode::CONFLICT,
            status if status.is_success() => StatusCode::CONFLICT,
            status => status,
        };
        unverified(status, code, message, self.version)
    }

    /// A source of which no copy can be made.
    pub fn unusable(&self, message: &str) -> Refusal {
        unverified(StatusCode::CONFLICT, None, message, self.version)
    }

    fn changed(&self) -> Refusal {
        Refusal::new(ErrorCode::SourceConditionNotMet)
            .message("The source changed while it was being copied.")
    }
}

/// Where a producer of bytes puts them.
pub type Feed = mpsc::Sender<Result<Bytes, Refusal>>;

/// A body of that many bytes, which a task produces a little ahead of its reader.
pub fn feed<F>(length: u64, produce: impl FnOnce(Feed) -> F) -> RequestBody
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(WAITING);
    Box::pin(Fed { receiver, remaining: length, task: tokio::spawn(produce(sender)) })
}

struct Fed {
    receiver: mpsc::Receiver<Result<Bytes, Refusal>>,
    remaining: u64,
    task: JoinHandle<()>,
}

impl http_body::Body for Fed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.receiver.poll_recv(cx).map(|fed| match fed {
            Some(Ok(bytes)) => {
                self.remaining = self.remaining.saturating_sub(bytes.len() as u64);
                Some(Ok(Frame::data(bytes)))
            }
            Some(Err(refusal)) => Some(Err(refusal.into())),
            None if self.remaining == 0 => None,
            // The task ended where it should not have.
            None => Some(Err(Refusal::new(ErrorCode::InternalError).into())),
        })
    }
}

impl Drop for Fed {
    fn drop(&mut self) {
        self.task.abort();
    }
}
