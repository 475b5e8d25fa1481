//! A failing disk: acknowledged commits stay, and no commit is acknowledged that the disk has not
//! stored.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazuli_concurrency::{Clock, ManualClock, Span, Timestamp};
use lazuli_store::embedded::{Backoff, Task};
use lazuli_store::{
    Change, CommitError, Decision, Directory, Embedded, Gate, Mutation, Options, Partition, Reads, SpaceId,
    Store, TransactError, View, transact,
};
use lazuli_torture::child::{AckError, Child, EntryPoint, Parent};
use lazuli_torture::rounds::{Round, round};
use lazuli_torture::workload::{Acknowledged, work};
use lazuli_torture::{CutMode, Fault, FaultKind, LossyFs, PathFilter, Schedule, Seed, require};
use rand::Rng;

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent, Options::SMALL);
    }
}

fn run(fs: &LossyFs, acknowledged: &mut Acknowledged, meanwhile: impl FnOnce(&mut Child)) -> Round {
    round(EntryPoint::Test("worker"), fs.path(), acknowledged, meanwhile)
        .unwrap_or_else(|wrong| panic!("{wrong}\n{}", fs.report()))
}

fn wait_for_commits(child: &mut Child, many: usize) {
    let before = child.acks().len();
    child.wait_acks(before + many, Duration::from_secs(30)).expect("the worker commits");
}

fn wait_until_it_ends(child: &mut Child) {
    while child.next_ack(Duration::from_secs(30)) != Err(AckError::Ended) {}
}

fn log() -> PathFilter {
    PathFilter::Files("/store/log/".into())
}

fn segments() -> PathFilter {
    PathFilter::Files("/segments/".into())
}

// After a fault in the log or in the segments, the store must refuse writes.
#[test]
fn nothing_is_acknowledged_after_a_failed_sync_or_write() {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    for (kind, on) in [
        (FaultKind::SyncError, log()),
        (FaultKind::WriteError, log()),
        (FaultKind::SyncError, segments()),
        (FaultKind::WriteError, segments()),
    ] {
        let what = format!("{kind:?} on {on:?} ({seed:?})");
        let fs = LossyFs::mount_temporary().expect("mounted");
        let mut acknowledged = Acknowledged::default();
        let mut fault = None;
        let done = run(&fs, &mut acknowledged, |child| {
            wait_for_commits(child, 40);
            fault = Some(fs.fault(Fault::once(kind, on)));
            wait_until_it_ends(child);
        });
        let struck = fs.struck(fault.expect("switched on"));
        assert_eq!(struck, 1, "{what}: the fault occurred once, and a later success was not trusted");
        assert!(done.refused.is_some(), "{what}: the store says that it stopped");
        // The disk works again, but the data of the failed sync is lost permanently.
        fs.cut(CutMode::Forget, 1);
        fs.boot().expect("the disk boots");
        let again = run(&fs, &mut acknowledged, |child| wait_for_commits(child, 20));
        assert!(again.acks >= 20, "{what}: after a restart it works again");
    }
}

// After a fault in files that are not needed for durability, the store continues.
#[test]
fn a_failed_flush_is_retried_and_loses_nothing() {
    if !require() {
        return;
    }
    for kind in [FaultKind::SyncError, FaultKind::WriteError] {
        let fs = LossyFs::mount_temporary().expect("mounted");
        let mut acknowledged = Acknowledged::default();
        let mut fault = None;
        run(&fs, &mut acknowledged, |child| {
            wait_for_commits(child, 40);
            let when = Schedule::Calls { skip: 0, times: 3 };
            fault = Some(fs.fault(Fault { kind, on: PathFilter::Any("/store/tree/tables".into()), when }));
            wait_for_commits(child, 1500);
        });
        assert_eq!(fs.struck(fault.expect("switched on")), 3, "{kind:?} struck");
        fs.cut(CutMode::Tear, 2);
        fs.boot().expect("the disk boots");
        run(&fs, &mut acknowledged, |child| wait_for_commits(child, 20));
    }
}

