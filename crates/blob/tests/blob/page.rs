//! Page blobs: Put Page, Get Page Ranges, and differences since a snapshot.

use std::ops::Range;

use crate::support::{Reply, TestServer, start};

const PAGE: u64 = 512;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

impl TestServer {
    async fn create_pages(&self, target: &str, length: u64) -> Reply {
        let headers = format!("x-ms-blob-type: PageBlob\nx-ms-blob-content-length: {length}");
        self.put(target, &headers, "").await.expect(201)
    }

    async fn put_page(&self, target: &str, range: Range<u64>, headers: &str, body: Vec<u8>) -> Reply {
        let headers = format!(
            "x-ms-page-write: update\nx-ms-range: bytes={}-{}\n{headers}",
            range.start,
            range.end - 1
        );
        self.put(&format!("{target}?comp=page"), &headers, body).await
    }

    async fn fill(&self, target: &str, range: Range<u64>, byte: u8) -> Reply {
        let body = vec![byte; (range.end - range.start) as usize];
        self.put_page(target, range, "", body).await.expect(201)
    }

    async fn clear(&self, target: &str, range: Range<u64>) -> Reply {
        let headers = format!("x-ms-page-write: clear\nrange: bytes={}-{}", range.start, range.end - 1);
        self.put(&format!("{target}?comp=page"), &headers, "").await
    }

    /// Returns the ranges of a list, see [`short`].
    async fn ranges(&self, target: &str, query: &str, headers: &str) -> String {
        let separator = if target.contains('?') { '&' } else { '?' };
        let reply = self.get(&format!("{target}{separator}comp=pagelist{query}"), headers).await.expect(200);
        short(reply.text())
    }
}

/// Abbreviates a list: `<PageRange><Start>0</Start><End>511</End></PageRange>` is `0-511`, a cleared range
/// `!0-511`, a marker `>512`.
fn short(xml: &str) -> String {
    let xml = xml.strip_prefix("<?xml version=\"1.0\" encoding=\"utf-8\"?><PageList>").unwrap();
    let xml = xml.strip_suffix("</PageList>").unwrap();
    let xml = xml.replace("<PageRange><Start>", " ").replace("<ClearRange><Start>", " !");
    let xml = xml.replace("</Start><End>", "-").replace("</End></PageRange>", "");
    let xml = xml.replace("</End></ClearRange>", "").replace("<NextMarker />", "");
    xml.replace("<NextMarker>", " >").replace("</NextMarker>", "").trim().to_owned()
}

async fn start_with_box() -> TestServer {
    let server = start().await;
    server.create_container("box").await;
    server
}

#[tokio::test]
async fn unwritten_and_cleared_pages_read_as_zeros() {
    let server = start_with_box().await;
    let created = server.create_pages("/box/p", 8 * PAGE).await;
    assert_eq!(server.get("/box/p", "").await.body, vec![0; 8 * 512]);
    let written = server.fill("/box/p", PAGE..3 * PAGE, 7).await;
    assert_ne!(written.etag(), created.etag());
    assert_eq!(written.header("x-ms-blob-sequence-number"), Some("0"));
    assert_eq!(written.header("x-ms-request-server-encrypted"), Some("true"));
    assert!(written.header("x-ms-content-crc64").is_some() && written.header("content-md5").is_none());
    server.fill("/box/p", 7 * PAGE..8 * PAGE, 9).await;
    let cleared = server.clear("/box/p", PAGE..2 * PAGE).await.expect(201);
    let got = server.get("/box/p", "").await.expect(200);
    assert_eq!(got.etag(), cleared.etag());
    let mut expected = vec![0; 8 * 512];
    expected[1024..1536].fill(7);
    expected[3584..].fill(9);
    assert!(got.body == expected);
    assert_eq!(server.ranges("/box/p", "", "").await, "1024-1535 3584-4095");
    let server = server.restart().await;
    assert!(server.get("/box/p", "").await.body == expected);
}

