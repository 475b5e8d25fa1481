//! A request as a service receives it from the front door: routed, authenticated and authorized, with a
//! streamed body.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, Full};

use crate::account::Account;
use crate::address::Address;
pub use crate::error::BodyError;
use crate::error::Refusal;
use crate::operation::Operation;
use crate::properties::ServiceProperties;
use crate::query::Query;
use crate::version::Version;
use lazuli_concurrency::Timestamp;

/// The body of a reply.
pub enum Body {
    /// The complete body, in memory.
    Whole(Bytes),
    /// A streamed body. It is polled only when the connection can take more, which is the back-pressure.
    Stream(Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError> + Send>>),
}

/// The streamed body of a request. `Sync` so that a request can be shared across await points.
pub type RequestBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError> + Send + Sync>>;

/// One request to a service.
pub struct Request {
    /// The REST operation.
    pub operation: Operation,
    /// The addressed account.
    pub account: Arc<Account>,
    /// The properties of the addressed service, as they were when the request began.
    pub properties: Arc<ServiceProperties>,
    /// Container, queue, table or share, decoded; empty at service level. `$root` if the path names no
    /// container.
    pub container: String,
    /// The rest of the path, decoded, without its leading slash: blob name, file path, entity address.
    pub object: String,
    /// Decoded query parameters.
    pub query: Query,
    /// Headers as sent.
    pub headers: HeaderMap,
    /// The protocol version, which decides behavior.
    pub version: Version,
    /// The caller, with the permissions that the service has to check.
    pub caller: Caller,
    /// The body.
    pub body: RequestBody,
    /// `Content-Length`, if one was sent.
    pub content_length: Option<u64>,
    /// When the request began, by the store's clock.
    pub now: Timestamp,
    /// The id in the reply and in the logs.
    pub request_id: uuid::Uuid,
    /// `http://host:port/account` or `http://account.blob.host`, as the client addressed the server: for
    /// listings and links.
    pub endpoint: String,
    /// The connection uses TLS.
    pub secure: bool,
    /// The client's address.
    pub peer: IpAddr,
    /// Admits the sub-requests of a batch. `None` for other operations.
    pub sub_requests: Option<Arc<dyn SubRequests>>,
}

/// Admits the requests in the body of a batch. Account, connection, time and version are those of the batch.
#[async_trait]
pub trait SubRequests: Send + Sync {
    /// Returns the operation and address of a sub-request.
    fn locate(&self, head: &http::request::Parts) -> Result<(Operation, Address), Refusal>;

    /// Authenticates a sub-request by its own credentials, as if it had come on its own. Returns it with the
    /// given id and without a body.
    async fn admit(&self, head: http::request::Parts, request_id: uuid::Uuid) -> Result<Request, Refusal>;

    /// Logs the refusal of a sub-request. The batch itself succeeds.
    fn log_refusal(&self, _head: &http::request::Parts, _request_id: uuid::Uuid, _refusal: &Refusal) {}
}

/// The authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Signed with a key of the account: may do everything.
    Key,
    /// A shared access signature.
    Sas(Grant),
    /// An OAuth subject with a role.
    Bearer {
        /// The token's `oid` claim, else its `sub` claim.
        subject: String,
        /// The subject's role for this service.
        role: crate::account::Role,
    },
    /// No credentials: the resource has to be public.
    Anonymous,
}

impl Caller {
    /// Returns whether a caller that may create may also replace: a shared access signature may be
    /// create-only.
    pub fn may_replace(&self) -> bool {
        match self {
            Self::Sas(grant) => grant.permissions.contains('w'),
            _ => true,
        }
    }

    /// Replaces the stored headers that a shared access signature overrides.
    pub fn override_headers(&self, headers: &mut HeaderMap) {
        if let Self::Sas(grant) = self {
            for (name, value) in &grant.response_headers {
                headers.insert(name, value.clone());
            }
        }
    }
}

