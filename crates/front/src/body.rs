//! Bodies in both directions, watched while they stream. Nothing is read before somebody asks for it, so a slow
//! service holds its client back and a slow client holds its service back, with one buffer in between.
//!
//! A [`RequestBody`] stops at its operation's limit and gives up on a client that sends nothing for too long. One that
//! is dropped before its end sees to it that the rest is never taken for the next request: a small rest is read and
//! thrown away, a large one ends the connection. So does one whose client waits for `100 Continue`, which is sent
//! when the body is first read and not before: a refused upload is never sent at all.
//!
//! A [`ReplyBody`] counts what is sent and carries the [`Exchange`] to its end.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use lazuli_protocol::error::{BodyFailure, ErrorCode, Refusal};
use lazuli_protocol::request::{Body, BodyError};
use tokio::time::{Instant, Sleep};

use crate::exchange::Exchange;
use crate::limits::Limits;
use crate::pace::Pulse;

/// What the reply and the log need to know of a request's body.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    received: AtomicU64,
    fate: AtomicU8,
}

/// What became of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Fate {
    /// Nobody has asked for it yet.
    Untouched,
    /// Being read.
    Reading,
    /// Read to its end, or about to be: the connection can go on.
    Settled,
    /// Given up: the connection has to end.
    Abandoned,
}

impl Tally {
    /// Bytes received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Whether the connection cannot carry another request.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.fate.load(Relaxed) == Fate::Abandoned as u8
    }

    fn set(&self, fate: Fate) {
        self.fate.store(fate as u8, Relaxed);
    }

    fn is_untouched(&self) -> bool {
        self.fate.load(Relaxed) == Fate::Untouched as u8
    }
}

/// A request's body on its way to the service.
pub(crate) struct RequestBody {
    /// None once it has ended or failed.
    incoming: Option<Incoming>,
    tally: Arc<Tally>,
    /// The most bytes that the operation takes.
    limit: u64,
    /// The client will not send it before it is told to.
    expects_continue: bool,
    /// None on a multiplexed connection, where a body left unread disturbs nobody.
    pulse: Option<Arc<Pulse>>,
    patience: Patience,
    limits: Arc<Limits>,
}

impl RequestBody {
    pub(crate) fn new(
        incoming: Incoming,
        expects_continue: bool,
        pulse: Option<Arc<Pulse>>,
        limits: Arc<Limits>,
    ) -> Self {
        Self {
            incoming: Some(incoming),
            tally: Arc::default(),
            limit: u64::MAX,
            expects_continue,
            pulse,
            patience: Patience::new(&limits),
            limits,
        }
    }

