//! The value of `x-ms-copy-source`: a URL of up to 2 KiB.

use std::net::IpAddr;

use http::Uri;
use lazuli_protocol::address::Address;
use lazuli_protocol::{Query, Refusal, ServiceKind, Version};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Maximum length of a source's URL in bytes.
const MAX_URL: usize = 2 << 10;
/// Characters that clients leave unencoded in URLs although they should be encoded.
const STRAY_CHARACTERS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The suffixes of the hosts of accounts in the public cloud and in the sovereign clouds.
const CLOUD_SUFFIXES: [&str; 4] =
    ["core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net", "core.cloudapi.de"];
/// The label of Data Lake hosts.
const DATA_LAKE: &str = ".dfs.";

/// The URL of a copy's source.
#[derive(Clone, Debug)]
pub struct SourceUrl {
    /// The whole URL.
    pub uri: Uri,
    /// The query of the URL.
    pub query: Query,
}

impl SourceUrl {
    /// Parses a URL. In the oldest versions a source is a path in this server, `/account/container/blob`.
    pub fn parse(text: &str, endpoint: &str, version: Version) -> Result<Self, Refusal> {
        let invalid = || Refusal::invalid_header(crate::COPY_SOURCE, text);
        if text.len() > MAX_URL {
            return Err(invalid());
        }
        let text = encode_stray_characters(text);
        let absolute = match text.starts_with('/') && !version.at_least(2012, 2, 12) {
            true => format!("{}{text}", endpoint_root(endpoint).ok_or_else(invalid)?),
            false => text,
        };
        let uri: Uri = absolute.parse().map_err(|_| invalid())?;
        let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_host = uri.authority().is_some_and(|a| !a.host().is_empty() && !a.as_str().contains('@'));
        if !is_web || !has_host {
            return Err(invalid());
        }
        let query = Query::parse(uri.query().unwrap_or_default()).map_err(|_| invalid())?;
        Ok(Self { uri, query })
    }

