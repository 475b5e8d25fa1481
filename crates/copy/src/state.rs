//! The state of a resource's last copy, in its row and in replies.

use http::HeaderMap;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::{ErrorCode, Refusal, date};
use lazuli_service::reply::{put, put_optional};
use serde::{Deserialize, Serialize};

/// The last copy to a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyState {
    /// The id of the copy.
    pub id: [u8; 16],
    /// The URL of the source, without credentials.
    pub source: String,
    /// The status of the copy.
    pub status: CopyStatus,
    /// Why the copy failed.
    pub description: Option<String>,
    /// Bytes copied so far.
    pub copied: u64,
    /// Length of the source in bytes.
    pub total: u64,
    /// When the copy ended.
    pub completed: Option<Timestamp>,
}

/// The status of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyStatus {
    /// The copy continues.
    Pending,
    /// The copy is complete.
    Success,
    /// A client aborted the copy.
    Aborted,
    /// The copy failed.
    Failed,
}

impl CopyStatus {
    /// Returns the value of `x-ms-copy-status`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Success => "success",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
        }
    }
}

impl CopyState {
    /// Returns the state of a copy that was completed within its request.
    pub fn finished(id: [u8; 16], source: String, total: u64, now: Timestamp) -> Self {
        let status = CopyStatus::Success;
        Self { id, source, status, description: None, copied: total, total, completed: Some(now) }
    }

    /// Returns the state of the same copy before its first byte.
    #[must_use]
    pub fn into_pending(self) -> Self {
        Self { status: CopyStatus::Pending, copied: 0, completed: None, ..self }
    }

    /// Returns whether the copy is pending.
    pub fn is_pending(&self) -> bool {
        self.status == CopyStatus::Pending
    }

    /// Aborts the copy on a client's request, if it is pending and has this id.
    pub fn abort(&mut self, id: [u8; 16], now: Timestamp) -> Result<(), Refusal> {
        if !self.is_pending() {
            return Err(ErrorCode::NoPendingCopyOperation.into());
        }
        if self.id != id {
            return Err(ErrorCode::CopyIdMismatch.into());
        }
        self.end(CopyStatus::Aborted, now);
        Ok(())
    }

    /// Ends the copy as complete.
    pub fn succeed(&mut self, now: Timestamp) {
        self.copied = self.total;
        self.end(CopyStatus::Success, now);
    }

    /// Ends the copy as failed, for this reason.
    pub fn fail(&mut self, refusal: &Refusal, now: Timestamp) {
        let (status, code, text) = (refusal.status().as_u16(), refusal.code().name(), refusal.text());
        self.description = Some(format!("{status} {code} \"{text}\""));
        self.end(CopyStatus::Failed, now);
    }

    fn end(&mut self, status: CopyStatus, now: Timestamp) {
        self.status = status;
        self.completed = Some(now);
    }

    /// Writes the headers of the reply to a copy request.
    pub fn write_accepted(&self, headers: &mut HeaderMap) {
        put(headers, "x-ms-copy-id", uuid::Uuid::from_bytes(self.id).to_string());
        put(headers, "x-ms-copy-status", self.status.name());
    }

    /// Writes the headers of replies to reads of the target.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        self.write_accepted(headers);
        put(headers, "x-ms-copy-source", &self.source);
        put_optional(headers, "x-ms-copy-status-description", self.description.as_deref());
        put(headers, "x-ms-copy-progress", self.progress());
        put_optional(headers, "x-ms-copy-completion-time", self.completed.map(date::rfc1123));
    }

    /// Returns the bytes copied and the total, as `copied/total`.
    pub fn progress(&self) -> String {
        format!("{}/{}", self.copied, self.total)
    }
}
