//! Partitions of ordered rows with atomic conditional commits.
//!
//! A [`Partition`] is one atomic scope: a blob with its blocks and snapshots, a PartitionKey, a queue, a
//! directory. Every engine guarantees the following, and the conformance suite checks it:
//!
//! - A commit takes effect completely or not at all. It is serializable within its partition, phantoms
//!   included. Reads are linearizable.
//! - A commit is durable before it is visible, and visible before it is acknowledged.
//! - Stamps are unique and grow within a row, also across restarts and backward clock steps.
//! - Every commit compares the epoch of its [space](SpaceHeader). A closed space, or one with another epoch,
//!   refuses it.
//! - No commit spans two partitions: the type cannot express one.

mod clock;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod digest;
mod directory;
pub mod embedded;
mod gate;
#[cfg(any(test, feature = "testing"))]
pub mod history;
mod in_memory;
pub mod intent;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod interposed;
mod keys;
mod limits;
mod log;
mod memory;
mod run;
pub mod scheduling;
mod steady;
mod tombstones;
mod transact;
mod types;

pub use directory::{Directory, DirectoryError};
pub use embedded::{Embedded, OpenError, Options};
pub use gate::Gate;
pub use in_memory::InMemoryStore;
pub use limits::check_limits;
pub use log::LogError;
pub use memory::available as available_memory;
pub use run::{
    KEPT_ROWS_PER_ROW, MAX_RUN_BYTES, MAX_RUN_ROWS, MEMO_BYTES_PER_ROW, Run, RunBuilder, RunVisitor, Stretch,
};
pub use steady::{BootClock, SteadyClock, Trust};
pub use transact::{
    Attempt, Attempts, Change, Decision, Never, TransactError, View, prefix_range, transact,
    transact_announced,
};
pub use types::*;
