//! Tests kept runs against a model of the store, and each reason for dropping them.

use lazuli_concurrency::Stamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::run::RunBuilder;
use crate::{Partition, Token};

const SPACE: SpaceId = SpaceId(7);
const KEYS: u8 = 16;
const READERS: usize = 3;
/// Enough for about eight runs of the tests.
const BUDGET: usize = 8 * 1100;

fn key(i: u8) -> Bytes {
    keys::row(&keys::prefix(&Partition::new(SPACE, "p")), &[i])
}

fn end() -> Bytes {
    keys::space_end(SPACE)
}

/// Row numbers, each with the sequence number that wrote the row.
type Rows = BTreeMap<u8, SeqNo>;

fn run_of(rows: &Rows, within: &Range<Bytes>) -> Arc<Run> {
    let mut run = RunBuilder::default();
    for (i, written) in rows.iter().filter(|(i, _)| within.contains(&key(**i))) {
        run.add(b"p", &[*i], &written.to_le_bytes(), Token(Stamp::from_ticks(*written)));
    }
    Arc::new(run.finish())
}

fn rows_of(run: &Run) -> Vec<(u8, SeqNo)> {
    (0..run.len()).map(|row| (run.key(row)[0], run.token(row).0.ticks())).collect()
}

/// The state of a reader. Other steps may happen between two of its steps.
enum Reader<'a> {
    Idle,
    Watching(Watch<'a>),
    Visiting(Watch<'a>, SeqNo, Bytes),
    ReadingDone(Watch<'a>, SeqNo, Range<Bytes>, Arc<Run>),
}

/// A store that remembers all of its states, and the state of its committer.
struct Model {
    states: BTreeMap<SeqNo, Rows>,
    published: SeqNo,
    invalidated: Option<SeqNo>,
}

impl Model {
    fn commit(&mut self, runs: &Runs, rng: &mut StdRng) {
        if let Some(invalidated) = self.invalidated.take() {
            self.published = invalidated;
            return;
        }
        let mut rows = self.states[&self.published].clone();
        let (seqno, mut changed) = (self.published, vec![]);
        for _ in 0..rng.random_range(1..3) {
            let i = rng.random_range(0..KEYS);
            changed.push(key(i));
            if rng.random_bool(0.3) {
                rows.remove(&i)
            } else {
                rows.insert(i, seqno)
            };
        }
        runs.invalidate(changed.iter(), seqno + 1);
        self.states.insert(seqno + 1, rows);
        self.invalidated = Some(seqno + 1);
    }

    /// Executes one step of a reader. Returns the number of runs that it found.
    fn read<'a>(&self, runs: &'a Runs, reader: Reader<'a>, rng: &mut StdRng) -> (Reader<'a>, usize) {
        match reader {
            Reader::Idle => (Reader::Watching(runs.watch(SPACE)), 0),
            Reader::Watching(watch) => {
                (Reader::Visiting(watch, self.published, key(rng.random_range(0..KEYS))), 0)
            }
            Reader::Visiting(_, _, at) if at >= end() => (Reader::Idle, 0),
            Reader::Visiting(watch, snapshot, at) => match runs.find(SPACE, &at, &end(), snapshot) {
                RunLookup::Run(run, range) => {
                    assert!(range.contains(&at));
                    assert_eq!(rows_of(&run), rows_of(&run_of(&self.states[&snapshot], &range)));
                    (Reader::Visiting(watch, snapshot, range.end), 1)
                }
                RunLookup::Gap(until) => {
                    let to = key(rng.random_range(0..KEYS));
                    let range = at.clone()..if to > at { to } else { until };
                    let run = run_of(&self.states[&snapshot], &range);
                    (Reader::ReadingDone(watch, snapshot, range, run), 0)
                }
            },
            Reader::ReadingDone(watch, snapshot, range, run) => {
                watch.keep(range.clone(), run, snapshot);
                (Reader::Visiting(watch, snapshot, range.end), 0)
            }
        }
    }
}

#[test]
fn readers_see_the_rows_of_their_snapshots() {
    let mut hits = 0;
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let writes = rng.random_range(0.02..0.5);
        let runs = Runs::new(BUDGET);
        let mut model = Model { states: [(1, Rows::new())].into(), published: 1, invalidated: None };
        let mut readers = [const { Reader::Idle }; READERS];
        for _ in 0..800 {
            if rng.random_bool(writes) {
                model.commit(&runs, &mut rng);
                continue;
            }
            let index = rng.random_range(0..READERS);
            let reader = std::mem::replace(&mut readers[index], Reader::Idle);
            let (reader, found) = model.read(&runs, reader, &mut rng);
            (readers[index], hits) = (reader, hits + found);
            assert!(runs.bytes() <= BUDGET);
        }
        drop(readers);
        runs.invalidate([Bytes::copy_from_slice(&keys::header(SPACE))].iter(), model.published + 2);
        let state = runs.state.lock();
        assert!(state.spaces.is_empty() && state.evictable.is_empty() && state.bytes == 0);
        assert_eq!(runs.users.load(Ordering::SeqCst), 0);
    }
    assert!(hits > 10_000, "too few runs were found to say anything: {hits}");
}

