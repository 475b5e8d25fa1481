//! Copy File, Abort Copy File, Put Range from URL, with sources in this server.

use lazuli_auth::sign::{self, Resource};
use lazuli_protocol::ServiceKind;
use lazuli_testing::{ACCOUNT, key};

use crate::support::{Server, make_directory, make_file, start, write};

fn url(server: &Server, path: &str) -> String {
    format!("http://{}/{ACCOUNT}/docs/{path}", server.address)
}

#[tokio::test]
async fn a_copy_has_the_content_the_headers_and_the_metadata_of_its_source() {
    let server = start().await;
    make_directory(&server, "d").await;
    let headers = "x-ms-type: file\nx-ms-content-length: 5000\nx-ms-content-type: text/x\nx-ms-meta-a: 1";
    server.put("/docs/d/source", headers, "").await.expect(201);
    write(&server, "d/source", 1000, b"content").await;
    let from = format!("x-ms-copy-source: {}", url(&server, "d/source"));
    let reply = server.signed("PUT", "/docs/target", &from, "").await.expect(202);
    let id = reply.header("x-ms-copy-id").unwrap().to_owned();
    assert_eq!(reply.header("x-ms-copy-status"), Some("success"));
    let source = server.get("/docs/d/source", "").await.expect(200);
    let target = server.get("/docs/target", "").await.expect(200);
    assert_eq!(source.body, target.body);
    for (name, value) in [
        ("content-type", "text/x"),
        ("x-ms-meta-a", "1"),
        ("x-ms-copy-id", &id),
        ("x-ms-copy-status", "success"),
        ("x-ms-copy-source", &url(&server, "d/source")),
        ("x-ms-copy-progress", "5000/5000"),
    ] {
        assert_eq!(target.header(name), Some(value), "{name}");
    }
    // A later write to the target does not change the source.
    write(&server, "target", 1000, b"another").await;
    assert_eq!(server.get("/docs/d/source", "").await.expect(200).body, source.body);
    let abort = |id: &str| format!("/docs/target?comp=copy&copyid={id}");
    let action = "x-ms-copy-action: abort";
    server.put(&abort(&id), action, "").await.refused(409, "NoPendingCopyOperation");
    server.put(&abort("x"), action, "").await.refused(400, "InvalidQueryParameterValue");
    server.put(&abort(&id), "", "").await.refused(400, "MissingRequiredHeader");
    // Setting headers removes the copy properties.
    server.put("/docs/target?comp=properties", "x-ms-content-type: text/y", "").await.expect(200);
    assert_eq!(server.get("/docs/target", "").await.expect(200).header("x-ms-copy-id"), None);
}

#[tokio::test]
async fn headers_of_a_copy_request_override_those_of_the_source() {
    let server = start().await;
    let headers = "x-ms-type: file\nx-ms-content-length: 3\nx-ms-file-attributes: Hidden\n\
        x-ms-file-creation-time: 2020-01-02T03:04:05.0000000Z\nx-ms-file-permission: O:SYG:SYD:(A;;FA;;;SY)";
    let made = server.put("/docs/source", headers, "").await.expect(201);
    let permission = made.header("x-ms-file-permission-key").unwrap();
    let from = format!("x-ms-copy-source: {}", url(&server, "source"));
    let copy = async |more: &str| server.signed("PUT", "/docs/target", &format!("{from}\n{more}"), "").await;

    copy("").await.expect(202);
    let target = server.get("/docs/target", "").await.expect(200);
    assert_eq!(target.header("x-ms-file-attributes"), Some("Archive"));
    assert_ne!(target.header("x-ms-file-permission-key"), Some(permission));

    let as_source = "x-ms-file-attributes: source\nx-ms-file-creation-time: source\n\
        x-ms-file-permission-copy-mode: source\nx-ms-file-copy-set-archive: true\nx-ms-meta-own: 1";
    copy(as_source).await.expect(202);
    let target = server.get("/docs/target", "").await.expect(200);
    for (name, value) in [
        ("x-ms-file-attributes", "Hidden | Archive"),
        ("x-ms-file-creation-time", "2020-01-02T03:04:05.0000000Z"),
        ("x-ms-file-permission-key", permission),
        ("x-ms-meta-own", "1"),
    ] {
        assert_eq!(target.header(name), Some(value), "{name}");
    }
    copy("x-ms-file-permission-copy-mode: override").await.refused(400, "MissingRequiredHeader");
    copy("x-ms-file-permission-copy-mode: none").await.refused(400, "InvalidHeaderValue");
    server.put("/docs/target?comp=properties", "x-ms-file-attributes: ReadOnly", "").await.expect(200);
    copy("").await.refused(409, "ReadOnlyAttribute");
    copy("x-ms-file-copy-ignore-readonly: true").await.expect(202);
}

#[tokio::test]
async fn bad_sources_are_refused_and_nothing_changes() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "source", 10).await;
    let copy = async |source: String| {
        server.signed("PUT", "/docs/target", &format!("x-ms-copy-source: {source}"), "").await
    };
    copy(url(&server, "none")).await.refused(404, "ResourceNotFound");
    copy(url(&server, "d")).await.refused(409, "ResourceTypeMismatch");
    copy("nonsense".into()).await.refused(400, "InvalidHeaderValue");
    copy(url(&server, "a:b")).await.refused(400, "InvalidFileOrDirectoryPathName");
    server.get("/docs/target", "").await.refused(404, "ResourceNotFound");
}

