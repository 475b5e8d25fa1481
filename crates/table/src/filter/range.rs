//! Determines which keys a filter can match, so that a query reads no other rows.
//!
//! An [`Area`] is the product of a range of PartitionKeys and a range of RowKeys. The conditions of a filter
//! on keys become a list of areas; conditions on other properties do not narrow it. The areas become
//! [`RowSpan`]s, which the store can read. Each partition lies in at most one span, and the store reads a
//! span in one snapshot. So a query never sees part of a transaction.

use bytes::Bytes;

use super::{Comparison, Filter, Operator, Property};
use crate::keys::{ENTITIES, partition_key, row_key};
use crate::value::Value;

/// Maximum number of areas for a filter: twice the maximum number of comparisons, with a margin for
/// combinations.
const MAX_AREAS: usize = 1024;

/// A position among the rows of a table: the keys of a partition and of a row, as stored. The row need not
/// exist.
pub(crate) type Position = (Bytes, Bytes);

/// The rows from one position, inclusive, to another, exclusive. If `end` is `None`, there is no upper bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowSpan {
    pub(crate) from: Position,
    pub(crate) end: Option<Position>,
}

impl RowSpan {
    /// Returns whether a position lies in the span.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn contains(&self, at: &Position) -> bool {
        self.from <= *at && is_before(Some(at), self.end.as_ref())
    }

    /// Returns whether a span that begins later must be merged into this one, because they overlap, touch, or
    /// share a partition.
    fn must_merge_with(&self, later: &Self) -> bool {
        let Some(end) = &self.end else { return true };
        *end >= later.from || (end.0 == later.from.0 && !end.1.is_empty())
    }
}

/// The rows that a query must read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScanRanges {
    /// In order. No partition lies in two spans.
    pub(crate) spans: Vec<RowSpan>,
}

impl ScanRanges {
    /// Returns the rows that a filter can match; all rows if there is no filter.
    pub(crate) fn of(filter: Option<&Filter>) -> Self {
        Self { spans: filter.map_or_else(KeyCover::all, |filter| cover(filter, false)).into_spans() }
    }

    /// Removes the rows outside a span.
    pub(crate) fn clip(&mut self, within: &RowSpan) {
        self.spans.retain_mut(|span| {
            if span.from < within.from {
                span.from = within.from.clone();
            }
            if is_before(within.end.as_ref(), span.end.as_ref()) {
                span.end.clone_from(&within.end);
            }
            is_before(Some(&span.from), span.end.as_ref())
        });
    }
}

/// Returns whether one bound comes before another. `None` comes after all others.
fn is_before<T: Ord>(a: Option<&T>, b: Option<&T>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a < b,
        (a, b) => a.is_some() && b.is_none(),
    }
}

/// Returns the smallest key that is greater than the given one.
pub(crate) fn successor(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// The keys from one key, inclusive, to another, exclusive. If `end` is `None`, there is no upper bound.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    from: Bytes,
    end: Option<Bytes>,
}

impl Interval {
    const PARTITIONS: Self =
        Self { from: Bytes::from_static(&[ENTITIES]), end: Some(Bytes::from_static(&[ENTITIES + 1])) };
    const ROWS: Self = Self { from: Bytes::new(), end: None };

    /// Returns the keys in `all` that compare with a key as the operator requires.
    fn of(operator: Operator, key: Bytes, all: &Self) -> Vec<Self> {
        let next = successor(&key);
        let below = |end| Self { from: all.from.clone(), end: Some(end) };
        let above = |from| Self { from, end: all.end.clone() };
        let intervals = match operator {
            Operator::Equal => vec![Self { from: key, end: Some(next) }],
            Operator::NotEqual => vec![below(key), above(next)],
            Operator::Less => vec![below(key)],
            Operator::LessOrEqual => vec![below(next)],
            Operator::Greater => vec![above(next)],
            Operator::GreaterOrEqual => vec![above(key)],
        };
        intervals.into_iter().filter(|interval| !interval.is_empty()).collect()
    }

    fn is_empty(&self) -> bool {
        !is_before(Some(&self.from), self.end.as_ref())
    }

    fn common(&self, other: &Self) -> Self {
        let is_first = is_before(self.end.as_ref(), other.end.as_ref());
        let end = if is_first { &self.end } else { &other.end };
        Self { from: self.from.clone().max(other.from.clone()), end: end.clone() }
    }