#[tokio::test]
async fn page_bodies_are_verified() {
    let server = start_with_box().await;
    server.create_pages("/box/p", PAGE).await;
    let page = vec![1; 512];
    let wrong = "content-md5: AAAAAAAAAAAAAAAAAAAAAA==";
    server.put_page("/box/p", 0..PAGE, wrong, page.clone()).await.refused(400, "Md5Mismatch");
    let wrong = "x-ms-content-crc64: AAAAAAAAAAA=";
    server.put_page("/box/p", 0..PAGE, wrong, page.clone()).await.refused(400, "Crc64Mismatch");
    assert_eq!(server.ranges("/box/p", "", "").await, "");
    let old = "x-ms-version: 2018-11-09";
    let reply = server.put_page("/box/p", 0..PAGE, old, page).await.expect(201);
    assert!(reply.header("content-md5").is_some() && reply.header("x-ms-content-crc64").is_none());
}

#[tokio::test]
async fn requests_that_are_not_whole_pages_within_the_blob_are_refused() {
    let server = start_with_box().await;
    server.create_pages("/box/p", 8 * MIB).await;
    server.put_block_blob("/box/block", "x").await;
    let update = "x-ms-page-write: update";
    let clear = "x-ms-page-write: clear";
    for (action, range, length, status, code) in [
        (update, "x-ms-range: bytes=0-510", 511, 416, "InvalidPageRange"),
        (update, "x-ms-range: bytes=1-512", 512, 416, "InvalidPageRange"),
        (update, "range: bytes=512-1025", 514, 416, "InvalidPageRange"),
        (update, "x-ms-range: bytes=8388608-8389119", 512, 416, "InvalidPageRange"),
        (update, "x-ms-range: bytes=0-511", 1024, 400, "InvalidHeaderValue"),
        (update, "x-ms-range: bytes=0-511", 0, 400, "InvalidHeaderValue"),
        (update, "x-ms-range: bytes=0-4194815", 0, 413, "RequestBodyTooLarge"),
        (update, "x-ms-range: bytes=0-", 512, 400, "InvalidHeaderValue"),
        (update, "", 512, 400, "MissingRequiredHeader"),
        ("", "x-ms-range: bytes=0-511", 512, 400, "MissingRequiredHeader"),
        ("x-ms-page-write: erase", "x-ms-range: bytes=0-511", 512, 400, "InvalidHeaderValue"),
        (clear, "x-ms-range: bytes=0-511", 512, 400, "InvalidHeaderValue"),
        (clear, "x-ms-range: bytes=0-8389119", 0, 416, "InvalidPageRange"),
        (clear, "x-ms-range: bytes=0-100", 0, 416, "InvalidPageRange"),
        (clear, "x-ms-range: bytes=0-511\nx-ms-if-sequence-number-le: -1", 0, 400, "InvalidInput"),
        (clear, "x-ms-range: bytes=0-511\nx-ms-if-sequence-number-le: x", 0, 400, "InvalidHeaderValue"),
    ] {
        let reply = server.put("/box/p?comp=page", &format!("{action}\n{range}"), vec![1; length]).await;
        assert_eq!(reply.outcome(), (status, code), "{action} {range} {length}: {}", reply.text());
    }
    server.clear("/box/p", 0..8 * MIB).await.expect(201);
    server.clear("/box/none", 0..PAGE).await.refused(404, "BlobNotFound");
    server.clear("/none/p", 0..PAGE).await.refused(404, "ContainerNotFound");
    server.clear("/box/block", 0..PAGE).await.refused(409, "InvalidBlobType");
    server.get("/box/block?comp=pagelist", "").await.refused(409, "InvalidBlobType");
    let unmet = "if-match: \"0x1\"";
    server.get("/box/block?comp=pagelist", unmet).await.refused(409, "InvalidBlobType");
    server.get("/box/none?comp=pagelist", "").await.refused(404, "BlobNotFound");
    let snapshot = server.snapshot("/box/p").await;
    let target = format!("/box/p?comp=page&snapshot={snapshot}");
    let headers = format!("{clear}\nx-ms-range: bytes=0-511");
    server.put(&target, &headers, "").await.refused(400, "InvalidQueryParameterValue");
}

