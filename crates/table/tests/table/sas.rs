//! Shared access signatures: permissions, table, range of keys and stored policy, for operations alone and in
//! batches.

use lazuli_auth::sign::{self, Resource};
use lazuli_protocol::ServiceKind;
use lazuli_testing::{ACCOUNT, Reply, key};

use crate::batch::{BATCH, Operation, ReplyPart, change_set, parts, query};
use crate::support::{JSON, Server, at, create, insert, start};

const LATER: &str = "2026-06-01T00:00:00Z";

/// Returns a signature for a table, with additional fields.
fn table_sas(table: &str, fields: &[(&str, &str)]) -> String {
    let name = table.to_ascii_lowercase();
    let resource = Resource { service: ServiceKind::Table, account: ACCOUNT, path: &name, timestamp: "" };
    let mut all = vec![("sv", "2019-02-02"), ("tn", table)];
    all.extend(fields);
    sign::service_sas(&resource, &key(), &all)
}

fn letters(sp: &str) -> String {
    table_sas("people", &[("se", LATER), ("sp", sp)])
}

fn account_sas(srt: &str, sp: &str) -> String {
    let fields = [("sv", "2019-02-02"), ("ss", "t"), ("srt", srt), ("sp", sp), ("se", LATER)];
    sign::account_sas(ACCOUNT, &key(), &fields)
}

async fn alone(server: &Server, sas: &str, (line, headers, body): Operation<'_>) -> Reply {
    let (method, target) = line.split_once(' ').unwrap();
    server.send(method, &format!("{target}?{sas}"), headers, body.to_owned()).await
}

