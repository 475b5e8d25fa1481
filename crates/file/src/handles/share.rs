//! Shares as SMB clients connect to them.

use std::ops::ControlFlow;
use std::sync::Arc;

use lazuli_concurrency::time::TICKS_PER_SECOND;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_generations::ListInclude;
use lazuli_protocol::{Account, ErrorCode};
use lazuli_store::SpaceId;

use crate::FileService;
use crate::failure::Failure;
use crate::tree::record::Share;

/// Maximum number of shares listed.
const MAX_SHARES: usize = 10_000;

/// A share that an SMB client is connected to.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) account: Arc<Account>,
    pub(crate) share: Arc<crate::tree::record::Share>,
    /// The name of the share.
    pub name: String,
}

impl Tree {
    /// Returns the space of the share.
    pub fn space(&self) -> SpaceId {
        self.share.space
    }
}

impl FileService {
    /// Connects to a share.
    pub async fn connect(&self, account: &Account, share: &str) -> Result<Tree, Failure> {
        let found = self.share(account, share).await.map_err(|refusal| match refusal.code() {
            // No share has a name of this length.
            ErrorCode::OutOfRangeInput => Failure::NoShare,
            _ => refusal.into(),
        })?;
        let (account, name) = (Arc::new(account.clone()), share.to_owned());
        Ok(Tree { account, share: Arc::new(found), name })
    }

    /// Lists the names of all shares of an account.
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

    /// Returns the times of the snapshots of a share, the newest first.
    pub async fn snapshots_of(&self, tree: &Tree) -> Result<Vec<Timestamp>, Failure> {
        let snapshots = self.taken_snapshots(tree).await?;
        Ok(snapshots.into_iter().rev().map(|(id, _)| Timestamp::from_ticks(id.ticks())).collect())
    }

    /// Returns the epoch shown by the snapshot of a time. Clients name previous versions by the second.
    pub(super) async fn snapshot_epoch(&self, tree: &Tree, time: Timestamp) -> Result<u64, Failure> {
        let seconds = |ticks: u64| ticks / TICKS_PER_SECOND;
        let snapshots = self.taken_snapshots(tree).await?;
        let exact = snapshots.iter().find(|(id, _)| id.ticks() == time.ticks());
        let found = exact
            .or_else(|| snapshots.iter().rev().find(|(id, _)| seconds(id.ticks()) == seconds(time.ticks())));
        found.and_then(|(_, share)| share.snapshot).map(|snapshot| snapshot.epoch).ok_or(Failure::NotFound)
    }

    /// Lists the complete snapshots of a share, the oldest first.
    async fn taken_snapshots(&self, tree: &Tree) -> Result<Vec<(Stamp, Share)>, Failure> {
        let include = ListInclude { deleted: false, snapshots: true };
        let mut found = vec![];
        let listed = self.shares.list_including(&tree.account, &tree.name, None, include, |entry| {
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

    /// Returns the quota of a share and its usage, in bytes.
    pub async fn space_of(&self, tree: &Tree) -> Result<(u64, u64), Failure> {
        let share = self.shares.get(&tree.account, &tree.name).await?;
        Ok((share.quota_bytes(), self.usage(tree.share.space).await?))
    }
}
