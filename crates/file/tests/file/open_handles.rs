//! List Handles and Force Close Handles.

use lazuli_concurrency::FileAccess;
use lazuli_file::handles::{CreateRequest, Disposition};

use crate::handles::{connect, create, create_request};
use crate::opens::{open, request};
use crate::support::{Server, make_directory, make_file, start};

const R: FileAccess = FileAccess::READ;

/// Returns the ids of the listed handles and the next marker.
async fn listed(server: &Server, target: &str, headers: &str) -> (Vec<u64>, String) {
    let reply = server.get(target, headers).await.expect(200);
    let text = reply.text().to_owned();
    let ids = text.split("<HandleId>").skip(1).map(|rest| rest.split('<').next().unwrap().parse().unwrap());
    let marker = text.split("<NextMarker>").nth(1).map_or("", |rest| rest.split('<').next().unwrap());
    (ids.collect(), marker.to_owned())
}

#[tokio::test]
async fn listed_handle_has_client_session_and_access() {
    let server = start().await;
    make_directory(&server, "Dir").await;
    make_file(&server, "Dir/f", 1).await;
    let id = open(&server, "Dir/f", request(R | FileAccess::DELETE, FileAccess::ALL)).await.unwrap();
    let reply = server.get("/docs/dir/F?comp=listhandles", "").await.expect(200);
    let parent = server.call("HEAD", "/docs/dir?restype=directory", "", "").await.expect(200);
    let expected = format!(
        "<EnumerationResults><Entries><Handle><HandleId>{}</HandleId><Path>Dir/f</Path><FileId>{}</FileId>\
         <ParentId>{}</ParentId><SessionId>77</SessionId><ClientIp>10.0.0.9</ClientIp>\
         <ClientName>desk</ClientName><OpenTime>Fri, 02 Jan 2026 03:04:05 GMT</OpenTime><AccessRightList>\
         <AccessRight>Read</AccessRight><AccessRight>Delete</AccessRight></AccessRightList></Handle></Entries>\
         <NextMarker /></EnumerationResults>",
        id.number,
        id.file.node.0,
        parent.header("x-ms-file-id").unwrap(),
    );
    assert!(reply.text().ends_with(&expected), "{}", reply.text());
}

#[tokio::test]
async fn handles_are_listed_by_file_by_directory_recursively_and_in_pages() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_directory(&server, "d/e").await;
    let mut ids = vec![];
    make_file(&server, "d/e/f", 1).await;
    make_file(&server, "de", 1).await;
    for path in ["d", "d/e/f", "D/E/F", "de"] {
        ids.push(open(&server, path, request(R, FileAccess::ALL)).await.unwrap().number);
    }
    let none = String::new();
    for (target, headers, expected) in [
        ("/docs/d?comp=listhandles", "", &ids[..1]),
        ("/docs/d?comp=listhandles", "x-ms-recursive: true", &ids[..3]),
        ("/docs/d/e?comp=listhandles", "", &[]),
        ("/docs/d/e?comp=listhandles", "x-ms-recursive: true", &ids[1..3]),
        ("/docs/d/e/f?comp=listhandles", "", &ids[1..3]),
        ("/docs?comp=listhandles", "x-ms-recursive: true", &ids[..]),
        ("/docs?comp=listhandles", "", &[]),
    ] {
        assert_eq!(listed(&server, target, headers).await, (expected.to_vec(), none.clone()), "{target}");
    }
    let (first, marker) =
        listed(&server, "/docs?comp=listhandles&maxresults=3", "x-ms-recursive: true").await;
    assert_eq!(first, ids[..3]);
    let target = format!("/docs?comp=listhandles&maxresults=3&marker={marker}");
    assert_eq!(listed(&server, &target, "x-ms-recursive: true").await, (ids[3..].to_vec(), none));
    let on_a_file = server.get("/docs/de?comp=listhandles", "x-ms-recursive: true").await;
    on_a_file.refused(400, "InvalidHeaderValue");
    server.get("/docs/no?comp=listhandles", "").await.refused(404, "ResourceNotFound");
    let zero = server.get("/docs/de?comp=listhandles&maxresults=0", "").await;
    zero.refused(400, "OutOfRangeQueryParameterValue");
}

