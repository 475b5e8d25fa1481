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
        let mut kept = kept(old);
        match (old.deleted, self.retention_days) {
            // Deleted before: it stays so, as a snapshot.
            (Some(_), _) => {}
            (None, _) if self.keeps_version(old) => return self.keep_version(old),
            (None, Some(days)) => kept.deleted = Some(Deleted::keep(days, now)),
            (None, None) => return Ok(vec![]),
        }
        Ok(vec![Mutation::Put(keys::snapshot(stamp), kept.encode()?)])
    }

    /// The row that keeps a current state as an earlier version, if there are versions.
    pub(crate) fn keep_version(self, old: &Blob) -> Result<Vec<Mutation>, Refusal> {
        if !self.keeps_version(old) {
            return Ok(vec![]);
        }
        let version = old.version.unwrap_or(old.etag.stamp());
        let kept = Blob { version: Some(version), ..kept(old) };
        Ok(vec![Mutation::Put(keys::version(version), kept.encode()?)])
    }

    /// What became a version stays one when versioning is switched off.
    fn keeps_version(self, old: &Blob) -> bool {
        self.versioning || old.version.is_some()
    }
}

/// A state as it is kept: nobody leases it, and nothing is staged for it.
fn kept(old: &Blob) -> Blob {
    Blob { lease: Lease::AVAILABLE, staging: None, ..old.clone() }
}
