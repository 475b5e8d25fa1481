//! Captures the log entries of a test.

use std::sync::{Arc, LazyLock};

use tempfile::NamedTempFile;
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;

/// Keeps events and spans enabled that a thread without a capture reaches first. With a single dispatcher,
/// `tracing` asks only that thread's dispatcher whether the place in the code is of interest, and remembers
/// the answer for all threads.
static SECOND_DISPATCHER: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

/// Captures the log entries of the current thread until it is dropped. The test's runtime must have no other
/// thread.
pub struct LogCapture {
    file: NamedTempFile,
    _guard: DefaultGuard,
}

impl LogCapture {
    /// Starts to capture entries of all levels up to `INFO`, as text.
    pub fn start() -> Self {
        LazyLock::force(&SECOND_DISPATCHER);
        let file = NamedTempFile::new().unwrap();
        let writer = Arc::new(file.reopen().unwrap());
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        Self { file, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// Returns the entries so far that contain a text.
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        let lines = std::fs::read_to_string(self.file.path()).unwrap();
        lines.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}
