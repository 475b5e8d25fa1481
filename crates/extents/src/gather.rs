//! Payloads that arrive in small parts. Each part is copied to aligned memory and added to the checksums
//! while it is still in the processor's cache. Doing either later would run at the speed of main memory.

use std::sync::Arc;

use memmap2::{Advice, MmapMut};
use parking_lot::Mutex;

use crate::segment::{BLOCK, ChecksumBuilder, Checksums, header_bytes};

/// Maximum payload of a gathered extent in bytes: large enough for the disk, small enough for many uploads
/// in memory.
pub(crate) const CAPACITY: usize = 1 << 20;
/// Bytes reserved before the payload: the header of a payload of [`CAPACITY`].
const HEADER: usize = header_bytes(CAPACITY as u32);
/// Size of an aligned buffer in bytes: a frame with a payload of [`CAPACITY`] fits.
pub(crate) const BUFFER_BYTES: usize = CAPACITY + BLOCK as usize;
/// Maximum number of idle buffers of each kind, and of huge pages in total.
pub(crate) const MAX_IDLE: usize = 8;
/// Size that the kernel can back with one huge page instead of 512 pages. Direct writes from a huge page take
/// half the time: the disk sees one contiguous range instead of hundreds.
const HUGE_PAGE: usize = 2 << 20;

/// Reuses aligned buffers.
#[derive(Debug, Default)]
pub(crate) struct BufferPool(Mutex<IdleBuffers>);

#[derive(Debug, Default)]
struct IdleBuffers {
    /// Idle huge pages.
    huge: Vec<MmapMut>,
    /// Huge pages that exist, idle or in use. At most [`MAX_IDLE`]: each takes twice the memory of a buffer.
    huge_pages: usize,
    /// Idle buffers of ordinary memory. Kept because memory from the system has to be cleared first.
    plain: Vec<Vec<u8>>,
}

impl BufferPool {
    pub(crate) fn take(self: &Arc<Self>) -> AlignedBuffer {
        let mut memory = self.huge().map_or_else(|| Memory::Plain(self.plain()), Memory::Huge);
        let aligned = memory.bytes().as_ptr().align_offset(memory.alignment());
        AlignedBuffer { aligned, memory, pool: self.clone() }
    }

    /// Returns the number of huge pages, idle or in use, and of idle buffers of ordinary memory.
    pub(crate) fn buffers(&self) -> (usize, usize) {
        let idle = self.0.lock();
        (idle.huge_pages, idle.plain.len())
    }

    /// Returns a huge page, if one is idle or may still be created.
    fn huge(&self) -> Option<MmapMut> {
        let mut idle = self.0.lock();
        if let Some(memory) = idle.huge.pop() {
            return Some(memory);
        }
        if idle.huge_pages == MAX_IDLE {
            return None;
        }
        // Map twice the page and use the aligned half. The rest is only address space.
        let memory = MmapMut::map_anon(2 * HUGE_PAGE).ok()?;
        // Without huge pages in the system this is ordinary memory.
        let _ = memory.advise(Advice::HugePage);
        idle.huge_pages += 1;
        Some(memory)
    }

    fn plain(&self) -> Vec<u8> {
        let idle = self.0.lock().plain.pop();
        idle.unwrap_or_else(|| vec![0; BUFFER_BYTES + BLOCK as usize])
    }

    /// Keeps a buffer that is no longer in use, unless enough are idle.
    fn put_back(&self, memory: Memory) {
        let mut idle = self.0.lock();
        match memory {
            Memory::Huge(memory) => idle.huge.push(memory),
            Memory::Plain(memory) if idle.plain.len() < MAX_IDLE => idle.plain.push(memory),
            Memory::Plain(_) => {}
        }
    }
}

/// [`BUFFER_BYTES`] bytes that begin at a block boundary. Earlier contents are still there.
#[derive(Debug)]
pub(crate) struct AlignedBuffer {
    memory: Memory,
    aligned: usize,
    pool: Arc<BufferPool>,
}

#[derive(Debug)]
enum Memory {
    Huge(MmapMut),
    /// Used when many uploads run at once.
    Plain(Vec<u8>),
}

impl Memory {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Huge(memory) => memory,
            Self::Plain(memory) => memory,
        }
    }

    const fn alignment(&self) -> usize {
        match self {
            Self::Huge(_) => HUGE_PAGE,
            Self::Plain(_) => BLOCK as usize,
        }
    }
}

impl AlignedBuffer {
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory.bytes()[self.aligned..self.aligned + BUFFER_BYTES]
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        self.pool.put_back(std::mem::replace(&mut self.memory, Memory::Plain(vec![])));
    }
}

/// A payload that is being gathered in memory.
#[derive(Debug)]
pub struct Gathered {
    buffer: AlignedBuffer,
    /// Bytes that the payload can have.
    capacity: usize,
    length: usize,
    sums: ChecksumBuilder,
}

impl Gathered {
    /// Creates a payload of at most `capacity` bytes, and of at most [`CAPACITY`].
    pub(crate) fn new(pool: &Arc<BufferPool>, capacity: usize) -> Self {
        Self {
            buffer: pool.take(),
            capacity: capacity.min(CAPACITY),
            length: 0,
            sums: ChecksumBuilder::default(),
        }
    }

