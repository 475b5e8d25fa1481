//! Transactions and scans of the rows of one service.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::SystemClock;
use lazuli_protocol::ErrorCode;
use lazuli_service::{Rows, SpaceScan};
use lazuli_store::{
    Change, Decision, Embedded, Mutation, Options, Partition, Reads, SpaceHeader, SpaceId, Store, View, Which,
};

const SPACE: SpaceId = SpaceId(9);

async fn open(dir: &tempfile::TempDir) -> (Arc<dyn Store>, Rows) {
    let store = Arc::new(Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap());
    store.set_space(SPACE, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
    (store.clone(), Rows::new(store, ErrorCode::QueueNotFound))
}

async fn put(rows: &Rows, partition: &Partition, key: &'static str) -> Result<(), ErrorCode> {
    let put = Mutation::Put(key.into(), Bytes::new());
    let rule = |_: &View<'_>| Ok(Decision::Write(Change::of([put.clone()]), ()));
    rows.transact(partition, Reads::default(), rule).await.map_err(|refusal| refusal.code())
}

#[tokio::test]
async fn scan_reads_all_rows_below_its_prefix_in_pages() {
    let dir = tempfile::tempdir().unwrap();
    let (store, rows) = open(&dir).await;
    for partition in ["a", "b1", "b2", "c"] {
        for key in ["x", "y"] {
            put(&rows, &Partition::new(SPACE, partition), key).await.unwrap();
        }
    }
    for (which, page_rows, pages) in
        [(Which::All, 3, vec!["b1x b1y b2x", "b2y"]), (Which::First, 9, vec!["b1x b2x"])]
    {
        let mut scan = SpaceScan::new(&*store, SPACE, b"b", which, page_rows);
        for expected in pages {
            let page = scan.next().await.unwrap().unwrap();
            let names: Vec<_> =
                page.iter().map(|(partition, row)| [&partition[..], &row.key].concat()).collect();
            assert_eq!(String::from_utf8(names.join(&b' ')).unwrap(), expected);
        }
        assert!(scan.next().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn closed_space_is_refused_with_the_error_code_of_the_service() {
    let dir = tempfile::tempdir().unwrap();
    let (store, rows) = open(&dir).await;
    let partition = Partition::new(SPACE, "p");
    put(&rows, &partition, "x").await.unwrap();
    assert_eq!(rows.read(&partition, &Reads::key("x")).await.unwrap().rows.len(), 1);
    let before = store.space(SPACE).await.unwrap();
    store.set_space(SPACE, before, SpaceHeader { epoch: 1, open: false }).await.unwrap();
    assert_eq!(put(&rows, &partition, "x").await, Err(ErrorCode::QueueNotFound));
    let read = rows.read(&partition, &Reads::key("x")).await;
    assert_eq!(read.unwrap_err().code(), ErrorCode::QueueNotFound);
}
