//! Tests of the in-memory engine: its bound, and which chunks a sweep frees.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::Pace;
use lazuli_extents::conformance::pattern;
use lazuli_extents::{Content, Edit, Error, Extents, InMemoryExtents, Sweep, Upload, read_all};

const CHUNK: usize = 64 << 10;

async fn sweep(extents: &Arc<dyn Extents>, live: &[&Content]) -> u64 {
    let mut sweep = Sweep::begin(extents, Pace::FULL).await.unwrap();
    for content in live {
        sweep.mark(content).await.unwrap();
    }
    sweep.finish().await.unwrap().bytes
}

#[tokio::test]
async fn full_memory_is_an_error_until_a_sweep_has_freed_some() {
    let memory = InMemoryExtents::new(10 << 20);
    let extents: Arc<dyn Extents> = Arc::new(memory.clone());
    let writer = extents.writer();
    let mut kept = vec![];
    let refused = loop {
        match extents.append(&writer, vec![pattern(kept.len() as u64, 1_000_000)]).await {
            Ok(extent) => kept.push(extent),
            Err(error) => break error,
        }
    };
    assert_eq!((refused, kept.len(), memory.is_full()), (Error::Full, 10, true));
    assert!(extents.storage_use().should_sweep(), "a full store makes a sweep due");
    let mut upload = Upload::new(&extents, &writer);
    let uploaded = async {
        upload.push(pattern(1, 3 << 20)).await?;
        upload.finish().await
    };
    assert_eq!(uploaded.await.unwrap_err(), Error::Full);
    drop(writer);

    let half: Vec<_> = kept[..5].iter().copied().map(Content::extent).collect();
    assert!(sweep(&extents, &half.iter().collect::<Vec<_>>()).await >= 5_000_000);
    assert!(!memory.is_full() && !extents.storage_use().should_sweep());
    let again = extents.append(&extents.writer(), vec![pattern(7, 4_000_000)]).await.unwrap();
    assert_eq!(extents.read(&again, 0..4_000_000).await.unwrap(), pattern(7, 4_000_000));
    for (i, extent) in kept[..5].iter().enumerate() {
        assert_eq!(extents.read(extent, 0..1_000_000).await.unwrap(), pattern(i as u64, 1_000_000));
    }
}

#[tokio::test]
async fn unreferenced_chunks_of_an_extent_are_freed() {
    let extents: Arc<dyn Extents> = Arc::new(InMemoryExtents::new(64 << 20));
    let writer = extents.writer();
    let bytes = pattern(1, 32 * CHUNK);
    let whole = Content::extent(extents.append(&writer, vec![bytes.clone()]).await.unwrap());
    let mut edit = Edit::new(&extents, &writer, &whole);
    edit.clear(CHUNK as u64 / 2..31 * CHUNK as u64 + 5).await.unwrap();
    let rest = edit.finish().await.unwrap();
    drop(writer);
    assert_eq!(sweep(&extents, &[&rest]).await, 30 * CHUNK as u64);
    assert!(extents.storage_use().allocated_bytes < 3 * CHUNK as u64);
    let read = read_all(&extents, &rest, 0..u64::MAX, 64 << 20).await.unwrap();
    assert_eq!(
        (&read[..CHUNK / 2], &read[31 * CHUNK + 5..]),
        (&bytes[..CHUNK / 2], &bytes[31 * CHUNK + 5..])
    );
    let freed = read_all(&extents, &whole, 0..u64::MAX, 64 << 20).await;
    assert!(matches!(freed, Err(Error::Damaged(_))));
}

#[tokio::test]
async fn extent_does_not_keep_the_buffer_of_its_payload() {
    let extents = InMemoryExtents::new(64 << 20);
    let buffer = Bytes::from(pattern(1, 1 << 20).to_vec());
    let extent = extents.append(&extents.writer(), vec![buffer.slice(..10)]).await.unwrap();
    assert_eq!(extents.read(&extent, 3..7).await.unwrap(), buffer[3..7]);
    assert!(buffer.try_into_mut().is_ok(), "the extent does not refer to it");
}
