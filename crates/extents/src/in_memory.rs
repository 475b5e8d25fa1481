//! An engine that keeps extents in memory. They are lost when the process ends, so it is for tests only.
//!
//! An extent is kept in chunks of 64 KiB, and a sweep frees every chunk that no content refers to. Reads do
//! not verify checksums: a reference must match its extent, and the bytes in memory are those that were
//! appended.
//!
//! All extents are in one map under one lock. The lock is held to look up, insert or remove entries, never
//! while bytes are copied. Memory is bounded: an append that would exceed the bound is refused with
//! [`Error::Full`].

mod mark;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use crate::engine::{AppendHint, Extents, Mark, Payload, StorageUse};
use crate::extent::{Error, ExtentId, ExtentRef};
use crate::gather::{self, BufferPool, Gathered};
use crate::pin::{Appended, Pins, Writer};
use crate::segment::{CHUNK, Checksums};
use mark::InMemoryMark;

/// Memory of an extent in addition to its chunks, in bytes.
const EXTENT_BYTES: u64 = 256;

/// Extents in memory. Clones share the engine.
#[derive(Clone, Debug)]
pub struct InMemoryExtents(Arc<ExtentMap>);

#[derive(Debug)]
struct ExtentMap {
    max_bytes: u64,
    buffers: Arc<BufferPool>,
    pins: Arc<Pins>,
    state: Mutex<ExtentState>,
}

#[derive(Debug)]
struct ExtentState {
    extents: BTreeMap<ExtentId, StoredExtent>,
    next: ExtentId,
    /// Memory of all extents in bytes, including those that are being copied.
    bytes: u64,
    /// Bytes of all extents that were ever appended.
    appended: u64,
    /// A mark has begun and has not ended.
    marking: bool,
    live: Option<u64>,
    /// `appended` when the last mark began.
    appended_before_mark: u64,
    released: u64,
    /// The last append found no memory.
    full: bool,
    /// An append found no memory since the last sweep.
    full_since_mark: bool,
}

#[derive(Clone, Debug)]
struct StoredExtent {
    length: u32,
    crc: u32,
    /// The chunks; `None` if freed.
    chunks: Vec<Option<Bytes>>,
}

impl StoredExtent {
    fn bytes(&self) -> u64 {
        self.chunks.iter().flatten().map(|chunk| chunk.len() as u64).sum::<u64>() + EXTENT_BYTES
    }
}

impl InMemoryExtents {
    /// Creates an empty store that takes at most about `max_bytes` bytes of memory.
    pub fn new(max_bytes: u64) -> Self {
        let state = ExtentState {
            extents: BTreeMap::new(),
            next: ExtentId::new(1, 0),
            bytes: 0,
            appended: 0,
            marking: false,
            live: None,
            appended_before_mark: 0,
            released: 0,
            full: false,
            full_since_mark: false,
        };
        let (buffers, pins, state) = (Arc::default(), Arc::default(), Mutex::new(state));
        Self(Arc::new(ExtentMap { max_bytes, buffers, pins, state }))
    }

    /// Returns whether the last append found no memory.
    pub fn is_full(&self) -> bool {
        self.0.state.lock().full
    }

    fn append_copy(&self, writer: &Writer, sums: &Checksums, parts: &[&[u8]]) -> Result<ExtentRef, Error> {
        let Checksums { length, crc, .. } = *sums;
        self.0.state.lock().reserve(length, self.0.max_bytes)?;
        let chunks = copy(parts);
        let mut state = self.0.state.lock();
        let id = state.next;
        state.next = ExtentId::from_raw(id.raw() + 1);
        state.extents.insert(id, StoredExtent { length, crc, chunks });
        // Under the lock, so that a mark whose horizon is above this id also sees its writer.
        writer.note(Appended { id, length });
        Ok(ExtentRef { id, length, crc })
    }
}

/// Returns the memory that an extent takes when it is appended.
fn memory_of(length: u32) -> u64 {
    u64::from(length) + EXTENT_BYTES
}

impl ExtentState {
    /// Reserves memory for an extent.
    fn reserve(&mut self, length: u32, max_bytes: u64) -> Result<(), Error> {
        self.full = self.bytes + memory_of(length) > max_bytes;
        if self.full {
            self.full_since_mark = true;
            return Err(Error::Full);
        }
        self.bytes += memory_of(length);
        self.appended += memory_of(length);
        Ok(())
    }

