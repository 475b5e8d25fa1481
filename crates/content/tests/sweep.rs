//! Sweeps of content: kept content, freed content, and refusals.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Pace, SystemClock};
use lazuli_content::sweep::{ContentSweeper, SweepError};
use lazuli_extents::{Content, Error, Extents, Freed, LocalExtents, read_all};
use lazuli_service::Damage;
use lazuli_store::interposed::{Interposed, Interposer};
use lazuli_store::{
    Change, Decision, Embedded, Gate, Mutation, Options, Partition, Reads, Row, SpaceHeader, SpaceId, Store,
    View, transact,
};

const BYTES: usize = 70_000;
const SPACE: SpaceId = SpaceId(9);

/// Decodes every row except `broken` as content.
fn every_row(_: SpaceId, _: &[u8], row: &Row) -> Result<Vec<Content>, Damage> {
    match &row.key[..] {
        b"broken" => Err(Damage::Undecodable),
        b"plain" => Ok(vec![]),
        _ => Content::decode(row.value.clone()).map(|content| vec![content]).ok_or(Damage::Undecodable),
    }
}

struct Rig {
    dir: tempfile::TempDir,
    store: Arc<Embedded>,
    extents: Arc<dyn Extents>,
}

impl Rig {
    async fn new() -> Self {
        let rig = Self::open(tempfile::tempdir().unwrap());
        rig.store.set_space(SPACE, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
        rig
    }

    fn open(dir: tempfile::TempDir) -> Self {
        let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
        let extents = LocalExtents::open(dir.path(), Default::default()).unwrap();
        Self { dir, store: Arc::new(store), extents: Arc::new(extents) }
    }

    async fn reopened(self) -> Self {
        let Self { dir, store, extents } = self;
        drop(extents);
        tokio::task::spawn_blocking(move || store.close()).await.unwrap();
        Self::open(dir)
    }

    fn sweeper(&self) -> ContentSweeper {
        self.sweeper_of(self.store.clone())
    }

    fn sweeper_of(&self, store: Arc<dyn Store>) -> ContentSweeper {
        ContentSweeper::new(store, self.extents.clone(), [every_row as _], self.dir.path().join("sweep"))
    }

    async fn upload(&self, byte: u8) -> Content {
        let writer = self.extents.writer();
        let extent = self.extents.append(&writer, vec![vec![byte; BYTES].into()]).await.unwrap();
        self.extents.sync().await.unwrap();
        Content::extent(extent)
    }

    async fn put_content(&self, key: &str, content: &Content) {
        put(&*self.store, Mutation::Put(Bytes::copy_from_slice(key.as_bytes()), encoded(content))).await;
    }

    async fn put_new(&self, key: &str, byte: u8) -> Content {
        let content = self.upload(byte).await;
        self.put_content(key, &content).await;
        content
    }

    async fn remove(&self, key: &'static str) {
        put(&*self.store, Mutation::Delete(key.into())).await;
    }

    /// Returns the first byte of content, if the content is complete.
    async fn read(&self, content: &Content) -> Option<u8> {
        match read_all(&self.extents, content, 0..BYTES as u64, BYTES).await {
            Ok(bytes) => bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0]),
            Err(Error::Damaged(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn encoded(content: &Content) -> Bytes {
    let mut row = Vec::new();
    content.encode(&mut row);
    row.into()
}

async fn put(store: &dyn Store, mutation: Mutation) {
    put_in(store, "p", mutation).await;
}

async fn put_in(store: &dyn Store, partition: &'static str, mutation: Mutation) {
    let rule = |_: &View<'_>| Ok::<_, ()>(Decision::Write(Change::of([mutation.clone()]), ()));
    let partition = Partition::new(SPACE, partition);
    transact(store, &Gate::default(), &partition, Reads::default(), rule).await.unwrap();
}

async fn sweep(sweeper: &ContentSweeper) -> Result<Freed, SweepError> {
    sweeper.sweep(Pace::FULL).await
}

#[tokio::test]
async fn unreferenced_content_is_freed_and_referenced_content_stays() {
    let rig = Rig::new().await;
    let kept = rig.put_new("kept", 1).await;
    let garbage = rig.upload(2).await;
    let freed = sweep(&rig.sweeper()).await.unwrap();
    assert!(freed.live_bytes >= BYTES as u64, "{freed:?}");
    assert_eq!((rig.read(&kept).await, rig.read(&garbage).await), (Some(1), None));
}

#[tokio::test]
async fn undecodable_row_keeps_only_older_content_even_after_a_restart() {
    let mut rig = Rig::new().await;
    let mut sweeper = rig.sweeper();
    let older = rig.upload(1).await;
    put(&*rig.store, Mutation::Put("broken".into(), Bytes::new())).await;
    // The first sweep that sees the row, and the next one, free nothing.
    for _ in 0..2 {
        let unseen = rig.upload(2).await;
        sweep(&sweeper).await.unwrap();
        assert_eq!(rig.read(&unseen).await, Some(2));
    }
    let alarm = sweeper.alarm().unwrap();
    assert!(alarm.contains("cannot be decoded"), "{alarm}");
    for _ in 0..2 {
        let newer = rig.upload(3).await;
        sweep(&sweeper).await.unwrap();
        assert_eq!((rig.read(&older).await, rig.read(&newer).await), (Some(1), None));
        drop(sweeper);
        rig = rig.reopened().await;
        sweeper = rig.sweeper();
    }
    // A later version of the row may refer to content written before that version.
    let newer = rig.upload(4).await;
    put(&*rig.store, Mutation::Put("broken".into(), Bytes::from_static(b"again"))).await;
    sweep(&sweeper).await.unwrap();
    assert_eq!(rig.read(&newer).await, Some(4));
    rig.remove("broken").await;
    sweep(&sweeper).await.unwrap();
    assert_eq!((rig.read(&older).await, rig.read(&newer).await), (None, None));
    assert_eq!(sweeper.alarm(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_of_a_commit_whose_client_has_disconnected_is_not_freed() {
    let rig = Rig::new().await;
    let sweeper = rig.sweeper();
    for round in 0..100u8 {
        let writer = rig.extents.writer();
        let extent = rig.extents.append(&writer, vec![vec![round; BYTES].into()]).await.unwrap();
        rig.extents.sync().await.unwrap();
        let content = Content::extent(extent);
        // Poll the commit once and drop it: it is submitted, and on a fast machine already decided.
        tokio::select! {
            biased;
            () = put(&*rig.store, Mutation::Put("row".into(), encoded(&content))) => {}
            () = std::future::ready(()) => {}
        }
        drop(writer);
        sweep(&sweeper).await.unwrap();
        assert_eq!(rig.read(&content).await, Some(round));
    }
}

/// Moves content between rows after each page of a scan, with or without holding it.
struct Mover {
    extents: Arc<dyn Extents>,
    contents: Vec<Content>,
    holds: bool,
    random: AtomicUsize,
    moves: AtomicUsize,
}

/// Number of rows that content moves between: more than there are contents.
const ROWS: usize = 12;

impl Mover {
    fn random(&self, below: usize) -> usize {
        let next =
            |state: usize| Some(state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
        self.random.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap();
        (self.random.load(Ordering::SeqCst) >> 33) % below
    }
}

fn place(row: usize) -> (&'static str, Bytes) {
    (["a", "b", "c"][row / 4], Bytes::from(format!("r{}", row % 4)))
}

async fn row_of(store: &dyn Store, row: usize) -> Option<Row> {
    let (partition, key) = place(row);
    store.read(&Partition::new(SPACE, partition), &Reads::key(key)).await.unwrap().rows.remove(0)
}

#[async_trait]
impl Interposer for Mover {
    async fn page_visited(&self, store: &dyn Store) {
        for _ in 0..self.random(4) {
            let (from, to) = (self.random(ROWS), self.random(ROWS));
            if row_of(store, to).await.is_some() {
                continue;
            }
            // The steps of the services: read, hold, write the new row, remove the old one.
            let pin = self.extents.pin();
            let Some(row) = row_of(store, from).await else { continue };
            let content = Content::decode(row.value.clone()).unwrap();
            let held = self.holds.then(|| pin.hold([&content]));
            let ((to, to_key), (from, from_key)) = (place(to), place(from));
            put_in(store, to, Mutation::Put(to_key, row.value)).await;
            put_in(store, from, Mutation::Delete(from_key)).await;
            drop(held);
            self.moves.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Sweeps while content moves. Returns whether all content still exists.
async fn all_content_survives(holds: bool, seed: usize) -> bool {
    let rig = Rig::new().await;
    let mut contents = vec![];
    for row in 0..ROWS / 2 {
        let content = rig.upload(row as u8).await;
        let (partition, key) = place(row);
        put_in(&*rig.store, partition, Mutation::Put(key, encoded(&content))).await;
        contents.push(content);
    }
    let (extents, moves) = (rig.extents.clone(), AtomicUsize::new(0));
    let mover = Mover {
        extents,
        contents,
        holds,
        random: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).into(),
        moves,
    };
    let store = Arc::new(Interposed::new(rig.store.clone(), mover));
    let sweeper = rig.sweeper_of(store.clone()).with_page_rows(1 + seed % 3);
    for _ in 0..4 {
        sweep(&sweeper).await.unwrap();
    }
    assert!(store.interposer.moves.load(Ordering::SeqCst) > 0);
    for (byte, content) in store.interposer.contents.iter().enumerate() {
        if rig.read(content).await != Some(byte as u8) {
            return false;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_moved_between_pages_of_a_sweep_survives_if_held() {
    for seed in 0..20 {
        assert!(all_content_survives(true, seed).await, "seed {seed}");
    }
    // Moves without a hold must be detected, or the test proves nothing.
    let mut lost = 0;
    for seed in 0..8 {
        lost += usize::from(!all_content_survives(false, seed).await);
    }
    assert!(lost > 0, "moves without a hold must lose content");
}

/// Removes rows from the tree of a closed store, like damage.
fn lose_rows(dir: &Path, keys: impl Iterator<Item = &'static str>) {
    use lsm_tree::{AbstractTree, SequenceNumberCounter};
    let seqno = SequenceNumberCounter::default();
    let tree = lsm_tree::Config::new(dir.join("tree"), seqno.clone(), SequenceNumberCounter::default());
    let tree = tree.open().unwrap();
    let mut next = tree.get_highest_seqno().unwrap();
    for key in keys {
        next += 1;
        let full = [&[2], &SPACE.0.to_be_bytes()[..], b"p\x00\x01", key.as_bytes()].concat();
        assert!(tree.get(&full, next).unwrap().is_some(), "{key}");
        tree.remove(full, next);
    }
    seqno.fetch_max(next + 1);
    tree.flush_active_memtable(0).unwrap();
}

#[tokio::test]
async fn sweep_frees_nothing_while_rows_are_missing_that_no_commit_removed() {
    let rig = Rig::new().await;
    let one = rig.put_new("one", 1).await;
    rig.put_new("two", 2).await;
    let garbage = rig.upload(3).await;
    sweep(&rig.sweeper()).await.unwrap();
    assert_eq!(rig.read(&garbage).await, None);
    let store = rig.store.clone();
    let Rig { dir, extents, .. } = rig;
    drop(extents);
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    lose_rows(dir.path(), ["one"].into_iter());

    let mut rig = Rig::open(dir);
    for _ in 0..2 {
        let sweeper = rig.sweeper();
        let refused = sweep(&sweeper).await;
        assert!(matches!(refused, Err(SweepError::RowsMissing(_))), "{refused:?}");
        assert!(sweeper.alarm().unwrap().contains("missing"), "{:?}", sweeper.alarm());
        assert_eq!(rig.read(&one).await, Some(1));
        drop(sweeper);
        rig = rig.reopened().await;
    }
    // New rows do not compensate for lost ones.
    for key in ["a", "b", "c"] {
        rig.put_new(key, 4).await;
    }
    assert!(sweep(&rig.sweeper()).await.is_err());
    let sweeper = rig.sweeper();
    sweeper.accept_missing_rows().await.unwrap();
    sweep(&sweeper).await.unwrap();
    assert_eq!((rig.read(&one).await, sweeper.alarm()), (None, None));
}

#[tokio::test]
async fn lost_row_of_any_service_stops_freeing() {
    let rig = Rig::new().await;
    put(&*rig.store, Mutation::Put("plain".into(), Bytes::from_static(b"no content"))).await;
    let store = rig.store.clone();
    let Rig { dir, extents, .. } = rig;
    drop(extents);
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    lose_rows(dir.path(), ["plain"].into_iter());
    let rig = Rig::open(dir);
    assert!(matches!(sweep(&rig.sweeper()).await, Err(SweepError::RowsMissing(_))), "even without a ledger");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_deletes_during_other_changes_do_not_stop_sweeps() {
    let mut rig = Rig::new().await;
    for round in 0..6u8 {
        let keys: Vec<_> = (0..50).map(|n| format!("k{n:03}")).collect();
        for key in &keys {
            rig.put_content(key, &Content::inline("small")).await;
        }
        let content = rig.put_new("large", round).await;
        sweep(&rig.sweeper()).await.unwrap();
        // Add and remove rows during the sweeps.
        let stop = Arc::new(AtomicBool::new(false));
        let changing = tokio::spawn({
            let (store, stop) = (rig.store.clone(), stop.clone());
            async move {
                while !stop.load(Ordering::SeqCst) {
                    let value = encoded(&Content::inline("small"));
                    put_in(&*store, "a", Mutation::Put("x".into(), value.clone())).await;
                    put_in(&*store, "z", Mutation::Put("x".into(), value)).await;
                    put_in(&*store, "a", Mutation::Delete("x".into())).await;
                    put_in(&*store, "z", Mutation::Delete("x".into())).await;
                }
            }
        });
        for key in keys {
            put(&*rig.store, Mutation::Delete(key.into())).await;
        }
        rig.remove("large").await;
        let sweeper = rig.sweeper().with_page_rows(2);
        for _ in 0..5 {
            sweep(&sweeper).await.unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        changing.await.unwrap();
        assert_eq!(rig.read(&content).await, None);
        drop(sweeper);
        rig = rig.reopened().await;
    }
}
