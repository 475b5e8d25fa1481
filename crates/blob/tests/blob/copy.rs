//! Copies within the server: Copy Blob, Copy Blob From URL, Put Blob From URL.

use bytes::Bytes;
use lazuli_account::Setting;
use lazuli_auth::sign;
use lazuli_protocol::ServiceKind;

use crate::support::{ACCOUNT, OTHER_ACCOUNT, Reply, TestServer, allowed, key, start};

const BLOCK: &str = "x-ms-blob-type: BlockBlob";
const SYNC: &str = "x-ms-requires-sync: true";
const LEASE: &str = "12345678-1234-1234-1234-123456789012";

/// The ways to copy a whole block blob: headers in addition to the source, and the success status.
const WAYS: [(&str, u16); 3] = [("", 202), (SYNC, 202), (BLOCK, 201)];

impl TestServer {
    pub(crate) fn url(&self, account: &str, target: &str) -> String {
        format!("http://{}/{account}{target}", self.address)
    }

    /// Copies from a URL, or from a blob of the caller. Operations other than Copy Blob need a signature for
    /// the latter.
    async fn copy(&self, from: &str, to: &str, headers: &str) -> Reply {
        let is_synchronous = [BLOCK, SYNC].into_iter().any(|way| headers.contains(way));
        let source = match from.starts_with("http") {
            true => from.to_owned(),
            false if is_synchronous => allowed(&self.url(ACCOUNT, from)),
            false => self.url(ACCOUNT, from),
        };
        self.put(to, &format!("x-ms-copy-source: {source}\n{headers}"), "").await
    }
}

fn account_sas(account: &str, permissions: &str, expiry: &str) -> String {
    let fields = [("sv", "2022-11-02"), ("ss", "b"), ("srt", "sco"), ("sp", permissions), ("se", expiry)];
    sign::account_sas(account, &key(), &fields)
}

#[tokio::test]
async fn copy_has_the_bytes_headers_and_metadata_of_its_source() {
    let server = start().await;
    server.create_container("things").await;
    for (way, status) in WAYS {
        for length in [0, 5, 100_000] {
            let body: Bytes = (0..length).map(|i| (i % 251) as u8).collect::<Vec<_>>().into();
            let headers = format!(
                "{BLOCK}\nx-ms-blob-content-type: text/x-test\nx-ms-blob-cache-control: no-store\nx-ms-meta-a: 1"
            );
            let put = server.put("/things/source", &headers, body.clone()).await.expect(201);
            let copied = server.copy("/things/source", "/things/copy", way).await.expect(status);
            let got = server.get("/things/copy", "").await.expect(200);
            assert!(got.body == body, "{way} {length}");
            assert_eq!(got.etag(), copied.etag());
            assert_ne!(got.etag(), put.etag());
            for name in ["content-type", "cache-control", "x-ms-meta-a", "content-md5"] {
                let source = server.head("/things/source", "").await;
                assert_eq!(got.header(name), source.header(name), "{way} {name}");
            }
        }
    }
}

#[tokio::test]
async fn source_url_may_have_encoded_slashes() {
    let server = start().await;
    server.create_container("things").await;
    server.put("/things/d%20%C3%A4/source", BLOCK, "abc").await.expect(201);
    for (way, status) in WAYS {
        for source in ["/things%2Fd%20%C3%A4%2Fsource", "/things/d%20%C3%A4%2fsource"] {
            server.copy(source, "/things/copy", way).await.expect(status);
            assert_eq!(server.get("/things/copy", "").await.expect(200).body, "abc", "{way} {source}");
        }
    }
    let source = server.url(ACCOUNT, "/things%2Fd%20%C3%A4%2Fsource");
    let sas = |path: &str| {
        let resource = sign::Resource { service: ServiceKind::Blob, account: ACCOUNT, path, timestamp: "" };
        let fields = [("sv", "2022-11-02"), ("sr", "b"), ("sp", "r"), ("se", "2099-12-31T00:00:00Z")];
        sign::service_sas(&resource, &key(), &fields)
    };
    server.copy(&format!("{source}?{}", sas("things/d ä/source")), "/things/copy", SYNC).await.expect(202);
    let refused = server.copy(&format!("{source}?{}", sas("things/other")), "/things/copy", SYNC).await;
    refused.refused(403, "CannotVerifyCopySource");
}

#[tokio::test]
async fn copy_reports_its_source() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "hello").await;
    for way in ["", "x-ms-requires-sync: true"] {
        let copied = server.copy("/things/source", "/things/copy", way).await.expect(202);
        assert_eq!(copied.header("x-ms-copy-status"), Some("success"));
        let head = server.head("/things/copy", "").await.expect(200);
        assert_eq!(head.header("x-ms-copy-id"), copied.header("x-ms-copy-id"));
        assert_eq!(head.header("x-ms-copy-status"), Some("success"));
        assert_eq!(head.header("x-ms-copy-progress"), Some("5/5"));
        assert_eq!(head.header("x-ms-copy-source"), Some(server.url(ACCOUNT, "/things/source").as_str()));
        assert_eq!(head.header("x-ms-copy-completion-time"), head.header("last-modified"));
    }
    server.put_block_blob("/things/copy", "other").await;
    assert_eq!(server.head("/things/copy", "").await.header("x-ms-copy-id"), None);
}

