//! The address of a request: account, container and object, from its host and path.
//!
//! Path style is `http://host:port/account/container/object`, host style
//! `http://account.blob.host/container/object`. Names are percent-decoded and not normalized: `a//b` and
//! `./x` are blob names. The one exception is a backslash in a blob name, which becomes a slash. [`names`]
//! decides whether a name is allowed. Accounts and containers cannot be empty, so empty segments in front of
//! them are skipped: clients build `//container/object` for an endpoint that ends with a slash, and Java for
//! any host with a port. Clients sign the path as they send it.
//!
//! A static website is at `http://account.web.host/path`, or at `http://account.z1.web.host/path` as in the
//! cloud service, on the port of the blob service. Browsers and curl resolve `account.web.localhost` to this
//! machine without DNS.

use std::net::IpAddr;

use crate::error::{ErrorCode, Refusal};
use crate::kind::ServiceKind;
use crate::names;
use crate::query::{self, Query};

const SECONDARY: &str = "-secondary";

/// The resource that a request addresses.
///
/// ```
/// # use lazuli_protocol::{Address, Query, Refusal, ServiceKind};
/// let query = Query::default();
/// let (host, path) = ("127.0.0.1:10000", "/devstoreaccount1/photos/2026/cat%20%231.jpg");
/// let address = Address::parse(ServiceKind::Blob, host, path, &query, &[])?;
/// assert_eq!(address.account, "devstoreaccount1");
/// assert_eq!(address.container, "photos");
/// assert_eq!(address.object, "2026/cat #1.jpg");
///
/// let (host, path) = ("photos.table.example.com", "/sizes(PartitionKey='a',RowKey='b')");
/// let address = Address::parse(ServiceKind::Table, host, path, &query, &[])?;
/// assert_eq!((address.account.as_str(), address.container.as_str()), ("photos", "sizes"));
/// assert_eq!(address.object, "(PartitionKey='a',RowKey='b')");
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The account, without `-secondary`. The account need not exist, and the name need not be valid.
    pub account: String,
    /// Container, queue, table or share; empty at service level.
    pub container: String,
    /// The rest of the path: blob name, file path or message. For tables, the part after the name: `('t')` or
    /// `(PartitionKey='p',RowKey='r')`.
    pub object: String,
    /// Where the request names the account.
    pub style: Style,
    /// The request was sent to the secondary endpoint.
    pub secondary: bool,
    /// The request was sent to the account's static website. The container is then that of the website.
    pub website: bool,
    /// The path as sent, which Shared Key signs. In path style it includes the account.
    pub raw_path: String,
}

/// Where a request names its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// In the path.
    Path,
    /// In the host.
    Host,
}

impl Address {
    /// Parses an address.
    ///
    /// `host` is the `Host` header, `path` the path as sent. A host names an account if it has the form
    /// `account.service.anything`, or is `account` followed by one of `suffixes`; otherwise the path names
    /// it. The query is needed because on the blob service `/name` without `restype` is a blob in the root
    /// container.
    pub fn parse(
        service: ServiceKind,
        host: &str,
        path: &str,
        query: &Query,
        suffixes: &[String],
    ) -> Result<Self, Refusal> {
        let rest = path.strip_prefix('/').ok_or(ErrorCode::InvalidUri)?;
        if let Some(account) = website_in_host(service, host) {
            let account = account.strip_suffix(SECONDARY).unwrap_or(&account).to_owned();
            let (container, object) = (names::WEB_CONTAINER.to_owned(), blob_name(decode(rest)?));
            let (style, raw_path) = (Style::Host, path.to_owned());
            return Ok(Self { account, container, object, style, secondary: false, website: true, raw_path });
        }
        let (style, account, rest) = match account_in_host(service, host, suffixes) {
            Some(account) => (Style::Host, account, rest),
            None => {
                let rest = skip_empty_segments(rest);
                let (account, rest) = rest.split_once('/').unwrap_or((rest, ""));
                (Style::Path, decode(account)?, rest)
            }
        };
        let (account, secondary) = match account.strip_suffix(SECONDARY) {
            Some(account) => (account.to_owned(), true),
            None => (account, false),
        };
        let raw_path = path.to_owned();
        let (container, object) = (String::new(), String::new());
        let whole = Self { account, container, object, style, secondary, website: false, raw_path };
        whole.with_rest(service, rest, query)
    }

