//! The batcher: sends a front end's commits to one shard, one op at a time.
//!
//! The row [`batch_key`] of the shard holds the sequence number of this front end's last op. Every op
//! compares the number and sets the next one. So after a lost reply, a *probe* that sets the number again
//! learns whether the op has taken effect, and ensures that the op never will if it has not. A caller that
//! goes away changes nothing: the batcher is a task of its own.

mod doubt;
mod refusal;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_concurrency::Stamp;
use lazuli_rados::{ObjectName, Pool, ReadStep, ReadValue, WriteError, WriteOp, WriteStep};
use lazuli_store::{CommitError, SpaceHeader, SpaceId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::access::{AccessError, OP_TIMEOUT};
use crate::batch::{NormalCommit, admit, compose, counters};
use crate::events::ProtocolEvent;
use crate::header::{CommitAdmission, SeenHeader, ShardHeader, ShardState};
use crate::in_flight::InFlight;
use crate::keys::{GENERATION, batch_key, root_name};
use crate::protocol::{HELP_AFTER, Protocol};
use crate::token;

/// Time between two looks at a header that a commit waits for.
const POLL: Duration = Duration::from_millis(20);

/// The fate of a commit, as its batcher answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The commit is decided.
    Decided(Result<(), CommitError>),
    /// The shard does not own the partition any longer.
    Elsewhere,
}

/// The fate of a change of the space's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeAnswer {
    /// The change is decided.
    Decided,
    /// The change has begun, cannot fail any longer, and has this number.
    Begun(u64),
    /// The change is refused, or its outcome is unknown.
    Failed(CommitError),
    /// A split or another change must end first.
    Wait,
}

/// A commit that waits for its answer.
pub(crate) struct WaitingCommit {
    pub(crate) commit: NormalCommit,
    pub(crate) reply: oneshot::Sender<Answer>,
    /// Dropped once the commit is decided.
    pub(crate) _in_flight: InFlight,
}

/// A message to a batcher.
pub(crate) enum Request {
    Commit(Box<WaitingCommit>),
    /// Changes the header of the space whose root this shard is.
    Change {
        from: SpaceHeader,
        to: SpaceHeader,
        reply: oneshot::Sender<ChangeAnswer>,
        in_flight: InFlight,
    },
}

/// The numbers that this front end has last written to the shard about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnBatch {
    pub(crate) sequence: u64,
    pub(crate) added_rows: i64,
}

impl OwnBatch {
    /// Returns the stored form, always of the same length. Nothing is stored before the first batch.
    fn encode(self) -> Bytes {
        if self.sequence == 0 {
            return Bytes::new();
        }
        let mut stored = BytesMut::new();
        stored.put_u64(self.sequence);
        stored.put_i64(self.added_rows);
        stored.freeze()
    }

    pub(crate) fn decode(stored: &[u8]) -> Option<Self> {
        if stored.is_empty() {
            return Some(Self::default());
        }
        let (sequence, added_rows) = stored.split_first_chunk()?;
        let added_rows = i64::from_be_bytes(added_rows.try_into().ok()?);
        Some(Self { sequence: u64::from_be_bytes(*sequence), added_rows })
    }

    const fn next(self, added_rows: i64) -> Self {
        Self { sequence: self.sequence + 1, added_rows: self.added_rows + added_rows }
    }
}

/// The result of an op whose outcome is known for certain.
enum Sent {
    Applied,
    Refused(WriteError),
    /// The op did not take effect, and never will. The sequence number has moved on.
    NotApplied,
    /// The outcome cannot be learned.
    Unknown,
}

/// Sends commits to one shard.
pub(crate) struct Batcher {
    protocol: Arc<Protocol>,
    space: SpaceId,
    name: ObjectName,
    own_key: Bytes,
    own: OwnBatch,
    seen: Option<SeenHeader>,
    fence: Option<Stamp>,
    /// Stored counters, as far as they are known.
    counters: BTreeMap<Bytes, Bytes>,
    queue: VecDeque<WaitingCommit>,
    /// Since when all waiting commits wait for a split or a change.
    blocked_since: Option<Instant>,
    rows_at_last_check: i64,
}

