//! The conformance suite that every engine's tests run.
//!
//! [`run`] checks the guarantees one by one. [`histories`] runs many clients on one partition and checks what
//! they observed with [`crate::history`].

mod taking_turns;

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::{ManualClock, Span, Stamp, Timestamp};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::history::{History, Observed};
use crate::{
    Change, Commit, CommitError, Condition, Decision, Gate, Mutation, Partition, Reads, Row, SpaceHeader,
    SpaceId, Store, Stretch, Token, TransactError, Visited, Which, transact,
};

/// Opens the engine under test for the suite.
pub trait Harness: Send + Sync {
    /// Whether a commit without conditions conflicts if its stamp is below that of a removed row. Engines
    /// with several front ends do not remember removals, so services write such commits only to new keys.
    const REMEMBERS_REMOVALS: bool = true;

    /// Opens the engine with the given clock, on the same data each time. Several front ends on the same data
    /// are opened as one [`TakingTurns`].
    fn open(&self, clock: Arc<ManualClock>) -> impl Future<Output = Arc<dyn Store>> + Send;
}

pub use taking_turns::TakingTurns;

const OPEN: SpaceHeader = SpaceHeader { epoch: 3, open: true };

/// A store under test and a space in it.
struct TestSpace {
    store: Arc<dyn Store>,
    space: SpaceId,
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_750_000_000)))
}

