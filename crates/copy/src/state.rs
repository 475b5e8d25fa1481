//! What is known of the copy that something came from: in its row, and in replies.

use http::{HeaderMap, HeaderName, HeaderValue};
use lazuli_concurrency::Timestamp;
use lazuli_generations::record::optional_ticks;
use lazuli_protocol::{ErrorCode, Refusal, date};
use serde::{Deserialize, Serialize};

/// The last copy onto something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyState {
    /// Its id.
    pub id: [u8; 16],
    /// The URL of the source, without credentials.
    pub source: String,
    /// How far it is.
    pub status: CopyStatus,
    /// Why it failed.
    pub description: Option<String>,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes of the source.
    pub total: u64,
    /// When it ended.
    #[serde(with = "optional_ticks")]
    pub completed: Option<Timestamp>,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyStatus {
    /// Under way.
    Pending,
    /// All of it is there.
    Success,
    /// Somebody has ended it.
    Aborted,
    /// It came to nothing.
    Failed,
}

impl CopyStatus {
    /// The value of `x-ms-copy-status`.
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
    /// A copy of so many bytes that is done at once.
    pub fn done(id: [u8; 16], source: String, total: u64, now: Timestamp) -> Self {
        let status = CopyStatus::Success;
        Self { id, source, status, description: None, copied: total, total, completed: Some(now) }
    }

    /// The same copy, of which nothing is done yet.
    #[must_use]
    pub fn begun(self) -> Self {
        Self { status: CopyStatus::Pending, copied: 0, completed: None, ..self }
    }

    /// Whether it is under way.
    pub fn is_pending(&self) -> bool {
        self.status == CopyStatus::Pending
    }

    /// Ends it by request, if it is under way and has that id.
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

    /// All of it is there.
    pub fn succeed(&mut self, now: Timestamp) {
        self.copied = self.total;
        self.end(CopyStatus::Success, now);
    }

    /// It came to nothing, for that reason.
    pub fn fail(&mut self, refusal: &Refusal, now: Timestamp) {
        let (status, code, text) = (refusal.status().as_u16(), refusal.code().name(), refusal.text());
        self.description = Some(format!("{status} {code} \"{text}\""));
        self.end(CopyStatus::Failed, now);
    }

    fn end(&mut self, status: CopyStatus, now: Timestamp) {
        self.status = status;
        self.completed = Some(now);
    }

    /// What the reply to the request says that asked for it.
    pub fn write_accepted(&self, headers: &mut HeaderMap) {
        put(headers, "x-ms-copy-id", Some(uuid::Uuid::from_bytes(self.id).to_string()));
        put(headers, "x-ms-copy-status", Some(self.status.name()));
    }

    /// What reads of its target say.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        self.write_accepted(headers);
        put(headers, "x-ms-copy-source", Some(&self.source));
        put(headers, "x-ms-copy-status-description", self.description.as_deref());
        put(headers, "x-ms-copy-progress", Some(self.progress()));
        put(headers, "x-ms-copy-completion-time", self.completed.map(date::rfc1123));
    }

    /// Bytes that were copied, and of how many.
    pub fn progress(&self) -> String {
        format!("{}/{}", self.copied, self.total)
    }
}

fn put(headers: &mut HeaderMap, name: &'static str, value: Option<impl AsRef<str>>) {
    if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(value.as_ref().as_bytes()).ok()) {
        headers.insert(HeaderName::from_static(name), value);
    }
}
