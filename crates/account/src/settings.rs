//! Rules for accounts and their changes. They are pure, so they are the same for a running and a stopped
//! server.

use lazuli_protocol::account::{Origin, RoleAssignment};
use lazuli_protocol::{Account, Key, ServiceKind, names};
use serde::{Deserialize, Serialize};

/// The development account that is built into every client.
pub const DEVELOPMENT_ACCOUNT: &str = "devstoreaccount1";
/// The public key of the development account.
pub const DEVELOPMENT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Length of a new key in bytes, the same as in the cloud.
const KEY_BYTES: usize = 64;
/// Maximum retention in days.
const MAX_RETENTION_DAYS: u16 = 365;
/// Maximum number of encryption scopes of one account.
const MAX_ENCRYPTION_SCOPES: usize = 256;
/// Maximum number of containers of one account for which version-level immutability is enabled individually.
const MAX_IMMUTABLE_CONTAINERS: usize = 1024;
/// Maximum number of role assignments of one account.
const MAX_ROLES: usize = 1024;
/// Maximum length of the name of an OAuth subject, in bytes.
const MAX_SUBJECT_BYTES: usize = 256;

/// Why an account or a setting is invalid. The text is shown to the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Rejection(pub String);

/// One of an account's two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeySlot {
    /// The first key.
    Key1,
    /// The second key.
    Key2,
}

/// One change of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    /// Whether every write of a blob makes a version.
    BlobVersioning(bool),
    /// For how many days a deleted container can be restored. `None` switches soft delete off.
    ContainerSoftDelete(Option<u16>),
    /// Whether containers may be made public.
    PublicAccess(bool),
    /// Whether blobs of every container may have immutability policies and legal holds.
    VersionImmutability(bool),
    /// A container whose blobs may have immutability policies and legal holds.
    AddImmutableContainer(String),
    /// A container whose blobs may not get new policies and holds, unless `VersionImmutability` is on.
    RemoveImmutableContainer(String),
    /// The tier of blobs that are written without a tier.
    DefaultTier(String),
    /// A new encryption scope.
    AddEncryptionScope(String),
    /// An encryption scope to remove.
    RemoveEncryptionScope(String),
    /// The role of an OAuth subject for a service. Replaces an earlier role.
    SetRole(RoleAssignment),
    /// Removes the role of an OAuth subject for a service.
    RemoveRole {
        /// The token's `oid`, else its `sub`.
        subject: String,
        /// The service.
        service: ServiceKind,
    },
    /// Whether all requests are refused.
    Disabled(bool),
    /// Where the account comes from.
    Origin(Origin),
}

/// Returns the well-known development key.
pub fn development_key() -> Key {
    // The constant is valid Base64; a test proves it.
    Key::from_base64(DEVELOPMENT_KEY).unwrap_or_else(|| Key::from_bytes(Vec::new()))
}

