//! Tests that inject disk faults or inspect the files of a store.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazuli_concurrency::Pace;
use rustix::io::Errno;

use super::disk::DiskCall;
use super::*;
use crate::conformance::pattern;
use crate::extent::ExtentId;
use crate::segment::{SegmentHeader, crc32c};
use crate::sweep::Sweep;
use crate::{Content, DamageKind};

const SMALL: Options = Options { segment_bytes: 16 << 20, grow_bytes: 1 << 20 };

fn open(dir: &Path) -> LocalExtents {
    LocalExtents::open(dir, SMALL).unwrap()
}

fn fail(extents: &LocalExtents, fault: impl Into<Option<(DiskCall, Errno)>>) {
    *extents.0.disk.fault.lock() = fault.into();
}

async fn put(extents: &LocalExtents, writer: &Writer, seed: u64, length: usize) -> Result<ExtentRef, Error> {
    extents.append(writer, vec![pattern(seed, length)]).await
}

async fn get(extents: &LocalExtents, extent: &ExtentRef) -> Result<Bytes, Error> {
    extents.read(extent, 0..extent.length).await
}

fn segment_path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(format!("segments/{segment:016x}.seg"))
}

/// Copies the directory as a crash at this moment could leave it.
fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("segments")).unwrap();
    for entry in fs::read_dir(dir.join("segments")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join("segments").join(entry.file_name())).unwrap();
    }
    copy
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

fn flip(path: &Path, offset: u64) {
    let mut byte = [0];
    fs::File::open(path).unwrap().read_exact_at(&mut byte, offset).unwrap();
    overwrite(path, offset, &[byte[0] ^ 4]);
}

#[tokio::test]
async fn failed_sync_stops_appends_and_reads_continue() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    let extent = put(&extents, &writer, 1, 5000).await.unwrap();
    fail(&extents, (DiskCall::Sync, Errno::IO));
    assert_eq!(extents.sync().await, Err(Error::Stopped));
    fail(&extents, None);
    assert_eq!(extents.sync().await, Err(Error::Stopped), "even though the disk works again");
    assert_eq!(put(&extents, &writer, 2, 10).await, Err(Error::Stopped));
    assert!(matches!(extents.begin_mark().await.err(), Some(Error::Stopped)));
    assert_eq!(get(&extents, &extent).await.unwrap(), pattern(1, 5000));
}

#[tokio::test]
async fn failed_sync_is_reported_to_all_waiting_callers() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    put(&extents, &writer, 1, 5000).await.unwrap();
    fail(&extents, (DiskCall::Sync, Errno::IO));
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let extents = extents.clone();
            tokio::spawn(async move { extents.sync().await })
        })
        .collect();
    for task in waiting {
        assert_eq!(task.await.unwrap(), Err(Error::Stopped));
    }
}

#[tokio::test]
async fn panic_in_a_sync_stops_the_engine_and_all_waiting_callers() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    put(&extents, &writer, 1, 5000).await.unwrap();
    extents.0.disk.sync_panics.store(true, Ordering::Relaxed);
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let extents = extents.clone();
            tokio::spawn(async move { extents.sync().await })
        })
        .collect();
    for task in waiting {
        let result = tokio::time::timeout(Duration::from_secs(20), task).await;
        assert_eq!(result.expect("the wait ends").unwrap(), Err(Error::Stopped));
    }
    assert!(extents.is_stopped());
}

#[tokio::test]
async fn waiting_callers_share_a_sync_that_began_after_their_calls() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    let syncs = || *extents.0.disk.syncs.lock();
    let sync = || {
        let extents = extents.clone();
        tokio::spawn(async move { extents.sync().await })
    };
    put(&extents, &writer, 1, 5000).await.unwrap();
    let gate = extents.0.disk.sync_gate.lock().await;
    let first = sync();
    while syncs() < 1 {
        tokio::task::yield_now().await;
    }
    // The first sync is running. It does not cover what is written from now on.
    put(&extents, &writer, 2, 5000).await.unwrap();
    let later: Vec<_> = (0..20).map(|_| sync()).collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(later.iter().all(|task| !task.is_finished()));
    assert_eq!(syncs(), 1);
    drop(gate);
    first.await.unwrap().unwrap();
    for task in later {
        task.await.unwrap().unwrap();
    }
    assert_eq!(syncs(), 2, "one for the first caller, one for all others");
    extents.sync().await.unwrap();
    assert_eq!(syncs(), 2, "no sync without writes");
}

