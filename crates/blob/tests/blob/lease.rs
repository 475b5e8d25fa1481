//! Lease Blob, and operations on leased blobs: every cell of the documented tables.

use crate::support::{Reply, TestServer, start};

const A: &str = "aaaaaaaa-0000-4000-8000-00000000000a";
const B: &str = "bbbbbbbb-0000-4000-8000-00000000000b";
const C: &str = "cccccccc-0000-4000-8000-00000000000c";

const STATES: [&str; 5] = ["available", "leased", "breaking", "broken", "expired"];

/// Returns the address of a container, which is leased by the same rules as a blob.
fn container(name: &str) -> String {
    format!("/{name}?restype=container")
}

/// Renders headers from `name=value` words, each without its prefix `x-ms-`. A, B and C stand for lease ids.
pub(crate) fn headers(words: &str) -> String {
    let mut lines = String::new();
    for word in words.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap();
        let value = match value {
            "A" => A,
            "B" => B,
            "C" => C,
            other => other,
        };
        lines += &format!("x-ms-{name}: {value}\n");
    }
    lines
}

impl TestServer {
    pub(crate) async fn lease(&self, leased: &str, words: &str) -> Reply {
        let separator = if leased.contains('?') { '&' } else { '?' };
        self.put(&format!("{leased}{separator}comp=lease"), &headers(words), "").await
    }

    /// Creates a blob or container whose lease is in this state, with the id A.
    pub(crate) async fn blob_in_state(&self, blob: &str, state: &str) {
        self.put(blob, "x-ms-blob-type: BlockBlob", "").await.expect(201);
        self.set_lease_state(blob, state).await;
    }

    pub(crate) async fn set_lease_state(&self, blob: &str, state: &str) {
        let acquire = "lease-action=acquire proposed-lease-id=A lease-duration=";
        let steps: &[&str] = match state {
            "available" => &[],
            "leased" => &["60"],
            "breaking" => &["-1", "lease-action=break lease-break-period=40"],
            "broken" => &["-1", "lease-action=break lease-break-period=0"],
            "expired" => &["15"],
            _ => panic!("{state}"),
        };
        for step in steps {
            let words =
                if step.starts_with("lease") { (*step).to_owned() } else { format!("{acquire}{step}") };
            assert!(self.lease(blob, &words).await.status.is_success());
        }
        if state == "expired" {
            self.advance(15);
        }
        assert_eq!(self.lease_state(blob).await, state);
    }

    pub(crate) async fn lease_state(&self, blob: &str) -> String {
        let head = self.head(blob, "").await.expect(200);
        let state = head.header("x-ms-lease-state").unwrap();
        let locked = if matches!(state, "leased" | "breaking") { "locked" } else { "unlocked" };
        assert_eq!(head.header("x-ms-lease-status"), Some(locked));
        assert_eq!(head.header("x-ms-lease-duration").is_some(), state == "leased");
        state.to_owned()
    }
}

