//! Runs: consecutive rows of a space, copied into one buffer.
//!
//! Visitors of many rows read contiguous memory. They can also store a memo with the run: what they computed
//! from its rows, for the next visitor.

use std::any::Any;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use crate::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Token};

/// Maximum number of rows in a run. After a row changes, the next visitor reads the whole run again, so runs
/// are short.
pub const MAX_RUN_ROWS: usize = 640;
/// A run takes no further row once it has this many bytes of keys and values.
pub const MAX_RUN_BYTES: usize = 1 << 20;
/// Visiting this many rows of a [kept](Stretch::kept) run costs as much as reading one row. The rows lie in
/// prepared memory and take about ten nanoseconds each, instead of most of a microsecond.
pub const KEPT_ROWS_PER_ROW: usize = 64;
/// Bytes that a run's memo may use for each of its rows. Engines count them even without a memo.
pub const MEMO_BYTES_PER_ROW: usize = 64;

// Offsets in the buffer have 32 bits.
const _: () = assert!(MAX_RUN_BYTES + 2 * MAX_KEY_BYTES + MAX_VALUE_BYTES < u32::MAX as usize);

/// Consecutive rows of a space, in order, from one snapshot.
pub struct Run {
    buffer: Box<[u8]>,
    offsets: Box<[RowOffsets]>,
    memo: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// The offsets of a row's parts in the buffer. Rows of one partition share its key.
#[derive(Clone, Copy)]
struct RowOffsets {
    partition: u32,
    partition_end: u32,
    key: u32,
    value: u32,
    end: u32,
    token: Token,
}

impl Run {
    /// Returns the number of rows, at most [`MAX_RUN_ROWS`].
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Returns whether the run has no rows.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Returns the partition key of a row.
    pub fn partition(&self, row: usize) -> &[u8] {
        let RowOffsets { partition, partition_end, .. } = self.offsets[row];
        &self.buffer[partition as usize..partition_end as usize]
    }

    /// Returns the key of a row within its partition.
    pub fn key(&self, row: usize) -> &[u8] {
        let RowOffsets { key, value, .. } = self.offsets[row];
        &self.buffer[key as usize..value as usize]
    }

    /// Returns the service's data in a row.
    pub fn value(&self, row: usize) -> &[u8] {
        &self.buffer[self.value_range(row)]
    }

    /// Returns the range of the [buffer](Run::buffer) that holds the value of a row.
    pub fn value_range(&self, row: usize) -> Range<usize> {
        let RowOffsets { value, end, .. } = self.offsets[row];
        value as usize..end as usize
    }

    /// Returns the token of a row.
    pub fn token(&self, row: usize) -> Token {
        self.offsets[row].token
    }

    /// Returns the bytes of all rows, less than 4 GiB.
    pub fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns the index of the first row at or after a partition key and row key.
    pub fn position(&self, partition: &[u8], key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if (self.partition(middle), self.key(middle)) < (partition, key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns the run's memo, and makes it if there is none. Returns `None` if the memo has another type.
    /// The memo is dropped with the run, and may use [`Run::memo_bytes`].
    pub fn memo<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.memo.get_or_init(|| Box::new(make())).downcast_ref()
    }

    /// Returns how much memory the memo may use.
    pub fn memo_bytes(&self) -> usize {
        self.len() * MEMO_BYTES_PER_ROW
    }

    /// Returns how much memory the run uses, including its memo.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len() + self.len() * size_of::<RowOffsets>() + self.memo_bytes() + size_of::<Self>()
    }
}

/// Builds a run. For engines.
#[derive(Default)]
pub struct RunBuilder {
    buffer: Vec<u8>,
    offsets: Vec<RowOffsets>,
}

impl RunBuilder {
    /// Returns whether the run may take another row.
    pub fn has_room(&self) -> bool {
        self.offsets.len() < MAX_RUN_ROWS && self.buffer.len() < MAX_RUN_BYTES
    }

