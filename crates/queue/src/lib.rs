//! The queue service: queues, and the messages in them.
//!
//! A message is one row, whose key says when it becomes visible: [`slot`]. Getting, updating and deleting it are commits
//! on the condition that this one row is unchanged, so a message goes to one consumer at a time whatever their number, and
//! no two of them wait for each other. Which rows are worth trying is known to [`line`], in memory; it decides nothing.
//!
//! A handler reads the request, runs a rule inside a transaction on the queue's partition, and answers. Files are named
//! after the families of REST operations; [`QueueService::call`] is the table of contents.

mod clear;
mod document;
mod expiry;
#[doc(hidden)]
pub mod fuzz;
mod get;
mod keys;
mod line;
mod list;
mod names;
mod put;
mod queue;
mod record;
mod rows;
mod slot;
mod taken_in;
mod update;

use std::sync::Arc;

use async_trait::async_trait;
use lazuli_account::AccountDirectory;
use lazuli_concurrency::Span;
use lazuli_extents::Pace;
use lazuli_generations::{Generations, Swept};
use lazuli_protocol::policy::{AccessPolicy, PublicAccess};
use lazuli_protocol::{Account, ErrorCode, Operation, Refusal, Request, Response, Service};
use lazuli_store::{Decision, Gate, Reads, SpaceId, Store, View, transact};

use expiry::ExpiryWatch;
use line::Lines;
use record::Queue;

pub use rows::QueueRows;

/// The type of bodies that are documents.
pub(crate) const XML: &str = "application/xml";
/// How long after a message was given its slot the commit may still happen. Whoever has seen all messages that were
/// visible so long ago knows that no more will come.
pub(crate) const LATENESS: Span = Span::seconds(30);
/// How often an operation begins again because the queue was cleared under it.
const MAX_CLEARINGS: usize = 16;

/// The queue service on a store. Clones are the same service.
#[derive(Clone)]
pub struct QueueService {
    store: Arc<dyn Store>,
    queues: Generations<Queue>,
    lines: Arc<Lines>,
    expiry: Arc<ExpiryWatch>,
    /// Counts retries; it has no lines.
    gate: Arc<Gate>,
}

impl QueueService {
    /// The service of these accounts.
    pub fn new(store: Arc<dyn Store>, accounts: AccountDirectory) -> Self {
        let expiry = Arc::new(ExpiryWatch::new(store.now()));
        let queues = Generations::new(store.clone(), accounts);
        Self { store, queues, lines: Arc::default(), expiry, gate: Arc::default() }
    }

    /// Attempts of transactions that had to be made again.
    pub fn retries(&self) -> u64 {
        self.gate.retries() + self.queues.retries()
    }

    /// Messages that are remembered as candidates for the next gets, over all queues.
    pub fn candidates(&self) -> usize {
        self.lines.total()
    }

    /// Queues whose next expiry is remembered.
    pub fn watched_queues(&self) -> usize {
        self.expiry.len()
    }

    /// Whether [`QueueService::sweep_garbage`] may find something to do.
    pub fn garbage_due(&self) -> bool {
        self.queues.sweep_due()
    }

    /// Removes the messages of queues that were deleted or cleared. May be dropped at any point.
    pub async fn sweep_garbage(&self, pace: Pace) -> Result<Swept, Refusal> {
        self.queues.sweep(pace, &()).await
    }

    /// Does something in the space of a queue; again if the queue was cleared meanwhile, which gave it another one.
    async fn in_queue<T, F>(
        &self,
        account: &Account,
        name: &str,
        work: impl Fn(SpaceId) -> F,
    ) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        for _ in 0..MAX_CLEARINGS {
            match work(self.queues.get(account, name).await?.space).await {
                Err(refusal) if refusal.code() == ErrorCode::QueueNotFound => {}
                done => return done,
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Runs a rule on a queue's partition. Whoever meets a conflict reads that its message is gone and does not stand in
    /// anybody's way again, so there is no line to stand in.
    async fn transact<T>(
        &self,
        queue: SpaceId,
        reads: Reads,
        rule: impl FnMut(&View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        let result = transact(&*self.store, &self.gate.apart(), &keys::messages(queue), reads, rule).await;
        result.map_err(|error| lazuli_account::refusal(error, queue_gone))
    }
}

/// The queue was deleted while the request was under way, or cleared.
fn queue_gone() -> Refusal {
    ErrorCode::QueueNotFound.into()
}

#[async_trait]
impl Service for QueueService {
    async fn call(&self, request: Request) -> Result<Response, Refusal> {
        match request.operation {
            Operation::ListQueues => self.list_queues(request).await,
            Operation::CreateQueue => self.create_queue(request).await,
            Operation::DeleteQueue => self.delete_queue(request).await,
            Operation::GetQueueMetadata => self.get_queue_metadata(request).await,
            Operation::SetQueueMetadata => self.set_queue_metadata(request).await,
            Operation::GetQueueAcl => self.get_queue_acl(request).await,
            Operation::SetQueueAcl => self.set_queue_acl(request).await,
            Operation::PutMessage => self.put_message(request).await,
            Operation::GetMessages => self.get_messages(request).await,
            Operation::PeekMessages => self.peek_messages(request).await,
            Operation::UpdateMessage => self.update_message(request).await,
            Operation::DeleteMessage => self.delete_message(request).await,
            Operation::ClearMessages => self.clear_messages(request).await,
            operation => Err(Refusal::not_implemented(operation.name())),
        }
    }

    async fn access_policy(
        &self,
        account: &Account,
        queue: &str,
        id: &str,
    ) -> Result<Option<AccessPolicy>, Refusal> {
        let found = self.queues.find(account, queue).await?;
        Ok(found.and_then(|queue| queue.policies.get(id).cloned()))
    }

    async fn public_access(&self, _: &Account, _: &str) -> Result<PublicAccess, Refusal> {
        Ok(PublicAccess::None)
    }
}
