//! Renaming: the row goes from one name to another, and the space with it, so nothing in it moves.
//!
//! The names are two partitions, so this is an [intent](lazuli_store::intent) whose home is the partition of the old name.
//! Until it is decided, the old name has the row and the new one is free; from then on it is the other way round. Those who
//! only look a name up ask how far the rename is and let it go on; those who want to change a row end the rename first, one
//! way or the other. A rename that was aborted so begins again, a bounded number of times.
//!
//! Somebody may be about to close or open the space on the strength of what the old name said, see [`crate`]. So the space
//! is settled once more by the new name. Its epoch moves on, which writers into the space do not notice but for running
//! their rule again: what they write is there under the new name.

use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::{Account, ErrorCode, Refusal};
use lazuli_store::intent::{Ended, IntentError, IntentId, Intents, Plan, Planner};
use lazuli_store::{Change, Mutation, Partition, Reads, TransactError, View};

use crate::slot::{Rename, Renaming, Side, Slot};
use crate::{Generation, Generations, MAX_ATTEMPTS, Settle, carry_through, gone, keys, not_settled, record};

/// The kind of intent that a rename is.
const RENAME: u8 = 1;
/// The target comes first: whoever walks over all rows may see the space twice, but never not at all.
const SIDES: [Side; 2] = [Side::Target, Side::Source];

/// Says whether what is there may be renamed, and until when that holds.
type Rule<G> = dyn Fn(&G, Timestamp) -> Result<Option<Timestamp>, Refusal> + Send + Sync;

impl<G: Generation> Generations<G> {
    /// Gives the one of that name another, if the rule allows it. Goes on to its end even if the caller goes away.
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
        carry_through(async move { this.move_to(&source, &target, &rule).await }).await
    }

    async fn move_to(&self, source: &Partition, target: &Partition, rule: &Rule<G>) -> Result<(), Refusal> {
        // Two that want the same name, or the same row, would only abort one another.
        let _turn = self.renames.lock().await;
        let renames = Renames { rule: Some(rule) };
        for _ in 0..MAX_ATTEMPTS {
            let current = self.current(source).await?.ok_or_else(gone::<G>)?;
            rule(&current, self.store.now())?;
            if source == target || self.current(target).await?.is_some() {
                return Err(G::ALREADY_EXISTS.into());
            }
            let rename = Rename::new(source, target, &current.encode()?);
            match self.intents(source, &renames).run(RENAME, record::encode(&rename)?).await {
                Ok(()) => return self.settle(target, current.space(), &keys::CURRENT, Settle::Moved).await,
                Err(IntentError::Refused(Obstacle::Refused(refusal))) => return Err(refusal),
                Err(IntentError::Refused(Obstacle::Met(other))) => self.end(&other).await?,
                Err(IntentError::Refused(Obstacle::Changed) | IntentError::Aborted) => {}
                Err(error) => return Err(interrupted(error)),
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Who has a name, if a rename that its row speaks of has not been decided; else none, and the row speaks of it no more.
    pub(crate) async fn while_pending(&self, renaming: &Renaming) -> Result<Option<Option<G>>, Refusal> {
        let home = renaming.rename.source();
        let pending = self.intents(&home, &Renames { rule: None }).is_pending(renaming.id).await;
        if !pending.map_err(interrupted)? {
            self.end(renaming).await?;
            return Ok(None);
        }
        match renaming.side {
            Side::Target => Ok(Some(None)),
            Side::Source => Ok(Some(Some(renaming.generation()?))),
        }
    }

    /// Ends a rename that somebody has begun: finishes it if it was decided, else aborts it.
    pub(crate) async fn end(&self, renaming: &Renaming) -> Result<(), Refusal> {
        let rename = &renaming.rename;
        let plan = RenamePlan { rename: rename.clone(), rule: None };
        let (home, renames) = (rename.source(), Renames { rule: None });
        let marked = Some((&plan, renaming.side as usize));
        let ended = self.intents(&home, &renames).resolve(renaming.id, marked).await;
        self.settle_ended(ended, rename).await
    }

    /// Ends a rename whose intent was found in its home.
    pub(crate) async fn end_in(&self, home: &Partition, id: IntentId) -> Result<(), Refusal> {
        let renames = Renames { rule: None };
        let intents = self.intents(home, &renames);
        let Some(plan) = intents.plan(id).await.map_err(interrupted)? else { return Ok(()) };
        self.settle_ended(intents.resolve(id, None).await, &plan.rename).await
    }

    async fn settle_ended(
        &self,
        ended: Result<Ended, IntentError<Obstacle>>,
        rename: &Rename,
    ) -> Result<(), Refusal> {
        match ended.map_err(interrupted)? {
            Ended::Aborted => Ok(()),
            Ended::Applied => {
                let space = G::decode(&rename.value())?.space();
                self.settle(&rename.target(), space, &keys::CURRENT, Settle::Moved).await
            }
        }
    }

    fn intents<'a>(
        &'a self,
        home: &'a Partition,
        planner: &'a Renames<'a, G>,
    ) -> Intents<'a, Renames<'a, G>> {
        Intents { store: &*self.store, gate: &self.gate, home, planner }
    }
}

/// Plans renames. Only whoever begins one has a rule.
struct Renames<'a, G> {
    rule: Option<&'a Rule<G>>,
}

impl<'a, G: Generation> Planner for Renames<'a, G> {
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
    /// The row is not what was to be renamed any more.
    Changed,
    /// Another rename is in the way.
    Met(Renaming),
}

impl From<Refusal> for Obstacle {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl<G: Generation> Plan for RenamePlan<'_, G> {
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
            (_, Slot::Renaming(other)) => return Err(Obstacle::Met(other)),
            (Side::Target, Slot::Free) => None,
            (Side::Target, Slot::Held(_)) => return Err(Refusal::new(G::ALREADY_EXISTS).into()),
            (Side::Source, Slot::Free) => return Err(gone::<G>().into()),
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

/// A step of a rename was not made. Somebody will end it.
fn interrupted(error: IntentError<Obstacle>) -> Refusal {
    match error {
        IntentError::Interrupted(TransactError::NotCommitted(error)) => not_settled(error),
        error => {
            tracing::error!(%error, "a rename was interrupted");
            ErrorCode::InternalError.into()
        }
    }
}