impl Batcher {
    /// Starts the batcher of a shard. The task ends when the shard or the front end is gone, or when all
    /// senders are dropped.
    pub(crate) fn start(
        protocol: Arc<Protocol>,
        space: SpaceId,
        name: ObjectName,
    ) -> mpsc::UnboundedSender<Request> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let own_key = batch_key(&protocol.access.cluster.address().0);
        let batcher = Self {
            protocol,
            space,
            name,
            own_key,
            own: OwnBatch::default(),
            seen: None,
            fence: None,
            counters: BTreeMap::new(),
            queue: VecDeque::new(),
            blocked_since: None,
            rows_at_last_check: 0,
        };
        tokio::spawn(batcher.run(receiver));
        sender
    }

    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        if let Err(error) = self.load().await {
            self.fail_all(&error);
        }
        loop {
            if self.queue.is_empty() {
                let Some(request) = requests.recv().await else { return };
                self.accept(request).await;
            }
            while let Ok(request) = requests.try_recv() {
                self.accept(request).await;
            }
            if !self.queue.is_empty()
                && let Err(error) = self.flush().await
            {
                self.fail_all(&error);
            }
        }
    }

    async fn accept(&mut self, request: Request) {
        match request {
            Request::Commit(waiting) => self.queue.push_back(*waiting),
            Request::Change { from, to, reply, in_flight } => {
                let answer = self.change(from, to).await;
                _ = reply.send(answer.unwrap_or_else(|error| ChangeAnswer::Failed(error.into())));
                drop(in_flight);
            }
        }
    }

    /// Answers all waiting commits with an error. None of them is in flight.
    fn fail_all(&mut self, error: &AccessError) {
        for waiting in self.queue.drain(..) {
            _ = waiting.reply.send(Answer::Decided(Err(error.clone().into())));
        }
    }

    /// Reads the number of the last op that this front end sent to the shard.
    async fn load(&mut self) -> Result<(), AccessError> {
        if let Some(reply) =
            self.protocol.access.read(&self.name, vec![ReadStep::Omap(vec![self.own_key.clone()])]).await?
            && let [ReadValue::Omap(entries)] = &reply[..]
        {
            let stored = entries.first().map_or(&b""[..], |(_, value)| &value[..]);
            let damaged =
                || AccessError::Damaged(format!("the last batch in shard {} is damaged", self.name));
            self.own = OwnBatch::decode(stored).ok_or_else(damaged)?;
        }
        Ok(())
    }

    /// Sends one batch of the waiting commits, or waits a little if none can be sent.
    async fn flush(&mut self) -> Result<(), AccessError> {
        self.refuse_expired();
        if !self.read_header_if_unknown().await? {
            return self.answer_that_shard_is_gone().await;
        }
        let acceptable = self.route();
        if self.queue.is_empty() {
            return Ok(());
        }
        if !acceptable.contains(&true) {
            return self.wait_for_header().await;
        }
        self.blocked_since = None;
        let candidates = self.queue.iter().zip(&acceptable).filter(|(_, fits)| **fits);
        let mut joins = admit(candidates.map(|(waiting, _)| &waiting.commit)).into_iter();
        let (mut batch, mut rest) = (vec![], VecDeque::new());
        for (waiting, fits) in self.queue.drain(..).zip(acceptable) {
            if fits && joins.next() == Some(true) { batch.push(waiting) } else { rest.push_back(waiting) }
        }
        self.queue = rest;
        if let Err(error) = self.load_counters(&batch).await {
            self.put_back(batch);
            return Err(error);
        }
        self.send_batch(batch).await
    }

    fn refuse_expired(&mut self) {
        let now = self.protocol.access.clock.now();
        for waiting in std::mem::take(&mut self.queue) {
            if waiting.commit.valid_until.is_some_and(|until| now >= until) {
                _ = waiting.reply.send(Answer::Decided(Err(CommitError::Expired)));
            } else {
                self.queue.push_back(waiting);
            }
        }
    }

    /// Returns false if the shard does not exist.
    async fn read_header_if_unknown(&mut self) -> Result<bool, AccessError> {
        if self.seen.is_none() {
            self.seen = self.protocol.access.header(&self.name).await?;
        }
        Ok(self.seen.is_some())
    }

    /// Answers commits that the shard refuses or does not own. Returns which of the others it accepts.
    fn route(&mut self) -> Vec<bool> {
        let Some(seen) = &self.seen else { return vec![] };
        let mut acceptable = vec![];
        for waiting in std::mem::take(&mut self.queue) {
            match seen.header.admission(&waiting.commit.partition, waiting.commit.epoch) {
                CommitAdmission::Gone => _ = waiting.reply.send(Answer::Decided(Err(CommitError::Gone))),
                CommitAdmission::Elsewhere => _ = waiting.reply.send(Answer::Elsewhere),
                admission => {
                    acceptable.push(admission == CommitAdmission::Accept);
                    self.queue.push_back(waiting);
                }
            }
        }
        acceptable
    }

    /// Waits for the end of a split or change, and helps if that takes long.
    async fn wait_for_header(&mut self) -> Result<(), AccessError> {
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        let is_late = since.elapsed() >= HELP_AFTER;
        let thaws = matches!(
            self.seen,
            Some(SeenHeader { header: ShardHeader { state: ShardState::Frozen { .. }, .. }, .. })
        );
        self.seen = None;
        if is_late {
            self.blocked_since = None;
            self.protocol.help(self.space, &self.name).await
        } else {
            tokio::time::sleep(POLL).await;
            if thaws { self.protocol.thaw_if_decided(self.space, &self.name).await } else { Ok(()) }
        }
    }

    /// Answers all waiting commits after the shard was found to be gone.
    async fn answer_that_shard_is_gone(&mut self) -> Result<(), AccessError> {
        self.protocol.access.count(ProtocolEvent::ShardGone);
        let is_root = self.name == root_name(self.space);
        let is_gone = is_root
            || self.protocol.access.root(self.space).await?.is_none_or(|root| !root.header.space().open);
        for waiting in self.queue.drain(..) {
            let gone = Answer::Decided(Err(CommitError::Gone));
            _ = waiting.reply.send(if is_gone { gone } else { Answer::Elsewhere });
        }
        Ok(())
    }

    /// Puts commits back to the head of the queue, in their order.
    fn put_back(&mut self, batch: Vec<WaitingCommit>) {
        for waiting in batch.into_iter().rev() {
            self.queue.push_front(waiting);
        }
    }

    /// Reads the counters of a batch that are not known.
    async fn load_counters(&mut self, batch: &[WaitingCommit]) -> Result<(), AccessError> {
        let commits: Vec<_> = batch.iter().map(|waiting| &waiting.commit).collect();
        let wanted = counters(&commits);
        self.counters.retain(|key, _| wanted.contains(key));
        let unknown: Vec<_> = wanted.into_iter().filter(|key| !self.counters.contains_key(key)).collect();
        if !unknown.is_empty()
            && let Some(reply) = self.protocol.access.read(&self.name, vec![ReadStep::Omap(unknown)]).await?
            && let Some(ReadValue::Omap(entries)) = reply.into_iter().next()
        {
            entries
                .iter()
                .filter_map(|(_, value)| token::decode(value))
                .for_each(|s| self.protocol.access.clock.observe(s));
            self.counters.extend(entries);
        }
        Ok(())
    }

    async fn send_batch(&mut self, batch: Vec<WaitingCommit>) -> Result<(), AccessError> {
        let Some(seen) = self.seen.clone() else {
            self.put_back(batch);
            return Ok(());
        };
        let stamp = self.protocol.access.clock.stamp();
        self.protocol.access.clock.wait_until_usable(stamp).await;
        let commits: Vec<_> = batch.iter().map(|waiting| &waiting.commit).collect();
        let only_removes = commits.iter().all(|commit| commit.only_removes());
        let steps = compose(&commits, &self.counters, stamp, self.fence);
        let (own, after) = (self.own, self.own.next(steps.added_rows));
        let compare =
            vec![token::equals(&GENERATION, seen.generation), token::equals(&self.own_key, own.encode())];
        let op = steps.into_op(compare, (self.own_key.clone(), after.encode()));
        let op = if only_removes { op.may_exceed_full() } else { op };
        match self.send(op, after).await {
            Sent::Applied => self.acknowledge(batch),
            Sent::NotApplied => self.put_back(batch),
            Sent::Unknown => {
                for waiting in batch {
                    _ = waiting.reply.send(Answer::Decided(Err(CommitError::Unknown)));
                }
                self.seen = None;
            }
            Sent::Refused(error) => self.react(batch, error).await?,
        }
        Ok(())
    }

    fn acknowledge(&mut self, batch: Vec<WaitingCommit>) {
        self.protocol.access.count(ProtocolEvent::BatchCommitted);
        // The counters that the batch wrote are read again, because their new values are in the op.
        self.counters.clear();
        for waiting in batch {
            _ = waiting.reply.send(Answer::Decided(Ok(())));
        }
        let added = self.own.added_rows - self.rows_at_last_check;
        if added * 4 >= self.protocol.limits.split_rows as i64 {
            self.rows_at_last_check = self.own.added_rows;
            let (protocol, space, name) = (self.protocol.clone(), self.space, self.name.clone());
            // A split that fails is begun again later, or continued by a helper.
            tokio::spawn(async move { protocol.split_if_large(space, &name).await });
        }
    }

    /// Changes the space's header if this root is the only shard, or begins to change it (E1).
    async fn change(&mut self, from: SpaceHeader, to: SpaceHeader) -> Result<ChangeAnswer, AccessError> {
        self.seen = self.protocol.access.header(&self.name).await?;
        let Some(seen) = self.seen.clone() else { return Ok(ChangeAnswer::Failed(CommitError::Conflict)) };
        if matches!(seen.header.state, ShardState::Normal) && seen.header.space() != from {
            return Ok(ChangeAnswer::Failed(CommitError::Conflict));
        }
        let (header, answer, event) = match (seen.header.changed_alone(to), seen.header.begin_change(to)) {
            (Some(header), _) => (header, ChangeAnswer::Decided, ProtocolEvent::ChangedAlone),
            (None, Some(header)) => {
                (header, ChangeAnswer::Begun(seen.header.decided + 1), ProtocolEvent::ChangeBegun)
            }
            (None, None) => return Ok(ChangeAnswer::Wait),
        };
        let after = self.own.next(0);
        let [generation, entry] = self.protocol.access.new_header(&header).await;
        let op = WriteOp::new([
            token::equals(&GENERATION, seen.generation),
            token::equals(&self.own_key, self.own.encode()),
            WriteStep::SetOmap(vec![generation, entry, (self.own_key.clone(), after.encode())]),
        ]);
        self.seen = None;
        Ok(match self.send(op.may_exceed_full(), after).await {
            Sent::Applied => {
                self.protocol.access.count(event);
                answer
            }
            Sent::NotApplied | Sent::Refused(WriteError::Compared(_)) => ChangeAnswer::Wait,
            Sent::Refused(WriteError::Fenced) => ChangeAnswer::Failed(CommitError::Stopped),
            Sent::Refused(_) => ChangeAnswer::Failed(CommitError::Gone),
            Sent::Unknown => ChangeAnswer::Failed(CommitError::Unknown),
        })
    }

    /// Sends an op that sets the next sequence number, and learns its outcome.
    async fn send(&mut self, op: WriteOp, after: OwnBatch) -> Sent {
        if self.protocol.access.is_fenced() {
            return Sent::Refused(WriteError::Fenced);
        }
        match self.protocol.access.cluster.write(Pool::Meta, &self.name, op, OP_TIMEOUT).await {
            Ok(()) => {
                self.own = after;
                Sent::Applied
            }
            Err(WriteError::InDoubt(_)) => self.resolve(after).await,
            Err(error) => {
                if error == WriteError::Fenced {
                    self.protocol.access.note_fenced();
                }
                Sent::Refused(error)
            }
        }
    }
}
