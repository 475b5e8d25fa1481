//! Filters judged on runs of rows: column by column instead of entity by entity.
//!
//! The store shows rows by the [`Run`] and keeps runs in memory. A filter that is asked about a run for the first time
//! takes the properties that it compares out of all entities into columns, and leaves these on the run for the next one.
//! Each comparison goes over its column and yields one bit a row; `and`, `or` and `not` are operations on those bits. Keys
//! and the Timestamp need no column: the run has them. What comes out is exactly what [`Filter::matches`] says of each
//! entity.
//!
//! Columns take as much memory as the store has counted for them; the oldest go first. A row that cannot be decoded is no
//! concern of this module: it says up to which row it has judged.

mod bits;
mod column;

use std::collections::VecDeque;
use std::sync::Arc;

use lazuli_store::{Run, Stretch};
use parking_lot::Mutex;

use crate::entity::Entity;
use crate::filter::{Comparison, Filter, Property};
use crate::keys::{Keys, partition_key, row_key};
use crate::value::Value;
use bits::Bits;
use column::{Cell, Column, judge_keys};

/// Comparisons of a filter for which a row in memory counts once.
const FEW_COMPARISONS: usize = 4;
/// So many entities that are decoded, but not read, count as one that is read.
const DECODED_PER_READ: usize = 2;
/// What a kept column takes beside its own bytes.
const COLUMN_OVERHEAD: usize = 64;

/// A filter, and what it has to know of entities.
pub(crate) struct Judge<'f> {
    filter: &'f Filter,
    /// The properties that it compares, each once.
    names: Vec<&'f str>,
    /// How many times as dear it is as most filters are.
    effort: usize,
}

/// What came out for a run.
pub(crate) struct Judged {
    /// The rows that match, up to `end`.
    pub(crate) matching: Bits,
    /// The first row that could not be judged, or the number of rows.
    pub(crate) end: usize,
    /// Entities had to be decoded for it.
    is_dear: bool,
}

impl<'f> Judge<'f> {
    /// If runs are of use for a filter: not if all that it says of entities is which range of keys they have.
    pub(crate) fn of(filter: &'f Filter) -> Option<Self> {
        let (mut names, mut seen) = (vec![], Seen::default());
        look_through(filter, &mut names, &mut seen);
        let looks_at_every_row = !names.is_empty() || seen.timestamp || (seen.row && !seen.partition);
        let effort = seen.comparisons.div_ceil(FEW_COMPARISONS);
        looks_at_every_row.then_some(Self { filter, names, effort })
    }

    /// For how many rows, and bytes of them, a page is charged that read them and judged them: what the store says,
    /// more for kept rows if there is much to compare, and half a row for each that was decoded, but not read.
    pub(crate) fn cost(&self, stretch: &Stretch, judged: &Judged) -> (usize, usize) {
        let (rows, bytes) = stretch.cost();
        if !stretch.kept {
            return (rows, bytes);
        }
        let decoded = if judged.is_dear { stretch.rows.len() / DECODED_PER_READ } else { 0 };
        (rows * self.effort + decoded, bytes)
    }

    /// Judges all rows of a run.
    pub(crate) fn judge(&self, run: &Run) -> Judged {
        let own = Columns::default();
        let columns = run.memo(Columns::default).unwrap_or(&own);
        let Seeing { columns, end, is_dear } = columns.see(run, &self.names);
        let sight = Sight { run, names: &self.names, columns: &columns };
        Judged { matching: sight.judge(self.filter), end, is_dear }
    }
}

#[derive(Default)]
struct Seen {
    partition: bool,
    row: bool,
    timestamp: bool,
    comparisons: usize,
}

fn look_through<'f>(filter: &'f Filter, names: &mut Vec<&'f str>, seen: &mut Seen) {
    match filter {
        Filter::Constant(_) => {}
        Filter::Comparison(Comparison { property, .. }) => {
            seen.comparisons += 1;
            match property {
                Property::PartitionKey => seen.partition = true,
                Property::RowKey => seen.row = true,
                Property::Timestamp => seen.timestamp = true,
                Property::Named(name) if names.contains(&name.as_str()) => {}
                Property::Named(name) => names.push(name),
            }
        }
        Filter::Not(inner) => look_through(inner, names, seen),
        Filter::And(all) | Filter::Or(all) => all.iter().for_each(|one| look_through(one, names, seen)),
    }
}

/// The columns of a run that are kept with it.
#[derive(Default)]
struct Columns(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// The first row that cannot be decoded, or the number of rows; `None` until somebody looked.
    end: Option<usize>,
    /// By name, the oldest first.
    columns: VecDeque<(Box<str>, Arc<Column>)>,
    bytes: usize,
}

/// The columns that were asked for, in that order.
struct Seeing {
    columns: Vec<Arc<Column>>,
    end: usize,
    is_dear: bool,
}

