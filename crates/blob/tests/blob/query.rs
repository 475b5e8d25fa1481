//! Query Blob Contents.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use lazuli_auth::sign;
use ring::digest::{SHA256, digest};

use crate::support::{ACCOUNT, Reply, TestServer, VERSION, allowed, key, start};

const CSV: &str = "100,200,300,400\n150,250,350,450\n";
const ALL: &str = "SELECT * FROM BlobStorage";

/// A record of a reply.
#[derive(Debug, PartialEq)]
enum Record {
    Data(String),
    Error(bool, String, i64),
    Progress(i64, i64),
    End(i64),
}

fn data(text: &str) -> Record {
    Record::Data(text.into())
}

/// Parses the records of a reply.
fn records(body: &[u8]) -> Vec<Record> {
    let mut rest = body.strip_prefix(b"Obj\x01").unwrap();
    for _ in 0..long(&mut rest) {
        bytes(&mut rest);
        bytes(&mut rest);
    }
    assert_eq!(long(&mut rest), 0);
    let sync = &rest[..16];
    let mut records = vec![];
    loop {
        rest = rest.strip_prefix(sync).unwrap();
        if rest.is_empty() {
            return records;
        }
        assert_eq!(long(&mut rest), 1);
        long(&mut rest);
        records.push(match long(&mut rest) {
            0 => Record::Data(bytes(&mut rest)),
            1 => {
                let (fatal, behind) = rest.split_first().unwrap();
                rest = behind;
                let (name, _) = (bytes(&mut rest), bytes(&mut rest));
                Record::Error(*fatal == 1, name, long(&mut rest))
            }
            2 => Record::Progress(long(&mut rest), long(&mut rest)),
            _ => Record::End(long(&mut rest)),
        });
    }
}

fn long(rest: &mut &[u8]) -> i64 {
    let (mut value, mut shift) = (0_u64, 0);
    loop {
        let (byte, behind) = rest.split_first().unwrap();
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if *byte < 0x80 {
            return (value >> 1) as i64 ^ -((value & 1) as i64);
        }
    }
}

fn bytes(rest: &mut &[u8]) -> String {
    let length = long(rest) as usize;
    let (bytes, behind) = rest.split_at(length);
    *rest = behind;
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn document(expression: &str, formats: &str) -> String {
    let expression = expression.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<?xml version='1.0' encoding='utf-8'?><QueryRequest><QueryType>SQL</QueryType>\
         <Expression>{expression}</Expression>{formats}</QueryRequest>"
    )
}

async fn query(server: &TestServer, target: &str, headers: &str, expression: &str) -> Reply {
    let separator = if target.contains('?') { '&' } else { '?' };
    server.call("POST", &format!("{target}{separator}comp=query"), headers, document(expression, "")).await
}

async fn start_with_box() -> TestServer {
    let server = start().await;
    server.create_container("box").await;
    server
}

#[tokio::test]
async fn query_reply_is_avro_with_the_properties_of_the_blob() {
    let server = start_with_box().await;
    let headers = "x-ms-blob-type: BlockBlob\nx-ms-meta-a: 1\nx-ms-blob-content-type: text/csv\n\
                   x-ms-blob-content-encoding: gzip";
    let put = server.put("/box/b", headers, CSV).await.expect(201);
    let reply = query(&server, "/box/b", "", "SELECT _2 FROM BlobStorage WHERE _1 > 100").await;
    assert_eq!(reply.status, 200);
    assert_eq!(records(&reply.body), [data("250\n"), Record::Progress(32, 32), Record::End(32)]);
    for (name, value) in [
        ("content-type", Some("avro/binary")),
        ("etag", Some(put.etag())),
        ("x-ms-blob-type", Some("BlockBlob")),
        ("x-ms-lease-state", Some("available")),
        ("x-ms-meta-a", Some("1")),
        ("accept-ranges", Some("bytes")),
        ("content-encoding", None),
    ] {
        assert_eq!(reply.header(name), value, "{name}");
    }
    let reply = query(&server, "/box/b", "", "select _2 from BlobStorage where _1 > 200").await;
    assert_eq!(records(&reply.body), [data(""), Record::Progress(32, 32), Record::End(32)]);
}

