//! Entity Group Transaction: the multipart formats of clients, atomicity, and invalid batches.

use lazuli_testing::Reply;

use crate::support::{JSON, Server, at, create, insert, start};

pub(crate) const BATCH: &str = "content-type: multipart/mixed; boundary=batch_1";
const STALE: &str = "W/\"datetime'2012-06-15T22%3A51%3A44.9662825Z'\"";

/// An operation of a batch: method and target, header lines, body.
pub(crate) type Operation<'a> = (&'a str, &'a str, &'a str);

/// Returns the body of a batch with a change set of the given operations.
pub(crate) fn change_set(operations: &[Operation<'_>]) -> String {
    let mut body = "--batch_1\r\nContent-Type: multipart/mixed; boundary=changeset_1\r\n\r\n".to_owned();
    for (index, (line, headers, json)) in operations.iter().enumerate() {
        body.push_str(
            "--changeset_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n",
        );
        body.push_str(&format!("Content-ID: {index}\r\n\r\n{line} HTTP/1.1\r\n"));
        for header in headers.lines() {
            body.push_str(&format!("{header}\r\n"));
        }
        body.push_str(&format!("\r\n{json}\r\n"));
    }
    body.push_str("--changeset_1--\r\n\r\n--batch_1--\r\n");
    body
}

/// Returns the body of a batch with one query.
pub(crate) fn query(target: &str) -> String {
    format!(
        "--batch_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n\
         GET {target} HTTP/1.1\r\nAccept: application/json;odata=nometadata\r\n\r\n\r\n--batch_1--\r\n"
    )
}

/// One part of the reply, parsed as clients do.
#[derive(Debug)]
pub(crate) struct ReplyPart {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl ReplyPart {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn body(&self) -> &str {
        let request = self.text.split_once("HTTP/1.1 ").unwrap().1;
        request.split_once("\r\n\r\n").unwrap().1.trim_end()
    }

    /// Returns the status and the error code.
    pub(crate) fn outcome(&self) -> (u16, String) {
        let json = serde_json::from_str::<serde_json::Value>(self.body()).unwrap_or_default();
        (self.status, json["odata.error"]["code"].as_str().unwrap_or_default().to_owned())
    }

    /// Returns the message of an error, without request id and time.
    pub(crate) fn message(&self) -> String {
        let json: serde_json::Value = serde_json::from_str(self.body()).unwrap();
        let message = json["odata.error"]["message"]["value"].as_str().unwrap();
        let (message, rest) = message.split_once("\nRequestId:").unwrap();
        assert!(rest.contains("\nTime:"), "{rest}");
        message.to_owned()
    }
}

/// Parses the parts of the reply to a change set.
pub(crate) fn parts(reply: Reply) -> Vec<ReplyPart> {
    let reply = reply.expect(202);
    let boundary = reply.header("content-type").unwrap().strip_prefix("multipart/mixed; boundary=").unwrap();
    assert!(boundary.starts_with("batchresponse_"), "{boundary}");
    let text = reply.text();
    let inner = text.strip_prefix(&format!("--{boundary}\r\n")).unwrap();
    let inner = inner.strip_suffix(&format!("\r\n--{boundary}--\r\n")).unwrap();
    let Some(inner) = inner.strip_prefix("Content-Type: multipart/mixed; boundary=") else {
        return vec![part(inner)];
    };
    let (boundary, inner) = inner.split_once("\r\n\r\n").unwrap();
    assert!(boundary.starts_with("changesetresponse_"), "{boundary}");
    let inner = inner.strip_suffix(&format!("\r\n--{boundary}--")).unwrap();
    let delimiter = format!("--{boundary}\r\n");
    let inner = inner.strip_prefix(&delimiter).unwrap();
    inner.split(&format!("\r\n{delimiter}")).map(part).collect()
}

fn part(text: &str) -> ReplyPart {
    let (head, request) = text.split_once("\r\n\r\nHTTP/1.1 ").unwrap();
    assert!(head.starts_with("Content-Type: application/http\r\nContent-Transfer-Encoding: binary"));
    ReplyPart { status: request[..3].parse().unwrap(), text: text.to_owned() }
}

/// Sends a change set and returns the parts of the reply.
pub(crate) async fn send(server: &Server, operations: &[Operation<'_>]) -> Vec<ReplyPart> {
    parts(server.post("/$batch", BATCH, change_set(operations)).await)
}

fn entity(row: &str, members: &str) -> String {
    format!(r#"{{"PartitionKey":"p","RowKey":"{row}"{members}}}"#)
}

async fn stored(server: &Server, row: &str) -> Option<String> {
    let reply = server.get(&at("p", row), JSON).await;
    match reply.outcome() {
        (200, _) => Some(reply.text().to_owned()),
        other => {
            assert_eq!(other, (404, "ResourceNotFound"));
            None
        }
    }
}

#[tokio::test]
async fn all_kinds_of_writes_commit_together_with_one_etag() {
    let server = start().await;
    let mut tags = Vec::new();
    for row in ["replace", "merge", "upsert", "delete", "tunnel", "repeat"] {
        tags.push(insert(&server, "p", row, r#""A":1"#).await);
    }
    let repeated = format!("{JSON}\nif-match: *\nx-http-method: MERGE");
    let replies = send(
        &server,
        &[
            ("POST /people", JSON, &entity("insert", r#","B":2"#)),
            ("POST /people()", &format!("{JSON}\nprefer: return-no-content"), &entity("silent", "")),
            (&format!("PUT {}", at("p", "replace")), &format!("{JSON}\nif-match: {}", tags[0]), r#"{"B":2}"#),
            (&format!("PATCH {}", at("p", "merge")), &format!("{JSON}\nif-match: *"), r#"{"B":2}"#),
            (&format!("MERGE {}", at("p", "upsert")), JSON, r#"{"B":2}"#),
            (&format!("PUT {}", at("p", "new")), JSON, r#"{"B":2}"#),
            (&format!("DELETE {}", at("p", "delete")), "if-match: *", ""),
            (&format!("POST {}", at("p", "tunnel")), "if-match: *\nx-http-method: DELETE", ""),
            // The form in which azure-storage 8.6.6 for Java sends merges.
            (&format!("MERGE {}", at("p", "repeat")), &repeated, r#"{"B":2}"#),
        ],
    )
    .await;
    let statuses: Vec<_> = replies.iter().map(|part| part.status).collect();
    assert_eq!(statuses, [201, 204, 204, 204, 204, 204, 204, 204, 204]);
    let tag = replies[0].header("ETag").unwrap();
    for (index, part) in replies.iter().enumerate() {
        assert_eq!(part.header("Content-ID"), Some(index.to_string().as_str()));
        assert_eq!(part.header("DataServiceVersion"), Some("3.0;"));
        let deleted = [6, 7].contains(&index);
        assert_eq!(part.header("ETag"), (!deleted).then_some(tag), "{}", part.text);
    }
    let link = format!("http://{}/lapis{}", server.address, at("p", "insert"));
    assert_eq!(replies[0].header("Location"), Some(link.as_str()));
    assert_eq!(replies[0].header("DataServiceId"), Some(link.as_str()));
    assert_eq!(replies[0].header("Preference-Applied"), None);
    assert_eq!(replies[1].header("Preference-Applied"), Some("return-no-content"));
    let found = server.get(&at("p", "insert"), JSON).await.expect(200);
    assert_eq!((found.text(), found.etag()), (replies[0].body(), tag));
    for (row, expected) in [
        ("silent", Some("\"Timestamp\"")),
        ("replace", Some(r#""B":2}"#)),
        ("merge", Some(r#""A":1,"B":2}"#)),
        ("upsert", Some(r#""A":1,"B":2}"#)),
        ("new", Some(r#""B":2}"#)),
        ("delete", None),
        ("tunnel", None),
        ("repeat", Some(r#""A":1,"B":2}"#)),
    ] {
        let found = stored(&server, row).await;
        let fits = match (&found, expected) {
            (Some(found), Some(expected)) => found.contains(expected),
            (found, expected) => found.is_none() && expected.is_none(),
        };
        assert!(fits, "{row}: {found:?}");
    }
    assert!(!stored(&server, "replace").await.unwrap().contains("\"A\""));
}

/// Batches recorded from clients, unchanged except for names.
#[tokio::test]
async fn batches_of_each_client_are_parsed() {
    let server = start().await;
    let host = format!("http://{}/lapis", server.address);
    let python = format!(
        "--batch_1\r\nContent-Type: multipart/mixed; boundary=changeset_1\r\n\r\n--changeset_1\r\nContent-Type: \
         application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 0\r\n\r\nPOST {host}/people HTTP/1.1\r\n\
         x-ms-version: 2019-02-02\r\nDataServiceVersion: 3.0\r\nPrefer: return-no-content\r\nContent-Type: \
         application/json;odata=nometadata\r\nAccept: application/json;odata=minimalmetadata\r\nContent-Length: 36\r\n\
         x-ms-date: Thu, 05 Nov 2020 21:12:43 GMT\r\nDate: Thu, 05 Nov 2020 21:12:43 GMT\r\n\r\n\
         {{\"PartitionKey\": \"p\", \"RowKey\": \"r\"}}\r\n--changeset_1--\r\n\r\n--batch_1--\r\n"
    );
    let javascript = format!(
        "--batch_1\r\ncontent-type: multipart/mixed; boundary=changeset_1\r\n\r\n\r\n--changeset_1\r\ncontent-type: \
         application/http\r\ncontent-transfer-encoding: binary\r\n\r\nPOST {host}/people?tn=people HTTP/1.1\r\naccept: \
         application/json;odata=minimalmetadata\r\ncontent-type: application/json;odata=nometadata\r\n\
         dataserviceversion: 3.0\r\nprefer: return-no-content\r\n\r\n\r\n{{\"PartitionKey\":\"p\",\"RowKey\":\"r\"}}\r\n\
         --changeset_1--\r\n--batch_1\r\n"
    );
    // The parts repeat the signature of the batch.
    let signed = server.allowed("/people");
    let dotnet = format!(
        "--batch_1\r\nContent-Type: multipart/mixed; boundary=\"changeset_1\"\r\n\r\n--changeset_1\r\n\
                  Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n\
                  POST https://lapis.table.core.windows.net{signed} HTTP/1.1\r\n\
                  Host: lapis.table.core.windows.net\r\nx-ms-version: 2019-02-02\r\nDataServiceVersion: 3.0\r\n\
                  Prefer: return-no-content\r\nAccept: application/json; odata=minimalmetadata\r\n\
                  Content-Type: application/json; odata=nometadata\r\n\r\n\
                  {{\"PartitionKey\":\"p\",\"RowKey\":\"r\"}}\r\n--changeset_1--\r\n\r\n--batch_1--\r\n"
    );
    let odata_lib = format!(
        "--batch_1\r\nContent-Type: multipart/mixed; boundary=changeset_1\r\n\r\n--changeset_1\r\nContent-Type: \
         application/http\r\nContent-Transfer-Encoding: binary\r\n\r\nPOST {host}/people() HTTP/1.1\r\nContent-ID: 0\r\n\
         Accept: application/json;odata=minimalmetadata\r\nContent-Type: application/json\r\nPrefer: \
         return-no-content\r\nDataServiceVersion: 3.0;\r\n\r\n{{\"PartitionKey\":\"p\",\"RowKey\":\"r\"}}\r\n\
         --changeset_1--\r\n--batch_1--\r\n"
    );
    let line_feeds = "preamble\n--batch_1\nContent-Type: multipart/mixed; boundary=changeset_1\n\n\n--changeset_1\n\
                      CONTENT-TYPE: application/http\n\nPOST people HTTP/1.1\nPREFER: return-no-content\n\n\
                      {\"PartitionKey\":\"p\",\"RowKey\":\"r\"}\n--changeset_1--\n--batch_1--\nepilogue";
    for (client, body) in [
        ("azure-data-tables for Python", python.as_str()),
        ("@azure/data-tables for JavaScript", &javascript),
        ("Azure.Data.Tables for .NET", &dotnet),
        ("Microsoft.Azure.Cosmos.Table for .NET", &odata_lib),
        ("a script", line_feeds),
    ] {
        let reply =
            server.post("/$batch", "content-type: multipart/mixed; boundary=\"batch_1\"", body.to_owned());
        let parts = parts(reply.await);
        assert_eq!(parts.len(), 1, "{client}");
        assert_eq!(parts[0].status, 204, "{client} {}", parts[0].text);
        assert_eq!(parts[0].header("Preference-Applied"), Some("return-no-content"), "{client}");
        server.delete(&at("p", "r"), "if-match: *").await.expect(204);
    }
}

#[tokio::test]
async fn keys_in_addresses_may_be_encoded() {
    let server = start().await;
    for target in [
        "/people(PartitionKey='it%27%27s',RowKey='a%20b%2Bc%C3%A4')",
        "/people(PartitionKey='it''s',RowKey='a b+cä')",
    ] {
        let parts = send(&server, &[(&format!("PUT {target}"), JSON, "{}")]).await;
        assert_eq!(parts[0].status, 204, "{}", parts[0].text);
        server.delete(&at("it%27%27s", "a%20b%2Bc%C3%A4"), "if-match: *").await.expect(204);
    }
}

/// The reply holds only the failing operation, with its status, code and index. Nothing of the batch is
/// stored.
#[tokio::test]
async fn failing_operation_fails_the_whole_batch() {
    let server = start().await;
    let tag = insert(&server, "p", "here", r#""A":1"#).await;
    create(&server, "other").await;
    let here = at("p", "here");
    let gone = at("p", "gone");
    let other = r#"{"PartitionKey":"q","RowKey":"r"}"#;
    let stale = format!("if-match: {STALE}");
    let same = "The batch request contains multiple changes with same row key. An entity can appear only once in a \
                batch request.";
    let apart = "All commands in a batch must operate on same entity group.";
    let exists = "The specified entity already exists.";
    for (line, headers, body, status, code, message) in [
        ("POST /people", "", entity("here", ""), 409, "EntityAlreadyExists", exists),
        (&format!("PUT {here}"), &stale, "{}".into(), 412, "UpdateConditionNotSatisfied", {
            "The update condition specified in the request was not satisfied."
        }),
        (&format!("DELETE {here}"), &stale, String::new(), 412, "UpdateConditionNotSatisfied", ""),
        (&format!("MERGE {gone}"), "if-match: *", "{}".into(), 404, "ResourceNotFound", {
            "The specified resource does not exist."
        }),
        (&format!("DELETE {gone}"), "if-match: *", String::new(), 404, "ResourceNotFound", ""),
        (&format!("DELETE {here}"), "", String::new(), 400, "MissingRequiredHeader", ""),
        ("POST /people", "", entity("first", ""), 400, "InvalidDuplicateRow", same),
        ("POST /people", "", other.into(), 400, "CommandsInBatchActOnDifferentPartitions", apart),
        ("POST /other", "", entity("r", ""), 400, "CommandsInBatchActOnDifferentPartitions", apart),
        ("POST /people", "", "{".into(), 400, "InvalidInput", ""),
        ("POST /people", "", r#"{"PartitionKey":"p"}"#.into(), 400, "PropertiesNeedValue", ""),
        ("POST /people", "", entity("r", r#","a-b":1"#), 400, "PropertyNameInvalid", ""),
        (
            "POST /people",
            "content-type: application/atom+xml",
            "<entry/>".into(),
            { 415 },
            "AtomFormatNotSupported",
            "",
        ),
        ("GET /people", "", String::new(), 400, "InvalidInput", ""),
        (&format!("GET {here}"), "", String::new(), 400, "InvalidInput", ""),
        ("POST /Tables", "", r#"{"TableName":"more"}"#.into(), 400, "InvalidInput", ""),
        ("DELETE /Tables('people')", "", String::new(), 400, "InvalidInput", ""),
        ("POST /$batch", "", String::new(), 400, "InvalidInput", ""),
        ("BREW /people", "", String::new(), 405, "MethodNotAllowed", ""),
        (&format!("POST {here}"), "x-http-method: GET", String::new(), 400, "XMethodIncorrectValue", ""),
        ("PUT /people('p')", "", "{}".into(), 400, "InvalidInput", ""),
        ("PUT /a//(PartitionKey='p',RowKey='r')", "", "{}".into(), 400, "OutOfRangeInput", ""),
        ("PUT /people/x", "", "{}".into(), 405, "MethodNotAllowed", ""),
    ] {
        let first = entity("first", "");
        let last = entity("last", "");
        let operations =
            [("POST /people", JSON, first.as_str()), (line, headers, &body), ("POST /people", JSON, &last)];
        let parts = send(&server, &operations).await;
        assert_eq!(parts.len(), 1, "{line}");
        let part = &parts[0];
        assert_eq!(part.outcome(), (status, code.to_owned()), "{line} {}", part.text);
        let sent = part.message();
        let sent = sent.strip_prefix("1:").unwrap_or_else(|| panic!("{line}: {sent}"));
        assert!(message.is_empty() || sent == message, "{line}: {sent}");
        let content_type = part.header("HTTP/1.1 415").or(part.text.rsplit("Content-Type: ").next());
        assert!(content_type.unwrap().starts_with("application/json;odata=minimalmetadata"), "{}", part.text);
        assert_eq!(part.header("x-ms-error-code").or(part.header("X-Ms-Error-Code")), None);
        for row in ["first", "last", "gone", "r"] {
            assert_eq!(stored(&server, row).await, None, "{line}");
        }
        assert_eq!(server.get(&here, JSON).await.expect(200).etag(), tag, "{line}");
    }
}

#[tokio::test]
async fn missing_table_fails_the_first_operation() {
    let server = start().await;
    let parts = send(&server, &[("POST /nobody", JSON, &entity("r", ""))]).await;
    assert_eq!(parts[0].outcome(), (404, "TableNotFound".to_owned()));
    assert_eq!(parts[0].message(), "0:The table specified does not exist.");
}

#[tokio::test]
async fn change_set_has_at_most_100_operations() {
    let server = start().await;
    let bodies: Vec<_> = (0..101).map(|row| entity(&row.to_string(), "")).collect();
    let operations: Vec<_> = bodies.iter().map(|body| ("POST /people", JSON, body.as_str())).collect();
    let parts = send(&server, &operations).await;
    assert_eq!(parts.len(), 1);
    assert_eq!(parts[0].outcome(), (400, "InvalidInput".to_owned()));
    let message = "99:The batch request operation exceeds the maximum 100 changes per change set.";
    assert_eq!(parts[0].message(), message);
    assert_eq!(stored(&server, "0").await, None);
    let parts = send(&server, &operations[..100]).await;
    assert_eq!(parts.iter().filter(|part| part.status == 201).count(), 100);
    assert!(stored(&server, "99").await.is_some());
}

#[tokio::test]
async fn small_merges_into_many_large_entities_are_one_transaction() {
    let server = start().await;
    let members: Vec<_> = (0..15).map(|i| format!(r#""P{i}":"{}""#, "x".repeat(31_000))).collect();
    for row in 0..19 {
        insert(&server, "p", &row.to_string(), &members.join(",")).await;
    }
    let lines: Vec<_> = (0..19).map(|row| format!("MERGE {}", at("p", &row.to_string()))).collect();
    let operations: Vec<_> = lines.iter().map(|line| (line.as_str(), JSON, r#"{"P0":1}"#)).collect();
    let parts = send(&server, &operations).await;
    assert_eq!(parts.iter().filter(|part| part.status == 204).count(), 19);
    let found = stored(&server, "18").await.unwrap();
    assert!(found.contains(r#""P0":1"#) && found.contains(r#""P14":"x"#));
}

#[tokio::test]
async fn batch_may_be_a_single_query() {
    let server = start().await;
    insert(&server, "p", "r", r#""A":1"#).await;
    let parts = parts(server.post("/$batch", BATCH, query(&at("p", "r"))).await);
    assert_eq!((parts.len(), parts[0].status), (1, 200));
    assert!(parts[0].header("ETag").is_some());
    assert!(parts[0].text.contains("Content-Type: application/json;odata=nometadata;"));
    assert!(parts[0].body().starts_with(r#"{"PartitionKey":"p","RowKey":"r","Timestamp":"#), "{parts:?}");
    let missing = self::parts(server.post("/$batch", BATCH, query(&at("p", "gone"))).await);
    assert_eq!(missing[0].outcome(), (404, "ResourceNotFound".to_owned()));
    assert_eq!(missing[0].message(), "0:The specified resource does not exist.");
    let gone =
        self::parts(server.post("/$batch", BATCH, query("/nobody(PartitionKey='p',RowKey='r')")).await);
    assert_eq!(gone[0].outcome(), (404, "TableNotFound".to_owned()));
    let some = query("/people()?$filter=PartitionKey%20eq%20'p'&$select=A&$top=1");
    let found = self::parts(server.post("/$batch", BATCH, some).await);
    assert_eq!(found[0].body(), r#"{"value":[{"A":1}]}"#);
    server.post("/$batch", BATCH, query("/Tables")).await.refused(400, "InvalidInput");
}

#[tokio::test]
async fn invalid_batches_are_refused_and_nothing_is_stored() {
    let server = start().await;
    let insert = change_set(&[("POST /people", JSON, &entity("r", ""))]);
    let one = insert.strip_suffix("--batch_1--\r\n").unwrap();
    let get = query(&at("p", "r"));
    let got = get.strip_suffix("--batch_1--\r\n").unwrap();
    let write =
        "--batch_1\r\nContent-Type: application/http\r\n\r\nPOST /people HTTP/1.1\r\n\r\n{}\r\n--batch_1--";
    for (case, body) in [
        ("nothing", String::new()),
        ("no delimiter", "hello".into()),
        ("no part", "--batch_1--\r\n".into()),
        ("no end", one[..one.len() / 2].into()),
        ("a part without an end", insert.replace("--changeset_1--\r\n", "")),
        ("another boundary", insert.replace("--batch_1", "--batch_2")),
        ("another inner boundary", insert.replace("--changeset_1", "--changeset_2")),
        ("two change sets", format!("{one}{insert}")),
        ("a query and a change set", format!("{got}{insert}")),
        ("a change set and a query", format!("{one}{get}")),
        ("two queries", format!("{got}{get}")),
        ("a write outside of a change set", write.into()),
        ("an empty change set", change_set(&[])),
        ("a part that is no request", insert.replace("application/http", "text/plain")),
        ("a part without headers", insert.replace("Content-Type: application/http\r\n", "")),
        ("a request line that is none", insert.replace("POST /people HTTP/1.1", "POST")),
        ("a version that is none", insert.replace("POST /people HTTP/1.1", "POST /people")),
        ("an invalid header", insert.replace("content-type: application/json", "content type")),
        (
            "a change set in a change set",
            insert.replace("application/http", "multipart/mixed; boundary=changeset_1"),
        ),
        ("nested junk", insert.replace("POST /people", "--changeset_1\r\n--changeset_1\r\nPOST /people")),
    ] {
        let reply = server.post("/$batch", BATCH, body).await;
        assert_eq!(reply.outcome(), (400, "InvalidInput"), "{case}: {}", reply.text());
        assert!(reply.text().starts_with(r#"{"odata.error":{"code":"InvalidInput","message":"#), "{case}");
    }
    for (headers, code) in [
        ("", "MissingRequiredHeader"),
        ("content-type: multipart/mixed", "InvalidInput"),
        ("content-type: multipart/mixed; boundary=", "InvalidInput"),
        ("content-type: multipart/form-data; boundary=batch_1", "InvalidInput"),
        ("content-type: application/json", "InvalidInput"),
    ] {
        server.post("/$batch", headers, insert.clone()).await.refused(400, code);
    }
    let large = insert.replace("\r\n--batch_1--", &format!("{}\r\n--batch_1--", " ".repeat(4 << 20)));
    server.post("/$batch", BATCH, large).await.refused(413, "RequestBodyTooLarge");
    server.call("GET", "/$batch", "", "").await.refused(405, "MethodNotAllowed");
    assert_eq!(stored(&server, "r").await, None);
    assert_eq!(parts(server.post("/$batch", BATCH, insert).await)[0].status, 201);
}

#[tokio::test]
async fn batch_survives_a_restart_with_the_same_etags() {
    let server = start().await;
    let (a, b) = (entity("a", ""), entity("b", ""));
    let replies = send(&server, &[("POST /people", JSON, &a), ("POST /people", JSON, &b)]).await;
    let server = server.restart().await;
    for (row, part) in ["a", "b"].iter().zip(&replies) {
        assert_eq!(server.get(&at("p", row), JSON).await.expect(200).etag(), part.header("ETag").unwrap());
    }
}
