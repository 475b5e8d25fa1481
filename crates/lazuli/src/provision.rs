//! Which accounts a server has when it starts, and whether it may be reached with them.

use std::net::IpAddr;

use lazuli_account::{AccountDirectory, AccountError, development_key};
use lazuli_protocol::Account;

use crate::Failure;
use crate::config::{Config, ConfiguredAccount};
use crate::control::DevelopmentKey;

/// Makes sure of the configured accounts: they exist and have exactly these keys. What else is set stays. Where there
/// is no account at all, neither configured nor stored, the development account is made.
pub(crate) async fn provision(
    accounts: &AccountDirectory,
    configured: &[ConfiguredAccount],
) -> Result<(), AccountError> {
    let development = [ConfiguredAccount::development()];
    let wanted =
        if configured.is_empty() && accounts.list().await?.is_empty() { &development } else { configured };
    for ConfiguredAccount { name, keys } in wanted {
        match accounts.get(name).await? {
            Some(account) if account.keys == *keys => {}
            Some(_) => {
                tracing::warn!(
                    account = name,
                    "the keys of the configuration replace those that were stored"
                );
                accounts.set_keys(name, keys.clone()).await?;
            }
            None => {
                let (name, keys) = (name.clone(), keys.clone());
                accounts
                    .add(Account { name, keys, settings: Default::default(), roles: vec![], generation: 0 })
                    .await?;
            }
        }
    }
    Ok(())
}

/// Refuses to serve an account whose key everybody knows to other machines.
pub(crate) async fn check_development_key(
    accounts: &AccountDirectory,
    config: &Config,
) -> Result<DevelopmentKey, Failure> {
    let rule = development_key_rule(config.host, config.insecure_dev_key);
    let known = development_key();
    let all = accounts.list().await.map_err(Failure::failed)?;
    match all.iter().find(|account| account.keys.contains(&known)) {
        Some(account) if rule == DevelopmentKey::Refused => Err(Failure::Failed(format!(
            "account {} has the well-known development key, and listening on {} would open it to everybody. \
             Configure other accounts with --account, give this one other keys with lazuli account rotate-key, \
             or insist with --insecure-dev-key.",
            account.name, config.host,
        ))),
        _ => Ok(rule),
    }
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
