//! How a connection is getting on, and when to give it up.
//!
//! A [`Pulse`] counts what passes over one connection; [`Paced`] feeds it from the socket, the pipeline marks where
//! requests begin and end. From it a [`Watchdog`] knows what the connection is waiting for, and whether that has
//! taken too long. So a client that trickles its headers, stops reading its reply or just sits there loses its
//! connection, and costs nobody else anything.
//!
//! [`Paced`] also closes politely: when the client may still be sending (its request was refused half way), it says
//! goodbye first and reads on for a while, because closing a socket with unread input would reset the connection and
//! could take the reply away before the client has read it. What it reads is below TLS, so it costs no decryption.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use crate::limits::Limits;

/// What has passed over one connection. Counters only, so any task may touch it without waiting.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Bytes received.
    received: AtomicU64,
    /// Bytes received by the time the last request ended; more means that another has begun.
    received_at_rest: AtomicU64,
    /// Bytes sent.
    sent: AtomicU64,
    /// The socket takes no more for now.
    blocked: AtomicBool,
    /// Requests under way.
    serving: AtomicU32,
    /// Requests that have ended.
    served: AtomicU64,
    /// Requests whose reply has begun and not ended.
    replying: AtomicU32,
    /// Bytes of replies handed to the protocol. What a client can bring about without taking any, such as the answer to a
    /// ping, is not among them.
    replied: AtomicU64,
    /// Several requests may share the connection, and frames come outside of requests.
    multiplexed: AtomicBool,
    /// A request's body was given up unread.
    abandoned: AtomicBool,
}

/// What a connection is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// The rest of a request's headers.
    Head,
    /// Another request, none having begun.
    Request,
    /// Our own service, or a request's body, which has a clock of its own.
    Service,
    /// The client, to read.
    Reader,
    /// The client, to open the window of a reply: on a multiplexed connection that does not show on the socket.
    Window,
}

impl Pulse {
    /// A request begins; it ends when the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        self.serving.fetch_add(1, Relaxed);
        UnderWay { pulse: Arc::clone(self), replying: false }
    }

    /// The connection carries several requests at once.
    pub(crate) fn set_multiplexed(&self) {
        self.multiplexed.store(true, Relaxed);
    }

    /// The rest of a request's body will not be read.
    pub(crate) fn abandon_body(&self) {
        self.abandoned.store(true, Relaxed);
    }

    fn waiting(&self) -> Waiting {
        if self.multiplexed.load(Relaxed) && self.replying.load(Relaxed) > 0 {
            Waiting::Window
        } else if self.blocked.load(Relaxed) {
            Waiting::Reader
        } else if self.serving.load(Relaxed) > 0 {
            Waiting::Service
        } else if self.served.load(Relaxed) == 0 || self.head_begun() {
            Waiting::Head
        } else {
            Waiting::Request
        }
    }

    fn head_begun(&self) -> bool {
        !self.multiplexed.load(Relaxed) && self.received.load(Relaxed) != self.received_at_rest.load(Relaxed)
    }

    /// Whether the client may have more to say that we will never read.
    fn has_unread_input(&self) -> bool {
        self.abandoned.load(Relaxed) || (self.serving.load(Relaxed) == 0 && self.head_begun())
    }
}

/// One request under way on a connection.
#[derive(Debug)]
pub(crate) struct UnderWay {
    pulse: Arc<Pulse>,
    /// Its reply has begun.
    replying: bool,
}

impl UnderWay {
    /// Its reply begins.
    pub(crate) fn reply(&mut self) {
        if !std::mem::replace(&mut self.replying, true) {
            self.pulse.replying.fetch_add(1, Relaxed);
        }
    }

