//! Append Block and Append Blob Seal.

use bytes::Bytes;

use crate::support::{Reply, TestServer, start};

impl TestServer {
    pub(crate) async fn create_append_blob(&self, blob: &str) -> Reply {
        self.put(blob, "x-ms-blob-type: AppendBlob", "").await.expect(201)
    }

    pub(crate) async fn append(&self, blob: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        self.put(&format!("{blob}?comp=appendblock"), headers, body).await
    }

    async fn seal(&self, blob: &str, headers: &str) -> Reply {
        self.put(&format!("{blob}?comp=seal"), headers, "").await
    }
}

#[tokio::test]
async fn append_reply_has_the_offset_and_the_block_count() {
    let server = start().await;
    server.create_container("con").await;
    let mut etag = server.create_append_blob("/con/a").await.etag().to_owned();
    let mut content = String::new();
    for (count, length) in [1, 5, 9000, 3, 100_000, 7].into_iter().enumerate() {
        let body = "abcdefg".chars().cycle().take(length).collect::<String>();
        let reply = server.append("/con/a", "", body.clone()).await.expect(201);
        assert_eq!(reply.header("x-ms-blob-append-offset"), Some(content.len().to_string().as_str()));
        assert_eq!(reply.header("x-ms-blob-committed-block-count"), Some((count + 1).to_string().as_str()));
        assert!(reply.header("x-ms-content-crc64").is_some());
        assert_ne!(reply.etag(), etag);
        etag = reply.etag().to_owned();
        content += &body;
        let got = server.get("/con/a", "").await.expect(200);
        assert_eq!((got.text(), got.etag()), (content.as_str(), etag.as_str()));
    }
    let server = server.restart().await;
    let got = server.get("/con/a", "").await.expect(200);
    assert_eq!((got.text(), got.header("x-ms-blob-committed-block-count")), (content.as_str(), Some("6")));
}

#[tokio::test]
async fn append_conditions_are_checked_after_the_ordinary_ones() {
    let server = start().await;
    server.create_container("con").await;
    server.create_append_blob("/con/a").await;
    let first = server.append("/con/a", "x-ms-blob-condition-appendpos: 0", "12345").await.expect(201);
    let stale = "if-match: \"0x1\"";
    for (headers, status, code) in [
        ("x-ms-blob-condition-appendpos: 0", 412, "AppendPositionConditionNotMet"),
        ("x-ms-blob-condition-maxsize: 5", 412, "MaxBlobSizeConditionNotMet"),
        ("x-ms-blob-condition-maxsize: 4", 412, "MaxBlobSizeConditionNotMet"),
        ("x-ms-blob-condition-appendpos: -1", 400, "InvalidHeaderValue"),
        ("x-ms-blob-condition-maxsize: x", 400, "InvalidHeaderValue"),
        (&format!("{stale}\nx-ms-blob-condition-appendpos: 0"), 412, "ConditionNotMet"),
        (&format!("if-none-match: {}", first.etag()), 412, "ConditionNotMet"),
        ("x-ms-lease-id: aaaaaaaa-0000-4000-8000-00000000000a", 412, "LeaseNotPresentWithBlobOperation"),
    ] {
        server.append("/con/a", headers, "6").await.refused(status, code);
    }
    let exact = format!(
        "if-match: {}\nx-ms-blob-condition-appendpos: 5\nx-ms-blob-condition-maxsize: 6",
        first.etag()
    );
    server.append("/con/a", &exact, "6").await.expect(201);
    assert_eq!(server.get("/con/a", "").await.text(), "123456");
}

#[tokio::test]
async fn invalid_append_is_refused() {
    let server = start().await;
    server.create_container("con").await;
    server.create_append_blob("/con/a").await;
    server.put_block_blob("/con/b", "").await;
    server.append("/con/a", "", "").await.refused(400, "InvalidHeaderValue");
    server.append("/con/b", "", "x").await.refused(409, "InvalidBlobType");
    server.append("/con/b", "if-match: \"0x1\"", "x").await.refused(409, "InvalidBlobType");
    server.append("/con/none", "", "x").await.refused(404, "BlobNotFound");
    server.append("/nothing/a", "", "x").await.refused(404, "ContainerNotFound");
    server.append("/con/a", "content-md5: AAAAAAAAAAAAAAAAAAAAAA==", "x").await.refused(400, "Md5Mismatch");
    let large = Bytes::from(vec![7; (4 << 20) + 1]);
    let old = server.append("/con/a", "x-ms-version: 2021-12-02", large.clone()).await;
    old.refused(413, "RequestBodyTooLarge");
    server.append("/con/a", "x-ms-version: 2022-11-02", large.clone()).await.expect(201);
    assert!(server.get("/con/a", "").await.body == large);
    server.seal("/con/b", "").await.refused(409, "InvalidBlobType");
    server.seal("/con/none", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn sealed_blob_keeps_its_etag_and_refuses_appends() {
    let server = start().await;
    server.create_container("con").await;
    server.create_append_blob("/con/a").await;
    let last = server.append("/con/a", "", "12345").await.expect(201);
    let refused = server.seal("/con/a", "x-ms-blob-condition-appendpos: 4").await;
    refused.refused(412, "AppendPositionConditionNotMet");
    server.seal("/con/a", "if-match: \"0x1\"").await.refused(412, "ConditionNotMet");
    for _ in 0..2 {
        let sealed = server.seal("/con/a", "x-ms-blob-condition-appendpos: 5").await.expect(200);
        assert_eq!((sealed.etag(), sealed.header("x-ms-blob-sealed")), (last.etag(), Some("true")));
    }
    server.append("/con/a", "", "6").await.refused(409, "BlobIsSealed");
    let position = server.append("/con/a", "x-ms-blob-condition-appendpos: 4", "6").await;
    position.refused(412, "AppendPositionConditionNotMet");
    let head = server.head("/con/a", "").await;
    assert_eq!((head.header("x-ms-blob-sealed"), head.etag()), (Some("true"), last.etag()));
    server.put("/con/a?comp=metadata", "x-ms-meta-a: 1", "").await.expect(200);
    assert_eq!(server.head("/con/a", "").await.header("x-ms-blob-sealed"), Some("true"));
}
