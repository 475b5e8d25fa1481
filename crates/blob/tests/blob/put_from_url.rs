//! Put Block From URL, Append Block From URL, Put Page From URL.

use bytes::Bytes;

use lazuli_account::Setting;
use lazuli_testing::web::{Web, WebDocument};

use crate::support::{ACCOUNT, Reply, TestServer, allowed, start, start_allowing};

const APPEND: &str = "x-ms-blob-type: AppendBlob";

/// The operations: the blobs that they write, and the headers that they need.
const WAYS: [(&str, &str); 2] =
    [("/things/block?comp=block&blockid=AAAA", ""), ("/things/append?comp=appendblock", "")];

fn bytes(length: usize) -> Bytes {
    (0..length).map(|i| (i * 31 % 253) as u8).collect::<Vec<_>>().into()
}

/// Returns whether a reply reports the CRC64 of a source. Fails the test unless it reports either that or the
/// MD5.
fn reports_crc64(reply: &Reply) -> bool {
    let digests = ["content-md5", "x-ms-content-crc64"].map(|name| reply.header(name).is_some());
    assert_ne!(digests[0], digests[1], "{reply:?}");
    digests[1]
}

impl TestServer {
    /// Returns the CRC64 of a part of the source.
    async fn crc64(&self, range: &str) -> String {
        let headers = format!("x-ms-range: {range}\nx-ms-range-get-content-crc64: true");
        let part = self.get("/things/source", &headers).await.expect(206);
        part.header("x-ms-content-crc64").unwrap().to_owned()
    }

    fn source(&self) -> String {
        allowed(&format!("http://{}/{ACCOUNT}/things/source", self.address))
    }

    async fn put_from(&self, url: &str, target: &str, headers: &str) -> Reply {
        self.put(target, &format!("x-ms-copy-source: {url}\n{headers}"), "").await
    }

    /// Returns the bytes that the operations have written, and deletes them.
    async fn read_and_delete(&self, target: &str) -> Bytes {
        let blob = target.split('?').next().unwrap();
        if blob == "/things/block" {
            self.put("/things/block?comp=blocklist", "", "<BlockList><Latest>AAAA</Latest></BlockList>")
                .await
                .expect(201);
        }
        let body = self.get(blob, "").await.expect(200).body;
        if blob == "/things/append" {
            self.put(blob, APPEND, "").await.expect(201);
        }
        body
    }
}

async fn with_source(body: Bytes) -> TestServer {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", body).await;
    server.put("/things/append", APPEND, "").await.expect(201);
    server
}

#[tokio::test]
async fn any_range_of_a_source_can_be_copied() {
    let body = bytes(3 << 20);
    let server = with_source(body.clone()).await;
    let end = body.len();
    for (target, headers) in WAYS {
        for (range, part) in [
            ("", 0..end),
            ("bytes=0-", 0..end),
            ("bytes=0-0", 0..1),
            ("bytes=5-1000004", 5..1_000_005),
            ("bytes=1048576-2097151", 1 << 20..2 << 20),
            ("bytes=3145727-", end - 1..end),
            ("bytes=3000000-99999999", 3_000_000..end),
        ] {
            let range = if range.is_empty() { String::new() } else { format!("x-ms-source-range: {range}") };
            let put =
                server.put_from(&server.source(), target, &format!("{headers}\n{range}")).await.expect(201);
            assert_eq!(reports_crc64(&put), target == WAYS[0].0);
            assert!(server.read_and_delete(target).await == body.slice(part), "{target} {range}");
        }
    }
}

#[tokio::test]
async fn copied_bytes_survive_the_delete_of_the_source() {
    let body = bytes(1 << 20);
    let server = with_source(body.clone()).await;
    for (target, headers) in WAYS {
        let range = format!("{headers}\nx-ms-source-range: bytes=1000-900000");
        server.put_from(&server.source(), target, &range).await.expect(201);
    }
    server.delete("/things/source", "").await.expect(202);
    let server = server.restart().await;
    for (target, _) in WAYS {
        assert!(server.read_and_delete(target).await == body.slice(1000..900_001), "{target}");
    }
}

#[tokio::test]
async fn invalid_source_ranges_and_urls_are_refused() {
    let server = with_source(bytes(1000)).await;
    server.put_block_blob("/things/empty", "").await;
    let none = server.source().replace("source", "none");
    let empty = server.source().replace("source", "empty");
    for (target, headers) in WAYS {
        for (url, range, status, code) in [
            (server.source(), "bytes=1000-", 416, "CannotVerifyCopySource"),
            (server.source(), "bytes=5-4", 400, "InvalidHeaderValue"),
            (server.source(), "bytes=-5", 400, "InvalidHeaderValue"),
            (server.source(), "5-10", 400, "InvalidHeaderValue"),
            (none.clone(), "bytes=0-1", 404, "CannotVerifyCopySource"),
            (empty.clone(), "bytes=0-", 416, "CannotVerifyCopySource"),
        ] {
            let headers = format!("{headers}\nx-ms-source-range: {range}");
            server.put_from(&url, target, &headers).await.refused(status, code);
        }
        server.put_from(&empty, target, headers).await.refused(400, "InvalidHeaderValue");
        let with_body = format!("x-ms-copy-source: {}\n{headers}", server.source());
        server.put(target, &with_body, "body").await.refused(400, "InvalidHeaderValue");
    }
}

