//! Breadth-first search through all states of a model.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

use xxhash_rust::xxh3::Xxh3;

/// A state of a model.
pub(super) trait ModelState: Clone + Eq + Hash + Debug {
    /// Returns the states that one step of any process leads to, or a description of a violation.
    fn successors(&self, mistake: u8) -> Result<Vec<Self>, String>;

    /// Checks a state in which no process can take a step.
    fn check_end(&self) -> Result<(), String>;
}

/// Returns 128 bits that identify a state. All states themselves would take too much memory.
fn digest(state: &impl ModelState) -> u128 {
    let mut hasher = Xxh3::new();
    state.hash(&mut hasher);
    hasher.digest128()
}

/// Visits all states. Returns their number, or the first violation.
pub(super) fn explore<S: ModelState>(initial: S, mistake: u8) -> Result<usize, String> {
    let mut seen = HashSet::from([digest(&initial)]);
    let mut waiting = VecDeque::from([initial]);
    while let Some(state) = waiting.pop_front() {
        let next = state.successors(mistake).map_err(|violation| format!("{violation} after {state:?}"))?;
        if next.is_empty() {
            state.check_end().map_err(|violation| format!("{violation} in {state:?}"))?;
        }
        for state in next {
            if seen.insert(digest(&state)) {
                waiting.push_back(state);
            }
        }
    }
    Ok(seen.len())
}
