//! Mark and sweep: finds out what lives and frees the rest.
//!
//! ```text
//! let mut sweep = Sweep::begin(&extents, pace).await?;
//! for every record of every space, in any order, as it is at the moment of reading {
//!     sweep.live(&content).await?;
//! }
//! let freed = sweep.finish().await?;
//! ```
//!
//! Writers and readers go on meanwhile; [`pin`](crate::pin) says why that is safe. A sweep that is dropped or fails
//! before `finish` has freed nothing.
//!
//! A map node that is damaged may refer to any extent that is older than itself: a node is appended after everything that
//! it refers to, and ids grow in that order. So the sweep keeps every older extent and goes on.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Extents, Mark};
use crate::extent::{Error, ExtentId};
use crate::map::cursor::load;
use crate::map::tree::{Entry, Link, Tree};
use crate::map::{Content, Piece};
use crate::pin::Marking;

/// Nodes read between two pauses.
const STRIDE: u64 = 64;
/// How long a sweep waits for those who are reading a record. Reading one takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much of the machine a sweep may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// The pause after each small step: 64 map nodes read, or one segment freed.
    pub pause: Duration,
}

impl Pace {
    /// No pauses.
    pub const FULL: Self = Self { pause: Duration::ZERO };

    /// Takes the pause that a step is followed by.
    pub async fn rest(&self) {
        if self.pause.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(self.pause).await;
        }
    }
}

/// What a sweep achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Bytes that were given back to the file system.
    pub bytes: u64,
    /// Segments, or objects, that were removed.
    pub segments: u64,
    /// Bytes taken by what was found to live.
    pub live_bytes: u64,
    /// Map nodes that could not be read. Nothing older than they are was freed.
    pub damaged_nodes: u64,
}

/// A sweep that is looking for what lives.
pub struct Sweep {
    extents: Arc<dyn Extents>,
    mark: Box<dyn Mark>,
    marking: Marking,
    pace: Pace,
    steps: u64,
    damaged_nodes: u64,
}

impl Sweep {
    /// Begins. Every record must be read after this; a record read before may have changed since.
    pub async fn begin(extents: &Arc<dyn Extents>, pace: Pace) -> Result<Self, Error> {
        let marking = extents.pins().begin_marking()?;
        let mark = extents.begin_mark().await?;
        Ok(Self { extents: extents.clone(), mark, marking, pace, steps: 0, damaged_nodes: 0 })
    }

    /// Counts the content of a record as alive, with all that it shares with others.
    pub async fn live(&mut self, content: &Content) -> Result<(), Error> {
        self.walk(content).await?;
        self.held().await
    }

    /// Every extent that was appended before the sweep began has an id below this.
    pub fn horizon(&self) -> ExtentId {
        self.mark.horizon()
    }

    /// Keeps every extent below an id: a record that cannot be read may refer to any of them.
    pub fn keep_below(&mut self, id: ExtentId) {
        self.mark.keep_below(id);
    }

    /// Frees what is not alive. All records must have been told.
    pub async fn finish(mut self) -> Result<Freed, Error> {
        self.held().await?;
        self.marking.settled(PATIENCE).await?;
        self.held().await?;
        drop(self.marking);
        let freed = self.mark.free(self.pace).await?;
        Ok(Freed { damaged_nodes: self.damaged_nodes, ..freed })
    }

    async fn held(&mut self) -> Result<(), Error> {
        for content in self.marking.take()? {
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
        while let Some(Tree { level, list }) = lists.pop() {
            for entry in list.iter() {
                match entry {
                    Entry::Piece(Piece::Data { extent, offset, len }) => {
                        self.mark.live(extent, *offset..offset + len);
                    }
                    Entry::Sub(sub) => {
                        // A node that was noted before was walked before, or is on the stack.
                        if let Link::Stored(node) = &sub.link
                            && self.mark.live(node, 0..node.length)
                        {
                            match load(&*self.extents, node, sub.expected(level)).await {
                                Ok(list) => lists.push(Tree { level: level - 1, list }),
                                Err(Error::Damaged(damage)) => self.keep_older(node.id, &damage),
                                Err(error) => return Err(error),
                            }
                            self.steps += 1;
                            if self.steps.is_multiple_of(STRIDE) {
                                self.pace.rest().await;
                            }
                        }
                    }
                    Entry::Piece(_) => {}
                }
            }
        }
        Ok(())
    }
}
