//! The table of operations, row by row: each operation's replies, errors and changes.

use lazuli_auth::sign;
use lazuli_auth::sign::Resource;
use lazuli_concurrency::FileAccess;
use lazuli_protocol::ServiceKind;
use lazuli_testing::{ACCOUNT, Reply, key};

use crate::opens::{open, request};
use crate::support::{Server, make_directory, make_file, start, write};

const FILE: &str = "x-ms-type: file\nx-ms-content-length: 10";
const ACL: &str = "<SignedIdentifiers></SignedIdentifiers>";
const SDDL: &str = r#"{"permission":"O:SYG:SYD:(A;;FA;;;SY)"}"#;

fn url(server: &Server, path: &str) -> String {
    format!("http://{}/{ACCOUNT}/docs/{path}", server.address)
}

/// Sends one operation. `row` has its method and target. `@name` stands for the URL of a file or directory,
/// with a signature.
async fn send(server: &Server, row: &str, headers: &str, body: &str) -> Reply {
    let (method, target) = row.split_once(' ').unwrap();
    let lines = headers.lines().map(|line| match line.split_once('@') {
        Some((name, path)) => format!("{name}{}", server.allowed(&url(server, path))),
        None => line.to_owned(),
    });
    server.signed(method, target, &lines.collect::<Vec<_>>().join("\n"), body.to_owned()).await
}

#[tokio::test]
async fn every_operation_answers_with_its_status_and_with_a_tag_where_the_table_says_so() {
    let server = start().await;
    make_directory(&server, "d").await;
    for (row, headers, body, status, has_tag) in [
        ("GET /?comp=list", "", "", 200, false),
        ("GET /?restype=service&comp=properties", "", "", 200, false),
        ("PUT /made?restype=share", "", "", 201, true),
        ("GET /docs?restype=share", "", "", 200, true),
        ("HEAD /docs?restype=share", "", "", 200, true),
        ("GET /docs?restype=share&comp=metadata", "", "", 200, true),
        ("HEAD /docs?restype=share&comp=metadata", "", "", 200, true),
        ("PUT /docs?restype=share&comp=properties", "x-ms-share-quota: 9", "", 200, true),
        ("PUT /docs?restype=share&comp=metadata", "x-ms-meta-a: 1", "", 200, true),
        ("GET /docs?restype=share&comp=acl", "", "", 200, true),
        ("PUT /docs?restype=share&comp=acl", "", ACL, 200, true),
        ("GET /docs?restype=share&comp=stats", "", "", 200, true),
        ("PUT /made?restype=share&comp=snapshot", "", "", 201, true),
        (
            "PUT /made?restype=share&comp=lease",
            "x-ms-lease-action: acquire\nx-ms-lease-duration: -1",
            "",
            201,
            true,
        ),
        ("PUT /made?restype=share&comp=lease", "x-ms-lease-action: break", "", 202, true),
        ("PUT /docs?restype=share&comp=filepermission", "", SDDL, 201, false),
        ("PUT /docs/d/e?restype=directory", "", "", 201, true),
        ("GET /docs/d?restype=directory", "", "", 200, true),
        ("HEAD /docs/d?restype=directory", "", "", 200, true),
        ("GET /docs/d?restype=directory&comp=metadata", "", "", 200, true),
        ("PUT /docs/d?restype=directory&comp=properties", "x-ms-file-attributes: Hidden", "", 200, true),
        ("PUT /docs/d?restype=directory&comp=metadata", "x-ms-meta-a: 1", "", 200, true),
        ("GET /docs/d?restype=directory&comp=list", "", "", 200, false),
        ("GET /docs?restype=directory&comp=list", "", "", 200, false),
        ("PUT /docs/d/g?restype=directory&comp=rename", "x-ms-file-rename-source: @d/e", "", 200, true),
        ("GET /docs/d?comp=listhandles", "x-ms-recursive: true", "", 200, false),
        ("PUT /docs/d?comp=forceclosehandles", "x-ms-handle-id: *", "", 200, false),
        ("DELETE /docs/d/g?restype=directory", "", "", 202, false),
        ("PUT /docs/f", FILE, "", 201, true),
        ("GET /docs/f", "", "", 200, true),
        ("GET /docs/f", "x-ms-range: bytes=1-2", "", 206, true),
        ("HEAD /docs/f", "", "", 200, true),
        ("GET /docs/f?comp=metadata", "", "", 200, true),
        ("HEAD /docs/f?comp=metadata", "", "", 200, true),
        ("PUT /docs/f?comp=properties", "x-ms-content-type: a/b", "", 200, true),
        ("PUT /docs/f?comp=metadata", "x-ms-meta-a: 1", "", 200, true),
        ("PUT /docs/f?comp=range", "x-ms-write: update\nx-ms-range: bytes=0-2", "abc", 201, true),
        ("PUT /docs/f?comp=range", "x-ms-write: clear\nx-ms-range: bytes=0-2", "", 201, true),
        ("GET /docs/f?comp=rangelist", "", "", 200, true),
        ("PUT /docs/copy", "x-ms-copy-source: @f", "", 202, true),
        (
            "PUT /docs/f?comp=range",
            "x-ms-write: update\nx-ms-range: bytes=0-2\nx-ms-source-range: bytes=0-2\nx-ms-copy-source: @copy",
            "",
            201,
            true,
        ),
        ("PUT /docs/moved?comp=rename", "x-ms-file-rename-source: @copy", "", 200, true),
        ("PUT /docs/f?comp=lease", "x-ms-lease-action: acquire\nx-ms-lease-duration: -1", "", 201, true),
        ("PUT /docs/f?comp=lease", "x-ms-lease-action: break", "", 202, true),
        ("GET /docs/f?comp=listhandles", "", "", 200, false),
        ("PUT /docs/f?comp=forceclosehandles", "x-ms-handle-id: *", "", 200, false),
        ("DELETE /docs/moved", "", "", 202, false),
        ("DELETE /made?restype=share", "x-ms-delete-snapshots: include", "", 202, false),
    ] {
        let reply = send(&server, row, headers, body).await;
        assert_eq!(reply.outcome(), (status, ""), "{row} {headers}: {}", reply.text());
        let said = [reply.header("etag"), reply.header("last-modified")].map(|header| header.is_some());
        assert_eq!(said, [has_tag; 2], "{row} {headers}");
        assert!(reply.header("x-ms-request-id").is_some() && reply.header("x-ms-version").is_some(), "{row}");
    }
}