#[tokio::test]
async fn append_before_a_sync_starts_it_unless_one_is_running() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    let syncs = || *extents.0.disk.syncs.lock();
    let append = |next| {
        let (extents, writer) = (extents.clone(), writer.clone());
        let payload = Payload::Parts(vec![Bytes::from_static(b"payload")]);
        tokio::spawn(async move { extents.append_with_hint(&writer, payload, next).await })
    };
    append(AppendHint::None).await.unwrap().unwrap();
    assert_eq!(syncs(), 0);
    append(AppendHint::SyncFollows).await.unwrap().unwrap();
    assert_eq!(syncs(), 1);
    extents.sync().await.unwrap();
    assert_eq!(syncs(), 1, "the append has synced already");

    let gate = extents.0.disk.sync_gate.lock().await;
    let first = append(AppendHint::SyncFollows);
    while syncs() < 2 {
        tokio::task::yield_now().await;
    }
    // A sync is running. This append does not wait for it, and a new caller is served by another sync.
    append(AppendHint::SyncFollows).await.unwrap().unwrap();
    let waiting = tokio::spawn({
        let extents = extents.clone();
        async move { extents.sync().await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    drop(gate);
    first.await.unwrap().unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(syncs(), 3);

    fail(&extents, (DiskCall::Sync, Errno::IO));
    append(AppendHint::SyncFollows).await.unwrap().unwrap();
    assert_eq!(extents.sync().await, Err(Error::Stopped), "the caller learns that the sync failed");
}

#[tokio::test]
async fn sync_continues_when_the_caller_that_started_it_is_canceled() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    put(&extents, &extents.writer(), 1, 5000).await.unwrap();
    let gate = extents.0.disk.sync_gate.lock().await;
    let canceled = tokio::spawn({
        let extents = extents.clone();
        async move { extents.sync().await }
    });
    while *extents.0.disk.syncs.lock() < 1 {
        tokio::task::yield_now().await;
    }
    let waiting = tokio::spawn({
        let extents = extents.clone();
        async move { extents.sync().await }
    });
    tokio::task::yield_now().await;
    canceled.abort();
    assert!(canceled.await.unwrap_err().is_cancelled());
    drop(gate);
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn failed_write_stops_appends() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    put(&extents, &writer, 1, 10).await.unwrap();
    fail(&extents, (DiskCall::Write, Errno::IO));
    assert_eq!(put(&extents, &writer, 2, 10).await, Err(Error::Stopped));
    fail(&extents, None);
    assert_eq!(put(&extents, &writer, 3, 10).await, Err(Error::Stopped));
    assert_eq!(extents.sync().await, Err(Error::Stopped));
}

#[tokio::test]
async fn segment_that_cannot_be_made_durable_is_never_used() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    fail(&extents, (DiskCall::Sync, Errno::IO));
    assert_eq!(put(&extents, &extents.writer(), 1, 10).await, Err(Error::Stopped));
    assert_eq!(extents.storage_use().segments, 0);
}

#[test]
fn io_error_of_a_read_names_the_extent() {
    let dir = tempfile::tempdir().unwrap();
    let no_file = std::fs::File::open(dir.path()).unwrap();
    let extent = ExtentRef { id: ExtentId::new(7, 3), length: 100, crc: 0 };
    let result = read_extent(&no_file, &extent, 0..100);
    let Err(Error::Io(error)) = result else { panic!("{result:?}") };
    assert!(error.starts_with("7:0003: "), "{error}");
}

