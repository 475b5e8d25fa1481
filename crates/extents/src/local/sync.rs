//! Group sync: everybody who waits at the same time shares one `fdatasync` of each segment written to.
//!
//! A caller is served by a round that began after the call, never by one that was already running: that one may have
//! begun before the caller's last write. Rounds run one after the other on a blocking thread, which goes on when the
//! caller that started it no longer waits.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Shared;
use crate::extent::Error;

/// What is to be synced, and who waits for it.
#[derive(Debug)]
pub(crate) struct GroupSync {
    state: Mutex<State>,
    done: watch::Sender<Done>,
}

#[derive(Debug, Default)]
struct State {
    /// Calls so far.
    calls: u64,
    running: bool,
    /// Segments with writes that completed and that no round has taken up.
    dirty: BTreeMap<u64, Arc<File>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Done {
    /// Calls up to this one are served.
    calls: u64,
    /// No call will be served any more.
    stopped: bool,
}

impl Default for GroupSync {
    fn default() -> Self {
        Self { state: Mutex::default(), done: watch::Sender::new(Done::default()) }
    }
}

impl GroupSync {
    /// Notes that a write to a segment has completed.
    pub(crate) fn wrote(&self, segment: u64, file: &Arc<File>) {
        self.state.lock().dirty.entry(segment).or_insert_with(|| file.clone());
    }

    /// Lets everybody who waits know that there is nothing to wait for.
    pub(crate) fn stop(&self) {
        self.done.send_modify(|done| done.stopped = true);
    }

    /// Waits until what was noted before is durable.
    pub(crate) async fn sync(shared: &Arc<Shared>) -> Result<(), Error> {
        shared.check_running()?;
        let this = &shared.sync;
        let mut done = this.done.subscribe();
        let call = {
            let mut state = this.state.lock();
            if state.dirty.is_empty() && !state.running {
                return Ok(());
            }
            state.calls += 1;
            if !state.running {
                state.running = true;
                let shared = shared.clone();
                tokio::task::spawn_blocking(move || run(shared));
            }
            state.calls
        };
        let done =
            done.wait_for(|done| done.calls >= call || done.stopped).await.map_err(|_| Error::Stopped)?;
        if done.calls >= call { Ok(()) } else { Err(Error::Stopped) }
    }

    /// Runs a round on this thread, unless one is running or others are about to need one: who is first would wait for
    /// theirs, too. Blocks. Whoever calls [`sync`](Self::sync) next finds that what
    /// was noted before is durable, or is served by another round, or learns that this one failed.
    pub(crate) fn sync_here(shared: Arc<Shared>) {
        if shared.appender.lock().is_writing() {
            return;
        }
        {
            let mut state = shared.sync.state.lock();
            if state.running || state.dirty.is_empty() {
                return;
            }
            state.running = true;
        }
        if let Some(shared) = round(shared) {
            // What this thread was asked for is done, and somebody waits for that.
            tokio::task::spawn_blocking(move || run(shared));
        }
    }
}

/// Runs rounds until nobody waits.
fn run(mut shared: Arc<Shared>) {
    while let Some(again) = round(shared) {
        shared = again;
    }
}

/// Runs one round; there has to be another one if it gives back what it was given.
fn round(shared: Arc<Shared>) -> Option<Arc<Shared>> {
    let (calls, dirty) = {
        let mut state = shared.sync.state.lock();
        (state.calls, std::mem::take(&mut state.dirty))
    };
    for (segment, file) in dirty {
        if let Err(e) = shared.disk.sync_data(&file) {
            // What of the segment is on disk is not known, and asking again would not tell: the kernel may have
            // dropped the pages that it failed to write.
            shared.stop("sync", segment, e);
            return None;
        }
    }
    let last = {
        let mut state = shared.sync.state.lock();
        state.running = state.calls > calls;
        !state.running
    };
    let done = shared.sync.done.clone();
    // Let go before anybody is told, so that whoever is told may open the directory again. From there on another run may
    // overtake this one, hence the maximum.
    let again = if last {
        drop(shared);
        None
    } else {
        Some(shared)
    };
    done.send_modify(|done| done.calls = done.calls.max(calls));
    again
}
