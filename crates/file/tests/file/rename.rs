//! Rename File, Rename Directory and Delete Directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazuli_auth::sign;
use lazuli_auth::sign::Resource;
use lazuli_protocol::ServiceKind;
use lazuli_testing::{ACCOUNT, Reply, key};

use crate::support::{Server, make_directory, make_file, names, start, write};

async fn rename(server: &Server, from: &str, to: &str, headers: &str) -> Reply {
    let source = format!("http://{}/{ACCOUNT}/docs/{from}", server.address);
    let headers = format!("x-ms-file-rename-source: {source}\n{headers}");
    server.put(&format!("/docs/{to}?comp=rename"), &headers, "").await
}

async fn rename_directory(server: &Server, from: &str, to: &str, headers: &str) -> Reply {
    let source = format!("http://{}/{ACCOUNT}/docs/{from}", server.address);
    let headers = format!("x-ms-file-rename-source: {source}\n{headers}");
    server.put(&format!("/docs/{to}?restype=directory&comp=rename"), &headers, "").await
}

async fn content(server: &Server, path: &str) -> String {
    server.get(&format!("/docs/{path}"), "").await.expect(200).text().to_owned()
}

const INVALID_PATH: &str = "InvalidFileOrDirectoryPathName";
const REPLACE: &str = "x-ms-file-rename-replace-if-exists: true";

#[tokio::test]
async fn only_empty_directories_can_be_deleted() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "d/f", 1).await;
    server.delete("/docs/d?restype=directory", "").await.refused(409, "DirectoryNotEmpty");
    server.delete("/docs/d/f", "").await.expect(202);
    make_directory(&server, "d/e").await;
    server.delete("/docs/D?restype=directory", "").await.refused(409, "DirectoryNotEmpty");
    server.delete("/docs/d/e?restype=directory", "").await.expect(202);
    server.delete("/docs/d?restype=directory", "").await.expect(202);
    server.delete("/docs/d?restype=directory", "").await.refused(404, "ResourceNotFound");
    let file = "x-ms-type: file\nx-ms-content-length: 1";
    server.put("/docs/d/f", file, "").await.refused(404, "ParentNotFound");
    make_directory(&server, "d").await;
    assert_eq!(names(&server, "d").await, Vec::<String>::new());
}

#[tokio::test]
async fn delete_directory_refuses_the_root_files_and_missing_directories() {
    let server = start().await;
    make_file(&server, "f", 1).await;
    server.delete("/docs/f?restype=directory", "").await.refused(409, "ResourceTypeMismatch");
    server.delete("/docs/no/d?restype=directory", "").await.refused(404, "ParentNotFound");
    server.delete("/docs?restype=directory", "").await.refused(409, "CannotDeleteFileOrDirectory");
    let read_only = "x-ms-file-attributes: ReadOnly";
    server.put("/docs/d?restype=directory", read_only, "").await.expect(201);
    server.delete("/docs/d?restype=directory", "").await.refused(409, "ReadOnlyAttribute");
    server
        .put("/docs/d?restype=directory&comp=properties", "x-ms-file-attributes: None", "")
        .await
        .expect(200);
    let wrong = server.delete("/docs/d?restype=directory", "if-match: \"0x1\"").await;
    wrong.refused(412, "ConditionNotMet");
    server.delete("/docs/d?restype=directory", "").await.expect(202);
}