#[tokio::test]
async fn bad_requests_answer_with_the_documented_code() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "f", 10).await;
    let six = "<SignedIdentifier><Id>a</Id></SignedIdentifier>".repeat(6);
    let six = format!("<SignedIdentifiers>{six}</SignedIdentifiers>");
    for (row, headers, body, status, code) in [
        ("PUT /docs?restype=share", "", "", 409, "ShareAlreadyExists"),
        ("PUT /new?restype=share", "x-ms-share-quota: 0", "", 400, "InvalidHeaderValue"),
        ("PUT /new?restype=share", "x-ms-share-quota: many", "", 400, "InvalidHeaderValue"),
        ("PUT /new?restype=share", "x-ms-access-tier: Warm", "", 400, "InvalidHeaderValue"),
        ("PUT /NotSo?restype=share", "", "", 400, "InvalidResourceName"),
        ("GET /none?restype=share", "", "", 404, "ShareNotFound"),
        ("PUT /docs?restype=share&comp=acl", "", &six, 400, "InvalidXmlDocument"),
        ("PUT /docs?restype=share&comp=acl", "", "<a", 400, "InvalidXmlDocument"),
        ("DELETE /docs?restype=share", "x-ms-delete-snapshots: some", "", 400, "InvalidHeaderValue"),
        ("PUT /docs?restype=share&comp=undelete", "", "", 400, "MissingRequiredHeader"),
        (
            "PUT /docs?restype=share&comp=filepermission",
            "",
            r#"{"permission":"x"}"#,
            400,
            "FileInvalidPermission",
        ),
        (
            "GET /docs?restype=share&comp=filepermission",
            "x-ms-file-permission-key: 1*1",
            "",
            400,
            "FileInvalidPermissionKey",
        ),
        ("PUT /docs/no/d?restype=directory", "", "", 404, "ParentNotFound"),
        ("PUT /docs/D?restype=directory", "", "", 409, "ResourceAlreadyExists"),
        ("PUT /docs/F?restype=directory", "", "", 409, "ResourceTypeMismatch"),
        ("GET /docs/none?restype=directory", "", "", 404, "ResourceNotFound"),
        ("GET /docs/f?restype=directory", "", "", 404, "ResourceNotFound"),
        ("GET /docs/d", "", "", 409, "ResourceTypeMismatch"),
        ("DELETE /docs/none?restype=directory", "", "", 404, "ResourceNotFound"),
        ("DELETE /docs/none/d?restype=directory", "", "", 404, "ParentNotFound"),
        ("GET /docs?restype=directory&comp=list&maxresults=0", "", "", 400, "OutOfRangeQueryParameterValue"),
        ("GET /docs?restype=directory&comp=list&maxresults=x", "", "", 400, "InvalidQueryParameterValue"),
        ("GET /docs?restype=directory&comp=list&include=all", "", "", 400, "InvalidQueryParameterValue"),
        ("GET /docs/f?comp=listhandles", "x-ms-recursive: true", "", 400, "InvalidHeaderValue"),
        ("PUT /docs/f?comp=forceclosehandles", "", "", 400, "MissingRequiredHeader"),
        ("PUT /docs/g", "x-ms-type: file", "", 400, "MissingRequiredHeader"),
        ("PUT /docs/g", "x-ms-type: link\nx-ms-content-length: 1", "", 400, "InvalidHeaderValue"),
        ("PUT /docs/g", "x-ms-type: file\nx-ms-content-length: -1", "", 400, "InvalidHeaderValue"),
        ("PUT /docs/no/g", FILE, "", 404, "ParentNotFound"),
        ("PUT /docs/d", FILE, "", 409, "ResourceTypeMismatch"),
        ("GET /docs/none", "", "", 404, "ResourceNotFound"),
        ("GET /docs/f", "x-ms-range: bytes=10-", "", 416, "InvalidRange"),
        ("PUT /docs/f?comp=properties", "x-ms-content-length: -1", "", 400, "OutOfRangeInput"),
        ("PUT /docs/f?comp=properties", "x-ms-file-attributes: Wrong", "", 400, "InvalidHeaderValue"),
        ("PUT /docs/f?comp=properties", "x-ms-file-creation-time: soon", "", 400, "InvalidHeaderValue"),
        ("PUT /docs/f?comp=properties", "x-ms-file-permission: nonsense", "", 400, "FileInvalidPermission"),
        (
            "PUT /docs/f?comp=properties",
            "x-ms-file-permission: O:SYG:SYD:(A;;FA;;;SY)\nx-ms-file-permission-key: 1*1",
            "",
            400,
            "InvalidHeaderValue",
        ),
        ("PUT /docs/none?comp=metadata", "x-ms-meta-a: 1", "", 404, "ResourceNotFound"),
        (
            "PUT /docs/none?comp=range",
            "x-ms-write: clear\nx-ms-range: bytes=0-1",
            "",
            404,
            "ResourceNotFound",
        ),
        ("PUT /docs/g", "x-ms-copy-source: @none", "", 404, "ResourceNotFound"),
        ("PUT /docs/no/g?comp=rename", "x-ms-file-rename-source: @f", "", 404, "ParentNotFound"),
        ("PUT /docs/g?comp=rename", "x-ms-file-rename-source: @none", "", 404, "ResourceNotFound"),
        ("PUT /docs/g?comp=rename", "", "", 400, "MissingRequiredHeader"),
        ("PUT /docs/f?comp=lease", "x-ms-lease-action: renew", "", 400, "InvalidHeaderValue"),
        (
            "PUT /docs/f?comp=lease",
            "x-ms-lease-action: acquire\nx-ms-lease-duration: 15",
            "",
            400,
            "InvalidHeaderValue",
        ),
        ("DELETE /docs/none", "", "", 404, "ResourceNotFound"),
    ] {
        let reply = send(&server, row, headers, body).await;
        assert_eq!(reply.outcome(), (status, code), "{row} {headers}");
    }
    let long = format!("x-ms-meta-a: {}", "x".repeat(8 << 10));
    for row in ["PUT /docs/f?comp=metadata", "PUT /docs/d?restype=directory&comp=metadata"] {
        send(&server, row, &long, "").await.refused(400, "MetadataTooLarge");
        send(&server, row, "x-ms-meta-1a: 1", "").await.refused(400, "InvalidMetadata");
    }
}

