//! What may be said of an account, and how it changes: pure rules, the same for a running and a stopped server.

use lazuli_protocol::account::RoleAssignment;
use lazuli_protocol::{Account, Key, ServiceKind, names};
use serde::{Deserialize, Serialize};

/// The account that every client knows by heart.
pub const DEVELOPMENT_ACCOUNT: &str = "devstoreaccount1";
/// Its key, as public as its name.
pub const DEVELOPMENT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// The bytes of a new key, as many as the cloud's keys have.
const KEY_BYTES: usize = 64;
/// The longest retention, in days.
const MAX_RETENTION_DAYS: u16 = 365;
/// Encryption scopes of one account.
const MAX_ENCRYPTION_SCOPES: usize = 256;
/// Containers of one account with version-level immutability of their own.
const MAX_IMMUTABLE_CONTAINERS: usize = 1024;
/// Role assignments of one account.
const MAX_ROLES: usize = 1024;
/// The longest name of an OAuth subject, in bytes.
const MAX_SUBJECT: usize = 256;

/// Why something cannot be said of an account, in words for whoever asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Rejection(pub String);

/// One of an account's two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeySlot {
    /// The first.
    Key1,
    /// The second.
    Key2,
}

/// One change of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    /// Whether every write of a blob makes a version.
    BlobVersioning(bool),
    /// Days that a deleted container can be restored.
    ContainerSoftDelete(Option<u16>),
    /// Whether containers may be made public.
    PublicAccess(bool),
    /// Whether blobs of every container may have immutability policies and legal holds.
    VersionImmutability(bool),
    /// A container whose blobs may have them.
    AddImmutableContainer(String),
    /// A container whose blobs may get no new ones, unless the account says otherwise.
    RemoveImmutableContainer(String),
    /// The tier of blobs that name none.
    DefaultTier(String),
    /// A new encryption scope.
    AddEncryptionScope(String),
    /// An encryption scope that goes.
    RemoveEncryptionScope(String),
    /// What an OAuth subject may do with a service, instead of what it might before.
    SetRole(RoleAssignment),
    /// An OAuth subject may do nothing more with a service.
    RemoveRole {
        /// The token's `oid`, else its `sub`.
        subject: String,
        /// The service.
        service: ServiceKind,
    },
    /// Whether everything is refused.
    Disabled(bool),
}

/// The well-known development key.
pub fn development_key() -> Key {
    // The text above is Base64; a test says so.
    Key::from_base64(DEVELOPMENT_KEY).unwrap_or_else(|| Key::from_bytes(Vec::new()))
}

/// A fresh key.
pub fn random_key() -> Result<Key, getrandom::Error> {
    let mut bytes = vec![0; KEY_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(Key::from_bytes(bytes))
}

/// Whether an account can be added: its name and its keys.
pub(crate) fn check_new(account: &Account) -> Result<(), Rejection> {
    let name = &account.name;
    if !names::is_account(name) {
        return reject(format!("{name:?} is no name of an account: 3 to 24 lower-case letters and digits"));
    }
    check_keys(&account.keys)
}

/// Whether an account can have these keys.
pub(crate) fn check_keys(keys: &[Key]) -> Result<(), Rejection> {
    match keys {
        [] => reject("an account needs a key"),
        [_] | [_, _] if keys.iter().all(|key| !key.bytes().is_empty()) => Ok(()),
        [_] | [_, _] => reject("a key is empty"),
        _ => reject("an account has at most two keys"),
    }
}

/// Puts a new key in a slot. A second key that was not there before is added.
pub(crate) fn replace_key(account: &mut Account, slot: KeySlot, key: Key) -> Result<(), Rejection> {
    check_keys(std::slice::from_ref(&key))?;
    match account.keys.get_mut(slot as usize) {
        Some(old) => *old = key,
        None => account.keys.push(key),
    }
    Ok(())
}

/// Makes one change.
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
            let Some(at) = settings.immutable_containers.iter().position(|held| *held == name) else {
                return reject(format!("container {name:?} has no setting of its own"));
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
    }
    Ok(())
}

fn add_container(containers: &mut Vec<String>, name: String) -> Result<(), Rejection> {
    if names::check_container(&name).is_err() {
        return reject(format!("{name:?} is no name of a container"));
    }
    if containers.contains(&name) {
        return reject(format!("container {name:?} has version-level immutability already"));
    }
    if containers.len() == MAX_IMMUTABLE_CONTAINERS {
        return reject(format!("an account names at most {MAX_IMMUTABLE_CONTAINERS} containers"));
    }
    containers.push(name);
    Ok(())
}

fn add_scope(scopes: &mut Vec<String>, scope: String) -> Result<(), Rejection> {
    let plain = scope.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !plain || !(3..=63).contains(&scope.len()) {
        return reject(format!("{scope:?} is no name of a scope: 3 to 63 letters, digits and hyphens"));
    }
    if scopes.contains(&scope) {
        return reject(format!("there is an encryption scope {scope:?} already"));
    }
    if scopes.len() == MAX_ENCRYPTION_SCOPES {
        return reject(format!("an account has at most {MAX_ENCRYPTION_SCOPES} encryption scopes"));
    }
    scopes.push(scope);
    Ok(())
}

fn set_role(roles: &mut Vec<RoleAssignment>, assignment: RoleAssignment) -> Result<(), Rejection> {
    let RoleAssignment { subject, service, role } = &assignment;
    if subject.is_empty() || subject.len() > MAX_SUBJECT || subject.chars().any(char::is_control) {
        return reject(format!("{subject:?} is no name of a subject"));
    }
    match roles.iter().position(|held| held.subject == *subject && held.service == *service) {
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
    fn names_have_3_to_24_lower_case_letters_and_digits_and_keys_are_one_or_two() {
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
    fn each_setting_changes_what_it_names_within_its_bounds() {
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
    fn a_subject_has_one_role_for_each_service() {
        let mut account = account("abc", 1);
        apply(&mut account, Setting::SetRole(role("s", Role::Reader))).unwrap();
        apply(&mut account, Setting::SetRole(role("s", Role::Owner))).unwrap();
        assert_eq!(account.roles, [role("s", Role::Owner)]);
    }

    #[test]
    fn scopes_and_roles_are_bounded() {
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
    fn a_key_is_replaced_where_it_is_and_a_missing_second_one_is_added() {
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
    fn the_development_key_is_the_one_that_clients_have_built_in() {
        assert_eq!(development_key().to_base64(), DEVELOPMENT_KEY);
        assert_eq!(development_key().bytes().len(), KEY_BYTES);
        assert_ne!(random_key().unwrap(), random_key().unwrap());
    }
}
