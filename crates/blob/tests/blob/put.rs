//! Put Blob and the reads of what it stored.

use bytes::Bytes;
use lazuli_auth::sign::{self, Resource};
use lazuli_protocol::ServiceKind;

use crate::support::{ACCOUNT, allowed, key, start};

const BLOCK: &str = "x-ms-blob-type: BlockBlob";

#[tokio::test]
async fn small_and_large_bodies_round_trip() {
    let server = start().await;
    server.create_container("things").await;
    for length in [0, 1, 4096, 8193, 70_000, 5 << 20] {
        let body: Bytes = (0..length).map(|i| (i * 7 % 251) as u8).collect::<Vec<_>>().into();
        let put = server.put("/things/b", BLOCK, body.clone()).await.expect(201);
        let got = server.get("/things/b", "").await.expect(200);
        assert!(got.body == body, "{length}");
        assert_eq!(got.etag(), put.etag());
        assert_eq!(got.header("content-md5"), put.header("content-md5"));
        assert_eq!(got.header("content-length"), Some(length.to_string().as_str()));
    }
    let part = server.get("/things/b", "x-ms-range: bytes=8190-8200").await.expect(206);
    assert_eq!(part.body.len(), 11);
    assert_eq!(part.header("content-range"), Some("bytes 8190-8200/5242880"));
    let all = server.get("/things/b", "x-ms-range: bytes=-1-").await.expect(200);
    assert_eq!(all.body.len(), 5 << 20, "an invalid range is ignored");
    let both = "x-ms-range-get-content-md5: true\nx-ms-range-get-content-crc64: true";
    for range in ["", "x-ms-range: bytes=0-9"] {
        let refused = server.get("/things/b", &format!("{range}\n{both}")).await;
        refused.refused(400, "BothCrc64AndMd5RangeHeaderPresent");
    }
}

#[tokio::test]
async fn only_replaced_bytes_in_extents_count_as_garbage() {
    let server = start().await;
    server.create_container("things").await;
    let released = || server.engine.extents.storage_use().released_since_mark;
    let small = vec![1; 4096];
    for _ in 0..3 {
        server.put("/things/small", BLOCK, small.clone()).await.expect(201);
    }
    server.delete("/things/small", "").await.expect(202);
    let mismatch = format!("{BLOCK}\ncontent-md5: {}", "A".repeat(22) + "==");
    server.put("/things/small", &mismatch, small).await.refused(400, "Md5Mismatch");
    assert_eq!(released(), 0, "inline bytes are not garbage");
    let large = vec![2; 256 << 10];
    server.put("/things/large", BLOCK, large.clone()).await.expect(201);
    server.put("/things/large", &mismatch, large.clone()).await.refused(400, "Md5Mismatch");
    assert_eq!(released(), large.len() as u64);
    server.put("/things/large", BLOCK, large.clone()).await.expect(201);
    assert_eq!(released(), 2 * large.len() as u64);
}

