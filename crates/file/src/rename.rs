//! Renames, as REST and the handle API share them: within a directory, or to another directory of the share.
//!
//! A renamed file or directory keeps its id and everything in it. Within a directory a rename is one commit;
//! between directories it is an intent, see [`crate::tree::moves`].
//!
//! Invariants:
//!
//! - The open-file table is asked inside the rule, after everything else was judged, because asking breaks
//!   caches.
//! - While a directory is moved, no other directory of the share is moved, and nothing is opened below it.
//! - A move between directories holds its share of the quota's change lock, so a recount never counts a file
//!   twice or not at all.

use std::time::Duration;

use lazuli_concurrency::{FileUse, LeaseId, Stamp, Timestamp};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::{log_failed_rule, read_refusal};
use lazuli_store::{Change, Mutation, SpaceId, View};

use crate::FileService;
use crate::lock_order::{HeldRank, Rank};
use crate::opens::{Admission, PATIENCE};
use crate::tree::change::{Entry, entry};
use crate::tree::children::{self, At};
use crate::tree::keys;
use crate::tree::move_record::{DirectoryEntryName, IntentWork, Move};
use crate::tree::moves::{IntentOutcome, MAX_ATTEMPTS};
use crate::tree::names::Name;
use crate::tree::record::{Node, NodeId};
use crate::tree::rules::{admit_write, check_kind, check_writable, extent_bytes, with_lease};
use crate::tree::spot::{FileKey, Spot};
use crate::tree::usage::{QuotaReservation, epoch};

/// Number of attempts before a move takes exclusive locks on the directories.
const OPTIMISTIC_ATTEMPTS: usize = 2;

/// Changes properties at the time of a commit.
type PropertyEdit = Box<dyn Fn(&mut Node, Timestamp) + Send + Sync>;

/// A rename to make.
pub(crate) struct Rename {
    /// The open file that an SMB client renames. `None` for a request over REST.
    pub(crate) by: Option<FileKey>,
    pub(crate) space: SpaceId,
    pub(crate) patience: Duration,
    pub(crate) is_directory: bool,
    pub(crate) source: Vec<Name>,
    pub(crate) target: Vec<Name>,
    pub(crate) source_lease: Option<LeaseId>,
    pub(crate) target_lease: Option<LeaseId>,
    pub(crate) replaces: bool,
    pub(crate) ignores_read_only: bool,
    /// Changes properties in the same commit, given its time.
    pub(crate) edit: PropertyEdit,
}

impl FileService {
    /// Renames when the open-file table admits it. Returns the renamed node and its directory.
    pub(crate) async fn rename_when_admitted(&self, rename: &Rename) -> Result<(Node, NodeId), Refusal> {
        let mut admission = self.opens.admission(rename.patience);
        loop {
            let renamed = self.run_rename(rename, &mut admission).await;
            if renamed.is_ok() || !self.flush_or_wait(&mut admission).await {
                return renamed;
            }
        }
    }

