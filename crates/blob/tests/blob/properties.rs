//! Set Blob Properties and Set Blob Metadata.

use lazuli_account::Setting;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{ACCOUNT, TestServer, VERSION, allowed, start};

const PAGE_BLOB: &str = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: ";

impl TestServer {
    async fn set_properties(&self, blob: &str, headers: &str) -> crate::support::Reply {
        self.put(&format!("{blob}?comp=properties"), headers, "").await
    }
}

#[tokio::test]
async fn one_content_header_sets_all_six_and_an_empty_request_clears_them() {
    let server = start().await;
    server.create_container("con").await;
    let all = "x-ms-blob-type: BlockBlob
        x-ms-blob-cache-control: no-cache
        x-ms-blob-content-type: text/plain
        x-ms-blob-content-encoding: gzip
        x-ms-blob-content-language: en
        x-ms-blob-content-disposition: inline";
    let names =
        ["cache-control", "content-type", "content-encoding", "content-language", "content-disposition"];
    server.put("/con/b", all, "hello").await.expect(201);
    server.set_properties("/con/b", "x-ms-blob-content-language: de").await.expect(200);
    let head = server.head("/con/b", "").await;
    for name in names {
        assert_eq!(head.header(name), (name == "content-language").then_some("de"), "{name}");
    }
    assert_eq!(head.header("content-md5"), None, "the sixth");
    let set = server.set_properties("/con/b", all).await.expect(200);
    let head = server.head("/con/b", "").await;
    assert!(names.iter().all(|name| head.header(name).is_some()));
    assert_eq!(head.etag(), set.etag());
    server.set_properties("/con/b", "content-type: ignored/here").await.expect(200);
    let head = server.head("/con/b", "").await;
    assert!(names.iter().all(|name| head.header(name).is_none()), "{head:?}");
    assert_eq!(server.get("/con/b", "").await.text(), "hello");
}

#[tokio::test]
async fn page_blob_resize_and_renumber_keep_content_headers() {
    let server = start().await;
    server.create_container("con").await;
    let create = format!("{PAGE_BLOB}1024\nx-ms-blob-content-type: image/x\nx-ms-blob-sequence-number: 5");
    server.put("/con/p", &create, "").await.expect(201);
    for (headers, length, number) in [
        ("x-ms-blob-content-length: 512", "512", "5"),
        ("x-ms-blob-content-length: 8796093022208", "8796093022208", "5"),
        ("x-ms-sequence-number-action: max\nx-ms-blob-sequence-number: 3", "8796093022208", "5"),
        ("x-ms-sequence-number-action: max\nx-ms-blob-sequence-number: 7", "8796093022208", "7"),
        ("x-ms-sequence-number-action: increment\nx-ms-blob-content-length: 0", "0", "8"),
        ("x-ms-sequence-number-action: update\nx-ms-blob-sequence-number: 2", "0", "2"),
        (
            "x-ms-sequence-number-action: update\nx-ms-blob-sequence-number: 9223372036854775807",
            "0",
            "9223372036854775807",
        ),
    ] {
        let set = server.set_properties("/con/p", headers).await.expect(200);
        assert_eq!(set.header("x-ms-blob-sequence-number"), Some(number), "{headers}");
        let head = server.head("/con/p", "").await;
        assert_eq!(head.etag(), set.etag());
        assert_eq!(head.header("content-length"), Some(length), "{headers}");
        assert_eq!(head.header("x-ms-blob-sequence-number"), Some(number), "{headers}");
        assert_eq!(head.header("content-type"), Some("image/x"));
    }
    let increment = server.set_properties("/con/p", "x-ms-sequence-number-action: increment").await;
    increment.refused(409, "SequenceNumberIncrementTooLarge");
}

#[tokio::test]
async fn invalid_properties_are_refused() {
    let server = start().await;
    server.create_container("con").await;
    server.put("/con/p", &format!("{PAGE_BLOB}512"), "").await.expect(201);
    server.put_block_blob("/con/b", "").await;
    for (blob, headers, status, code) in [
        ("/con/p", "x-ms-blob-content-length: 513", 400, "InvalidHeaderValue"),
        ("/con/p", "x-ms-blob-content-length: 8796093022720", 400, "InvalidHeaderValue"),
        ("/con/p", "x-ms-blob-content-md5: x", 400, "InvalidMd5"),
        ("/con/p", "x-ms-sequence-number-action: max", 400, "MissingRequiredHeader"),
        ("/con/p", "x-ms-blob-sequence-number: 1", 400, "MissingRequiredHeader"),
        ("/con/p", "x-ms-sequence-number-action: less", 400, "InvalidHeaderValue"),
        (
            "/con/p",
            "x-ms-sequence-number-action: increment\nx-ms-blob-sequence-number: 1",
            400,
            "InvalidHeaderValue",
        ),
        ("/con/b", "x-ms-blob-content-length: 512", 409, "InvalidBlobType"),
        ("/con/b", "x-ms-sequence-number-action: increment", 409, "InvalidBlobType"),
        ("/con/none", "x-ms-blob-content-type: a/b", 404, "BlobNotFound"),
        ("/nothing/b", "x-ms-blob-content-type: a/b", 404, "ContainerNotFound"),
    ] {
        server.set_properties(blob, headers).await.refused(status, code);
    }
    let snapshot = "/con/b?comp=properties&snapshot=2026-01-02T03:04:05.0000000Z";
    server.put(snapshot, "", "").await.refused(400, "InvalidQueryParameterValue");
    let version = "/con/b?comp=metadata&versionid=2026-01-02T03:04:05.0000000Z";
    server.put(version, "", "").await.refused(400, "InvalidQueryParameterValue");
    server.put("/con/none?comp=metadata", "", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn md5_property_is_stored_unchecked() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "hello").await;
    server.set_properties("/con/b", "x-ms-blob-content-md5: TURBd01EQXdNREE9").await.expect(200);
    assert_eq!(server.head("/con/b", "").await.header("content-md5"), Some("TURBd01EQXdNREE9"));
    let part = server.get("/con/b", "range: bytes=0-1").await;
    assert_eq!(part.header("x-ms-blob-content-md5"), Some("TURBd01EQXdNREE9"));
}

