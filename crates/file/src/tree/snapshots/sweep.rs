//! Removing rows that were kept for snapshots which are deleted.
//!
//! Writers keep old rows without knowing whether a snapshot needs them. The sweep knows: it reads the header
//! of the space first and the list of snapshots afterwards. A snapshot that is missing in the list shows an
//! epoch that had not ended when the header was read, so it needs no row that was kept for an earlier epoch.

use lazuli_concurrency::{Pace, Span};
use lazuli_generations::{Generation, keys as shares};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::{Damage, SpaceScan, read_refusal};
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, Row, SpaceId, Which};
use tracing::Instrument;

use crate::FileService;
use crate::lock_order::{Rank, Ranked};
use crate::tree::keys;
use crate::tree::record::{Node, Share};
use crate::tree::snapshots::{MAX_ROWS, drop_begun};

/// Number of rows or partitions between two pauses.
const STEP: usize = 256;
/// Interval after which a share is swept again while writers may keep rows that no snapshot needs.
const AGAIN: Span = Span::seconds(3600);

/// The epochs that snapshots show, and the current epoch.
struct Epochs {
    shown: Vec<u64>,
    current: u64,
}

impl Epochs {
    /// Returns whether a snapshot can show a row that was written in one epoch and current until the end of
    /// another.
    fn need(&self, written: u64, last: u64) -> bool {
        last >= self.current || self.shown.iter().any(|epoch| (written..=last).contains(epoch))
    }

    /// Returns whether rows are kept now although no snapshot needs them.
    fn keep_unneeded_rows(&self) -> bool {
        self.current > 0 && !self.shown.contains(&(self.current - 1))
    }
}

impl FileService {
    /// Removes kept rows that no snapshot shows, in all shares. May be dropped at any point. Returns the
    /// bytes of content that they referred to.
    pub(crate) async fn sweep_kept(&self, pace: Pace) -> Result<u64, Refusal> {
        self.snapshot_garbage.begin();
        let swept = self.sweep_all_kept(pace).await;
        if swept.is_err() {
            self.snapshot_garbage.schedule(None);
        }
        swept
    }

    async fn sweep_all_kept(&self, pace: Pace) -> Result<u64, Refusal> {
        let kind = shares::kind(Share::KIND);
        let mut bytes = 0;
        let mut scan = SpaceScan::new(&*self.store, SpaceId::ROOT, &kind, Which::First, STEP).paced(pace);
        while let Some(rows) = scan.next().await? {
            for (partition, row) in rows {
                if row.key == shares::CURRENT {
                    let partition = Partition::new(SpaceId::ROOT, partition);
                    let span = tracing::error_span!("sweep", ?partition);
                    let share = span.in_scope(|| Share::decode(&row.value).map_err(Refusal::from))?;
                    match self.sweep_share(&partition, &share, pace).instrument(span).await {
                        Ok(swept) => bytes += swept,
                        // Deleted meanwhile, together with all kept rows.
                        Err(refusal) if refusal.code() == ErrorCode::ShareNotFound => {}
                        Err(refusal) => return Err(refusal),
                    }
                }
            }
        }
        Ok(bytes)
    }

    async fn sweep_share(&self, partition: &Partition, share: &Share, pace: Pace) -> Result<u64, Refusal> {
        let header = self.store.space(share.space).await.map_err(read_refusal)?;
        // Nothing was kept before the first epoch has ended.
        let Some(header) = header.filter(|header| header.open && header.epoch > 0) else { return Ok(0) };
        let reads = Reads::default().and_range(shares::snapshots(share.space), MAX_ROWS);
        let shown = {
            let _lock = Ranked::wait(Rank::Snapshot, self.snapshot_lock.lock()).await;
            let shown = self.rows.transact(partition, reads, |view| {
                let snapshots = super::taken(view)?.into_iter();
                let shown = snapshots.filter_map(|share| share.snapshot.map(|taken| taken.epoch)).collect();
                let begun = drop_begun(view)?;
                Ok(match begun.is_empty() {
                    true => Decision::Answer(shown),
                    false => Decision::Write(Change::of(begun), shown),
                })
            });
            shown.await?
        };
        let epochs = Epochs { shown, current: header.epoch };
        if epochs.keep_unneeded_rows() {
            self.snapshot_garbage.schedule(Some(self.store.now() + AGAIN));
        }
        self.sweep_tree(share.space, &epochs, pace).await
    }

    async fn sweep_tree(&self, space: SpaceId, epochs: &Epochs, pace: Pace) -> Result<u64, Refusal> {
        let mut bytes = 0;
        let prefix = &[keys::DIRECTORIES];
        let mut scan = SpaceScan::new(&*self.store, space, prefix, Which::First, STEP).paced(pace);
        while let Some(rows) = scan.next().await? {
            for (directory, _) in rows {
                bytes += self.sweep_directory(&Partition::new(space, directory), epochs, pace).await?;
            }
        }
        Ok(bytes)
    }

    async fn sweep_directory(
        &self,
        directory: &Partition,
        epochs: &Epochs,
        pace: Pace,
    ) -> Result<u64, Refusal> {
        let mut range = keys::all_kept(b"");
        let mut bytes = 0;
        loop {
            let reads = Reads::default().and_range(range.clone(), STEP);
            let set = self.store.read(directory, &reads).await.map_err(read_refusal)?;
            let Some(scanned) = set.ranges.into_iter().next() else { return Ok(bytes) };
            let unneeded = unneeded_rows(&scanned.rows, epochs);
            let (dropped, released) = unneeded.map_err(|damage| damage.at(directory))?;
            if !dropped.is_empty() {
                // Kept rows never change, so no condition is needed.
                let swept = self.rows.transact(directory, Reads::default(), |_| {
                    Ok(Decision::Write(Change::of(dropped.clone()), ()))
                });
                swept.await?;
                self.extents.released(released);
                bytes += released;
            }
            if !scanned.more {
                return Ok(bytes);
            }
            range.start = scanned.range.end;
            pace.rest().await;
        }
    }
}

/// Returns the deletions of kept rows that no snapshot shows, and the bytes of content that they refer to.
fn unneeded_rows(rows: &[Row], epochs: &Epochs) -> Result<(Vec<Mutation>, u64), Damage> {
    let (mut dropped, mut bytes) = (vec![], 0);
    for row in rows {
        let Some((_, last)) = keys::kept_parts(&row.key) else { continue };
        let node = Node::decode(&row.value)?;
        if !epochs.need(node.epoch, last) {
            dropped.push(Mutation::Delete(row.key.clone()));
            bytes += crate::tree::rules::extent_bytes(&node);
        }
    }
    Ok((dropped, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_row_is_needed_while_a_snapshot_lies_in_its_epochs() {
        let epochs = |shown: &[u64]| Epochs { shown: shown.to_vec(), current: 9 };
        for (shown, written, last, needed) in [
            (&[][..], 1, 3, false),
            (&[1][..], 1, 3, true),
            (&[2], 1, 3, true),
            (&[3], 1, 3, true),
            (&[4], 1, 3, false),
            (&[0], 1, 3, false),
            (&[0, 4], 1, 3, false),
            // Kept after the list was read, so perhaps for a snapshot that is missing in it.
            (&[], 1, 9, true),
            (&[], 1, 8, false),
        ] {
            assert_eq!(epochs(shown).need(written, last), needed, "{shown:?} {written} {last}");
        }
        assert!(epochs(&[7]).keep_unneeded_rows() && !epochs(&[7, 8]).keep_unneeded_rows());
    }
}
