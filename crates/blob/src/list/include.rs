//! What the `include` of List Blobs asks for.

use lazuli_protocol::{Query, Refusal, Version};

use crate::model::keys::RowKind;

/// The entries of a page in addition to current blobs.
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

type Set = fn(&mut BlobInclude);

/// The words of `include`, what each asks for, and the version that brought it.
const INCLUDES: [(&str, Set, Version); 11] = [
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
    // Only accounts with directories have permissions to show.
    ("permissions", |_| {}, Version::new(2020, 6, 12)),
];

/// The words that a version knows.
pub(crate) fn known<T: Copy>(
    words: &[(&'static str, T, Version)],
    version: Version,
) -> Vec<(&'static str, T)> {
    let since = words.iter().filter(|(_, _, since)| version >= *since);
    since.map(|(word, meaning, _)| (*word, *meaning)).collect()
}

impl BlobInclude {
    /// Reads the `include` parameter of a query in a version.
    pub(super) fn parse(query: &Query, version: Version) -> Result<Self, Refusal> {
        let mut include = Self::default();
        for set in query.list("include", &known(&INCLUDES, version))? {
            set(&mut include);
        }
        Ok(include)
    }

    /// Whether the first row of a blob is not enough.
    pub(super) const fn every_row(self) -> bool {
        self.snapshots || self.versions || self.deleted_with_versions
    }

    /// Whether rows of that kind are of any use.
    pub(super) const fn reads(self, kind: RowKind<'_>) -> bool {
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
