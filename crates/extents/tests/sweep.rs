//! Sweeps while other tasks write, read, copy, move and delete: no live content is lost, and no dead
//! content stays.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use lazuli_concurrency::Pace;
use lazuli_extents::conformance::pattern;
use lazuli_extents::{
    Content, ContentReader, Edit, Error, Extents, Freed, InMemoryExtents, LocalExtents, Options, Sweep,
    Upload, read_all,
};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const SMALL: Options = Options { segment_bytes: 16 << 20, grow_bytes: 1 << 20 };
/// Maximum preallocated bytes.
const SET_ASIDE: u64 = 4 * SMALL.grow_bytes;

/// A record: its encoded content, and the bytes that must be read through it. `version` makes commits
/// conditional.
#[derive(Clone)]
struct Record {
    version: u64,
    content: Vec<u8>,
    expected: Bytes,
}

/// A stand-in for the store: records are read and committed one at a time, and scanned in order while they
/// change.
#[derive(Default)]
struct Records {
    rows: Mutex<BTreeMap<u64, Record>>,
    versions: AtomicU64,
}

impl Records {
    fn get(&self, key: u64) -> Option<Record> {
        self.rows.lock().get(&key).cloned()
    }

    /// Replaces a record if it is still the version that was read.
    fn commit(&self, key: u64, read: Option<u64>, new: Option<(&Content, Bytes)>) -> bool {
        let mut rows = self.rows.lock();
        if rows.get(&key).map(|record| record.version) != read {
            return false;
        }
        match new {
            None => drop(rows.remove(&key)),
            Some((content, expected)) => {
                let mut encoded = vec![];
                content.encode(&mut encoded);
                let version = self.versions.fetch_add(1, Ordering::Relaxed);
                rows.insert(key, Record { version, content: encoded, expected });
            }
        }
        true
    }

    fn next(&self, from: u64) -> Option<(u64, Record)> {
        self.rows.lock().range(from..).next().map(|(key, record)| (*key, record.clone()))
    }
}

fn decode(record: &Record) -> Content {
    Content::decode(record.content.clone().into()).unwrap()
}

async fn sweep(extents: &Arc<dyn Extents>, records: &Records) -> Result<Freed, Error> {
    let mut sweep = Sweep::begin(extents, Pace::FULL).await?;
    let mut from = 0;
    while let Some((key, record)) = records.next(from) {
        sweep.mark(&decode(&record)).await?;
        tokio::task::yield_now().await;
        from = key + 1;
    }
    sweep.finish().await
}

const KEYS: u64 = 24;

async fn put(extents: &Arc<dyn Extents>, records: &Records, random: &mut SmallRng) {
    let (key, writer) = (random.random_range(0..KEYS), extents.writer());
    let bytes = pattern(random.random(), random.random_range(0..1_500_000) as usize);
    let mut upload = Upload::new(extents, &writer);
    for part in bytes.chunks(100_000) {
        upload.push(bytes.slice_ref(part)).await.unwrap();
    }
    let content = upload.finish().await.unwrap();
    extents.sync().await.unwrap();
    let read = records.get(key).map(|record| record.version);
    records.commit(key, read, Some((&content, bytes)));
}

async fn change_pages(extents: &Arc<dyn Extents>, records: &Records, random: &mut SmallRng) {
    let (key, writer) = (random.random_range(0..KEYS), extents.writer());
    let pin = extents.pin();
    let Some(record) = records.get(key) else { return };
    tokio::task::yield_now().await;
    let old = decode(&record);
    writer.hold(pin, [&old]);
    let (mut edit, mut expected) = (Edit::new(extents, &writer, &old), record.expected.to_vec());
    for _ in 0..random.random_range(0..60) {
        let page = pattern(random.random(), 4096);
        let at = random.random_range(0..old.len() + 1);
        edit.write(at, &Content::inline(page.clone())).await.unwrap();
        expected.resize(expected.len().max(at as usize + 4096), 0);
        expected[at as usize..at as usize + 4096].copy_from_slice(&page);
    }
    let new = edit.finish().await.unwrap();
    extents.sync().await.unwrap();
    records.commit(key, Some(record.version), Some((&new, expected.into())));
}

