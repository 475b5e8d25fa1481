//! Testers for crashes, power loss and faults of the storage core and its services.
//!
//! - [`LossyFs`] is a FUSE file system on a disk that forgets, tears, reports false success and fails on
//!   demand. The program under test uses ordinary system calls; the tester controls the faults.
//! - [`child`] runs a worker in its own process, collects its acknowledgments, and kills it.
//! - [`cancel`] drops requests at their await points.
//! - [`flips`] flips single bits of a data directory and verifies that each flip is reported or harmless.
//! - [`Seed`] makes random tests repeatable, and prints itself when a test fails.
//!
//! All tests follow one scheme: run a workload, collect its acknowledgments, cut the power or kill the
//! process at some moment, restart, and verify that everything acknowledged is there and nothing is half
//! done.

pub mod blobs;
pub mod cancel;
pub mod child;
mod content;
mod disk;
mod fault;
pub mod files;
pub mod flips;
mod fuse;
mod hosted;
mod lossy;
mod payload;
pub mod queues;
pub mod rounds;
mod seed;
pub mod tables;
mod trace;
mod tree;
pub mod workload;

pub use content::Loss;
pub use disk::Flipped;
pub use fault::{Fault, FaultId, FaultKind, PathFilter, Schedule};
pub use lossy::{LossyFs, available, require};
pub use seed::Seed;
pub use trace::{Counters, DiskOperation};
pub use tree::CutMode;
