//! Shared access signatures: account signatures, queue signatures, and stored access policies.

use lazuli_auth::sign::{self, Resource};
use lazuli_protocol::ServiceKind;
use lazuli_testing::{ACCOUNT, key};

use crate::support::{Server, body, put, start};

/// Returns the target with a signature for the queue `jobs`.
fn with_queue_sas(target: &str, fields: &[(&str, &str)]) -> String {
    let mut all = vec![("sv", "2022-11-02")];
    all.extend(fields);
    let resource = Resource { service: ServiceKind::Queue, account: ACCOUNT, path: "jobs", timestamp: "" };
    let sas = sign::service_sas(&resource, &key(), &all);
    let separator = if target.contains('?') { '&' } else { '?' };
    format!("{target}{separator}{sas}")
}

/// Returns which operations a signature with the given fields allows: put, peek, get, update, delete.
async fn allowed(server: &Server, fields: &[(&str, &str)]) -> Vec<bool> {
    let held = put(server, "held", "?visibilitytimeout=100").await;
    let (id, receipt) = (&held.id, held.receipt.as_deref().unwrap());
    let message = format!("/jobs/messages/{id}?popreceipt={receipt}");
    let mut allowed = vec![];
    for (method, target, text) in [
        ("POST", "/jobs/messages".to_owned(), body("a")),
        ("GET", "/jobs/messages?peekonly=true".to_owned(), String::new()),
        ("GET", "/jobs/messages".to_owned(), String::new()),
        // An allowed update is refused for its timeout, so that the receipt stays valid.
        ("PUT", format!("{message}&visibilitytimeout=700000"), String::new()),
        ("DELETE", message.clone(), String::new()),
    ] {
        let reply = server.send(method, &with_queue_sas(&target, fields), "", text).await;
        allowed.push(match reply.outcome() {
            (403, code) => {
                assert!(
                    code == "AuthorizationPermissionMismatch" || code == "AuthenticationFailed",
                    "{code}"
                );
                false
            }
            (200 | 201 | 204, _) | (400, "OutOfRangeQueryParameterValue") => true,
            outcome => panic!("{method} {target}: {outcome:?}"),
        });
    }
    allowed
}

#[tokio::test]
async fn each_permission_of_a_queue_signature_allows_its_operations() {
    let server = start().await;
    let expiry = ("se", "2026-02-01T00:00:00Z");
    for (letters, expected) in [
        ("a", [true, false, false, false, false]),
        ("r", [false, true, false, false, false]),
        ("p", [false, false, true, false, true]),
        ("u", [false, false, false, true, false]),
        ("raup", [true; 5]),
    ] {
        assert_eq!(allowed(&server, &[("sp", letters), expiry]).await, expected, "{letters}");
    }
    // A queue signature does not allow operations on queues themselves.
    for (method, target) in [("PUT", "/jobs"), ("DELETE", "/jobs"), ("DELETE", "/jobs/messages")] {
        let target = with_queue_sas(target, &[("sp", "raup"), expiry]);
        assert_eq!(server.send(method, &target, "", "").await.status, 403, "{target}");
    }
}

#[tokio::test]
async fn stored_policy_applies_until_it_is_replaced() {
    let server = start().await;
    let policy = |letters: &str| {
        format!(
            "<SignedIdentifiers><SignedIdentifier><Id>workers</Id><AccessPolicy><Expiry>2026-02-01T00:00:00Z</Expiry>\
             <Permission>{letters}</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>"
        )
    };
    assert_eq!(allowed(&server, &[("si", "workers")]).await, [false; 5]);
    server.signed("PUT", "/jobs?comp=acl", "", policy("rp")).await.expect(204);
    assert_eq!(allowed(&server, &[("si", "workers")]).await, [false, true, true, false, true]);
    assert_eq!(allowed(&server, &[("si", "others")]).await, [false; 5]);
    server.signed("PUT", "/jobs?comp=acl", "", policy("a")).await.expect(204);
    assert_eq!(allowed(&server, &[("si", "workers")]).await, [true, false, false, false, false]);
    server.signed("PUT", "/jobs?comp=acl", "", "").await.expect(204);
    assert_eq!(allowed(&server, &[("si", "workers")]).await, [false; 5]);
}

#[tokio::test]
async fn requests_without_credentials_are_refused() {
    let server = start().await;
    server.send("GET", "/jobs/messages", "", "").await.refused(401, "NoAuthenticationInformation");
}

/// Operations on queues that a signature with only the permission `c` can allow.
#[tokio::test]
async fn create_permission_alone_never_changes_an_existing_queue() {
    use lazuli_protocol::Operation;
    let server = start().await;
    server.put("/jobs?comp=metadata", "x-ms-meta-a: 1", "").await.expect(204);
    let fields =
        [("sv", "2022-11-02"), ("ss", "q"), ("srt", "sco"), ("sp", "c"), ("se", "2099-12-31T00:00:00Z")];
    let sas = sign::account_sas(ACCOUNT, &key(), &fields);
    for operation in Operation::ALL.iter().filter(|operation| operation.service() == ServiceKind::Queue) {
        let row = operation.row();
        if ![row.account_sas, row.service_sas].iter().any(|needed| needed.granted_by("c")) {
            continue;
        }
        match operation {
            Operation::PreflightQueueRequest => {}
            Operation::CreateQueue => {
                let again = server.send("PUT", &format!("/jobs?{sas}"), "x-ms-meta-a: 2", "").await;
                again.refused(409, "QueueAlreadyExists");
                server.send("PUT", &format!("/jobs?{sas}"), "x-ms-meta-a: 1", "").await.expect(204);
            }
            other => panic!("{other:?} has no row here"),
        }
        let found = server.get("/jobs?comp=metadata", "").await.expect(200);
        assert_eq!(found.header("x-ms-meta-a"), Some("1"), "{operation:?}");
    }
}