#[tokio::test]
async fn read_only_file_cannot_be_written_replaced_or_deleted() {
    let server = start().await;
    make_file(&server, "other", 1).await;
    server.put("/docs/f", &format!("{FILE}\nx-ms-file-attributes: ReadOnly"), "").await.expect(201);
    for (row, headers) in [
        ("PUT /docs/f", FILE),
        ("PUT /docs/f?comp=properties", "x-ms-content-type: a/b"),
        ("PUT /docs/f?comp=properties", "x-ms-content-length: 3"),
        ("PUT /docs/f?comp=metadata", "x-ms-meta-a: 1"),
        ("PUT /docs/f?comp=range", "x-ms-write: clear\nx-ms-range: bytes=0-1"),
        ("PUT /docs/f", "x-ms-copy-source: @other"),
        (
            "PUT /docs/f?comp=rename",
            "x-ms-file-rename-replace-if-exists: true\nx-ms-file-rename-source: @other",
        ),
        ("DELETE /docs/f", ""),
    ] {
        send(&server, row, headers, "").await.refused(409, "ReadOnlyAttribute");
    }
    let ignoring = "x-ms-file-rename-replace-if-exists: true\nx-ms-file-rename-ignore-readonly: true\n\
        x-ms-file-rename-source: @other";
    send(&server, "PUT /docs/f?comp=rename", ignoring, "").await.expect(200);
}