#[tokio::test]
async fn a_renamed_file_keeps_its_id_content_and_properties_and_gets_a_new_tag() {
    let server = start().await;
    make_directory(&server, "a").await;
    make_directory(&server, "b").await;
    let headers = "x-ms-type: file\nx-ms-content-length: 5\nx-ms-meta-k: v\nx-ms-content-type: text/x\n\
                   x-ms-file-attributes: Hidden\nx-ms-file-creation-time: 2020-01-02T03:04:05.1234567Z";
    let made = server.put("/docs/a/Old.txt", headers, "").await.expect(201);
    write(&server, "a/Old.txt", 0, b"hello").await;
    for (from, to) in [("a/OLD.txt", "a/New.txt"), ("a/new.txt", "b/Third.txt"), ("b/third.txt", "root.txt")]
    {
        let before = server.call("HEAD", &format!("/docs/{from}"), "", "").await.expect(200);
        server.advance(10);
        let renamed = rename(&server, from, to, "").await.expect(200);
        let after = server.call("HEAD", &format!("/docs/{to}"), "", "").await.expect(200);
        for name in
            ["x-ms-file-id", "etag", "x-ms-file-attributes", "x-ms-file-change-time", "x-ms-file-parent-id"]
        {
            assert_eq!(renamed.header(name), after.header(name), "{name}");
        }
        assert_eq!(after.header("x-ms-file-id"), made.header("x-ms-file-id"));
        for name in [
            "x-ms-file-attributes",
            "x-ms-file-creation-time",
            "x-ms-file-last-write-time",
            "x-ms-meta-k",
            "content-type",
        ] {
            assert_eq!(after.header(name), before.header(name), "{name}");
        }
        assert_ne!(after.etag(), before.etag());
        assert_ne!(after.header("last-modified"), before.header("last-modified"));
        assert_eq!(content(&server, to).await, "hello");
        server.get(&format!("/docs/{from}"), "").await.refused(404, "ResourceNotFound");
    }
    assert_eq!(names(&server, "").await, ["a", "b", "root.txt"]);
    assert!(names(&server, "a").await.is_empty() && names(&server, "b").await.is_empty());
}

#[tokio::test]
async fn rename_may_change_only_the_case_of_a_name() {
    let server = start().await;
    make_file(&server, "name", 1).await;
    rename(&server, "name", "NAME", "").await.expect(200);
    assert_eq!(names(&server, "").await, ["NAME"]);
}

#[tokio::test]
async fn a_rename_may_set_properties_metadata_and_the_content_type() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "f", 1).await;
    let headers = "x-ms-file-attributes: Archive\nx-ms-file-creation-time: 2021-01-02T03:04:05.0000000Z\n\
                   x-ms-meta-new: yes\nx-ms-content-type: image/png\nx-ms-file-permission: \
                   O:SYG:SYD:(A;;FA;;;SY)";
    let renamed = rename(&server, "f", "d/g", headers).await.expect(200);
    assert_ne!(renamed.header("x-ms-file-permission-key"), Some("0*0"));
    let found = server.call("HEAD", "/docs/d/g", "", "").await.expect(200);
    for (name, value) in [
        ("x-ms-file-attributes", "Archive"),
        ("x-ms-file-creation-time", "2021-01-02T03:04:05.0000000Z"),
        ("x-ms-meta-new", "yes"),
        ("content-type", "image/png"),
    ] {
        assert_eq!(found.header(name), Some(value));
    }
}

#[tokio::test]
async fn rename_replaces_a_file_only_on_request() {
    let server = start().await;
    make_directory(&server, "d").await;
    for target in ["g", "d/g"] {
        make_file(&server, "f", 1).await;
        write(&server, "f", 0, b"f").await;
        make_file(&server, target, 1).await;
        write(&server, target, 0, b"g").await;
        rename(&server, "f", target, "").await.refused(409, "ResourceAlreadyExists");
        assert_eq!(content(&server, target).await, "g");
        let read_only = "x-ms-file-attributes: ReadOnly";
        server.put(&format!("/docs/{target}?comp=properties"), read_only, "").await.expect(200);
        rename(&server, "f", target, REPLACE).await.refused(409, "ReadOnlyAttribute");
        let ignoring = format!("{REPLACE}\nx-ms-file-rename-ignore-readonly: true");
        rename(&server, "f", target, &ignoring).await.expect(200);
        assert_eq!(content(&server, target).await, "f");
        server.get("/docs/f", "").await.refused(404, "ResourceNotFound");
    }
}