#[tokio::test]
async fn metadata_is_replaced_as_a_whole() {
    let server = start().await;
    server.create_container("con").await;
    let first = server.put("/con/b", "x-ms-blob-type: BlockBlob\nx-ms-meta-a: 1", "hello").await.expect(201);
    let set = server.put("/con/b?comp=metadata", "x-ms-meta-b: 2\nx-ms-meta-C: 3", "").await.expect(200);
    assert_ne!(set.etag(), first.etag());
    assert_eq!(set.header("x-ms-request-server-encrypted"), Some("true"));
    let got = server.get("/con/b", "").await.expect(200);
    assert_eq!(got.etag(), set.etag());
    assert_eq!([got.header("x-ms-meta-a"), got.header("x-ms-meta-b")], [None, Some("2")]);
    assert_eq!((got.header("x-ms-meta-c"), got.text()), (Some("3"), "hello"));
    let bad = server.put("/con/b?comp=metadata", "x-ms-meta-a-b: 2", "").await;
    bad.refused(400, "InvalidMetadata");
    server.put("/con/b?comp=metadata", "", "").await.expect(200);
    assert_eq!(server.head("/con/b", "").await.header("x-ms-meta-b"), None);
}

/// Sends a request as raw bytes, and returns the raw reply. HTTP libraries of Rust lower the case of header
/// names.
async fn bytes(server: &TestServer, request: &str, target: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let target = allowed(target);
    let head = format!(
        "{request} /{ACCOUNT}{target} HTTP/1.1\r\nhost: a\r\nx-ms-version: {VERSION}\r\nconnection: close\r\n\
         content-length: 0\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply
}

#[tokio::test]
async fn metadata_names_keep_their_case() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "hello").await;
    let headers = "X-Ms-Meta-FileName: 1\r\nx-ms-meta-plain: 2\r\nLazuli-Metadata-Spelling: PLAIN\r\n";
    let set = bytes(&server, "PUT", "/con/b?comp=metadata", headers).await;
    assert!(set.starts_with("HTTP/1.1 200 OK\r\n"), "{set}");
    let server = server.restart().await;
    for method in ["GET", "HEAD"] {
        let got = bytes(&server, method, "/con/b", "").await;
        assert!(got.contains("\r\nx-ms-meta-FileName: 1\r\n"), "{got}");
        assert!(got.contains("\r\nx-ms-meta-plain: 2\r\n"), "{got}");
        assert!(!got.to_ascii_lowercase().contains("spelling"), "{got}");
    }
    let list = server.get("/con?restype=container&comp=list&include=metadata", "").await;
    let listed = "<Metadata><FileName>1</FileName><plain>2</plain></Metadata>";
    assert!(list.text().contains(listed), "{}", list.text());
    let source = format!("x-ms-copy-source: http://{}/{ACCOUNT}/con/b", server.address);
    server.put("/con/copy", &source, "").await.expect(202);
    let copy = bytes(&server, "HEAD", "/con/copy", "").await;
    assert!(copy.contains("\r\nx-ms-meta-FileName: 1\r\n"), "{copy}");
}

#[tokio::test]
async fn many_short_metadata_pairs_keep_their_case() {
    let server = start().await;
    server.create_container("con").await;
    let pairs: Vec<_> = (0..200).map(|n| format!("x-ms-meta-Name{n}: value {n}\r\n")).collect();
    let headers = format!("x-ms-blob-type: BlockBlob\r\n{}", pairs.concat());
    let put = bytes(&server, "PUT", "/con/b", &headers).await;
    assert!(put.starts_with("HTTP/1.1 201 Created\r\n"), "{put}");
    let got = bytes(&server, "HEAD", "/con/b", "").await;
    assert!(pairs.iter().all(|pair| got.contains(pair)), "{got}");
}

#[tokio::test]
async fn set_metadata_creates_a_version_and_set_properties_does_not() {
    let server = start().await;
    server.create_container("con").await;
    server.set(Setting::BlobVersioning(true)).await;
    let body = "x".repeat(20_000);
    let put = server.put_block_blob("/con/b", body.clone()).await;
    let first = put.header("x-ms-version-id").unwrap();
    server.set_properties("/con/b", "x-ms-blob-content-type: a/b").await.expect(200);
    assert_eq!(server.head("/con/b", "").await.header("x-ms-version-id"), Some(first));
    let set = server.put("/con/b?comp=metadata", "x-ms-meta-a: 1", "").await.expect(200);
    let second = set.header("x-ms-version-id").unwrap();
    assert_ne!(first, second);
    let old = server.get(&format!("/con/b?versionid={first}"), "").await.expect(200);
    assert_eq!((old.header("x-ms-meta-a"), old.text()), (None, body.as_str()));
    let new = server.get(&format!("/con/b?versionid={second}"), "").await.expect(200);
    assert_eq!((new.header("x-ms-meta-a"), new.text()), (Some("1"), body.as_str()));
    assert_eq!(new.header("x-ms-is-current-version"), Some("true"));
}