#[tokio::test]
async fn etag_changes_only_with_its_own_object() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "d/f", 10).await;
    let tags = async || {
        let share = send(&server, "GET /docs?restype=share", "", "").await;
        let directory = send(&server, "GET /docs/d?restype=directory", "", "").await;
        let file = send(&server, "GET /docs/d/f", "", "").await;
        [share, directory, file].map(|reply| reply.etag().to_owned())
    };
    let mut before = tags().await;
    for (row, headers, changes) in [
        ("PUT /docs?restype=share&comp=metadata", "x-ms-meta-a: 1", [true, false, false]),
        ("PUT /docs?restype=share&comp=properties", "x-ms-share-quota: 5", [true, false, false]),
        (
            "PUT /docs?restype=share&comp=lease",
            "x-ms-lease-action: acquire\nx-ms-lease-duration: 15",
            [false; 3],
        ),
        (
            "PUT /docs?restype=share&comp=lease",
            "x-ms-lease-action: break\nx-ms-lease-break-period: 0",
            [false; 3],
        ),
        ("PUT /docs?restype=share&comp=snapshot", "", [false; 3]),
        ("PUT /docs/d?restype=directory&comp=metadata", "x-ms-meta-a: 1", [false, true, false]),
        (
            "PUT /docs/d?restype=directory&comp=properties",
            "x-ms-file-attributes: Hidden",
            [false, true, false],
        ),
        ("PUT /docs/d/g", FILE, [false; 3]),
        ("DELETE /docs/d/g", "", [false; 3]),
        ("PUT /docs/d/f?comp=range", "x-ms-write: clear\nx-ms-range: bytes=0-1", [false, false, true]),
        ("PUT /docs/d/f?comp=properties", "x-ms-content-type: a/b", [false, false, true]),
        ("PUT /docs/d/f?comp=metadata", "x-ms-meta-a: 1", [false, false, true]),
        ("PUT /docs/d/f?comp=lease", "x-ms-lease-action: acquire\nx-ms-lease-duration: -1", [false; 3]),
        ("PUT /docs/d/f?comp=lease", "x-ms-lease-action: break", [false; 3]),
        ("PUT /docs/d/f", FILE, [false, false, true]),
        ("GET /docs/d/f?comp=rangelist", "", [false; 3]),
    ] {
        let reply = send(&server, row, headers, "").await;
        assert!(reply.status.is_success(), "{row}: {:?}", reply.outcome());
        let after = tags().await;
        let changed = [0, 1, 2].map(|i| before[i] != after[i]);
        assert_eq!(changed, changes, "{row}");
        before = after;
    }
}

