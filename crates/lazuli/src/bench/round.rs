//! One round of a measurement: a number of workers, each doing the same thing again as soon as it is done, for a
//! given time. What fails is counted by its reason and never as throughput.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout_at};

use super::BenchError;
use super::histogram::Histogram;

/// Reasons of failure that are told apart; whatever comes after counts as one.
const MAX_REASONS: usize = 32;

/// Does one thing again and again.
pub(crate) trait Worker: Send + 'static {
    /// Does it once, or says why it failed.
    fn once(&mut self) -> impl Future<Output = Result<(), String>> + Send;
}

/// How long, and how fast at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Work that is not counted, before what is.
    pub(crate) warm_up: Duration,
    /// How long to count.
    pub(crate) time: Duration,
    /// Operations a second of all workers together, at most.
    pub(crate) rate: Option<f64>,
}

impl Pace {
    /// As fast as it goes.
    pub(crate) fn full(warm_up: Duration, time: Duration) -> Self {
        Self { warm_up, time, rate: None }
    }
}

/// What one round came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    /// Operations a second that succeeded.
    pub(crate) per_s: f64,
    /// How long those took that succeeded.
    pub(crate) latency: Histogram,
    /// How many failed, by reason.
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

    /// Computes the rate over the time that it all took.
    pub(crate) fn finish(&mut self, elapsed: Duration) {
        self.per_s = self.latency.count() as f64 / elapsed.as_secs_f64().max(1e-9);
    }

    /// Adds what another worker did at the same time.
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

/// Runs all workers at once and gives them back.
///
/// The rate is the sum of each worker's own, over the time from its first counted operation to the end of its last:
/// so an operation that is under way when time is up neither counts for nothing nor makes others look slow. Each worker
/// has at least one, however slow it is, unless it is held back.
pub(crate) async fn round<W: Worker>(workers: Vec<W>, pace: Pace) -> Result<(Round, Vec<W>), BenchError> {
    let count = workers.len();
    let begin = Instant::now() + pace.warm_up;
    let interval = pace.rate.map(|rate| Duration::from_secs_f64(count as f64 / rate.max(1e-3)));
    let mut running = JoinSet::new();
    for (number, worker) in workers.into_iter().enumerate() {
        // Workers that are held back take turns instead of going all at once.
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
    // Who is held back works for the whole time; who is not, from the first counted operation to the last.
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
        // Work that never waits must leave others a turn.
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

    /// Takes a millisecond, and fails every third time.
    struct Third(u64);

    impl Worker for Third {
        async fn once(&mut self) -> Result<(), String> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.0 += 1;
            if self.0.is_multiple_of(3) { Err("503 ServerBusy".into()) } else { Ok(()) }
        }
    }

    fn done(workers: &[Third]) -> Vec<u64> {
        workers.iter().map(|worker| worker.0).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_counted_by_reason_and_are_no_throughput() {
        let pace = Pace::full(Duration::ZERO, Duration::from_millis(99));
        let (round, workers) = round(vec![Third(0), Third(0)], pace).await.unwrap();
        assert_eq!(done(&workers), [99, 99]);
        assert_eq!(round.latency.count(), 2 * 66);
        assert_eq!(round.errors["503 ServerBusy"], 2 * 33);
        assert!((round.per_s - 2.0 * 66.0 / 0.099).abs() < 1e-6, "{}", round.per_s);
    }

    #[tokio::test(start_paused = true)]
    async fn the_warm_up_is_not_counted() {
        let pace = Pace::full(Duration::from_millis(60), Duration::from_millis(30));
        let (round, workers) = round(vec![Third(0)], pace).await.unwrap();
        assert_eq!(done(&workers), [90]);
        assert_eq!(round.latency.count() + round.errors["503 ServerBusy"], 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_holds_all_workers_together_back() {
        let pace = Pace { warm_up: Duration::ZERO, time: Duration::from_secs(1), rate: Some(50.0) };
        let (round, workers) = round((0..5).map(|_| Third(0)).collect(), pace).await.unwrap();
        assert_eq!(done(&workers), [10; 5]);
        assert_eq!((round.latency.count(), round.per_s), (35, 35.0), "each third one failed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_of_almost_nothing_ends_in_time() {
        let start = Instant::now();
        let pace = Pace { warm_up: Duration::ZERO, time: Duration::from_secs(1), rate: Some(0.001) };
        round(vec![Third(0), Third(0)], pace).await.unwrap();
        assert!(start.elapsed() <= Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn work_under_way_when_time_is_up_counts_with_the_time_that_it_took() {
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
    fn the_number_of_reasons_is_bounded() {
        let mut round = Round::default();
        for n in 0..100 {
            round.note(Duration::ZERO, Err(format!("reason {n}")));
        }
        assert_eq!(round.errors.len(), MAX_REASONS + 1);
        assert_eq!(round.errors.values().sum::<u64>(), 100);
    }
}
