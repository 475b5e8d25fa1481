//! The way to data: `/storage/SERVICE/ACCOUNT/…` is a request of the storage protocol whose caller is the
//! session, and `/dl/TICKET` is a download by the browser itself.
//!
//! Both answer with content of clients, which a browser must never take for a document of the console.
//! So they have a policy that forbids everything, and are attachments unless their type is harmless.

use std::time::Instant;

use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, ORIGIN, REFERER};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use lazuli_front::{ConsoleBody, ConsoleRequest};
use lazuli_protocol::ServiceKind;
use lazuli_protocol::request::Caller;
use serde::{Deserialize, Serialize};

use crate::audit::AuditEntry;
use crate::reply::{Problem, Result, contain};
use crate::session::Session;
use crate::state::{ConsoleState, PROOF};
use crate::tickets::{TICKET_LIFE, Ticket};

/// The version of downloads, which browsers send without headers.
const DOWNLOAD_VERSION: &str = "2021-12-02";

/// A request for a ticket.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TicketRequest {
    /// The path below `/storage/`, with its query.
    path: String,
    /// The name under which the browser stores the file. Without one, the browser may show the content.
    name: Option<String>,
}

/// A new ticket.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewTicket {
    url: String,
    expires_in_seconds: u64,
}

impl ConsoleState {
    /// Carries out a request of the storage protocol. `path` is that below `/storage/`, with its query.
    pub(crate) async fn storage(
        &self,
        mut request: ConsoleRequest,
        session: &Session,
        path: &str,
        name: Option<&str>,
    ) -> Result {
        let (kind, account, target) = parse(path)?;
        if !session.principal.sees(account) {
            return Err(Problem::forbidden("This session is for another account."));
        }
        let target = target.parse::<PathAndQuery>().map_err(|_| Problem::not_found())?;
        let (action, object) = (request.parts.method.clone(), target.path().to_owned());
        let is_part = is_part_of_upload(target.query().unwrap_or_default());
        request.parts.uri = Uri::from(target);
        forget_browser(&mut request.parts.headers);
        let (account, peer) = (account.to_owned(), request.peer.ip().to_string());
        let operation = operation_text(&request.parts.headers, &action, request.parts.uri.query());
        let principal = session.principal.name().to_owned();
        let reply = self.entry.call(kind, request, Caller::Key, principal.clone()).await;
        let mut reply = reply.ok_or_else(|| {
            Problem::new(StatusCode::NOT_FOUND, "ServiceDisabled", "This service is switched off.")
        })?;
        if !matches!(action, Method::GET | Method::HEAD) && !is_part {
            let request_id = reply.headers().get("x-ms-request-id").and_then(|id| id.to_str().ok());
            let entry = AuditEntry {
                principal,
                peer,
                action: format!("{} {operation}", kind.name()),
                account: Some(account),
                object: Some(object),
                outcome: outcome(&reply),
                request_id: request_id.map(str::to_owned),
            };
            self.audit.write(entry).await;
        }
        contain(reply.headers_mut(), name);
        Ok(reply)
    }

    /// Creates a ticket for a download.
    pub(crate) fn add_ticket(&self, session: &Session, request: TicketRequest) -> Result<NewTicket> {
        let (_, account, _) = parse(&request.path)?;
        if !session.principal.sees(account) {
            return Err(Problem::forbidden("This session is for another account."));
        }
        let until = Instant::now() + TICKET_LIFE;
        let name = request.name.map(|name| name.chars().filter(|c| !c.is_control()).take(255).collect());
        let ticket = Ticket { session: session.id.clone(), path: request.path, name, until };
        let token = self.tickets.add(ticket)?;
        Ok(NewTicket { url: format!("dl/{token}"), expires_in_seconds: TICKET_LIFE.as_secs() })
    }

