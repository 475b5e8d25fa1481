//! Cross-origin resource sharing: what a browser origin may do, by the rules in a service's properties.
//!
//! The first rule that matches origin and method decides. If the requested headers do not match that rule, no
//! further rule is tried. CORS never refuses an actual request; it only omits the headers that a browser
//! needs.

use http::Method;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue,
    ORIGIN, VARY,
};
use serde::{Deserialize, Serialize};

use crate::error::{ErrorCode, Refusal};

/// One rule of a service's `<Cors>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorsRule {
    /// Origins such as `https://example.com`, `https://*.example.com`, or `*`.
    pub allowed_origins: Vec<String>,
    /// HTTP methods.
    pub allowed_methods: Vec<String>,
    /// Request headers; `x-ms-meta*` matches all with this prefix, `*` matches all.
    pub allowed_headers: Vec<String>,
    /// Response headers that scripts may read; wildcards as above.
    pub exposed_headers: Vec<String>,
    /// Seconds for which a browser may cache the answer to a preflight.
    pub max_age_seconds: u32,
}

impl CorsRule {
    fn any_origin(&self) -> bool {
        self.allowed_origins.iter().any(|allowed| allowed == "*")
    }

    fn allows_origin(&self, origin: &str) -> bool {
        self.allowed_origins.iter().any(|allowed| origin_matches(allowed, origin))
    }

    fn allows_method(&self, method: &str) -> bool {
        self.allowed_methods.iter().any(|allowed| allowed == method)
    }

    fn allows_header(&self, header: &str) -> bool {
        self.allowed_headers.iter().any(|allowed| header_matches(allowed, header))
    }
}

/// Returns the headers of the reply to a preflight, which is 200 with an empty body.
pub fn preflight(rules: &[CorsRule], request: &HeaderMap) -> Result<HeaderMap, Refusal> {
    let required = |name: HeaderName| {
        let value =
            request.get(&name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty());
        value.ok_or_else(|| Refusal::invalid_header(name, ""))
    };
    let origin = required(ORIGIN)?;
    let method = required(ACCESS_CONTROL_REQUEST_METHOD)?;
    let headers = request.get(ACCESS_CONTROL_REQUEST_HEADERS);
    let requested = headers
        .map_or(Ok(""), HeaderValue::to_str)
        .map_err(|_| Refusal::invalid_header(ACCESS_CONTROL_REQUEST_HEADERS, ""))?;
    let rule = rules
        .iter()
        .find(|rule| rule.allows_origin(origin) && rule.allows_method(method))
        .filter(|rule| words(requested).all(|header| rule.allows_header(header)))
        .ok_or(ErrorCode::CorsPreflightFailure)?;

    let mut reply = HeaderMap::new();
    allow_origin(rule, request, &mut reply);
    reply.extend(
        request.get(ACCESS_CONTROL_REQUEST_METHOD).map(|m| (ACCESS_CONTROL_ALLOW_METHODS, m.clone())),
    );
    reply.extend(headers.map(|headers| (ACCESS_CONTROL_ALLOW_HEADERS, headers.clone())));
    reply.insert(ACCESS_CONTROL_MAX_AGE, rule.max_age_seconds.into());
    Ok(reply)
}

/// Adds to the final headers of a reply those that a browser needs to give it to a script.
pub fn share(rules: &[CorsRule], method: &Method, request: &HeaderMap, reply: &mut HeaderMap) {
    let origin = request.get(ORIGIN).and_then(|origin| origin.to_str().ok());
    let matches = |rule: &&CorsRule| {
        rule.allows_method(method.as_str())
            && (rule.any_origin() || origin.is_some_and(|origin| rule.allows_origin(origin)))
    };
    let rule = rules.iter().find(matches);
    let cacheable = matches!(*method, Method::GET | Method::HEAD);
    if cacheable && !rules.is_empty() && !rule.is_some_and(CorsRule::any_origin) {
        reply.append(VARY, HeaderValue::from_static("Origin"));
    }
    if let Some(rule) = rule {
        let exposed: Vec<&str> = reply
            .keys()
            .map(HeaderName::as_str)
            .filter(|name| rule.exposed_headers.iter().any(|exposed| header_matches(exposed, name)))
            .collect();
        let exposed = HeaderValue::from_str(&exposed.join(",")).ok().filter(|exposed| !exposed.is_empty());
        allow_origin(rule, request, reply);
        reply.extend(exposed.map(|exposed| (ACCESS_CONTROL_EXPOSE_HEADERS, exposed)));
    }
}

