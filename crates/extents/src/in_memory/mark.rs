//! Frees chunks that no content refers to.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use lazuli_concurrency::Pace;

use super::{ExtentMap, chunks_of};
use crate::engine::{Freed, Mark};
use crate::extent::{Error, ExtentId, ExtentRef, MAX_EXTENT_BYTES};
use crate::pin::Appended;
use crate::segment::CHUNK;

/// Maximum number of extents that are processed in one step, under the lock.
const STEP_EXTENTS: usize = 1024;

// One bit for each chunk of an extent.
const _: () = assert!(MAX_EXTENT_BYTES / CHUNK <= u128::BITS as usize);

/// The live chunks of all extents.
pub(super) struct InMemoryMark {
    shared: Arc<ExtentMap>,
    live: HashMap<ExtentId, u128>,
    /// Extents from this id on were appended after the mark began. They are kept.
    horizon: ExtentId,
    /// Extents below this id are kept.
    kept_below: ExtentId,
    /// Extents below the horizon whose writers have not finished.
    appended: Vec<Appended>,
    appended_bytes: u64,
    released: u64,
}

impl InMemoryMark {
    pub(super) fn begin(shared: &Arc<ExtentMap>) -> Result<Self, Error> {
        let (horizon, appended_bytes, released) = {
            let mut state = shared.state.lock();
            if state.marking {
                return Err(Error::Busy("another sweep is at work"));
            }
            state.marking = true;
            (state.next, state.appended, state.released)
        };
        Ok(Self {
            shared: shared.clone(),
            live: HashMap::new(),
            horizon,
            kept_below: ExtentId::from_raw(0),
            // After the horizon: an extent below the horizon has a writer in this list, or its writer has
            // committed.
            appended: shared.pins.appended(),
            appended_bytes,
            released,
        })
    }

    /// Frees the dead chunks of the next few extents, from an id on. Returns where to continue.
    fn free_step(&self, from: ExtentId, freed: &mut Freed) -> Option<ExtentId> {
        // Dropped after the lock is released: freeing much memory is slow.
        let (mut dead_extents, mut dead_chunks) = (vec![], vec![]);
        let mut state = self.shared.state.lock();
        let (mut dead_ids, mut before, mut after) = (vec![], 0, 0);
        let mut extents = state.extents.range_mut(from..self.horizon.max(from));
        for (id, stored) in extents.by_ref().take(STEP_EXTENTS) {
            let live = self.live.get(id);
            if *id >= self.kept_below {
                before += stored.bytes();
                let Some(live) = live else {
                    dead_ids.push(*id);
                    continue;
                };
                let dead = stored.chunks.iter_mut().enumerate().filter(|(i, _)| live >> i & 1 == 0);
                dead_chunks.extend(dead.filter_map(|(_, chunk)| chunk.take()));
                after += stored.bytes();
            }
            freed.live_bytes += live.map_or(0, |_| stored.bytes());
        }
        let next = extents.next().map(|(id, _)| *id);
        dead_extents.extend(dead_ids.iter().filter_map(|id| state.extents.remove(id)));
        state.bytes = state.bytes + after - before;
        freed.bytes += before - after;
        freed.segments += dead_ids.len() as u64;
        next
    }

    fn finish_statistics(&self, freed: &Freed) {
        let mut state = self.shared.state.lock();
        state.live = Some(freed.live_bytes);
        state.appended_before_mark = self.appended_bytes;
        state.released -= self.released;
        state.full_since_mark = false;
        state.full &= freed.bytes == 0;
    }
}

impl Drop for InMemoryMark {
    fn drop(&mut self) {
        self.shared.state.lock().marking = false;
    }
}

#[async_trait]
impl Mark for InMemoryMark {
    fn insert(&mut self, extent: &ExtentRef, range: Range<u32>) -> bool {
        let mut is_new = false;
        let chunks = self.live.entry(extent.id).or_insert_with(|| {
            is_new = true;
            0
        });
        chunks_of(&range).for_each(|chunk| *chunks |= 1 << chunk);
        is_new
    }

    fn horizon(&self) -> ExtentId {
        self.horizon
    }

    fn keep_below(&mut self, id: ExtentId) {
        self.kept_below = self.kept_below.max(id);
    }

    async fn free(mut self: Box<Self>, pace: Pace) -> Result<Freed, Error> {
        // Not earlier: an inserted extent counts as walked, and these have not been walked.
        for Appended { id, length } in std::mem::take(&mut self.appended) {
            self.insert(&ExtentRef { id, length, crc: 0 }, 0..length);
        }
        let (mut freed, mut from) = (Freed::default(), Some(ExtentId::from_raw(0)));
        while let Some(at) = from {
            from = self.free_step(at, &mut freed);
            pace.rest().await;
        }
        self.finish_statistics(&freed);
        Ok(freed)
    }
}
