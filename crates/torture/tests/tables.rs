//! The table service killed, and its power cut, under entity group transactions: each is whole or absent.

use std::time::Duration;

use lazuli_torture::child::Parent;
use lazuli_torture::rounds::{cut_again_and_again, kill_again_and_again};
use lazuli_torture::tables::work;

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent);
    }
}

#[test]
fn no_acknowledged_transaction_is_lost_or_torn_when_the_service_is_killed() {
    kill_again_and_again("worker", 25, Duration::from_millis(150));
}

#[test]
fn no_acknowledged_transaction_is_lost_or_torn_when_the_power_is_cut() {
    cut_again_and_again("worker", 20, true);
}
