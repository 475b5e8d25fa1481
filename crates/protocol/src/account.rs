//! An account as the services see it: its keys, and the settings that the cloud keeps outside the data protocols.

use serde::{Deserialize, Serialize};

use crate::service::ServiceKind;

/// A secret key of an account. Never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(#[serde(with = "base64_bytes")] Vec<u8>);

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// 3 to 24 lower-case letters and digits.
    pub name: String,
    /// Tells an account from an earlier one of the same name, whose data it must not see. Set when it is added.
    #[serde(default)]
    pub generation: u64,
    /// One or two keys; either may sign.
    pub keys: Vec<Key>,
    /// What `lazuli account set` changes.
    #[serde(default)]
    pub settings: Settings,
    /// Which OAuth subjects may do what.
    #[serde(default)]
    pub roles: Vec<RoleAssignment>,
}

/// Account-wide switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// A disabled account answers 403 `AccountIsDisabled`.
    pub disabled: bool,
    /// Every write of a blob makes a version.
    pub blob_versioning: bool,
    /// Days that a deleted container can be restored; none = off.
    pub container_delete_retention_days: Option<u16>,
    /// Whether containers may be made public.
    pub public_access_allowed: bool,
    /// Whether blobs of every container may have immutability policies and legal holds.
    pub version_immutability: bool,
    /// Containers whose blobs may have them, whatever the account says.
    pub immutable_containers: Vec<String>,
    /// The tier of blobs that name none: Hot, Cool or Cold.
    pub default_tier: String,
    /// Names of encryption scopes.
    pub encryption_scopes: Vec<String>,
}

impl Settings {
    /// Whether blobs of a container may have immutability policies and legal holds.
    pub fn has_version_immutability(&self, container: &str) -> bool {
        self.version_immutability || self.immutable_containers.iter().any(|name| name == container)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            disabled: false,
            blob_versioning: false,
            container_delete_retention_days: None,
            public_access_allowed: true,
            version_immutability: false,
            immutable_containers: Vec::new(),
            default_tier: "Hot".into(),
            encryption_scopes: Vec::new(),
        }
    }
}

/// One OAuth subject's right to one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleAssignment {
    /// The token's `oid`, else its `sub`.
    pub subject: String,
    /// The service it counts for.
    pub service: ServiceKind,
    /// What it allows.
    pub role: Role,
}

/// What an OAuth subject may do, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read and list.
    Reader,
    /// Read, write and delete data.
    Contributor,
    /// Contributor, and access control.
    Owner,
}

impl Key {
    /// A key from its bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// A key from its Base64 text; `None` if that is not Base64 or is empty.
    pub fn from_base64(text: &str) -> Option<Self> {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.decode(text).ok().filter(|b| !b.is_empty()).map(Self)
    }

    /// The Base64 text, as connection strings carry it.
    pub fn to_base64(&self) -> String {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(&self.0)
    }

    /// The bytes that sign.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(d)?).map_err(de::Error::custom)
    }
}
