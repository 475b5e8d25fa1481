//! Detects and closes connections that wait for their client for too long.
//!
//! [`Activity`] counts the traffic of one connection: [`MonitoredSocket`] counts bytes, and the pipeline
//! marks the begin and end of requests. A [`Watchdog`] derives the event that the connection waits for, and
//! the waiting time. So a client that trickles its headers, stops reading its reply or stays silent loses its
//! connection without affecting other clients.
//!
//! [`MonitoredSocket`] also closes gracefully. If the client may still be sending because its request was
//! refused half way, the socket shuts down its sending side and reads on for a while: closing a socket with
//! unread input resets the connection and can destroy the reply before the client has read it. The reading
//! happens below TLS, so it costs no decryption.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lazuli_concurrency::{FairPermit, FairSemaphore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::limits::Limits;
use crate::reply_memory::{ConnectionReplies, StreamPermit};

/// Counters of one connection. They are atomic, so any task may use them without waiting.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Bytes received.
    received: AtomicU64,
    /// Bytes received when the last request ended. If `received` is larger, another request has begun.
    received_at_rest: AtomicU64,
    /// Bytes sent.
    sent: AtomicU64,
    /// The socket accepts no bytes at the moment.
    blocked: AtomicBool,
    /// Requests in flight.
    serving: AtomicU32,
    /// Requests that have ended.
    served: AtomicU64,
    /// Requests whose reply has begun and not ended.
    replying: AtomicU32,
    /// Bytes of replies handed to the protocol. Bytes that a client causes without reading a reply, such as
    /// ping answers, do not count.
    replied: AtomicU64,
    /// Set if several requests may share the connection, and frames come outside of requests.
    multiplexed: AtomicBool,
    /// The connection's part of the memory for replies.
    replies: OnceLock<ConnectionReplies>,
    /// The server is about to stop.
    draining: AtomicBool,
    /// The rest of a request's body is left unread.
    abandoned: AtomicBool,
}

/// The event that a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitingFor {
    /// The rest of a request's headers.
    Head,
    /// Another request, of which no byte has arrived.
    Request,
    /// The service, or a request's body, which has its own timer.
    Service,
    /// The client, to read from the socket.
    SocketRead,
    /// The client, to open the window of a reply, or other clients, to read theirs. On a multiplexed
    /// connection the socket does not show that.
    Window,
}

impl Activity {
    /// Marks the begin of a request, which ends when the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> RequestGuard {
        self.serving.fetch_add(1, Relaxed);
        RequestGuard { activity: Arc::clone(self), replying: false, stream: None }
    }

    /// Sets the connection's part of the memory for replies, and whether it carries several requests at once.
    pub(crate) fn set_replies(&self, replies: ConnectionReplies, multiplexed: bool) {
        self.multiplexed.store(multiplexed, Relaxed);
        let _ = self.replies.set(replies);
    }

    /// Returns whether the connection carries several requests at once.
    pub(crate) fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Relaxed)
    }

    fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Marks that the rest of a request's body will not be read.
    pub(crate) fn abandon_body(&self) {
        self.abandoned.store(true, Relaxed);
    }

    fn waiting(&self) -> WaitingFor {
        if self.is_multiplexed() && self.replying.load(Relaxed) > 0 {
            WaitingFor::Window
        } else if self.blocked.load(Relaxed) {
            WaitingFor::SocketRead
        } else if self.serving.load(Relaxed) > 0 {
            WaitingFor::Service
        } else if self.served.load(Relaxed) == 0 || self.head_begun() {
            WaitingFor::Head
        } else {
            WaitingFor::Request
        }
    }

    fn head_begun(&self) -> bool {
        !self.is_multiplexed() && self.received.load(Relaxed) != self.received_at_rest.load(Relaxed)
    }

    /// Returns whether the client may still be sending bytes that the server will never read.
    fn has_unread_input(&self) -> bool {
        self.abandoned.load(Relaxed) || (self.serving.load(Relaxed) == 0 && self.head_begun())
    }
}

/// A request in flight on a connection.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    activity: Arc<Activity>,
    /// The reply has begun.
    replying: bool,
    /// Counts the request among those over HTTP/2.
    stream: Option<StreamPermit>,
}

