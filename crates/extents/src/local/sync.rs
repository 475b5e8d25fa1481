//! Group sync: concurrent callers share one `fdatasync` of each segment that was written to.
//!
//! A caller is served by a round that began after its call, never by one that was already running: that round
//! may have begun before the caller's last write. Rounds run one at a time on a blocking thread, and
//! continue if the caller that started them is canceled.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::LocalShared;
use crate::extent::Error;

/// The segments to sync, and the progress that callers wait for.
#[derive(Debug)]
pub(crate) struct GroupSync {
    state: Mutex<SyncState>,
    done: watch::Sender<SyncProgress>,
}

#[derive(Debug, Default)]
struct SyncState {
    /// Number of calls so far.
    calls: u64,
    running: bool,
    /// Segments with completed writes that no round has taken yet.
    dirty: BTreeMap<u64, Arc<File>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SyncProgress {
    /// Calls up to this number are served.
    calls: u64,
    /// No more calls will be served.
    stopped: bool,
}

impl Default for GroupSync {
    fn default() -> Self {
        Self { state: Mutex::default(), done: watch::Sender::new(SyncProgress::default()) }
    }
}

impl GroupSync {
    /// Notes that a write to a segment has completed.
    pub(crate) fn mark_dirty(&self, segment: u64, file: &Arc<File>) {
        self.state.lock().dirty.entry(segment).or_insert_with(|| file.clone());
    }

    /// Returns the number of segments with writes that no round has taken yet.
    pub(crate) fn dirty_segments(&self) -> usize {
        self.state.lock().dirty.len()
    }

    /// Wakes all waiting callers with an error.
    pub(crate) fn stop(&self) {
        self.done.send_modify(|done| done.stopped = true);
    }

    /// Waits until all writes that were noted before the call are durable.
    pub(crate) async fn sync(shared: &Arc<LocalShared>) -> Result<(), Error> {
        shared.check_running()?;
        let sync = &shared.sync;
        let mut done = sync.done.subscribe();
        let call = {
            let mut state = sync.state.lock();
            if state.dirty.is_empty() && !state.running {
                return Ok(());
            }
            state.calls += 1;
            if !state.running {
                state.running = true;
                let shared = shared.clone();
                tokio::task::spawn_blocking(move || run_rounds(shared));
            }
            state.calls
        };
        let done =
            done.wait_for(|done| done.calls >= call || done.stopped).await.map_err(|_| Error::Stopped)?;
        if done.calls >= call { Ok(()) } else { Err(Error::Stopped) }
    }

    /// Runs one round on this thread, unless a round is running or other appends are in flight: a sync now
    /// would also wait for their bytes. Blocks. The next [`sync`](Self::sync) call finds its writes durable,
    /// is served by another round, or learns that this round failed.
    pub(crate) fn sync_on_this_thread(shared: Arc<LocalShared>) {
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
        if let Some(shared) = run_round(shared) {
            // This thread has finished its own work, and a caller is waiting for the result.
            tokio::task::spawn_blocking(move || run_rounds(shared));
        }
    }
}

/// Runs rounds until no caller is waiting.
fn run_rounds(mut shared: Arc<LocalShared>) {
    while let Some(next) = run_round(shared) {
        shared = next;
    }
}

/// Stops the engine if a round panics: otherwise no later round would run, and all callers would wait
/// forever.
struct StopOnPanic(Arc<LocalShared>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop_because(&"the thread that syncs content died");
        }
    }
}

/// Runs one round. Returns its argument if another round is needed.
fn run_round(shared: Arc<LocalShared>) -> Option<Arc<LocalShared>> {
    let watch = StopOnPanic(shared);
    let shared = &watch.0;
    let (calls, dirty) = {
        let mut state = shared.sync.state.lock();
        (state.calls, std::mem::take(&mut state.dirty))
    };
    for (segment, file) in dirty {
        if let Err(e) = shared.disk.sync_data(&file) {
            // The state of the segment on disk is unknown, and another sync would not reveal it: the kernel
            // may have dropped the pages that it failed to write.
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
    // Released before callers are woken, because a woken caller may open the directory again. From here on
    // another run may overtake this one, hence the maximum.
    let next = (!last).then(|| watch.0.clone());
    drop(watch);
    done.send_modify(|done| done.calls = done.calls.max(calls));
    next
}
