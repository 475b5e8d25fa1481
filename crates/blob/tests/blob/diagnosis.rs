//! Internal errors name what they concern: the log entries of a request name the row, partition or extent.

use std::os::unix::fs::FileExt;

use lazuli_store::Mutation;
use lazuli_testing::LogCapture;

use crate::support::{Reply, TestServer, start, start_with_files};

/// Fails the test unless a log entry of the request contains the text.
#[track_caller]
fn assert_logged(log: &LogCapture, reply: &Reply, text: &str) {
    let entries = log.lines_with(&format!("request_id={}", reply.header("x-ms-request-id").unwrap()));
    assert!(entries.iter().any(|entry| entry.contains(text)), "{text} {entries:#?}");
}

#[tokio::test]
async fn damaged_row_is_named_with_its_partition_and_space() {
    let log = LogCapture::start();
    let server = start().await;
    server.create_container("con").await;
    let space = server.only_space().await;
    server.change_row("bone", Mutation::Put("b".into(), "damaged".into())).await;
    let partition = format!("{space} partition \"bone\"");
    let read = server.get("/con/one", "").await.expect(500);
    assert_logged(&log, &read, &format!("place={partition}"));
    let listed = server.get("/con?restype=container&comp=list", "").await.expect(500);
    assert_logged(&log, &listed, &format!("place={partition} row \"b\""));
    let deleted = server.delete("/con/one", "").await.expect(500);
    assert_logged(&log, &deleted, &format!("partition={partition} rows=[\"b\"]"));
    let replaced = server.put("/con/one", "x-ms-blob-type: BlockBlob", "x").await.expect(500);
    assert_logged(&log, &replaced, &format!("place={partition}"));
}

#[tokio::test]
async fn commit_with_an_unknown_outcome_is_named_with_its_partition() {
    let log = LogCapture::start();
    let server = start().await;
    server.create_container("con").await;
    let partition = format!("place={} partition \"bone\"", server.only_space().await);
    server.watched.interposer.crash_at(1, false);
    let put = server.put("/con/one", "x-ms-blob-type: BlockBlob", "x").await.expect(500);
    assert_logged(&log, &put, &partition);
    // No later commit takes effect either.
    let staged = server.put("/con/one?comp=block&blockid=AAAA", "", "x").await.expect(500);
    assert_logged(&log, &staged, &partition);
}

#[tokio::test]
async fn damaged_extent_is_named() {
    let log = LogCapture::start();
    let server = start_with_files().await;
    server.create_container("con").await;
    server.put("/con/one", "x-ms-blob-type: BlockBlob", vec![0xAB; 100 << 10]).await.expect(201);
    damage_first_segment(&server, &[0xAB; 512]);
    let hashed = "x-ms-range: bytes=0-99\nx-ms-range-get-content-md5: true";
    let read = server.get("/con/one", hashed).await.expect(500);
    assert_logged(&log, &read, "error=damaged: 1:0001: a checksum does not match");
}

/// Changes one byte in the first segment where these bytes are.
fn damage_first_segment(server: &TestServer, bytes: &[u8]) {
    let path = server.engine.directory().join("segments/0000000000000001.seg");
    let at = memchr::memmem::find(&std::fs::read(&path).unwrap(), bytes).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[!bytes[0]], at as u64).unwrap();
}
