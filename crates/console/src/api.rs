//! `/api/v1`: what the storage protocol cannot express. `ROUTES` is the table of contents, and
//! `openapi.json` describes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, SET_COOKIE};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt;
use lazuli_auth::sign::{self, Resource};
use lazuli_concurrency::{Clock, Span, SystemClock, Timestamp};
use lazuli_file::SpaceId;
use lazuli_file::opens::letters;
use lazuli_front::{ConsoleBody, ConsoleRequest, whole};
use lazuli_protocol::{Account, Query, ServiceKind, date};
use lazuli_queue::MessageState;
use lazuli_store::Which;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::audit::AuditEntry;
use crate::hub::Topic;
use crate::reply::{Problem, Result, json as reply_json, time_text};
use crate::session::{Principal, Session};
use crate::state::ConsoleState;
use crate::storage::TicketRequest;

/// Methods and paths, with parameters in braces.
#[cfg(test)]
const ROUTES: &[(&str, &str)] = &[
    ("GET", "/openapi.json"),
    ("GET", "/session"),
    ("POST", "/session"),
    ("DELETE", "/session"),
    ("GET", "/overview"),
    ("GET", "/series"),
    ("GET", "/accounts"),
    ("GET", "/leases"),
    ("GET", "/opens"),
    ("GET", "/queues/{account}/{queue}/messages"),
    ("GET", "/conflicts"),
    ("GET", "/events"),
    ("POST", "/sas"),
    ("POST", "/tickets"),
    ("GET", "/audit"),
    ("GET", "/server/sessions"),
    ("DELETE", "/server/sessions/{id}"),
];

/// The description of the API.
const OPENAPI: &str = include_str!("../openapi.json");
/// Maximum bytes of a request's body.
const MAX_BODY: usize = 64 << 10;
/// Maximum number of files that are listed with their opens.
const MAX_OPEN_FILES: usize = 500;
/// Maximum number of shares whose names are looked up.
const MAX_SHARES: usize = 10_000;
/// The version of the signatures that the console creates.
const SAS_VERSION: &str = "2022-11-02";
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// How to sign in.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum SignIn {
    /// With the token of a link.
    Link(String),
    /// With the operator's password.
    Password(String),
    /// As the development account.
    Development(bool),
    /// With an account's key.
    Account { name: String, key: String },
}

/// A signature to create.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SasRequest {
    account: String,
    service: ServiceKind,
    /// Container, queue, table or share; `None` for the account.
    container: Option<String>,
    /// Blob or file.
    object: Option<String>,
    permissions: String,
    /// Valid for this many hours from now.
    hours: f64,
    ip: Option<String>,
    #[serde(default)]
    https_only: bool,
    policy: Option<String>,
    /// Which key signs: 1 or 2.
    #[serde(default = "first_key")]
    key: usize,
}

const fn first_key() -> usize {
    1
}

