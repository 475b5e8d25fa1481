//! Blob Batch: up to 256 Delete Blob or Set Blob Tier requests in one, at account or container scope.
//!
//! Every sub-request is authorized by its own credentials, and succeeds or fails on its own. Sub-requests run
//! concurrently, and nothing is atomic. A malformed batch is answered like the cloud service does: 202, and a
//! single part that has no `Content-ID` and contains the refusal. Parts of the reply are in the order of the
//! request, because some clients rely on the order instead of the id.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use lazuli_protocol::error::ErrorFormat;
use lazuli_protocol::request::{SubRequests, collect};
use lazuli_protocol::{Body, ErrorCode, Headers, Operation, Refusal, Request, Response, Service, multipart};
use lazuli_service::internal_error;
use tracing::Instrument;
use uuid::Uuid;

use crate::{BlobService, reply};

/// Maximum number of requests in a batch.
const MAX_REQUESTS: usize = 256;
/// Maximum length of a batch, in bytes.
const MAX_BODY: usize = 4 << 20;
/// Maximum number of concurrent requests of one batch.
const AT_ONCE: usize = 16;
/// Maximum length of the body of a sub-request's reply, in bytes. Only refusals have one.
const MAX_REPLY: usize = 64 << 10;
/// Maximum length of an `x-ms-client-request-id` that is echoed, in bytes.
const MAX_CLIENT_REQUEST_ID: usize = 1024;

const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-client-request-id");

/// A sub-request of a batch.
struct Part {
    /// `Content-ID`, with which the client matches the reply to the request.
    id: String,
    head: Parts,
}

impl BlobService {
    /// Handles Blob Batch, of the account or of a container.
    pub(crate) async fn blob_batch(&self, mut request: Request) -> Result<Response, Refusal> {
        let boundary = boundary(&request.headers)?.to_owned();
        let sub_requests = request.sub_requests.take();
        let sub_requests =
            sub_requests.ok_or_else(|| internal_error("a batch came without its sub-requests"))?;
        let body = request.read_body(MAX_BODY).await?;
        let scope = (request.operation == Operation::ContainerBatch).then_some(request.container.as_str());
        let replies =
            match parts(&body, &boundary).and_then(|parts| check_parts(parts, &*sub_requests, scope)) {
                Ok(parts) => {
                    let replies = parts.into_iter().map(|part| self.run_part(&request, &sub_requests, part));
                    stream::iter(replies).buffered(AT_ONCE).collect().await
                }
                Err(refusal) => {
                    let request_id = request.request_id;
                    let whole =
                        PartHeader { id: None, method: Method::POST, request_id, client_request_id: None };
                    vec![whole.reply(&request, Err(refusal))]
                }
            };
        let boundary = format!("batchresponse_{}", Uuid::new_v4());
        let mut response = Response::empty(StatusCode::ACCEPTED);
        reply::put(&mut response.headers, "content-type", format!("multipart/mixed; boundary={boundary}"));
        response.body = Body::whole(multipart::join(&boundary, &replies));
        Ok(response)
    }

    async fn run_part(&self, batch: &Request, sub_requests: &Arc<dyn SubRequests>, part: Part) -> Bytes {
        let header = PartHeader {
            method: part.head.method.clone(),
            request_id: Uuid::new_v4(),
            client_request_id: part.head.headers.get(CLIENT_REQUEST_ID).cloned(),
            id: Some(part.id),
        };
        let outcome = async {
            let request = sub_requests.admit(part.head.clone(), header.request_id).await?;
            let Response { status, headers, mut body } = self.call(request).await?;
            Ok((status, headers, collect(Pin::new(&mut body), MAX_REPLY).await?))
        };
        let span = tracing::error_span!(
            "part",
            request_id = %header.request_id,
            account = batch.account.name,
            operation = sub_requests.locate(&part.head).ok().map(|(operation, _)| operation.name()),
        );
        let outcome = outcome.instrument(span).await;
        if let Err(refusal) = &outcome {
            sub_requests.log_refusal(&part.head, header.request_id, refusal);
        }
        header.reply(batch, outcome)
    }
}

/// Identifies the sub-request, or the refused batch, that a part of the reply belongs to.
struct PartHeader {
    id: Option<String>,
    method: Method,
    request_id: Uuid,
    client_request_id: Option<HeaderValue>,
}