    /// Parses the address of a source: the URL of a blob or file in a header. Some clients write every slash
    /// of its path as
    /// `%2F`, so `%2F` separates names, too. Everything else is decoded once, as in [`Address::parse`].
    pub fn of_source(
        service: ServiceKind,
        host: &str,
        path: &str,
        query: &Query,
        suffixes: &[String],
    ) -> Result<Self, Refusal> {
        Self::parse(service, host, &path.replace("%2F", "/").replace("%2f", "/"), query, suffixes)
    }

    /// Parses the address of a sub-request in a batch with this address. A sub-request has no host of its
    /// own. Path-style clients disagree on whether its path begins with the account.
    pub fn sub_request(&self, service: ServiceKind, path: &str, query: &Query) -> Result<Self, Refusal> {
        let rest = path.strip_prefix('/').ok_or(ErrorCode::InvalidUri)?;
        let after_account = skip_empty_segments(rest).split_once('/').filter(|(first, _)| {
            let name = first.strip_suffix(SECONDARY).unwrap_or(first);
            self.style == Style::Path && name == self.account
        });
        let (style, rest) = match after_account {
            Some((_, rest)) => (Style::Path, rest),
            None => (Style::Host, rest),
        };
        Self { style, raw_path: path.to_owned(), ..self.clone() }.with_rest(service, rest, query)
    }

    /// Parses the rest of the path after the account.
    fn with_rest(self, service: ServiceKind, rest: &str, query: &Query) -> Result<Self, Refusal> {
        let (mut container, mut object) = split(service, skip_empty_segments(rest))?;
        let unnamed = container.is_empty() && !object.is_empty(); // the key of a table without a name
        if self.account.is_empty() || unnamed {
            return Err(Refusal::new(ErrorCode::InvalidUri));
        }
        let in_root = service == ServiceKind::Blob
            && object.is_empty()
            && query.get("restype").is_none_or(str::is_empty);
        if in_root && !container.is_empty() {
            object = std::mem::replace(&mut container, names::ROOT_CONTAINER.to_owned());
        }
        if service == ServiceKind::Blob {
            object = blob_name(object);
        }
        Ok(Self { container, object, ..self })
    }

    /// Returns the service's URL as the client addressed it, without a trailing slash: for listings and
    /// links.
    pub fn endpoint(&self, scheme: &str, host: &str) -> String {
        match self.style {
            Style::Host => format!("{scheme}://{host}"),
            Style::Path => {
                let secondary = if self.secondary { SECONDARY } else { "" };
                format!("{scheme}://{host}/{}{secondary}", self.account)
            }
        }
    }
}

/// Removes empty segments at the start of a path.
fn skip_empty_segments(rest: &str) -> &str {
    rest.trim_start_matches('/')
}

/// Splits a path after the account into container and object.
fn split(service: ServiceKind, rest: &str) -> Result<(String, String), Refusal> {
    if service == ServiceKind::Table {
        // Keys may contain slashes, so look for the parenthesis first.
        let rest = decode(rest)?;
        let end = rest.find(['(', '/']).unwrap_or(rest.len());
        let (table, object) = rest.split_at(end);
        return Ok((table.to_owned(), object.strip_prefix('/').unwrap_or(object).to_owned()));
    }
    let (container, object) = rest.split_once('/').unwrap_or((rest, ""));
    Ok((decode(container)?, decode(object)?))
}

/// Returns the name of the blob that is addressed with `sent`.
fn blob_name(sent: String) -> String {
    if sent.contains('\\') { sent.replace('\\', "/") } else { sent }
}

