//! A progress bar for terminals.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar of one line. Draws on standard error, and only if that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Starts a bar with this number of steps.
    pub(crate) fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len}  {elapsed}  {wide_msg}") {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(250));
        }
        Self(bar)
    }

    /// Adds steps.
    pub(crate) fn extend(&self, steps: usize) {
        self.0.inc_length(steps as u64);
    }

    /// Begins the next step.
    pub(crate) fn step(&self, what: impl Into<String>) {
        self.0.inc(1);
        self.0.set_message(what.into());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
