//! A payload that arrives bit by bit, on its way into an extent: each bit is copied to where it can be written from, and
//! its checksums are taken, while it is still in the processor's cache. Left for later, all of that would be done at the
//! speed of memory.

use std::sync::Arc;

use memmap2::{Advice, MmapMut};
use parking_lot::Mutex;

use crate::segment::{BLOCK, Checksums, Summing, header_bytes};

/// Bytes of payload that one extent gathers: large enough for the disk, small enough that many uploads fit in memory.
pub(crate) const CAPACITY: usize = 1 << 20;
/// What stands before a payload of [`CAPACITY`].
const HEADER: usize = header_bytes(CAPACITY as u32);
/// Bytes of one piece of memory from its first whole block on: a frame of that capacity fits.
pub(crate) const ROOM: usize = CAPACITY + BLOCK as usize;
/// Pieces of either kind that are kept while nobody needs them.
const MOST_KEPT: usize = 8;
/// What the system may back with one page instead of 512. A write past the page cache from such a page takes half the time:
/// it is one run of memory to the disk, not hundreds.
const HUGE_PAGE: usize = 2 << 20;

/// Aligned memory, used again and again.
#[derive(Debug, Default)]
pub(crate) struct Rooms(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Huge pages that are idle.
    huge: Vec<MmapMut>,
    /// Huge pages in all, idle or in use: no more than [`MOST_KEPT`], for each is twice what a room needs.
    made: usize,
    /// Ordinary memory that is idle. To have it from the system each time would be to have it cleared each time.
    plain: Vec<Vec<u8>>,
}

impl Rooms {
    pub(crate) fn take(self: &Arc<Self>) -> Room {
        let mut memory = self.huge().map_or_else(|| Memory::Plain(self.plain()), Memory::Huge);
        let aligned = memory.bytes().as_ptr().align_offset(memory.alignment());
        Room { aligned, memory, rooms: self.clone() }
    }

    /// A huge page, if one is idle or may still be made.
    fn huge(&self) -> Option<MmapMut> {
        let mut kept = self.0.lock();
        if let Some(memory) = kept.huge.pop() {
            return Some(memory);
        }
        if kept.made == MOST_KEPT {
            return None;
        }
        // Twice the page, of which the half that is aligned is used; the rest is only addresses.
        let memory = MmapMut::map_anon(2 * HUGE_PAGE).ok()?;
        // Where the system has no huge pages it is memory like any other.
        let _ = memory.advise(Advice::HugePage);
        kept.made += 1;
        Some(memory)
    }

    fn plain(&self) -> Vec<u8> {
        let idle = self.0.lock().plain.pop();
        idle.unwrap_or_else(|| vec![0; ROOM + BLOCK as usize])
    }

    /// Keeps what is idle now, if that is not too much.
    fn put_back(&self, memory: Memory) {
        let mut kept = self.0.lock();
        match memory {
            Memory::Huge(memory) => kept.huge.push(memory),
            Memory::Plain(memory) if kept.plain.len() < MOST_KEPT => kept.plain.push(memory),
            Memory::Plain(_) => {}
        }
    }
}

/// [`ROOM`] bytes that begin on a block's boundary. What they held before is still there.
#[derive(Debug)]
pub(crate) struct Room {
    memory: Memory,
    aligned: usize,
    rooms: Arc<Rooms>,
}

#[derive(Debug)]
enum Memory {
    Huge(MmapMut),
    /// When many upload at a time.
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

impl Room {
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory.bytes()[self.aligned..self.aligned + ROOM]
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.rooms.put_back(std::mem::replace(&mut self.memory, Memory::Plain(vec![])));
    }
}

/// A payload being gathered.
#[derive(Debug)]
pub struct Gathered {
    room: Room,
    /// Bytes that it takes.
    capacity: usize,
    length: usize,
    sums: Summing,
}

impl Gathered {
    /// Takes so many bytes; no more than [`CAPACITY`], whatever was asked for.
    pub(crate) fn new(rooms: &Arc<Rooms>, capacity: usize) -> Self {
        Self { room: rooms.take(), capacity: capacity.min(CAPACITY), length: 0, sums: Summing::default() }
    }

