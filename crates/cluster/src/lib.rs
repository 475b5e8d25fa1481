//! The store on Ceph RADOS: any number of front ends serve the same rows.
//!
//! A space is a chain of *shards*, which are objects with omap keys. Each shard holds a range of partitions,
//! and a partition never lies in two shards. So every commit is one conditional op on one object. The cluster
//! makes the op atomic and durable, and serializes the ops of all front ends.
//!
//! - [`keys`], [`token`] and [`header`] define what is stored.
//! - [`batch`] makes one op of many commits, and judges them if the op is refused. [`batcher`] sends the ops
//!   and learns the outcome of ops in doubt.
//! - [`protocol`] splits shards, changes the headers of spaces that have several shards, and removes spaces.
//! - [`read`] and [`scan`] read rows, with the space's header of the same moment.
//! - [`membership`] gives each front end a slot, so that stamps are unique.
//!
//! `docs/design/cluster.md` explains the protocols.

mod access;
mod batch;
mod batcher;
mod clock;
mod events;
mod header;
mod in_flight;
mod keys;
mod membership;
mod protocol;
mod read;
mod routes;
mod rows;
mod scan;
mod store;
mod token;

#[cfg(test)]
mod models;
#[cfg(test)]
mod simulation;

pub use clock::SLOTS;
pub use events::{ProtocolEvent, ProtocolEvents};
pub use membership::JoinError;
pub use protocol::ShardLimits;
pub use store::ClusterStore;

/// Returns whether a mistake is planted, to show that the simulation finds it. The product has none.
#[cfg(not(test))]
const fn planted(_mistake: u8) -> bool {
    false
}

/// Returns whether a mistake is planted in this thread.
#[cfg(test)]
fn planted(mistake: u8) -> bool {
    simulation::PLANTED.get() == mistake
}