#[tokio::test]
async fn copy_blob_from_url_reports_the_crc64_and_the_md5_only_if_it_was_sent() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "hello").await;
    let read = |digest: &str| format!("x-ms-range: bytes=0-4\nx-ms-range-get-content-{digest}: true");
    let crc64 = server.get("/things/source", &read("crc64")).await.expect(206);
    let md5 = server.get("/things/source", &read("md5")).await.expect(206);
    let (crc64, md5) = (crc64.header("x-ms-content-crc64"), md5.header("content-md5"));
    for (sent, expected) in
        [(String::new(), None), (format!("x-ms-source-content-md5: {}", md5.unwrap()), md5)]
    {
        let copied =
            server.copy("/things/source", "/things/copy", &format!("{SYNC}\n{sent}")).await.expect(202);
        assert_eq!((copied.header("x-ms-content-crc64"), copied.header("content-md5")), (crc64, expected));
        // Older versions have no CRC64, and the server does not read the source to report another digest.
        let old = format!("{SYNC}\nx-ms-version: 2018-11-09\n{sent}");
        let copied = server.copy("/things/source", "/things/copy", &old).await.expect(202);
        assert_eq!((copied.header("x-ms-content-crc64"), copied.header("content-md5")), (None, expected));
    }
}

#[tokio::test]
async fn copy_state_is_reported_until_the_blob_is_replaced_or_its_properties_are_set() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/block", "hello").await;
    server.put("/things/append", "x-ms-blob-type: AppendBlob", "").await.expect(201);
    let page = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512";
    server.put("/things/page", page, "").await.expect(201);
    let write = "x-ms-page-write: update\nx-ms-range: bytes=0-511";
    for (source, query, headers, body, is_reported) in [
        ("block", "?comp=metadata", "x-ms-meta-a: 1", String::new(), true),
        ("append", "?comp=appendblock", "", "more".into(), true),
        ("page", "?comp=page", write, "x".repeat(512), true),
        ("block", "?comp=properties", "x-ms-blob-content-type: a/b", String::new(), false),
        ("block", "?comp=blocklist", "", "<BlockList></BlockList>".into(), false),
        ("block", "", BLOCK, String::new(), false),
    ] {
        let target = format!("/things/copy-of-{source}");
        let copied = server.copy(&format!("/things/{source}"), &target, "").await.expect(202);
        let changed = server.put(&format!("{target}{query}"), headers, body).await;
        assert!(changed.status.is_success(), "{query} {}", changed.text());
        let head = server.head(&target, "").await.expect(200);
        assert_eq!(
            head.header("x-ms-copy-id"),
            copied.header("x-ms-copy-id").filter(|_| is_reported),
            "{query}"
        );
    }
}

#[tokio::test]
async fn metadata_in_the_request_replaces_that_of_the_source() {
    let server = start().await;
    server.create_container("things").await;
    server
        .put("/things/source", &format!("{BLOCK}\nx-ms-meta-a: 1\nx-ms-meta-b: 2"), "hello")
        .await
        .expect(201);
    for (way, status) in WAYS {
        let headers = format!("{way}\nx-ms-meta-c: 3");
        server.copy("/things/source", "/things/copy", &headers).await.expect(status);
        let head = server.head("/things/copy", "").await;
        let metadata = ["x-ms-meta-a", "x-ms-meta-b", "x-ms-meta-c"].map(|name| head.header(name));
        assert_eq!(metadata, [None, None, Some("3")], "{way}");
    }
}

#[tokio::test]
async fn blob_copied_over_itself_has_a_new_etag() {
    let server = start().await;
    server.create_container("things").await;
    let put = server.put_block_blob("/things/b", "hello").await;
    let copied = server.copy("/things/b", "/things/b", "x-ms-meta-a: 1").await.expect(202);
    assert_ne!(copied.etag(), put.etag());
    let got = server.get("/things/b", "").await.expect(200);
    assert_eq!((got.text(), got.header("x-ms-meta-a")), ("hello", Some("1")));
    let stale = format!("x-ms-source-if-match: {}", put.etag());
    server.copy("/things/b", "/things/b", &stale).await.refused(412, "SourceConditionNotMet");
}

#[tokio::test]
async fn copy_keeps_its_bytes_when_the_source_is_deleted() {
    let server = start().await;
    server.create_container("things").await;
    let body = Bytes::from(vec![7; 300_000]);
    server.put_block_blob("/things/source", body.clone()).await;
    server.copy("/things/source", "/things/copy", "").await.expect(202);
    server.put_block_blob("/things/source", "gone").await;
    let server = server.restart().await;
    assert!(server.get("/things/copy", "").await.expect(200).body == body);
}

