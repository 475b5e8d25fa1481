//! Credits: how many requests a client may have under way, and which message ids it may use for them.
//!
//! Each credit is the right to use one message id, in any order within the window. A request of many bytes uses as many ids as
//! it has credits charged.

use std::collections::VecDeque;

/// Credits that a client can have.
pub(crate) const MAX_CREDITS: u16 = 8192;

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

#[cfg(test)]
mod tests {
    use super::*;

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