async fn batch(server: &Server, sas: &str, operations: &[Operation<'_>]) -> Vec<ReplyPart> {
    parts(server.send("POST", &format!("/$batch?{sas}"), BATCH, change_set(operations)).await)
}

async fn batched_get(server: &Server, sas: &str, target: &str) -> (u16, String) {
    let reply = server.send("POST", &format!("/$batch?{sas}"), BATCH, query(target)).await;
    parts(reply).remove(0).outcome()
}

/// Sends each operation alone and in a batch, with every combination of permissions that matters.
#[tokio::test]
async fn each_operation_needs_its_permissions_alone_and_in_a_batch() {
    let server = start().await;
    insert(&server, "p", "here", "").await;
    let here = at("p", "here");
    let any = &format!("{JSON}\nif-match: *");
    let new = r#"{"PartitionKey":"p","RowKey":"new"}"#;
    for sp in ["r", "a", "u", "d", "au", "rad", "raud"] {
        for sas in [letters(sp), account_sas("o", sp)] {
            for (line, headers, body, needed, status) in [
                ("POST /people", JSON, new, "a", 201),
                (&format!("PUT {here}"), any, "{}", "u", 204),
                (&format!("PUT {here}"), JSON, "{}", "au", 204),
                (&format!("MERGE {here}"), any, "{}", "u", 204),
                (&format!("PATCH {here}"), JSON, "{}", "au", 204),
                (&format!("DELETE {}", at("p", "doomed")), any, "", "d", 204),
            ] {
                let case = format!("{sp} {line} {headers}");
                let allowed = needed.chars().all(|letter| sp.contains(letter));
                let expected = if allowed { (status, "") } else { (403, "AuthorizationPermissionMismatch") };
                for batched in [false, true] {
                    server.delete(&at("p", "new"), "if-match: *").await;
                    server.put(&at("p", "doomed"), JSON, "{}").await.expect(204);
                    let operation = (line, headers, body);
                    if batched {
                        let parts = batch(&server, &sas, &[operation]).await;
                        let (status, code) = parts[0].outcome();
                        assert_eq!(
                            (parts.len(), status, code.as_str()),
                            (1, expected.0, expected.1),
                            "{case}"
                        );
                    } else {
                        assert_eq!(alone(&server, &sas, operation).await.outcome(), expected, "{case}");
                    }
                }
            }
            let expected =
                if sp.contains('r') { (200, "") } else { (403, "AuthorizationPermissionMismatch") };
            for target in [here.as_str(), "/people()"] {
                let get = alone(&server, &sas, (&format!("GET {target}"), JSON, "")).await;
                assert_eq!(get.outcome(), expected, "{sp} GET {target}");
                let (status, code) = batched_get(&server, &sas, target).await;
                assert_eq!((status, code.as_str()), expected, "{sp} batched GET {target}");
            }
        }
    }
}

#[tokio::test]
async fn operation_without_permission_fails_the_batch_with_its_index() {
    let server = start().await;
    insert(&server, "p", "here", "").await;
    let new = r#"{"PartitionKey":"p","RowKey":"new"}"#;
    let delete = format!("DELETE {}", at("p", "here"));
    let operations = [("POST /people", JSON, new), (delete.as_str(), "if-match: *", "")];
    let refused = batch(&server, &letters("ra"), &operations).await;
    assert_eq!(refused[0].outcome(), (403, "AuthorizationPermissionMismatch".to_owned()));
    assert!(refused[0].message().starts_with("1:"), "{}", refused[0].message());
    server.get(&at("p", "new"), JSON).await.refused(404, "ResourceNotFound");
    server.get(&at("p", "here"), JSON).await.expect(200);
    let done = batch(&server, &letters("ad"), &operations).await;
    assert_eq!(done.iter().map(|part| part.status).collect::<Vec<_>>(), [201, 204]);
}

#[tokio::test]
async fn table_signature_allows_neither_other_tables_nor_operations_on_tables() {
    let server = start().await;
    create(&server, "other").await;
    let entity = r#"{"PartitionKey":"p","RowKey":"r"}"#;
    let sas = letters("raud");
    alone(&server, &sas, ("POST /other", JSON, entity)).await.refused(403, "AuthenticationFailed");
    for line in ["POST /other", "DELETE /other(PartitionKey='p',RowKey='r')"] {
        let refused = batch(&server, &sas, &[(line, "if-match: *", entity)]).await;
        assert_eq!(refused[0].outcome(), (403, "AuthorizationFailure".to_owned()), "{line}");
    }
    let other = "/other(PartitionKey='p',RowKey='r')";
    assert_eq!(batched_get(&server, &sas, other).await, (403, "AuthorizationFailure".to_owned()));
    // Case is ignored in the names of tables, both in the address and in the signature.
    let upper = table_sas("PEOPLE", &[("se", LATER), ("sp", "raud")]);
    alone(&server, &upper, ("POST /People", JSON, entity)).await.expect(201);
    let line = format!("DELETE {}", at("p", "r").replace("people", "peoplE"));
    assert_eq!(batch(&server, &upper, &[(&line, "if-match: *", "")]).await[0].status, 204);

    for line in ["POST /Tables", "DELETE /Tables('people')", "GET /Tables"] {
        let refused = alone(&server, &sas, (line, JSON, r#"{"TableName":"more"}"#)).await;
        assert_eq!(refused.status, 403, "{line}");
    }
    let refused = server.send("GET", &format!("/people?comp=acl&{sas}"), "", "").await;
    assert_eq!(refused.outcome(), (403, "AuthorizationFailure"));
}

#[tokio::test]
async fn key_range_refuses_writes_outside_and_hides_other_entities() {
    let server = start().await;
    let range = [("spk", "b"), ("srk", "5"), ("epk", "d"), ("erk", "5"), ("se", LATER), ("sp", "raud")];
    let sas = table_sas("people", &range);
    let listed_rows = |text: &str| text.matches("\"RowKey\"").count();
    for (partition, row, inside) in [
        ("a", "9", false),
        ("b", "4", false),
        ("b", "5", true),
        ("c", "", true),
        ("d", "5", true),
        ("d", "50", false),
        ("e", "0", false),
    ] {
        let case = format!("{partition} {row}");
        let target = at(partition, row);
        insert(&server, partition, row, "").await;
        let (read, written) = match inside {
            true => ((200, ""), (204, "")),
            false => ((404, "ResourceNotFound"), (403, "AuthorizationPermissionMismatch")),
        };
        let get = alone(&server, &sas, (&format!("GET {target}"), JSON, "")).await;
        assert_eq!(get.outcome(), read, "{case}");
        let (status, code) = batched_get(&server, &sas, &target).await;
        assert_eq!((status, code.as_str()), read, "{case}");
        let listed = alone(&server, &sas, ("GET /people()", JSON, "")).await.expect(200);
        assert_eq!(listed_rows(listed.text()), usize::from(inside), "{case}");
        let reply = server.send("POST", &format!("/$batch?{sas}"), BATCH, query("/people()")).await;
        assert_eq!(listed_rows(&parts(reply)[0].text), usize::from(inside), "{case}");
        for (method, body) in [("PUT", "{}"), ("MERGE", "{}"), ("DELETE", "")] {
            let line = format!("{method} {target}");
            let any = format!("{JSON}\nif-match: *");
            let parts = batch(&server, &sas, &[(&line, &any, body)]).await;
            let (status, code) = parts[0].outcome();
            assert_eq!((status, code.as_str()), written, "{case} {method}");
            if method != "DELETE" {
                assert_eq!(alone(&server, &sas, (&line, &any, body)).await.outcome(), written, "{case}");
            }
        }
        server.delete(&target, "if-match: *").await;
        let entity = format!(r#"{{"PartitionKey":"{partition}","RowKey":"{row}"}}"#);
        let inserted = alone(&server, &sas, ("POST /people", JSON, &entity)).await;
        assert_eq!(inserted.status.as_u16(), if inside { 201 } else { 403 }, "{case}");
        server.delete(&target, "if-match: *").await;
    }
}

#[tokio::test]
async fn stored_policy_applies_until_it_changes_or_expires() {
    let server = start().await;
    let policy = |letters: &str| {
        format!(
            "<SignedIdentifiers><SignedIdentifier><Id>one</Id><AccessPolicy>\
             <Expiry>2026-01-02T04:00:00Z</Expiry><Permission>{letters}</Permission></AccessPolicy>\
             </SignedIdentifier></SignedIdentifiers>"
        )
    };
    server.signed("PUT", "/people?comp=acl", "", policy("ra")).await.expect(204);
    let sas = table_sas("people", &[("si", "one")]);
    let entity = |row: &str| format!(r#"{{"PartitionKey":"p","RowKey":"{row}"}}"#);
    alone(&server, &sas, ("POST /people", JSON, &entity("a"))).await.expect(201);
    assert_eq!(batch(&server, &sas, &[("POST /people", JSON, &entity("b"))]).await[0].status, 201);
    let delete = format!("DELETE {}", at("p", "a"));
    let mismatch = (403, "AuthorizationPermissionMismatch");
    assert_eq!(alone(&server, &sas, (&delete, "if-match: *", "")).await.outcome(), mismatch);
    let refused = batch(&server, &sas, &[(&delete, "if-match: *", "")]).await;
    assert_eq!(refused[0].outcome(), (mismatch.0, mismatch.1.to_owned()));

    server.signed("PUT", "/people?comp=acl", "", policy("d")).await.expect(204);
    assert_eq!(batch(&server, &sas, &[(&delete, "if-match: *", "")]).await[0].status, 204);
    server.advance(3600);
    let over = server.send("POST", &format!("/$batch?{sas}"), BATCH, change_set(&[])).await;
    assert_eq!(over.outcome(), (403, "AuthenticationFailed"));
    let unknown = table_sas("people", &[("si", "two")]);
    alone(&server, &unknown, (&format!("GET {}", at("p", "b")), JSON, "")).await.expect(403);
}

#[tokio::test]
async fn unauthenticated_batch_is_refused_as_a_whole() {
    let server = start().await;
    let body = change_set(&[("POST /people", JSON, r#"{"PartitionKey":"p","RowKey":"r"}"#)]);
    let forged = letters("raud").replace("sp=raud", "sp=ra");
    for (sas, status, code) in [
        (String::new(), 401, "NoAuthenticationInformation"),
        (forged, 403, "AuthenticationFailed"),
        (table_sas("people", &[("se", "2026-01-01T00:00:00Z"), ("sp", "raud")]), 403, "AuthenticationFailed"),
        (account_sas("sc", "raud"), 403, "AuthorizationResourceTypeMismatch"),
    ] {
        let reply = server.send("POST", &format!("/$batch?{sas}"), BATCH, body.clone()).await;
        assert_eq!(reply.outcome(), (status, code), "{sas}");
    }
    server.get(&at("p", "r"), JSON).await.refused(404, "ResourceNotFound");
    // The account key allows everything.
    let parts = parts(server.signed("POST", "/$batch", BATCH, body).await);
    assert_eq!(parts[0].status, 201);
}

#[tokio::test]
async fn credentials_of_single_operations_in_a_batch_are_checked() {
    let server = start().await;
    let sas = letters("ra");
    let body = |row: &str| format!(r#"{{"PartitionKey":"p","RowKey":"{row}"}}"#);
    for (row, part, headers, expected) in [
        ("same", sas.clone(), "", (201, "")),
        ("wrong", sas.replace("sig=", "sig=AAAA"), "", (403, "AuthenticationFailed")),
        ("other", table_sas("other", &[("se", LATER), ("sp", "ra")]), "", (403, "AuthenticationFailed")),
        ("less", letters("r"), "", (403, "AuthorizationPermissionMismatch")),
        ("header", String::new(), "authorization: SharedKey lapis:c2ln", (403, "AuthenticationFailed")),
        ("scheme", String::new(), "authorization: Basic YTpi", (400, "InvalidAuthenticationInfo")),
    ] {
        let line = format!("POST /people?{part}");
        let headers = format!("{JSON}\n{headers}");
        let replies = batch(&server, &sas, &[(&line, headers.as_str(), &body(row))]).await;
        let (status, code) = replies[0].outcome();
        assert_eq!((status, code.as_str()), expected, "{row}");
        let found = if expected.0 == 201 { 200 } else { 404 };
        server.get(&at("p", row), JSON).await.expect(found);
    }
    let (status, code) = batched_get(&server, &sas, &format!("/people?{}", letters("a"))).await;
    assert_eq!((status, code.as_str()), (403, "AuthorizationPermissionMismatch"));
    assert_eq!(batched_get(&server, &sas, &format!("/people?{sas}")).await.0, 200);
}

#[tokio::test]
async fn operation_in_a_batch_is_limited_by_its_own_signature_and_that_of_the_batch() {
    let server = start().await;
    let ranged = |partition| {
        table_sas("people", &[("se", LATER), ("sp", "ra"), ("spk", partition), ("epk", partition)])
    };
    let (all, p, q) = (letters("ra"), ranged("p"), ranged("q"));
    for (index, (of_all, own, expected)) in
        [(&all, &p, 201), (&p, &all, 201), (&p, &p, 201), (&all, &q, 403), (&p, &q, 403), (&q, &p, 403)]
            .into_iter()
            .enumerate()
    {
        let body = format!(r#"{{"PartitionKey":"p","RowKey":"{index}"}}"#);
        let replies = batch(&server, of_all, &[(&format!("POST /people?{own}"), JSON, &body)]).await;
        assert_eq!(replies[0].status, expected, "insert {index}");
    }
    for (index, (of_all, own, expected)) in
        [(&all, &p, 200), (&p, &all, 200), (&p, &p, 200), (&all, &q, 404), (&p, &q, 403), (&q, &p, 403)]
            .into_iter()
            .enumerate()
    {
        let target = format!("{}?{own}", at("p", "0"));
        assert_eq!(batched_get(&server, of_all, &target).await.0, expected, "get {index}");
    }
}

/// Operations on tables that a signature with only the permission `c` can allow.
#[tokio::test]
async fn create_permission_alone_never_changes_an_existing_table() {
    use lazuli_protocol::Operation;
    let server = start().await;
    insert(&server, "p", "here", r#""A":1"#).await;
    let sas = account_sas("sco", "c");
    let before = server.get(&at("p", "here"), JSON).await.expect(200).body;
    for operation in Operation::ALL.iter().filter(|operation| operation.service() == ServiceKind::Table) {
        let row = operation.row();
        if ![row.account_sas, row.service_sas].iter().any(|needed| needed.granted_by("c")) {
            continue;
        }
        match operation {
            Operation::PreflightTableRequest => {}
            Operation::CreateTable => {
                let again = ("POST /Tables", JSON, r#"{"TableName":"people"}"#);
                let reply = alone(&server, &sas, again).await.expect(409);
                assert!(reply.text().contains("TableAlreadyExists"), "{}", reply.text());
            }
            Operation::EntityGroupTransaction => {
                let here = at("p", "here");
                let new = r#"{"PartitionKey":"p","RowKey":"new"}"#;
                for (line, headers, body) in [
                    ("POST /people".to_owned(), "", new),
                    (format!("PUT {here}"), "", r#"{"A":2}"#),
                    (format!("PUT {here}"), "if-match: *", r#"{"A":2}"#),
                    (format!("MERGE {here}"), "", r#"{"A":2}"#),
                    (format!("DELETE {here}"), "if-match: *", ""),
                ] {
                    let headers = format!("{JSON}\n{headers}");
                    let replies = batch(&server, &sas, &[(&line, headers.as_str(), body)]).await;
                    let refused = (403, "AuthorizationPermissionMismatch".to_owned());
                    assert_eq!(replies[0].outcome(), refused, "{line}");
                }
                server.get(&at("p", "new"), JSON).await.expect(404);
            }
            other => panic!("{other:?} has no row here"),
        }
        assert_eq!(server.get(&at("p", "here"), JSON).await.expect(200).body, before, "{operation:?}");
    }
}
