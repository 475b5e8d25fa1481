//! The conformance suite of extent engines. The tests of an engine call [`run`] on it.
//!
//! Panics at the first violation.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazuli_concurrency::Pace;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use crate::{
    Content, ContentReader, Edit, Error, ExtentId, ExtentRef, Extents, MAX_EXTENT_BYTES, Piece, Pieces,
    Sweep, Upload, Writer,
};

/// Checks all guarantees of an empty extent store.
pub async fn run(extents: Arc<dyn Extents>) {
    any_part_of_an_extent_can_be_read(&extents).await;
    empty_and_oversized_payloads_are_refused(&extents).await;
    wrong_reference_reads_as_damage(&extents).await;
    concurrent_appends_do_not_overlap(&extents).await;
    uploaded_bytes_can_be_read(&extents).await;
    edits_leave_the_old_content_unchanged(&extents).await;
    sweep_keeps_live_content_and_frees_the_rest(&extents).await;
    sweep_keeps_content_being_written(&extents).await;
    sweep_keeps_content_being_read(&extents).await;
    sweep_keeps_content_that_moves_meanwhile(&extents).await;
    dropped_sweep_frees_nothing(&extents).await;
    damaged_node_keeps_older_content_and_nothing_newer(&extents).await;
    content_below_a_kept_id_is_kept(&extents).await;
}

async fn damaged_node_keeps_older_content_and_nothing_newer(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    let (older, expected) = large(extents, &writer, 8).await;
    let (broken, _) = large(extents, &writer, 9).await;
    let (newer, _) = large(extents, &writer, 10).await;
    drop(writer);
    // This test damages content by freeing it although a record refers to it.
    sweep(extents, &[&older, &newer]).await;
    assert!(damaged(read(extents, &broken).await));
    let mut sweep = Sweep::begin(extents, Pace::FULL).await.unwrap();
    sweep.mark(&broken).await.unwrap();
    let freed = sweep.finish().await.unwrap();
    assert!(freed.damaged_nodes > 0);
    assert_eq!(read(extents, &older).await.unwrap(), expected, "the damaged node may refer to it");
    assert!(damaged(read(extents, &newer).await), "the damaged node cannot refer to it");
    self::sweep(extents, &[]).await;
}

async fn content_below_a_kept_id_is_kept(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    let (older, expected) = large(extents, &writer, 11).await;
    let horizon = Sweep::begin(extents, Pace::FULL).await.unwrap().horizon();
    let (newer, _) = large(extents, &writer, 12).await;
    drop(writer);
    let mut sweep = Sweep::begin(extents, Pace::FULL).await.unwrap();
    sweep.keep_below(horizon);
    sweep.finish().await.unwrap();
    assert_eq!(read(extents, &older).await.unwrap(), expected);
    assert!(damaged(read(extents, &newer).await));
    self::sweep(extents, &[]).await;
    assert!(damaged(read(extents, &older).await));
}

/// Returns pseudorandom bytes that depend on the seed.
pub fn pattern(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes.into()
}

async fn append(extents: &Arc<dyn Extents>, writer: &Writer, bytes: &Bytes) -> ExtentRef {
    extents.append(writer, vec![bytes.clone()]).await.unwrap()
}

async fn read(extents: &Arc<dyn Extents>, content: &Content) -> Result<Vec<u8>, Error> {
    let mut reader = ContentReader::new(extents, content, 0..u64::MAX, None);
    let mut out = vec![];
    while let Some(bytes) = reader.next().await? {
        out.extend_from_slice(&bytes);
    }
    Ok(out)
}

async fn sweep(extents: &Arc<dyn Extents>, live: &[&Content]) {
    let mut sweep = Sweep::begin(extents, Pace::FULL).await.unwrap();
    for content in live {
        sweep.mark(content).await.unwrap();
    }
    sweep.finish().await.unwrap();
}

fn damaged<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Damaged(_)))
}

async fn any_part_of_an_extent_can_be_read(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    for length in [1, 100, 4096, 65_535, 65_536, 65_537, 300_000, MAX_EXTENT_BYTES] {
        let bytes = pattern(length as u64, length);
        let (a, b) = (bytes.slice(..length / 3), bytes.slice(length / 3..));
        let extent = extents.append(&writer, vec![a, Bytes::new(), b]).await.unwrap();
        assert_eq!(extent.length as usize, length);
        for (from, to) in
            [(0, length), (0, 1), (length - 1, length), (length / 2, length / 2), (length / 3, length)]
        {
            let part = extents.read(&extent, from as u32..to as u32).await.unwrap();
            assert_eq!(part, bytes[from..to], "{from}..{to} of {length}");
        }
        extents.sync().await.unwrap();
        assert_eq!(extents.read(&extent, 0..length as u32).await.unwrap(), bytes);
        assert!(damaged(extents.read(&extent, 0..length as u32 + 1).await), "past the end of {length}");
    }
}