    /// Tries to rename. Fails if a client has to act first.
    pub(crate) async fn run_rename(
        &self,
        rename: &Rename,
        admission: &mut Admission,
    ) -> Result<(Node, NodeId), Refusal> {
        let (space, is_directory) = (rename.space, rename.is_directory);
        let _turn = if is_directory { Some(self.directory_moves.begin(space).await) } else { None };
        let (source, sources) = rename.source.split_last().ok_or(ErrorCode::ResourceNotFound)?;
        let (target, targets) = rename.target.split_last().ok_or(ErrorCode::ResourceAlreadyExists)?;
        for attempt in 0..MAX_ATTEMPTS {
            let from = self.directories(sources, rename).await?.ok_or(ErrorCode::ResourceNotFound)?;
            let to = self.directories(targets, rename).await?.ok_or(ErrorCode::ParentNotFound)?;
            let parent = |path: &[NodeId]| path.last().copied().unwrap_or(NodeId::ROOT);
            let spot = |path, name: &Name| Spot {
                space,
                parent: parent(path),
                name: name.clone(),
                patience: rename.patience,
                // A rename needs no quota.
                quota: 0,
            };
            let (from, spot) = (spot(&from, source), spot(&to, target));
            admission.check(spot.file(spot.parent))?;
            let renamed = match from.parent == spot.parent {
                true => self.rename_within(rename, admission, &from, &spot).await?,
                false => {
                    // No file moves between directories while they are summed up.
                    let freed = self.usages.begin_change(space).await;
                    let partitions = [from.partition(), spot.partition()];
                    let _exclusive = match attempt {
                        ..OPTIMISTIC_ATTEMPTS => None,
                        _ => Some(self.directory_locks.exclusive(&partitions).await),
                    };
                    self.rename_across(rename, admission, &from, &spot, &to, freed).await?
                }
            };
            if let Some(node) = renamed {
                return Ok((node, spot.parent));
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Returns the directories on a path.
    async fn directories(&self, path: &[Name], rename: &Rename) -> Result<Option<Vec<NodeId>>, Refusal> {
        let nodes = match rename.is_directory {
            true => self.follow_once(rename.space, path, At::Now).await?,
            false => self.follow(rename.space, path, At::Now).await?,
        };
        let nodes = nodes.filter(|nodes| nodes.iter().all(Node::is_directory));
        Ok(nodes.map(|nodes| nodes.iter().map(|node| node.id).collect()))
    }

    /// Renames within a directory. `None`: try again.
    async fn rename_within(
        &self,
        rename: &Rename,
        admission: &mut Admission,
        from: &Spot,
        to: &Spot,
    ) -> Result<Option<Node>, Refusal> {
        let (partition, is_same) = (to.partition(), from.name.folded == to.name.folded);
        let mut reads = children::reads_to_change(&from.name);
        if !is_same {
            reads.keys.extend([keys::child(&to.name.folded), keys::moving(&to.name.folded)]);
        }
        let refusal = |error| self.rows.refusal(&partition, error);
        let mut freed: Option<QuotaReservation> = None;
        loop {
            let (grown, epoch) = {
                let _directory = self.directory_locks.shared(&partition).await;
                let queue = HeldRank::wait(Rank::Partition);
                let mut attempts = self.rows.attempts(&partition);
                loop {
                    // Sweeps wait for pins, so no pin is held in the queue.
                    attempts.wait_turn().await;
                    // Pinned because a reader that goes row by row could miss content that moves between
                    // rows.
                    let pin = self.extents.pins().pin();
                    let attempt = attempts.begin(reads.clone()).await.map_err(refusal)?;
                    let view = attempt.view();
                    let entry = |spot| {
                        entry(spot, &view).inspect_err(|refusal| log_failed_rule(&partition, &view, refusal))
                    };
                    let (old, replaced) = match (entry(from)?, entry(to)?) {
                        (Entry::Free(old), Entry::Free(replaced)) => (old, replaced.filter(|_| !is_same)),
                        (Entry::Reserved(reservation), _) | (_, Entry::Reserved(reservation)) => {
                            drop((attempts, queue, pin));
                            self.finish_intent(from.space, &reservation).await?;
                            return Ok(None);
                        }
                    };
                    let old = old.ok_or(ErrorCode::ResourceNotFound)?;
                    let _held = pin.hold(old.file.as_ref().map(|file| &file.content));
                    let new = rename.admit(admission, &old, replaced.as_ref(), |rename| {
                        rename.renamed_node(&old, replaced.as_ref(), &to.name, view.stamp, view.now)
                    })?;
                    let mutations = rows(&view, from, to, &old, replaced.as_ref(), &new)?;
                    let grown = children::growth(replaced.as_ref(), None);
                    if !self.usages.admit(&mut freed, from, grown, &view) {
                        break (grown, epoch(&view));
                    }
                    if attempts.commit(attempt, Change::of(mutations)).await.map_err(refusal)? {
                        freed.into_iter().for_each(QuotaReservation::commit);
                        self.extents.released(replaced.as_ref().map_or(0, extent_bytes));
                        return Ok(Some(new));
                    }
                }
            };
            freed = Some(self.reserve(from.space, grown, None, epoch).await?);
        }
    }

    /// Moves to another directory, below `path`. Returns `None` if the caller must retry.
    async fn rename_across(
        &self,
        rename: &Rename,
        admission: &mut Admission,
        from: &Spot,
        to: &Spot,
        path: &[NodeId],
        mut freed: QuotaReservation,
    ) -> Result<Option<Node>, Refusal> {
        let space = rename.space;
        let pin = self.extents.pins().pin();
        let old = self.child(space, from.parent, &from.name, At::Now).await?;
        let old = old.ok_or(ErrorCode::ResourceNotFound)?;
        let _held = pin.hold(old.file.as_ref().map(|file| &file.content));
        let replaced = self.child(space, to.parent, &to.name, At::Now).await?;
        let (stamp, now) = (self.store.stamp(), self.store.now());
        if path.contains(&old.id) {
            return Err(ErrorCode::InvalidRenameSourcePath.into());
        }
        let new = rename.admit(admission, &old, replaced.as_ref(), |rename| {
            rename.renamed_node(&old, replaced.as_ref(), &to.name, stamp, now)
        })?;
        let place = |spot: &Spot| DirectoryEntryName { parent: spot.parent, name: spot.name.folded.to_vec() };
        let record = |node: &Node| node.encode().map(Vec::from);
        let work = IntentWork::Move(Move {
            source: place(from),
            target: place(to),
            before: record(&old)?,
            after: record(&new)?,
            replaced: replaced.as_ref().map(record).transpose()?,
        });
        let grown = children::growth(replaced.as_ref(), None);
        let before = self.store.space(space).await.map_err(read_refusal)?;
        let attempted = self.run_intent(space, &work).await;
        if matches!(attempted, Ok(IntentOutcome::Retry)) {
            return Ok(None);
        }
        if grown != 0 {
            // Counted afterwards, for the epoch of the commits if they share one.
            let after = self.store.space(space).await.map_err(read_refusal)?;
            let epoch = before.filter(|before| after == Some(*before)).map(|header| header.epoch);
            match attempted.is_ok() && freed.reserve(grown, None, epoch) {
                true => freed.commit(),
                false => freed.freed_in_unknown_epoch(),
            }
        }
        attempted?;
        self.extents.released(replaced.as_ref().map_or(0, extent_bytes));
        Ok(Some(new))
    }
}

impl Rename {
    /// Makes a rename for a file or directory that an SMB client has open.
    pub(crate) fn of_open(
        file: FileKey,
        is_directory: bool,
        source: Vec<Name>,
        target: Vec<Name>,
        replaces: bool,
    ) -> Self {
        Self {
            by: Some(file),
            space: file.space,
            patience: PATIENCE,
            is_directory,
            source,
            target,
            source_lease: None,
            target_lease: None,
            replaces,
            ignores_read_only: false,
            edit: Box::new(|_, _| {}),
        }
    }

    /// Judges the rename, and asks the open-file table last, because asking breaks caches.
    fn admit(
        &self,
        admission: &mut Admission,
        old: &Node,
        replaced: Option<&Node>,
        rename: impl FnOnce(&Self) -> Result<Node, Refusal>,
    ) -> Result<Node, Refusal> {
        if self.by.is_some_and(|by| by.node != old.id) {
            return Err(ErrorCode::ResourceNotFound.into());
        }
        let files = [Some(old), replaced].into_iter().flatten().map(|node| FileKey::now(self.space, node.id));
        for file in files.clone() {
            match Some(file) == self.by {
                // The buffered writes stay ahead of the row: only the caller, with the file lock, could
                // commit them.
                true => admission.check_stays(file)?,
                false => admission.check(file)?,
            }
        }
        let new = rename(self)?;
        // The other opens of the renamed file share delete access.
        for file in files.filter(|file| Some(*file) != self.by) {
            admission.admit(file, FileUse::Delete)?;
        }
        if self.is_directory {
            let path: Vec<_> = self.source.iter().map(|name| name.text.as_str()).collect();
            admission.admit_move(self.space, &path.join("/"), self.by)?;
        }
        Ok(new)
    }

    /// Checks that the rename is allowed. Returns the node as it is afterwards.
    fn renamed_node(
        &self,
        old: &Node,
        replaced: Option<&Node>,
        name: &Name,
        stamp: Stamp,
        now: Timestamp,
    ) -> Result<Node, Refusal> {
        check_kind(old, self.is_directory)?;
        let lease = admit_write(old, self.source_lease)?;
        match replaced {
            None if self.target_lease.is_some() => {
                return Err(ErrorCode::LeaseNotPresentWithFileOperation.into());
            }
            None => {}
            Some(_) if !self.replaces => return Err(ErrorCode::ResourceAlreadyExists.into()),
            Some(there) if there.is_directory() && self.is_directory => {
                return Err(ErrorCode::ResourceAlreadyExists.into());
            }
            Some(there) => {
                check_kind(there, false)?;
                admit_write(there, self.target_lease)?;
                if !self.ignores_read_only {
                    check_writable(there)?;
                }
            }
        }
        let mut new = with_lease(old.clone(), lease);
        new.name = name.text.clone();
        new.touch(stamp, now);
        (self.edit)(&mut new, now);
        Ok(new)
    }
}

/// Returns the mutations for a rename within a directory.
fn rows(
    view: &View<'_>,
    from: &Spot,
    to: &Spot,
    old: &Node,
    replaced: Option<&Node>,
    new: &Node,
) -> Result<Vec<Mutation>, Refusal> {
    if from.name.folded == to.name.folded {
        return children::replace(view, &to.name, Some(old), Some(new.clone()));
    }
    let mut mutations = children::replace(view, &from.name, Some(old), None)?;
    mutations.extend(children::replace(view, &to.name, replaced, Some(new.clone()))?);
    Ok(mutations)
}
