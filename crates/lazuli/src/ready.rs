//! What a server says when it is ready: where it is and how to connect.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use lazuli_protocol::{Account, ServiceKind};

/// A server that is ready.
pub(crate) struct Ready<'a> {
    /// Whether it speaks TLS.
    pub(crate) tls: bool,
    /// Its services and where they listen.
    pub(crate) services: &'a [(ServiceKind, SocketAddr)],
    /// Where the file service listens for SMB.
    pub(crate) smb: Option<SocketAddr>,
    /// Where health checks and metrics are.
    pub(crate) console: Option<SocketAddr>,
    /// Where its data is.
    pub(crate) data: &'a Path,
    /// The account to connect with.
    pub(crate) account: Option<&'a Account>,
    /// Whether to show its key.
    pub(crate) show_key: bool,
}

impl Ready<'_> {
    /// The whole block.
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
        line("data", &self.data.display().to_string());
        if let Some(account) = self.account {
            line("connect", &self.connection_string(account));
        }
        block
    }

    /// What SDKs and tools take to connect.
    fn connection_string(&self, account: &Account) -> String {
        let key = match account.keys.first() {
            Some(key) if self.show_key => key.to_base64(),
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

/// An address that a client on this machine can use, where the server listens on all of them.
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
    fn the_block_names_endpoints_data_and_a_connection_string() {
        let account = account();
        let ready = Ready {
            tls: false,
            services: &[
                (ServiceKind::Blob, "127.0.0.1:10000".parse().unwrap()),
                (ServiceKind::Queue, "127.0.0.1:10001".parse().unwrap()),
            ],
            smb: Some("127.0.0.1:10445".parse().unwrap()),
            console: Some("127.0.0.1:10080".parse().unwrap()),
            data: Path::new("/srv/data"),
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
    fn all_addresses_are_shown_as_loopback_and_keys_only_when_asked_for() {
        let account = account();
        let ready = Ready {
            tls: true,
            services: &[(ServiceKind::Blob, "[::]:443".parse().unwrap())],
            smb: None,
            console: Some("0.0.0.0:80".parse().unwrap()),
            data: Path::new("/srv/data"),
            account: Some(&account),
            show_key: false,
        };
        let block = ready.block();
        assert!(block.contains("https://[::1]:443/devstoreaccount1"), "{block}");
        assert!(block.contains("http://127.0.0.1:80\n"), "{block}");
        assert!(!block.contains(DEVELOPMENT_KEY) && block.contains("lazuli account list --keys"), "{block}");
    }
}
