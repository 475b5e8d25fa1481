//! Targets of copies that continue after their request. `lazuli_copy` fetches the source.
//!
//! The target is a file with the length of the source and no content, whose copy is pending. At the end one
//! commit puts in the content. Until then no other operation changes or moves the file.

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_content::content_refusal;
use lazuli_copy::{Copies, Destination, PendingCopy, SparseWriter, TargetSpace, persist};
use lazuli_extents::{Content, Writer};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Change, Decision, SpaceId, View};
use serde::{Deserialize, Serialize};

use crate::FileService;
use crate::opens::PATIENCE;
use crate::tree::children;
use crate::tree::names::Name;
use crate::tree::record::{File, Node, NodeId};
use crate::tree::spot::{FileKey, Spot};

/// The target of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyTarget {
    parent: NodeId,
    name: String,
}

/// Content that is being fetched. Protects what is written of it.
pub struct Fetched {
    content: SparseWriter,
    _writer: Writer,
}

impl CopyTarget {
    pub(crate) fn at(spot: &Spot) -> Self {
        Self { parent: spot.parent, name: spot.name.text.clone() }
    }

    fn spot(&self, space: SpaceId) -> Spot {
        // The length is reserved from the beginning.
        Spot { space, parent: self.parent, name: Name::new(&self.name), patience: PATIENCE, quota: 0 }
    }
}

impl FileService {
    /// Resumes copies that were pending when the server stopped or their share was deleted. Call it after the
    /// start, and when a sweep has reopened a space. Returns `false` if some were not found.
    pub async fn resume_copies(&self) -> bool {
        self.copies.resume(self).await
    }

    /// Returns the number of pending copies.
    pub fn pending_copies(&self) -> usize {
        self.copies.pending()
    }

    /// Stops all copies. The next start resumes them.
    pub async fn stop_copies(&self) {
        self.copies.stop().await;
    }

    /// Changes the target of a copy if the copy is still pending. Returns the target.
    async fn change_waiting(
        &self,
        space: SpaceId,
        copy: &PendingCopy<CopyTarget>,
        mut change: impl FnMut(&mut File, &View<'_>),
    ) -> Result<Option<Node>, Refusal> {
        let spot = copy.target.spot(space);
        let changed = self.change_row(&spot, None, |view, old| {
            let mut node = old.ok_or(ErrorCode::NoPendingCopyOperation)?;
            let file = waiting(&mut node, copy.id).ok_or(ErrorCode::NoPendingCopyOperation)?;
            change(file, view);
            node.touch(view.stamp, view.now);
            Ok(Some(node))
        });
        let no_longer_waits = |code| {
            // A directory is deleted only when it is empty.
            matches!(code, ErrorCode::NoPendingCopyOperation | ErrorCode::ParentNotFound)
        };
        match changed.await {
            Err(refusal) if no_longer_waits(refusal.code()) => Ok(None),
            changed => changed,
        }
    }

    /// Makes fetched content durable.
    async fn fetched(&self, content: SparseWriter) -> Result<Content, Refusal> {
        let content = content.finish().await.map_err(content_refusal)?;
        self.sync(&content).await?;
        Ok(content)
    }
}

#[async_trait]
impl Destination for FileService {
    const GONE: ErrorCode = ErrorCode::ShareNotFound;
    type Target = CopyTarget;
    type Sink = Fetched;

    fn copies(&self) -> &Copies {
        &self.copies
    }

    async fn spaces(&self, from: Option<Bytes>) -> Result<(Vec<TargetSpace>, Option<Bytes>), Refusal> {
        let (spaces, next) = self.shares.spaces(from).await?;
        Ok((spaces.into_iter().map(|(space, account)| TargetSpace { space, account }).collect(), next))
    }

    async fn open(&self, space: SpaceId, copy: &PendingCopy<CopyTarget>) -> Result<Option<Fetched>, Refusal> {
        if !self.is_wanted(space, copy).await? {
            return Ok(None);
        }
        let writer = self.extents.pins().writer();
        let content = SparseWriter::new(&self.extents, &writer, copy.seen.length, None);
        Ok(Some(Fetched { content, _writer: writer }))
    }

    async fn is_wanted(&self, space: SpaceId, copy: &PendingCopy<CopyTarget>) -> Result<bool, Refusal> {
        let spot = copy.target.spot(space);
        let (partition, reads) = (spot.partition(), children::reads_to_change(&spot.name));
        let is_waiting = self.rows.transact(&partition, reads, |view| {
            let mut node = children::current(view, &spot.name)?;
            Ok(match node.as_mut().and_then(|node| waiting(node, copy.id)) {
                Some(_) => Decision::Answer(true),
                // An empty commit: if the commit that begins the copy is in flight, it comes afterwards and
                // conflicts.
                None => Decision::Write(Change::default(), false),
            })
        });
        is_waiting.await
    }

    async fn push(&self, fetched: &mut Fetched, bytes: Bytes) -> Result<(), Refusal> {
        fetched.content.push(bytes).await.map_err(content_refusal)
    }

    async fn record_progress(
        &self,
        space: SpaceId,
        copy: &PendingCopy<CopyTarget>,
        copied: u64,
    ) -> Result<bool, Refusal> {
        self.extents.sync().await.map_err(content_refusal)?;
        let noted = self.change_waiting(space, copy, |file, _| {
            if let Some(state) = &mut file.copy {
                state.copied = copied;
            }
        });
        Ok(noted.await?.is_some())
    }

    async fn end(
        &self,
        space: SpaceId,
        copy: &PendingCopy<CopyTarget>,
        outcome: Result<Fetched, Refusal>,
    ) -> Result<(), Refusal> {
        let (outcome, _writer) = match outcome {
            Ok(Fetched { content, _writer }) => (self.fetched(content).await, Some(_writer)),
            Err(refusal) => (Err(refusal), None),
        };
        let ended = persist(Self::GONE, || {
            self.change_waiting(space, copy, |file, view| {
                let Some(state) = &mut file.copy else { return };
                match &outcome {
                    Ok(content) => {
                        state.succeed(view.now);
                        file.content = content.clone();
                    }
                    Err(refusal) => {
                        state.fail(refusal, view.now);
                        file.content = Content::empty();
                    }
                }
            })
        });
        match (ended.await?, &outcome) {
            // Opens may have read the old content.
            (Some(node), _) => self.opens.invalidate_caches(FileKey::now(space, node.id)),
            (None, Ok(content)) => self.extents.released(content.extent_bytes()),
            (None, Err(_)) => {}
        }
        Ok(())
    }
}

/// Returns the file if this copy is still pending.
fn waiting(node: &mut Node, id: [u8; 16]) -> Option<&mut File> {
    let file = node.file.as_mut()?;
    let waits = file.copy.as_ref().is_some_and(|state| state.is_pending() && state.id == id);
    waits.then_some(file)
}
