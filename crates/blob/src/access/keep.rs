//! Keeps content from being freed while a request works with it.
//!
//! A sweep frees the content that no row refers to. It reads the rows one after the other while they change,
//! so requests announce the content that it could miss; the crate documentation of `lazuli_extents` describes
//! the protocol:
//!
//! - Content that a request **stores** is kept by the [`Writer`] that it was stored through.
//! - Content that a request **reads** must be pinned before its row is read: [`BlobService::pin`] for an
//!   answer, [`BlobService::begin_pinned`] for a write that builds on the content.
//! - Content that a commit only **moves** to another row is kept with [`BlobService::keep`].
//!
//! A writer must live until its commit is decided, and the hold of a reader until the last byte is sent.

use lazuli_extents::{Pin, Writer};
use lazuli_protocol::Refusal;
use lazuli_store::{Attempt, Attempts, Reads};

use crate::BlobService;
use crate::model::keys;
use crate::model::record::{self, Blob};

impl BlobService {
    /// Announces that a row is about to be read whose content will be read too.
    pub(crate) fn pin(&self) -> Pin {
        self.extents.pin()
    }

    /// Keeps the content of a state that the next commit moves to another row. The row may have been read
    /// before this: the commit fails if the row has changed since, and a sweep finds the content there until
    /// then. Also extends a hold that is still alive.
    pub(crate) fn keep(&self, writer: &Writer, blob: &Blob) {
        writer.hold(self.pin(), blob.contents());
    }

    /// Begins an attempt that builds on the content of a blob, which `writer` keeps. `reads` includes the row
    /// of the current state. Returns that state, too.
    pub(crate) async fn begin_pinned(
        &self,
        attempts: &mut Attempts<'_>,
        reads: Reads,
        writer: &Writer,
    ) -> Result<(Attempt, Option<Blob>), Refusal> {
        // A sweep waits for pins, so take none while waiting in a line.
        attempts.wait_turn().await;
        let pin = self.pin();
        let (attempt, blob) = self.begin(attempts, reads).await?;
        match &blob {
            Some(blob) => writer.hold(pin, blob.contents()),
            None => drop(pin),
        }
        Ok((attempt, blob))
    }

    /// Begins an attempt that does not read content. Returns the current state of the blob, too.
    pub(crate) async fn begin(
        &self,
        attempts: &mut Attempts<'_>,
        reads: Reads,
    ) -> Result<(Attempt, Option<Blob>), Refusal> {
        let attempt = attempts.begin(reads).await.map_err(|error| self.rows.refusal(error))?;
        let blob = record::blob(attempt.view().row(&keys::BASE))?;
        Ok((attempt, blob))
    }
}
