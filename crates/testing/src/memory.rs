//! Measures memory of this process, for tests that run alone in their process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(2);

/// Returns the bytes of memory that no file backs.
pub fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// Samples the memory of this process until dropped.
#[derive(Debug)]
pub struct Peak {
    before: u64,
    highest: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peak {
    /// Starts sampling.
    pub fn begin() -> Self {
        let before = anonymous_bytes();
        let (highest, done) = (Arc::new(AtomicU64::new(before)), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (highest, done) = (highest.clone(), done.clone());
            move || {
                while !done.load(Relaxed) {
                    highest.fetch_max(anonymous_bytes(), Relaxed);
                    std::thread::sleep(SAMPLE_INTERVAL);
                }
            }
        });
        Self { before, highest, done, thread: Some(thread) }
    }

    /// Returns by how many bytes memory has grown at its peak since [`Peak::begin`].
    pub fn growth(&self) -> u64 {
        self.highest.fetch_max(anonymous_bytes(), Relaxed);
        self.highest.load(Relaxed).saturating_sub(self.before)
    }
}

impl Drop for Peak {
    fn drop(&mut self) {
        self.done.store(true, Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}