#[test]
fn a_failed_flush_leaves_no_file() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().expect("mounted");
    let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_000_000_000)));
    let quick = Duration::from_millis(1);
    let backoff = Backoff { first: quick, max: quick, max_if_full: quick };
    let options = Options { backoff, ..Options::SMALL };
    let store = Embedded::open(fs.path(), clock, options).expect("the store opens");
    let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
    let put = |row: usize| {
        let put = Mutation::Put(format!("{row}").into(), vec![7; 10_000].into());
        let rule = |_: &View<'_>| Ok::<_, ()>(Decision::Write(Change::of([put.clone()]), ()));
        let partition = Partition::new(SpaceId::ROOT, "p");
        runtime.block_on(transact(&store, &Gate::default(), &partition, Reads::default(), rule)).is_ok()
    };
    let tables = || std::fs::read_dir(fs.path().join("tree/tables")).expect("listed").count();
    let mut row = 0;
    for kind in [FaultKind::WriteError, FaultKind::SyncError] {
        let (before, files) = (store.failed_attempts(Task::Flush), tables());
        // Written completely but not synced, or not written completely.
        fs.fault(Fault::always(kind, PathFilter::Files("/tree/tables/".into())));
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.failed_attempts(Task::Flush) < before + 10 {
            assert!(Instant::now() < deadline, "{kind:?}: the flush fails: {:?}", store.health());
            // One memtable is enough; more would delay wait_for_commits.
            row += usize::from(row < 40 && put(row));
        }
        // At most the file of an attempt in progress.
        assert!(tables() <= files + 1, "{kind:?}: {files} files, then {}", tables());
        fs.heal_all();
        let flushed = || store.health().failing.is_empty() && tables() >= 1;
        while !flushed() {
            assert!(Instant::now() < deadline, "{kind:?}: it is tried again: {:?}", store.health());
        }
        if kind == FaultKind::WriteError {
            store.compact().expect("one table");
            row = 0;
        }
    }
}

// After a failed call, the name of the new manifest may be on disk nevertheless. Writing the manifest again
// would truncate what a restart needs, and removing its tables would lose their rows.
#[test]
fn an_uncertain_manifest_stops_the_store_and_a_restart_finds_every_row() {
    if !require() {
        return;
    }
    for (seed, mode) in [(1, CutMode::Forget), (2, CutMode::Tear), (3, CutMode::Forget)] {
        let fs = LossyFs::mount_temporary().expect("mounted");
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_000_000_000)));
        let open = || Embedded::open(fs.path(), clock.clone(), Options::SMALL).expect("the store opens");
        let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
        let partition = Partition::new(SpaceId::ROOT, "p");
        let store = open();
        let put = |row: usize| {
            let put = Mutation::Put(format!("{row}").into(), vec![7; 10_000].into());
            let rule = |_: &View<'_>| Ok::<_, ()>(Decision::Write(Change::of([put.clone()]), ()));
            runtime.block_on(transact(&store, &Gate::default(), &partition, Reads::default(), rule)).is_ok()
        };
        assert!(put(0));
        // When this fault occurs, `current` has been renamed to the new manifest.
        let fault =
            fs.fault(Fault::always(FaultKind::SyncError, PathFilter::Exactly("/tree/current".into())));
        let mut acknowledged = 1;
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.is_healthy() {
            assert!(Instant::now() < deadline, "the store stops: {:?}", store.health());
            acknowledged += usize::from(put(acknowledged));
        }
        assert_eq!(fs.struck(fault), 1, "the manifest is not written again");
        let why = store.health().stopped.expect("the store reports a reason");
        assert!(why.contains("manifest"), "{why}");
        drop(store);
        fs.heal_all();
        fs.cut(mode, seed);
        fs.boot().expect("the disk boots");
        let store = open();
        for row in 0..acknowledged {
            let read =
                runtime.block_on(store.read(&partition, &Reads::key(format!("{row}")))).expect("readable");
            assert!(read.rows[0].is_some(), "row {row} of {acknowledged}");
        }
    }
}

