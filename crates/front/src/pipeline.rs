//! From a parsed HTTP request to the service and back, in steps: address, account, version, operation,
//! authentication, limits, service, reply.
//!
//! Two limits of the server's load come first. The order of the other steps is the order of the protocol's
//! refusals: malformed requests, then missing permissions, then exceeded limits of the operation. Every
//! failure, including a panic, becomes a reply with a request id, and the connection lives on.
//!
//! A request whose client disconnects or whose time is up is dropped at its current await point. Commits that
//! its service has already submitted to the store may still take effect, as the protocol states for timeouts.

use std::any::Any;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{AUTHORIZATION, CONTENT_LENGTH, EXPECT, HOST, ORIGIN, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use lazuli_auth::{Authenticator, Head};
use lazuli_concurrency::{Clock, Timestamp};
use lazuli_protocol::address::{self, Address};
use lazuli_protocol::operation::{BodyClass, route, route_website};
use lazuli_protocol::properties::ServiceProperties;
use lazuli_protocol::request::{Caller, SubRequests, full};
use lazuli_protocol::{
    Account, Accounts, ErrorCode, Operation, Query, Refusal, Request, Response, Service, ServiceKind,
    Version, cors, structured,
};
use lazuli_telemetry::{Phase, begin_phase};
use tracing::Instrument;
use uuid::Uuid;

use crate::allowance;
use crate::body::{ReplyBody, RequestBody};
use crate::connection::{Handler, Origin};
use crate::console_caller::ConsoleCaller;
use crate::document_memory::DocumentMemory;
use crate::exchange::Exchange;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::observe;
use crate::reply::{ReplyContext, X_MS_CLIENT_REQUEST_ID, X_MS_VERSION};
use crate::spelling;
use crate::sub_requests::BatchSubRequests;

/// Maximum length of an `x-ms-client-request-id` that is echoed and logged, in bytes.
const MAX_CLIENT_REQUEST_ID: usize = 1024;

/// Everything that endpoints share to admit requests.
pub struct Admission {
    /// The accounts and their service properties.
    pub accounts: Arc<dyn Accounts>,
    /// Authenticates callers and checks their permissions.
    pub authenticator: Authenticator,
    /// The store's clock, which the rules use.
    pub clock: Arc<dyn Clock>,
    /// The machine's clock, which authentication uses: dates in credentials come from other machines' clocks,
    /// and the store's clock may stand still or run ahead.
    pub wall_clock: Arc<dyn Clock>,
    /// Host names whose first label is an account, in addition to those of the form `account.blob.anything`.
    pub host_suffixes: Vec<String>,
}

/// Processes the requests of one endpoint.
pub(crate) struct Pipeline {
    pub(crate) kind: ServiceKind,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) document_memory: DocumentMemory,
    /// The host for requests that send none.
    pub(crate) host: String,
}

/// A request as received.
struct IncomingRequest {
    parts: Parts,
    body: Option<RequestBody>,
    origin: Origin,
    now: Timestamp,
    request_id: Uuid,
}

/// The account, resource, operation and version that a request addresses.
struct RequestTarget {
    address: Address,
    query: Query,
    account: Arc<Account>,
    properties: Arc<ServiceProperties>,
    version: Version,
    operation: Operation,
}

impl Handler for Pipeline {
    type Body = ReplyBody;

