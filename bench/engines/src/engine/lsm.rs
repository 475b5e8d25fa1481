//! lsm-tree, used directly, under our own log: a minimal form of the engine that Lazuli ships.
//!
//! A group is one log record (one `pwrite`, one `fdatasync`). Then its rows are inserted into the memtable
//! under one sequence number, which is published last. So a group is durable before it is visible, and the
//! log is its only copy until the memtable is flushed. A memtable and its log segment are filled and dropped
//! together. One background thread flushes and compacts, flushes first.

use super::log::{self, Log, Replayed};
use super::{CACHE_BYTES, Engine, MEMTABLE_BYTES, Row};
use anyhow::Result;
use lsm_tree::compaction::Leveled;
use lsm_tree::config::CompressionPolicy;
use lsm_tree::{AbstractTree, AnyTree, Cache, Config, Guard, SequenceNumberCounter};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Writers wait while this many memtables wait for their flush, or level 0 has this many runs.
const SEALED_MEMTABLES: usize = 4;
const L0_RUNS: usize = 20;

pub struct Lsm {
    tree: AnyTree,
    sequence: SequenceNumberCounter,
    published: Arc<AtomicU64>,
    log: Mutex<Log>,
    flush: Option<Sender<u64>>,
    pending: Arc<AtomicUsize>,
    background: Option<JoinHandle<Result<()>>>,
}

impl Lsm {
    pub fn open(dir: &Path) -> Result<Self> {
        let sequence = SequenceNumberCounter::default();
        // lsm-tree raises the second counter when it flushes or compacts. A reader that uses this counter
        // could see a part of a group, so readers use `published` instead.
        let tree = Config::new(dir.join("tree"), sequence.clone(), SequenceNumberCounter::default())
            .use_cache(Arc::new(Cache::with_capacity_bytes(CACHE_BYTES as u64)))
            .data_block_compression_policy(CompressionPolicy::disabled())
            .open()?;

        let flushed = tree.get_highest_persisted_seqno();
        let mut last = flushed.unwrap_or(0);
        let log_dir = dir.join("log");
        let log = Log::open(&log_dir, |Replayed { tag, payload }| {
            if flushed.is_none_or(|flushed| tag > flushed) {
                decode(payload, |key, value| {
                    tree.insert(key, value, tag);
                });
            }
            last = last.max(tag);
        })?;
        sequence.set(last + 1);
        let published = Arc::new(AtomicU64::new(last + 1));

        let (flush, requests) = channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let background = {
            let (tree, published, pending) = (tree.clone(), published.clone(), pending.clone());
            std::thread::spawn(move || maintain(&tree, &log_dir, &published, &pending, &requests))
        };
        Ok(Self {
            tree,
            sequence,
            published,
            log: Mutex::new(log),
            flush: Some(flush),
            pending,
            background: Some(background),
        })
    }

    fn snapshot(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Seals the memtable and its segment. Waits while too many memtables or runs are pending.
    fn rotate(&self, log: &mut Log) -> Result<()> {
        let segment = log.rotate()?;
        self.tree.rotate_memtable();
        self.pending.fetch_add(1, Ordering::AcqRel);
        if let Some(flush) = &self.flush {
            flush.send(segment)?;
        }
        while self.tree.sealed_memtable_count() >= SEALED_MEMTABLES || self.tree.l0_run_count() >= L0_RUNS {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Engine for Lsm {
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.tree.get(key, self.snapshot())?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let (mut rows, mut bytes) = (0, 0);
        for row in self.tree.range(from.., self.snapshot(), None).take(limit) {
            let (key, value) = row.into_inner()?;
            rows += 1;
            bytes += key.len() + value.len();
        }
        Ok((rows, bytes))
    }

    fn write(&self, rows: &[Row]) -> Result<()> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = self.sequence.next();
        log.append(sequence, |buffer| encode(rows, buffer))?;
        let mut size = 0;
        for (key, value) in rows {
            (_, size) = self.tree.insert(key.as_slice(), value.as_slice(), sequence);
        }
        self.published.store(sequence + 1, Ordering::Release);
        if size >= MEMTABLE_BYTES as u64 || log.is_full() {
            self.rotate(&mut log)?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        while self.pending.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Lsm {
    fn drop(&mut self) {
        self.flush = None;
        if let Some(Ok(Err(error))) = self.background.take().map(JoinHandle::join) {
            eprintln!("lsm-tree+log: the background thread has failed: {error:#}");
        }
    }
}

/// Runs the background thread: flushes sealed memtables, then compacts until no compaction is due.
fn maintain(
    tree: &AnyTree,
    log_dir: &Path,
    published: &AtomicU64,
    pending: &AtomicUsize,
    requests: &Receiver<u64>,
) -> Result<()> {
    let strategy = Arc::new(Leveled::default());
    // Keep versions that readers may still use. Reads take microseconds here, so a snapshot of a second ago
    // is old enough. The store tracks its snapshots instead.
    let mut older = (Instant::now(), 0, published.load(Ordering::Acquire));
    let mut watermark = || {
        if older.0.elapsed() > Duration::from_secs(1) {
            older = (Instant::now(), older.2, published.load(Ordering::Acquire));
        }
        older.1
    };
    while let Ok(mut segment) = requests.recv() {
        let mut served = 1;
        loop {
            tree.flush(&tree.get_flush_lock(), watermark())?;
            log::delete_before(log_dir, segment)?;
            let more = loop {
                if let Ok(next) = requests.try_recv() {
                    break Some(next);
                }
                let before = tree.current_version().id();
                tree.compact(strategy.clone(), watermark())?;
                if tree.current_version().id() == before {
                    break None;
                }
            };
            let Some(next) = more else { break };
            segment = next;
            served += 1;
        }
        pending.fetch_sub(served, Ordering::AcqRel);
    }
    Ok(())
}

fn encode(rows: &[Row], buffer: &mut Vec<u8>) {
    for (key, value) in rows {
        buffer.extend_from_slice(&(key.len() as u32).to_le_bytes());
        buffer.extend_from_slice(&(value.len() as u32).to_le_bytes());
        buffer.extend_from_slice(key);
        buffer.extend_from_slice(value);
    }
}

/// Decodes a payload. It has passed its checksum, so its lengths are those that `encode` wrote.
fn decode(mut payload: &[u8], mut each: impl FnMut(&[u8], &[u8])) {
    let length = |at: &[u8]| u32::from_le_bytes([at[0], at[1], at[2], at[3]]) as usize;
    while payload.len() >= 8 {
        let (key, value) = (length(payload), length(&payload[4..]));
        each(&payload[8..8 + key], &payload[8 + key..8 + key + value]);
        payload = &payload[8 + key + value..];
    }
}
