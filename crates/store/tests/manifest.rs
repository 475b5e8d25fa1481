//! Damage to the files of the tree that the tree itself does not notice.

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

/// A store with two tables, one of them compacted, and a log that ends in an orderly way.
async fn made() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..2u8 {
        let store = open(dir.path()).unwrap();
        let space = store.new_space().await.unwrap();
        store.set_space(space, None, SpaceHeader { epoch: 1, open: true }).await.unwrap();
        let mutations = (0..ROWS / 2)
            .map(|i| Mutation::Put(format!("{round}/{i:04}").into(), Bytes::from(vec![i as u8; 50])))
            .collect();
        let (stamp, conditions) = (store.stamp(), vec![]);
        let commit = Commit { stamp, epoch: 1, conditions, mutations, valid_until: None, bulk: false };
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

/// Every file with its bytes, and every file and folder with its time of modification.
fn everything(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
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

/// Changes a file with `change`, sees that the store is refused because of `named`, and puts the file back.
fn refused(dir: &Path, file: &Path, named: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let sound = std::fs::read(file).unwrap();
    let mut changed = sound.clone();
    change(&mut changed);
    std::fs::write(file, &changed).unwrap();
    let before = everything(dir);
    for (what, refused) in [("open", open(dir).map(drop)), ("check", rows(dir).map(drop))] {
        match refused {
            Err(OpenError::Damaged { path, .. }) => assert_eq!(path, named, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    let names = |files: BTreeMap<PathBuf, _>| files.into_keys().collect::<Vec<_>>();
    assert_eq!(names(everything(dir)), names(before), "no file comes or goes");
    std::fs::write(file, sound).unwrap();
}

#[tokio::test]
async fn a_flipped_bit_in_the_manifest_is_refused_and_no_table_is_removed() {
    let dir = made().await;
    let dir = dir.path();
    let expected = rows(dir).unwrap();
    assert!(expected >= ROWS && tables(dir).len() >= 2);
    let (current, manifest) = (dir.join("tree/current"), manifest(dir));
    for byte in 0..std::fs::metadata(&manifest).unwrap().len() as usize {
        refused(dir, &manifest, &manifest, |bytes| bytes[byte] ^= 1 << (byte % 8));
    }
    // A flipped id names a manifest that is not there.
    refused(dir, &current, &dir.join("tree/v9223372036854775808"), |bytes| {
        bytes[..8].copy_from_slice(&(1u64 << 63).to_le_bytes());
    });
    for byte in 8..24 {
        refused(dir, &current, &manifest, |bytes| bytes[byte] ^= 0x10);
    }
    refused(dir, &current, &current, |bytes| bytes[24] = 1);
    refused(dir, &current, &current, |bytes| bytes.truncate(24));
    assert_eq!(rows(dir).unwrap(), expected);
    open(dir).unwrap();
}

#[tokio::test]
async fn a_flipped_bit_in_the_contents_of_a_table_is_refused_with_its_name() {
    let dir = made().await;
    let dir = dir.path();
    for table in tables(dir) {
        let length = std::fs::metadata(&table).unwrap().len() as usize;
        // The trailer, and the contents before it: "TOC!", then the number of sections.
        let bytes = std::fs::read(&table).unwrap();
        let contents = bytes.windows(4).rposition(|window| window == b"TOC!").unwrap();
        for byte in contents..length {
            refused(dir, &table, &table, |bytes| bytes[byte] ^= 0x80);
        }
        refused(dir, &table, &table, |bytes| bytes.truncate(length - 1));
        refused(dir, &table, &table, Vec::clear);
    }
}

#[tokio::test]
async fn a_missing_file_of_the_tree_is_damage_and_not_an_empty_store() {
    let dir = made().await;
    let aside = tempfile::tempdir().unwrap();
    let (dir, aside) = (dir.path(), aside.path().join("aside"));
    let expected = rows(dir).unwrap();
    for file in [dir.join("tree/current"), manifest(dir), tables(dir).remove(0)] {
        std::fs::rename(&file, &aside).unwrap();
        for refused in [open(dir).map(drop), rows(dir).map(drop)] {
            assert!(matches!(&refused, Err(OpenError::Damaged { path, .. }) if *path == file), "{refused:?}");
        }
        std::fs::rename(&aside, &file).unwrap();
    }
    // Without the tree the log alone tells that there was one.
    std::fs::rename(dir.join("tree"), &aside).unwrap();
    assert!(matches!(open(dir), Err(OpenError::Damaged { .. })));
    std::fs::remove_dir(dir.join("tree")).unwrap();
    std::fs::rename(&aside, dir.join("tree")).unwrap();
    assert_eq!(rows(dir).unwrap(), expected);
}

#[tokio::test]
async fn every_bit_of_a_table_is_under_the_checksum_that_a_check_verifies() {
    let dir = made().await;
    let dir = dir.path();
    assert_eq!(embedded::damaged_tables(dir).unwrap(), []);
    for table in tables(dir) {
        let sound = std::fs::read(&table).unwrap();
        for byte in (0..sound.len()).step_by(97) {
            let mut changed = sound.clone();
            changed[byte] ^= 1;
            std::fs::write(&table, changed).unwrap();
            assert_eq!(embedded::damaged_tables(dir).unwrap(), [(table.clone(), "its checksum is wrong")]);
        }
        std::fs::write(&table, sound).unwrap();
    }
    let table = tables(dir).remove(0);
    std::fs::remove_file(&table).unwrap();
    assert_eq!(embedded::damaged_tables(dir).unwrap(), [(table, "it is missing")]);
}

#[tokio::test]
async fn a_check_changes_nothing_even_where_opening_would_tidy_up() {
    let dir = made().await;
    let dir = dir.path();
    let old = manifest(dir).with_file_name("v0");
    std::fs::write(&old, b"a manifest that was replaced").unwrap();
    std::fs::write(dir.join("tree/tables/999"), b"a table that a crash left").unwrap();
    let before = everything(dir);
    assert!(rows(dir).unwrap() >= ROWS);
    assert_eq!(embedded::damaged_tables(dir).unwrap(), []);
    assert_eq!(everything(dir), before);
    drop(open(dir).unwrap());
    assert!(!old.exists(), "to open it tidies up");
}

#[tokio::test]
async fn a_check_that_is_given_up_says_so() {
    let dir = made().await;
    let stop = |_, _: &Bytes, _: &_| Err(ReadError::Io("enough".into()));
    assert!(matches!(embedded::check(dir.path(), stop), Err(OpenError::Read(ReadError::Io(_)))));
}
