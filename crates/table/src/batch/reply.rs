//! Renders the replies to batches exactly as the live service does. Some clients parse them with regular
//! expressions, so header names have their usual case, and every part ends with a line end.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use lazuli_concurrency::Timestamp;
use lazuli_protocol::error::ErrorFormat;
use lazuli_protocol::{Body, Refusal, Response, multipart};
use lazuli_service::reply::put;
use uuid::Uuid;

use super::multipart::ContentIds;

const CONTENT_ID: &str = "content-id";
/// Header names that are not simply capitalized after each hyphen.
const SPECIAL_NAMES: [(&str, &str); 6] = [
    (CONTENT_ID, "Content-ID"),
    ("dataserviceid", "DataServiceId"),
    ("dataserviceversion", "DataServiceVersion"),
    ("etag", "ETag"),
    ("x-ms-continuation-nextpartitionkey", "x-ms-continuation-NextPartitionKey"),
    ("x-ms-continuation-nextrowkey", "x-ms-continuation-NextRowKey"),
];

/// Returns the reply to a change set, with the given parts.
pub(super) fn change_set(parts: &[Bytes]) -> Response {
    let boundary = format!("changesetresponse_{}", Uuid::new_v4());
    let mut part = format!("Content-Type: multipart/mixed; boundary={boundary}\r\n\r\n").into_bytes();
    part.extend_from_slice(&multipart::join(&boundary, parts));
    batch(part.into())
}

/// Returns the reply to a batch, with the given part.
pub(super) fn batch(part: Bytes) -> Response {
    let boundary = format!("batchresponse_{}", Uuid::new_v4());
    let mut body = multipart::join(&boundary, &[part]);
    body.extend_from_slice(b"\r\n");
    let mut response = Response::empty(StatusCode::ACCEPTED);
    let headers = &mut response.headers;
    put(headers, CONTENT_TYPE.as_str(), format!("multipart/mixed; boundary={boundary}"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.body = Body::whole(body);
    response
}

/// Renders the part that reports which operation failed, and why.
pub(super) fn refused(
    ids: &ContentIds,
    index: usize,
    refusal: &Refusal,
    (request_id, now): (Uuid, Timestamp),
) -> Bytes {
    let refusal = refusal.clone().message(format!("{index}:{}", refusal.text()));
    let (status, mut headers, body) = refusal.render(ErrorFormat::TableJson, &Method::POST, request_id, now);
    // Only the reply to a whole request has this header.
    headers.remove("x-ms-error-code");
    headers.insert("dataserviceversion", HeaderValue::from_static("3.0;"));
    part(ids, status, &headers, &body)
}

/// Renders the reply to one operation.
pub(super) fn part(ids: &ContentIds, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Bytes {
    let mut part = Vec::with_capacity(1024 + body.len());
    part.extend_from_slice(b"Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n");
    if let Some(id) = &ids.of_part {
        push_header(&mut part, CONTENT_ID, id);
    }
    let reason = status.canonical_reason().unwrap_or_default();
    part.extend_from_slice(format!("\r\nHTTP/1.1 {} {reason}\r\n", status.as_u16()).as_bytes());
    if let Some(id) = &ids.of_request {
        push_header(&mut part, CONTENT_ID, id);
    }
    for (name, value) in headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH) {
        push_header(&mut part, name.as_str(), value);
    }
    part.extend_from_slice(b"\r\n");
    part.extend_from_slice(body);
    part.into()
}

fn push_header(part: &mut Vec<u8>, name: &str, value: &HeaderValue) {
    match SPECIAL_NAMES.iter().find(|(lower, _)| *lower == name) {
        Some((_, spelled)) => part.extend_from_slice(spelled.as_bytes()),
        None => {
            let mut starts = true;
            for byte in name.bytes() {
                part.push(if starts { byte.to_ascii_uppercase() } else { byte });
                starts = byte == b'-';
            }
        }
    }
    part.extend_from_slice(b": ");
    part.extend_from_slice(value.as_bytes());
    part.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn change_set_has_the_delimiters_of_the_live_service() {
        // As in the recordings of azure-sdk-for-js, tables: after a part without a body come an empty line
        // and the line end before the delimiter, unlike in a blob batch. A line end follows the last
        // delimiter.
        let ids = || ContentIds { of_part: None, of_request: None };
        let parts = [
            part(&ids(), StatusCode::NO_CONTENT, &HeaderMap::new(), b""),
            part(&ids(), StatusCode::NOT_FOUND, &HeaderMap::new(), b"{}"),
        ];
        let mut response = change_set(&parts);
        let body = lazuli_protocol::request::collect(std::pin::Pin::new(&mut response.body), 1 << 20).await;
        let body = String::from_utf8(body.unwrap().to_vec()).unwrap();
        let id = |prefix: &str| {
            let start = body.find(prefix).unwrap();
            body[start..].split("\r\n").next().unwrap().to_owned()
        };
        let (batch, set) = (id("batchresponse_"), id("changesetresponse_"));
        let http = "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\nHTTP/1.1";
        let expected = format!(
            "--{batch}\r\nContent-Type: multipart/mixed; boundary={set}\r\n\r\n\
             --{set}\r\n{http} 204 No Content\r\n\r\n\r\n\
             --{set}\r\n{http} 404 Not Found\r\n\r\n{{}}\r\n\
             --{set}--\r\n--{batch}--\r\n"
        );
        assert_eq!(body, expected);
    }

    #[test]
    fn part_has_the_format_of_the_live_service() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("dataserviceversion", "3.0;"),
            ("content-length", "0"),
            ("etag", "W/\"datetime'x'\""),
        ] {
            put(&mut headers, name, value);
        }
        let id = |id| Some(HeaderValue::from_static(id));
        let ids = ContentIds { of_part: id("7"), of_request: id("8") };
        let part = part(&ids, StatusCode::NO_CONTENT, &headers, b"");
        let expected = "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 7\r\n\r\n\
                        HTTP/1.1 204 No Content\r\nContent-ID: 8\r\nX-Content-Type-Options: nosniff\r\n\
                        DataServiceVersion: 3.0;\r\nETag: W/\"datetime'x'\"\r\n\r\n";
        assert_eq!(std::str::from_utf8(&part), Ok(expected));
    }
}