#[tokio::test]
async fn source_digests_are_verified_and_reported() {
    let body = bytes(100_000);
    let server = with_source(body.clone()).await;
    let part =
        server.get("/things/source", "x-ms-range: bytes=10-9999\nx-ms-range-get-content-md5: true").await;
    let md5 = part.header("content-md5").unwrap();
    let crc64 = server.crc64("bytes=10-9999").await;
    let crc64 = crc64.as_str();
    let range = "x-ms-source-range: bytes=10-9999";
    for (target, headers) in WAYS {
        let put = async |digest: String| {
            server.put_from(&server.source(), target, &format!("{headers}\n{range}\n{digest}")).await
        };
        let with_md5 = put(format!("x-ms-source-content-md5: {md5}")).await.expect(201);
        assert_eq!(
            (with_md5.header("content-md5"), with_md5.header("x-ms-content-crc64")),
            (Some(md5), Some(crc64))
        );
        let with_crc64 = put(format!("x-ms-source-content-crc64: {crc64}")).await.expect(201);
        assert_eq!(with_crc64.header("x-ms-content-crc64"), Some(crc64));
        let none = put(String::new()).await.expect(201);
        let digests = (none.header("content-md5"), none.header("x-ms-content-crc64"));
        assert_eq!(digests, if target == WAYS[0].0 { (None, Some(crc64)) } else { (Some(md5), None) });
        put("x-ms-source-content-md5: AAAAAAAAAAAAAAAAAAAAAA==".into()).await.refused(400, "Md5Mismatch");
        put("x-ms-source-content-crc64: AAAAAAAAAAA=".into()).await.refused(400, "Crc64Mismatch");
        for (name, code) in
            [("x-ms-source-content-md5", "InvalidMd5"), ("x-ms-source-content-crc64", "InvalidHeaderValue")]
        {
            let refused = put(format!("{name}: AAAA")).await.refused(400, code);
            assert!(refused.text().contains(&format!("<HeaderName>{name}</HeaderName>")), "{name}");
        }
        let both = format!("x-ms-source-content-md5: {md5}\nx-ms-source-content-crc64: {crc64}");
        put(both).await.refused(400, "BothCrc64AndMd5HeaderPresent");
    }
}

