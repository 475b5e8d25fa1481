//! A request as a service sees it, after the front door: routed, authenticated, authorised, its body still a stream.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body as _, Frame, SizeHint};

use crate::account::Account;
use crate::address::Address;
use crate::error::Refusal;
use crate::operation::Operation;
use crate::query::Query;
use crate::version::Version;
use lazuli_concurrency::Timestamp;

/// An error while a body streams: the client went away, sent too much, or was too slow.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a reply.
pub enum Body {
    /// All of it is at hand.
    Whole(Bytes),
    /// It is made as it is sent. Back-pressure is the stream's own: nothing is read until it is polled.
    Stream(Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError> + Send>>),
}

/// A streaming body of a request. `Sync` only so that a request can be shared while something else is waited for.
pub type RequestBody = Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError> + Send + Sync>>;

/// One request, ready for its service.
pub struct Request {
    /// Which REST operation it is.
    pub operation: Operation,
    /// The account it addresses.
    pub account: Arc<Account>,
    /// Container, queue, table or share, decoded; empty at service level. `$root` where the path names no container.
    pub container: String,
    /// The rest of the path, decoded, without its leading slash: blob name, file path, entity address.
    pub object: String,
    /// Decoded query parameters.
    pub query: Query,
    /// Headers as sent.
    pub headers: HeaderMap,
    /// The protocol version that decides behaviour.
    pub version: Version,
    /// Who calls, and what remains to be checked of what they may do.
    pub caller: Caller,
    /// The body.
    pub body: RequestBody,
    /// `Content-Length`, if one was sent.
    pub content_length: Option<u64>,
    /// When the request began, by the store's clock.
    pub now: Timestamp,
    /// The id that the reply and the log carry.
    pub request_id: uuid::Uuid,
    /// `http://host:port/account` or `http://account.blob.host`, as the client addressed us: for listings and links.
    pub endpoint: String,
    /// Whether it came over TLS.
    pub secure: bool,
    /// The client's address.
    pub peer: IpAddr,
    /// Who lets in the requests that this one carries in its body. None for operations that carry none.
    pub carried: Option<Arc<dyn Carried>>,
}

/// Lets in the requests that another one carries in its body. Account, connection, time and version are those of the
/// request that carries them.
#[async_trait]
pub trait Carried: Send + Sync {
    /// What a carried request asks for, and of what.
    fn locate(&self, head: &http::request::Parts) -> Result<(Operation, Address), Refusal>;

    /// The request, without a body and with that id, if its caller may do what it asks for: let in as if it had come on
    /// its own, by its own credentials.
    async fn admit(&self, head: http::request::Parts, request_id: uuid::Uuid) -> Result<Request, Refusal>;
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Signed with a key of the account: everything is allowed.
    Key,
    /// A shared access signature.
    Sas(Grant),
    /// An OAuth subject with a role.
    Bearer {
        /// The token's `oid`, else its `sub`.
        subject: String,
        /// Its role for this service.
        role: crate::account::Role,
    },
    /// Nobody: the resource has to be public.
    Anonymous,
}

impl Caller {
    /// Whether it may replace what is there, where it may create: a shared access signature may allow only what is new.
    pub fn may_replace(&self) -> bool {
        match self {
            Self::Sas(grant) => grant.permissions.contains('w'),
            _ => true,
        }
    }

    /// Puts the headers that a shared access signature names in the place of the stored ones.
    pub fn override_headers(&self, headers: &mut HeaderMap) {
        if let Self::Sas(grant) = self {
            for (name, value) in &grant.response_headers {
                headers.insert(name, value.clone());
            }
        }
    }
}

/// What a shared access signature grants, for the checks that only the service can make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The letters of `sp`, or of the stored access policy; those of a user delegation that its owner has the right to.
    pub permissions: String,
    /// Table SAS: the one table it is for, in lower case. A transaction's path names none, so the service compares it.
    pub table: Option<String>,
    /// Table SAS: the range of keys, inclusive (spk, srk, epk, erk).
    pub table_range: TableRange,
    /// `ses`: the encryption scope that writes must use.
    pub encryption_scope: Option<String>,
    /// rscc, rscd, rsce, rscl, rsct: headers that a read's reply carries instead of the stored ones.
    pub response_headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// A directory SAS: the path that every object has to lie under.
    pub directory: Option<String>,
}

/// The keys that a table SAS reaches. A row key comes with its partition key.
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
    /// A reply without a body.
    pub fn empty(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Body::Whole(Bytes::new()) }
    }

    /// A reply with a body at hand.
    pub fn with_body(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
        Self { status, headers, body: Body::whole(body) }
    }
}

impl Body {
    /// One that is at hand.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(bytes.into())
    }

    /// One that is made as it is sent.
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
            Self::Whole(bytes) => Poll::Ready(take(bytes).map(Ok)),
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

/// All there is; nothing the next time.
fn take(bytes: &mut Bytes) -> Option<Frame<Bytes>> {
    let bytes = std::mem::take(bytes);
    (!bytes.is_empty()).then(|| Frame::data(bytes))
}

/// A request's body that is at hand, in one piece or empty.
pub fn full(bytes: impl Into<Bytes>) -> RequestBody {
    Box::pin(Full(bytes.into()))
}

struct Full(Bytes);

impl http_body::Body for Full {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(take(&mut self.0).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

impl Request {
    /// The whole body, if it is at most `limit` bytes.
    pub async fn read_body(&mut self, limit: usize) -> Result<Bytes, Refusal> {
        collect(self.body.as_mut(), limit).await
    }
}

/// Reads a whole body into memory, refusing one of more than `limit` bytes as soon as that is known.
pub async fn collect<B>(mut body: Pin<&mut B>, limit: usize) -> Result<Bytes, Refusal>
where
    B: http_body::Body<Data = Bytes, Error = BodyError> + ?Sized,
{
    use crate::error::ErrorCode;
    let mut collected = bytes::BytesMut::new();
    if body.size_hint().lower() > limit as u64 {
        return Err(Refusal::new(ErrorCode::RequestBodyTooLarge));
    }
    while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let frame = frame.map_err(Refusal::from_body_error)?;
        if let Ok(data) = frame.into_data() {
            if collected.len() + data.len() > limit {
                return Err(Refusal::new(ErrorCode::RequestBodyTooLarge));
            }
            collected.extend_from_slice(&data);
        }
    }
    Ok(collected.freeze())
}