#[tokio::test]
async fn invalid_renames_are_refused() {
    let server = start().await;
    for directory in ["a", "a/b", "c", "c/x"] {
        make_directory(&server, directory).await;
    }
    make_file(&server, "f", 1).await;
    rename(&server, "no", "g", "").await.refused(404, "ResourceNotFound");
    rename(&server, "no/no", "g", "").await.refused(404, "ResourceNotFound");
    rename(&server, "f", "no/g", "").await.refused(404, "ParentNotFound");
    rename(&server, "a", "g", "").await.refused(409, "ResourceTypeMismatch");
    rename_directory(&server, "f", "g", "").await.refused(409, "ResourceTypeMismatch");
    rename(&server, "f", "a", "").await.refused(409, "ResourceAlreadyExists");
    rename(&server, "f", "a", REPLACE).await.refused(409, "ResourceTypeMismatch");
    rename_directory(&server, "a", "c", REPLACE).await.refused(409, "ResourceAlreadyExists");
    rename_directory(&server, "a", "c/x", REPLACE).await.refused(409, "ResourceAlreadyExists");
    for below in ["a/z", "A/b/z"] {
        rename_directory(&server, "a", below, "").await.refused(409, "InvalidRenameSourcePath");
    }
    rename_directory(&server, "", "z", "").await.refused(404, "ResourceNotFound");
    assert_eq!(names(&server, "").await, ["a", "c", "f"]);
    assert_eq!(names(&server, "c").await, ["x"]);
}

#[tokio::test]
async fn rename_source_must_be_a_url_of_the_same_share() {
    let server = start().await;
    server.put("/other?restype=share", "", "").await.expect(201);
    make_file(&server, "a%20%C3%A9", 1).await;
    let host = server.address;
    for source in [
        "docs/a".to_owned(),
        format!("/{ACCOUNT}/docs/a"),
        format!("http://{host}/{ACCOUNT}/other/a"),
        format!("http://{host}/malachite/docs/a"),
        format!("http://{host}/{ACCOUNT}/docs/a?sharesnapshot=2020-01-01T00:00:00.0000000Z"),
    ] {
        let headers = format!("x-ms-file-rename-source: {source}");
        let refused = server.put("/docs/b?comp=rename", &headers, "").await;
        refused.refused(400, "InvalidHeaderValue");
    }
    server.put("/docs/b?comp=rename", "", "").await.refused(400, "MissingRequiredHeader");
    rename(&server, "a%20%C3%A9", "b", "").await.expect(200);
    let headers = format!("x-ms-file-rename-source: http://{ACCOUNT}.file.localhost:{}/docs/b", host.port());
    server.put("/docs/c?comp=rename", &headers, "").await.expect(200);
    assert_eq!(names(&server, "").await, ["c"]);
}

#[tokio::test]
async fn rename_source_may_have_encoded_slashes() {
    let server = start().await;
    make_directory(&server, "d%20%C3%A4").await;
    make_directory(&server, "d%20%C3%A4/e").await;
    make_file(&server, "d%20%C3%A4/f", 1).await;
    let send = async |source: &str, target: &str| {
        let source = format!("http://{}/{ACCOUNT}/{source}", server.address);
        server.put(target, &format!("x-ms-file-rename-source: {source}"), "").await
    };
    send("docs%2Fd%20%C3%A4%2Ff", "/docs/f?comp=rename").await.expect(200);
    send("docs%2Fd%20%C3%A4%2Fe", "/docs/e?restype=directory&comp=rename").await.expect(200);
    assert_eq!(names(&server, "").await, ["d ä", "e", "f"]);
    send("docs%2Fe%2F%2E%2E%2Ff", "/docs/g?comp=rename").await.refused(400, INVALID_PATH);
    send("docs%252Ff", "/docs/g?comp=rename").await.refused(400, "InvalidHeaderValue");
    send("other%2Fdocs%2Ff", "/docs/g?comp=rename").await.refused(400, "InvalidHeaderValue");
}

