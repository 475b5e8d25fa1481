//! Put Block, Put Block List, Get Block List.

use bytes::Bytes;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use lazuli_auth::sign::{self, Resource};
use lazuli_concurrency::Pace;
use lazuli_protocol::ServiceKind;
use lazuli_store::{Mutation, SpaceId};

use crate::support::{ACCOUNT, Reply, TestServer, key, start};

/// Returns the block id of a name.
fn id(name: &str) -> String {
    STANDARD.encode(name)
}

fn in_query(id: &str) -> String {
    id.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D")
}

/// Renders a block list. Words like `c:a`, `u:b` and `l:c` name the list and the block.
fn list(words: &str) -> String {
    let mut document = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
    for word in words.split_whitespace() {
        let (from, name) = word.split_once(':').unwrap();
        let element = match from {
            "c" => "Committed",
            "u" => "Uncommitted",
            _ => "Latest",
        };
        document += &format!("<{element}>{}</{element}>", id(name));
    }
    document + "</BlockList>"
}

impl TestServer {
    pub(crate) async fn put_block(&self, blob: &str, name: &str, body: impl Into<Bytes>) -> Reply {
        self.put(&format!("{blob}?comp=block&blockid={}", in_query(&id(name))), "", body).await
    }

    /// Stages blocks of one byte each.
    pub(crate) async fn stage_many(&self, blob: &str, blocks: usize) {
        let puts = (0..blocks).map(async |n| {
            self.put_block(blob, &format!("{n:05}"), vec![n as u8]).await.expect(201);
        });
        futures_util::future::join_all(puts).await;
    }

    /// Commits the first `blocks` staged blocks.
    pub(crate) async fn commit_many(&self, blob: &str, blocks: usize) -> Reply {
        let words: Vec<_> = (0..blocks).map(|n| format!("u:{n:05}")).collect();
        self.put_block_list(blob, "", &words.join(" ")).await
    }

    pub(crate) async fn put_block_list(&self, blob: &str, headers: &str, words: &str) -> Reply {
        self.put(&format!("{blob}?comp=blocklist"), headers, list(words)).await
    }

    /// Returns names and sizes as `committed blocks | uncommitted blocks`.
    async fn blocks(&self, blob: &str) -> String {
        let separator = if blob.contains('?') { '&' } else { '?' };
        let target = format!("{blob}{separator}comp=blocklist&blocklisttype=all");
        let reply = self.get(&target, "").await.expect(200);
        let (committed, uncommitted) = reply.text().split_once("<UncommittedBlocks>").unwrap();
        let blocks = |part: &str| {
            let blocks = part.split("<Name>").skip(1).map(|block| {
                let (name, rest) = block.split_once("</Name><Size>").unwrap();
                let name = String::from_utf8(STANDARD.decode(name).unwrap()).unwrap();
                format!("{name}={}", rest.split_once('<').unwrap().0)
            });
            blocks.collect::<Vec<_>>().join(" ")
        };
        format!("{} | {}", blocks(committed), blocks(uncommitted))
    }
}

#[tokio::test]
async fn block_list_determines_content_and_order() {
    let server = start().await;
    server.create_container("con").await;
    let large = "x".repeat(300_000);
    for (name, body) in [("a", "1"), ("b", "22"), ("c", &large), ("d", "4444")] {
        let put = server.put_block("/con/b", name, body.to_owned()).await.expect(201);
        assert_eq!(put.header("etag"), None);
        assert!(put.header("x-ms-content-crc64").is_some() && put.header("content-md5").is_none());
    }
    server.get("/con/b", "").await.refused(404, "BlobNotFound");
    server.head("/con/b", "").await.expect(404);
    assert_eq!(server.blocks("/con/b").await, " | a=1 b=2 c=300000 d=4");

    let put = server.put_block_list("/con/b", "", "u:c l:a u:b l:a").await.expect(201);
    let got = server.get("/con/b", "").await.expect(200);
    assert_eq!(got.text(), format!("{large}1221"));
    assert_eq!((got.etag(), got.header("content-md5")), (put.etag(), None));
    assert_eq!(
        server.blocks("/con/b").await,
        "c=300000 a=1 b=2 a=1 | ",
        "blocks that are not listed are dropped"
    );

    server.put_block("/con/b", "a", "new").await.expect(201);
    server.put_block("/con/b", "e", "5").await.expect(201);
    assert_eq!(server.get("/con/b", "").await.text(), got.text(), "staging does not change the blob");
    assert_eq!(server.head("/con/b", "").await.etag(), put.etag());
    server.put_block_list("/con/b", "", "c:b u:e l:a l:b c:c").await.expect(201);
    assert_eq!(server.get("/con/b", "").await.text(), format!("225new22{large}"));
    assert_eq!(server.blocks("/con/b").await, "b=2 e=1 a=3 b=2 c=300000 | ");

    server.put_block_list("/con/b", "", "").await.expect(201);
    assert_eq!(server.get("/con/b", "").await.expect(200).text(), "");
    let server = server.restart().await;
    assert_eq!(server.blocks("/con/b").await, " | ");
}

