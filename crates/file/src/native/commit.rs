//! Making what was written to an open file durable, and changing its row: one commit for both.

use std::sync::Arc;

use lazuli_generations::carry_through;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Change, Decision, Reads, View};

use super::Failure;
use super::writeback::{FileTurn, name_of};
use crate::file::allocated;
use crate::opens::newest::{Due, Moment};
use crate::opens::{FileKey, PATIENCE, Place};
use crate::record::{Node, NodeId, Share};
use crate::smb_properties::{ARCHIVE, NORMAL};
use crate::tree::Spot;
use crate::{FileService, children, keys};

impl FileService {
    /// Makes durable what was written to a file.
    pub(crate) async fn flush_file(&self, file: FileKey, moment: Moment) -> Result<(), Failure> {
        let this = self.clone();
        // To its end: what was committed has to be known to be.
        let flushed = async move {
            let turn = this.turn(file).await;
            Ok(this.commit(&turn, moment, None::<fn(&mut Node, &View<'_>)>).await)
        };
        carry_through(flushed).await.map_err(|refusal: Refusal| Failure::from(refusal))?.map(drop)
    }

    /// Commits what was written, and a change of the row with it. What is stored then.
    pub(super) async fn commit(
        &self,
        turn: &FileTurn,
        moment: Moment,
        mut change: Option<impl FnMut(&mut Node, &View<'_>)>,
    ) -> Result<Option<Arc<Node>>, Failure> {
        let file = turn.file;
        if change.is_some() {
            self.load_in_turn(turn).await?;
        }
        self.spill(turn).await?;
        let due = self.opens.with(file, |state| {
            let due = state.newest.due(moment, change.is_some())?;
            Some((due, state.place.clone(), state.newest.share().cloned()))
        });
        let Some((due, place, share)) = due else { return Ok(None) };
        let committed = self.commit_row(file, &due, &place, share.as_deref(), &mut change).await;
        self.opens.with(file, |state| {
            if let Ok(node) = &committed {
                let is_changing = state.is_changing();
                state.newest.committed(&due, moment, node.clone(), is_changing);
                // The row changed, if only by us.
                state.newest.failed = None;
            }
            // What was promised and is not needed, or was taken up and is needed still.
            state.newest.repromise(|more| self.usages.promise_again(file.space, more));
        });
        committed.map(Some)
    }

    /// Commits a change of an open directory.
    pub(super) async fn commit_directory(
        &self,
        turn: &FileTurn,
        change: impl FnMut(&mut Node, &View<'_>),
    ) -> Result<Option<Arc<Node>>, Failure> {
        let node = self.load_in_turn(turn).await?;
        let (place, share) =
            self.opens.with(turn.file, |state| (state.place.clone(), state.newest.share().cloned()));
        let due = Due::nothing(node);
        self.commit_row(turn.file, &due, &place, share.as_deref(), &mut Some(change)).await.map(Some)
    }

    async fn commit_row(
        &self,
        file: FileKey,
        due: &Due,
        place: &Place,
        share: Option<&Share>,
        change: &mut Option<impl FnMut(&mut Node, &View<'_>)>,
    ) -> Result<Arc<Node>, Failure> {
        let content = due.node.file.as_ref().map(|file| &file.content);
        if due.wrote && content.is_some_and(|content| content.as_inline().is_none()) {
            self.extents.sync().await?;
        }
        let Some(name) = name_of(place)? else {
            return self.commit_root(share.ok_or(Failure::Closed)?, change).await.map(Arc::new);
        };
        let mut reserved = None;
        if due.promised > 0 {
            let mut reservation = self.usages.still(file.space).await;
            // Not before: what is not taken up stays promised.
            self.opens.with(file, |state| reservation.redeem(state.newest.redeem(due)));
            reserved = Some(reservation);
        }
        let (space, parent) = (file.space, place.parent);
        // What grows was promised when it was written.
        let spot = Spot { space, parent, name, patience: PATIENCE, quota: u64::MAX };
        let mut released = 0;
        let changed = self.change_row_with(&spot, reserved, |view, old| {
            let old = old.filter(|old| old.id == file.node).ok_or(ErrorCode::ResourceNotFound)?;
            let mut node = due.apply(old.clone(), view);
            if let Some(change) = change {
                change(&mut node, view);
            }
            released = allocated(&old).saturating_sub(allocated(&node));
            Ok(Some(node))
        });
        let node = changed.await?.ok_or(Failure::Failed)?;
        self.extents.released(released);
        Ok(Arc::new(node))
    }

    async fn commit_root(
        &self,
        share: &Share,
        change: &mut Option<impl FnMut(&mut Node, &View<'_>)>,
    ) -> Result<Node, Failure> {
        let partition = keys::directory(share.space, NodeId::ROOT);
        let changed = self.transact(&partition, Reads::key(keys::OWN), |view| {
            let old = children::current_root(view)?;
            let mut node = old.clone().unwrap_or_else(|| Node::root(share));
            node.touch(view.stamp, view.now);
            if let Some(change) = change {
                change(&mut node, view);
            }
            let mutations = children::replace_root(view, old.as_ref(), node.clone())?;
            Ok(Decision::Write(Change::of(mutations), node))
        });
        Ok(changed.await?)
    }
}

impl Due {
    /// The row, with what was written.
    fn apply(&self, mut node: Node, view: &View<'_>) -> Node {
        let change = node.properties.change;
        node.touch(view.stamp, view.now);
        if self.keeps_change {
            node.properties.change = change;
        }
        if self.wrote {
            if let (Some(file), Some(newest)) = (&mut node.file, &self.node.file) {
                file.content = newest.content.clone();
            }
            node.properties.attributes = node.properties.attributes & !NORMAL | ARCHIVE;
            node.properties.last_write = self.node.properties.last_write;
        }
        if self.stamps {
            node.properties.last_write = view.now;
        }
        node
    }
}