/// Copies or moves a record over another one, so that content can move behind a running scan.
async fn copy_or_move(extents: &Arc<dyn Extents>, records: &Records, random: &mut SmallRng) {
    let (from, to) = (random.random_range(0..KEYS), random.random_range(0..KEYS));
    if from == to {
        return;
    }
    let pin = extents.pin();
    let Some(record) = records.get(from) else { return };
    for _ in 0..random.random_range(0..4) {
        tokio::task::yield_now().await;
    }
    let content = decode(&record);
    let _held = pin.hold([&content]);
    tokio::task::yield_now().await;
    let read = records.get(to).map(|record| record.version);
    records.commit(to, read, Some((&content, record.expected.clone())));
    if random.random_range(0..2) == 0 {
        records.commit(from, Some(record.version), None);
    }
}

async fn read(extents: &Arc<dyn Extents>, records: &Records, random: &mut SmallRng) {
    let pin = extents.pin();
    let Some(record) = records.get(random.random_range(0..KEYS)) else { return };
    tokio::task::yield_now().await;
    let content = decode(&record);
    let held = pin.hold([&content]);
    let mut reader = ContentReader::new(extents, &content, 0..u64::MAX, held);
    let mut at = 0;
    while let Some(bytes) = reader.next().await.unwrap() {
        assert!(bytes == record.expected[at..at + bytes.len()], "read bytes differ from the written ones");
        at += bytes.len();
        tokio::task::yield_now().await;
    }
    assert_eq!(at, record.expected.len());
}

fn on_disk(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("segments")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
}