#[tokio::test]
async fn headers_and_metadata_round_trip() {
    let server = start().await;
    server.create_container("things").await;
    let headers = "x-ms-blob-type: BlockBlob
        x-ms-blob-content-type: text/x-test
        content-language: de
        x-ms-blob-cache-control: no-store
        x-ms-meta-color: blue";
    server.put("/things/b", headers, "hello").await.expect(201);
    let head = server.head("/things/b", "").await.expect(200);
    for (name, value) in [
        ("content-type", "text/x-test"),
        ("content-language", "de"),
        ("cache-control", "no-store"),
        ("x-ms-meta-color", "blue"),
        ("x-ms-blob-type", "BlockBlob"),
        ("content-length", "5"),
        ("x-ms-lease-state", "available"),
        ("x-ms-access-tier", "Hot"),
    ] {
        assert_eq!(head.header(name), Some(value), "{name}");
    }
    let bad = server.put("/things/b", &format!("{BLOCK}\nx-ms-meta-a-b: 1"), "").await;
    let bad = bad.refused(400, "InvalidMetadata");
    let text = "The metadata specified is invalid. It has characters that are not permitted.";
    assert!(bad.text().contains(text), "{}", bad.text());
    let long = server.put(&format!("/things/{}", "x".repeat(1025)), BLOCK, "").await;
    let long = long.refused(400, "OutOfRangeInput");
    assert!(long.text().contains("One of the request inputs is out of range."), "{}", long.text());
    server.head("/things/none", "").await.expect(404);
    server.get("/nothing/none", "").await.refused(404, "ContainerNotFound");
    server.get("/things/none", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn body_with_a_wrong_digest_is_refused_and_not_stored() {
    let server = start().await;
    server.create_container("things").await;
    for name in ["content-md5", "x-ms-blob-content-md5"] {
        let wrong = format!("{BLOCK}\n{name}: {}", "AAAAAAAAAAAAAAAAAAAAAA==");
        let refused = server.put("/things/b", &wrong, "hello").await.refused(400, "Md5Mismatch");
        let expected_details = "<UserSpecifiedMd5>AAAAAAAAAAAAAAAAAAAAAA==</UserSpecifiedMd5>\
                    <ServerCalculatedMd5>XUFAKrxLKna5cZ2REBfFkg==</ServerCalculatedMd5>";
        assert!(refused.text().contains(expected_details), "{}", refused.text());
    }
    let wrong = format!("{BLOCK}\nx-ms-content-crc64: {}", "AAAAAAAAAAA=");
    let refused = server.put("/things/b", &wrong, "hello").await.refused(400, "Crc64Mismatch");
    let expected_details = "<UserSpecifiedCrc>AAAAAAAAAAA=</UserSpecifiedCrc><ServerCalculatedCrc>";
    assert!(refused.text().contains(expected_details), "{}", refused.text());
    for (header, code) in [
        ("content-md5: AAAA", "InvalidMd5"),
        ("x-ms-blob-content-md5: AAAA", "InvalidMd5"),
        ("x-ms-content-crc64: AAAA", "InvalidHeaderValue"),
        ("x-ms-content-crc64: AAAAAAAAAAAA", "Crc64Mismatch"),
    ] {
        server.put("/things/b", &format!("{BLOCK}\n{header}"), "hello").await.refused(400, code);
    }
    server.get("/things/b", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn put_blob_obeys_conditions() {
    let server = start().await;
    server.create_container("things").await;
    let first = server.put("/things/b", &format!("{BLOCK}\nif-none-match: *"), "1").await.expect(201);
    let star = format!("{BLOCK}\nif-none-match: *");
    server.put("/things/b", &star, "2").await.refused(409, "BlobAlreadyExists");
    let stale = format!("{BLOCK}\nif-match: \"0x1\"");
    server.put("/things/b", &stale, "2").await.refused(412, "ConditionNotMet");
    let fresh = format!("{BLOCK}\nif-match: {}", first.etag());
    server.put("/things/b", &fresh, "2").await.expect(201);
    server.put("/things/b", &fresh, "3").await.refused(412, "ConditionNotMet");
    assert_eq!(server.get("/things/b", "").await.text(), "2");
}

#[tokio::test]
async fn blob_is_replaced_only_by_one_of_its_type() {
    let server = start().await;
    server.create_container("things").await;
    let page = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512";
    let types = [("block", BLOCK), ("page", page), ("append", "x-ms-blob-type: AppendBlob")];
    server.put_block_blob("/things/source", "").await;
    let source = allowed(&format!("http://{}/{ACCOUNT}/things/source", server.address));
    let from_url = format!("{BLOCK}\nx-ms-copy-source: {source}");
    for (name, made) in types {
        let target = format!("/things/{name}");
        let etag = server.put(&target, made, "").await.expect(201).etag().to_owned();
        for (other, headers) in types.into_iter().chain([("block", from_url.as_str())]) {
            let put = server.put(&target, headers, "").await;
            if other == name {
                put.expect(201);
                continue;
            }
            put.refused(409, "InvalidBlobType");
            let with = format!("{headers}\nif-match: {etag}");
            server.put(&target, &with, "").await.refused(409, "InvalidBlobType");
        }
        server.delete(&target, "").await.expect(202);
    }
    server.put("/things/block", page, "").await.expect(201);
    server.put("/things/staged?comp=block&blockid=AAAA", "", "x").await.expect(201);
    server.put("/things/staged", page, "").await.refused(409, "InvalidBlobType");
    server.put_block_blob("/things/staged", "").await;
}

#[tokio::test]
async fn backslash_in_a_name_is_a_slash() {
    let server = start().await;
    server.create_container("con").await;
    server.put("/con/a%5Cb%5Cd", BLOCK, "one").await.expect(201);
    server.signed("GET", "/con/a%5Cb/d", "", "").await.expect(200);
    for target in ["/con/a/b/d", "/con/a%5Cb%5Cd", "/con/a\\b/d"] {
        assert_eq!(server.get(target, "").await.expect(200).text(), "one", "{target}");
    }
    let list = server.get("/con?restype=container&comp=list", "").await.expect(200);
    assert!(list.text().contains("<Name>a/b/d</Name>"), "{}", list.text());
    let list = server.get("/con?restype=container&comp=list&prefix=a%5C", "").await.expect(200);
    assert!(!list.text().contains("<Name>"), "a prefix is taken as it is: {}", list.text());

    let source = allowed(&format!("http://{}/{ACCOUNT}/con/a%5Cb/d", server.address));
    server.put("/con/copy%5C1", &format!("x-ms-copy-source: {source}"), "").await.expect(202);
    assert_eq!(server.get("/con/copy/1", "").await.expect(200).text(), "one");

    let sas = |path: &str, fields: &[(&str, &str)]| {
        let resource = Resource { service: ServiceKind::Blob, account: ACCOUNT, path, timestamp: "" };
        let common = [("sv", "2022-11-02"), ("sp", "r"), ("se", "2099-12-31T00:00:00Z")];
        sign::service_sas(&resource, &key(), &[&common, fields].concat())
    };
    let directory = &[("sr", "d"), ("sdd", "2")][..];
    for (target, signed, fields, status) in [
        ("/con/a%5Cb/d", "con/a/b/d", &[("sr", "b")][..], 200),
        ("/con/a%5Cb/d", "con/a\\b/d", &[("sr", "b")], 200),
        ("/con/a%5Cb/d", "con/a\\b\\d", &[("sr", "b")], 403),
        ("/con/a%5Cb%5Cd", "con/a/b", directory, 200),
        ("/con/a%5Cb%5Cd", "con/a\\b", directory, 200),
        ("/con/a%5Cb%5Cd", "con/a\\x", directory, 403),
    ] {
        let reply = server.send("GET", &format!("{target}?{}", sas(signed, fields)), "", "").await;
        assert_eq!(reply.status, status, "{target} {signed}");
    }
}