async fn empty_and_oversized_payloads_are_refused(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    for payload in [vec![], vec![Bytes::new()], vec![pattern(1, MAX_EXTENT_BYTES), pattern(2, 1)]] {
        assert_eq!(extents.append(&writer, payload).await, Err(Error::Size));
    }
}

async fn wrong_reference_reads_as_damage(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    let extent = append(extents, &writer, &pattern(3, 100_000)).await;
    for wrong in [
        ExtentRef { id: ExtentId::from_raw(extent.id.raw() + 1), ..extent },
        ExtentRef { id: ExtentId::from_raw(u64::MAX >> 1), ..extent },
        ExtentRef { crc: extent.crc ^ 1, ..extent },
        ExtentRef { length: extent.length - 1, ..extent },
        ExtentRef { length: 10, ..extent },
    ] {
        assert!(damaged(extents.read(&wrong, 0..10).await), "{wrong:?} for {extent:?}");
    }
}

async fn concurrent_appends_do_not_overlap(extents: &Arc<dyn Extents>) {
    let tasks: Vec<_> = (0..8u64)
        .map(|task| {
            let extents = extents.clone();
            tokio::spawn(async move {
                let writer = extents.writer();
                let mut kept = vec![];
                for i in 0..40 {
                    let bytes = pattern(task * 1000 + i, 1 + (i as usize * 7919) % 90_000);
                    kept.push((append(&extents, &writer, &bytes).await, bytes));
                    if i % 8 == 7 {
                        extents.sync().await.unwrap();
                    }
                }
                (kept, writer)
            })
        })
        .collect();
    let mut ids = std::collections::HashSet::new();
    for task in tasks {
        let (kept, _writer) = task.await.unwrap();
        for (extent, bytes) in kept {
            assert!(ids.insert(extent.id), "{:?} was assigned twice", extent.id);
            assert_eq!(extents.read(&extent, 0..extent.length).await.unwrap(), bytes);
        }
    }
}

async fn uploaded_bytes_can_be_read(extents: &Arc<dyn Extents>) {
    let preferred = extents.preferred_bytes();
    let around = |length: usize| [length - 1, length, length + 1];
    let lengths = [[0, 1, 3 * preferred + 12_345], around(crate::INLINE_BYTES), around(256 << 10)];
    let lengths =
        lengths.into_iter().chain([preferred / 2, preferred, 3 * preferred / 2].map(around)).flatten();
    for (length, piece) in lengths.flat_map(|length| [30_011, 2 * preferred].map(|piece| (length, piece))) {
        let (writer, bytes) = (extents.writer(), pattern(length as u64, length));
        let mut upload = Upload::new(extents, &writer);
        for part in bytes.chunks(piece) {
            upload.push(bytes.slice_ref(part)).await.unwrap();
        }
        let content = upload.finish().await.unwrap();
        assert_eq!(content.len(), length as u64);
        assert_eq!(content.as_inline().is_some(), length <= crate::INLINE_BYTES);
        let mut stored = vec![];
        content.encode(&mut stored);
        let content = Content::decode(stored.into()).unwrap();
        assert_eq!(read(extents, &content).await.unwrap(), bytes);
    }
}

async fn edits_leave_the_old_content_unchanged(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    let bytes = pattern(5, 200_000);
    let old = Content::extent(append(extents, &writer, &bytes).await);
    let mut edit = Edit::new(extents, &writer, &old);
    edit.write(100_000, &Content::inline("new bytes")).await.unwrap();
    edit.clear(10..4096).await.unwrap();
    edit.resize(150_000).await.unwrap();
    edit.append(&old).await.unwrap();
    let new = edit.finish().await.unwrap();
    let mut expected = bytes.to_vec();
    expected[100_000..100_009].copy_from_slice(b"new bytes");
    expected[10..4096].fill(0);
    expected.truncate(150_000);
    expected.extend_from_slice(&bytes);
    assert_eq!(read(extents, &new).await.unwrap(), expected);
    assert_eq!(read(extents, &old).await.unwrap(), bytes);
    let mut pieces = Pieces::new(extents, &new, 0..20);
    assert!(matches!(pieces.next().await.unwrap(), Some((0, Piece::Data { len: 10, .. }))));
    assert_eq!(pieces.next().await.unwrap(), Some((10, Piece::Cleared(10))));
    assert_eq!(pieces.next().await.unwrap(), None);
}

