//! Cuts the power repeatedly: unsynced data is lost or torn, and acknowledged data survives. Also proves that
//! the test is sensitive: with any one kind of sync removed, it fails.

use std::time::Duration;

use lazuli_torture::child::{EntryPoint, Parent};
use lazuli_torture::rounds::{RoundTrouble, Troubles, round, round_until_cut};
use lazuli_torture::workload::{Acknowledged, SMALL_TABLES, work};
use lazuli_torture::{CutMode, Fault, FaultKind, LossyFs, PathFilter, Seed, require};
use rand::Rng;

const CUTS: usize = 50;

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent, SMALL_TABLES);
    }
}

#[test]
fn nothing_acknowledged_is_lost_over_fifty_power_cuts() {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    let mut random = seed.rng();
    let fs = LossyFs::mount_temporary().expect("mounted");
    fs.write_back(50, random.random());
    let (mut acknowledged, mut troubles) = (Acknowledged::default(), Troubles::default());
    for cut in 0..CUTS {
        if cut % 2 == 0 {
            // Kill the worker with the power on. The next worker verifies unsynced writes and builds on them,
            // so from then on they have to stay.
            let alive = Duration::from_micros(random.random_range(0..20_000));
            round(EntryPoint::Test("worker"), fs.path(), &mut acknowledged, |_| std::thread::sleep(alive))
                .unwrap_or_else(|wrong| panic!("killed before cut {cut}: {wrong}\n{}", fs.report()));
        }
        let mode = if cut % 3 == 0 { CutMode::Forget } else { CutMode::Tear };
        let trouble = RoundTrouble::of(cut, true, &acknowledged);
        let (operations, dice) = (random.random_range(trouble.operations(1500)), random.random());
        let done = trouble.during(&fs, dice, || {
            round_until_cut(EntryPoint::Test("worker"), &fs, &mut acknowledged, mode, operations, dice)
        });
        let done = done.unwrap_or_else(|wrong| panic!("cut {cut}, {trouble:?}: {wrong}\n{}", fs.report()));
        troubles.add(trouble, &done);
    }
    round(EntryPoint::Test("worker"), fs.path(), &mut acknowledged, |_| ())
        .unwrap_or_else(|wrong| panic!("{wrong}\n{}", fs.report()));
    assert!(
        acknowledged.total > CUTS as u64 * 2,
        "too few operations to be meaningful: {}",
        acknowledged.total
    );
    assert!(troubles.flushes > 0 && troubles.compactions > 0 && troubles.full_starts > 0, "{troubles:?}");
    println!("{} commits acknowledged over {CUTS} cuts, all there: {troubles:?}", acknowledged.total);
}

/// Returns all kinds of syncs in the commit path and in the extent path.
fn syncs() -> [(&'static str, PathFilter); 10] {
    let files = |path: &str| PathFilter::Files(path.into());
    let directory = |path: &str| PathFilter::Exactly(path.into());
    [
        ("a log segment", files("/store/log/")),
        ("the log's directory", directory("/store/log")),
        ("the tables", files("/store/tree/tables/")),
        ("the tables' directory", directory("/store/tree/tables")),
        ("the tree's manifest", files("/store/tree/v")),
        ("the tree's directory", directory("/store/tree")),
        ("an extent segment", files("/segments/")),
        ("the extents' directory", directory("/segments")),
        ("the data directory", directory("/")),
        ("the store's directory", directory("/store")),
    ]
}

#[test]
fn every_removed_sync_is_detected() {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    let mut random = seed.rng();
    let mut missed = vec![];
    for (what, on) in syncs() {
        let fs = LossyFs::mount_temporary().expect("mounted");
        fs.fault(Fault::always(FaultKind::LyingSync, on));
        let mut acknowledged = Acknowledged::default();
        let noticed = (0..15).any(|_| {
            let operations = random.random_range(200..2500);
            let (worker, dice) = (EntryPoint::Test("worker"), random.random());
            round_until_cut(worker, &fs, &mut acknowledged, CutMode::Forget, operations, dice).is_err()
        });
        if !noticed {
            missed.push(what);
        }
    }
    assert!(missed.is_empty(), "no test failed although these were not synced: {missed:?}");
}
