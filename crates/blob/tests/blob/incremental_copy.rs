//! Incremental Copy Blob.

use lazuli_account::Setting;

use crate::support::{ACCOUNT, Reply, TestServer, start};

const PAGE: &str = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 4096";

impl TestServer {
    /// Writes one page, and takes a snapshot.
    async fn page_snapshot(&self, blob: &str, page: usize, byte: u8) -> String {
        let range = format!("x-ms-page-write: update\nx-ms-range: bytes={}-{}", page * 512, page * 512 + 511);
        self.put(&format!("{blob}?comp=page"), &range, vec![byte; 512]).await.expect(201);
        let taken = self.put(&format!("{blob}?comp=snapshot"), "", "").await.expect(201);
        taken.header("x-ms-snapshot").unwrap().to_owned()
    }

    async fn back_up(&self, source: &str, snapshot: &str, headers: &str) -> Reply {
        let url = format!("http://{}/{ACCOUNT}{source}?snapshot={snapshot}", self.address);
        let headers = format!("x-ms-copy-source: {url}\n{headers}");
        self.put("/things/backup?comp=incrementalcopy", &headers, "").await
    }
}

async fn with_page_blob() -> TestServer {
    let server = start().await;
    server.create_container("things").await;
    server.put("/things/source", PAGE, "").await.expect(201);
    server
}

#[tokio::test]
async fn each_copied_snapshot_becomes_a_snapshot_of_the_backup() {
    let server = with_page_blob().await;
    let mut last: Option<String> = None;
    for round in 1..4 {
        let snapshot = server.page_snapshot("/things/source", round, round as u8).await;
        let copied = server.back_up("/things/source", &snapshot, "").await.expect(202);
        assert_eq!(copied.header("x-ms-copy-status"), Some("pending"));
        let head = server.head("/things/backup", "").await.expect(200);
        assert_eq!(head.header("x-ms-copy-status"), Some("success"));
        assert_eq!(head.header("x-ms-copy-id"), copied.header("x-ms-copy-id"));
        assert_eq!(head.header("x-ms-incremental-copy"), Some("true"));
        assert_eq!(head.etag(), copied.etag());
        let taken = head.header("x-ms-copy-destination-snapshot").unwrap().to_owned();
        let source = server.get(&format!("/things/source?snapshot={snapshot}"), "").await.expect(200);
        let backup = server.get(&format!("/things/backup?snapshot={taken}"), "").await.expect(200);
        assert!(backup.body == source.body);
        if let Some(last) = last {
            let diff = format!("/things/backup?comp=pagelist&snapshot={taken}&prevsnapshot={last}");
            let diff = server.get(&diff, "").await.expect(200);
            let (first, end) = (round * 512, round * 512 + 511);
            let range = format!("<PageRange><Start>{first}</Start><End>{end}</End></PageRange>");
            assert!(diff.text().contains(&range), "{}", diff.text());
            assert_eq!(diff.text().matches("<PageRange>").count(), 1);
        }
        last = Some(taken);
    }
}

#[tokio::test]
async fn reencrypted_backup_differs_only_where_its_source_does() {
    let server = start().await;
    server.create_container("things").await;
    for scope in ["first", "second"] {
        server.set(Setting::AddEncryptionScope(scope.into())).await;
    }
    let page = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 1048576";
    server.put("/things/source", page, "").await.expect(201);
    let fill = "x-ms-page-write: update\nx-ms-range: bytes=0-262143";
    server.put("/things/source?comp=page", fill, vec![9; 256 << 10]).await.expect(201);
    let clear = "x-ms-page-write: clear\nx-ms-range: bytes=1024-1535";
    let resize = "x-ms-blob-content-length: 131072";
    let again = format!("x-ms-blob-content-length: 65536|{resize}");
    let (mut last_source, mut last): (Option<String>, Option<String>) = (None, None);
    // Columns: the change of the source, the page that is written then, the scope of the backup, and the
    // expected differences.
    for (query, headers, page, scope, expected) in [
        ("", "", 1, "first", ""),
        ("", "", 2, "first", "PageRange 1024-1535"),
        ("?comp=page", clear, 600, "first", "ClearRange 1024-1535 PageRange 307200-307711"),
        ("?comp=properties", resize, 5, "first", "PageRange 2560-3071"),
        ("", "", 4, "second", "PageRange 0-1023 PageRange 1536-131071"),
        ("", "", 3, "second", "PageRange 1536-2047"),
        ("?comp=properties", &again, 6, "second", "PageRange 3072-3583 ClearRange 65536-131071"),
        ("snapshot", "", 3, "second", "PageRange 0-1023 PageRange 1536-65535"),
    ] {
        for headers in headers.split('|').filter(|headers| !headers.is_empty()) {
            let done = server.put(&format!("/things/source{query}"), headers, "").await;
            assert!(done.status.is_success(), "{query} {}", done.text());
        }
        let snapshot = server.page_snapshot("/things/source", page, page as u8).await;
        if let Some(last) = last_source.filter(|_| query == "snapshot") {
            // The changes since the last copy can no longer be determined.
            server.delete(&format!("/things/source?snapshot={last}"), "").await.expect(202);
        }
        let scope = format!("x-ms-encryption-scope: {scope}");
        server.back_up("/things/source", &snapshot, &scope).await.expect(202);
        let head = server.head("/things/backup", "").await.expect(200);
        let taken = head.header("x-ms-copy-destination-snapshot").unwrap().to_owned();
        let source = server.get(&format!("/things/source?snapshot={snapshot}"), "").await.expect(200);
        let backup = server.get(&format!("/things/backup?snapshot={taken}"), "").await.expect(200);
        assert!(backup.body == source.body && backup.header("x-ms-encryption-scope").is_some(), "{page}");
        if let Some(last) = last {
            let diff = format!("/things/backup?comp=pagelist&snapshot={taken}&prevsnapshot={last}");
            assert_eq!(ranges(server.get(&diff, "").await.expect(200).text()), expected, "{page}");
        }
        (last_source, last) = (Some(snapshot), Some(taken));
    }
}

