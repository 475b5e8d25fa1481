//! Tests damage to the tree's files that the tree itself does not detect.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use lazuli_concurrency::SystemClock;
use lazuli_store::{
    Commit, Embedded, Mutation, OpenError, Options, Partition, ReadError, SpaceHeader, Store, embedded,
};
use tempfile::TempDir;

const ROWS: usize = 300;

fn open(dir: &Path) -> Result<Embedded, OpenError> {
    let options = Options { log_segment_bytes: 64 << 10, ..Options::SMALL };
    Embedded::open(dir, Arc::new(SystemClock), options)
}

/// Makes a store with two tables, one of them compacted, and a log with a proper end.
async fn filled_store() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..2u8 {
        let store = open(dir.path()).unwrap();
        let space = store.new_space().await.unwrap();
        store.set_space(space, None, SpaceHeader { epoch: 1, open: true }).await.unwrap();
        let mutations = (0..ROWS / 2)
            .map(|i| Mutation::Put(format!("{round}/{i:04}").into(), Bytes::from(vec![i as u8; 50])))
            .collect();
        let (stamp, conditions) = (store.stamp(), vec![]);
        let commit =
            Commit { stamp, epoch: 1, conditions, mutations, valid_until: None, fence: None, bulk: false };
        store.commit(&Partition::new(space, "p"), commit).await.unwrap();
        drop(store);
        if round == 0 {
            open(dir.path()).unwrap().compact().unwrap();
        }
    }
    dir
}

fn rows(dir: &Path) -> Result<usize, OpenError> {
    let mut rows = 0;
    embedded::check(dir, |_, _, _| {
        rows += 1;
        Ok(())
    })?;
    Ok(rows)
}

/// Returns every file with its bytes, and the modification time of every file and directory.
fn snapshot_of_files(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        found.insert(folder.clone(), (folder.metadata().unwrap().modified().unwrap(), vec![]));
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let modified = path.metadata().unwrap().modified().unwrap();
                found.insert(path.clone(), (modified, std::fs::read(&path).unwrap()));
            }
        }
    }
    found
}

fn manifest(dir: &Path) -> PathBuf {
    let current = std::fs::read(dir.join("tree/current")).unwrap();
    dir.join(format!("tree/v{}", u64::from_le_bytes(*current.first_chunk().unwrap())))
}

