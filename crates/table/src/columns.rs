//! Evaluates filters on runs of rows, column by column instead of entity by entity.
//!
//! The store delivers rows in [`Run`]s and keeps runs in memory. When a filter is first evaluated on a run,
//! the properties that it compares are extracted from all entities into columns, which stay with the run for
//! later filters. Each comparison scans its column and yields one bit per row; `and`, `or` and `not` combine
//! those bits. Keys and the Timestamp need no column, because the run has them. The result is exactly that of
//! [`Filter::matches`] for each entity.
//!
//! The columns of a run take at most the memory that the store has accounted for them; the oldest are evicted
//! first. Rows that cannot be decoded are left to the caller: [`RunMatches::end`] is the first row that was
//! not evaluated.

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
use column::{Cell, Column, compare_keys};

/// A row in memory is charged once for each group of this many comparisons in the filter.
const COMPARISONS_PER_CHARGE: usize = 4;
/// Decoding this many entities in memory is charged like reading one.
const DECODED_PER_READ: usize = 2;
/// Memory of a cached column in addition to its values and name, in bytes.
const COLUMN_OVERHEAD: usize = 64;

/// A filter that is evaluated on runs.
pub(crate) struct RunFilter<'f> {
    filter: &'f Filter,
    /// The properties that the filter compares, each once.
    names: Vec<&'f str>,
    /// The charge for a row in memory.
    cost_factor: usize,
}

/// The result of a filter on a run.
pub(crate) struct RunMatches {
    /// The matching rows before `end`. Bits from `end` on have no meaning.
    pub(crate) matching: Bits,
    /// The first row that could not be decoded, or the number of rows.
    pub(crate) end: usize,
    /// Whether entities had to be decoded, because a column was not cached.
    decoded: bool,
}

impl<'f> RunFilter<'f> {
    /// Returns `None` if runs are of no use for the filter, because it only selects a range of keys.
    pub(crate) fn new(filter: &'f Filter) -> Option<Self> {
        let (mut names, mut used) = (vec![], UsedProperties::default());
        collect_properties(filter, &mut names, &mut used);
        let needs_every_row = !names.is_empty() || used.timestamp || (used.row && !used.partition);
        let cost_factor = used.comparisons.div_ceil(COMPARISONS_PER_CHARGE);
        needs_every_row.then_some(Self { filter, names, cost_factor })
    }

    /// Returns the number of rows and bytes that a page is charged for reading and evaluating a stretch: the
    /// store's cost, multiplied for cached rows if the filter has many comparisons, plus half a row for each
    /// row that was decoded but not read.
    pub(crate) fn cost(&self, stretch: &Stretch, matches: &RunMatches) -> (usize, usize) {
        let (rows, bytes) = stretch.cost();
        if !stretch.kept {
            return (rows, bytes);
        }
        let decoded = if matches.decoded { stretch.rows.len() / DECODED_PER_READ } else { 0 };
        (rows * self.cost_factor + decoded, bytes)
    }

    /// Evaluates the filter on all rows of a run.
    pub(crate) fn evaluate(&self, run: &Run) -> RunMatches {
        let uncached = ColumnCache::default();
        let cache = run.memo(ColumnCache::default).unwrap_or(&uncached);
        let RequestedColumns { columns, end, decoded } = cache.get_or_build(run, &self.names);
        let evaluation = Evaluation { run, names: &self.names, columns: &columns };
        RunMatches { matching: evaluation.matches(self.filter), end, decoded }
    }
}

/// The keys that a filter compares, and the number of its comparisons.
#[derive(Default)]
struct UsedProperties {
    partition: bool,
    row: bool,
    timestamp: bool,
    comparisons: usize,
}

fn collect_properties<'f>(filter: &'f Filter, names: &mut Vec<&'f str>, used: &mut UsedProperties) {
    match filter {
        Filter::Constant(_) => {}
        Filter::Comparison(Comparison { property, .. }) => {
            used.comparisons += 1;
            match property {
                Property::PartitionKey => used.partition = true,
                Property::RowKey => used.row = true,
                Property::Timestamp => used.timestamp = true,
                Property::Named(name) if names.contains(&name.as_str()) => {}
                Property::Named(name) => names.push(name),
            }
        }
        Filter::Not(inner) => collect_properties(inner, names, used),
        Filter::And(all) | Filter::Or(all) => all.iter().for_each(|one| collect_properties(one, names, used)),
    }
}

/// The columns that are cached with a run.
#[derive(Default)]
struct ColumnCache(Mutex<CachedColumns>);

#[derive(Default)]
struct CachedColumns {
    /// The first row that cannot be decoded, or the number of rows; `None` until the rows were first decoded.
    end: Option<usize>,
    /// Columns with their names, oldest first.
    columns: VecDeque<(Box<str>, Arc<Column>)>,
    /// Memory of all cached columns.
    bytes: usize,
}

/// The columns for a filter, in the order of its names.
struct RequestedColumns {
    columns: Vec<Arc<Column>>,
    end: usize,
    /// Whether entities had to be decoded.
    decoded: bool,
}

