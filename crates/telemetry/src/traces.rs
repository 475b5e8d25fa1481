//! Traces: one span for each sampled request, with spans for its phases.
//!
//! A request adopts the trace of its caller, if it names one in `traceparent`. Otherwise the trace id is the
//! request id, so that a request in the log can be found among the traces. Finished requests wait in a queue
//! with a bound until the exporter takes them; those that do not fit are counted.

mod context;
mod export;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

pub use context::TraceContext;

/// Maximum number of finished requests that wait for the exporter.
const MAX_WAITING: usize = 8192;
/// Maximum number of phases of a request. A transaction that meets conflicts has several commits.
const MAX_PHASES: usize = 32;
/// Name of the service in the exported spans.
const SERVICE_NAME: &str = "lazuli";

/// Collects the traces of a server. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Tracer(Arc<TracerState>);

#[derive(Debug)]
struct TracerState {
    /// Requests without a caller's trace are sampled if the first bits of their id are below this.
    threshold: u64,
    waiting: Mutex<Vec<FinishedRequest>>,
    exported: AtomicU64,
    lost_waiting: AtomicU64,
    lost_sending: AtomicU64,
}

/// Counters of requests since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceFigures {
    /// Traces that a collector has accepted.
    pub exported: u64,
    /// Traces lost because too many waited for the exporter.
    pub lost_waiting: u64,
    /// Traces lost because the collector did not accept them.
    pub lost_sending: u64,
}

/// A part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// From the request's head to the start of its operation: authentication, limits, waiting for memory.
    Wait,
    /// The operation, until its reply begins.
    Evaluate,
    /// Within the operation: a commit, with its sync.
    Commit,
    /// From the reply's first byte to its last.
    Send,
}

impl Phase {
    const fn name(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Evaluate => "evaluate",
            Self::Commit => "commit",
            Self::Send => "send",
        }
    }
}

/// The trace of one request while it runs.
#[derive(Debug)]
pub struct RequestTrace {
    context: TraceContext,
    span: u64,
    started: SystemTime,
    began: Instant,
    phases: Mutex<Vec<PhaseSpan>>,
}

/// A phase, in times since the request began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PhaseSpan {
    phase: Phase,
    from: Duration,
    to: Duration,
}

/// A phase that lasts until this is dropped.
#[derive(Debug)]
pub struct RunningPhase {
    trace: Arc<RequestTrace>,
    phase: Phase,
    from: Duration,
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A number.
    Number(u64),
}

/// The facts of a finished request. Nothing in them may contain a query, a signature or a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestFacts {
    /// The operation: one of a fixed list.
    pub name: &'static str,
    /// Attributes by key.
    pub attributes: Vec<(&'static str, Value)>,
    /// The server failed, or the client disconnected before it had the reply.
    pub has_failed: bool,
    /// When the reply began.
    pub first_byte: Option<Duration>,
    /// How long the request took.
    pub elapsed: Duration,
}

#[derive(Debug)]
struct FinishedRequest {
    trace: Arc<RequestTrace>,
    facts: RequestFacts,
}

impl Tracer {
    /// Creates a tracer that samples a share of the requests, from 0 to 1. Requests whose caller has decided
    /// follow the caller.
    pub fn new(share: f64) -> Self {
        let threshold = (share.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        let (waiting, exported, lost_waiting, lost_sending) = Default::default();
        Self(Arc::new(TracerState { threshold, waiting, exported, lost_waiting, lost_sending }))
    }

    /// Begins the trace of a request, unless it is not sampled. `id` is random.
    pub fn begin(&self, id: [u8; 16], caller: Option<TraceContext>) -> Option<Arc<RequestTrace>> {
        self.begin_at(id, caller, SystemTime::now())
    }

    fn begin_at(
        &self,
        id: [u8; 16],
        caller: Option<TraceContext>,
        started: SystemTime,
    ) -> Option<Arc<RequestTrace>> {
        let (high, low) = halves(id);
        let is_sampled = caller.as_ref().map_or(high <= self.0.threshold, |caller| caller.is_sampled);
        // A span id must not be 0.
        let (context, span) = (caller.unwrap_or_else(|| TraceContext::root(id)), low.max(1));
        let (began, phases) = (Instant::now(), Mutex::default());
        is_sampled.then(|| Arc::new(RequestTrace { context, span, started, began, phases }))
    }

    /// Takes a finished request without phases, unless it is not sampled. `id` is random.
    pub fn report(&self, id: [u8; 16], elapsed: Duration, facts: impl FnOnce() -> RequestFacts) {
        let now = SystemTime::now();
        if let Some(trace) = self.begin_at(id, None, now.checked_sub(elapsed).unwrap_or(now)) {
            self.finish(trace, facts());
        }
    }

    /// Takes a finished request.
    pub fn finish(&self, trace: Arc<RequestTrace>, facts: RequestFacts) {
        let mut waiting = self.0.waiting.lock();
        if waiting.len() < MAX_WAITING {
            return waiting.push(FinishedRequest { trace, facts });
        }
        drop(waiting);
        self.0.lost_waiting.fetch_add(1, Relaxed);
    }

    /// Takes all waiting requests, for the exporter. Returns their number and their spans as an OTLP request
    /// in protobuf, or `None` if none waits.
    pub fn take(&self, instance: &str, version: &str) -> Option<(u64, Vec<u8>)> {
        let taken = std::mem::take(&mut *self.0.waiting.lock());
        let count = taken.len() as u64;
        (count > 0).then(|| (count, export::encode(&taken, instance, version)))
    }

    /// Records whether the collector has accepted requests.
    pub fn sent(&self, count: u64, is_accepted: bool) {
        let counter = if is_accepted { &self.0.exported } else { &self.0.lost_sending };
        counter.fetch_add(count, Relaxed);
    }

    /// Returns the counters.
    pub fn figures(&self) -> TraceFigures {
        TraceFigures {
            exported: self.0.exported.load(Relaxed),
            lost_waiting: self.0.lost_waiting.load(Relaxed),
            lost_sending: self.0.lost_sending.load(Relaxed),
        }
    }
}

/// Returns the halves of an id as numbers.
fn halves(id: [u8; 16]) -> (u64, u64) {
    let id = u128::from_be_bytes(id);
    ((id >> 64) as u64, id as u64)
}

thread_local! {
    /// The trace of the request that this thread works on.
    static CURRENT: RefCell<Option<Arc<RequestTrace>>> = const { RefCell::new(None) };
}

/// Returns the phase of the request that this thread works on, if the request is traced. Lower layers need
/// not know the request.
pub fn begin_phase(phase: Phase) -> Option<RunningPhase> {
    let trace = CURRENT.with_borrow(Option::clone)?;
    Some(RunningPhase::begin(&trace, phase))
}

/// Returns a future that runs `work` as work of the request that this thread works on now, whichever thread
/// polls it.
pub fn in_current_trace<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let trace = CURRENT.with_borrow(Option::clone);
    async move {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|cx| match &trace {
            Some(trace) => trace.enter(|| work.as_mut().poll(cx)),
            None => work.as_mut().poll(cx),
        })
        .await
    }
}

