//! Creates the configured accounts when the server starts, and refuses to expose the development key.

use std::net::IpAddr;
use std::sync::Arc;

use lazuli_account::{AccountDirectory, AccountError, development_key};
use lazuli_protocol::Account;

use crate::Failure;
use crate::config::{Config, ConfiguredAccount};
use crate::control::DevelopmentKey;

/// Ensures that the configured accounts exist and have exactly the configured keys. Other settings are
/// unchanged. If no account is configured or stored, creates the development account.
///
/// Before storing anything, refuses if other machines could reach an account with the well-known development
/// key.
pub(crate) async fn provision(
    accounts: &AccountDirectory,
    config: &Config,
) -> Result<DevelopmentKey, Failure> {
    let stored = accounts.list().await.map_err(Failure::failed)?;
    let development = [ConfiguredAccount::development()];
    let wanted =
        if config.accounts.is_empty() && stored.is_empty() { &development } else { &config.accounts[..] };
    let rule = development_key_rule(config.host, config.insecure_dev_key);
    if rule == DevelopmentKey::Refused {
        refuse_development_key(&stored, wanted, config.host)?;
    }
    for account in wanted {
        provide(accounts, account).await.map_err(Failure::failed)?;
    }
    Ok(rule)
}

async fn provide(accounts: &AccountDirectory, wanted: &ConfiguredAccount) -> Result<(), AccountError> {
    let ConfiguredAccount { name, keys } = wanted.clone();
    match accounts.get(&name).await? {
        Some(account) if account.keys == keys => {}
        Some(_) => {
            tracing::warn!(account = name, "replacing the stored keys by those of the configuration");
            accounts.set_keys(&name, keys).await?;
        }
        None => {
            let account = Account { name, keys, settings: Default::default(), roles: vec![], generation: 0 };
            accounts.add(account).await?;
        }
    }
    Ok(())
}

/// Checks the accounts as they would be after provisioning.
fn refuse_development_key(
    stored: &[Arc<Account>],
    wanted: &[ConfiguredAccount],
    host: IpAddr,
) -> Result<(), Failure> {
    let known = development_key();
    let replaced = |name: &str| wanted.iter().any(|account| account.name == name);
    let left = stored.iter().find(|account| account.keys.contains(&known) && !replaced(&account.name));
    let made = wanted.iter().find(|account| account.keys.contains(&known));
    let (name, instead) = match (left, made) {
        (Some(account), _) => {
            let name = &account.name;
            let remove = format!("Remove it with lazuli account remove {name}, or give it other keys with ");
            (name, format!("{remove}lazuli account rotate-key {name},"))
        }
        (None, Some(account)) => (&account.name, "Configure other accounts with --account,".to_owned()),
        (None, None) => return Ok(()),
    };
    Err(Failure::Failed(format!(
        "account {name} has the well-known development key, and listening on {host} would expose it to other machines. \
         {instead} or allow it with --insecure-dev-key."
    )))
}

fn development_key_rule(host: IpAddr, insecure: bool) -> DevelopmentKey {
    if host.is_loopback() || insecure { DevelopmentKey::Accepted } else { DevelopmentKey::Refused }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn development_key_is_refused_for_other_machines_unless_explicitly_allowed() {
        for (host, insecure, rule) in [
            ("127.0.0.1", false, DevelopmentKey::Accepted),
            ("127.1.2.3", false, DevelopmentKey::Accepted),
            ("::1", false, DevelopmentKey::Accepted),
            ("0.0.0.0", false, DevelopmentKey::Refused),
            ("::", false, DevelopmentKey::Refused),
            ("192.168.1.1", false, DevelopmentKey::Refused),
            ("0.0.0.0", true, DevelopmentKey::Accepted),
        ] {
            assert_eq!(development_key_rule(host.parse().unwrap(), insecure), rule, "{host}");
        }
    }
}