#[tokio::test]
async fn invalid_copy_source_is_refused() {
    let server = start().await;
    server.create_container("things").await;
    let none = server.url(ACCOUNT, "/things/none");
    let long = format!("http://h/{}", "a".repeat(2048));
    for (source, copy, other) in [
        (none.as_str(), (404, "BlobNotFound"), (404, "CannotVerifyCopySource")),
        (&server.url(ACCOUNT, "/nothing/none"), (404, "ContainerNotFound"), (404, "CannotVerifyCopySource")),
        ("nonsense", (400, "InvalidHeaderValue"), (400, "InvalidHeaderValue")),
        ("ftp://host/x", (400, "InvalidHeaderValue"), (400, "InvalidHeaderValue")),
        (&long, (400, "InvalidHeaderValue"), (400, "InvalidHeaderValue")),
        (
            &format!("{none}?snapshot=yesterday"),
            (400, "InvalidQueryParameterValue"),
            (400, "CannotVerifyCopySource"),
        ),
    ] {
        for (way, _) in WAYS {
            let source = if source.contains(ACCOUNT) { allowed(source) } else { source.to_owned() };
            let headers = format!("x-ms-copy-source: {source}\n{way}");
            let refused = server.put("/things/copy", &headers, "").await;
            assert_eq!(refused.outcome(), if way.is_empty() { copy } else { other }, "{source} {way}");
        }
    }
    let none = allowed(&none);
    let refused = server.copy(&none, "/things/copy", BLOCK).await;
    assert_eq!(refused.header("x-ms-copy-source-status-code"), Some("404"));
    assert_eq!(refused.header("x-ms-copy-source-error-code"), Some("BlobNotFound"));
    assert!(refused.text().contains("<CopySourceErrorCode>BlobNotFound</CopySourceErrorCode>"));
    let old = server.copy(&none, "/things/copy", &format!("{BLOCK}\nx-ms-version: 2021-12-02")).await;
    assert_eq!(old.header("x-ms-copy-source-status-code"), None);
    server.head("/things/copy", "").await.expect(404);
}

#[tokio::test]
async fn synchronous_copy_requires_a_public_source_or_credentials() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "hello").await;
    server.put("/things/append", "x-ms-blob-type: AppendBlob", "").await.expect(201);
    let bare = format!("x-ms-copy-source: {}", server.url(ACCOUNT, "/things/source"));
    server.put("/things/copy", &bare, "").await.expect(202);
    server.set(Setting::PublicAccess(true)).await;
    let targets = ["/things/new", "/things/new?comp=block&blockid=AAAA", "/things/append?comp=appendblock"];
    for target in targets {
        let headers = format!("{bare}\n{BLOCK}");
        let refused = server.put(target, &headers, "").await.refused(401, "CannotVerifyCopySource");
        assert_eq!(refused.header("x-ms-copy-source-status-code"), Some("401"), "{target}");
        assert_eq!(refused.header("x-ms-copy-source-error-code"), Some("NoAuthenticationInformation"));
    }
    let acl = "/things?restype=container&comp=acl";
    server.signed("PUT", acl, "x-ms-blob-public-access: blob", "").await.expect(200);
    for target in targets {
        server.put(target, &format!("{bare}\n{BLOCK}"), "").await.expect(201);
    }
}

#[tokio::test]
async fn source_conditions_are_checked() {
    let server = start().await;
    server.create_container("things").await;
    let etag = server.put_block_blob("/things/source", "hello").await.etag().to_owned();
    let (past, future) = ("Thu, 01 Jan 2026 00:00:00 GMT", "Sat, 03 Jan 2026 00:00:00 GMT");
    let unmet = (412, "SourceConditionNotMet");
    let (unverified, unmodified) = ((412, "CannotVerifyCopySource"), (304, "CannotVerifyCopySource"));
    for (condition, copy, put) in [
        (format!("if-match: {etag}"), (202, ""), (201, "")),
        ("if-match: *".into(), (202, ""), (201, "")),
        ("if-match: \"0x1\"".into(), unmet, unmet),
        ("if-none-match: \"0x1\"".into(), (202, ""), (201, "")),
        (format!("if-none-match: {etag}"), unmet, unmodified),
        (format!("if-modified-since: {past}"), (202, ""), (201, "")),
        (format!("if-modified-since: {future}"), unmet, unmodified),
        (format!("if-unmodified-since: {future}"), (202, ""), (201, "")),
        (format!("if-unmodified-since: {past}"), unmet, unverified),
    ] {
        for (way, _) in WAYS {
            let headers = format!("x-ms-source-{condition}\n{way}");
            let reply = server.copy("/things/source", "/things/copy", &headers).await;
            assert_eq!(reply.outcome(), if way == BLOCK { put } else { copy }, "{condition} {way}");
        }
    }
}

#[tokio::test]
async fn target_conditions_are_checked() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "hello").await;
    for (way, status) in WAYS {
        let target = format!("/things/copy{status}-{}", way.len());
        let copy = async |condition: &str| {
            let headers = format!("{condition}\n{way}");
            server.copy("/things/source", &target, &headers).await
        };
        copy("if-match: *").await.refused(412, "ConditionNotMet");
        let first = copy("if-none-match: *").await.expect(status);
        copy("if-none-match: *").await.refused(409, "BlobAlreadyExists");
        copy("if-match: \"0x1\"").await.refused(412, "ConditionNotMet");
        copy(&format!("if-none-match: {}", first.etag())).await.refused(412, "ConditionNotMet");
        copy(&format!("if-match: {}", first.etag())).await.expect(status);
        copy("if-match: *\nif-none-match: *").await.refused(400, "MultipleConditionHeadersNotSupported");
    }
}