#[tokio::test]
async fn lease_actions_follow_the_documented_table() {
    let server = start().await;
    server.create_container("con").await;
    const TAKEN: &str = "409 LeaseAlreadyPresent";
    const MISMATCH: &str = "409 LeaseIdMismatchWithLeaseOperation";
    const NONE: &str = "409 LeaseNotPresentWithLeaseOperation";
    const NO_ACQUIRE: &str = "409 LeaseIsBreakingAndCannotBeAcquired";
    const NO_CHANGE: &str = "409 LeaseIsBreakingAndCannotBeChanged";
    const NO_RENEW: &str = "409 LeaseIsBrokenAndCannotBeRenewed";
    // Columns: available, leased, breaking, broken, expired. A success names the resulting state; a break
    // also its duration.
    let table = [
        ("lease-action=acquire lease-duration=30", ["201 leased", TAKEN, TAKEN, "201 leased", "201 leased"]),
        (
            "lease-action=acquire lease-duration=30 proposed-lease-id=A",
            ["201 leased A", "201 leased A", NO_ACQUIRE, "201 leased A", "201 leased A"],
        ),
        (
            "lease-action=acquire lease-duration=-1 proposed-lease-id=B",
            ["201 leased B", TAKEN, TAKEN, "201 leased B", "201 leased B"],
        ),
        ("lease-action=renew lease-id=A", [MISMATCH, "200 leased A", NO_RENEW, NO_RENEW, "200 leased A"]),
        ("lease-action=renew lease-id=B", [MISMATCH; 5]),
        ("lease-action=change lease-id=A proposed-lease-id=B", [NONE, "200 leased B", NO_CHANGE, NONE, NONE]),
        ("lease-action=change lease-id=B proposed-lease-id=A", [NONE, "200 leased A", MISMATCH, NONE, NONE]),
        ("lease-action=change lease-id=B proposed-lease-id=C", [NONE, MISMATCH, MISMATCH, NONE, NONE]),
        (
            "lease-action=release lease-id=A",
            [MISMATCH, "200 available", "200 available", "200 available", "200 available"],
        ),
        ("lease-action=release lease-id=B", [MISMATCH; 5]),
        (
            "lease-action=break lease-break-period=0",
            [NONE, "202 broken 0", "202 broken 0", "202 broken 0", "202 broken 0"],
        ),
        (
            "lease-action=break lease-break-period=20",
            [NONE, "202 breaking 20", "202 breaking 20", "202 broken 0", "202 broken 0"],
        ),
        ("lease-action=break", [NONE, "202 breaking 60", "202 breaking 40", "202 broken 0", "202 broken 0"]),
    ];
    for (row, (words, cells)) in table.iter().enumerate() {
        for (state, expected) in STATES.iter().zip(cells) {
            for blob in [format!("/con/{row}-{state}"), container(&format!("con-{row}-{state}"))] {
                server.blob_in_state(&blob, state).await;
                let before = server.head(&blob, "").await;
                let reply = server.lease(&blob, words).await;
                let case = format!("{words} on {state} {blob}");
                let status = reply.status.as_u16();
                if let Some(code) = reply.header("x-ms-error-code") {
                    assert_eq!(format!("{status} {code}"), *expected, "{case}");
                    assert_eq!(server.lease_state(&blob).await, *state, "{case}");
                    continue;
                }
                let mut outcome = format!("{status} {}", server.lease_state(&blob).await);
                match (reply.header("x-ms-lease-id"), reply.header("x-ms-lease-time")) {
                    (Some(A), None) => outcome += " A",
                    (Some(B), None) => outcome += " B",
                    (Some(generated), None) => assert!(generated.len() == 36 && words.contains("acquire")),
                    (None, Some(seconds)) => outcome += &format!(" {seconds}"),
                    (None, None) => assert!(words.contains("release"), "{case}"),
                    (Some(_), Some(_)) => panic!("{case}"),
                }
                assert_eq!(outcome, *expected, "{case}");
                assert_eq!(reply.etag(), before.etag(), "{case}: no action changes the ETag");
                assert_eq!(reply.header("last-modified"), before.header("last-modified"), "{case}");
                assert_eq!(server.head(&blob, "").await.etag(), before.etag(), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn lease_break_takes_the_shorter_of_break_period_and_remaining_time() {
    let server = start().await;
    server.create_container("con").await;
    for (at, (duration, period, time)) in [
        ("60", "20", "20"),
        ("60", "59", "50"),
        ("60", "", "50"),
        ("-1", "20", "20"),
        ("-1", "60", "60"),
        ("-1", "", "0"),
    ]
    .into_iter()
    .enumerate()
    {
        for blob in [format!("/con/{at}"), container(&format!("con-{at}"))] {
            server.put(&blob, "x-ms-blob-type: BlockBlob", "").await.expect(201);
            server.lease(&blob, &format!("lease-action=acquire lease-duration={duration}")).await.expect(201);
            server.advance(10);
            let period =
                if period.is_empty() { String::new() } else { format!(" lease-break-period={period}") };
            let reply = server.lease(&blob, &format!("lease-action=break{period}")).await.expect(202);
            assert_eq!(reply.header("x-ms-lease-time"), Some(time), "{blob}");
            if time != "0" {
                assert_eq!(server.lease_state(&blob).await, "breaking");
                server.advance(time.parse().unwrap());
            }
            assert_eq!(server.lease_state(&blob).await, "broken");
        }
    }
}

/// An operation on a blob: how it uses the blob, its name, the type of blob, and its method, query, headers
/// and body.
type Use = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

const USES: [Use; 23] = [
    ("write", "Put Blob", "BlockBlob", "PUT", "", "x-ms-blob-type: BlockBlob", "new"),
    ("write", "Put Blob (append)", "AppendBlob", "PUT", "", "x-ms-blob-type: AppendBlob", ""),
    ("write", "Put Block", "BlockBlob", "PUT", "?comp=block&blockid=AAAA", "", "block"),
    ("write", "Put Block List", "BlockBlob", "PUT", "?comp=blocklist", "", "<BlockList/>"),
    ("write", "Append Block", "AppendBlob", "PUT", "?comp=appendblock", "", "more"),
    ("write", "Append Blob Seal", "AppendBlob", "PUT", "?comp=seal", "", ""),
    ("write", "Set Blob Metadata", "BlockBlob", "PUT", "?comp=metadata", "", ""),
    ("write", "Set Blob Properties", "BlockBlob", "PUT", "?comp=properties", "", ""),
    (
        "write",
        "Set Blob Properties (resize)",
        PAGE,
        "PUT",
        "?comp=properties",
        "x-ms-blob-content-length: 0",
        "",
    ),
    ("write", "Set Blob Tags", "BlockBlob", "PUT", "?comp=tags", "", "<Tags><TagSet/></Tags>"),
    ("write", "Set Blob Expiry", "BlockBlob", "PUT", "?comp=expiry", "x-ms-expiry-option: NeverExpire", ""),
    (
        "write",
        "Put Blob (page)",
        PAGE,
        "PUT",
        "",
        "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512",
        "",
    ),
    (
        "write",
        "Put Page (clear)",
        PAGE,
        "PUT",
        "?comp=page",
        "x-ms-page-write: clear\nrange: bytes=0-511",
        "",
    ),
    ("read", "Get Blob", "BlockBlob", "GET", "", "", ""),
    ("read", "Get Blob Properties", "BlockBlob", "HEAD", "", "", ""),
    ("read", "Get Blob Metadata", "BlockBlob", "GET", "?comp=metadata", "", ""),
    ("read", "Get Blob Tags", "BlockBlob", "GET", "?comp=tags", "", ""),
    ("read", "Get Block List", "BlockBlob", "GET", "?comp=blocklist", "", ""),
    ("read", "Get Block List (all)", "BlockBlob", "GET", "?comp=blocklist&blocklisttype=all", "", ""),
    ("read", "Get Page Ranges", PAGE, "GET", "?comp=pagelist", "", ""),
    ("read", "Snapshot Blob", "BlockBlob", "PUT", "?comp=snapshot", "", ""),
    ("read", "Snapshot Blob (page)", PAGE, "PUT", "?comp=snapshot", "", ""),
    ("read", "Set Blob Tier", "BlockBlob", "PUT", "?comp=tier", "x-ms-access-tier: Cool", ""),
];

/// The type of a page blob, with its required header.
const PAGE: &str = "PageBlob\nx-ms-blob-content-length: 512";

#[tokio::test]
async fn operations_on_a_leased_blob_follow_the_documented_table() {
    let server = start().await;
    server.create_container("con").await;
    const ABSENT: &str = "412 LeaseNotPresentWithBlobOperation";
    const OTHER: &str = "412 LeaseIdMismatchWithBlobOperation";
    const MISSING: &str = "412 LeaseIdMissing";
    const LOST: &str = "412 LeaseLost";
    // Columns: available, leased, breaking, broken, expired. A success names the resulting state.
    let table = [
        ("write", "lease-id=A", [ABSENT, "leased", "breaking", LOST, LOST]),
        ("write", "lease-id=B", [ABSENT, OTHER, OTHER, LOST, LOST]),
        ("write", "", ["available", MISSING, MISSING, "available", "available"]),
        ("read", "lease-id=A", [ABSENT, "leased", "breaking", LOST, LOST]),
        ("read", "lease-id=B", [ABSENT, OTHER, OTHER, LOST, LOST]),
        ("read", "", STATES),
    ];
    for (n, (access, name, kind, method, query, own, body)) in USES.iter().enumerate() {
        for (row, (_, words, cells)) in table.iter().enumerate().filter(|(_, row)| row.0 == *access) {
            for (state, expected) in STATES.iter().zip(cells) {
                let blob = format!("/con/{n}-{row}-{state}");
                server.put(&blob, &format!("x-ms-blob-type: {kind}"), "").await.expect(201);
                server.set_lease_state(&blob, state).await;
                let all = format!("{own}\n{}", headers(words));
                let reply = server.call(method, &format!("{blob}{query}"), &all, *body).await;
                let outcome = match reply.header("x-ms-error-code") {
                    Some(code) => format!("{} {code}", reply.status.as_u16()),
                    None => server.lease_state(&blob).await,
                };
                assert_eq!(outcome, *expected, "{name}, {words} on {state}");
            }
        }
    }
}

#[tokio::test]
async fn write_is_refused_if_the_lease_expires_before_the_commit() {
    let server = start().await;
    server.create_container("con").await;
    let delete = ("write", "Delete Blob", "BlockBlob", "DELETE", "", "", "");
    let changes = USES.iter().filter(|(_, _, _, method, ..)| *method == "PUT");
    for (n, (_, name, kind, method, query, own, body)) in changes.chain([&delete]).enumerate() {
        let blob = format!("/con/{n}");
        let put = server.put(&blob, &format!("x-ms-blob-type: {kind}"), "").await.expect(201);
        server.set_lease_state(&blob, "leased").await;
        server.watched.interposer.before_next_commit(server.let_time_pass(62));
        let all = format!("{own}\n{}", headers("lease-id=A"));
        let reply = server.call(method, &format!("{blob}{query}"), &all, *body).await;
        assert_eq!(reply.outcome(), (412, "LeaseLost"), "{name}");
        let left = server.head(&blob, "").await.expect(200);
        assert_eq!(left.etag(), put.etag(), "{name}");
        assert_eq!(server.lease_state(&blob).await, "expired", "{name}");
    }
    // The same holds for containers.
    for (query, method) in [("", "DELETE"), ("&comp=metadata", "PUT")] {
        let name = container(&format!("con-{}", method.to_lowercase()));
        server.put(&name, "", "").await.expect(201);
        server.set_lease_state(&name, "leased").await;
        server.watched.interposer.before_next_commit(server.let_time_pass(62));
        let reply = server.call(method, &format!("{name}{query}"), &headers("lease-id=A"), "").await;
        assert_eq!(reply.outcome(), (412, "LeaseLost"), "{method}");
    }
    server.create_container("old").await;
    server.set_lease_state(&container("old"), "leased").await;
    // The third commit of the rename reserves the old name.
    server.watched.interposer.before_commit_skipping(2, server.let_time_pass(62));
    let rename = format!("x-ms-source-container-name: old\n{}", headers("source-lease-id=A"));
    server.put("/new?restype=container&comp=rename", &rename, "").await.refused(412, "LeaseLost");
    server.head(&container("old"), "").await.expect(200);
}

#[tokio::test]
async fn lease_id_for_a_missing_blob_is_refused() {
    let server = start().await;
    server.create_container("con").await;
    for (_, name, _, method, query, own, body) in USES {
        let all = format!("{own}\nx-ms-lease-id: {A}");
        let reply = server.call(method, &format!("/con/none{query}"), &all, body).await;
        assert_eq!(reply.outcome(), (412, "LeaseNotPresentWithBlobOperation"), "{name}");
    }
}

#[tokio::test]
async fn write_without_an_id_clears_an_ended_lease_and_a_read_does_not() {
    let server = start().await;
    server.create_container("con").await;
    server.blob_in_state("/con/read", "expired").await;
    server.get("/con/read", "").await.expect(200);
    server.lease("/con/read", "lease-action=renew lease-id=A").await.expect(200);
    server.blob_in_state("/con/written", "expired").await;
    server.put_block_blob("/con/written", "more").await;
    let renew = server.lease("/con/written", "lease-action=renew lease-id=A").await;
    renew.refused(409, "LeaseIdMismatchWithLeaseOperation");
}

#[tokio::test]
async fn lease_ids_in_any_form_compare_as_guids() {
    let server = start().await;
    server.create_container("con").await;
    server.blob_in_state("/con/b", "leased").await;
    let other_form = format!("x-ms-lease-id: {{{}}}", A.to_uppercase());
    server.put("/con/b?comp=metadata", &other_form, "").await.expect(200);
    let bad = server.put("/con/b?comp=metadata", "x-ms-lease-id: mine", "").await;
    bad.refused(400, "InvalidHeaderValue");
}

#[tokio::test]
async fn malformed_lease_request_is_refused_before_the_blob_is_read() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "").await;
    for (words, code) in [
        ("", "MissingRequiredHeader"),
        ("lease-action=acquire", "MissingRequiredHeader"),
        ("lease-action=acquire lease-duration=14", "InvalidHeaderValue"),
        ("lease-action=acquire lease-duration=61", "InvalidHeaderValue"),
        ("lease-action=acquire lease-duration=30 proposed-lease-id=x", "InvalidHeaderValue"),
        ("lease-action=renew", "MissingRequiredHeader"),
        ("lease-action=change lease-id=A", "MissingRequiredHeader"),
        ("lease-action=break lease-break-period=61", "InvalidHeaderValue"),
        ("lease-action=steal", "InvalidHeaderValue"),
    ] {
        server.lease("/con/b", words).await.refused(400, code);
    }
    let acquire = "lease-action=acquire lease-duration=-1";
    server.lease("/con/none", acquire).await.refused(404, "BlobNotFound");
    server.lease("/nothing/b", acquire).await.refused(404, "ContainerNotFound");
    for state in ["snapshot", "versionid"] {
        let target = format!("/con/b?comp=lease&{state}=2026-01-02T03:04:05.0000000Z");
        server.put(&target, &headers(acquire), "").await.refused(400, "InvalidQueryParameterValue");
    }
}

#[tokio::test]
async fn lease_actions_obey_conditions() {
    let server = start().await;
    server.create_container("con").await;
    let put = server.put_block_blob("/con/b", "").await;
    let date = put.header("last-modified").unwrap().to_owned();
    let acquire = headers("lease-action=acquire lease-duration=-1 proposed-lease-id=A");
    for (condition, expected) in [
        ("if-match: \"0x1\"".to_owned(), 412),
        (format!("if-none-match: {}", put.etag()), 412),
        (format!("if-modified-since: {date}"), 412),
        ("if-unmodified-since: Sun, 06 Nov 1994 08:49:37 GMT".to_owned(), 412),
        (format!("if-match: {}\nif-none-match: \"0x1\"", put.etag()), 400),
        (format!("if-match: {}", put.etag()), 201),
        (format!("if-unmodified-since: {date}"), 201),
        ("if-none-match: \"0x1\"".to_owned(), 201),
    ] {
        let reply = server.put("/con/b?comp=lease", &format!("{acquire}{condition}"), "").await;
        assert_eq!(reply.status.as_u16(), expected, "{condition}");
        if expected == 412 {
            reply.refused(412, "ConditionNotMet");
        }
    }
}

#[tokio::test]
async fn lease_survives_replacement_and_restart() {
    let server = start().await;
    server.create_container("con").await;
    server.blob_in_state("/con/b", "leased").await;
    let put = format!("x-ms-blob-type: BlockBlob\nx-ms-lease-id: {A}");
    server.put("/con/b", &put, "new").await.expect(201);
    let server = server.restart().await;
    assert_eq!(server.lease_state("/con/b").await, "leased");
    server.put("/con/b", "x-ms-blob-type: BlockBlob", "").await.refused(412, "LeaseIdMissing");
    server.advance(60);
    assert_eq!(server.lease_state("/con/b").await, "expired");
}

#[tokio::test]
async fn lease_in_old_versions_lasts_one_minute() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "").await;
    let acquire = |version: &str| format!("x-ms-version: {version}\nx-ms-lease-action: acquire");
    let put = async |version: &str| server.put("/con/b?comp=lease", &acquire(version), "").await;
    put("2012-02-12").await.refused(400, "MissingRequiredHeader");
    put("2011-08-18").await.expect(201);
    server.advance(58);
    server.put("/con/b", "x-ms-blob-type: BlockBlob", "").await.refused(412, "LeaseIdMissing");
    server.advance(2);
    server.put_block_blob("/con/b", "").await;
}

#[tokio::test]
async fn lease_refusal_names_the_kind_of_resource() {
    let server = start().await;
    server.create_container("con").await;
    server.blob_in_state("/con/b", "leased").await;
    server.set_lease_state(&container("con"), "leased").await;
    let put = server.put("/con/b", "x-ms-blob-type: BlockBlob", "").await.refused(412, "LeaseIdMissing");
    let missing = "There is currently a lease on the blob and no lease ID was specified in the request.";
    assert!(put.text().contains(missing), "{}", put.text());
    let delete = server.delete(&container("con"), "").await.refused(412, "LeaseIdMissing");
    assert!(delete.text().contains("There is currently a lease on the container and"), "{}", delete.text());
    for (leased, text) in [("/con/b".to_owned(), "for the blob."), (container("con"), "for the container.")] {
        let release = server.lease(&leased, "lease-action=release lease-id=B").await;
        let release = release.refused(409, "LeaseIdMismatchWithLeaseOperation");
        let text = format!("The lease ID specified did not match the lease ID {text}");
        assert!(release.text().contains(&text), "{}", release.text());
    }
}

#[tokio::test]
async fn old_versions_ignore_the_lease_id_for_a_missing_blob() {
    let server = start().await;
    server.create_container("con").await;
    let with = |version: &str| headers(&format!("version={version} lease-id=A blob-type=BlockBlob"));
    for (version, read, write) in [
        ("2012-02-12", (404, "BlobNotFound"), (201, "")),
        ("2013-08-15", (412, "LeaseNotPresentWithBlobOperation"), (412, "LeaseNotPresentWithBlobOperation")),
    ] {
        let blob = format!("/con/{version}");
        assert_eq!(server.get(&blob, &with(version)).await.outcome(), read, "{version}");
        assert_eq!(server.put(&blob, &with(version), "").await.outcome(), write, "{version}");
    }
    let there = server.put("/con/2012-02-12", &with("2012-02-12"), "").await;
    there.refused(412, "LeaseNotPresentWithBlobOperation");
}