fn tables(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir.join("tree/tables")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Damages a file with `change`, checks that opening fails and names `named`, and restores the file.
fn assert_refused(dir: &Path, file: &Path, named: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let sound = std::fs::read(file).unwrap();
    let mut changed = sound.clone();
    change(&mut changed);
    std::fs::write(file, &changed).unwrap();
    let before = snapshot_of_files(dir);
    for (what, assert_refused) in [("open", open(dir).map(drop)), ("check", rows(dir).map(drop))] {
        match assert_refused {
            Err(OpenError::Damaged { path, .. }) => assert_eq!(path, named, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    let names = |files: BTreeMap<PathBuf, _>| files.into_keys().collect::<Vec<_>>();
    assert_eq!(names(snapshot_of_files(dir)), names(before), "no file comes or goes");
    std::fs::write(file, sound).unwrap();
}

#[tokio::test]
async fn flipped_bit_in_the_manifest_is_refused_and_no_table_is_removed() {
    let dir = filled_store().await;
    let dir = dir.path();
    let expected = rows(dir).unwrap();
    assert!(expected >= ROWS && tables(dir).len() >= 2);
    let (current, manifest) = (dir.join("tree/current"), manifest(dir));
    for byte in 0..std::fs::metadata(&manifest).unwrap().len() as usize {
        assert_refused(dir, &manifest, &manifest, |bytes| bytes[byte] ^= 1 << (byte % 8));
    }
    // A flipped id names a manifest that does not exist.
    assert_refused(dir, &current, &dir.join("tree/v9223372036854775808"), |bytes| {
        bytes[..8].copy_from_slice(&(1u64 << 63).to_le_bytes());
    });
    for byte in 8..24 {
        assert_refused(dir, &current, &manifest, |bytes| bytes[byte] ^= 0x10);
    }
    assert_refused(dir, &current, &current, |bytes| bytes[24] = 1);
    assert_refused(dir, &current, &current, |bytes| bytes.truncate(24));
    assert_eq!(rows(dir).unwrap(), expected);
    open(dir).unwrap();
}

#[tokio::test]
async fn flipped_bit_in_the_contents_of_a_table_is_refused_with_its_name() {
    let dir = filled_store().await;
    let dir = dir.path();
    for table in tables(dir) {
        let length = std::fs::metadata(&table).unwrap().len() as usize;
        // The trailer, and the contents before it: "TOC!", then the number of sections.
        let bytes = std::fs::read(&table).unwrap();
        let contents = bytes.windows(4).rposition(|window| window == b"TOC!").unwrap();
        for byte in contents..length {
            assert_refused(dir, &table, &table, |bytes| bytes[byte] ^= 0x80);
        }
        assert_refused(dir, &table, &table, |bytes| bytes.truncate(length - 1));
        assert_refused(dir, &table, &table, Vec::clear);
    }
}

#[tokio::test]
async fn missing_file_of_the_tree_is_damage_and_not_an_empty_store() {
    let dir = filled_store().await;
    let aside = tempfile::tempdir().unwrap();
    let (dir, aside) = (dir.path(), aside.path().join("aside"));
    let expected = rows(dir).unwrap();
    for file in [dir.join("tree/current"), manifest(dir), tables(dir).remove(0)] {
        std::fs::rename(&file, &aside).unwrap();
        for assert_refused in [open(dir).map(drop), rows(dir).map(drop)] {
            assert!(
                matches!(&assert_refused, Err(OpenError::Damaged { path, .. }) if *path == file),
                "{assert_refused:?}"
            );
        }
        std::fs::rename(&aside, &file).unwrap();
    }
    // Without the tree, only the log shows that there was one.
    std::fs::rename(dir.join("tree"), &aside).unwrap();
    assert!(matches!(open(dir), Err(OpenError::Damaged { .. })));
    std::fs::remove_dir(dir.join("tree")).unwrap();
    std::fs::rename(&aside, dir.join("tree")).unwrap();
    assert_eq!(rows(dir).unwrap(), expected);
}

#[tokio::test]
async fn check_detects_a_flipped_bit_anywhere_in_a_table() {
    let dir = filled_store().await;
    let dir = dir.path();
    assert_eq!(embedded::damaged_tables(dir, |_, _| ()).unwrap(), []);
    for table in tables(dir) {
        let sound = std::fs::read(&table).unwrap();
        for byte in (0..sound.len()).step_by(97) {
            let mut changed = sound.clone();
            changed[byte] ^= 1;
            std::fs::write(&table, changed).unwrap();
            assert_eq!(
                embedded::damaged_tables(dir, |_, _| ()).unwrap(),
                [(table.clone(), "its checksum is wrong")]
            );
        }
        std::fs::write(&table, sound).unwrap();
    }
    let table = tables(dir).remove(0);
    std::fs::remove_file(&table).unwrap();
    assert_eq!(embedded::damaged_tables(dir, |_, _| ()).unwrap(), [(table, "it is missing")]);
}

#[tokio::test]
async fn check_changes_nothing_even_where_opening_would_clean_up() {
    let dir = filled_store().await;
    let dir = dir.path();
    let old = manifest(dir).with_file_name("v0");
    std::fs::write(&old, b"a manifest that was replaced").unwrap();
    std::fs::write(dir.join("tree/tables/999"), b"a table that a crash left").unwrap();
    let before = snapshot_of_files(dir);
    assert!(rows(dir).unwrap() >= ROWS);
    assert_eq!(embedded::damaged_tables(dir, |_, _| ()).unwrap(), []);
    assert_eq!(snapshot_of_files(dir), before);
    drop(open(dir).unwrap());
    assert!(!old.exists(), "opening removes old manifests");
}

#[tokio::test]
async fn check_that_the_visitor_stops_fails() {
    let dir = filled_store().await;
    let stop = |_, _: &Bytes, _: &_| Err(ReadError::Io("enough".into()));
    assert!(matches!(embedded::check(dir.path(), stop), Err(OpenError::Read(ReadError::Io(_)))));
}