impl ConsoleState {
    /// Answers a request below `/api/v1/`.
    pub(crate) async fn api(self: &Arc<Self>, mut request: ConsoleRequest, path: &str) -> Result {
        let method = request.parts.method.clone();
        let segments: Vec<_> = path.split('/').collect();
        match (&method, &segments[..]) {
            (&Method::GET, ["openapi.json"]) => {
                let mut reply = Response::new(whole(OPENAPI));
                reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                return Ok(reply);
            }
            (&Method::POST, ["session"]) => return self.sign_in(request).await,
            (&Method::GET, ["session"]) => return self.current_session(&request).await,
            _ => {}
        }
        let session = self.session(&request).await?;
        let query = Query::parse(request.parts.uri.query().unwrap_or_default())?;
        let only = session.principal.only();
        let now = self.store.now();
        match (&method, &segments[..]) {
            (&Method::DELETE, ["session"]) => self.sign_out(&request, &session).await,
            (&Method::GET, ["overview"]) => self.overview(&session).await,
            (&Method::GET, ["series"]) => {
                let series = self.series.lock();
                let points = series.window(query.get("window").unwrap_or("15m"));
                let points = points.ok_or_else(|| Problem::bad_request("window is 15m, 6h or 7d."))?;
                Ok(reply_json(
                    &json!({ "items": points, "next": null, "asOf": time_text(now), "complete": true }),
                ))
            }
            (&Method::GET, ["accounts"]) => self.list_accounts(&session).await,
            (&Method::GET, ["leases"]) => {
                let (items, hot) = (self.board.leases(only, now), self.board.hot(only, now));
                Ok(reply_json(&json!({
                    "items": items, "hot": hot, "next": null, "asOf": time_text(now), "complete": false,
                })))
            }
            (&Method::GET, ["opens"]) => {
                let opens = self.opens().await;
                let seen = opens.into_iter().filter(|(account, _)| session.principal.sees(account));
                let items: Vec<_> = seen.flat_map(|(_, opens)| opens).collect();
                Ok(list(items, now))
            }
            (&Method::GET, ["queues", account, queue, "messages"]) => {
                self.messages(&session, account, queue, &query).await
            }
            (&Method::GET, ["conflicts"]) => {
                let limit = query.number("limit", 1..=4096)?.map_or(100, |limit| limit as usize);
                let items = self.hub.recent(Topic::Conflicts, only, limit);
                let items = items.iter().filter_map(|item| serde_json::from_str::<Value>(item).ok());
                Ok(list(items.collect(), now))
            }
            (&Method::GET, ["events"]) => self.events(&request, &session, &query),
            (&Method::POST, ["sas"]) => {
                let wanted = body(&mut request).await?;
                self.sas(&request, &session, wanted).await
            }
            (&Method::POST, ["tickets"]) => {
                let wanted: TicketRequest = body(&mut request).await?;
                Ok(reply_json(&self.add_ticket(&session, wanted)?))
            }
            (&Method::GET, ["audit"]) => {
                operators_only(&session)?;
                let (items, next) = self.audit.page(query.get("after")).await?;
                Ok(reply_json(&json!({
                    "items": items, "next": next, "asOf": time_text(now), "complete": true,
                })))
            }
            (&Method::GET, ["server", "sessions"]) => {
                operators_only(&session)?;
                Ok(reply_json(&json!({
                    "items": self.sessions.list().await?, "current": session.id,
                    "next": null, "asOf": time_text(now), "complete": true,
                })))
            }
            (&Method::DELETE, ["server", "sessions", id]) => {
                operators_only(&session)?;
                self.sessions.end(id).await?;
                self.note(&request, session.principal.name(), "end session", None, "ended").await;
                Ok(reply_json(&json!({})))
            }
            _ => Err(Problem::not_found()),
        }
    }

    async fn note(
        &self,
        request: &ConsoleRequest,
        principal: &str,
        action: &str,
        account: Option<&str>,
        outcome: &str,
    ) {
        let entry = AuditEntry {
            principal: principal.to_owned(),
            peer: request.peer.ip().to_string(),
            action: action.to_owned(),
            account: account.map(str::to_owned),
            object: None,
            outcome: outcome.to_owned(),
            request_id: None,
        };
        self.audit.write(entry).await;
    }

