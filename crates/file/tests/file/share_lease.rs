//! Lease Share, and operations on leased shares and snapshots: every cell of the specification's tables.

use lazuli_testing::Reply;

use crate::support::{Server, start};

const A: &str = "aaaaaaaa-0000-4000-8000-00000000000a";
const B: &str = "bbbbbbbb-0000-4000-8000-00000000000b";
const C: &str = "cccccccc-0000-4000-8000-00000000000c";

const STATES: [&str; 5] = ["available", "leased", "breaking", "broken", "expired"];

/// Makes headers from `name=value` words, each without its `x-ms-`. A, B and C stand for the ids.
fn headers(words: &str) -> String {
    let line = |word: &str| {
        let (name, value) = word.split_once('=').unwrap();
        let value = match value {
            "A" => A,
            "B" => B,
            "C" => C,
            other => other,
        };
        format!("x-ms-{name}: {value}\n")
    };
    words.split_whitespace().map(line).collect()
}

async fn lease(server: &Server, share: &str, words: &str) -> Reply {
    server.put(&format!("{share}&comp=lease"), &headers(words), "").await
}

/// Brings the lease of a share or snapshot, with the id A, to the given state.
async fn bring_to(server: &Server, share: &str, state: &str) {
    let acquire = "lease-action=acquire proposed-lease-id=A lease-duration";
    let steps = match state {
        "available" => vec![],
        "leased" => vec![format!("{acquire}=60")],
        "breaking" => vec![format!("{acquire}=-1"), "lease-action=break lease-break-period=40".to_owned()],
        "broken" => vec![format!("{acquire}=-1"), "lease-action=break lease-break-period=0".to_owned()],
        "expired" => vec![format!("{acquire}=15")],
        _ => panic!("{state}"),
    };
    for step in steps {
        assert!(lease(server, share, &step).await.status.is_success(), "{step}");
    }
    if state == "expired" {
        server.advance(15);
    }
    assert_eq!(lease_state(server, share).await, state);
}

async fn lease_state(server: &Server, share: &str) -> String {
    let head = server.call("HEAD", share, "", "").await.expect(200);
    let state = head.header("x-ms-lease-state").unwrap();
    let locked = if matches!(state, "leased" | "breaking") { "locked" } else { "unlocked" };
    assert_eq!(head.header("x-ms-lease-status"), Some(locked));
    assert_eq!(head.header("x-ms-lease-duration").is_some(), state == "leased");
    state.to_owned()
}

/// Creates a share of that name and a snapshot of another share, and returns both for leasing.
async fn share_and_snapshot(server: &Server, name: &str) -> [String; 2] {
    let mut things = [format!("/{name}-s?restype=share"), format!("/{name}-t?restype=share")];
    for share in &things {
        server.put(share, "", "").await.expect(201);
    }
    let taken = server.put(&format!("{}&comp=snapshot", things[1]), "", "").await.expect(201);
    things[1] += &format!("&sharesnapshot={}", taken.header("x-ms-snapshot").unwrap());
    things
}

