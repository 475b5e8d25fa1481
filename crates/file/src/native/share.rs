//! Shares as SMB clients connect to them.

use std::ops::ControlFlow;
use std::sync::Arc;

use lazuli_concurrency::time::TICKS_PER_SECOND;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_generations::Beside;
use lazuli_protocol::{Account, ErrorCode};
use lazuli_store::SpaceId;

use super::{Failure, Tree};
use crate::FileService;
use crate::record::Share;

/// Shares that are listed.
const MAX_SHARES: usize = 10_000;

impl Tree {
    /// The space that its files are in.
    pub fn space(&self) -> SpaceId {
        self.share.space
    }
}

impl FileService {
    /// The share of that name.
    pub async fn connect(&self, account: &Account, share: &str) -> Result<Tree, Failure> {
        let found = self.share(account, share).await.map_err(|refusal| match refusal.code() {
            // No share has a name of such a length.
            ErrorCode::OutOfRangeInput => Failure::NoShare,
            _ => refusal.into(),
        })?;
        Ok(Tree { account: Arc::new(account.clone()), share: Arc::new(found), name: share.to_owned() })
    }

    /// The names of all shares of an account.
    pub async fn share_names(&self, account: &Account) -> Result<Vec<String>, Failure> {
        let (mut names, mut start) = (vec![], None);
        loop {
            let listed = self.shares.list(account, "", start.as_deref(), false, |entry| {
                names.push(entry.name.to_owned());
                ControlFlow::Continue(())
            });
            start = listed.await?;
            if start.is_none() || names.len() >= MAX_SHARES {
                return Ok(names);
            }
        }
    }

    /// The times of the snapshots of a share, the newest first.
    pub async fn snapshots_of(&self, tree: &Tree) -> Result<Vec<Timestamp>, Failure> {
        let snapshots = self.taken_snapshots(tree).await?;
        Ok(snapshots.into_iter().rev().map(|(id, _)| Timestamp::from_ticks(id.ticks())).collect())
    }

    /// The epoch that the snapshot of a time shows. Previous versions are named by the second.
    pub(super) async fn snapshot_epoch(&self, tree: &Tree, time: Timestamp) -> Result<u64, Failure> {
        let seconds = |ticks: u64| ticks / TICKS_PER_SECOND;
        let snapshots = self.taken_snapshots(tree).await?;
        let exact = snapshots.iter().find(|(id, _)| id.ticks() == time.ticks());
        let found = exact
            .or_else(|| snapshots.iter().rev().find(|(id, _)| seconds(id.ticks()) == seconds(time.ticks())));
        found.and_then(|(_, share)| share.snapshot).map(|snapshot| snapshot.epoch).ok_or(Failure::NotFound)
    }

    /// The snapshots of a share that count, the oldest first.
    async fn taken_snapshots(&self, tree: &Tree) -> Result<Vec<(Stamp, Share)>, Failure> {
        let beside = Beside { deleted: false, snapshots: true };
        let mut found = vec![];
        let listed = self.shares.list_beside(&tree.account, &tree.name, None, beside, |entry| {
            if entry.name != tree.name {
                return ControlFlow::Break(());
            }
            if let (Some(id), Some(snapshot)) = (entry.snapshot, entry.record.snapshot)
                && snapshot.taken
                && entry.record.space == tree.share.space
            {
                found.push((id, entry.record.clone()));
            }
            ControlFlow::Continue(())
        });
        listed.await?;
        Ok(found)
    }

    /// Bytes that a share may hold, and that it holds.
    pub async fn space_of(&self, tree: &Tree) -> Result<(u64, u64), Failure> {
        let share = self.shares.get(&tree.account, &tree.name).await?;
        Ok((share.quota_bytes(), self.usage(tree.share.space).await?))
    }
}