#[tokio::test]
async fn sequence_number_is_checked_after_lease_and_conditions() {
    let server = start_with_box().await;
    let headers = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512\nx-ms-blob-sequence-number: 7";
    server.put("/box/p", headers, "").await.expect(201);
    for (condition, met) in [
        ("le: 6", false),
        ("le: 7", true),
        ("lt: 7", false),
        ("lt: 8", true),
        ("eq: 6", false),
        ("eq: 7", true),
        ("eq: 7\nx-ms-if-sequence-number-lt: 7", false),
    ] {
        let condition = format!("x-ms-if-sequence-number-{condition}");
        let reply = server.put_page("/box/p", 0..PAGE, &condition, vec![1; 512]).await;
        let expected = if met { (201, "") } else { (412, "SequenceNumberConditionNotMet") };
        assert_eq!(reply.outcome(), expected, "{condition}");
    }
    let unmet = "x-ms-if-sequence-number-eq: 1";
    let stale = format!("{unmet}\nif-match: \"0x1\"");
    server.put_page("/box/p", 0..PAGE, &stale, vec![1; 512]).await.refused(412, "ConditionNotMet");
    let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    let lease = server.put("/box/p?comp=lease", acquire, "").await.expect(201);
    server.put_page("/box/p", 0..PAGE, &stale, vec![1; 512]).await.refused(412, "LeaseIdMissing");
    let id = format!("x-ms-lease-id: {}", lease.header("x-ms-lease-id").unwrap());
    server.put_page("/box/p", 0..PAGE, &id, vec![1; 512]).await.expect(201);
    let both = format!("{id}\n{unmet}");
    let refused = server.put_page("/box/p", 0..PAGE, &both, vec![1; 512]).await;
    refused.refused(412, "SequenceNumberConditionNotMet");
}

#[tokio::test]
async fn ranges_are_listed_within_a_range_and_page_by_page() {
    let server = start_with_box().await;
    server.create_pages("/box/p", 64 * PAGE).await;
    for page in [0, 2, 3, 10, 63] {
        server.fill("/box/p", page * PAGE..(page + 1) * PAGE, 1).await;
    }
    let all = "0-511 1024-2047 5120-5631 32256-32767";
    assert_eq!(server.ranges("/box/p", "", "").await, all);
    for (range, expected) in [
        ("bytes=0-", all),
        ("bytes=512-1023", ""),
        ("bytes=1536-5631", "1536-2047 5120-5631"),
        ("bytes=1600-1601", "1536-2047"),
        ("bytes=5000-999999999", "5120-5631 32256-32767"),
        ("bytes=-2-497", all),
    ] {
        assert_eq!(server.ranges("/box/p", "", &format!("x-ms-range: {range}")).await, expected, "{range}");
    }
    let beyond = server.get("/box/p?comp=pagelist", "x-ms-range: bytes=32768-").await;
    beyond.refused(416, "InvalidRange");
    assert_eq!(server.ranges("/box/p", "&maxresults=2", "").await, "0-511 1024-2047 >5120");
    assert_eq!(server.ranges("/box/p", "&maxresults=2&marker=5120", "").await, "5120-5631 32256-32767");
    assert_eq!(server.ranges("/box/p", "&maxresults=1&marker=5120", "").await, "5120-5631 >32256");
    assert_eq!(server.ranges("/box/p", "&marker=32768", "").await, "");
    // Versions without markers return the whole list.
    assert_eq!(server.ranges("/box/p", "&maxresults=2", "x-ms-version: 2019-12-12").await, all);
    for (query, code) in [
        ("maxresults=0", "OutOfRangeQueryParameterValue"),
        ("maxresults=x", "InvalidQueryParameterValue"),
        ("marker=x", "InvalidQueryParameterValue"),
        ("prevsnapshot=x", "InvalidQueryParameterValue"),
    ] {
        server.get(&format!("/box/p?comp=pagelist&{query}"), "").await.refused(400, code);
    }
    let reply = server.get("/box/p?comp=pagelist", "").await.expect(200);
    assert_eq!(reply.header("x-ms-blob-content-length"), Some("32768"));
    assert_eq!(reply.etag(), server.head("/box/p", "").await.etag());
    let fresh = format!("if-none-match: {}", reply.etag());
    server.get("/box/p?comp=pagelist", &fresh).await.refused(304, "ConditionNotMet");
}

