//! One front end's store on a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Clock, Stamp, Timestamp};
use lazuli_rados::{Cluster, ObjectName, WriteOp, WriteStep};
use lazuli_store::{
    AllVisitor, Commit, CommitError, Partition, ReadError, ReadSet, Reads, RowCounts, RowPosition,
    RunVisitor, SpaceHeader, SpaceId, SpacePage, Store, Visited, Visitor, Which, check_limits,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::access::{ShardAccess, StepOutcome};
use crate::batch::NormalCommit;
use crate::batcher::{Answer, Batcher, ChangeAnswer, Request, WaitingCommit};
use crate::events::ProtocolEvents;
use crate::header::ShardHeader;
use crate::in_flight::InFlightCommits;
use crate::keys::root_name;
use crate::membership::{JoinError, join};
use crate::protocol::{HELP_AFTER, Protocol, ShardLimits};
use crate::routes::Routes;

/// A store whose rows are in a cluster.
pub struct ClusterStore {
    protocol: Arc<Protocol>,
    batchers: Mutex<BTreeMap<ObjectName, mpsc::UnboundedSender<Request>>>,
    commits: InFlightCommits,
}

impl ClusterStore {
    /// Joins a cluster as another front end. Creates the root space if the cluster is empty.
    pub async fn open(
        cluster: Arc<dyn Cluster>,
        machine: Arc<dyn Clock>,
        limits: ShardLimits,
    ) -> Result<Self, JoinError> {
        let (slot, clock) = join(&cluster, machine).await?;
        let access = ShardAccess::new(cluster, clock);
        let protocol =
            Arc::new(Protocol { access, routes: Routes::default(), limits, listed_spaces: Mutex::default() });
        tokio::spawn(slot.keep(Arc::downgrade(&protocol)));
        let store = Self { protocol, batchers: Mutex::default(), commits: InFlightCommits::default() };
        match store.create_space(SpaceId::ROOT, SpaceHeader { epoch: 0, open: true }).await {
            Ok(()) | Err(CommitError::Conflict) => Ok(store),
            Err(error) => Err(JoinError::Unavailable(error.to_string())),
        }
    }

    /// Returns how often this front end has performed each step of the protocols.
    pub fn events(&self) -> &ProtocolEvents {
        &self.protocol.access.events
    }

    fn batcher(&self, space: SpaceId, name: &ObjectName) -> mpsc::UnboundedSender<Request> {
        let mut batchers = self.batchers.lock();
        let start = || Batcher::start(self.protocol.clone(), space, name.clone());
        batchers.entry(name.clone()).or_insert_with(start).clone()
    }

    /// Sends a commit to the shard that owns its partition.
    async fn send(&self, partition: &Partition, commit: &NormalCommit) -> Result<(), CommitError> {
        let in_flight = self.commits.begin();
        loop {
            if self.protocol.access.is_fenced() {
                return Err(CommitError::Stopped);
            }
            let name = self.protocol.routes.locate(partition.space, &partition.key);
            let (reply, answer) = oneshot::channel();
            let waiting = WaitingCommit { commit: commit.clone(), reply, _in_flight: in_flight.clone() };
            let request = Request::Commit(Box::new(waiting));
            if self.batcher(partition.space, &name).send(request).is_err() {
                return Err(CommitError::Stopped);
            }
            match answer.await {
                Ok(Answer::Decided(result)) => return result,
                Ok(Answer::Elsewhere) => self.reroute(partition, &name).await?,
                Err(_) => return Err(CommitError::Unknown),
            }
        }
    }

    /// Learns where the partition of a commit is now. The commit did not take effect.
    async fn reroute(&self, partition: &Partition, name: &ObjectName) -> Result<(), CommitError> {
        match self.protocol.access.header(name).await? {
            Some(seen) => {
                self.protocol.route(partition.space, name, &seen, &partition.key).await?;
            }
            None => self.protocol.routes.forget(partition.space),
        }
        Ok(())
    }

    /// Creates a space that never existed.
    async fn create_space(&self, space: SpaceId, header: SpaceHeader) -> Result<(), CommitError> {
        let access = &self.protocol.access;
        let created = ShardHeader::root(header);
        let entries = access.new_header(&created).await;
        let generation = entries[0].1.clone();
        loop {
            let op = WriteOp::new([WriteStep::CreateExclusive, WriteStep::SetOmap(entries.to_vec())]);
            match access.step(&root_name(space), op).await? {
                StepOutcome::Done => return Ok(()),
                StepOutcome::Full => return Err(CommitError::Full),
                StepOutcome::ReadAgain => {}
            }
            // The root exists, or the op is in doubt. Then the op is sent again until one takes effect.
            match access.root(space).await? {
                Some(seen) if seen.generation == generation => return Ok(()),
                Some(_) => return Err(CommitError::Conflict),
                None => {}
            }
        }
    }

    /// Changes the header of a space that exists.
    async fn change_space(
        &self,
        space: SpaceId,
        from: SpaceHeader,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        let name = root_name(space);
        let in_flight = self.commits.begin();
        let mut waited = Duration::ZERO;
        loop {
            let (reply, answer) = oneshot::channel();
            let request = Request::Change { from, to, reply, in_flight: in_flight.clone() };
            if self.batcher(space, &name).send(request).is_err() {
                return Err(CommitError::Stopped);
            }
            match answer.await.map_err(|_| CommitError::Unknown)? {
                ChangeAnswer::Decided => return Ok(()),
                ChangeAnswer::Failed(error) => return Err(error),
                ChangeAnswer::Begun(change) => {
                    // From here on the change cannot fail. If this front end cannot go on, another one does.
                    let finished = self.protocol.finish_change(space, change, false).await;
                    return finished.map_err(|_| CommitError::Unknown);
                }
                ChangeAnswer::Wait if waited >= HELP_AFTER => {
                    self.protocol.help(space, &name).await?;
                    waited = Duration::ZERO;
                }
                ChangeAnswer::Wait => {
                    const POLL: Duration = Duration::from_millis(20);
                    tokio::time::sleep(POLL).await;
                    waited += POLL;
                }
            }
        }
    }
}

#[cfg(test)]
impl ClusterStore {
    /// Splits the shard of a partition at the partition, whatever the shard's size.
    pub(crate) async fn split_now(&self, partition: &Partition) {
        let name = self.protocol.routes.locate(partition.space, &partition.key);
        if let Ok(Some(seen)) = self.protocol.access.header(&name).await {
            _ = self.protocol.split_at(partition.space, &name, &seen, &partition.key).await;
        }
    }
}

#[async_trait]
impl Store for ClusterStore {
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, ReadError> {
        Ok(self.protocol.read_partition(partition, reads).await?)
    }

    async fn scan_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        which: Which,
        limit: usize,
    ) -> Result<SpacePage, ReadError> {
        Ok(self.protocol.scan(space, from, end, which, limit).await?)
    }

    async fn visit_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut Visitor<'_>,
    ) -> Result<Visited, ReadError> {
        Ok(self.protocol.visit(space, from, end, visitor).await?)
    }

    async fn visit_runs(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut RunVisitor<'_>,
    ) -> Result<Visited, ReadError> {
        Ok(self.protocol.visit_in_runs(space, from, end, visitor).await?)
    }

    async fn visit_all(
        &self,
        from: Option<RowPosition>,
        visitor: &mut AllVisitor<'_>,
    ) -> Result<Option<RowPosition>, ReadError> {
        Ok(self.protocol.visit_spaces(from, visitor).await?)
    }

    async fn wait_for_commits(&self) -> Result<(), CommitError> {
        self.commits.wait().await;
        Ok(())
    }

    fn row_counts(&self) -> Option<RowCounts> {
        // Front ends count only what decides about splits.
        None
    }

    async fn commit(&self, partition: &Partition, commit: Commit) -> Result<(), CommitError> {
        check_limits(partition, &commit)?;
        let normal = NormalCommit::new(&partition.key, &commit)?;
        self.protocol.access.clock.wait_until_usable(commit.stamp).await;
        self.send(partition, &normal).await
    }

    async fn space(&self, space: SpaceId) -> Result<Option<SpaceHeader>, ReadError> {
        Ok(self.protocol.access.root(space).await?.map(|root| root.header.space()))
    }

    async fn set_space(
        &self,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        match from {
            None => self.create_space(space, to).await,
            Some(from) => self.change_space(space, from, to).await,
        }
    }

    async fn sweep_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        limit: usize,
    ) -> Result<Option<(Bytes, Bytes)>, CommitError> {
        self.protocol.sweep(space, from, limit).await
    }

    async fn new_space(&self) -> Result<SpaceId, CommitError> {
        let stamp = self.stamp();
        self.protocol.access.clock.wait_until_usable(stamp).await;
        Ok(SpaceId(stamp.ticks()))
    }

    fn stamp(&self) -> Stamp {
        self.protocol.access.clock.stamp()
    }

    fn now(&self) -> Timestamp {
        self.protocol.access.clock.now()
    }
}
