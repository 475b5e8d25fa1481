//! A shared access signature with `c` alone must not change existing blobs with any operation.

use http::{HeaderMap, HeaderName};
use lazuli_protocol::request::{Caller, Grant, Request, full};
use lazuli_protocol::{Operation, Query, Service, ServiceKind, Version};
use uuid::Uuid;

use crate::support::{ACCOUNT, Reply, TestServer, allowed, start};

const LIST: &str = "<BlockList><Latest>AAAA</Latest></BlockList>";

/// Runs an operation for a caller with create permission alone. Returns status and error code.
async fn create(
    server: &TestServer,
    operation: Operation,
    object: &str,
    query: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())
    };
    let headers: HeaderMap = headers.lines().map(header).collect();
    let request = Request {
        operation,
        account: server.accounts.get(ACCOUNT).await.unwrap().unwrap(),
        properties: server.accounts.properties(ACCOUNT, ServiceKind::Blob).await.unwrap(),
        container: "things".into(),
        object: object.into(),
        query: Query::parse(query).unwrap(),
        headers,
        version: Version::NEWEST,
        caller: Caller::Sas(Grant { permissions: "c".into(), ..Grant::default() }),
        body: full(body.to_owned()),
        content_length: Some(body.len() as u64),
        now: crate::support::NOW,
        request_id: Uuid::nil(),
        endpoint: format!("http://{}/{ACCOUNT}", server.address),
        secure: true,
        peer: "127.0.0.1".parse().unwrap(),
        sub_requests: None,
    };
    match server.service.call(request).await {
        Ok(response) => (response.status.as_u16(), String::new()),
        Err(refusal) => (refusal.status().as_u16(), refusal.code().name().to_owned()),
    }
}

/// Returns everything that clients can see of a blob: `ETag`, content and blocks.
async fn visible_state(server: &TestServer, blob: &str) -> Vec<String> {
    let head = server.head(blob, "").await.expect(200);
    let got = server.get(blob, "").await;
    let blocks = server.get(&format!("{blob}?comp=blocklist&blocklisttype=all"), "").await;
    // An incremental copy cannot be read and has no blocks. Refusals differ in their request id.
    let body = |reply: Reply| if reply.status == 200 { reply.text().to_owned() } else { String::new() };
    vec![head.etag().to_owned(), body(got), body(blocks)]
}

/// Returns whether some kind of signature with `c` alone allows the operation.
fn is_allowed_with_create_alone(operation: Operation) -> bool {
    let row = operation.row();
    let delegated = operation.delegated_permission(&Query::default(), &HeaderMap::new(), Version::NEWEST);
    [row.account_sas, row.service_sas, delegated].iter().any(|needed| needed.granted_by("c"))
}

#[tokio::test]
async fn create_permission_alone_changes_no_existing_blob() {
    use Operation::*;
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "other").await;
    server.put_block_blob("/things/b", "kept").await;
    server.put("/things/b?comp=block&blockid=AAAA", "", "staged").await.expect(201);
    let source =
        format!("x-ms-copy-source: http://{}/{ACCOUNT}{}", server.address, allowed("/things/source"));
    let page = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512";
    server.put("/things/page", page, "").await.expect(201);
    let snapshot = server.snapshot("/things/page").await;
    let page = allowed(&format!("/things/page?snapshot={snapshot}"));
    let page = format!("x-ms-copy-source: http://{}/{ACCOUNT}{page}", server.address);
    server.put("/things/copy?comp=incrementalcopy", &page, "").await.expect(202);
    let block = format!("{source}\nx-ms-blob-type: BlockBlob");
    let at_once = format!("{source}\nx-ms-requires-sync: true");
    let overwrite = (403, "UnauthorizedBlobOverwrite");
    for operation in Operation::ALL.iter().filter(|operation| operation.service() == ServiceKind::Blob) {
        if !is_allowed_with_create_alone(*operation) {
            continue;
        }
        let (object, query, headers, body, expected) = match operation {
            // These read, or contain sub-requests with their own credentials.
            PreflightBlobRequest
            | GetAccountInformation
            | GetWebContent
            | GetWebContentProperties
            | BlobBatch
            | ContainerBatch => continue,
            CreateContainer => ("", "", "", "", (409, "ContainerAlreadyExists")),
            PutBlob => ("b", "", "x-ms-blob-type: BlockBlob", "new", overwrite),
            PutBlobFromUrl => ("b", "", &*block, "", overwrite),
            CopyBlob => ("b", "", &*source, "", overwrite),
            CopyBlobFromUrl => ("b", "", &*at_once, "", overwrite),
            IncrementalCopyBlob => ("copy", "", &*page, "", overwrite),
            PutBlock => ("b", "blockid=BBBB", "", "new", overwrite),
            PutBlockFromUrl => ("b", "blockid=BBBB", &*source, "", overwrite),
            PutBlockList => ("b", "", "", LIST, overwrite),
            // A snapshot is new and does not change its blob.
            SnapshotBlob => ("b", "", "", "", (201, "")),
            other => panic!("{other:?} has no row here"),
        };
        let blobs = ["/things/b", "/things/copy"];
        let before = [visible_state(&server, blobs[0]).await, visible_state(&server, blobs[1]).await];
        let (status, code) = create(&server, *operation, object, query, headers, body).await;
        assert_eq!((status, code.as_str()), expected, "{operation:?}");
        let after = [visible_state(&server, blobs[0]).await, visible_state(&server, blobs[1]).await];
        assert_eq!(after, before, "{operation:?}");
    }
}

#[tokio::test]
async fn create_permission_alone_commits_new_blocks_but_replaces_no_staged_block() {
    use Operation::{PutBlock, PutBlockFromUrl, PutBlockList};
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "other").await;
    let source =
        format!("x-ms-copy-source: http://{}/{ACCOUNT}{}", server.address, allowed("/things/source"));
    let put = async |operation, query: &str, headers: &str, body: &str| {
        create(&server, operation, "b", query, headers, body).await
    };
    let (created, overwrite) = ((201, String::new()), (403, "UnauthorizedBlobOverwrite".to_owned()));
    // Another writer has staged a block.
    server.put("/things/b?comp=block&blockid=AAAA", "", "first-").await.expect(201);
    assert_eq!(put(PutBlock, "blockid=AAAA", "", "own").await, overwrite);
    assert_eq!(put(PutBlockFromUrl, "blockid=AAAA", &source, "").await, overwrite);
    assert_eq!(put(PutBlock, "blockid=BBBB", "", "own").await, created);
    assert_eq!(put(PutBlock, "blockid=BBBB", "", "again").await, overwrite);
    let both = "<BlockList><Latest>AAAA</Latest><Latest>BBBB</Latest></BlockList>";
    assert_eq!(put(PutBlockList, "", "", both).await, created);
    assert_eq!(server.get("/things/b", "").await.text(), "first-own");
    assert_eq!(put(PutBlockList, "", "", LIST).await, overwrite);
    assert_eq!(put(PutBlock, "blockid=CCCC", "", "own").await, overwrite);

    // Expired blocks and blocks of a deleted blob are not protected.
    server.delete("/things/b", "").await.expect(202);
    assert_eq!(put(PutBlock, "blockid=AAAA", "", "own").await, created);
    server.advance(8 * 24 * 3600);
    assert_eq!(put(PutBlock, "blockid=AAAA", "", "new").await, created);
    assert_eq!(put(PutBlockList, "", "", LIST).await, created);
    assert_eq!(server.get("/things/b", "").await.text(), "new");
}
