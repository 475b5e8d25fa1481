//! Requests that were overtaken: a client that has lost one of its connections repeats on another what was under way, with
//! the next number, and what arrives late with an older one must not change the file any more (MS-SMB2 3.3.5.2.10).

use std::sync::Arc;

use parking_lot::Mutex;

/// What is known of the numbers of an open. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    number: u16,
    /// Requests under way with that number.
    now: u32,
    /// Requests under way with older ones.
    before: u32,
}

/// A request under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Underway {
    sequence: Sequence,
    number: u16,
}

/// The request was overtaken, or what it repeats is still under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overtaken;

impl Sequence {
    /// Begins with a number.
    pub(crate) fn new(number: u16) -> Self {
        Self(Arc::new(Mutex::new(Counts { number, ..Counts::default() })))
    }

    /// A request with that number. What changes nothing is never refused; what came too late is not counted.
    pub(crate) fn admit(
        &self,
        number: u16,
        is_repeated: bool,
        changes: bool,
    ) -> Result<Option<Underway>, Overtaken> {
        let mut counts = self.0.lock();
        let order = order(number, counts.number);
        if order < 0 || is_repeated && counts.before > 0 {
            return if changes { Err(Overtaken) } else { Ok(None) };
        }
        if order > 0 {
            counts.before += counts.now;
            (counts.number, counts.now) = (number, 0);
        }
        counts.now += 1;
        drop(counts);
        Ok(Some(Underway { sequence: self.clone(), number }))
    }
}

/// Positive if the first number is newer. They wrap around: what is far ahead is behind.
fn order(number: u16, known: u16) -> i32 {
    let order = i32::from(number) - i32::from(known);
    if order.abs() > i32::from(i16::MAX) { -order } else { order }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let mut counts = self.sequence.0.lock();
        let count = if counts.number == self.number { &mut counts.now } else { &mut counts.before };
        *count = count.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_changes_nothing_and_is_not_counted() {
        let sequence = Sequence::new(0);
        assert!(sequence.admit(1, false, true).is_ok_and(|underway| underway.is_some()));
        assert!(sequence.admit(0, false, true).is_err());
        assert!(sequence.admit(0, false, false).is_ok_and(|underway| underway.is_none()));
        assert!(sequence.admit(0x8001, false, true).is_err(), "far ahead is behind");
        assert!(sequence.admit(0x7fff, false, true).is_ok());
        assert!(sequence.admit(0x8001, false, true).is_ok());
        assert!(sequence.admit(0x0001, false, true).is_ok(), "they wrap around");
    }

    #[test]
    fn what_is_repeated_waits_until_the_older_ones_are_done() {
        let sequence = Sequence::new(0);
        let old = sequence.admit(0, false, true).expect("admitted");
        let new = sequence.admit(1, false, true).expect("admitted");
        assert_eq!(sequence.admit(1, true, true).err(), Some(Overtaken));
        assert!(sequence.admit(1, true, false).is_ok());
        assert!(sequence.admit(1, false, true).is_ok(), "what is not repeated need not wait");
        drop(old);
        assert!(sequence.admit(1, true, true).is_ok());
        drop(new);
        assert!(sequence.admit(2, true, true).is_ok());
    }

    #[test]
    fn requests_are_counted_under_the_number_they_came_with() {
        let sequence = Sequence::new(5);
        let one = sequence.admit(5, false, true).expect("admitted");
        let two = sequence.admit(6, false, true).expect("admitted");
        let three = sequence.admit(7, false, true).expect("admitted");
        drop((one, three));
        assert!(sequence.admit(7, true, true).is_err(), "one of before is under way");
        drop(two);
        assert!(sequence.admit(7, true, true).is_ok());
    }
}
