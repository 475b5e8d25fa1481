//! The engine's threads. If one of them dies, the store stops.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::EngineState;

/// Starts a thread that stops the store if it panics.
pub(super) fn spawn_watched(
    name: &'static str,
    shared: &Arc<EngineState>,
    run: impl FnOnce(&EngineState) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    spawn(name, move || {
        let watch = StopOnPanic { name, shared };
        run(&watch.shared);
    })
}

struct StopOnPanic {
    name: &'static str,
    shared: Arc<EngineState>,
}

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.stop("a background thread died", &std::io::Error::other(self.name));
        }
    }
}

/// Closes the queue when the committer's thread ends, and releases the callers that wait in it.
pub(super) struct CloseOnDrop(pub(super) Arc<EngineState>);

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
    fn panic_of_a_background_thread_stops_the_store_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
        assert_eq!(store.health(), Health::default());
        let dead = spawn_watched("lazuli-flush", &store.shared, |_| panic!("on purpose")).unwrap();
        assert!(dead.join().is_err());
        assert!(!store.is_healthy());
        assert_eq!(store.health().stopped.as_deref(), Some("a background thread died: lazuli-flush"));
    }
}
