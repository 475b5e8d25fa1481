//! Which keys a filter can match, so that a query reads no others.
//!
//! An [`Area`] is a range of PartitionKeys by a range of RowKeys. What a filter says of keys becomes a list of them; what
//! it says of other properties does not narrow them. From the areas come [`Span`]s, which the store can read. A partition
//! lies in one span only: the store reads a span in one snapshot, so nobody sees half of a transaction.

use bytes::Bytes;

use super::{Comparison, Filter, Operator, Property};
use crate::keys::{ENTITIES, partition_key, row_key};
use crate::value::Value;

/// Areas that a filter is taken apart into: two for every comparison, and then some.
const MAX_AREAS: usize = 1024;

/// The place of a row: its partition key and its own, as the store has them. It need not exist.
pub(crate) type Position = (Bytes, Bytes);

/// The rows from one place on and below another, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: Position,
    pub(crate) end: Option<Position>,
}

impl Span {
    /// Whether a row lies in it.
    pub(crate) fn contains(&self, at: &Position) -> bool {
        self.from <= *at && is_before(Some(at), self.end.as_ref())
    }

    /// Whether one that begins later has to be read with it: they overlap, touch, or have a partition in common.
    fn goes_on_in(&self, later: &Self) -> bool {
        let Some(end) = &self.end else { return true };
        *end >= later.from || (end.0 == later.from.0 && !end.1.is_empty())
    }
}

/// The rows that a query has to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// In order, and no partition in two of them.
    pub(crate) spans: Vec<Span>,
}

impl Reach {
    /// What a filter can match; without one, everything.
    pub(crate) fn of(filter: Option<&Filter>) -> Self {
        Self { spans: filter.map_or_else(Cover::all, |filter| cover(filter, false)).into_spans() }
    }

    /// Leaves only what lies in a span.
    pub(crate) fn clip(&mut self, within: &Span) {
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

/// Whether one end comes before another; none is behind everything.
fn is_before<T: Ord>(a: Option<&T>, b: Option<&T>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a < b,
        (a, b) => a.is_some() && b.is_none(),
    }
}

/// The first key behind another one.
pub(crate) fn after(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// Keys from one on and below another, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    from: Bytes,
    end: Option<Bytes>,
}

impl Interval {
    const PARTITIONS: Self =
        Self { from: Bytes::from_static(&[ENTITIES]), end: Some(Bytes::from_static(&[ENTITIES + 1])) };
    const ROWS: Self = Self { from: Bytes::new(), end: None };

    /// Those of `all` that compare so with a key.
    fn of(operator: Operator, key: Bytes, all: &Self) -> Vec<Self> {
        let next = after(&key);
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

/// PartitionKeys by RowKeys.
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

    /// What has to be read for it.
    fn into_span(self) -> Span {
        let Interval { from, end } = self.partitions.clone();
        let whole = end.map(|end| (end, Bytes::new()));
        if !self.partitions.is_one_key() {
            return Span { from: (from, Bytes::new()), end: whole };
        }
        let end = self.rows.end.map(|end| (from.clone(), end));
        Span { from: (from, self.rows.from), end: end.or(whole) }
    }
}

/// Areas that hold every key that can match.
#[derive(Clone, Debug)]
struct Cover(Vec<Area>);

impl Cover {
    fn all() -> Self {
        Self(vec![Area { partitions: Interval::PARTITIONS, rows: Interval::ROWS }])
    }

    fn constant(is: bool) -> Self {
        if is { Self::all() } else { Self(vec![]) }
    }