    async fn handle(
        self: Arc<Self>,
        request: http::Request<Incoming>,
        origin: Origin,
    ) -> Result<http::Response<ReplyBody>, Infallible> {
        let now = self.admission.clock.now();
        let request_id = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
        let (mut parts, incoming) = request.into_parts();
        let origin = origin.of_client(&parts.headers, &self.limits.trusted_proxies);
        let http1 = parts.version < http::Version::HTTP_2;
        spelling::learn(&mut parts.headers, &parts.extensions).await;
        let mut exchange = Exchange::begin(
            self.kind,
            request_id,
            origin.peer,
            (parts.method.clone(), parts.uri.clone()),
            Arc::clone(&self.metrics),
            origin.activity.begin(),
        );
        let (interest, peer) = (self.metrics.watch().interest(), origin.peer);
        exchange.set_event(observe::begin(interest, self.kind, &parts, peer, request_id, now));
        exchange.set_via_console(parts.extensions.get::<ConsoleCaller>().is_some());
        exchange.begin_trace(&parts.headers);
        exchange.set_authorization(parts.headers.get(AUTHORIZATION).cloned());
        if let Some(id) = client_request_id(&parts.headers) {
            // A copy: a clone would keep the whole head in memory until the reply has been read.
            exchange
                .set_client_request_id(HeaderValue::from_bytes(id.as_bytes()).unwrap_or_else(|_| id.clone()));
        }
        let body = (!incoming.is_end_stream()).then(|| {
            let activity = http1.then(|| Arc::clone(&origin.activity));
            RequestBody::new(incoming, expects_continue(&parts), activity, Arc::clone(&self.limits))
        });
        exchange.set_body_progress(body.as_ref().map(RequestBody::progress));

        let browser = parts.headers.get(ORIGIN).cloned();
        let is_admitted = exchange.begin_stream();
        let mut reply = ReplyContext {
            exchange,
            service: self.kind,
            version: Version::NEWEST,
            now,
            origin: browser,
            http1,
            // A reply without a body does not wait for its client, so it takes no memory.
            bodiless: !is_admitted,
        };
        let mut properties = None;
        let incoming_request = IncomingRequest { parts, body, origin, now, request_id };
        let (span, trace) = (reply.exchange.span().clone(), reply.exchange.trace());
        let result = if !is_admitted {
            Ok(Err(Refusal::new(ErrorCode::ServerBusy)))
        } else {
            let served = self.serve(incoming_request, &mut reply, &mut properties).instrument(span);
            let mut served = pin!(served);
            poll_fn(|cx| match &trace {
                Some(trace) => trace.enter(|| poll_catching_panics(served.as_mut(), cx)),
                None => poll_catching_panics(served.as_mut(), cx),
            })
            .await
        };
        let result = result.unwrap_or_else(|panic| {
            let _request = reply.exchange.span().enter();
            tracing::error!(%request_id, panic = panic_text(&*panic), "a request panicked");
            Err(Refusal::new(ErrorCode::InternalError))
        });
        let mut response = reply.send(result, properties.as_ref().map_or(&[], |properties| &properties.cors));
        spelling::apply(response.extensions_mut()).await;
        Ok(response)
    }
}

impl Pipeline {
    /// Processes a request. Fills in `reply` and `properties` as they become known, because refusals need
    /// them too.
    async fn serve(
        &self,
        incoming_request: IncomingRequest,
        reply: &mut ReplyContext,
        properties: &mut Option<Arc<ServiceProperties>>,
    ) -> Result<Response, Refusal> {
        if self.metrics.unanswered(self.kind) > self.limits.requests as u64 {
            return Err(Refusal::new(ErrorCode::ServerBusy));
        }
        let target = self.locate(&incoming_request, reply, properties).await?;
        if target.operation.is_preflight() {
            return preflight(properties.as_deref(), &incoming_request.parts.headers);
        }
        self.execute(incoming_request, target).await
    }