impl RequestGuard {
    /// Marks the begin of the reply.
    pub(crate) fn reply(&mut self) {
        if !std::mem::replace(&mut self.replying, true) {
            self.activity.replying.fetch_add(1, Relaxed);
        }
    }

    /// Counts the request among those in progress over HTTP/2. Returns false if there are too many.
    pub(crate) fn begin_stream(&mut self) -> bool {
        let Some(replies) = self.replies().filter(|_| self.activity.is_multiplexed()) else { return true };
        self.stream = replies.begin_stream();
        self.stream.is_some()
    }

    /// Returns the connection's part of the memory for replies.
    pub(crate) fn replies(&self) -> Option<&ConnectionReplies> {
        self.activity.replies.get()
    }

    /// Counts bytes of the reply that were handed to the protocol.
    pub(crate) fn replied(&self, bytes: u64) {
        self.activity.replied.fetch_add(bytes, Relaxed);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let activity = &self.activity;
        activity.received_at_rest.store(activity.received.load(Relaxed), Relaxed);
        activity.served.fetch_add(1, Relaxed);
        if self.replying {
            activity.replying.fetch_sub(1, Relaxed);
        }
        activity.serving.fetch_sub(1, Relaxed);
    }
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The client has sent no request for too long. Finish the requests in flight.
    Idle,
    /// The client is too slow. Close at once.
    Stalled,
}

/// Expires when a connection has waited for too long. Poll the connection first, then the watchdog.
#[derive(Debug)]
pub(crate) struct Watchdog {
    activity: Arc<Activity>,
    limits: Arc<Limits>,
    last_observed: (WaitingFor, u64),
    since: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Watchdog {
    pub(crate) fn new(activity: Arc<Activity>, limits: Arc<Limits>) -> Self {
        let since = Instant::now();
        let alarm = Box::pin(tokio::time::sleep_until(since + limits.head_time));
        let mut watchdog = Self { activity, limits, last_observed: (WaitingFor::Head, 0), since, alarm };
        watchdog.last_observed = watchdog.observe();
        watchdog
    }

    /// Returns what the connection waits for, and a number that grows when there is progress.
    fn observe(&self) -> (WaitingFor, u64) {
        let waiting = self.activity.waiting();
        let mark = match waiting {
            // Trickling bytes are not progress: the whole head has one deadline.
            WaitingFor::Head | WaitingFor::Request => self.activity.served.load(Relaxed),
            WaitingFor::SocketRead => self.activity.sent.load(Relaxed),
            // Requests that end are no progress of a reply that is not read.
            WaitingFor::Window => self.activity.replied.load(Relaxed),
            WaitingFor::Service => 0,
        };
        (waiting, mark)
    }

    /// Returns by how much the number of [`Watchdog::observe`] has to grow.
    fn needed_progress(&self, waiting: WaitingFor) -> u64 {
        match waiting {
            WaitingFor::SocketRead | WaitingFor::Window => {
                self.limits.progress_bytes.max(self.shortage().unwrap_or(0)).max(1)
            }
            _ => 1,
        }
    }

    /// Returns the bytes that the client has to read in [`Limits::shortage_time`]: a quarter of those for
    /// which other replies wait, and some for each reply if there are too many. `None` if there is no
    /// shortage.
    fn shortage(&self) -> Option<u64> {
        let replies = self.activity.replies.get()?;
        let bytes = replies.bytes_others_wait_for() / 4;
        let streams = match self.activity.is_multiplexed() && replies.are_streams_exhausted() {
            true => u64::from(self.activity.replying.load(Relaxed)) * self.limits.progress_bytes,
            false => 0,
        };
        Some(bytes.max(streams)).filter(|needed| *needed > 0)
    }

    /// Returns how long the connection may wait; `None` if without limit.
    fn time_limit(&self, waiting: WaitingFor) -> Option<Duration> {
        match waiting {
            WaitingFor::Head => Some(self.limits.head_time),
            WaitingFor::Request => Some(self.limits.idle_time),
            WaitingFor::SocketRead => Some(self.reading_time(self.limits.progress_time)),
            WaitingFor::Window => Some(self.reading_time(self.limits.idle_time)),
            WaitingFor::Service => None,
        }
    }

    /// Returns how long a client may read too little. `usual` applies if there is no shortage.
    fn reading_time(&self, usual: Duration) -> Duration {
        match self.shortage() {
            Some(_) => self.limits.shortage_time.min(usual),
            None => usual,
        }
    }

    /// Marks that the server is about to stop.
    pub(crate) fn drain(&self) {
        self.activity.drain();
    }

    /// Becomes ready when the connection has waited too long.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Expired> {
        loop {
            let observed = self.observe();
            let grown = observed.1.wrapping_sub(self.last_observed.1);
            if observed.0 != self.last_observed.0 || grown >= self.needed_progress(observed.0) {
                self.last_observed = observed;
                self.since = Instant::now();
            }
            let Some(time_limit) = self.time_limit(observed.0) else {
                return Poll::Pending;
            };
            let deadline = self.since + time_limit;
            // Nothing wakes this connection when other replies begin to wait for its bytes.
            let check = match observed.0 {
                WaitingFor::SocketRead | WaitingFor::Window => {
                    deadline.min(Instant::now() + self.limits.shortage_time)
                }
                _ => deadline,
            };
            // A later deadline does not reset the alarm. The alarm rings early and is set again here, which
            // keeps timer operations out of the path of every request.
            if check < self.alarm.deadline() {
                self.alarm.as_mut().reset(check);
            }
            ready!(self.alarm.as_mut().poll(cx));
            if Instant::now() >= deadline {
                // The next poll starts a new period.
                self.since = Instant::now();
                self.alarm.as_mut().reset(self.since + time_limit);
                return Poll::Ready(match observed.0 {
                    WaitingFor::Request => Expired::Idle,
                    _ => Expired::Stalled,
                });
            }
            self.alarm.as_mut().reset(check);
        }
    }
}

