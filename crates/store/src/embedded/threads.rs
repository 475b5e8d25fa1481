//! The engine's threads, and what happens when one of them dies.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::Shared;

/// Starts a thread whose death by panic stops the store.
pub(super) fn spawn_watched(
    name: &'static str,
    shared: &Arc<Shared>,
    run: impl FnOnce(&Shared) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    spawn(name, move || {
        let watch = StopOnPanic { name, shared };
        run(&watch.shared);
    })
}

struct StopOnPanic {
    name: &'static str,
    shared: Arc<Shared>,
}

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.stop("a background thread died", &std::io::Error::other(self.name));
        }
    }
}

/// Closes the queue for good when the committer's thread ends, and lets go of what waits in it.
pub(super) struct CloseOnDrop(pub(super) Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop("the committer died", &std::io::Error::other("panic"));
        }
        self.0.queue.abandon();
    }
}

/// Starts a thread.
pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::SystemClock;

    use super::*;
    use crate::embedded::{Embedded, Health, Options};

    #[test]
    fn the_death_of_a_background_thread_stops_the_store_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
        assert_eq!(store.health(), Health::default());
        let dead = spawn_watched("lazuli-flush", &store.shared, |_| panic!("on purpose")).unwrap();
        assert!(dead.join().is_err());
        assert!(!store.is_healthy());
        assert_eq!(store.health().stopped.as_deref(), Some("a background thread died: lazuli-flush"));
    }
}
