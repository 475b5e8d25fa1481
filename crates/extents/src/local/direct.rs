//! Large frames go past the page cache: to fill pages that nobody may ever read costs more than all else that happens to
//! the bytes. Such writes are of whole blocks, from memory that is aligned as they are: here is some, used again and again.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::OFlags;

use crate::segment::BLOCK;

/// Bytes of one piece of memory, and so of one write: a preferred extent with its header fits.
const ROOM: usize = (1 << 20) + BLOCK as usize;
/// Pieces that are kept while nobody needs them.
const MOST_KEPT: usize = 4;

/// A segment's file for such writes; `None` where the file system does not have them.
pub(crate) fn open(path: &Path) -> Option<File> {
    OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).ok()
}

/// Aligned memory.
#[derive(Debug, Default)]
pub(crate) struct Rooms(Mutex<Vec<Vec<u8>>>);

impl Rooms {
    /// Copies buffers, one behind the other, and shows them in pieces of whole blocks, each with its place among them. What
    /// is missing to a whole block at the end are zeros.
    pub(crate) fn in_blocks<E>(
        &self,
        buffers: &[&[u8]],
        mut write: impl FnMut(&[u8], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut memory = self.0.lock().pop().unwrap_or_else(|| vec![0; ROOM + BLOCK as usize]);
        let aligned = memory.as_ptr().align_offset(BLOCK as usize);
        let room = &mut memory[aligned..aligned + ROOM];
        let (mut used, mut at, mut outcome) = (0, 0, Ok(()));
        for buffer in buffers {
            let mut rest = *buffer;
            while !rest.is_empty() && outcome.is_ok() {
                let taken = rest.len().min(ROOM - used);
                room[used..used + taken].copy_from_slice(&rest[..taken]);
                (used, rest) = (used + taken, &rest[taken..]);
                if used == ROOM {
                    outcome = write(room, at);
                    (used, at) = (0, at + ROOM as u64);
                }
            }
        }
        if used > 0 && outcome.is_ok() {
            let whole = used.next_multiple_of(BLOCK as usize);
            room[used..whole].fill(0);
            outcome = write(&room[..whole], at);
        }
        let mut kept = self.0.lock();
        if kept.len() < MOST_KEPT {
            kept.push(memory);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_shown_in_aligned_blocks() {
        let rooms = Rooms::default();
        for lengths in [&[1][..], &[4095, 1], &[5, ROOM], &[0, ROOM - 7, 7], &[ROOM, ROOM, 4097], &[]] {
            let bytes: Vec<u8> = (0..lengths.iter().sum()).map(|i: usize| (i % 251) as u8 + 1).collect();
            let mut rest = bytes.as_slice();
            let buffers: Vec<&[u8]> = lengths.iter().map(|n| rest.split_off(..*n).unwrap()).collect();
            let mut shown = vec![];
            let outcome: Result<(), ()> = rooms.in_blocks(&buffers, |piece, at| {
                assert_eq!((piece.as_ptr().addr() as u64 % BLOCK, piece.len() as u64 % BLOCK), (0, 0));
                assert_eq!(at, shown.len() as u64);
                shown.extend_from_slice(piece);
                Ok(())
            });
            assert_eq!((outcome, &shown[..bytes.len()]), (Ok(()), &bytes[..]), "{lengths:?}");
            assert!(
                shown.len() < bytes.len() + BLOCK as usize && shown[bytes.len()..].iter().all(|b| *b == 0)
            );
            assert!(!rooms.0.lock().is_empty(), "it is used again");
        }
        assert_eq!(
            rooms.in_blocks(&[&[1; ROOM], &[1; ROOM]], |_, at| Err(at)),
            Err(0),
            "the first failure ends it"
        );
    }
}
