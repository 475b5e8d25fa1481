//! Maps errors of the store to refusals.
//!
//! A transient error becomes 503, so that clients retry. A defect or damage becomes 500 and is logged.

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{CommitError, ReadError, TransactError};

/// Returns the refusal of a failed transaction. `gone` is the refusal if the space was closed or replaced,
/// which depends on the service.
pub fn transaction_refusal(error: TransactError<Refusal>, gone: impl FnOnce() -> Refusal) -> Refusal {
    match error {
        TransactError::Refused(refusal) => refusal,
        TransactError::Gone => gone(),
        TransactError::NotCommitted(error) => commit_refusal(error),
        TransactError::Unknown | TransactError::Read(_) => {
            tracing::error!(%error, "a transaction failed");
            Refusal::new(ErrorCode::InternalError)
        }
    }
}

/// Returns the refusal of a request whose commit failed.
pub fn commit_refusal(error: CommitError) -> Refusal {
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
            tracing::error!(%error, "a commit failed");
            Refusal::new(ErrorCode::InternalError)
        }
    }
}

/// Returns the refusal of a request whose rows cannot be read.
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
            let refusal = transaction_refusal(error, || ErrorCode::ContainerBeingDeleted.into());
            assert_eq!(refusal.status().as_u16(), status, "{refusal}");
        }
    }
}