    /// Returns whether the URL uses HTTPS.
    pub fn is_secure(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// Returns the service of this server that the source belongs to, or `None` if the source is remote. The
    /// client reached the service `own` at `endpoint`. Other services have other ports of the same host.
    pub fn service(
        &self,
        own: ServiceKind,
        endpoint: &str,
        suffixes: &[String],
        at_port: impl FnOnce(u16) -> Option<ServiceKind>,
    ) -> Option<ServiceKind> {
        let endpoint: Uri = endpoint.parse().ok()?;
        let (host, own_host) = (host(&self.uri)?, host(&endpoint)?);
        // A suffix without an account is an ordinary host. One of its ports may be that of this server.
        let has_suffix = suffixes.iter().any(|suffix| {
            let account = host.strip_suffix(suffix.as_str()).and_then(|before| before.strip_suffix('.'));
            account.is_some_and(|account| !account.is_empty())
        });
        // If the endpoint's path names the account, its host is the name of a machine, even if it has the
        // form of an account's.
        let is_machine = endpoint.path() != "/";
        let own_zone = if is_machine { &own_host } else { machine_name(&own_host) };
        let is_our_host =
            host == own_host || machine_name(&host) == own_zone || is_loopback(machine_name(&host));
        let service = match port(&self.uri) {
            _ if has_suffix => own,
            port if is_our_host && port == self::port(&endpoint) => own,
            port if is_our_host => at_port(port)?,
            _ => return None,
        };
        if is_machine && host == own_host {
            return Some(service);
        }
        let named = ServiceKind::ALL.into_iter().find(|kind| without_account(&host, *kind).is_some());
        Some(named.unwrap_or(service))
    }

    /// Returns the service that the URL names with the host of that account in the cloud, such as
    /// `https://ACCOUNT.blob.core.windows.net/`. Clients that know only the name of their account send such
    /// URLs. A Data Lake host names the blob service.
    pub fn cloud_service(&self, account: &str) -> Option<ServiceKind> {
        let host = host(&self.uri)?;
        let named = CLOUD_SUFFIXES.iter().find_map(|suffix| host.strip_suffix(suffix)?.strip_suffix('.'))?;
        let (named_account, service) = named.split_once('.')?;
        let is_default_port = matches!((self.is_secure(), port(&self.uri)), (true, 443) | (false, 80));
        if named_account != account || !is_default_port {
            return None;
        }
        match service {
            "dfs" => Some(ServiceKind::Blob),
            name => ServiceKind::ALL.into_iter().find(|kind| kind.name() == name),
        }
    }

    /// Returns the address of the source in this service, if the account in its host exists.
    pub fn address(&self, service: ServiceKind, suffixes: &[String]) -> Result<Address, Refusal> {
        Address::of_source(service, &self.host_of_address(), self.uri.path(), &self.query, suffixes)
    }

    /// Returns the address of the source if its path names the account.
    pub(crate) fn address_in_path(&self, service: ServiceKind) -> Result<Address, Refusal> {
        Address::of_source(service, "", self.uri.path(), &self.query, &[])
    }

    /// Returns the host by which the address of the source is parsed. The Data Lake host of an account names
    /// the blobs of the account.
    fn host_of_address(&self) -> String {
        let host = self.host();
        let lower = host.to_ascii_lowercase();
        let is_cloud = CLOUD_SUFFIXES.iter().any(|suffix| lower.ends_with(suffix));
        if is_cloud { lower.replacen(DATA_LAKE, ".blob.", 1) } else { host.to_owned() }
    }

    /// Returns the host with the port.
    pub(crate) fn host(&self) -> &str {
        self.uri.authority().map_or("", |authority| authority.as_str())
    }

    /// Returns the URL without credentials, as it may be shown to all readers of the target.
    pub fn without_credentials(&self) -> String {
        let query = self.uri.query().unwrap_or_default();
        let keeps: fn(&str) -> bool = if self.query.contains("sig") {
            |name| matches!(name, "snapshot" | "versionid" | "sharesnapshot")
        } else if self.query.iter().any(|(name, _)| name.contains("signature") || name.contains("token")) {
            |_| false
        } else {
            |_| true
        };
        let kept: Vec<_> = query
            .split('&')
            .filter(|part| {
                !part.is_empty() && keeps(&part.split('=').next().unwrap_or_default().to_ascii_lowercase())
            })
            .collect();
        let whole = self.uri.to_string();
        let base = whole.split('?').next().unwrap_or_default();
        if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) }
    }
}

/// Encodes the characters that clients leave unencoded in URLs although they should be encoded, such as
/// spaces.
pub fn encode_stray_characters(url: &str) -> String {
    utf8_percent_encode(url, STRAY_CHARACTERS).to_string()
}

/// Returns the scheme and host of an endpoint.
fn endpoint_root(endpoint: &str) -> Option<String> {
    let uri: Uri = endpoint.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}

fn host(uri: &Uri) -> Option<String> {
    Some(uri.host()?.to_ascii_lowercase())
}

fn port(uri: &Uri) -> u16 {
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    uri.port_u16().unwrap_or(default)
}

/// Returns the host after `account.service.`, if it has that form.
fn without_account(host: &str, service: ServiceKind) -> Option<&str> {
    host.split_once('.')?.1.strip_prefix(service.name())?.strip_prefix('.')
}

/// Returns the host without a leading account and service.
fn machine_name(host: &str) -> &str {
    ServiceKind::ALL.into_iter().find_map(|service| without_account(host, service)).unwrap_or(host)
}

