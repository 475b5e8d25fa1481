//! Credits: how many requests a client may have under way, and which message ids it may use for them.
//!
//! Each credit is the right to use one message id, in any order within the window. A request of many bytes uses as many ids as
//! it has credits charged.

use std::collections::VecDeque;

use crate::negotiated::Dialect;
use crate::wire::cursor::Reader;
use crate::wire::header::{Command, HEADER, Header};

/// Credits that a client can have.
pub(crate) const MAX_CREDITS: u16 = 8192;
/// Bytes that one credit stands for.
const CREDIT: usize = 64 << 10;
/// The longest request that may have to wait for other clients, and is kept meanwhile: a name and a security descriptor have room
/// in it.
pub(crate) const MAX_WAITING: usize = 128 << 10;

/// A message id that the client may not use, or has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfSequence;

/// The ids that a client may use. Invariant: the window never holds more than [`MAX_CREDITS`] ids.
#[derive(Debug)]
pub(crate) struct Window {
    /// The lowest id that has not been used.
    low: u64,
    /// From the lowest on: whether it was used. The lowest was not.
    used: VecDeque<bool>,
}

impl Window {
    /// Of a new connection: one request.
    pub(crate) fn new() -> Self {
        Self { low: 0, used: VecDeque::from([false]) }
    }

    /// Uses an id, and those behind it that it is charged.
    pub(crate) fn take(&mut self, id: u64, charge: u16) -> Result<(), OutOfSequence> {
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

    /// Grants what a request asks for beside what it has used, as far as there is room.
    pub(crate) fn grant(&mut self, charge: u16, asked: u16, more: bool) -> u16 {
        let charge = charge.max(1);
        let additional = if more { asked.max(1) - 1 } else { 0 };
        let room = usize::from(MAX_CREDITS).saturating_sub(self.used.len());
        let granted = usize::from(charge.saturating_add(additional)).min(room) as u16;
        self.used.extend(std::iter::repeat_n(false, usize::from(granted)));
        granted
    }
}

/// Credits' worth of memory that a frame takes: for what its requests are charged, or for what it is if that is more.
pub(crate) fn held(frame: usize, charged: u32) -> u32 {
    charged.max(u32::try_from(frame / CREDIT).unwrap_or(u32::MAX))
}

/// Whether a request is charged enough credits for what it sends and asks for, and is short enough to be kept if it has to
/// wait.
pub(crate) fn is_paid_for(dialect: Dialect, header: &Header, message: &[u8]) -> bool {
    let command = Command::of(header.command);
    if command.is_some_and(Command::waits) && message.len() > MAX_WAITING {
        return false;
    }
    // Where lengths are, in the body of a request, of what is sent and of what is asked for.
    let fields: &[usize] = match command {
        Some(Command::Read | Command::Write | Command::ChangeNotify | Command::SetInfo) => &[4],
        Some(Command::QueryInfo) => &[4, 12],
        Some(Command::QueryDirectory) => &[28],
        Some(Command::Ioctl) => &[28, 44],
        _ => return true,
    };
    let longest = fields.iter().filter_map(|at| Reader::from(message, HEADER + at).u32().ok()).max();
    let credits = (longest.unwrap_or_default() as usize).max(1).div_ceil(CREDIT);
    let charged = if dialect == Dialect::Smb202 { 1 } else { usize::from(header.credit_charge.max(1)) };
    credits <= charged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_takes_what_it_is_charged_or_what_it_is() {
        for (frame, charged, expected) in
            [(100, 1, 1), (100, 4, 4), (CREDIT + 100, 1, 1), ((8 << 20) + 112, 128, 128), (8 << 20, 1, 128)]
        {
            assert_eq!(held(frame, charged), expected, "{frame} {charged}");
        }
    }

    #[test]
    fn ids_are_used_once_in_any_order_within_the_window() {
        let mut window = Window::new();
        assert_eq!(window.take(1, 1), Err(OutOfSequence));
        assert_eq!(window.take(0, 1), Ok(()));
        assert_eq!(window.take(0, 1), Err(OutOfSequence));
        assert_eq!(window.grant(1, 10, true), 10);
        assert_eq!(window.take(5, 4), Ok(()));
        assert_eq!(window.take(8, 1), Err(OutOfSequence));
        assert_eq!(window.take(9, 3), Err(OutOfSequence));
        assert_eq!(window.take(1, 4), Ok(()));
        assert_eq!(window.take(9, 2), Ok(()));
        assert_eq!(window.take(u64::MAX, u16::MAX), Err(OutOfSequence));
    }

    #[test]
    fn the_window_does_not_grow_beyond_its_bound() {
        let mut window = Window::new();
        assert_eq!(window.grant(1, u16::MAX, true), MAX_CREDITS - 1);
        assert_eq!(window.grant(1, 1, true), 0);
        assert_eq!(window.take(0, 128), Ok(()));
        assert_eq!(window.grant(128, 1, true), 128);
    }

    #[test]
    fn what_was_charged_comes_back_and_more_only_if_it_may() {
        let mut window = Window::new();
        assert_eq!(window.take(0, 0), Ok(()));
        assert_eq!(window.grant(0, 100, false), 1);
        assert_eq!(window.take(1, 1), Ok(()));
        assert_eq!(window.grant(1, 0, true), 1);
    }
}
