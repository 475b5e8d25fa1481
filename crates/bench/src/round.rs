//! Rounds of a measurement: workers repeat an operation for a given time, and each operation is timed.
//!
//! Failed operations are counted by reason and never as throughput.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout_at};

use super::BenchError;
use super::histogram::Histogram;

/// Maximum number of distinct reasons. Further ones are counted together.
const MAX_REASONS: usize = 32;

/// Performs operations, one at a time.
pub(crate) trait Worker: Send + 'static {
    /// Performs one operation. The error is the reason of the failure.
    fn once(&mut self) -> impl Future<Output = Result<(), String>> + Send;
}

/// The duration and the maximum rate of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Time before the counted time, in which operations are not counted.
    pub(crate) warm_up: Duration,
    /// The counted time.
    pub(crate) time: Duration,
    /// Maximum operations per second of all workers together.
    pub(crate) rate: Option<f64>,
}

impl Pace {
    /// Returns a pace without a limit of the rate.
    pub(crate) fn full(warm_up: Duration, time: Duration) -> Self {
        Self { warm_up, time, rate: None }
    }
}

/// The result of one round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    /// Successful operations per second.
    pub(crate) per_s: f64,
    /// Latencies of successful operations.
    pub(crate) latency: Histogram,
    /// Number of failed operations by reason.
    pub(crate) errors: BTreeMap<String, u64>,
}

impl Round {
    /// Counts one operation.
    pub(crate) fn note(&mut self, took: Duration, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.latency.record(took),
            Err(reason) => self.note_failure(reason, 1),
        }
    }

    /// Computes the rate over the elapsed time.
    pub(crate) fn finish(&mut self, elapsed: Duration) {
        self.per_s = self.latency.count() as f64 / elapsed.as_secs_f64().max(1e-9);
    }

    /// Adds the result of another worker of the same round.
    pub(crate) fn add(&mut self, other: &Self) {
        self.per_s += other.per_s;
        self.latency.add(&other.latency);
        for (reason, count) in &other.errors {
            self.note_failure(reason.clone(), *count);
        }
    }

    fn note_failure(&mut self, reason: String, count: u64) {
        let known = self.errors.len() < MAX_REASONS || self.errors.contains_key(&reason);
        *self.errors.entry(if known { reason } else { "other".into() }).or_default() += count;
    }
}

/// Runs all workers at once and returns them.
///
/// The rate is the sum of the workers' rates. Each covers the time from the worker's first counted operation
/// to the end of its last. So an operation that is in flight when the time is over is counted with its full
/// duration, and does not make other workers look slow. Unless the rate is limited, each worker counts at
/// least one operation, however slow.
pub(crate) async fn round<W: Worker>(workers: Vec<W>, pace: Pace) -> Result<(Round, Vec<W>), BenchError> {
    let count = workers.len();
    let begin = Instant::now() + pace.warm_up;
    let interval = pace.rate.map(|rate| Duration::from_secs_f64(count as f64 / rate.max(1e-3)));
    let mut running = JoinSet::new();
    for (number, worker) in workers.into_iter().enumerate() {
        // With a limited rate, workers start one after the other instead of all at once.
        let offset =
            interval.map_or(Duration::ZERO, |interval| interval.mul_f64(number as f64 / count as f64));
        running.spawn(work(worker, begin, begin + pace.time, interval, offset));
    }
    let mut total = Round::default();
    let mut workers = Vec::with_capacity(count);
    while let Some(done) = running.join_next().await {
        let (one, worker) = done?;
        total.add(&one);
        workers.push(worker);
    }
    Ok((total, workers))
}