#[tokio::test]
async fn query_uses_the_formats_of_the_request() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "name,size\nmouse,1\n\"key,board\",2\n").await;
    let formats = "<InputSerialization><Format><Type>delimited</Type><DelimitedTextConfiguration>\
                   <ColumnSeparator>,</ColumnSeparator><FieldQuote>\"</FieldQuote><RecordSeparator>\n</RecordSeparator>\
                   <EscapeChar></EscapeChar><HasHeaders>true</HasHeaders></DelimitedTextConfiguration></Format>\
                   </InputSerialization><OutputSerialization><Format><Type>json</Type><JsonTextConfiguration>\
                   <RecordSeparator>;</RecordSeparator></JsonTextConfiguration></Format></OutputSerialization>";
    let asked = document("SELECT name FROM BlobStorage WHERE size < 3", formats);
    let reply = server.call("POST", "/box/b?comp=query", "", asked).await;
    assert_eq!(records(&reply.body)[0], data("{\"name\":\"mouse\"};{\"name\":\"key,board\"};"));
}

#[tokio::test]
async fn record_errors_are_part_of_the_reply() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "100,hello\n150,250\n").await;
    let reply = query(&server, "/box/b", "", "select _2 from BlobStorage where _2 > 100").await;
    let error = Record::Error(false, "InvalidTypeConversion".into(), 0);
    assert_eq!(records(&reply.body), [data("250\n"), error, Record::Progress(18, 18), Record::End(18)]);
    let json = "<InputSerialization><Format><Type>json</Type></Format></InputSerialization>";
    let reply = server.call("POST", "/box/b?comp=query", "", document(ALL, json)).await;
    let error = Record::Error(true, "ParseError".into(), 0);
    assert_eq!(records(&reply.body), [data("\n"), error, Record::Progress(18, 18), Record::End(18)]);
}

#[tokio::test]
async fn snapshots_and_versions_can_be_queried() {
    let server = start_with_box().await;
    server.versioning(true).await;
    let put = server.put_block_blob("/box/b", "old\n").await;
    let snapshot = server.snapshot("/box/b").await;
    server.put_block_blob("/box/b", "new\n").await;
    let version = put.header("x-ms-version-id").unwrap();
    for (target, expected) in [
        ("/box/b".to_owned(), "new\n"),
        (format!("/box/b?snapshot={snapshot}"), "old\n"),
        (format!("/box/b?versionid={version}"), "old\n"),
    ] {
        let reply = expect_avro(query(&server, &target, "", ALL).await);
        assert_eq!(records(&reply.body)[0], data(expected), "{target}");
    }
}

#[tokio::test]
async fn query_checks_conditions_and_leases_as_a_read() {
    let server = start_with_box().await;
    let etag = server.put_block_blob("/box/b", CSV).await.etag().to_owned();
    let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    let lease = server.put("/box/b?comp=lease", acquire, "").await.expect(201);
    let lease = format!("x-ms-lease-id: {}", lease.header("x-ms-lease-id").unwrap());
    server
        .put(
            "/box/b?comp=tags",
            &lease,
            "<Tags><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tags>",
        )
        .await
        .expect(204);
    for (headers, status, code) in [
        (String::new(), 200, ""),
        (lease, 200, ""),
        (format!("if-match: {etag}"), 200, ""),
        ("x-ms-if-tags: a = '1'".to_owned(), 200, ""),
        ("if-match: \"0x1\"".to_owned(), 412, "ConditionNotMet"),
        (format!("if-none-match: {etag}"), 304, "ConditionNotMet"),
        ("if-modified-since: Fri, 01 Jan 2100 00:00:00 GMT".to_owned(), 304, "ConditionNotMet"),
        ("x-ms-if-tags: a = '2'".to_owned(), 412, "ConditionNotMet"),
        (
            "x-ms-lease-id: 22222222-2222-2222-2222-222222222222".to_owned(),
            412,
            "LeaseIdMismatchWithBlobOperation",
        ),
    ] {
        assert_eq!(query(&server, "/box/b", &headers, ALL).await.outcome(), (status, code), "{headers}");
    }
}

#[tokio::test]
async fn query_requires_read_permission() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", CSV).await;
    for (permissions, expected) in [("r", (200, "")), ("wdlacup", (403, "AuthorizationPermissionMismatch"))] {
        let fields =
            [("sv", "2022-11-02"), ("ss", "b"), ("srt", "o"), ("sp", permissions), ("se", "2099-12-31")];
        let target = format!("/box/b?comp=query&{}", sign::account_sas(ACCOUNT, &key(), &fields));
        let reply = server.send("POST", &target, "", document(ALL, "")).await;
        assert_eq!(reply.outcome(), expected, "{permissions}");
    }
}