#[tokio::test]
async fn renamed_directory_keeps_its_children() {
    let server = start().await;
    for directory in ["a", "a/b", "c"] {
        make_directory(&server, directory).await;
    }
    make_file(&server, "a/b/f", 3).await;
    write(&server, "a/b/f", 0, b"abc").await;
    let id = server.get("/docs/a?restype=directory", "").await.expect(200);
    for (from, to) in [("a", "z"), ("z", "c/A"), ("c/a", "w")] {
        let renamed = rename_directory(&server, from, to, "").await.expect(200);
        assert_eq!(renamed.header("x-ms-file-id"), id.header("x-ms-file-id"));
        assert_eq!(content(&server, &format!("{to}/b/f")).await, "abc");
        server.get(&format!("/docs/{from}/b/f"), "").await.refused(404, "ParentNotFound");
        server.delete(&format!("/docs/{to}?restype=directory"), "").await.refused(409, "DirectoryNotEmpty");
    }
    make_file(&server, "c/file", 1).await;
    rename_directory(&server, "w", "c/file", "").await.refused(409, "ResourceAlreadyExists");
    rename_directory(&server, "w", "c/file", REPLACE).await.expect(200);
    let server = server.restart().await;
    assert_eq!(content(&server, "c/FILE/b/f").await, "abc");
    assert_eq!(names(&server, "").await, ["c"]);
}

/// Acquires an infinite lease on a file.
async fn lease(server: &Server, path: &str, id: &str) {
    let headers =
        format!("x-ms-lease-action: acquire\nx-ms-lease-duration: -1\nx-ms-proposed-lease-id: {id}");
    server.put(&format!("/docs/{path}?comp=lease"), &headers, "").await.expect(201);
}

#[tokio::test]
async fn rename_requires_the_lease_ids_of_source_and_target() {
    const A: &str = "aaaaaaaa-0000-0000-0000-000000000000";
    const B: &str = "bbbbbbbb-0000-0000-0000-000000000000";
    let server = start().await;
    make_directory(&server, "d").await;
    let source = |id: &str| format!("x-ms-source-lease-id: {id}");
    let target = |id: &str| format!("{REPLACE}\nx-ms-destination-lease-id: {id}");
    for (from, to) in [("f", "g"), ("g", "d/f")] {
        if from == "f" {
            make_file(&server, from, 1).await;
            lease(&server, from, A).await;
        }
        rename(&server, from, to, "").await.refused(412, "LeaseIdMissing");
        rename(&server, from, to, &source(B)).await.refused(412, "LeaseIdMismatchWithFileOperation");
        let none = format!("{}\n{}", source(A), target(B));
        rename(&server, from, to, &none).await.refused(412, "LeaseNotPresentWithFileOperation");
        rename(&server, from, to, &source(A)).await.expect(200);
        // The lease moved with the file.
        server.delete(&format!("/docs/{to}"), "").await.refused(412, "LeaseIdMissing");
    }
    make_file(&server, "h", 1).await;
    rename(&server, "h", "d/f", &source(A)).await.refused(412, "LeaseNotPresentWithFileOperation");
    rename(&server, "h", "d/f", REPLACE).await.refused(412, "LeaseIdMissing");
    rename(&server, "h", "d/f", &target(B)).await.refused(412, "LeaseIdMismatchWithFileOperation");
    rename(&server, "h", "d/f", &target(A)).await.expect(200);
    // The replaced file's lease is gone.
    server.delete("/docs/d/f", "").await.expect(202);
}

