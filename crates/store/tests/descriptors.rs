//! Tests a process without free file descriptors. The limit applies to the whole process, so this test has
//! its own.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::SystemClock;
use lazuli_store::{Commit, CommitError, Embedded, Mutation, Options, Partition, Reads, SpaceHeader, Store};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limits the process to the descriptors that are already open.
fn limit_descriptors(current: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap();
}

#[tokio::test]
async fn commits_are_refused_while_the_next_segment_cannot_be_opened_and_then_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
    let store = open();
    let space = store.new_space().await.unwrap();
    store.set_space(space, None, SpaceHeader { epoch: 1, open: true }).await.unwrap();
    let partition = Partition::new(space, b"p".to_vec());
    let put = async |row: u32| {
        let commit = Commit {
            stamp: store.stamp(),
            epoch: 1,
            conditions: vec![],
            mutations: vec![Mutation::Put(
                Bytes::copy_from_slice(&row.to_be_bytes()),
                vec![7; 64 << 10].into(),
            )],
            valid_until: None,
            fence: None,
            bulk: false,
        };
        store.commit(&partition, commit).await
    };
    put(0).await.unwrap();

    let Some(usual) = getrlimit(Resource::Nofile).current else { panic!("there is a limit") };
    limit_descriptors(3);
    let mut acknowledged = 1;
    let refused = loop {
        match put(acknowledged).await {
            Ok(_) => acknowledged += 1,
            Err(refused) => break refused,
        }
        assert!(acknowledged < 1000, "the log was never continued");
    };
    assert_eq!(refused, CommitError::Busy);
    assert!(store.is_healthy(), "no commit is in doubt");

    limit_descriptors(usual);
    for _ in 0..100 {
        put(acknowledged).await.unwrap();
        acknowledged += 1;
    }
    drop(store);
    let store = open();
    for row in 0..acknowledged {
        let reads = Reads { keys: vec![Bytes::copy_from_slice(&row.to_be_bytes())], ..Reads::default() };
        assert!(store.read(&partition, &reads).await.unwrap().rows[0].is_some(), "{row}");
    }
}
