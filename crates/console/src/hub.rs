//! Live events: a ring of recent ones, and the streams of open pages.
//!
//! A stream gets the events of its topics that its principal may see. A slow reader loses events and is
//! notified of the loss; the server keeps at most [`MAX_QUEUED`] bytes for it. Without streams an event costs
//! one lock.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use lazuli_protocol::request::BodyError;
use parking_lot::Mutex;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// Recent events that a new or returning stream gets.
const RING: usize = 4096;
/// Maximum number of streams.
const MAX_STREAMS: usize = 32;
/// Maximum bytes that wait for one reader.
const MAX_QUEUED: usize = 256 << 10;
/// Maximum rows of the trace in one second. Of further ones only the number is known.
const MAX_TRACED: u32 = 200;
/// A stream sends padding this often. It shows that the stream lives, and counts as progress over HTTP/2.
const PAD_EVERY: Duration = Duration::from_secs(5);
/// Length of the padding: what a connection over HTTP/2 must read while it is idle.
const PADDING: usize = 1024;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// Figures of the server, once a second.
    Metrics,
    /// Refusals by concurrency rules.
    Conflicts,
    /// The leases that are known.
    Leases,
    /// Files that are open over SMB.
    Opens,
    /// All requests.
    Trace,
    /// Actions of operators and accounts through the console.
    Audit,
}

impl Topic {
    pub(crate) const ALL: [Self; 6] =
        [Self::Metrics, Self::Conflicts, Self::Leases, Self::Opens, Self::Trace, Self::Audit];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Conflicts => "conflicts",
            Self::Leases => "leases",
            Self::Opens => "opens",
            Self::Trace => "trace",
            Self::Audit => "audit",
        }
    }

    /// Returns the topics in a list of names. Unknown names are ignored.
    pub(crate) fn parse(names: &str) -> Vec<Self> {
        let is_named = |topic: &Self| names.split(',').any(|name| name == topic.name());
        Self::ALL.into_iter().filter(is_named).collect()
    }

    /// Whether a returning reader gets the events that it missed.
    const fn is_kept(self) -> bool {
        matches!(self, Self::Conflicts | Self::Audit)
    }
}

/// An event as streams send it.
#[derive(Debug)]
pub(crate) struct Event {
    id: u64,
    topic: Topic,
    /// The account that it concerns; `None` if only operators may see it.
    account: Option<String>,
    /// JSON in one line.
    json: String,
}

impl Event {
    fn frame(&self) -> String {
        format!("id: {}\nevent: {}\ndata: {}\n\n", self.id, self.topic.name(), self.json)
    }
}

/// The streams and the recent events.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<HubState>);

#[derive(Debug)]
struct HubState {
    next: u64,
    ring: VecDeque<Arc<Event>>,
    readers: Vec<Arc<Reader>>,
    /// The current second of the trace, its rows so far, and those that were left out.
    traced: (Instant, u32, u64),
}

impl Default for HubState {
    fn default() -> Self {
        Self { next: 1, ring: VecDeque::new(), readers: vec![], traced: (Instant::now(), 0, 0) }
    }
}

/// One stream's queue.
#[derive(Debug)]
struct Reader {
    topics: Vec<Topic>,
    /// The only account whose events it gets; `None` for all.
    only: Option<String>,
    queue: Mutex<PendingEvents>,
}

#[derive(Debug, Default)]
struct PendingEvents {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// The first and the last event that did not fit.
    lost: Option<(u64, u64)>,
    waker: Option<Waker>,
    is_closed: bool,
}

impl Reader {
    fn wants(&self, event: &Event) -> bool {
        let sees = match (&self.only, &event.account) {
            (None, _) => true,
            (Some(only), Some(account)) => only == account,
            (Some(_), None) => event.topic == Topic::Metrics,
        };
        sees && self.topics.contains(&event.topic)
    }

    fn push(&self, event: &Arc<Event>) {
        let mut queue = self.queue.lock();
        if queue.bytes + event.json.len() > MAX_QUEUED {
            let from = queue.lost.map_or(event.id, |(from, _)| from);
            queue.lost = Some((from, event.id));
        } else {
            queue.bytes += event.json.len();
            queue.events.push_back(event.clone());
        }
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
    }
}

