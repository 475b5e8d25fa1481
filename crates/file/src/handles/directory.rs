//! Enumerating open directories.

use crate::FileService;
use crate::failure::Failure;
use crate::handles::Info;
use crate::handles::info::describe;
use crate::opens::OpenId;
use crate::tree::children::At;
use crate::tree::keys;
use crate::tree::listing::Listing;
use crate::tree::names::fold;
use crate::tree::spot::FileKey;

/// The position of an enumeration.
#[derive(Clone, Debug, Default)]
pub struct Position {
    /// The next folded name; empty at the beginning.
    start: Vec<u8>,
    is_done: bool,
}

impl Position {
    /// Begins at a name.
    pub fn at(name: &str) -> Self {
        Self { start: fold(name).into_bytes(), is_done: false }
    }

    /// Begins after a name.
    pub fn after(name: &str) -> Self {
        Self { start: name_after(fold(name).into_bytes()), is_done: false }
    }
}

impl FileService {
    /// Returns the next entries of an open directory, up to `limit`, in the order of their folded names. An
    /// empty result is the end. Includes files marked for deletion, but neither `.` nor `..`.
    pub async fn enumerate(
        &self,
        id: OpenId,
        position: &mut Position,
        limit: usize,
    ) -> Result<Vec<Info>, Failure> {
        let place = self.opens.with_open(id, |state| state.place.clone())?;
        let (FileKey { space, node, epoch }, mut found) = (id.file, vec![]);
        let at = epoch.map_or(At::Now, At::Epoch);
        let mut listing = Listing::new(keys::directory(space, node), b"", &position.start, at);
        while found.is_empty() && !position.is_done && limit > 0 {
            let Some(entries) = self.next_children(&mut listing, limit).await? else {
                position.is_done = true;
                break;
            };
            for (name, child) in entries.into_iter().take(limit) {
                let path = match place.path.as_str() {
                    "" => child.name.clone(),
                    directory => format!("{directory}/{}", child.name),
                };
                let file = FileKey { space, node: child.id, epoch };
                // The table knows newer properties of open files than their rows.
                let open = self.opens.peek(file, |state| {
                    let stored = state.buffer.node().map_or(&child, |node| node);
                    Info { path: path.clone(), parent: node, ..describe(state, stored) }
                });
                found.push(open.unwrap_or_else(|| Info::of(&child, node, &path)));
                position.start = name_after(name.to_vec());
            }
        }
        Ok(found)
    }
}

/// Returns the position right after a folded name. No name contains this character.
fn name_after(mut name: Vec<u8>) -> Vec<u8> {
    name.push(1);
    name
}