impl ColumnCache {
    /// Returns the columns with the given names. Builds the missing ones in one pass over the run.
    fn get_or_build(&self, run: &Run, names: &[&str]) -> RequestedColumns {
        let (known, end): (Vec<_>, _) = {
            let kept = self.0.lock();
            (names.iter().map(|name| kept.get(name)).collect(), kept.end)
        };
        if let Some(end) = end
            && let Some(columns) = known.iter().cloned().collect()
        {
            return RequestedColumns { columns, end, decoded: false };
        }
        // Build without the lock. At worst two readers build the same columns.
        let missing: Vec<_> = names.iter().zip(&known).filter(|(_, known)| known.is_none()).collect();
        let missing: Vec<&str> = missing.into_iter().map(|(name, _)| *name).collect();
        let (built, end) = build_columns(run, &missing);
        let built: Vec<_> = built.into_iter().map(Arc::new).collect();
        {
            let mut kept = self.0.lock();
            kept.end = Some(end);
            for (name, column) in missing.iter().zip(&built) {
                kept.add(name, column, run.memo_bytes());
            }
        }
        let mut built = built.into_iter();
        let columns = known.into_iter().filter_map(|known| known.or_else(|| built.next())).collect();
        RequestedColumns { columns, end, decoded: true }
    }
}

impl CachedColumns {
    fn get(&self, name: &str) -> Option<Arc<Column>> {
        self.columns.iter().find(|(own, _)| **own == *name).map(|(_, column)| column.clone())
    }

    /// Adds a column unless it is larger than `max_bytes`. Evicts the oldest columns until it fits.
    fn add(&mut self, name: &str, column: &Arc<Column>, max_bytes: usize) {
        let size = |name: &str, column: &Column| COLUMN_OVERHEAD + name.len() + column.bytes();
        let bytes = size(name, column);
        if bytes > max_bytes || self.get(name).is_some() {
            return;
        }
        while self.bytes + bytes > max_bytes {
            let Some((name, column)) = self.columns.pop_front() else { return };
            self.bytes -= size(&name, &column);
        }
        self.bytes += bytes;
        self.columns.push_back((name.into(), column.clone()));
    }
}

/// Builds columns from the entities of a run. Returns them with the first row that cannot be decoded, or the
/// number of rows.
fn build_columns(run: &Run, names: &[&str]) -> (Vec<Column>, usize) {
    let mut cells: Vec<Vec<Option<Cell>>> = names.iter().map(|_| Vec::with_capacity(run.len())).collect();
    let end = (0..run.len()).find(|row| push_row(run, *row, names, &mut cells).is_none());
    let end = end.unwrap_or(run.len());
    let columns = cells.into_iter().map(|mut cells| {
        cells.resize(run.len(), None);
        Column::of(&cells)
    });
    (columns.collect(), end)
}

/// Adds the cells of one row. Returns `None` if the row cannot be decoded.
fn push_row(run: &Run, row: usize, names: &[&str], cells: &mut [Vec<Option<Cell>>]) -> Option<()> {
    if !Keys::is_entity_row(run.partition(row), run.key(row)) {
        return None;
    }
    cells.iter_mut().for_each(|cells| cells.push(None));
    let mut all = true;
    let visited = Entity::visit(run.value(row), |name, value| {
        if let Some(at) = names.iter().position(|wanted| *wanted == name) {
            let cell = Cell::of(run, &value);
            all &= cell.is_some();
            if let Some(last) = cells[at].last_mut() {
                *last = last.or(cell);
            }
        }
    });
    visited.ok().filter(|()| all)
}

/// A run with the columns that a filter needs.
struct Evaluation<'a> {
    run: &'a Run,
    names: &'a [&'a str],
    columns: &'a [Arc<Column>],
}

impl Evaluation<'_> {
    /// Returns the matching rows. Bits after the last row have no meaning.
    fn matches(&self, filter: &Filter) -> Bits {
        match filter {
            Filter::Constant(true) => Bits::ALL,
            Filter::Constant(false) => Bits::NONE,
            Filter::Comparison(comparison) => self.compare(comparison),
            Filter::Not(inner) => !self.matches(inner),
            Filter::And(all) => {
                all.iter().fold(
                    Bits::ALL,
                    |found, filter| {
                        if found.is_none() { found } else { found & self.matches(filter) }
                    },
                )
            }
            Filter::Or(all) => all.iter().fold(Bits::NONE, |found, filter| found | self.matches(filter)),
        }
    }

    fn compare(&self, Comparison { property, operator, literal }: &Comparison) -> Bits {
        let (run, operator) = (self.run, *operator);
        match (property, literal) {
            (Property::PartitionKey, Value::String(key)) => {
                compare_keys(run, Run::partition, operator, &partition_key(key))
            }
            (Property::RowKey, Value::String(key)) => compare_keys(run, Run::key, operator, &row_key(key)),
            (Property::Timestamp, Value::DateTime(literal)) => Bits::of_rows(run.len(), |row| {
                operator.holds(Some(run.token(row).0.timestamp().ticks().cmp(literal)))
            }),
            (Property::Named(name), literal) => {
                let column =
                    self.names.iter().position(|own| own == name).and_then(|at| self.columns.get(at));
                column.map_or(Bits::NONE, |column| column.compare(run, operator, literal))
            }
            // Keys are strings and the Timestamp is a DateTime. Literals of other types match nothing.
            _ => Bits::NONE,
        }
    }
}

#[cfg(test)]
mod tests;