#[tokio::test]
async fn lease_actions_follow_the_state_table() {
    const TAKEN: &str = "409 LeaseAlreadyPresent";
    const MISMATCH: &str = "409 LeaseIdMismatchWithLeaseOperation";
    const NONE: &str = "409 LeaseNotPresentWithLeaseOperation";
    const NO_ACQUIRE: &str = "409 LeaseIsBreakingAndCannotBeAcquired";
    const NO_CHANGE: &str = "409 LeaseIsBreakingAndCannotBeChanged";
    const NO_RENEW: &str = "409 LeaseIsBrokenAndCannotBeRenewed";
    const FREE: &str = "200 available";
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
        ("lease-action=release lease-id=A", [MISMATCH, FREE, FREE, FREE, FREE]),
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
    let server = start().await;
    for (row, (words, cells)) in table.iter().enumerate() {
        for (state, expected) in STATES.iter().zip(cells) {
            for share in share_and_snapshot(&server, &format!("s{row}-{state}")).await {
                bring_to(&server, &share, state).await;
                let before = server.call("HEAD", &share, "", "").await;
                let reply = lease(&server, &share, words).await;
                let case = format!("{words} on {state} {share}");
                let status = reply.status.as_u16();
                if let Some(code) = reply.header("x-ms-error-code") {
                    assert_eq!(format!("{status} {code}"), *expected, "{case}");
                    assert_eq!(lease_state(&server, &share).await, *state, "{case}");
                    continue;
                }
                let mut outcome = format!("{status} {}", lease_state(&server, &share).await);
                match (reply.header("x-ms-lease-id"), reply.header("x-ms-lease-time")) {
                    (Some(A), None) => outcome += " A",
                    (Some(B), None) => outcome += " B",
                    (Some(generated), None) => assert!(generated.len() == 36 && words.contains("acquire")),
                    (None, Some(seconds)) => outcome += &format!(" {seconds}"),
                    (None, None) => assert!(words.contains("release"), "{case}"),
                    (Some(_), Some(_)) => panic!("{case}"),
                }
                assert_eq!(outcome, *expected, "{case}");
                assert_eq!(reply.etag(), before.etag(), "{case}: no action changes the tag");
                assert_eq!(reply.header("last-modified"), before.header("last-modified"), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn leased_share_is_changed_only_by_its_holder_and_read_by_all() {
    const MISSING: &str = "412 LeaseIdMissing";
    const MISMATCH: &str = "412 LeaseIdMismatchWithContainerOperation";
    const NONE: &str = "412 LeaseNotPresentWithContainerOperation";
    const LOST: &str = "412 LeaseLost";
    // Columns: available, leased, breaking, broken, expired.
    let ids = [
        ("", ["ok", MISSING, MISSING, "ok", "ok"]),
        ("lease-id=A", [NONE, "ok", "ok", LOST, LOST]),
        ("lease-id=B", [NONE, MISMATCH, MISMATCH, LOST, LOST]),
    ];
    let writes = [
        ("PUT", "&comp=properties", "share-quota=7", 200),
        ("PUT", "&comp=metadata", "meta-a=b", 200),
        ("DELETE", "", "", 202),
    ];
    let server = start().await;
    let mut made = 0;
    for (method, query, words, success) in writes {
        for (id, cells) in ids {
            for (state, expected) in STATES.iter().zip(cells) {
                made += 1;
                let share = format!("/used{made}?restype=share");
                server.put(&share, "", "").await.expect(201);
                bring_to(&server, &share, state).await;
                let sent = headers(&format!("{words} {id}"));
                let reply = server.call(method, &format!("{share}{query}"), &sent, "").await;
                let outcome = match reply.header("x-ms-error-code") {
                    Some(code) => format!("{} {code}", reply.status.as_u16()),
                    None => {
                        assert_eq!(reply.status.as_u16(), success);
                        "ok".to_owned()
                    }
                };
                assert_eq!(outcome, expected, "{method} {query} with {id:?} on {state}");
            }
        }
    }
    let policies = "/used-acl?restype=share";
    server.put(policies, "", "").await.expect(201);
    bring_to(&server, policies, "leased").await;
    let set = |id: &'static str| {
        let (server, words) = (&server, headers(id));
        async move { server.signed("PUT", "/used-acl?restype=share&comp=acl", &words, "").await }
    };
    set("").await.refused(412, "LeaseIdMissing");
    set("lease-id=B").await.refused(412, "LeaseIdMismatchWithContainerOperation");
    set("lease-id=A").await.expect(200);
    let share = "/read?restype=share";
    server.put(share, "", "").await.expect(201);
    bring_to(&server, share, "leased").await;
    for query in ["", "&comp=metadata", "&comp=stats"] {
        server.get(&format!("{share}{query}"), "").await.expect(200);
        server.get(&format!("{share}{query}"), &headers("lease-id=A")).await.expect(200);
        let other = server.get(&format!("{share}{query}"), &headers("lease-id=B")).await;
        other.refused(412, "LeaseIdMismatchWithContainerOperation");
    }
    // A share's lease does not protect its files.
    let file = "x-ms-type: file\nx-ms-content-length: 1";
    server.put("/read/f", file, "").await.expect(201);
}

#[tokio::test]
async fn bad_lease_requests_are_refused() {
    let server = start().await;
    for (words, code) in [
        ("lease-action=acquire", "MissingRequiredHeader"),
        ("lease-action=acquire lease-duration=14", "InvalidHeaderValue"),
        ("lease-action=acquire lease-duration=15 proposed-lease-id=x", "InvalidHeaderValue"),
        ("lease-action=break lease-break-period=61", "InvalidHeaderValue"),
        ("lease-action=steal", "InvalidHeaderValue"),
        ("", "MissingRequiredHeader"),
    ] {
        lease(&server, "/docs?restype=share", words).await.refused(400, code);
    }
    let acquire = "lease-action=acquire lease-duration=15";
    lease(&server, "/none?restype=share", acquire).await.refused(404, "ShareNotFound");
    let unknown = "/docs?restype=share&sharesnapshot=2026-01-01T00:00:00.0000000Z";
    lease(&server, unknown, acquire).await.refused(404, "ShareNotFound");
    let stale = format!("{}if-match: \"0x1\"", headers(acquire));
    server.put("/docs?restype=share&comp=lease", &stale, "").await.refused(412, "ConditionNotMet");
    assert_eq!(lease_state(&server, "/docs?restype=share").await, "available");
}