impl Hub {
    /// Sends an event to the streams. The text of an event that no stream wants and that is not kept is never
    /// built.
    pub(crate) fn send(&self, topic: Topic, account: Option<&str>, json: impl FnOnce(u64) -> String) {
        let mut state = self.0.lock();
        let is_wanted = state.readers.iter().any(|reader| reader.topics.contains(&topic));
        if !is_wanted && !topic.is_kept() {
            return;
        }
        if topic == Topic::Trace && !state.may_trace() {
            return;
        }
        let id = state.next;
        state.next += 1;
        let event = Arc::new(Event { id, topic, account: account.map(str::to_owned), json: json(id) });
        if topic.is_kept() {
            if state.ring.len() >= RING {
                state.ring.pop_front();
            }
            state.ring.push_back(event.clone());
        }
        for reader in state.readers.iter().filter(|reader| reader.wants(&event)) {
            reader.push(&event);
        }
    }

    /// Returns whether a stream wants a topic.
    pub(crate) fn is_wanted(&self, topic: Topic) -> bool {
        self.0.lock().readers.iter().any(|reader| reader.topics.contains(&topic))
    }

    /// Returns the number of streams.
    pub(crate) fn streams(&self) -> usize {
        self.0.lock().readers.len()
    }

    /// Returns the number of rows that the trace left out since the last call.
    pub(crate) fn take_untraced(&self) -> u64 {
        std::mem::take(&mut self.0.lock().traced.2)
    }

    /// Returns up to `limit` recent events of a topic as JSON, newest first.
    pub(crate) fn recent(&self, topic: Topic, only: Option<&str>, limit: usize) -> Vec<String> {
        let state = self.0.lock();
        let of_topic = state.ring.iter().rev().filter(|event| event.topic == topic);
        let seen = of_topic.filter(|event| only.is_none_or(|only| event.account.as_deref() == Some(only)));
        seen.take(limit).map(|event| event.json.clone()).collect()
    }

    /// Opens a stream. With `after`, it begins with the kept events that follow that id, or with a notice if
    /// they are gone. Returns `None` if there are too many streams.
    pub(crate) fn open(
        self: &Arc<Self>,
        topics: Vec<Topic>,
        only: Option<String>,
        after: Option<u64>,
    ) -> Option<EventStream> {
        let mut state = self.0.lock();
        if state.readers.len() >= MAX_STREAMS {
            return None;
        }
        let reader = Arc::new(Reader { topics, only, queue: Mutex::default() });
        if let Some(after) = after {
            let first = state.ring.front().map_or(state.next, |event| event.id);
            if after + 1 < first || after >= state.next {
                reader.queue.lock().lost = Some((after.saturating_add(1), first.saturating_sub(1)));
            }
            for event in state.ring.iter().filter(|event| event.id > after && reader.wants(event)) {
                reader.push(event);
            }
        }
        state.readers.push(reader.clone());
        let mut padding = tokio::time::interval(PAD_EVERY);
        padding.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(EventStream { hub: self.clone(), reader, padding })
    }

    /// Ends all streams, so that the server can stop.
    pub(crate) fn close(&self) {
        for reader in &self.0.lock().readers {
            let mut queue = reader.queue.lock();
            queue.is_closed = true;
            if let Some(waker) = queue.waker.take() {
                waker.wake();
            }
        }
    }
}

impl HubState {
    /// Counts a row of the trace, and returns whether the second has room for it.
    fn may_trace(&mut self) -> bool {
        let now = Instant::now();
        if now.duration_since(self.traced.0) >= Duration::from_secs(1) {
            (self.traced.0, self.traced.1) = (now, 0);
        }
        self.traced.1 += 1;
        let fits = self.traced.1 <= MAX_TRACED;
        self.traced.2 += u64::from(!fits);
        fits
    }
}

/// The body of a stream. Dropping it closes the stream.
pub(crate) struct EventStream {
    hub: Arc<Hub>,
    reader: Arc<Reader>,
    padding: Interval,
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.hub.0.lock().readers.retain(|reader| !Arc::ptr_eq(reader, &self.reader));
    }
}

