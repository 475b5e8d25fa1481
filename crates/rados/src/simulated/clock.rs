//! The clock of a simulated machine.

use lazuli_concurrency::{Clock, Span, Timestamp};
use tokio::time::Instant;

/// Follows simulated time, with a constant error.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedClock {
    start: Instant,
    base: Timestamp,
}

impl SimulatedClock {
    /// The time at which all simulations begin.
    pub const BASE: Timestamp = Timestamp::from_unix_seconds(1_800_000_000);

    /// Returns a clock that shows [`Self::BASE`] at `start`.
    pub const fn exact(start: Instant) -> Self {
        Self { start, base: Self::BASE }
    }

    /// Returns a clock that is ahead by a number of milliseconds, or behind if negative.
    pub fn ahead_by(self, millis: i64) -> Self {
        let error = Span::millis(millis.unsigned_abs());
        let base = if millis < 0 { self.base - error } else { self.base + error };
        Self { base, ..self }
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let nanos = self.start.elapsed().as_nanos();
        self.base + Span::from_ticks(u64::try_from(nanos / 100).unwrap_or(u64::MAX))
    }
}