#[tokio::test]
async fn source_may_have_encoded_slashes_and_is_authorized_by_the_file_read() {
    let server = start().await;
    make_directory(&server, "d%20%C3%A4").await;
    make_file(&server, "d%20%C3%A4/f.txt", 3).await;
    write(&server, "d%20%C3%A4/f.txt", 0, b"abc").await;
    make_file(&server, "secret", 3).await;
    make_file(&server, "target", 3).await;
    let root = format!("http://{}/{ACCOUNT}", server.address);
    // The encoding of the Java client of 2025.
    let source = format!("{root}/docs%2Fd%20%C3%A4%2Ff.txt");
    server.signed("PUT", "/docs/copy", &format!("x-ms-copy-source: {source}"), "").await.expect(202);
    assert_eq!(server.get("/docs/copy", "").await.expect(200).text(), "abc");
    let host_style = format!("http://{ACCOUNT}.file.localhost:{}/docs%2fcopy", server.address.port());
    server.signed("PUT", "/docs/more", &format!("x-ms-copy-source: {host_style}"), "").await.expect(202);

    let sign = |path: &str| {
        let resource = Resource { service: ServiceKind::File, account: ACCOUNT, path, timestamp: "" };
        let fields = [("sv", "2022-11-02"), ("sr", "f"), ("sp", "r"), ("se", "2099-12-31T00:00:00Z")];
        sign::service_sas(&resource, &key(), &fields)
    };
    let put_range = async |path: &str, signed_for: &str| {
        let headers = format!(
            "x-ms-copy-source: {root}/{path}?{}\nx-ms-write: update\nx-ms-range: bytes=0-2\n\
             x-ms-source-range: bytes=0-2",
            sign(signed_for)
        );
        server.put("/docs/target?comp=range", &headers, "").await
    };
    put_range("docs%2Fd%20%C3%A4%2Ff.txt", "docs/d ä/f.txt").await.expect(201);
    assert_eq!(server.get("/docs/target", "").await.expect(200).text(), "abc");
    put_range("docs%2Fsecret", "docs/d ä/f.txt").await.refused(403, "CannotVerifyCopySource");
    for path in
        ["docs%2Fd%20%C3%A4%2F%2E%2E%2Fsecret", "docs%252Fsecret", "docs%2Fd%20%C3%A4%252F..%252Fsecret"]
    {
        let refused = put_range(path, "docs/secret").await;
        assert_eq!(refused.outcome().1, "CannotVerifyCopySource", "{path}");
    }
    assert_eq!(server.get("/docs/target", "").await.expect(200).text(), "abc");
}

#[tokio::test]
async fn put_range_from_url_copies_a_range_of_another_file() {
    let server = start().await;
    make_file(&server, "source", 10_000).await;
    write(&server, "source", 0, &[7; 10_000]).await;
    make_file(&server, "target", 10_000).await;
    let put_from = async |source: &str, more: &str| {
        let headers = format!("x-ms-copy-source: {source}\nx-ms-write: update\n{more}");
        server.signed("PUT", "/docs/target?comp=range", &headers, "").await
    };
    let bare = url(&server, "source");
    let source = server.allowed(&bare);
    let put = async |more: &str| put_from(&source, more).await;
    let some = "x-ms-range: bytes=0-9\nx-ms-source-range: bytes=0-9";
    put_from(&bare, some).await.refused(401, "CannotVerifyCopySource");
    let reply = put("x-ms-range: bytes=100-199\nx-ms-source-range: bytes=0-99").await.expect(201);
    let crc64 = reply.header("x-ms-content-crc64").unwrap().to_owned();
    let mut expected = vec![0; 10_000];
    expected[100..200].fill(7);
    assert_eq!(server.get("/docs/target", "").await.expect(200).body, expected);

    let ranges = "x-ms-range: bytes=0-99\nx-ms-source-range: bytes=0-99";
    put(&format!("{ranges}\nx-ms-source-if-match-crc64: {crc64}")).await.expect(201);
    expected[..100].fill(7);
    for (headers, status, code) in [
        ("x-ms-range: bytes=0-99".to_owned(), 400, "MissingRequiredHeader"),
        ("x-ms-range: bytes=0-99\nx-ms-source-range: bytes=0-98".into(), 400, "InvalidHeaderValue"),
        (
            "x-ms-range: bytes=0-4194304\nx-ms-source-range: bytes=0-4194304".into(),
            413,
            "RequestBodyTooLarge",
        ),
        ("x-ms-range: bytes=0-9\nx-ms-source-range: bytes=10000-10009".into(), 416, "CannotVerifyCopySource"),
        ("x-ms-range: bytes=9999-10000\nx-ms-source-range: bytes=0-1".into(), 416, "InvalidRange"),
        (format!("{ranges}\nx-ms-source-if-none-match-crc64: {crc64}"), 412, "SourceConditionNotMet"),
        (format!("{ranges}\nx-ms-source-if-match-crc64: AAAAAAAAAAA="), 412, "SourceConditionNotMet"),
        (format!("{ranges}\nx-ms-source-content-crc64: AAAAAAAAAAA="), 400, "Crc64Mismatch"),
    ] {
        put(&headers).await.refused(status, code);
    }
    assert_eq!(server.get("/docs/target", "").await.expect(200).body, expected);
}
