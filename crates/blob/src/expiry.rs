//! Removes for good what has run out: blobs past their expiry, what was deleted and cannot be restored any more, blocks
//! that were staged and never committed.
//!
//! None of it exists for clients any more, because every rule asks the clock; this gives back the space. A walk over
//! all rows finds it, and each removal is judged again inside its transaction. What has run out or is gone may still be in
//! the index of tags, which is walked afterwards.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_extents::Pace;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, Row, SpaceId, View, Which, prefix_range};

use crate::block::drop_staged;
use crate::keys::{self, RowKind};
use crate::record::{Blob, Damage};
use crate::{BlobService, reply};

/// Rows that are looked at between two pauses.
const PAGE: usize = 256;
/// Rows that one commit removes, well below what a commit may change.
const STEP: usize = 100;
/// From the start to the first walk, so that servers that are never up for long have one too.
const FIRST: Span = Span::seconds(10 * 60);
/// From one walk to the next.
const EVERY: Span = Span::seconds(24 * 60 * 60);

/// When the next walk is due.
#[derive(Debug)]
pub(crate) struct ExpiryWatch(AtomicU64);

impl ExpiryWatch {
    /// The service starts.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self((now + FIRST).ticks().into())
    }
}

/// What a walk achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Blobs, snapshots and versions that are gone, and blobs whose staged blocks are.
    pub states: u64,
    /// Bytes that these referred to. What refers to bytes more than once counts more than once.
    pub bytes: u64,
}

impl BlobService {
    /// Whether it is time for [`BlobService::expire`]: once a day.
    pub fn expiry_due(&self) -> bool {
        self.expiry.0.load(Ordering::Acquire) <= self.store.now().ticks()
    }

    /// Removes what has run out, in all containers. May be dropped at any point.
    pub async fn expire(&self, pace: Pace) -> Result<Expired, Refusal> {
        self.expiry.0.store((self.store.now() + EVERY).ticks(), Ordering::Release);
        let mut expired = Expired::default();
        let mut from = None;
        loop {
            let (spaces, next) = self.containers.spaces(from).await?;
            for space in spaces {
                match self.expire_in(space, pace, &mut expired).await {
                    // Deleted meanwhile, with all that is in it.
                    Err(refusal) if refusal.code() == ErrorCode::ContainerNotFound => {}
                    result => result?,
                }
            }
            if next.is_none() {
                return Ok(expired);
            }
            from = next;
        }
    }

    async fn expire_in(&self, space: SpaceId, pace: Pace, expired: &mut Expired) -> Result<(), Refusal> {
        let all = prefix_range(keys::BLOBS);
        let mut from = (all.start, Bytes::new());
        loop {
            let page = self
                .store
                .scan_space(space, from, Some((all.end.clone(), Bytes::new())), Which::All, PAGE)
                .await;
            let page = page.map_err(reply::unreadable)?;
            let now = self.store.now();
            for rows in page.rows.chunk_by(|a, b| a.0 == b.0) {
                let over = rows.iter().map(|(_, row)| row).filter(|row| is_over(row, now));
                let keys: Vec<Bytes> = over.map(|row| row.key.clone()).collect();
                for keys in keys.chunks(STEP) {
                    let partition = Partition::new(space, rows[0].0.clone());
                    let reads = Reads::keys(keys.iter().cloned());
                    let gone = self.transact(&partition, reads, |view| remove(view, keys)).await?;
                    self.extents.released(gone.bytes);
                    expired.states += gone.states;
                    expired.bytes += gone.bytes;
                }
            }
            let Some(next) = page.next else { return self.sweep_index(space, pace).await };
            from = next;
            pace.rest().await;
        }
    }
}

/// Whether something about a row has run out. One that cannot be read is left to the checks.
fn is_over(row: &Row, now: Timestamp) -> bool {
    let judged = match keys::row_kind(&row.key) {
        Some(RowKind::Base | RowKind::DeletedSnapshot(_) | RowKind::DeletedVersion(_)) => {
            Blob::decode(&row.value).map(|blob| Over::of(&blob, now).is_some())
        }
        // These last until somebody deletes them, or go with the row of their blob.
        Some(RowKind::Snapshot(_) | RowKind::Version(_) | RowKind::Staged(_) | RowKind::StagedCount) => {
            Ok(false)
        }
        None => Err(Damage::Undecodable),
    };
    judged.unwrap_or_else(|damage| {
        tracing::error!(%damage, "a row is damaged");
        false
    })
}

/// What has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Blob,
    StagedBlocks,
}

impl Over {
    fn of(blob: &Blob, now: Timestamp) -> Option<Self> {
        if blob.has_expired(now) {
            Some(Self::Blob)
        } else if blob.staging.is_some() && blob.staged(now).is_none() {
            Some(Self::StagedBlocks)
        } else {
            None
        }
    }
}

/// Removes what has run out of these rows by now.
fn remove(view: &View<'_>, keys: &[Bytes]) -> Result<Decision<Expired>, Refusal> {
    let mut gone = Expired::default();
    let mut mutations = vec![];
    for row in keys.iter().filter_map(|key| view.row(key)) {
        let blob = Blob::decode(&row.value)?;
        let Some(over) = Over::of(&blob, view.now) else { continue };
        gone.states += 1;
        if blob.staging.is_some() {
            mutations.extend(drop_staged());
        }
        mutations.push(match over {
            Over::Blob => {
                gone.bytes += blob.content.allocated();
                Mutation::Delete(row.key.clone())
            }
            Over::StagedBlocks => Mutation::Put(row.key.clone(), Blob { staging: None, ..blob }.encode()?),
        });
    }
    Ok(match mutations.is_empty() {
        true => Decision::Answer(gone),
        false => Decision::Write(Change::of(mutations), gone),
    })
}