impl Columns {
    /// The columns of these names; those that are not there yet are made, all in one go.
    fn see(&self, run: &Run, names: &[&str]) -> Seeing {
        let (known, end): (Vec<_>, _) = {
            let kept = self.0.lock();
            (names.iter().map(|name| kept.get(name)).collect(), kept.end)
        };
        if let Some(end) = end
            && let Some(columns) = known.iter().cloned().collect()
        {
            return Seeing { columns, end, is_dear: false };
        }
        // Not under the lock: at worst two readers make the same.
        let missing: Vec<_> = names.iter().zip(&known).filter(|(_, known)| known.is_none()).collect();
        let missing: Vec<&str> = missing.into_iter().map(|(name, _)| *name).collect();
        let (made, end) = make(run, &missing);
        let made: Vec<_> = made.into_iter().map(Arc::new).collect();
        {
            let mut kept = self.0.lock();
            kept.end = Some(end);
            for (name, column) in missing.iter().zip(&made) {
                kept.add(name, column, run.memo_bytes());
            }
        }
        let mut made = made.into_iter();
        let columns = known.into_iter().filter_map(|known| known.or_else(|| made.next())).collect();
        Seeing { columns, end, is_dear: true }
    }
}

impl Kept {
    fn get(&self, name: &str) -> Option<Arc<Column>> {
        self.columns.iter().find(|(own, _)| **own == *name).map(|(_, column)| column.clone())
    }

    fn add(&mut self, name: &str, column: &Arc<Column>, most: usize) {
        let size = |name: &str, column: &Column| COLUMN_OVERHEAD + name.len() + column.bytes();
        let bytes = size(name, column);
        if bytes > most || self.get(name).is_some() {
            return;
        }
        while self.bytes + bytes > most {
            let Some((name, column)) = self.columns.pop_front() else { return };
            self.bytes -= size(&name, &column);
        }
        self.bytes += bytes;
        self.columns.push_back((name.into(), column.clone()));
    }
}

/// Takes properties out of the entities of a run, up to the first row that cannot be decoded.
fn make(run: &Run, names: &[&str]) -> (Vec<Column>, usize) {
    let mut cells: Vec<Vec<Option<Cell>>> = names.iter().map(|_| Vec::with_capacity(run.len())).collect();
    let end = (0..run.len()).find(|row| take(run, *row, names, &mut cells).is_none());
    let end = end.unwrap_or(run.len());
    let columns = cells.into_iter().map(|mut cells| {
        cells.resize(run.len(), None);
        Column::of(&cells)
    });
    (columns.collect(), end)
}

fn take(run: &Run, row: usize, names: &[&str], cells: &mut [Vec<Option<Cell>>]) -> Option<()> {
    if !Keys::are_of_row(run.partition(row), run.key(row)) {
        return None;
    }
    cells.iter_mut().for_each(|cells| cells.push(None));
    let mut all = true;
    let taken = Entity::visit(run.value(row), |name, value| {
        if let Some(at) = names.iter().position(|wanted| *wanted == name) {
            let cell = Cell::of(run, &value);
            all &= cell.is_some();
            if let Some(last) = cells[at].last_mut() {
                *last = last.or(cell);
            }
        }
    });
    taken.ok().filter(|()| all)
}

/// A run, and the columns of it that a filter needs.
struct Sight<'a> {
    run: &'a Run,
    names: &'a [&'a str],
    columns: &'a [Arc<Column>],
}

impl Sight<'_> {
    /// The rows that match; what it says of numbers behind the last row means nothing.
    fn judge(&self, filter: &Filter) -> Bits {
        match filter {
            Filter::Constant(true) => Bits::ALL,
            Filter::Constant(false) => Bits::NONE,
            Filter::Comparison(comparison) => self.compare(comparison),
            Filter::Not(inner) => !self.judge(inner),
            Filter::And(all) => {
                all.iter().fold(
                    Bits::ALL,
                    |found, filter| {
                        if found.is_none() { found } else { found & self.judge(filter) }
                    },
                )
            }
            Filter::Or(all) => all.iter().fold(Bits::NONE, |found, filter| found | self.judge(filter)),
        }
    }

    fn compare(&self, Comparison { property, operator, literal }: &Comparison) -> Bits {
        let (run, operator) = (self.run, *operator);
        match (property, literal) {
            (Property::PartitionKey, Value::String(key)) => {
                judge_keys(run, Run::partition, operator, &partition_key(key))
            }
            (Property::RowKey, Value::String(key)) => judge_keys(run, Run::key, operator, &row_key(key)),
            (Property::Timestamp, Value::DateTime(literal)) => Bits::of_rows(run.len(), |row| {
                operator.holds(Some(run.token(row).0.timestamp().ticks().cmp(literal)))
            }),
            (Property::Named(name), literal) => {
                let column =
                    self.names.iter().position(|own| own == name).and_then(|at| self.columns.get(at));
                column.map_or(Bits::NONE, |column| column.judge(run, operator, literal))
            }
            // Keys are strings and the Timestamp is a DateTime: nothing else is comparable with them.
            _ => Bits::NONE,
        }
    }
}

#[cfg(test)]
mod tests;