#[tokio::test]
async fn force_close_closes_one_handle_or_all() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "d/f", 1).await;
    let shared = request(FileAccess::ALL, FileAccess::ALL);
    let first = open(&server, "d/f", shared.clone()).await.unwrap();
    let second = open(&server, "d/f", shared.clone()).await.unwrap();
    let third = open(&server, "d", shared).await.unwrap();
    let close = |target: &'static str, headers: String| {
        let server = &server;
        async move {
            let reply = server.put(target, &headers, "").await.expect(200);
            assert_eq!(reply.header("x-ms-number-of-handles-failed"), Some("0"));
            reply.header("x-ms-number-of-handles-closed").unwrap().to_owned()
        }
    };
    let of_file = "/docs/d/f?comp=forceclosehandles";
    assert_eq!(close(of_file, format!("x-ms-handle-id: {}", third.number)).await, "0");
    assert_eq!(close(of_file, format!("x-ms-handle-id: {}", first.number)).await, "1");
    assert_eq!(close(of_file, format!("x-ms-handle-id: {}", first.number)).await, "0");
    assert!(!server.service.opens().is_open(first) && server.service.opens().is_open(second));
    // A file marked for deletion is deleted when its last handle closes, also by force.
    server.service.opens().set_delete_pending(second, true).await.unwrap();
    let of_directory = "/docs/d?comp=forceclosehandles";
    let all = "x-ms-handle-id: *\nx-ms-recursive: true";
    assert_eq!(close(of_directory, all.into()).await, "2");
    assert_eq!(close(of_directory, all.into()).await, "0");
    server.get("/docs/d/f", "").await.refused(404, "ResourceNotFound");
    server.put(of_directory, "", "").await.refused(400, "MissingRequiredHeader");
    server.put(of_directory, "x-ms-handle-id: abc", "").await.refused(400, "InvalidHeaderValue");
}

#[tokio::test]
async fn handles_of_a_snapshot_are_separate_from_those_of_the_share() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "d/f", 1).await;
    let taken = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
    let snapshot = taken.header("x-ms-snapshot").unwrap();
    let then = server.service.snapshots_of(&connect(&server).await).await.unwrap()[0];
    let now = open(&server, "d/f", request(R, FileAccess::ALL)).await.unwrap();
    let old = CreateRequest {
        snapshot: Some(then),
        open: request(R, FileAccess::ALL),
        ..create_request("d/f", Disposition::Open)
    };
    let old = create(&server, old).await.unwrap().opened.id;
    for (target, headers) in [("/docs/d/f?comp=", ""), ("/docs/d?comp=", "x-ms-recursive: true")] {
        for (of, expected) in [(String::new(), now), (format!("&sharesnapshot={snapshot}"), old)] {
            let ids = listed(&server, &format!("{target}listhandles{of}"), headers).await.0;
            assert_eq!(ids, [expected.number], "{target}{of}");
        }
    }
    let close = format!("/docs/d/f?comp=forceclosehandles&sharesnapshot={snapshot}");
    let closed = server.put(&close, "x-ms-handle-id: *", "").await.expect(200);
    assert_eq!(closed.header("x-ms-number-of-handles-closed"), Some("1"));
    assert!(server.service.opens().is_open(now) && !server.service.opens().is_open(old));
    let unknown = "/docs/d/f?comp=forceclosehandles&sharesnapshot=2020-01-01T00:00:00.0000000Z";
    server.put(unknown, "x-ms-handle-id: *", "").await.refused(404, "ShareNotFound");
}

#[tokio::test]
async fn many_handles_are_closed_in_portions() {
    let server = start().await;
    make_file(&server, "f", 1).await;
    for _ in 0..1003 {
        open(&server, "f", request(R, FileAccess::ALL)).await.unwrap();
    }
    let reply = server.put("/docs/f?comp=forceclosehandles", "x-ms-handle-id: *", "").await.expect(200);
    assert_eq!(reply.header("x-ms-number-of-handles-closed"), Some("1000"));
    let marker = reply.header("x-ms-marker").unwrap();
    let target = format!("/docs/f?comp=forceclosehandles&marker={marker}");
    let reply = server.put(&target, "x-ms-handle-id: *", "").await.expect(200);
    assert_eq!(reply.header("x-ms-number-of-handles-closed"), Some("3"));
    assert_eq!(reply.header("x-ms-marker"), None);
    server.delete("/docs/f", "").await.expect(202);
}