/// Creates content with more pieces than a record holds, so that it has nodes.
async fn large(extents: &Arc<dyn Extents>, writer: &Writer, seed: u64) -> (Content, Vec<u8>) {
    let mut edit = Edit::new(extents, writer, &Content::empty());
    let mut expected = vec![];
    for i in 0..100 {
        let bytes = pattern(seed * 1000 + i, 5000);
        edit.append(&Content::extent(append(extents, writer, &bytes).await)).await.unwrap();
        expected.extend_from_slice(&bytes);
    }
    (edit.finish().await.unwrap(), expected)
}

async fn sweep_keeps_live_content_and_frees_the_rest(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    let (dead, _) = large(extents, &writer, 1).await;
    let (live, expected) = large(extents, &writer, 2).await;
    let mut edit = Edit::new(extents, &writer, &live);
    edit.clear(0..5000).await.unwrap();
    let snapshot = edit.finish().await.unwrap();
    drop(writer);
    sweep(extents, &[&live, &snapshot]).await;
    assert!(damaged(read(extents, &dead).await), "dead content is freed");
    assert_eq!(read(extents, &live).await.unwrap(), expected);
    sweep(extents, &[&snapshot]).await;
    assert!(damaged(read(extents, &live).await), "bytes of only the older version are freed");
    assert_eq!(read(extents, &snapshot).await.unwrap()[5000..], expected[5000..]);
    let live_bytes = extents.storage_use().live_bytes.unwrap();
    assert!((495_000..1_100_000).contains(&live_bytes), "{live_bytes}");
}

async fn sweep_keeps_content_being_written(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    let (before, expected) = large(extents, &writer, 3).await;
    let sweep = Sweep::begin(extents, Pace::FULL).await.unwrap();
    let late = extents.writer();
    let (during, expected_during) = large(extents, &late, 4).await;
    sweep.finish().await.unwrap();
    assert_eq!(read(extents, &before).await.unwrap(), expected);
    assert_eq!(read(extents, &during).await.unwrap(), expected_during);
    drop((writer, late));
    self::sweep(extents, &[]).await;
    assert!(damaged(read(extents, &before).await));
    assert!(damaged(read(extents, &during).await));
}

async fn sweep_keeps_content_being_read(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    let (content, expected) = large(extents, &writer, 5).await;
    let held = extents.pin().hold([&content]);
    drop(writer);
    sweep(extents, &[]).await;
    let mut reader = ContentReader::new(extents, &content, 0..u64::MAX, held);
    let mut out = reader.next().await.unwrap().unwrap().to_vec();
    sweep(extents, &[]).await;
    while let Some(bytes) = reader.next().await.unwrap() {
        out.extend_from_slice(&bytes);
    }
    assert_eq!(out, expected);
    drop(reader);
    sweep(extents, &[]).await;
    assert!(damaged(read(extents, &content).await));
}

async fn sweep_keeps_content_that_moves_meanwhile(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    let (content, expected) = large(extents, &writer, 6).await;
    drop(writer);
    // One record refers to the content. The sweep has read the record that the content moves to, and not
    // yet this one.
    let visited_already = Sweep::begin(extents, Pace::FULL).await.unwrap();
    let mover = extents.writer();
    mover.hold(extents.pin(), [&content]);
    drop(mover);
    visited_already.finish().await.unwrap();
    assert_eq!(read(extents, &content).await.unwrap(), expected);

    // As above, but the mover has read the record and not yet turned its pin into a hold when the sweep is
    // about to free.
    let sweep = Sweep::begin(extents, Pace::FULL).await.unwrap();
    let (pin, mover) = (extents.pin(), extents.writer());
    let mut finish = tokio::spawn(sweep.finish());
    let waited = tokio::time::timeout(Duration::from_millis(100), &mut finish).await;
    assert!(waited.is_err(), "a sweep waits for pins that are not yet holds");
    mover.hold(pin, [&content]);
    finish.await.unwrap().unwrap();
    assert_eq!(read(extents, &content).await.unwrap(), expected);
}

async fn dropped_sweep_frees_nothing(extents: &Arc<dyn Extents>) {
    let writer = extents.writer();
    let (content, expected) = large(extents, &writer, 7).await;
    drop(writer);
    drop(Sweep::begin(extents, Pace::FULL).await.unwrap());
    assert_eq!(read(extents, &content).await.unwrap(), expected);
    let first = Sweep::begin(extents, Pace::FULL).await.unwrap();
    assert!(matches!(Sweep::begin(extents, Pace::FULL).await, Err(Error::Busy(_))), "one at a time");
    first.finish().await.unwrap();
    assert!(damaged(read(extents, &content).await));
}
