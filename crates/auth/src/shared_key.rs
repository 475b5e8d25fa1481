//! Shared Key and Shared Key Lite: the strings to sign, and the verification of signatures.
//!
//! A [`Message`] holds the signed parts of a request. The server verifies with it, and [`crate::sign`] signs
//! with it. Where clients disagree (the order of headers, the path at a secondary endpoint, a query parameter
//! without `=`), every form is accepted. Each form covers everything that the documented one covers.

mod order;

use std::collections::BTreeMap;

use http::{HeaderMap, header};
use lazuli_concurrency::Span;
use lazuli_protocol::query::Parameter;
use lazuli_protocol::{Account, Query, Refusal, ServiceKind, Version, date};

use crate::refusal::{authentication_failed, malformed_authorization};
use crate::{Head, mac};

/// Maximum difference between the date of a signed request and the server's time. Limits how long a recorded
/// request can be replayed.
const MAX_SKEW: Span = Span::seconds(15 * 60);

/// The one parameter whose values are a list: repeating it means the same as joining its values.
const LIST_PARAMETER: &str = "include";
const SECONDARY: &str = "-secondary";
const X_MS_DATE: &str = "x-ms-date";

/// The headers with their own line, in the order in which they are signed.
const LINES: &[&str] = &[
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
];
/// The headers with their own line in Shared Key Lite, and in Shared Key for tables.
const SHORT_LINES: &[&str] = &["content-md5", "content-type", "date"];
/// The header with its own line in Shared Key Lite for tables.
const DATE_LINE: &[&str] = &["date"];

/// The authentication scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `SharedKey`
    SharedKey,
    /// `SharedKeyLite`
    SharedKeyLite,
}

impl Scheme {
    /// Returns the name of the scheme in the Authorization header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SharedKey => "SharedKey",
            Self::SharedKeyLite => "SharedKeyLite",
        }
    }
}

/// The signed form of a query parameter without `=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BareParameter {
    /// As a name without a value: `update:`.
    Name,
    /// As a value without a name: `:update`, as .NET parses a query string.
    Value,
}

/// The signed parts of a request.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The scheme of the signature.
    pub scheme: Scheme,
    /// The addressed service. Fewer parts are signed for tables than for other services.
    pub service: ServiceKind,
    /// The account, without `-secondary`.
    pub account: &'a str,
    /// The method, as sent.
    pub method: &'a str,
    /// The path exactly as sent: percent-encoded, and with the account again in front in path style.
    pub path: &'a str,
    /// The query parameters.
    pub query: &'a Query,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The protocol version, which decides about empty headers and lengths.
    pub version: Version,
}

/// The part of an Authorization header after the scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credential<'a> {
    account: &'a str,
    signature: &'a str,
}

impl<'a> Credential<'a> {
    /// Parses `account:signature`.
    pub(crate) fn parse(text: &'a str) -> Result<Self, Refusal> {
        match text.split_once(':') {
            Some((account, signature)) if !account.is_empty() && !signature.is_empty() => {
                Ok(Self { account, signature })
            }
            _ => Err(malformed_authorization()),
        }
    }
}

/// Verifies a signed request: account, date, signature.
pub(crate) fn verify(head: &Head<'_>, scheme: Scheme, credential: Credential<'_>) -> Result<(), Refusal> {
    if without_secondary(credential.account) != head.account.name {
        return Err(authentication_failed("The account that signed is not the account that is addressed."));
    }
    check_date(head)?;
    let signature = mac::decode(credential.signature).ok_or_else(malformed_authorization)?;
    let message = Message {
        scheme,
        service: head.operation.service(),
        account: &head.account.name,
        method: head.method.as_str(),
        path: head.path,
        query: head.query,
        headers: head.headers,
        version: head.version,
    };
    let accepted = message.accepted_strings()?;
    if mac::matches_any(&signature, keys(head.account), &accepted) {
        return Ok(());
    }
    let signed = accepted.first().map(|s| String::from_utf8_lossy(s)).unwrap_or_default();
    Err(authentication_failed(format!(
        "The MAC signature found in the HTTP request '{}' is not the same as any computed signature. \
         Server used following string to sign: '{signed}'.",
        credential.signature
    )))
}

