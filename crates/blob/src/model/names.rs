//! Describes rows of this service, for reports of damage.

use crate::BlobRows;
use crate::model::keys::{self, RowKind};
use crate::model::record::stamp_text;

impl BlobRows {
    /// Describes a row in the space of a container. The text is meant to follow the container's name.
    pub fn describe(partition: &[u8], key: &[u8]) -> Option<String> {
        if partition == keys::COPIES {
            return Some(" (copies under way)".into());
        }
        if let Some(tag) = partition.strip_prefix(keys::TAGS) {
            return Some(format!(" (index of the tag {})", String::from_utf8_lossy(tag)));
        }
        let name = keys::blob_name(partition)?;
        Some(match keys::row_kind(key)? {
            RowKind::Base => format!("/{name}"),
            RowKind::Snapshot(stamp) => format!("/{name} snapshot {}", stamp_text(stamp)),
            RowKind::Version(stamp) => format!("/{name} version {}", stamp_text(stamp)),
            RowKind::DeletedSnapshot(stamp) => format!("/{name} deleted snapshot {}", stamp_text(stamp)),
            RowKind::DeletedVersion(stamp) => format!("/{name} deleted version {}", stamp_text(stamp)),
            RowKind::Staged { id, .. } => format!("/{name} uncommitted block {}", id.escape_ascii()),
            RowKind::StagedCount => format!("/{name} (count of uncommitted blocks)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Stamp;
    use lazuli_store::SpaceId;

    use super::*;

    #[test]
    fn every_row_kind_has_a_description() {
        let partition = keys::blob(SpaceId(1), "a/b").key;
        let stamp = Stamp::from_ticks(133_000_000_000_000_000);
        let time = stamp_text(stamp);
        for (key, name) in [
            (keys::BASE, "/a/b".to_owned()),
            (keys::snapshot(stamp), format!("/a/b snapshot {time}")),
            (keys::version(stamp), format!("/a/b version {time}")),
            (keys::deleted(&keys::snapshot(stamp)), format!("/a/b deleted snapshot {time}")),
            (keys::deleted(&keys::version(stamp)), format!("/a/b deleted version {time}")),
            (keys::staged(0, b"id\n"), "/a/b uncommitted block id\\n".to_owned()),
            (keys::staged(7, b"id\n"), "/a/b uncommitted block id\\n".to_owned()),
            (keys::STAGED_COUNT, "/a/b (count of uncommitted blocks)".to_owned()),
        ] {
            assert_eq!(BlobRows::describe(&partition, &key), Some(name));
        }
        let tag = keys::tag(SpaceId(1), "color").key;
        assert_eq!(BlobRows::describe(&tag, b"x").as_deref(), Some(" (index of the tag color)"));
        assert_eq!(BlobRows::describe(b"?", b"x"), None);
    }
}