    fn is_one_key(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.strip_suffix(&[0]) == Some(&self.from))
    }
}

/// The product of a range of PartitionKeys and a range of RowKeys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Area {
    partitions: Interval,
    rows: Interval,
}

impl Area {
    fn common(&self, other: &Self) -> Option<Self> {
        let partitions = self.partitions.common(&other.partitions);
        let rows = self.rows.common(&other.rows);
        (!partitions.is_empty() && !rows.is_empty()).then_some(Self { partitions, rows })
    }

    /// Returns the smallest span that contains the area.
    fn into_span(self) -> RowSpan {
        let Interval { from, end } = self.partitions.clone();
        let whole = end.map(|end| (end, Bytes::new()));
        if !self.partitions.is_one_key() {
            return RowSpan { from: (from, Bytes::new()), end: whole };
        }
        let end = self.rows.end.map(|end| (from.clone(), end));
        RowSpan { from: (from, self.rows.from), end: end.or(whole) }
    }
}

/// Areas that contain all keys that can match.
#[derive(Clone, Debug)]
struct KeyCover(Vec<Area>);

impl KeyCover {
    fn all() -> Self {
        Self(vec![Area { partitions: Interval::PARTITIONS, rows: Interval::ROWS }])
    }

    fn constant(is: bool) -> Self {
        if is { Self::all() } else { Self(vec![]) }
    }

    fn and(self, other: Self) -> Self {
        if self.0.len() * other.0.len() > MAX_AREAS {
            // Each operand alone covers the intersection.
            return if self.0.len() < other.0.len() { self } else { other };
        }
        Self(self.0.iter().flat_map(|a| other.0.iter().filter_map(|b| a.common(b))).collect())
    }

    fn or(mut self, mut other: Self) -> Self {
        if self.0.len() + other.0.len() > MAX_AREAS {
            return Self::all();
        }
        self.0.append(&mut other.0);
        self
    }

    fn into_spans(self) -> Vec<RowSpan> {
        let mut sorted: Vec<RowSpan> = self.0.into_iter().map(Area::into_span).collect();
        sorted.sort_by(|a, b| a.from.cmp(&b.from));
        let mut spans: Vec<RowSpan> = Vec::with_capacity(sorted.len());
        for span in sorted {
            match spans.last_mut() {
                Some(last) if last.must_merge_with(&span) => {
                    if is_before(last.end.as_ref(), span.end.as_ref()) {
                        last.end = span.end;
                    }
                }
                _ => spans.push(span),
            }
        }
        spans
    }
}

/// Returns the keys that a filter, or its negation, can match.
fn cover(filter: &Filter, negated: bool) -> KeyCover {
    let each = |filters: &[Filter], join: fn(KeyCover, KeyCover) -> KeyCover| {
        filters.iter().map(|filter| cover(filter, negated)).reduce(join).unwrap_or_else(KeyCover::all)
    };
    match filter {
        Filter::Constant(is) => KeyCover::constant(*is != negated),
        Filter::Comparison(comparison) => cover_comparison(comparison, negated),
        Filter::Not(inner) => cover(inner, !negated),
        Filter::And(all) if negated => each(all, KeyCover::or),
        Filter::Or(all) if negated => each(all, KeyCover::and),
        Filter::And(all) => each(all, KeyCover::and),
        Filter::Or(all) => each(all, KeyCover::or),
    }
}

