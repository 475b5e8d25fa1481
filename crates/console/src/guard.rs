//! Checks of requests before anything is routed: against DNS rebinding, and against pages of other origins.
//!
//! A cookie is no proof that a request comes from the console's page. Browsers send it to every port of a
//! host, and a page of another port counts as the same site. So `Host`, `Sec-Fetch-Site` and `Origin` are
//! checked here, and a session has a second half that only the page knows (see [`crate::session`]).

use std::net::{IpAddr, SocketAddr};

use http::header::{CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};

use crate::reply::Problem;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names by which browsers may address the console.
#[derive(Clone, Debug)]
pub(crate) struct AllowedHosts {
    bound: SocketAddr,
    /// In lower case, without ports.
    names: Vec<String>,
}

impl AllowedHosts {
    pub(crate) fn new(bound: SocketAddr, names: &[String]) -> Self {
        Self { bound, names: names.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    /// Returns whether a host without its port is allowed. An address cannot be rebound, so a console that
    /// listens on all addresses accepts every address.
    fn allows(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address {
            Ok(ip) => ip.is_loopback() || self.bound.ip().is_unspecified() || ip == self.bound.ip(),
            Err(_) => host == "localhost" || host.ends_with(".localhost") || self.names.contains(&host),
        }
    }

    /// Checks the name by which a request addresses the console.
    pub(crate) fn check_host(&self, parts: &Parts) -> Result<(), Problem> {
        let allowed = host_of(parts).is_some_and(|host| self.allows(without_port(host)));
        allowed.then_some(()).ok_or_else(|| {
            let message = "The console does not answer to this host name. See --console-name.";
            Problem::new(StatusCode::MISDIRECTED_REQUEST, "WrongHost", message)
        })
    }

    /// Checks that a request comes from the console's own page, or from no page at all.
    pub(crate) fn check_origin(&self, parts: &Parts) -> Result<(), Problem> {
        let headers = &parts.headers;
        let same_site = text(headers, SEC_FETCH_SITE).is_none_or(|site| site == "same-origin");
        let same_origin = text(headers, ORIGIN).is_none_or(|origin| self.is_own(origin, parts));
        (same_site && same_origin).then_some(()).ok_or_else(|| Problem::forbidden("The request is refused."))
    }

    /// Returns whether an origin is that of the console. A proxy may change the scheme and the host, so the
    /// configured names count as well.
    fn is_own(&self, origin: &str, parts: &Parts) -> bool {
        let Some((_, authority)) = origin.split_once("://") else { return false };
        host_of(parts).is_some_and(|host| host.eq_ignore_ascii_case(authority))
            || self.names.contains(&without_port(authority).to_ascii_lowercase())
    }
}

/// Checks that a write has a body of JSON, which a form of another site cannot send.
pub(crate) fn check_json(parts: &Parts) -> Result<(), Problem> {
    let content_type = text(&parts.headers, CONTENT_TYPE).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    match parts.method == Method::GET || essence.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(Problem::bad_request("The body must be JSON.")),
    }
}

/// Returns the host with its port.
pub(crate) fn host_of(parts: &Parts) -> Option<&str> {
    if parts.headers.get_all(HOST).iter().nth(1).is_some() {
        return None;
    }
    parts.uri.authority().map(|authority| authority.as_str()).or_else(|| text(&parts.headers, HOST))
}

fn without_port(host: &str) -> &str {
    match host.rfind(']') {
        Some(end) => &host[..=end],
        None => host.split(':').next().unwrap_or_default(),
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    // A value that is no text is not absent.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let request =
            headers.iter().fold(http::Request::builder(), |r, (name, value)| r.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn host_is_loopback_the_bound_address_or_a_configured_name() {
        for (bound, host, allowed) in [
            ("127.0.0.1:10080", "127.0.0.1:10080", true),
            ("127.0.0.1:10080", "localhost:10080", true),
            ("127.0.0.1:10080", "LOCALHOST", true),
            ("127.0.0.1:10080", "[::1]:10080", true),
            ("127.0.0.1:10080", "lazuli.localhost", true),
            ("127.0.0.1:10080", "console.example:443", true),
            ("127.0.0.1:10080", "evil.example", false),
            ("127.0.0.1:10080", "localhost.evil.example", false),
            ("127.0.0.1:10080", "127.0.0.1.evil.example", false),
            ("127.0.0.1:10080", "10.0.0.7:10080", false),
            ("10.0.0.7:10080", "10.0.0.7:10080", true),
            ("0.0.0.0:10080", "10.0.0.7:10080", true),
            ("0.0.0.0:10080", "evil.example", false),
            ("127.0.0.1:10080", "", false),
        ] {
            let hosts = AllowedHosts::new(bound.parse().unwrap(), &["Console.Example".into()]);
            assert_eq!(hosts.check_host(&parts(&[("host", host)])).is_ok(), allowed, "{bound} {host}");
        }
        let hosts = AllowedHosts::new("127.0.0.1:1".parse().unwrap(), &[]);
        assert!(hosts.check_host(&parts(&[])).is_err(), "no host");
        assert!(hosts.check_host(&parts(&[("host", "localhost"), ("host", "evil")])).is_err(), "two hosts");
    }

    #[test]
    fn page_of_another_origin_is_refused() {
        let hosts = AllowedHosts::new("127.0.0.1:10080".parse().unwrap(), &["console.example".into()]);
        let host = ("host", "127.0.0.1:10080");
        for (headers, allowed) in [
            (vec![host], true),
            (vec![host, ("sec-fetch-site", "same-origin")], true),
            (vec![host, ("sec-fetch-site", "same-site")], false),
            (vec![host, ("sec-fetch-site", "cross-site")], false),
            (vec![host, ("sec-fetch-site", "none")], false),
            (vec![host, ("origin", "http://127.0.0.1:10080")], true),
            (vec![host, ("origin", "https://console.example")], true),
            (vec![host, ("origin", "http://127.0.0.1:9999")], false),
            (vec![host, ("origin", "http://localhost:10080")], false),
            (vec![host, ("origin", "null")], false),
        ] {
            assert_eq!(hosts.check_origin(&parts(&headers)).is_ok(), allowed, "{headers:?}");
        }
    }

    #[test]
    fn writes_need_json() {
        for (content_type, allowed) in
            [("application/json", true), ("application/json; charset=utf-8", true), ("text/plain", false)]
        {
            let mut parts = parts(&[("content-type", content_type)]);
            parts.method = Method::POST;
            assert_eq!(check_json(&parts).is_ok(), allowed, "{content_type}");
        }
    }
}