#[tokio::test]
async fn conditional_headers_work_as_for_blob_writes() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "f", 10).await;
    for (row, headers) in [
        ("PUT /docs/f?comp=metadata", "x-ms-meta-a: 1"),
        ("PUT /docs/f?comp=properties", "x-ms-content-type: a/b"),
        ("PUT /docs/f?comp=range", "x-ms-write: clear\nx-ms-range: bytes=0-1"),
        ("PUT /docs/d?restype=directory&comp=metadata", "x-ms-meta-a: 1"),
        ("PUT /docs/d?restype=directory&comp=properties", "x-ms-file-attributes: Hidden"),
        ("DELETE /docs/f", ""),
        ("DELETE /docs/d?restype=directory", ""),
    ] {
        for condition in [
            "if-match: \"0x1\"",
            "if-modified-since: Wed, 01 Jan 2098 00:00:00 GMT",
            "if-unmodified-since: Wed, 01 Jan 2020 00:00:00 GMT",
        ] {
            send(&server, row, &format!("{headers}\n{condition}"), "").await.refused(412, "ConditionNotMet");
        }
        let both = format!("{headers}\nif-match: \"0x1\"\nif-none-match: \"0x1\"");
        send(&server, row, &both, "").await.refused(400, "MultipleConditionHeadersNotSupported");
        let met = format!("{headers}\nif-match: *");
        let reply = send(&server, row, &met, "").await;
        assert!(reply.status.is_success(), "{row}: {:?}", reply.outcome());
    }
}

#[tokio::test]
async fn create_file_checks_conditional_headers() {
    let server = start().await;
    make_file(&server, "source", 10).await;
    for (name, headers, status) in [("made", FILE, 201), ("copied", "x-ms-copy-source: @source", 202)] {
        let row = format!("PUT /docs/{name}");
        let make = async |condition: &str| send(&server, &row, &format!("{headers}\n{condition}"), "").await;
        make("if-match: *").await.refused(412, "ConditionNotMet");
        let first = make("if-none-match: *").await.expect(status);
        make("if-none-match: *").await.refused(409, "ResourceAlreadyExists");
        make("if-match: \"0x1\"").await.refused(412, "ConditionNotMet");
        make(&format!("if-none-match: {}", first.header("etag").unwrap()))
            .await
            .refused(412, "ConditionNotMet");
        make(&format!("if-match: {}", first.header("etag").unwrap())).await.expect(status);
        let both = make("if-match: *\nif-none-match: *").await;
        both.refused(400, "MultipleConditionHeadersNotSupported");
    }
}