#[tokio::test]
async fn list_with_a_missing_block_changes_nothing() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block("/con/b", "a", "1").await.expect(201);
    server.put_block("/con/b", "b", "2").await.expect(201);
    server.put_block_list("/con/b", "", "u:a u:b").await.expect(201);
    server.put_block("/con/b", "b", "3").await.expect(201);
    server.put_block("/con/b", "c", "4").await.expect(201);
    for words in ["u:a", "c:c", "l:z", "u:b u:c c:a l:z", "c:b u:b", "l:aa"] {
        server.put_block_list("/con/b", "", words).await.refused(400, "InvalidBlockList");
        assert_eq!(server.get("/con/b", "").await.text(), "12", "{words}");
        assert_eq!(server.blocks("/con/b").await, "a=1 b=1 | b=1 c=1", "{words}");
    }
    server.put_block_list("/con/none", "", "u:a").await.refused(400, "InvalidBlockList");
    server.get("/con/none?comp=blocklist", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn block_list_replaces_all_properties_and_ignores_plain_content_headers() {
    let server = start().await;
    server.create_container("con").await;
    server
        .put("/con/b", "x-ms-blob-type: BlockBlob\nx-ms-meta-a: 1\nx-ms-blob-cache-control: no-cache", "x")
        .await;
    let headers = "content-type: application/xml
        x-ms-blob-content-language: de
        x-ms-blob-content-md5: 1B2M2Y8AsgTpgAmY7PhCfg==
        x-ms-meta-b: 2";
    let put = server.put_block_list("/con/b", headers, "").await.expect(201);
    assert!(put.header("x-ms-content-crc64").is_some());
    let head = server.head("/con/b", "").await;
    for (name, value) in [
        ("content-type", Some("application/octet-stream")),
        ("content-language", Some("de")),
        ("cache-control", None),
        ("content-md5", Some("1B2M2Y8AsgTpgAmY7PhCfg==")),
        ("x-ms-meta-a", None),
        ("x-ms-meta-b", Some("2")),
    ] {
        assert_eq!(head.header(name), value, "{name}");
    }
    let wrong = "content-md5: AAAAAAAAAAAAAAAAAAAAAA==";
    server.put_block_list("/con/b", wrong, "").await.refused(400, "Md5Mismatch");
    let wrong = "x-ms-content-crc64: AAAAAAAAAAA=";
    server.put_block_list("/con/b", wrong, "").await.refused(400, "Crc64Mismatch");
}

#[tokio::test]
async fn malformed_block_requests_are_refused() {
    let server = start().await;
    server.create_container("con").await;
    let long = in_query(&STANDARD.encode([7; 65]));
    let put = async |query: &str, headers: &str, body: &str| {
        server.put(&format!("/con/b?comp=block{query}"), headers, body.to_owned()).await
    };
    put("", "", "x").await.refused(400, "MissingRequiredQueryParameter");
    let odd = put("&blockid=a", "", "x").await.refused(400, "InvalidQueryParameterValue");
    assert!(odd.text().contains("<Reason>Not a valid base64 string.</Reason>"), "{}", odd.text());
    put(&format!("&blockid={long}"), "", "x").await.refused(400, "InvalidQueryParameterValue");
    put("&blockid=AAAA", "", "").await.refused(400, "InvalidHeaderValue");
    let wrong = "content-md5: AAAAAAAAAAAAAAAAAAAAAA==";
    put("&blockid=AAAA", wrong, "x").await.refused(400, "Md5Mismatch");
    let both = "content-md5: AAAAAAAAAAAAAAAAAAAAAA==\nx-ms-content-crc64: AAAAAAAAAAA=";
    put("&blockid=AAAA", both, "x").await.refused(400, "BothCrc64AndMd5HeaderPresent");
    let snapshot = "&blockid=AAAA&snapshot=2026-01-02T03:04:05.0000000Z";
    put(snapshot, "", "x").await.refused(400, "InvalidQueryParameterValue");
    let nowhere = server.put("/nothing/b?comp=block&blockid=AAAA", "", "x").await;
    nowhere.refused(404, "ContainerNotFound");
    server.get("/con/b?comp=blocklist", "").await.refused(404, "BlobNotFound");

    put("&blockid=AAAA", "", "x").await.expect(201);
    put("&blockid=AAAAAAAA", "", "x").await.refused(400, "InvalidBlobOrBlock");
    server.put("/con/b?comp=blocklist", "", "<BlockList><Latest>AAAA</Latest></BlockList>").await.expect(201);
    put("&blockid=AAAAAAAA", "", "x").await.expect(201);

    for (document, code) in [
        ("", "InvalidXmlDocument"),
        ("<BlockList>", "InvalidXmlDocument"),
        ("<BlockList><Latest>*</Latest></BlockList>", "InvalidBlockId"),
        ("<BlockList><Oldest>AAAA</Oldest></BlockList>", "UnsupportedXmlNode"),
    ] {
        server.put("/con/b?comp=blocklist", "", document).await.refused(400, code);
    }
    let long = format!("<BlockList>{}</BlockList>", "<Latest>AAAA</Latest>".repeat(50_001));
    server.put("/con/b?comp=blocklist", "", long).await.refused(400, "BlockListTooLong");
}

#[tokio::test]
async fn block_size_limit_depends_on_the_version() {
    let server = start().await;
    server.create_container("con").await;
    let large = Bytes::from(vec![7; (4 << 20) + 1]);
    let put = async |version: &str, body: Bytes| {
        server.put("/con/b?comp=block&blockid=AAAA", &format!("x-ms-version: {version}"), body).await
    };
    let refused = put("2015-12-11", large.clone()).await;
    refused.refused(413, "RequestBodyTooLarge");
    let old = put("2015-12-11", large.slice(1..)).await.expect(201);
    assert!(old.header("content-md5").is_some());
    put("2016-05-31", large.clone()).await.expect(201);
    let all = format!("content-md5: {}", old.header("content-md5").unwrap());
    let sent = server.put("/con/b?comp=block&blockid=AAAB", &all, large.slice(1..)).await.expect(201);
    assert_eq!(sent.header("content-md5"), old.header("content-md5"));
}

#[tokio::test]
async fn block_operations_refuse_page_and_append_blobs() {
    let server = start().await;
    server.create_container("con").await;
    server.put("/con/p", "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512", "").await.expect(201);
    server.put("/con/a", "x-ms-blob-type: AppendBlob", "").await.expect(201);
    for blob in ["/con/p", "/con/a"] {
        server.put_block(blob, "a", "x").await.refused(409, "InvalidBlobType");
        server.put_block_list(blob, "", "").await.refused(409, "InvalidBlobType");
        server.put_block_list(blob, "if-match: \"0x1\"", "").await.refused(409, "InvalidBlobType");
        server.get(&format!("{blob}?comp=blocklist"), "").await.refused(409, "InvalidBlobType");
    }
}

#[tokio::test]
async fn block_list_type_selects_blocks_and_anonymous_callers_see_only_committed_ones() {
    let server = start().await;
    let public = "x-ms-blob-public-access: blob";
    server.signed("PUT", "/con?restype=container", public, "").await.expect(201);
    server.put_block("/con/b", "a", "1").await.expect(201);
    server.put_block("/con/b", "z", "22").await.expect(201);
    let get = async |query: &str| server.get(&format!("/con/b?comp=blocklist{query}"), "").await;
    let reply = get("").await.expect(200);
    assert_eq!((reply.header("etag"), reply.header("x-ms-blob-content-length")), (None, None));
    assert_eq!(reply.header("content-type"), Some("application/xml"));
    server.put_block_list("/con/b", "", "l:a").await.expect(201);
    server.put_block("/con/b", "z", "22").await.expect(201);
    let (a, z) = (id("a"), id("z"));
    let committed =
        format!("<CommittedBlocks><Block><Name>{a}</Name><Size>1</Size></Block></CommittedBlocks>");
    let uncommitted =
        format!("<UncommittedBlocks><Block><Name>{z}</Name><Size>2</Size></Block></UncommittedBlocks>");
    for (query, body) in [
        ("", committed.clone()),
        ("&blocklisttype=committed", committed.clone()),
        ("&blocklisttype=Uncommitted", uncommitted.clone()),
        ("&blocklisttype=all", format!("{committed}{uncommitted}")),
    ] {
        let reply = get(query).await.expect(200);
        let document = format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>{body}</BlockList>");
        assert_eq!(reply.text(), document, "{query}");
        assert_eq!(reply.header("x-ms-blob-content-length"), Some("1"));
        assert!(reply.header("etag").is_some() && reply.header("last-modified").is_some());
    }
    get("&blocklisttype=some").await.refused(400, "InvalidQueryParameterValue");
    let anonymous = server.send("GET", "/con/b?comp=blocklist&blocklisttype=all", "", "").await.expect(200);
    assert!(anonymous.text().contains(&a) && !anonymous.text().contains(&z), "{}", anonymous.text());
}

#[tokio::test]
async fn put_blob_drops_staged_blocks_and_has_no_block_list() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block("/con/b", "a", "1").await.expect(201);
    server.put_block_blob("/con/b", "whole").await;
    assert_eq!(server.blocks("/con/b").await, " | ");
    server.put_block_list("/con/b", "", "l:a").await.refused(400, "InvalidBlockList");
    assert_eq!(server.get("/con/b", "").await.text(), "whole");
}

