//! A disk that fails: what was acknowledged stays, and nothing more is acknowledged than the disk has taken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazuli_concurrency::{Clock, ManualClock, Span, Timestamp};
use lazuli_store::embedded::{Backoff, Task};
use lazuli_store::{
    Change, CommitError, Decision, Embedded, Gate, Mutation, Options, Partition, Reads, SpaceId, Store,
    TransactError, View, transact,
};
use lazuli_torture::child::{Child, Entry, Parent, Silence};
use lazuli_torture::rounds::{Round, round};
use lazuli_torture::workload::{Acknowledged, work};
use lazuli_torture::{Fault, FaultKind, LossyFs, Mode, On, Seed, When, require};
use rand::Rng;

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent);
    }
}

fn run(fs: &LossyFs, acknowledged: &mut Acknowledged, meanwhile: impl FnOnce(&mut Child)) -> Round {
    round(Entry::Test("worker"), fs.path(), acknowledged, meanwhile)
        .unwrap_or_else(|wrong| panic!("{wrong}\n{}", fs.report()))
}

fn commits(child: &mut Child, many: usize) {
    let before = child.acks().len();
    child.wait_acks(before + many, Duration::from_secs(30)).expect("it works");
}

fn until_it_ends(child: &mut Child) {
    while child.next_ack(Duration::from_secs(30)) != Err(Silence::Ended) {}
}

fn log() -> On {
    On::Files("/store/log/".into())
}

fn segments() -> On {
    On::Files("/segments/".into())
}

/// Faults after which a store must refuse: in the log and in the segments.
#[test]
fn after_a_failed_sync_or_write_nothing_more_is_acknowledged() {
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
            commits(child, 40);
            fault = Some(fs.fault(Fault::once(kind, on)));
            until_it_ends(child);
        });
        let struck = fs.struck(fault.expect("switched on"));
        assert_eq!(struck, 1, "{what}: it struck once, and after that nobody tried again and believed");
        assert!(done.refused.is_some(), "{what}: the store says that it stopped");
        // The disk is well again but what the failed sync covered is gone for good.
        fs.cut(Mode::Forget, 1);
        fs.boot().expect("it boots");
        let again = run(&fs, &mut acknowledged, |child| commits(child, 20));
        assert!(again.acks >= 20, "{what}: after a restart it works again");
    }
}

/// Faults in what is not needed for durability: the store goes on.
#[test]
fn a_failing_flush_is_tried_again_and_loses_nothing() {
    if !require() {
        return;
    }
    for kind in [FaultKind::SyncError, FaultKind::WriteError] {
        let fs = LossyFs::mount_temporary().expect("mounted");
        let mut acknowledged = Acknowledged::default();
        let mut fault = None;
        run(&fs, &mut acknowledged, |child| {
            commits(child, 40);
            let when = When::Calls { skip: 0, times: 3 };
            fault = Some(fs.fault(Fault { kind, on: On::Any("/store/tree/tables".into()), when }));
            commits(child, 1500);
        });
        assert_eq!(fs.struck(fault.expect("switched on")), 3, "{kind:?} struck");
        fs.cut(Mode::Tear, 2);
        fs.boot().expect("it boots");
        run(&fs, &mut acknowledged, |child| commits(child, 20));
    }
}

#[test]
fn a_flush_that_fails_leaves_no_file_behind() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().expect("mounted");
    let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_000_000_000)));
    let quick = Duration::from_millis(1);
    let backoff = Backoff { first: quick, most: quick, most_if_full: quick };
    let options = Options { backoff, ..Options::SMALL };
    let store = Embedded::open(fs.path(), clock, options).expect("it opens");
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
        // Written in full, but not made durable, or not even that.
        fs.fault(Fault::always(kind, On::Files("/tree/tables/".into())));
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.failed_attempts(Task::Flush) < before + 10 {
            assert!(Instant::now() < deadline, "{kind:?}: the flush fails: {:?}", store.health());
            // One memtable is enough; more would make commits wait.
            row += usize::from(row < 40 && put(row));
        }
        // At most the file of an attempt that is under way.
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