    /// Copies as many bytes as still fit, and returns their number.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = &bytes[..bytes.len().min(self.capacity - self.length)];
        let from = HEADER + self.length;
        self.buffer.bytes()[from..from + taken.len()].copy_from_slice(taken);
        self.sums.update(taken);
        self.length += taken.len();
        taken.len()
    }

    /// Returns whether no more bytes fit.
    pub const fn is_full(&self) -> bool {
        self.length == self.capacity
    }

    /// Returns the checksums of the payload, or `None` if it is empty.
    pub(crate) fn sums(&mut self) -> Option<Checksums> {
        (self.length > 0).then(|| std::mem::take(&mut self.sums).finish())
    }

    /// Returns the gathered payload, before [`Gathered::frame`] moves it.
    pub(crate) fn payload(&mut self) -> &[u8] {
        let end = HEADER + self.length;
        &self.buffer.bytes()[HEADER..end]
    }

    /// Returns the frame with its header, padded with zeros to whole blocks.
    pub(crate) fn frame(&mut self, header: &[u8]) -> &[u8] {
        let (start, end) = (header.len(), header.len() + self.length);
        let buffer = self.buffer.bytes();
        if start < HEADER {
            // A smaller payload has a smaller checksum table, so its header is shorter.
            buffer.copy_within(HEADER..HEADER + self.length, start);
        }
        buffer[..start].copy_from_slice(header);
        let padded = end.next_multiple_of(BLOCK as usize);
        buffer[end..padded].fill(0);
        &buffer[..padded]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::ExtentId;
    use crate::segment::FrameHeader;
    use bytes::Bytes;

    /// Returns the numbers of idle and of existing huge pages.
    fn counts(pool: &BufferPool) -> (usize, usize) {
        let idle = pool.0.lock();
        (idle.huge.len(), idle.huge_pages)
    }

    #[test]
    fn frame_does_not_depend_on_how_its_payload_arrived() {
        let pool = Arc::new(BufferPool::default());
        for length in [1, 4000, 4096, 65_535, 65_536, 300_000, CAPACITY - 1, CAPACITY] {
            let payload: Vec<u8> = (0..length).map(|i| (i % 251) as u8 + 1).collect();
            for piece in [1 << 20, 70_001] {
                let mut gathered = Gathered::new(&pool, CAPACITY);
                let taken: usize = payload.chunks(piece).map(|bytes| gathered.push(bytes)).sum();
                assert_eq!((taken, gathered.is_full()), (length, length == CAPACITY));
                let sums = gathered.sums().unwrap();
                assert_eq!(Some(&sums), Checksums::of(&[Bytes::from(payload.clone())]).as_ref(), "{length}");
                let header = FrameHeader { id: ExtentId::new(3, 1), salt: 4, sums }.encode();
                let frame = gathered.frame(&header);
                let expected = [header, payload.clone()].concat();
                assert_eq!((frame.as_ptr().addr() as u64 % BLOCK, frame.len() as u64 % BLOCK), (0, 0));
                assert_eq!(frame[..expected.len()], expected, "{length}");
                assert!(frame.len() < expected.len() + BLOCK as usize);
                assert!(
                    frame[expected.len()..].iter().all(|b| *b == 0),
                    "no byte of an earlier frame is left"
                );
            }
        }
        assert_eq!(counts(&pool), (1, 1), "the memory is reused");
    }

    #[test]
    fn payload_accepts_only_as_many_bytes_as_fit() {
        for (requested, capacity) in [(CAPACITY, CAPACITY), (70_000, 70_000), (CAPACITY + 1, CAPACITY)] {
            let mut gathered = Gathered::new(&Arc::default(), requested);
            assert!(gathered.sums().is_none());
            assert_eq!(gathered.push(&[1; 10]), 10);
            assert_eq!(gathered.push(&vec![2; CAPACITY]), capacity - 10);
            assert_eq!(gathered.push(&[3; 10]), 0);
            assert!(gathered.is_full());
        }
    }

    #[test]
    fn huge_pages_are_limited_and_reused() {
        let pool = Arc::new(BufferPool::default());
        for _ in 0..2 {
            let mut taken: Vec<AlignedBuffer> = (0..2 * MAX_IDLE).map(|_| pool.take()).collect();
            let huge = taken.iter().filter(|buffer| matches!(buffer.memory, Memory::Huge(_))).count();
            assert_eq!((huge, counts(&pool)), (MAX_IDLE, (0, MAX_IDLE)));
            for buffer in &mut taken {
                let alignment = buffer.memory.alignment();
                assert_eq!(
                    (buffer.bytes().as_ptr().addr() % alignment, buffer.bytes().len()),
                    (0, BUFFER_BYTES)
                );
            }
            drop(taken);
            assert_eq!(counts(&pool), (MAX_IDLE, MAX_IDLE));
        }
    }

    #[test]
    fn ordinary_memory_is_reused_and_a_limited_number_of_buffers_is_kept() {
        let pool = Arc::new(BufferPool::default());
        let _huge: Vec<AlignedBuffer> = (0..MAX_IDLE).map(|_| pool.take()).collect();
        let mut buffer = pool.take();
        buffer.bytes()[7] = 1;
        drop(buffer);
        let mut taken: Vec<AlignedBuffer> = (0..2 * MAX_IDLE).map(|_| pool.take()).collect();
        assert!(taken.iter().all(|buffer| matches!(buffer.memory, Memory::Plain(_))));
        assert_eq!(taken[0].bytes()[7], 1, "the first is the idle one");
        assert_eq!(taken[1].bytes()[7], 0);
        drop(taken);
        assert_eq!(pool.0.lock().plain.len(), MAX_IDLE);
        let mut reused = pool.take();
        let alignment = reused.memory.alignment();
        assert_eq!((reused.bytes().as_ptr().addr() % alignment, reused.bytes().len()), (0, BUFFER_BYTES));
    }
}