/// A socket that counts into an [`Activity`] and closes gracefully.
#[derive(Debug)]
pub(crate) struct MonitoredSocket<S> {
    socket: S,
    activity: Arc<Activity>,
    limits: Arc<Limits>,
    lingering_slots: LingeringSlots,
    linger: Option<LingeringClose>,
}

/// Places for connections that may linger for long.
#[derive(Clone, Debug)]
pub(crate) struct LingeringSlots {
    /// One unit for each place of the endpoint.
    pub(crate) slots: Arc<FairSemaphore<IpAddr>>,
    /// The peer of this connection; `None` if it may have all places.
    pub(crate) peer: Option<IpAddr>,
}

impl<S> MonitoredSocket<S> {
    pub(crate) fn new(
        socket: S,
        activity: Arc<Activity>,
        limits: Arc<Limits>,
        lingering_slots: LingeringSlots,
    ) -> Self {
        Self { socket, activity, limits, lingering_slots, linger: None }
    }
}

/// Read buffer of a lingering close.
const LINGER_BUFFER_BYTES: usize = 64 * 1024;

/// Reading and discarding after the last reply, within limits.
#[derive(Debug)]
struct LingeringClose {
    bytes_left: u64,
    ends: Instant,
    /// Time at which the client last sent bytes.
    last_received: Instant,
    time_limit: Duration,
    /// Set for the earlier of both deadlines, or before it.
    alarm: Pin<Box<Sleep>>,
    _slot: Option<FairPermit<IpAddr>>,
}

impl LingeringClose {
    fn begin(limits: &Limits, LingeringSlots { slots, peer }: &LingeringSlots) -> Self {
        let slot = slots.holder(*peer).try_acquire(1).filter(|slot| slot.units() == 1);
        let (bytes_left, time) = match slot {
            Some(_) => (limits.linger_bytes, limits.linger_time),
            None => (limits.drain_bytes, limits.drain_time),
        };
        let now = Instant::now();
        let time_limit = limits.drain_time;
        let alarm = Box::pin(tokio::time::sleep(time_limit.min(time)));
        Self { bytes_left, ends: now + time, last_received: now, time_limit, alarm, _slot: slot }
    }

    /// Ends within the time of a connection that has no place. A stop of the server does not wait longer.
    fn shorten(&mut self) {
        self.ends = self.ends.min(Instant::now() + self.time_limit);
    }