#[tokio::test]
async fn list_longer_than_one_piece_is_complete() {
    let server = start_with_box().await;
    let pages = 3000;
    server.create_pages("/box/p", pages * 2 * PAGE).await;
    // Every second page is in use: the ranges are written in large steps, then pages between are cleared.
    for start in (0..pages * 2 * PAGE).step_by(2 * MIB as usize) {
        server.fill("/box/p", start..(start + 2 * MIB).min(pages * 2 * PAGE), 1).await;
    }
    for page in 0..pages {
        server.clear("/box/p", (2 * page + 1) * PAGE..(2 * page + 2) * PAGE).await.expect(201);
    }
    let list = server.ranges("/box/p", "", "x-ms-version: 2019-12-12").await;
    let ranges: Vec<_> = list.split(' ').collect();
    assert_eq!(ranges.len(), pages as usize);
    assert_eq!((ranges[0], ranges[2999]), ("0-511", "3070976-3071487"));
}

#[tokio::test]
async fn differences_since_a_snapshot_are_listed() {
    let server = start_with_box().await;
    server.create_pages("/box/p", 16 * PAGE).await;
    server.fill("/box/p", 0..4 * PAGE, 1).await;
    let first = server.snapshot("/box/p").await;
    server.fill("/box/p", 2 * PAGE..3 * PAGE, 2).await;
    server.clear("/box/p", 0..PAGE).await.expect(201);
    let second = server.snapshot("/box/p").await;
    server.fill("/box/p", 15 * PAGE..16 * PAGE, 3).await;
    let at = |snapshot: &str| format!("/box/p?snapshot={snapshot}");
    let since = |snapshot: &str| format!("&prevsnapshot={snapshot}");
    for (target, query, expected) in [
        ("/box/p".to_owned(), since(&first), "!0-511 1024-1535 7680-8191"),
        ("/box/p".to_owned(), since(&second), "7680-8191"),
        (at(&second), since(&first), "!0-511 1024-1535"),
        (at(&second), since(&second), ""),
        (at(&first), String::new(), "0-2047"),
        (at(&second), String::new(), "512-2047"),
        ("/box/p".to_owned(), format!("{}&maxresults=2", since(&first)), "!0-511 1024-1535 >7680"),
        ("/box/p".to_owned(), format!("{}&marker=7680", since(&first)), "7680-8191"),
    ] {
        assert_eq!(server.ranges(&target, &query, "").await, expected, "{target} {query}");
    }
    let part = server.ranges("/box/p", &since(&first), "x-ms-range: bytes=512-7167").await;
    assert_eq!(part, "1024-1535");
    let url =
        |query: &str| format!("x-ms-previous-snapshot-url: http://{}/lapis/box/p{query}", server.address);
    let by_url = server.ranges("/box/p", "", &url(&format!("?snapshot={second}"))).await;
    assert_eq!(by_url, "7680-8191");
    let refused = server.get("/box/p?comp=pagelist", &url("")).await;
    refused.refused(400, "InvalidHeaderValue");

    let newer = format!("{}&comp=pagelist&prevsnapshot={second}", at(&first));
    server.get(&newer, "").await.refused(400, "PreviousSnapshotCannotBeNewer");
    let since_first = format!("/box/p?comp=pagelist&prevsnapshot={first}");
    server.delete(&at(&first), "").await.expect(202);
    server.get(&since_first, "").await.refused(409, "PreviousSnapshotNotFound");
    // A resize to a smaller length cuts the list. The bytes after the new end no longer belong to the blob.
    server.put("/box/p?comp=properties", "x-ms-blob-content-length: 1536", "").await.expect(200);
    assert_eq!(server.ranges("/box/p", &since(&second), "").await, "");
    server.create_pages("/box/p", 16 * PAGE).await;
    let since_second = format!("/box/p?comp=pagelist&prevsnapshot={second}");
    server.get(&since_second, "").await.refused(409, "BlobOverwritten");
}

