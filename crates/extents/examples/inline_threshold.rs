//! Measures up to which size bytes are better kept in the record than in an extent, for
//! `docs/decisions/0005-inline-threshold.md`.
//!
//! A record is written to the store's log, with one `fdatasync` for all waiting commits. Its bytes are then
//! written twice more: when the memtable is flushed, and when the table file is compacted. An extent costs an
//! append and a group sync first, then a small record in the log. Both use the same simulated log, so only
//! the difference counts.
//!
//! `cargo run --release -p lazuli-extents --example inline_threshold -- DIR`

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use lazuli_extents::conformance::pattern;
use lazuli_extents::{Content, Error, Extents, LocalExtents, Options};
use tokio::sync::{mpsc, oneshot};

/// Size of a record without its content, in bytes.
const RECORD: usize = 400;
const OPERATIONS: usize = 1600;
/// How often the bytes of a record are written after the log.
const REWRITES: usize = 2;

type Waiting = (Vec<u8>, oneshot::Sender<()>);

/// Runs the log with its group commit, and the later writes of the records.
fn log(dir: PathBuf, mut queue: mpsc::Receiver<Waiting>) -> std::io::Result<()> {
    let mut log = File::create(dir.join("log"))?;
    // Preallocate like the store, so that a sync does not have to write the file's length.
    rustix::fs::fallocate(&log, rustix::fs::FallocateFlags::empty(), 0, 512 << 20)?;
    let mut tables = File::create(dir.join("tables"))?;
    while let Some(first) = queue.blocking_recv() {
        let mut batch = vec![first];
        while let Ok(next) = queue.try_recv() {
            batch.push(next);
        }
        let bytes: Vec<u8> = batch.iter().flat_map(|(record, _)| record.iter().copied()).collect();
        log.write_all(&bytes)?;
        log.sync_data()?;
        for (_, done) in batch {
            let _ = done.send(());
        }
        for _ in 0..REWRITES {
            tables.write_all(&bytes)?;
        }
    }
    tables.sync_data()
}

async fn commit(log: &mpsc::Sender<Waiting>, record: Vec<u8>) {
    let (done, wait) = oneshot::channel();
    if log.send((record, done)).await.is_ok() {
        let _ = wait.await;
    }
}

async fn operation(
    extents: &Arc<dyn Extents>,
    log: &mpsc::Sender<Waiting>,
    payload: Bytes,
    inline: bool,
) -> Result<(), Error> {
    let writer = extents.writer();
    let mut record = vec![1; RECORD];
    if inline {
        record.extend_from_slice(&payload);
    } else {
        let content = Content::extent(extents.append(&writer, vec![payload]).await?);
        extents.sync().await?;
        content.encode(&mut record);
    }
    commit(log, record).await;
    Ok(())
}

async fn measure(dir: &std::path::Path, size: usize, clients: usize, inline: bool) -> Result<f64, Error> {
    let dir = tempfile::tempdir_in(dir)?;
    let local = LocalExtents::open(dir.path(), Options::default()).map_err(|e| Error::Io(e.to_string()))?;
    let extents: Arc<dyn Extents> = Arc::new(local);
    let (log, queue) = mpsc::channel(1024);
    let path = dir.path().to_owned();
    let committer = tokio::task::spawn_blocking(move || self::log(path, queue));
    let payload = pattern(size as u64, size);
    let start = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let (extents, log, payload) = (extents.clone(), log.clone(), payload.clone());
            tokio::spawn(async move {
                for _ in 0..OPERATIONS / clients {
                    operation(&extents, &log, payload.clone(), inline).await?;
                }
                Ok::<_, Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(|e| Error::Io(e.to_string()))??;
    }
    // Deferred writes count too.
    drop(log);
    committer.await.map_err(|e| Error::Io(e.to_string()))??;
    Ok((OPERATIONS / clients * clients) as f64 / start.elapsed().as_secs_f64())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("| payload | clients | inline, op/s | extent, op/s | inline/extent |\n|---|---|---|---|---|");
    for clients in [1, 16, 64] {
        for size in [1, 4, 8, 16, 32, 64].map(|kib| kib << 10) {
            let mut best = [0.0f64; 2];
            for _ in 0..5 {
                for (best, inline) in best.iter_mut().zip([true, false]) {
                    *best = best.max(runtime.block_on(measure(&dir, size, clients, inline))?);
                }
            }
            let [inline, extent] = best;
            println!(
                "| {} KiB | {clients} | {inline:.0} | {extent:.0} | {:.2} |",
                size >> 10,
                inline / extent
            );
        }
    }
    Ok(())
}
