//! Faults at run time: what fails, what is left, and what is counted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use lazuli_torture::{Counters, CutMode, Fault, FaultKind, LossyFs, PathFilter, Schedule, require};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::{PAGE, cut_and_boot, durable, errno, snapshot, sync};

#[test]
fn a_lying_sync_reports_success_and_keeps_nothing() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    let file = durable(fs.path(), "f", b"old").unwrap();
    let honest = durable(fs.path(), "honest", b"old").unwrap();
    let lie = fs.fault(Fault::always(FaultKind::LyingSync, PathFilter::Exactly("/f".into())));
    let lie_about_names = fs.fault(Fault::always(FaultKind::LyingSync, PathFilter::Directories("".into())));
    for file in [&file, &honest] {
        file.write_all_at(b"new", 0).unwrap();
        file.sync_all().unwrap();
    }
    File::create(fs.path().join("created")).unwrap();
    sync(fs.path()).unwrap();
    assert_eq!((fs.struck(lie), fs.struck(lie_about_names)), (1, 1));
    cut_and_boot(&fs, CutMode::Forget, 0);
    let left = snapshot(fs.path());
    assert_eq!(left, [("f".into(), b"old".to_vec()), ("honest".into(), b"new".to_vec())].into());

    // The fault survives the cut. Once it is disabled, a sync is effective again.
    fs::write(fs.path().join("f"), b"new").unwrap();
    sync(&fs.path().join("f")).unwrap();
    fs.heal(lie);
    sync(&fs.path().join("f")).unwrap();
    cut_and_boot(&fs, CutMode::Forget, 0);
    assert_eq!(fs::read(fs.path().join("f")).unwrap(), b"new");
}

#[test]
fn a_later_sync_does_not_restore_what_a_failed_sync_lost() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    let file = durable(fs.path(), "f", &[b'o'; 2 * PAGE]).unwrap();
    let other = durable(fs.path(), "other", b"").unwrap();
    fs.fault(Fault::once(FaultKind::SyncError, PathFilter::Files("f".into())));
    file.write_all_at(b"lost", 0).unwrap();
    other.write_all_at(b"other", 0).unwrap();
    assert_eq!(errno(file.sync_data()), Some(Errno::IO));
    other.sync_data().unwrap();
    let mut seen = [0; 4];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"lost", "still in memory");
    file.write_all_at(b"kept", PAGE as u64).unwrap();
    file.sync_data().unwrap();
    cut_and_boot(&fs, CutMode::Forget, 0);
    let content = fs::read(fs.path().join("f")).unwrap();
    assert_eq!((&content[..4], &content[PAGE..PAGE + 4]), (&b"oooo"[..], &b"kept"[..]));
    assert_eq!(fs::read(fs.path().join("other")).unwrap(), b"other");
}

#[test]
fn a_later_sync_does_not_restore_what_a_failed_directory_sync_lost() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    fs.fault(Fault::once(FaultKind::SyncError, PathFilter::Directories("".into())));
    File::create(fs.path().join("lost")).unwrap();
    assert_eq!(errno(sync(fs.path())), Some(Errno::IO));
    File::create(fs.path().join("kept")).unwrap();
    sync(fs.path()).unwrap();
    assert_eq!(snapshot(fs.path()).len(), 2, "still in memory");
    cut_and_boot(&fs, CutMode::Forget, 0);
    assert_eq!(snapshot(fs.path()).into_keys().collect::<Vec<_>>(), ["kept"]);
}

#[test]
fn failing_reads_and_writes_fail_on_matching_files_only() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    let file = durable(fs.path(), "f.log", b"old").unwrap();
    let other = durable(fs.path(), "other", b"old").unwrap();
    let when = Schedule::Calls { skip: 1, times: 1 };
    fs.fault(Fault { kind: FaultKind::WriteError, on: PathFilter::Files(".log".into()), when });
    file.write_all_at(b"1", 0).unwrap();
    assert_eq!(errno(file.write_at(b"2", 0)), Some(Errno::IO));
    other.write_all_at(b"2", 0).unwrap();
    file.write_all_at(b"3", 1).unwrap();
    fs.fault(Fault::once(FaultKind::ReadError, PathFilter::Files(".log".into())));
    assert_eq!(errno(fs::read(fs.path().join("f.log"))), Some(Errno::IO));
    assert_eq!(fs::read(fs.path().join("f.log")).unwrap(), b"13d");
    assert_eq!(fs::read(fs.path().join("other")).unwrap(), b"2ld");
}

#[test]
fn a_short_write_stores_what_it_reports() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    let mut file = File::create(fs.path().join("f")).unwrap();
    fs.fault(Fault::once(FaultKind::ShortWrite, PathFilter::Any("".into())));
    assert_eq!(file.write(&[b'x'; 1000]).unwrap(), 500);
    assert_eq!(file.metadata().unwrap().len(), 500);
    file.write_all(&[b'y'; 10]).unwrap();
    let content = fs::read(fs.path().join("f")).unwrap();
    assert_eq!(content, [vec![b'x'; 500], vec![b'y'; 10]].concat());
}