/// The grants of a shared access signature that only the service can check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The letters of `sp` or of the stored access policy. For a user delegation SAS: those of them that its
    /// owner's role allows.
    pub permissions: String,
    /// Table SAS: the one table it covers, in lower case. The path of a transaction names no table, so the
    /// service checks it.
    pub table: Option<String>,
    /// Table SAS: the range of keys, inclusive (spk, srk, epk, erk).
    pub table_range: TableRange,
    /// `ses`: the encryption scope that writes must use.
    pub encryption_scope: Option<String>,
    /// rscc, rscd, rsce, rscl, rsct: headers that replace the stored ones in the reply to a read.
    pub response_headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// Directory SAS: the path that has to contain every object.
    pub directory: Option<String>,
}

/// The keys that a table SAS covers. A row key requires its partition key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableRange {
    /// First partition key.
    pub start_partition: Option<String>,
    /// First row key in it.
    pub start_row: Option<String>,
    /// Last partition key.
    pub end_partition: Option<String>,
    /// Last row key in it.
    pub end_row: Option<String>,
}

/// A reply. The front door adds request id, version, date and CORS headers.
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// Headers of this operation.
    pub headers: HeaderMap,
    /// The body.
    pub body: Body,
}

impl Response {
    /// Creates a reply without a body.
    pub fn empty(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Body::Whole(Bytes::new()) }
    }

    /// Creates a reply with a body in memory.
    pub fn with_body(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
        Self { status, headers, body: Body::whole(body) }
    }

    /// Makes a reply of 200 with an XML document.
    pub fn xml(document: impl Into<Bytes>) -> Self {
        Self::with_body(StatusCode::OK, "application/xml", document)
    }
}

impl Body {
    /// Creates a body from bytes in memory.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(bytes.into())
    }

    /// Creates a streamed body.
    pub fn stream(body: impl http_body::Body<Data = Bytes, Error = BodyError> + Send + 'static) -> Self {
        Self::Stream(Box::pin(body))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Whole(bytes) => {
                Pin::new(&mut Full::new(std::mem::take(bytes))).poll_frame(cx).map_err(|never| match never {})
            }
            Self::Stream(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(body) => body.size_hint(),
        }
    }
}

/// Creates a request body from bytes in memory, which may be empty.
pub fn full(bytes: impl Into<Bytes>) -> RequestBody {
    Box::pin(Full::new(bytes.into()).map_err(|never| match never {}))
}

impl Request {
    /// Reads the whole body, if it is at most as long as the table of operations allows.
    pub async fn read_document(&mut self) -> Result<Bytes, Refusal> {
        self.read_body(self.operation.row().body.limit().unwrap_or_default()).await
    }

    /// Reads the whole body, if it has at most `limit` bytes.
    pub async fn read_body(&mut self, limit: usize) -> Result<Bytes, Refusal> {
        collect(self.body.as_mut(), limit).await
    }
}

/// Returns the next bytes of a body, or `None` at its end. Skips trailers.
pub async fn next_data<B>(mut body: Pin<&mut B>) -> Result<Option<Bytes>, Refusal>
where
    B: http_body::Body<Data = Bytes, Error = BodyError> + ?Sized,
{
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(Refusal::from_body_error)?.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

/// Reads a whole body into memory. Refuses one of more than `limit` bytes as soon as that is known.
pub async fn collect<B>(mut body: Pin<&mut B>, limit: usize) -> Result<Bytes, Refusal>
where
    B: http_body::Body<Data = Bytes, Error = BodyError> + ?Sized,
{
    use crate::error::ErrorCode;
    let mut collected = bytes::BytesMut::new();
    if body.size_hint().lower() > limit as u64 {
        return Err(Refusal::new(ErrorCode::RequestBodyTooLarge));
    }
    while let Some(data) = next_data(body.as_mut()).await? {
        if collected.len() + data.len() > limit {
            return Err(Refusal::new(ErrorCode::RequestBodyTooLarge));
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected.freeze())
}