#[tokio::test]
async fn smb_headers_are_required_in_versions_without_defaults() {
    let server = start().await;
    let all = [
        ("x-ms-file-attributes", "None"),
        ("x-ms-file-creation-time", "now"),
        ("x-ms-file-last-write-time", "now"),
        ("x-ms-file-permission", "inherit"),
    ];
    for (version, is_required) in
        [("2018-11-09", false), ("2019-02-02", true), ("2021-04-10", true), ("2021-06-08", false)]
    {
        for missing in 0..all.len() {
            let sent = all.iter().enumerate().filter(|(at, _)| *at != missing);
            let sent: Vec<_> = sent.map(|(_, (name, value))| format!("{name}: {value}")).collect();
            let headers = format!("{FILE}\nx-ms-version: {version}\n{}", sent.join("\n"));
            let reply = server.put("/docs/f", &headers, "").await;
            let expected = if is_required { (400, "MissingRequiredHeader") } else { (201, "") };
            assert_eq!(reply.outcome(), expected, "{version} without {}", all[missing].0);
        }
    }
}

#[tokio::test]
async fn copy_respects_the_share_modes_of_source_and_target() {
    let server = start().await;
    for name in ["source", "target"] {
        make_file(&server, name, 10).await;
    }
    write(&server, "source", 0, b"0123456789").await;
    let (r, w, all) = (FileAccess::READ, FileAccess::WRITE, FileAccess::ALL);
    let copy = async || send(&server, "PUT /docs/target", "x-ms-copy-source: @source", "").await;
    for (path, share, is_refused) in [
        ("source", w, true),
        ("source", r, false),
        ("source", all, false),
        ("target", r, true),
        ("target", r | w, true),
        ("target", all, false),
    ] {
        let id = open(&server, path, request(r, share)).await.unwrap();
        let expected = if is_refused { (409, "SharingViolation") } else { (202, "") };
        let reply = copy().await;
        // In the caller's own account an error of the source is returned unchanged.
        assert_eq!(reply.outcome(), expected, "{path} {share:?}");
        server.service.close_open(id).await.unwrap();
    }
}

/// Returns a SAS for the share or for the account.
fn signature(of: &str, permissions: &str) -> String {
    let fields = [("sv", "2022-11-02"), ("sp", permissions), ("se", "2099-12-31T00:00:00Z")];
    match of {
        "share" => {
            let resource =
                Resource { service: ServiceKind::File, account: ACCOUNT, path: "docs", timestamp: "" };
            sign::service_sas(&resource, &key(), &[&fields[..], &[("sr", "s")]].concat())
        }
        _ => sign::account_sas(ACCOUNT, &key(), &[&fields[..], &[("ss", "f"), ("srt", "o")]].concat()),
    }
}

#[tokio::test]
async fn a_signature_that_allows_only_to_create_replaces_nothing() {
    let server = start().await;
    for (name, both) in [("share", "cw"), ("account", "wc")] {
        let send = async |permissions: &str, headers: &str| {
            let target = format!("/docs/{name}?{}", signature(name, permissions));
            server.send("PUT", &target, headers, "").await
        };
        let create = |length: u64| format!("x-ms-type: file\nx-ms-content-length: {length}");
        send("c", &create(1)).await.expect(201);
        send("c", &create(2)).await.refused(403, "AuthorizationPermissionMismatch");
        let copy = format!("x-ms-copy-source: {}", server.allowed(&url(&server, name)));
        send("c", &copy).await.refused(403, "AuthorizationPermissionMismatch");
        // The letter `c` of an account SAS does not allow copies.
        let target = format!("/docs/copy?{}", signature(name, "c"));
        let copied = server.send("PUT", &target, &copy, "").await;
        assert_eq!(copied.status.is_success(), name == "share", "{name} {:?}", copied.outcome());
        if name == "share" {
            let again = server.send("PUT", &target, &copy, "").await;
            again.refused(403, "AuthorizationPermissionMismatch");
        }
        let length = async || server.get(&format!("/docs/{name}"), "").await.expect(200).body.len() as u64;
        assert_eq!(length().await, 1, "{name}");
        for (permissions, replaced) in [("w", 3), (both, 4)] {
            send(permissions, &create(replaced)).await.expect(201);
            assert_eq!(length().await, replaced, "{name}");
        }
    }
}
