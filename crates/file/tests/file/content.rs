//! Get File, Put Range, List Ranges, a new length.

use base64::Engine as _;
use md5::Digest as _;

use crate::support::{make_file, start, write};

#[tokio::test]
async fn ranges_are_written_read_listed_and_cleared() {
    let server = start().await;
    make_file(&server, "f", 10_000).await;
    write(&server, "f", 1000, &[7; 3000]).await;
    write(&server, "f", 4000, &[8; 1000]).await;
    let whole = server.get("/docs/f", "").await.expect(200);
    let mut expected = vec![0; 10_000];
    expected[1000..4000].fill(7);
    expected[4000..5000].fill(8);
    assert_eq!(whole.body, expected);
    let part = server.get("/docs/f", "x-ms-range: bytes=999-1001").await.expect(206);
    assert_eq!(
        (&part.body[..], part.header("content-range")),
        (&[0, 7, 7][..], Some("bytes 999-1001/10000"))
    );
    server.get("/docs/f", "x-ms-range: bytes=10000-").await.refused(416, "InvalidRange");
    let ranges = server.get("/docs/f?comp=rangelist", "").await.expect(200);
    assert!(ranges.text().ends_with("<Ranges><Range><Start>1000</Start><End>4999</End></Range></Ranges>"));
    assert_eq!(ranges.header("x-ms-content-length"), Some("10000"));

    // Clearing frees whole units and fills partial units with zeros.
    let clear = "x-ms-write: clear\nx-ms-range: bytes=1100-3999";
    server.put("/docs/f?comp=range", clear, "").await.expect(201);
    expected[1100..4000].fill(0);
    assert_eq!(server.get("/docs/f", "").await.expect(200).body, expected);
    let ranges = server.get("/docs/f?comp=rangelist", "").await.expect(200);
    assert!(ranges.text().contains("<Start>1000</Start><End>1535</End>"), "{}", ranges.text());
}

#[tokio::test]
async fn ranges_are_listed_in_pages_if_pages_are_asked_for() {
    let server = start().await;
    make_file(&server, "f", 5000).await;
    for offset in [0, 1024, 2048, 4096] {
        write(&server, "f", offset, &[7; 512]).await;
    }
    let list = async |query: &str| {
        let reply = server.get(&format!("/docs/f?comp=rangelist{query}"), "").await.expect(200);
        let text = reply.text();
        text.split("<Ranges>").nth(1).unwrap().trim_end_matches("</Ranges>").to_owned()
    };
    let range = |start: u64| format!("<Range><Start>{start}</Start><End>{}</End></Range>", start + 511);
    let all = [0, 1024, 2048, 4096].map(range).concat();
    assert_eq!(list("").await, all);
    assert_eq!(list("&maxresults=4").await, all);
    assert_eq!(
        list("&maxresults=3").await,
        [0, 1024, 2048].map(range).concat() + "<NextMarker>4096</NextMarker>"
    );
    assert_eq!(list("&maxresults=3&marker=4096").await, range(4096));
    assert_eq!(list("&marker=5000").await, "");
    server.get("/docs/f?comp=rangelist&maxresults=0", "").await.refused(400, "OutOfRangeQueryParameterValue");
}

#[tokio::test]
async fn a_file_can_be_created_with_its_first_bytes() {
    let server = start().await;
    let headers = "x-ms-type: file\nx-ms-content-length: 100000";
    for length in [3, 70_000] {
        let bytes = vec![b'x'; length];
        let created = server.put("/docs/f", headers, bytes.clone()).await.expect(201);
        let md5 = base64::engine::general_purpose::STANDARD.encode(md5::Md5::digest(&bytes));
        assert_eq!(created.header("content-md5"), Some(md5.as_str()));
        let body = server.get("/docs/f", "").await.expect(200).body;
        assert_eq!(body, [bytes, vec![0; 100_000 - length]].concat());
    }
    let wrong = format!("{headers}\ncontent-md5: AAAAAAAAAAAAAAAAAAAAAA==");
    server.put("/docs/g", &wrong, "abc").await.refused(400, "Md5Mismatch");
    let short = "x-ms-type: file\nx-ms-content-length: 2";
    server.put("/docs/g", short, "abc").await.refused(416, "InvalidRange");
    let long = format!("x-ms-type: file\nx-ms-content-length: {}", 8 << 20);
    server.put("/docs/g", &long, vec![0; (4 << 20) + 1]).await.refused(413, "RequestBodyTooLarge");
    server.get("/docs/g", "").await.refused(404, "ResourceNotFound");
}

