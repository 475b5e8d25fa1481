//! Ordinary behavior as a file system: listings, large files, locks, mounting, and open files of an earlier
//! boot.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use lazuli_torture::{CutMode, LossyFs, require};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::{cut_and_boot, durable, errno, snapshot, sync};

#[test]
fn everything_fails_after_a_cut_and_old_handles_fail_forever() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    let mut file = durable(fs.path(), "f", b"old").unwrap();
    let directory = File::open(fs.path()).unwrap();
    assert!(fs.boot().is_err(), "the power is on");
    fs.cut(CutMode::Forget, 0);
    let fails_on_old_handles = |file: &mut File| {
        assert_eq!(errno(file.write(b"x")), Some(Errno::IO));
        assert_eq!(errno(file.read_at(&mut [0; 1], 0)), Some(Errno::IO));
        assert_eq!(errno(file.sync_data()), Some(Errno::IO));
        assert_eq!(errno(directory.sync_all()), Some(Errno::IO));
    };
    fails_on_old_handles(&mut file);
    assert_eq!(errno(File::open(fs.path().join("f"))), Some(Errno::IO));
    assert_eq!(errno(File::create(fs.path().join("g"))), Some(Errno::IO));
    fs.boot().unwrap();
    fails_on_old_handles(&mut file);
    assert_eq!(fs::read(fs.path().join("f")).unwrap(), b"old");
}

#[test]
fn many_files_and_directories_are_listed_and_deleted() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    for directory in 0..5 {
        let directory = fs.path().join(format!("d{directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..1000 {
            fs::write(directory.join(format!("a file with quite a long name, number {file}")), b"x").unwrap();
        }
        sync(&directory).unwrap();
    }
    sync(fs.path()).unwrap();
    assert_eq!(snapshot(fs.path()).len(), 5 * 1001);
    // Longer than one buffer of the kernel: deleting while listing must not skip entries.
    fs::remove_dir_all(fs.path().join("d0")).unwrap();
    assert_eq!(errno(fs::remove_dir(fs.path().join("d1"))), Some(Errno::NOTEMPTY));
    assert_eq!(errno(File::create_new(fs.path().join("d1"))), Some(Errno::EXIST));
    assert_eq!(errno(fs::read(fs.path().join("d0/x"))), Some(Errno::NOENT));
    cut_and_boot(&fs, CutMode::Forget, 0);
    let left = snapshot(fs.path());
    assert_eq!(left.len(), 5 * 1001);
    assert!(left.values().all(Vec::is_empty), "names were synced, contents were not");
}

#[test]
fn large_sparse_and_odd_sized_content_is_read_back() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    let content: Vec<u8> = (0..3_000_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let path = fs.path().join("f");
    fs::write(&path, &content).unwrap();
    assert!(fs::read(&path).unwrap() == content);
    let mut file = File::options().write(true).read(true).open(&path).unwrap();
    file.write_all_at(b"far", 1 << 33).unwrap();
    let mut part = [1; 6];
    file.read_exact_at(&mut part, (1 << 33) - 3).unwrap();
    assert_eq!(&part, b"\0\0\0far");
    file.set_len(5).unwrap();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, content[..5]);
}

#[test]
fn locks_work_and_do_not_survive_a_cut() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    let first = durable(fs.path(), "lock", b"").unwrap();
    let second = File::open(fs.path().join("lock")).unwrap();
    flock(&first, FlockOperation::NonBlockingLockExclusive).unwrap();
    let refused = flock(&second, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(Errno::WOULDBLOCK));
    cut_and_boot(&fs, CutMode::Forget, 0);
    let third = File::open(fs.path().join("lock")).unwrap();
    flock(&third, FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn a_panic_unmounts() {
    if !require() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    let held = std::thread::spawn(move || -> File {
        let fs = LossyFs::mount(&path).unwrap();
        let held = File::create(fs.path().join("f")).unwrap();
        std::panic::panic_any(held)
    })
    .join()
    .unwrap_err();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(root.path().to_str().unwrap()), "unmounted although a file is open");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    drop(held);
}

#[test]
fn a_failed_mount_reports_path_and_reason() {
    if !require() {
        return;
    }
    let error = LossyFs::mount("/nowhere/at/all").err().unwrap().to_string();
    assert!(error.contains("/nowhere/at/all") && error.contains("/dev/fuse"), "{error}");
}
