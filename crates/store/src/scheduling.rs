//! Scheduling of the server's threads.
//!
//! Every commit waits for the committer, and every request for a worker of the runtime. Both work for
//! microseconds at a time. After a wakeup on a busy machine they should not wait for the end of another
//! thread's slice of milliseconds. A thread that requests shorter slices is scheduled sooner after a wakeup,
//! and gets no larger share of the processor. Background threads request longer slices.
//!
//! The flusher has the usual share, because commits soon wait for a flush that starves. They wait for a
//! compaction only after many flushes, and never for a sweep, so compactions and sweeps have smaller shares
//! (`nice`) on a busy machine.
//!
//! Nothing here needs a privilege. Linux supports slices since 6.12. On older kernels, and in sandboxes that
//! forbid the call, the functions change nothing.

use std::time::Duration;

/// The shortest slice that Linux grants.
const COMMITTER_SLICE: Duration = Duration::from_micros(100);
const WORKER_SLICE: Duration = Duration::from_micros(400);
const BACKGROUND_SLICE: Duration = Duration::from_millis(3);

/// A third of the usual share.
const COMPACTION_NICE: i32 = 5;
/// A tenth of the usual share.
const SWEEP_NICE: i32 = 10;

/// Configures the committer's thread.
pub(crate) fn committer() {
    configure(libc::SCHED_OTHER, COMMITTER_SLICE, 0);
}

/// Configures a thread that answers requests.
pub fn worker() {
    configure(libc::SCHED_OTHER, WORKER_SLICE, 0);
}

/// Configures the thread that flushes.
pub(crate) fn flusher() {
    configure(libc::SCHED_BATCH, BACKGROUND_SLICE, 0);
}

/// Configures the thread that compacts.
pub(crate) fn compactor() {
    configure(libc::SCHED_BATCH, BACKGROUND_SLICE, COMPACTION_NICE);
}

/// Configures a thread that sweeps and scrubs.
pub fn sweeper() {
    configure(libc::SCHED_BATCH, BACKGROUND_SLICE, SWEEP_NICE);
}

#[expect(unsafe_code, reason = "no crate makes these two calls")]
fn configure(policy: i32, slice: Duration, nice: i32) {
    const THIS_THREAD: libc::c_long = 0;
    const NO_FLAGS: libc::c_long = 0;
    let size = size_of::<libc::sched_attr>();
    // SAFETY: plain integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes to it, and fails otherwise.
    let is_known = unsafe {
        libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, size, NO_FLAGS) == 0
    };
    // Keep a policy that the operator has chosen, such as real time.
    if !is_known || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_policy = policy as u32;
    attributes.sched_runtime = slice.as_nanos() as u64;
    // Only the operator may raise a priority that was lowered.
    attributes.sched_nice = attributes.sched_nice.max(nice);
    // SAFETY: the kernel reads `attributes.size` bytes, which it set to the size of what it wrote.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, NO_FLAGS) };
    if result != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "the kernel refused to change the scheduling of a thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_and_compactions_get_smaller_shares_than_flushes() {
        for (configure_thread, min_nice) in
            [(flusher as fn(), 0), (compactor, COMPACTION_NICE), (sweeper, SWEEP_NICE)]
        {
            let nice = std::thread::spawn(move || {
                configure_thread();
                rustix::process::getpriority_process(None).unwrap()
            });
            assert!(nice.join().unwrap() >= min_nice);
        }
    }
}