#[tokio::test]
async fn failure_to_create_or_extend_a_file_does_not_stop_appends() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    for (round, errno) in [(0, Errno::NOMEM), (1, Errno::PERM)] {
        fail(&extents, (DiskCall::Allocate, errno));
        let error = Error::from(errno).at(format_args!("segment 2"));
        assert_eq!(put(&extents, &writer, 1, 5 << 20).await, Err(error));
        fail(&extents, None);
        let extent = put(&extents, &writer, round, 5 << 20).await.unwrap();
        extents.sync().await.unwrap();
        assert_eq!(get(&extents, &extent).await.unwrap(), pattern(round, 5 << 20));
    }
}

#[tokio::test]
async fn full_disk_refuses_appends_until_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    for call in [DiskCall::Allocate, DiskCall::Write] {
        fail(&extents, (call, Errno::NOSPC));
        assert_eq!(put(&extents, &writer, 1, 5 << 20).await, Err(Error::Full), "{call:?}, first segment");
        assert!(extents.storage_use().should_sweep());
        assert_eq!(extents.storage_use().segments, 0, "no segment is left over");
    }
    fail(&extents, None);
    let kept = put(&extents, &writer, 2, 5 << 20).await.unwrap();
    for call in [DiskCall::Allocate, DiskCall::Write] {
        fail(&extents, (call, Errno::NOSPC));
        for length in [5 << 20, 7 << 20] {
            assert_eq!(put(&extents, &writer, 3, length).await, Err(Error::Full), "{call:?}, {length}");
        }
    }
    fail(&extents, None);
    let after = put(&extents, &writer, 4, 7 << 20).await.unwrap();
    extents.sync().await.unwrap();
    assert_eq!(get(&extents, &kept).await.unwrap(), pattern(2, 5 << 20));
    assert_eq!(get(&extents, &after).await.unwrap(), pattern(4, 7 << 20));
}

#[tokio::test]
async fn new_process_starts_a_new_segment_and_reads_the_old_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut kept = vec![];
    for round in 1..=4 {
        let extents = open(dir.path());
        let extent = put(&extents, &extents.writer(), round, 70_000).await.unwrap();
        assert_eq!(extent.id, ExtentId::new(round, 1), "never in the segment of another process");
        extents.sync().await.unwrap();
        kept.push((round, extent));
        for (round, extent) in &kept {
            assert_eq!(get(&extents, extent).await.unwrap(), pattern(*round, 70_000));
        }
    }
    let extents = open(dir.path());
    assert_eq!(extents.storage_use().segments, 4, "a process that appends nothing creates no segment");
}

#[tokio::test]
async fn segment_ids_are_never_reused_even_if_all_content_is_dead() {
    let dir = tempfile::tempdir().unwrap();
    for round in 1..=4 {
        let extents = open(dir.path());
        let extent = put(&extents, &extents.writer(), round, 70_000).await.unwrap();
        assert_eq!(extent.id.segment(), round);
        drop(extents);
        let extents: Arc<dyn Extents> = Arc::new(open(dir.path()));
        Sweep::begin(&extents, Pace::FULL).await.unwrap().finish().await.unwrap();
        let space = extents.storage_use();
        assert_eq!(space.segments, 1, "only the highest segment stays");
        assert!(space.allocated_bytes <= 2 * BLOCK, "and takes no space: {space:?}");
    }
}

#[tokio::test]
async fn preallocated_space_is_given_back_at_the_end_and_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let extent = put(&extents, &extents.writer(), 1, 10_000).await.unwrap();
    extents.sync().await.unwrap();
    let path = segment_path(dir.path(), 1);
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    let crashed = copy_of(dir.path());
    let reopened = open(crashed.path());
    assert!(fs::metadata(segment_path(crashed.path(), 1)).unwrap().len() <= 1 << 20);
    assert_eq!(get(&reopened, &extent).await.unwrap(), pattern(1, 10_000));
    drop(extents);
    assert_eq!(fs::metadata(&path).unwrap().len(), BLOCK + 3 * BLOCK);
    // Again as after a crash, with preallocated space that was never written to.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
    let reopened = open(dir.path());
    assert_eq!(fs::metadata(&path).unwrap().len(), BLOCK + 3 * BLOCK);
    assert_eq!(get(&reopened, &extent).await.unwrap(), pattern(1, 10_000));
}