#[tokio::test]
async fn staged_blocks_expire_a_week_after_the_last_one() {
    let server = start().await;
    server.create_container("con").await;
    const DAY: u64 = 86_400;
    server.put_block("/con/b", "a", "1").await.expect(201);
    server.advance(6 * DAY);
    server.put_block("/con/b", "b", "2").await.expect(201);
    server.advance(7 * DAY);
    assert_eq!(server.blocks("/con/b").await, " | a=1 b=1", "a week after b");
    server.advance(3600);
    server.get("/con/b?comp=blocklist", "").await.refused(404, "BlobNotFound");
    let lease = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    server.put("/con/b?comp=lease", lease, "").await.refused(404, "BlobNotFound");
    server.put_block_list("/con/b", "", "l:a").await.refused(400, "InvalidBlockList");
    server.put_block("/con/b", "longer", "3").await.expect(201);
    assert_eq!(server.blocks("/con/b").await, " | longer=1");
    server.put_block_list("/con/b", "", "l:longer").await.expect(201);
    server.put_block("/con/b", "x", "3").await.expect(201);
    server.advance(8 * DAY);
    assert_eq!(server.blocks("/con/b").await, "longer=1 | ");
    server.put_block_list("/con/b", "", "l:x").await.refused(400, "InvalidBlockList");
    assert_eq!(server.get("/con/b", "").await.text(), "3");
}