#[tokio::test]
async fn lists_and_differences_match_a_model() {
    let server = start_with_box().await;
    // Small content is inline in the row, large content is in extents.
    for (name, pages) in [("small", 12), ("large", 200)] {
        let target = format!("/box/{name}");
        server.create_pages(&target, pages * PAGE).await;
        let mut random = 12345u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut model = vec![0u8; pages as usize];
        let mut snapshots: Vec<(String, Vec<u8>)> = vec![];
        for write in 1..=60u8 {
            let from = next(pages);
            let to = (from + 1 + next(pages / 3)).min(pages);
            let byte = if next(3) == 0 { CLEARED } else { write };
            if byte == CLEARED {
                server.clear(&target, from * PAGE..to * PAGE).await.expect(201);
            } else {
                server.fill(&target, from * PAGE..to * PAGE, byte).await;
            }
            model[from as usize..to as usize].fill(byte);
            if write % 15 == 0 {
                snapshots.push((server.snapshot(&target).await, model.clone()));
            }
        }
        let body = server.get(&target, "").await.body;
        let shown: Vec<_> = model.iter().map(|byte| if *byte == CLEARED { 0 } else { *byte }).collect();
        assert!(body.chunks(512).zip(&shown).all(|(page, byte)| page == [*byte; 512]));
        let none = vec![0; pages as usize];
        assert_eq!(server.ranges(&target, "", "").await, differences(&none, &shown));
        for (id, old) in &snapshots {
            let query = format!("&prevsnapshot={id}");
            assert_eq!(server.ranges(&target, &query, "").await, differences(old, &model), "{name} {id}");
        }
    }
}

/// Marks a cleared page in a model.
const CLEARED: u8 = 255;

/// Returns the expected differences between two states, which have a byte for each page: 0 if the page was
/// never written.
fn differences(old: &[u8], new: &[u8]) -> String {
    let mut list: Vec<(char, u64, u64)> = vec![];
    for (page, (old, new)) in old.iter().zip(new).enumerate() {
        let kind = match (old, new) {
            (old, new) if old == new => continue,
            (_, &CLEARED) => '!',
            _ => ' ',
        };
        let page = page as u64;
        match list.last_mut() {
            Some((last, _, end)) if *last == kind && *end == page => *end += 1,
            _ => list.push((kind, page, page + 1)),
        }
    }
    let text = |(kind, from, to): (char, u64, u64)| format!("{kind}{}-{}", from * PAGE, to * PAGE - 1);
    list.into_iter().map(text).map(|text| text.trim().to_owned()).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn page_blob_of_maximum_length_occupies_only_written_pages() {
    let server = start_with_box().await;
    let length = 8 * TIB;
    server.create_pages("/box/p", length).await;
    let too_long = format!("x-ms-blob-type: PageBlob\nx-ms-blob-content-length: {}", length + PAGE);
    server.put("/box/q", &too_long, "").await.refused(400, "InvalidHeaderValue");
    let snapshot = server.snapshot("/box/p").await;
    for at in [0, TIB, 5 * TIB, length - MIB] {
        server.fill("/box/p", at..at + MIB, 5).await;
    }
    let expected =
        "0-1048575 1099511627776-1099512676351 5497558138880-5497559187455 8796091973632-8796093022207";
    assert_eq!(server.ranges("/box/p", "", "").await, expected);
    assert_eq!(server.ranges("/box/p", &format!("&prevsnapshot={snapshot}"), "").await, expected);
    let range = format!("x-ms-range: bytes={}-{}", length - MIB - 512, length - MIB + 511);
    let part = server.get("/box/p", &range).await.expect(206);
    assert!(part.body[..512] == [0; 512] && part.body[512..] == [5; 512]);
    assert!(server.engine.extents.storage_use().allocated_bytes < 256 * MIB);
    server.clear("/box/p", 0..length).await.expect(201);
    assert_eq!(server.ranges("/box/p", "", "").await, "");
}

#[tokio::test]
async fn concurrent_page_writes_are_all_kept() {
    let server = start_with_box().await;
    let clients = 48;
    server.create_pages("/box/p", clients * 16 * PAGE).await;
    let writes = (0..clients).map(|client| {
        let (server, start) = (&server, client * 16 * PAGE);
        async move { server.fill("/box/p", start..start + 16 * PAGE, client as u8 + 1).await }
    });
    let replies = futures_util::future::join_all(writes).await;
    let mut tags: Vec<_> = replies.iter().map(|reply| reply.etag().to_owned()).collect();
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), clients as usize, "every write has its own ETag");
    let body = server.get("/box/p", "").await.body;
    assert!(body.chunks(16 * 512).enumerate().all(|(at, part)| part.iter().all(|b| *b == at as u8 + 1)));
}
