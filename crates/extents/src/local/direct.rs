//! Direct I/O for large frames: filling page cache pages that may never be read costs more than all other
//! processing of the bytes. Direct writes are of whole blocks, from memory aligned to blocks.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::gather::{AlignedBuffer, BUFFER_BYTES};
use crate::segment::BLOCK;

/// Opens a segment file for direct writes. Returns `None` if the file system does not support them.
pub(crate) fn open(path: &Path) -> Option<File> {
    OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).ok()
}

/// Copies buffers to aligned memory and calls `write` with successive groups of whole blocks and their
/// offsets. The last block is padded with zeros.
pub(crate) fn write_in_blocks<E>(
    memory: &mut AlignedBuffer,
    buffers: &[&[u8]],
    mut write: impl FnMut(&[u8], u64) -> Result<(), E>,
) -> Result<(), E> {
    let memory = memory.bytes();
    let (mut used, mut at) = (0, 0);
    for buffer in buffers {
        let mut rest = *buffer;
        while !rest.is_empty() {
            let taken = rest.len().min(BUFFER_BYTES - used);
            memory[used..used + taken].copy_from_slice(&rest[..taken]);
            (used, rest) = (used + taken, &rest[taken..]);
            if used == BUFFER_BYTES {
                write(memory, at)?;
                (used, at) = (0, at + BUFFER_BYTES as u64);
            }
        }
    }
    if used > 0 {
        let padded = used.next_multiple_of(BLOCK as usize);
        memory[used..padded].fill(0);
        write(&memory[..padded], at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gather::BufferPool;

    #[test]
    fn buffers_are_written_in_aligned_blocks() {
        let pool = Arc::new(BufferPool::default());
        for lengths in [
            &[1][..],
            &[4095, 1],
            &[5, BUFFER_BYTES],
            &[0, BUFFER_BYTES - 7, 7],
            &[BUFFER_BYTES, BUFFER_BYTES, 4097],
            &[],
        ] {
            let bytes: Vec<u8> = (0..lengths.iter().sum()).map(|i: usize| (i % 251) as u8 + 1).collect();
            let mut rest = bytes.as_slice();
            let buffers: Vec<&[u8]> = lengths.iter().map(|n| rest.split_off(..*n).unwrap()).collect();
            let mut shown = vec![];
            let outcome: Result<(), ()> = write_in_blocks(&mut pool.take(), &buffers, |piece, at| {
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
            write_in_blocks(&mut pool.take(), &[&[1; BUFFER_BYTES], &[1; BUFFER_BYTES]], |_, at| Err(at)),
            Err(0),
            "the first failure ends the write"
        );
    }
}
