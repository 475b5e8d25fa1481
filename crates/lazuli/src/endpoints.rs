//! The addresses at which a server answers, and the text with which clients connect to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use lazuli_protocol::ServiceKind;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::config::{Config, TlsSource};

/// Characters of a name that are encoded in the path of a URL.
const IN_PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/').remove(b'$');

/// Returns a new link that signs an operator in to the console, once.
pub(crate) type ConsoleLink = Arc<dyn Fn() -> String + Send + Sync>;

/// The addresses of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoints {
    /// Whether the services use TLS.
    pub(crate) tls: bool,
    /// The services and their addresses.
    pub(crate) services: Vec<(ServiceKind, SocketAddr)>,
    /// The address of the SMB endpoint.
    pub(crate) smb: Option<SocketAddr>,
    /// The address of health checks and metrics.
    pub(crate) console: Option<SocketAddr>,
    /// The self-signed certificate, for clients to trust.
    pub(crate) certificate: Option<PathBuf>,
}

impl Endpoints {
    /// Returns the addresses that a server with this configuration would have. A port 0 stays 0.
    pub(crate) fn configured(config: &Config) -> Self {
        Self {
            tls: config.tls != TlsSource::Off,
            services: config.services.clone(),
            smb: config.smb,
            console: config.console,
            certificate: None,
        }
    }

    /// Returns the URL of an account in a service, if the service is enabled.
    pub(crate) fn account_url(&self, kind: ServiceKind, account: &str) -> Option<String> {
        let (_, address) = self.services.iter().find(|(enabled, _)| *enabled == kind)?;
        Some(format!("{}://{}/{account}", self.scheme(), reachable(*address)))
    }

    /// Returns the URL of an object in an account, if the service is enabled.
    pub(crate) fn object_url(&self, kind: ServiceKind, account: &str, path: &str) -> Option<String> {
        let url = self.account_url(kind, account)?;
        Some(format!("{url}/{}", utf8_percent_encode(path, IN_PATH)))
    }

    /// Returns the connection string for SDKs and tools.
    pub(crate) fn connection_string(&self, account: &str, key: &str) -> String {
        let scheme = self.scheme();
        let mut text = format!("DefaultEndpointsProtocol={scheme};AccountName={account};AccountKey={key};");
        for (kind, _) in &self.services {
            let name = match kind {
                ServiceKind::Blob => "Blob",
                ServiceKind::Queue => "Queue",
                ServiceKind::Table => "Table",
                ServiceKind::File => "File",
            };
            if let Some(url) = self.account_url(*kind, account) {
                text.push_str(&format!("{name}Endpoint={url};"));
            }
        }
        text
    }

    /// Returns the URL of the console, if it is enabled.
    pub(crate) fn console_url(&self) -> Option<String> {
        self.console.map(|address| format!("{}://{}", self.scheme(), reachable(address)))
    }

    const fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

/// Replaces an unspecified address, on which the server listens on all interfaces, by loopback.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_the_account_and_encode_the_path() {
        let endpoints = Endpoints {
            tls: true,
            services: vec![(ServiceKind::Blob, "0.0.0.0:10000".parse().unwrap())],
            smb: None,
            console: None,
            certificate: None,
        };
        let url = endpoints.object_url(ServiceKind::Blob, "lapis", "$web/a b?.txt").unwrap();
        assert_eq!(url, "https://127.0.0.1:10000/lapis/$web/a%20b%3F.txt");
        assert_eq!(endpoints.account_url(ServiceKind::Queue, "lapis"), None);
        assert_eq!(
            endpoints.connection_string("lapis", "a2V5"),
            "DefaultEndpointsProtocol=https;AccountName=lapis;AccountKey=a2V5;\
             BlobEndpoint=https://127.0.0.1:10000/lapis;"
        );
    }
}
