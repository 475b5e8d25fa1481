//! List Ranges with `prevsharesnapshot`: the ranges written and cleared since a snapshot.

use lazuli_testing::{ACCOUNT, Reply};

use crate::support::{Server, make_directory, make_file, start, write};

async fn take(server: &Server) -> String {
    let taken = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
    server.advance(1);
    taken.header("x-ms-snapshot").unwrap().to_owned()
}

async fn since(server: &Server, path: &str, snapshot: &str, headers: &str) -> Reply {
    server.get(&format!("/docs/{path}?comp=rangelist&prevsharesnapshot={snapshot}"), headers).await
}

/// Parses a list of ranges: the first letter of each element's name, its start and end.
fn ranges(reply: &Reply) -> Vec<(char, u64, u64)> {
    let list = reply.text().split_once("<Ranges>").map_or("", |(_, list)| list);
    let number = |part: &str, name: &str| -> u64 {
        let from = part.split_once(&format!("<{name}>")).unwrap().1;
        from.split('<').next().unwrap().parse().unwrap()
    };
    let elements = list.split_inclusive("</End></").filter(|part| part.contains("<Start>"));
    let kind = |part: &str| if part.contains("<ClearRange>") { 'C' } else { 'R' };
    elements.map(|part| (kind(part), number(part, "Start"), number(part, "End"))).collect()
}

async fn clear(server: &Server, path: &str, first: u64, last: u64) {
    let headers = format!("x-ms-write: clear\nx-ms-range: bytes={first}-{last}");
    server.put(&format!("/docs/{path}?comp=range"), &headers, "").await.expect(201);
}

#[tokio::test]
async fn range_diff_reports_ranges_written_and_cleared_again() {
    let server = start().await;
    make_file(&server, "f", 2048).await;
    let empty = take(&server).await;
    write(&server, "f", 0, &[1; 1536]).await;
    let full = take(&server).await;
    clear(&server, "f", 512, 1023).await;
    let since_empty = ranges(&since(&server, "f", &empty, "").await.expect(200));
    assert_eq!(since_empty, [('R', 0, 511), ('C', 512, 1023), ('R', 1024, 1535)]);
    assert_eq!(ranges(&since(&server, "f", &full, "").await.expect(200)), [('C', 512, 1023)]);
}

#[tokio::test]
async fn range_diff_distinguishes_written_from_cleared_ranges() {
    let server = start().await;
    make_file(&server, "f", 65_536).await;
    write(&server, "f", 0, &[1; 16_384]).await;
    write(&server, "f", 32_768, &[2; 8192]).await;
    let first = take(&server).await;
    assert_eq!(ranges(&since(&server, "f", &first, "").await.expect(200)), []);
    write(&server, "f", 4096, &[3; 4096]).await;
    write(&server, "f", 20_480, &[4; 512]).await;
    clear(&server, "f", 32_768, 36_863).await;
    let second = take(&server).await;
    let changes = [('R', 4096, 8191), ('R', 20_480, 20_991), ('C', 32_768, 36_863)];
    let live = since(&server, "f", &first, "").await.expect(200);
    assert_eq!(ranges(&live), changes);
    assert_eq!(live.header("x-ms-content-length"), Some("65536"));
    // A part of the file. Between two snapshots, later changes do not matter.
    let part = since(&server, "f", &first, "x-ms-range: bytes=20480-40000").await.expect(200);
    assert_eq!(ranges(&part), changes[1..]);
    clear(&server, "f", 0, 65_535).await;
    let target = format!("/docs/f?comp=rangelist&sharesnapshot={second}&prevsharesnapshot={first}");
    assert_eq!(ranges(&server.get(&target, "").await.expect(200)), changes);
    // Truncated bytes count as cleared.
    server.put("/docs/f?comp=properties", "x-ms-content-length: 512", "").await.expect(200);
    let cut = ranges(&since(&server, "f", &second, "").await.expect(200));
    assert_eq!(cut, [('C', 0, 16_383), ('C', 20_480, 20_991), ('C', 36_864, 40_959)]);
}

#[tokio::test]
async fn range_diff_refuses_a_snapshot_of_another_file() {
    let server = start().await;
    make_file(&server, "f", 1024).await;
    let first = take(&server).await;
    let second = take(&server).await;
    let target = format!("/docs/f?comp=rangelist&sharesnapshot={first}&prevsharesnapshot={second}");
    server.get(&target, "").await.refused(400, "PreviousSnapshotCannotBeNewer");
    let none = "2020-01-01T00:00:00.0000000Z";
    since(&server, "f", none, "").await.refused(404, "ShareNotFound");
    since(&server, "f", "nonsense", "").await.refused(400, "InvalidQueryParameterValue");
    make_file(&server, "g", 1024).await;
    since(&server, "g", &first, "").await.refused(409, "PreviousSnapshotNotFound");
    // A file created again is another file.
    make_file(&server, "f", 1024).await;
    since(&server, "f", &first, "").await.refused(409, "FileGenerationMismatch");
    let follow = "x-ms-file-support-rename: true";
    since(&server, "f", &first, follow).await.refused(409, "FileGenerationMismatch");
    server.get("/docs/f?comp=rangelist", follow).await.refused(400, "UnsupportedHeader");
}

#[tokio::test]
async fn range_diff_finds_a_renamed_file_on_request() {
    let server = start().await;
    make_directory(&server, "a").await;
    make_directory(&server, "b").await;
    make_file(&server, "a/f", 4096).await;
    write(&server, "a/f", 0, &[1; 512]).await;
    let snapshot = take(&server).await;
    let rename = async |from: &str, to: &str, kind: &str| {
        let source = format!("http://{}/{ACCOUNT}/docs/{from}", server.address);
        let headers = format!("x-ms-file-rename-source: {source}");
        server.put(&format!("/docs/{to}?{kind}comp=rename"), &headers, "").await.expect(200);
    };
    rename("a/f", "b/g", "").await;
    rename("b", "c", "restype=directory&").await;
    server.delete("/docs/a?restype=directory", "").await.expect(202);
    write(&server, "c/g", 1024, &[2; 512]).await;
    for header in ["", "x-ms-file-support-rename: false"] {
        since(&server, "c/g", &snapshot, header).await.refused(409, "PreviousSnapshotNotFound");
    }
    let found = since(&server, "c/g", &snapshot, "x-ms-file-support-rename: true").await.expect(200);
    assert_eq!(ranges(&found), [('R', 1024, 1535)]);
}
