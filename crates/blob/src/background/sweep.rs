//! Removes the rows of deleted containers, so that their content can be freed.

use lazuli_concurrency::Pace;
use lazuli_extents::{Content, Extents};
use lazuli_generations::{ContentRefs, Swept};
use lazuli_protocol::Refusal;
use lazuli_store::Row;

use crate::BlobService;
use crate::model::rows;

impl BlobService {
    /// Returns the number of attempts that conflicted and were repeated.
    pub fn retries(&self) -> u64 {
        self.rows.retries() + self.containers.retries()
    }

    /// Returns the number of transactions that wait in a gate.
    pub fn waiting(&self) -> usize {
        self.rows.waiting() + self.containers.waiting()
    }

    /// Maximum number of recorded partitions with rows of dropped blocks.
    pub const MAX_PARTITIONS_WITH_DROPPED_BLOCKS: usize = 4096;

    /// Returns the number of recorded partitions with rows of dropped blocks.
    pub fn partitions_with_dropped_blocks(&self) -> usize {
        self.dropped.recorded()
    }

    /// Returns the number of spaces that are being filled before they have a name.
    pub fn incoming_spaces(&self) -> usize {
        self.containers.incoming_spaces()
    }

    /// Returns whether [`BlobService::sweep_garbage`] may have work. Always true after a start.
    pub fn garbage_due(&self) -> bool {
        self.containers.sweep_due()
    }

    /// Removes the rows of deleted containers, and completes operations that a crash interrupted. May be
    /// dropped at any point.
    pub async fn sweep_garbage(&self, pace: Pace) -> Result<Swept, Refusal> {
        let swept = self.containers.sweep(pace, &ContentOf(&*self.extents)).await;
        if let Some(reopened) = self.containers.take_reopened()
            && self.resume_copies().await
        {
            reopened.done();
        }
        swept
    }
}

/// The content that rows of blobs refer to.
struct ContentOf<'a>(&'a dyn Extents);

impl ContentRefs for ContentOf<'_> {
    /// Returns 0 if the row cannot be decoded. The sweep removes such a row, too.
    fn bytes(&self, partition: &[u8], row: &Row) -> u64 {
        rows::contents(partition, row).unwrap_or_default().iter().map(Content::extent_bytes).sum()
    }

    fn released(&self, bytes: u64) {
        self.0.released(bytes);
    }
}
