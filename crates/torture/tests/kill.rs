//! The core is killed with SIGKILL, again and again, at any moment: nothing acknowledged is lost, nothing is half there.

use std::time::Duration;

use lazuli_torture::Seed;
use lazuli_torture::child::{Entry, Parent};
use lazuli_torture::rounds::round;
use lazuli_torture::workload::{Acknowledged, work};
use rand::Rng;

const KILLS: usize = 100;

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent);
    }
}

#[test]
fn nothing_acknowledged_is_lost_over_a_hundred_kills() {
    let seed = Seed::pick();
    let mut random = seed.rng();
    let dir = tempfile::tempdir().expect("a directory");
    let mut acknowledged = Acknowledged::default();
    for kill in 0..KILLS {
        let alive = Duration::from_micros(random.random_range(0..90_000));
        let done = round(Entry::Test("worker"), dir.path(), &mut acknowledged, |_| std::thread::sleep(alive));
        if let Err(wrong) = done {
            panic!("kill {kill}: {wrong}");
        }
    }
    assert!(acknowledged.total > KILLS as u64 * 2, "too little was done to tell: {}", acknowledged.total);
    round(Entry::Test("worker"), dir.path(), &mut acknowledged, |_| ())
        .unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{} commits acknowledged over {KILLS} kills, all there", acknowledged.total);
}
