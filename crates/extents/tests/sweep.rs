//! Sweeping while others write, read, copy, move and delete: nothing that lives is lost, nothing that is dead stays.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use lazuli_extents::conformance::pattern;
use lazuli_extents::{
    Content, Edit, Error, Extents, Freed, LocalExtents, Options, Pace, Reader, Sweep, Upload, read_all,
};
use parking_lot::Mutex;

const SMALL: Options = Options { segment_bytes: 16 << 20, grow_bytes: 1 << 20 };
/// Bytes that may be set aside for appending, at most.
const SET_ASIDE: u64 = 4 * SMALL.grow_bytes;

/// A record: its content as stored, and what must be read through it. `version` makes commits conditional.
#[derive(Clone)]
struct Record {
    version: u64,
    content: Vec<u8>,
    expected: Bytes,
}

/// Stands for the store: records that are read and committed one at a time, and scanned in order while they change.
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
        sweep.live(&decode(&record)).await?;
        tokio::task::yield_now().await;
        from = key + 1;
    }
    sweep.finish().await
}

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

const KEYS: u64 = 24;

async fn put(extents: &Arc<dyn Extents>, records: &Records, dice: &mut Dice) {
    let (key, writer) = (dice.roll(KEYS), extents.writer());
    let bytes = pattern(dice.roll(u64::MAX), dice.roll(1_500_000) as usize);
    let mut upload = Upload::new(extents, &writer);
    for part in bytes.chunks(100_000) {
        upload.push(bytes.slice_ref(part)).await.unwrap();
    }
    let content = upload.finish().await.unwrap();
    extents.sync().await.unwrap();
    let read = records.get(key).map(|record| record.version);
    records.commit(key, read, Some((&content, bytes)));
}

async fn change_pages(extents: &Arc<dyn Extents>, records: &Records, dice: &mut Dice) {
    let (key, writer) = (dice.roll(KEYS), extents.writer());
    let pin = extents.pin();
    let Some(record) = records.get(key) else { return };
    tokio::task::yield_now().await;
    let old = decode(&record);
    writer.hold(pin, [&old]);
    let (mut edit, mut expected) = (Edit::new(extents, &writer, &old), record.expected.to_vec());
    for _ in 0..dice.roll(60) {
        let page = pattern(dice.roll(u64::MAX), 4096);
        let at = dice.roll(old.len() + 1);
        edit.write(at, &Content::inline(page.clone())).await.unwrap();
        expected.resize(expected.len().max(at as usize + 4096), 0);
        expected[at as usize..at as usize + 4096].copy_from_slice(&page);
    }
    let new = edit.finish().await.unwrap();
    extents.sync().await.unwrap();
    records.commit(key, Some(record.version), Some((&new, expected.into())));
}

/// Copies a record over another one, or moves it: content goes where a scan may have been already.
async fn copy_or_move(extents: &Arc<dyn Extents>, records: &Records, dice: &mut Dice) {
    let (from, to) = (dice.roll(KEYS), dice.roll(KEYS));
    if from == to {
        return;
    }
    let pin = extents.pin();
    let Some(record) = records.get(from) else { return };
    for _ in 0..dice.roll(4) {
        tokio::task::yield_now().await;
    }
    let content = decode(&record);
    let _held = pin.hold([&content]);
    tokio::task::yield_now().await;
    let read = records.get(to).map(|record| record.version);
    records.commit(to, read, Some((&content, record.expected.clone())));
    if dice.roll(2) == 0 {
        records.commit(from, Some(record.version), None);
    }
}

async fn read(extents: &Arc<dyn Extents>, records: &Records, dice: &mut Dice) {
    let pin = extents.pin();
    let Some(record) = records.get(dice.roll(KEYS)) else { return };
    tokio::task::yield_now().await;
    let content = decode(&record);
    let held = pin.hold([&content]);
    let mut reader = Reader::new(extents, &content, 0..u64::MAX, held);
    let mut at = 0;
    while let Some(bytes) = reader.next().await.unwrap() {
        assert!(bytes == record.expected[at..at + bytes.len()], "other bytes than were written");
        at += bytes.len();
        tokio::task::yield_now().await;
    }
    assert_eq!(at, record.expected.len());
}

