//! Changing rows of a directory: one commit, which waits for moves and for the quota first.

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::internal_error;
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId, View};

use crate::FileService;
use crate::tree::move_record::NameReservation;
use crate::tree::moves::MAX_ATTEMPTS;
use crate::tree::record::{Node, NodeId, Own, Share};
use crate::tree::spot::Spot;
use crate::tree::usage::{QuotaReservation, epoch};
use crate::tree::{children, keys};

/// A name in a directory, as a rule sees it.
#[expect(clippy::large_enum_variant, reason = "every value is destructured at once")]
pub(crate) enum Entry {
    /// A directory, a file, or nothing.
    Free(Option<Node>),
    /// A move or deletion has reserved the name. [Finish](FileService::finish_intent) it before a change.
    Reserved(NameReservation),
}

/// Reads a name that is to be changed. Its directory must exist; the root always does.
pub(crate) fn entry(spot: &Spot, view: &View<'_>) -> Result<Entry, Refusal> {
    if spot.parent != NodeId::ROOT && view.row(&keys::OWN).is_none() {
        return Err(ErrorCode::ParentNotFound.into());
    }
    Ok(match children::obstacle(view, &spot.name)? {
        Some(reservation) => Entry::Reserved(reservation),
        None => Entry::Free(children::current(view, &spot.name)?),
    })
}

/// Result of an attempt to change a child.
#[expect(clippy::large_enum_variant, reason = "every value is destructured at once")]
enum ChangeOutcome {
    Done(Option<Node>),
    /// A move or deletion has reserved the name.
    NameReserved(NameReservation),
    /// The length grows by this much in an epoch, which has to be reserved first.
    QuotaNeeded(i64, Option<u64>),
}

impl FileService {
    /// Makes the row of a new directory. No path leads to it before its parent names it.
    pub(crate) async fn make_directory_row(&self, space: SpaceId, id: NodeId) -> Result<(), Refusal> {
        let partition = keys::directory(space, id);
        let made = self.rows.transact(&partition, Reads::default(), |_| {
            let put = Mutation::Put(keys::OWN, Own { root: None }.encode()?);
            Ok(Decision::Write(Change::of([put]), ()))
        });
        made.await
    }

    /// Changes the root directory of a share.
    pub(crate) async fn change_root(
        &self,
        share: &Share,
        mut change: impl FnMut(&mut Node, &View<'_>) -> Result<(), Refusal>,
    ) -> Result<Node, Refusal> {
        let partition = keys::directory(share.space, NodeId::ROOT);
        let changed = self.rows.transact(&partition, Reads::key(keys::OWN), |view| {
            let old = children::current_root(view)?;
            let mut node = old.clone().unwrap_or_else(|| Node::root(share));
            change(&mut node, view)?;
            let mutations = children::replace_root(view, old.as_ref(), node.clone())?;
            Ok(Decision::Write(Change::of(mutations), node))
        });
        changed.await
    }

    /// Changes a child like [`FileService::change_row`], for rules that never remove the child.
    pub(crate) async fn write_row(
        &self,
        spot: &Spot,
        reserved: Option<QuotaReservation>,
        mut rule: impl FnMut(&View<'_>, Option<Node>) -> Result<Node, Refusal>,
    ) -> Result<Node, Refusal> {
        let written = self.change_row(spot, reserved, |view, old| rule(view, old).map(Some)).await?;
        written.ok_or_else(|| internal_error(format_args!("{}: no child was written", spot.partition())))
    }

    /// Changes a child of a directory without asking the open-file table. `reserved` is quota for the new
    /// length.
    pub(crate) async fn change_row(
        &self,
        spot: &Spot,
        mut reserved: Option<QuotaReservation>,
        mut rule: impl FnMut(&View<'_>, Option<Node>) -> Result<Option<Node>, Refusal>,
    ) -> Result<Option<Node>, Refusal> {
        let partition = spot.partition();
        let mut writes = self.directory_locks.shared(&partition).await;
        for _ in 0..MAX_ATTEMPTS {
            let changed = self.rows.transact(&partition, children::reads_to_change(&spot.name), |view| {
                let old = match entry(spot, view)? {
                    Entry::Free(old) => old,
                    Entry::Reserved(reservation) => {
                        return Ok(Decision::Answer(ChangeOutcome::NameReserved(reservation)));
                    }
                };
                let new = rule(view, old.clone())?;
                let mutations = children::replace(view, &spot.name, old.as_ref(), new.clone())?;
                let grown = children::growth(old.as_ref(), new.as_ref());
                if !self.usages.admit(&mut reserved, spot, grown, view) {
                    return Ok(Decision::Answer(ChangeOutcome::QuotaNeeded(grown, epoch(view))));
                }
                Ok(Decision::Write(Change::of(mutations), ChangeOutcome::Done(new)))
            });
            match changed.await? {
                ChangeOutcome::Done(new) => {
                    reserved.into_iter().for_each(QuotaReservation::commit);
                    return Ok(new);
                }
                ChangeOutcome::NameReserved(reservation) => {
                    self.finish_intent(spot.space, &reservation).await?
                }
                ChangeOutcome::QuotaNeeded(grown, epoch) => {
                    drop(writes);
                    reserved = Some(self.reserve(spot.space, grown, spot.limit(), epoch).await?);
                    writes = self.directory_locks.shared(&partition).await;
                }
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }
}