/// Generates a random key.
pub fn random_key() -> Result<Key, getrandom::Error> {
    let mut bytes = vec![0; KEY_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(Key::from_bytes(bytes))
}

/// Checks the name and the keys of a new account.
pub(crate) fn check_new(account: &Account) -> Result<(), Rejection> {
    check_name(&account.name)?;
    check_keys(&account.keys)
}

/// Checks the name of an account.
pub(crate) fn check_name(name: &str) -> Result<(), Rejection> {
    if names::is_account(name) {
        return Ok(());
    }
    reject(format!("{name:?} is not a valid account name: use 3 to 24 lower-case letters and digits"))
}

/// Checks the keys of an account.
pub(crate) fn check_keys(keys: &[Key]) -> Result<(), Rejection> {
    match keys {
        [] => reject("an account needs a key"),
        [_] | [_, _] if keys.iter().all(|key| !key.bytes().is_empty()) => Ok(()),
        [_] | [_, _] => reject("a key is empty"),
        _ => reject("an account has at most two keys"),
    }
}

/// Replaces the key in a slot. If the account has no second key, `Key2` adds one.
pub(crate) fn replace_key(account: &mut Account, slot: KeySlot, key: Key) -> Result<(), Rejection> {
    check_keys(std::slice::from_ref(&key))?;
    match account.keys.get_mut(slot as usize) {
        Some(old) => *old = key,
        None => account.keys.push(key),
    }
    Ok(())
}

/// Applies one change to an account.
pub(crate) fn apply(account: &mut Account, setting: Setting) -> Result<(), Rejection> {
    let settings = &mut account.settings;
    match setting {
        Setting::BlobVersioning(on) => settings.blob_versioning = on,
        Setting::ContainerSoftDelete(days) => {
            if days.is_some_and(|days| !(1..=MAX_RETENTION_DAYS).contains(&days)) {
                return reject(format!("soft delete lasts 1 to {MAX_RETENTION_DAYS} days"));
            }
            settings.container_delete_retention_days = days;
        }
        Setting::PublicAccess(on) => settings.public_access_allowed = on,
        Setting::VersionImmutability(on) => settings.version_immutability = on,
        Setting::AddImmutableContainer(name) => add_container(&mut settings.immutable_containers, name)?,
        Setting::RemoveImmutableContainer(name) => {
            let Some(at) = settings.immutable_containers.iter().position(|known| *known == name) else {
                return reject(format!("version-level immutability is not enabled for container {name:?}"));
            };
            settings.immutable_containers.remove(at);
        }
        Setting::DefaultTier(tier) => {
            let known = ["Hot", "Cool", "Cold"].into_iter().find(|known| tier.eq_ignore_ascii_case(known));
            let Some(known) = known else { return reject(format!("{tier:?} is not hot, cool or cold")) };
            settings.default_tier = known.into();
        }
        Setting::AddEncryptionScope(scope) => add_scope(&mut settings.encryption_scopes, scope)?,
        Setting::RemoveEncryptionScope(scope) => {
            let Some(at) = settings.encryption_scopes.iter().position(|s| *s == scope) else {
                return reject(format!("there is no encryption scope {scope:?}"));
            };
            settings.encryption_scopes.remove(at);
        }
        Setting::SetRole(assignment) => set_role(&mut account.roles, assignment)?,
        Setting::RemoveRole { subject, service } => {
            let Some(at) = account.roles.iter().position(|r| r.subject == subject && r.service == service)
            else {
                return reject(format!("{subject:?} has no role for {}", service.name()));
            };
            account.roles.remove(at);
        }
        Setting::Disabled(on) => settings.disabled = on,
        Setting::Origin(origin) => settings.origin = origin,
    }
    Ok(())
}

fn add_container(containers: &mut Vec<String>, name: String) -> Result<(), Rejection> {
    if names::check_container(&name).is_err() {
        return reject(format!("{name:?} is not a valid container name"));
    }
    if containers.contains(&name) {
        return reject(format!("version-level immutability is enabled for container {name:?} already"));
    }
    if containers.len() == MAX_IMMUTABLE_CONTAINERS {
        return reject(format!(
            "version-level immutability can be enabled for at most {MAX_IMMUTABLE_CONTAINERS} containers"
        ));
    }
    containers.push(name);
    Ok(())
}

fn add_scope(scopes: &mut Vec<String>, scope: String) -> Result<(), Rejection> {
    let plain = scope.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !plain || !(3..=63).contains(&scope.len()) {
        return reject(format!(
            "{scope:?} is not a valid scope name: use 3 to 63 letters, digits and hyphens"
        ));
    }
    if scopes.contains(&scope) {
        return reject(format!("encryption scope {scope:?} exists already"));
    }
    if scopes.len() == MAX_ENCRYPTION_SCOPES {
        return reject(format!("an account has at most {MAX_ENCRYPTION_SCOPES} encryption scopes"));
    }
    scopes.push(scope);
    Ok(())
}

fn set_role(roles: &mut Vec<RoleAssignment>, assignment: RoleAssignment) -> Result<(), Rejection> {
    let RoleAssignment { subject, service, role } = &assignment;
    if subject.is_empty() || subject.len() > MAX_SUBJECT_BYTES || subject.chars().any(char::is_control) {
        return reject(format!("{subject:?} is not a valid subject"));
    }
    match roles.iter().position(|known| known.subject == *subject && known.service == *service) {
        Some(at) => roles[at].role = *role,
        None if roles.len() == MAX_ROLES => {
            return reject(format!("an account has at most {MAX_ROLES} role assignments"));
        }
        None => roles.push(assignment),
    }
    Ok(())
}

fn reject<T>(reason: impl Into<String>) -> Result<T, Rejection> {
    Err(Rejection(reason.into()))
}

#[cfg(test)]
mod tests {
    use lazuli_protocol::account::Role;

    use super::*;

    fn account(name: &str, keys: usize) -> Account {
        let keys = (0..keys).map(|i| Key::from_bytes(vec![i as u8; 4])).collect();
        Account { name: name.into(), keys, settings: Default::default(), roles: vec![], generation: 0 }
    }

    fn role(subject: &str, role: Role) -> RoleAssignment {
        RoleAssignment { subject: subject.into(), service: ServiceKind::Blob, role }
    }

    #[test]
    fn account_has_a_name_of_3_to_24_lower_case_letters_and_digits_and_one_or_two_keys() {
        for (name, keys, fine) in [
            ("abc", 1, true),
            ("devstoreaccount1", 2, true),
            ("a23456789012345678901234", 1, true),
            ("a234567890123456789012345", 1, false),
            ("ab", 1, false),
            ("", 1, false),
            ("Abc", 1, false),
            ("a-c", 1, false),
            ("äbc", 1, false),
            ("abc-secondary", 1, false),
            ("abc", 0, false),
            ("abc", 3, false),
        ] {
            assert_eq!(check_new(&account(name, keys)).is_ok(), fine, "{name} with {keys} keys");
        }
        assert!(check_keys(&[Key::from_bytes(vec![])]).is_err());
    }

    #[test]
    fn each_valid_setting_changes_the_account_and_invalid_ones_are_refused() {
        for (setting, fine) in [
            (Setting::BlobVersioning(true), true),
            (Setting::ContainerSoftDelete(Some(1)), true),
            (Setting::ContainerSoftDelete(Some(365)), true),
            (Setting::ContainerSoftDelete(Some(0)), false),
            (Setting::ContainerSoftDelete(Some(366)), false),
            (Setting::PublicAccess(false), true),
            (Setting::VersionImmutability(true), true),
            (Setting::AddImmutableContainer("worm".into()), true),
            (Setting::AddImmutableContainer("Worm".into()), false),
            (Setting::AddImmutableContainer("held".into()), false),
            (Setting::RemoveImmutableContainer("held".into()), true),
            (Setting::RemoveImmutableContainer("other".into()), false),
            (Setting::DefaultTier("cold".into()), true),
            (Setting::DefaultTier("archive".into()), false),
            (Setting::AddEncryptionScope("scope-1".into()), true),
            (Setting::AddEncryptionScope("s".into()), false),
            (Setting::AddEncryptionScope("held".into()), false),
            (Setting::RemoveEncryptionScope("held".into()), true),
            (Setting::RemoveEncryptionScope("other".into()), false),
            (Setting::SetRole(role("new", Role::Owner)), true),
            (Setting::SetRole(role("held", Role::Owner)), true),
            (Setting::SetRole(role("", Role::Owner)), false),
            (Setting::SetRole(role("a\nb", Role::Owner)), false),
            (Setting::RemoveRole { subject: "held".into(), service: ServiceKind::Blob }, true),
            (Setting::RemoveRole { subject: "held".into(), service: ServiceKind::Queue }, false),
            (Setting::Disabled(true), true),
            (Setting::Origin(Origin::Configuration), true),
        ] {
            let mut before = account("abc", 2);
            before.settings.encryption_scopes.push("held".into());
            before.settings.immutable_containers.push("held".into());
            before.roles.push(role("held", Role::Reader));
            let mut after = before.clone();
            assert_eq!(apply(&mut after, setting.clone()).is_ok(), fine, "{setting:?}");
            assert_eq!(after != before, fine, "{setting:?}");
        }
    }

    #[test]
    fn subject_has_one_role_for_each_service() {
        let mut account = account("abc", 1);
        apply(&mut account, Setting::SetRole(role("s", Role::Reader))).unwrap();
        apply(&mut account, Setting::SetRole(role("s", Role::Owner))).unwrap();
        assert_eq!(account.roles, [role("s", Role::Owner)]);
    }

    #[test]
    fn number_of_scopes_and_roles_is_limited() {
        let mut account = account("abc", 1);
        for i in 0..MAX_ENCRYPTION_SCOPES {
            apply(&mut account, Setting::AddEncryptionScope(format!("scope-{i}"))).unwrap();
        }
        assert!(apply(&mut account, Setting::AddEncryptionScope("one-more".into())).is_err());
        for i in 0..MAX_ROLES {
            apply(&mut account, Setting::SetRole(role(&i.to_string(), Role::Reader))).unwrap();
        }
        assert!(apply(&mut account, Setting::SetRole(role("more", Role::Reader))).is_err());
        assert!(apply(&mut account, Setting::SetRole(role("0", Role::Owner))).is_ok());
    }

    #[test]
    fn key_is_replaced_in_its_slot_and_a_missing_second_key_is_added() {
        let new = || Key::from_bytes(vec![9; 64]);
        for (keys, slot, expected) in [
            (2, KeySlot::Key1, vec![9, 1]),
            (2, KeySlot::Key2, vec![0, 9]),
            (1, KeySlot::Key1, vec![9]),
            (1, KeySlot::Key2, vec![0, 9]),
        ] {
            let mut account = account("abc", keys);
            replace_key(&mut account, slot, new()).unwrap();
            assert_eq!(account.keys.iter().map(|k| k.bytes()[0]).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn development_key_is_the_one_built_into_clients() {
        assert_eq!(development_key().to_base64(), DEVELOPMENT_KEY);
        assert_eq!(development_key().bytes().len(), KEY_BYTES);
        assert_ne!(random_key().unwrap(), random_key().unwrap());
    }
}