#[test]
fn a_full_disk_stores_what_fits_then_refuses_and_recovers_when_space_is_freed() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    let mut file = File::create(fs.path().join("f")).unwrap();
    file.write_all(&[1; PAGE]).unwrap();
    fs.set_capacity(fs.used() + 2 * PAGE as u64);
    assert_eq!(file.write(&[2; 4 * PAGE]).unwrap(), 2 * PAGE, "as much as fits");
    assert_eq!(errno(file.write(&[3; 1])), Some(Errno::NOSPC));
    file.write_at(&[4; 1], 0).expect("an overwrite takes no space");
    assert_eq!(
        errno(fallocate(&file, FallocateFlags::empty(), 0, 1 << 40).map_err(Into::into)),
        Some(Errno::NOSPC)
    );
    assert_eq!(rustix::fs::statvfs(fs.path()).unwrap().f_bavail, 0);

    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, PAGE as u64).unwrap();
    file.write_all(&[5; PAGE]).expect("a hole gave a page back");
    assert_eq!(errno(file.write(&[6; 1])), Some(Errno::NOSPC));
    drop(file);
    fs::remove_file(fs.path().join("f")).unwrap();
    fs::write(fs.path().join("g"), [7; 3 * PAGE]).expect("an unlink gave the rest back");
}

#[test]
fn preallocated_space_counts_as_used_and_holes_do_not() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    let file = File::create(fs.path().join("f")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!((fs.used(), file.metadata().unwrap().blocks()), (0, 0));
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 10 * PAGE as u64).unwrap();
    assert_eq!((fs.used(), file.metadata().unwrap().blocks()), (10 * PAGE as u64, 80));
    assert_eq!(file.metadata().unwrap().len(), 1 << 40);
}

#[test]
fn a_flipped_bit_is_visible_at_once_and_after_a_cut() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    let file = durable(fs.path(), "f", &[0; 2 * PAGE]).unwrap();
    fs.flip("/f", 5000, 3).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    assert_eq!(byte, [8]);
    cut_and_boot(&fs, CutMode::Forget, 0);
    let content = fs::read(fs.path().join("f")).unwrap();
    assert_eq!(content.iter().position(|byte| *byte != 0), Some(5000));

    fs::write(fs.path().join("unsynced"), b"x").unwrap();
    assert!(fs.flip("/unsynced", 0, 0).is_err(), "no durable byte to flip");
    assert!(fs.flip("/f", 2 * PAGE as u64, 0).is_err(), "past the end");
    assert!(fs.flip("/missing", 0, 0).is_err());
}

#[test]
fn a_random_flip_hits_one_durable_bit_of_a_matching_file() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    fs::create_dir(fs.path().join("d")).unwrap();
    durable(fs.path(), "d/a.log", &[0; 3 * PAGE]).unwrap();
    durable(fs.path(), "b.log", &[0; 100]).unwrap();
    durable(fs.path(), "c", &[0; PAGE]).unwrap();
    let mut ones = 0;
    let mut hit = BTreeSet::new();
    for seed in 0..30 {
        let flipped = fs.flip_any(&PathFilter::Files(".log".into()), seed).unwrap();
        let content = fs::read(fs.path().join(&flipped.path[1..])).unwrap();
        assert_ne!(content[flipped.offset as usize] & 1 << flipped.bit, 0, "{flipped:?}");
        ones += 1;
        let all: u32 = snapshot(fs.path()).values().flatten().map(|byte| byte.count_ones()).sum();
        assert_eq!(all, ones, "exactly one bit each time");
        hit.insert(flipped.path);
    }
    assert_eq!(hit.into_iter().collect::<Vec<_>>(), ["/b.log", "/d/a.log"]);
    assert_eq!(fs.flip_any(&PathFilter::Files("missing".into()), 0), None);
}

#[test]
fn counters_and_report_list_the_operations() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    durable(fs.path(), "a.log", b"12345").unwrap();
    durable(fs.path(), "b", b"1").unwrap();
    let counters = fs.counters(&PathFilter::Files(".log".into()));
    assert_eq!(counters, Counters { file_syncs: 1, directory_syncs: 0, writes: 1, bytes_written: 5 });
    let counters = fs.counters(&PathFilter::Any("".into()));
    assert_eq!(counters, Counters { file_syncs: 2, directory_syncs: 2, writes: 2, bytes_written: 6 });
    let report = fs.report();
    for line in ["create /a.log", "write /a.log 5 bytes at 0", "sync /a.log", "sync /"] {
        assert!(report.contains(line), "{line} in\n{report}");
    }
    for _ in 0..300 {
        fs::write(fs.path().join("b"), b"2").unwrap();
    }
    assert_eq!(fs.operations().len(), 200);
}