#[tokio::test]
async fn copy_blob_target_may_have_only_an_infinite_lease() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "hello").await;
    let with_id = format!("x-ms-lease-id: {LEASE}");
    for (duration, sync_status) in [("15", 202), ("-1", 202)] {
        let target = format!("/things/copy{duration}");
        server
            .copy("/things/source", &target, &with_id)
            .await
            .refused(412, "LeaseNotPresentWithBlobOperation");
        server.put_block_blob(&target, "before").await;
        let acquire = format!(
            "x-ms-lease-action: acquire\nx-ms-lease-duration: {duration}\nx-ms-proposed-lease-id: {LEASE}"
        );
        server.put(&format!("{target}?comp=lease"), &acquire, "").await.expect(201);
        server.copy("/things/source", &target, "").await.refused(412, "LeaseIdMissing");
        let other = "x-ms-lease-id: 99999999-1234-1234-1234-123456789012";
        server.copy("/things/source", &target, other).await.refused(412, "LeaseIdMismatchWithBlobOperation");
        let copied = server.copy("/things/source", &target, &with_id).await;
        match duration {
            "15" => copied.refused(412, "InfiniteLeaseDurationRequired"),
            _ => copied.expect(202),
        };
        let sync = format!("{with_id}\nx-ms-requires-sync: true");
        server.copy("/things/source", &target, &sync).await.expect(sync_status);
        let head = server.head(&target, "").await;
        assert_eq!(head.header("x-ms-lease-state"), Some("leased"), "a copy keeps the lease");
    }
}

#[tokio::test]
async fn copy_to_a_blob_of_another_type_is_refused() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "hello").await;
    server.put("/things/append", "x-ms-blob-type: AppendBlob", "").await.expect(201);
    let page = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 1024\nx-ms-blob-sequence-number: 7";
    server.put("/things/page", page, "").await.expect(201);
    for target in ["/things/append", "/things/page"] {
        for way in ["", "x-ms-requires-sync: true"] {
            server.copy("/things/source", target, way).await.refused(409, "InvalidBlobType");
        }
    }
    server.copy("/things/page", "/things/pages", "").await.expect(202);
    let head = server.head("/things/pages", "").await;
    let reported =
        ["x-ms-blob-type", "content-length", "x-ms-blob-sequence-number"].map(|name| head.header(name));
    assert_eq!(reported, [Some("PageBlob"), Some("1024"), Some("7")]);
    let sync = "x-ms-requires-sync: true";
    server.copy("/things/page", "/things/more", sync).await.refused(409, "InvalidSourceBlobType");
    server.copy("/things/page", "/things/block", BLOCK).await.expect(201);
    let head = server.head("/things/block", "").await;
    assert_eq!(
        (head.header("x-ms-blob-type"), head.header("content-length")),
        (Some("BlockBlob"), Some("1024"))
    );
}

#[tokio::test]
async fn append_blob_copy_is_sealed_like_its_source_by_default() {
    let server = start().await;
    server.create_container("things").await;
    server.put("/things/append", "x-ms-blob-type: AppendBlob", "").await.expect(201);
    for (headers, sealed) in
        [("", None), ("x-ms-seal-blob: true", Some("true")), ("x-ms-seal-blob: false", None)]
    {
        server.copy("/things/append", "/things/copy", headers).await.expect(202);
        assert_eq!(server.head("/things/copy", "").await.header("x-ms-blob-sealed"), sealed, "{headers}");
    }
    server.copy("/things/append", "/things/sealed", "x-ms-seal-blob: true").await.expect(202);
    server.copy("/things/sealed", "/things/copy", "").await.expect(202);
    assert_eq!(server.head("/things/copy", "").await.header("x-ms-blob-sealed"), Some("true"));
}

#[tokio::test]
async fn archived_source_is_copied_only_to_an_online_tier() {
    let server = start().await;
    server.create_container("things").await;
    server.put("/things/source", &format!("{BLOCK}\nx-ms-access-tier: Archive"), "hello").await.expect(201);
    for headers in ["", "x-ms-access-tier: Archive", "x-ms-meta-a: 1"] {
        server.copy("/things/source", "/things/copy", headers).await.refused(409, "BlobArchived");
    }
    let sync = "x-ms-requires-sync: true";
    server.copy("/things/source", "/things/copy", sync).await.refused(409, "CannotVerifyCopySource");
    server.copy("/things/source", "/things/copy", BLOCK).await.refused(409, "CannotVerifyCopySource");
    let high = "x-ms-access-tier: Cool\nx-ms-rehydrate-priority: Highest";
    server.copy("/things/source", "/things/copy", high).await.refused(400, "InvalidHeaderValue");
    let high = "x-ms-access-tier: Cool\nx-ms-rehydrate-priority: High";
    server.copy("/things/source", "/things/copy", high).await.expect(202);
    server.get("/things/copy", "").await.refused(409, "BlobArchived");
    let head = server.head("/things/copy", "").await;
    assert_eq!(head.header("x-ms-archive-status"), Some("rehydrate-pending-to-cool"));
    assert_eq!(head.header("x-ms-rehydrate-priority"), Some("High"));
    server.advance(60);
    assert_eq!(server.get("/things/copy", "").await.expect(200).text(), "hello");
    assert_eq!(server.head("/things/copy", "").await.header("x-ms-access-tier"), Some("Cool"));
    assert_eq!(server.head("/things/source", "").await.header("x-ms-access-tier"), Some("Archive"));
}

