//! The queue service: queues and their messages.
//!
//! A message is one row. Its key contains the time at which the message becomes visible: see [`slot`].
//! Getting, updating and deleting a message are commits on the condition that its row is unchanged. So a
//! message goes to one consumer at a time, and consumers do not wait for each other. No task makes a message
//! visible again: a get moves the message to a slot in the future, and later gets read all slots up to now.
//! [`candidates`] remembers in memory which rows are worth trying; it only saves work and decides nothing.
//!
//! A handler reads the request, runs a rule in a transaction on the queue's partition, and replies. Files are
//! named after the families of REST operations; [`QueueService::call`] is the table of contents.

mod candidates;
mod clear;
mod document;
mod expiry;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod get;
mod keys;
mod list;
mod names;
mod put;
mod queue;
mod record;
mod restore;
mod rows;
mod slot;
mod survey;
mod update;

use std::sync::Arc;

use async_trait::async_trait;
use lazuli_account::AccountDirectory;
use lazuli_concurrency::{Pace, Span};
use lazuli_generations::{Generations, Swept};
use lazuli_protocol::policy::AccessPolicy;
use lazuli_protocol::watch::RequestWatch;
use lazuli_protocol::{Account, ErrorCode, Operation, Refusal, Request, Response, Service};
use lazuli_service::Rows;
use lazuli_store::{Decision, Reads, SpaceId, Store, View};

use candidates::CandidateCaches;
use expiry::ExpiryWatch;
use record::Queue;

pub use rows::QueueRows;
pub use survey::{MessageState, SurveyedMessage};

/// Maximum time from the moment a message is given its slot to its commit. A later commit is refused. So
/// nothing appears in a slot that became visible longer ago than this.
pub(crate) const MAX_COMMIT_DELAY: Span = Span::seconds(30);
/// Maximum number of attempts of an operation while the queue is being cleared.
const MAX_ATTEMPTS: usize = 16;

/// The queue service on a store. Clones share their state.
#[derive(Clone)]
pub struct QueueService {
    store: Arc<dyn Store>,
    rows: Rows,
    queues: Generations<Queue>,
    candidates: Arc<CandidateCaches>,
    expiry: Arc<ExpiryWatch>,
    watch: Arc<RequestWatch>,
}

impl QueueService {
    /// Creates the service for the given accounts.
    pub fn new(store: Arc<dyn Store>, accounts: AccountDirectory) -> Self {
        let expiry = Arc::new(ExpiryWatch::new(store.now()));
        let queues = Generations::new(store.clone(), accounts);
        let rows = Rows::new(store.clone(), ErrorCode::QueueNotFound);
        Self { store, rows, queues, candidates: Arc::default(), expiry, watch: Arc::default() }
    }

    /// Sends events about consumers to an observer.
    #[must_use]
    pub fn with_watch(mut self, watch: Arc<RequestWatch>) -> Self {
        self.watch = watch;
        self
    }

    /// Returns the number of transaction attempts that had to be repeated.
    pub fn retries(&self) -> u64 {
        self.rows.retries() + self.queues.retries()
    }

    /// Returns the number of transactions that wait for others.
    pub fn waiting(&self) -> usize {
        self.rows.waiting() + self.queues.waiting()
    }

    /// Returns the number of spaces that are being filled before they have a name.
    pub fn incoming_spaces(&self) -> usize {
        self.queues.incoming_spaces()
    }

    /// Returns the number of candidates for the next gets, over all queues.
    pub fn candidates(&self) -> usize {
        self.candidates.total()
    }

    /// Returns the number of queues whose candidates are remembered.
    pub fn cached_queues(&self) -> usize {
        self.candidates.len()
    }

    /// Returns the number of queues whose next expiry is remembered.
    pub fn watched_queues(&self) -> usize {
        self.expiry.len()
    }

    /// Returns whether [`QueueService::sweep_garbage`] may find garbage.
    pub fn garbage_due(&self) -> bool {
        self.queues.sweep_due()
    }

    /// Removes the messages of deleted and cleared queues. The future may be dropped at any point.
    pub async fn sweep_garbage(&self, pace: Pace) -> Result<Swept, Refusal> {
        self.queues.sweep(pace, &()).await
    }

    /// Runs `work` in the space of a queue. Repeats it if the queue was cleared meanwhile, which gives the
    /// queue a new space.
    async fn in_queue<T, F>(
        &self,
        account: &Account,
        name: &str,
        work: impl Fn(SpaceId) -> F,
    ) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        for _ in 0..MAX_ATTEMPTS {
            match work(self.queues.get(account, name).await?.space).await {
                Err(refusal) if refusal.code() == ErrorCode::QueueNotFound => {}
                result => return result,
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Runs a rule on a queue's partition, without the gate: a transaction that conflicts finds its message
    /// gone when it reads again, so it does not conflict twice.
    async fn transact<T>(
        &self,
        queue: SpaceId,
        reads: Reads,
        rule: impl FnMut(&View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        self.rows.without_queue().transact(&keys::messages(queue), reads, rule).await
    }
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
}
