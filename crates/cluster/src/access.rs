//! Reads and steps on shards, with retries. What a caller cannot know for certain it reads again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lazuli_rados::{
    Cluster, ObjectName, Pool, ReadFailure, ReadOp, ReadReply, ReadStep, ReadValue, WriteError, WriteOp,
    WriteStep,
};
use lazuli_store::{CommitError, ReadError, SpaceId};

use crate::clock::StampClock;
use crate::events::{ProtocolEvent, ProtocolEvents};
use crate::header::{SeenHeader, ShardHeader};
use crate::keys::{GENERATION, HEADER, root_name};
use crate::token;

/// An op without a reply for this long is in doubt.
pub(crate) const OP_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of times that a read is tried, 10 s each.
const READ_TRIES: usize = 3;

/// Why an access failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessError {
    #[error("this front end was fenced")]
    Fenced,
    #[error("no answer from the cluster: {0}")]
    Unavailable(String),
    #[error("{0}")]
    Damaged(String),
}

impl From<AccessError> for ReadError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Damaged(what) => Self::Damaged(what),
            other => Self::Io(other.to_string()),
        }
    }
}

impl From<AccessError> for CommitError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Fenced => Self::Stopped,
            AccessError::Unavailable(_) => Self::Busy,
            AccessError::Damaged(_) => Self::Unreadable,
        }
    }
}

/// The knowledge about a step after it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepOutcome {
    /// The step took effect.
    Done,
    /// The step was refused, or is in doubt. Read the header again.
    ReadAgain,
    /// The pool is full.
    Full,
}

/// A front end's access to the shards.
pub(crate) struct ShardAccess {
    pub(crate) cluster: Arc<dyn Cluster>,
    pub(crate) clock: StampClock,
    pub(crate) events: ProtocolEvents,
    fenced: AtomicBool,
}

impl ShardAccess {
    pub(crate) fn new(cluster: Arc<dyn Cluster>, clock: StampClock) -> Self {
        Self { cluster, clock, events: ProtocolEvents::default(), fenced: AtomicBool::new(false) }
    }

    /// Notes that other front ends have shut this one out. No later op may be sent.
    pub(crate) fn note_fenced(&self) {
        if !self.fenced.swap(true, Ordering::SeqCst) {
            tracing::error!("this front end was fenced by another one and stops");
        }
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }

    pub(crate) fn count(&self, event: ProtocolEvent) {
        self.events.count(event);
    }

    /// Reads an object of the meta pool. Returns `None` if the object does not exist.
    pub(crate) async fn read(
        &self,
        name: &ObjectName,
        steps: Vec<ReadStep>,
    ) -> Result<Option<ReadReply>, AccessError> {
        let op = ReadOp::new(steps);
        let mut failure = String::new();
        for _ in 0..READ_TRIES {
            if self.is_fenced() {
                return Err(AccessError::Fenced);
            }
            match self.cluster.read(Pool::Meta, name, op.clone()).await {
                Ok(reply) => return Ok(Some(reply)),
                Err(ReadFailure::NoObject) => return Ok(None),
                Err(ReadFailure::Fenced) => {
                    self.note_fenced();
                    return Err(AccessError::Fenced);
                }
                Err(error @ ReadFailure::TimedOut) => failure = error.to_string(),
                Err(ReadFailure::Other(error)) => {
                    failure = error;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        Err(AccessError::Unavailable(failure))
    }

    /// Reads the header of a shard, and more. Returns `None` if the shard does not exist.
    pub(crate) async fn read_with_header(
        &self,
        name: &ObjectName,
        more: Vec<ReadStep>,
    ) -> Result<Option<(SeenHeader, ReadReply)>, AccessError> {
        let mut steps = vec![ReadStep::Omap(vec![GENERATION, HEADER])];
        steps.extend(more);
        let Some(mut reply) = self.read(name, steps).await? else { return Ok(None) };
        let header = reply.remove(0);
        let seen = match &header {
            ReadValue::Omap(entries) => match &entries[..] {
                [(_, generation), (_, header)] => SeenHeader::decode(generation, header),
                _ => None,
            },
            _ => None,
        };
        let seen =
            seen.ok_or_else(|| AccessError::Damaged(format!("the header of shard {name} is damaged")))?;
        if let Some(stamp) = token::decode(&seen.generation) {
            self.clock.observe(stamp);
        }
        Ok(Some((seen, reply)))
    }

    /// Reads the header of a shard.
    pub(crate) async fn header(&self, name: &ObjectName) -> Result<Option<SeenHeader>, AccessError> {
        Ok(self.read_with_header(name, vec![]).await?.map(|(seen, _)| seen))
    }

    /// Reads the header of a space's root.
    pub(crate) async fn root(&self, space: SpaceId) -> Result<Option<SeenHeader>, AccessError> {
        self.header(&root_name(space)).await
    }

    /// Returns a fresh generation and the entries that replace a header.
    pub(crate) async fn new_header(&self, header: &ShardHeader) -> [(Bytes, Bytes); 2] {
        let stamp = self.clock.stamp();
        self.clock.wait_until_usable(stamp).await;
        [(GENERATION, token::encode(stamp)), (HEADER, header.encode())]
    }

    /// Replaces the header of a shard, if its generation is that of `seen`.
    pub(crate) async fn replace_header(
        &self,
        name: &ObjectName,
        seen: &SeenHeader,
        header: &ShardHeader,
    ) -> Result<StepOutcome, AccessError> {
        let entries = self.new_header(header).await;
        let compare = token::equals(&GENERATION, seen.generation.clone());
        // Without its next step, a split or change may keep rows from being removed.
        let op = WriteOp::new([compare, WriteStep::SetOmap(entries.into())]).may_exceed_full();
        self.step(name, op).await
    }

    /// Performs a step that is harmless if it takes effect late.
    pub(crate) async fn step(&self, name: &ObjectName, op: WriteOp) -> Result<StepOutcome, AccessError> {
        if self.is_fenced() {
            return Err(AccessError::Fenced);
        }
        match self.cluster.write(Pool::Meta, name, op, OP_TIMEOUT).await {
            Ok(()) => Ok(StepOutcome::Done),
            Err(WriteError::Full) => Ok(StepOutcome::Full),
            Err(WriteError::Fenced) => {
                self.note_fenced();
                Err(AccessError::Fenced)
            }
            Err(WriteError::TooLarge) => {
                Err(AccessError::Damaged(format!("a step on shard {name} is too large")))
            }
            Err(_) => Ok(StepOutcome::ReadAgain),
        }
    }
}
