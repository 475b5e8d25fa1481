//! The minimum rate of sources that a request waits for. Each holds one of few connections, and the request.
//! A copy that continues after its request has no minimum rate, because slow ones have connections of their
//! own, see [`crate::pending`].

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// Maximum time that a request waits for the next [`PROGRESS_BYTES`] of a source.
const PROGRESS_TIME: Duration = Duration::from_secs(60);
/// Bytes that a source has to send in [`PROGRESS_TIME`].
const PROGRESS_BYTES: u64 = 1 << 20;

/// Measures the rate of a source over all its replies. Only time spent waiting for the source counts.
#[derive(Debug)]
pub(crate) struct MinimumRate {
    /// Time left to wait for the rest of the next [`PROGRESS_BYTES`]; `None` if any rate is fast enough.
    left: Option<Duration>,
    /// Bytes received since `left` was last reset.
    received: u64,
}

/// A source that sends too slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooSlow;

impl MinimumRate {
    /// Begins to measure. If `is_required` is false, any rate is fast enough.
    pub(crate) fn new(is_required: bool) -> Self {
        Self { left: is_required.then_some(PROGRESS_TIME), received: 0 }
    }

    /// Waits for the source.
    pub(crate) async fn wait<T>(&mut self, source: impl Future<Output = T>) -> Result<T, TooSlow> {
        let Some(left) = &mut self.left else { return Ok(source.await) };
        let began = Instant::now();
        let output = timeout(*left, source).await.map_err(|_| TooSlow)?;
        *left = left.saturating_sub(began.elapsed());
        Ok(output)
    }

    /// Counts received bytes.
    pub(crate) fn received(&mut self, bytes: u64) {
        self.received += bytes;
        if self.received >= PROGRESS_BYTES {
            self.received = 0;
            self.left = self.left.map(|_| PROGRESS_TIME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_source_has_to_send_progress_bytes_within_progress_time() {
        let mut rate = MinimumRate::new(true);
        for _ in 0..59 {
            assert_eq!(rate.wait(sleep(SECOND)).await, Ok(()));
            rate.received(1);
        }
        // The reader's own time does not count.
        sleep(100 * SECOND).await;
        assert_eq!(rate.wait(sleep(2 * SECOND)).await, Err(TooSlow));

        let mut rate = MinimumRate::new(true);
        for _ in 0..10 {
            assert_eq!(rate.wait(sleep(59 * SECOND)).await, Ok(()));
            rate.received(PROGRESS_BYTES);
        }
        let mut rate = MinimumRate::new(false);
        assert_eq!(rate.wait(sleep(1000 * SECOND)).await, Ok(()));
    }
}
