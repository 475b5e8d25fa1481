//! The text that the server prints when it is ready: addresses and a connection string.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use lazuli_account::development_key;
use lazuli_protocol::Account;

use crate::endpoints::{Endpoints, reachable};

/// Maximum number of accounts with a line of their own.
const MAX_ACCOUNTS: usize = 20;

/// A server that is ready.
pub(crate) struct Ready<'a> {
    pub(crate) endpoints: &'a Endpoints,
    /// The data directory; `None` if data is in memory.
    pub(crate) data: Option<&'a Path>,
    /// All accounts.
    pub(crate) accounts: &'a [Arc<Account>],
    /// Whether to show keys other than the well-known one.
    pub(crate) show_keys: bool,
    /// A link that signs the reader in to the console.
    pub(crate) console_link: Option<String>,
}

impl Ready<'_> {
    /// Formats the text.
    pub(crate) fn block(&self) -> String {
        let mut block = format!("Lazuli {} is ready.\n", crate::VERSION);
        // Enabled accounts come first.
        let mut accounts: Vec<_> = self.accounts.iter().map(|account| &**account).collect();
        accounts.sort_by_key(|account| account.settings.disabled);
        let first = accounts.first().map_or("ACCOUNT", |account| &account.name);
        let mut line = |name: &str, value: &str| {
            // Writing to a String cannot fail.
            let _ = writeln!(block, "  {name:<9}{value}");
        };
        for (kind, _) in &self.endpoints.services {
            if let Some(url) = self.endpoints.account_url(*kind, first) {
                line(kind.name(), &url);
            }
        }
        if let Some(smb) = self.endpoints.smb {
            line("smb", &format!("smb://{}", reachable(smb)));
        }
        if let Some(console) = self.console_link.clone().or_else(|| self.endpoints.console_url()) {
            line("console", &console);
        }
        if let Some(certificate) = &self.endpoints.certificate {
            line("trust", &certificate.display().to_string());
        }
        match self.data {
            Some(data) => line("data", &data.display().to_string()),
            None => line("data", "in memory: lost when the process ends"),
        }
        if accounts.is_empty() {
            line("accounts", "none: add one with lazuli account add NAME");
        }
        for account in accounts.iter().take(MAX_ACCOUNTS) {
            line("connect", &self.connection(account));
        }
        if accounts.len() > MAX_ACCOUNTS {
            let more = accounts.len() - MAX_ACCOUNTS;
            line("", &format!("and {more} more: lazuli account list"));
        }
        block
    }

    /// Returns the connection string of an account, or the command that prints it.
    fn connection(&self, account: &Account) -> String {
        let name = &account.name;
        match (account.keys.first(), self.data) {
            (Some(key), _) if self.show_keys || *key == development_key() => {
                self.endpoints.connection_string(name, &key.to_base64())
            }
            (_, Some(data)) => {
                format!("lazuli account connection-string {name} --data {}", data.display())
            }
            (_, None) => self.endpoints.connection_string(name, "(as configured)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use lazuli_account::DEVELOPMENT_KEY;
    use lazuli_protocol::{Key, ServiceKind};

    use super::*;

    fn account(name: &str, key: Key) -> Arc<Account> {
        let (settings, roles) = Default::default();
        Arc::new(Account { name: name.into(), generation: 0, keys: vec![key], settings, roles })
    }

    fn endpoints(tls: bool, services: &[(ServiceKind, &str)]) -> Endpoints {
        let services = services.iter().map(|(kind, address)| (*kind, address.parse().unwrap())).collect();
        Endpoints { tls, services, smb: None, console: None, certificate: None }
    }

    #[test]
    fn text_names_endpoints_data_and_a_connection_string() {
        let accounts = [account("devstoreaccount1", development_key())];
        let mut endpoints = endpoints(
            false,
            &[(ServiceKind::Blob, "127.0.0.1:10000"), (ServiceKind::Queue, "127.0.0.1:10001")],
        );
        endpoints.smb = Some("127.0.0.1:10445".parse().unwrap());
        endpoints.console = Some("127.0.0.1:10080".parse().unwrap());
        let data = Some(Path::new("/srv/data"));
        let ready =
            Ready { endpoints: &endpoints, data, accounts: &accounts, show_keys: false, console_link: None };
        let version = crate::VERSION;
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
        let accounts = [account("alpha", Key::from_bytes(vec![0; 3])), account("beta", development_key())];
        let mut endpoints = endpoints(true, &[(ServiceKind::Blob, "[::]:443")]);
        endpoints.console = Some("0.0.0.0:80".parse().unwrap());
        endpoints.certificate = Some("/srv/data/tls/self-signed.crt".into());
        let data = Some(Path::new("/srv/data"));
        let mut ready =
            Ready { endpoints: &endpoints, data, accounts: &accounts, show_keys: false, console_link: None };
        let block = ready.block();
        assert!(block.contains("https://[::1]:443/alpha"), "{block}");
        assert!(block.contains("console  https://127.0.0.1:80\n"), "{block}");
        ready.console_link = Some("https://127.0.0.1:80/#t=x".into());
        assert!(ready.block().contains("console  https://127.0.0.1:80/#t=x\n"));
        assert!(block.contains("trust    /srv/data/tls/self-signed.crt\n"), "{block}");
        let command = "connect  lazuli account connection-string alpha --data /srv/data\n";
        assert!(!block.contains("AccountKey=AAAA") && block.contains(command), "{block}");
        assert!(block.contains(&format!("AccountName=beta;AccountKey={DEVELOPMENT_KEY}")), "{block}");
        ready.show_keys = true;
        assert!(ready.block().contains("AccountName=alpha;AccountKey=AAAA;"), "{}", ready.block());
    }

    #[test]
    fn text_for_data_in_memory_warns_of_its_loss_and_suggests_no_command_for_keys() {
        let accounts = [account("alpha", Key::from_bytes(vec![0; 3]))];
        let endpoints = endpoints(false, &[]);
        let ready = Ready {
            endpoints: &endpoints,
            data: None,
            accounts: &accounts,
            show_keys: false,
            console_link: None,
        };
        let block = ready.block();
        assert!(block.contains("data     in memory: lost when the process ends\n"), "{block}");
        assert!(block.contains("AccountKey=(as configured);"), "{block}");
    }

    #[test]
    fn text_without_accounts_says_how_to_add_one() {
        let endpoints = endpoints(false, &[]);
        let ready =
            Ready { endpoints: &endpoints, data: None, accounts: &[], show_keys: false, console_link: None };
        assert!(ready.block().contains("accounts none: add one"), "{}", ready.block());
    }
}
