//! What the body of a batch holds: one change set, itself `multipart/mixed`, or one query. Nothing else, and not both.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use lazuli_protocol::multipart::{Part, boundary, split};
use lazuli_protocol::{Refusal, multipart};

use crate::json::parse::invalid;

/// The longest `Content-ID` that is echoed.
const MAX_CONTENT_ID: usize = 256;
const CONTENT_ID: &str = "content-id";

/// What a batch holds.
#[derive(Debug)]
pub(crate) enum Contents<'a> {
    Query(Box<Sent<'a>>),
    /// At least one.
    ChangeSet(Vec<Sent<'a>>),
}

/// One request in a batch.
#[derive(Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) ids: Ids,
    pub(crate) head: Parts,
    pub(crate) body: &'a [u8],
}

/// `Content-ID`, by which a client knows an operation again. It is echoed where it stood.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    /// Among the headers of the part.
    pub(crate) of_part: Option<HeaderValue>,
    /// Among the headers of the request in it.
    pub(crate) of_request: Option<HeaderValue>,
}

/// Reads a batch that says of itself that it is of this type.
pub(crate) fn contents<'a>(content_type: &str, body: &'a [u8]) -> Result<Contents<'a>, Refusal> {
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
            let sent = parts.into_iter().map(|part| Part::parse(part).as_ref().and_then(sent));
            let sent: Option<_> = sent.collect();
            Ok(Contents::ChangeSet(sent.ok_or_else(malformed)?))
        }
        None => {
            let query = sent(&part).ok_or_else(malformed)?;
            if query.head.method == Method::GET {
                Ok(Contents::Query(Box::new(query)))
            } else {
                Err(invalid("What changes entities has to be in a change set."))
            }
        }
    }
}

fn sent<'a>(part: &Part<'a>) -> Option<Sent<'a>> {
    let held = part.request()?;
    let ids = Ids { of_part: content_id(&part.headers), of_request: content_id(&held.head.headers) };
    Some(Sent { ids, head: held.head, body: held.body })
}

fn content_id(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(CONTENT_ID).filter(|id| id.len() <= MAX_CONTENT_ID && id.to_str().is_ok()).cloned()
}

fn malformed() -> Refusal {
    invalid("A part of the batch is not an HTTP request.")
}

fn unfinished() -> Refusal {
    invalid("The batch has no last delimiter.")
}
