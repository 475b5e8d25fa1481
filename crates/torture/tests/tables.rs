//! The table service under entity group transactions, killed or without power: each transaction is complete
//! or absent.

use std::time::Duration;

use lazuli_torture::child::Parent;
use lazuli_torture::rounds::{cut_repeatedly, kill_repeatedly};
use lazuli_torture::tables::work;

#[test]
fn worker() {
    if let Some(parent) = Parent::connect().expect("a parent, or none") {
        work(&parent);
    }
}

#[test]
fn no_acknowledged_transaction_is_lost_or_torn_when_the_service_is_killed() {
    kill_repeatedly("worker", 25, Duration::from_millis(150));
}

#[test]
fn no_acknowledged_transaction_is_lost_or_torn_when_the_power_is_cut() {
    cut_repeatedly("worker", 20, true);
}