#[tokio::test]
async fn backup_keeps_its_own_tier() {
    let server = with_page_blob().await;
    let first = server.page_snapshot("/things/source", 0, 1).await;
    server.back_up("/things/source", &first, "x-ms-access-tier: Archive").await.expect(202);
    let head = server.head("/things/backup", "").await.expect(200);
    assert_eq!(head.header("x-ms-archive-status"), None);
    assert_ne!(head.header("x-ms-access-tier"), Some("Archive"));
    server.put("/things/backup?comp=tier", "x-ms-access-tier: P10", "").await.expect(200);
    for (round, header) in ["", "x-ms-access-tier: P20", "x-ms-access-tier: none"].into_iter().enumerate() {
        let snapshot = server.page_snapshot("/things/source", round, 2).await;
        server.back_up("/things/source", &snapshot, header).await.expect(202);
        let head = server.head("/things/backup", "").await.expect(200);
        assert_eq!(head.header("x-ms-access-tier"), Some("P10"), "{header}");
    }
}

/// Returns the ranges of a list, each with the name of its element.
fn ranges(list: &str) -> String {
    let entries = list.split("<Start>").skip(1).map(|entry| {
        let (start, rest) = entry.split_once("</Start><End>").unwrap();
        let (end, rest) = rest.split_once("</End></").unwrap();
        format!("{} {start}-{end}", rest.split_once('>').unwrap().0)
    });
    entries.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn backup_refuses_other_writes_and_is_read_through_its_snapshots() {
    let server = with_page_blob().await;
    let snapshot = server.page_snapshot("/things/source", 0, 1).await;
    server.back_up("/things/source", &snapshot, "").await.expect(202);
    let refusal = (409, "OperationNotAllowedOnIncrementalCopyBlob");
    let source = format!("x-ms-copy-source: http://{}/{ACCOUNT}/things/source", server.address);
    for (query, headers, body) in [
        ("", PAGE, 0),
        ("", source.as_str(), 0),
        ("?comp=page", "x-ms-page-write: update\nx-ms-range: bytes=0-511", 512),
        ("?comp=metadata", "x-ms-meta-a: 1", 0),
        ("?comp=properties", "x-ms-blob-content-length: 512", 0),
        ("?comp=snapshot", "", 0),
    ] {
        let refused = server.put(&format!("/things/backup{query}"), headers, vec![1; body]).await;
        assert_eq!(refused.outcome(), refusal, "{query} {headers}");
    }
    assert_eq!(server.get("/things/backup", "").await.outcome(), refusal);
    server.delete("/things/backup", "x-ms-delete-snapshots: include").await.expect(202);
    server.put("/things/backup", PAGE, "").await.expect(201);
}

#[tokio::test]
async fn incremental_copy_refuses_sources_that_do_not_match_the_backup() {
    let server = with_page_blob().await;
    let first = server.page_snapshot("/things/source", 0, 1).await;
    let second = server.page_snapshot("/things/source", 1, 2).await;
    server.put("/things/other", PAGE, "").await.expect(201);
    let other = server.page_snapshot("/things/other", 0, 1).await;
    server.put_block_blob("/things/block", "hello").await;
    let taken = server.put("/things/block?comp=snapshot", "", "").await.expect(201);
    let block = taken.header("x-ms-snapshot").unwrap();
    server.back_up("/things/block", block, "").await.refused(409, "InvalidSourceBlobType");
    let none = "2020-01-01T00:00:00.0000000Z";
    server.back_up("/things/source", none, "").await.refused(404, "CannotVerifyCopySource");
    let plain = format!("x-ms-copy-source: http://{}/{ACCOUNT}/things/source", server.address);
    let target = "/things/backup?comp=incrementalcopy";
    server.put(target, &plain, "").await.refused(409, "IncrementalCopySourceMustBeSnapshot");
    server.put(target, "", "").await.refused(400, "MissingRequiredHeader");
    server.head("/things/backup", "").await.expect(404);

    let copied = server.back_up("/things/source", &second, "").await.expect(202);
    let earlier = "IncrementalCopyOfEarlierVersionSnapshotNotAllowed";
    server.back_up("/things/source", &first, "").await.refused(409, earlier);
    server.back_up("/things/other", &other, "").await.refused(409, "IncrementalCopyBlobMismatch");
    let third = server.page_snapshot("/things/source", 1, 3).await;
    for (condition, code) in [
        ("if-match: \"0x1\"".to_owned(), "TargetConditionNotMet"),
        (format!("if-none-match: {}", copied.etag()), "ConditionNotMet"),
        ("if-unmodified-since: Thu, 01 Jan 2026 00:00:00 GMT".to_owned(), "ConditionNotMet"),
        ("x-ms-if-tags: a = '1'".to_owned(), "ConditionNotMet"),
    ] {
        server.back_up("/things/source", &third, &condition).await.refused(412, code);
    }
    server.back_up("/things/source", &third, &format!("if-match: {}", copied.etag())).await.expect(202);

    server.delete("/things/backup", "x-ms-delete-snapshots: include").await.expect(202);
    server.put_block_blob("/things/backup", "hello").await;
    server.back_up("/things/source", &third, "").await.refused(409, "InvalidBlobType");
    server.delete("/things/backup", "").await.expect(202);
    server.put("/things/backup", PAGE, "").await.expect(201);
    server.back_up("/things/source", &third, "").await.refused(409, "IncrementalCopyBlobMismatch");
}

#[tokio::test]
async fn deleted_blob_with_the_name_of_a_backup_can_be_restored() {
    let server = with_page_blob().await;
    server.soft_delete(Some(7)).await;
    server.put_block_blob("/things/backup", "deleted before").await;
    server.delete("/things/backup", "").await.expect(202);
    let snapshot = server.page_snapshot("/things/source", 0, 1).await;
    server.back_up("/things/source", &snapshot, "").await.expect(202);
    let head = server.head("/things/backup", "").await.expect(200);
    let made = head.header("x-ms-copy-destination-snapshot").unwrap().to_owned();
    let made = format!("/things/backup?snapshot={made}");
    let before = server.get(&made, "").await.expect(200);
    server.put("/things/backup?comp=undelete", "", "").await.expect(200);
    let after = server.get(&made, "").await.expect(200);
    assert!((after.etag(), &after.body) == (before.etag(), &before.body));
    let list = server.get("/things?restype=container&comp=list&include=snapshots&prefix=backup", "").await;
    let snapshots: Vec<_> = list.text().split("<Snapshot>").skip(1).map(|rest| &rest[..28]).collect();
    assert_eq!(snapshots.len(), 2, "{}", list.text());
    let restored = snapshots.iter().find(|snapshot| !made.ends_with(**snapshot)).unwrap();
    let restored = server.get(&format!("/things/backup?snapshot={restored}"), "").await.expect(200);
    assert_eq!(restored.text(), "deleted before");
}

#[tokio::test]
async fn incremental_copy_keeps_the_lease_and_needs_no_lease_id() {
    let server = with_page_blob().await;
    let first = server.page_snapshot("/things/source", 0, 1).await;
    server.back_up("/things/source", &first, "").await.expect(202);
    let acquire = "x-ms-lease-action: acquire
        x-ms-lease-duration: 15
        x-ms-proposed-lease-id: 11111111-1111-1111-1111-111111111111";
    server.put("/things/backup?comp=lease", acquire, "").await.expect(201);
    let other = "x-ms-lease-id: 22222222-2222-2222-2222-222222222222";
    for (round, headers) in ["", other].into_iter().enumerate() {
        let snapshot = server.page_snapshot("/things/source", 1, round as u8).await;
        server.back_up("/things/source", &snapshot, headers).await.expect(202);
        let head = server.head("/things/backup", "").await.expect(200);
        assert_eq!(head.header("x-ms-lease-state"), Some("leased"));
    }
}
