//! Transactions and reads in the spaces of one service.

use std::future::ready;
use std::sync::Arc;

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::intent::Intents;
use lazuli_store::{
    Attempts, Decision, Gate, Never, Partition, ReadSet, Reads, Store, TransactError, View,
    transact_announced,
};

use crate::{log_failed_rule, read_refusal, transaction_refusal};

/// The rows of one service. Clones share the queues of conflicting transactions.
#[derive(Clone)]
pub struct Rows {
    store: Arc<dyn Store>,
    gate: Arc<Gate>,
    gone: ErrorCode,
}

impl Rows {
    /// Returns the rows of a service in a store. `gone` is the error code for a closed space.
    pub fn new(store: Arc<dyn Store>, gone: ErrorCode) -> Self {
        Self { store, gate: Arc::default(), gone }
    }

    /// Returns the same rows with a gate of their own, so that these transactions do not wait for others.
    #[must_use]
    pub fn without_queue(&self) -> Self {
        Self { store: self.store.clone(), gate: Arc::new(self.gate.with_separate_queues()), gone: self.gone }
    }

    /// Returns the number of repeated attempts of transactions.
    pub fn retries(&self) -> u64 {
        self.gate.retries()
    }

    /// Returns the number of queued transactions.
    pub fn waiting(&self) -> usize {
        self.gate.waiting()
    }

    /// Runs a rule on a partition.
    pub async fn transact<T>(
        &self,
        partition: &Partition,
        reads: Reads,
        rule: impl FnMut(&View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        self.transact_announced(partition, reads, rule, || ready(Ok(()))).await
    }

    /// Runs a rule like [`Rows::transact`], but awaits `announce` before every commit, see
    /// [`transact_announced`].
    pub async fn transact_announced<T, F: Future<Output = Result<(), Refusal>>>(
        &self,
        partition: &Partition,
        reads: Reads,
        mut rule: impl FnMut(&View<'_>) -> Result<Decision<T>, Refusal>,
        announce: impl FnMut() -> F,
    ) -> Result<T, Refusal> {
        let rule =
            |view: &View<'_>| rule(view).inspect_err(|refusal| log_failed_rule(partition, view, refusal));
        let result = transact_announced(&*self.store, &self.gate, partition, reads, rule, announce).await;
        result.map_err(|error| transaction_refusal(partition, error, || self.gone.into()))
    }

    /// Begins a transaction whose attempts the caller makes itself.
    pub fn attempts<'a>(&'a self, partition: &'a Partition) -> Attempts<'a> {
        Attempts::new(&*self.store, &self.gate, partition)
    }

    /// Returns the refusal of an attempt in a partition that failed.
    pub fn refusal(&self, partition: &Partition, error: TransactError<Never>) -> Refusal {
        transaction_refusal(partition, error.widen(), || self.gone.into())
    }

    /// Returns the intents of a home partition.
    pub fn intents<'a, P>(&'a self, home: &'a Partition, planner: &'a P) -> Intents<'a, P> {
        Intents { store: &*self.store, gate: &self.gate, home, planner }
    }

    /// Reads rows of a partition. Fails if the space is closed.
    pub async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, Refusal> {
        let set = self.store.read(partition, reads).await.map_err(read_refusal)?;
        if set.space.is_some_and(|space| space.open) { Ok(set) } else { Err(self.gone.into()) }
    }
}
