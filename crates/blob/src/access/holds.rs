//! Keeps content from being freed while a request uses it.
//!
//! A content sweep frees the content that no row refers to. It reads the rows one after the other while they
//! change, so requests announce the content that the sweep could miss. The documentation of the crate
//! `lazuli_extents` describes the protocol:
//!
//! - Content that a request **stores** is held by the [`Writer`] through which it was stored.
//! - Content that a request **reads** must be pinned before its row is read: with [`BlobService::pin`] for a
//!   reply, or [`BlobService::begin_pinned`] for a write that builds on the content.
//! - Content that a commit only **moves** to another row is held with [`BlobService::hold_contents`].
//!
//! A writer must live until its commit is decided, and the hold of a reader until the last byte is sent.

use lazuli_extents::{Pin, Writer};
use lazuli_protocol::Refusal;
use lazuli_store::{Attempt, Attempts, Reads};

use crate::BlobService;
use crate::model::keys;
use crate::model::record::{self, Blob};

impl BlobService {
    /// Pins all content. Call this before reading a row whose content will be read.
    pub(crate) fn pin(&self) -> Pin {
        self.extents.pin()
    }

    /// Holds the content of a state that the next commit moves to another row. The row may have been read
    /// before: the commit fails if the row has changed since, and a sweep finds the content there until then.
    /// Also extends an existing hold.
    pub(crate) fn hold_contents(&self, writer: &Writer, blob: &Blob) {
        writer.hold(self.pin(), blob.contents());
    }

    /// Begins an attempt that builds on the content of a blob, and returns the current state of the blob.
    /// `writer` holds its content. `reads` must include the row of the current state.
    pub(crate) async fn begin_pinned(
        &self,
        attempts: &mut Attempts<'_>,
        reads: Reads,
        writer: &Writer,
    ) -> Result<(Attempt, Option<Blob>), Refusal> {
        // A sweep waits for pins, so take the pin only after the wait in the gate.
        attempts.wait_turn().await;
        let pin = self.pin();
        let (attempt, blob) = self.begin(attempts, reads).await?;
        match &blob {
            Some(blob) => writer.hold(pin, blob.contents()),
            None => drop(pin),
        }
        Ok((attempt, blob))
    }

    /// Begins an attempt that does not read content, and returns the current state of the blob.
    pub(crate) async fn begin(
        &self,
        attempts: &mut Attempts<'_>,
        reads: Reads,
    ) -> Result<(Attempt, Option<Blob>), Refusal> {
        let attempt = attempts.begin(reads).await;
        let attempt = attempt.map_err(|error| self.rows.refusal(attempts.partition(), error))?;
        let blob = record::blob(attempt.view().row(&keys::BASE));
        let blob = blob.map_err(|damage| damage.at(attempts.partition()))?;
        Ok((attempt, blob))
    }
}
