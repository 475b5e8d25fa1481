//! Tests of columns. For random entities and filters, the bits must equal the result of [`Filter::matches`].

use lazuli_concurrency::Stamp;
use lazuli_store::{MAX_RUN_ROWS, RunBuilder, Token};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::filter::Operator;
use crate::filter::evaluate::FoundEntity;

const NAMES: [&str; 5] = ["A", "B", "C", "D", "E"];
const TEXTS: [&str; 10] = ["", "a", "ab", "b", "ä", "\u{D7FF}", "日本", "😀", "😀a", "\u{FF61}"];
const DOUBLES: [f64; 9] =
    [f64::NAN, f64::NEG_INFINITY, -1.5, -0.0, 0.0, 1.0, 2.5, 9_007_199_254_740_993.0, f64::INFINITY];
const WHOLE: [i64; 6] = [i64::MIN, -1, 0, 1, 9_007_199_254_740_993, i64::MAX];
const TYPES: usize = 8;

fn pick<T: Copy>(rng: &mut StdRng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

/// Returns a random value of a type, from few different ones.
fn value(rng: &mut StdRng, edm: usize) -> Value<'static> {
    match edm {
        0 => Value::String(pick(rng, &TEXTS).into()),
        1 => Value::Boolean(rng.random_bool(0.5)),
        2 => Value::Int32(pick(rng, &[i32::MIN, -1, 0, 1, i32::MAX])),
        3 => Value::Int64(pick(rng, &WHOLE)),
        4 => Value::Double(pick(rng, &DOUBLES)),
        5 => Value::DateTime(pick(rng, &[0, 5, 6, u64::MAX])),
        6 => Value::Guid(pick(rng, &[[0; 16], [7; 16], [0xFF; 16]])),
        _ => Value::Binary(pick(rng, &[&b""[..], b"\0", b"ab", b"\xFF"]).into()),
    }
}

/// The distribution of a property's values over a run.
struct PropertyProfile {
    /// The fraction of rows that have the property.
    frequency: f64,
    /// The type of all values; `None` if types are mixed.
    edm: Option<usize>,
}

struct RandomRows {
    keys: Vec<Keys>,
    entities: Vec<Entity<'static>>,
    run: Run,
}

fn token(row: usize) -> Token {
    Token(Stamp::from_ticks(row as u64 % 9))
}

/// Returns a run of random entities. They are not in the order of keys, which filters do not need.
fn random_rows(rng: &mut StdRng) -> RandomRows {
    let max_rows = pick(rng, &[2, 70, MAX_RUN_ROWS]);
    let profiles = NAMES.map(|_| PropertyProfile {
        frequency: pick(rng, &[0.0, 0.5, 1.0]),
        edm: rng.random_bool(0.8).then(|| rng.random_range(0..TYPES)),
    });
    let (mut keys, mut entities, mut builder) = (vec![], vec![], RunBuilder::default());
    for row in 0..rng.random_range(0..=max_rows) {
        let mut properties = vec![];
        for (name, PropertyProfile { frequency, edm }) in NAMES.into_iter().zip(&profiles) {
            if rng.random_bool(*frequency) {
                let edm = edm.unwrap_or_else(|| rng.random_range(0..TYPES));
                properties.push((name.into(), value(rng, edm)));
            }
        }
        let own = Keys { partition: pick(rng, &TEXTS).into(), row: pick(rng, &TEXTS).into() };
        let entity = Entity { properties };
        let stored = entity.encode().unwrap();
        builder.add(&partition_key(&own.partition), &row_key(&own.row), &stored, token(row));
        keys.push(own);
        entities.push(entity);
    }
    RandomRows { keys, entities, run: builder.finish() }
}

fn random_filter(rng: &mut StdRng, depth: usize) -> Filter {
    let several = |rng: &mut StdRng| (0..3).map(|_| random_filter(rng, depth - 1)).collect();
    match rng.random_range(0..if depth == 0 { 6 } else { 10 }) {
        0 => Filter::Constant(rng.random_bool(0.5)),
        1..6 => {
            let property = match rng.random_range(0..8) {
                0 => Property::PartitionKey,
                1 => Property::RowKey,
                2 => Property::Timestamp,
                _ => Property::Named(pick(rng, &NAMES).into()),
            };
            let operator = pick(
                rng,
                &[
                    Operator::Equal,
                    Operator::NotEqual,
                    Operator::Less,
                    Operator::LessOrEqual,
                    Operator::Greater,
                    Operator::GreaterOrEqual,
                ],
            );
            let edm = match property {
                Property::PartitionKey | Property::RowKey if rng.random_bool(0.9) => 0,
                Property::Timestamp if rng.random_bool(0.9) => 5,
                _ => rng.random_range(0..TYPES),
            };
            Filter::Comparison(Comparison { property, operator, literal: value(rng, edm) })
        }
        6 => Filter::Not(Box::new(random_filter(rng, depth - 1))),
        7 | 8 => Filter::And(several(rng)),
        _ => Filter::Or(several(rng)),
    }
}