#[tokio::test]
async fn uncommitted_blob_can_be_leased_and_then_requires_the_lease_id() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block("/con/b", "a", "1").await.expect(201);
    let id = "aaaaaaaa-0000-4000-8000-00000000000a";
    let acquire =
        format!("x-ms-lease-action: acquire\nx-ms-lease-duration: 15\nx-ms-proposed-lease-id: {id}");
    let matched = format!("{acquire}\nif-match: *");
    server.put("/con/b?comp=lease", &matched, "").await.refused(412, "ConditionNotMet");
    server.put("/con/b?comp=lease", &acquire, "").await.expect(201);
    server.put_block("/con/b", "b", "2").await.refused(412, "LeaseIdMissing");
    server.put_block_list("/con/b", "", "l:a").await.refused(412, "LeaseIdMissing");
    server.put_block_blob("/con/other", "").await;
    let with_id = format!("x-ms-lease-id: {id}");
    let block = "/con/b?comp=block&blockid=Yg%3D%3D";
    server.put(block, &with_id, "2").await.expect(201);
    server
        .put("/con/other?comp=block&blockid=Yg%3D%3D", &with_id, "2")
        .await
        .refused(412, "LeaseNotPresentWithBlobOperation");
    server
        .put("/con/none?comp=block&blockid=Yg%3D%3D", &with_id, "2")
        .await
        .refused(412, "LeaseNotPresentWithBlobOperation");
    server.put_block_list("/con/b", &with_id, "l:a l:b").await.expect(201);
    assert_eq!(server.head("/con/b", "").await.header("x-ms-lease-state"), Some("leased"));
    assert_eq!(server.get("/con/b", "").await.text(), "12");

    server.advance(15);
    server.put_block("/con/b", "b", "3").await.expect(201);
    let renew = format!("x-ms-lease-action: renew\n{with_id}");
    let renew = server.put("/con/b?comp=lease", &renew, "").await;
    renew.refused(409, "LeaseIdMismatchWithLeaseOperation");
}

