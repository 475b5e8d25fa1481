//! The blob service under a mixed load of all three types of blob, killed or without power.

use std::time::Duration;

use lazuli_torture::blobs::work;
use lazuli_torture::child::Parent;
use lazuli_torture::rounds::{cut_repeatedly, kill_repeatedly};

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent);
    }
}

#[test]
fn no_acknowledged_blob_is_lost_when_the_service_is_killed() {
    kill_repeatedly("worker", 25, Duration::from_millis(150));
}

#[test]
fn no_acknowledged_blob_is_lost_when_the_power_is_cut() {
    cut_repeatedly("worker", 20, true);
}
