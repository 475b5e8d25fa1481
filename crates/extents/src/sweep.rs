//! Mark and sweep: finds the extents in use and frees the rest.
//!
//! ```text
//! let mut sweep = Sweep::begin(&extents, pace).await?;
//! for every record of every space, in any order, as it is at the moment of reading {
//!     sweep.mark(&content).await?;
//! }
//! let freed = sweep.finish().await?;
//! ```
//!
//! Writers and readers continue meanwhile; [`pin`](crate::pin) explains why that is safe. A sweep that is
//! dropped or fails before `finish` frees nothing.
//!
//! A damaged map node may refer to any extent older than itself: a node is appended after everything that it
//! refers to, and ids grow in the order of appending. So the sweep keeps every older extent and continues.

use std::sync::Arc;
use std::time::Duration;

use lazuli_concurrency::Pace;

use crate::engine::{Extents, Freed, Mark};
use crate::extent::{Error, ExtentId};
use crate::map::cursor::load;
use crate::map::tree::{Link, MapEntry, PieceTree};
use crate::map::{Content, Piece};
use crate::pin::HoldRecorder;

/// Nodes read between two pauses.
const NODES_PER_STEP: u64 = 64;
/// Maximum time to wait for requests that are reading a record. Reading one takes milliseconds.
const PIN_TIMEOUT: Duration = Duration::from_secs(30);

/// A sweep that is marking the extents in use.
pub struct Sweep {
    extents: Arc<dyn Extents>,
    mark: Box<dyn Mark>,
    holds: HoldRecorder,
    pace: Pace,
    steps: u64,
    damaged_nodes: u64,
}

impl Sweep {
    /// Begins a sweep. Read every record after this call; a record that was read before may have changed
    /// since.
    pub async fn begin(extents: &Arc<dyn Extents>, pace: Pace) -> Result<Self, Error> {
        let holds = extents.pins().record_holds()?;
        let mark = extents.begin_mark().await?;
        Ok(Self { extents: extents.clone(), mark, holds, pace, steps: 0, damaged_nodes: 0 })
    }

    /// Marks a record's content as in use, including the nodes and extents that it shares with other content.
    pub async fn mark(&mut self, content: &Content) -> Result<(), Error> {
        self.walk(content).await?;
        self.mark_new_holds().await
    }

    /// Returns an id above those of all extents that were appended before the sweep began.
    pub fn horizon(&self) -> ExtentId {
        self.mark.horizon()
    }

    /// Keeps every extent below `id`: a record that cannot be read may refer to any of them.
    pub fn keep_below(&mut self, id: ExtentId) {
        self.mark.keep_below(id);
    }

    /// Frees everything that is not in use. All records must have been marked.
    pub async fn finish(mut self) -> Result<Freed, Error> {
        self.mark_new_holds().await?;
        self.holds.wait_for_pins(PIN_TIMEOUT).await?;
        self.mark_new_holds().await?;
        drop(self.holds);
        let freed = self.mark.free(self.pace).await?;
        Ok(Freed { damaged_nodes: self.damaged_nodes, ..freed })
    }

    async fn mark_new_holds(&mut self) -> Result<(), Error> {
        for content in self.holds.take()? {
            self.walk(&content).await?;
        }
        Ok(())
    }

    fn keep_older(&mut self, node: ExtentId, damage: &str) {
        if self.damaged_nodes == 0 {
            tracing::error!(?node, damage, "a sweep cannot read a map node and keeps all older content");
        }
        self.damaged_nodes += 1;
        self.mark.keep_below(node);
    }

    async fn walk(&mut self, content: &Content) -> Result<(), Error> {
        let mut lists = vec![content.tree()];
        while let Some(PieceTree { level, list }) = lists.pop() {
            for entry in list.iter() {
                match entry {
                    MapEntry::Piece(Piece::Data { extent, offset, len }) => {
                        self.mark.insert(extent, *offset..offset + len);
                    }
                    MapEntry::Subtree(sub) => {
                        // A node that was marked before was walked before, or is on the stack.
                        if let Link::Stored(node) = &sub.link
                            && self.mark.insert(node, 0..node.length)
                        {
                            match load(&*self.extents, node, sub.expected(level)).await {
                                Ok(list) => lists.push(PieceTree { level: level - 1, list }),
                                Err(Error::Damaged(damage)) => self.keep_older(node.id, &damage),
                                Err(error) => return Err(error),
                            }
                            self.steps += 1;
                            if self.steps.is_multiple_of(NODES_PER_STEP) {
                                self.pace.rest().await;
                            }
                        }
                    }
                    MapEntry::Piece(_) => {}
                }
            }
        }
        Ok(())
    }
}