    /// Bytes of its reply were handed to the protocol.
    pub(crate) fn replied(&self, bytes: u64) {
        self.pulse.replied.fetch_add(bytes, Relaxed);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let pulse = &self.pulse;
        pulse.received_at_rest.store(pulse.received.load(Relaxed), Relaxed);
        pulse.served.fetch_add(1, Relaxed);
        if self.replying {
            pulse.replying.fetch_sub(1, Relaxed);
        }
        pulse.serving.fetch_sub(1, Relaxed);
    }
}

/// Why a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expired {
    /// Nobody asked for anything: let it finish what it has.
    Idle,
    /// The client is too slow: cut it.
    Stalled,
}

/// Tells when a connection has waited too long. To be polled after the connection itself.
#[derive(Debug)]
pub(crate) struct Watchdog {
    pulse: Arc<Pulse>,
    limits: Arc<Limits>,
    seen: (Waiting, u64),
    since: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Watchdog {
    pub(crate) fn new(pulse: Arc<Pulse>, limits: Arc<Limits>) -> Self {
        let since = Instant::now();
        let alarm = Box::pin(tokio::time::sleep_until(since + limits.head_time));
        let mut watchdog = Self { pulse, limits, seen: (Waiting::Head, 0), since, alarm };
        watchdog.seen = watchdog.observe();
        watchdog
    }

    /// What it waits for, and a mark that changes when that gets anywhere.
    fn observe(&self) -> (Waiting, u64) {
        let waiting = self.pulse.waiting();
        let mark = match waiting {
            // Bytes that trickle in are no excuse: the whole head has one deadline.
            Waiting::Head | Waiting::Request => self.pulse.served.load(Relaxed),
            Waiting::Reader => self.pulse.sent.load(Relaxed) / self.limits.progress_bytes.max(1),
            Waiting::Window => {
                let replied = self.pulse.replied.load(Relaxed) / self.limits.progress_bytes.max(1);
                replied.wrapping_add(self.pulse.served.load(Relaxed))
            }
            Waiting::Service => 0,
        };
        (waiting, mark)
    }

    /// How long that may take; `None` = as long as it wants.
    fn patience(&self, waiting: Waiting) -> Option<Duration> {
        match waiting {
            Waiting::Head => Some(self.limits.head_time),
            Waiting::Request => Some(self.limits.idle_time),
            Waiting::Reader => Some(self.limits.progress_time),
            Waiting::Window => Some(self.limits.idle_time),
            Waiting::Service => None,
        }
    }

    /// Ready when the connection has waited too long.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Expired> {
        loop {
            let observed = self.observe();
            if observed != self.seen {
                self.seen = observed;
                self.since = Instant::now();
            }
            let Some(patience) = self.patience(observed.0) else {
                return Poll::Pending;
            };
            let deadline = self.since + patience;
            // A later deadline needs no new alarm: the early one comes back here and is set again. That keeps the
            // timer out of the path of every request.
            if deadline < self.alarm.deadline() {
                self.alarm.as_mut().reset(deadline);
            }
            ready!(self.alarm.as_mut().poll(cx));
            if Instant::now() >= deadline {
                // Asked again, it counts from here.
                self.since = Instant::now();
                self.alarm.as_mut().reset(self.since + patience);
                return Poll::Ready(match observed.0 {
                    Waiting::Request => Expired::Idle,
                    _ => Expired::Stalled,
                });
            }
            self.alarm.as_mut().reset(deadline);
        }
    }
}

/// A socket that feeds a [`Pulse`] and closes politely.
#[derive(Debug)]
pub(crate) struct Paced<S> {
    socket: S,
    pulse: Arc<Pulse>,
    limits: Arc<Limits>,
    /// The endpoint's, one permit for each connection that may have a long farewell.
    farewells: Arc<Semaphore>,
    farewell: Option<Farewell>,
}

impl<S> Paced<S> {
    pub(crate) fn new(socket: S, pulse: Arc<Pulse>, limits: Arc<Limits>, farewells: Arc<Semaphore>) -> Self {
        Self { socket, pulse, limits, farewells, farewell: None }
    }
}