/// Returns the blob name as it was sent at the end of a path, decoded, if it differs from the blob's name.
/// Clients may have signed it.
pub fn name_as_sent(path: &str, name: &str) -> Option<String> {
    if !path.contains('\\') && !path.contains("%5") {
        return None;
    }
    let mut path = query::decode(path)?;
    let sent = path.split_off(path.len().checked_sub(name.len()).filter(|at| path.is_char_boundary(*at))?);
    (sent != name && sent.replace('\\', "/") == name).then_some(sent)
}

fn decode(text: &str) -> Result<String, Refusal> {
    query::decode(text).ok_or_else(|| Refusal::new(ErrorCode::RequestUrlFailedToParse))
}

/// Returns the account that a host names, also if the host is that of a website. The caller has to check that
/// the account exists. If it does not, but [the one in the path](account_of_path) does, the host is only the
/// name of a machine, such as `lazuli.web.svc.cluster.local`, and the caller passes an empty host to
/// [`Address::parse`].
pub fn account_of_host(service: ServiceKind, host: &str, suffixes: &[String]) -> Option<String> {
    let account = website_in_host(service, host).or_else(|| account_in_host(service, host, suffixes))?;
    Some(account.strip_suffix(SECONDARY).unwrap_or(&account).to_owned())
}

/// Returns the account that a path names if the host names none.
pub fn account_of_path(path: &str) -> Option<String> {
    let first = skip_empty_segments(path.strip_prefix('/')?).split('/').next()?;
    let account = query::decode(first)?;
    let account = account.strip_suffix(SECONDARY).unwrap_or(&account);
    names::is_account(account).then(|| account.to_owned())
}

/// Returns the account that a host names, possibly with `-secondary`.
fn account_in_host(service: ServiceKind, host: &str, suffixes: &[String]) -> Option<String> {
    let name = host_name(host);
    if name.starts_with('[') || name.parse::<IpAddr>().is_ok() {
        return None;
    }
    let before_suffix = suffixes
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix.as_str())?.strip_suffix('.'))
        .filter(|account| !account.contains('.'));
    let before_service = || {
        let (account, rest) = name.split_once('.')?;
        (rest.split('.').next() == Some(service.name())).then_some(account)
    };
    before_suffix
        .or_else(before_service)
        .filter(|account| names::is_account(account.strip_suffix(SECONDARY).unwrap_or(account)))
        .map(str::to_owned)
}

/// Returns the account whose static website a host is.
fn website_in_host(service: ServiceKind, host: &str) -> Option<String> {
    let name = host_name(host);
    let mut labels = name.split('.');
    let account = labels.next()?;
    let label = labels.next()?;
    // One label may name the zone of the website: `z` and a number.
    let is_zone =
        label.strip_prefix('z').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let label = if is_zone { labels.next()? } else { label };
    let is_account = names::is_account(account.strip_suffix(SECONDARY).unwrap_or(account));
    (service == ServiceKind::Blob && label == "web" && is_account).then(|| account.to_owned())
}

/// Returns whether a host is that of a static website, for which queries have no meaning.
pub fn is_website(service: ServiceKind, host: &str) -> bool {
    website_in_host(service, host).is_some()
}