#[tokio::test]
async fn preallocation_shrinks_when_content_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let extents: Arc<dyn Extents> = Arc::new(open(dir.path()));
    let writer = extents.writer();
    for seed in 0..65 {
        extents.append(&writer, vec![pattern(seed, 1 << 20)]).await.unwrap();
    }
    drop(writer);
    let before = extents.storage_use().allocated_bytes;
    assert!(before > 67 << 20, "much is preallocated: {before}");
    let freed = Sweep::begin(&extents, Pace::FULL).await.unwrap().finish().await.unwrap();
    assert_eq!(freed.live_bytes, 0);
    let left = extents.storage_use().allocated_bytes;
    assert!(left <= SMALL.grow_bytes + (64 << 10), "{left}");
    let writer = extents.writer();
    let next = extents.append(&writer, vec![pattern(1, 3 << 20)]).await.unwrap();
    assert_eq!(extents.read(&next, 0..next.length).await.unwrap(), pattern(1, 3 << 20));
}

#[tokio::test]
async fn torn_frame_reads_as_damaged_and_other_frames_are_sound() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    let kept = put(&extents, &writer, 1, 100_000).await.unwrap();
    let torn = put(&extents, &writer, 2, 200_000).await.unwrap();
    extents.sync().await.unwrap();
    let end = u64::from(torn.id.block()) * BLOCK;
    for lost in [0, 1, 100, 4096, 70_000, 199_000] {
        let crashed = copy_of(dir.path());
        let file = OpenOptions::new().write(true).open(segment_path(crashed.path(), 1)).unwrap();
        file.set_len(end + lost).unwrap();
        let reopened = LocalExtents::open(crashed.path(), SMALL).unwrap();
        assert_eq!(get(&reopened, &kept).await.unwrap(), pattern(1, 100_000), "{lost}");
        assert!(matches!(get(&reopened, &torn).await, Err(Error::Damaged(_))), "{lost}");
        let new = put(&reopened, &reopened.writer(), 3, 1000).await.unwrap();
        assert_eq!(new.id.segment(), 2, "never in the segment of the torn frame");
        assert_eq!(get(&reopened, &new).await.unwrap(), pattern(3, 1000));
    }
}

#[tokio::test]
async fn any_flipped_bit_is_damage_and_never_wrong_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    let lengths = [1000, 65_536, 200_000];
    let mut kept = vec![];
    for length in lengths {
        kept.push(put(&extents, &writer, length as u64, length).await.unwrap());
    }
    extents.sync().await.unwrap();
    for (extent, length) in kept.iter().zip(lengths) {
        let start = u64::from(extent.id.block()) * BLOCK;
        let header = crate::segment::header_bytes(extent.length) as u64;
        for at in [0, 1, length / 2, length - 1] {
            let crashed = copy_of(dir.path());
            flip(&segment_path(crashed.path(), 1), start + header + at as u64);
            let reopened = LocalExtents::open_read_only(crashed.path()).unwrap();
            assert!(matches!(get(&reopened, extent).await, Err(Error::Damaged(_))), "byte {at} of {length}");
            for (other, length) in kept.iter().zip(lengths).filter(|(other, _)| *other != extent) {
                assert_eq!(get(&reopened, other).await.unwrap(), pattern(length as u64, length));
            }
            if length == 200_000 {
                let chunk = at as u32 / 65_536;
                let other = (chunk + 1) % 4 * 65_536;
                let part = reopened.read(extent, other..other + 100).await.unwrap();
                assert_eq!(
                    part,
                    pattern(200_000, 200_000)[other as usize..][..100],
                    "another chunk is sound"
                );
            }
            let report = reopened.scrub(|_| {}).await.unwrap();
            assert_eq!((report.extents, report.damaged), (3, 1));
            assert_eq!(report.damage[0].kind, DamageKind::Chunk);
        }
    }
}

