//! Dropping what was kept of directories and files for snapshots that are gone.
//!
//! Whoever changes a row keeps what it was without knowing whether a snapshot needs it. Here that is known: the space's
//! header is read first and the list of snapshots after it, so a snapshot that is not on the list shows an epoch that had
//! not ended then, and needs nothing that was kept for an earlier one.

use bytes::Bytes;
use lazuli_concurrency::Span;
use lazuli_extents::Pace;
use lazuli_generations::{Generation, keys as shares, unreadable};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, Row, SpaceId, Which, prefix_range};

use super::{MAX_ROWS, drop_begun};
use crate::record::{Node, Share};
use crate::{FileService, keys};

/// Rows, or partitions, that are looked at between two pauses.
const STEP: usize = 256;
/// When to look again at a share whose writers keep what no snapshot needs.
const AGAIN: Span = Span::seconds(3600);

/// The epochs of a space that snapshots show, and the one that has not ended.
struct Epochs {
    shown: Vec<u64>,
    current: u64,
}

impl Epochs {
    /// Whether a snapshot can show what was written in one epoch and was so until the end of another.
    fn need(&self, written: u64, last: u64) -> bool {
        last >= self.current || self.shown.iter().any(|epoch| (written..=last).contains(epoch))
    }

    /// Whether what is kept from now on is of no use.
    fn keep_in_vain(&self) -> bool {
        self.current > 0 && !self.shown.contains(&(self.current - 1))
    }
}

impl FileService {
    /// Drops what no snapshot can show, in every share. May be dropped at any point. Says how many bytes it referred to.
    pub(crate) async fn sweep_kept(&self, pace: Pace) -> Result<u64, Refusal> {
        self.kept.begin();
        let swept = self.sweep_all_kept(pace).await;
        if swept.is_err() {
            self.kept.arises(None);
        }
        swept
    }

    async fn sweep_all_kept(&self, pace: Pace) -> Result<u64, Refusal> {
        let all = prefix_range(&shares::kind(Share::KIND));
        let end = (all.end, Bytes::new());
        let mut from = (all.start, Bytes::new());
        let mut bytes = 0;
        loop {
            let page = self.store.scan_space(SpaceId::ROOT, from, Some(end.clone()), Which::First, STEP);
            let page = page.await.map_err(unreadable)?;
            for (partition, row) in page.rows {
                if row.key == shares::CURRENT {
                    let partition = Partition::new(SpaceId::ROOT, partition);
                    match self.sweep_share(&partition, &Share::decode(&row.value)?, pace).await {
                        Ok(swept) => bytes += swept,
                        // Deleted meanwhile, with all that it has kept.
                        Err(refusal) if refusal.code() == ErrorCode::ShareNotFound => {}
                        Err(refusal) => return Err(refusal),
                    }
                }
            }
            let Some(next) = page.next else { return Ok(bytes) };
            from = next;
            pace.rest().await;
        }
    }

    async fn sweep_share(&self, partition: &Partition, share: &Share, pace: Pace) -> Result<u64, Refusal> {
        let header = self.store.space(share.space).await.map_err(unreadable)?;
        // Where no epoch has ended, nothing was kept.
        let Some(header) = header.filter(|header| header.open && header.epoch > 0) else { return Ok(0) };
        let reads = Reads::default().and_range(shares::snapshots(share.space), MAX_ROWS);
        let shown = {
            let _turn = self.snapshots.lock().await;
            let shown = self.transact(partition, reads, |view| {
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
        if epochs.keep_in_vain() {
            self.kept.arises(Some(self.store.now() + AGAIN));
        }
        self.sweep_tree(share.space, &epochs, pace).await
    }

    async fn sweep_tree(&self, space: SpaceId, epochs: &Epochs, pace: Pace) -> Result<u64, Refusal> {
        let all = prefix_range(&[keys::DIRECTORIES]);
        let end = (all.end, Bytes::new());
        let mut from = (all.start, Bytes::new());
        let mut bytes = 0;
        loop {
            let page = self.store.scan_space(space, from, Some(end.clone()), Which::First, STEP);
            let page = page.await.map_err(unreadable)?;
            for (directory, _) in page.rows {
                bytes += self.sweep_directory(&Partition::new(space, directory), epochs, pace).await?;
            }
            let Some(next) = page.next else { return Ok(bytes) };
            from = next;
            pace.rest().await;
        }
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
            let set = self.store.read(directory, &reads).await.map_err(unreadable)?;
            let Some(scanned) = set.ranges.into_iter().next() else { return Ok(bytes) };
            let (dropped, released) = useless(&scanned.rows, epochs)?;
            if !dropped.is_empty() {
                // What is kept under a name and an epoch never changes, so nothing has to be compared.
                let swept = self.transact(directory, Reads::default(), |_| {
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

/// Of kept rows, those that no snapshot can show are to be deleted; and the bytes that they refer to.
fn useless(rows: &[Row], epochs: &Epochs) -> Result<(Vec<Mutation>, u64), Refusal> {
    let (mut dropped, mut bytes) = (vec![], 0);
    for row in rows {
        let Some((_, last)) = keys::kept_parts(&row.key) else { continue };
        let node = Node::decode(&row.value)?;
        if !epochs.need(node.epoch, last) {
            dropped.push(Mutation::Delete(row.key.clone()));
            bytes += crate::file::allocated(&node);
        }
    }
    Ok((dropped, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_needed_while_a_snapshot_shows_an_epoch_of_its_life() {
        let epochs = |shown: &[u64]| Epochs { shown: shown.to_vec(), current: 9 };
        for (shown, written, last, needed) in [
            (&[][..], 1, 3, false),
            (&[1][..], 1, 3, true),
            (&[2], 1, 3, true),
            (&[3], 1, 3, true),
            (&[4], 1, 3, false),
            (&[0], 1, 3, false),
            (&[0, 4], 1, 3, false),
            // Kept after the list was read: for a snapshot that may not be on it.
            (&[], 1, 9, true),
            (&[], 1, 8, false),
        ] {
            assert_eq!(epochs(shown).need(written, last), needed, "{shown:?} {written} {last}");
        }
        assert!(epochs(&[7]).keep_in_vain() && !epochs(&[7, 8]).keep_in_vain());
    }
}
