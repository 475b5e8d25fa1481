//! The rows of the directory of accounts: their keys and values.
//!
//! ```text
//! space     partition        row                   value
//! ROOT      account/NAME     account               an account: keys, settings, roles
//!                            properties/SERVICE    the properties of one service, once they were set
//!                            retired/GENERATION    a removed account that can be restored
//!                            no-default            empty: the development account was removed once
//!           server           master-secret         32 random bytes
//! ```
//!
//! A value is a byte for the format, then JSON (for the secret: plain bytes). Accounts are few, small and
//! read once, so a denser encoding gains nothing. With JSON a field can be added without a new format, and an
//! operator can read a damaged row.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::properties::ServiceProperties;
use lazuli_protocol::{Account, ServiceKind};
use lazuli_store::{Partition, SpaceId, prefix_range};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The format of the values that this program writes.
const FORMAT: u8 = 1;

/// Prefix of the partition keys of accounts.
pub(crate) const ACCOUNTS: &[u8] = b"account/";
/// The first partition key after all accounts.
pub(crate) const AFTER_ACCOUNTS: &[u8] = b"account0";
/// The partition of data of the server as a whole.
const SERVER: &[u8] = b"server";

/// The row of an account's keys, settings and roles.
pub(crate) const ACCOUNT: Bytes = Bytes::from_static(b"account");
/// The row of the server's secret.
pub(crate) const MASTER_SECRET: Bytes = Bytes::from_static(b"master-secret");

/// The row that keeps the development account from being created again after it was removed.
pub(crate) const NO_DEFAULT: Bytes = Bytes::from_static(b"no-default");
/// Prefix of the rows of removed accounts.
const RETIRED: &[u8] = b"retired/";

/// A removed account that can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retired {
    pub(crate) account: Account,
    pub(crate) properties: BTreeMap<ServiceKind, ServiceProperties>,
    /// When the account was removed, in ticks.
    removed: u64,
    /// Until when the account can be restored, in ticks.
    kept_until: u64,
}

impl Retired {
    pub(crate) fn new(
        account: Account,
        properties: BTreeMap<ServiceKind, ServiceProperties>,
        removed: Timestamp,
        kept_until: Timestamp,
    ) -> Self {
        Self { account, properties, removed: removed.ticks(), kept_until: kept_until.ticks() }
    }

    /// Returns when the account was removed.
    pub(crate) fn removed(&self) -> Timestamp {
        Timestamp::from_ticks(self.removed)
    }

    /// Returns until when the account can be restored.
    pub(crate) fn kept_until(&self) -> Timestamp {
        Timestamp::from_ticks(self.kept_until)
    }
}

/// Why a row cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("it has format {0}; this program reads format {FORMAT}")]
    Format(u8),
    #[error("it is empty")]
    Empty,
    #[error("{0}")]
    Content(String),
}

/// Returns the partition of an account.
pub(crate) fn partition(account: &str) -> Partition {
    Partition::new(SpaceId::ROOT, [ACCOUNTS, account.as_bytes()].concat())
}

/// Returns the partition of data of the server as a whole.
pub(crate) fn server() -> Partition {
    Partition::new(SpaceId::ROOT, SERVER)
}

/// Returns the key of the row with a service's properties.
pub(crate) fn properties(service: ServiceKind) -> Bytes {
    format!("properties/{}", service.name()).into()
}

/// Returns the key of the row of a removed account.
pub(crate) fn retired(generation: u64) -> Bytes {
    [RETIRED, format!("{generation:016x}").as_bytes()].concat().into()
}

/// Returns the key range of the removed accounts of one name, oldest first.
pub(crate) fn all_retired() -> Range<Bytes> {
    prefix_range(RETIRED)
}

/// Returns whether the key is that of a removed account.
pub(crate) fn is_retired(key: &[u8]) -> bool {
    key.starts_with(RETIRED)
}

/// Encodes a record as the value of a row.
pub(crate) fn encode(record: &impl Serialize) -> Result<Bytes, RecordError> {
    let mut value = vec![FORMAT];
    serde_json::to_writer(&mut value, record).map_err(|error| RecordError::Content(error.to_string()))?;
    Ok(value.into())
}

/// Encodes plain bytes as the value of a row.
pub(crate) fn encode_bytes(bytes: &[u8]) -> Bytes {
    [&[FORMAT], bytes].concat().into()
}

/// Decodes the value of a row.
pub(crate) fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T, RecordError> {
    serde_json::from_slice(content(value)?).map_err(|error| RecordError::Content(error.to_string()))
}

/// Decodes the value of a row that holds plain bytes.
pub(crate) fn decode_bytes<const N: usize>(value: &[u8]) -> Result<[u8; N], RecordError> {
    let content = content(value)?;
    content.try_into().map_err(|_| RecordError::Content(format!("it holds {} bytes, not {N}", content.len())))
}

fn content(value: &[u8]) -> Result<&[u8], RecordError> {
    match value {
        [FORMAT, content @ ..] => Ok(content),
        [format, ..] => Err(RecordError::Format(*format)),
        [] => Err(RecordError::Empty),
    }
}

