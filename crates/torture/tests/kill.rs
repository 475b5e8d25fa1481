//! Kills the storage core with SIGKILL at random moments: nothing acknowledged is lost, and nothing is half
//! done.

use std::time::Duration;

use lazuli_store::Options;
use lazuli_torture::Seed;
use lazuli_torture::child::{EntryPoint, Parent};
use lazuli_torture::rounds::{live, round};
use lazuli_torture::workload::{Acknowledged, work};
use rand::Rng;

const KILLS: usize = 100;

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent, Options::SMALL);
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
        let done = round(EntryPoint::Test("worker"), dir.path(), &mut acknowledged, |child| {
            live(child, kill, alive)
        });
        if let Err(wrong) = done {
            panic!("kill {kill}: {wrong}");
        }
    }
    assert!(
        acknowledged.total > KILLS as u64 * 2,
        "too few operations to be meaningful: {}",
        acknowledged.total
    );
    round(EntryPoint::Test("worker"), dir.path(), &mut acknowledged, |_| ())
        .unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{} commits acknowledged over {KILLS} kills, all there", acknowledged.total);
}