#[test]
fn columns_match_the_same_rows_as_the_filter() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut matches, mut others) = (0, 0);
    for _ in 0..150 {
        let RandomRows { keys, entities, run } = random_rows(&mut rng);
        for _ in 0..40 {
            let filter = random_filter(&mut rng, 3);
            let Some(run_filter) = RunFilter::new(&filter) else { continue };
            let RunMatches { matching, end, .. } = run_filter.evaluate(&run);
            assert_eq!(end, run.len());
            let found: Vec<_> = matching.within(0..run.len()).collect();
            let expected = (0..run.len()).filter(|row| {
                let (keys, entity) = (&keys[*row], &entities[*row]);
                filter.matches(&FoundEntity { keys, stamp: token(*row).0, entity })
            });
            let expected: Vec<_> = expected.collect();
            assert_eq!(found, expected, "{filter:?} of {entities:?}");
            (matches, others) = (matches + found.len(), others + run.len() - found.len());
        }
    }
    assert!(matches > 10_000 && others > 10_000, "{matches} {others}");
}

/// Builds a run of entities with one Int32 property each.
fn numbered_run(count: usize, name: &str) -> RunBuilder {
    let mut run = RunBuilder::default();
    for row in 0..count {
        let entity = Entity { properties: vec![(name.to_owned().into(), Value::Int32(row as i32))] };
        run.add(b"ep", row.to_string().as_bytes(), &entity.encode().unwrap(), token(row));
    }
    run
}

fn evaluated(run: &Run, text: &str) -> RunMatches {
    RunFilter::new(&Filter::parse(text).unwrap()).unwrap().evaluate(run)
}

#[test]
fn column_is_built_once_and_the_oldest_is_evicted_first() {
    let run = numbered_run(100, "N").finish();
    for (text, decoded) in [
        ("N eq 5", true),
        ("N lt 5", false),
        ("N lt 5 and M eq 5", true),
        ("M ne 5 or not (N gt 7)", false),
        ("Timestamp lt datetime'2020-01-01'", false),
    ] {
        assert_eq!(evaluated(&run, text).decoded, decoded, "{text}");
    }
    // Each of these columns takes at least 400 bytes, and the limit is 6400.
    for i in 0..40 {
        assert!(evaluated(&run, &format!("M{i} eq 5 or N{i} eq 5")).decoded);
        assert!(!evaluated(&run, &format!("M{i} eq 5")).decoded);
    }
    assert!(evaluated(&run, "N eq 5").decoded, "the oldest column was evicted");
    let kept = run.memo(ColumnCache::default).unwrap().0.lock();
    let bytes: usize = kept.columns.iter().map(|(_, column)| column.bytes()).sum();
    assert!(bytes <= kept.bytes && kept.bytes <= run.memo_bytes() && kept.columns.len() > 4);
}

#[test]
fn page_is_charged_for_the_cost_of_a_run() {
    let run = Arc::new(numbered_run(128, "N").finish());
    let many = vec!["N eq 5"; 64].join(" or ");
    for (kept, text, cost) in [
        (false, "N eq 1", 128),
        (true, "N eq 1", 3),
        (true, "M eq 1", 3 + 64),
        (true, "N eq 1 and N eq 2 and M eq 3 and M eq 4", 3),
        (true, &many, 3 * 16),
        (false, &many, 128),
    ] {
        let filter = Filter::parse(text).unwrap();
        let run_filter = RunFilter::new(&filter).unwrap();
        let matches = run_filter.evaluate(&run);
        let stretch = Stretch { run: run.clone(), rows: 0..run.len(), kept };
        assert_eq!(run_filter.cost(&stretch, &matches).0, cost, "{text}");
    }
}

#[test]
fn rows_are_evaluated_up_to_the_first_undecodable_one() {
    for damaged in
        [(&b"ep"[..], &b"k"[..], &b"\x01\xFF"[..]), (b"ep", b"\xFF", b"\x01\0"), (b"x", b"", b"\x01\0")]
    {
        let mut run = numbered_run(5, "N");
        run.add(damaged.0, damaged.1, damaged.2, token(5));
        let entity = Entity { properties: vec![("N".into(), Value::Int32(3))] };
        run.add(b"ep", b"z", &entity.encode().unwrap(), token(6));
        let run = run.finish();
        for text in ["N ge 3", "N ge 3 or Missing", "not (N lt 3)"] {
            let RunMatches { matching, end, .. } = evaluated(&run, text);
            assert_eq!((end, matching.within(0..end).collect::<Vec<_>>()), (5, vec![3, 4]), "{text}");
        }
    }
}

#[test]
fn runs_are_used_only_by_filters_that_need_every_row() {
    for (text, expected) in [
        ("PartitionKey eq 'p'", false),
        ("PartitionKey eq 'p' and RowKey gt 'r'", false),
        ("true", false),
        ("RowKey eq 'r'", true),
        ("Timestamp gt datetime'2020-01-01'", true),
        ("PartitionKey eq 'p' and not (RowKey eq 'r' or A)", true),
    ] {
        assert_eq!(RunFilter::new(&Filter::parse(text).unwrap()).is_some(), expected, "{text}");
    }
}
