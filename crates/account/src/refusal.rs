//! What a client is told when the store did not do what a rule decided.

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{CommitError, TransactError};

/// The refusal of a transaction that was not carried out. `gone` is the answer if its space was closed or moved on:
/// only the service knows what that means.
pub fn refusal(error: TransactError<Refusal>, gone: impl FnOnce() -> Refusal) -> Refusal {
    match error {
        TransactError::Refused(refusal) => refusal,
        TransactError::Gone => gone(),
        TransactError::NotCommitted(error) => not_committed(error),
        TransactError::Unknown | TransactError::Read(_) => {
            tracing::error!(%error, "a transaction failed");
            Refusal::new(ErrorCode::InternalError)
        }
    }
}

fn not_committed(error: CommitError) -> Refusal {
    match error {
        CommitError::Busy | CommitError::Conflict | CommitError::Expired | CommitError::Gone => {
            Refusal::new(ErrorCode::ServerBusy)
        }
        // The protocol has no word for it. Clients try again later, which is right once there is room.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_503_and_what_is_broken_is_500() {
        for (error, status) in [
            (TransactError::Refused(Refusal::new(ErrorCode::BlobNotFound)), 404),
            (TransactError::Gone, 409),
            (TransactError::NotCommitted(CommitError::Busy), 503),
            (TransactError::NotCommitted(CommitError::Full), 503),
            (TransactError::NotCommitted(CommitError::TooLarge), 413),
            (TransactError::NotCommitted(CommitError::Stopped), 500),
            (TransactError::Unknown, 500),
        ] {
            let told = refusal(error, || ErrorCode::ContainerBeingDeleted.into());
            assert_eq!(told.status().as_u16(), status, "{told}");
        }
    }
}