fn key(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(k: &str, v: &str) -> Mutation {
    Mutation::Put(key(k), key(v))
}

impl TestSpace {
    async fn new(store: Arc<dyn Store>) -> Self {
        let space = store.new_space().await.expect("a space id");
        store.set_space(space, None, OPEN).await.expect("a new space opens");
        Self { store, space }
    }

    fn partition(&self, name: &str) -> Partition {
        Partition::new(self.space, key(name))
    }

    fn change(&self, conditions: Vec<Condition>, mutations: Vec<Mutation>) -> Commit {
        let stamp = self.store.stamp();
        Commit {
            stamp,
            epoch: OPEN.epoch,
            conditions,
            mutations,
            valid_until: None,
            fence: None,
            bulk: false,
        }
    }

    async fn commit(&self, c: Vec<Condition>, m: Vec<Mutation>) -> Result<(), CommitError> {
        let commit = self.change(c, m);
        self.store.commit(&self.partition("p"), commit).await
    }

    async fn get(&self, k: &str) -> Option<(String, crate::Token)> {
        let set = self.store.read(&self.partition("p"), &Reads::key(key(k))).await.expect("readable");
        set.rows[0].as_ref().map(|row| (String::from_utf8_lossy(&row.value).into(), row.token))
    }

    async fn scan(&self, from: &str, to: &str, limit: usize) -> crate::Scanned {
        let reads = Reads::default().and_range(key(from)..key(to), limit);
        self.store.read(&self.partition("p"), &reads).await.expect("readable").ranges.remove(0)
    }
}

/// Runs the whole suite. Panics with the guarantee that was violated.
pub async fn run(harness: &impl Harness) {
    let store = harness.open(clock()).await;
    conditions_hold_or_nothing_happens(&TestSpace::new(store.clone()).await).await;
    ranges_have_tokens_even_when_empty(&TestSpace::new(store.clone()).await).await;
    stamps_grow_within_a_row(&TestSpace::new(store.clone()).await, remembers(harness)).await;
    mutations_take_effect_in_order(&TestSpace::new(store.clone()).await).await;
    counters_never_conflict(&TestSpace::new(store.clone()).await).await;
    scans_are_ordered_and_limited(&TestSpace::new(store.clone()).await).await;
    scans_over_a_space_go_by_partition(&TestSpace::new(store.clone()).await).await;
    scans_over_a_space_are_bounded_in_bytes(&TestSpace::new(store.clone()).await).await;
    runs_have_the_rows_of_a_scan(&TestSpace::new(store.clone()).await).await;
    visits_in_runs_are_bounded(&TestSpace::new(store.clone()).await).await;
    closed_space_and_old_epoch_refuse_commits(&TestSpace::new(store.clone()).await).await;
    limits_are_refused(&TestSpace::new(store.clone()).await).await;
    concurrent_rules_lose_no_update(&TestSpace::new(store.clone()).await).await;
    drop(store);
    deadlines_are_checked_at_commit(harness).await;
    everything_survives_a_restart_and_a_clock_set_back(harness).await;
}

async fn conditions_hold_or_nothing_happens(test: &TestSpace) {
    let absent = |k| Condition::Absent(key(k));
    test.commit(vec![absent("a")], vec![put("a", "1")]).await.expect("absent holds");
    let (value, token) = test.get("a").await.expect("written");
    assert_eq!(value, "1");
    let again = test.commit(vec![absent("b"), absent("a")], vec![put("b", "x"), put("a", "x")]).await;
    assert_eq!(again, Err(CommitError::Conflict));
    assert_eq!(test.get("b").await, None, "a refused commit leaves nothing");

    let unchanged = |t| Condition::Unchanged(key("a"), t);
    test.commit(vec![unchanged(token)], vec![put("a", "2")]).await.expect("unchanged holds");
    let stale = test.commit(vec![unchanged(token)], vec![put("a", "3")]).await;
    assert_eq!(stale, Err(CommitError::Conflict), "a stale token is refused");
    let (value, newer) = test.get("a").await.expect("still there");
    assert!(value == "2" && newer > token);
    test.commit(vec![], vec![Mutation::Delete(key("a"))]).await.expect("deleted");
    assert_eq!(test.commit(vec![unchanged(newer)], vec![]).await, Err(CommitError::Conflict));
    assert_eq!(test.get("a").await, None);
}

async fn ranges_have_tokens_even_when_empty(test: &TestSpace) {
    let unchanged = |s: &crate::Scanned| Condition::RangeUnchanged(s.range.clone(), s.token);
    let empty = test.scan("a", "m", 10).await;
    assert!(empty.rows.is_empty() && !empty.more);
    test.commit(vec![unchanged(&empty)], vec![put("z", "outside")]).await.expect("outside does not matter");
    test.commit(vec![unchanged(&empty)], vec![put("b", "1")]).await.expect("still empty");
    let phantom = test.commit(vec![unchanged(&empty)], vec![put("z", "x")]).await;
    assert_eq!(phantom, Err(CommitError::Conflict), "a phantom is seen");

    for changed in [put("b", "2"), put("c", "new"), Mutation::Delete(key("b"))] {
        let before = test.scan("a", "m", 10).await;
        test.commit(vec![], vec![changed.clone()]).await.expect("changed");
        assert_eq!(
            test.commit(vec![unchanged(&before)], vec![]).await,
            Err(CommitError::Conflict),
            "{changed:?}"
        );
    }
    test.commit(vec![], vec![put("d", "1"), put("e", "1")]).await.expect("written");
    let first = test.scan("a", "m", 1).await;
    assert!(first.more && first.rows.len() == 1 && first.range.end == key("d"));
    test.commit(vec![], vec![put("e", "2")]).await.expect("written");
    test.commit(vec![unchanged(&first)], vec![])
        .await
        .expect("a limited scan answers only for what it returned");
}

const fn remembers<H: Harness>(_: &H) -> bool {
    H::REMEMBERS_REMOVALS
}

async fn stamps_grow_within_a_row(test: &TestSpace, remembers_removals: bool) {
    let early = test.change(vec![], vec![put("a", "early")]);
    let partition = test.partition("p");
    // Front ends issue stamps in an order of their own.
    let later = loop {
        let later = test.change(vec![], vec![put("a", "later")]);
        if later.stamp > early.stamp {
            break later;
        }
    };
    test.store.commit(&partition, later).await.expect("written");
    let refused = test.store.commit(&partition, early.clone()).await;
    assert_eq!(refused, Err(CommitError::Conflict), "a smaller stamp than the row's");
    test.commit(vec![], vec![Mutation::Delete(key("a"))]).await.expect("deleted");
    let refused = test.store.commit(&partition, early).await;
    if remembers_removals {
        assert_eq!(refused, Err(CommitError::Conflict), "a smaller stamp than the removal's");
    }
    let read = test.get("a").await.map(|(_, token)| token.0).unwrap_or_default();
    let (a, b) = (test.store.stamp(), test.store.stamp());
    assert!(a != b && a > read && test.store.now() + Span::seconds(1) >= b.timestamp());
}

async fn mutations_take_effect_in_order(test: &TestSpace) {
    test.commit(vec![], vec![put("a", "1"), put("b", "1"), put("c", "1"), put("d", "1")])
        .await
        .expect("written");
    let delete = |k| Mutation::Delete(key(k));
    let mutations = vec![put("aa", "x"), delete("a"), delete("aa"), delete("b"), put("b", "2"), delete("d")];
    test.commit(vec![], mutations).await.expect("done");
    let rows = test.scan("a", "z", 10).await.rows;
    let rows: Vec<_> = rows.iter().map(|r| (r.key.clone(), r.value.clone())).collect();
    assert_eq!(rows, [(key("b"), key("2")), (key("c"), key("1"))]);
}

async fn counters_never_conflict(test: &TestSpace) {
    let commits: Vec<_> = (0..20).map(|_| test.change(vec![], vec![Mutation::Add(key("n"), 3)])).collect();
    for commit in commits.into_iter().rev() {
        test.store.commit(&test.partition("p"), commit).await.expect("an addition never conflicts");
    }
    test.commit(vec![], vec![Mutation::Add(key("n"), -10)]).await.expect("nor a subtraction");
    let set = test.store.read(&test.partition("p"), &Reads::key(key("n"))).await.expect("readable");
    let row = set.rows[0].as_ref().expect("there");
    assert_eq!(row.value[..], 50i64.to_le_bytes());
}

async fn scans_are_ordered_and_limited(test: &TestSpace) {
    let mutations = (0..200u8).rev().map(|i| Mutation::Put(vec![i].into(), vec![i].into())).collect();
    test.commit(vec![], mutations).await.expect("written");
    let reads = Reads::default().and_range(vec![10u8].into()..vec![20u8].into(), 100);
    let set = test.store.read(&test.partition("p"), &reads).await.expect("readable");
    let keys: Vec<u8> = set.ranges[0].rows.iter().map(|r| r.key[0]).collect();
    assert_eq!(keys, (10..20).collect::<Vec<u8>>());
    let inverted = Reads::default().and_range(vec![20u8].into()..vec![10u8].into(), 100);
    let set = test.store.read(&test.partition("p"), &inverted).await.expect("readable");
    assert!(set.ranges[0].rows.is_empty());
}

async fn scans_over_a_space_go_by_partition(test: &TestSpace) {
    let names: [&[u8]; 5] = [b"", b"a", b"a\x00", b"a\x00b", b"b"];
    for name in names.iter().rev() {
        let mutations =
            (0..30u8).map(|i| Mutation::Put(vec![i].into(), Bytes::copy_from_slice(name))).collect();
        let partition = Partition::new(test.space, Bytes::copy_from_slice(name));
        test.store.commit(&partition, test.change(vec![], mutations)).await.expect("written");
    }
    let scan = |from: (Bytes, Bytes), end: Option<(Bytes, Bytes)>, which, limit| {
        scan_pages(test, from, end, which, limit)
    };
    let start = || (Bytes::new(), Bytes::new());
    let first = scan(start(), None, Which::First, 100).await;
    let found: Vec<&[u8]> = first.rows.iter().map(|(p, _)| &p[..]).collect();
    assert_eq!(found, names, "one row of each partition, in order");
    assert!(first.rows.iter().all(|(p, row)| row.key[..] == [0] && row.value == *p) && first.next.is_none());

    let mut from = start();
    let mut all = vec![];
    loop {
        let page = scan(from, None, Which::All, 7).await;
        all.extend(page.rows.into_iter().map(|(p, row)| (p, row.key)));
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert!(all.len() == 150 && all.is_sorted(), "pages join without a gap");
    let below = scan((key("a"), vec![5].into()), Some((key("b"), Bytes::new())), Which::All, 1000).await;
    assert_eq!(below.rows.len(), 25 + 30 + 30, "from a row, below a partition");
    let within = scan((key("a"), vec![5].into()), Some((key("a"), vec![9].into())), Which::All, 1000).await;
    assert_eq!(within.rows.len(), 4, "from a row, below a row");
    assert_eq!((within.next, within.space), (None, Some(OPEN)), "with the header of the space");
    let mut taken = vec![];
    let mut take_40 = |partition: Bytes, row: Row| {
        if taken.len() == 40 {
            return ControlFlow::Break(());
        }
        taken.push((partition, row));
        ControlFlow::Continue(())
    };
    let mut visited = Visited { space: None, next: Some(start()) };
    while let Some(from) = visited.next.take_if(|next| *next != (key("a"), vec![10].into())) {
        visited = test.store.visit_space(test.space, from, None, &mut take_40).await.expect("readable");
    }
    let next = Some((key("a"), vec![10].into()));
    assert_eq!(taken, scan(start(), None, Which::All, 40).await.rows, "a visitor sees what a scan returns");
    assert_eq!(visited, Visited { space: Some(OPEN), next }, "and breaks off before a row");
    let inverted = scan((key("b"), Bytes::new()), Some((key("a"), Bytes::new())), Which::All, 1000).await;
    assert!(inverted.rows.is_empty() && inverted.next.is_none());
    let paged = scan(start(), None, Which::First, 2).await;
    let rest = scan(paged.next.expect("three partitions follow"), None, Which::First, 100).await;
    assert_eq!((paged.rows.len(), rest.rows.len()), (2, 3), "each partition is returned once");
}

/// Scans until there are enough rows. A page may end early.
async fn scan_pages(
    test: &TestSpace,
    from: RowKey,
    end: Option<RowKey>,
    which: Which,
    limit: usize,
) -> crate::SpacePage {
    let scan = |from, limit| test.store.scan_space(test.space, from, end.clone(), which, limit);
    let mut page = scan(from, limit).await.expect("readable");
    while page.rows.len() < limit
        && let Some(next) = page.next
    {
        let more = scan(next, limit - page.rows.len()).await.expect("readable");
        page.rows.extend(more.rows);
        page.next = more.next;
    }
    page
}

async fn scans_over_a_space_are_bounded_in_bytes(test: &TestSpace) {
    const ROWS: u8 = 10;
    let large = Bytes::from(vec![7; crate::MAX_VALUE_BYTES]);
    let mut commit =
        test.change(vec![], (0..ROWS).map(|i| Mutation::Put(vec![i].into(), large.clone())).collect());
    commit.bulk = true;
    test.store.commit(&test.partition("p"), commit).await.expect("written");
    let (mut from, mut found) = ((Bytes::new(), Bytes::new()), vec![]);
    loop {
        let page = test.store.scan_space(test.space, from, None, Which::All, 1000).await.expect("readable");
        let bytes: usize = page.rows.iter().map(|(_, row)| row.value.len()).sum();
        assert!(!page.rows.is_empty() && bytes <= crate::MAX_SCAN_BYTES + crate::MAX_VALUE_BYTES);
        found.extend(page.rows.iter().map(|(_, row)| row.key[0]));
        match page.next {
            Some(next) => from = next,
            None => break,
        }
        assert!(found.len() < usize::from(ROWS));
    }
    assert_eq!(found, (0..ROWS).collect::<Vec<_>>(), "pages join without a gap");
}

type RowKey = (Bytes, Bytes);

/// Visits all rows in runs, in as many visits as needed.
async fn visit_pages(test: &TestSpace, from: RowKey, end: Option<RowKey>) -> Vec<(RowKey, Bytes, Token)> {
    let (mut rows, mut next) = visit(test, from, end.clone()).await;
    while let Some(from) = next {
        let more = visit(test, from, end.clone()).await;
        rows.extend(more.0);
        next = more.1;
    }
    rows
}

/// Visits rows in runs. Returns the rows and the position to continue at.
async fn visit(
    test: &TestSpace,
    from: RowKey,
    end: Option<RowKey>,
) -> (Vec<(RowKey, Bytes, Token)>, Option<RowKey>) {
    let mut rows = vec![];
    let mut visitor = |Stretch { run, rows: shown, .. }: &Stretch| {
        let copy = Bytes::copy_from_slice;
        assert!(!shown.is_empty() && run.len() <= crate::MAX_RUN_ROWS);
        rows.extend(shown.clone().map(|row| {
            ((copy(run.partition(row)), copy(run.key(row))), copy(run.value(row)), run.token(row))
        }));
        ControlFlow::Continue(())
    };
    let visited = test.store.visit_runs(test.space, from, end, &mut visitor).await.expect("readable");
    assert_eq!(visited.space, Some(OPEN), "with the header of the space");
    (rows, visited.next)
}

/// Visits after random changes and earlier visits return the rows of a scan.
async fn runs_have_the_rows_of_a_scan(test: &TestSpace) {
    const PARTITIONS: [&[u8]; 5] = [b"", b"a", b"a\x00", b"a\x00b", b"b"];
    const ROWS: u64 = 400;
    let mut random = SmallRng::seed_from_u64(0x5EED);
    let random_key = |random: &mut SmallRng| -> RowKey {
        let partition =
            Bytes::from_static(PARTITIONS[random.random_range(0..PARTITIONS.len() as u64) as usize]);
        (partition, Bytes::copy_from_slice(&(random.random_range(0..ROWS) as u16).to_be_bytes()))
    };
    for round in 0..120u64 {
        for _ in 0..random.random_range(0..if round < 10 { 200 } else { 4 }) {
            let (partition, row) = random_key(&mut random);
            let mutation = match random.random_range(0..8) {
                0 | 1 => Mutation::Delete(row),
                _ => Mutation::Put(row, Bytes::copy_from_slice(&round.to_le_bytes())),
            };
            let commit = test.change(vec![], vec![mutation]);
            test.store.commit(&Partition::new(test.space, partition), commit).await.expect("written");
        }
        let from = if random.random_range(0..2) == 0 { RowKey::default() } else { random_key(&mut random) };
        let end = (random.random_range(0..2) == 0).then(|| random_key(&mut random));
        let page = scan_pages(test, from.clone(), end.clone(), Which::All, 8192).await;
        let rows = page.rows.into_iter();
        let expected: Vec<_> = rows.map(|(p, row)| ((p, row.key), row.value, row.token)).collect();
        let found = visit_pages(test, from.clone(), end.clone()).await;
        assert_eq!(found, expected, "{from:?} to {end:?}");

        // The visit ends before any row that the visitor refuses, and can continue there.
        let Some(stop) = expected.get(random.random_range(0..expected.len() as u64 + 1) as usize) else {
            continue;
        };
        let mut visitor = |Stretch { run, rows, .. }: &Stretch| {
            let at = run.position(&stop.0.0, &stop.0.1);
            if rows.contains(&at) { ControlFlow::Break(at) } else { ControlFlow::Continue(()) }
        };
        let mut next = Some(from);
        while let Some(from) = next.take_if(|next| *next != stop.0) {
            let visited = test.store.visit_runs(test.space, from, end.clone(), &mut visitor).await;
            next = visited.expect("readable").next;
        }
        assert_eq!(next.as_ref(), Some(&stop.0));
    }
}

async fn visits_in_runs_are_bounded(test: &TestSpace) {
    const ROWS: u16 = 20_000;
    for start in (0..ROWS).step_by(200) {
        let rows = start..start + 200;
        let puts = rows.map(|i| Mutation::Put(i.to_be_bytes().to_vec().into(), key("v"))).collect();
        test.commit(vec![], puts).await.expect("written");
    }
    // Pages join without a gap, for kept and other runs. Pages of kept runs may be longer.
    for _ in 0..2 {
        let (mut from, mut found) = (RowKey::default(), vec![]);
        loop {
            let (rows, next) = visit(test, from, None).await;
            assert!(!rows.is_empty() && rows.len() < crate::KEPT_ROWS_PER_ROW * crate::MAX_SCAN_ROWS);
            found.extend(rows.iter().map(|row| u16::from_be_bytes([row.0.1[0], row.0.1[1]])));
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        assert_eq!(found, (0..ROWS).collect::<Vec<_>>());
    }
    let large = Bytes::from(vec![7; crate::MAX_VALUE_BYTES]);
    let mut commit =
        test.change(vec![], (0..20).map(|i| Mutation::Put(vec![i].into(), large.clone())).collect());
    commit.bulk = true;
    test.store.commit(&test.partition("q"), commit).await.expect("written");
    let (rows, next) = visit(test, (key("q"), Bytes::new()), None).await;
    let bytes: usize = rows.iter().map(|row| row.1.len()).sum();
    assert!(bytes <= crate::MAX_SCAN_BYTES + crate::MAX_VALUE_BYTES && next.is_some(), "{bytes}");
}

async fn closed_space_and_old_epoch_refuse_commits(test: &TestSpace) {
    let store = &test.store;
    let raised = SpaceHeader { epoch: 4, open: true };
    let closed = SpaceHeader { epoch: 5, open: false };
    test.commit(vec![], vec![put("a", "1")]).await.expect("open");
    assert_eq!(store.set_space(test.space, None, raised).await, Err(CommitError::Conflict));
    store.set_space(test.space, Some(OPEN), raised).await.expect("raised");
    assert_eq!(test.commit(vec![], vec![put("a", "2")]).await, Err(CommitError::Gone), "an old epoch");
    store.set_space(test.space, Some(raised), closed).await.expect("closed");
    let mut commit = test.change(vec![], vec![put("a", "3")]);
    commit.epoch = 5;
    assert_eq!(store.commit(&test.partition("p"), commit.clone()).await, Err(CommitError::Gone), "closed");
    assert_eq!(store.space(test.space).await.expect("readable"), Some(closed));
    assert_eq!(test.get("a").await.expect("rows stay until they are swept").0, "1");
    let start = || (Bytes::new(), Bytes::new());
    let mut from = start();
    loop {
        match store.sweep_space(test.space, from.clone(), 100).await.expect("swept") {
            Some(next) => {
                assert!(next > from, "each call continues further");
                from = next;
            }
            None if from == start() => break,
            None => from = start(),
        }
    }
    assert_eq!(test.get("a").await, None);
    commit.stamp = store.stamp();
    assert_eq!(store.commit(&test.partition("p"), commit).await, Err(CommitError::Gone), "swept");

    let other = TestSpace::new(store.clone()).await;
    other.commit(vec![], vec![put("a", "1")]).await.expect("open");
    assert_eq!(
        store.sweep_space(other.space, start(), 100).await,
        Err(CommitError::Gone),
        "an open space is not swept"
    );
}

async fn limits_are_refused(test: &TestSpace) {
    let large = |n: usize| Mutation::Put(key("k"), vec![0; n].into());
    assert_eq!(
        test.commit(vec![], vec![large(crate::MAX_VALUE_BYTES + 1)]).await,
        Err(CommitError::TooLarge)
    );
    assert_eq!(
        test.commit(vec![], vec![put("k", "v"); crate::MAX_MUTATIONS + 1]).await,
        Err(CommitError::TooLarge)
    );
    let five = vec![large(crate::MAX_VALUE_BYTES); 5];
    assert_eq!(test.commit(vec![], five.clone()).await, Err(CommitError::TooLarge));
    let mut bulk = test.change(vec![], five);
    bulk.bulk = true;
    test.store.commit(&test.partition("p"), bulk).await.expect("a bulk commit may be larger");
    let long: Bytes = vec![b'k'; crate::MAX_KEY_BYTES + 1].into();
    assert_eq!(test.commit(vec![], vec![Mutation::Delete(long)]).await, Err(CommitError::TooLarge));
}

async fn concurrent_rules_lose_no_update(test: &TestSpace) {
    const CLIENTS: u64 = 16;
    const EACH: u64 = 25;
    let gate = Arc::new(Gate::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (store, gate, partition) = (test.store.clone(), gate.clone(), test.partition("hot"));
            tokio::spawn(async move {
                for _ in 0..EACH {
                    let n = transact(&*store, &gate, &partition, Reads::key(key("n")), |view| {
                        let n = view.row(b"n").map_or(0, |row| row.value.len() as u64) + 1;
                        let change = Change::of([Mutation::Put(key("n"), vec![1; n as usize].into())]);
                        Ok::<_, ()>(Decision::Write(change, n))
                    });
                    n.await.expect("committed in the end");
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("a client");
    }
    let set = test.store.read(&test.partition("hot"), &Reads::key(key("n"))).await.expect("readable");
    assert_eq!(set.rows[0].as_ref().expect("there").value.len() as u64, CLIENTS * EACH);
    let refused: Result<(), _> =
        transact(&*test.store, &gate, &test.partition("hot"), Reads::default(), |_| Err("no")).await;
    assert!(matches!(refused, Err(TransactError::Refused("no"))));
}

async fn deadlines_are_checked_at_commit(harness: &impl Harness) {
    let clock = clock();
    let test = TestSpace::new(harness.open(clock.clone()).await).await;
    let until = test.store.now() + Span::seconds(30);
    let with_deadline = || Commit { valid_until: Some(until), ..test.change(vec![], vec![put("a", "1")]) };
    let (in_time, late) = (with_deadline(), with_deadline());
    clock.advance(Span::seconds(29));
    assert!(test.store.now() < until);
    test.store.commit(&test.partition("p"), in_time).await.expect("before the deadline");
    // The engine's clock may be a little ahead of the machine's, never behind.
    clock.advance(Span::seconds(2));
    assert!(test.store.now() >= until);
    assert_eq!(test.store.commit(&test.partition("q"), late).await, Err(CommitError::Expired));
}

async fn everything_survives_a_restart_and_a_clock_set_back(harness: &impl Harness) {
    let clock = clock();
    clock.advance(Span::seconds(3600));
    let mut last = (Stamp::default(), Timestamp::default());
    let mut space = None;
    for round in 0..3u8 {
        let store = harness.open(clock.clone()).await;
        let test = match space {
            None => TestSpace::new(store).await,
            Some(space) => TestSpace { store, space },
        };
        space = Some(test.space);
        assert!(test.store.now() >= last.1, "time never runs backwards");
        let stamp = test.store.stamp();
        assert!(stamp > last.0, "stamps never repeat");
        for before in 0..round {
            let expected = format!("round {before}");
            assert_eq!(test.get(&format!("k{before}")).await.map(|(v, _)| v), Some(expected));
        }
        test.commit(vec![], vec![put(&format!("k{round}"), &format!("round {round}"))])
            .await
            .expect("written");
        last = (test.store.stamp(), test.store.now());
        clock.set(clock_before(&clock));
    }
}

fn clock_before(clock: &ManualClock) -> Timestamp {
    use lazuli_concurrency::Clock;
    clock.now() - Span::seconds(600)
}

/// Runs `clients` on one partition, each for `rounds` operations, and checks what they observed.
pub async fn histories(harness: &impl Harness, seed: u64, clients: u64, rounds: u64) {
    let test = TestSpace::new(harness.open(clock()).await).await;
    let history = Arc::new(History::new());
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let (store, history) = (test.store.clone(), history.clone());
            let partition = test.partition("history");
            tokio::spawn(async move {
                let mut random =
                    SmallRng::seed_from_u64(seed ^ (client + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                for _ in 0..rounds {
                    one_operation(&*store, &partition, &history, &mut random).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a client");
    }
    let history = Arc::into_inner(history).expect("all clients are done");
    assert!(history.len() as u64 > clients * rounds / 4, "too little happened to judge: {}", history.len());
    if let Err(violation) = history.check() {
        panic!("not linearizable (seed {seed}): {violation}");
    }
}

/// Number of registers in the partition that histories use.
const REGISTERS: u8 = 4;

async fn one_operation(store: &dyn Store, partition: &Partition, history: &History, random: &mut SmallRng) {
    let started = history.tick();
    let stamp = store.stamp();
    // Half of the registers are read as a range, so that the range token is tested too.
    let keys = (0..REGISTERS / 2).map(|r| Bytes::from(vec![r]));
    let reads = Reads::keys(keys).and_range(vec![REGISTERS / 2].into()..vec![REGISTERS].into(), 100);
    let set = store.read(partition, &reads).await.expect("readable");
    let mut seen = [0; REGISTERS as usize];
    for row in set.rows.iter().flatten().chain(&set.ranges[0].rows) {
        seen[row.key[0] as usize] = u64::from_le_bytes(row.value[..].try_into().expect("a register"));
    }
    if random.random_range(0..4) == 0 {
        history.record(started, Observed { read: seen, wrote: None });
        return;
    }
    let (register, value) = (random.random_range(0..u64::from(REGISTERS)) as usize, stamp.ticks());
    let conditions = reads
        .keys
        .iter()
        .zip(&set.rows)
        .map(|(key, row)| match row {
            Some(row) => Condition::Unchanged(key.clone(), row.token),
            None => Condition::Absent(key.clone()),
        })
        .chain([Condition::RangeUnchanged(set.ranges[0].range.clone(), set.ranges[0].token)])
        .collect();
    let write = match random.random_range(0..5) {
        0 => (Mutation::Delete(vec![register as u8].into()), 0),
        _ => (Mutation::Put(vec![register as u8].into(), value.to_le_bytes().to_vec().into()), value),
    };
    let commit = Commit {
        stamp,
        epoch: OPEN.epoch,
        conditions,
        mutations: vec![write.0],
        valid_until: None,
        fence: None,
        bulk: false,
    };
    match store.commit(partition, commit).await {
        Ok(()) => history.record(started, Observed { read: seen, wrote: Some((register, write.1)) }),
        // Nothing happened, and the read may be older than the conflict, so it may not be a consistent state.
        Err(CommitError::Conflict) => history.record(started, Observed { read: seen, wrote: None }),
        Err(error) => panic!("a commit failed: {error}"),
    }
}
