//! Parses the body of a batch. It holds either one change set, which is itself `multipart/mixed`, or one
//! query.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use lazuli_protocol::multipart::{Part, boundary, split};
use lazuli_protocol::{Refusal, multipart};

use crate::json::parse::invalid;

/// Maximum size of a `Content-ID` that is echoed, in bytes.
const MAX_CONTENT_ID_BYTES: usize = 256;
const CONTENT_ID: &str = "content-id";

/// The requests in a batch.
#[derive(Debug)]
pub(crate) enum BatchContents<'a> {
    Query(Box<BatchRequest<'a>>),
    /// At least one operation.
    ChangeSet(Vec<BatchRequest<'a>>),
}

/// One request in a batch.
#[derive(Debug)]
pub(crate) struct BatchRequest<'a> {
    pub(crate) ids: ContentIds,
    pub(crate) head: Parts,
    pub(crate) body: &'a [u8],
}

/// The `Content-ID` headers by which a client matches replies with operations. Each is echoed at its place.
#[derive(Debug, Default)]
pub(crate) struct ContentIds {
    /// From the headers of the part.
    pub(crate) of_part: Option<HeaderValue>,
    /// From the headers of the request in the part.
    pub(crate) of_request: Option<HeaderValue>,
}

/// Parses a batch with the given `Content-Type`.
pub(crate) fn parse<'a>(content_type: &str, body: &'a [u8]) -> Result<BatchContents<'a>, Refusal> {
    let boundary = boundary(content_type)
        .ok_or_else(|| invalid("The Content-Type of a batch is multipart/mixed, with a boundary."))?;
    let parts = split(body, boundary).ok_or_else(unfinished)?;
    let [part] = parts[..] else {
        return Err(invalid("A batch holds one change set or one query, and nothing else."));
    };
    let part = Part::parse(part).ok_or_else(malformed)?;
    match part.content_type().and_then(multipart::boundary) {
        Some(boundary) => {
            let parts = split(part.content, boundary).ok_or_else(unfinished)?;
            if parts.is_empty() {
                return Err(invalid("The change set is empty."));
            }
            let requests = parts.into_iter().map(|part| Part::parse(part).as_ref().and_then(parse_request));
            let requests: Option<_> = requests.collect();
            Ok(BatchContents::ChangeSet(requests.ok_or_else(malformed)?))
        }
        None => {
            let query = parse_request(&part).ok_or_else(malformed)?;
            if query.head.method == Method::GET {
                Ok(BatchContents::Query(Box::new(query)))
            } else {
                Err(invalid("What changes entities has to be in a change set."))
            }
        }
    }
}

fn parse_request<'a>(part: &Part<'a>) -> Option<BatchRequest<'a>> {
    let request = part.request()?;
    let (of_part, of_request) = (content_id(&part.headers), content_id(&request.head.headers));
    Some(BatchRequest { ids: ContentIds { of_part, of_request }, head: request.head, body: request.body })
}

fn content_id(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(CONTENT_ID).filter(|id| id.len() <= MAX_CONTENT_ID_BYTES && id.to_str().is_ok()).cloned()
}

fn malformed() -> Refusal {
    invalid("A part of the batch is not an HTTP request.")
}

fn unfinished() -> Refusal {
    invalid("The batch has no last delimiter.")
}
