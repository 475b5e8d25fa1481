//! Decides what a write or a delete makes of the old state: an earlier version, a deleted state that can be
//! restored, or nothing.

use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_protocol::Refusal;
use lazuli_protocol::account::Settings;
use lazuli_protocol::properties::ServiceProperties;
use lazuli_store::Mutation;

use crate::model::keys;
use crate::model::record::{Blob, Deleted};

/// The retention of replaced and deleted states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// Whether to keep them as versions.
    pub(crate) versioning: bool,
    /// Number of days to keep them as deleted. `None` if they are not kept.
    pub(crate) retention_days: Option<u16>,
    /// Whether a request may permanently delete a deleted state before that.
    pub(crate) permanent_delete: bool,
}

/// The form in which a current state is kept when it is replaced or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetainedState {
    /// An earlier version.
    Version(Stamp),
    /// A deleted state that can be restored for a while.
    Deleted(Deleted),
    /// No row is left.
    Nothing,
}

impl History {
    /// Returns the retention of an account with these settings and service properties.
    pub(crate) fn of(settings: &Settings, properties: &ServiceProperties) -> Self {
        Self {
            versioning: settings.blob_versioning,
            retention_days: properties.delete_retention.days,
            permanent_delete: properties.delete_retention.allow_permanent_delete,
        }
    }

    /// Returns the version that a write with this stamp creates.
    pub(crate) fn new_version(self, stamp: Stamp) -> Option<Stamp> {
        self.versioning.then_some(stamp)
    }

    /// Returns how long a state that is deleted now can be restored, if at all.
    pub(crate) fn deletion_retention(self, now: Timestamp) -> Option<Deleted> {
        self.retention_days.map(|days| Deleted::keep(days, now))
    }

    /// Decides in which form a current state is kept.
    pub(crate) fn retained_state(self, old: &Blob, now: Timestamp) -> RetainedState {
        if !old.committed || old.has_expired(now) {
            return RetainedState::Nothing;
        }
        match (old.deleted, self.resulting_version(old)) {
            // The state was deleted before and keeps its retention.
            (Some(deleted), _) => RetainedState::Deleted(deleted),
            (None, Some(version)) => RetainedState::Version(version),
            (None, None) => {
                self.deletion_retention(now).map_or(RetainedState::Nothing, RetainedState::Deleted)
            }
        }
    }

    /// Returns the change that keeps a current state which a write with this stamp replaces.
    pub(crate) fn retain_replaced(
        self,
        old: &Blob,
        stamp: Stamp,
        now: Timestamp,
    ) -> Result<Vec<Mutation>, Refusal> {
        let (key, kept) = match self.retained_state(old, now) {
            RetainedState::Version(version) => (keys::version(version), old.as_version(version)),
            RetainedState::Deleted(deleted) => (
                keys::deleted(&keys::snapshot(stamp)),
                Blob { deleted: Some(deleted), ..old.as_past_state() },
            ),
            RetainedState::Nothing => return Ok(vec![]),
        };
        Ok(vec![Mutation::Put(key, kept.encode()?)])
    }

    /// Returns the change that keeps a live current state as an earlier version, if the account has versions.
    pub(crate) fn retain_version(self, old: &Blob) -> Result<Vec<Mutation>, Refusal> {
        let Some(version) = self.resulting_version(old) else { return Ok(vec![]) };
        Ok(vec![Mutation::Put(keys::version(version), old.as_version(version).encode()?)])
    }

    /// Returns the version that a live current state becomes. A version remains one after versioning was
    /// switched off.
    fn resulting_version(self, old: &Blob) -> Option<Stamp> {
        old.version.or_else(|| self.versioning.then(|| old.etag.stamp()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::record::Kind;

    #[test]
    fn old_state_is_kept_as_the_account_settings_say() {
        let now = Timestamp::from_unix_seconds(1_700_000_000);
        let (etag, version) = (Stamp::from_ticks(9), Stamp::from_ticks(7));
        let blob = Blob::new(Kind::Block, etag, now);
        let versioned = Blob { version: Some(version), ..blob.clone() };
        let before = Deleted::keep(1, now);
        let deleted = Blob { deleted: Some(before), ..blob.clone() };
        let uncommitted = Blob { committed: false, ..blob.clone() };
        let expired = Blob { expires: Some(now), ..blob.clone() };
        let kept = RetainedState::Deleted(Deleted::keep(3, now));
        let off = RetainedState::Nothing;
        // Columns: state, then the result with neither, soft delete, versioning, both.
        let rows = [
            (&blob, [off, kept, RetainedState::Version(etag), RetainedState::Version(etag)]),
            (&versioned, [RetainedState::Version(version); 4]),
            (&deleted, [RetainedState::Deleted(before); 4]),
            (&uncommitted, [off; 4]),
            (&expired, [off; 4]),
        ];
        for (state, expected) in rows {
            for (at, expected) in expected.into_iter().enumerate() {
                let retention_days = (at % 2 == 1).then_some(3);
                let history = History { versioning: at >= 2, retention_days, permanent_delete: false };
                assert_eq!(history.retained_state(state, now), expected, "{history:?} {state:?}");
            }
        }
    }
}