/// Returns the partition key and the key of an account's row.
pub fn account_row_key(name: &str) -> (Bytes, Bytes) {
    (partition(name).key, ACCOUNT)
}

/// Decodes a row of [`SpaceId::ROOT`] if it is the row of an account. Returns `None` for other and damaged
/// rows.
pub fn account_of_row(partition: &[u8], key: &[u8], value: &[u8]) -> Option<Account> {
    let is_account = partition.starts_with(ACCOUNTS) && key == ACCOUNT;
    is_account.then(|| decode(value).ok()).flatten()
}

/// Decodes a row of [`SpaceId::ROOT`] if it holds the properties of a service. Returns `None` for other and
/// damaged rows.
pub fn properties_of_row(
    partition: &[u8],
    key: &[u8],
    value: &[u8],
) -> Option<(ServiceKind, ServiceProperties)> {
    let service = ServiceKind::ALL.into_iter().find(|service| key == properties(*service))?;
    partition.starts_with(ACCOUNTS).then(|| decode(value).ok()).flatten().map(|value| (service, value))
}

/// Returns the partition key, the key and the value of an account's row, for a new store.
pub fn account_row(account: &Account) -> Result<(Bytes, Bytes, Bytes), String> {
    let (partition, key) = account_row_key(&account.name);
    Ok((partition, key, encode(account).map_err(|error| error.to_string())?))
}

/// Verifies a row of [`SpaceId::ROOT`] if it belongs to this crate. The error describes the damage.
pub fn check_row(partition: &[u8], key: &[u8], value: &[u8]) -> Result<(), String> {
    let checked = if partition == SERVER && key == MASTER_SECRET {
        decode_bytes::<32>(value).map(drop)
    } else if !partition.starts_with(ACCOUNTS) {
        Ok(())
    } else if key == ACCOUNT {
        decode::<Account>(value).and_then(|account| {
            let name = &partition[ACCOUNTS.len()..];
            let named = account.name.as_bytes() == name;
            named.then_some(()).ok_or_else(|| {
                RecordError::Content(format!("the row holds account {} instead", account.name))
            })
        })
    } else if ServiceKind::ALL.into_iter().any(|service| key == properties(service)) {
        decode::<ServiceProperties>(value).map(drop)
    } else if is_retired(key) {
        decode::<Retired>(value).map(drop)
    } else if key == NO_DEFAULT {
        decode_bytes::<0>(value).map(drop)
    } else {
        Err(RecordError::Content("unknown key".into()))
    };
    checked.map_err(|error| format!("{} {}: {error}", partition.escape_ascii(), key.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_starts_with_its_format_and_other_formats_are_refused() {
        let value = encode(&ServiceProperties::default()).unwrap();
        assert_eq!(value[0], FORMAT);
        assert_eq!(decode::<ServiceProperties>(&value), Ok(ServiceProperties::default()));
        let newer = [&[FORMAT + 1], &value[1..]].concat();
        assert_eq!(decode::<ServiceProperties>(&newer), Err(RecordError::Format(2)));
        assert_eq!(decode::<ServiceProperties>(b""), Err(RecordError::Empty));
        assert!(matches!(decode::<ServiceProperties>(&[FORMAT, b'{']), Err(RecordError::Content(_))));
        assert!(decode_bytes::<32>(&encode_bytes(&[1; 31])).is_err());
    }

    #[test]
    fn missing_field_of_an_older_version_has_its_default() {
        let stored = [&[FORMAT], &br#"{"name":"abc","keys":["AAAA"]}"#[..]].concat();
        let account: Account = decode(&stored).unwrap();
        assert_eq!(account.settings, lazuli_protocol::account::Settings::default());
    }

    #[test]
    fn rows_are_verified_according_to_their_key() {
        let account = br#"{"name":"abc","keys":["AAAA"]}"#;
        let with_format = |content: &[u8]| [&[FORMAT], content].concat();
        for (partition, key, value, fine) in [
            ("account/abc", "account", with_format(account), true),
            ("account/abd", "account", with_format(account), false),
            ("account/abc", "account", account.to_vec(), false),
            ("account/abc", "properties/blob", with_format(b"{}"), true),
            ("account/abc", "properties/blob", with_format(b"1"), false),
            ("account/abc", "properties/fish", with_format(b"{}"), false),
            ("account/abc", "retired/0000000000000001", with_format(b"{}"), false),
            ("account/abc", "no-default", with_format(b""), true),
            ("account/abc", "no-default", with_format(b"1"), false),
            ("server", "master-secret", with_format(&[7; 32]), true),
            ("server", "master-secret", with_format(&[7; 33]), false),
            ("of another crate", "row", vec![], true),
        ] {
            let checked = check_row(partition.as_bytes(), key.as_bytes(), &value);
            assert_eq!(checked.is_ok(), fine, "{partition} {key}: {checked:?}");
        }
    }
}
