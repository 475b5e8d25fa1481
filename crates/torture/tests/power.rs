//! Power cuts, again and again: what was not synced is forgotten or torn, what was acknowledged is there. And the
//! proof that this would notice: with any one kind of sync taken out, it fails.

use std::time::Duration;

use lazuli_torture::child::{Entry, Parent};
use lazuli_torture::rounds::{Trouble, round, round_until_cut};
use lazuli_torture::workload::{Acknowledged, work};
use lazuli_torture::{Fault, FaultKind, LossyFs, Mode, On, Seed, require};
use rand::Rng;

const CUTS: usize = 50;

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent);
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
    let mut acknowledged = Acknowledged::default();
    for cut in 0..CUTS {
        if cut % 2 == 0 {
            // Killed with the power on: the next worker finds what was written and not synced, shows it and builds on
            // it, so from then on it has to stay.
            let alive = Duration::from_micros(random.random_range(0..20_000));
            round(Entry::Test("worker"), fs.path(), &mut acknowledged, |_| std::thread::sleep(alive))
                .unwrap_or_else(|wrong| panic!("killed before cut {cut}: {wrong}\n{}", fs.report()));
        }
        let mode = if cut % 3 == 0 { Mode::Forget } else { Mode::Tear };
        let operations = random.random_range(1..1500);
        let dice = random.random();
        let trouble = Trouble::of(cut, true, &acknowledged);
        let done = trouble.during(&fs, dice, || {
            round_until_cut(Entry::Test("worker"), &fs, &mut acknowledged, mode, operations, dice)
        });
        done.unwrap_or_else(|wrong| panic!("cut {cut}, {trouble:?}: {wrong}\n{}", fs.report()));
    }
    round(Entry::Test("worker"), fs.path(), &mut acknowledged, |_| ())
        .unwrap_or_else(|wrong| panic!("{wrong}\n{}", fs.report()));
    assert!(acknowledged.total > CUTS as u64 * 2, "too little was done to tell: {}", acknowledged.total);
    println!("{} commits acknowledged over {CUTS} cuts, all there", acknowledged.total);
}

/// Every kind of sync in the commit path and in the extent path.
fn syncs() -> [(&'static str, On); 10] {
    let files = |path: &str| On::Files(path.into());
    let directory = |path: &str| On::Exactly(path.into());
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
fn a_sync_taken_out_is_noticed() {
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
            let (worker, dice) = (Entry::Test("worker"), random.random());
            round_until_cut(worker, &fs, &mut acknowledged, Mode::Forget, operations, dice).is_err()
        });
        if !noticed {
            missed.push(what);
        }
    }
    assert!(missed.is_empty(), "nobody noticed that these were not synced: {missed:?}");
}
