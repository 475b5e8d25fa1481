//! The queue service under producers and consumers, killed or without power.

use std::time::Duration;

use lazuli_torture::child::Parent;
use lazuli_torture::queues::work;
use lazuli_torture::rounds::{cut_repeatedly, kill_repeatedly};

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent);
    }
}

#[test]
fn no_message_is_lost_or_redelivered_after_a_kill() {
    kill_repeatedly("worker", 15, Duration::from_millis(300));
}

#[test]
fn no_message_is_lost_or_redelivered_after_a_power_cut() {
    cut_repeatedly("worker", 12, false);
}
