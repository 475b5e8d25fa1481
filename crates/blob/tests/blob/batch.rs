//! Blob Batch: the multipart exchange, authorization, and operations that a batch cannot contain.

use http::{HeaderMap, HeaderName, HeaderValue};
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_auth::sign;
use lazuli_protocol::{Query, ServiceKind, Version, date};
use lazuli_store::Mutation;
use lazuli_testing::LogCapture;

use crate::support::{ACCOUNT, NOW, Reply, TestServer, VERSION, key, start};

const CONTENT_TYPE: &str = "content-type: multipart/mixed; boundary=batch_1";

/// Returns the query of a signature that allows everything.
fn sas() -> String {
    let fields =
        [("sv", "2022-11-02"), ("ss", "b"), ("srt", "sco"), ("sp", "rwdxylacuptfi"), ("se", "2099-12-31")];
    sign::account_sas(ACCOUNT, &key(), &fields)
}

/// Renders the body of a batch. Each request is a request line with headers.
fn batch(requests: &[String]) -> String {
    let mut body = String::new();
    for (id, request) in requests.iter().enumerate() {
        body.push_str("--batch_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n");
        body.push_str(&format!("Content-ID: {id}\r\n\r\n{request}\r\n\r\n"));
    }
    body + "--batch_1--\r\n"
}

fn delete(target: &str) -> String {
    let separator = if target.contains('?') { '&' } else { '?' };
    format!("DELETE {target}{separator}{} HTTP/1.1\r\nContent-Length: 0", sas())
}

fn set_tier(target: &str, tier: &str) -> String {
    format!("PUT {target}?comp=tier&{} HTTP/1.1\r\nx-ms-access-tier: {tier}\r\nContent-Length: 0", sas())
}

/// A part of the reply, parsed as clients do.
#[derive(Debug)]
struct ReplyPart {
    id: Option<usize>,
    status: u16,
    reason: String,
    text: String,
}

