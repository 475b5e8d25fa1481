//! The share of the machine that background work may take.

use std::time::Duration;

/// The pace of background work that consists of many small steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// The pause after each step.
    pub pause: Duration,
}

impl Pace {
    /// No pauses.
    pub const FULL: Self = Self { pause: Duration::ZERO };

    /// Waits for the pause that follows a step.
    pub async fn rest(&self) {
        if self.pause.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(self.pause).await;
        }
    }
}
