//! Creates the configured accounts when the server starts, and refuses to expose the development key.

use std::net::IpAddr;
use std::sync::Arc;

use lazuli_account::{AccountDirectory, AccountError, Setting, development_key};
use lazuli_protocol::Account;
use lazuli_protocol::account::Origin;

use crate::Failure;
use crate::config::{Config, ConfiguredAccount, Storage};
use crate::control::DevelopmentKey;

/// Refuses a configuration that a new data directory would refuse, before one is created.
pub(crate) fn examine(config: &Config) -> Result<(), Failure> {
    let is_new = match &config.data {
        Storage::Directory(path) => !path.join("FORMAT").exists(),
        Storage::Memory { .. } => true,
    };
    let rule = development_key_rule(config.exposed_host(), config.insecure_dev_key);
    if !is_new || rule == DevelopmentKey::Accepted {
        return Ok(());
    }
    let development = [ConfiguredAccount::development()];
    let wanted = if config.accounts.is_empty() { &development[..] } else { &config.accounts[..] };
    refuse_development_key(&[], wanted, config)
}

/// Ensures that the configured accounts exist and have exactly the configured keys. Other settings are
/// unchanged. If no account is configured or stored, creates the development account, unless it was removed.
/// Accounts that left the configuration stay, and are marked.
///
/// Before storing anything, refuses if other machines could reach an account with the well-known development
/// key.
pub(crate) async fn provision(
    accounts: &AccountDirectory,
    config: &Config,
) -> Result<DevelopmentKey, Failure> {
    let stored = accounts.list().await.map_err(Failure::failed)?;
    let development = [ConfiguredAccount::development()];
    let is_bare = config.accounts.is_empty() && stored.is_empty();
    let was_removed = accounts.development_account_was_removed().await.map_err(Failure::failed)?;
    if is_bare && was_removed {
        tracing::warn!(
            "there is no account: add one with lazuli account add NAME, or restore one with lazuli account \
             restore NAME"
        );
    }
    let wanted = if is_bare && !was_removed { &development[..] } else { &config.accounts[..] };
    let rule = development_key_rule(config.exposed_host(), config.insecure_dev_key);
    if rule == DevelopmentKey::Refused {
        refuse_development_key(&stored, wanted, config)?;
    }
    for account in wanted {
        provide(accounts, account).await.map_err(Failure::failed)?;
    }
    mark_origins(accounts, &config.accounts).await.map_err(Failure::failed)?;
    Ok(rule)
}

/// Records which accounts come from the configuration, and warns of those that left it.
async fn mark_origins(
    accounts: &AccountDirectory,
    configured: &[ConfiguredAccount],
) -> Result<(), AccountError> {
    for account in accounts.list().await? {
        let name = &account.name;
        let origin = match account.settings.origin {
            _ if configured.iter().any(|configured| configured.name == *name) => Origin::Configuration,
            Origin::Command => Origin::Command,
            Origin::Configuration | Origin::FormerConfiguration => {
                tracing::warn!(
                    account = name,
                    "the configuration no longer names account {name}: it stays, with its data and keys. To \
                     remove it, use lazuli account remove {name}"
                );
                Origin::FormerConfiguration
            }
        };
        if origin != account.settings.origin {
            accounts.set(name, vec![Setting::Origin(origin)]).await?;
        }
    }
    Ok(())
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
    config: &Config,
) -> Result<(), Failure> {
    let Some(host) = config.exposed_host() else { return Ok(()) };
    let known = development_key();
    let data = match &config.data {
        Storage::Directory(path) => format!(" --data {}", path.display()),
        Storage::Memory { .. } => String::new(),
    };
    let replaced = |name: &str| wanted.iter().any(|account| account.name == name);
    let left = stored.iter().find(|account| account.keys.contains(&known) && !replaced(&account.name));
    let made = wanted.iter().find(|account| account.keys.contains(&known));
    let (name, instead) = match (left, made) {
        (Some(account), _) => {
            let name = &account.name;
            let slot = if account.keys.first() == Some(&known) { "" } else { " --key 2" };
            let rotate = format!("lazuli account rotate-key {name}{slot}{data}");
            (name, format!("Replace the key, which keeps the account and its data: {rotate}."))
        }
        (None, Some(account)) => {
            let create = if data.is_empty() || !stored.is_empty() { "" } else { " --create-data" };
            let add = format!("lazuli account add NAME{data}{create}");
            let instead = "Name an account of your own with --account NAME:KEY";
            let or = if data.is_empty() { ".".into() } else { format!(", or add one with new keys: {add}.") };
            (&account.name, format!("{instead}{or}"))
        }
        (None, None) => return Ok(()),
    };
    Err(Failure::Failed(format!(
        "account {name} has the well-known development key, and listening on {host} would expose it to other \
         machines. {instead} To accept the key from other machines, use --insecure-dev-key."
    )))
}

/// Returns whether accounts may have the development key. `exposed` is an address at which other machines
/// may reach the services.
fn development_key_rule(exposed: Option<IpAddr>, insecure: bool) -> DevelopmentKey {
    if exposed.is_none() || insecure { DevelopmentKey::Accepted } else { DevelopmentKey::Refused }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn development_key_is_refused_for_other_machines_unless_explicitly_allowed() {
        for (exposed, insecure, rule) in [
            (None, false, DevelopmentKey::Accepted),
            (Some("0.0.0.0"), false, DevelopmentKey::Refused),
            (Some("::"), false, DevelopmentKey::Refused),
            (Some("192.168.1.1"), false, DevelopmentKey::Refused),
            (Some("0.0.0.0"), true, DevelopmentKey::Accepted),
        ] {
            let host = exposed.map(|host| host.parse().unwrap());
            assert_eq!(development_key_rule(host, insecure), rule, "{exposed:?}");
        }
    }
}