impl http_body::Body for EventStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut queue = this.reader.queue.lock();
        if queue.is_closed {
            return Poll::Ready(None);
        }
        let mut text = String::new();
        while let Some(event) = queue.events.pop_front() {
            queue.bytes = queue.bytes.saturating_sub(event.json.len());
            text += &event.frame();
        }
        if let Some((from, to)) = queue.lost.take() {
            text += &format!("event: gap\ndata: {{\"from\":{from},\"to\":{to}}}\n\n");
        }
        queue.waker = Some(cx.waker().clone());
        drop(queue);
        if this.padding.poll_tick(cx).is_ready() {
            text += &format!(":{}\n\n", " ".repeat(PADDING));
            // Schedule the next tick.
            let _ = this.padding.poll_tick(cx);
        }
        match text.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(Some(Ok(Frame::data(text.into())))),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn read(stream: &mut EventStream) -> String {
        let frame = stream.frame().await.unwrap().unwrap();
        String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
    }

    fn send(hub: &Hub, topic: Topic, account: &str, text: &str) {
        hub.send(topic, Some(account), |id| format!("{{\"id\":{id},\"text\":\"{text}\"}}"));
    }

    #[tokio::test(start_paused = true)]
    async fn stream_gets_its_topics_of_its_account_only() {
        let hub = Arc::new(Hub::default());
        let mut stream = hub.open(vec![Topic::Conflicts], Some("a".into()), None).unwrap();
        send(&hub, Topic::Conflicts, "a", "mine");
        send(&hub, Topic::Conflicts, "b", "other");
        send(&hub, Topic::Leases, "a", "unwanted");
        hub.send(Topic::Conflicts, None, |_| "operators only".into());
        let text = read(&mut stream).await;
        assert!(text.contains("mine"), "{text}");
        for hidden in ["other", "unwanted", "operators"] {
            assert!(!text.contains(hidden), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn returning_reader_gets_what_it_missed_or_a_gap() {
        let hub = Arc::new(Hub::default());
        for number in 0..RING + 10 {
            send(&hub, Topic::Conflicts, "a", &format!("n{number}."));
        }
        let last = RING as u64 + 8;
        let mut stream = hub.open(vec![Topic::Conflicts], None, Some(last)).unwrap();
        let text = read(&mut stream).await;
        assert!(text.contains(&format!("n{}.", last)) && text.contains(&format!("n{}.", last + 1)), "{text}");
        assert!(!text.contains(&format!("n{}.", last - 1)) && !text.contains("gap"), "{text}");
        let mut late = hub.open(vec![Topic::Conflicts], None, Some(2)).unwrap();
        assert!(read(&mut late).await.contains("event: gap\ndata: {\"from\":3,\"to\":10}"));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_loses_events_and_is_notified() {
        let hub = Arc::new(Hub::default());
        let mut stream = hub.open(vec![Topic::Leases], None, None).unwrap();
        let long = "x".repeat(1000);
        for _ in 0..1000 {
            send(&hub, Topic::Leases, "a", &long);
        }
        assert!(stream.reader.queue.lock().bytes <= MAX_QUEUED);
        assert!(read(&mut stream).await.contains("event: gap"));
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_streams_is_limited_and_closed_streams_make_room() {
        let hub = Arc::new(Hub::default());
        let mut streams: Vec<_> =
            (0..MAX_STREAMS).map(|_| hub.open(vec![Topic::Trace], None, None).unwrap()).collect();
        assert!(hub.open(vec![Topic::Trace], None, None).is_none());
        streams.pop();
        assert!(hub.open(vec![Topic::Trace], None, None).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn trace_is_sampled_and_says_so() {
        let hub = Arc::new(Hub::default());
        let _stream = hub.open(vec![Topic::Trace], None, None).unwrap();
        for _ in 0..MAX_TRACED + 50 {
            send(&hub, Topic::Trace, "a", "row");
        }
        assert_eq!((hub.take_untraced(), hub.take_untraced()), (50, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_stream_sends_padding_and_ends_when_the_server_stops() {
        let hub = Arc::new(Hub::default());
        let mut stream = hub.open(vec![Topic::Trace], None, None).unwrap();
        for _ in 0..3 {
            assert!(read(&mut stream).await.len() > PADDING);
        }
        hub.close();
        assert!(stream.frame().await.is_none());
    }
}