    /// Authenticates a request and carries out its operation.
    async fn execute(
        &self,
        incoming_request: IncomingRequest,
        target: RequestTarget,
    ) -> Result<Response, Refusal> {
        let IncomingRequest { parts, mut body, origin, now, request_id } = incoming_request;
        let head = Head {
            operation: target.operation,
            account: &target.account,
            method: &parts.method,
            path: &target.address.raw_path,
            container: &target.address.container,
            object: &target.address.object,
            query: &target.query,
            headers: &parts.headers,
            version: target.version,
            secure: origin.secure,
            peer: origin.peer.ip(),
            now: self.admission.wall_clock.now(),
        };
        let console = parts.extensions.get::<ConsoleCaller>().map(|caller| caller.caller.clone());
        let caller = match &console {
            Some(caller) => caller.clone(),
            None => self.admission.authenticator.authenticate(&head, &*self.service).await?,
        };
        if target.address.secondary && !target.operation.row().read {
            return Err(Refusal::new(ErrorCode::InsufficientAccountPermissions)
                .message("Write operations are not allowed."));
        }
        let content_length = content_length(&parts)?;
        let time = allowance::time_limit(target.operation, content_length, &target.query)?;
        let memory = allowance::document_bytes(target.operation, &target.address.object, &target.query);
        admit_body(target.operation, body.as_mut(), content_length, &parts)?;
        if target.operation.is_user_delegation_key() {
            return self.user_delegation_key(&head, body).await;
        }

        let endpoint = target
            .address
            .endpoint(if origin.secure { "https" } else { "http" }, self.host_of(&parts.uri, &parts.headers));
        let is_batch = matches!(
            target.operation,
            Operation::BlobBatch | Operation::ContainerBatch | Operation::EntityGroupTransaction
        );
        let sub_requests =
            is_batch.then(|| self.sub_requests(&target, &origin, now, endpoint.clone(), console));
        let request = Request {
            operation: target.operation,
            account: target.account,
            properties: target.properties,
            container: target.address.container,
            object: target.address.object,
            query: target.query,
            headers: parts.headers,
            version: target.version,
            caller,
            body: boxed(body),
            content_length,
            now,
            request_id,
            endpoint,
            secure: origin.secure,
            peer: origin.peer.ip(),
            sub_requests,
        };
        let (peer, multiplexed) = (origin.peer.ip(), origin.activity.is_multiplexed());
        let reply = self.service.call(request);
        let reply = async {
            let _evaluation = begin_phase(Phase::Evaluate);
            reply.await
        };
        let reply = self.document_memory.build(memory, peer, multiplexed, reply);
        match tokio::time::timeout(time, reply).await {
            Ok(result) => result,
            Err(_) => Err(Refusal::new(ErrorCode::OperationTimedOut)),
        }
    }

    /// Parses and routes a request.
    async fn locate(
        &self,
        IncomingRequest { parts, .. }: &IncomingRequest,
        reply: &mut ReplyContext,
        properties: &mut Option<Arc<ServiceProperties>>,
    ) -> Result<RequestTarget, Refusal> {
        let host = self.naming_host(&parts.uri, &parts.headers).await?;
        let query = match address::is_website(self.kind, host) {
            true => Query::default(),
            false => Query::parse(parts.uri.query().unwrap_or_default())?,
        };
        let address =
            Address::parse(self.kind, host, parts.uri.path(), &query, &self.admission.host_suffixes)?;
        let account = lazuli_auth::account(&*self.admission.accounts, &address.account).await?;
        reply.exchange.set_account(&account);
        let found = self.admission.accounts.service_properties(&account, self.kind).await?;
        let default = found.default_service_version;
        *properties = Some(Arc::clone(&found));
        let version = match address.website {
            true => Version::NEWEST,
            false => version(&parts.headers, &query, default)?,
        };
        reply.version = version;
        let operation = match address.website {
            true => route_website(&parts.method)?,
            false => {
                route(self.kind, &parts.method, &address.container, &address.object, &query, &parts.headers)?
            }
        };
        reply.exchange.set_operation(operation);
        Ok(RequestTarget { address, query, account, properties: found, version, operation })
    }

