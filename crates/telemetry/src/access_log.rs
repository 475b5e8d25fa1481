//! The access log: one line for each request, in a file or on stderr.
//!
//! Request threads append lines to a buffer with a bound; the writer thread takes the whole buffer at a time.
//! A line that does not fit, or that cannot be written, is lost and counted. The writer reports losses in
//! the server's log, at most once a minute.

pub(crate) mod line;
mod sink;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};

use line::{Line, LineFormat};
pub use sink::{Destination, OpenError};
use sink::{Sink, count_lines};

/// Maximum bytes of lines that wait for the writer: those of about 12,000 requests.
const MAX_WAITING: usize = 4 << 20;
/// Bytes from which on the writer does not wait for more lines.
const BATCH: usize = 64 << 10;
/// Maximum time that a line waits for more lines.
const DELAY: Duration = Duration::from_millis(100);
/// Maximum time for writing the last lines when the server stops.
const CLOSE_TIME: Duration = Duration::from_secs(2);
/// Minimum interval between two reports of lost lines.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// The access log. Clones write to the same destination.
#[derive(Clone, Debug)]
pub struct AccessLog {
    queue: Arc<WaitingLines>,
    format: LineFormat,
}

/// Counters of an access log since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessLogFigures {
    /// Lines that were written.
    pub written: u64,
    /// Lines lost because too many waited for the writer.
    pub lost_waiting: u64,
    /// Lines lost because the destination did not take them.
    pub lost_writing: u64,
}

/// The thread that writes an access log. Dropping this writes the waiting lines and ends the thread.
#[derive(Debug)]
pub struct AccessLogWriter {
    queue: Arc<WaitingLines>,
    thread: Option<JoinHandle<()>>,
}

/// Lines that wait for the writer.
#[derive(Debug, Default)]
struct WaitingLines {
    waiting: Mutex<WaitingState>,
    /// Notified of a first line, of a full batch and of requests to the writer.
    changed: Condvar,
    /// Notified when the writer thread has ended.
    ended: Condvar,
    written: AtomicU64,
    lost_waiting: AtomicU64,
    lost_writing: AtomicU64,
}

#[derive(Debug, Default)]
struct WaitingState {
    lines: Vec<u8>,
    must_reopen: bool,
    must_close: bool,
    has_ended: bool,
}

impl AccessLog {
    /// Opens the destination and starts the writer thread.
    pub fn open(destination: Destination, format: LineFormat) -> Result<(Self, AccessLogWriter), OpenError> {
        let sink = Sink::open(destination)?;
        let queue = Arc::<WaitingLines>::default();
        let taken = queue.clone();
        let thread = std::thread::Builder::new().name("lazuli-access".into());
        let thread = thread.spawn(move || taken.write_all(sink)).map_err(OpenError::Thread)?;
        Ok((Self { queue: queue.clone(), format }, AccessLogWriter { queue, thread: Some(thread) }))
    }

    /// Adds a line with the time and the fields that `fill` adds. Never waits for the destination.
    pub fn write(&self, fill: impl FnOnce(&mut Line<'_>)) {
        thread_local!(static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        TEXT.with_borrow_mut(|text| {
            text.clear();
            let mut line = Line::begin(text, self.format, SystemTime::now());
            fill(&mut line);
            line.end();
            self.queue.add(text);
        });
    }

    /// Makes the writer open its file again, after it has written the waiting lines to the old one.
    pub fn reopen(&self) {
        self.queue.waiting.lock().must_reopen = true;
        self.queue.changed.notify_one();
    }

    /// Returns the counters.
    pub fn figures(&self) -> AccessLogFigures {
        AccessLogFigures {
            written: self.queue.written.load(Relaxed),
            lost_waiting: self.queue.lost_waiting.load(Relaxed),
            lost_writing: self.queue.lost_writing.load(Relaxed),
        }
    }
}

impl Drop for AccessLogWriter {
    fn drop(&mut self) {
        let mut waiting = self.queue.waiting.lock();
        waiting.must_close = true;
        self.queue.changed.notify_one();
        let deadline = Instant::now() + CLOSE_TIME;
        // A destination that takes no bytes must not keep the server from stopping.
        while !waiting.has_ended {
            if self.queue.ended.wait_until(&mut waiting, deadline).timed_out() {
                return;
            }
        }
        drop(waiting);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl WaitingLines {
    fn add(&self, line: &[u8]) {
        let mut waiting = self.waiting.lock();
        let before = waiting.lines.len();
        if before + line.len() > MAX_WAITING {
            drop(waiting);
            self.lost_waiting.fetch_add(1, Relaxed);
            return;
        }
        waiting.lines.extend_from_slice(line);
        let after = waiting.lines.len();
        drop(waiting);
        if before == 0 || (before < BATCH && after >= BATCH) {
            self.changed.notify_one();
        }
    }

    /// Writes lines until the log is closed.
    fn write_all(&self, mut sink: Sink) {
        let mut batch = Vec::new();
        let mut reported = LossReport::default();
        loop {
            let (must_reopen, must_close) = self.take(&mut batch);
            if !batch.is_empty() {
                let (written, error) = sink.write(&batch);
                self.written.fetch_add(written, Relaxed);
                let lost = count_lines(&batch) - written;
                self.lost_writing.fetch_add(lost, Relaxed);
                batch.clear();
                reported.report(self, sink.name(), error);
            }
            if must_reopen {
                sink.reopen();
            }
            if must_close {
                break;
            }
        }
        self.waiting.lock().has_ended = true;
        self.ended.notify_all();
    }

    /// Waits for lines or a request to the writer, and takes all lines. Returns whether to reopen the
    /// destination, and whether to close it.
    fn take(&self, batch: &mut Vec<u8>) -> (bool, bool) {
        let mut waiting = self.waiting.lock();
        while waiting.lines.is_empty() && !waiting.must_reopen && !waiting.must_close {
            self.changed.wait(&mut waiting);
        }
        // More lines usually follow, and one write for all of them is cheaper.
        let deadline = Instant::now() + DELAY;
        while waiting.lines.len() < BATCH && !waiting.must_reopen && !waiting.must_close {
            if self.changed.wait_until(&mut waiting, deadline).timed_out() {
                break;
            }
        }
        std::mem::swap(&mut waiting.lines, batch);
        (std::mem::take(&mut waiting.must_reopen), waiting.must_close)
    }
}

/// The losses that were reported in the server's log.
#[derive(Default)]
struct LossReport {
    lost: u64,
    at: Option<Instant>,
    error: Option<std::io::Error>,
}

impl LossReport {
    /// Reports lines that were lost since the last report, unless that was a short time ago.
    fn report(&mut self, queue: &WaitingLines, path: &str, error: Option<std::io::Error>) {
        self.error = error.or(self.error.take());
        let lost = queue.lost_waiting.load(Relaxed) + queue.lost_writing.load(Relaxed);
        if lost == self.lost || self.at.is_some_and(|at| at.elapsed() < REPORT_EVERY) {
            return;
        }
        let lines = lost - self.lost;
        match self.error.take() {
            Some(error) => tracing::warn!(path, lines, %error, "lines of the access log were lost"),
            None => {
                tracing::warn!(path, lines, "lines of the access log were lost: it takes too few a second")
            }
        }
        (self.lost, self.at) = (lost, Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests;
