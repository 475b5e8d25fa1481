//! The storage core under load in a process that is killed or loses power, and the verification afterwards.
//!
//! Each client owns a partition and counts its operations. Its n-th operation uploads new content, makes it
//! durable, and then makes one commit: both copies of the count, the content's map, a history row, and the
//! removal of an old history row. The client acknowledges after the store did. So after a crash each
//! partition must have exactly the last acknowledged state or the next one, with the matching content.
//! Content is swept continuously.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazuli_concurrency::{Pace, Stamp, SystemClock};
use lazuli_content::sweep::{ContentReader, ContentSweeper, SweepError};
use lazuli_extents::{Content, Extents, LocalExtents, Upload, read_all};
use lazuli_service::Damage;
use lazuli_store::embedded::{Backoff, Task};
use lazuli_store::{
    Change, CommitError, Decision, Directory, Embedded, Gate, Mutation, Options, Partition, Reads, Row,
    SpaceHeader, SpaceId, Store, TransactError, embedded, prefix_range, transact,
};

use crate::child::Parent;
use crate::payload::payload;

/// Number of concurrent clients.
pub const CLIENTS: usize = 6;
/// Pause between two content sweeps.
const SWEEP_PAUSE: Duration = Duration::from_millis(25);
/// Number of history rows that each client keeps.
const HISTORY_ROWS: u64 = 20;
const OPEN: SpaceHeader = SpaceHeader { epoch: 0, open: true };
/// The space of the clients' partitions.
const SPACE: SpaceId = SpaceId(7);

/// Acknowledgments of earlier workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// The last acknowledged count of each client.
    pub counts: [u64; CLIENTS],
    /// The highest acknowledged stamp.
    pub stamp: u64,
    /// Number of acknowledgments.
    pub total: u64,
}

impl Acknowledged {
    /// Records a client's acknowledgment: `client count stamp`.
    pub fn add(&mut self, detail: &str) {
        let mut fields = detail.split(' ').map(|field| field.parse::<u64>().expect("a number"));
        let mut next = || fields.next().expect("three numbers");
        let (client, count, stamp) = (next() as usize, next(), next());
        assert!(count > self.counts[client], "client {client} acknowledged {count} twice");
        self.counts[client] = count;
        self.stamp = self.stamp.max(stamp);
        self.total += 1;
    }

    /// Records the counts that a worker has verified. What was observed must stay, acknowledged or not.
    pub fn observe(&mut self, detail: &str) {
        for (count, seen) in self.counts.iter_mut().zip(detail.split(' ')) {
            *count = seen.parse().expect("a count");
        }
    }

    /// Returns an argument for a child.
    pub fn to_argument(&self) -> String {
        let counts: Vec<_> = self.counts.iter().map(u64::to_string).collect();
        format!("{} {}", self.stamp, counts.join(" "))
    }

    pub(crate) fn from_argument(text: &str) -> Self {
        let mut fields = text.split(' ').map(|field| field.parse::<u64>().expect("a number"));
        let stamp = fields.next().expect("a stamp");
        let mut counts = [0; CLIENTS];
        for count in &mut counts {
            *count = fields.next().expect("a count for each client");
        }
        Self { counts, stamp, total: 0 }
    }
}

/// Acknowledgment number: the worker has verified the directory and starts.
pub const VERIFIED: u64 = 0;
/// Acknowledgment number: the store has refused further writes.
pub const REFUSED: u64 = 1;
/// Acknowledgment number: a client's operation was committed.
pub const COMMITTED: u64 = 2;
/// Acknowledgment number: the worker found something wrong while it worked.
pub const WRONG: u64 = 3;
/// Acknowledgment number: a flush or a compaction has failed.
pub const FAILED: u64 = 4;

/// Memtables so small that every round flushes and compacts, and short retry delays.
pub const SMALL_TABLES: Options = Options {
    memtable_bytes: 8 << 10,
    backoff: Backoff {
        first: Duration::from_millis(5),
        max: Duration::from_millis(50),
        max_if_full: Duration::from_millis(50),
    },
    ..Options::SMALL
};

/// Runs a worker: verifies the directory, reports that, then works until it is killed or refused.
pub fn work(parent: &Parent, options: Options) {
    let [dir, acknowledged] = parent.arguments() else { panic!("a directory and what was acknowledged") };
    let acknowledged = Acknowledged::from_argument(acknowledged);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let core = Arc::new(Core::open(Path::new(dir), options).await);
        let counts = core.verify(&acknowledged).await;
        parent.ack(VERIFIED, &counts.map(|count| count.to_string()).join(" ")).expect("the parent listens");
        let clients = (0..CLIENTS).map(|client| core.clone().run_client(client));
        let refused = tokio::select! {
            refused = run_all(clients.collect(), parent) => refused,
            wrong = sweep_continuously(&core.sweeper) => return report_wrong(parent, &wrong),
            () = report_failures(&core.store, parent) => return,
        };
        parent.ack(REFUSED, &refused).expect("the parent listens");
    });
}

