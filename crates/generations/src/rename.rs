//! Renaming: the row moves from one name to another and still names the same space, so no data moves.
//!
//! The names are two partitions, so a rename is an [intent](lazuli_store::intent) whose home is the partition
//! of the old name. Before the decision the old name has the row and the new name is free; after it, the
//! other way round. Lookups check whether the rename is pending and do not disturb it. Operations that change
//! a row resolve the rename first: they finish or abort it. A rename that was aborted in this way starts
//! again, a bounded number of times.
//!
//! Another operation may be about to close or open the space based on the old name's row, see [`crate`]. So
//! the new name reconciles the space header once more, which raises the epoch. Writers into the space only
//! run their rule again; their data appears under the new name.

use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::{Account, ErrorCode, Refusal};
use lazuli_service::{commit_refusal, internal_error, record, run_to_completion};
use lazuli_store::intent::{Ended, IntentError, IntentId, IntentPlan, IntentPlanner};
use lazuli_store::{Change, Mutation, Partition, Reads, TransactError, View};

use crate::slot::{Rename, Renaming, Side, Slot};
use crate::{Generation, Generations, MAX_ATTEMPTS, ReconcileReason, keys, not_found};

/// The intent kind of a rename.
const RENAME: u8 = 1;
/// The target comes first, so that a scan of all rows may see the space twice but never misses it.
const SIDES: [Side; 2] = [Side::Target, Side::Source];

/// Checks whether a generation may be renamed, and returns until when the rename may commit.
type Rule<G> = dyn Fn(&G, Timestamp) -> Result<Option<Timestamp>, Refusal> + Send + Sync;

impl<G: Generation> Generations<G> {
    /// Renames a resource, if the rule allows it. Runs detached.
    pub async fn rename(
        &self,
        account: Arc<Account>,
        source: &str,
        target: &str,
        rule: impl Fn(&G, Timestamp) -> Result<Option<Timestamp>, Refusal> + Send + Sync + 'static,
    ) -> Result<(), Refusal> {
        let source = keys::partition(G::KIND, &account, source);
        let target = keys::partition(G::KIND, &account, target);
        let this = self.clone();
        run_to_completion(async move { this.move_to(&source, &target, &rule).await }).await
    }

    async fn move_to(&self, source: &Partition, target: &Partition, rule: &Rule<G>) -> Result<(), Refusal> {
        // Concurrent renames of one row, or to one name, would abort each other.
        let _serialized = self.renames.lock().await;
        let renames = Renames { rule: Some(rule) };
        for _ in 0..MAX_ATTEMPTS {
            let current = self.current(source).await?.ok_or_else(not_found::<G>)?;
            rule(&current, self.store.now())?;
            if source == target || self.current(target).await?.is_some() {
                return Err(G::ALREADY_EXISTS.into());
            }
            let rename = Rename::new(source, target, &current.encode()?);
            match self.rows.intents(source, &renames).run(RENAME, record::encode(&rename)?).await {
                Ok(()) => {
                    return self
                        .reconcile_header(target, current.space(), &keys::CURRENT, ReconcileReason::Moved)
                        .await;
                }
                Err(IntentError::Refused(Obstacle::Refused(refusal))) => return Err(refusal),
                Err(IntentError::Refused(Obstacle::OtherRename(other))) => self.resolve(&other).await?,
                Err(IntentError::Refused(Obstacle::Changed) | IntentError::Aborted) => {}
                Err(error) => return Err(interrupted(source)(error)),
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Returns the current generation of a name whose row records a pending rename. If the rename has been
    /// decided, resolves it and returns `None`; the caller then reads the row again.
    pub(crate) async fn current_if_pending(&self, renaming: &Renaming) -> Result<Option<Option<G>>, Refusal> {
        let home = renaming.rename.source();
        let pending = self.rows.intents(&home, &Renames::<G> { rule: None }).is_pending(renaming.id).await;
        if !pending.map_err(interrupted(&home))? {
            self.resolve(renaming).await?;
            return Ok(None);
        }
        match renaming.side {
            Side::Target => Ok(Some(None)),
            Side::Source => Ok(Some(Some(renaming.generation()?))),
        }
    }

    /// Finishes a rename that was decided, and aborts one that was not.
    pub(crate) async fn resolve(&self, renaming: &Renaming) -> Result<(), Refusal> {
        let rename = &renaming.rename;
        let plan = RenamePlan { rename: rename.clone(), rule: None };
        let (home, renames) = (rename.source(), Renames::<G> { rule: None });
        let marked = Some((&plan, renaming.side as usize));
        let ended = self.rows.intents(&home, &renames).resolve(renaming.id, marked).await;
        self.reconcile_resolved(ended, rename).await
    }

    /// Resolves a rename whose intent was found in its home.
    pub(crate) async fn resolve_at_home(&self, home: &Partition, id: IntentId) -> Result<(), Refusal> {
        let renames = Renames::<G> { rule: None };
        let intents = self.rows.intents(home, &renames);
        let Some(plan) = intents.plan(id).await.map_err(interrupted(home))? else { return Ok(()) };
        self.reconcile_resolved(intents.resolve(id, None).await, &plan.rename).await
    }

    async fn reconcile_resolved(
        &self,
        ended: Result<Ended, IntentError<Obstacle>>,
        rename: &Rename,
    ) -> Result<(), Refusal> {
        match ended.map_err(interrupted(&rename.source()))? {
            Ended::Aborted => Ok(()),
            Ended::Applied => {
                let space = G::decode(&rename.value())?.space();
                self.reconcile_header(&rename.target(), space, &keys::CURRENT, ReconcileReason::Moved).await
            }
        }
    }
}

/// Plans renames. The rule is only set when a rename begins, not when one is resolved.
struct Renames<'a, G> {
    rule: Option<&'a Rule<G>>,
}

impl<'a, G: Generation> IntentPlanner for Renames<'a, G> {
    type Plan = RenamePlan<'a, G>;

    fn plan(&self, kind: u8, payload: &Bytes) -> Option<RenamePlan<'a, G>> {
        let rename = record::decode(payload).ok().filter(|_| kind == RENAME)?;
        Some(RenamePlan { rename, rule: self.rule })
    }
}

struct RenamePlan<'a, G> {
    rename: Rename,
    rule: Option<&'a Rule<G>>,
}

