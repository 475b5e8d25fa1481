//! Sweeps deleted containers: removes their rows, which frees their content.

use lazuli_concurrency::Pace;
use lazuli_extents::{Content, Extents};
use lazuli_generations::{ContentRefs, Swept};
use lazuli_protocol::Refusal;
use lazuli_store::Row;

use crate::BlobService;
use crate::model::rows;

impl BlobService {
    /// The number of attempts that conflicted and were repeated.
    pub fn retries(&self) -> u64 {
        self.rows.retries() + self.containers.retries()
    }

    /// The number of transactions that wait for others.
    pub fn waiting(&self) -> usize {
        self.rows.waiting() + self.containers.waiting()
    }

    /// Whether [`BlobService::sweep_garbage`] may find something to do. It does when the server starts.
    pub fn garbage_due(&self) -> bool {
        self.containers.sweep_due()
    }

    /// Removes the rows of deleted containers, and completes what a crash interrupted. May be dropped at any
    /// point.
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
    /// 0 if the row cannot be read. It is removed anyway.
    fn bytes(&self, partition: &[u8], row: &Row) -> u64 {
        rows::contents(partition, row).unwrap_or_default().iter().map(Content::extent_bytes).sum()
    }

    fn released(&self, bytes: u64) {
        self.0.released(bytes);
    }
}
