//! The account that requests address, with its key and endpoints, from a connection string or a URL.

use std::collections::BTreeMap;

use http::Uri;
use lazuli_account::{DEVELOPMENT_ACCOUNT, development_key};
use lazuli_protocol::{Key, ServiceKind};

const DEFAULT_SUFFIX: &str = "core.windows.net";
const DEVELOPMENT_HOST: &str = "127.0.0.1";
const DEVELOPMENT_PORT: u16 = 10_000;

/// Why a connection string or an endpoint is invalid. Never repeats a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// A part is not `Name=value`.
    #[error("a connection string is Name=value;Name=value;…")]
    Form,
    /// A required part is missing.
    #[error("the connection string has no {0}")]
    Missing(&'static str),
    /// The key is not Base64.
    #[error("the account key is not Base64")]
    Key,
    /// An endpoint is not a URL.
    #[error("{0} is not an http or https URL")]
    Url(String),
}

/// An account with its key and the endpoints of its services.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageAccount {
    /// The name of the account.
    pub name: String,
    /// The key that signs requests.
    pub key: Key,
    endpoints: BTreeMap<ServiceKind, Endpoint>,
}

/// The endpoint of one service of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether to speak TLS.
    pub secure: bool,
    /// The Host header: the host, and the port unless it is the scheme's default.
    pub authority: String,
    /// The host, for TLS.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The prefix of every path: `/ACCOUNT` if the host does not name the account, else empty.
    pub path: String,
}

impl StorageAccount {
    /// Returns the development account on its default ports.
    pub fn development() -> Self {
        let ports = ServiceKind::ALL.into_iter().zip(DEVELOPMENT_PORT..);
        Self::development_on(DEVELOPMENT_HOST, ports)
    }

    /// Returns the development account with these services.
    pub fn development_on(host: &str, ports: impl IntoIterator<Item = (ServiceKind, u16)>) -> Self {
        let endpoint = |port| Endpoint {
            secure: false,
            authority: format!("{host}:{port}"),
            host: host.into(),
            port,
            path: format!("/{DEVELOPMENT_ACCOUNT}"),
        };
        let endpoints = ports.into_iter().map(|(service, port)| (service, endpoint(port))).collect();
        Self { name: DEVELOPMENT_ACCOUNT.into(), key: development_key(), endpoints }
    }

    /// Parses a connection string.
    pub fn from_connection_string(text: &str) -> Result<Self, AccountError> {
        let mut fields = BTreeMap::new();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or(AccountError::Form)?;
            fields.insert(name.trim().to_ascii_lowercase(), value.trim());
        }
        if fields.get("usedevelopmentstorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(Self::development());
        }
        let name = *fields.get("accountname").ok_or(AccountError::Missing("AccountName"))?;
        let key = *fields.get("accountkey").ok_or(AccountError::Missing("AccountKey"))?;
        let scheme = fields.get("defaultendpointsprotocol").copied().unwrap_or("https");
        let suffix = fields.get("endpointsuffix").copied();
        // Without a suffix, named endpoints are the only ones. If none is named, all have the default suffix.
        let named = |service: ServiceKind| fields.get(format!("{}endpoint", service.name()).as_str());
        let derived = suffix.or_else(|| {
            let none = ServiceKind::ALL.into_iter().all(|service| named(service).is_none());
            none.then_some(DEFAULT_SUFFIX)
        });
        let mut endpoints = BTreeMap::new();
        for service in ServiceKind::ALL {
            let url = match (named(service), derived) {
                (Some(url), _) => (*url).to_owned(),
                (None, Some(suffix)) => format!("{scheme}://{name}.{}.{suffix}", service.name()),
                (None, None) => continue,
            };
            endpoints.insert(service, Endpoint::parse(&url)?);
        }
        let key = Key::from_base64(key).ok_or(AccountError::Key)?;
        Ok(Self { name: name.into(), key, endpoints })
    }

    /// Replaces all endpoints by this one.
    pub fn only(mut self, service: ServiceKind, endpoint: Endpoint) -> Self {
        self.endpoints = BTreeMap::from([(service, endpoint)]);
        self
    }

    /// Returns the endpoint of a service, if the account has the service.
    pub fn endpoint(&self, service: ServiceKind) -> Option<&Endpoint> {
        self.endpoints.get(&service)
    }
}

