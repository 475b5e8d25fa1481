//! Output of `lazuli account`: a table for people, or JSON.

use std::fmt::Write;

use lazuli_protocol::Account;
use lazuli_protocol::account::Origin;
use serde_json::{Value, json};

use crate::control::RemovedAccount;

/// Whether keys are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    Shown,
    Hidden,
}

/// Formats a JSON array with one object for each account.
pub(super) fn json(accounts: Vec<Account>, keys: Keys) -> String {
    let object = |account: Account| {
        let mut object = json!(account);
        if let (Keys::Hidden, Value::Object(fields)) = (keys, &mut object) {
            fields.remove("keys");
        }
        object
    };
    let array = Value::Array(accounts.into_iter().map(object).collect());
    format!("{array:#}\n")
}

/// Formats a table with a line of titles and one line for each account, followed by the keys.
pub(super) fn table(accounts: &[Account], keys: Keys) -> String {
    const TITLES: [&str; 9] = [
        "NAME",
        "STATE",
        "ORIGIN",
        "VERSIONS",
        "SOFT DELETE",
        "PUBLIC",
        "IMMUTABLE",
        "TIER",
        "SCOPES, ROLES",
    ];
    let mut text = aligned(TITLES, accounts.iter().map(row).collect());
    if keys == Keys::Shown {
        for account in accounts {
            for (key, number) in account.keys.iter().zip(1..) {
                let _ = writeln!(text, "{} key {number}: {}", account.name, key.to_base64());
            }
        }
    }
    text
}

/// Formats a JSON array with one object for each removed account.
pub(super) fn removed_json(removed: &[RemovedAccount]) -> String {
    format!("{:#}\n", json!(removed))
}

/// Formats a table of removed accounts.
pub(super) fn removed_table(removed: &[RemovedAccount]) -> String {
    let row = |account: &RemovedAccount| {
        [account.name.clone(), account.removed.clone(), account.kept_until.clone()]
    };
    aligned(["NAME", "REMOVED", "CAN BE RESTORED UNTIL"], removed.iter().map(row).collect())
}

/// Formats a line of titles and a line for each row, in aligned columns. Without rows, the text is empty.
pub(crate) fn aligned<const N: usize>(titles: [&str; N], mut rows: Vec<[String; N]>) -> String {
    let mut text = String::new();
    if rows.is_empty() {
        return text;
    }
    rows.insert(0, titles.map(str::to_owned));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

fn row(account: &Account) -> [String; 9] {
    let switch = |on| if on { "on" } else { "off" }.to_owned();
    let settings = &account.settings;
    let scopes = settings.encryption_scopes.iter().cloned();
    let roles = account.roles.iter().map(|role| {
        format!("{}={}:{}", role.subject, role.service.name(), format!("{:?}", role.role).to_lowercase())
    });
    [
        account.name.clone(),
        if settings.disabled { "disabled" } else { "enabled" }.into(),
        match settings.origin {
            Origin::Command => "",
            Origin::Configuration => "configuration",
            Origin::FormerConfiguration => "no longer configured",
        }
        .into(),
        switch(settings.blob_versioning),
        settings.container_delete_retention_days.map_or_else(|| "off".into(), |days| format!("{days} days")),
        switch(settings.public_access_allowed),
        match (settings.version_immutability, settings.immutable_containers.join(",")) {
            (false, containers) if !containers.is_empty() => containers,
            (on, _) => switch(on),
        },
        settings.default_tier.clone(),
        scopes.chain(roles).collect::<Vec<_>>().join(" "),
    ]
}

#[cfg(test)]
mod tests {
    use lazuli_protocol::account::{Role, RoleAssignment, Settings};
    use lazuli_protocol::{Key, ServiceKind};

    use super::*;

    fn accounts() -> Vec<Account> {
        let role = RoleAssignment { subject: "me".into(), service: ServiceKind::Blob, role: Role::Owner };
        let settings = Settings {
            disabled: true,
            container_delete_retention_days: Some(7),
            encryption_scopes: vec!["scope".into()],
            immutable_containers: vec!["worm".into()],
            origin: Origin::Configuration,
            ..Settings::default()
        };
        let account = |name: &str, settings, roles| {
            let keys = vec![Key::from_bytes(vec![0; 3]), Key::from_bytes(vec![4; 3])];
            Account { name: name.into(), generation: 0, keys, settings, roles }
        };
        vec![account("alpha", Settings::default(), vec![]), account("b23", settings, vec![role])]
    }

    #[test]
    fn table_has_a_line_for_each_account_and_its_keys_only_on_request() {
        let table = super::table(&accounts(), Keys::Shown);
        assert_eq!(
            table,
            "NAME   STATE     ORIGIN         VERSIONS  SOFT DELETE  PUBLIC  IMMUTABLE  TIER  SCOPES, ROLES\n\
             alpha  enabled                  off       off          on      off        Hot\n\
             b23    disabled  configuration  off       7 days       on      worm       Hot   scope me=blob:owner\n\
             alpha key 1: AAAA\n\
             alpha key 2: BAQE\n\
             b23 key 1: AAAA\n\
             b23 key 2: BAQE\n"
        );
        assert!(!super::table(&accounts(), Keys::Hidden).contains("AAAA"));
        assert_eq!(super::table(&[], Keys::Shown), "");
    }

    #[test]
    fn json_is_an_array_of_accounts() {
        let shown: Value = serde_json::from_str(&json(accounts(), Keys::Shown)).unwrap();
        assert_eq!(shown[0]["keys"][1], "BAQE");
        assert_eq!(shown[1]["settings"]["container_delete_retention_days"], 7);
        assert_eq!(shown[1]["roles"][0]["role"], "owner");
        let hidden: Value = serde_json::from_str(&json(accounts(), Keys::Hidden)).unwrap();
        assert_eq!(hidden[0]["name"], "alpha");
        assert!(hidden[0].get("keys").is_none());
    }
}