/// Why a rename cannot go ahead, or not yet.
#[derive(Debug)]
enum Obstacle {
    Refused(Refusal),
    /// The row has changed since the rename began.
    Changed,
    /// Another rename is in the way.
    OtherRename(Renaming),
}

impl From<Refusal> for Obstacle {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl<G: Generation> IntentPlan for RenamePlan<'_, G> {
    type Refusal = Obstacle;

    fn participants(&self) -> Vec<Partition> {
        vec![self.rename.target(), self.rename.source()]
    }

    fn reads(&self, _: usize) -> Reads {
        Reads::key(keys::CURRENT)
    }

    fn prepare(&self, id: IntentId, participant: usize, view: &View<'_>) -> Result<Change, Obstacle> {
        let side = SIDES[participant];
        let until = match (side, Slot::<G>::of(view.row(&keys::CURRENT)).map_err(Refusal::from)?) {
            (_, Slot::Renaming(other)) => return Err(Obstacle::OtherRename(other)),
            (Side::Target, Slot::Free) => None,
            (Side::Target, Slot::Held(_)) => return Err(Refusal::new(G::ALREADY_EXISTS).into()),
            (Side::Source, Slot::Free) => return Err(not_found::<G>().into()),
            (Side::Source, Slot::Held(current)) => {
                if current.encode()? != self.rename.value() {
                    return Err(Obstacle::Changed);
                }
                self.rule.map(|rule| rule(&current, view.now)).transpose()?.flatten()
            }
        };
        let renaming = Renaming { id, side, rename: self.rename.clone() };
        Ok(Change::of([Mutation::Put(keys::CURRENT, renaming.encode()?)]).until(until))
    }

    fn apply(&self, participant: usize, _: u64, _: &View<'_>) -> Result<Vec<Mutation>, Obstacle> {
        Ok(match SIDES[participant] {
            Side::Target => vec![Mutation::Put(keys::CURRENT, self.rename.value())],
            Side::Source => vec![Mutation::Delete(keys::CURRENT), Mutation::Delete(keys::GUARD)],
        })
    }

    fn undo(&self, participant: usize, _: &View<'_>) -> Vec<Mutation> {
        match SIDES[participant] {
            Side::Target => vec![Mutation::Delete(keys::CURRENT)],
            Side::Source => vec![Mutation::Put(keys::CURRENT, self.rename.value())],
        }
    }
}

/// Converts the error of a rename that stopped between two steps. The next operation on either name, or the
/// sweep, resolves the rename.
fn interrupted(source: &Partition) -> impl FnOnce(IntentError<Obstacle>) -> Refusal {
    move |error| match error {
        IntentError::Interrupted(TransactError::NotCommitted(error)) => commit_refusal(source, error),
        error => internal_error(format_args!(
            "{source}: a rename was interrupted: {error}; the next access or sweep finishes or aborts it"
        )),
    }
}