#[tokio::test]
async fn block_operations_require_write_permission() {
    let server = start().await;
    server.create_container("things").await;
    let resource = Resource { service: ServiceKind::Blob, account: ACCOUNT, path: "things/b", timestamp: "" };
    let list = "<BlockList><Latest>AAAA</Latest></BlockList>";
    for (sp, outcome) in [("c", (403, "AuthorizationPermissionMismatch")), ("w", (201, ""))] {
        let fields = [("sv", "2022-11-02"), ("sr", "b"), ("sp", sp), ("se", "2099-12-31T00:00:00Z")];
        let sas = sign::service_sas(&resource, &key(), &fields);
        for (target, body) in
            [("/things/b?comp=block&blockid=AAAA", "hello"), ("/things/b?comp=blocklist", list)]
        {
            let reply = server.send("PUT", &format!("{target}&{sas}"), "", body.to_owned()).await;
            assert_eq!(reply.outcome(), outcome, "{target} {sp}");
        }
    }
}

#[tokio::test]
async fn put_block_list_obeys_conditions() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block("/con/b", "a", "1").await.expect(201);
    server.put_block_list("/con/b", "if-match: *", "l:a").await.refused(412, "ConditionNotMet");
    let first = server.put_block_list("/con/b", "if-none-match: *", "l:a").await.expect(201);
    server.put_block_list("/con/b", "if-none-match: *", "").await.refused(409, "BlobAlreadyExists");
    let stale = server.put_block_list("/con/b", "if-match: \"0x1\"", "u:missing").await;
    stale.refused(412, "ConditionNotMet");
    let both = format!("if-match: {}\nif-none-match: \"0x1\"", first.etag());
    let both = server.put_block_list("/con/b", &both, "l:a").await;
    both.refused(400, "MultipleConditionHeadersNotSupported");
    server.put_block_list("/con/b", &format!("if-match: {}", first.etag()), "l:a").await.expect(201);
}