    /// Returns the host. If the host names an account that does not exist and the path names one that does,
    /// the host is an arbitrary name, and the result is empty.
    async fn naming_host<'a>(&'a self, uri: &'a Uri, headers: &'a HeaderMap) -> Result<&'a str, Refusal> {
        if headers.get_all(HOST).iter().nth(1).is_some() {
            return Err(Refusal::invalid_header(HOST, "sent more than once"));
        }
        let accounts = &self.admission.accounts;
        let host = self.host_of(uri, headers);
        let Some(named) = address::account_of_host(self.kind, host, &self.admission.host_suffixes) else {
            return Ok(host);
        };
        if accounts.account(&named).await?.is_some() {
            return Ok(host);
        }
        let Some(named) = address::account_of_path(uri.path()) else { return Ok(host) };
        Ok(if accounts.account(&named).await?.is_some() { "" } else { host })
    }

    /// Returns what admits the sub-requests of a batch.
    fn sub_requests(
        &self,
        target: &RequestTarget,
        origin: &Origin,
        now: Timestamp,
        endpoint: String,
        console: Option<Caller>,
    ) -> Arc<dyn SubRequests> {
        Arc::new(BatchSubRequests {
            kind: self.kind,
            admission: Arc::clone(&self.admission),
            service: Arc::clone(&self.service),
            account: Arc::clone(&target.account),
            properties: Arc::clone(&target.properties),
            address: target.address.clone(),
            version: target.version,
            now,
            endpoint,
            secure: origin.secure,
            peer: origin.peer,
            metrics: Arc::clone(&self.metrics),
            console,
        })
    }

    /// Carries out Get User Delegation Key, the one operation of the authenticator.
    async fn user_delegation_key(
        &self,
        head: &Head<'_>,
        body: Option<RequestBody>,
    ) -> Result<Response, Refusal> {
        let limit = usize::try_from(allowance::body_limit(head.operation)).unwrap_or(usize::MAX);
        let body = lazuli_protocol::request::collect(boxed(body).as_mut(), limit).await?;
        let xml = self.admission.authenticator.user_delegation_key(head, &body).await?;
        Ok(Response::xml(xml))
    }

    /// Returns the host that the client addressed.
    fn host_of<'a>(&'a self, uri: &'a Uri, headers: &'a HeaderMap) -> &'a str {
        let in_header = || headers.get(HOST).and_then(|host| host.to_str().ok());
        uri.authority().map(|authority| authority.as_str()).or_else(in_header).unwrap_or(&self.host)
    }
}