/// The name of a new manifest may be on disk although the call that wrote it failed. To write it again would truncate what
/// a restart needs, and to remove its tables would lose their rows.
#[test]
fn a_manifest_in_doubt_stops_the_store_and_a_restart_finds_every_row() {
    if !require() {
        return;
    }
    for (seed, mode) in [(1, Mode::Forget), (2, Mode::Tear), (3, Mode::Forget)] {
        let fs = LossyFs::mount_temporary().expect("mounted");
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_000_000_000)));
        let open = || Embedded::open(fs.path(), clock.clone(), Options::SMALL).expect("it opens");
        let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
        let partition = Partition::new(SpaceId::ROOT, "p");
        let store = open();
        let put = |row: usize| {
            let put = Mutation::Put(format!("{row}").into(), vec![7; 10_000].into());
            let rule = |_: &View<'_>| Ok::<_, ()>(Decision::Write(Change::of([put.clone()]), ()));
            runtime.block_on(transact(&store, &Gate::default(), &partition, Reads::default(), rule)).is_ok()
        };
        assert!(put(0));
        // The name `current` has moved to the new manifest when this strikes.
        let fault = fs.fault(Fault::always(FaultKind::SyncError, On::Exactly("/tree/current".into())));
        let mut acknowledged = 1;
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.is_healthy() {
            assert!(Instant::now() < deadline, "the store stops: {:?}", store.health());
            acknowledged += usize::from(put(acknowledged));
        }
        assert_eq!(fs.struck(fault), 1, "the manifest is not written again");
        let why = store.health().stopped.expect("it says why");
        assert!(why.contains("manifest"), "{why}");
        drop(store);
        fs.heal_all();
        fs.cut(mode, seed);
        fs.boot().expect("it boots");
        let store = open();
        for row in 0..acknowledged {
            let read =
                runtime.block_on(store.read(&partition, &Reads::key(format!("{row}")))).expect("readable");
            assert!(read.rows[0].is_some(), "row {row} of {acknowledged}");
        }
    }
}

#[test]
fn short_writes_are_completed() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().expect("mounted");
    let fault = fs.fault(Fault {
        kind: FaultKind::ShortWrite,
        on: On::Files(String::new()),
        when: When::OneIn { n: 3, seed: 5 },
    });
    let mut acknowledged = Acknowledged::default();
    for cut in 0..5 {
        run(&fs, &mut acknowledged, |child| commits(child, 200));
        fs.cut(Mode::Tear, cut);
        fs.boot().expect("it boots");
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
        commits(child, 40);
        // Less than is in use: sweeps give back what content of before took.
        fs.set_capacity(1 << 20);
        until_it_ends(child);
    });
    let refused = done.refused.expect("it says so");
    assert!(refused.contains("full") || refused.contains("space"), "{refused}");
    fs.set_capacity(8 << 30);
    let again = run(&fs, &mut acknowledged, |child| commits(child, 20));
    assert!(again.acks >= 20);
    fs.cut(Mode::Forget, 3);
    fs.boot().expect("it boots");
    run(&fs, &mut acknowledged, |_| ());
}

/// A start on a full disk, after a crash: reads and deletes work, writes are refused as Full.
#[test]
fn a_store_opens_on_a_full_disk_and_takes_deletes_but_no_writes() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().expect("mounted");
    let machine = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_000_000_000)));
    let open = || Embedded::open(fs.path(), machine.clone(), Options::SMALL).expect("it opens");
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
        fs.cut(Mode::Forget, round);
        fs.boot().expect("it boots");
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

/// Without room for a new ceiling time stands still; with room again it goes on, in the same process.
#[test]
fn time_goes_on_when_a_full_disk_has_room_again() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().expect("mounted");
    let machine = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_000_000_000)));
    let store = Embedded::open(fs.path(), machine.clone(), Options::SMALL).expect("it opens");
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
    // Ceilings may use part of the log's reserve. When that is used up, time stands still.
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
    assert!(!commit(1), "nothing is stamped above it either");

    fs.set_capacity(8 << 30);
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.now() != machine.now() {
        assert!(Instant::now() < deadline, "time goes on: {:?}", store.now());
        std::thread::yield_now();
    }
    assert!(commit(1));
    drop(store);
    Embedded::open(fs.path(), machine, Options::SMALL).expect("it opens again");
}

/// Bits that flip in what was acknowledged: reported before anything is served, or they hit nothing in use. The counts,
/// the history and the content of every client are compared with what was acknowledged in either case.
#[test]
fn a_flipped_bit_is_reported() {
    if !require() {
        return;
    }
    const FLIPS: u64 = 12;
    let seed = Seed::pick();
    let mut random = seed.rng();
    // Logs and segments are set aside in advance: only their beginning is in use, and of a segment only what no later
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
            run(&fs, &mut acknowledged, |child| commits(child, commits_before));
            fs.cut(Mode::Forget, random.random());
            fs.boot().expect("it boots");
            // In every file, since some may only wait to be removed.
            for file in std::fs::read_dir(fs.path().join(what)).expect("listed") {
                let file = file.expect("listed");
                let length = file.metadata().expect("its length").len();
                let path = format!("/{what}/{}", file.file_name().to_str().expect("a name"));
                for _ in 0..bits {
                    let at = random.random_range(in_use.start..in_use.end.min(length));
                    // Refused where nothing was ever written.
                    let _ = fs.flip(&path, at, random.random_range(0..8));
                }
            }
            if let Err(said) = round(Entry::Test("worker"), fs.path(), &mut acknowledged, |_| ()) {
                let said = said.to_lowercase();
                assert!(said.contains("damage") || said.contains("checksum"), "{what}: reported as {said}");
                reported += 1;
            }
        }
        println!("{what}: {reported} of {FLIPS} flips hit something in use and were reported");
        assert!(reported >= at_least, "{what}: {reported} of {FLIPS} flips were reported ({seed:?})");
    }
}