    /// Returns the chunks of an extent that contain a range of it.
    fn chunks(&self, extent: &ExtentRef, range: &Range<u32>) -> Result<Vec<Bytes>, Error> {
        let damaged = |what| Error::Damaged(format!("{:?}: {what}", extent.id));
        let stored = self.extents.get(&extent.id).ok_or_else(|| damaged("no such extent"))?;
        if (stored.length, stored.crc) != (extent.length, extent.crc) {
            return Err(damaged("another extent has this id"));
        }
        if range.start > range.end || range.end > extent.length {
            return Err(damaged("a part that is not in it was asked for"));
        }
        let touched = chunks_of(range).map(|chunk| stored.chunks[chunk].clone());
        touched.collect::<Option<_>>().ok_or_else(|| damaged("freed"))
    }
}

/// Returns the numbers of the chunks that contain a range.
fn chunks_of(range: &Range<u32>) -> Range<usize> {
    if range.is_empty() { 0..0 } else { range.start as usize / CHUNK..(range.end as usize).div_ceil(CHUNK) }
}

/// Copies a payload into chunks of its own, so that a chunk keeps no larger buffer alive.
fn copy(parts: &[&[u8]]) -> Vec<Option<Bytes>> {
    let mut left: usize = parts.iter().map(|part| part.len()).sum();
    let mut chunks = Vec::with_capacity(left.div_ceil(CHUNK));
    let mut chunk = BytesMut::with_capacity(left.min(CHUNK));
    for mut part in parts.iter().copied() {
        while !part.is_empty() {
            let (now, later) = part.split_at(part.len().min(CHUNK - chunk.len()));
            chunk.extend_from_slice(now);
            (part, left) = (later, left - now.len());
            if chunk.len() == CHUNK {
                let next = BytesMut::with_capacity(left.min(CHUNK));
                chunks.push(Some(std::mem::replace(&mut chunk, next).freeze()));
            }
        }
    }
    if !chunk.is_empty() {
        chunks.push(Some(chunk.freeze()));
    }
    chunks
}

#[async_trait]
impl Extents for InMemoryExtents {
    async fn append_with_hint(
        &self,
        writer: &Writer,
        payload: Payload,
        _: AppendHint,
    ) -> Result<ExtentRef, Error> {
        match payload {
            Payload::Parts(parts) => {
                let sums = Checksums::of(&parts).ok_or(Error::Size)?;
                self.append_copy(writer, &sums, &parts.iter().map(|part| &part[..]).collect::<Vec<_>>())
            }
            Payload::Gathered(mut gathered) => {
                let sums = gathered.sums().ok_or(Error::Size)?;
                self.append_copy(writer, &sums, &[gathered.payload()])
            }
        }
    }

    fn gather(&self, bytes: usize) -> Gathered {
        Gathered::new(&self.0.buffers, bytes)
    }

    async fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn read(&self, extent: &ExtentRef, range: Range<u32>) -> Result<Bytes, Error> {
        let chunks = self.0.state.lock().chunks(extent, &range)?;
        let skip = range.start as usize % CHUNK;
        match &chunks[..] {
            [] => Ok(Bytes::new()),
            [chunk] => Ok(chunk.slice(skip..skip + range.len())),
            chunks => Ok(Bytes::from(chunks.concat()).slice(skip..skip + range.len())),
        }
    }

    fn preferred_bytes(&self) -> usize {
        gather::CAPACITY
    }

    fn pins(&self) -> &Arc<Pins> {
        &self.0.pins
    }

    fn storage_use(&self) -> StorageUse {
        let state = self.0.state.lock();
        StorageUse {
            segments: state.extents.len() as u64,
            allocated_bytes: state.bytes,
            live_bytes: state.live,
            appended_since_mark: state.appended - state.appended_before_mark,
            released_since_mark: state.released,
            full: state.full_since_mark,
        }
    }

    fn released(&self, bytes: u64) {
        let mut state = self.0.state.lock();
        state.released = state.released.saturating_add(bytes);
    }

    async fn begin_mark(&self) -> Result<Box<dyn Mark>, Error> {
        Ok(Box::new(InMemoryMark::begin(&self.0)?))
    }
}
