//! Tests reading a damaged store, and loading a new store with the salvaged rows.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, SystemClock};
use lazuli_store::embedded::{self, Loader, Losses, Salvage, Salvaged};
use lazuli_store::{Commit, Embedded, Mutation, Options, Partition, Row, SpaceHeader, SpaceId, Store, Token};
use tempfile::TempDir;

const ROWS: usize = 400;
const VALUE: usize = 200;

type Rows = BTreeMap<(SpaceId, Bytes, Bytes), Row>;

fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, Arc::new(SystemClock), Options::SMALL).unwrap()
}

async fn put(store: &Embedded, space: SpaceId, rows: impl Iterator<Item = (String, u8)>) {
    let rows: Vec<_> = rows.collect();
    for rows in rows.chunks(100) {
        let value = |byte: u8| Bytes::from(vec![byte; VALUE]);
        let mutations =
            rows.iter().map(|(key, byte)| Mutation::Put(key.clone().into(), value(*byte))).collect();
        let (stamp, conditions) = (store.stamp(), vec![]);
        let commit =
            Commit { stamp, epoch: 1, conditions, mutations, valid_until: None, fence: None, bulk: false };
        store.commit(&Partition::new(space, "p"), commit).await.unwrap();
    }
}

async fn new_space(store: &Embedded) -> SpaceId {
    let space = store.new_space().await.unwrap();
    store.set_space(space, None, SpaceHeader { epoch: 1, open: true }).await.unwrap();
    space
}

/// Makes a store with one table and later rows in the log.
async fn filled_store() -> (TempDir, SpaceId) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let space = new_space(&store).await;
    put(&store, space, (0..ROWS).map(|i| (format!("row-{i:04}"), 1))).await;
    store.close();
    drop(store);
    open(dir.path()).compact().unwrap();
    let store = open(dir.path());
    put(&store, space, [("row-9999".to_owned(), 2)].into_iter()).await;
    // Drop the store as if the process were killed: the rows in the log stay there.
    std::mem::forget(store);
    (dir, space)
}

fn rows_of(dir: &Path) -> Rows {
    let mut rows = Rows::new();
    embedded::check(dir, |space, partition, row| {
        rows.insert((space, partition.clone(), row.key.clone()), row.clone());
        Ok(())
    })
    .unwrap();
    rows
}

/// Returns the readable rows, the stale rows and the losses.
fn salvage(dir: &Path, mut loader: Option<&mut Loader>) -> (Rows, Rows, Losses) {
    let (mut rows, mut stale) = (Rows::new(), Rows::new());
    let losses = Salvage::open(dir).unwrap().run(|found| {
        match found {
            Salvaged::Clock(ceiling) => loader.iter_mut().for_each(|loader| loader.clock(ceiling)),
            Salvaged::Header(space, header) => {
                loader
                    .iter_mut()
                    .for_each(|loader| loader.header(space, header, Token(Stamp::from_ticks(0))).unwrap());
            }
            Salvaged::Row(space, partition, row) => {
                loader.iter_mut().for_each(|loader| loader.row(space, &partition, &row).unwrap());
                rows.insert((space, partition, row.key.clone()), row);
            }
            Salvaged::Stale(space, partition, row) => {
                stale.insert((space, partition, row.key.clone()), row);
            }
        }
        Ok(())
    });
    (rows, stale, losses.unwrap())
}