/// Returns the keys of an account as bytes.
pub(crate) fn keys(account: &Account) -> impl Iterator<Item = &[u8]> + Clone {
    account.keys.iter().map(|key| key.bytes())
}

fn check_date(head: &Head<'_>) -> Result<(), Refusal> {
    let text = head
        .headers
        .get(X_MS_DATE)
        .or_else(|| head.headers.get(header::DATE))
        .ok_or_else(|| authentication_failed("Request date header not specified."))?;
    let date = text
        .to_str()
        .ok()
        .and_then(|text| date::parse_http(text.trim()))
        .ok_or_else(|| authentication_failed("Request date header is not a date."))?;
    let shown = String::from_utf8_lossy(text.as_bytes());
    if head.now.since(date) > MAX_SKEW {
        Err(authentication_failed(format!("Request date header too old: '{shown}'.")))
    } else if date.since(head.now) > MAX_SKEW {
        Err(authentication_failed(format!("Request date header too far in the future: '{shown}'.")))
    } else {
        Ok(())
    }
}

fn without_secondary(account: &str) -> &str {
    account.strip_suffix(SECONDARY).unwrap_or(account)
}

impl Message<'_> {
    /// Returns the string that a client signs.
    pub fn string_to_sign(&self) -> Result<Vec<u8>, Refusal> {
        Ok(self.assemble(&self.signed_headers()?, self.path, BareParameter::Name))
    }

    /// Returns every string that a client may have signed, the documented one first.
    fn accepted_strings(&self) -> Result<Vec<Vec<u8>>, Refusal> {
        self.check_unambiguous()?;
        let ordinal = self.signed_headers()?;
        let mut weighted = ordinal.clone();
        weighted.sort_by(|(a, _), (b, _)| order::weighted(a, b));
        let secondary_path = self.path.strip_prefix(&format!("/{}{SECONDARY}", self.account));
        let primary = secondary_path.map(|rest| format!("/{}{rest}", self.account));

        let mut strings = Vec::with_capacity(2);
        for path in [Some(self.path), primary.as_deref()].into_iter().flatten() {
            for bare in self.bare_forms() {
                strings.push(self.assemble(&ordinal, path, *bare));
                if weighted != ordinal {
                    strings.push(self.assemble(&weighted, path, *bare));
                }
            }
        }
        Ok(strings)
    }

    /// Refuses a query whose string to sign is also that of another query: `?snapshot:1=2` would be signed
    /// like `?snapshot=1:2`, `?a=1%0Acomp:x` like `?a=1&comp=x`, and `?a=x&a=y` like `?a=x,y`. No client
    /// sends such names or values, or repeats a parameter other than `include`.
    fn check_unambiguous(&self) -> Result<(), Refusal> {
        let parameters = self.query.parameters();
        let is_ambiguous = |parameter: &Parameter| {
            let further = parameter.value.split_once('\n').is_some_and(|(_, rest)| rest.contains(':'));
            further || parameter.name.is_empty() || parameter.name.contains([':', '\n'])
        };
        let is_repeated = |parameter: &Parameter| {
            parameter.name != LIST_PARAMETER && self.query.get_all(&parameter.name).nth(1).is_some()
        };
        let is_refused = |parameter: &Parameter| is_ambiguous(parameter) || is_repeated(parameter);
        match self.signs_parameters() && parameters.iter().any(is_refused) {
            true => Err(authentication_failed("A query parameter cannot be signed without ambiguity.")),
            false => Ok(()),
        }
    }

    /// Returns the forms in which parameters without `=` may be signed. As a value, such a parameter must be
    /// a plain word: with a line feed it would stand for more parameters, and the signature of another
    /// request would match this one.
    fn bare_forms(&self) -> &'static [BareParameter] {
        let is_plain_word =
            |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        let mut bare = self.query.parameters().iter().filter_map(|p| p.bare.as_deref()).peekable();
        match bare.peek().is_some() && bare.all(is_plain_word) {
            true => &[BareParameter::Name, BareParameter::Value],
            false => &[BareParameter::Name],
        }
    }

    fn assemble(&self, ms_headers: &[(&str, &[u8])], path: &str, bare: BareParameter) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        let mut line = |value: &[u8]| {
            out.extend_from_slice(value);
            out.push(b'\n');
        };
        if !(self.is_table() && self.scheme == Scheme::SharedKeyLite) {
            line(self.method.as_bytes());
        }
        for name in self.lines() {
            line(self.value(name));
        }
        for (name, value) in ms_headers {
            line(&[name.as_bytes(), b":", value].concat());
        }
        out.extend_from_slice(self.resource(path, bare).as_bytes());
        out
    }

    fn is_table(&self) -> bool {
        self.service == ServiceKind::Table
    }

    /// Returns whether every query parameter is signed, rather than only `comp`.
    fn signs_parameters(&self) -> bool {
        !self.is_table() && self.scheme == Scheme::SharedKey
    }

    /// Returns the headers with their own line.
    fn lines(&self) -> &'static [&'static str] {
        match (self.scheme, self.is_table()) {
            (Scheme::SharedKey, false) => LINES,
            (Scheme::SharedKey, true) | (Scheme::SharedKeyLite, false) => SHORT_LINES,
            (Scheme::SharedKeyLite, true) => DATE_LINE,
        }
    }

    fn value(&self, name: &str) -> &[u8] {
        let header = |name| self.headers.get(name).map_or(&b""[..], |value| value.as_bytes().trim_ascii());
        match name {
            "content-length" if header(name) == b"0" && self.version.at_least(2015, 2, 21) => b"",
            "date" if self.headers.contains_key(X_MS_DATE) => {
                if self.is_table() {
                    header(X_MS_DATE)
                } else {
                    b""
                }
            }
            _ => header(name),
        }
    }

    /// Returns the `x-ms-*` headers that are signed, in ordinal order.
    fn signed_headers(&self) -> Result<Vec<(&str, &[u8])>, Refusal> {
        let repeated = |name: &str| self.headers.get_all(name).iter().nth(1).is_some();
        if let Some(name) = self.lines().iter().find(|name| repeated(name)) {
            return Err(Refusal::invalid_header(name, "sent more than once"));
        }
        if self.is_table() {
            return Ok(Vec::new());
        }
        let mut signed = Vec::new();
        for name in self.headers.keys().map(|name| name.as_str()).filter(|name| name.starts_with("x-ms-")) {
            if repeated(name) {
                return Err(Refusal::invalid_header(name, "sent more than once"));
            }
            let value = self.value(name);
            if !value.is_empty() || self.version.at_least(2016, 5, 31) {
                signed.push((name, value));
            }
        }
        signed.sort_unstable();
        Ok(signed)
    }

    fn resource(&self, path: &str, bare: BareParameter) -> String {
        let mut resource = format!("/{}{}", self.account, if path.is_empty() { "/" } else { path });
        if !self.signs_parameters() {
            if let Some(comp) = self.query.get("comp") {
                resource.push_str("?comp=");
                resource.push_str(comp);
            }
            return resource;
        }
        let mut parameters = BTreeMap::<&str, Vec<&str>>::new();
        for parameter in self.query.parameters() {
            let (name, value) = match (bare, &parameter.bare) {
                (BareParameter::Value, Some(text)) => ("", text.as_str()),
                _ => (parameter.name.as_str(), parameter.value.as_str()),
            };
            parameters.entry(name).or_default().push(value);
        }
        for (name, mut values) in parameters {
            values.sort_unstable();
            resource.push('\n');
            resource.push_str(name);
            resource.push(':');
            resource.push_str(&values.join(","));
        }
        resource
    }
}
