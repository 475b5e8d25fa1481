//! Large frames go past the page cache: to fill pages that nobody may ever read costs more than all else that happens to
//! the bytes. Such writes are of whole blocks, from memory that is aligned as they are.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::gather::{ROOM, Room};
use crate::segment::BLOCK;

/// A segment's file for such writes; `None` where the file system does not have them.
pub(crate) fn open(path: &Path) -> Option<File> {
    OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).ok()
}

/// Copies buffers, one behind the other, and shows them in pieces of whole blocks, each with its place among them. What is
/// missing to a whole block at the end are zeros.
pub(crate) fn in_blocks<E>(
    room: &mut Room,
    buffers: &[&[u8]],
    mut write: impl FnMut(&[u8], u64) -> Result<(), E>,
) -> Result<(), E> {
    let room = room.bytes();
    let (mut used, mut at) = (0, 0);
    for buffer in buffers {
        let mut rest = *buffer;
        while !rest.is_empty() {
            let taken = rest.len().min(ROOM - used);
            room[used..used + taken].copy_from_slice(&rest[..taken]);
            (used, rest) = (used + taken, &rest[taken..]);
            if used == ROOM {
                write(room, at)?;
                (used, at) = (0, at + ROOM as u64);
            }
        }
    }
    if used > 0 {
        let whole = used.next_multiple_of(BLOCK as usize);
        room[used..whole].fill(0);
        write(&room[..whole], at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gather::Rooms;

    #[test]
    fn buffers_are_shown_in_aligned_blocks() {
        let rooms = Arc::new(Rooms::default());
        for lengths in [&[1][..], &[4095, 1], &[5, ROOM], &[0, ROOM - 7, 7], &[ROOM, ROOM, 4097], &[]] {
            let bytes: Vec<u8> = (0..lengths.iter().sum()).map(|i: usize| (i % 251) as u8 + 1).collect();
            let mut rest = bytes.as_slice();
            let buffers: Vec<&[u8]> = lengths.iter().map(|n| rest.split_off(..*n).unwrap()).collect();
            let mut shown = vec![];
            let outcome: Result<(), ()> = in_blocks(&mut rooms.take(), &buffers, |piece, at| {
                assert_eq!((piece.as_ptr().addr() as u64 % BLOCK, piece.len() as u64 % BLOCK), (0, 0));
                assert_eq!(at, shown.len() as u64);
                shown.extend_from_slice(piece);
                Ok(())
            });
            assert_eq!((outcome, &shown[..bytes.len()]), (Ok(()), &bytes[..]), "{lengths:?}");
            assert!(
                shown.len() < bytes.len() + BLOCK as usize && shown[bytes.len()..].iter().all(|b| *b == 0)
            );
        }
        assert_eq!(
            in_blocks(&mut rooms.take(), &[&[1; ROOM], &[1; ROOM]], |_, at| Err(at)),
            Err(0),
            "the first failure ends it"
        );
    }
}