    /// Takes what it has room for, and tells how much that was.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = &bytes[..bytes.len().min(self.capacity - self.length)];
        let from = HEADER + self.length;
        self.room.bytes()[from..from + taken.len()].copy_from_slice(taken);
        self.sums.update(taken);
        self.length += taken.len();
        taken.len()
    }

    /// Whether it has room for nothing more.
    pub const fn is_full(&self) -> bool {
        self.length == self.capacity
    }

    /// The checksums of what was gathered; `None` of nothing.
    pub(crate) fn sums(&mut self) -> Option<Checksums> {
        (self.length > 0).then(|| std::mem::take(&mut self.sums).finish())
    }

    /// The frame with its header, in whole blocks; what is missing to them are zeros.
    pub(crate) fn frame(&mut self, header: &[u8]) -> &[u8] {
        let (start, end) = (header.len(), header.len() + self.length);
        let room = self.room.bytes();
        if start < HEADER {
            // Of less payload there are fewer checksums.
            room.copy_within(HEADER..HEADER + self.length, start);
        }
        room[..start].copy_from_slice(header);
        let whole = end.next_multiple_of(BLOCK as usize);
        room[end..whole].fill(0);
        &room[..whole]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::ExtentId;
    use crate::segment::FrameHeader;
    use bytes::Bytes;

    /// Huge pages that are idle, and that there are.
    fn counts(rooms: &Rooms) -> (usize, usize) {
        let kept = rooms.0.lock();
        (kept.huge.len(), kept.made)
    }

    #[test]
    fn a_frame_is_the_same_however_its_payload_came() {
        let rooms = Arc::new(Rooms::default());
        for length in [1, 4000, 4096, 65_535, 65_536, 300_000, CAPACITY - 1, CAPACITY] {
            let payload: Vec<u8> = (0..length).map(|i| (i % 251) as u8 + 1).collect();
            for piece in [1 << 20, 70_001] {
                let mut gathered = Gathered::new(&rooms, CAPACITY);
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
                    "nothing of an earlier frame is left"
                );
            }
        }
        assert_eq!(counts(&rooms), (1, 1), "the memory is used again");
    }

    #[test]
    fn what_has_no_room_is_not_taken() {
        for (asked, capacity) in [(CAPACITY, CAPACITY), (70_000, 70_000), (CAPACITY + 1, CAPACITY)] {
            let mut gathered = Gathered::new(&Arc::default(), asked);
            assert!(gathered.sums().is_none());
            assert_eq!(gathered.push(&[1; 10]), 10);
            assert_eq!(gathered.push(&vec![2; CAPACITY]), capacity - 10);
            assert_eq!(gathered.push(&[3; 10]), 0);
            assert!(gathered.is_full());
        }
    }

    #[test]
    fn huge_pages_are_few_and_come_back() {
        let rooms = Arc::new(Rooms::default());
        for _ in 0..2 {
            let mut taken: Vec<Room> = (0..2 * MOST_KEPT).map(|_| rooms.take()).collect();
            let huge = taken.iter().filter(|room| matches!(room.memory, Memory::Huge(_))).count();
            assert_eq!((huge, counts(&rooms)), (MOST_KEPT, (0, MOST_KEPT)));
            for room in &mut taken {
                let alignment = room.memory.alignment();
                assert_eq!((room.bytes().as_ptr().addr() % alignment, room.bytes().len()), (0, ROOM));
            }
            drop(taken);
            assert_eq!(counts(&rooms), (MOST_KEPT, MOST_KEPT));
        }
    }

    #[test]
    fn ordinary_memory_is_used_again_and_no_more_is_kept_than_huge_pages() {
        let rooms = Arc::new(Rooms::default());
        let _huge: Vec<Room> = (0..MOST_KEPT).map(|_| rooms.take()).collect();
        let mut room = rooms.take();
        room.bytes()[7] = 1;
        drop(room);
        let mut taken: Vec<Room> = (0..2 * MOST_KEPT).map(|_| rooms.take()).collect();
        assert!(taken.iter().all(|room| matches!(room.memory, Memory::Plain(_))));
        assert_eq!(taken[0].bytes()[7], 1, "the first is the one that was there");
        assert_eq!(taken[1].bytes()[7], 0);
        drop(taken);
        assert_eq!(rooms.0.lock().plain.len(), MOST_KEPT);
        let mut again = rooms.take();
        let alignment = again.memory.alignment();
        assert_eq!((again.bytes().as_ptr().addr() % alignment, again.bytes().len()), (0, ROOM));
    }
}
