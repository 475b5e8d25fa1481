//! Power cuts that lose any part of what is unsynced, and cuts at a given operation.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use lazuli_torture::{CutMode, LossyFs, require};

use crate::{PAGE, SECTOR, cut_and_boot, durable, errno, snapshot, sync};

#[test]
fn a_tearing_cut_keeps_everything_if_all_was_synced() {
    if !require() {
        return;
    }
    let fs = LossyFs::mount_temporary().unwrap();
    durable(fs.path(), "a", &[1; 3 * PAGE]).unwrap();
    fs::create_dir(fs.path().join("d")).unwrap();
    sync(fs.path()).unwrap();
    durable(fs.path(), "d/b", b"b").unwrap();
    let before = snapshot(fs.path());
    for seed in 0..20 {
        let loss = fs.cut(CutMode::Tear, seed);
        assert_eq!(loss, Default::default(), "all data was synced");
        fs.boot().unwrap();
        assert_eq!(snapshot(fs.path()), before);
    }
}

#[test]
fn a_tearing_cut_keeps_or_loses_whole_pages() {
    if !require() {
        return;
    }
    const PAGES: usize = 8;
    let mut outcomes = BTreeSet::new();
    for seed in 0..24 {
        let fs = LossyFs::mount_temporary().unwrap();
        let other = durable(fs.path(), "other", b"").unwrap();
        let file = durable(fs.path(), "f", &[b'o'; PAGES * PAGE]).unwrap();
        file.write_all_at(&[b'n'; PAGES * PAGE], 0).unwrap();
        // Write another page last, because the last write is torn.
        other.write_all_at(b"x", 0).unwrap();
        cut_and_boot(&fs, CutMode::Tear, seed);
        let content = fs::read(fs.path().join("f")).unwrap();
        assert_eq!(content.len(), PAGES * PAGE);
        let pages: String = content
            .chunks(PAGE)
            .map(|page| {
                assert!(page.iter().all(|byte| *byte == page[0]), "seed {seed}: half a page");
                page[0] as char
            })
            .collect();
        outcomes.insert(pages);
    }
    assert!(outcomes.iter().all(|pages| pages.chars().all(|page| "on".contains(page))), "{outcomes:?}");
    assert!(outcomes.len() > 12, "pages fall independently: {outcomes:?}");
}

#[test]
fn a_tearing_cut_tears_the_last_write_at_a_sector_boundary() {
    if !require() {
        return;
    }
    let mut fronts = 0;
    let mut boundaries = BTreeSet::new();
    for seed in 0..40 {
        let fs = LossyFs::mount_temporary().unwrap();
        let file = durable(fs.path(), "f", &[b'o'; 4 * PAGE]).unwrap();
        // Six sectors across a page boundary, beginning and ending in the middle of a sector.
        let (from, to) = (PAGE - 2 * SECTOR - 100, PAGE + 3 * SECTOR + 100);
        file.write_all_at(&vec![b'n'; to - from], from as u64).unwrap();
        cut_and_boot(&fs, CutMode::Tear, seed);
        let content = fs::read(fs.path().join("f")).unwrap();
        assert!(content[..from].iter().chain(&content[to..]).all(|byte| *byte == b'o'), "seed {seed}");
        let written = &content[from..to];
        let at = written.iter().position(|byte| *byte != written[0]).expect("torn inside");
        assert!(written[at..].iter().all(|byte| *byte != written[0]), "seed {seed}: torn once");
        assert_eq!((from + at) % SECTOR, 0, "seed {seed}: sectors are atomic");
        fronts += usize::from(written[0] == b'n');
        boundaries.insert(from + at);
    }
    assert!((5..35).contains(&fronts), "either side can be the one that is lost: {fronts} of 40");
    assert!(boundaries.len() >= 4, "{boundaries:?}");
}

#[test]
fn a_tearing_cut_never_leaves_a_half_done_rename() {
    if !require() {
        return;
    }
    let mut renamed = 0;
    for seed in 0..40 {
        let fs = LossyFs::mount_temporary().unwrap();
        durable(fs.path(), "f", b"old").unwrap();
        durable(fs.path(), "tmp", b"new").unwrap();
        fs::rename(fs.path().join("tmp"), fs.path().join("f")).unwrap();
        cut_and_boot(&fs, CutMode::Tear, seed);
        let left = snapshot(fs.path());
        let done = left.len() == 1;
        renamed += usize::from(done);
        assert_eq!(left["f"], if done { b"new" } else { b"old" }, "seed {seed}: {left:?}");
        assert_eq!(left.contains_key("tmp"), !done, "seed {seed}: {left:?}");
    }
    assert!((5..35).contains(&renamed), "both happen: {renamed} of 40");
}

