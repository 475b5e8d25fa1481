//! Removes the rows and shards of a closed space.
//!
//! Every removal compares the generation of a header that is closed. Rows are removed shard by shard along
//! the chain. Once all shards are empty, the shards are removed, the last one first and the root last of all.
//! So if the sweep ends early, a closed root remains, and the sweep can start again.

use std::sync::Arc;

use bytes::Bytes;
use lazuli_rados::{ObjectName, ReadValue, WriteOp, WriteStep};
use lazuli_store::{CommitError, SpaceId};

use super::Protocol;
use crate::access::{AccessError, StepOutcome};
use crate::header::{SeenHeader, ShardState};
use crate::keys::{
    GENERATION, after_stored, partition_start, root_name, row_key, rows_end, split_row_key, successor,
};
use crate::rows::page_of;
use crate::token;

/// Maximum number of rows that one call removes.
const SWEEP_ROWS: usize = 1024;

/// A position in a space: partition key and row key.
type RowPlace = (Bytes, Bytes);

/// The result of looking at one shard.
enum Swept {
    /// Rows were removed. The position after them.
    Removed(RowPlace),
    /// No row is left from the position on in this shard. The next shard and its first partition.
    Empty(Option<(Bytes, ObjectName)>),
    /// The shard has changed.
    Again,
}

impl Protocol {
    /// Removes rows of a closed space. Returns the position to continue at, or `None` after the last row.
    pub(crate) async fn sweep(
        self: &Arc<Self>,
        space: SpaceId,
        from: RowPlace,
        limit: usize,
    ) -> Result<Option<RowPlace>, CommitError> {
        let is_whole = from == RowPlace::default();
        let mut place = from;
        let mut name = self.routes.locate(space, &place.0);
        loop {
            let Some(seen) = self.access.header(&name).await? else {
                self.routes.forget(space);
                if name == root_name(space) {
                    return Ok(None);
                }
                name = root_name(space);
                continue;
            };
            if !self.is_swept_state(space, &name, &seen).await? {
                continue;
            }
            match self.sweep_shard(&name, &seen, &place, limit.min(SWEEP_ROWS)).await? {
                Swept::Removed(next) => return Ok(Some(next)),
                Swept::Empty(Some((lower, next))) => {
                    place = place.max((lower.clone(), Bytes::new()));
                    if self.access.header(&next).await?.is_none() {
                        break;
                    }
                    self.routes.learn(space, lower, next.clone());
                    name = next;
                }
                Swept::Empty(None) => break,
                Swept::Again => {}
            }
        }
        if is_whole {
            self.remove_shards(space).await?;
        }
        Ok(None)
    }

    /// Returns whether a shard is closed and at rest. Helps if it is not at rest.
    async fn is_swept_state(
        self: &Arc<Self>,
        space: SpaceId,
        name: &ObjectName,
        seen: &SeenHeader,
    ) -> Result<bool, CommitError> {
        if seen.header.state != ShardState::Normal {
            self.help(space, name).await?;
            return Ok(false);
        }
        if seen.header.space().open { Err(CommitError::Gone) } else { Ok(true) }
    }

    async fn sweep_shard(
        &self,
        name: &ObjectName,
        seen: &SeenHeader,
        place: &RowPlace,
        limit: usize,
    ) -> Result<Swept, AccessError> {
        let end = seen.header.upper.as_deref().map_or_else(rows_end, partition_start);
        let start = row_key(&place.0, &place.1).min(end.clone());
        let Some(reply) = self.access.read(name, vec![page_of(start..end, limit)]).await? else {
            return Ok(Swept::Again);
        };
        let last = match &reply[..] {
            [ReadValue::OmapRange(page)] => page.entries.first().zip(page.entries.last()),
            _ => None,
        };
        let Some(((first, _), (last, _))) = last else {
            let next = seen.header.upper.as_ref().zip(seen.header.next());
            return Ok(Swept::Empty(next.map(|(upper, next)| (Bytes::copy_from_slice(upper), next))));
        };
        let op = WriteOp::new([
            token::equals(&GENERATION, seen.generation.clone()),
            WriteStep::RemoveOmapRange(first.clone()..after_stored(last)),
        ]);
        Ok(match (self.access.step(name, op.may_exceed_full()).await?, split_row_key(last)) {
            (StepOutcome::Done, Some((partition, row))) => Swept::Removed((partition, successor(&row))),
            _ => Swept::Again,
        })
    }

    /// Removes all shards of a space without rows, the last one first.
    async fn remove_shards(&self, space: SpaceId) -> Result<(), AccessError> {
        let mut chain = vec![];
        let mut next = Some(root_name(space));
        while let Some(name) = next
            && let Some(seen) = self.access.header(&name).await?
        {
            next = seen.header.next();
            chain.push((name, seen));
        }
        let all_closed = chain
            .iter()
            .all(|(_, seen)| seen.header.state == ShardState::Normal && !seen.header.space().open);
        while all_closed && let Some((name, seen)) = chain.pop() {
            let op = WriteOp::new([token::equals(&GENERATION, seen.generation), WriteStep::Remove]);
            self.access.step(&name, op.may_exceed_full()).await?;
            if self.access.header(&name).await?.is_some() {
                // Still there: the next sweep tries again.
                return Ok(());
            }
        }
        self.routes.forget(space);
        Ok(())
    }
}
