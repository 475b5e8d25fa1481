//! Partitions of ordered rows with atomic conditional commits.
//!
//! A [`Partition`] is one atomic scope: a blob with its blocks and snapshots, a PartitionKey, a queue, a directory.
//! What every engine promises, and the conformance suite checks:
//!
//! - a commit is all or nothing and serialisable within its partition, phantoms included; reads are linearizable;
//! - durable before visible, visible before acknowledged;
//! - stamps are unique and grow within a row, also over restarts and clock steps backwards;
//! - every commit compares the epoch of its [space](SpaceHeader) and is refused once the space was closed or moved on;
//! - no commit spans two partitions: the type cannot express one.

mod clock;
pub mod conformance;
mod directory;
pub mod embedded;
mod gate;
pub mod history;
pub mod intent;
#[doc(hidden)]
pub mod interposed;
mod keys;
mod log;
mod memory;
mod run;
mod steady;
mod transact;
mod types;

pub use directory::{Directory, DirectoryError};
pub use embedded::{Embedded, OpenError, Options};
pub use gate::Gate;
pub use log::LogError;
pub use run::{
    KEPT_ROWS_PER_ROW, MAX_RUN_BYTES, MAX_RUN_ROWS, MEMO_BYTES_PER_ROW, Run, RunBuilder, RunVisitor, Stretch,
};
pub use steady::{BootClock, SteadyClock, Trust};
pub use transact::{
    Attempt, Attempts, Change, Decision, Never, TransactError, View, prefix_range, transact,
    transact_announced,
};
pub use types::*;
