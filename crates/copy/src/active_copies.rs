//! Registers the copies that have a task, so that none gets two, and retries to store the end of a copy.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::SpaceId;
use parking_lot::Mutex;

/// Maximum number of attempts to store the end of a copy. The store may be busy or full for hours.
const MAX_ATTEMPTS: usize = 1000;
/// The first and the longest pause between attempts.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

type Key = (SpaceId, [u8; 16]);

/// The copies that have a task in this process.
#[derive(Default)]
pub(crate) struct ActiveCopies(Mutex<HashSet<Key>>);

impl ActiveCopies {
    /// Registers a copy. Returns `None` if it has a task already.
    pub(crate) fn insert(self: &Arc<Self>, space: SpaceId, id: [u8; 16]) -> Option<ActiveCopy> {
        self.0.lock().insert((space, id)).then(|| ActiveCopy { active: self.clone(), key: (space, id) })
    }
}

/// The registration of a copy, which ends when this is dropped.
pub(crate) struct ActiveCopy {
    active: Arc<ActiveCopies>,
    key: Key,
}

impl Drop for ActiveCopy {
    fn drop(&mut self) {
        self.active.0.lock().remove(&self.key);
    }
}

/// Calls `attempt` until it succeeds or refuses with `gone`, with exponential backoff.
pub async fn persist<T, F>(gone: ErrorCode, mut attempt: impl FnMut() -> F) -> Result<T, Refusal>
where
    F: Future<Output = Result<T, Refusal>>,
{
    let mut pause = FIRST_PAUSE;
    for _ in 1..MAX_ATTEMPTS {
        match attempt().await {
            Err(refusal) if refusal.code() != gone => {
                tracing::warn!(%refusal, "cannot store the end of a copy; trying again");
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
    fn a_copy_is_registered_once_until_its_registration_is_dropped() {
        let active = Arc::new(ActiveCopies::default());
        let active_copy = active.insert(SpaceId(1), [1; 16]);
        assert!(active_copy.is_some());
        assert!(active.insert(SpaceId(1), [1; 16]).is_none());
        assert!(active.insert(SpaceId(2), [1; 16]).is_some());
        drop(active_copy);
        assert!(active.insert(SpaceId(1), [1; 16]).is_some());
    }

    #[tokio::test]
    async fn failed_attempts_are_repeated_unless_the_space_is_gone() {
        let gone = ErrorCode::ContainerNotFound;
        let mut left = vec![Ok(7), Err(ErrorCode::InternalError), Err(ErrorCode::ServerBusy)];
        let stored = persist(gone, || std::future::ready(left.pop().unwrap().map_err(Refusal::new)));
        assert_eq!(stored.await.unwrap(), 7);
        let mut left = vec![Ok(7), Err(gone)];
        let stored = persist(gone, || std::future::ready(left.pop().unwrap().map_err(Refusal::new)));
        assert_eq!(stored.await.unwrap_err().code(), gone);
    }
}