/// Polls a future. A panic fails only its request; the future must not be polled again.
fn poll_catching_panics(
    served: Pin<&mut impl Future<Output = Result<Response, Refusal>>>,
    cx: &mut Context<'_>,
) -> Poll<std::thread::Result<Result<Response, Refusal>>> {
    match catch_unwind(AssertUnwindSafe(|| served.poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(no message)")
}

/// Answers a CORS preflight request.
fn preflight(properties: Option<&ServiceProperties>, headers: &HeaderMap) -> Result<Response, Refusal> {
    let rules = properties.map_or(&[][..], |properties| &properties.cors);
    let mut response = Response::empty(StatusCode::OK);
    response.headers = cors::preflight(rules, headers)?;
    Ok(response)
}

/// Returns the request's version: that of the header, else of the signature, else the service's default, else
/// the oldest. A malformed version in a signature is left to authentication to refuse.
fn version(headers: &HeaderMap, query: &Query, default: Option<Version>) -> Result<Version, Refusal> {
    if let Some(value) = headers.get(X_MS_VERSION) {
        return Version::from_header(X_MS_VERSION.as_str(), value.to_str().unwrap_or_default());
    }
    let signed = query.contains("sig");
    if let Some(text) = query.get("api-version").filter(|_| signed) {
        return Version::parse(text)
            .ok_or_else(|| Refusal::invalid_query("api-version", text, "Not a version that is known."));
    }
    let of_signature = query.get("sv").filter(|_| signed).and_then(Version::parse);
    Ok(of_signature.or(default).unwrap_or(Version::OLDEST))
}

/// Returns the client's request id if it may be echoed: up to 1024 visible ASCII characters.
fn client_request_id(headers: &HeaderMap) -> Option<&HeaderValue> {
    let visible = |id: &&HeaderValue| id.as_bytes().iter().all(|byte| (0x20..0x7f).contains(byte));
    headers
        .get(X_MS_CLIENT_REQUEST_ID)
        .filter(|id| !id.is_empty() && id.len() <= MAX_CLIENT_REQUEST_ID)
        .filter(visible)
}

fn expects_continue(parts: &Parts) -> bool {
    let expects = parts.headers.get(EXPECT);
    expects.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

fn content_length(parts: &Parts) -> Result<Option<u64>, Refusal> {
    let Some(value) = parts.headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    text.parse().map(Some).map_err(|_| Refusal::invalid_header(CONTENT_LENGTH, text))
}

/// Refuses a body that is too large, and a request that needs a body length but has none.
fn admit_body(
    operation: Operation,
    body: Option<&mut RequestBody>,
    content_length: Option<u64>,
    parts: &Parts,
) -> Result<(), Refusal> {
    if let Some(body) = body {
        let structured = parts.headers.contains_key("x-ms-structured-body");
        let around = if structured { structured::MAX_OVERHEAD } else { 0 };
        return body.limit(allowance::body_limit(operation).saturating_add(around));
    }
    let measured = content_length.is_some()
        || parts.headers.contains_key(TRANSFER_ENCODING)
        || parts.version == http::Version::HTTP_2;
    if measured || matches!(operation.row().body, BodyClass::Nothing | BodyClass::Optional) {
        Ok(())
    } else {
        Err(Refusal::new(ErrorCode::MissingContentLengthHeader))
    }
}

fn boxed(body: Option<RequestBody>) -> lazuli_protocol::request::RequestBody {
    match body {
        Some(body) => Box::pin(body),
        None => full(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_comes_from_the_header_then_the_signature_then_the_default() {
        let default = Some(Version::new(2013, 8, 15));
        let invalid_header = Err(ErrorCode::InvalidHeaderValue);
        let invalid_query = Err(ErrorCode::InvalidQueryParameterValue);
        for (header, query, default, expected) in [
            (Some("2021-12-02"), "", None, Ok("2021-12-02")),
            (Some("2021-12-02"), "sig=x&sv=2015-04-05&api-version=2016-05-31", default, Ok("2021-12-02")),
            (Some("2039-01-01"), "", None, Ok("2026-10-06")),
            (Some("yesterday"), "", default, invalid_header),
            (Some("2009-09-18"), "", None, invalid_header),
            (Some(""), "", None, invalid_header),
            (None, "sig=x&sv=2015-04-05&api-version=2016-05-31", default, Ok("2016-05-31")),
            (None, "sig=x&sv=2015-04-05", default, Ok("2015-04-05")),
            (None, "sig=x&api-version=soon", default, invalid_query),
            (None, "sig=x&sv=soon", default, Ok("2013-08-15")),
            (None, "sv=2015-04-05&api-version=2016-05-31", default, Ok("2013-08-15")),
            (None, "", default, Ok("2013-08-15")),
            (None, "", None, Ok("2009-09-19")),
        ] {
            let headers: HeaderMap = header
                .map(|value| ("x-ms-version".parse().unwrap(), HeaderValue::from_static(value)))
                .into_iter()
                .collect();
            let got = version(&headers, &Query::parse(query).unwrap(), default);
            let got = got.map(|version| version.to_string()).map_err(|refusal| refusal.code());
            assert_eq!(got, expected.map(str::to_owned), "{header:?} {query} {default:?}");
        }
    }

    #[test]
    fn a_client_request_id_is_echoed_if_short_and_visible() {
        let long = "x".repeat(1025);
        for (id, kept) in
            [("a", true), (&long[1..], true), (&long, false), ("", false), ("a\tb", false), ("é", false)]
        {
            let headers: HeaderMap =
                [(X_MS_CLIENT_REQUEST_ID, HeaderValue::from_bytes(id.as_bytes()).unwrap())]
                    .into_iter()
                    .collect();
            assert_eq!(client_request_id(&headers).is_some(), kept, "{id:?}");
        }
    }
}