/// Adds the allowed origin, and allows credentials unless the rule allows all origins.
fn allow_origin(rule: &CorsRule, request: &HeaderMap, reply: &mut HeaderMap) {
    if rule.any_origin() {
        reply.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    } else if let Some(origin) = request.get(ORIGIN) {
        reply.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        reply.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// Matches `*`, the exact origin, or a subdomain: `https://*.example.com` matches `https://a.example.com`,
/// but not
/// `https://example.com`.
fn origin_matches(allowed: &str, origin: &str) -> bool {
    match allowed.split_once("*.") {
        None => allowed == "*" || allowed == origin,
        Some((scheme, domain)) => {
            let host = origin.strip_prefix(scheme);
            let subdomain =
                host.and_then(|host| host.strip_suffix(domain)).and_then(|sub| sub.strip_suffix('.'));
            subdomain.is_some_and(|sub| !sub.is_empty() && !sub.contains(['/', ':', '@']))
        }
    }
}

fn header_matches(allowed: &str, header: &str) -> bool {
    match allowed.strip_suffix('*') {
        Some(prefix) => header.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)),
        None => allowed.eq_ignore_ascii_case(header),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(origins: &str, methods: &str, headers: &str, exposed: &str) -> CorsRule {
        let list = |text: &str| words(text).map(str::to_owned).collect();
        CorsRule {
            allowed_origins: list(origins),
            allowed_methods: list(methods),
            allowed_headers: list(headers),
            exposed_headers: list(exposed),
            max_age_seconds: 200,
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_str(v).unwrap())).collect()
    }

    #[test]
    fn the_first_rule_for_origin_and_method_decides_a_preflight() {
        let rules = [
            rule("http://contoso.com", "PUT,GET", "x-ms-meta-data*,x-ms-blob-content-type", ""),
            rule("*", "PUT", "x-ms-meta-*", ""),
            rule("http://contoso.com", "DELETE", "*", ""),
            rule("https://*.fabrikam.com", "GET", "", ""),
        ];
        for (origin, method, requested, allowed) in [
            (
                "http://contoso.com",
                "PUT",
                "x-ms-meta-data1,X-MS-Blob-Content-Type",
                Some("http://contoso.com"),
            ),
            ("http://contoso.com", "GET", "", Some("http://contoso.com")),
            // The first rule matches origin and method but not the header. The second would match, but is not
            // tried.
            ("http://contoso.com", "PUT", "x-ms-meta-other", None),
            ("http://contoso.com", "DELETE", "anything, x-at-all", Some("http://contoso.com")),
            ("http://contoso.com", "PATCH", "", None),
            ("http://Contoso.com", "GET", "", None),
            ("http://other.com", "PUT", "x-ms-meta-other", Some("*")),
            ("http://other.com", "GET", "", None),
            ("https://a.fabrikam.com", "GET", "", Some("https://a.fabrikam.com")),
            ("https://a.b.fabrikam.com", "GET", "", Some("https://a.b.fabrikam.com")),
            ("https://fabrikam.com", "GET", "", None),
            ("https://.fabrikam.com", "GET", "", None),
            ("https://evilfabrikam.com", "GET", "", None),
            ("https://evil.com/.fabrikam.com", "GET", "", None),
            ("http://a.fabrikam.com", "GET", "", None),
        ] {
            let mut request = headers(&[("origin", origin), ("access-control-request-method", method)]);
            if !requested.is_empty() {
                request.insert("access-control-request-headers", HeaderValue::from_str(requested).unwrap());
            }
            let case = format!("{origin} {method} {requested}");
            match (preflight(&rules, &request), allowed) {
                (Err(refusal), None) => assert_eq!(refusal.code(), ErrorCode::CorsPreflightFailure, "{case}"),
                (Ok(reply), Some(allowed)) => {
                    assert_eq!(reply["access-control-allow-origin"], allowed, "{case}");
                    assert_eq!(reply["access-control-allow-methods"], method, "{case}");
                    assert_eq!(reply["access-control-max-age"], "200", "{case}");
                    assert_eq!(
                        reply.contains_key("access-control-allow-credentials"),
                        allowed != "*",
                        "{case}"
                    );
                    assert_eq!(
                        reply.get("access-control-allow-headers").is_some(),
                        !requested.is_empty(),
                        "{case}"
                    );
                }
                (got, expected) => panic!("{case}: {got:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn preflights_without_origin_or_method_are_malformed_and_fail_without_rules() {
        for request in
            [headers(&[("origin", "http://a")]), headers(&[("access-control-request-method", "GET")])]
        {
            let refusal = preflight(&[rule("*", "GET", "*", "*")], &request).unwrap_err();
            assert_eq!(refusal.code(), ErrorCode::InvalidHeaderValue);
        }
        let request = headers(&[("origin", "http://a"), ("access-control-request-method", "GET")]);
        assert_eq!(preflight(&[], &request).unwrap_err().status(), 403);
    }

    #[test]
    fn actual_requests_get_the_headers_of_their_rule() {
        let any = || vec![rule("*", "GET", "", "x-ms-*")];
        let exact = || vec![rule("http://a", "GET", "", "x-ms-*,etag")];
        // (rules, method, origin) → (vary, allow-origin, allow-credentials, expose-headers)
        for (rules, method, origin, vary, allow, credentials, expose) in [
            (vec![], Method::GET, None, false, None, false, None),
            (vec![], Method::GET, Some("http://a"), false, None, false, None),
            (exact(), Method::GET, None, true, None, false, None),
            (any(), Method::GET, None, false, Some("*"), false, Some("x-ms-version")),
            (exact(), Method::GET, Some("http://a"), true, Some("http://a"), true, Some("etag,x-ms-version")),
            (exact(), Method::GET, Some("http://b"), true, None, false, None),
            (any(), Method::GET, Some("http://a"), false, Some("*"), false, Some("x-ms-version")),
            (exact(), Method::PUT, Some("http://a"), false, None, false, None),
            (any(), Method::HEAD, Some("http://a"), true, None, false, None),
        ] {
            let request = origin.map_or_else(HeaderMap::new, |origin| headers(&[("origin", origin)]));
            let mut reply = headers(&[("etag", "\"1\""), ("x-ms-version", "2021-12-02"), ("date", "d")]);
            share(&rules, &method, &request, &mut reply);
            let get = |name: &str| reply.get(name).map(|value| value.to_str().unwrap());
            let case = format!("{rules:?} {method} {origin:?}");
            assert_eq!(get("vary"), vary.then_some("Origin"), "{case}");
            assert_eq!(get("access-control-allow-origin"), allow, "{case}");
            assert_eq!(get("access-control-allow-credentials"), credentials.then_some("true"), "{case}");
            assert_eq!(get("access-control-expose-headers"), expose, "{case}");
        }
    }
}