#[tokio::test]
async fn damaged_frame_header_loses_only_its_own_extent() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    let a = put(&extents, &writer, 1, 100_000).await.unwrap();
    let b = put(&extents, &writer, 2, 100_000).await.unwrap();
    drop((writer, extents));
    let path = segment_path(dir.path(), 1);
    flip(&path, BLOCK + 5);
    flip(&path, 3);
    let extents = open(dir.path());
    assert!(matches!(get(&extents, &a).await, Err(Error::Damaged(_))));
    assert_eq!(
        get(&extents, &b).await.unwrap(),
        pattern(2, 100_000),
        "a segment's header is not needed to read"
    );
    let report = extents.scrub(|_| {}).await.unwrap();
    assert_eq!(report.extents, 1, "the next frame is found again");
    let kinds: Vec<_> = report.damage.iter().map(|d| (d.kind, d.offset, d.length)).collect();
    let frame = crate::segment::frame_bytes(100_000);
    assert_eq!(kinds, [(DamageKind::SegmentHeader, 0, BLOCK), (DamageKind::Unclaimed, BLOCK, frame)]);
}

#[tokio::test]
async fn client_bytes_are_never_taken_for_a_frame() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writer = extents.writer();
    // A payload with a sound frame header for exactly this place at a block boundary, but without the right
    // salt.
    let sums = crate::segment::Checksums::of(&[pattern(9, 100)]).unwrap();
    let forged = crate::segment::FrameHeader { id: ExtentId::new(1, 2), salt: 0, sums }.encode();
    let mut payload = vec![7; 3 * BLOCK as usize];
    payload[BLOCK as usize - 36..][..forged.len()].copy_from_slice(&forged);
    extents.append(&writer, vec![payload.into()]).await.unwrap();
    extents.sync().await.unwrap();
    flip(&segment_path(dir.path(), 1), BLOCK);
    let report = extents.scrub(|_| {}).await.unwrap();
    assert_eq!((report.extents, report.damaged), (0, 1));
    assert_eq!(report.damage[0].length, 4 * BLOCK);
}

#[test]
fn newer_format_is_refused_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("segments")).unwrap();
    let mut block = SegmentHeader { id: 5, salt: 1 }.encode();
    block[8..12].copy_from_slice(&2u32.to_le_bytes());
    let crc = crc32c(&block[..4092]);
    block[4092..].copy_from_slice(&crc.to_le_bytes());
    let path = segment_path(dir.path(), 5);
    fs::write(&path, &block).unwrap();
    for result in [LocalExtents::open(dir.path(), SMALL), LocalExtents::open_read_only(dir.path())] {
        let e = result.unwrap_err();
        assert_eq!(
            e.to_string(),
            "segment 0000000000000005 has format 2; this version of Lazuli knows formats up to 1"
        );
    }
    assert_eq!(fs::read(&path).unwrap(), block);
}

#[tokio::test]
async fn segment_without_header_after_a_crash_is_skipped_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("segments")).unwrap();
    fs::write(segment_path(dir.path(), 3), b"").unwrap();
    let extents: Arc<dyn Extents> = Arc::new(open(dir.path()));
    let extent = extents.append(&extents.writer(), vec![pattern(1, 10)]).await.unwrap();
    assert_eq!(extent.id.segment(), 4);
    Sweep::begin(&extents, Pace::FULL).await.unwrap().finish().await.unwrap();
    assert!(!segment_path(dir.path(), 3).exists());
}

#[tokio::test]
async fn writing_process_is_alone_and_readers_share_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    assert!(matches!(LocalExtents::open(dir.path(), SMALL), Err(OpenError::Locked)));
    assert!(matches!(LocalExtents::open_read_only(dir.path()), Err(OpenError::Locked)));
    let extent = put(&extents, &extents.writer(), 1, 10).await.unwrap();
    drop(extents);
    let a = LocalExtents::open_read_only(dir.path()).unwrap();
    let b = LocalExtents::open_read_only(dir.path()).unwrap();
    assert_eq!(get(&a, &extent).await.unwrap(), get(&b, &extent).await.unwrap());
    assert_eq!(put(&a, &a.writer(), 1, 10).await, Err(Error::Stopped));
    assert!(matches!(LocalExtents::open(dir.path(), SMALL), Err(OpenError::Locked)));
}

