//! The documents in Azurite's databases. Fields that the import does not need are left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Part of a file that holds content.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Chunk {
    /// The name of the file.
    pub id: String,
    /// Where the part begins.
    pub offset: u64,
    /// The length of the part.
    pub count: u64,
}

/// A container.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredContainer {
    pub(crate) account_name: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) properties: ContainerProperties,
    #[serde(default)]
    pub(crate) container_acl: Option<Vec<SignedIdentifier>>,
    #[serde(flatten)]
    pub(crate) lease: Lease,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerProperties {
    pub(crate) lease_state: Option<String>,
    pub(crate) public_access: Option<String>,
}

/// A stored access policy.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SignedIdentifier {
    pub(crate) id: String,
    #[serde(rename = "accessPolicy", default)]
    pub(crate) policy: AccessPolicy,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct AccessPolicy {
    #[serde(alias = "startsOn")]
    pub(crate) start: Option<String>,
    #[serde(alias = "expiresOn")]
    pub(crate) expiry: Option<String>,
    #[serde(alias = "permissions")]
    pub(crate) permission: Option<String>,
}

/// The lease of a container or a blob.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lease {
    pub(crate) lease_id: Option<String>,
    pub(crate) lease_duration_seconds: Option<i64>,
    pub(crate) lease_expire_time: Option<String>,
}

/// A blob, a snapshot of a blob, or the name of a blob that has uncommitted blocks only.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Blob {
    pub(crate) account_name: String,
    pub(crate) container_name: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) snapshot: String,
    pub(crate) is_committed: bool,
    #[serde(default)]
    pub(crate) deleted: bool,
    #[serde(default)]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    pub(crate) properties: BlobProperties,
    #[serde(default)]
    pub(crate) blob_tags: Option<BlobTags>,
    /// The content of a blob that was written at once.
    pub(crate) persistency: Option<Chunk>,
    /// The content of a blob that was written in blocks.
    #[serde(default)]
    pub(crate) committed_blocks_in_order: Option<Vec<Block>>,
    /// The content of a page blob.
    #[serde(default)]
    pub(crate) page_ranges_in_order: Option<Vec<PageRange>>,
    #[serde(flatten)]
    pub(crate) lease: Lease,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlobProperties {
    pub(crate) blob_type: String,
    #[serde(default)]
    pub(crate) content_length: u64,
    pub(crate) content_type: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) cache_control: Option<String>,
    #[serde(rename = "contentMD5", default, deserialize_with = "md5")]
    pub(crate) content_md5: Option<Vec<u8>>,
    pub(crate) blob_sequence_number: Option<u64>,
    pub(crate) access_tier: Option<String>,
    #[serde(default)]
    pub(crate) access_tier_inferred: Option<bool>,
    pub(crate) lease_state: Option<String>,
    pub(crate) copy_id: Option<String>,
    #[serde(default)]
    pub(crate) is_sealed: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlobTags {
    #[serde(default)]
    pub(crate) blob_tag_set: Vec<BlobTag>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct BlobTag {
    pub(crate) key: String,
    pub(crate) value: String,
}

/// A block, committed or not.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Block {
    /// The identifier in Base64; empty for blocks of append blobs.
    pub(crate) name: String,
    pub(crate) persistency: Chunk,
}

/// An uncommitted block with the name of its blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StagedBlock {
    pub(crate) account_name: String,
    pub(crate) container_name: String,
    pub(crate) blob_name: String,
    #[serde(flatten)]
    pub(crate) block: Block,
}

/// A range of a page blob; `end` is inclusive.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PageRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) persistency: Chunk,
}

/// A queue.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredQueue {
    pub(crate) account_name: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) queue_acl: Option<Vec<SignedIdentifier>>,
}

/// A message.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredMessage {
    pub(crate) account_name: String,
    pub(crate) queue_name: String,
    pub(crate) message_id: String,
    /// Milliseconds since 1970.
    #[serde(deserialize_with = "milliseconds")]
    pub(crate) time_next_visible: i64,
    pub(crate) persistency: Chunk,
    pub(crate) expiration_time: String,
    #[serde(default)]
    pub(crate) dequeue_count: u64,
}

