//! What is in an open directory.

use super::create::describe;
use super::{Failure, Info};
use crate::children::At;
use crate::level::Listing;
use crate::names::fold;
use crate::opens::{FileKey, OpenId};
use crate::{FileService, keys};

/// Where an enumeration of a directory has come to.
#[derive(Clone, Debug, Default)]
pub struct Position {
    /// The folded name from which on it goes on; empty at the beginning.
    start: Vec<u8>,
    is_done: bool,
}

impl Position {
    /// At that name.
    pub fn at(name: &str) -> Self {
        Self { start: fold(name).into_bytes(), is_done: false }
    }

    /// Behind that name.
    pub fn after(name: &str) -> Self {
        Self { start: behind(fold(name).into_bytes()), is_done: false }
    }
}

impl FileService {
    /// The next entries of an open directory, at most so many, in the order of their folded names. None at the end. `.` and
    /// `..` are not among them; what is marked for deletion is.
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
            let Some(entries) = self.more(&mut listing, limit).await? else {
                position.is_done = true;
                break;
            };
            for (name, child) in entries.into_iter().take(limit) {
                let path = match place.path.as_str() {
                    "" => child.name.clone(),
                    directory => format!("{directory}/{}", child.name),
                };
                let file = FileKey { space, node: child.id, epoch };
                // Of what is open more is known than its row says.
                let open = self.opens.peek(file, |state| {
                    let stored = state.newest.node().map_or(&child, |node| node);
                    Info { path: path.clone(), parent: node, ..describe(state, stored) }
                });
                found.push(open.unwrap_or_else(|| Info::of(&child, node, &path)));
                position.start = behind(name.to_vec());
            }
        }
        Ok(found)
    }
}

/// Right behind a folded name: no name holds such a character.
fn behind(mut name: Vec<u8>) -> Vec<u8> {
    name.push(1);
    name
}