fn tables(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir.join("tree/tables")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn largest_table(dir: &Path) -> PathBuf {
    tables(dir).into_iter().max_by_key(|table| std::fs::metadata(table).unwrap().len()).unwrap()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn loaded_rows_keep_their_tokens_and_new_stamps_are_above_them() {
    let (dir, space) = filled_store().await;
    let expected = rows_of(dir.path());
    assert_eq!(expected.len(), ROWS + 1);
    let target = tempfile::tempdir().unwrap();
    let mut loader = Loader::create(target.path()).unwrap();
    let (rows, stale, losses) = salvage(dir.path(), Some(&mut loader));
    loader.finish().unwrap();
    assert_eq!((&rows, stale.len(), losses.count), (&expected, 0, 0), "{losses:?}");
    assert_eq!(rows_of(target.path()), expected);
    let store = open(target.path());
    assert_eq!(store.space(space).await.unwrap(), Some(SpaceHeader { epoch: 1, open: true }));
    let newest = expected.values().map(|row| row.token.0).max().unwrap();
    assert!(store.stamp() > newest);
    put(&store, space, [("row-0000".to_owned(), 3)].into_iter()).await;
    drop(store);
    assert_eq!(rows_of(target.path()).len(), ROWS + 1);
    assert!(Loader::create(target.path()).is_err(), "only an empty directory is filled");
}

#[tokio::test]
async fn damaged_block_loses_exactly_the_rows_of_the_reported_gap() {
    let (dir, space) = filled_store().await;
    let expected = rows_of(dir.path());
    let table = largest_table(dir.path());
    let length = std::fs::metadata(&table).unwrap().len() as usize;
    flip(&table, length / 4);
    let (rows, stale, losses) = salvage(dir.path(), None);
    assert_eq!((stale.len(), losses.count), (0, 1), "{losses:?}");
    let loss = &losses.listed[0];
    assert_eq!(loss.path, table);
    let gap = loss.gap.clone().unwrap();
    assert!(!gap.to_end, "{gap:?}");
    let (after, before) = (gap.after.unwrap(), gap.before.unwrap());
    assert_eq!((after.space, before.space), (space, space));
    let in_gap = |key: &Bytes| *key > after.key && *key < before.key;
    let lost: Vec<_> = expected.keys().filter(|key| !rows.contains_key(*key)).collect();
    assert!(!lost.is_empty() && lost.len() < ROWS / 2, "{}", lost.len());
    assert!(lost.iter().all(|(s, _, key)| *s == space && in_gap(key)), "{lost:?}");
    let in_the_gap = expected.keys().filter(|(s, _, key)| *s == space && in_gap(key)).count();
    assert_eq!(in_the_gap, lost.len(), "no row of the gap was read");
    assert!(rows.iter().all(|(key, row)| expected[key] == *row));
}

#[tokio::test]
async fn older_version_of_a_row_in_a_gap_is_stale() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let space = new_space(&store).await;
    put(&store, space, (0..ROWS).map(|i| (format!("row-{i:04}"), 1))).await;
    drop(store);
    open(dir.path()).compact().unwrap();
    let before: Vec<_> = tables(dir.path());
    let store = open(dir.path());
    put(&store, space, (0..ROWS).map(|i| (format!("row-{i:04}"), 2))).await;
    // Write more than a memtable to another space, so that the rows above get their own table.
    let other = new_space(&store).await;
    put(&store, other, (0..2000).map(|i| (format!("other-{i:04}"), 3))).await;
    drop(store);
    let Some(newer) = tables(dir.path()).into_iter().find(|table| {
        let bytes = std::fs::read(table).unwrap();
        !before.contains(table) && bytes.windows(64).any(|window| window == [2; 64])
    }) else {
        panic!("the newer rows do not have their own table");
    };
    let expected = rows_of(dir.path());
    let bytes = std::fs::read(&newer).unwrap();
    let at = bytes.windows(64).position(|window| window == [2; 64]).unwrap();
    flip(&newer, at);
    let (rows, stale, losses) = salvage(dir.path(), None);
    assert_eq!(losses.count, 1, "{losses:?}");
    assert!(!stale.is_empty(), "{losses:?}");
    assert!(rows.iter().all(|(key, row)| expected[key] == *row), "no stale row counts as current");
    let missing: Vec<_> = expected.keys().filter(|key| !rows.contains_key(*key)).collect();
    assert_eq!(missing, stale.keys().collect::<Vec<_>>());
}

#[tokio::test]
async fn all_rows_are_read_from_tables_and_log_without_a_manifest() {
    let (dir, _) = filled_store().await;
    let expected = rows_of(dir.path());
    let current = dir.path().join("tree/current");
    for at in [0, 9, 24] {
        flip(&current, at);
        assert!(embedded::check(dir.path(), |_, _, _| Ok(())).is_err());
        let (rows, stale, losses) = salvage(dir.path(), None);
        assert_eq!((&rows, stale.len(), losses.count), (&expected, 0, 1), "{losses:?}");
        flip(&current, at);
    }
    std::fs::remove_file(&current).unwrap();
    let (rows, _, losses) = salvage(dir.path(), None);
    assert_eq!((&rows, losses.count), (&expected, 1), "{losses:?}");
}

#[tokio::test]
async fn table_without_its_index_is_read_block_by_block() {
    let (dir, _) = filled_store().await;
    let expected = rows_of(dir.path());
    let table = largest_table(dir.path());
    // The trailer has the offset of the contents.
    let length = std::fs::metadata(&table).unwrap().len() as usize;
    flip(&table, length - 3);
    let (rows, _, losses) = salvage(dir.path(), None);
    assert_eq!((&rows, losses.count), (&expected, 1), "{losses:?}");
    assert_eq!(losses.listed[0].path, table);
}

#[tokio::test]
async fn damaged_log_frame_loses_its_commits_and_no_later_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let space = new_space(&store).await;
    for i in 0..3u8 {
        put(&store, space, [(format!("logged-{i}"), 0xA0 + i)].into_iter()).await;
    }
    std::mem::forget(store);
    let expected = rows_of(dir.path());
    let logs = std::fs::read_dir(dir.path().join("log")).unwrap().map(|entry| entry.unwrap().path());
    let value = [0xA1; VALUE];
    let (log, at) = logs
        .filter_map(|log| {
            let bytes = std::fs::read(&log).unwrap();
            bytes.windows(VALUE).position(|window| window == value).map(|at| (log, at))
        })
        .next()
        .unwrap();
    flip(&log, at);
    let (rows, _, losses) = salvage(dir.path(), None);
    assert_eq!(losses.count, 1, "{losses:?}");
    assert_eq!(losses.listed[0].path, log);
    let lost: Vec<_> = expected.keys().filter(|key| !rows.contains_key(*key)).map(|key| &key.2[..]).collect();
    assert_eq!(lost, [b"logged-1"]);
}