    /// Answers a download. The ticket works only with the cookie of its session.
    pub(crate) async fn download(
        &self,
        mut request: ConsoleRequest,
        token: &str,
        cookie: Option<&str>,
    ) -> Result {
        if !matches!(request.parts.method, Method::GET | Method::HEAD) {
            return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "GET only."));
        }
        let found = match cookie {
            Some(cookie) => self.sessions.find(cookie).await?,
            None => None,
        };
        let ticket = self.tickets.get(token);
        let Some((ticket, (session, _))) =
            ticket.zip(found).filter(|(ticket, (session, _))| ticket.session == session.id)
        else {
            return Err(Problem::new(
                StatusCode::NOT_FOUND,
                "TicketExpired",
                "The download link has expired. Start the download again in the console.",
            ));
        };
        let version = http::HeaderValue::from_static(DOWNLOAD_VERSION);
        request.parts.headers.insert("x-ms-version", version);
        self.storage(request, &session, &ticket.path, ticket.name.as_deref()).await
    }
}

/// Parses `SERVICE/ACCOUNT/…` with its query, and returns the path from the account on.
fn parse(path: &str) -> Result<(ServiceKind, &str, &str)> {
    let (service, rest) = path.split_once('/').ok_or_else(Problem::not_found)?;
    let kind = ServiceKind::ALL.into_iter().find(|kind| kind.name() == service);
    let kind = kind.ok_or_else(Problem::not_found)?;
    let account = rest.split(['/', '?']).next().unwrap_or_default();
    let is_name =
        !account.is_empty() && account.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let target = path.get(service.len()..).filter(|_| is_name);
    Ok((kind, account, target.ok_or_else(Problem::not_found)?))
}

/// Removes the headers by which a browser describes itself and its page. Services must not see them: they
/// would answer with CORS headers, or take a credential for one of theirs.
fn forget_browser(headers: &mut HeaderMap) {
    for name in [AUTHORIZATION, COOKIE, ORIGIN, REFERER] {
        headers.remove(name);
    }
    let own: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("sec-") || **name == PROOF).cloned().collect();
    for name in own {
        headers.remove(name);
    }
    // A form's type is none of the protocol.
    if headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/x-www-form"))
    {
        headers.remove(CONTENT_TYPE);
    }
}

/// Returns whether a request sends a part of an upload, whose last request has an entry of its own.
fn is_part_of_upload(query: &str) -> bool {
    query
        .split('&')
        .any(|pair| matches!(pair, "comp=block" | "comp=range" | "comp=page" | "comp=appendblock"))
}

/// Returns a short description of a write.
fn operation_text(headers: &HeaderMap, method: &Method, query: Option<&str>) -> String {
    let parameter = |name: &str| {
        let pairs = query.unwrap_or_default().split('&');
        pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let lease = headers.get("x-ms-lease-action").and_then(|action| action.to_str().ok());
    let words = [Some(method.as_str()), parameter("restype"), parameter("comp"), lease];
    let safe = |word: &&str| word.len() < 40 && word.bytes().all(|b| b.is_ascii_alphanumeric());
    words.into_iter().flatten().filter(safe).collect::<Vec<_>>().join(" ")
}

fn outcome(reply: &Response<ConsoleBody>) -> String {
    let code = reply.headers().get("x-ms-error-code").and_then(|code| code.to_str().ok());
    [Some(reply.status().as_str()), code].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_names_a_service_and_an_account() {
        let parsed = parse("blob/lapis/photos/a%20b.jpg?comp=lease").unwrap();
        assert_eq!(parsed, (ServiceKind::Blob, "lapis", "/lapis/photos/a%20b.jpg?comp=lease"));
        assert_eq!(parse("queue/lapis?comp=list").unwrap().2, "/lapis?comp=list");
        for wrong in
            ["", "blob", "blob/", "tape/lapis", "blob//x", "blob/../x", "blob/LAPIS/x", "blob/a-secondary"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn services_do_not_see_the_browser() {
        let mut headers = HeaderMap::new();
        for name in
            ["cookie", "origin", "referer", "authorization", "sec-fetch-site", "x-lazuli-proof", "if-match"]
        {
            headers.insert(http::HeaderName::from_static(name), http::HeaderValue::from_static("x"));
        }
        forget_browser(&mut headers);
        assert_eq!(headers.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["if-match"]);
    }
}
