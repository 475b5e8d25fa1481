//! Lease File, and lease ids on operations.

use crate::support::{Server, make_file, start, write};

const A: &str = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa";
const B: &str = "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb";
const C: &str = "cccccccc-cccc-cccc-cccc-cccccccccccc";
const STATES: [&str; 3] = ["available", "leased", "broken"];

async fn act(server: &Server, path: &str, headers: &str) -> lazuli_testing::Reply {
    server.put(&format!("/docs/{path}?comp=lease"), &format!("x-ms-lease-action: {headers}"), "").await
}

fn acquire(id: Option<&str>) -> String {
    let proposed = id.map(|id| format!("\nx-ms-proposed-lease-id: {id}")).unwrap_or_default();
    format!("acquire\nx-ms-lease-duration: -1{proposed}")
}

/// Creates a file whose lease, with the id A, is in the given state.
async fn file_in(server: &Server, path: &str, state: &str) {
    make_file(server, path, 10).await;
    if state != "available" {
        act(server, path, &acquire(Some(A))).await.expect(201);
    }
    if state == "broken" {
        act(server, path, "break").await.expect(202);
    }
}

/// Returns the lease's state, status and duration from Get File Properties.
async fn state(server: &Server, path: &str) -> (String, String, Option<String>) {
    let reply = server.call("HEAD", &format!("/docs/{path}"), "", "").await.expect(200);
    let header = |name: &str| reply.header(name).map(str::to_owned);
    (header("x-ms-lease-state").unwrap(), header("x-ms-lease-status").unwrap(), header("x-ms-lease-duration"))
}

#[tokio::test]
async fn lease_actions_answer_as_in_the_table() {
    let server = start().await;
    let change =
        |from: &str, to: &str| format!("change\nx-ms-lease-id: {from}\nx-ms-proposed-lease-id: {to}");
    let release = |id: &str| format!("release\nx-ms-lease-id: {id}");
    let absent = "LeaseNotPresentWithLeaseOperation";
    let wrong = "LeaseIdMismatchWithLeaseOperation";
    let taken = "LeaseAlreadyPresent";
    let rows = [
        (acquire(None), ["201 leased", taken, "201 leased"]),
        (acquire(Some(A)), ["201 leased", "201 leased", "201 leased"]),
        (acquire(Some(B)), ["201 leased", taken, "201 leased"]),
        ("break".to_owned(), [absent, "202 broken", "202 broken"]),
        (change(A, B), [absent, "200 leased", absent]),
        (change(B, A), [absent, "200 leased", absent]),
        (change(B, C), [absent, wrong, absent]),
        (release(A), [wrong, "200 available", "200 available"]),
        (release(B), [wrong, wrong, wrong]),
    ];
    for (row, (action, expected)) in rows.iter().enumerate() {
        for (before, expected) in STATES.iter().zip(expected) {
            let path = format!("{before}{row}");
            file_in(&server, &path, before).await;
            let tag = server.call("HEAD", &format!("/docs/{path}"), "", "").await.etag().to_owned();
            let reply = act(&server, &path, action).await;
            let after = state(&server, &path).await;
            match expected.split_once(' ') {
                Some((status, state)) => {
                    assert_eq!(reply.status.as_u16().to_string(), status, "{before} {action}");
                    assert_eq!(after.0, state, "{before} {action}");
                    assert_eq!(reply.etag(), tag, "{before} {action}");
                    let is_break = action == "break";
                    assert_eq!(reply.header("x-ms-lease-time"), is_break.then_some("0"));
                    let shows_id = action.starts_with("acquire") || action.starts_with("change");
                    assert_eq!(reply.header("x-ms-lease-id").is_some(), shows_id, "{before} {action}");
                }
                None => {
                    assert_eq!(reply.outcome(), (409, *expected), "{before} {action}");
                    assert_eq!(after.0, *before, "{before} {action}");
                }
            }
            let is_leased = after.0 == "leased";
            assert_eq!(after.1, if is_leased { "locked" } else { "unlocked" });
            assert_eq!(after.2.as_deref(), is_leased.then_some("infinite"));
        }
    }
}