#[tokio::test]
async fn read_only_directory_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(LocalExtents::open_read_only(dir.path()), Err(OpenError::Io(_))));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no file was created");
    let extents = open(dir.path());
    put(&extents, &extents.writer(), 1, 10_000).await.unwrap();
    extents.sync().await.unwrap();
    let crashed = copy_of(dir.path());
    let path = segment_path(crashed.path(), 1);
    let before = fs::read(&path).unwrap();
    let read_only = LocalExtents::open_read_only(crashed.path()).unwrap();
    read_only.scrub(|_| {}).await.unwrap();
    drop(read_only);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn dead_chunks_of_a_partly_live_extent_are_freed() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(dir.path());
    let extents: Arc<dyn Extents> = Arc::new(local.clone());
    let writer = extents.writer();
    let bytes = pattern(1, 4 << 20);
    let extent = extents.append(&writer, vec![bytes.clone()]).await.unwrap();
    let mut edit = crate::Edit::new(&extents, &writer, &Content::extent(extent));
    edit.slice(1 << 20..(1 << 20) + 100_000).await.unwrap();
    let content = edit.finish().await.unwrap();
    drop(writer);
    local.sync().await.unwrap();
    let mut sweep = Sweep::begin(&extents, Pace::FULL).await.unwrap();
    sweep.mark(&content).await.unwrap();
    let freed = sweep.finish().await.unwrap();
    assert!(freed.bytes >= (4 << 20) - 200_000, "{freed:?}");
    assert!(freed.live_bytes <= 200_000, "{freed:?}");
    assert_eq!(
        crate::read_all(&extents, &content, 0..u64::MAX, 1 << 20).await.unwrap(),
        bytes[1 << 20..][..100_000]
    );
    assert!(matches!(local.read(&extent, 0..100).await, Err(Error::Damaged(_))));
    let report = local.scrub(|_| {}).await.unwrap();
    assert_eq!((report.extents, report.damaged), (1, 0), "freed chunks are not damage: {report:?}");
    let mut verifier = local.verifier();
    assert_eq!(verifier.content(&content).await.unwrap(), []);
    assert_eq!(verifier.content(&content).await.unwrap(), []);
    let report = verifier.finish();
    assert_eq!((report.contents, report.bytes), (2, 2 * 65_536), "shared bytes are verified once");
    let mut verifier = local.verifier();
    let damage = verifier.content(&Content::extent(extent)).await.unwrap();
    assert!(matches!(damage.as_slice(), [(e, Error::Damaged(_))] if *e == extent));
}

#[tokio::test]
async fn scrub_reports_progress_and_ignores_frames_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let extents = open(dir.path());
    let writers: Vec<_> = (0..4u64)
        .map(|task| {
            let extents = extents.clone();
            tokio::spawn(async move {
                let writer = extents.writer();
                for i in 0..60 {
                    put(&extents, &writer, task * 100 + i, 200_000).await.unwrap();
                }
            })
        })
        .collect();
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let report = extents.scrub(|_| {}).await.unwrap();
        assert_eq!(report.damage, []);
        tokio::task::yield_now().await;
    }
    let mut steps = vec![];
    let report = extents.scrub(|progress| steps.push(progress)).await.unwrap();
    assert_eq!((report.extents, report.damaged), (240, 0));
    assert_eq!(report.bytes, 240 * 200_000);
    let segments = extents.storage_use().segments;
    assert_eq!(steps.len() as u64, segments);
    assert!(steps.iter().enumerate().all(|(i, p)| p.segments_done == i as u64 + 1 && p.segments == segments));
}

#[tokio::test]
async fn more_segments_can_be_read_than_files_are_kept_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut kept = vec![];
    for round in 0..300 {
        let extents = open(dir.path());
        kept.push(put(&extents, &extents.writer(), round, 100).await.unwrap());
    }
    let extents = open(dir.path());
    for _ in 0..2 {
        for (round, extent) in kept.iter().enumerate() {
            assert_eq!(get(&extents, extent).await.unwrap(), pattern(round as u64, 100));
        }
    }
    let open = fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 600, "{open} files are open");
}
