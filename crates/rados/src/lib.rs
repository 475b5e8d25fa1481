//! A trait with the operations of Ceph RADOS that the cluster engine needs.
//!
//! [`Cluster`] is one front end's connection to the cluster. The engine above it works with any
//! implementation: the binding to librados, or a simulated cluster that delays, loses and reorders.
//!
//! An implementation makes these promises, on which every protocol of the engine rests:
//!
//! - A [`WriteOp`] takes effect completely or not at all, and is durable on all copies before it is
//!   acknowledged.
//! - Ops of all front ends on one object are serialized. A [`ReadOp`] sees every acknowledged write and is
//!   itself one moment.
//! - After [`WriteError::InDoubt`] the op may take effect at any later moment, or never.
//! - After [`Cluster::fence`] has returned, a read that is issued later is final: no write of the fenced
//!   instance can take effect on that object after it.

mod op;
#[cfg(any(test, feature = "testing"))]
pub mod simulated;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::Timestamp;

pub use op::{ObjectName, OmapComparison, OmapPage, OmapRange, Pool, ReadOp, ReadReply, ReadStep, ReadValue};
pub use op::{WriteOp, WriteStep};

/// Identifies one connection of one process to the cluster. A restarted process has another one.
///
/// For librados, this is the address that the blocklist names (`rados_getaddrs`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceAddress(pub String);

/// Why a write did not take effect, or may not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// A comparison failed; the op had no effect.
    #[error("comparison {0} of the op failed")]
    Compared(
        /// The index among the op's steps of the first comparison that failed.
        usize,
    ),
    /// The object does not exist, and the op requires it.
    #[error("no such object")]
    NoObject,
    /// The object exists, and the op creates it exclusively.
    #[error("the object exists")]
    Exists,
    /// The pool or the cluster has no space left; the op had no effect.
    #[error("the pool is full")]
    Full,
    /// The op exceeds a limit of the cluster; it had no effect.
    #[error("the op is too large")]
    TooLarge,
    /// The instance is blocklisted. Earlier ops without a reply may have taken effect; this one did not.
    #[error("this front end was fenced")]
    Fenced,
    /// No answer in time, or an error that says nothing about the outcome.
    #[error("in doubt: {0}")]
    InDoubt(String),
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadFailure {
    /// The object does not exist.
    #[error("no such object")]
    NoObject,
    /// The instance is blocklisted.
    #[error("this front end was fenced")]
    Fenced,
    /// No answer in time.
    #[error("no answer from the cluster")]
    TimedOut,
    /// The cluster reported another error.
    #[error("the cluster reported: {0}")]
    Other(String),
}

/// Space in a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSpace {
    /// Bytes stored, before replication.
    pub used_bytes: u64,
    /// Bytes that can still be stored, before replication.
    pub available_bytes: u64,
    /// Number of objects.
    pub objects: u64,
}

/// One front end's connection to a cluster.
#[async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// Performs the steps of an op on one object, atomically. Returns [`WriteError::InDoubt`] after
    /// `timeout` without a reply. A future that is dropped leaves the outcome in doubt.
    async fn write(
        &self,
        pool: Pool,
        object: &ObjectName,
        op: WriteOp,
        timeout: Duration,
    ) -> Result<(), WriteError>;

    /// Performs the steps of a read on one object, as of one moment.
    async fn read(&self, pool: Pool, object: &ObjectName, op: ReadOp) -> Result<ReadReply, ReadFailure>;

    /// Lists objects of a pool in an order of the cluster's own, a page at a time. `from` is the cursor that
    /// the previous page returned. An object that exists throughout the listing is listed.
    async fn list(
        &self,
        pool: Pool,
        from: Option<Bytes>,
    ) -> Result<(Vec<ObjectName>, Option<Bytes>), ReadFailure>;

    /// Sends a message to every watcher of an object, and returns when all have acknowledged it or after
    /// `timeout`. A message may be lost. It is only a hint.
    async fn notify(&self, pool: Pool, object: &ObjectName, message: Bytes, timeout: Duration);

    /// Watches an object. The watch is renewed until the [`Watch`] is dropped; messages in between are lost.
    async fn watch(&self, pool: Pool, object: &ObjectName) -> Result<Box<dyn Watch>, ReadFailure>;

    /// Shuts an instance out: adds it to the blocklist for a week, then waits until this instance has the
    /// new map. Repeating it is harmless.
    async fn fence(&self, instance: &InstanceAddress) -> Result<(), ReadFailure>;

    /// Returns the address under which others can fence this instance.
    fn address(&self) -> &InstanceAddress;

    /// Returns the clock of the machine that holds an object, to within a millisecond and the time of a
    /// round trip.
    async fn server_time(&self, pool: Pool, object: &ObjectName) -> Result<Timestamp, ReadFailure>;

    /// Returns the space in a pool. May be some seconds old.
    async fn space(&self, pool: Pool) -> Result<PoolSpace, ReadFailure>;
}

/// Messages sent to a watched object.
#[async_trait]
pub trait Watch: Send {
    /// Waits for the next message. `None` means that messages may have been lost, so the caller should look
    /// for itself.
    async fn next(&mut self) -> Option<Bytes>;
}