#[tokio::test]
async fn source_in_another_account_must_be_public_or_signed() {
    let server = start().await;
    server.create_container("things").await;
    let all = account_sas(OTHER_ACCOUNT, "rwdlac", "2099-12-31T00:00:00Z");
    for (container, access) in [("secret", ""), ("open", "x-ms-blob-public-access: blob")] {
        let target = format!("/{container}?restype=container");
        server.signed_as(OTHER_ACCOUNT, "PUT", &target, access, "").await.expect(201);
        let target = format!("/{container}/b?{all}");
        server.send_to(OTHER_ACCOUNT, "PUT", &target, BLOCK, "foreign").await.expect(201);
    }
    let secret = server.url(OTHER_ACCOUNT, "/secret/b");
    let no_read = account_sas(OTHER_ACCOUNT, "wl", "2099-12-31T00:00:00Z");
    let expired = account_sas(OTHER_ACCOUNT, "r", "2020-12-31T00:00:00Z");
    let of_another = account_sas(ACCOUNT, "r", "2099-12-31T00:00:00Z");
    for (way, status) in WAYS {
        for (source, source_status, source_code) in [
            (secret.clone(), 401, "NoAuthenticationInformation"),
            (format!("{secret}?{no_read}"), 403, "AuthorizationPermissionMismatch"),
            (format!("{secret}?{expired}"), 403, "AuthenticationFailed"),
            (format!("{secret}?{of_another}"), 403, "AuthenticationFailed"),
            (server.url("nobody", "/c/b"), 403, "AuthenticationFailed"),
        ] {
            let refused = server.copy(&source, "/things/copy", way).await;
            let refused = refused.refused(source_status, "CannotVerifyCopySource");
            assert_eq!(refused.header("x-ms-copy-source-error-code"), Some(source_code), "{source}");
        }
        for source in [format!("{secret}?{all}"), server.url(OTHER_ACCOUNT, "/open/b")] {
            server.copy(&source, "/things/copy", way).await.expect(status);
            assert_eq!(server.get("/things/copy", "").await.text(), "foreign");
        }
    }
    server.copy(&format!("{secret}?{all}"), "/things/copy", "").await.expect(202);
    let shown = server.head("/things/copy", "").await.header("x-ms-copy-source").unwrap().to_owned();
    assert_eq!(shown, secret, "the reported URL has no signature");
}

#[tokio::test]
async fn write_signature_does_not_authorize_reading_the_source() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "hello").await;
    let copy = async |sas: String, source: String| {
        let headers = format!("x-ms-copy-source: {source}");
        server.send("PUT", &format!("/things/copy?{sas}"), &headers, "").await
    };
    let write = || account_sas(ACCOUNT, "wc", "2099-12-31T00:00:00Z");
    let plain = server.url(ACCOUNT, "/things/source");
    copy(write(), plain.clone()).await.refused(401, "CannotVerifyCopySource");
    let read = account_sas(ACCOUNT, "r", "2099-12-31T00:00:00Z");
    copy(write(), format!("{plain}?{read}")).await.expect(202);
    copy(account_sas(ACCOUNT, "rwc", "2099-12-31T00:00:00Z"), plain.clone()).await.expect(202);
    // A signature in the URL is checked even if the caller does not need one.
    let bad = format!("{plain}?{}", account_sas(ACCOUNT, "w", "2099-12-31T00:00:00Z"));
    server.copy(&bad, "/things/copy", "").await.refused(403, "CannotVerifyCopySource");
}

#[tokio::test]
async fn https_signature_does_not_authorize_a_source_over_http() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "hello").await;
    let plain = server.url(ACCOUNT, "/things/source").replace("http://", "https://");
    for (protocol, status) in [("https,http", 202), ("https", 403)] {
        let path = "things/source";
        let resource = sign::Resource { service: ServiceKind::Blob, account: ACCOUNT, path, timestamp: "" };
        let fields = [
            ("sv", "2022-11-02"),
            ("sr", "b"),
            ("sp", "r"),
            ("spr", protocol),
            ("se", "2099-12-31T00:00:00Z"),
        ];
        let source = format!("{plain}?{}", sign::service_sas(&resource, &key(), &fields));
        // The request with the signature came over HTTP.
        let reply = server.copy(&source, "/things/copy", SYNC).await;
        assert_eq!(reply.status.as_u16(), status, "{protocol} {}", reply.text());
    }
}

#[tokio::test]
async fn source_digest_is_verified() {
    let server = start().await;
    server.create_container("things").await;
    let put = server.put_block_blob("/things/source", "hello").await;
    let md5 = put.header("content-md5").unwrap();
    for way in ["x-ms-requires-sync: true", BLOCK] {
        let wrong = format!("{way}\nx-ms-source-content-md5: AAAAAAAAAAAAAAAAAAAAAA==");
        server.copy("/things/source", "/things/copy", &wrong).await.refused(400, "Md5Mismatch");
        server
            .copy("/things/source", "/things/copy", &format!("{way}\nx-ms-source-content-md5: x"))
            .await
            .refused(400, "InvalidMd5");
        server.head("/things/copy", "").await.expect(404);
    }
    for way in ["x-ms-requires-sync: true", BLOCK] {
        let right = format!("{way}\nx-ms-source-content-md5: {md5}");
        let copied = server.copy("/things/source", "/things/copy", &right).await;
        assert_eq!(copied.header("content-md5"), Some(md5), "{}", copied.text());
    }
}

