//! The cases of the model, and the mistakes that it finds.

use super::Role::{self, Changer, Helper, Reader, Splitter, Writer};
use super::{Spaces, explore};

fn assert_correct(x: usize, roles: &[Role], can_give_up: bool) {
    let states = explore(Spaces::new(x, roles, can_give_up), 0);
    println!("{states:?} states: shard {x}, {roles:?}");
    assert!(states.unwrap() > 100);
}

#[test]
fn split_with_a_crash_is_correct_in_every_interleaving() {
    for x in [0, 1] {
        assert_correct(x, &[Splitter, Writer(1), Helper], false);
        assert_correct(x, &[Splitter, Reader(1), Helper], false);
    }
    assert_correct(0, &[Splitter, Writer(1), Helper], true);
}

#[test]
fn split_and_change_together_are_correct_in_every_interleaving() {
    for x in [0, 1] {
        assert_correct(x, &[Splitter, Changer(1), Writer(1)], false);
    }
}

#[test]
#[ignore = "takes minutes and gigabytes: make test-long"]
fn larger_cases_are_correct_in_every_interleaving() {
    for x in [0, 1] {
        assert_correct(x, &[Splitter, Writer(2), Reader(1), Helper], false);
        assert_correct(x, &[Splitter, Changer(1), Writer(1), Helper], false);
    }
    assert_correct(0, &[Splitter, Splitter, Writer(1), Helper], true);
    assert_correct(1, &[Changer(1), Changer(2), Writer(1), Helper], false);
    assert_correct(1, &[Changer(1), Changer(2), Writer(1), Reader(1)], false);
}