#[tokio::test]
async fn rename_signature_must_allow_writing_both_names() {
    let server = start().await;
    make_file(&server, "f", 1).await;
    let source = format!("x-ms-file-rename-source: http://{}/{ACCOUNT}/docs/f", server.address);
    let send = async |resource: &str, path: &str, permissions: &str| {
        let resource_of = Resource { service: ServiceKind::File, account: ACCOUNT, path, timestamp: "" };
        let fields =
            [("sv", "2022-11-02"), ("sr", resource), ("sp", permissions), ("se", "2099-12-31T00:00:00Z")];
        let signature = sign::service_sas(&resource_of, &key(), &fields);
        server.send("PUT", &format!("/docs/g?comp=rename&{signature}"), &source, "").await
    };
    send("s", "docs", "r").await.refused(403, "AuthorizationPermissionMismatch");
    send("f", "docs/g", "w").await.refused(403, "AuthorizationResourceTypeMismatch");
    send("s", "docs", "w").await.expect(200);
    assert_eq!(names(&server, "").await, ["g"]);
}

#[tokio::test]
async fn rename_with_a_file_signature_needs_a_signature_for_the_source() {
    let server = start().await;
    make_file(&server, "f", 1).await;
    let sign = |path: &str, permissions: &str| {
        let resource = Resource { service: ServiceKind::File, account: ACCOUNT, path, timestamp: "" };
        let fields = [("sv", "2022-11-02"), ("sr", "f"), ("sp", permissions), ("se", "2099-12-31T00:00:00Z")];
        sign::service_sas(&resource, &key(), &fields)
    };
    let send = async |of_source: String| {
        let url = format!("http://{}/{ACCOUNT}/docs/f?{of_source}", server.address);
        let headers = format!("x-ms-file-rename-source: {url}");
        let target = format!("/docs/g?comp=rename&{}", sign("docs/g", "w"));
        server.send("PUT", &target, &headers, "").await
    };
    send(sign("docs/f", "r")).await.refused(403, "AuthorizationPermissionMismatch");
    send(sign("docs/other", "w")).await.refused(403, "AuthenticationFailed");
    send(String::new()).await.refused(403, "AuthorizationResourceTypeMismatch");
    assert_eq!(names(&server, "").await, ["f"]);
    send(sign("docs/f", "w")).await.expect(200);
    assert_eq!(names(&server, "").await, ["g"]);
}

#[tokio::test]
async fn descendants_of_a_moved_directory_may_exceed_the_depth_limit() {
    let server = start().await;
    let deep = |from: usize, to: usize| (from..to).map(|n| format!("d{n}")).collect::<Vec<_>>().join("/");
    for to in 1..=250 {
        make_directory(&server, &deep(0, to)).await;
    }
    let below = deep(0, 251);
    server.put(&format!("/docs/{below}?restype=directory"), "", "").await.refused(400, INVALID_PATH);
    make_directory(&server, "top").await;
    rename_directory(&server, "d0", "top/d0", "").await.expect(200);
    let moved = format!("top/{}", deep(0, 250));
    server.get(&format!("/docs/{moved}?restype=directory"), "").await.expect(200);
    server
        .put(&format!("/docs/{moved}/f"), "x-ms-type: file\nx-ms-content-length: 1", "")
        .await
        .refused(400, INVALID_PATH);
    rename_directory(&server, &moved, &format!("{moved}x"), "").await.refused(400, INVALID_PATH);
    rename_directory(&server, &moved, "short", "").await.expect(200);
}

#[tokio::test]
async fn move_completes_under_constant_writes() {
    let server = Arc::new(start().await);
    make_directory(&server, "a").await;
    make_directory(&server, "b").await;
    make_file(&server, "a/f", 4096).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = vec![];
    for n in 0..32_u8 {
        let (server, stop) = (server.clone(), stop.clone());
        writers.push(tokio::spawn(async move {
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) {
                let headers = "x-ms-write: update\nx-ms-range: bytes=0-511";
                let reply = server.put("/docs/a/f?comp=range", headers, vec![n; 512]).await;
                assert!([201, 404].contains(&reply.status.as_u16()), "{:?}", reply.outcome());
                written += u32::from(reply.status == 201);
            }
            written
        }));
    }
    for _ in 0..3 {
        rename(&server, "a/f", "b/f", "").await.expect(200);
        rename(&server, "b/f", "a/f", "").await.expect(200);
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await.unwrap() > 0);
    }
}
