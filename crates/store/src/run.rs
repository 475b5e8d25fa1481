//! Runs: rows of a space that lie one after the other, copied into one buffer, so that who visits many of them goes over
//! memory that lies together, and can note on them what it found out for the next visitor.

use std::any::Any;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use crate::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Token};

/// Rows of one run. A change of one row costs the next visitor as many reads, so there are not more.
pub const MAX_RUN_ROWS: usize = 640;
/// Bytes of keys and values after which a run takes no further row.
pub const MAX_RUN_BYTES: usize = 1 << 20;
/// A visit to so many rows of a [kept](Stretch::kept) run counts as a visit to one row that had to be read: the visitor
/// goes over prepared memory, at about ten nanoseconds a row instead of most of a microsecond.
pub const KEPT_ROWS_PER_ROW: usize = 64;
/// Bytes that a run's memo may hold for each of its rows. Engines count them whether there is a memo or not.
pub const MEMO_BYTES_PER_ROW: usize = 64;

// Places in the buffer are of 32 bits.
const _: () = assert!(MAX_RUN_BYTES + 2 * MAX_KEY_BYTES + MAX_VALUE_BYTES < u32::MAX as usize);

/// Rows of a space that lie one after the other, in order, as of one state.
pub struct Run {
    buffer: Box<[u8]>,
    places: Box<[Place]>,
    memo: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// Where a row lies in the buffer. Rows of one partition name it once.
#[derive(Clone, Copy)]
struct Place {
    partition: u32,
    partition_end: u32,
    key: u32,
    value: u32,
    end: u32,
    token: Token,
}

impl Run {
    /// How many rows it has, at most [`MAX_RUN_ROWS`].
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The partition key of a row.
    pub fn partition(&self, row: usize) -> &[u8] {
        let Place { partition, partition_end, .. } = self.places[row];
        &self.buffer[partition as usize..partition_end as usize]
    }

    /// The key of a row within its partition.
    pub fn key(&self, row: usize) -> &[u8] {
        let Place { key, value, .. } = self.places[row];
        &self.buffer[key as usize..value as usize]
    }

    /// What the service stored in a row.
    pub fn value(&self, row: usize) -> &[u8] {
        &self.buffer[self.value_range(row)]
    }

    /// Where in the [buffer](Run::buffer) the value of a row lies.
    pub fn value_range(&self, row: usize) -> Range<usize> {
        let Place { value, end, .. } = self.places[row];
        value as usize..end as usize
    }

    /// The version of a row.
    pub fn token(&self, row: usize) -> Token {
        self.places[row].token
    }

    /// The bytes of all rows, less than 4 GiB.
    pub fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// The first row at or behind a partition key and row key.
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

    /// What a visitor noted on it, made now if nobody did; `None` if that is of another type. It goes with the run, and
    /// may take [`Run::memo_bytes`].
    pub fn memo<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.memo.get_or_init(|| Box::new(make())).downcast_ref()
    }

    /// How much memory its memo may take.
    pub fn memo_bytes(&self) -> usize {
        self.len() * MEMO_BYTES_PER_ROW
    }

    /// How much memory it takes with its memo.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len() + self.len() * size_of::<Place>() + self.memo_bytes() + size_of::<Self>()
    }
}

/// A run in the making, for engines.
#[derive(Default)]
pub struct RunBuilder {
    buffer: Vec<u8>,
    places: Vec<Place>,
}

impl RunBuilder {
    /// Whether it takes another row.
    pub fn has_room(&self) -> bool {
        self.places.len() < MAX_RUN_ROWS && self.buffer.len() < MAX_RUN_BYTES
    }

    /// How many rows it has.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds a row, which comes after those that it has.
    pub fn add(&mut self, partition: &[u8], key: &[u8], value: &[u8], token: Token) {
        let last = self.places.last().map(|last| last.partition as usize..last.partition_end as usize);
        let known = last.filter(|last| self.buffer[last.clone()] == *partition);
        let partition = known.unwrap_or_else(|| self.push(partition));
        let key = self.push(key);
        let value = self.push(value);
        // The bounds of a run leave places far below 4 GiB.
        let at = |place: usize| place as u32;
        self.places.push(Place {
            partition: at(partition.start),
            partition_end: at(partition.end),
            key: at(key.start),
            value: at(value.start),
            end: at(value.end),
            token,
        });
    }

    /// The run.
    pub fn finish(self) -> Run {
        let (buffer, places) = (self.buffer.into_boxed_slice(), self.places.into_boxed_slice());
        Run { buffer, places, memo: OnceLock::new() }
    }

    fn push(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(bytes);
        start..self.buffer.len()
    }
}

/// The rows of a run that a visit covers.
#[derive(Clone)]
pub struct Stretch {
    /// The run. Who keeps it keeps all of its rows in memory.
    pub run: Arc<Run>,
    /// Which of its rows.
    pub rows: Range<usize>,
    /// Whether it was in memory already.
    pub kept: bool,
}

impl Stretch {
    /// For how many rows that had to be read, and bytes of them, a visit counts.
    pub fn cost(&self) -> (usize, usize) {
        let first = self.rows.clone().next().map_or(0, |first| self.run.value_range(first).start);
        let bytes = self.rows.clone().next_back().map_or(0, |last| self.run.value_range(last).end - first);
        // Even a short run has to be found.
        let rows = self.rows.len();
        if self.kept { (1 + rows / KEPT_ROWS_PER_ROW, bytes / KEPT_ROWS_PER_ROW) } else { (rows, bytes) }
    }
}

/// Is given rows by the run, and breaks off before one of them that it does not take.
pub type RunVisitor<'a> = dyn FnMut(&Stretch) -> ControlFlow<usize> + Send + 'a;

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Stamp;

    use super::*;

    #[test]
    fn a_run_shows_the_rows_that_it_was_made_of_and_finds_them() {
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
    fn a_memo_is_made_once_and_only_its_type_sees_it() {
        let run = RunBuilder::default().finish();
        assert_eq!(run.memo(|| 7u32), Some(&7));
        assert_eq!(run.memo(|| 8u32), Some(&7));
        assert_eq!(run.memo(|| 8u64), None);
    }

    #[test]
    fn a_run_has_room_for_so_many_rows_and_bytes() {
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
