//! A disk that is full, simulated by the limit on file sizes of a process.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::sync::Arc;

use lazuli_extents::conformance::pattern;
use lazuli_extents::{Error, Extents, LocalExtents, Options};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CHILD: &str = "LAZULI_TEST_FULL_DISK";
const LIMIT: u64 = 3 << 20;

// The limit and its signal apply to a whole process. So the test runs itself again in a new process, in
// which a shell ignores the signal.
#[test]
fn full_disk_is_an_error_until_there_is_space_again() {
    if std::env::var_os(CHILD).is_some() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(in_a_full_disk());
    }
    let status = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" --exact full_disk_is_an_error_until_there_is_space_again"])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

fn limit_file_size(bytes: Option<u64>) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
}

async fn in_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 16 << 20, grow_bytes: 2 << 20 };
    let extents: Arc<dyn Extents> = Arc::new(LocalExtents::open(dir.path(), options).unwrap());
    let writer = extents.writer();
    limit_file_size(Some(LIMIT));
    let mut kept = vec![];
    let refused = loop {
        match extents.append(&writer, vec![pattern(kept.len() as u64, 300_000)]).await {
            Ok(extent) => kept.push(extent),
            Err(e) => break e,
        }
    };
    assert_eq!(refused, Error::Full);
    assert_eq!(
        kept.len(),
        10,
        "everything that fits was accepted: preallocation falls back to smaller steps"
    );
    assert!(extents.storage_use().should_sweep(), "a full disk makes a sweep due");
    extents.sync().await.unwrap();
    let small = extents.append(&writer, vec![pattern(1000, 5000)]).await.unwrap();

    limit_file_size(None);
    kept.push(extents.append(&writer, vec![pattern(kept.len() as u64, 300_000)]).await.unwrap());
    extents.sync().await.unwrap();
    for (i, extent) in kept.iter().enumerate() {
        assert_eq!(extents.read(extent, 0..300_000).await.unwrap(), pattern(i as u64, 300_000));
    }
    assert_eq!(extents.read(&small, 0..5000).await.unwrap(), pattern(1000, 5000));
}
