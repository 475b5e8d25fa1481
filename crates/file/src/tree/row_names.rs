//! Readable names of rows, for reports of damage.

use bytes::Bytes;
use lazuli_store::Row;

use crate::tree::keys;
use crate::tree::record::{Node, NodeId};
use crate::tree::rows::FileRows;

/// The object of a row in a share's space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowName {
    /// The id of its directory. The root directory has the id 0.
    pub directory: Option<u64>,
    /// The name in the directory, or another description.
    pub name: String,
}

/// A directory: its id, its parent and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryName {
    /// The id.
    pub id: u64,
    /// The id of its parent.
    pub parent: u64,
    /// The name in the parent.
    pub name: String,
}

impl FileRows {
    /// Describes a row in a share's space. Without the value only the folded name is known.
    pub fn describe(partition: &[u8], key: &[u8], value: Option<&Bytes>) -> Option<RowName> {
        if partition == keys::COPIES {
            return Some(RowName { directory: None, name: " (copies under way)".into() });
        }
        let Some(NodeId(directory)) = keys::directory_id(partition) else {
            let is_permission = partition == keys::permissions(lazuli_store::SpaceId::ROOT).key;
            return is_permission.then(|| RowName { directory: None, name: " (a permission)".into() });
        };
        let in_directory = |name: String| Some(RowName { directory: Some(directory), name });
        if *key == keys::OWN {
            return in_directory(" (the directory itself)".into());
        }
        if *key == keys::USAGE {
            return in_directory(" (usage of the directory)".into());
        }
        let (folded, of) = match keys::kept_parts(key) {
            Some((folded, epoch)) => (folded, format!(" in snapshots of epoch {epoch}")),
            None if keys::is_child(key) => (&key[1..], String::new()),
            None if keys::is_moving(key) => (&key[1..], " (a move under way)".into()),
            None => return None,
        };
        let written = value.filter(|_| keys::is_child(key)).and_then(|value| Node::decode(value).ok());
        let name = written.map_or_else(|| String::from_utf8_lossy(folded).into_owned(), |node| node.name);
        in_directory(format!("/{name}{of}"))
    }

    /// Returns the directory in a row, if there is one.
    pub fn directory(partition: &[u8], row: &Row) -> Option<DirectoryName> {
        let NodeId(parent) = keys::directory_id(partition)?;
        if !keys::children(b"").contains(&row.key) {
            return None;
        }
        let node = Node::decode(&row.value).ok().filter(|node| node.file.is_none())?;
        Some(DirectoryName { id: node.id.0, parent, name: node.name })
    }
}

#[cfg(test)]
mod tests {
    use lazuli_store::SpaceId;

    use super::*;

    #[test]
    fn every_kind_of_row_has_a_name() {
        let partition = keys::directory(SpaceId(1), NodeId(7)).key;
        let name =
            |key: &[u8]| FileRows::describe(&partition, key, None).map(|name| (name.directory, name.name));
        let here = |name: &str| Some((Some(7), name.to_owned()));
        assert_eq!(name(&keys::child(b"NAME")), here("/NAME"));
        assert_eq!(name(&keys::kept(b"NAME", 3)), here("/NAME in snapshots of epoch 3"));
        assert_eq!(name(&keys::moving(b"NAME")), here("/NAME (a move under way)"));
        assert_eq!(name(&keys::OWN), here(" (the directory itself)"));
        assert_eq!(name(&keys::USAGE), here(" (usage of the directory)"));
        assert_eq!(name(b"?"), None);
        let elsewhere = |partition: &[u8]| FileRows::describe(partition, b"x", None).map(|name| name.name);
        assert_eq!(elsewhere(keys::COPIES).as_deref(), Some(" (copies under way)"));
        assert_eq!(elsewhere(&keys::permissions(SpaceId(1)).key).as_deref(), Some(" (a permission)"));
    }
}