/// A table.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Table {
    pub(crate) account: String,
    pub(crate) table: String,
    #[serde(default)]
    pub(crate) table_acl: Option<Vec<SignedIdentifier>>,
}

/// An entity.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Entity {
    #[serde(rename = "PartitionKey")]
    pub(crate) partition_key: String,
    #[serde(rename = "RowKey")]
    pub(crate) row_key: String,
    pub(crate) properties: serde_json::Map<String, Value>,
}

/// The properties of a service of an account.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceProperties {
    pub(crate) account_name: String,
    #[serde(default)]
    pub(crate) cors: Option<Vec<CorsRule>>,
    #[serde(default)]
    pub(crate) static_website: Option<StaticWebsite>,
    #[serde(default)]
    pub(crate) default_service_version: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CorsRule {
    pub(crate) allowed_origins: String,
    pub(crate) allowed_methods: String,
    #[serde(default)]
    pub(crate) allowed_headers: String,
    #[serde(default)]
    pub(crate) exposed_headers: String,
    #[serde(default)]
    pub(crate) max_age_in_seconds: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StaticWebsite {
    #[serde(default)]
    pub(crate) enabled: bool,
    pub(crate) index_document: Option<String>,
    pub(crate) error_document404_path: Option<String>,
}

/// Reads an MD5 in any of the shapes that Azurite has written: a list, an object with numbered keys, or a
/// `Buffer` with a list. Other shapes count as absent.
fn md5<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
    let bytes = |list: &[Value]| {
        list.iter().map(|byte| u8::try_from(byte.as_u64()?).ok()).collect::<Option<Vec<u8>>>()
    };
    let digest = match Option::<Value>::deserialize(deserializer)? {
        Some(Value::Array(list)) => bytes(&list),
        Some(Value::Object(mut object)) => match object.remove("data") {
            Some(Value::Array(list)) => bytes(&list),
            _ => (0..object.len())
                .map(|index| u8::try_from(object.get(&index.to_string())?.as_u64()?).ok())
                .collect(),
        },
        _ => None,
    };
    Ok(digest.filter(|digest| digest.len() == 16))
}

/// Reads milliseconds as a number, or as the ISO time of older versions.
fn milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let read = match &value {
        Value::Number(number) => number.as_f64().map(|number| number as i64),
        Value::String(text) => super::unix_milliseconds(text),
        _ => None,
    };
    read.ok_or_else(|| serde::de::Error::custom("not a time"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn md5_is_read_in_every_shape_that_azurite_has_written() {
        let list: Vec<u8> = (0..16).collect();
        let numbered: serde_json::Map<_, _> =
            list.iter().map(|byte| (byte.to_string(), json!(byte))).collect();
        for shape in [json!(list), json!(numbered), json!({"type": "Buffer", "data": list})] {
            let properties = json!({"blobType": "BlockBlob", "contentMD5": shape});
            let properties: BlobProperties = serde_json::from_value(properties).unwrap();
            assert_eq!(properties.content_md5.as_ref(), Some(&list));
        }
        for shape in [json!(null), json!("abc"), json!([1, 2]), json!({"type": "Buffer"}), json!([300])] {
            let properties = json!({"blobType": "BlockBlob", "contentMD5": shape});
            let properties: BlobProperties = serde_json::from_value(properties).unwrap();
            assert_eq!(properties.content_md5, None);
        }
    }

    #[test]
    fn times_of_messages_are_numbers_or_texts() {
        let message = |time: Value| {
            let message = json!({"accountName": "a", "queueName": "q", "messageId": "m", "timeNextVisible": time,
                "persistency": {"id": "x", "offset": 0, "count": 1}, "expirationTime": "9999-12-31T23:59:59.999Z"});
            serde_json::from_value::<StoredMessage>(message).map(|message| message.time_next_visible)
        };
        assert_eq!(message(json!(1795061412172_i64)).unwrap(), 1_795_061_412_172);
        assert_eq!(message(json!("1970-01-01T00:00:01.500Z")).unwrap(), 1500);
        assert!(message(json!("soon")).is_err());
    }
}
