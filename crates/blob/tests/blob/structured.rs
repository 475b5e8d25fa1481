//! Structured messages in both directions: bodies with a CRC of each segment.

use bytes::Bytes;
use lazuli_protocol::structured::{content, message};

use crate::support::start;

const FORMAT: &str = "x-ms-structured-body: XSM/1.0; properties=crc64";

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 % 251) as u8).collect()
}

fn upload(length: usize) -> String {
    format!("{FORMAT}\nx-ms-structured-content-length: {length}\nx-ms-blob-type: BlockBlob")
}

#[tokio::test]
async fn uploads_are_decoded_and_downloads_encoded_as_structured_messages() {
    let server = start().await;
    server.create_container("things").await;
    for length in [0, 1, 5000, 70_000, (9 << 20) + 3] {
        let data = data(length);
        let put = server.put("/things/b", &upload(length), message(&data, 1 << 20)).await.expect(201);
        assert_eq!(put.header("x-ms-structured-body"), Some("XSM/1.0; properties=crc64"));
        let plain = server.get("/things/b", "").await.expect(200);
        assert_eq!(plain.header("x-ms-structured-body"), None);
        assert!(plain.body == data, "{length}");
        assert_eq!(plain.header("content-md5"), put.header("content-md5"));

        let got = server.get("/things/b", FORMAT).await.expect(200);
        assert_eq!(got.header("x-ms-structured-body"), Some("XSM/1.0; properties=crc64"));
        assert_eq!(got.header("x-ms-structured-content-length"), Some(length.to_string().as_str()));
        assert_eq!(got.header("content-length"), Some(got.body.len().to_string().as_str()));
        assert!(content(&got.body, length as u64, 1 << 20).unwrap() == data, "{length}");
    }
    let part = server.get("/things/b", &format!("{FORMAT}\nx-ms-range: bytes=7-6000000")).await.expect(206);
    assert_eq!(part.header("content-range"), Some("bytes 7-6000000/9437187"));
    assert!(content(&part.body, 5_999_994, 4096).unwrap() == data(9 << 20)[7..=6_000_000]);
}

#[tokio::test]
async fn corrupt_structured_message_is_refused_and_not_stored() {
    let server = start().await;
    server.create_container("things").await;
    let data = data(3000);
    let whole = message(&data, 1000);
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        Bytes::from(bytes)
    };
    for (body, length, code) in [
        // Corrupts a byte of the content, of a segment's CRC, of the content's CRC, of a segment's number,
        // and of the version.
        (flipped(100), 3000, "Crc64Mismatch"),
        (flipped(1023), 3000, "Crc64Mismatch"),
        (flipped(whole.len() - 1), 3000, "Crc64Mismatch"),
        (flipped(13), 3000, "InvalidInput"),
        (flipped(0), 3000, "InvalidInput"),
        (Bytes::from(data.clone()), 3000, "InvalidInput"),
        (whole.clone().into(), 2999, "InvalidInput"),
        (whole.clone().into(), 3001, "InvalidInput"),
        (Bytes::new(), 0, "InvalidInput"),
    ] {
        let reply = server.put("/things/b", &upload(length), body).await.refused(400, code);
        assert_eq!(reply.header("x-ms-structured-body"), None);
    }
    server.get("/things/b", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn invalid_structured_message_headers_are_refused() {
    let server = start().await;
    server.create_container("things").await;
    let put = |headers: &'static str| server.put("/things/b", headers, message(b"hello", 9));
    put("x-ms-blob-type: BlockBlob\nx-ms-structured-body: XSM/1.0; properties=crc64")
        .await
        .refused(400, "MissingRequiredHeader");
    put("x-ms-blob-type: BlockBlob\nx-ms-structured-body: XSM/2.0\nx-ms-structured-content-length: 5")
        .await
        .refused(400, "InvalidHeaderValue");
    put("x-ms-blob-type: BlockBlob\nx-ms-structured-body: XSM/1.0; properties=crc64\nx-ms-structured-content-length: -1")
        .await
        .refused(400, "InvalidHeaderValue");
    // The limit applies to the content, not to the encoded message.
    let old = format!("{}\nx-ms-version: 2015-02-21", upload((64 << 20) + 1));
    server.put("/things/b", &old, message(b"hello", 9)).await.refused(413, "RequestBodyTooLarge");
}