#[tokio::test]
async fn source_and_target_conditions_are_checked() {
    let server = with_source(bytes(1000)).await;
    let etag = server.head("/things/source", "").await.etag().to_owned();
    for (target, headers) in WAYS {
        for (condition, outcome) in [
            (format!("x-ms-source-if-match: {etag}"), (201, "")),
            ("x-ms-source-if-match: \"0x1\"".into(), (412, "CannotVerifyCopySource")),
            (
                "x-ms-source-if-unmodified-since: Thu, 01 Jan 2009 00:00:00 GMT".into(),
                (412, "CannotVerifyCopySource"),
            ),
            (format!("x-ms-source-if-none-match: {etag}"), (304, "CannotVerifyCopySource")),
            (
                "x-ms-source-if-modified-since: Fri, 01 Jan 2100 00:00:00 GMT".into(),
                (304, "CannotVerifyCopySource"),
            ),
        ] {
            let reply = server.put_from(&server.source(), target, &format!("{headers}\n{condition}")).await;
            assert_eq!(reply.outcome(), outcome, "{target} {condition}");
        }
    }
    let append = "/things/append?comp=appendblock";
    for (condition, outcome) in [
        ("if-match: \"0x1\"", (412, "ConditionNotMet")),
        ("x-ms-blob-condition-appendpos: 5", (412, "AppendPositionConditionNotMet")),
        ("x-ms-blob-condition-maxsize: 1500", (412, "MaxBlobSizeConditionNotMet")),
        ("x-ms-lease-id: 12345678-1234-1234-1234-123456789012", (412, "LeaseNotPresentWithBlobOperation")),
        ("x-ms-blob-condition-appendpos: 1000", (201, "")),
    ] {
        let reply = server.put_from(&server.source(), append, condition).await;
        assert_eq!(reply.outcome(), outcome, "{condition}");
    }
    let appended = server.put_from(&server.source(), append, "").await.expect(201);
    assert_eq!(appended.header("x-ms-blob-append-offset"), Some("2000"));
    assert_eq!(appended.header("x-ms-blob-committed-block-count"), Some("3"));
    let wrong_type = "/things/source?comp=appendblock";
    server.put_from(&server.source(), wrong_type, "").await.refused(409, "InvalidBlobType");
    server.put_from(&server.source(), "/things/none?comp=appendblock", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn source_range_limit_depends_on_the_version() {
    let server = with_source(bytes(1000)).await;
    let page = format!("x-ms-blob-type: PageBlob\nx-ms-blob-content-length: {}", 200 << 20);
    server.put("/things/large", &page, "").await.expect(201);
    let large = server.source().replace("source", "large");
    for (target, version, mib) in
        [(WAYS[0].0, "2019-12-12", 100), (WAYS[1].0, "2021-12-02", 4), (WAYS[1].0, "2022-11-02", 100)]
    {
        for (last, status) in [((mib << 20) - 1, 201), (mib << 20, 409)] {
            let headers = format!("x-ms-version: {version}\nx-ms-source-range: bytes=0-{last}");
            let reply = server.put_from(&large, target, &headers).await;
            assert_eq!(reply.status, status, "{target} {version} {last} {}", reply.text());
        }
    }
}

#[tokio::test]
async fn ranges_of_remote_sources_are_fetched() {
    let web = Web::serve(WebDocument::new(bytes(500_000))).await;
    let server = start_allowing(&[&web.allowed()]).await;
    server.create_container("things").await;
    server.put("/things/append", APPEND, "").await.expect(201);
    for ignores_ranges in [false, true] {
        web.change(|page| page.ignores_ranges = ignores_ranges).await;
        for (target, headers) in WAYS {
            let range = format!("{headers}\nx-ms-source-range: bytes=1000-400000");
            let put = server.put_from(&web.url(), target, &range).await.expect(201);
            assert_eq!(reports_crc64(&put), target == WAYS[0].0);
            assert!(server.read_and_delete(target).await == bytes(500_000).slice(1000..400_001), "{target}");
        }
    }
    let heads = web.requests.lock().await.join("");
    assert!(heads.contains("range: bytes=1000-400000\r\n"), "{heads}");
}

#[tokio::test]
async fn put_page_from_url_checks_ranges_conditions_and_digests() {
    let body = bytes(20_000);
    let server = with_source(body.clone()).await;
    server.set(Setting::AddEncryptionScope("one".into())).await;
    server.put("/sealed?restype=container", "x-ms-default-encryption-scope: one", "").await.expect(201);
    for container in ["things", "sealed"] {
        let page = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 8192\nx-ms-blob-sequence-number: 5";
        server.put(&format!("/{container}/page"), page, "").await.expect(201);
        let target = format!("/{container}/page?comp=page");
        let put = async |range: &str, source: &str, headers: &str| {
            let headers = format!(
                "x-ms-page-write: update\nx-ms-range: {range}\nx-ms-source-range: {source}\n{headers}"
            );
            server.put_from(&server.source(), &target, &headers).await
        };
        let written = put("bytes=512-2047", "bytes=7-1542", "").await.expect(201);
        assert!(!reports_crc64(&written));
        let crc64 = "x-ms-source-content-crc64: ".to_owned() + &server.crc64("bytes=7-1542").await;
        assert!(reports_crc64(&put("bytes=512-2047", "bytes=7-1542", &crc64).await.expect(201)));
        assert_eq!(written.header("x-ms-blob-sequence-number"), Some("5"));
        let got = server.get(&format!("/{container}/page"), "").await.expect(200).body;
        assert!(got[..512] == [0; 512] && got[512..2048] == body[7..1543] && got[2048..] == [0; 6144]);
        for (range, source, headers, status, code) in [
            ("bytes=0-511", "bytes=0-510", "", 400, "InvalidHeaderValue"),
            ("bytes=0-510", "bytes=0-510", "", 416, "InvalidPageRange"),
            ("bytes=1-512", "bytes=0-511", "", 416, "InvalidPageRange"),
            ("bytes=7680-8703", "bytes=0-1023", "", 416, "InvalidPageRange"),
            ("bytes=0-511", "bytes=19900-20411", "", 400, "InvalidHeaderValue"),
            ("bytes=0-511", "bytes=20000-20511", "", 416, "CannotVerifyCopySource"),
            ("bytes=0-4194815", "bytes=0-4194815", "", 413, "RequestBodyTooLarge"),
            (
                "bytes=0-511",
                "bytes=0-511",
                "x-ms-if-sequence-number-lt: 5",
                412,
                "SequenceNumberConditionNotMet",
            ),
            ("bytes=0-511", "bytes=0-511", "if-match: \"0x1\"", 412, "ConditionNotMet"),
            ("bytes=0-511", "bytes=0-511", "x-ms-source-if-match: \"0x1\"", 412, "CannotVerifyCopySource"),
            (
                "bytes=0-511",
                "bytes=0-511",
                "x-ms-source-content-md5: AAAAAAAAAAAAAAAAAAAAAA==",
                400,
                "Md5Mismatch",
            ),
        ] {
            let reply = put(range, source, headers).await;
            assert_eq!(reply.outcome(), (status, code), "{range} {source} {headers}");
        }
        let no_source_range = "x-ms-page-write: update\nx-ms-range: bytes=0-511";
        let refused = server.put_from(&server.source(), &target, no_source_range).await;
        refused.refused(400, "MissingRequiredHeader");
    }
}
