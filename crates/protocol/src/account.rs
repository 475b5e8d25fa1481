//! An account as the services see it: its keys, and the settings that the cloud keeps outside the data
//! protocols.

use serde::{Deserialize, Serialize};

use crate::kind::ServiceKind;

/// A secret key of an account. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(#[serde(with = "base64_bytes")] Vec<u8>);

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The name: 3 to 24 lower-case letters and digits.
    pub name: String,
    /// Distinguishes the account from an earlier one of the same name, whose data it must not see. Set when
    /// the account is added.
    #[serde(default)]
    pub generation: u64,
    /// One or two keys. Signatures of each are valid.
    pub keys: Vec<Key>,
    /// Settings that `lazuli account set` changes.
    #[serde(default)]
    pub settings: Settings,
    /// Roles of OAuth subjects.
    #[serde(default)]
    pub roles: Vec<RoleAssignment>,
}

/// Account-wide settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The account is disabled: all requests get 403 `AccountIsDisabled`.
    pub disabled: bool,
    /// Every write of a blob creates a version.
    pub blob_versioning: bool,
    /// Days for which a deleted container can be restored; `None` if off.
    pub container_delete_retention_days: Option<u16>,
    /// Containers may be made public.
    pub public_access_allowed: bool,
    /// Blobs of all containers may have immutability policies and legal holds.
    pub version_immutability: bool,
    /// Further containers whose blobs may have immutability policies and legal holds.
    pub immutable_containers: Vec<String>,
    /// The tier of blobs for which the client names none: Hot, Cool or Cold.
    pub default_tier: String,
    /// Names of encryption scopes.
    pub encryption_scopes: Vec<String>,
    /// Where the account comes from.
    pub origin: Origin,
}

/// Where an account comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// A command added the account, or a new data directory came with it.
    #[default]
    Command,
    /// The configuration names the account.
    Configuration,
    /// The configuration named the account at an earlier start of the server.
    FormerConfiguration,
}

impl Settings {
    /// Returns whether blobs of a container may have immutability policies and legal holds.
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
            origin: Origin::Command,
        }
    }
}

/// One OAuth subject's role for one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleAssignment {
    /// The token's `oid` claim, else its `sub` claim.
    pub subject: String,
    /// The service that the role applies to.
    pub service: ServiceKind,
    /// The role.
    pub role: Role,
}

/// Roles of OAuth subjects, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read and list.
    Reader,
    /// Read, write and delete data.
    Contributor,
    /// Contributor's rights, and access control.
    Owner,
}

impl Key {
    /// Creates a key from its bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Decodes a key; `None` if the text is not Base64 or is empty.
    pub fn from_base64(text: &str) -> Option<Self> {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.decode(text).ok().filter(|b| !b.is_empty()).map(Self)
    }

    /// Returns the Base64 text, as used in connection strings.
    pub fn to_base64(&self) -> String {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(&self.0)
    }

    /// Returns the bytes that sign.
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