// All directories above a new data directory are made durable, not only the innermost.
#[test]
fn a_new_data_directory_below_new_directories_survives_a_power_cut() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().expect("mounted");
    let data = fs.path().join("srv/storage/lazuli");
    drop(Directory::open(&data).expect("the directory opens"));
    fs.cut(CutMode::Forget, 1);
    fs.boot().expect("the disk boots");
    drop(Directory::open_existing(&data).expect("the directory exists after the cut"));
}

#[test]
fn short_writes_are_completed() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().expect("mounted");
    let fault = fs.fault(Fault {
        kind: FaultKind::ShortWrite,
        on: PathFilter::Files(String::new()),
        when: Schedule::OneIn { n: 3, seed: 5 },
    });
    let mut acknowledged = Acknowledged::default();
    for cut in 0..5 {
        run(&fs, &mut acknowledged, |child| wait_for_commits(child, 200));
        fs.cut(CutMode::Tear, cut);
        fs.boot().expect("the disk boots");
    }
    run(&fs, &mut acknowledged, |_| ());
    assert!(fs.struck(fault) > 100, "writes were cut short");
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().expect("mounted");
    let mut acknowledged = Acknowledged::default();
    let done = run(&fs, &mut acknowledged, |child| {
        wait_for_commits(child, 40);
        // Smaller than what is in use: sweeps free the space of earlier content.
        fs.set_capacity(1 << 20);
        wait_until_it_ends(child);
    });
    let refused = done.refused.expect("the refusal is reported");
    assert!(refused.contains("full") || refused.contains("space"), "{refused}");
    fs.set_capacity(8 << 30);
    let again = run(&fs, &mut acknowledged, |child| wait_for_commits(child, 20));
    assert!(again.acks >= 20);
    fs.cut(CutMode::Forget, 3);
    fs.boot().expect("the disk boots");
    run(&fs, &mut acknowledged, |_| ());
}

// After a start on a full disk, reads and deletes work, and writes are refused as full.
#[test]
fn a_store_opens_on_a_full_disk_and_accepts_deletes_but_no_writes() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().expect("mounted");
    let machine = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_000_000_000)));
    let open = || Embedded::open(fs.path(), machine.clone(), Options::SMALL).expect("the store opens");
    let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
    let partition = Partition::new(SpaceId::ROOT, "p");
    let commit = |store: &Embedded, mutation: Mutation| {
        let rule = |_: &View<'_>| Ok::<_, ()>(Decision::Write(Change::of([mutation.clone()]), ()));
        runtime.block_on(transact(store, &Gate::default(), &partition, Reads::default(), rule))
    };
    let put = |row: usize| Mutation::Put(format!("{row}").into(), vec![7; 2000].into());
    let full = |result| matches!(result, Err(TransactError::NotCommitted(CommitError::Full)));
    let store = open();
    for row in 0..20 {
        commit(&store, put(row)).expect("there is room");
    }
    fs.set_capacity(fs.used());
    let refused = (20..2000).find(|row| full(commit(&store, put(*row)))).expect("the disk is full");
    for round in 0..3 {
        fs.cut(CutMode::Forget, round);
        fs.boot().expect("the disk boots");
        let store = open();
        assert!(full(commit(&store, put(refused))) && store.health().full, "writes are refused as Full");
        let row = format!("{round}");
        let read = |store: &Embedded| {
            let read = runtime.block_on(store.read(&partition, &Reads::key(row.clone())));
            read.expect("readable").rows.remove(0)
        };
        assert!(read(&store).is_some(), "reads work");
        commit(&store, Mutation::Delete(row.clone().into())).expect("deletes work");
        assert!(read(&store).is_none());
    }
    fs.set_capacity(8 << 30);
    commit(&open(), put(refused)).expect("writes go on when there is space");
}

