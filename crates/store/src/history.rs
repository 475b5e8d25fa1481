//! Checks the history of concurrent operations on one partition for linearizability.
//!
//! Every operation reads all registers in one snapshot. A write commits on condition that nothing it read has
//! changed. Each operation must appear to take effect at one moment between its start and its end; for a
//! write, its whole read must be the state just before that moment. The search for such an order is that of
//! Wing and Gong and remembers the states already tried. Operations that do not overlap have a fixed order,
//! which prunes the search: histories of thousands of operations take little time.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The registers of the partition; 0 = absent.
pub type Registers = [u64; 4];

/// The read and the write of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The registers it read.
    pub read: Registers,
    /// The register that the operation then changed, and its new value.
    pub wrote: Option<(usize, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct TimedOperation {
    start: u64,
    end: u64,
    observed: Observed,
}

/// A history that operations are recorded in.
#[derive(Debug, Default)]
pub struct History {
    clock: AtomicU64,
    operations: Mutex<Vec<TimedOperation>>,
}

impl History {
    /// Makes an empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the start time of an operation.
    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Records an operation that started at `start` and ends now.
    pub fn record(&self, start: u64, observed: Observed) {
        let end = self.tick();
        if let Ok(mut operations) = self.operations.lock() {
            operations.push(TimedOperation { start, end, observed });
        }
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.operations.lock().map_or(0, |o| o.len())
    }

    /// Returns whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Searches for an order that explains all operations. Returns a description of the failure if there is
    /// none.
    pub fn check(self) -> Result<(), String> {
        let mut operations = self.operations.into_inner().unwrap_or_default();
        operations.sort_by_key(|o| o.start);
        Search { operations, tried_states: HashSet::new() }.run()
    }
}

struct Search {
    operations: Vec<TimedOperation>,
    tried_states: HashSet<(Vec<usize>, Registers)>,
}

/// A position in the search: the state there and the operations that could come next.
struct Choice {
    state: Registers,
    /// The operations that could come next, by index.
    candidates: Vec<usize>,
    /// The position in `candidates` of the next operation to try.
    next: usize,
}

impl Search {
    fn run(mut self) -> Result<(), String> {
        let mut placed = vec![false; self.operations.len()];
        let mut order: Vec<usize> = vec![];
        let mut steps =
            vec![Choice { state: [0; 4], candidates: self.candidates(&placed, 0, [0; 4]), next: 0 }];
        let (mut first_unplaced, mut furthest) = (0, 0);
        while order.len() < self.operations.len() {
            furthest = furthest.max(order.len());
            let Some(step) = steps.last_mut() else {
                return Err(self.explain(furthest));
            };
            let Some(&chosen) = step.candidates.get(step.next) else {
                // Dead end: undo the last choice.
                steps.pop();
                if let Some(undone) = order.pop() {
                    placed[undone] = false;
                    first_unplaced = first_unplaced.min(undone);
                }
                continue;
            };
            step.next += 1;
            let mut state = step.state;
            if let Some((register, value)) = self.operations[chosen].observed.wrote {
                state[register] = value;
            }
            placed[chosen] = true;
            order.push(chosen);
            while placed.get(first_unplaced) == Some(&true) {
                first_unplaced += 1;
            }
            let ahead: Vec<usize> =
                (first_unplaced..).take_while(|i| *i < placed.len()).filter(|i| placed[*i]).collect();
            let mut key = vec![first_unplaced];
            key.extend(ahead);
            if self.tried_states.insert((key, state)) {
                let candidates = self.candidates(&placed, first_unplaced, state);
                steps.push(Choice { state, candidates, next: 0 });
            } else {
                placed[chosen] = false;
                order.pop();
                first_unplaced = first_unplaced.min(chosen);
            }
        }
        Ok(())
    }

    /// Returns the unplaced operations that started before any other unplaced one ended and that read this
    /// state. A read changes nothing, so if there is one, it is the only candidate.
    fn candidates(&self, placed: &[bool], from: usize, state: Registers) -> Vec<usize> {
        let mut earliest_end = u64::MAX;
        let mut found = vec![];
        for (i, operation) in self.operations.iter().enumerate().skip(from) {
            if placed[i] {
                continue;
            }
            if operation.start > earliest_end {
                break;
            }
            earliest_end = earliest_end.min(operation.end);
            if operation.observed.read == state {
                found.push(i);
            }
        }
        found.retain(|i| self.operations[*i].start < earliest_end);
        if let Some(read) = found.iter().find(|i| self.operations[**i].observed.wrote.is_none()) {
            return vec![*read];
        }
        found
    }

    fn explain(&self, furthest: usize) -> String {
        let nearby = self.operations.iter().skip(furthest.saturating_sub(5)).take(12);
        let lines: Vec<_> = nearby.map(|o| format!("{}..{} {:?}", o.start, o.end, o.observed)).collect();
        format!(
            "{furthest} of {} operations explained; around there:\n{}",
            self.operations.len(),
            lines.join("\n")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Start, end, read registers, written register.
    type OperationLine = (u64, u64, Registers, Option<(usize, u64)>);

    fn history(operations: &[OperationLine]) -> History {
        let history = History::new();
        for &(start, end, read, wrote) in operations {
            history.operations.lock().unwrap().push(TimedOperation {
                start,
                end,
                observed: Observed { read, wrote },
            });
        }
        history
    }

    #[test]
    fn order_is_found_for_overlapping_operations() {
        let fine = [
            (0, 9, [0, 0, 0, 0], Some((0, 1))),
            (1, 2, [1, 0, 0, 0], Some((1, 7))),
            (3, 8, [1, 7, 0, 0], None),
        ];
        history(&fine).check().unwrap();
    }

    #[test]
    fn a_stale_read_is_found() {
        let stale = [(0, 1, [0, 0, 0, 0], Some((0, 1))), (2, 3, [0, 0, 0, 0], None)];
        assert!(history(&stale).check().is_err());
    }

    #[test]
    fn a_lost_update_is_found() {
        let lost = [(0, 5, [0, 0, 0, 0], Some((0, 1))), (1, 6, [0, 0, 0, 0], Some((0, 2)))];
        assert!(history(&lost).check().is_err());
    }

    #[test]
    fn a_torn_snapshot_is_found() {
        let torn = [
            (0, 1, [0, 0, 0, 0], Some((0, 1))),
            (2, 3, [1, 0, 0, 0], Some((1, 2))),
            (2, 5, [0, 2, 0, 0], None),
        ];
        assert!(history(&torn).check().is_err());
    }
}
