//! A limit on the work for one record, so that no statement can occupy a thread for long.

use std::cell::Cell;

use crate::report::RecordFailure;

/// The remaining work for a record: about one unit per operation and per few bytes processed.
#[derive(Debug)]
pub(crate) struct Fuel(Cell<usize>);

impl Fuel {
    pub(crate) fn new(amount: usize) -> Self {
        Self(Cell::new(amount))
    }

    pub(crate) fn spend(&self, amount: usize) -> Result<(), RecordFailure> {
        let left = self.0.get().checked_sub(amount).ok_or(RecordFailure::TooComplex)?;
        self.0.set(left);
        Ok(())
    }

    pub(crate) fn left(&self) -> usize {
        self.0.get()
    }
}
