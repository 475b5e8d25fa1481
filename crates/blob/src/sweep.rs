//! What deleted containers have left behind is swept: their rows, and with them what keeps content alive.

use lazuli_extents::{Content, Extents, Pace};
use lazuli_generations::{Referred, Swept};
use lazuli_protocol::Refusal;
use lazuli_store::Row;

use crate::{BlobService, rows};

impl BlobService {
    /// Attempts of transactions that had to be made again.
    pub fn retries(&self) -> u64 {
        self.gate.retries() + self.containers.retries()
    }

    /// Whether [`BlobService::sweep_garbage`] may find something to do. It does when the server starts.
    pub fn garbage_due(&self) -> bool {
        self.containers.sweep_due()
    }

    /// Removes what deleted containers have left behind, and puts right what a crash has left half done. May be dropped at
    /// any point.
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

impl Referred for ContentOf<'_> {
    /// None if the row cannot be read, which is no reason to keep it.
    fn bytes(&self, partition: &[u8], row: &Row) -> u64 {
        rows::contents(partition, row).unwrap_or_default().iter().map(Content::allocated).sum()
    }

    fn released(&self, bytes: u64) {
        self.0.released(bytes);
    }
}
