//! The store on the simulated cluster.
//!
//! A seed has three front ends with clients of their own, and disturbs them: machines stop, front ends
//! freeze, crash and are fenced, ops and replies are lost or late, the pool is full. The real code runs in
//! one thread and in simulated time, so a failing seed replays exactly:
//!
//! ```text
//! LAZULI_SEED=1234 LAZULI_TRACE=1 cargo test -p lazuli-cluster --lib seeds -- --nocapture
//! ```
//!
//! `LAZULI_SECONDS` sets how long seeds are tried, `LAZULI_SEEDS` how many at most.

mod clients;
mod conforms;
mod history;
mod seeds;
mod world;

use std::cell::Cell;

thread_local! {
    /// The mistake that is planted in this thread, or 0.
    pub(crate) static PLANTED: Cell<u8> = const { Cell::new(0) };
}