#[tokio::test]
async fn query_of_an_encrypted_blob_requires_its_key() {
    let server = start_with_box().await;
    let customer = |byte: u8| {
        let key = [byte; 32];
        format!(
            "x-ms-encryption-key: {}\nx-ms-encryption-key-sha256: {}\nx-ms-encryption-algorithm: AES256",
            BASE64.encode(key),
            BASE64.encode(digest(&SHA256, &key))
        )
    };
    server.put("/box/b", &format!("x-ms-blob-type: BlockBlob\n{}", customer(1)), CSV).await.expect(201);
    let reply = expect_avro(query(&server, "/box/b", &customer(1), ALL).await);
    assert_eq!(records(&reply.body)[0], data(CSV));
    assert_eq!(
        query(&server, "/box/b", "", ALL).await.outcome(),
        (409, "BlobUsesCustomerSpecifiedEncryption")
    );
    let other = query(&server, "/box/b", &customer(2), ALL).await;
    assert_eq!(other.outcome(), (409, "BlobCustomerSpecifiedEncryptionMismatch"));
}

#[tokio::test]
async fn invalid_query_is_refused() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", CSV).await;
    server.put_block_blob("/box/archived", CSV).await;
    server.put("/box/archived?comp=tier", "x-ms-access-tier: Archive", "").await.expect(200);
    server.put("/box/append", "x-ms-blob-type: AppendBlob", "").await.expect(201);
    server.put("/box/page", "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512", "").await.expect(201);
    for (target, status, code) in [
        ("/box/none", 404, "BlobNotFound"),
        ("/none/b", 404, "ContainerNotFound"),
        ("/box/append", 409, "InvalidBlobType"),
        ("/box/page", 409, "InvalidBlobType"),
        ("/box/archived", 409, "BlobArchived"),
    ] {
        query(&server, target, "", ALL).await.refused(status, code);
    }
    let parquet = "<InputSerialization><Format><Type>parquet</Type></Format></InputSerialization>";
    let arrow = "<OutputSerialization><Format><Type>arrow</Type></Format></OutputSerialization>";
    for (asked, status, code) in [
        (String::new(), 400, "InvalidXmlDocument"),
        ("<QueryRequest>".to_owned(), 400, "InvalidXmlDocument"),
        ("<QueryRequest><QueryType>SQL</QueryType></QueryRequest>".to_owned(), 400, "MissingRequiredXmlNode"),
        (document("SELECT nothing", ""), 400, "InvalidInput"),
        (document("SELECT name FROM BlobStorage", ""), 400, "InvalidInput"),
        (document(&format!("SELECT '{}' FROM BlobStorage", "x".repeat(256 << 10)), ""), 400, "InvalidInput"),
        (
            document(&format!("SELECT '{}' FROM BlobStorage", "x".repeat(512 << 10)), ""),
            413,
            "RequestBodyTooLarge",
        ),
        (document(ALL, parquet), 501, "NotImplemented"),
        (document(ALL, arrow), 501, "NotImplemented"),
    ] {
        server.call("POST", "/box/b?comp=query", "", asked).await.refused(status, code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn query_survives_overwrite_and_delete_of_its_blob() {
    let server = start_with_box().await;
    // More bytes than sockets and buffers hold.
    let old = Bytes::from("100,200,300,400\n".repeat(2 << 20));
    server.put_block_blob("/box/b", old.clone()).await;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request =
        http::Request::post(format!("http://{}/{ACCOUNT}{}", server.address, allowed("/box/b?comp=query")))
            .header("x-ms-version", VERSION)
            .body(Full::new(Bytes::from(document(ALL, ""))))
            .unwrap();
    let mut body = client.request(request).await.unwrap().into_body();
    let mut received = body.frame().await.unwrap().unwrap().into_data().unwrap().to_vec();
    server.put_block_blob("/box/b", "new").await;
    server.sweep().await;
    received.extend_from_slice(&body.collect().await.unwrap().to_bytes());
    let (mut all, mut progress) = (String::new(), vec![]);
    for record in records(&received) {
        match record {
            Record::Data(data) => all.push_str(&data),
            Record::Progress(scanned, _) => progress.push(scanned),
            Record::End(total) => assert_eq!(total as usize, old.len()),
            Record::Error(..) => panic!("{record:?}"),
        }
    }
    assert!(all.as_bytes() == old);
    assert_eq!(progress, (1..=8).map(|at| at * (4 << 20)).collect::<Vec<i64>>());
}

/// Fails the test unless this is the reply to a query.
#[track_caller]
fn expect_avro(reply: Reply) -> Reply {
    assert_eq!((reply.outcome(), reply.header("content-type")), ((200, ""), Some("avro/binary")));
    reply
}