#[tokio::test]
async fn put_blob_from_url_copies_source_properties_by_default() {
    let server = start().await;
    server.create_container("things").await;
    let headers =
        format!("{BLOCK}\nx-ms-blob-content-type: text/a\nx-ms-blob-content-language: de\nx-ms-meta-a: 1");
    server.put("/things/source", &headers, "hello").await.expect(201);
    for (headers, expected) in [
        ("", [Some("text/a"), Some("de"), Some("1")]),
        ("x-ms-blob-content-type: text/b", [Some("text/b"), Some("de"), Some("1")]),
        (
            "x-ms-copy-source-blob-properties: false\nx-ms-blob-content-type: text/b",
            [Some("text/b"), None, None],
        ),
        ("x-ms-copy-source-blob-properties: false", [Some("application/octet-stream"), None, None]),
        ("content-type: text/plain", [Some("text/a"), Some("de"), Some("1")]),
    ] {
        let way = format!("{BLOCK}\n{headers}");
        let put = server.copy("/things/source", "/things/copy", &way).await.expect(201);
        let head = server.head("/things/copy", "").await;
        let reported = ["content-type", "content-language", "x-ms-meta-a"].map(|name| head.header(name));
        assert_eq!(reported, expected, "{headers}");
        assert_eq!(put.header("content-md5"), None, "the bytes are not read");
        let is_property = !headers.contains("x-ms-copy-source-blob-properties: false");
        assert_eq!(head.header("content-md5").is_some(), is_property, "{headers}");
        assert_eq!(head.header("x-ms-copy-id"), None);
    }
}

#[tokio::test]
async fn abort_requires_a_pending_copy() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "hello").await;
    let copied = server.copy("/things/source", "/things/copy", "").await.expect(202);
    let id = copied.header("x-ms-copy-id").unwrap();
    let abort = "x-ms-copy-action: abort";
    for (target, headers, status, code) in [
        (format!("/things/copy?comp=copy&copyid={id}"), abort, 409, "NoPendingCopyOperation"),
        (format!("/things/none?comp=copy&copyid={id}"), abort, 404, "BlobNotFound"),
        ("/things/copy?comp=copy&copyid=what".into(), abort, 400, "InvalidQueryParameterValue"),
        ("/things/copy?comp=copy".into(), abort, 400, "MissingRequiredQueryParameter"),
        (format!("/things/copy?comp=copy&copyid={id}"), "", 400, "MissingRequiredHeader"),
        (format!("/things/copy?comp=copy&copyid={id}"), "x-ms-copy-action: stop", 400, "InvalidHeaderValue"),
    ] {
        server.put(&target, headers, "").await.refused(status, code);
    }
}

#[tokio::test]
async fn host_style_urls_and_other_names_of_the_machine_are_local_sources() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/a%20%C3%A9", "hello").await;
    let port = server.address.port();
    for source in [
        format!("http://localhost:{port}/{ACCOUNT}/things/a%20%C3%A9"),
        format!("http://[::1]:{port}/{ACCOUNT}/things/a%20%C3%A9"),
        format!("http://{ACCOUNT}.blob.localhost:{port}/things/a%20%C3%A9"),
        format!("http://127.0.0.1:{port}/{ACCOUNT}/things/a é"),
    ] {
        server.copy(&source, "/things/copy", "").await.expect(202);
    }
    let file = format!("http://{ACCOUNT}.file.localhost:{port}/share/file");
    server.copy(&file, "/things/copy", "").await.refused(400, "CannotVerifyCopySource");
}

#[tokio::test]
async fn copy_blob_from_url_accepts_sources_up_to_256_mib() {
    let server = start().await;
    server.create_container("things").await;
    for (length, status) in [(256 << 20, 202), ((256 << 20) + 512, 409)] {
        let page = format!("x-ms-blob-type: PageBlob\nx-ms-blob-content-length: {length}");
        server.put("/things/page", &page, "").await.expect(201);
        server.copy("/things/page", "/things/source", BLOCK).await.expect(201);
        let copied = server.copy("/things/source", "/things/copy", "x-ms-requires-sync: true").await;
        assert_eq!(copied.status, status, "{}", copied.text());
        if status == 409 {
            assert!(copied.refused(409, "CannotVerifyCopySource").text().contains("(256MB)"));
        }
        server.copy("/things/source", "/things/copy", "").await.expect(202);
        let head = server.head("/things/copy", "").await;
        assert_eq!(head.header("content-length"), Some(length.to_string().as_str()));
    }
}