// On a full disk the clock stops because no ceiling can be stored. Once there is space, the clock continues
// in the same process.
#[test]
fn the_clock_continues_when_a_full_disk_has_space_again() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().expect("mounted");
    let machine = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_000_000_000)));
    let store = Embedded::open(fs.path(), machine.clone(), Options::SMALL).expect("the store opens");
    let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
    let commit = |bytes: usize| {
        let put = Mutation::Put("row".into(), vec![7; bytes].into());
        let rule = |_: &View<'_>| Ok::<_, ()>(Decision::Write(Change::of([put.clone()]), ()));
        let partition = Partition::new(SpaceId::ROOT, "p");
        runtime.block_on(transact(&store, &Gate::default(), &partition, Reads::default(), rule)).is_ok()
    };
    assert!(commit(1));
    fs.set_capacity(fs.used());
    for bytes in [100_000, 1000, 1] {
        assert!((0..1000).any(|_| !commit(bytes)), "the disk is full");
    }
    // Ceilings may use part of the log's reserve. The clock stops when that is used up.
    let stands_still = (0..100_000).any(|_| {
        machine.advance(Span::seconds(70));
        store.now() + Span::seconds(5) < machine.now()
    });
    assert!(stands_still, "the reserve ends");
    let before = store.now();
    machine.advance(Span::seconds(600));
    for _ in 0..20 {
        assert!(store.now() < before + Span::seconds(120), "not above what is durable");
    }
    assert!(!commit(1), "no commit gets a stamp above the ceiling");

    fs.set_capacity(8 << 30);
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.now() != machine.now() {
        assert!(Instant::now() < deadline, "time goes on: {:?}", store.now());
        std::thread::yield_now();
    }
    assert!(commit(1));
    drop(store);
    Embedded::open(fs.path(), machine, Options::SMALL).expect("the store opens again");
}

// Flipped bits in acknowledged data are reported before anything is returned, or hit unused bytes. In both
// cases the counts, the history and the content of every client are compared with what was acknowledged.
#[test]
fn a_flipped_bit_is_reported() {
    if !require() {
        return;
    }
    const FLIPS: u64 = 12;
    let seed = Seed::pick();
    let mut random = seed.rng();
    // Logs and segments are preallocated: only their beginning is in use, and of a segment only what no later
    // operation has replaced.
    for (what, commits_before, in_use, bits, at_least) in [
        ("store/log", 60, 4096..12_000, 1, FLIPS),
        ("segments", 12, 4096..1_500_000, 300, FLIPS / 2),
        ("store/tree/tables", 900, 0..20_000, 1, FLIPS / 2),
    ] {
        let mut reported = 0;
        for _ in 0..FLIPS {
            let fs = LossyFs::mount_temporary().expect("mounted");
            let mut acknowledged = Acknowledged::default();
            run(&fs, &mut acknowledged, |child| wait_for_commits(child, commits_before));
            fs.cut(CutMode::Forget, random.random());
            fs.boot().expect("the disk boots");
            // Flip bits in every file, because some files may only be waiting for their removal.
            for file in std::fs::read_dir(fs.path().join(what)).expect("listed") {
                let file = file.expect("listed");
                let length = file.metadata().expect("its length").len();
                let path = format!("/{what}/{}", file.file_name().to_str().expect("a name"));
                for _ in 0..bits {
                    let at = random.random_range(in_use.start..in_use.end.min(length));
                    // The flip is refused where nothing was ever written.
                    let _ = fs.flip(&path, at, random.random_range(0..8));
                }
            }
            if let Err(said) = round(EntryPoint::Test("worker"), fs.path(), &mut acknowledged, |_| ()) {
                let said = said.to_lowercase();
                assert!(said.contains("damage") || said.contains("checksum"), "{what}: reported as {said}");
                reported += 1;
            }
        }
        println!("{what}: {reported} of {FLIPS} flips hit something in use and were reported");
        assert!(reported >= at_least, "{what}: {reported} of {FLIPS} flips were reported ({seed:?})");
    }
}
