//! Readable names of rows: by account, container and blob; table and keys; queue; share and path.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use lazuli_blob::BlobRows;
use lazuli_file::FileRows;
use lazuli_queue::QueueRows;
use lazuli_store::{Row, RowPosition, SpaceId};
use lazuli_table::TableRows;

use crate::services;

/// Maximum number of share directories whose names are kept. Files in other directories are named by the
/// directory's id.
const MAX_DIRECTORIES: usize = 1 << 20;
/// Maximum number of directories in a path.
const MAX_DEPTH: usize = 250;

/// A row to be named once all names are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowLocation {
    pub(crate) row: RowPosition,
    /// The value, if the row's name depends on it.
    pub(crate) value: Option<Bytes>,
}

impl RowLocation {
    pub(crate) fn of(space: SpaceId, partition: &Bytes, row: &Row) -> Self {
        let place = RowPosition { space, partition: partition.clone(), key: row.key.clone() };
        Self { row: place, value: (space != SpaceId::ROOT).then(|| row.value.clone()) }
    }
}

/// The names of spaces and directories, learned from rows.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The kind, and `ACCOUNT/NAME`.
    spaces: BTreeMap<SpaceId, (String, String)>,
    /// The parent and the name of each directory.
    directories: HashMap<(SpaceId, u64), (u64, String)>,
}

impl Names {
    /// Learns the names in a readable row. Rows of the directory of accounts must come first.
    pub(crate) fn learn(&mut self, space: SpaceId, partition: &[u8], row: &Row) {
        if space == SpaceId::ROOT {
            if let Some(named) = services::space_named_by(partition, row)
                && let Some(name) = generation_name(partition)
            {
                self.spaces.insert(named, name);
            }
        } else if self.spaces.get(&space).is_some_and(|(kind, _)| kind == "file")
            && self.directories.len() < MAX_DIRECTORIES
            && let Some(directory) = FileRows::directory(partition, row)
        {
            self.directories.insert((space, directory.id), (directory.parent, directory.name));
        }
    }

    /// Returns the spaces that rows of the directory name.
    pub(crate) fn spaces(&self) -> impl Iterator<Item = SpaceId> {
        self.spaces.keys().copied()
    }

    /// Returns whether a row of the directory names the space.
    pub(crate) fn knows(&self, space: SpaceId) -> bool {
        space == SpaceId::ROOT || self.spaces.contains_key(&space)
    }

    /// Returns the name of a row.
    pub(crate) fn name(&self, place: &RowLocation) -> String {
        let RowPosition { space, partition, key } = &place.row;
        if *space == SpaceId::ROOT {
            return root_name(partition, key);
        }
        let known = self.spaces.get(space).and_then(|(kind, name)| {
            let behind = match &kind[..] {
                "blob" => BlobRows::describe(partition, key),
                "queue" => QueueRows::describe(partition, key),
                "table" => TableRows::describe(partition, key),
                "file" => FileRows::describe(partition, key, place.value.as_ref())
                    .map(|row| self.path(*space, row.directory) + &row.name),
                _ => None,
            };
            Some(format!("{kind} {name}{}", behind?))
        });
        known.unwrap_or_else(|| place.row.to_string())
    }

    /// Returns the path of a directory: empty for the root, else with a leading slash.
    fn path(&self, space: SpaceId, directory: Option<u64>) -> String {
        let (mut path, mut id) = (String::new(), directory.unwrap_or(0));
        for _ in 0..MAX_DEPTH {
            if id == 0 {
                return path;
            }
            let Some((parent, name)) = self.directories.get(&(space, id)) else { break };
            path = format!("/{name}{path}");
            id = *parent;
        }
        format!("/(directory {id:x}){path}")
    }
}

/// Splits `KIND/ACCOUNT/GENERATION/NAME` into its kind and `ACCOUNT/NAME`.
fn generation_name(partition: &[u8]) -> Option<(String, String)> {
    let mut parts = std::str::from_utf8(partition).ok()?.splitn(4, '/');
    let (kind, account, _, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    Some((kind.to_owned(), format!("{account}/{name}")))
}

/// Returns the account and generation that a partition of the directory belongs to.
pub(crate) fn owner(partition: &[u8]) -> Option<(String, u64)> {
    let mut parts = std::str::from_utf8(partition).ok()?.splitn(4, '/');
    let (_, account, generation, _) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    Some((account.to_owned(), u64::from_str_radix(generation, 16).ok()?))
}

/// Names a row of the directory of accounts.
fn root_name(partition: &[u8], key: &[u8]) -> String {
    let row = key.escape_ascii();
    match generation_name(partition) {
        Some((kind, name)) => {
            let what = match &kind[..] {
                "blob" => "container",
                "file" => "share",
                kind => kind,
            };
            if key == b"current" { format!("{what} {name}") } else { format!("{what} {name} ({row})") }
        }
        None => match partition.strip_prefix(b"account/") {
            Some(account) => format!("account {} ({row})", account.escape_ascii()),
            None => format!("{} ({row})", partition.escape_ascii()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_rows_are_named_by_the_object_they_describe() {
        for (partition, key, name) in [
            ("blob/lapis/00ff/con", "current", "container lapis/con"),
            ("file/lapis/00ff/docs", "current", "share lapis/docs"),
            ("table/lapis/00ff/t", "current", "table lapis/t"),
            ("account/lapis", "account", "account lapis (account)"),
            ("server", "secret", "server (secret)"),
        ] {
            assert_eq!(root_name(partition.as_bytes(), key.as_bytes()), name);
        }
    }

    #[test]
    fn rows_of_unknown_spaces_are_named_by_their_position() {
        let row = RowPosition { space: SpaceId(7), partition: "bname".into(), key: "b".into() };
        let place = RowLocation { row: row.clone(), value: None };
        let mut names = Names::default();
        assert_eq!(names.name(&place), row.to_string());
        names.spaces.insert(SpaceId(7), ("blob".into(), "lapis/con".into()));
        assert_eq!(names.name(&place), "blob lapis/con/name");
    }

    #[test]
    fn path_of_an_orphaned_directory_begins_with_the_missing_id() {
        let mut names = Names::default();
        names.directories.insert((SpaceId(1), 5), (9, "b".into()));
        names.directories.insert((SpaceId(1), 9), (0, "a".into()));
        names.directories.insert((SpaceId(1), 7), (6, "d".into()));
        assert_eq!(names.path(SpaceId(1), Some(5)), "/a/b");
        assert_eq!(names.path(SpaceId(1), Some(0)), "");
        assert_eq!(names.path(SpaceId(1), Some(7)), "/(directory 6)/d");
    }
}