    /// Returns the number of rows so far.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Returns whether no row was added.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Adds a row, which must come after the previous ones.
    pub fn add(&mut self, partition: &[u8], key: &[u8], value: &[u8], token: Token) {
        let last = self.offsets.last().map(|last| last.partition as usize..last.partition_end as usize);
        let same_partition = last.filter(|last| self.buffer[last.clone()] == *partition);
        let partition = same_partition.unwrap_or_else(|| self.push(partition));
        let key = self.push(key);
        let value = self.push(value);
        // The limits of a run keep offsets far below 4 GiB.
        let narrow = |offset: usize| offset as u32;
        self.offsets.push(RowOffsets {
            partition: narrow(partition.start),
            partition_end: narrow(partition.end),
            key: narrow(key.start),
            value: narrow(value.start),
            end: narrow(value.end),
            token,
        });
    }

    /// Returns the run.
    pub fn finish(self) -> Run {
        let (buffer, offsets) = (self.buffer.into_boxed_slice(), self.offsets.into_boxed_slice());
        Run { buffer, offsets, memo: OnceLock::new() }
    }

    fn push(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(bytes);
        start..self.buffer.len()
    }
}

/// The rows of a run that one visit covers.
#[derive(Clone)]
pub struct Stretch {
    /// The run. Keeping it keeps all of its rows in memory.
    pub run: Arc<Run>,
    /// The indexes of the rows.
    pub rows: Range<usize>,
    /// Whether the run was already in memory.
    pub kept: bool,
}

impl Stretch {
    /// Returns how many rows and bytes the visit counts against the limits of a scan.
    pub fn cost(&self) -> (usize, usize) {
        let first = self.rows.clone().next().map_or(0, |first| self.run.value_range(first).start);
        let bytes = self.rows.clone().next_back().map_or(0, |last| self.run.value_range(last).end - first);
        // Finding even a short run has a cost.
        let rows = self.rows.len();
        if self.kept { (1 + rows / KEPT_ROWS_PER_ROW, bytes / KEPT_ROWS_PER_ROW) } else { (rows, bytes) }
    }
}

/// A callback that receives rows in runs. Breaking with the index of a row ends the visit before it.
pub type RunVisitor<'a> = dyn FnMut(&Stretch) -> ControlFlow<usize> + Send + 'a;

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Stamp;

    use super::*;

    #[test]
    fn run_returns_the_rows_that_were_added_and_finds_their_positions() {
        let rows: [(&[u8], &[u8], &[u8]); 4] =
            [(b"", b"", b""), (b"a", b"", b"1"), (b"a", b"x\0", b"22"), (b"b", b"", b"")];
        let mut builder = RunBuilder::default();
        for (i, (partition, key, value)) in rows.into_iter().enumerate() {
            builder.add(partition, key, value, Token(Stamp::from_ticks(i as u64)));
        }
        let run = builder.finish();
        for (i, (partition, key, value)) in rows.into_iter().enumerate() {
            assert_eq!((run.partition(i), run.key(i), run.value(i)), (partition, key, value));
            assert_eq!(run.token(i), Token(Stamp::from_ticks(i as u64)));
            assert_eq!(run.position(partition, key), i);
            assert_eq!(run.position(partition, &[key, &[0]].concat()), i + 1);
        }
        assert_eq!((run.len(), &run.buffer()[run.value_range(2)]), (4, &b"22"[..]));
    }

    #[test]
    fn memo_is_made_once_and_returned_only_for_its_type() {
        let run = RunBuilder::default().finish();
        assert_eq!(run.memo(|| 7u32), Some(&7));
        assert_eq!(run.memo(|| 8u32), Some(&7));
        assert_eq!(run.memo(|| 8u64), None);
    }

    #[test]
    fn run_is_limited_in_rows_and_bytes() {
        let mut rows = RunBuilder::default();
        while rows.has_room() {
            rows.add(b"p", b"k", b"", Token(Stamp::from_ticks(1)));
        }
        assert_eq!(rows.len(), MAX_RUN_ROWS);
        let mut bytes = RunBuilder::default();
        while bytes.has_room() {
            bytes.add(b"p", b"k", &[0; MAX_RUN_BYTES / 4], Token(Stamp::from_ticks(1)));
        }
        assert_eq!(bytes.len(), 4);
    }
}
