//! Crash, power-loss and fault testers for the storage core, and for the services on it.
//!
//! - [`LossyFs`] is a FUSE file system on a disk that forgets, tears, lies and fails on demand. A program
//!   under test uses it through ordinary system calls; the tester holds the switches.
//! - [`child`] runs a worker in a process of its own, collects what it acknowledged, and kills it.
//! - [`cancel`] drops requests while they wait.
//! - [`flips`] flips single bits of a data directory and sees that each is reported or harmless.
//! - [`Seed`] makes what was random repeatable, and prints it when a test fails.
//!
//! The idea of every test built on these: run a workload, let it acknowledge, cut the power or kill it at
//! some moment, start again, and check that all that was acknowledged is there and nothing is half there.

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
pub use fault::{Fault, FaultId, FaultKind, On, When};
pub use lossy::{LossyFs, available, require};
pub use seed::Seed;
pub use trace::{Counters, Operation};
pub use tree::Mode;
