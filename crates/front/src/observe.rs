//! Builds the events that an observer gets of requests. See [`lazuli_protocol::watch`].

use std::net::SocketAddr;

use http::header::{ETAG, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method};
use lazuli_concurrency::Timestamp;
use lazuli_protocol::error::Refusal;
use lazuli_protocol::kind::ServiceKind;
use lazuli_protocol::watch::{Interest, LeaseFacts, RequestEvent};
use uuid::Uuid;

use crate::console_caller::ConsoleCaller;

/// Maximum length of a text in an event, in bytes.
const MAX_TEXT: usize = 1024;
/// Headers that hold secrets, or that no reader of a trace needs.
const HIDDEN: [&str; 13] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-lazuli-proof",
    "x-ms-copy-source",
    "x-ms-copy-source-authorization",
    "x-ms-encryption-key",
    "x-ms-file-rename-source",
    "x-ms-lease-id",
    "x-ms-proposed-lease-id",
    "x-ms-rename-source",
    "x-ms-source-encryption-key",
    "x-ms-source-lease-id",
];
/// Query parameters that hold secrets.
const SECRETS: [&str; 3] = ["sig", "popreceipt", "skoid"];

/// Begins the event of a request, if an observer wants it.
pub(crate) fn begin(
    interest: Interest,
    service: ServiceKind,
    parts: &Parts,
    peer: SocketAddr,
    request_id: Uuid,
    now: Timestamp,
) -> Option<Box<RequestEvent>> {
    let writes = parts.method != Method::GET && parts.method != Method::HEAD;
    if interest.is_none() || !(interest.is_all() || writes) {
        return None;
    }
    let headers = &parts.headers;
    Some(Box::new(RequestEvent {
        request_id,
        client_request_id: None,
        at: now,
        service,
        operation: None,
        account: None,
        method: cut(parts.method.as_str()),
        path: cut(parts.uri.path()),
        query: safe_query(parts.uri.query().unwrap_or_default()),
        peer: (peer.ip(), peer.port()),
        agent: text(headers, USER_AGENT.as_str()),
        caller: caller(parts),
        headers: if interest.is_all() { shown(headers) } else { vec![] },
        status: None,
        code: None,
        message: None,
        conflict: None,
        etag: None,
        lease: LeaseFacts {
            action: text(headers, "x-ms-lease-action").map(|action| action.to_ascii_lowercase()),
            sent: text(headers, "x-ms-lease-id"),
            granted: None,
            duration: text(headers, "x-ms-lease-duration").and_then(|text| text.parse().ok()),
            broken_in: None,
        },
        received: 0,
        sent: 0,
        first_byte: None,
        total: None,
        is_aborted: false,
    }))
}

/// Adds the facts of the reply.
pub(crate) fn answer(event: &mut RequestEvent, headers: &HeaderMap, refusal: Option<&Refusal>) {
    event.etag = text(headers, ETAG.as_str());
    event.lease.granted = text(headers, "x-ms-lease-id");
    event.lease.broken_in = text(headers, "x-ms-lease-time").and_then(|text| text.parse().ok());
    if let Some(refusal) = refusal {
        event.code = Some(refusal.code());
        event.message = Some(cut(refusal.text()));
        event.conflict = refusal.conflict().cloned().map(Box::new);
    }
}

/// Returns the credentials that a request claims.
fn caller(parts: &Parts) -> String {
    if let Some(caller) = parts.extensions.get::<ConsoleCaller>() {
        return format!("console {}", caller.name);
    }
    let authorization = parts.headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match authorization.and_then(|value| value.split_once(' ')) {
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("bearer") => "token".into(),
        Some(_) => "key".into(),
        None if parts.uri.query().is_some_and(|query| query.contains("sig=")) => "sas".into(),
        None => "anonymous".into(),
    }
}

/// Returns the headers that may be shown, cut to a length.
fn shown(headers: &HeaderMap) -> Vec<(String, String)> {
    let hidden = |name: &HeaderName| HIDDEN.contains(&name.as_str());
    headers
        .iter()
        .filter(|(name, _)| !hidden(name))
        .map(|(name, value)| (name.to_string(), cut(&String::from_utf8_lossy(value.as_bytes()))))
        .collect()
}

/// Returns the query without the values of secrets.
fn safe_query(query: &str) -> String {
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        match SECRETS.iter().any(|secret| name.eq_ignore_ascii_case(secret)) {
            true => format!("{name}=…"),
            false => pair.to_owned(),
        }
    });
    cut(&pairs.collect::<Vec<_>>().join("&"))
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(cut)
}

fn cut(text: &str) -> String {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or_default()].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(method: &str, target: &str) -> Parts {
        let request = http::Request::builder()
            .method(method)
            .uri(target)
            .header("authorization", "SharedKey a:secret")
            .header("x-ms-copy-source", "http://host/b?sig=secret")
            .header("if-match", "\"0x1\"");
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn reads_are_observed_only_if_all_requests_are_wanted() {
        let peer = "127.0.0.1:1".parse().unwrap();
        let begin = |interest, method| {
            let (parts, id) = (parts(method, "/a/b"), Uuid::nil());
            begin(interest, ServiceKind::Blob, &parts, peer, id, Timestamp::from_unix_seconds(0))
        };
        for (interest, method, observed) in [
            (Interest::NONE, "PUT", false),
            (Interest::NONE, "GET", false),
            (Interest::WRITES, "PUT", true),
            (Interest::WRITES, "GET", false),
            (Interest::WRITES, "HEAD", false),
            (Interest::ALL, "GET", true),
        ] {
            assert_eq!(begin(interest, method).is_some(), observed, "{interest:?} {method}");
        }
    }

    #[test]
    fn events_hold_no_secrets() {
        let peer = "127.0.0.1:1".parse().unwrap();
        let parts = parts("PUT", "/a/b?comp=block&sig=secret&SIG=secret&popreceipt=secret");
        let event = begin(
            Interest::ALL,
            ServiceKind::Blob,
            &parts,
            peer,
            Uuid::nil(),
            Timestamp::from_unix_seconds(0),
        );
        let text = format!("{event:?}");
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("comp=block") && text.contains("if-match"), "{text}");
    }
}