    async fn sign_in(&self, mut request: ConsoleRequest) -> Result {
        let peer = request.peer.ip();
        self.sessions.check_throttle(peer)?;
        let wanted: SignIn = body(&mut request).await?;
        let (way, claimed, principal) = match wanted {
            SignIn::Link(token) => ("link", "operator".into(), self.sessions.redeem_link(&token)),
            SignIn::Password(password) => {
                ("password", "operator".into(), self.sessions.check_password(password).await)
            }
            SignIn::Development(is_wanted) => {
                let principal = self.sessions.development(peer).await?.filter(|_| is_wanted);
                ("development key", "development".into(), principal)
            }
            SignIn::Account { name, key } => {
                let name: String = name.trim().chars().take(24).collect();
                let principal = self.sessions.check_key(&name, &key, peer).await?;
                ("account key", name, principal)
            }
        };
        self.sessions.note_attempt(peer, principal.is_some());
        let action = format!("sign in with {way}");
        let Some(principal) = principal else {
            let claimed: String = claimed.chars().filter(char::is_ascii_alphanumeric).collect();
            self.note(&request, &claimed, &action, None, "refused").await;
            let message = "The link was used or has expired, or the name, key or password is wrong.";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "SignInFailed", message));
        };
        // A session that the browser has already ends: it must not be taken over.
        if let Some(cookie) = self.cookie(&request.parts, request.is_secure)
            && let Some((old, _)) = self.sessions.find(cookie).await?
        {
            self.sessions.end(&old.id).await?;
        }
        let agent = request.parts.headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let new = self.sessions.begin(principal, peer, agent.unwrap_or_default()).await?;
        self.note(&request, new.principal.name(), &action, new.principal.only(), "signed in").await;
        let mut reply =
            reply_json(&json!({ "proof": new.proof, "principal": principal_json(&new.principal) }));
        let cookie = self.set_cookie(Some(&new.cookie), request.is_secure);
        reply.headers_mut().extend(cookie.map(|cookie| (SET_COOKIE, cookie)));
        Ok(reply)
    }

    /// Returns the principal, or how to sign in.
    async fn current_session(&self, request: &ConsoleRequest) -> Result {
        let options = self.options();
        match self.session(request).await {
            Ok(session) => Ok(reply_json(&json!({
                "principal": principal_json(&session.principal),
                "version": options.version,
                "services": options.services.iter().map(|(kind, url)| (kind.name(), url)).collect::<BTreeMap<_, _>>(),
            }))),
            Err(problem) if problem.code() == "SignedOut" => {
                let development = self.sessions.development(request.peer.ip()).await?;
                Ok(reply_json(&json!({
                    "principal": null,
                    "development": development.as_ref().map(Principal::name),
                    "password": self.sessions.has_password(),
                })))
            }
            Err(problem) => Err(problem),
        }
    }

    async fn sign_out(&self, request: &ConsoleRequest, session: &Session) -> Result {
        self.sessions.end(&session.id).await?;
        self.note(request, session.principal.name(), "sign out", None, "signed out").await;
        let mut reply = reply_json(&json!({}));
        let cookie = self.set_cookie(None, request.is_secure);
        reply.headers_mut().extend(cookie.map(|cookie| (SET_COOKIE, cookie)));
        Ok(reply)
    }

    async fn overview(&self, session: &Session) -> Result {
        let newest = self.series.lock().newest().cloned();
        let options = self.options();
        let readiness = options.readiness.clone();
        let readiness = tokio::task::spawn_blocking(move || readiness()).await.map_err(Problem::internal)?;
        let is_operator = session.principal.is_operator();
        Ok(reply_json(&json!({
            "version": options.version,
            "started": time_text(self.started),
            "asOf": time_text(self.store.now()),
            "readiness": if is_operator { readiness } else { String::new() },
            "streams": self.hub.streams(),
            "point": newest,
        })))
    }

    async fn list_accounts(&self, session: &Session) -> Result {
        let accounts = self.accounts.list().await.map_err(Problem::internal)?;
        let seen = accounts.iter().filter(|account| session.principal.sees(&account.name));
        let items = seen.map(|account| {
            json!({
                "name": account.name,
                "disabled": account.settings.disabled,
                "versioning": account.settings.blob_versioning,
                "keys": account.keys.len(),
            })
        });
        Ok(list(items.collect(), self.store.now()))
    }

    async fn messages(&self, session: &Session, account: &str, queue: &str, query: &Query) -> Result {
        let account = self.seen_account(session, account).await?;
        let state = match query.get("state").unwrap_or("visible") {
            "visible" => MessageState::Visible,
            "invisible" | "scheduled" => MessageState::Invisible,
            _ => return Err(Problem::bad_request("state is visible, invisible or scheduled.")),
        };
        let is_scheduled = match query.get("state") {
            Some("scheduled") => Some(true),
            Some("invisible") => Some(false),
            _ => None,
        };
        let (messages, more) = self.queue.survey(&account, queue, state, 500).await?;
        let shown = messages.into_iter().filter(|message| {
            is_scheduled.is_none_or(|is_scheduled| (message.dequeue_count == 0) == is_scheduled)
        });
        let items: Vec<_> = shown
            .map(|message| {
                json!({
                    "id": message.id,
                    "visibleAt": time_text(message.visible_at),
                    "inserted": time_text(message.inserted),
                    "expires": time_text(message.expires),
                    "dequeueCount": message.dequeue_count,
                    "receipt": message.receipt,
                    "holder": self.board.consumer(&message.id),
                    "text": message.text,
                })
            })
            .collect();
        let as_of = time_text(self.store.now());
        Ok(reply_json(&json!({ "items": items, "next": null, "asOf": as_of, "complete": !more })))
    }

    fn events(&self, request: &ConsoleRequest, session: &Session, query: &Query) -> Result {
        let mut topics = Topic::parse(query.get("topics").unwrap_or_default());
        if !session.principal.is_operator() {
            topics.retain(|topic| *topic != Topic::Audit);
        }
        if topics.is_empty() {
            return Err(Problem::bad_request("topics names no topic."));
        }
        let after = request.parts.headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()?.parse().ok());
        let only = session.principal.only().map(str::to_owned);
        let stream = self.hub.open(topics, only, after).ok_or_else(|| {
            let message = "There are too many open pages. Close some, then this one continues.";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "TooManyStreams", message)
        })?;
        self.board.update_interest();
        let mut reply: Response<ConsoleBody> = Response::new(stream.boxed_unsync());
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        reply.headers_mut().insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
        Ok(reply)
    }

    async fn sas(&self, request: &ConsoleRequest, session: &Session, wanted: SasRequest) -> Result {
        let account = self.seen_account(session, &wanted.account).await?;
        let key = account.keys.get(wanted.key.wrapping_sub(1));
        let key = key.ok_or_else(|| Problem::bad_request("The account has no such key."))?;
        if !(0.0..=87_600.0).contains(&wanted.hours) || wanted.hours == 0.0 {
            return Err(Problem::bad_request("hours is more than 0 and at most 87600."));
        }
        if !wanted.permissions.bytes().all(|letter| letter.is_ascii_lowercase()) {
            return Err(Problem::bad_request("permissions are letters."));
        }
        let expiry = SystemClock.now() + Span::millis((wanted.hours * 3_600_000.0) as u64);
        let expiry = date::iso8601_seconds(expiry.min(Timestamp::MAX));
        let container = wanted.container.as_deref().filter(|name| !name.is_empty());
        let object = wanted.object.as_deref().filter(|name| !name.is_empty());
        let path = match (container, object) {
            (Some(container), Some(object)) => format!("{container}/{object}"),
            (Some(container), None) => container.to_owned(),
            (None, _) => String::new(),
        };
        let table = path.to_lowercase();
        let mut fields = vec![("sv", SAS_VERSION)];
        match (container, wanted.service) {
            (None, _) => fields.extend([("ss", "bqtf"), ("srt", "sco")]),
            (Some(_), ServiceKind::Table) => fields.push(("tn", &table)),
            (Some(_), ServiceKind::Queue) => {}
            (Some(_), ServiceKind::Blob) => fields.push(("sr", if object.is_some() { "b" } else { "c" })),
            (Some(_), ServiceKind::File) => fields.push(("sr", if object.is_some() { "f" } else { "s" })),
        }
        let optional = [
            ("sp", &*wanted.permissions),
            ("se", &*expiry),
            ("sip", wanted.ip.as_deref().unwrap_or_default()),
            ("spr", if wanted.https_only { "https" } else { "" }),
            ("si", wanted.policy.as_deref().unwrap_or_default()),
        ];
        fields.extend(optional.into_iter().filter(|(_, value)| !value.is_empty()));
        let signature = match container {
            None => sign::account_sas(&account.name, key, &fields),
            Some(_) => {
                let path = if wanted.service == ServiceKind::Table { &*table } else { &*path };
                let resource =
                    Resource { service: wanted.service, account: &account.name, path, timestamp: "" };
                sign::service_sas(&resource, key, &fields)
            }
        };
        let base = self.options().services.iter().find(|(kind, _)| *kind == wanted.service);
        let url = base.map(|(_, base)| {
            let encoded = percent_encoding::utf8_percent_encode(&path, crate::api::IN_PATH);
            let slash = if path.is_empty() { "" } else { "/" };
            format!("{base}/{}{slash}{encoded}?{signature}", account.name)
        });
        self.note(request, session.principal.name(), "create SAS", Some(&account.name), "created").await;
        Ok(reply_json(&json!({ "query": signature, "url": url, "expires": expiry })))
    }

    /// Returns an account that the session may see.
    async fn seen_account(&self, session: &Session, name: &str) -> Result<Arc<Account>> {
        if !session.principal.sees(name) {
            return Err(Problem::forbidden("This session is for another account."));
        }
        let account = self.accounts.get(name).await.map_err(Problem::internal)?;
        account.ok_or_else(|| {
            Problem::new(StatusCode::NOT_FOUND, "AccountNotFound", "There is no such account.")
        })
    }

    /// Returns the names of all accounts.
    pub(crate) fn account_names(&self) -> Vec<String> {
        self.accounts.names()
    }

    /// Returns the files that are open over SMB, by account.
    pub(crate) async fn opens(&self) -> BTreeMap<String, Vec<Value>> {
        let mut found: BTreeMap<String, Vec<Value>> =
            self.account_names().into_iter().map(|name| (name, vec![])).collect();
        let files = self.file.opens().survey(MAX_OPEN_FILES);
        if files.is_empty() {
            return found;
        }
        let shares = self.shares().await;
        for file in files {
            let Some((account, share)) = shares.get(&file.file.space) else { continue };
            let opens: Vec<_> = file
                .opens
                .iter()
                .map(|open| {
                    json!({
                        "id": open.id.number.to_string(),
                        "peer": open.client.ip.to_string(),
                        "name": open.client.name,
                        "session": open.client.session.to_string(),
                        "access": letters(open.mode.access),
                        "shared": letters(open.mode.share),
                        "since": time_text(open.opened),
                    })
                })
                .collect();
            found.entry(account.clone()).or_default().push(json!({
                "account": account,
                "share": share,
                "path": file.place.path,
                "locks": file.locks,
                "deletePending": file.is_delete_pending,
                "opens": opens,
            }));
        }
        for files in found.values_mut() {
            files.sort_by_key(|file| (file["share"].to_string(), file["path"].to_string()));
        }
        found
    }

    /// Returns the names of shares, by their spaces.
    async fn shares(&self) -> BTreeMap<SpaceId, (String, String)> {
        let mut shares = BTreeMap::new();
        let Ok(accounts) = self.accounts.list().await else { return shares };
        for account in accounts {
            let prefix = lazuli_generations::keys::account(ServiceKind::File.name(), &account);
            let range = lazuli_store::prefix_range(&prefix);
            let (from, end) = ((range.start, Bytes::new()), Some((range.end, Bytes::new())));
            let page = self.store.scan_space(SpaceId::ROOT, from, end, Which::All, MAX_SHARES).await;
            for (partition, row) in page.map(|page| page.rows).unwrap_or_default() {
                if row.key == lazuli_generations::keys::CURRENT
                    && let Some(space) = lazuli_file::FileRows::named_space(&partition, &row)
                    && let Some(name) = lazuli_generations::keys::name(&partition)
                {
                    shares.insert(space, (account.name.clone(), name.to_owned()));
                }
            }
        }
        shares
    }
}