/// Read buffer of a farewell.
const FAREWELL_CHUNK: usize = 64 * 1024;

/// Reading on after the last reply, within bounds.
#[derive(Debug)]
struct Farewell {
    bytes_left: u64,
    ends: Instant,
    /// When the client last sent something.
    heard: Instant,
    patience: Duration,
    /// Set for the earlier of both ends, or before it.
    alarm: Pin<Box<Sleep>>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Farewell {
    fn begin(limits: &Limits, farewells: &Arc<Semaphore>) -> Self {
        let slot = Arc::clone(farewells).try_acquire_owned().ok();
        let (bytes_left, time) = match slot {
            Some(_) => (limits.farewell_bytes, limits.farewell_time),
            None => (limits.drain_bytes, limits.drain_time),
        };
        let now = Instant::now();
        let patience = limits.drain_time;
        let alarm = Box::pin(tokio::time::sleep(patience.min(time)));
        Self { bytes_left, ends: now + time, heard: now, patience, alarm, _slot: slot }
    }

    /// Discards what the client sends. Ready when it has closed, has sent enough or has had enough time.
    fn poll(&mut self, socket: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<()> {
        let mut discarded = [MaybeUninit::uninit(); FAREWELL_CHUNK];
        loop {
            let mut buf = ReadBuf::uninit(&mut discarded);
            match Pin::new(&mut *socket).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    self.bytes_left = self.bytes_left.saturating_sub(buf.filled().len() as u64);
                    self.heard = Instant::now();
                    if self.bytes_left == 0 || self.heard >= self.ends {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.poll_over(cx),
            }
        }
    }

    /// Ready when the client has had enough time.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.ends.min(self.heard + self.patience);
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            self.alarm.as_mut().reset(deadline);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(cx, buf);
        let received = (buf.filled().len() - before) as u64;
        if received > 0 {
            self.pulse.received.fetch_add(received, Relaxed);
        }
        polled
    }
}

impl<S> Paced<S> {
    fn note_write(&self, polled: &Poll<io::Result<usize>>) {
        match polled {
            Poll::Ready(Ok(sent)) => {
                self.pulse.sent.fetch_add(*sent as u64, Relaxed);
                if self.pulse.blocked.load(Relaxed) {
                    self.pulse.blocked.store(false, Relaxed);
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.pulse.blocked.store(true, Relaxed),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Paced<S> {
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
        if this.farewell.is_none() {
            ready!(Pin::new(&mut this.socket).poll_shutdown(cx))?;
            if !this.pulse.has_unread_input() {
                return Poll::Ready(Ok(()));
            }
        }
        let farewell = this.farewell.get_or_insert_with(|| Farewell::begin(&this.limits, &this.farewells));
        farewell.poll(&mut this.socket, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::future::poll_fn;
    use tokio::io::AsyncWriteExt;

    fn limits() -> Arc<Limits> {
        Arc::new(Limits {
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(100),
            progress_time: Duration::from_secs(20),
            progress_bytes: 1000,
            ..Limits::default()
        })
    }

    /// How long the watchdog waits from now on, if it does within an hour.
    async fn patience(watchdog: &mut Watchdog) -> Option<(u64, Expired)> {
        let start = Instant::now();
        let expired = poll_fn(|cx| watchdog.poll_expired(cx));
        let expired = tokio::time::timeout(Duration::from_secs(3600), expired).await.ok()?;
        Some((start.elapsed().as_secs(), expired))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_head_time_for_its_first_request_however_bytes_trickle() {
        let pulse = Arc::new(Pulse::default());
        let mut watchdog = Watchdog::new(Arc::clone(&pulse), limits());
        for _ in 0..9 {
            tokio::time::advance(Duration::from_secs(1)).await;
            pulse.received.fetch_add(1, Relaxed);
            assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        }
        assert_eq!(patience(&mut watchdog).await, Some((1, Expired::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn between_requests_it_may_idle_but_a_begun_head_has_to_be_finished() {
        let pulse = Arc::new(Pulse::default());
        let mut watchdog = Watchdog::new(Arc::clone(&pulse), limits());
        pulse.received.fetch_add(50, Relaxed);
        drop(pulse.begin());
        assert_eq!(patience(&mut watchdog).await, Some((100, Expired::Idle)));
        pulse.received.fetch_add(1, Relaxed);
        assert_eq!(patience(&mut watchdog).await, Some((10, Expired::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_may_take_its_time() {
        let pulse = Arc::new(Pulse::default());
        let mut watchdog = Watchdog::new(Arc::clone(&pulse), limits());
        let request = pulse.begin();
        assert_eq!(patience(&mut watchdog).await, None);
        drop(request);
        assert_eq!(patience(&mut watchdog).await, Some((100, Expired::Idle)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_shut_window_on_a_multiplexed_connection_ends_like_an_idle_one() {
        let pulse = Arc::new(Pulse::default());
        pulse.set_multiplexed();
        let mut watchdog = Watchdog::new(Arc::clone(&pulse), limits());
        let mut request = pulse.begin();
        assert_eq!(patience(&mut watchdog).await, None, "a service may take its time here too");
        request.reply();
        assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        tokio::time::advance(Duration::from_secs(60)).await;
        // A ping and its answer are nothing that the client has taken of the reply.
        pulse.received.fetch_add(5000, Relaxed);
        pulse.sent.fetch_add(5000, Relaxed);
        assert_eq!(patience(&mut watchdog).await, Some((40, Expired::Stalled)));
        request.replied(1000);
        assert_eq!(patience(&mut watchdog).await, Some((100, Expired::Stalled)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_has_to_take_enough_in_time() {
        let pulse = Arc::new(Pulse::default());
        let mut watchdog = Watchdog::new(Arc::clone(&pulse), limits());
        let _request = pulse.begin();
        pulse.blocked.store(true, Relaxed);
        assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        tokio::time::advance(Duration::from_secs(15)).await;
        pulse.sent.fetch_add(1000, Relaxed);
        assert!(poll_fn(|cx| Poll::Ready(watchdog.poll_expired(cx))).await.is_pending());
        tokio::time::advance(Duration::from_secs(15)).await;
        pulse.sent.fetch_add(10, Relaxed);
        assert_eq!(patience(&mut watchdog).await, Some((5, Expired::Stalled)));
    }

    /// How a farewell ends to which a client sends `chunk` every `pause`: bytes that it read, and seconds.
    async fn farewell(limits: Limits, chunk: usize, pause: Duration, long: bool) -> (u64, u64) {
        let (client, server) = tokio::io::duplex(1 << 20);
        let pulse = Arc::new(Pulse::default());
        pulse.abandon_body();
        let farewells = Arc::new(Semaphore::new(usize::from(long)));
        let mut paced = Paced::new(server, pulse, Arc::new(limits), Arc::clone(&farewells));
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
        paced.shutdown().await.unwrap();
        let seconds = start.elapsed().as_secs();
        drop(paced);
        assert_eq!(farewells.available_permits(), usize::from(long), "the slot is free again");
        (sending.await.unwrap(), seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_farewell_is_bounded_in_bytes_time_silence_and_number() {
        let limits = Limits {
            drain_bytes: 2000,
            drain_time: Duration::from_secs(2),
            farewell_bytes: 10_000,
            farewell_time: Duration::from_secs(30),
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
            let (sent, seconds) = farewell(limits.clone(), chunk, pause, slot).await;
            let (bytes, time) = expected;
            // The client finds the end when it sends the next time.
            assert!(sent.abs_diff(bytes) <= chunk as u64, "{chunk} {pause:?} {slot}: {sent}");
            assert_eq!(seconds, time, "{chunk} {pause:?} {slot}");
        }
    }
}
