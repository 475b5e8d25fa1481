//! A source of a copy that the service cannot share: read as a client would, some of it at a time, over HTTP or from
//! another service of this server.
//!
//! What the source said of itself at first holds to the end: every further request asks for the same version, and what
//! answers with another one ends the copy. A connection that breaks costs what was under way on it, not the copy.

use std::future::{Future, poll_fn};
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
use http_body::{Body as _, Frame};
use lazuli_outbound::{Error, Outbound, Reply};
use lazuli_protocol::request::{Body, BodyError, RequestBody};
use lazuli_protocol::{ErrorCode, Headers, Refusal, ServiceKind, Version};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::neighbour::Neighbour;
use crate::unverified;

/// Bytes that one request asks for.
const STEP: u64 = 32 << 20;
/// How often in a row nothing comes before the copy is given up, and how long the first pause between is.
const MAX_FAILURES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Pieces that wait to be stored.
const WAITING: usize = 4;

/// Something that can be read, in the version that was found first.
#[derive(Clone)]
pub struct Outside {
    /// What fetches it.
    pub(crate) via: Via,
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

/// The way to a source.
#[derive(Clone)]
pub(crate) enum Via {
    Web(Outbound),
    Here(Box<Neighbour>),
}

/// What a source answers.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    rest: Rest,
}

/// The body of an answer.
enum Rest {
    Web(Box<Reply>),
    Here(Body),
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

impl Trouble {
    /// What the client is told, if it is the first request.
    fn refusal(self) -> Refusal {
        match self {
            Self::Passing(refusal) | Self::Final(refusal) => refusal,
            Self::Unwanted => ErrorCode::InternalError.into(),
        }
    }
}

impl Outside {
    /// Asks what is there, under these conditions. The headers are what it says of itself.
    pub(crate) async fn open(
        via: Via,
        uri: Uri,
        authorization: Option<HeaderValue>,
        conditions: HeaderMap,
        version: Version,
    ) -> Result<(Self, HeaderMap), Refusal> {
        let mut this = Self { via, uri, authorization, version, seen: Seen::default() };
        // Not HEAD: a URL may be signed for GET alone. The body is left unread.
        let answer = this.get(conditions).await.map_err(Trouble::refusal)?;
        if answer.status != StatusCode::OK {
            return Err(this.refused(&answer));
        }
        let length = answer.headers.value("content-length", |text| text.parse().ok());
        let length =
            length.ok().flatten().ok_or_else(|| this.unusable("The source does not tell its length."))?;
        let text = |name| answer.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        this.seen = Seen { length, etag: text(ETAG), modified: text(LAST_MODIFIED) };
        Ok((this, answer.headers))
    }

    /// The service of this server that it is of, if it is.
    pub fn service(&self) -> Option<ServiceKind> {
        match &self.via {
            Via::Web(_) => None,
            Via::Here(neighbour) => Some(neighbour.kind),
        }
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

    async fn get(&self, mut headers: HeaderMap) -> Result<Answer, Trouble> {
        let outbound = match &self.via {
            Via::Web(outbound) => outbound,
            Via::Here(neighbour) => {
                let answered = neighbour.get(headers, self.version).await;
                let response = answered.map_err(|refusal| self.told(&refusal))?;
                let rest = Rest::Here(response.body);
                return Ok(Answer { status: response.status, headers: response.headers, rest });
            }
        };
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Ok(version) = HeaderValue::try_from(self.version.to_string()) {
            headers.insert(HeaderName::from_static("x-ms-version"), version);
        }
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let reply = outbound.get(&self.uri, headers).await.map_err(|error| match error {
            Error::Url | Error::NotAllowed => Trouble::Final(self.unreachable(&error)),
            _ => Trouble::Passing(self.unreachable(&error)),
        })?;
        let (status, headers) = (reply.status, reply.headers.clone());
        Ok(Answer { status, headers, rest: Rest::Web(Box::new(reply)) })
    }

    /// The next bytes of an answer.
    async fn next(&self, answer: &mut Answer) -> Result<Option<Bytes>, Trouble> {
        let body = match &mut answer.rest {
            Rest::Web(reply) => {
                return reply.next().await.map_err(|error| Trouble::Passing(self.unreachable(&error)));
            }
            Rest::Here(body) => body,
        };
        loop {
            match poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.told(&Refusal::from_body_error(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => return Ok(Some(bytes)),
                    Err(_) => continue,
                },
            }
        }
    }

    /// What another service of this server has refused.
    fn told(&self, refusal: &Refusal) -> Trouble {
        let (status, code) = (refusal.status(), refusal.code().name());
        let told = unverified(status, Some(code), refusal.text(), self.version);
        if status.is_server_error() { Trouble::Passing(told) } else { Trouble::Final(told) }
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
        let mut answer = self.get(self.headers_of(&asked)).await?;
        // Who ignores ranges sends it all, from the beginning.
        let (mut skip, until) = match answer.status {
            StatusCode::PARTIAL_CONTENT => (0, asked.end),
            StatusCode::OK => (asked.start, end),
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Err(Trouble::Passing(self.refused(&answer)));
            }
            StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(Trouble::Final(self.changed()));
            }
            _ => return Err(Trouble::Final(self.refused(&answer))),
        };
        if !self.is_same(&answer, &asked) {
            return Err(Trouble::Final(self.changed()));
        }
        while *at < until {
            let Some(mut bytes) = self.next(&mut answer).await? else { break };
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

    /// Whether an answer is of the version that was seen, and of the range that was asked for.
    fn is_same(&self, answer: &Answer, asked: &Range<u64>) -> bool {
        let text = |name| answer.headers.get(name).and_then(|value| value.to_str().ok());
        let same = |name, seen: &Option<String>| seen.as_deref().is_none_or(|seen| text(name) == Some(seen));
        let length = self.length().to_string();
        let is_that_range = match answer.status {
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
        if matches!(error, Error::Busy) {
            return ErrorCode::ServerBusy.into();
        }
        let status = match error {
            Error::Url => StatusCode::BAD_REQUEST,
            Error::TimedOut | Error::Busy => StatusCode::INTERNAL_SERVER_ERROR,
            // The same answer, or clients could ask which names resolve within the server's network.
            Error::NotAllowed | Error::Unreachable(_) => StatusCode::NOT_FOUND,
            Error::Broken(_) | Error::TooLarge => StatusCode::NOT_FOUND,
        };
        // What the network said may tell of places that the client cannot see.
        let message = match error {
            Error::TimedOut => "The source did not answer in time.",
            _ => "The source cannot be reached, or the server is not allowed to reach it.",
        };
        tracing::debug!(host = self.uri.host(), %error, "a copy source cannot be read");
        unverified(status, None, message, self.version)
    }

    /// The source did not send what it was asked for.
    fn refused(&self, answer: &Answer) -> Refusal {
        let code = answer.headers.get("x-ms-error-code").and_then(|code| code.to_str().ok());
        let message = answer.status.canonical_reason().unwrap_or("The source refused.");
        let status = match answer.status {
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
