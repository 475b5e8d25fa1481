//! Spilling and flushing buffered writes.

use std::time::Duration;

use lazuli_store::SpaceId;
use tokio::time::timeout_at;
use tracing::{Instrument, Span};

use crate::FileService;
use crate::failure::Failure;
use crate::opens::write_buffer::FlushReason;
use crate::opens::{Admission, OpenLocation};
use crate::tree::spot::FileKey;

/// Buffered writes are flushed after this long.
pub(crate) const AGE: Duration = Duration::from_secs(1);
/// Upper bound of the exponential backoff after a failed flush.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// A file with this many buffered bytes is spilled in the background.
const SPILL: usize = 4 << 20;
/// Writers block while one file has this many buffered bytes.
const MAX_BUFFERED: usize = 32 << 20;
/// Writers block while all files together have this many buffered bytes.
const MAX_BUFFERED_TOTAL: usize = 256 << 20;

/// Returns the span of a background flush, which may serve several requests and outlive them.
fn flush_span(file: FileKey) -> Span {
    tracing::error_span!(parent: None, "flush", ?file)
}

impl FileService {
    /// Spills a large buffer in the background. Waits for the spill if the buffers of this file, or of all
    /// files together, are too large.
    pub(super) async fn limit_buffer(&self, file: FileKey, buffered: usize) -> Result<(), Failure> {
        if buffered > MAX_BUFFERED || self.opens.buffered() > MAX_BUFFERED_TOTAL {
            let lock = self.lock_file(file).await;
            return self.spill(&lock).await;
        }
        if buffered < SPILL {
            return Ok(());
        }
        let begins = self.opens.with(file, |state| !std::mem::replace(&mut state.buffer.spilling, true));
        if begins {
            let this = self.clone();
            let spill = async move {
                let lock = this.lock_file(file).await;
                this.opens.with(file, |state| state.buffer.spilling = false);
                if let Err(failure) = this.spill(&lock).await {
                    this.opens.with(file, |state| state.buffer.failed = Some(failure));
                }
            };
            tokio::spawn(spill.instrument(flush_span(file)));
        }
        Ok(())
    }

    /// Flushes a file after a pause. Repeats a failed flush with exponential backoff.
    pub(super) fn flush_after(&self, file: FileKey, pause: Duration) {
        let this = self.clone();
        let flush = async move {
            tokio::time::sleep(pause).await;
            this.opens.with(file, |state| (state.buffer.timed, state.buffer.timer) = (false, None));
            if let Err(failure) = this.flush_file(file, FlushReason::Timer).await {
                let is_left = this.opens.with(file, |state| {
                    state.buffer.failed = Some(failure);
                    state.buffer.is_dirty() && !std::mem::replace(&mut state.buffer.timed, true)
                });
                if is_left {
                    this.flush_after(file, MAX_PAUSE.min(pause * 2));
                }
            }
        };
        let timer = tokio::spawn(flush.instrument(flush_span(file)));
        self.opens.with(file, |state| state.buffer.timer = Some(timer.abort_handle()));
    }

    /// Flushes in the background what a client has written back before it gives up its cache. Other clients
    /// see it already.
    pub fn flush_soon(&self, file: FileKey) {
        if self.opens.peek(file, |state| state.buffer.is_dirty()).unwrap_or_default() {
            let this = self.clone();
            let flush = async move {
                if let Err(failure) = this.flush_file(file, FlushReason::Requested).await {
                    this.opens.with(file, |state| state.buffer.failed = Some(failure));
                }
            };
            tokio::spawn(flush.instrument(flush_span(file)));
        }
    }

    /// Flushes matching files of a share, or of all shares. Errors are kept for the clients that have
    /// written.
    pub(crate) async fn flush_some(
        &self,
        space: Option<SpaceId>,
        picks: impl Fn(FileKey, &OpenLocation) -> bool,
    ) {
        for file in self.opens.dirty(space, picks) {
            if let Err(failure) = self.flush_file(file, FlushReason::Requested).await {
                tracing::warn!(%failure, ?file, "flushing buffered writes failed");
                self.opens.with(file, |state| state.buffer.failed = Some(failure));
            }
        }
    }

    /// Flushes all files, before the server stops.
    pub async fn flush_all(&self) {
        self.flush_some(None, |_, _| true).await;
    }

    /// Handles a refused request over REST: flushes the file or waits for the client. Returns whether to try
    /// again.
    ///
    /// A flush that takes longer continues in the background.
    pub(crate) async fn flush_or_wait(&self, admission: &mut Admission) -> bool {
        let Some(file) = admission.flush() else { return admission.wait_for_clients().await };
        let flushed = timeout_at(admission.deadline(), self.flush_file(file, FlushReason::Requested)).await;
        flushed.is_ok_and(|flushed| flushed.is_ok())
    }

    /// Drops the buffered writes of a file that is deleted or cannot be written.
    pub(crate) fn discard(&self, file: FileKey) {
        self.opens.with(file, |state| {
            let reserved = state.buffer.discard();
            let _ = self.usages.adjust_buffered(file.space, -(reserved as i64));
        });
    }
}