impl ReplyPart {
    fn outcome(&self) -> (u16, &str) {
        (self.status, self.header("x-ms-error-code").unwrap_or_default())
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

fn parts(reply: &Reply) -> Vec<ReplyPart> {
    assert_eq!(reply.status, 202, "{}", reply.text());
    let (media_type, boundary) = reply.header("content-type").unwrap().split_once("; boundary=").unwrap();
    assert_eq!(media_type, "multipart/mixed");
    assert!(boundary.starts_with("batchresponse_"), "{boundary}");
    let (all, rest) = reply.text().split_once(&format!("--{boundary}--")).unwrap();
    assert_eq!(rest, "");
    let delimiter = format!("--{boundary}\r\n");
    let parts = all.split(&delimiter).skip(1).map(|part| {
        let (mime, http) = part.split_once("\r\n\r\n").unwrap();
        let mut mime = mime.lines();
        assert_eq!(mime.next(), Some("Content-Type: application/http"));
        let id = mime.next().map(|line| line.strip_prefix("Content-ID: ").unwrap().parse().unwrap());
        let (status, text) = http.split_once("\r\n").unwrap();
        let mut words = status.splitn(3, ' ');
        assert_eq!(words.next(), Some("HTTP/1.1"));
        ReplyPart {
            id,
            status: words.next().unwrap().parse().unwrap(),
            reason: words.next().unwrap().to_owned(),
            text: text.to_owned(),
        }
    });
    parts.collect()
}

impl TestServer {
    async fn batch(&self, target: &str, requests: &[String]) -> Vec<ReplyPart> {
        parts(&self.call("POST", target, CONTENT_TYPE, batch(requests)).await)
    }

    /// Sends a batch that is refused as a whole. Returns the refusal.
    async fn refused_batch(&self, target: &str, body: String) -> (u16, String) {
        let parts = parts(&self.call("POST", target, CONTENT_TYPE, body).await);
        assert_eq!((parts.len(), parts[0].id), (1, None), "{parts:?}");
        let (status, code) = parts[0].outcome();
        (status, code.to_owned())
    }
}

#[tokio::test]
async fn batch_reply_has_the_outcome_and_id_of_each_request_in_order() {
    let server = start().await;
    server.create_container("aaa").await;
    server.create_container("bbb").await;
    for target in ["/aaa/one", "/aaa/two", "/bbb/three/ä b"] {
        server.put_block_blob(&target.replace(' ', "%20").replace('ä', "%C3%A4"), "x").await;
    }
    let requests = ["/lapis/aaa/one", "/lapis/aaa/none", "/lapis/none/none", "/lapis/bbb/three%5C%C3%A4%20b"]
        .map(delete);
    let parts = server.batch("/?comp=batch", &requests).await;
    let outcomes: Vec<_> = parts.iter().map(|part| (part.id, part.outcome())).collect();
    assert_eq!(
        outcomes,
        [
            (Some(0), (202, "")),
            (Some(1), (404, "BlobNotFound")),
            (Some(2), (404, "ContainerNotFound")),
            (Some(3), (202, "")),
        ]
    );
    assert_eq!(
        (parts[0].reason.as_str(), parts[1].reason.as_str()),
        ("Accepted", "The specified blob does not exist.")
    );
    assert!(parts[1].text.contains("<Code>BlobNotFound</Code>"));
    let ids: std::collections::HashSet<_> =
        parts.iter().map(|part| part.header("x-ms-request-id").unwrap()).collect();
    assert_eq!(ids.len(), 4);
    assert!(parts.iter().all(|part| part.header("x-ms-version") == Some(VERSION)));
    server.head("/aaa/one", "").await.expect(404);
    server.head("/aaa/two", "").await.expect(200);
}

#[tokio::test]
async fn batch_reply_equals_that_of_the_cloud_service() {
    // Recorded by azure-sdk-for-js and azure-sdk-for-python. A part without a body ends with one empty line.
    // A part with a body ends with the line end before the delimiter. The last delimiter ends the reply.
    let server = start().await;
    server.create_container("aaa").await;
    server.put_block_blob("/aaa/one", "x").await;
    let requests = ["/lapis/aaa/one", "/lapis/aaa/none"].map(delete);
    let reply = server.call("POST", "/?comp=batch", CONTENT_TYPE, batch(&requests)).await.expect(202);
    let boundary = reply.header("content-type").unwrap().split_once("boundary=").unwrap().1;
    let values = ["x-ms-request-id: ", "\nRequestId:", "\nTime:", "Content-Length: "];
    let mut text = reply.text().replace(boundary, "B");
    for value in values {
        let pieces: Vec<_> = text.split(value).map(str::to_owned).collect();
        let pieces = pieces.iter().enumerate().map(|(index, piece)| match index {
            0 => piece.as_str(),
            _ => &piece[piece.find(['\r', '\n', '<']).unwrap()..],
        });
        text = pieces.collect::<Vec<_>>().join(value);
    }
    let expected = "--B\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n\
        HTTP/1.1 202 Accepted\r\n\
        x-ms-delete-type-permanent: true\r\n\
        x-ms-request-id: \r\n\
        x-ms-version: 2025-01-05\r\n\
        \r\n\
        --B\r\nContent-Type: application/http\r\nContent-ID: 1\r\n\r\n\
        HTTP/1.1 404 The specified blob does not exist.\r\n\
        Content-Length: \r\n\
        x-ms-error-code: BlobNotFound\r\n\
        content-type: application/xml\r\n\
        x-ms-request-id: \r\n\
        x-ms-version: 2025-01-05\r\n\
        \r\n\
        <?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>BlobNotFound</Code>\
        <Message>The specified blob does not exist.\nRequestId:\nTime:</Message></Error>\r\n\
        --B--";
    assert_eq!(text, expected);
}

#[tokio::test]
async fn container_batch_sets_tiers() {
    let server = start().await;
    server.create_container("aaa").await;
    for name in ["one", "two"] {
        server.put_block_blob(&format!("/aaa/{name}"), "x").await;
    }
    let requests = [set_tier("/lapis/aaa/one", "Cool"), set_tier("/lapis/aaa/two", "Lukewarm")];
    let parts = server.batch("/aaa?restype=container&comp=batch", &requests).await;
    assert_eq!(
        parts.iter().map(ReplyPart::outcome).collect::<Vec<_>>(),
        [(200, ""), (400, "InvalidHeaderValue")]
    );
    assert_eq!(server.head("/aaa/one", "").await.header("x-ms-access-tier"), Some("Cool"));
}

#[tokio::test]
async fn each_sub_request_is_authorized_by_its_own_credentials() {
    let server = start().await;
    server.create_container("aaa").await;
    server.put_block_blob("/aaa/one", "x").await;
    let read_only = [("sv", "2022-11-02"), ("ss", "b"), ("srt", "o"), ("sp", "r"), ("se", "2099-12-31")];
    let read_only = sign::account_sas(ACCOUNT, &key(), &read_only);
    let requests = [
        "DELETE /lapis/aaa/one HTTP/1.1".to_owned(),
        format!("DELETE /lapis/aaa/one?{read_only} HTTP/1.1"),
        format!("DELETE /lapis/aaa/one?{}x HTTP/1.1", sas()),
        "DELETE /lapis/aaa/one HTTP/1.1\r\nAuthorization: SharedKey lapis:AAAA".to_owned(),
    ];
    let parts = server.batch("/?comp=batch", &requests).await;
    assert_eq!(
        parts.iter().map(ReplyPart::outcome).collect::<Vec<_>>(),
        [
            (401, "NoAuthenticationInformation"),
            (403, "AuthorizationPermissionMismatch"),
            (403, "AuthenticationFailed"),
            (403, "AuthenticationFailed"),
        ]
    );
    server.head("/aaa/one", "").await.expect(200);
    let anonymous =
        server.send("POST", "/?comp=batch", CONTENT_TYPE, batch(&[delete("/lapis/aaa/one")])).await;
    anonymous.refused(401, "NoAuthenticationInformation");
    server.head("/aaa/one", "").await.expect(200);
}

/// Python signs and sends `/container/blob`, JavaScript `/account/container/blob`, and .NET the latter
/// without its first slash.
#[tokio::test]
async fn signed_sub_request_path_may_omit_the_account() {
    let server = start().await;
    server.create_container("aaa").await;
    for (sent, signed) in
        [("/aaa/one?", "/aaa/one"), ("/lapis/aaa/one", "/lapis/aaa/one"), ("lapis/aaa/one", "/lapis/aaa/one")]
    {
        server.put_block_blob("/aaa/one", "x").await;
        let now = date::rfc1123(NOW);
        let headers = [("x-ms-date", now.as_str()), ("x-ms-client-request-id", "mine")];
        let headers: HeaderMap = headers
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .into_iter()
            .collect();
        let message = Message {
            scheme: Scheme::SharedKey,
            service: ServiceKind::Blob,
            account: ACCOUNT,
            method: "DELETE",
            path: signed,
            query: &Query::default(),
            headers: &headers,
            version: Version::NEWEST,
        };
        let authorization = sign::authorization(&message, &key()).unwrap();
        let request = format!(
            "DELETE {sent} HTTP/1.1\r\nx-ms-date: {now}\r\nx-ms-client-request-id: mine\r\nAuthorization: {}",
            authorization.to_str().unwrap()
        );
        let parts = server.batch("/?comp=batch", &[request]).await;
        assert_eq!(parts[0].outcome(), (202, ""), "{sent} {parts:?}");
        assert_eq!(parts[0].header("x-ms-client-request-id"), Some("mine"));
    }
}

#[tokio::test]
async fn invalid_batch_is_refused_as_a_whole_without_effect() {
    let server = start().await;
    for container in ["aaa", "bbb"] {
        server.create_container(container).await;
        server.put_block_blob(&format!("/{container}/one"), "x").await;
    }
    let all = "/?comp=batch";
    let one = "/aaa?restype=container&comp=batch";
    let ours = || delete("/lapis/aaa/one");
    let many = |count: usize| vec![delete("/lapis/aaa/none"); count];
    let same_api = "AllBatchSubRequestsShouldBeSameApi";
    for (target, requests, code) in [
        (all, vec![], "InvalidInput"),
        (all, vec![ours(), set_tier("/lapis/aaa/one", "Cool")], same_api),
        (one, vec![set_tier("/lapis/aaa/one", "Cool"), ours()], same_api),
        (all, vec![format!("GET /lapis/aaa/one?{} HTTP/1.1", sas())], "InvalidInput"),
        (
            all,
            vec![format!("PUT /lapis/aaa/one?{} HTTP/1.1\r\nx-ms-blob-type: BlockBlob", sas())],
            "InvalidInput",
        ),
        (all, vec![format!("DELETE /lapis/aaa?restype=container&{} HTTP/1.1", sas())], "InvalidInput"),
        (all, vec![format!("POST /lapis/?comp=batch&{} HTTP/1.1", sas())], "InvalidInput"),
        (all, vec![ours(), "DELETE".to_owned()], "InvalidInput"),
        (one, vec![ours(), delete("/lapis/bbb/one")], "InvalidInput"),
        (all, many(257), "ExceedsMaxBatchRequestCount"),
    ] {
        let refused = server.refused_batch(target, batch(&requests)).await;
        assert_eq!(refused, (400, code.to_owned()), "{target} {:?}", requests.first());
    }
    let unfinished = batch(&[ours()]).replace("--batch_1--", "");
    assert_eq!(server.refused_batch(all, unfinished).await, (400, "InvalidInput".to_owned()));
    for container in ["aaa", "bbb"] {
        server.head(&format!("/{container}/one"), "").await.expect(200);
    }
    assert_eq!(server.batch(all, &many(256)).await.len(), 256);
}

#[tokio::test]
async fn request_that_is_not_multipart_is_refused_without_a_batch_reply() {
    let server = start().await;
    let post = |headers: &'static str, body: Vec<u8>| server.call("POST", "/?comp=batch", headers, body);
    post("", b"x".to_vec()).await.refused(400, "MissingRequiredHeader");
    post("content-type: multipart/mixed", b"x".to_vec()).await.refused(400, "InvalidHeaderValue");
    post("content-type: application/xml", b"x".to_vec()).await.refused(400, "InvalidHeaderValue");
    post(CONTENT_TYPE, vec![b'x'; (4 << 20) + 1]).await.refused(413, "RequestBodyTooLarge");
}

#[tokio::test]
async fn internal_error_of_a_sub_request_is_logged_with_request_id_account_and_operation() {
    let log = LogCapture::start();
    let server = start().await;
    server.create_container("con").await;
    for row in ["bone", "btwo"] {
        server.change_row(row, Mutation::Put("b".into(), "damaged".into())).await;
    }
    let whole = server.get("/con/one", "").await.expect(500);
    let parts = server.batch("/?comp=batch", &["/lapis/con/one", "/lapis/con/two"].map(delete)).await;
    let id = |part: &ReplyPart| part.header("x-ms-request-id").unwrap().to_owned();
    let lines = log.lines_with("a row is damaged");
    for (span, id, operation) in [
        ("request", whole.header("x-ms-request-id").unwrap().to_owned(), "Get Blob"),
        ("part", id(&parts[0]), "Delete Blob"),
        ("part", id(&parts[1]), "Delete Blob"),
    ] {
        let span = format!("{span}{{request_id={id} account=\"lapis\" operation=\"{operation}\"}}:");
        assert!(lines.iter().any(|line| line.contains(&span)), "{span} {lines:?}");
    }
    let refused = log.lines_with("error=\"InternalError\"");
    assert!(refused.iter().any(|line| line.matches("request_id=").count() == 1), "{refused:?}");
}