#[tokio::test]
async fn operations_on_leased_files_answer_as_in_the_table() {
    let server = start().await;
    let absent = (412, "LeaseNotPresentWithFileOperation");
    let wrong = (412, "LeaseIdMismatchWithFileOperation");
    let lost = (412, "LeaseLost");
    let missing = (412, "LeaseIdMissing");
    let ok = (0, "");
    let rows = [
        (true, Some(A), [absent, ok, lost]),
        (true, Some(B), [absent, wrong, lost]),
        (true, None, [ok, missing, ok]),
        (false, Some(A), [absent, ok, lost]),
        (false, Some(B), [absent, wrong, lost]),
        (false, None, [ok, ok, ok]),
    ];
    let writes = ["create", "metadata", "properties", "range", "delete"];
    let reads = ["get", "head", "get metadata", "ranges"];
    let mut number = 0;
    for (is_write, id, expected) in rows {
        for operation in if is_write { &writes[..] } else { &reads[..] } {
            for (before, expected) in STATES.iter().zip(expected) {
                number += 1;
                let path = format!("f{number}");
                file_in(&server, &path, before).await;
                let id_header = id.map(|id| format!("\nx-ms-lease-id: {id}")).unwrap_or_default();
                let at = |query: &str| format!("/docs/{path}{query}");
                let with = |headers: &str| format!("{headers}{id_header}").trim().to_owned();
                let reply = match *operation {
                    "create" => {
                        server.put(&at(""), &with("x-ms-type: file\nx-ms-content-length: 1"), "").await
                    }
                    "metadata" => server.put(&at("?comp=metadata"), &with("x-ms-meta-a: b"), "").await,
                    "properties" => server.put(&at("?comp=properties"), &with(""), "").await,
                    "range" => {
                        let range = with("x-ms-write: update\nx-ms-range: bytes=0-0");
                        server.put(&at("?comp=range"), &range, "x").await
                    }
                    "delete" => server.delete(&at(""), &with("")).await,
                    "get" => server.get(&at(""), &with("")).await,
                    "head" => server.call("HEAD", &at(""), &with(""), "").await,
                    "get metadata" => server.get(&at("?comp=metadata"), &with("")).await,
                    _ => server.get(&at("?comp=rangelist"), &with("")).await,
                };
                let case = format!("{operation} {id:?} {before}");
                if expected == ok {
                    assert!(reply.status.is_success(), "{case} {reply:?}");
                } else {
                    assert_eq!(reply.outcome(), expected, "{case}");
                }
                // A write without an id makes a broken lease available.
                if *operation != "delete" {
                    let forgets = is_write && id.is_none() && *before == "broken";
                    let after = if forgets { "available" } else { before };
                    assert_eq!(state(&server, &path).await.0, after, "{case}");
                }
            }
        }
    }
}

#[tokio::test]
async fn lease_survives_writes_of_its_holder_and_a_restart() {
    let server = start().await;
    file_in(&server, "f", "leased").await;
    let headers = format!("x-ms-type: file\nx-ms-content-length: 3\nx-ms-lease-id: {A}");
    server.put("/docs/f", &headers, "").await.expect(201);
    let server = server.restart().await;
    server.delete("/docs/f", "").await.refused(412, "LeaseIdMissing");
    act(&server, "f", &format!("release\nx-ms-lease-id: {A}")).await.expect(200);
    write(&server, "f", 0, b"abc").await;
}

#[tokio::test]
async fn versions_without_file_leases_get_no_lease_headers() {
    let server = start().await;
    make_file(&server, "f", 1).await;
    for (path, before, since) in
        [("/docs/f", "2018-11-09", "2019-02-02"), ("/docs?restype=share", "2019-12-12", "2020-02-10")]
    {
        for (version, notice) in [(before, false), (since, true)] {
            for method in ["GET", "HEAD"] {
                let headers = format!("x-ms-version: {version}");
                let reply = server.call(method, path, &headers, "").await.expect(200);
                for name in ["x-ms-lease-status", "x-ms-lease-state"] {
                    assert_eq!(reply.header(name).is_some(), notice, "{method} {path} {version} {name}");
                }
            }
        }
    }
}

#[tokio::test]
async fn bad_lease_requests_are_refused() {
    let server = start().await;
    make_file(&server, "f", 1).await;
    for (headers, code) in [
        ("acquire", "MissingRequiredHeader"),
        ("acquire\nx-ms-lease-duration: 15", "InvalidHeaderValue"),
        ("acquire\nx-ms-lease-duration: -1\nx-ms-proposed-lease-id: x", "InvalidHeaderValue"),
        ("renew\nx-ms-lease-id: aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", "InvalidHeaderValue"),
        ("change", "MissingRequiredHeader"),
        ("seize", "InvalidHeaderValue"),
    ] {
        act(&server, "f", headers).await.refused(400, code);
    }
    act(&server, "no", &acquire(None)).await.refused(404, "ResourceNotFound");
    server.put("/docs/d?restype=directory", "", "").await.expect(201);
    act(&server, "d", &acquire(None)).await.refused(409, "ResourceTypeMismatch");
}
