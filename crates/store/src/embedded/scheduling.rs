//! How the engine's threads share the processors with all others.
//!
//! Everybody waits for the committer, which works for microseconds at a time: woken after a sync on a busy machine, it
//! should not wait until somebody else's turn of milliseconds is over. A thread that asks for shorter turns gets them
//! sooner, and no more of the processor in all; nobody needs a privilege for it. Those who flush and compact ask for the
//! opposite. Priorities (`nice`) would be wrong here: they change who gets how much, and a flush that starves holds up
//! everybody in the end.
//!
//! Linux has had this since 6.12. Older ones, and whoever forbids the call, leave everything as it was.

use std::time::Duration;

/// The shortest turn that Linux gives.
const SHORT: Duration = Duration::from_micros(100);
const LONG: Duration = Duration::from_millis(3);

/// This thread works in short pieces, and others wait for it.
pub(crate) fn prompt() {
    ask_for(libc::SCHED_OTHER, SHORT);
}

/// This thread works for long, and nobody waits for it.
pub(crate) fn patient() {
    ask_for(libc::SCHED_BATCH, LONG);
}

#[expect(unsafe_code, reason = "no crate makes these two calls")]
fn ask_for(policy: i32, turn: Duration) {
    const THIS_THREAD: libc::c_long = 0;
    const NO_FLAGS: libc::c_long = 0;
    let size = size_of::<libc::sched_attr>();
    // SAFETY: plain integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes to it, and fails otherwise.
    let known = unsafe {
        libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, size, NO_FLAGS) == 0
    };
    // Whoever gave the process a policy of its own, real time for example, knows better.
    if !known || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_policy = policy as u32;
    attributes.sched_runtime = turn.as_nanos() as u64;
    // SAFETY: the kernel reads as many bytes as `attributes.size` says, which it has set to the size of what it wrote.
    let done =
        unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, NO_FLAGS) };
    if done != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "the kernel keeps its own length of turns");
    }
}