#[tokio::test]
async fn copying_a_snapshot_or_version_over_its_blob_promotes_it() {
    let server = start().await;
    server.set(Setting::BlobVersioning(true)).await;
    server.create_container("things").await;
    let first = server.put_block_blob("/things/b", "first").await;
    let snapshot = server.put("/things/b?comp=snapshot", "", "").await.expect(201);
    server.put_block_blob("/things/b", "second").await;
    for source in [
        format!("/things/b?snapshot={}", snapshot.header("x-ms-snapshot").unwrap()),
        format!("/things/b?versionid={}", first.header("x-ms-version-id").unwrap()),
    ] {
        server.put_block_blob("/things/b", "third").await;
        let copied = server.copy(&source, "/things/b", "").await.expect(202);
        let got = server.get("/things/b", "").await.expect(200);
        assert_eq!((got.text(), got.header("x-ms-version-id")), ("first", copied.header("x-ms-version-id")));
        let shown = got.header("x-ms-copy-source").unwrap();
        assert!(shown.ends_with(&source), "{shown}");
        assert_eq!(server.get(&source, "").await.expect(200).text(), "first", "the source still exists");
    }
    let none = "/things/b?snapshot=2020-01-01T00:00:00.0000000Z";
    server.copy(none, "/things/b", "").await.refused(404, "BlobNotFound");
    let target = "/things/b?snapshot=2020-01-01T00:00:00.0000000Z";
    server.copy("/things/b", target, "").await.refused(400, "InvalidQueryParameterValue");
}

#[tokio::test]
async fn copy_of_a_block_blob_has_its_block_list() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block("/things/source", "a", "one").await.expect(201);
    server.put_block("/things/source", "b", "two").await.expect(201);
    server.put_block_list("/things/source", "", "l:a l:b").await.expect(201);
    server.put_block("/things/copy", "x", "waits").await.expect(201);
    let list = async |blob: &str| {
        let reply = server.get(&format!("{blob}?comp=blocklist&blocklisttype=all"), "").await.expect(200);
        reply.text().to_owned()
    };
    for (way, kept) in [("", true), ("x-ms-requires-sync: true", true), (BLOCK, false)] {
        server.copy("/things/source", "/things/copy", way).await;
        assert_eq!(list("/things/copy").await == list("/things/source").await, kept, "{way}");
        assert!(!list("/things/copy").await.contains("<UncommittedBlocks><Block>"));
        assert_eq!(server.get("/things/copy", "").await.text(), "onetwo");
    }
}

#[tokio::test]
async fn copy_over_itself_never_restores_a_replaced_state() {
    let server = std::sync::Arc::new(start().await);
    server.create_container("things").await;
    server.put_block_blob("/things/b", "0").await;
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..32 {
        let server = server.clone();
        clients.spawn(async move {
            for round in 0..8 {
                let headers = format!("x-ms-meta-by: c{client}x{round}");
                server.copy("/things/b", "/things/b", &headers).await.expect(202);
            }
        });
    }
    for round in 1..32 {
        server.put_block_blob("/things/b", round.to_string()).await;
        assert_eq!(server.get("/things/b", "").await.expect(200).text(), round.to_string());
    }
    clients.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn copy_over_itself_has_the_bytes_of_the_reported_digest() {
    let server = std::sync::Arc::new(start().await);
    server.create_container("things").await;
    for (way, outcome) in [("", (202, "")), (SYNC, (412, "SourceConditionNotMet"))] {
        server.put_block_blob("/things/b", "read").await;
        let other = server.clone();
        server.watched.interposer.before_next_commit(move || {
            let overwrite = other.put_block_blob("/things/b", "written meanwhile");
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(overwrite));
        });
        let copied = server.copy("/things/b", "/things/b", way).await;
        assert_eq!(copied.outcome(), outcome, "{way}");
        let got = server.get("/things/b", "").await.expect(200);
        assert_eq!(got.text(), "written meanwhile");
        let progress = (copied.status.as_u16() == 202).then_some("17/17");
        assert_eq!(got.header("x-ms-copy-progress"), progress, "{way}");
    }
    server.copy("/things/b", "/things/b", SYNC).await.expect(202);
}

