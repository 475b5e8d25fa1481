//! Channel sequence numbers (MS-SMB2 3.3.5.2.10).
//!
//! A client that has lost one of its connections repeats its outstanding requests on another one, with the
//! next sequence number. A late request with an older number must no longer modify the file.

use std::sync::Arc;

use parking_lot::Mutex;

/// The channel sequence of an open. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelSequence(Arc<Mutex<SequenceCounts>>);

#[derive(Debug, Default)]
struct SequenceCounts {
    number: u16,
    /// Outstanding requests with the current number.
    current: u32,
    /// Outstanding requests with older numbers.
    previous: u32,
}

/// Counts a request as outstanding until dropped.
#[derive(Debug)]
pub(crate) struct CountedRequest {
    sequence: ChannelSequence,
    number: u16,
}

/// The request has an old number, or requests with older numbers are outstanding and it is a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaleRequest;

impl ChannelSequence {
    /// Returns a sequence that starts with `number`.
    pub(crate) fn new(number: u16) -> Self {
        Self(Arc::new(Mutex::new(SequenceCounts { number, ..SequenceCounts::default() })))
    }

    /// Admits and counts a request. A stale request that modifies nothing is admitted without being counted.
    pub(crate) fn admit(
        &self,
        number: u16,
        is_replay: bool,
        modifies: bool,
    ) -> Result<Option<CountedRequest>, StaleRequest> {
        let mut state = self.0.lock();
        let order = compare(number, state.number);
        if order < 0 || is_replay && state.previous > 0 {
            return if modifies { Err(StaleRequest) } else { Ok(None) };
        }
        if order > 0 {
            state.previous += state.current;
            (state.number, state.current) = (number, 0);
        }
        state.current += 1;
        drop(state);
        Ok(Some(CountedRequest { sequence: self.clone(), number }))
    }
}

/// Returns a positive number if `number` is newer than `known`. Numbers wrap around, so one that is far ahead
/// is older.
fn compare(number: u16, known: u16) -> i32 {
    let distance = i32::from(number) - i32::from(known);
    if distance.abs() > i32::from(i16::MAX) { -distance } else { distance }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        let mut state = self.sequence.0.lock();
        let count = if state.number == self.number { &mut state.current } else { &mut state.previous };
        *count = count.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_requests_modify_nothing_and_are_not_counted() {
        let sequence = ChannelSequence::new(0);
        assert!(sequence.admit(1, false, true).is_ok_and(|counted| counted.is_some()));
        assert!(sequence.admit(0, false, true).is_err());
        assert!(sequence.admit(0, false, false).is_ok_and(|counted| counted.is_none()));
        assert!(sequence.admit(0x8001, false, true).is_err(), "a number far ahead is older");
        assert!(sequence.admit(0x7fff, false, true).is_ok());
        assert!(sequence.admit(0x8001, false, true).is_ok());
        assert!(sequence.admit(0x0001, false, true).is_ok(), "numbers wrap around");
    }

    #[test]
    fn replays_are_refused_while_older_requests_are_outstanding() {
        let sequence = ChannelSequence::new(0);
        let old = sequence.admit(0, false, true).expect("admitted");
        let new = sequence.admit(1, false, true).expect("admitted");
        assert_eq!(sequence.admit(1, true, true).err(), Some(StaleRequest));
        assert!(sequence.admit(1, true, false).is_ok());
        assert!(sequence.admit(1, false, true).is_ok(), "only replays wait");
        drop(old);
        assert!(sequence.admit(1, true, true).is_ok());
        drop(new);
        assert!(sequence.admit(2, true, true).is_ok());
    }

    #[test]
    fn requests_are_counted_under_their_own_number() {
        let sequence = ChannelSequence::new(5);
        let one = sequence.admit(5, false, true).expect("admitted");
        let two = sequence.admit(6, false, true).expect("admitted");
        let three = sequence.admit(7, false, true).expect("admitted");
        drop((one, three));
        assert!(sequence.admit(7, true, true).is_err(), "a request with an older number is outstanding");
        drop(two);
        assert!(sequence.admit(7, true, true).is_ok());
    }
}