fn on_disk(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("segments")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_live_byte_is_lost_and_no_dead_one_stays_whatever_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalExtents::open(dir.path(), SMALL).unwrap();
    let extents: Arc<dyn Extents> = Arc::new(local.clone());
    let records = Arc::new(Records::default());
    let done = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (1..=6u64)
        .map(|seed| {
            let (extents, records) = (extents.clone(), records.clone());
            tokio::spawn(async move {
                let mut dice = Dice(seed * 0x1234_5678_9abc_def1);
                for _ in 0..60 {
                    match dice.roll(10) {
                        0..2 => put(&extents, &records, &mut dice).await,
                        2..4 => change_pages(&extents, &records, &mut dice).await,
                        4..7 => copy_or_move(&extents, &records, &mut dice).await,
                        7..9 => read(&extents, &records, &mut dice).await,
                        _ => {
                            let key = dice.roll(KEYS);
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

    let freed = sweep(&extents, &records).await.unwrap();
    let mut verifier = local.verifier();
    let mut from = 0;
    while let Some((key, record)) = records.next(from) {
        let content = decode(&record);
        assert_eq!(verifier.content(&content).await.unwrap(), []);
        let bytes = read_all(&extents, &content, 0..u64::MAX, 64 << 20).await.unwrap();
        assert!(bytes == record.expected, "record {key}");
        from = key + 1;
    }
    let segments = extents.space().segments;
    assert!(segments > 0);
    let limit = freed.live_bytes + segments * (16 << 10) + SET_ASIDE;
    assert!(on_disk(dir.path()) <= limit, "{} on disk, {freed:?}", on_disk(dir.path()));
    assert_eq!(local.scrub(|_| {}).await.unwrap().damage, []);

    // All of it dies: only the active segment stays, and takes no more than what is set aside.
    records.rows.lock().clear();
    sweep(&extents, &records).await.unwrap();
    assert_eq!(extents.space().segments, 1);
    assert!(on_disk(dir.path()) <= SET_ASIDE + (16 << 10), "{}", on_disk(dir.path()));
}

#[tokio::test]
async fn a_steady_overwrite_load_takes_at_most_half_more_than_what_lives() {
    let dir = tempfile::tempdir().unwrap();
    let extents: Arc<dyn Extents> = Arc::new(LocalExtents::open(dir.path(), SMALL).unwrap());
    let records = Records::default();
    let mut dice = Dice(99);
    const BLOBS: u64 = 12;
    const BLOB: u64 = 3 << 20;
    let (mut highest, mut sweeps) = (0.0f64, 0);
    for round in 0..260u64 {
        let writer = extents.writer();
        let key = if round < BLOBS { round } else { dice.roll(BLOBS) };
        let read = records.get(key);
        let content = match &read {
            // A part of 64 KiB to 1 MiB is overwritten …
            Some(record) if dice.roll(3) > 0 => {
                let old = decode(record);
                writer.hold(extents.pin(), [&old]);
                let mut edit = Edit::new(&extents, &writer, &old);
                let chunks = 1 + dice.roll(16);
                let payload = pattern(round, chunks as usize * 65_536);
                let part = Content::extent(extents.append(&writer, vec![payload]).await.unwrap());
                edit.write(dice.roll(BLOB / 65_536 - chunks) * 65_536, &part).await.unwrap();
                edit.finish().await.unwrap()
            }
            // … or the whole blob.
            _ => {
                let mut upload = Upload::new(&extents, &writer);
                upload.push(pattern(round, BLOB as usize)).await.unwrap();
                upload.finish().await.unwrap()
            }
        };
        extents.sync().await.unwrap();
        assert_eq!(content.len(), BLOB);
        records.commit(key, read.map(|record| record.version), Some((&content, Bytes::new())));
        drop(writer);
        if extents.space().sweep_due(1 << 20) {
            sweep(&extents, &records).await.unwrap();
            sweeps += 1;
        }
        if round > BLOBS {
            highest = highest.max(on_disk(dir.path()) as f64 / (BLOBS * BLOB) as f64);
        }
    }
    assert!(highest <= 1.5, "{highest} times what lives");
    assert!((10..60).contains(&sweeps), "{sweeps} sweeps for about ten times what lives");
}

#[tokio::test]
async fn what_a_crash_left_behind_is_freed_by_the_next_sweep() {
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
    assert!(extents.space().sweep_due(1 << 20), "after a start nothing is known, so it looks");
    let freed = sweep(&extents, &records).await.unwrap();
    assert!(freed.bytes > 39_000_000 && freed.segments >= 1, "{freed:?}");
    assert!(on_disk(dir.path()) < 200_000, "{}", on_disk(dir.path()));
    assert!(!extents.space().sweep_due(1 << 20));
    let record = records.get(1).unwrap();
    let bytes = read_all(&extents, &decode(&record), 0..u64::MAX, 1 << 20).await.unwrap();
    assert_eq!(bytes, record.expected);
}

#[tokio::test]
async fn a_slow_upload_does_not_keep_others_garbage() {
    let dir = tempfile::tempdir().unwrap();
    let extents: Arc<dyn Extents> = Arc::new(LocalExtents::open(dir.path(), SMALL).unwrap());
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
async fn a_damaged_node_keeps_all_older_content_and_newer_garbage_is_freed() {
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
    // The node was written last. It is the last thing in the only segment.
    let path = dir.path().join("segments/0000000000000001.seg");
    let written = std::fs::read(&path).unwrap();
    let last = written.iter().rposition(|byte| *byte != 0).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[!written[last]], last as u64).unwrap();
    let newer = extents.append(&extents.writer(), vec![pattern(3, 100_000)]).await.unwrap();
    let mut sweep = Sweep::begin(&extents, Pace::FULL).await.unwrap();
    sweep.live(&content).await.unwrap();
    assert_eq!(sweep.finish().await.unwrap().damaged_nodes, 1);
    assert_eq!(extents.read(&dead, 0..100_000).await.unwrap(), pattern(1, 100_000));
    let read = extents.read(&newer, 0..100_000).await;
    assert!(matches!(read, Err(Error::Damaged(_))), "{read:?}");
}
