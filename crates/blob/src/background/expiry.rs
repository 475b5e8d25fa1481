//! Removes expired blobs, deleted states that can no longer be restored, and staged blocks that were never
//! committed.
//!
//! Clients do not see any of these, because every rule compares the time; this task frees their space. A walk
//! over all rows finds them, and each removal checks them again in its transaction. Then the walk sweeps the
//! index of tags. It also finds rows of dropped blocks, see [`crate::background::dropped`].

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use lazuli_concurrency::{Pace, Span, Timestamp};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::SpaceScan;
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, Row, RowPosition, SpaceId, View, Which};
use tracing::Instrument;

use crate::BlobService;
use crate::background::dropped::DroppedSearch;
use crate::model::keys::{self, RowKind};
use crate::model::record::{Blob, Damage};

/// Rows that are read between two pauses.
const PAGE: usize = 256;
/// Rows that one commit removes. A commit may change 256 rows.
const STEP: usize = 100;
/// Time from the start to the first walk. Short, because some servers never run for long.
const FIRST: Span = Span::seconds(10 * 60);
/// Time from one walk to the next.
const EVERY: Span = Span::seconds(24 * 60 * 60);

/// The time at which the next walk is due, in ticks.
#[derive(Debug)]
pub(crate) struct ExpiryWatch(AtomicU64);

impl ExpiryWatch {
    /// Creates the watch of a service that starts now.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self((now + FIRST).ticks().into())
    }
}

/// Numbers of states and bytes that a walk has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Removed blobs, snapshots and versions, and blobs whose staged blocks were removed.
    pub states: u64,
    /// Bytes that the removed states referred to. Shared bytes count once for each reference.
    pub bytes: u64,
}

impl BlobService {
    /// Returns whether [`BlobService::expire`] is due, usually once a day.
    pub fn expiry_due(&self) -> bool {
        self.expiry.0.load(Ordering::Acquire) <= self.store.now().ticks() || self.dropped.has_overflowed()
    }

    /// Removes expired states and the rows of dropped blocks in all containers. May be dropped at any point.
    pub async fn expire(&self, pace: Pace) -> Result<Expired, Refusal> {
        self.expiry.0.store((self.store.now() + EVERY).ticks(), Ordering::Release);
        self.dropped.begin_walk();
        let mut expired = Expired::default();
        let mut from = None;
        loop {
            let (spaces, next) = self.containers.spaces(from).await?;
            for (space, _) in spaces {
                let span = tracing::error_span!("expiry", ?space);
                match self.expire_in(space, pace, &mut expired).instrument(span).await {
                    // The container was deleted meanwhile.
                    Err(refusal) if refusal.code() == ErrorCode::ContainerNotFound => {}
                    result => result?,
                }
            }
            if next.is_none() {
                // This includes the staged blocks that have just expired.
                self.remove_dropped(pace).await?;
                return Ok(expired);
            }
            from = next;
        }
    }

    async fn expire_in(&self, space: SpaceId, pace: Pace, expired: &mut Expired) -> Result<(), Refusal> {
        let mut search = DroppedSearch::default();
        let mut scan = SpaceScan::new(&*self.store, space, keys::BLOBS, Which::All, PAGE).paced(pace);
        while let Some(page) = scan.next().await? {
            let now = self.store.now();
            for rows in page.chunk_by(|a, b| a.0 == b.0) {
                let partition = Partition::new(space, rows[0].0.clone());
                if search.has_dropped(&partition.key, rows) {
                    self.remove_dropped_of(&partition, pace).await?;
                }
                let over =
                    rows.iter().map(|(_, row)| row).filter(|row| has_expired_part(&partition, row, now));
                let keys: Vec<Bytes> = over.map(|row| row.key.clone()).collect();
                for keys in keys.chunks(STEP) {
                    let reads = Reads::keys(keys.iter().cloned());
                    let gone = self.transact(&partition, reads, |view| remove(view, keys)).await?;
                    self.extents.released(gone.bytes);
                    expired.states += gone.states;
                    expired.bytes += gone.bytes;
                }
            }
        }
        self.sweep_index(space, pace).await
    }
}

/// Returns whether the row, or a part of it, has expired. Returns false for a damaged row.
fn has_expired_part(partition: &Partition, row: &Row, now: Timestamp) -> bool {
    let checked = match keys::row_kind(&row.key) {
        Some(RowKind::Base | RowKind::DeletedSnapshot(_) | RowKind::DeletedVersion(_)) => {
            Blob::decode(&row.value).map(|blob| ExpiredPart::of(&blob, now).is_some())
        }
        // Requests delete these, or they are removed with the row of their blob.
        Some(RowKind::Snapshot(_) | RowKind::Version(_) | RowKind::Staged { .. } | RowKind::StagedCount) => {
            Ok(false)
        }
        None => Err(Damage::Undecodable),
    };
    checked.unwrap_or_else(|damage| {
        tracing::error!(%damage, row = %RowPosition::new(partition, &row.key), "a row is damaged");
        false
    })
}

/// The part of a row that has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpiredPart {
    Blob,
    StagedBlocks,
}

impl ExpiredPart {
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

/// Decides to remove the expired parts of these rows.
fn remove(view: &View<'_>, keys: &[Bytes]) -> Result<Decision<Expired>, Refusal> {
    let mut gone = Expired::default();
    let mut mutations = vec![];
    for row in keys.iter().filter_map(|key| view.row(key)) {
        let blob = Blob::decode(&row.value)?;
        let Some(over) = ExpiredPart::of(&blob, view.now) else { continue };
        gone.states += 1;
        mutations.extend(blob.drop_staged());
        mutations.push(match over {
            ExpiredPart::Blob => {
                gone.bytes += blob.content.extent_bytes();
                Mutation::Delete(row.key.clone())
            }
            ExpiredPart::StagedBlocks => {
                Mutation::Put(row.key.clone(), Blob { staging: None, ..blob }.encode()?)
            }
        });
    }
    Ok(match mutations.is_empty() {
        true => Decision::Answer(gone),
        false => Decision::Write(Change::of(mutations), gone),
    })
}
