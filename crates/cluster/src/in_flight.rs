//! Commits that are not decided yet, including those whose callers were dropped.

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Held by a commit's caller and by its batcher until the commit is decided.
pub(crate) type InFlight = mpsc::Sender<()>;

/// The commits that began since the last wait.
pub(crate) struct InFlightCommits(Mutex<(InFlight, mpsc::Receiver<()>)>);

impl Default for InFlightCommits {
    fn default() -> Self {
        Self(Mutex::new(mpsc::channel(1)))
    }
}

impl InFlightCommits {
    /// Registers a commit.
    pub(crate) fn begin(&self) -> InFlight {
        self.0.lock().0.clone()
    }

    /// Waits until all commits that began before are decided.
    pub(crate) async fn wait(&self) {
        let (later, receiver) = mpsc::channel(1);
        let (earlier, mut decided) = std::mem::replace(&mut *self.0.lock(), (later.clone(), receiver));
        drop(earlier);
        let (done, waited) = oneshot::channel();
        tokio::spawn(async move {
            // Nothing is ever sent: the channel closes when the last commit is decided.
            decided.recv().await;
            // Later waits include the commits of this one.
            drop(later);
            _ = done.send(());
        });
        // The task always ends by sending.
        _ = waited.await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn wait_ends_after_all_earlier_commits_even_if_an_earlier_wait_was_dropped() {
        let commits = Arc::new(InFlightCommits::default());
        let first = commits.begin();
        let waits: Vec<_> = (0..2)
            .map(|_| {
                let commits = commits.clone();
                tokio::spawn(async move { commits.wait().await })
            })
            .collect();
        tokio::task::yield_now().await;
        let later = commits.begin();
        waits[0].abort();
        tokio::task::yield_now().await;
        assert!(!waits[1].is_finished());
        drop(first);
        for wait in waits {
            _ = wait.await;
        }
        drop(later);
        commits.wait().await;
    }
}