/// Returns the name in a host: in lower case, without the port and without a trailing dot.
fn host_name(host: &str) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ServiceKind::{Blob, File, Queue, Table};

    fn address(service: ServiceKind, host: &str, target: &str) -> Result<Address, ErrorCode> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let suffixes = ["blob.example.com".to_owned(), "store.example.com".to_owned()];
        Address::parse(service, host, path, &Query::parse(query).unwrap(), &suffixes)
            .map_err(|refusal| refusal.code())
    }

    #[test]
    fn the_account_is_in_the_host_else_in_the_path() {
        use Style::{Host, Path};
        for (service, host, target, account, style, secondary) in [
            (Blob, "127.0.0.1:10000", "/dev1/c/b", "dev1", Path, false),
            (Blob, "[::1]:10000", "/dev1/c/b", "dev1", Path, false),
            (Blob, "localhost:10000", "/dev1/c/b", "dev1", Path, false),
            (Blob, "lazuli.internal", "/dev1/c/b", "dev1", Path, false),
            (Blob, "", "/dev1/c/b", "dev1", Path, false),
            (Blob, "localhost", "/dev1-secondary/c/b", "dev1", Path, true),
            (Blob, "dev1.blob.localhost:10000", "/c/b", "dev1", Host, false),
            (Blob, "DEV1.Blob.Core.Windows.NET", "/c/b", "dev1", Host, false),
            (Blob, "dev1-secondary.blob.core.windows.net", "/c/b", "dev1", Host, true),
            (Blob, "dev1.blob.example.com", "/c/b", "dev1", Host, false),
            (Blob, "dev1.Store.example.com.:10000", "/c/b", "dev1", Host, false),
            (Blob, "dev1.store.example.com", "/c/b", "dev1", Host, false),
            (Blob, "dev1.blob.store.example.com", "/c/b", "dev1", Host, false),
            (Queue, "dev1.queue.localhost", "/c/b", "dev1", Host, false),
            // A host of another service, a host that names no account, and an invalid account name.
            (Blob, "dev1.queue.localhost", "/dev2/c/b", "dev2", Path, false),
            (Blob, "store.example.com", "/dev2/c/b", "dev2", Path, false),
            (Blob, "my-host.blob.svc", "/dev2/c/b", "dev2", Path, false),
            (Blob, "localhost", "/d%65v1/c/b", "dev1", Path, false),
        ] {
            let address = address(service, host, target).unwrap();
            let case = format!("{host} {target}");
            assert_eq!(
                (address.account.as_str(), address.style, address.secondary),
                (account, style, secondary),
                "{case}"
            );
            assert_eq!((address.container.as_str(), address.object.as_str()), ("c", "b"), "{case}");
            assert_eq!(address.raw_path, target.split('?').next().unwrap());
        }
    }

    #[test]
    fn a_website_has_its_own_host() {
        for (service, host, path, website) in [
            (Blob, "dev1.web.localhost:10000", "/a%20b/", Some("a b/")),
            (Blob, "dev1.z13.web.core.windows.net", "/", Some("")),
            (Blob, "DEV1-secondary.Web.localhost", "/x", Some("x")),
            (Blob, "dev1.z.web.localhost", "/dev2/x", None),
            (Blob, "dev1.zone.web.localhost", "/dev2/x", None),
            (Blob, "my-host.web.localhost", "/dev2/x", None),
            (Blob, "web.localhost", "/dev2/x", None),
            (Blob, "dev1.blob.web.localhost", "/c/x", None),
            (Queue, "dev1.web.localhost", "/dev2/x", None),
        ] {
            let address = address(service, host, path).unwrap();
            assert_eq!(address.website, website.is_some(), "{host}");
            if let Some(object) = website {
                let named = (address.account.as_str(), address.container.as_str(), address.object.as_str());
                assert_eq!(named, ("dev1", "$web", object), "{host}");
            }
        }
    }

    #[test]
    fn a_host_may_name_an_account() {
        let suffixes = ["store.example.com".to_owned()];
        for (host, account) in [
            ("dev1.blob.localhost:10000", Some("dev1")),
            ("dev1-secondary.blob.localhost", Some("dev1")),
            ("dev1-secondary.z1.web.localhost.", Some("dev1")),
            ("lazuli.web.svc.cluster.local", Some("lazuli")),
            ("dev1.store.example.com", Some("dev1")),
            ("dev1.queue.localhost", None),
            ("127.0.0.1:10000", None),
            ("localhost", None),
            ("", None),
        ] {
            assert_eq!(account_of_host(Blob, host, &suffixes).as_deref(), account, "{host}");
        }
    }

    #[test]
    fn a_path_may_name_an_account() {
        for (path, account) in [
            ("/dev1", Some("dev1")),
            ("/dev1/c/b", Some("dev1")),
            ("/d%65v1-secondary/c", Some("dev1")),
            ("/index.html", None),
            ("/%zz/c", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(account_of_path(path).as_deref(), account, "{path}");
        }
    }

    #[test]
    fn names_are_decoded_and_never_normalized() {
        for (service, target, container, object) in [
            (Blob, "/dev1", "", ""),
            (Blob, "/dev1/", "", ""),
            (Blob, "/dev1/?comp=list", "", ""),
            (Blob, "/dev1/c?restype=container", "c", ""),
            (Blob, "/dev1/c/?restype=container", "c", ""),
            (Blob, "/dev1/c?restype=account&comp=properties", "c", ""),
            (Blob, "/dev1/name", "$root", "name"),
            (Blob, "/dev1/name?comp=metadata", "$root", "name"),
            (Blob, "/dev1/$root/name", "$root", "name"),
            (Blob, "/dev1/c/a//b/./../c/", "c", "a//b/./../c/"),
            (Blob, "/dev1/c//b", "c", "/b"),
            (Blob, "/dev1/c/a%2Fb%20c%25+%C3%A9", "c", "a/b c%+é"),
            (Queue, "/dev1/q", "q", ""),
            (Queue, "/dev1/q/messages/id", "q", "messages/id"),
            (File, "/dev1/s/d/f", "s", "d/f"),
            (Table, "/dev1/Tables", "Tables", ""),
            (Table, "/dev1/Tables('t')", "Tables", "('t')"),
            (Table, "/dev1/t()", "t", "()"),
            (Table, "/dev1/t(PartitionKey='p%2F1',RowKey='r/2')", "t", "(PartitionKey='p/1',RowKey='r/2')"),
            (Table, "/dev1/$batch", "$batch", ""),
            (Table, "/dev1/t/x", "t", "x"),
        ] {
            let address = address(service, "localhost", target).unwrap();
            assert_eq!(
                (address.container.as_str(), address.object.as_str()),
                (container, object),
                "{target}"
            );
        }
    }

    #[test]
    fn a_backslash_in_the_name_of_a_blob_is_a_slash() {
        for (service, host, target, object) in [
            (Blob, "localhost", "/dev1/c/a%5Cb%5cd", "a/b/d"),
            (Blob, "localhost", "/dev1/c/a\\b/é", "a/b/é"),
            (Blob, "localhost", "/dev1/a%5Cb", "a/b"),
            (Blob, "dev1.web.localhost", "/a%5Cb", "a/b"),
            (File, "localhost", "/dev1/c/a%5Cb", "a\\b"),
            (Queue, "localhost", "/dev1/c/a%5Cb", "a\\b"),
        ] {
            let address = address(service, host, target).unwrap();
            assert_eq!((address.object.as_str(), address.raw_path.as_str()), (object, target));
        }
        for (path, name, sent) in [
            ("/dev1/c/a%5Cb/é", "a/b/é", Some("a\\b/é")),
            ("/dev1/c/a/b", "a/b", None),
            ("/a\\b", "a/b", Some("a\\b")),
            ("/c/xé", "\u{1}", None),
            ("/c", "longer/than/that", None),
            ("/%zz", "a", None),
        ] {
            assert_eq!(name_as_sent(path, name).as_deref(), sent, "{path}");
        }
    }

    #[test]
    fn sub_requests_share_the_batchs_account_with_or_without_its_name_in_the_path() {
        use Style::{Host, Path};
        for (host, outer, path, container, object, style) in [
            ("localhost", "/dev1?comp=batch", "/dev1/c/b%20", "c", "b ", Path),
            ("localhost", "/dev1?comp=batch", "/c/b/d", "c", "b/d", Host),
            ("localhost", "/dev1?comp=batch", "/dev1/b", "$root", "b", Path),
            ("localhost", "/dev1?comp=batch", "/b", "$root", "b", Host),
            ("dev1.blob.localhost", "/?comp=batch", "/c/b", "c", "b", Host),
            ("dev1.blob.localhost", "/?comp=batch", "/dev1/b", "dev1", "b", Host),
        ] {
            let outer = address(Blob, host, outer).unwrap();
            let sub_request = outer.sub_request(Blob, path, &Query::default()).unwrap();
            let names = (sub_request.container.as_str(), sub_request.object.as_str());
            assert_eq!((names, sub_request.style), ((container, object), style), "{host} {path}");
            assert_eq!((sub_request.account.as_str(), sub_request.raw_path.as_str()), ("dev1", path));
        }
    }

    #[test]
    fn empty_segments_before_the_account_and_the_container_are_skipped() {
        let hosts = ["localhost", "dev1.blob.localhost:1", "dev1.queue.localhost:1", "dev1.file.localhost:1"];
        for (service, host, target, container, object) in [
            (Blob, hosts[1], "//c/b", "c", "b"),
            (Blob, hosts[1], "///c//b/", "c", "/b/"),
            (Blob, hosts[1], "//c?restype=container", "c", ""),
            (Blob, hosts[1], "//b", "$root", "b"),
            (Blob, hosts[1], "//?comp=list", "", ""),
            (Blob, hosts[0], "/dev1//c/b", "c", "b"),
            (Blob, hosts[0], "//dev1/c/b", "c", "b"),
            (Blob, hosts[0], "//dev1//c//b", "c", "/b"),
            (Blob, hosts[0], "//dev1-secondary//?comp=list", "", ""),
            (Queue, hosts[2], "//q/messages", "q", "messages"),
            (Queue, hosts[0], "/dev1//q/messages/m", "q", "messages/m"),
            (File, hosts[3], "//s/d/f", "s", "d/f"),
            (File, hosts[0], "/dev1//s/d//f", "s", "d//f"),
            (Table, "dev1.table.localhost:1", "//Tables('t')", "Tables", "('t')"),
            (Table, hosts[0], "/dev1//t(PartitionKey='/',RowKey='')", "t", "(PartitionKey='/',RowKey='')"),
        ] {
            let address = address(service, host, target).unwrap();
            let named = (address.account.as_str(), address.container.as_str(), address.object.as_str());
            assert_eq!(named, ("dev1", container, object), "{host} {target}");
            assert_eq!(address.raw_path, target.split('?').next().unwrap(), "Shared Key signs what was sent");
        }
        assert_eq!(
            address(Table, "dev1.table.localhost", "//(PartitionKey='p')"),
            Err(ErrorCode::InvalidUri)
        );
        assert_eq!(account_of_path("//dev1/c").as_deref(), Some("dev1"));
        let outer = address(Blob, "localhost", "/dev1?comp=batch").unwrap();
        for path in ["//dev1//c/b", "/dev1//c/b", "//c/b"] {
            let sub_request = outer.sub_request(Blob, path, &Query::default()).unwrap();
            assert_eq!((sub_request.container.as_str(), sub_request.object.as_str()), ("c", "b"), "{path}");
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for (target, expected) in [
            ("", ErrorCode::InvalidUri),
            ("*", ErrorCode::InvalidUri),
            ("/", ErrorCode::InvalidUri),
            ("//", ErrorCode::InvalidUri),
            ("/dev1/c/%", ErrorCode::RequestUrlFailedToParse),
            ("/dev1/c/%zz", ErrorCode::RequestUrlFailedToParse),
            ("/dev1/c/%ff", ErrorCode::RequestUrlFailedToParse),
            ("/dev1/%ff/b", ErrorCode::RequestUrlFailedToParse),
            ("/%ff/c/b", ErrorCode::RequestUrlFailedToParse),
        ] {
            assert_eq!(address(Blob, "localhost", target), Err(expected), "{target}");
        }
    }

    #[test]
    fn the_endpoint_repeats_the_clients_host_and_account() {
        for (host, target, expected) in [
            ("127.0.0.1:10000", "/dev1/c/b", "http://127.0.0.1:10000/dev1"),
            ("127.0.0.1:10000", "/dev1-secondary/c/b", "http://127.0.0.1:10000/dev1-secondary"),
            ("dev1.blob.localhost:10000", "/c/b", "http://dev1.blob.localhost:10000"),
        ] {
            assert_eq!(address(Blob, host, target).unwrap().endpoint("http", host), expected);
        }
    }
}
