//! The protocols on the shards of a space: splits, changes of the header, and sweeps.
//!
//! Every step is one op that compares the generation of the header it was computed from. Any front end may
//! perform any step, so a front end that meets an unfinished split or change carries out the rest. A step
//! that takes effect late is refused, because the generation has changed.

mod change;
mod split;
mod sweep;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazuli_rados::ObjectName;
use lazuli_store::SpaceId;
use parking_lot::Mutex;

use crate::access::{AccessError, ShardAccess, StepOutcome};
use crate::events::ProtocolEvent;
use crate::header::ShardState;
use crate::routes::Routes;

/// A front end that has waited this long for a split or change carries out the rest.
pub(crate) const HELP_AFTER: Duration = Duration::from_millis(500);

/// When shards are split.
#[derive(Clone, Copy, Debug)]
pub struct ShardLimits {
    /// A shard with at least this many rows is split.
    pub split_rows: usize,
}

impl Default for ShardLimits {
    fn default() -> Self {
        Self { split_rows: 64 << 10 }
    }
}

/// The result of looking at a shard that may be frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thaw {
    /// The shard is not frozen, or its header has changed meanwhile.
    NotFrozen,
    /// The shard was thawed.
    Thawed,
    /// The change that froze the shard is not decided.
    Undecided,
}

/// A front end's part in the protocols.
pub(crate) struct Protocol {
    pub(crate) access: ShardAccess,
    pub(crate) routes: Routes,
    pub(crate) limits: ShardLimits,
    /// The spaces that the last walk over all rows began with.
    pub(crate) listed_spaces: Mutex<Option<Arc<Vec<SpaceId>>>>,
}

impl Protocol {
    /// Carries out what is left of the split or change that a shard is in.
    pub(crate) async fn help(self: &Arc<Self>, space: SpaceId, name: &ObjectName) -> Result<(), AccessError> {
        let Some(seen) = self.access.header(name).await? else { return Ok(()) };
        match &seen.header.state {
            ShardState::Normal => Ok(()),
            ShardState::Splitting { .. } => self.finish_split(space, name, true).await,
            ShardState::Building { .. } => self.activate(space, name, true).await,
            ShardState::Changing { change, .. } => self.finish_change(space, *change, true).await,
            ShardState::Frozen { change } => match self.thaw(space, name).await? {
                Thaw::Undecided => self.finish_change(space, *change, true).await,
                Thaw::NotFrozen | Thaw::Thawed => Ok(()),
            },
        }
    }

    /// Thaws a shard (E4) if the change that froze it is decided.
    pub(crate) async fn thaw(&self, space: SpaceId, name: &ObjectName) -> Result<Thaw, AccessError> {
        let Some(seen) = self.access.header(name).await? else { return Ok(Thaw::NotFrozen) };
        if !matches!(seen.header.state, ShardState::Frozen { .. }) {
            return Ok(Thaw::NotFrozen);
        }
        let Some(root) = self.access.root(space).await? else { return Ok(Thaw::NotFrozen) };
        let Some(thawed) = seen.header.thawed(&root.header) else { return Ok(Thaw::Undecided) };
        if self.access.replace_header(name, &seen, &thawed).await? == StepOutcome::Done {
            self.access.count(ProtocolEvent::ShardThawed);
            return Ok(Thaw::Thawed);
        }
        Ok(Thaw::NotFrozen)
    }

    /// Thaws a shard that was met while its change was already decided.
    pub(crate) async fn thaw_if_decided(&self, space: SpaceId, name: &ObjectName) -> Result<(), AccessError> {
        if self.thaw(space, name).await? == Thaw::Thawed {
            self.access.count(ProtocolEvent::HelpedThaw);
        }
        Ok(())
    }

    /// Like [`Protocol::thaw_if_decided`], for the shard that holds a partition.
    pub(crate) async fn thaw_if_decided_at(
        &self,
        space: SpaceId,
        partition: &[u8],
    ) -> Result<(), AccessError> {
        let name = self.routes.locate(space, &Bytes::copy_from_slice(partition));
        self.thaw_if_decided(space, &name).await
    }
}