impl Endpoint {
    /// Parses the URL of an endpoint.
    pub fn parse(url: &str) -> Result<Self, AccountError> {
        let refused = || AccountError::Url(url.into());
        let uri: Uri = url.parse().map_err(|_| refused())?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refused()),
        };
        let authority =
            uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(refused)?;
        if authority.host().is_empty() || uri.query().is_some() {
            return Err(refused());
        }
        Ok(Self {
            secure,
            authority: authority.to_string(),
            host: authority.host().trim_matches(['[', ']']).into(),
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            path: uri.path().trim_end_matches('/').into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "c2VjcmV0";

    fn urls(account: &StorageAccount) -> Vec<String> {
        let url =
            |e: &Endpoint| format!("{}://{}{}", if e.secure { "https" } else { "http" }, e.authority, e.path);
        account.endpoints.values().map(url).collect()
    }

    #[test]
    fn endpoints_are_named_or_derived_from_the_suffix() {
        for (text, expected) in [
            (
                format!("DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={KEY}"),
                vec![
                    "https://acme.blob.core.windows.net",
                    "https://acme.queue.core.windows.net",
                    "https://acme.table.core.windows.net",
                    "https://acme.file.core.windows.net",
                ],
            ),
            (
                format!("accountname=acme; AccountKey={KEY};BlobEndpoint=http://localhost:10000/acme/;"),
                vec!["http://localhost:10000/acme"],
            ),
            (
                format!(
                    "AccountName=acme;AccountKey={KEY};EndpointSuffix=example.com;\
                     DefaultEndpointsProtocol=http;TableEndpoint=https://[::1]:1/t"
                ),
                vec![
                    "http://acme.blob.example.com",
                    "http://acme.queue.example.com",
                    "https://[::1]:1/t",
                    "http://acme.file.example.com",
                ],
            ),
        ] {
            let account = StorageAccount::from_connection_string(&text).unwrap();
            assert_eq!(account.name, "acme");
            assert_eq!(account.key, Key::from_bytes(b"secret".to_vec()));
            assert_eq!(urls(&account), expected, "{text}");
        }
    }

    #[test]
    fn development_account_has_the_default_ports() {
        let account = StorageAccount::from_connection_string("UseDevelopmentStorage=true").unwrap();
        assert_eq!(account, StorageAccount::development());
        let expected = (10_000..10_004).map(|port| format!("http://127.0.0.1:{port}/devstoreaccount1"));
        assert_eq!(urls(&account), expected.collect::<Vec<_>>());
    }

    #[test]
    fn keys_may_contain_equals_signs() {
        let text = "AccountName=acme;AccountKey=c2VjcmV0MQ==";
        let account = StorageAccount::from_connection_string(text).unwrap();
        assert_eq!(account.key.bytes(), b"secret1");
    }

    #[test]
    fn errors_name_the_missing_or_malformed_part_and_never_repeat_a_key() {
        for (text, expected) in [
            ("", AccountError::Missing("AccountName")),
            ("nonsense", AccountError::Form),
            ("AccountName=acme", AccountError::Missing("AccountKey")),
            ("AccountName=acme;SharedAccessSignature=sv=1", AccountError::Missing("AccountKey")),
            ("AccountName=acme;AccountKey=not*base64", AccountError::Key),
            ("AccountName=a;AccountKey=;BlobEndpoint=ftp://x", AccountError::Url("ftp://x".into())),
        ] {
            let refused = StorageAccount::from_connection_string(text).unwrap_err();
            assert_eq!(refused, expected, "{text}");
            assert!(!refused.to_string().contains("not*base64"));
        }
    }

    #[test]
    fn endpoints_are_http_or_https_urls() {
        for (url, host, port, path) in [
            ("http://127.0.0.1:10000/devstoreaccount1", "127.0.0.1", 10_000, "/devstoreaccount1"),
            ("https://acme.blob.core.windows.net/", "acme.blob.core.windows.net", 443, ""),
            ("http://[::1]/a", "::1", 80, "/a"),
        ] {
            let endpoint = Endpoint::parse(url).unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.port, endpoint.path.as_str()), (host, port, path));
        }
        for url in ["127.0.0.1:10000", "/acme", "ftp://x/", "http://", "http://user@x/", "http://x/?a=b", ""]
        {
            assert!(Endpoint::parse(url).is_err(), "{url}");
        }
    }
}
