//! Credits: how many requests a client may have in flight, and the message ids for them.
//!
//! Each credit is the right to use one message id, in any order within the window. A request with a large
//! payload consumes as many consecutive ids as its credit charge.

use std::collections::VecDeque;

use crate::negotiated::Dialect;
use crate::wire::cursor::ByteReader;
use crate::wire::header::{HEADER_SIZE, MessageHeader, SmbCommand};

/// Maximum number of credits of a client.
pub(crate) const MAX_CREDITS: u16 = 8192;
/// Payload bytes that one credit pays for.
const BYTES_PER_CREDIT: usize = 64 << 10;
/// Maximum length of a request that may have to wait for other clients, because it stays in memory meanwhile.
/// A path and a security descriptor fit.
pub(crate) const MAX_PARKED_REQUEST: usize = 128 << 10;

/// The message id is outside of the window, or was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfSequence;

/// The message ids that a client may use (`CommandSequenceWindow` in MS-SMB2). Invariant: the window never
/// holds more than [`MAX_CREDITS`] ids.
#[derive(Debug)]
pub(crate) struct SequenceWindow {
    /// The lowest unused id.
    low: u64,
    /// Whether each id was used, starting at `low`. The first entry is always false.
    used: VecDeque<bool>,
}

impl SequenceWindow {
    /// Returns the window of a new connection, which allows one request.
    pub(crate) fn new() -> Self {
        Self { low: 0, used: VecDeque::from([false]) }
    }

    /// Consumes `charge` ids starting at `id`.
    pub(crate) fn consume(&mut self, id: u64, charge: u16) -> Result<(), OutOfSequence> {
        let first =
            id.checked_sub(self.low).and_then(|first| usize::try_from(first).ok()).ok_or(OutOfSequence)?;
        let end = first.checked_add(usize::from(charge.max(1))).ok_or(OutOfSequence)?;
        if end > self.used.len() || self.used.range(first..end).any(|used| *used) {
            return Err(OutOfSequence);
        }
        self.used.range_mut(first..end).for_each(|used| *used = true);
        while self.used.front() == Some(&true) {
            self.used.pop_front();
            self.low += 1;
        }
        Ok(())
    }

    /// Returns the ids that a request has consumed, and if the window `may_grow`, the additional credits that
    /// it requests, up to the maximum. Returns how many were granted.
    pub(crate) fn grant(&mut self, charge: u16, requested: u16, may_grow: bool) -> u16 {
        let charge = charge.max(1);
        let additional = if may_grow { requested.max(1) - 1 } else { 0 };
        let free = usize::from(MAX_CREDITS).saturating_sub(self.used.len());
        let granted = usize::from(charge.saturating_add(additional)).min(free) as u16;
        self.used.extend(std::iter::repeat_n(false, usize::from(granted)));
        granted
    }
}

/// Returns how many credits' worth of memory a frame occupies: the credits charged for its requests, or its
/// own length if that is more.
pub(crate) fn memory_credits(frame: usize, charged: u32) -> u32 {
    charged.max(u32::try_from(frame / BYTES_PER_CREDIT).unwrap_or(u32::MAX))
}

/// Returns whether the request's credit charge covers its payload and its response, and whether the request
/// is short enough to be kept if it has to wait.
pub(crate) fn is_charged_enough(dialect: Dialect, header: &MessageHeader, message: &[u8]) -> bool {
    let command = SmbCommand::from_code(header.command);
    if command.is_some_and(SmbCommand::may_wait) && message.len() > MAX_PARKED_REQUEST {
        return false;
    }
    // Offsets in the body of the lengths of the payload and of the requested output.
    let fields: &[usize] = match command {
        Some(SmbCommand::Read | SmbCommand::Write | SmbCommand::ChangeNotify | SmbCommand::SetInfo) => &[4],
        Some(SmbCommand::QueryInfo) => &[4, 12],
        Some(SmbCommand::QueryDirectory) => &[28],
        Some(SmbCommand::Ioctl) => &[28, 44],
        _ => return true,
    };
    let largest = fields.iter().filter_map(|at| ByteReader::from(message, HEADER_SIZE + at).u32().ok()).max();
    let credits = (largest.unwrap_or_default() as usize).max(1).div_ceil(BYTES_PER_CREDIT);
    let charged = if dialect == Dialect::Smb202 { 1 } else { usize::from(header.credit_charge.max(1)) };
    credits <= charged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_occupies_its_charge_or_its_length_whichever_is_larger() {
        for (frame, charged, expected) in [
            (100, 1, 1),
            (100, 4, 4),
            (BYTES_PER_CREDIT + 100, 1, 1),
            ((8 << 20) + 112, 128, 128),
            (8 << 20, 1, 128),
        ] {
            assert_eq!(memory_credits(frame, charged), expected, "{frame} {charged}");
        }
    }

    #[test]
    fn message_ids_are_used_once_in_any_order_within_the_window() {
        let mut window = SequenceWindow::new();
        assert_eq!(window.consume(1, 1), Err(OutOfSequence));
        assert_eq!(window.consume(0, 1), Ok(()));
        assert_eq!(window.consume(0, 1), Err(OutOfSequence));
        assert_eq!(window.grant(1, 10, true), 10);
        assert_eq!(window.consume(5, 4), Ok(()));
        assert_eq!(window.consume(8, 1), Err(OutOfSequence));
        assert_eq!(window.consume(9, 3), Err(OutOfSequence));
        assert_eq!(window.consume(1, 4), Ok(()));
        assert_eq!(window.consume(9, 2), Ok(()));
        assert_eq!(window.consume(u64::MAX, u16::MAX), Err(OutOfSequence));
    }

    #[test]
    fn the_window_does_not_grow_beyond_the_maximum() {
        let mut window = SequenceWindow::new();
        assert_eq!(window.grant(1, u16::MAX, true), MAX_CREDITS - 1);
        assert_eq!(window.grant(1, 1, true), 0);
        assert_eq!(window.consume(0, 128), Ok(()));
        assert_eq!(window.grant(128, 1, true), 128);
    }

    #[test]
    fn the_charge_is_returned_and_more_is_granted_only_if_the_window_may_grow() {
        let mut window = SequenceWindow::new();
        assert_eq!(window.consume(0, 0), Ok(()));
        assert_eq!(window.grant(0, 100, false), 1);
        assert_eq!(window.consume(1, 1), Ok(()));
        assert_eq!(window.grant(1, 0, true), 1);
    }
}
