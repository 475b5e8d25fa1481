//! The blob service killed, and its power cut, under a mixed load of all three types of blob.

use std::time::Duration;

use lazuli_torture::blobs::work;
use lazuli_torture::child::Parent;
use lazuli_torture::rounds::{cut_again_and_again, kill_again_and_again};

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent);
    }
}

#[test]
fn no_acknowledged_blob_is_lost_when_the_service_is_killed() {
    kill_again_and_again("worker", 25, Duration::from_millis(150));
}

#[test]
fn no_acknowledged_blob_is_lost_when_the_power_is_cut() {
    cut_again_and_again("worker", 20, true);
}
