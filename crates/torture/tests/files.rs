//! The file service killed, and its power cut, while files and directories are written to and moved.

use std::time::Duration;

use lazuli_torture::child::{Entry, Parent};
use lazuli_torture::files::work;
use lazuli_torture::rounds::{round, round_until_cut};
use lazuli_torture::workload::Acknowledged;
use lazuli_torture::{LossyFs, Mode, Seed, require};
use rand::Rng;

const KILLS: usize = 25;
const CUTS: usize = 20;

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent);
    }
}

#[test]
fn nothing_acknowledged_is_lost_or_in_two_places_when_the_service_is_killed() {
    let seed = Seed::pick();
    let mut random = seed.rng();
    let dir = tempfile::tempdir().expect("a directory");
    let mut acknowledged = Acknowledged::default();
    for kill in 0..KILLS {
        let alive = Duration::from_micros(random.random_range(0..150_000));
        round(Entry::Test("worker"), dir.path(), &mut acknowledged, |_| std::thread::sleep(alive))
            .unwrap_or_else(|wrong| panic!("kill {kill}: {wrong}"));
    }
    round(Entry::Test("worker"), dir.path(), &mut acknowledged, |_| ())
        .unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(acknowledged.total > KILLS as u64 * 2, "too little was done to tell: {}", acknowledged.total);
    println!("{} moves acknowledged over {KILLS} kills, all there", acknowledged.total);
}

#[test]
fn nothing_acknowledged_is_lost_or_in_two_places_when_the_power_is_cut() {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    let mut random = seed.rng();
    let fs = LossyFs::mount_temporary().expect("mounted");
    fs.write_back(50, random.random());
    let mut acknowledged = Acknowledged::default();
    for cut in 0..CUTS {
        let mode = if cut % 3 == 0 { Mode::Forget } else { Mode::Tear };
        let (operations, dice) = (random.random_range(1..2000), random.random());
        round_until_cut(Entry::Test("worker"), &fs, &mut acknowledged, mode, operations, dice)
            .unwrap_or_else(|wrong| panic!("cut {cut}: {wrong}\n{}", fs.report()));
    }
    round(Entry::Test("worker"), fs.path(), &mut acknowledged, |_| ())
        .map(drop)
        .unwrap_or_else(|wrong| panic!("{wrong}\n{}", fs.report()));
    assert!(acknowledged.total > CUTS as u64 * 2, "too little was done to tell: {}", acknowledged.total);
    println!("{} moves acknowledged over {CUTS} cuts, all there", acknowledged.total);
}
