//! Which copies are being carried out, so that none is twice; and what makes their ends last.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::SpaceId;
use parking_lot::Mutex;

/// Attempts to store the end of a copy: the store may be busy or full for hours.
const MAX_ATTEMPTS: usize = 1000;
/// The first pause between them, and the longest.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

type Key = (SpaceId, [u8; 16]);

/// The copies that somebody looks after.
#[derive(Default)]
pub(crate) struct Running(Mutex<HashSet<Key>>);

impl Running {
    /// Looks after a copy, unless somebody does.
    pub(crate) fn claim(self: &Arc<Self>, space: SpaceId, id: [u8; 16]) -> Option<Claim> {
        self.0.lock().insert((space, id)).then(|| Claim { running: self.clone(), key: (space, id) })
    }
}

/// Who has this looks after a copy.
pub(crate) struct Claim {
    running: Arc<Running>,
    key: Key,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.running.0.lock().remove(&self.key);
    }
}

/// Tries to store something until it is stored, or its space is gone, with longer and longer pauses.
pub async fn persist<T, F>(gone: ErrorCode, mut attempt: impl FnMut() -> F) -> Result<T, Refusal>
where
    F: Future<Output = Result<T, Refusal>>,
{
    let mut pause = FIRST_PAUSE;
    for _ in 1..MAX_ATTEMPTS {
        match attempt().await {
            Err(refusal) if refusal.code() != gone => {
                tracing::warn!(%refusal, "the end of a copy is not stored yet");
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
            settled => return settled,
        }
    }
    attempt().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_claimed_once_until_the_claim_is_given_up() {
        let running = Arc::new(Running::default());
        let claim = running.claim(SpaceId(1), [1; 16]);
        assert!(claim.is_some());
        assert!(running.claim(SpaceId(1), [1; 16]).is_none());
        assert!(running.claim(SpaceId(2), [1; 16]).is_some());
        drop(claim);
        assert!(running.claim(SpaceId(1), [1; 16]).is_some());
    }

    #[tokio::test]
    async fn what_is_not_stored_at_once_is_tried_again_unless_the_space_is_gone() {
        let gone = ErrorCode::ContainerNotFound;
        let mut left = vec![Ok(7), Err(ErrorCode::InternalError), Err(ErrorCode::ServerBusy)];
        let stored = persist(gone, || std::future::ready(left.pop().unwrap().map_err(Refusal::new)));
        assert_eq!(stored.await.unwrap(), 7);
        let mut left = vec![Ok(7), Err(gone)];
        let stored = persist(gone, || std::future::ready(left.pop().unwrap().map_err(Refusal::new)));
        assert_eq!(stored.await.unwrap_err().code(), gone);
    }
}