impl PartHeader {
    /// Renders one part of the reply.
    fn reply(self, batch: &Request, outcome: Result<(StatusCode, HeaderMap, Bytes), Refusal>) -> Bytes {
        let refusal = outcome.as_ref().err().map(|refusal| refusal.text().to_owned());
        let (status, mut headers, body) = outcome.unwrap_or_else(|refusal| {
            refusal.render(ErrorFormat::Xml, &self.method, self.request_id, batch.now)
        });
        let reason = match &refusal {
            Some(message) => message.lines().next(),
            None => status.canonical_reason(),
        };
        headers.remove(CONTENT_LENGTH);
        reply::put(&mut headers, "x-ms-request-id", self.request_id.to_string());
        reply::put(&mut headers, "x-ms-version", batch.version.to_string());
        let client_request_id =
            self.client_request_id.filter(|id| id.len() <= MAX_CLIENT_REQUEST_ID && id.to_str().is_ok());
        headers.extend(client_request_id.map(|id| (CLIENT_REQUEST_ID, id)));

        let mut part = String::from("Content-Type: application/http\r\n").into_bytes();
        let mut line = |line: String| part.extend_from_slice(line.as_bytes());
        if let Some(id) = self.id {
            line(format!("Content-ID: {id}\r\n"));
        }
        line(format!("\r\nHTTP/1.1 {} {}\r\n", status.as_u16(), reason.unwrap_or_default()));
        if !body.is_empty() {
            line(format!("Content-Length: {}\r\n", body.len()));
        }
        for (name, value) in &headers {
            line(format!("{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes())));
        }
        // The cloud service ends a part without a body with one empty line, which is the line end before the
        // delimiter. Clients take a second empty line for a body.
        if !body.is_empty() {
            line("\r\n".into());
            part.extend_from_slice(&body);
        }
        part.into()
    }
}

/// Returns the boundary that the request's `Content-Type` names.
fn boundary(headers: &HeaderMap) -> Result<&str, Refusal> {
    let value = headers.text("content-type")?.ok_or_else(|| Refusal::missing_header("content-type"))?;
    multipart::boundary(value).ok_or_else(|| Refusal::invalid_header("content-type", value))
}

/// Splits the body of a batch into its sub-requests.
fn parts(body: &[u8], boundary: &str) -> Result<Vec<Part>, Refusal> {
    let parts = multipart::split(body, boundary).ok_or(ErrorCode::InvalidInput)?;
    match parts.len() {
        0 => Err(ErrorCode::InvalidInput.into()),
        1..=MAX_REQUESTS => parts
            .into_iter()
            .map(|part| parse(part).ok_or_else(|| Refusal::new(ErrorCode::InvalidInput)))
            .collect(),
        _ => Err(ErrorCode::ExceedsMaxBatchRequestCount.into()),
    }
}

/// Parses one part: its own headers, then the head of a request.
fn parse(part: &[u8]) -> Option<Part> {
    let part = multipart::Part::parse(part)?;
    let id = part.headers.get("content-id")?.to_str().ok()?.trim().to_owned();
    let head = part.request()?.head;
    (!id.is_empty()).then_some(Part { id, head })
}

/// Refuses a batch with sub-requests that cannot be in one.
fn check_parts(
    parts: Vec<Part>,
    sub_requests: &dyn SubRequests,
    scope: Option<&str>,
) -> Result<Vec<Part>, Refusal> {
    let mut kind = None;
    for part in &parts {
        let (operation, address) = sub_requests.locate(&part.head).map_err(|_| ErrorCode::InvalidInput)?;
        let can_be = matches!(operation, Operation::DeleteBlob | Operation::SetBlobTier);
        if !can_be || scope.is_some_and(|container| container != address.container) {
            return Err(ErrorCode::InvalidInput.into());
        }
        if *kind.get_or_insert(operation) != operation {
            return Err(ErrorCode::AllBatchSubRequestsShouldBeSameApi.into());
        }
    }
    Ok(parts)
}

/// Parses a batch whose boundary is `b`, or the announcement of a boundary. Returns whether it is valid.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(data: &[u8]) -> bool {
    let is_boundary = HeaderValue::from_bytes(data)
        .is_ok_and(|value| boundary(&HeaderMap::from_iter([(http::header::CONTENT_TYPE, value)])).is_ok());
    parts(data, "b").is_ok() || is_boundary
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HEAD: &str = "Content-Type: application/http\r\nContent-ID: 7\r\n\r\n";

    #[test]
    fn part_is_parsed_in_the_form_of_each_client() {
        for (request, path) in [
            // With an empty line, without one, without a slash, with an empty query, with line feeds only.
            ("DELETE /c/b HTTP/1.1\r\nx-ms-date: d\r\n\r\n", "/c/b"),
            ("DELETE /c/b?snapshot=s HTTP/1.1\r\nx-ms-date: d\r\n", "/c/b?snapshot=s"),
            ("DELETE dev/c/b HTTP/1.1\r\nx-ms-date: d", "/dev/c/b"),
            ("DELETE /c/b? HTTP/1.1\r\nx-ms-date: d\r\nContent-Length: 0\r\n\r\n\r\n", "/c/b?"),
            ("DELETE /c/%C3%A4 HTTP/1.1\nx-ms-date: d\n\n", "/c/%C3%A4"),
        ] {
            let part = parse(format!("{HEAD}{request}").as_bytes()).unwrap();
            assert_eq!((part.id.as_str(), part.head.method.as_str()), ("7", "DELETE"));
            assert_eq!(part.head.uri.to_string(), path);
            assert_eq!(part.head.headers["x-ms-date"], "d");
        }
        for malformed in [
            "",
            "DELETE /c/b HTTP/1.1",
            "Content-Type: application/http\r\n\r\nDELETE /c/b HTTP/1.1\r\n",
            "Content-ID: 7\r\n\r\nDELETE /c/b HTTP/1.1\r\n",
            "Content-Type: text/plain\r\nContent-ID: 7\r\n\r\nDELETE /c/b HTTP/1.1\r\n",
            "Content-Type: application/http\r\nContent-ID: 7\r\n\r\nDELETE /c/b\r\n",
            "Content-Type: application/http\r\nContent-ID: 7\r\n\r\n",
        ] {
            assert!(parse(malformed.as_bytes()).is_none(), "{malformed}");
        }
    }
}
