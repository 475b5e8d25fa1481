//! Request and reply bodies, bounded while they stream.
//!
//! Both are pulled by their reader with one buffer in between: a slow service slows its client down, and a
//! slow client slows its service down.
//!
//! A [`RequestBody`] enforces its operation's size limit and fails if the client stalls. If it is dropped
//! before its end, the rest is never taken for the next request: a small rest is read and discarded, a large
//! one ends the connection. A client that waits for `100 Continue` gets it when the body is first read, so a
//! refused upload is never sent; its connection ends as well.
//!
//! A [`ReplyBody`] counts the bytes sent and completes the [`Exchange`].

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use lazuli_protocol::error::{BodyFailure, ErrorCode, Refusal};
use lazuli_protocol::request::{Body, BodyError};
use tokio::time::{Instant, Sleep};

use crate::body_progress::{BodyProgress, BodyState};
use crate::exchange::Exchange;
use crate::limits::Limits;
use crate::pace::Activity;
use crate::reply_memory::NextFrame;

/// A request's body, as the service reads it.
pub(crate) struct RequestBody {
    /// `None` once the body has ended or failed.
    incoming: Option<Incoming>,
    progress: Arc<BodyProgress>,
    /// Maximum number of bytes, by the request's operation.
    limit: u64,
    /// The client sends the body only after `100 Continue`.
    expects_continue: bool,
    /// `None` on a multiplexed connection, where an unread body does not block other requests.
    activity: Option<Arc<Activity>>,
    stall_timer: StallTimer,
    limits: Arc<Limits>,
}

impl RequestBody {
    pub(crate) fn new(
        incoming: Incoming,
        expects_continue: bool,
        activity: Option<Arc<Activity>>,
        limits: Arc<Limits>,
    ) -> Self {
        Self {
            incoming: Some(incoming),
            progress: Arc::default(),
            limit: u64::MAX,
            expects_continue,
            activity,
            stall_timer: StallTimer::new(&limits),
            limits,
        }
    }

    /// Returns the counters that the reply and the log read.
    pub(crate) fn progress(&self) -> Arc<BodyProgress> {
        Arc::clone(&self.progress)
    }

    /// Refuses a body longer than `limit`: at once if its length is known, else when the limit is exceeded.
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
        if let Some(activity) = &self.activity {
            self.progress.set(BodyState::Abandoned);
            activity.abandon_body();
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
        if this.progress.is_untouched() {
            this.progress.set(BodyState::Reading);
        }
        match Pin::new(incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                let received = this.progress.add(length);
                if received > this.limit {
                    return this.fail(BodyFailure::TooLarge);
                }
                this.stall_timer.on_bytes(length);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) if is_malformed(&error) => this.fail(
                Refusal::new(ErrorCode::InvalidInput)
                    .message("The chunks of the request's body are malformed."),
            ),
            Poll::Ready(Some(Err(_))) => this.fail(BodyFailure::Disconnected),
            Poll::Ready(None) => {
                this.incoming = None;
                this.progress.set(BodyState::Completed);
                Poll::Ready(None)
            }
            Poll::Pending => {
                ready!(this.stall_timer.poll_stalled(cx));
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

/// Returns whether the client broke the framing rather than disconnected.
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
            // The last byte was read, but perhaps not the end of the stream after it.
            if !self.progress.is_abandoned() {
                self.progress.set(BodyState::Completed);
            }
            return;
        };
        let Some(activity) = &self.activity else { return };
        let withheld = self.expects_continue && self.progress.is_untouched();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !withheld && incoming.size_hint().lower() <= self.limits.drain_bytes => {
                self.progress.set(BodyState::Completed);
                runtime.spawn(drain(incoming, Arc::clone(activity), Arc::clone(&self.limits)));
            }
            _ => self.abandon(),
        }
    }
}

/// Reads and discards the rest of a body.
async fn drain(mut incoming: Incoming, activity: Arc<Activity>, limits: Arc<Limits>) {
    let rest = async {
        let mut left = limits.drain_bytes;
        while let Some(frame) = incoming.frame().await {
            let length = frame.ok()?.data_ref().map_or(0, Bytes::len) as u64;
            left = left.checked_sub(length)?;
        }
        Some(())
    };
    if !matches!(tokio::time::timeout(limits.drain_time, rest).await, Ok(Some(()))) {
        activity.abandon_body();
    }
}

/// Detects a client that sends too little of its body. Only time spent waiting for the client counts.
#[derive(Debug)]
struct StallTimer {
    limits: Arc<Limits>,
    left: std::time::Duration,
    /// Bytes received since `left` was last reset.
    progress: u64,
    waiting_since: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl StallTimer {
    fn new(limits: &Arc<Limits>) -> Self {
        Self {
            limits: Arc::clone(limits),
            left: limits.progress_time,
            progress: 0,
            waiting_since: None,
            alarm: None,
        }
    }

    /// Counts received bytes, and resets the timer after `progress_bytes` of them.
    fn on_bytes(&mut self, bytes: u64) {
        self.progress += bytes;
        if self.progress >= self.limits.progress_bytes {
            self.progress = 0;
            self.left = self.limits.progress_time;
            self.waiting_since = None;
        } else if let Some(since) = self.waiting_since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }

    /// Waits for the client. Ready when it has stalled for too long.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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

/// A reply's body, as the connection reads it.
pub(crate) struct ReplyBody {
    body: Option<Body>,
    exchange: Exchange,
    /// Bytes still to come, if known.
    left: Option<u64>,
    /// Room for the next frame of a streamed body.
    next_frame: NextFrame,
}

impl ReplyBody {
    /// Creates a reply's body. `length` is the length that the headers promise.
    pub(crate) fn new(body: Option<Body>, length: Option<u64>, exchange: Exchange) -> Self {
        let body = body.filter(|body| !body.is_end_stream());
        let next_frame = match (&body, exchange.replies()) {
            (Some(Body::Stream(_)), Some(_)) => NextFrame::Unreserved,
            _ => NextFrame::Uncounted,
        };
        let mut this = Self { left: length, body, exchange, next_frame };
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
        if let Some(replies) = this.exchange.replies() {
            ready!(this.next_frame.poll_reserve(replies, this.left, cx));
        }
        let span = this.exchange.span();
        let is_stream = matches!(body, Body::Stream(_));
        let mut poll = || catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *body).poll_frame(cx)));
        // Only a stream runs code of the service.
        let Ok(polled) = (if is_stream { span.in_scope(poll) } else { poll() }) else {
            span.in_scope(|| tracing::error!("a reply's body panicked"));
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
                let frame = match this.next_frame.take() {
                    Some(reserved) => frame.map_data(|bytes| reserved.hold(bytes)),
                    None => frame,
                };
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                let log = || tracing::warn!(%error, "a reply ended early because its body failed");
                this.exchange.span().in_scope(log);
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
