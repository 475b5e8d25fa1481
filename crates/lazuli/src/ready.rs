//! The text that the server prints when it is ready: addresses and a connection string.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use lazuli_protocol::{Account, ServiceKind};

/// A server that is ready.
pub(crate) struct Ready<'a> {
    /// Whether the endpoints use TLS.
    pub(crate) tls: bool,
    /// The services and their addresses.
    pub(crate) services: &'a [(ServiceKind, SocketAddr)],
    /// The address of the SMB endpoint.
    pub(crate) smb: Option<SocketAddr>,
    /// The address of health checks and metrics.
    pub(crate) console: Option<SocketAddr>,
    /// The data directory; `None` if data is in memory.
    pub(crate) data: Option<&'a Path>,
    /// The account in the connection string.
    pub(crate) account: Option<&'a Account>,
    /// Whether to show the account's key.
    pub(crate) show_key: bool,
}

impl Ready<'_> {
    /// Formats the text.
    pub(crate) fn block(&self) -> String {
        let mut block = format!("Lazuli {} is ready.\n", env!("CARGO_PKG_VERSION"));
        let account = self.account.map_or("ACCOUNT", |account| &account.name);
        let mut line = |name: &str, value: &str| {
            // Writing to a String cannot fail.
            let _ = writeln!(block, "  {name:<9}{value}");
        };
        for (kind, address) in self.services {
            line(kind.name(), &self.endpoint(*address, account));
        }
        if let Some(smb) = self.smb {
            line("smb", &format!("smb://{}", reachable(smb)));
        }
        if let Some(console) = self.console {
            line("console", &format!("http://{}", reachable(console)));
        }
        match self.data {
            Some(data) => line("data", &data.display().to_string()),
            None => line("data", "in memory: lost when the process ends"),
        }
        if let Some(account) = self.account {
            line("connect", &self.connection_string(account));
        }
        block
    }

    /// Returns the connection string for SDKs and tools.
    fn connection_string(&self, account: &Account) -> String {
        let key = match account.keys.first() {
            Some(key) if self.show_key => key.to_base64(),
            _ if self.data.is_none() => "(as configured)".into(),
            _ => "(lazuli account list --keys)".into(),
        };
        let mut text = format!(
            "DefaultEndpointsProtocol={};AccountName={};AccountKey={key};",
            self.scheme(),
            account.name
        );
        for (kind, address) in self.services {
            let name = match kind {
                ServiceKind::Blob => "Blob",
                ServiceKind::Queue => "Queue",
                ServiceKind::Table => "Table",
                ServiceKind::File => "File",
            };
            let _ = write!(text, "{name}Endpoint={};", self.endpoint(*address, &account.name));
        }
        text
    }

    fn endpoint(&self, address: SocketAddr, account: &str) -> String {
        format!("{}://{}/{account}", self.scheme(), reachable(address))
    }

    const fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

/// Replaces an unspecified address, on which the server listens on all interfaces, by loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use lazuli_account::{DEVELOPMENT_KEY, development_key};

    use super::*;

    fn account() -> Account {
        Account {
            name: "devstoreaccount1".into(),
            generation: 0,
            keys: vec![development_key()],
            settings: Default::default(),
            roles: vec![],
        }
    }

    #[test]
    fn text_names_endpoints_data_and_a_connection_string() {
        let account = account();
        let ready = Ready {
            tls: false,
            services: &[
                (ServiceKind::Blob, "127.0.0.1:10000".parse().unwrap()),
                (ServiceKind::Queue, "127.0.0.1:10001".parse().unwrap()),
            ],
            smb: Some("127.0.0.1:10445".parse().unwrap()),
            console: Some("127.0.0.1:10080".parse().unwrap()),
            data: Some(Path::new("/srv/data")),
            account: Some(&account),
            show_key: true,
        };
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            ready.block(),
            format!(
                "Lazuli {version} is ready.\n  \
                 blob     http://127.0.0.1:10000/devstoreaccount1\n  \
                 queue    http://127.0.0.1:10001/devstoreaccount1\n  \
                 smb      smb://127.0.0.1:10445\n  \
                 console  http://127.0.0.1:10080\n  \
                 data     /srv/data\n  \
                 connect  DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={DEVELOPMENT_KEY};\
                 BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;\
                 QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1;\n"
            )
        );
    }

    #[test]
    fn unspecified_addresses_are_shown_as_loopback_and_keys_only_on_request() {
        let account = account();
        let ready = Ready {
            tls: true,
            services: &[(ServiceKind::Blob, "[::]:443".parse().unwrap())],
            smb: None,
            console: Some("0.0.0.0:80".parse().unwrap()),
            data: Some(Path::new("/srv/data")),
            account: Some(&account),
            show_key: false,
        };
        let block = ready.block();
        assert!(block.contains("https://[::1]:443/devstoreaccount1"), "{block}");
        assert!(block.contains("http://127.0.0.1:80\n"), "{block}");
        assert!(!block.contains(DEVELOPMENT_KEY) && block.contains("lazuli account list --keys"), "{block}");
    }

    #[test]
    fn text_for_data_in_memory_warns_of_its_loss_and_suggests_no_command_for_keys() {
        let account = account();
        let ready = Ready {
            tls: false,
            services: &[],
            smb: None,
            console: None,
            data: None,
            account: Some(&account),
            show_key: false,
        };
        let block = ready.block();
        assert!(block.contains("data     in memory: lost when the process ends\n"), "{block}");
        assert!(block.contains("AccountKey=(as configured);"), "{block}");
    }
}