    /// What the reply and the log need to know of it.
    pub(crate) fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// Refuses what is longer than `limit`: at once if the length is known, else when it is reached.
    pub(crate) fn limit(&mut self, limit: u64) -> Result<(), Refusal> {
        self.limit = limit;
        match &self.incoming {
            Some(incoming) if incoming.size_hint().lower() > limit => {
                Err(Refusal::new(ErrorCode::RequestBodyTooLarge).detail("MaxLimit", limit.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn fail(&mut self, failure: impl Into<BodyError>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.incoming = None;
        self.abandon();
        Poll::Ready(Some(Err(failure.into())))
    }

    fn abandon(&self) {
        if let Some(pulse) = &self.pulse {
            self.tally.set(Fate::Abandoned);
            pulse.abandon_body();
        }
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(incoming) = &mut this.incoming else { return Poll::Ready(None) };
        if this.tally.is_untouched() {
            this.tally.set(Fate::Reading);
        }
        match Pin::new(incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                let received = this.tally.received.fetch_add(length, Relaxed) + length;
                if received > this.limit {
                    return this.fail(BodyFailure::TooLarge);
                }
                this.patience.progress(length);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) if is_malformed(&error) => this.fail(
                Refusal::new(ErrorCode::InvalidInput)
                    .message("The chunks of the request's body are malformed."),
            ),
            Poll::Ready(Some(Err(_))) => this.fail(BodyFailure::Gone),
            Poll::Ready(None) => {
                this.incoming = None;
                this.tally.set(Fate::Settled);
                Poll::Ready(None)
            }
            Poll::Pending => {
                ready!(this.patience.poll_lost(cx));
                this.fail(BodyFailure::TooSlow)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

/// Whether the client broke the framing, as opposed to going away.
fn is_malformed(error: &hyper::Error) -> bool {
    use std::error::Error;
    use std::io;
    error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|error| matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData))
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(incoming) = self.incoming.take().filter(|incoming| !incoming.is_end_stream()) else {
            // A body whose last byte was read may not have been asked for its end.
            if !self.tally.is_abandoned() {
                self.tally.set(Fate::Settled);
            }
            return;
        };
        let Some(pulse) = &self.pulse else { return };
        let withheld = self.expects_continue && self.tally.is_untouched();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !withheld && incoming.size_hint().lower() <= self.limits.drain_bytes => {
                self.tally.set(Fate::Settled);
                runtime.spawn(drain(incoming, Arc::clone(pulse), Arc::clone(&self.limits)));
            }
            _ => self.abandon(),
        }
    }
}

/// Reads the rest of a body that nobody wants.
async fn drain(mut incoming: Incoming, pulse: Arc<Pulse>, limits: Arc<Limits>) {
    let rest = async {
        let mut left = limits.drain_bytes;
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut incoming).poll_frame(cx)).await {
            let length = frame.ok()?.data_ref().map_or(0, Bytes::len) as u64;
            left = left.checked_sub(length)?;
        }
        Some(())
    };
    if !matches!(tokio::time::timeout(limits.drain_time, rest).await, Ok(Some(()))) {
        pulse.abandon_body();
    }
}

/// How much longer to wait for a client that owes us bytes. Only time spent waiting for it counts.
#[derive(Debug)]
struct Patience {
    limits: Arc<Limits>,
    left: std::time::Duration,
    /// Bytes since it was last full.
    progress: u64,
    waiting_since: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    fn new(limits: &Arc<Limits>) -> Self {
        Self {
            limits: Arc::clone(limits),
            left: limits.progress_time,
            progress: 0,
            waiting_since: None,
            alarm: None,
        }
    }

    /// The client sent something.
    fn progress(&mut self, bytes: u64) {
        self.progress += bytes;
        if self.progress >= self.limits.progress_bytes {
            self.progress = 0;
            self.left = self.limits.progress_time;
            self.waiting_since = None;
        } else if let Some(since) = self.waiting_since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }

    /// Waiting for the client; ready when that has taken too long.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = *self.waiting_since.get_or_insert_with(Instant::now) + self.left;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        loop {
            if deadline < alarm.deadline() {
                alarm.as_mut().reset(deadline);
            }
            ready!(alarm.as_mut().poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(deadline);
        }
    }
}

/// A reply's body on its way to the client.
pub(crate) struct ReplyBody {
    body: Option<Body>,
    exchange: Exchange,
    /// Bytes still to come, if that is known.
    left: Option<u64>,
}

impl ReplyBody {
    /// `length` is what the headers promise.
    pub(crate) fn new(body: Option<Body>, length: Option<u64>, exchange: Exchange) -> Self {
        let body = body.filter(|body| !body.is_end_stream());
        let mut this = Self { left: length, body, exchange };
        if this.body.is_none() {
            this.exchange.finish();
        }
        this
    }
}

impl http_body::Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let Ok(polled) = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *body).poll_frame(cx))) else {
            tracing::error!(request_id = %this.exchange.request_id(), "a reply's body panicked");
            this.body = None;
            return Poll::Ready(Some(Err("the service failed".into())));
        };
        match ready!(polled) {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                this.exchange.sent(length);
                this.left = this.left.map(|left| left.saturating_sub(length));
                if this.left == Some(0) || body.is_end_stream() {
                    this.exchange.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                tracing::warn!(request_id = %this.exchange.request_id(), %error, "a reply broke off");
                this.body = None;
                Poll::Ready(Some(Err(error)))
            }
            None => {
                this.body = None;
                this.exchange.finish();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), |body| body.size_hint())
    }
}
