//! The `include` parameter of List Blobs.

use lazuli_protocol::{Query, Refusal, Version};

use crate::model::keys::RowKind;

/// The kinds of entries and details that a request includes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlobInclude {
    pub(super) snapshots: bool,
    pub(super) metadata: bool,
    pub(super) uncommitted: bool,
    pub(super) copy: bool,
    pub(super) deleted: bool,
    pub(super) tags: bool,
    pub(super) versions: bool,
    pub(super) deleted_with_versions: bool,
    pub(super) immutability_policy: bool,
    pub(super) legal_hold: bool,
}

type SetFlag = fn(&mut BlobInclude);

/// The values of `include`, the flag that each sets, and its first version.
const INCLUDES: [(&str, SetFlag, Version); 11] = [
    ("snapshots", |i| i.snapshots = true, Version::OLDEST),
    ("metadata", |i| i.metadata = true, Version::OLDEST),
    ("uncommittedblobs", |i| i.uncommitted = true, Version::OLDEST),
    ("copy", |i| i.copy = true, Version::new(2012, 2, 12)),
    ("deleted", |i| i.deleted = true, Version::new(2017, 7, 29)),
    ("tags", |i| i.tags = true, Version::new(2019, 12, 12)),
    ("versions", |i| i.versions = true, Version::new(2019, 12, 12)),
    ("deletedwithversions", |i| i.deleted_with_versions = true, Version::new(2020, 10, 2)),
    ("immutabilitypolicy", |i| i.immutability_policy = true, Version::new(2020, 6, 12)),
    ("legalhold", |i| i.legal_hold = true, Version::new(2020, 6, 12)),
    // Only accounts with a hierarchical namespace have permissions to show.
    ("permissions", |_| {}, Version::new(2020, 6, 12)),
];

/// Returns the values that a version has.
pub(crate) fn values_of_version<T: Copy>(
    words: &[(&'static str, T, Version)],
    version: Version,
) -> Vec<(&'static str, T)> {
    let since = words.iter().filter(|(_, _, since)| version >= *since);
    since.map(|(word, meaning, _)| (*word, *meaning)).collect()
}

impl BlobInclude {
    /// Parses the `include` parameter of a query.
    pub(super) fn parse(query: &Query, version: Version) -> Result<Self, Refusal> {
        let mut include = Self::default();
        for set in query.list("include", &values_of_version(&INCLUDES, version))? {
            set(&mut include);
        }
        Ok(include)
    }

    /// Returns whether the listing needs all rows of a blob, not only the first one.
    pub(super) const fn needs_every_row(self) -> bool {
        self.snapshots || self.versions || self.deleted_with_versions
    }

    /// Returns whether the listing needs rows of this kind.
    pub(super) const fn needs_kind(self, kind: RowKind<'_>) -> bool {
        match kind {
            RowKind::Base => true,
            RowKind::Snapshot(_) => self.snapshots,
            RowKind::DeletedSnapshot(_) => self.snapshots && self.deleted,
            RowKind::Version(_) => self.versions || self.deleted_with_versions,
            RowKind::DeletedVersion(_) => (self.versions && self.deleted) || self.deleted_with_versions,
            RowKind::StagedCount | RowKind::Staged { .. } => false,
        }
    }
}
