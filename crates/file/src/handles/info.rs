//! Properties of open files and directories.

use std::sync::Arc;

use lazuli_concurrency::Timestamp;

use crate::FileService;
use crate::failure::Failure;
use crate::handles::Info;
use crate::opens::{FileState, OpenId};
use crate::tree::record::{ARCHIVE, NORMAL, Node, NodeId};

/// Unit of allocation, in bytes.
const UNIT: u64 = 4096;

impl FileService {
    /// Returns the path of an open file from the root of the share. Does not wait.
    pub fn path_of(&self, id: OpenId) -> Option<String> {
        self.opens.place(id).map(|place| place.path)
    }

    /// Returns the newest properties of an open file.
    pub async fn info(&self, id: OpenId) -> Result<Info, Failure> {
        let described = |stored: Option<&Arc<Node>>| {
            self.opens.with_open(id, |state| {
                let node = state.buffer.node().or(stored).cloned()?;
                Some(describe(state, &node))
            })
        };
        if let Some(info) = described(None)? {
            return Ok(info);
        }
        let stored = self.load(id.file).await?;
        described(Some(&stored))?.ok_or(Failure::Closed)
    }
}

/// Returns the properties of an open file, given its stored row.
pub(super) fn describe(state: &FileState, stored: &Node) -> Info {
    let mut info = Info::of(stored, state.place.parent, &state.place.path);
    if !info.is_directory {
        info.length = state.buffer.length(stored);
        info.allocated =
            info.length.next_multiple_of(UNIT).max(state.buffer.allocation.next_multiple_of(UNIT));
        // The commit will set this attribute.
        if state.buffer.is_dirty() {
            info.attributes = info.attributes & !NORMAL | ARCHIVE;
        }
    }
    info.delete_pending = state.is_delete_pending();
    info
}

impl Info {
    /// Returns the properties of a stored row.
    pub(super) fn of(node: &Node, parent: NodeId, path: &str) -> Self {
        let properties = &node.properties;
        let accessed: Option<Timestamp> = properties.accessed;
        Self {
            id: node.id,
            parent,
            name: node.name.clone(),
            path: path.to_owned(),
            is_directory: node.is_directory(),
            attributes: properties.attributes,
            created: properties.created,
            accessed: accessed.unwrap_or(properties.last_write),
            written: properties.last_write,
            changed: properties.change,
            length: node.length(),
            allocated: node.length().next_multiple_of(UNIT),
            delete_pending: false,
        }
    }
}
