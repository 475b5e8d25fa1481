//! Insert, update, merge, upsert and delete, one entity at a time.

use crate::support::{JSON, at, insert, start};

const STALE: &str = "W/\"datetime'2012-06-15T22%3A51%3A44.9662825Z'\"";

/// For each verb and `If-Match`: the result if the entity exists, and if it does not.
#[tokio::test]
async fn every_verb_obeys_its_condition() {
    let server = start().await;
    let absent = (204, "");
    let missing = (404, "ResourceNotFound");
    let unsatisfied = (412, "UpdateConditionNotSatisfied");
    for (verb, condition, exists, not_there) in [
        ("PUT", "", (204, ""), absent),
        ("PUT", "*", (204, ""), missing),
        ("PUT", "current", (204, ""), missing),
        ("PUT", STALE, unsatisfied, missing),
        ("MERGE", "", (204, ""), absent),
        ("MERGE", "*", (204, ""), missing),
        ("PATCH", "current", (204, ""), missing),
        ("PATCH", STALE, unsatisfied, missing),
        ("DELETE", "", (400, "MissingRequiredHeader"), (400, "MissingRequiredHeader")),
        ("DELETE", "*", (204, ""), missing),
        ("DELETE", "current", (204, ""), missing),
        ("DELETE", STALE, unsatisfied, missing),
        ("DELETE", "W/\"0x5B168C7B6E589D2\"", unsatisfied, missing),
        ("DELETE", "nonsense", (400, "InvalidInput"), (400, "InvalidInput")),
        ("PUT", "nonsense", (400, "InvalidInput"), (400, "InvalidInput")),
    ] {
        let case = format!("{verb} {condition}");
        let tag = insert(&server, "p", "here", r#""A":1,"B":2"#).await;
        for (row, expected) in [("here", exists), ("gone", not_there)] {
            let headers = match condition {
                "" => JSON.to_owned(),
                "current" => format!("{JSON}\nif-match: {tag}"),
                other => format!("{JSON}\nif-match: {other}"),
            };
            let body = if verb == "DELETE" { "" } else { r#"{"B":3}"# };
            let reply = server.call(verb, &at("p", row), &headers, body).await;
            assert_eq!(reply.outcome(), expected, "{case} {row}");
            if reply.status == 204 && verb != "DELETE" {
                let found = server.get(&at("p", row), JSON).await.expect(200);
                assert_eq!(found.etag(), reply.etag(), "{case}");
                assert_ne!(found.etag(), tag, "{case}");
                let has_a = found.text().contains(r#""A":1"#);
                assert_eq!(has_a, row == "here" && verb != "PUT", "{case}: {}", found.text());
                assert!(found.text().contains(r#""B":3"#), "{case}");
            }
            server.delete(&at("p", row), "if-match: *").await;
        }
    }
}

#[tokio::test]
async fn entity_is_inserted_once_and_returned_as_sent() {
    let server = start().await;
    let body = concat!(
        r#"{"PartitionKey":"it's","RowKey":"r 1","S":"ä\n","L":"5","L@odata.type":"Edm.Int64","D":5.0,"N":null,"#,
        r#""T":"2013-08-02T17:37:43.9004348Z","T@odata.type":"Edm.DateTime","#,
        r#""Timestamp":"2001-01-01T00:00:00Z"}"#
    );
    let created = server.post("/people", JSON, body).await.expect(201);
    let link = format!("http://{}/lapis/people(PartitionKey='it%27%27s',RowKey='r%201')", server.address);
    assert_eq!(created.header("location"), Some(link.as_str()));
    assert_eq!(created.header("dataserviceid"), Some(link.as_str()));
    let found = server.get(&at("it%27%27s", "r%201"), JSON).await.expect(200);
    assert_eq!(found.text(), created.text());
    assert_eq!(found.etag(), created.etag());
    let properties = concat!(
        r#""S":"ä\n","L@odata.type":"Edm.Int64","L":"5","D":5.0,"#,
        r#""T@odata.type":"Edm.DateTime","T":"2013-08-02T17:37:43.9004348Z"}"#
    );
    assert!(found.text().ends_with(properties), "{}", found.text());
    assert!(found.text().contains(r#""Timestamp":"2026-01-02T"#), "{}", found.text());
    server.post("/people", JSON, body).await.refused(409, "EntityAlreadyExists");
}

#[tokio::test]
async fn every_change_has_its_own_etag_even_while_the_clock_stands_still() {
    let server = start().await;
    let mut tags = vec![insert(&server, "p", "r", "").await];
    for _ in 0..20 {
        let reply = server.put(&at("p", "r"), JSON, r#"{"A":1}"#).await.expect(204);
        assert!(!tags.contains(&reply.etag().to_owned()));
        tags.push(reply.etag().to_owned());
    }
}

#[tokio::test]
async fn invalid_entities_are_refused_and_nothing_is_stored() {
    let server = start().await;
    let keys = r#""PartitionKey":"p","RowKey":"r""#;
    let many: Vec<String> = (0..253).map(|i| format!(r#""P{i}":1"#)).collect();
    let big: Vec<String> = (0..17).map(|i| format!(r#""P{i}":"{}""#, "x".repeat(32 << 10))).collect();
    for (body, status, code) in [
        ("{".to_owned(), 400, "InvalidInput"),
        (r#"{"PartitionKey":"p"}"#.into(), 400, "PropertiesNeedValue"),
        (r#"{"PartitionKey":null,"RowKey":"r"}"#.into(), 400, "PropertiesNeedValue"),
        (r#"{"PartitionKey":"a/b","RowKey":"r"}"#.into(), 400, "OutOfRangeInput"),
        (format!(r#"{{{keys},"A":1,"A":2}}"#), 400, "DuplicatePropertiesSpecified"),
        (format!(r#"{{{keys},"A-B":1}}"#), 400, "PropertyNameInvalid"),
        (format!(r#"{{{keys},"{}":1}}"#, "x".repeat(256)), 400, "PropertyNameTooLong"),
        (format!(r#"{{{keys},"A":"{}"}}"#, "x".repeat((32 << 10) + 1)), 400, "PropertyValueTooLarge"),
        (format!(r#"{{{keys},{}}}"#, many.join(",")), 400, "TooManyProperties"),
        (format!(r#"{{{keys},{}}}"#, big.join(",")), 400, "EntityTooLarge"),
        (format!(r#"{{{keys},"A":"x","A@odata.type":"Edm.Guid"}}"#), 400, "InvalidInput"),
        (" ".repeat((4 << 20) + 1), 413, "RequestBodyTooLarge"),
    ] {
        server.post("/people", JSON, body).await.refused(status, code);
    }
    let other = r#"{"PartitionKey":"q","RowKey":"r"}"#;
    server.put(&at("p", "r"), JSON, other).await.refused(400, "InvalidInput");
    server.get(&at("p", "r"), JSON).await.refused(404, "ResourceNotFound");
    server.post("/nobody", JSON, format!("{{{keys}}}")).await.refused(404, "TableNotFound");
    let atom = "content-type: application/atom+xml";
    server.post("/people", atom, "<entry/>").await.refused(415, "AtomFormatNotSupported");
}

#[tokio::test]
async fn inserted_keys_are_strings_and_other_writes_must_match_the_address() {
    let server = start().await;
    let typed =
        r#"{"PartitionKey":"2022-04-01T09:30:45Z","PartitionKey@odata.type":"Edm.DateTime","RowKey":5}"#;
    server.post("/people", JSON, typed).await.refused(400, "InvalidInput");
    for verb in ["PUT", "MERGE"] {
        server.call(verb, &at("2022-04-01T09:30:45Z", "5"), JSON, typed).await.expect(204);
        let other = r#"{"PartitionKey":"other"}"#;
        server.call(verb, &at("p", "5"), JSON, other).await.refused(400, "InvalidInput");
    }
    let found = server.get(&at("2022-04-01T09:30:45Z", "5"), JSON).await.expect(200);
    assert!(found.text().contains(r#""RowKey":"5""#), "{}", found.text());
}

/// Requests of clients whose configured service address ends with a table.
#[tokio::test]
async fn address_that_continues_after_a_table_names_that_table() {
    let server = start().await;
    let table = r#"{"TableName":"people"}"#;
    server.post("/people/Tables", JSON, table).await.refused(400, "PropertiesNeedValue");
    server.post("/nobody/Tables", JSON, table).await.refused(404, "TableNotFound");
    let many = "content-type: multipart/mixed; boundary=b";
    server.post("/people/$batch", many, "--b--").await.refused(415, "MediaTypeNotSupported");
    let reply = server.delete("/people/Tables('people')", "").await.refused(400, "InvalidInput");
    assert!(reply.text().contains("does not match number of key properties"), "{}", reply.text());
    server.delete("/nobody/Tables('nobody')", "").await.refused(404, "TableNotFound");
    server.get("/people/Tables", JSON).await.refused(400, "InvalidInput");
}

#[tokio::test]
async fn errors_are_rendered_as_odata_json() {
    let server = start().await;
    let reply = server.get(&at("p", "r"), JSON).await.expect(404);
    assert!(reply.header("content-type").unwrap().starts_with("application/json"));
    assert!(
        reply.text().starts_with(r#"{"odata.error":{"code":"ResourceNotFound","message":{"lang":"en-US","#)
    );
}

#[tokio::test]
async fn verbs_can_be_tunneled_through_post() {
    let server = start().await;
    insert(&server, "p", "r", r#""A":1"#).await;
    let tunnel = |verb: &str| format!("{JSON}\nif-match: *\nx-http-method: {verb}");
    server.post(&at("p", "r"), &tunnel("MERGE"), r#"{"B":2}"#).await.expect(204);
    let found = server.get(&at("p", "r"), JSON).await.expect(200);
    assert!(found.text().ends_with(r#""A":1,"B":2}"#), "{}", found.text());
    server.post(&at("p", "r"), &tunnel("DELETE"), "").await.expect(204);
    server.get(&at("p", "r"), JSON).await.refused(404, "ResourceNotFound");
}

#[tokio::test]
async fn entity_survives_a_restart_with_the_same_etag() {
    let server = start().await;
    let tag = insert(&server, "p", "r", r#""A":1"#).await;
    let server = server.restart().await;
    assert_eq!(server.get(&at("p", "r"), JSON).await.expect(200).etag(), tag);
}
