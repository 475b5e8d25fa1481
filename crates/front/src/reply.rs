//! The common parts of all replies: request id, version, date, server, CORS headers, and a correct length.

use std::cell::RefCell;

use http::header::{CONNECTION, CONTENT_LENGTH, DATE, ORIGIN, SERVER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::Body as _;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::cors::{self, CorsRule};
use lazuli_protocol::error::{ErrorFormat, Refusal};
use lazuli_protocol::kind::ServiceKind;
use lazuli_protocol::request::{Body, Response};
use lazuli_protocol::version::Version;
use lazuli_protocol::{date, operation::Operation};
use uuid::Uuid;

use crate::body::ReplyBody;
use crate::exchange::Exchange;
use crate::spelling;

const X_MS_REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-request-id");
pub(crate) const X_MS_VERSION: HeaderName = HeaderName::from_static("x-ms-version");
pub(crate) const X_MS_CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-client-request-id");

macro_rules! server {
    ($service:literal) => {
        HeaderValue::from_static(concat!("Lazuli-", $service, "/", env!("CARGO_PKG_VERSION")))
    };
}

/// The parts of a request that its reply needs after the service has consumed the request.
pub(crate) struct ReplyContext {
    pub(crate) exchange: Exchange,
    pub(crate) service: ServiceKind,
    /// The request's version, or the newest if it is unknown.
    pub(crate) version: Version,
    pub(crate) now: Timestamp,
    /// `Origin`, if a browser sent one.
    pub(crate) origin: Option<HeaderValue>,
    /// Whether the connection is HTTP/1, where a reply has to announce the end of the connection.
    pub(crate) http1: bool,
    /// Sends no body.
    pub(crate) bodiless: bool,
}

impl ReplyContext {
    /// Builds the HTTP reply.
    pub(crate) fn send(
        mut self,
        result: Result<Response, Refusal>,
        rules: &[CorsRule],
    ) -> http::Response<ReplyBody> {
        let (Response { status, mut headers, body }, refusal) = match result {
            Ok(response) => (response, None),
            Err(refusal) => (self.render(&refusal), Some(refusal)),
        };
        self.exchange.answer(status, refusal.as_ref());
        self.exchange.announce(&headers, refusal.as_ref());
        let spelled = spelling::take(&mut headers).filter(|_| self.http1);
        let (mut body, mut length) = framed(self.exchange.method(), status, &mut headers, body);
        if self.bodiless {
            (body, length) = (None, None);
        }
        self.add_common_headers(&mut headers);
        if !rules.is_empty() {
            let request: HeaderMap = self.origin.take().map(|origin| (ORIGIN, origin)).into_iter().collect();
            cors::share(rules, self.exchange.method(), &request, &mut headers);
        }

        let mut response = http::Response::new(ReplyBody::new(body, length, self.exchange));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        if let Some(spelled) = spelled {
            response.extensions_mut().insert(spelled);
        }
        let reason = refusal.as_ref().filter(|_| self.service != ServiceKind::Table).and_then(reason_phrase);
        if let Some(reason) = reason {
            response.extensions_mut().insert(reason);
        }
        response
    }

    fn render(&self, refusal: &Refusal) -> Response {
        let format = error_format(self.service, self.exchange.operation());
        let (status, headers, body) =
            refusal.render(format, self.exchange.method(), self.exchange.request_id(), self.now);
        Response { status, headers, body: Body::whole(body) }
    }

    fn add_common_headers(&self, headers: &mut HeaderMap) {
        headers.insert(X_MS_REQUEST_ID, uuid_value(self.exchange.request_id()));
        headers.insert(X_MS_VERSION, cached_version(self.version));
        headers.insert(DATE, cached_date(self.now));
        headers.insert(SERVER, server(self.service));
        if let Some(id) = self.exchange.client_request_id() {
            headers.insert(X_MS_CLIENT_REQUEST_ID, id.clone());
        }
        if self.http1 && self.exchange.is_body_abandoned() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Returns the body to send and its announced length. Replies to HEAD, 204 and 304 have neither. A length
/// that the body knows itself takes precedence over the header.
fn framed(
    method: &Method,
    status: StatusCode,
    headers: &mut HeaderMap,
    body: Body,
) -> (Option<Body>, Option<u64>) {
    let exact = body.size_hint().exact();
    if method == Method::HEAD {
        if let Some(length) = exact.filter(|length| *length > 0 && !headers.contains_key(CONTENT_LENGTH)) {
            headers.insert(CONTENT_LENGTH, length.into());
        }
        return (None, None);
    }
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        headers.remove(CONTENT_LENGTH);
        return (None, None);
    }
    let promised = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if exact.is_some() {
        debug_assert!(
            promised.is_none() || promised == exact,
            "a service promised {promised:?} of {exact:?}"
        );
        headers.remove(CONTENT_LENGTH);
    }
    (Some(body), exact.or(promised))
}

/// Returns the format of error bodies: by service, and for tables by whether the operation uses XML.
fn error_format(service: ServiceKind, operation: Option<Operation>) -> ErrorFormat {
    match (service, operation) {
        (
            ServiceKind::Table,
            Some(
                Operation::GetTableServiceProperties
                | Operation::SetTableServiceProperties
                | Operation::GetTableServiceStats
                | Operation::GetTableAcl
                | Operation::SetTableAcl,
            ),
        ) => ErrorFormat::TableXml,
        (ServiceKind::Table, _) => ErrorFormat::TableJson,
        (_, Some(Operation::GetWebContent | Operation::GetWebContentProperties)) => ErrorFormat::Html,
        _ => ErrorFormat::Xml,
    }
}

/// Returns the reason phrase of an error's status line: the error's message.
fn reason_phrase(refusal: &Refusal) -> Option<hyper::ext::ReasonPhrase> {
    refusal.text().lines().next().and_then(|line| line.as_bytes().to_vec().try_into().ok())
}

fn server(service: ServiceKind) -> HeaderValue {
    match service {
        ServiceKind::Blob => server!("Blob"),
        ServiceKind::Queue => server!("Queue"),
        ServiceKind::Table => server!("Table"),
        ServiceKind::File => server!("File"),
    }
}

fn uuid_value(id: Uuid) -> HeaderValue {
    let mut text = Uuid::encode_buffer();
    ascii_value(id.hyphenated().encode_lower(&mut text))
}

/// Returns a header value of text known to be ASCII.
fn ascii_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The last header value that this thread has built, because the next is usually the same.
struct Cached<K>(RefCell<Option<(K, HeaderValue)>>);

impl<K: PartialEq + Copy> Cached<K> {
    const fn new() -> Self {
        Self(RefCell::new(None))
    }

    fn get(&self, key: K, text: impl FnOnce() -> String) -> HeaderValue {
        let mut cached = self.0.borrow_mut();
        match &*cached {
            Some((last, value)) if *last == key => value.clone(),
            _ => cached.insert((key, ascii_value(&text()))).1.clone(),
        }
    }
}

fn cached_date(now: Timestamp) -> HeaderValue {
    thread_local!(static DATES: Cached<u64> = const { Cached::new() });
    DATES.with(|dates| dates.get(now.unix_seconds(), || date::rfc1123(now)))
}

fn cached_version(version: Version) -> HeaderValue {
    thread_local!(static VERSIONS: Cached<Version> = const { Cached::new() });
    VERSIONS.with(|versions| versions.get(version, || version.to_string()))
}
