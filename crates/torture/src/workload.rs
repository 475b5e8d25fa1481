//! The storage core under load, in a process that may die at any moment, and what must be true afterwards.
//!
//! Each client owns a partition and counts. Its n-th operation uploads content of its own, makes it durable, and
//! then commits, in one step: both copies of the count, the content's map, a row of history and the removal of an
//! old one. It acknowledges after the store did. So after a crash each partition must show, whole, the last state
//! acknowledged or the one after it, and the content must be what that state says. Content is swept all the time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, SystemClock};
use lazuli_extents::{Content, Extents, LocalExtents, Pace, Upload, read_all};
use lazuli_generations::Damage;
use lazuli_generations::content::{ContentReader, ContentSweeper, SweepError};
use lazuli_store::{
    Change, CommitError, Decision, Directory, Embedded, Gate, Mutation, Partition, Reads, Row, SpaceHeader,
    SpaceId, Store, TransactError, embedded, prefix_range, transact,
};

use crate::child::Parent;
use crate::payload::payload;

/// Clients at work at once.
pub const CLIENTS: usize = 6;
/// The pause between two sweeps of content.
const BETWEEN_SWEEPS: Duration = Duration::from_millis(25);
/// Rows of history that each keeps.
const KEPT: u64 = 20;
const OPEN: SpaceHeader = SpaceHeader { epoch: 0, open: true };
/// Where the clients' partitions lie.
const SPACE: SpaceId = SpaceId(7);

/// What the dead have acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// The last count of each client.
    pub counts: [u64; CLIENTS],
    /// The highest stamp seen.
    pub stamp: u64,
    /// How many acknowledgements there were.
    pub total: u64,
}

impl Acknowledged {
    /// Takes a client's acknowledgement in: `client count stamp`.
    pub fn add(&mut self, detail: &str) {
        let mut fields = detail.split(' ').map(|field| field.parse::<u64>().expect("a number"));
        let mut next = || fields.next().expect("three numbers");
        let (client, count, stamp) = (next() as usize, next(), next());
        assert!(count > self.counts[client], "client {client} acknowledged {count} twice");
        self.counts[client] = count;
        self.stamp = self.stamp.max(stamp);
        self.total += 1;
    }

    /// A worker has seen these counts: what was seen must stay, acknowledged or not.
    pub fn seen(&mut self, detail: &str) {
        for (count, seen) in self.counts.iter_mut().zip(detail.split(' ')) {
            *count = seen.parse().expect("a count");
        }
    }

    /// As an argument for a child.
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

/// The number with which a worker says that all is well and that it starts.
pub const VERIFIED: u64 = 0;
/// The number with which it says that the store has refused further writes.
pub const REFUSED: u64 = 1;
/// The number of a client's acknowledgement.
pub const COMMITTED: u64 = 2;
/// The number with which it says that it found something wrong while it worked.
pub const WRONG: u64 = 3;

/// The worker: verifies what the dead left, says so, then works until it is killed or refused.
pub fn work(parent: &Parent) {
    let [dir, acknowledged] = parent.arguments() else { panic!("a directory and what was acknowledged") };
    let acknowledged = Acknowledged::from_argument(acknowledged);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let core = Arc::new(Core::open(Path::new(dir)).await);
        let seen = core.verify(&acknowledged).await;
        parent.ack(VERIFIED, &seen.map(|count| count.to_string()).join(" ")).expect("the parent listens");
        let clients = (0..CLIENTS).map(|client| core.clone().run_client(client));
        let refused = tokio::select! {
            refused = run_all(clients.collect(), parent) => refused,
            wrong = sweep_again_and_again(&core.sweeper) => return wrong_while_working(parent, &wrong),
        };
        parent.ack(REFUSED, &refused).expect("the parent listens");
    });
}

/// Tells the parent that something is wrong.
pub(crate) fn wrong_while_working(parent: &Parent, wrong: &str) {
    parent.ack(WRONG, &wrong.replace('\n', " ")).expect("the parent listens");
}