/// Characters of a name that are encoded in the path of a URL.
const IN_PATH: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b'$');

fn operators_only(session: &Session) -> Result<()> {
    match session.principal.is_operator() {
        true => Ok(()),
        false => Err(Problem::forbidden("Only an operator may do this. Sign in with a link.")),
    }
}

fn principal_json(principal: &Principal) -> Value {
    json!({
        "name": principal.name(),
        "role": if principal.is_operator() { "operator" } else { "account" },
        "account": principal.only(),
    })
}

fn list(items: Vec<Value>, now: Timestamp) -> Response<ConsoleBody> {
    reply_json(&json!({ "items": items, "next": null, "asOf": time_text(now), "complete": true }))
}

/// Reads a body of JSON.
async fn body<T: DeserializeOwned>(request: &mut ConsoleRequest) -> Result<T> {
    let bytes = request.read_body(MAX_BODY).await;
    let bytes = bytes.map_err(|_| Problem::bad_request("The body is too long, or ended early."))?;
    // The error of the parser could quote a secret.
    serde_json::from_slice(&bytes)
        .map_err(|_| Problem::bad_request("The body is not what this address expects."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_describes_exactly_the_routes() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let mut described = vec![];
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(operation["summary"].is_string(), "{method} {path}");
                described.push((method.to_uppercase(), path.clone()));
            }
        }
        let mut routes: Vec<_> = ROUTES.iter().map(|(m, p)| ((*m).to_owned(), (*p).to_owned())).collect();
        routes.sort();
        described.sort();
        assert_eq!(routes, described);
    }
}
