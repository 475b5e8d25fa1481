//! Loads whose requests are due at fixed times, whether or not earlier requests are answered.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, JoinSet};

use super::super::BenchError;
use super::super::client::Client;
use super::super::round::Round;
use super::super::workload::Workload;

/// Maximum number of records that the raw writer appends at once.
const MAX_BATCH: usize = 4096;

/// The due times of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    begin: Instant,
    rate: f64,
    count: u64,
}

impl Schedule {
    /// Returns a schedule with `rate` requests per second for `time`.
    pub(super) fn new(begin: Instant, rate: f64, time: Duration) -> Self {
        Self { begin, rate: rate.max(1e-3), count: (rate * time.as_secs_f64()).ceil().max(1.0) as u64 }
    }

    /// Returns when the request with a number is due; `None` after the last request.
    fn due(&self, number: u64) -> Option<Instant> {
        (number < self.count).then(|| self.begin + Duration::from_secs_f64(number as f64 / self.rate))
    }

    /// Returns how many requests from `first` on are due at `now`.
    fn due_by(&self, first: u64, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.begin).as_secs_f64() * self.rate;
        (passed as u64 + 1).min(self.count).saturating_sub(first)
    }
}

/// The requests of one minute.
#[derive(Default)]
pub(super) struct OpenRound {
    pub(super) round: Round,
    /// The longest time between a request's due time and the moment at which the load generator woke up to
    /// send it. Requests whose connection was still busy when they were due do not count.
    pub(super) late: Duration,
}

/// Sends requests on many connections. Each free connection takes the next request of the schedule.
pub(super) async fn requests(
    workload: &Arc<dyn Workload>,
    client: &Client,
    connections: usize,
    schedule: Schedule,
) -> Result<OpenRound, BenchError> {
    let next = Arc::new(AtomicU64::new(0));
    let mut running = JoinSet::new();
    for worker in 0..connections {
        let (workload, mut client, next) = (workload.clone(), client.another(), next.clone());
        running.spawn(async move {
            let mut done = OpenRound::default();
            while let Some(due) = schedule.due(next.fetch_add(1, Ordering::Relaxed)) {
                if Instant::now() < due {
                    tokio::time::sleep_until(due.into()).await;
                    done.late = done.late.max(due.elapsed());
                }
                let i = done.round.latency.count() + done.round.errors.values().sum::<u64>();
                let outcome = workload.run_one(&mut client, worker, i).await;
                done.round.note(due.elapsed(), outcome.map_err(|failure| failure.to_string()));
            }
            done
        });
    }
    let mut total = OpenRound::default();
    while let Some(done) = running.join_next().await {
        let done = done?;
        total.round.add(&done.round);
        total.late = total.late.max(done.late);
    }
    total.round.finish(schedule.begin.elapsed());
    Ok(total)
}

/// Sends requests like [`requests`], but on a separate thread, so that they do not wait for other requests of
/// this process.
pub(super) fn requests_on_own_thread(
    workload: Arc<dyn Workload>,
    client: Client,
    connections: usize,
    schedule: Schedule,
) -> JoinHandle<Result<OpenRound, BenchError>> {
    tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(BenchError::Runtime)?;
        runtime.block_on(requests(&workload, &client, connections, schedule))
    })
}

/// Appends and syncs all records that are due, in one batch at a time, as a log without Lazuli would.
pub(super) fn raw_writer(path: &Path, bytes: usize, rate: f64, time: Duration) -> io::Result<Round> {
    let mut file = File::create(path)?;
    file.sync_all()?;
    let records = vec![0x5a; bytes * MAX_BATCH];
    let schedule = Schedule::new(Instant::now(), rate, time);
    let (mut round, mut first) = (Round::default(), 0);
    while let Some(due) = schedule.due(first) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let count = schedule.due_by(first, Instant::now()).clamp(1, MAX_BATCH as u64);
        file.write_all(&records[..bytes * count as usize])?;
        file.sync_data()?;
        let done = Instant::now();
        for number in first..first + count {
            if let Some(due) = schedule.due(number) {
                round.note(done.saturating_duration_since(due), Ok(()));
            }
        }
        first += count;
    }
    round.finish(schedule.begin.elapsed());
    drop(file);
    std::fs::remove_file(path)?;
    Ok(round)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_evenly_spaced_and_end() {
        let begin = Instant::now();
        let schedule = Schedule::new(begin, 100.0, Duration::from_secs(2));
        assert_eq!(schedule.due(0), Some(begin));
        assert_eq!(schedule.due(150), Some(begin + Duration::from_millis(1500)));
        assert_eq!((schedule.due(199).is_some(), schedule.due(200)), (true, None));
        assert_eq!(schedule.due_by(0, begin), 1);
        assert_eq!(schedule.due_by(10, begin + Duration::from_millis(205)), 11);
        assert_eq!(schedule.due_by(10, begin + Duration::from_secs(60)), 190);
        assert_eq!(schedule.due_by(10, begin), 0);
    }

    #[test]
    fn raw_writer_writes_every_record_of_its_schedule() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        let round = raw_writer(&path, 16, 1000.0, Duration::from_millis(50)).unwrap();
        assert_eq!(round.latency.count(), 50);
        assert!(!path.exists());
    }
}
