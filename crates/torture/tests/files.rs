//! The file service while files and directories are written and moved, killed or without power.

use std::time::Duration;

use lazuli_torture::child::Parent;
use lazuli_torture::files::work;
use lazuli_torture::rounds::{cut_repeatedly, kill_repeatedly};

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent);
    }
}

#[test]
fn nothing_acknowledged_is_lost_or_in_two_places_when_the_service_is_killed() {
    kill_repeatedly("worker", 25, Duration::from_millis(150));
}

#[test]
fn nothing_acknowledged_is_lost_or_in_two_places_when_the_power_is_cut() {
    cut_repeatedly("worker", 20, false);
}