fn keep(runs: &Runs, space: SpaceId, range: Range<Bytes>) {
    runs.watch(space).keep(range, Arc::new(RunBuilder::default().finish()), 1);
}

fn is_kept(runs: &Runs, space: SpaceId, at: &Bytes) -> bool {
    matches!(runs.find(space, at, &keys::space_end(space), 1), RunLookup::Run(..))
}

#[test]
fn change_drops_the_run_that_contains_it_and_no_other() {
    let runs = Runs::new(1 << 20);
    let other = |i| keys::row(&keys::prefix(&Partition::new(SpaceId(8), "p")), &[i]);
    keep(&runs, SPACE, key(0)..key(4));
    keep(&runs, SPACE, key(4)..key(8));
    keep(&runs, SpaceId(8), other(0)..other(8));
    runs.invalidate([key(4), key(9), other(8)].iter(), 1);
    assert!(is_kept(&runs, SPACE, &key(3)) && !is_kept(&runs, SPACE, &key(4)));
    runs.invalidate([Bytes::copy_from_slice(&keys::header(SPACE))].iter(), 1);
    assert!(!is_kept(&runs, SPACE, &key(3)) && is_kept(&runs, SpaceId(8), &other(7)));
}

#[test]
fn run_is_found_only_by_snapshots_that_are_not_older() {
    let runs = Runs::new(1 << 20);
    runs.watch(SPACE).keep(key(0)..key(4), Arc::new(RunBuilder::default().finish()), 5);
    let is_found = |snapshot| matches!(runs.find(SPACE, &key(1), &end(), snapshot), RunLookup::Run(..));
    assert!(!is_found(4) && is_found(5) && is_found(6));
}

#[test]
fn watch_drops_changed_runs_and_all_runs_after_overflow_or_late_start() {
    let runs = Runs::new(1 << 20);
    let run = || Arc::new(RunBuilder::default().finish());
    let watch = runs.watch(SPACE);
    runs.invalidate([key(2)].iter(), 1);
    watch.keep(key(0)..key(3), run(), 1);
    assert!(!is_kept(&runs, SPACE, &key(0)), "the run changed");
    watch.keep(key(3)..key(4), run(), 1);
    assert!(is_kept(&runs, SPACE, &key(3)), "the run did not change");
    for _ in 0..MAX_CHANGED_KEYS {
        runs.invalidate([key(9)].iter(), 1);
    }
    watch.keep(key(4)..key(5), run(), 1);
    assert!(!is_kept(&runs, SPACE, &key(4)), "too much changed");
    runs.invalidate([key(6)].iter(), 2);
    runs.watch(SPACE).keep(key(6)..key(7), run(), 1);
    assert!(
        !is_kept(&runs, SPACE, &key(6)),
        "invalidated before the watch began, but not published in the snapshot"
    );
    let _watches: Vec<_> = (0..MAX_WATCHES).map(|_| runs.watch(SPACE)).collect();
    runs.watch(SPACE).keep(key(6)..key(7), run(), 2);
    assert!(!is_kept(&runs, SPACE, &key(6)), "one too many");
}

#[test]
fn gap_ends_at_a_run_that_is_not_short() {
    let runs = Runs::new(1 << 20);
    let of = |rows: usize| {
        let mut run = RunBuilder::default();
        (0..rows).for_each(|_| run.add(b"p", b"k", b"", Token(Stamp::from_ticks(1))));
        Arc::new(run.finish())
    };
    runs.watch(SPACE).keep(key(2)..key(3), of(SHORT_RUN_ROWS - 1), 1);
    runs.watch(SPACE).keep(key(5)..key(6), of(SHORT_RUN_ROWS), 1);
    let gap = |end: u8| match runs.find(SPACE, &key(1), &key(end), 1) {
        RunLookup::Gap(until) => until,
        RunLookup::Run(..) => panic!("no run is kept there"),
    };
    assert_eq!((gap(4), gap(5), gap(9)), (key(4), key(5), key(5)));
}

#[test]
fn run_larger_than_its_part_of_the_budget_is_not_kept() {
    let runs = Runs::new(BUDGET);
    let mut run = RunBuilder::default();
    run.add(b"p", b"k", &[0; BUDGET / MIN_RUNS_IN_BUDGET], Token(Stamp::from_ticks(1)));
    runs.watch(SPACE).keep(key(0)..key(1), Arc::new(run.finish()), 1);
    assert!(!is_kept(&runs, SPACE, &key(0)) && runs.bytes() == 0);
}
