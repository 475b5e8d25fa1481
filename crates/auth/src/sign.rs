//! The client side: signs requests with an account key, and creates shared access signatures.
//!
//! Used by `lazuli bench`, `lazuli sas` and tests. It shares the strings to sign with the server side, so
//! tests of the server must also compare with signatures from other implementations.

use http::HeaderValue;
use lazuli_protocol::{Key, Refusal, Version};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::mac;
use crate::sas::string_to_sign::{self, Bound};
use crate::shared_key::Message;

pub use crate::sas::string_to_sign::Resource;

const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns the Authorization header of a request.
pub fn authorization(message: &Message<'_>, key: &Key) -> Result<HeaderValue, Refusal> {
    let signature = mac::sign(key.bytes(), &message.string_to_sign()?);
    let value = format!("{} {}:{signature}", message.scheme.name(), message.account);
    HeaderValue::try_from(value).map_err(|_| Refusal::invalid_header("authorization", message.account))
}

/// Returns an account SAS as a query string: the given fields (`sv`, `ss`, `srt`, `sp`, `se`, …) and `sig`.
pub fn account_sas(account: &str, key: &Key, fields: &[(&str, &str)]) -> String {
    let string = string_to_sign::account(account, version(fields), &|name| field(fields, name));
    query(fields, &mac::sign(key.bytes(), string.as_bytes()))
}

/// Returns a service SAS as a query string: the given fields (`sv`, `sr`, `sp`, `se`, …) and `sig`.
pub fn service_sas(resource: &Resource<'_>, key: &Key, fields: &[(&str, &str)]) -> String {
    let string = string_to_sign::service(resource, version(fields), &|name| field(fields, name));
    query(fields, &mac::sign(key.bytes(), string.as_bytes()))
}

/// Returns a user delegation SAS as a query string: the given fields (`sv`, `sr`, `sp`, `se`, `skoid`, …) and
/// `sig`. The key is the value of the user delegation key.
pub fn user_delegation_sas(resource: &Resource<'_>, key: &Key, fields: &[(&str, &str)]) -> String {
    let field = |name: &str| field(fields, name);
    let strings = string_to_sign::user_delegation(resource, version(fields), &Bound::default(), &field);
    let string = strings.first().map(String::as_str).unwrap_or_default();
    query(fields, &mac::sign(key.bytes(), string.as_bytes()))
}

fn field<'a>(fields: &[(&str, &'a str)], name: &str) -> &'a str {
    fields.iter().find(|(n, _)| *n == name).map_or("", |(_, value)| value)
}

fn version(fields: &[(&str, &str)]) -> Version {
    Version::parse(field(fields, "sv")).unwrap_or(Version::OLDEST)
}

fn query(fields: &[(&str, &str)], signature: &str) -> String {
    let signed = [("sig", signature)];
    let pairs = fields
        .iter()
        .chain(&signed)
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, RESERVED)));
    pairs.collect::<Vec<_>>().join("&")
}
