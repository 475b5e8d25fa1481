//! The process harness: a child's acknowledgments survive its death, and no child survives its parent.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use lazuli_torture::child::{AckError, Child, EntryPoint, Parent};
use lazuli_torture::{CutMode, LossyFs, require};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

const TIMEOUT: Duration = Duration::from_secs(30);
const ENTRY: EntryPoint<'static> = EntryPoint::Test("worker");

// Not a test: the entry point of the children of the tests below.
#[test]
fn worker() {
    let Some(mut parent) = Parent::connect().unwrap() else { return };
    match parent.role().to_owned().as_str() {
        "counts forever" => {
            for number in 0.. {
                parent.ack(number, "").unwrap();
            }
        }
        "repeats its arguments" => {
            for (number, argument) in parent.arguments().iter().enumerate() {
                parent.ack(number as u64, argument).unwrap();
            }
        }
        "echoes" => {
            let mut number = 0;
            while let Some(line) = parent.receive_line().unwrap() {
                parent.ack(number, &line).unwrap();
                number += 1;
            }
        }
        "says nothing" => {
            parent.receive_line().unwrap();
        }
        "is deaf" => {
            parent.ack(0, "").unwrap();
            loop {
                std::thread::park();
            }
        }
        "panics" => panic!("of its own accord"),
        "has a child" => {
            let mut grandchild = Child::spawn(ENTRY, "is deaf", &[]).unwrap();
            grandchild.wait_acks(1, TIMEOUT).unwrap();
            parent.ack(u64::from(grandchild.id()), "").unwrap();
            parent.receive_line().unwrap();
        }
        "mounts" => {
            let _fs = LossyFs::mount(parent.arguments()[0].as_str()).unwrap();
            parent.ack(0, "").unwrap();
            parent.receive_line().unwrap();
        }
        role => panic!("no such role: {role}"),
    }
}

fn ends(pidfd: &OwnedFd) -> bool {
    let patience = Timespec::try_from(TIMEOUT).unwrap();
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&patience)).unwrap() > 0
}

fn pidfd(pid: u32) -> OwnedFd {
    pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap()
}

#[test]
fn all_acknowledgments_of_a_killed_child_are_received() {
    for acks in [1, 10, 1000] {
        let mut child = Child::spawn(ENTRY, "counts forever", &[]).unwrap();
        child.wait_acks(acks, TIMEOUT).unwrap();
        let ended = child.kill().unwrap();
        assert!(ended.acks.len() >= acks);
        assert!(ended.acks.iter().enumerate().all(|(at, ack)| ack.number == at as u64));
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.status), Some(9));
    }
}

#[test]
fn a_child_receives_its_arguments_and_ends_successfully() {
    let arguments = ["one", "two words", "", "ünïcödé"];
    let ended = Child::spawn(ENTRY, "repeats its arguments", &arguments).unwrap().finish(TIMEOUT).unwrap();
    assert!(ended.status.success(), "{}", ended.output);
    assert_eq!(ended.acks.iter().map(|ack| ack.detail.as_str()).collect::<Vec<_>>(), arguments);
}

#[test]
fn parent_and_child_exchange_lines() {
    let mut child = Child::spawn(ENTRY, "echoes", &[]).unwrap();
    for line in ["hello", "ack 7", ""] {
        child.send_line(line).unwrap();
        assert_eq!(child.next_ack(TIMEOUT).unwrap().detail, line);
    }
    assert!(child.send_line("two\nlines").is_err());
    assert_eq!(child.acks().len(), 3);
}

#[test]
fn waiting_for_a_silent_child_times_out() {
    let mut child = Child::spawn(ENTRY, "says nothing", &[]).unwrap();
    assert_eq!(child.next_ack(Duration::from_millis(20)), Err(AckError::TimedOut));
    // The child would wait for a line forever.
    let ended = child.finish(Duration::from_millis(20)).unwrap();
    assert!(!ended.status.success(), "killed");
}

#[test]
fn the_output_of_a_panicking_child_has_the_reason() {
    let mut child = Child::spawn(ENTRY, "panics", &[]).unwrap();
    assert_eq!(child.next_ack(TIMEOUT), Err(AckError::Ended));
    let ended = child.finish(TIMEOUT).unwrap();
    assert!(!ended.status.success());
    assert!(ended.output.contains("of its own accord"), "{}", ended.output);
}

#[test]
fn dropping_a_child_kills_it() {
    let child = Child::spawn(ENTRY, "says nothing", &[]).unwrap();
    let pidfd = pidfd(child.id());
    drop(child);
    assert!(ends(&pidfd));
}

#[test]
fn a_child_dies_when_its_parent_is_killed() {
    let mut child = Child::spawn(ENTRY, "has a child", &[]).unwrap();
    let grandchild = pidfd(child.next_ack(TIMEOUT).unwrap().number as u32);
    child.kill().unwrap();
    assert!(ends(&grandchild), "the grandchild outlived its parent");
}

#[test]
fn the_mount_of_a_killed_process_is_removed() {
    if !require() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let path: &Path = root.path();
    let mut child = Child::spawn(ENTRY, "mounts", &[path.to_str().unwrap()]).unwrap();
    child.wait_acks(1, TIMEOUT).unwrap();
    child.kill().unwrap();
    assert!(path.read_dir().is_err(), "a dead mount is in the way");
    let fs = LossyFs::mount(path).unwrap();
    std::fs::write(path.join("f"), b"x").unwrap();
    fs.cut(CutMode::Forget, 0);
    drop(fs);
    assert_eq!(path.read_dir().unwrap().count(), 0);
}