/// Runs writers, readers, copies, moves and deletes during successive sweeps. Then reads every live byte.
async fn work_while_sweeping(extents: &Arc<dyn Extents>) -> (Arc<Records>, Freed) {
    let records = Arc::new(Records::default());
    let done = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (1..=6u64)
        .map(|seed| {
            let (extents, records) = (extents.clone(), records.clone());
            tokio::spawn(async move {
                let mut random = SmallRng::seed_from_u64(seed);
                for _ in 0..60 {
                    match random.random_range(0..10) {
                        0..2 => put(&extents, &records, &mut random).await,
                        2..4 => change_pages(&extents, &records, &mut random).await,
                        4..7 => copy_or_move(&extents, &records, &mut random).await,
                        7..9 => read(&extents, &records, &mut random).await,
                        _ => {
                            let key = random.random_range(0..KEYS);
                            let read = records.get(key).map(|record| record.version);
                            records.commit(key, read, None);
                        }
                    }
                }
            })
        })
        .collect();
    let sweeper = {
        let (extents, records, done) = (extents.clone(), records.clone(), done.clone());
        tokio::spawn(async move {
            let (mut sweeps, mut freed) = (0, 0);
            while !done.load(Ordering::Relaxed) {
                freed += sweep(&extents, &records).await.unwrap().bytes;
                sweeps += 1;
                tokio::task::yield_now().await;
            }
            (sweeps, freed)
        })
    };
    for worker in workers {
        worker.await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    let (sweeps, freed) = sweeper.await.unwrap();
    assert!(sweeps > 2 && freed > 0, "{sweeps} sweeps freed {freed}");

    let freed = sweep(extents, &records).await.unwrap();
    let mut from = 0;
    while let Some((key, record)) = records.next(from) {
        let bytes = read_all(extents, &decode(&record), 0..u64::MAX, 64 << 20).await.unwrap();
        assert!(bytes == record.expected, "record {key}");
        from = key + 1;
    }
    (records, freed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_sweeps_lose_no_live_content_and_free_all_dead_content() {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalExtents::open(dir.path(), SMALL).unwrap();
    let extents: Arc<dyn Extents> = Arc::new(local.clone());
    let (records, freed) = work_while_sweeping(&extents).await;
    let mut verifier = local.verifier();
    let mut from = 0;
    while let Some((key, record)) = records.next(from) {
        assert_eq!(verifier.content(&decode(&record)).await.unwrap(), []);
        from = key + 1;
    }
    let segments = extents.storage_use().segments;
    assert!(segments > 0);
    let limit = freed.live_bytes + segments * (16 << 10) + SET_ASIDE;
    assert!(on_disk(dir.path()) <= limit, "{} on disk, {freed:?}", on_disk(dir.path()));
    assert_eq!(local.scrub(|_| {}).await.unwrap().damage, []);

    // All content dies: only the active segment stays, with its preallocation.
    records.rows.lock().clear();
    sweep(&extents, &records).await.unwrap();
    assert_eq!(extents.storage_use().segments, 1);
    assert!(on_disk(dir.path()) <= SET_ASIDE + (16 << 10), "{}", on_disk(dir.path()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_sweeps_lose_no_live_content_in_memory() {
    let extents: Arc<dyn Extents> = Arc::new(InMemoryExtents::new(1 << 30));
    let (records, freed) = work_while_sweeping(&extents).await;
    assert_eq!(extents.storage_use().allocated_bytes, freed.live_bytes, "all garbage is freed");
    records.rows.lock().clear();
    sweep(&extents, &records).await.unwrap();
    let space = extents.storage_use();
    assert_eq!((space.segments, space.allocated_bytes, space.live_bytes), (0, 0, Some(0)));
}

#[tokio::test]
async fn steady_overwrites_take_at_most_half_more_than_the_live_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let extents: Arc<dyn Extents> = Arc::new(LocalExtents::open(dir.path(), SMALL).unwrap());
    overwrite_steadily(&extents, || on_disk(dir.path())).await;
    let extents: Arc<dyn Extents> = Arc::new(InMemoryExtents::new(1 << 30));
    overwrite_steadily(&extents, || extents.storage_use().allocated_bytes).await;
}

/// Overwrites blobs and parts of them, with a sweep whenever one is due. `taken` is the space that it takes.
async fn overwrite_steadily(extents: &Arc<dyn Extents>, taken: impl Fn() -> u64) {
    let records = Records::default();
    let mut random = SmallRng::seed_from_u64(99);
    const BLOBS: u64 = 12;
    const BLOB: u64 = 3 << 20;
    let (mut highest, mut sweeps) = (0.0f64, 0);
    for round in 0..260u64 {
        let writer = extents.writer();
        let key = if round < BLOBS { round } else { random.random_range(0..BLOBS) };
        let read = records.get(key);
        let content = match &read {
            // A part of 64 KiB to 1 MiB is overwritten …
            Some(record) if random.random_range(0..3) > 0 => {
                let old = decode(record);
                writer.hold(extents.pin(), [&old]);
                let mut edit = Edit::new(extents, &writer, &old);
                let chunks = 1 + random.random_range(0..16);
                let payload = pattern(round, chunks as usize * 65_536);
                let part = Content::extent(extents.append(&writer, vec![payload]).await.unwrap());
                edit.write(random.random_range(0..BLOB / 65_536 - chunks) * 65_536, &part).await.unwrap();
                edit.finish().await.unwrap()
            }
            // … or the whole blob.
            _ => {
                let mut upload = Upload::new(extents, &writer);
                upload.push(pattern(round, BLOB as usize)).await.unwrap();
                upload.finish().await.unwrap()
            }
        };
        extents.sync().await.unwrap();
        assert_eq!(content.len(), BLOB);
        records.commit(key, read.map(|record| record.version), Some((&content, Bytes::new())));
        drop(writer);
        if extents.storage_use().sweep_due(1 << 20) {
            sweep(extents, &records).await.unwrap();
            sweeps += 1;
        }
        if round > BLOBS {
            highest = highest.max(taken() as f64 / (BLOBS * BLOB) as f64);
        }
    }
    assert!(highest <= 1.5, "{highest} times the live bytes");
    assert!((10..60).contains(&sweeps), "{sweeps} sweeps while about ten times the live bytes were written");
}

#[tokio::test]
async fn leftovers_of_a_crash_are_freed_by_the_next_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::default();
    {
        let extents: Arc<dyn Extents> = Arc::new(LocalExtents::open(dir.path(), SMALL).unwrap());
        let writer = extents.writer();
        let kept = extents.append(&writer, vec![pattern(1, 100_000)]).await.unwrap();
        records.commit(1, None, Some((&Content::extent(kept), pattern(1, 100_000))));
        for i in 0..40 {
            extents.append(&writer, vec![pattern(i, 1_000_000)]).await.unwrap();
        }
        extents.sync().await.unwrap();
    }
    let local = LocalExtents::open(dir.path(), SMALL).unwrap();
    let extents: Arc<dyn Extents> = Arc::new(local.clone());
    assert!(
        extents.storage_use().sweep_due(1 << 20),
        "after a start the live bytes are unknown, so a sweep is due"
    );
    let freed = sweep(&extents, &records).await.unwrap();
    assert!(freed.bytes > 39_000_000 && freed.segments >= 1, "{freed:?}");
    assert!(on_disk(dir.path()) < 200_000, "{}", on_disk(dir.path()));
    assert!(!extents.storage_use().sweep_due(1 << 20));
    let record = records.get(1).unwrap();
    let bytes = read_all(&extents, &decode(&record), 0..u64::MAX, 1 << 20).await.unwrap();
    assert_eq!(bytes, record.expected);
}

#[tokio::test]
async fn slow_upload_does_not_keep_garbage_of_other_writers() {
    let dir = tempfile::tempdir().unwrap();
    upload_slowly(Arc::new(LocalExtents::open(dir.path(), SMALL).unwrap())).await;
    upload_slowly(Arc::new(InMemoryExtents::new(1 << 30))).await;
}

async fn upload_slowly(extents: Arc<dyn Extents>) {
    let slow = extents.writer();
    let early = extents.append(&slow, vec![pattern(1, 50_000)]).await.unwrap();
    for i in 0..30 {
        extents.append(&extents.writer(), vec![pattern(i, 1_000_000)]).await.unwrap();
    }
    let late = extents.append(&slow, vec![pattern(2, 50_000)]).await.unwrap();
    let freed = sweep(&extents, &Records::default()).await.unwrap();
    assert!(freed.bytes > 29_000_000, "{freed:?}");
    for (extent, seed) in [(early, 1), (late, 2)] {
        assert_eq!(extents.read(&extent, 0..50_000).await.unwrap(), pattern(seed, 50_000));
    }
}

#[tokio::test]
async fn damaged_node_keeps_all_older_content_and_newer_garbage_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let extents: Arc<dyn Extents> = Arc::new(LocalExtents::open(dir.path(), SMALL).unwrap());
    let (writer, other) = (extents.writer(), extents.writer());
    let dead = extents.append(&other, vec![pattern(1, 100_000)]).await.unwrap();
    let whole = Content::extent(extents.append(&writer, vec![pattern(2, 400_000)]).await.unwrap());
    let mut edit = Edit::new(&extents, &writer, &whole);
    for i in 0..90 {
        edit.clear(i * 4000..i * 4000 + 100).await.unwrap();
    }
    let content = edit.finish().await.unwrap();
    extents.sync().await.unwrap();
    drop((writer, other));
    // The node was written last, so it is the last frame of the only segment.
    let path = dir.path().join("segments/0000000000000001.seg");
    let written = std::fs::read(&path).unwrap();
    let last = written.iter().rposition(|byte| *byte != 0).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[!written[last]], last as u64).unwrap();
    let newer = extents.append(&extents.writer(), vec![pattern(3, 100_000)]).await.unwrap();
    let mut sweep = Sweep::begin(&extents, Pace::FULL).await.unwrap();
    sweep.mark(&content).await.unwrap();
    assert_eq!(sweep.finish().await.unwrap().damaged_nodes, 1);
    assert_eq!(extents.read(&dead, 0..100_000).await.unwrap(), pattern(1, 100_000));
    let read = extents.read(&newer, 0..100_000).await;
    assert!(matches!(read, Err(Error::Damaged(_))), "{read:?}");
}