/// Reports each task of the engine that fails, once. Never returns.
pub(crate) async fn report_failures(store: &Embedded, parent: &Parent) {
    let mut tasks = Task::ALL.to_vec();
    loop {
        for task in tasks.extract_if(.., |task| store.failed_attempts(*task) > 0) {
            parent.ack(FAILED, task.name()).expect("the parent listens");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Reports that something is wrong.
pub(crate) fn report_wrong(parent: &Parent, wrong: &str) {
    parent.ack(WRONG, &wrong.replace('\n', " ")).expect("the parent listens");
}

/// Sweeps content continuously. Returns if rows are missing; a sweep may fail for any other reason.
pub(crate) async fn sweep_continuously(sweeper: &ContentSweeper) -> String {
    loop {
        if let Err(SweepError::RowsMissing(why)) = sweeper.sweep(Pace::FULL).await {
            return why;
        }
        tokio::time::sleep(SWEEP_PAUSE).await;
    }
}

fn content_of_row(space: SpaceId, _: &[u8], row: &Row) -> Result<Vec<Content>, Damage> {
    let is_content = space == SPACE && row.key == "content";
    let content = is_content.then(|| Content::decode(row.value.clone()).ok_or(Damage::Undecodable));
    content.transpose().map(|content| content.into_iter().collect())
}

async fn run_all<F>(clients: Vec<F>, parent: &Parent) -> String
where
    F: Future<Output = Client>,
{
    let mut clients: Vec<_> = clients.into_iter().map(Box::pin).collect();
    let mut started: Vec<Client> = vec![];
    for client in &mut clients {
        started.push(client.as_mut().await);
    }
    let mut running = tokio::task::JoinSet::new();
    for client in started {
        running.spawn(async move { client.run_operation().await });
    }
    loop {
        let Some(done) = running.join_next().await else { return "no client is left".into() };
        match done.expect("a client does not panic") {
            Ok((client, stamp)) => {
                let detail = format!("{} {} {}", client.client, client.count, stamp.ticks());
                parent.ack(COMMITTED, &detail).expect("the parent listens");
                running.spawn(async move { client.run_operation().await });
            }
            Err(refused) => return refused,
        }
    }
}

/// An open storage core.
pub struct Core {
    store: Arc<Embedded>,
    sweeper: ContentSweeper,
    extents: Arc<dyn Extents>,
    gate: Gate,
    _directory: Directory,
}

struct Client {
    core: Arc<Core>,
    client: usize,
    count: u64,
}

impl Core {
    /// Checks the directory, then opens it.
    pub async fn open(dir: &Path, options: Options) -> Self {
        let directory = Directory::open(dir).expect("the directory opens");
        let store_dir = directory.subdirectory("store").expect("made");
        if store_dir.join("tree").join("current").exists() {
            check(dir).await.expect("a clean check");
        }
        let store = Embedded::open(&store_dir, Arc::new(SystemClock), options);
        let store = store.unwrap_or_else(|error| panic!("the store does not open: {error}"));
        let extents = LocalExtents::open(dir, lazuli_extents::Options::default());
        let extents = extents.unwrap_or_else(|error| panic!("the extents do not open: {error}"));
        // A full store refuses all writes, even without a change, so check first whether the space exists.
        if store.space(SPACE).await.expect("readable").is_none() {
            store.set_space(SPACE, None, OPEN).await.expect("the space opens");
        }
        let (store, extents): (_, Arc<dyn Extents>) = (Arc::new(store), Arc::new(extents));
        let readers: [ContentReader; 1] = [content_of_row];
        let sweeper = ContentSweeper::new(store.clone(), extents.clone(), readers, dir.join("sweep"));
        Self { store, sweeper, extents, gate: Gate::default(), _directory: directory }
    }

    /// Returns whether the store accepts writes.
    pub fn is_healthy(&self) -> bool {
        self.store.is_healthy()
    }

    /// Verifies that every partition has the last acknowledged state or the next one. Returns the verified
    /// counts.
    pub async fn verify(&self, acknowledged: &Acknowledged) -> [u64; CLIENTS] {
        let stamp = self.store.stamp().ticks();
        assert!(stamp > acknowledged.stamp, "stamp {stamp} comes after {} was given out", acknowledged.stamp);
        let mut counts = acknowledged.counts;
        for (client, count) in counts.iter_mut().enumerate() {
            let found = self.state(client).await.unwrap_or_else(|wrong| panic!("client {client}: {wrong}"));
            assert!(
                found == *count || found == *count + 1,
                "client {client} acknowledged {count} and {found} is there"
            );
            *count = found;
        }
        counts
    }

    /// Returns the count of a client's partition, if the partition is complete.
    async fn state(&self, client: usize) -> Result<u64, String> {
        let reads = Reads::keys([Bytes::from("a"), "b".into(), "content".into()]);
        let reads = reads.and_range(prefix_range(b"h"), 1000);
        let set = self.store.read(&partition(client), &reads).await.map_err(|error| error.to_string())?;
        let [a, b, content] = &set.rows[..] else { return Err("three rows were asked for".into()) };
        let (Some(a), Some(b), Some(content)) = (a, b, content) else {
            return match (a, b, content, set.ranges[0].rows.len()) {
                (None, None, None, 0) => Ok(0),
                half => Err(format!("half of a commit is there: {half:?}")),
            };
        };
        let count = number(a);
        if number(b) != count || a.token != b.token || content.token != a.token {
            return Err(format!("half of a commit is there: {count} and {}", number(b)));
        }
        let history: Vec<u64> = set.ranges[0].rows.iter().map(number).collect();
        let expected: Vec<u64> = (count.saturating_sub(HISTORY_ROWS - 1).max(1)..=count).collect();
        if history != expected {
            return Err(format!("the history of {count} is {history:?}"));
        }
        let content = Content::decode(content.value.clone()).ok_or("the content map is invalid")?;
        let bytes = read_all(&self.extents, &content, 0..content.len(), 1 << 20)
            .await
            .map_err(|error| error.to_string())?;
        if bytes != payload(client, count) {
            return Err(format!("the content of {count} is not what was uploaded"));
        }
        Ok(count)
    }

    async fn run_client(self: Arc<Self>, client: usize) -> Client {
        let count = self.state(client).await.expect("verified before");
        Client { core: self, client, count }
    }
}

impl Client {
    /// Runs one operation. Returns the client with its new count, and the stamp of the commit.
    async fn run_operation(mut self) -> Result<(Self, Stamp), String> {
        let core = self.core.clone();
        let count = self.count + 1;
        let writer = core.extents.writer();
        let mut upload = Upload::new(&core.extents, &writer);
        upload.push(payload(self.client, count).into()).await.map_err(|error| error.to_string())?;
        let content = upload.finish().await.map_err(|error| error.to_string())?;
        core.extents.sync().await.map_err(|error| error.to_string())?;
        let mut encoded = vec![];
        content.encode(&mut encoded);

        let value = Bytes::copy_from_slice(&count.to_le_bytes());
        let partition = partition(self.client);
        let stamp = transact(&*core.store, &core.gate, &partition, Reads::key("a"), |view| {
            assert_eq!(view.row(b"a").map_or(0, number), count - 1, "no other client counts here");
            let mut mutations = vec![
                Mutation::Put("a".into(), value.clone()),
                Mutation::Put("content".into(), encoded.clone().into()),
                Mutation::Put(history_key(count), value.clone()),
                Mutation::Put("b".into(), value.clone()),
            ];
            if let Some(old) = count.checked_sub(HISTORY_ROWS) {
                mutations.push(Mutation::Delete(history_key(old)));
            }
            Ok::<_, ()>(Decision::Write(Change::of(mutations), view.stamp))
        });
        let stamp = stamp.await.map_err(|error| match error {
            TransactError::NotCommitted(CommitError::Full) => "full".to_string(),
            other => other.to_string(),
        })?;
        self.count = count;
        Ok((self, stamp))
    }
}

/// Checks a directory that is not open, like `lazuli check`: the log, the tables, and the extents to which
/// rows refer.
pub async fn check(dir: &Path) -> Result<(), String> {
    let mut contents = vec![];
    embedded::check(&dir.join("store"), |space, _, row| {
        if space == SPACE && row.key == "content" {
            contents.push(row.value.clone());
        }
        Ok(())
    })
    .map_err(|error| error.to_string())?;
    let extents = LocalExtents::open_read_only(dir).map_err(|error| error.to_string())?;
    let mut verifier = extents.verifier();
    for content in contents {
        let content = Content::decode(content).ok_or("the content map is invalid")?;
        let lost = verifier.content(&content).await.map_err(|error| error.to_string())?;
        if let Some((extent, error)) = lost.first() {
            return Err(format!("{extent:?}: {error}"));
        }
    }
    Ok(())
}

fn partition(client: usize) -> Partition {
    Partition::new(SPACE, format!("client {client}"))
}

fn history_key(count: u64) -> Bytes {
    format!("h{count:016}").into()
}

fn number(row: &Row) -> u64 {
    u64::from_le_bytes(row.value[..8].try_into().expect("a count"))
}
