//! Copies to files that go on after their request was answered. How they do is in `lazuli_copy`; here is what becomes of
//! their targets: a file of the length of its source and without content, whose copy is pending, until all of the source
//! is put there in one commit. Nobody else changes it meanwhile, and it stays where it is.

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_copy::{Copies, Destination, PendingCopy, Sparse, persist};
use lazuli_extents::{Content, Writer};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Change, Decision, SpaceId, View};
use serde::{Deserialize, Serialize};

use crate::content::unreadable;
use crate::names::Name;
use crate::opens::{FileKey, PATIENCE};
use crate::record::{File, Node, NodeId};
use crate::tree::Spot;
use crate::{FileService, children};

/// The file that a copy goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyTarget {
    parent: NodeId,
    name: String,
}

/// Content that is being fetched. What was written of it stays as long as this does.
pub struct Fetched {
    content: Sparse,
    _writer: Writer,
}

impl CopyTarget {
    pub(crate) fn at(spot: &Spot) -> Self {
        Self { parent: spot.parent, name: spot.name.text.clone() }
    }

    fn spot(&self, space: SpaceId) -> Spot {
        // Nothing grows: the length is there from the beginning.
        Spot { space, parent: self.parent, name: Name::new(&self.name), patience: PATIENCE, quota: 0 }
    }
}

impl FileService {
    /// Goes on with the copies that were pending when the server stopped, or when what they go to was deleted. To be called after
    /// the start, and when a sweep has opened a space. False: not all were found.
    pub async fn resume_copies(&self) -> bool {
        self.copies.resume(self).await
    }

    /// Stops the copies that are under way. The next start goes on with them.
    pub async fn stop_copies(&self) {
        self.copies.stop().await;
    }

    /// Changes the target of a copy, if it still waits for it. What it is then, if it does.
    async fn change_waiting(
        &self,
        space: SpaceId,
        copy: &PendingCopy<CopyTarget>,
        mut change: impl FnMut(&mut File, &View<'_>),
    ) -> Result<Option<Node>, Refusal> {
        let spot = copy.target.spot(space);
        let changed = self.change_row(&spot, |view, old| {
            let mut node = old.ok_or(ErrorCode::NoPendingCopyOperation)?;
            let file = waiting(&mut node, copy.id).ok_or(ErrorCode::NoPendingCopyOperation)?;
            change(file, view);
            node.touch(view.stamp, view.now);
            Ok(Some(node))
        });
        let no_longer_waits = |code| {
            // A directory goes only after all that was in it.
            matches!(code, ErrorCode::NoPendingCopyOperation | ErrorCode::ParentNotFound)
        };
        match changed.await {
            Err(refusal) if no_longer_waits(refusal.code()) => Ok(None),
            changed => changed,
        }
    }

    /// The content that was fetched, durable.
    async fn fetched(&self, content: Sparse) -> Result<Content, Refusal> {
        let content = content.finish().await.map_err(unreadable)?;
        if content.as_inline().is_none() {
            self.extents.sync().await.map_err(unreadable)?;
        }
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

    async fn spaces(&self, from: Option<Bytes>) -> Result<(Vec<SpaceId>, Option<Bytes>), Refusal> {
        self.shares.spaces(from).await
    }

    async fn open(&self, space: SpaceId, copy: &PendingCopy<CopyTarget>) -> Result<Option<Fetched>, Refusal> {
        if !self.is_wanted(space, copy).await? {
            return Ok(None);
        }
        let writer = self.extents.pins().writer();
        let content = Sparse::new(&self.extents, &writer, copy.seen.length, None);
        Ok(Some(Fetched { content, _writer: writer }))
    }

    async fn is_wanted(&self, space: SpaceId, copy: &PendingCopy<CopyTarget>) -> Result<bool, Refusal> {
        let spot = copy.target.spot(space);
        let (partition, reads) = (spot.partition(), children::reads_to_change(&spot.name));
        let is_waiting = self.transact(&partition, reads, |view| {
            let mut node = children::current(view, &spot.name)?;
            Ok(match node.as_mut().and_then(|node| waiting(node, copy.id)) {
                Some(_) => Decision::Answer(true),
                // A commit of nothing: it comes after the beginning of the copy if that is still under way, and then
                // finds that it judged too early.
                None => Decision::Write(Change::default(), false),
            })
        });
        is_waiting.await
    }

    async fn push(&self, fetched: &mut Fetched, bytes: Bytes) -> Result<(), Refusal> {
        fetched.content.push(bytes).await.map_err(unreadable)
    }

    async fn note(
        &self,
        space: SpaceId,
        copy: &PendingCopy<CopyTarget>,
        copied: u64,
    ) -> Result<bool, Refusal> {
        self.extents.sync().await.map_err(unreadable)?;
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
            // Whoever has it open has read what was there until now.
            (Some(node), _) => self.opens.outdate(FileKey::now(space, node.id)),
            (None, Ok(content)) => self.extents.released(content.allocated()),
            (None, Err(_)) => {}
        }
        Ok(())
    }
}

/// What waits for a copy, if it still does.
fn waiting(node: &mut Node, id: [u8; 16]) -> Option<&mut File> {
    let file = node.file.as_mut()?;
    let waits = file.copy.as_ref().is_some_and(|state| state.is_pending() && state.id == id);
    waits.then_some(file)
}

/// Refuses to change a file that is being copied to, or to copy from it.
pub(crate) fn check_no_pending_copy(node: &Node) -> Result<(), Refusal> {
    let state = node.file.as_ref().and_then(|file| file.copy.as_ref());
    match state.is_some_and(lazuli_copy::CopyState::is_pending) {
        true => Err(ErrorCode::PendingCopyOperation.into()),
        false => Ok(()),
    }
}
