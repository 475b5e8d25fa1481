//! Maps errors of the store to refusals.
//!
//! A transient error becomes 503, so that clients retry. A defect or damage becomes 500 and is logged.

use std::fmt;

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{CommitError, Partition, ReadError, TransactError, View};

/// Maximum number of rows that the log entry of a failed rule names.
const MAX_NAMED_ROWS: usize = 8;

/// Logs an error that should never occur, and returns its refusal. The text names what it concerns.
pub fn internal_error(error: impl fmt::Display) -> Refusal {
    tracing::error!("{error}");
    ErrorCode::InternalError.into()
}

/// Logs the rows that a rule has read, if the rule failed with an internal error.
pub fn log_failed_rule(partition: &Partition, view: &View<'_>, refusal: &Refusal) {
    if refusal.code() == ErrorCode::InternalError {
        let rows = view.rows().take(MAX_NAMED_ROWS).map(|row| row.key.escape_ascii().to_string());
        let rows = rows.collect::<Vec<_>>();
        tracing::error!(%partition, ?rows, "a rule failed on the rows of this partition");
    }
}

/// Returns the refusal of a failed transaction. `gone` is the refusal if the space was closed or replaced,
/// which depends on the service.
pub fn transaction_refusal(
    place: impl fmt::Display,
    error: TransactError<Refusal>,
    gone: impl FnOnce() -> Refusal,
) -> Refusal {
    match error {
        TransactError::Refused(refusal) => refusal,
        TransactError::Gone => gone(),
        TransactError::NotCommitted(error) => commit_refusal(place, error),
        TransactError::Unknown | TransactError::Read(_) => {
            tracing::error!(%error, %place, "a transaction failed");
            Refusal::new(ErrorCode::InternalError)
        }
    }
}

/// Returns the refusal of a request whose commit failed. `place` is the partition or space, for the log.
pub fn commit_refusal(place: impl fmt::Display, error: CommitError) -> Refusal {
    match error {
        CommitError::Busy | CommitError::Conflict | CommitError::Expired | CommitError::Gone => {
            Refusal::new(ErrorCode::ServerBusy)
        }
        // The protocol has no error for a full disk. Clients retry, which succeeds once space is free.
        CommitError::Full => {
            Refusal::new(ErrorCode::ServerBusy).message("There is no space left on the server.")
        }
        CommitError::TooLarge => Refusal::new(ErrorCode::RequestBodyTooLarge),
        CommitError::Unknown | CommitError::Unreadable | CommitError::Stopped => {
            tracing::error!(%error, %place, "a commit failed");
            Refusal::new(ErrorCode::InternalError)
        }
    }
}

/// Returns the refusal of a request whose rows cannot be read. The error names the rows.
pub fn read_refusal(error: ReadError) -> Refusal {
    tracing::error!(%error, "the store cannot be read");
    ErrorCode::InternalError.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_errors_are_503_and_permanent_ones_500() {
        for (error, status) in [
            (TransactError::Refused(Refusal::new(ErrorCode::BlobNotFound)), 404),
            (TransactError::Gone, 409),
            (TransactError::NotCommitted(CommitError::Busy), 503),
            (TransactError::NotCommitted(CommitError::Full), 503),
            (TransactError::NotCommitted(CommitError::TooLarge), 413),
            (TransactError::NotCommitted(CommitError::Stopped), 500),
            (TransactError::Unknown, 500),
        ] {
            let refusal = transaction_refusal("p", error, || ErrorCode::ContainerBeingDeleted.into());
            assert_eq!(refusal.status().as_u16(), status, "{refusal}");
        }
    }
}