/// Sweeps content all the time. Returns if rows are missing; a sweep may fail for any other reason.
pub(crate) async fn sweep_again_and_again(sweeper: &ContentSweeper) -> String {
    loop {
        if let Err(SweepError::RowsMissing(why)) = sweeper.sweep(Pace::FULL).await {
            return why;
        }
        tokio::time::sleep(BETWEEN_SWEEPS).await;
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
        running.spawn(async move { client.once().await });
    }
    loop {
        let Some(done) = running.join_next().await else { return "nobody is left".into() };
        match done.expect("a client does not panic") {
            Ok((client, stamp)) => {
                let detail = format!("{} {} {}", client.client, client.count, stamp.ticks());
                parent.ack(COMMITTED, &detail).expect("the parent listens");
                running.spawn(async move { client.once().await });
            }
            Err(refused) => return refused,
        }
    }
}

/// The storage core, open.
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
    /// Checks the directory as it lies there, then opens it.
    pub async fn open(dir: &Path) -> Self {
        let directory = Directory::open(dir).expect("the directory opens");
        let store_dir = directory.subdirectory("store").expect("made");
        if store_dir.join("tree").join("current").exists() {
            check(dir).await.expect("a clean check");
        }
        let store = Embedded::open(&store_dir, Arc::new(SystemClock), lazuli_store::Options::SMALL);
        let store = store.unwrap_or_else(|error| panic!("the store does not open: {error}"));
        let extents = LocalExtents::open(dir, lazuli_extents::Options::default());
        let extents = extents.unwrap_or_else(|error| panic!("the extents do not open: {error}"));
        match store.set_space(SPACE, None, OPEN).await {
            Ok(()) | Err(CommitError::Conflict) => {}
            Err(error) => panic!("the space does not open: {error}"),
        }
        let (store, extents): (_, Arc<dyn Extents>) = (Arc::new(store), Arc::new(extents));
        let readers: [ContentReader; 1] = [content_of_row];
        let sweeper = ContentSweeper::new(store.clone(), extents.clone(), readers, dir.join("sweep"));
        Self { store, sweeper, extents, gate: Gate::default(), _directory: directory }
    }

    /// Whether it still takes writes.
    pub fn is_healthy(&self) -> bool {
        self.store.is_healthy()
    }

    /// Verifies that every partition shows what was acknowledged or what came next, whole.
    /// Returns the counts that are there.
    pub async fn verify(&self, acknowledged: &Acknowledged) -> [u64; CLIENTS] {
        let stamp = self.store.stamp().ticks();
        assert!(stamp > acknowledged.stamp, "stamp {stamp} comes after {} was given out", acknowledged.stamp);
        let mut seen = acknowledged.counts;
        for (client, count) in seen.iter_mut().enumerate() {
            let found = self.state(client).await.unwrap_or_else(|wrong| panic!("client {client}: {wrong}"));
            assert!(
                found == *count || found == *count + 1,
                "client {client} acknowledged {count} and {found} is there"
            );
            *count = found;
        }
        seen
    }

    /// The count of a client's partition, if the partition is whole.
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
        let expected: Vec<u64> = (count.saturating_sub(KEPT - 1).max(1)..=count).collect();
        if history != expected {
            return Err(format!("the history of {count} is {history:?}"));
        }
        let content = Content::decode(content.value.clone()).ok_or("a content map that is none")?;
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
    /// One operation; the client one further, and the stamp of its commit.
    async fn once(mut self) -> Result<(Self, Stamp), String> {
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
            assert_eq!(view.row(b"a").map_or(0, number), count - 1, "nobody else counts here");
            let mut mutations = vec![
                Mutation::Put("a".into(), value.clone()),
                Mutation::Put("content".into(), encoded.clone().into()),
                Mutation::Put(history_key(count), value.clone()),
                Mutation::Put("b".into(), value.clone()),
            ];
            if let Some(old) = count.checked_sub(KEPT) {
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

/// Verifies a directory that nobody has open, as `lazuli check` does: the log, the tables, and the extents that rows
/// refer to.
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
        let content = Content::decode(content).ok_or("a content map that is none")?;
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
