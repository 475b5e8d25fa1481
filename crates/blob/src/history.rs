//! What becomes of the state that a write replaces: an earlier version, a deleted snapshot, or nothing.

use lazuli_concurrency::{Lease, Stamp, Timestamp};
use lazuli_protocol::{Account, Refusal, ServiceKind};
use lazuli_store::Mutation;

use crate::record::{Blob, Deleted};
use crate::{BlobService, keys};

/// What the account wants kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// Every write makes a version.
    pub(crate) versioning: bool,
    /// Days that what is deleted or replaced can be restored.
    pub(crate) retention_days: Option<u16>,
}

impl BlobService {
    /// What an account wants kept.
    pub(crate) async fn history(&self, account: &Account) -> Result<History, Refusal> {
        let properties = self.accounts.properties(&account.name, ServiceKind::Blob).await?;
        Ok(History {
            versioning: account.settings.blob_versioning,
            retention_days: properties.delete_retention.days,
        })
    }
}

impl History {
    /// The version that a write with this stamp makes.
    pub(crate) fn new_version(self, stamp: Stamp) -> Option<Stamp> {
        self.versioning.then_some(stamp)
    }

    /// The rows that keep a current state which a write with this stamp replaces as a whole.
    pub(crate) fn keep_replaced(
        self,
        old: &Blob,
        stamp: Stamp,
        now: Timestamp,
    ) -> Result<Vec<Mutation>, Refusal> {
        if !old.committed || old.has_expired(now) {
            return Ok(vec![]);
        }
        let mut kept = Blob { lease: Lease::AVAILABLE, staged_id_length: None, ..old.clone() };
        let key = match (old.deleted, self.retention_days) {
            // Deleted before: it stays so, as a snapshot.
            (Some(_), _) => keys::snapshot(stamp),
            (None, _) if self.versioning || old.version.is_some() => {
                let version = old.version.unwrap_or(old.etag.stamp());
                kept.version = Some(version);
                keys::version(version)
            }
            (None, Some(days)) => {
                kept.deleted = Some(Deleted::keep(days, now));
                keys::snapshot(stamp)
            }
            (None, None) => return Ok(vec![]),
        };
        Ok(vec![Mutation::Put(key, kept.encode()?)])
    }
}