/// Returns whether a host is the loopback address or `localhost`.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazuli_protocol::ErrorCode;

    const NEW: Version = Version::new(2025, 1, 5);

    fn parse(text: &str) -> Result<SourceUrl, ErrorCode> {
        SourceUrl::parse(text, "http://127.0.0.1:10000/dev1", NEW).map_err(|refusal| refusal.code())
    }

    #[test]
    fn host_and_port_decide_whether_a_source_is_in_this_server() {
        use ServiceKind::{Blob, File, Queue};
        let path = "http://127.0.0.1:10000/dev1";
        let named = "https://store.example/dev1";
        let host_style = "https://dev1.blob.store.example";
        let suffix = "http://mine.example:10000/dev1";
        let machine = "http://dev2.blob.svc.cluster.local:10000/dev1";
        for (endpoint, source, service) in [
            (path, "http://127.0.0.1:10000/dev2/c/b", Some(Blob)),
            (path, "http://localhost:10000/dev2/c/b", Some(Blob)),
            (path, "http://[::1]:10000/dev2/c/b", Some(Blob)),
            (path, "http://dev2.blob.localhost:10000/c/b", Some(Blob)),
            (path, "http://dev2.file.localhost:10000/c/b", Some(File)),
            (path, "http://dev2.queue.localhost:10000/c/b", Some(Queue)),
            (path, "http://127.0.0.1:10001/dev2/c/b", Some(Queue)),
            (path, "http://localhost:10003/dev2/c/b", Some(File)),
            (path, "http://dev2.file.localhost:10003/c/b", Some(File)),
            (path, "http://127.0.0.1:10002/dev2/c/b", None),
            (path, "http://127.0.0.2:10003/dev2/c/b", Some(File)),
            (named, "https://store.example:10003/dev2/c/b", Some(File)),
            (named, "https://other.example:10003/dev2/c/b", None),
            (path, "http://127.0.0.1/dev2/c/b", None),
            (path, "http://store.example:10000/dev2/c/b", None),
            (named, "https://STORE.example/dev2/c/b", Some(Blob)),
            (named, "https://store.example:443/dev2/c/b", Some(Blob)),
            (named, "http://store.example:443/dev2/c/b", Some(Blob)),
            (named, "http://store.example/dev2/c/b", None),
            (named, "https://dev2.blob.store.example/c/b", Some(Blob)),
            (host_style, "https://dev2.blob.store.example/c/b", Some(Blob)),
            (host_style, "https://dev2.file.store.example/c/b", Some(File)),
            (host_style, "https://dev2.blob.core.windows.net/c/b", None),
            (host_style, "https://dev2.mine.example/c/b", Some(Blob)),
            (host_style, "http://dev2.mine.example:8080/c/b", Some(Blob)),
            (host_style, "https://notmine.example/c/b", None),
            (host_style, "https://mine.example/dev2/c/b", None),
            (suffix, "http://mine.example:10000/dev2/c/b", Some(Blob)),
            (suffix, "http://mine.example:10003/dev2/c/b", Some(File)),
            (suffix, "http://mine.example:8080/dev2/c/b", None),
            (suffix, "http://dev2.mine.example:8080/c/b", Some(Blob)),
            (host_style, "https://dev2.other.example/c/b", None),
            (host_style, "https://dev2.blob.store.example.net/c/b", None),
            (host_style, "https://dev2.blob.other.store.example/c/b", None),
            (named, "https://dev2.store.example/c/b", None),
            (machine, "http://dev2.blob.svc.cluster.local:10000/dev2/c/b", Some(Blob)),
            (machine, "http://dev2.blob.svc.cluster.local:10003/dev2/c/b", Some(File)),
            (machine, "http://dev1.blob.svc.cluster.local:10000/dev1/c/b", None),
            (machine, "http://svc.cluster.local:10000/dev1/c/b", None),
        ] {
            let ports = |port| [(10_001, Queue), (10_003, File)].into_iter().find(|at| at.0 == port);
            let suffixes = ["mine.example".to_owned()];
            let found =
                parse(source).unwrap().service(Blob, endpoint, &suffixes, |port| Some(ports(port)?.1));
            assert_eq!(found, service, "{endpoint} {source}");
        }
    }

    #[test]
    fn cloud_host_of_the_own_account_names_a_service() {
        use ServiceKind::{Blob, File, Queue};
        for (source, service) in [
            ("https://dev1.blob.core.windows.net/c/b", Some(Blob)),
            ("https://DEV1.Blob.Core.Windows.Net/c/b", Some(Blob)),
            ("http://dev1.file.core.windows.net/s/f", Some(File)),
            ("https://dev1.queue.core.windows.net/q", Some(Queue)),
            ("https://dev1.dfs.core.windows.net/c/b", Some(Blob)),
            ("https://dev1.blob.core.chinacloudapi.cn/c/b", Some(Blob)),
            ("https://dev1.blob.core.usgovcloudapi.net/c/b", Some(Blob)),
            ("https://dev1.blob.core.cloudapi.de/c/b", Some(Blob)),
            ("https://dev1.blob.core.windows.net:443/c/b", Some(Blob)),
            ("https://dev1.blob.core.windows.net:8443/c/b", None),
            ("https://dev2.blob.core.windows.net/c/b", None),
            ("https://dev1.blob.core.windows.net.evil.example/c/b", None),
            ("https://dev1.blob.evilcore.windows.net/c/b", None),
            ("https://dev1.evil.blob.core.windows.net/c/b", None),
            ("https://dev1.web.core.windows.net/c/b", None),
            ("https://core.windows.net/dev1/c/b", None),
        ] {
            assert_eq!(parse(source).unwrap().cloud_service("dev1"), service, "{source}");
        }
        let address = parse("https://dev1.dfs.core.windows.net/c/d/b").unwrap().address(Blob, &[]).unwrap();
        assert_eq!((&*address.account, &*address.container, &*address.object), ("dev1", "c", "d/b"));
    }

    #[test]
    fn invalid_urls_are_refused() {
        let long = format!("http://h/{}", "a".repeat(MAX_URL));
        for text in [
            "",
            "c/b",
            "/dev1/c/b",
            "ftp://h/x",
            "http://",
            "http:///x",
            "http://u:p@h/x",
            "http://h/?a=%zz",
            &long,
        ] {
            assert_eq!(parse(text).unwrap_err(), ErrorCode::InvalidHeaderValue, "{text}");
        }
        let longest = format!("http://h/{}", "a".repeat(MAX_URL - 9));
        assert!(parse(&longest).is_ok());
    }

    #[test]
    fn names_may_be_encoded_or_not() {
        for source in ["http://127.0.0.1:10000/dev1/c/a%20%C3%A9", "http://127.0.0.1:10000/dev1/c/a é"] {
            assert_eq!(parse(source).unwrap().address(ServiceKind::Blob, &[]).unwrap().object, "a é");
        }
    }

    #[test]
    fn encoded_slashes_separate_names_and_names_are_decoded_once() {
        for (path, container, object) in [
            ("dev1/docs%2Fd%20%C3%A4%2Ff.txt", "docs", "d ä/f.txt"),
            ("dev1%2fdocs%2fd/f", "docs", "d/f"),
            ("dev1/docs%252Fd", "$root", "docs%2Fd"),
            ("dev1/docs/d%252F..%252Ff", "docs", "d%2F..%2Ff"),
            ("dev1/docs%2F%2E%2E%2Fother%2Ff", "docs", "../other/f"),
            ("dev1/docs/%2Ff", "docs", "/f"),
        ] {
            let url = parse(&format!("http://127.0.0.1:10000/{path}")).unwrap();
            for address in [url.address(ServiceKind::Blob, &[]), url.address_in_path(ServiceKind::Blob)] {
                let address = address.unwrap();
                let found = (&*address.account, &*address.container, &*address.object);
                assert_eq!(found, ("dev1", container, object), "{path}");
            }
        }
    }

    #[test]
    fn the_oldest_versions_name_sources_by_path() {
        let old = Version::new(2011, 8, 18);
        let url = SourceUrl::parse("/dev2/c/b?snapshot=x", "http://h:1/dev1", old).unwrap();
        assert_eq!(url.uri.to_string(), "http://h:1/dev2/c/b?snapshot=x");
    }

    #[test]
    fn shown_urls_have_no_credentials() {
        for (source, without_credentials) in [
            ("http://h/c/b", "http://h/c/b"),
            ("http://h/c/b?snapshot=1&x=2", "http://h/c/b?snapshot=1&x=2"),
            ("http://h/c/b?snapshot=1&sv=2&sig=abc%3D", "http://h/c/b?snapshot=1"),
            ("http://h/c/b?SIG=abc&sv=1", "http://h/c/b"),
            ("http://h/c/b?X-Amz-Signature=abc&X-Amz-Date=1", "http://h/c/b"),
        ] {
            assert_eq!(parse(source).unwrap().without_credentials(), without_credentials);
        }
    }
}