fn cover_comparison(comparison: &Comparison, negated: bool) -> KeyCover {
    let Comparison { property, operator, literal } = comparison;
    let operator = if negated { operator.negated() } else { *operator };
    let areas = match (property, literal) {
        (Property::PartitionKey, Value::String(key)) => {
            let intervals = Interval::of(operator, partition_key(key), &Interval::PARTITIONS);
            intervals.into_iter().map(|partitions| Area { partitions, rows: Interval::ROWS }).collect()
        }
        (Property::RowKey, Value::String(key)) => {
            let intervals = Interval::of(operator, row_key(key), &Interval::ROWS);
            intervals.into_iter().map(|rows| Area { partitions: Interval::PARTITIONS, rows }).collect()
        }
        // Keys are strings. Comparisons with literals of other types are false.
        (Property::PartitionKey | Property::RowKey, _) => return KeyCover::constant(negated),
        _ => return KeyCover::all(),
    };
    KeyCover(areas)
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Stamp;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::super::evaluate::FoundEntity;
    use super::*;
    use crate::entity::Entity;
    use crate::keys::Keys;

    fn ranges(text: &str) -> ScanRanges {
        ScanRanges::of(Some(&Filter::parse(text).unwrap()))
    }

    /// Formats spans as `partition/row..partition/row`. `+` marks the successor of a key, and `~` the end of
    /// the table.
    fn shown(ranges: &ScanRanges) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\0', "+");
        let place = |(partition, row): &Position| match partition.strip_prefix(&[ENTITIES]) {
            Some(partition) => format!("{}/{}", text(partition), text(row)),
            None => "~".into(),
        };
        let end = |span: &RowSpan| span.end.as_ref().map_or("~".into(), place);
        let spans = ranges.spans.iter().map(|span| format!("{}..{}", place(&span.from), end(span)));
        spans.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn filter_on_keys_becomes_ranges_of_rows() {
        assert_eq!(shown(&ScanRanges::of(None)), "/..~");
        for (text, expected) in [
            ("PartitionKey eq 'p'", "p/..p+/"),
            ("PartitionKey eq ''", "/..+/"),
            ("PartitionKey lt 'p'", "/..p/"),
            ("PartitionKey le 'p'", "/..p+/"),
            ("PartitionKey gt 'p'", "p+/..~"),
            ("PartitionKey ge 'p'", "p/..~"),
            ("'p' gt PartitionKey", "/..p/"),
            ("PartitionKey ne 'p'", "/..p/ p+/..~"),
            ("PartitionKey lt ''", ""),
            ("PartitionKey ge 'a' and PartitionKey lt 'b'", "a/..b/"),
            ("PartitionKey gt 'b' and PartitionKey lt 'a'", ""),
            ("PartitionKey eq 'a' and PartitionKey eq 'b'", ""),
            // If the partition is fixed, conditions on the RowKey narrow the range.
            ("PartitionKey eq 'p' and RowKey eq 'r'", "p/r..p/r+"),
            ("RowKey ge 'a' and PartitionKey eq 'p' and RowKey lt 'c'", "p/a..p/c"),
            ("PartitionKey eq 'p' and RowKey gt 'a'", "p/a+..p+/"),
            ("PartitionKey eq 'p' and RowKey le 'a'", "p/..p/a+"),
            ("PartitionKey ge 'p' and PartitionKey le 'p' and RowKey eq 'r'", "p/r..p/r+"),
            // Otherwise they do not.
            ("RowKey eq 'r'", "/..~"),
            ("PartitionKey ge 'p' and RowKey eq 'r'", "p/..~"),
            ("PartitionKey eq 'p' or RowKey eq 'r'", "/..~"),
            // Several partitions become several spans. Several rows of one partition become one span.
            ("PartitionKey eq 'b' or PartitionKey eq 'a'", "a/..a+/ b/..b+/"),
            ("PartitionKey eq 'a' or PartitionKey lt 'c'", "/..c/"),
            ("PartitionKey eq 'p' and (RowKey eq 'a' or RowKey eq 'c')", "p/a..p/c+"),
            ("PartitionKey eq 'p' and (RowKey lt 'b' or RowKey ge 'b')", "p/..p+/"),
            ("PartitionKey eq 'p' and RowKey ne 'r'", "p/..p+/"),
            (
                "(PartitionKey eq 'a' and RowKey eq '1') or (PartitionKey eq 'b' and RowKey eq '2')",
                "a/1..a/1+ b/2..b/2+",
            ),
            ("(PartitionKey eq 'a' or PartitionKey eq 'b') and RowKey lt '5'", "a/..a/5 b/..b/5"),
            // Negations.
            ("not (PartitionKey lt 'p')", "p/..~"),
            ("not (PartitionKey ne 'p' or RowKey ne 'r')", "p/r..p/r+"),
            ("not not (PartitionKey eq 'p')", "p/..p+/"),
            // Conditions on other properties narrow nothing.
            ("PartitionKey eq 'p' and A eq 5", "p/..p+/"),
            ("PartitionKey eq 'p' or A eq 5", "/..~"),
            ("not (A eq 5)", "/..~"),
            ("Timestamp gt datetime'2020-01-01'", "/..~"),
            // Constants.
            ("true", "/..~"),
            ("false", ""),
            ("PartitionKey eq 5", ""),
            ("not (RowKey ne 5)", "/..~"),
            ("PartitionKey eq 'p' or true", "/..~"),
        ] {
            assert_eq!(shown(&ranges(text)), expected, "{text}");
        }
    }

    #[test]
    fn scan_ranges_are_clipped_at_both_ends() {
        let at = |partition: &str, row: &str| (partition_key(partition), row_key(row));
        let mut ranges = ranges("PartitionKey lt 'b' or PartitionKey eq 'd' or PartitionKey gt 'f'");
        ranges.clip(&RowSpan { from: at("a", "5"), end: Some(at("g", "7")) });
        assert_eq!(shown(&ranges), "a/5..b/ d/..d+/ f+/..g/7");
        ranges.clip(&RowSpan { from: at("d", "x"), end: None });
        assert_eq!(shown(&ranges), "d/x..d+/ f+/..g/7");
        ranges.clip(&RowSpan { from: at("z", ""), end: None });
        assert_eq!(shown(&ranges), "");
    }

    #[test]
    fn too_many_areas_still_cover_all_matches() {
        let many = |key: &str, operator: &str| {
            (0..100).map(|i| format!("{key} {operator} 'k{i}'")).collect::<Vec<_>>().join(" or ")
        };
        let text = format!("({}) and ({})", many("PartitionKey", "ne"), many("RowKey", "ne"));
        assert_eq!(shown(&ranges(&text)), "/..~");
        let points = format!("({}) and RowKey eq 'r'", many("PartitionKey", "eq"));
        assert_eq!(ranges(&points).spans.len(), 100);
        // Every second of these conditions always holds, and the others hold for `a`.
        let deep = |n: usize| vec!["not (PartitionKey ne 'a'"; n].join(" and ") + &")".repeat(n);
        assert_eq!(shown(&ranges(&deep(256))), "/..~");
        assert_eq!(shown(&ranges(&deep(255))), "a/..a+/");
    }

    const KEYS: [&str; 9] = ["", "a", "a0", "b", "c", "ä", "\u{D7FF}", "😀", "\u{FF61}"];

    fn random_filter(rng: &mut StdRng, depth: usize) -> String {
        let operator = ["eq", "ne", "lt", "le", "gt", "ge"][rng.random_range(0..6)];
        let key = KEYS[rng.random_range(0..KEYS.len())];
        match rng.random_range(0..if depth == 0 { 5 } else { 9 }) {
            0 | 1 => format!("PartitionKey {operator} '{key}'"),
            2 | 3 => format!("'{key}' {operator} RowKey"),
            4 => ["V eq 1", "V ne 1", "Missing ne 1", "true", "RowKey ne 1"][rng.random_range(0..5)].into(),
            5 => format!("not ({})", random_filter(rng, depth - 1)),
            choice => {
                let joint = if choice == 6 { "and" } else { "or" };
                format!("({}) {joint} ({})", random_filter(rng, depth - 1), random_filter(rng, depth - 1))
            }
        }
    }

    #[test]
    fn scanned_rows_contain_every_match() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..3000 {
            let text = random_filter(&mut rng, 4);
            let filter = Filter::parse(&text).unwrap();
            let ranges = ScanRanges::of(Some(&filter));
            for pair in ranges.spans.windows(2) {
                let end = pair[0].end.as_ref().unwrap();
                assert!(*end < pair[1].from, "spans are not in order: {text}");
                assert!(end.0 != pair[1].from.0 || end.1.is_empty(), "a partition lies in two spans: {text}");
            }
            for (partition, row) in KEYS.iter().flat_map(|p| KEYS.iter().map(move |r| (*p, *r))) {
                let keys = Keys { partition: partition.into(), row: row.into() };
                let entity = Entity { properties: vec![("V".into(), Value::Int32(rng.random_range(0..2)))] };
                let found = FoundEntity { keys: &keys, stamp: Stamp::from_ticks(1), entity: &entity };
                let matches = filter.matches(&found);
                let at = (partition_key(partition), row_key(row));
                let is_read = ranges.spans.iter().any(|span| span.contains(&at));
                assert!(is_read || !matches, "{keys:?} is missed by {text}");
            }
        }
    }
}
