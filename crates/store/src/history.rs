//! Checks what concurrent clients saw of one partition for linearizability.
//!
//! Every operation reads all registers in one snapshot; a write commits on the condition that nothing it read has
//! changed. An operation is said to take effect at one moment between its start and its end: for a write, its whole
//! read must be the state just before it. The search for such an order is the one of Wing and Gong, with states
//! already tried remembered; an order by time prunes it, so histories of thousands of operations take moments.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The registers of the partition; 0 = absent.
pub type State = [u64; 4];

/// What one operation saw and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The registers it read.
    pub read: State,
    /// The register it then changed, and to what.
    pub wrote: Option<(usize, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    start: u64,
    end: u64,
    observed: Observed,
}

/// A history in the making.
#[derive(Debug, Default)]
pub struct History {
    clock: AtomicU64,
    operations: Mutex<Vec<Operation>>,
}

impl History {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// The moment at which an operation starts.
    pub fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// An operation that started then has ended now.
    pub fn record(&self, start: u64, observed: Observed) {
        let end = self.tick();
        if let Ok(mut operations) = self.operations.lock() {
            operations.push(Operation { start, end, observed });
        }
    }

    /// How many operations it holds.
    pub fn len(&self) -> usize {
        self.operations.lock().map_or(0, |o| o.len())
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds an order that explains everything, or says how far it got.
    pub fn check(self) -> Result<(), String> {
        let mut operations = self.operations.into_inner().unwrap_or_default();
        operations.sort_by_key(|o| o.start);
        Search { operations, tried: HashSet::new() }.run()
    }
}

struct Search {
    operations: Vec<Operation>,
    tried: HashSet<(Vec<usize>, State)>,
}

/// A choice made: which operation, and what there was before it.
struct Step {
    state: State,
    /// Operations not yet placed that could come next, by index, and the next one to try.
    candidates: Vec<usize>,
    next: usize,
}

impl Search {
    fn run(mut self) -> Result<(), String> {
        let mut placed = vec![false; self.operations.len()];
        let mut order: Vec<usize> = vec![];
        let mut steps =
            vec![Step { state: [0; 4], candidates: self.candidates(&placed, 0, [0; 4]), next: 0 }];
        let (mut first_unplaced, mut furthest) = (0, 0);
        while order.len() < self.operations.len() {
            furthest = furthest.max(order.len());
            let Some(step) = steps.last_mut() else {
                return Err(self.explain(furthest));
            };
            let Some(&chosen) = step.candidates.get(step.next) else {
                // A dead end: take the last choice back.
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
            if self.tried.insert((key, state)) {
                let candidates = self.candidates(&placed, first_unplaced, state);
                steps.push(Step { state, candidates, next: 0 });
            } else {
                placed[chosen] = false;
                order.pop();
                first_unplaced = first_unplaced.min(chosen);
            }
        }
        Ok(())
    }

    /// Those that started before any other unplaced one ended, and that read this state. Reads come first: they
    /// change nothing, so placing one early never hurts.
    fn candidates(&self, placed: &[bool], from: usize, state: State) -> Vec<usize> {
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
        let around = self.operations.iter().skip(furthest.saturating_sub(5)).take(12);
        let lines: Vec<_> = around.map(|o| format!("{}..{} {:?}", o.start, o.end, o.observed)).collect();
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

    /// Start, end, what was read, what was written.
    type Line = (u64, u64, State, Option<(usize, u64)>);

    fn history(operations: &[Line]) -> History {
        let made = History::new();
        for &(start, end, read, wrote) in operations {
            made.operations.lock().unwrap().push(Operation {
                start,
                end,
                observed: Observed { read, wrote },
            });
        }
        made
    }

    #[test]
    fn an_order_is_found_whatever_the_order_of_ends() {
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
