//! Bounds the memory for bytes that clients have sent and that no service has read yet.
//!
//! A connection buffers some bytes of a body ahead of its service: over HTTP/1 in a buffer, over HTTP/2 as
//! much as the window of the connection allows. A new connection gets a fixed part of what other connections
//! have left, within a minimum and a maximum. So connections have the maximum unless there are very many, and
//! all together exceed the total by no more than the minimum of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The free bytes are divided by this. A new connection gets one part.
const PARTS: u64 = 64;

/// Memory of one endpoint for input.
#[derive(Debug)]
pub(crate) struct InputMemory {
    total: u64,
    allotted: AtomicU64,
}

/// The part of one connection, until dropped.
#[derive(Debug)]
pub(crate) struct InputShare {
    memory: Arc<InputMemory>,
    bytes: u64,
}

impl InputMemory {
    pub(crate) fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, allotted: AtomicU64::new(0) })
    }

    /// Allots between `least` and `most` bytes to a connection.
    pub(crate) fn allot(self: &Arc<Self>, least: usize, most: usize) -> InputShare {
        let (least, most) = (least as u64, (most as u64).max(least as u64));
        let mut bytes = least;
        // Never fails, because the closure always returns a value.
        let _ = self.allotted.fetch_update(Relaxed, Relaxed, |allotted| {
            bytes = (self.total.saturating_sub(allotted) / PARTS).clamp(least, most);
            Some(allotted + bytes)
        });
        InputShare { memory: Arc::clone(self), bytes }
    }
}

impl InputShare {
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }
}

impl Drop for InputShare {
    fn drop(&mut self) {
        self.memory.allotted.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_the_maximum_until_many_share_the_total() {
        let memory = InputMemory::new(512 << 20);
        let (least, most) = (64 << 10, 2 << 20);
        let shares: Vec<_> = (0..4096).map(|_| memory.allot(least, most)).collect();
        let whole = shares.iter().filter(|share| share.bytes() == most).count();
        assert!((180..200).contains(&whole), "{whole}");
        assert!(shares.windows(2).all(|pair| pair[0].bytes() >= pair[1].bytes()));
        assert_eq!(shares.last().map(InputShare::bytes), Some(least));
        let all: usize = shares.iter().map(InputShare::bytes).sum();
        assert!(all <= (512 << 20) + 4096 * least, "{all}");
        drop(shares);
        assert_eq!((memory.allotted.load(Relaxed), memory.allot(least, most).bytes()), (0, most));
    }
}