#[tokio::test]
async fn a_file_can_be_cut_off_and_grown() {
    let server = start().await;
    make_file(&server, "f", 100).await;
    write(&server, "f", 0, &[1; 100]).await;
    server.put("/docs/f?comp=properties", "x-ms-content-length: 50", "").await.expect(200);
    server.put("/docs/f?comp=properties", "x-ms-content-length: 80", "").await.expect(200);
    let body = server.get("/docs/f", "").await.expect(200).body;
    assert_eq!(body, [vec![1; 50], vec![0; 30]].concat());
    let reply = server.put("/docs/f?comp=properties", "x-ms-content-length: -1", "").await;
    reply.refused(400, "OutOfRangeInput");
}

#[tokio::test]
async fn empty_file_of_four_tebibytes_uses_no_storage() {
    let server = start().await;
    make_file(&server, "f", 4 << 40).await;
    write(&server, "f", (4 << 40) - 3, b"end").await;
    let range = format!("x-ms-range: bytes={}-", (4u64 << 40) - 5);
    assert_eq!(server.get("/docs/f", &range).await.expect(206).body, &b"\0\0end"[..]);
    let headers = format!("x-ms-type: file\nx-ms-content-length: {}", (4u64 << 40) + 1);
    server.put("/docs/g", &headers, "").await.refused(400, "InvalidHeaderValue");
}

#[tokio::test]
async fn put_range_verifies_md5_or_crc64_and_returns_it() {
    let server = start().await;
    make_file(&server, "f", 100_000).await;
    for length in [3, 100_000] {
        let put = async |digest: &str| {
            let headers = format!("x-ms-write: update\nx-ms-range: bytes=0-{}\n{digest}", length - 1);
            server.put("/docs/f?comp=range", &headers, vec![b'x'; length]).await.expect(201)
        };
        let plain = put("").await;
        let md5 = plain.header("content-md5").unwrap();
        assert_eq!(put(&format!("content-md5: {md5}")).await.header("content-md5"), Some(md5));
        let crc64 = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &vec![b'x'; length]);
        let crc64 = base64::engine::general_purpose::STANDARD.encode(crc64.to_le_bytes());
        let reply = put(&format!("x-ms-content-crc64: {crc64}")).await;
        assert_eq!(reply.header("x-ms-content-crc64"), Some(crc64.as_str()));
    }
}

#[tokio::test]
async fn bad_ranges_are_refused_and_nothing_changes() {
    let server = start().await;
    make_file(&server, "f", 10).await;
    let put = |headers: &'static str, body: &'static str| server.put("/docs/f?comp=range", headers, body);
    put("x-ms-range: bytes=0-2", "abc").await.refused(400, "MissingRequiredHeader");
    put("x-ms-write: update", "abc").await.refused(400, "MissingRequiredHeader");
    put("x-ms-write: update\nx-ms-range: bytes=0-3", "abc").await.refused(400, "InvalidHeaderValue");
    put("x-ms-write: update\nx-ms-range: bytes=8-10", "abc").await.refused(416, "InvalidRange");
    put("x-ms-write: clear\nx-ms-range: bytes=0-2", "abc").await.refused(400, "InvalidHeaderValue");
    let wrong = "x-ms-write: update\nx-ms-range: bytes=0-2\ncontent-md5: AAAAAAAAAAAAAAAAAAAAAA==";
    put(wrong, "abc").await.refused(400, "Md5Mismatch");
    let wrong = "x-ms-write: update\nx-ms-range: bytes=0-2\nx-ms-content-crc64: AAAAAAAAAAA=";
    put(wrong, "abc").await.refused(400, "Crc64Mismatch");
    let both = "x-ms-write: update\nx-ms-range: bytes=0-2\nx-ms-content-crc64: AAAAAAAAAAA=\n\
        content-md5: kAFQmDzST7DWlj99KOF/cg==";
    put(both, "abc").await.refused(400, "BothCrc64AndMd5HeaderPresent");
    let large = "x-ms-write: update\nx-ms-range: bytes=0-4194304";
    put(large, "abc").await.refused(413, "RequestBodyTooLarge");
    assert_eq!(server.get("/docs/f", "").await.expect(200).body, vec![0; 10]);
}