#[test]
fn a_tearing_cut_keeps_the_order_of_operations_on_a_name() {
    if !require() {
        return;
    }
    let mut lefts = BTreeSet::new();
    for seed in 0..60 {
        let fs = LossyFs::mount_temporary().unwrap();
        let path = |name| fs.path().join(name);
        File::create(path("a")).unwrap();
        fs::rename(path("a"), path("b")).unwrap();
        fs::rename(path("b"), path("c")).unwrap();
        fs::create_dir(path("unrelated")).unwrap();
        cut_and_boot(&fs, CutMode::Tear, seed);
        lefts.insert(snapshot(fs.path()).into_keys().collect::<Vec<_>>());
    }
    for left in &lefts {
        let names = left.iter().filter(|name| *name != "unrelated/").count();
        assert!(names <= 1, "one file has one name: {left:?}");
    }
    assert_eq!(lefts.len(), 8, "none, a, b or c, with and without the unrelated one: {lefts:?}");
}

#[test]
fn a_tearing_cut_of_an_append_leaves_any_length_but_no_foreign_bytes() {
    if !require() {
        return;
    }
    let mut lengths = BTreeSet::new();
    for seed in 0..40 {
        let fs = LossyFs::mount_temporary().unwrap();
        let file = durable(fs.path(), "f", b"durable").unwrap();
        file.write_all_at(&[b'n'; 3 * PAGE], 7).unwrap();
        cut_and_boot(&fs, CutMode::Tear, seed);
        let content = fs::read(fs.path().join("f")).unwrap();
        assert!(content.starts_with(b"durable"), "seed {seed}");
        assert!(content[7..].iter().all(|byte| [0, b'n'].contains(byte)), "seed {seed}");
        lengths.insert(content.len());
    }
    assert!(lengths.contains(&7) && lengths.contains(&(7 + 3 * PAGE)) && lengths.len() > 3, "{lengths:?}");
}

#[test]
fn write_back_can_make_intermediate_versions_durable() {
    if !require() {
        return;
    }
    let mut versions = BTreeSet::new();
    for seed in 0..20 {
        let fs = LossyFs::mount_temporary().unwrap();
        let file = durable(fs.path(), "f", b"0").unwrap();
        fs.write_back(3, seed);
        for version in b'1'..=b'5' {
            file.write_all_at(&[version], 0).unwrap();
        }
        cut_and_boot(&fs, CutMode::Forget, 0);
        versions.insert(fs::read(fs.path().join("f")).unwrap()[0]);
    }
    assert!(versions.len() >= 4, "{versions:?}");
}

#[test]
fn a_cut_can_be_planned_at_every_operation() {
    if !require() {
        return;
    }
    let work = |root: &Path| -> io::Result<()> {
        fs::write(root.join("tmp"), b"x")?; // 0: create, 1: write
        sync(&root.join("tmp"))?; // 2
        fs::rename(root.join("tmp"), root.join("f"))?; // 3
        sync(root) // 4
    };
    let mut last_applied = BTreeSet::new();
    for operations in 0..=5 {
        for seed in 0..6 {
            let fs = LossyFs::mount_temporary().unwrap();
            fs.plan_cut(operations, CutMode::Forget, seed);
            let result = work(fs.path());
            if operations == 5 {
                result.unwrap();
                assert_eq!(fs.is_cut(), None);
                continue;
            }
            assert_eq!(errno(result), Some(rustix::io::Errno::IO));
            assert!(fs.is_cut().is_some());
            fs.boot().unwrap();
            let left = snapshot(fs.path());
            if operations < 4 {
                assert!(left.is_empty(), "{operations}: {left:?}");
            } else {
                assert!(left.is_empty() || left["f"] == b"x", "{left:?}");
                last_applied.insert(!left.is_empty());
            }
        }
    }
    assert_eq!(last_applied.len(), 2, "an operation that failed may have reached the disk, or not");
}
