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
    /// Whether what was deleted may be deleted for good before its days are over.
    pub(crate) permanent_delete: bool,
}

/// What becomes of a current state that is replaced or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterlife {
    /// It is an earlier version.
    Version(Stamp),
    /// It can be restored for a while.
    Deleted(Deleted),
    /// It is gone.
    Nothing,
}

impl BlobService {
    /// What an account wants kept.
    pub(crate) async fn history(&self, account: &Account) -> Result<History, Refusal> {
        let properties = self.accounts.properties(&account.name, ServiceKind::Blob).await?;
        Ok(History {
            versioning: account.settings.blob_versioning,
            retention_days: properties.delete_retention.days,
            permanent_delete: properties.delete_retention.allow_permanent_delete,
        })
    }
}

impl History {
    /// The version that a write with this stamp makes.
    pub(crate) fn new_version(self, stamp: Stamp) -> Option<Stamp> {
        self.versioning.then_some(stamp)
    }

    /// How long what is deleted now can be restored, if it can.
    pub(crate) fn keep_deleted(self, now: Timestamp) -> Option<Deleted> {
        self.retention_days.map(|days| Deleted::keep(days, now))
    }

    /// What becomes of a current state.
    pub(crate) fn afterlife(self, old: &Blob, now: Timestamp) -> Afterlife {
        if !old.committed || old.has_expired(now) {
            return Afterlife::Nothing;
        }
        match (old.deleted, self.kept_version(old)) {
            // Deleted before: it stays so.
            (Some(deleted), _) => Afterlife::Deleted(deleted),
            (None, Some(version)) => Afterlife::Version(version),
            (None, None) => self.keep_deleted(now).map_or(Afterlife::Nothing, Afterlife::Deleted),
        }
    }

    /// The rows that keep a current state which a write with this stamp replaces as a whole.
    pub(crate) fn keep_replaced(
        self,
        old: &Blob,
        stamp: Stamp,
        now: Timestamp,
    ) -> Result<Vec<Mutation>, Refusal> {
        let (key, kept) = match self.afterlife(old, now) {
            Afterlife::Version(version) => (keys::version(version), old.as_version(version)),
            Afterlife::Deleted(deleted) => {
                (keys::deleted(&keys::snapshot(stamp)), Blob { deleted: Some(deleted), ..old.detached() })
            }
            Afterlife::Nothing => return Ok(vec![]),
        };
        Ok(vec![Mutation::Put(key, kept.encode()?)])
    }

    /// The row that keeps a live current state as an earlier version, if there are versions.
    pub(crate) fn keep_version(self, old: &Blob) -> Result<Vec<Mutation>, Refusal> {
        let Some(version) = self.kept_version(old) else { return Ok(vec![]) };
        Ok(vec![Mutation::Put(keys::version(version), old.as_version(version).encode()?)])
    }

    /// The version that a live current state becomes. What was one stays one when versioning is switched off.
    fn kept_version(self, old: &Blob) -> Option<Stamp> {
        old.version.or_else(|| self.versioning.then(|| old.etag.stamp()))
    }
}

impl Blob {
    /// The same without what only a current state has.
    pub(crate) fn detached(&self) -> Self {
        Self { lease: Lease::AVAILABLE, staging: None, expires: None, ..self.clone() }
    }

    /// The same as an earlier version.
    pub(crate) fn as_version(&self, version: Stamp) -> Self {
        Self { version: Some(version), ..self.detached() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Kind;

    #[test]
    fn a_state_that_is_replaced_or_deleted_is_kept_as_the_account_wants() {
        let now = Timestamp::from_unix_seconds(1_700_000_000);
        let (etag, version) = (Stamp::from_ticks(9), Stamp::from_ticks(7));
        let blob = Blob::new(Kind::Block, etag, now);
        let versioned = Blob { version: Some(version), ..blob.clone() };
        let before = Deleted::keep(1, now);
        let deleted = Blob { deleted: Some(before), ..blob.clone() };
        let uncommitted = Blob { committed: false, ..blob.clone() };
        let expired = Blob { expires: Some(now), ..blob.clone() };
        let kept = Afterlife::Deleted(Deleted::keep(3, now));
        let off = Afterlife::Nothing;
        // state, neither, soft delete, versioning, both
        let rows = [
            (&blob, [off, kept, Afterlife::Version(etag), Afterlife::Version(etag)]),
            (&versioned, [Afterlife::Version(version); 4]),
            (&deleted, [Afterlife::Deleted(before); 4]),
            (&uncommitted, [off; 4]),
            (&expired, [off; 4]),
        ];
        for (state, expected) in rows {
            for (at, expected) in expected.into_iter().enumerate() {
                let retention_days = (at % 2 == 1).then_some(3);
                let history = History { versioning: at >= 2, retention_days, permanent_delete: false };
                assert_eq!(history.afterlife(state, now), expected, "{history:?} {state:?}");
            }
        }
    }
}