#[tokio::test]
async fn fifty_thousand_blocks_can_be_committed_and_rearranged() {
    let server = start().await;
    server.create_container("con").await;
    let puts = (0..500).map(|i| {
        let (server, n) = (&server, i / 2);
        let blob = if i % 2 == 0 { "/con/b" } else { "/con/small" };
        async move {
            // Use both inline content and extents.
            let body = vec![n as u8; if n % 2 == 0 { 100 } else { 9000 }];
            server.put_block(blob, &format!("{n:03}"), body).await.expect(201);
        }
    });
    futures_util::future::join_all(puts).await;
    let words = |order: &mut dyn Iterator<Item = usize>, from: &str| {
        order.map(|n| format!("{from}:{:03}", n % 250)).collect::<Vec<_>>().join(" ")
    };
    // The server runs on this thread, so other work on the machine does not count.
    let processor_time = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let mut seconds = vec![];
    for (blob, blocks) in [("/con/small", 5_000), ("/con/b", 50_000)] {
        let before = processor_time();
        server.put_block_list(blob, "", &words(&mut (0..blocks), "l")).await.expect(201);
        server.put_block_list(blob, "", &words(&mut (0..blocks).rev(), "c")).await.expect(201);
        seconds.push(processor_time() - before);
    }
    assert!(
        seconds[1] < 40.0 * seconds[0],
        "far more than ten times as much for ten times as many: {seconds:?}"
    );
    let head = server.head("/con/b", "").await;
    assert_eq!(head.header("content-length"), Some((25_000 * 9100).to_string().as_str()));
    let part = server.get("/con/b", "x-ms-range: bytes=8999-9100").await.expect(206).body;
    assert!(part[0] == 249 && part[1] == 248 && part[100] == 248 && part[101] == 247);
    let reply = server.get("/con/b?comp=blocklist", "").await.expect(200);
    assert_eq!(reply.text().matches("<Block>").count(), 50_000);
}

#[tokio::test]
async fn commit_removes_rows_of_few_blocks_and_leaves_many_to_the_background() {
    let server = start().await;
    server.create_container("con").await;
    server.stage_many("/con/few", 200).await;
    server.commit_many("/con/few", 200).await.expect(201);
    assert_eq!((server.blob_rows(), server.service.dropped_due()), (1, false));
    server.stage_many("/con/few", 2).await;
    server.commit_many("/con/few", 1).await.expect(201);
    assert_eq!(
        (server.blob_rows(), server.service.dropped_due()),
        (2, true),
        "one staged block was not listed"
    );
    assert_eq!(server.service.remove_dropped(Pace::FULL).await.unwrap(), 1);

    server.stage_many("/con/many", 700).await;
    server.watched.interposer.take_writes();
    server.commit_many("/con/many", 700).await.expect(201);
    assert_eq!((server.watched.interposer.take_writes(), server.blob_rows()), (1, 702));
    let all: Vec<u8> = (0..700usize).map(|n| n as u8).collect();
    assert_eq!(server.get("/con/many", "").await.body, all);
    assert!(server.blocks("/con/many").await.ends_with(" | "), "dropped blocks are not staged");
    server.put_block_list("/con/many", "", "u:00000").await.refused(400, "InvalidBlockList");
    assert_eq!(server.service.remove_dropped(Pace::FULL).await.unwrap(), 700);
    assert_eq!(
        (server.watched.interposer.take_writes(), server.blob_rows()),
        (3, 2),
        "each commit removes 250 rows"
    );
    assert!(!server.service.dropped_due());
    assert_eq!(server.get("/con/many", "").await.body, all);
}

#[tokio::test]
async fn new_blocks_may_have_the_names_of_dropped_ones() {
    let server = start().await;
    server.create_container("con").await;
    server.stage_many("/con/b", 300).await;
    server.commit_many("/con/b", 300).await.expect(201);
    server.put_block("/con/b", "00007", "new").await.expect(201);
    server.put_block("/con/b", "00008", "other").await.expect(201);
    assert_eq!(server.blocks("/con/b").await.split_once(" | ").unwrap().1, "00007=3 00008=5");
    assert_eq!(server.service.remove_dropped(Pace::FULL).await.unwrap(), 300);
    server.put_block_list("/con/b", "", "u:00007 c:00007 u:00009").await.refused(400, "InvalidBlockList");
    server.put_block_list("/con/b", "", "u:00008 c:00009 u:00007").await.expect(201);
    assert_eq!(&server.get("/con/b", "").await.body[..], b"other\x09new");
    assert_eq!(server.blob_rows(), 1);
}

#[tokio::test]
async fn dropped_blocks_are_recorded_if_the_client_disconnects() {
    let server = start().await;
    server.create_container("con").await;
    server.stage_many("/con/b", 3).await;
    let queueing = &server.watched.interposer.queueing;
    queueing.queue_next(|partition| partition.space != SpaceId::ROOT && partition.key.starts_with(b"b"));
    tokio::select! {
        _ = server.put_block_blob("/con/b", "whole") => panic!("the commit is queued"),
        () = queueing.queued() => {}
    }
    queueing.dropped().await;
    assert!(server.service.dropped_due());

    // Dropping the future at its first await keeps the record.
    let mut chore = std::pin::pin!(server.service.remove_dropped(Pace::FULL));
    std::future::poll_fn(|context| {
        let _ = chore.as_mut().poll(context);
        std::task::Poll::Ready(())
    })
    .await;
    chore.set(server.service.remove_dropped(Pace::FULL));
    assert!(server.service.dropped_due());
}

