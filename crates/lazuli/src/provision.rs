//! Which accounts a server has when it starts, and whether it may be reached with them.

use std::net::IpAddr;
use std::sync::Arc;

use lazuli_account::{AccountDirectory, AccountError, development_key};
use lazuli_protocol::Account;

use crate::Failure;
use crate::config::{Config, ConfiguredAccount};
use crate::control::DevelopmentKey;

/// Makes sure of the configured accounts: they exist and have exactly these keys. What else is set stays. Where there
/// is no account at all, neither configured nor stored, the development account is made.
///
/// Refuses to serve an account whose key everybody knows to other machines, before anything is stored.
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
            tracing::warn!(account = name, "the keys of the configuration replace those that were stored");
            accounts.set_keys(&name, keys).await?;
        }
        None => {
            let account = Account { name, keys, settings: Default::default(), roles: vec![], generation: 0 };
            accounts.add(account).await?;
        }
    }
    Ok(())
}

/// Judges the accounts as they would be.
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
        "account {name} has the well-known development key, and listening on {host} would open it to everybody. \
         {instead} or insist with --insecure-dev-key."
    )))
}

fn development_key_rule(host: IpAddr, insecure: bool) -> DevelopmentKey {
    if host.is_loopback() || insecure { DevelopmentKey::Accepted } else { DevelopmentKey::Refused }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_development_key_stays_on_this_machine_unless_somebody_insists() {
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