    /// Discards what the client sends. Ready when the client has closed, or when a limit is reached.
    fn poll(&mut self, socket: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<()> {
        let mut discarded = [MaybeUninit::uninit(); LINGER_BUFFER_BYTES];
        loop {
            let mut buf = ReadBuf::uninit(&mut discarded);
            match Pin::new(&mut *socket).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    self.bytes_left = self.bytes_left.saturating_sub(buf.filled().len() as u64);
                    self.last_received = Instant::now();
                    if self.bytes_left == 0 || self.last_received >= self.ends {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.poll_expired_linger(cx),
            }
        }
    }

    /// Becomes ready when a time limit is reached.
    fn poll_expired_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.ends.min(self.last_received + self.time_limit);
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            self.alarm.as_mut().reset(deadline);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MonitoredSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(cx, buf);
        let received = (buf.filled().len() - before) as u64;
        if received > 0 {
            self.activity.received.fetch_add(received, Relaxed);
        }
        polled
    }
}

impl<S> MonitoredSocket<S> {
    fn note_write(&self, polled: &Poll<io::Result<usize>>) {
        match polled {
            Poll::Ready(Ok(sent)) => {
                self.activity.sent.fetch_add(*sent as u64, Relaxed);
                if self.activity.blocked.load(Relaxed) {
                    self.activity.blocked.store(false, Relaxed);
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.activity.blocked.store(true, Relaxed),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MonitoredSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.note_write(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.note_write(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.socket).poll_shutdown(cx))?;
            if !this.activity.has_unread_input() {
                return Poll::Ready(Ok(()));
            }
        }
        let linger =
            this.linger.get_or_insert_with(|| LingeringClose::begin(&this.limits, &this.lingering_slots));
        if this.activity.draining.load(Relaxed) {
            linger.shorten();
        }
        linger.poll(&mut this.socket, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::reply_memory::ReplyMemory;
    use std::future::poll_fn;
    use tokio::io::AsyncWriteExt;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn limits() -> Arc<Limits> {
        Arc::new(Limits {
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(100),
            progress_time: Duration::from_secs(20),
            progress_bytes: 1000,
            ..Limits::default()
        })
    }

    /// Returns how long the watchdog waits from now on; `None` if more than an hour.
    async fn time_limit(watchdog: &mut Watchdog) -> Option<(u64, Expired)> {
        let start = Instant::now();
        let expired = poll_fn(|cx| watchdog.poll_expired(cx));
        let expired = tokio::time::timeout(Duration::from_secs(3600), expired).await.ok()?;
        Some((start.elapsed().as_secs(), expired))
    }

    #[tokio::test(start_paused = true)]
    async fn trickling_bytes_do_not_extend_head_time_for_the_first_request() {
        let activity = Arc::new(Activity::default());
        let mut watchdog = Watchdog::new(Arc::clone(&activity), limits());
        for _ in 0..9 {
            tokio::time::advance(Duration::from_secs(1)).await;
            activity.received.fetch_add(1, Relaxed);
            assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        }
        assert_eq!(time_limit(&mut watchdog).await, Some((1, Expired::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_applies_between_requests_and_head_time_once_a_head_has_begun() {
        let activity = Arc::new(Activity::default());
        let mut watchdog = Watchdog::new(Arc::clone(&activity), limits());
        activity.received.fetch_add(50, Relaxed);
        drop(activity.begin());
        assert_eq!(time_limit(&mut watchdog).await, Some((100, Expired::Idle)));
        activity.received.fetch_add(1, Relaxed);
        assert_eq!(time_limit(&mut watchdog).await, Some((10, Expired::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_service_has_no_limit() {
        let activity = Arc::new(Activity::default());
        let mut watchdog = Watchdog::new(Arc::clone(&activity), limits());
        let request = activity.begin();
        assert_eq!(time_limit(&mut watchdog).await, None);
        drop(request);
        assert_eq!(time_limit(&mut watchdog).await, Some((100, Expired::Idle)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_window_on_a_multiplexed_connection_is_limited_by_idle_time() {
        let activity = Arc::new(Activity::default());
        activity.set_replies(ReplyMemory::new(&limits()).connection(PEER), true);
        let mut watchdog = Watchdog::new(Arc::clone(&activity), limits());
        let mut request = activity.begin();
        assert_eq!(time_limit(&mut watchdog).await, None, "a service may take its time here too");
        request.reply();
        assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        tokio::time::advance(Duration::from_secs(60)).await;
        // A ping and its answer are no progress of the reply.
        activity.received.fetch_add(5000, Relaxed);
        activity.sent.fetch_add(5000, Relaxed);
        assert_eq!(time_limit(&mut watchdog).await, Some((40, Expired::Stalled)));
        request.replied(1000);
        assert_eq!(time_limit(&mut watchdog).await, Some((100, Expired::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_end_do_not_extend_the_time_of_a_reply_that_is_not_read() {
        let activity = Arc::new(Activity::default());
        activity.set_replies(ReplyMemory::new(&limits()).connection(PEER), true);
        let mut watchdog = Watchdog::new(Arc::clone(&activity), limits());
        let mut unread = activity.begin();
        unread.reply();
        for _ in 0..9 {
            assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
            tokio::time::advance(Duration::from_secs(10)).await;
            let mut other = activity.begin();
            other.reply();
            other.replied(10);
        }
        assert_eq!(time_limit(&mut watchdog).await, Some((10, Expired::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_holds_bytes_for_which_others_wait_has_to_read_a_quarter_in_a_shorter_time() {
        use crate::reply_memory::NextFrame;
        let limits = Arc::new(Limits { unread_reply_bytes: 10_000, ..Limits::clone(&limits()) });
        let memory = ReplyMemory::new(&limits);
        let activity = Arc::new(Activity::default());
        activity.set_replies(memory.connection(PEER), true);
        let mut watchdog = Watchdog::new(Arc::clone(&activity), Arc::clone(&limits));
        let mut unread = activity.begin();
        unread.reply();
        let poll = |next: &mut NextFrame, replies: &ConnectionReplies, bytes| {
            next.poll_reserve(replies, Some(bytes), &mut Context::from_waker(std::task::Waker::noop()))
        };
        let mut frame = NextFrame::Unreserved;
        assert!(poll(&mut frame, activity.replies.get().unwrap(), 8000).is_ready());
        assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        let (other, mut waiting) = (memory.connection([192, 0, 2, 2].into()), NextFrame::Unreserved);
        assert!(poll(&mut waiting, &other, 5000).is_pending());
        // Enough at other times, and too little now.
        unread.replied(1999);
        assert_eq!(time_limit(&mut watchdog).await, Some((10, Expired::Stalled)));
        unread.replied(1);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        unread.replied(2000);
        assert_eq!(time_limit(&mut watchdog).await, Some((10, Expired::Stalled)));
        drop(waiting);
        assert_eq!(time_limit(&mut watchdog).await, Some((100, Expired::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn clients_have_to_read_in_a_shorter_time_while_requests_are_refused() {
        let limits = Arc::new(Limits { streams: 2, ..Limits::clone(&limits()) });
        let memory = ReplyMemory::new(&limits);
        let activity = Arc::new(Activity::default());
        activity.set_replies(memory.connection(PEER), true);
        let mut watchdog = Watchdog::new(Arc::clone(&activity), limits);
        let mut unread = [activity.begin(), activity.begin()];
        for request in &mut unread {
            assert!(request.begin_stream());
            request.reply();
        }
        unread[0].replied(1999);
        assert_eq!(time_limit(&mut watchdog).await, Some((10, Expired::Stalled)));
        let [one, ended] = unread;
        drop(ended);
        assert_eq!(time_limit(&mut watchdog).await, Some((100, Expired::Stalled)));
        drop(one);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_must_read_progress_bytes_within_progress_time() {
        let activity = Arc::new(Activity::default());
        let mut watchdog = Watchdog::new(Arc::clone(&activity), limits());
        let _request = activity.begin();
        activity.blocked.store(true, Relaxed);
        assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        tokio::time::advance(Duration::from_secs(15)).await;
        activity.sent.fetch_add(1000, Relaxed);
        assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        tokio::time::advance(Duration::from_secs(15)).await;
        activity.sent.fetch_add(10, Relaxed);
        assert_eq!(time_limit(&mut watchdog).await, Some((5, Expired::Stalled)));
    }

    /// Lets a client send `chunk` every `pause` to a lingering close. Returns the bytes sent and the seconds
    /// it took.
    async fn linger(limits: Limits, chunk: usize, pause: Duration, long: bool) -> (u64, u64) {
        let (client, server) = tokio::io::duplex(1 << 20);
        let activity = Arc::new(Activity::default());
        activity.abandon_body();
        let slots = FairSemaphore::with_reserve(u32::from(long));
        let lingering_slots = LingeringSlots { slots: slots.clone(), peer: None };
        let mut socket = MonitoredSocket::new(server, activity, Arc::new(limits), lingering_slots);
        let start = Instant::now();
        let (_unread, mut client) = tokio::io::split(client);
        let sending = tokio::spawn(async move {
            let mut sent = 0;
            while client.write_all(&vec![0; chunk]).await.is_ok() {
                sent += chunk as u64;
                tokio::time::sleep(pause).await;
            }
            sent
        });
        socket.shutdown().await.unwrap();
        let seconds = start.elapsed().as_secs();
        drop(socket);
        assert_eq!(slots.free(), usize::from(long), "the slot is free again");
        (sending.await.unwrap(), seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lingering_close_is_limited_in_bytes_time_silence_and_number() {
        let limits = Limits {
            drain_bytes: 2000,
            drain_time: Duration::from_secs(2),
            linger_bytes: 10_000,
            linger_time: Duration::from_secs(30),
            ..Limits::default()
        };
        let [second, long] = [1, 3].map(Duration::from_secs);
        for (chunk, pause, slot, expected) in [
            (5000, second, true, (10_000, 1)),
            (1, second, true, (30, 30)),
            (1, long, true, (1, 2)),
            (1000, second, false, (2000, 1)),
            (1, second, false, (2, 2)),
        ] {
            let (sent, seconds) = linger(limits.clone(), chunk, pause, slot).await;
            let (bytes, time) = expected;
            // The client notices the end only with its next write.
            assert!(sent.abs_diff(bytes) <= chunk as u64, "{chunk} {pause:?} {slot}: {sent}");
            assert_eq!(seconds, time, "{chunk} {pause:?} {slot}");
        }
    }

    #[test]
    fn one_peer_leaves_places_for_lingering_connections_to_others() {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
            let slots = FairSemaphore::with_reserve(8);
            let begin = |last| {
                let peer = Some(IpAddr::from([192, 0, 2, last]));
                LingeringClose::begin(&limits(), &LingeringSlots { slots: slots.clone(), peer })
            };
            let held: Vec<_> = (0..10).map(|_| begin(1)).collect();
            assert_eq!(held.iter().filter(|linger| linger._slot.is_some()).count(), 6);
            assert!(begin(2)._slot.is_some());
            drop(held);
            assert_eq!(slots.free(), 8);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_does_not_wait_for_a_connection_that_lingers_for_long() {
        let (client, server) = tokio::io::duplex(1 << 20);
        let activity = Arc::new(Activity::default());
        activity.abandon_body();
        let slots = LingeringSlots { slots: FairSemaphore::with_reserve(1), peer: None };
        let mut socket = MonitoredSocket::new(server, activity.clone(), limits(), slots);
        let (_unread, mut client) = tokio::io::split(client);
        tokio::spawn(async move {
            while client.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let start = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            activity.drain();
        });
        socket.shutdown().await.unwrap();
        let seconds = start.elapsed().as_secs();
        assert!((7..=8).contains(&seconds), "{seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_http_1_client_that_holds_bytes_for_which_others_wait_has_to_read_them_sooner() {
        use crate::reply_memory::NextFrame;
        let limits = Arc::new(Limits { unread_reply_bytes: 10_000, ..Limits::clone(&limits()) });
        let memory = ReplyMemory::new(&limits);
        let activity = Arc::new(Activity::default());
        activity.set_replies(memory.connection(PEER), false);
        let mut watchdog = Watchdog::new(Arc::clone(&activity), Arc::clone(&limits));
        let _request = activity.begin();
        activity.blocked.store(true, Relaxed);
        let poll = |next: &mut NextFrame, replies: &ConnectionReplies, bytes| {
            next.poll_reserve(replies, Some(bytes), &mut Context::from_waker(std::task::Waker::noop()))
        };
        let mut frame = NextFrame::Unreserved;
        assert!(poll(&mut frame, activity.replies.get().unwrap(), 7000).is_ready());
        assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        let (other, mut waiting) = (memory.connection([192, 0, 2, 2].into()), NextFrame::Unreserved);
        assert!(poll(&mut waiting, &other, 5000).is_pending());
        activity.sent.fetch_add(1749, Relaxed);
        assert_eq!(time_limit(&mut watchdog).await, Some((10, Expired::Stalled)));
        drop(waiting);
        assert_eq!(time_limit(&mut watchdog).await, Some((20, Expired::Stalled)));
    }
}