    fn and(self, other: Self) -> Self {
        if self.0.len() * other.0.len() > MAX_AREAS {
            // Each of them holds what both do.
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

    fn into_spans(self) -> Vec<Span> {
        let mut sorted: Vec<Span> = self.0.into_iter().map(Area::into_span).collect();
        sorted.sort_by(|a, b| a.from.cmp(&b.from));
        let mut spans: Vec<Span> = Vec::with_capacity(sorted.len());
        for span in sorted {
            match spans.last_mut() {
                Some(last) if last.goes_on_in(&span) => {
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

/// The keys that a filter, or its negation, can match.
fn cover(filter: &Filter, negated: bool) -> Cover {
    let each = |filters: &[Filter], join: fn(Cover, Cover) -> Cover| {
        filters.iter().map(|filter| cover(filter, negated)).reduce(join).unwrap_or_else(Cover::all)
    };
    match filter {
        Filter::Constant(is) => Cover::constant(*is != negated),
        Filter::Comparison(comparison) => compared(comparison, negated),
        Filter::Not(inner) => cover(inner, !negated),
        Filter::And(all) if negated => each(all, Cover::or),
        Filter::Or(all) if negated => each(all, Cover::and),
        Filter::And(all) => each(all, Cover::and),
        Filter::Or(all) => each(all, Cover::or),
    }
}

fn compared(comparison: &Comparison, negated: bool) -> Cover {
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
        // Keys are strings: nothing else is comparable with them.
        (Property::PartitionKey | Property::RowKey, _) => return Cover::constant(negated),
        _ => return Cover::all(),
    };
    Cover(areas)
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Stamp;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::super::evaluate::Found;
    use super::*;
    use crate::entity::Entity;
    use crate::keys::Keys;

    fn reach(text: &str) -> Reach {
        Reach::of(Some(&Filter::parse(text).unwrap()))
    }

    /// Spans as `partition/row..partition/row`, with `+` behind what is left out and `~` for the end of all.
    fn shown(reach: &Reach) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\0', "+");
        let place = |(partition, row): &Position| match partition.strip_prefix(&[ENTITIES]) {
            Some(partition) => format!("{}/{}", text(partition), text(row)),
            None => "~".into(),
        };
        let end = |span: &Span| span.end.as_ref().map_or("~".into(), place);
        let spans = reach.spans.iter().map(|span| format!("{}..{}", place(&span.from), end(span)));
        spans.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_filter_on_keys_becomes_a_range_of_rows() {
        assert_eq!(shown(&Reach::of(None)), "/..~");
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
            // With the partition given, rows are given too.
            ("PartitionKey eq 'p' and RowKey eq 'r'", "p/r..p/r+"),
            ("RowKey ge 'a' and PartitionKey eq 'p' and RowKey lt 'c'", "p/a..p/c"),
            ("PartitionKey eq 'p' and RowKey gt 'a'", "p/a+..p+/"),
            ("PartitionKey eq 'p' and RowKey le 'a'", "p/..p/a+"),
            ("PartitionKey ge 'p' and PartitionKey le 'p' and RowKey eq 'r'", "p/r..p/r+"),
            // Without it they are not.
            ("RowKey eq 'r'", "/..~"),
            ("PartitionKey ge 'p' and RowKey eq 'r'", "p/..~"),
            ("PartitionKey eq 'p' or RowKey eq 'r'", "/..~"),
            // Several partitions are several spans, several rows of one are one.
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
            // Negations turn around.
            ("not (PartitionKey lt 'p')", "p/..~"),
            ("not (PartitionKey ne 'p' or RowKey ne 'r')", "p/r..p/r+"),
            ("not not (PartitionKey eq 'p')", "p/..p+/"),
            // What else is asked narrows nothing.
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
            assert_eq!(shown(&reach(text)), expected, "{text}");
        }
    }

    #[test]
    fn a_reach_is_clipped_at_both_ends() {
        let at = |partition: &str, row: &str| (partition_key(partition), row_key(row));
        let mut reach = reach("PartitionKey lt 'b' or PartitionKey eq 'd' or PartitionKey gt 'f'");
        reach.clip(&Span { from: at("a", "5"), end: Some(at("g", "7")) });
        assert_eq!(shown(&reach), "a/5..b/ d/..d+/ f+/..g/7");
        reach.clip(&Span { from: at("d", "x"), end: None });
        assert_eq!(shown(&reach), "d/x..d+/ f+/..g/7");
        reach.clip(&Span { from: at("z", ""), end: None });
        assert_eq!(shown(&reach), "");
    }

    #[test]
    fn more_areas_than_can_be_kept_are_still_a_cover() {
        let many = |key: &str, operator: &str| {
            (0..100).map(|i| format!("{key} {operator} 'k{i}'")).collect::<Vec<_>>().join(" or ")
        };
        let text = format!("({}) and ({})", many("PartitionKey", "ne"), many("RowKey", "ne"));
        assert_eq!(shown(&reach(&text)), "/..~");
        let points = format!("({}) and RowKey eq 'r'", many("PartitionKey", "eq"));
        assert_eq!(reach(&points).spans.len(), 100);
        // Of these every second one always holds, and the others hold for `a`.
        let deep = |n: usize| vec!["not (PartitionKey ne 'a'"; n].join(" and ") + &")".repeat(n);
        assert_eq!(shown(&reach(&deep(256))), "/..~");
        assert_eq!(shown(&reach(&deep(255))), "a/..a+/");
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
    fn the_rows_that_are_read_hold_every_match() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..3000 {
            let text = random_filter(&mut rng, 4);
            let filter = Filter::parse(&text).unwrap();
            let reach = Reach::of(Some(&filter));
            for pair in reach.spans.windows(2) {
                let end = pair[0].end.as_ref().unwrap();
                assert!(*end < pair[1].from, "in order: {text}");
                assert!(end.0 != pair[1].from.0 || end.1.is_empty(), "one partition, one span: {text}");
            }
            for (partition, row) in KEYS.iter().flat_map(|p| KEYS.iter().map(move |r| (*p, *r))) {
                let keys = Keys { partition: partition.into(), row: row.into() };
                let entity = Entity { properties: vec![("V".into(), Value::Int32(rng.random_range(0..2)))] };
                let found = Found { keys: &keys, stamp: Stamp::from_ticks(1), entity: &entity };
                let matches = filter.matches(&found);
                let at = (partition_key(partition), row_key(row));
                let is_read = reach.spans.iter().any(|span| span.contains(&at));
                assert!(is_read || !matches, "{keys:?} is missed by {text}");
            }
        }
    }
}