impl RequestTrace {
    /// Runs `work` as work of this request.
    pub fn enter<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        /// Restores the trace of before, also if the work panics.
        struct Entered(Option<Arc<RequestTrace>>);
        impl Drop for Entered {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _entered = Entered(CURRENT.replace(Some(Arc::clone(self))));
        work()
    }

    fn add(&self, phase: Phase, from: Duration, to: Duration) {
        let mut phases = self.phases.lock();
        if phases.len() < MAX_PHASES {
            phases.push(PhaseSpan { phase, from, to });
        }
    }
}

impl RunningPhase {
    /// Begins a phase of a request.
    pub fn begin(trace: &Arc<RequestTrace>, phase: Phase) -> Self {
        Self { trace: Arc::clone(trace), phase, from: trace.began.elapsed() }
    }
}

impl Drop for RunningPhase {
    fn drop(&mut self) {
        self.trace.add(self.phase, self.from, self.trace.began.elapsed());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn callers_decide_and_other_requests_are_sampled_by_their_id() {
        let all = Tracer::new(1.0);
        let few = Tracer::new(0.25);
        let sampled = (0..=255).filter(|byte| few.begin([*byte; 16], None).is_some()).count();
        assert!(sampled == 64 && all.begin([255; 16], None).is_some(), "{sampled}");
        for flags in ["00", "01"] {
            let header = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
            let caller = TraceContext::parse(&header, None);
            assert!(caller.is_some());
            assert_eq!(few.begin([255; 16], caller).is_some(), flags == "01");
        }
    }

    #[test]
    fn phases_belong_to_the_request_that_the_thread_works_on() {
        assert!(begin_phase(Phase::Commit).is_none());
        let tracer = Tracer::new(1.0);
        let (outer, inner) = (tracer.begin([1; 16], None).unwrap(), tracer.begin([2; 16], None).unwrap());
        outer.enter(|| {
            inner.enter(|| drop(begin_phase(Phase::Commit)));
            drop(begin_phase(Phase::Evaluate));
        });
        assert!(begin_phase(Phase::Commit).is_none());
        let phases =
            |trace: &RequestTrace| trace.phases.lock().iter().map(|span| span.phase).collect::<Vec<_>>();
        assert_eq!((phases(&outer), phases(&inner)), (vec![Phase::Evaluate], vec![Phase::Commit]));
        for _ in 0..2 * MAX_PHASES {
            outer.enter(|| drop(begin_phase(Phase::Commit)));
        }
        assert_eq!(phases(&outer).len(), MAX_PHASES);
    }

    #[test]
    fn traces_that_no_exporter_takes_are_lost_and_counted() {
        let tracer = Tracer::new(1.0);
        for _ in 0..MAX_WAITING + 5 {
            tracer.finish(tracer.begin([3; 16], None).unwrap(), RequestFacts::default());
        }
        let (count, _) = tracer.take("h", "1").unwrap();
        tracer.sent(count, false);
        assert!(tracer.take("h", "1").is_none());
        let (lost_sending, lost_waiting) = (MAX_WAITING as u64, 5);
        assert_eq!(tracer.figures(), TraceFigures { exported: 0, lost_waiting, lost_sending });
    }
}