#[tokio::test]
async fn copy_is_encrypted_as_its_container_and_request_demand() {
    let server = start().await;
    for scope in ["one", "two"] {
        server.set(Setting::AddEncryptionScope(scope.into())).await;
    }
    server.create_container("things").await;
    let default = "x-ms-default-encryption-scope: two";
    server.put("/sealed?restype=container", default, "").await.expect(201);
    let body = Bytes::from((0..100_000).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    server.put_block_blob("/things/plain", body.clone()).await;
    server
        .put("/things/one", &format!("{BLOCK}\nx-ms-encryption-scope: one"), body.clone())
        .await
        .expect(201);
    server.put_block("/sealed/two", "a", body.slice(..40_000)).await.expect(201);
    server.put_block("/sealed/two", "b", body.slice(40_000..)).await.expect(201);
    server.put_block_list("/sealed/two", "", "l:a l:b").await.expect(201);
    for source in ["/things/plain", "/things/one", "/sealed/two"] {
        for (target, scope) in [("/things/copy", None), ("/sealed/copy", Some("two"))] {
            for (way, status) in WAYS {
                server.copy(source, target, way).await.expect(status);
                let got = server.get(target, "").await.expect(200);
                assert!(got.body == body, "{source} {target} {way}");
                assert_eq!(got.header("x-ms-encryption-scope"), scope, "{source} {target} {way}");
                let part = server.get(target, "x-ms-range: bytes=39990-40010").await.expect(206);
                assert!(part.body == body.slice(39_990..40_011));
            }
        }
        for way in ["x-ms-requires-sync: true", BLOCK] {
            let headers = format!("{way}\nx-ms-encryption-scope: one");
            let copied = server.copy(source, "/things/copy", &headers).await;
            assert_eq!(copied.header("x-ms-encryption-scope"), Some("one"), "{}", copied.text());
            assert!(server.get("/things/copy", "").await.body == body, "{source}");
        }
    }
    let blocks = "/sealed/copy?comp=blocklist&blocklisttype=committed";
    server.copy("/sealed/two", "/sealed/copy", "").await.expect(202);
    let list = server.get(blocks, "").await.expect(200);
    assert_eq!(
        list.text().matches("<Block>").count(),
        2,
        "the same scope: content and block list are shared"
    );
}

#[tokio::test]
async fn copies_of_encrypted_page_and_append_blobs_can_be_written() {
    let server = start().await;
    server.set(Setting::AddEncryptionScope("one".into())).await;
    server.create_container("things").await;
    server.put("/sealed?restype=container", "x-ms-default-encryption-scope: one", "").await.expect(201);
    let pages = Bytes::from(vec![7; 1024]);
    for container in ["things", "sealed"] {
        let page = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 4096";
        server.put(&format!("/{container}/page"), page, "").await.expect(201);
        let write = "x-ms-page-write: update\nx-ms-range: bytes=1024-2047";
        server.put(&format!("/{container}/page?comp=page"), write, pages.clone()).await.expect(201);
        server.put(&format!("/{container}/append"), "x-ms-blob-type: AppendBlob", "").await.expect(201);
        server.put(&format!("/{container}/append?comp=appendblock"), "", "one").await.expect(201);
    }
    let written = [&[0; 1024][..], &[7; 1024], &[0; 2048]].concat();
    for from in ["things", "sealed"] {
        for to in ["things", "sealed"] {
            let target = format!("/{to}/from-{from}");
            server.copy(&format!("/{from}/page"), &format!("{target}-page"), "").await.expect(202);
            assert!(
                server.get(&format!("{target}-page"), "").await.expect(200).body == written,
                "{from} {to}"
            );
            let write = "x-ms-page-write: update\nx-ms-range: bytes=0-511";
            server.put(&format!("{target}-page?comp=page"), write, vec![9; 512]).await.expect(201);
            let got = server.get(&format!("{target}-page"), "").await.expect(200).body;
            assert!(got[..512] == [9; 512] && got[512..] == written[512..], "{from} {to}");
            server.copy(&format!("/{from}/append"), &format!("{target}-append"), "").await.expect(202);
            server.put(&format!("{target}-append?comp=appendblock"), "", " two").await.expect(201);
            assert_eq!(server.get(&format!("{target}-append"), "").await.text(), "one two", "{from} {to}");
        }
    }
}

#[tokio::test]
async fn copy_has_the_tags_of_the_request_or_on_request_those_of_the_source() {
    let server = start().await;
    server.create_container("things").await;
    server.put("/things/source", &format!("{BLOCK}\nx-ms-tags: a=1&b=2"), "hello").await.expect(201);
    let tags = async || {
        let reply = server.get("/things/copy?comp=tags", "").await.expect(200);
        let keys = reply.text().split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned());
        keys.collect::<Vec<_>>().join(",")
    };
    for (way, status) in WAYS {
        for (headers, expected) in
            [("", ""), ("x-ms-tags: c=3", "c"), ("x-ms-copy-source-tag-option: REPLACE", "")]
        {
            server.copy("/things/source", "/things/copy", &format!("{way}\n{headers}")).await.expect(status);
            assert_eq!(tags().await, expected, "{way} {headers}");
        }
        let copy = format!("{way}\nx-ms-copy-source-tag-option: COPY");
        server.copy("/things/source", "/things/copy", &copy).await.expect(status);
        let both = server.copy("/things/source", "/things/other", &format!("{copy}\nx-ms-tags: c=3")).await;
        let odd = format!("{way}\nx-ms-copy-source-tag-option: SOME");
        let odd = server.copy("/things/source", "/things/other", &odd).await;
        if way.is_empty() {
            // Copy Blob may complete after its reply, so it ignores this header.
            both.expect(202);
            odd.expect(202);
            assert_eq!(tags().await, "");
        } else {
            both.expect(409);
            odd.refused(400, "InvalidHeaderValue");
            assert_eq!(tags().await, "a,b", "{way}");
        }
        for (condition, met) in [("\"a\" = '1'", true), ("\"a\" = '2'", false)] {
            let headers = format!("{way}\nx-ms-source-if-tags: {condition}");
            let reply = server.copy("/things/source", "/things/copy", &headers).await;
            match met {
                true => reply.expect(status),
                false => reply.refused(412, "ConditionNotMet"),
            };
        }
        let nonsense = format!("{way}\nx-ms-source-if-tags: a is 1");
        server.copy("/things/source", "/things/copy", &nonsense).await.refused(400, "InvalidHeaderValue");
    }
    let read = account_sas(ACCOUNT, "r", "2099-12-31T00:00:00Z");
    let source = format!("{}?{read}", server.url(ACCOUNT, "/things/source"));
    let copy = format!("{BLOCK}\nx-ms-copy-source-tag-option: COPY");
    server.copy(&source, "/things/copy", &copy).await.refused(403, "CannotVerifyCopySource");
}