#[tokio::test]
async fn at_most_a_hundred_thousand_blocks_can_be_staged() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block("/con/b", "a", "1").await.expect(201);
    let add = async |amount| server.change_row("bb", Mutation::Add("n".into(), amount)).await;
    add(99_998).await;
    server.put_block("/con/b", "b", "2").await.expect(201);
    server.put_block("/con/b", "c", "3").await.refused(409, "BlockCountExceedsLimit");
    server.put_block("/con/b", "a", "new").await.expect(201);
    server.put_block_list("/con/b", "", "l:a l:b").await.expect(201);
    assert_eq!(server.get("/con/b", "").await.text(), "new2");
    server.put_block("/con/b", "c", "3").await.expect(201);
}

#[tokio::test]
async fn deleted_blob_is_restored_as_a_snapshot_after_blocks_were_staged() {
    let server = start().await;
    server.create_container("con").await;
    server.soft_delete(Some(3)).await;
    server.put("/con/b", "x-ms-blob-type: BlockBlob\nx-ms-tags: a=1", "old").await.expect(201);
    server.delete("/con/b", "").await.expect(202);
    server.put_block("/con/b", "a", "new").await.expect(201);
    server.get("/con/b", "").await.refused(404, "BlobNotFound");
    let listed =
        server.get("/con?restype=container&comp=list&include=deleted,snapshots", "").await.expect(200);
    assert!(listed.text().contains("<Deleted>true</Deleted>"), "{}", listed.text());
    server.put_block_list("/con/b", "", "l:a").await.expect(201);
    assert_eq!(server.get("/con/b", "").await.text(), "new");
    server.put("/con/b?comp=undelete", "", "").await.expect(200);
    let listed = server.get("/con?restype=container&comp=list&include=snapshots", "").await.expect(200);
    let snapshot = listed.text().split_once("<Snapshot>").unwrap().1.split_once('<').unwrap().0;
    assert_eq!(server.get(&format!("/con/b?snapshot={snapshot}"), "").await.text(), "old");
    let found = server.get("/?comp=blobs&where=a%3D'1'", "").await.expect(200);
    assert!(!found.text().contains("<Blob>"), "{}", found.text());
}

#[tokio::test]
async fn archived_blob_refuses_blocks_and_properties_and_accepts_tags_and_leases() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "old").await;
    server.put("/con/b?comp=tier", "x-ms-access-tier: Archive", "").await.expect(200);
    server.put_block("/con/b", "a", "new").await.refused(409, "BlobArchived");
    server.put_block_list("/con/b", "", "").await.refused(409, "BlobArchived");
    server.put("/con/b?comp=metadata", "", "").await.refused(409, "BlobArchived");
    server.put("/con/b?comp=properties", "", "").await.refused(409, "BlobArchived");
    let tags = "<Tags><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tags>";
    server.put("/con/b?comp=tags", "", tags).await.expect(204);
    let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    server.put("/con/b?comp=lease", acquire, "").await.expect(201);
}

#[tokio::test]
async fn legal_hold_refuses_changes() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "old").await;
    server.create_append_blob("/con/a").await;
    for blob in ["/con/a", "/con/b"] {
        server.put(&format!("{blob}?comp=legalhold"), "x-ms-legal-hold: true", "").await.expect(200);
        let held = "BlobImmutableDueToLegalHold";
        server.put(&format!("{blob}?comp=metadata"), "", "").await.refused(409, held);
        server.put(&format!("{blob}?comp=properties"), "", "").await.refused(409, held);
    }
    server.append("/con/a", "", "x").await.refused(409, "BlobImmutableDueToLegalHold");
    server.put_block_list("/con/b", "", "").await.refused(409, "BlobImmutableDueToLegalHold");
}