async fn work<W: Worker>(
    mut worker: W,
    begin: Instant,
    end: Instant,
    interval: Option<Duration>,
    offset: Duration,
) -> (Round, W) {
    let mut ticks = interval.map(|interval| {
        let mut ticks = interval_at(Instant::now() + offset, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        ticks
    });
    // With a limited rate, the rate covers the whole time, else the time from the first counted operation to
    // the last.
    let (mut first, mut last) = interval.map_or((None, begin), |_| (Some(begin), end));
    let mut round = Round::default();
    loop {
        if let Some(ticks) = &mut ticks
            && timeout_at(end, ticks.tick()).await.is_err()
        {
            break;
        }
        let started = Instant::now();
        if started >= end && first.is_some() {
            break;
        }
        let outcome = worker.once().await;
        // Operations that never wait must yield to other tasks.
        tokio::task::coop::consume_budget().await;
        if started >= begin {
            let done = Instant::now();
            first.get_or_insert(started);
            last = last.max(done);
            round.note(done - started, outcome);
        }
    }
    round.finish(last - first.unwrap_or(last));
    (round, worker)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a millisecond per operation. Every third operation fails.
    struct EveryThirdFails(u64);

    impl Worker for EveryThirdFails {
        async fn once(&mut self) -> Result<(), String> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.0 += 1;
            if self.0.is_multiple_of(3) { Err("503 ServerBusy".into()) } else { Ok(()) }
        }
    }

    fn done(workers: &[EveryThirdFails]) -> Vec<u64> {
        workers.iter().map(|worker| worker.0).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_counted_by_reason_and_not_as_throughput() {
        let pace = Pace::full(Duration::ZERO, Duration::from_millis(99));
        let (round, workers) = round(vec![EveryThirdFails(0), EveryThirdFails(0)], pace).await.unwrap();
        assert_eq!(done(&workers), [99, 99]);
        assert_eq!(round.latency.count(), 2 * 66);
        assert_eq!(round.errors["503 ServerBusy"], 2 * 33);
        assert!((round.per_s - 2.0 * 66.0 / 0.099).abs() < 1e-6, "{}", round.per_s);
    }

    #[tokio::test(start_paused = true)]
    async fn warm_up_is_not_counted() {
        let pace = Pace::full(Duration::from_millis(60), Duration::from_millis(30));
        let (round, workers) = round(vec![EveryThirdFails(0)], pace).await.unwrap();
        assert_eq!(done(&workers), [90]);
        assert_eq!(round.latency.count() + round.errors["503 ServerBusy"], 30);
    }

    #[tokio::test(start_paused = true)]
    async fn rate_limits_all_workers_together() {
        let pace = Pace { warm_up: Duration::ZERO, time: Duration::from_secs(1), rate: Some(50.0) };
        let (round, workers) = round((0..5).map(|_| EveryThirdFails(0)).collect(), pace).await.unwrap();
        assert_eq!(done(&workers), [10; 5]);
        assert_eq!((round.latency.count(), round.per_s), (35, 35.0), "each third one failed");
    }

    #[tokio::test(start_paused = true)]
    async fn tiny_rate_ends_in_time() {
        let start = Instant::now();
        let pace = Pace { warm_up: Duration::ZERO, time: Duration::from_secs(1), rate: Some(0.001) };
        round(vec![EveryThirdFails(0), EveryThirdFails(0)], pace).await.unwrap();
        assert!(start.elapsed() <= Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn operation_in_flight_at_the_end_counts_with_its_full_duration() {
        struct Slow;
        impl Worker for Slow {
            async fn once(&mut self) -> Result<(), String> {
                tokio::time::sleep(Duration::from_secs(4)).await;
                Ok(())
            }
        }
        for warm_up in [Duration::ZERO, Duration::from_secs(2)] {
            let (round, _) = round(vec![Slow], Pace::full(warm_up, Duration::from_secs(1))).await.unwrap();
            assert_eq!((round.latency.count(), round.per_s), (1, 0.25));
        }
    }

    #[test]
    fn number_of_reasons_is_bounded() {
        let mut round = Round::default();
        for n in 0..100 {
            round.note(Duration::ZERO, Err(format!("reason {n}")));
        }
        assert_eq!(round.errors.len(), MAX_REASONS + 1);
        assert_eq!(round.errors.values().sum::<u64>(), 100);
    }
}
