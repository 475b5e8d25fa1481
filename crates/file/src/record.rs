//! What a row holds: a share, a directory or file in its parent, a directory in its own partition.
//!
//! Every child says in which epoch of the share's space it was written; see [`crate::children`] for what that is good for.

use bytes::Bytes;
use lazuli_concurrency::{ETag, FileLease, Lease, Span, Stamp, Timestamp, Validators};
use lazuli_copy::CopyState;
use lazuli_extents::Content;
use lazuli_generations::record::{self, etag, lease, optional_ticks, ticks};
use lazuli_generations::{Damage, Generation};
use lazuli_protocol::policy::SignedIdentifiers;
use lazuli_protocol::{ErrorCode, Metadata, Refusal};
use lazuli_store::SpaceId;
use serde::{Deserialize, Serialize};

/// How long a change of a share's access tier is shown as pending. Nothing moves meanwhile.
const TIER_TRANSITION: Span = Span::seconds(60);

/// Names a directory or file in its share for as long as it exists, whatever it is called: the stamp of the commit that
/// made it. Clients see it as the file id, and the table of open files is keyed by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory of every share.
    pub const ROOT: Self = Self(0);
}

/// A share, current or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    #[serde(with = "record::space")]
    pub(crate) space: SpaceId,
    #[serde(with = "ticks")]
    pub(crate) created: Timestamp,
    #[serde(with = "ticks")]
    pub(crate) modified: Timestamp,
    #[serde(with = "etag")]
    pub(crate) etag: ETag,
    pub(crate) quota_gib: u32,
    pub(crate) tier: ShareTier,
    /// None: not since the share was created.
    #[serde(with = "optional_ticks")]
    pub(crate) tier_changed: Option<Timestamp>,
    pub(crate) metadata: Metadata,
    pub(crate) policies: SignedIdentifiers,
    #[serde(with = "lease")]
    pub(crate) lease: Lease,
    pub(crate) deleted: Option<Deleted>,
    /// Of a snapshot of a share.
    pub(crate) snapshot: Option<Snapshot>,
}

/// What a snapshot shows, and whether it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// The tree as it was at the end of this epoch of the share's space.
    pub(crate) epoch: u64,
    /// The epoch has ended, and the share was so when it did. Else the snapshot is being taken, or a crash broke it off.
    pub(crate) taken: bool,
}

/// The access tiers of shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AccessTier {
    #[default]
    TransactionOptimized,
    Hot,
    Cool,
}

impl AccessTier {
    /// All, by the names that they have in headers.
    pub(crate) const NAMES: [(&'static str, Self); 3] =
        [("TransactionOptimized", Self::TransactionOptimized), ("Hot", Self::Hot), ("Cool", Self::Cool)];

    /// The name in headers.
    pub(crate) fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// The access tier of a share and the one it had before. In a row it is one number, which for a tier that never changed
/// is the tier's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub(crate) struct ShareTier {
    pub(crate) current: AccessTier,
    pub(crate) previous: Option<AccessTier>,
}

impl From<ShareTier> for u32 {
    fn from(tier: ShareTier) -> Self {
        let previous = tier.previous.map_or(0, |previous| previous as Self + 1);
        tier.current as Self + previous * AccessTier::NAMES.len() as Self
    }
}

impl TryFrom<u32> for ShareTier {
    type Error = &'static str;

    fn try_from(number: u32) -> Result<Self, Self::Error> {
        let tiers = AccessTier::NAMES.map(|(_, tier)| tier);
        let (current, previous) = (number as usize % tiers.len(), number as usize / tiers.len());
        let previous = match previous.checked_sub(1) {
            None => None,
            Some(previous) => Some(*tiers.get(previous).ok_or("no tier has this number")?),
        };
        Ok(Self { current: tiers[current], previous })
    }
}

/// That something was deleted, and until when it can be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deleted {
    #[serde(with = "ticks")]
    pub(crate) at: Timestamp,
    #[serde(with = "ticks")]
    pub(crate) until: Timestamp,
}

impl Deleted {
    /// Deleted now, kept for so many days.
    pub(crate) fn keep(days: u16, now: Timestamp) -> Self {
        Self { at: now, until: now + Span::seconds(u64::from(days) * 86_400) }
    }
}

impl Share {
    /// What conditions are judged against.
    pub(crate) fn validators(&self) -> Validators {
        Validators { etag: self.etag, last_modified: self.modified }
    }

    /// A change that clients see: a new tag, a new date.
    pub(crate) fn touch(&mut self, stamp: Stamp, now: Timestamp) {
        self.etag = stamp.into();
        self.modified = now;
    }

    /// When it got its access tier.
    pub(crate) fn tier_changed(&self) -> Timestamp {
        self.tier_changed.unwrap_or(self.created)
    }

    /// The transition between access tiers that is under way, as clients see it.
    pub(crate) fn tier_transition(&self, now: Timestamp) -> Option<&'static str> {
        let previous = self.tier.previous.filter(|_| now < self.tier_changed() + TIER_TRANSITION)?;
        Some(match previous {
            AccessTier::TransactionOptimized => "pending-from-transactionOptimized",
            AccessTier::Hot => "pending-from-hot",
            AccessTier::Cool => "pending-from-cool",
        })
    }

    /// What may be in it at most.
    pub(crate) fn quota_bytes(&self) -> u64 {
        u64::from(self.quota_gib) << 30
    }
}

impl Generation for Share {
    const KIND: &'static str = "file";
    const NOT_FOUND: ErrorCode = ErrorCode::ShareNotFound;
    const ALREADY_EXISTS: ErrorCode = ErrorCode::ShareAlreadyExists;

    fn space(&self) -> SpaceId {
        self.space
    }

    fn encode(&self) -> Result<Bytes, Refusal> {
        record::encode(self)
    }

    fn decode(value: &Bytes) -> Result<Self, Damage> {
        record::decode(value)
    }

    fn kept_until(&self) -> Option<Timestamp> {
        self.deleted.map(|deleted| deleted.until)
    }
}

/// A directory in its own partition. The root has no such row until it has properties of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Own {
    /// The properties of the root; those of other directories are in their parents.
    pub(crate) root: Option<Node>,
}

/// A directory or a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// The epoch of the share's space in which this was written.
    pub(crate) epoch: u64,
    pub(crate) id: NodeId,
    /// The name as it was written.
    pub(crate) name: String,
    #[serde(with = "ticks")]
    pub(crate) modified: Timestamp,
    #[serde(with = "etag")]
    pub(crate) etag: ETag,
    pub(crate) properties: SmbProperties,
    pub(crate) metadata: Metadata,
    /// Of a file; none of a directory.
    pub(crate) file: Option<File>,
}

/// What only files have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) headers: ContentHeaders,
    #[serde(with = "file_lease")]
    pub(crate) lease: FileLease,
    /// The creation or replacement that this is the content of: ranges can be compared between states that share it.
    pub(crate) incarnation: u64,
    /// The copy that it came from or waits for, until it is changed otherwise than by ranges.
    pub(crate) copy: Option<CopyState>,
    #[serde(skip)]
    pub(crate) content: Content,
}

/// The content headers that a file is stored and served with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContentHeaders {
    /// None: never set. Empty: removed by Set File Properties.
    pub(crate) content_type: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) cache_control: Option<String>,
    pub(crate) content_md5: Option<Vec<u8>>,
}

/// The properties that SMB clients see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SmbProperties {
    /// As SMB has them; never 0.
    pub(crate) attributes: u32,
    #[serde(with = "ticks")]
    pub(crate) created: Timestamp,
    #[serde(with = "ticks")]
    pub(crate) last_write: Timestamp,
    #[serde(with = "ticks")]
    pub(crate) change: Timestamp,
    /// When it was read last, if a client has said so.
    #[serde(with = "optional_ticks")]
    pub(crate) accessed: Option<Timestamp>,
    /// The key of its permission; none: inherited from the share.
    pub(crate) permission: Option<String>,
}

impl Own {
    /// The value of its row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        record::encode(self)
    }

    /// What a row holds.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, Damage> {
        record::decode(value)
    }
}

impl Node {
    /// The root directory of a share, as it is made.
    pub(crate) fn root(share: &Share) -> Self {
        let properties = SmbProperties {
            attributes: crate::smb_properties::DIRECTORY,
            created: share.created,
            last_write: share.created,
            change: share.created,
            accessed: None,
            permission: None,
        };
        Self {
            epoch: 0,
            id: NodeId::ROOT,
            name: String::new(),
            modified: share.created,
            etag: share.etag,
            properties,
            metadata: Metadata::default(),
            file: None,
        }
    }

    /// Whether it is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.file.is_none()
    }

    /// Its length; 0 of a directory.
    pub(crate) fn length(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.content.len())
    }

    /// What conditions are judged against.
    pub(crate) fn validators(&self) -> Validators {
        Validators { etag: self.etag, last_modified: self.modified }
    }

    /// A change that clients see: a new tag, a new date.
    pub(crate) fn touch(&mut self, stamp: Stamp, now: Timestamp) {
        self.etag = stamp.into();
        self.modified = now;
        self.properties.change = now;
    }

    /// The value of its row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        let nothing = Content::empty();
        let content = self.file.as_ref().map_or(&nothing, |file| &file.content);
        record::encode_with(self, &[content])
    }

    /// What a row holds.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, Damage> {
        let (mut node, [content]) = record::decode_with::<Self, 1>(value)?;
        if let Some(file) = &mut node.file {
            file.content = content;
        }
        Ok(node)
    }
}

mod file_lease {
    use lazuli_concurrency::FileLease;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(super) fn serialize<S: Serializer>(lease: &FileLease, s: S) -> Result<S::Ok, S::Error> {
        lease.encode().serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<FileLease, D::Error> {
        FileLease::decode(&Vec::<u8>::deserialize(d)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_that_never_changed_is_stored_as_before_and_a_changed_one_keeps_both() {
        let mut seen = vec![];
        for (_, current) in AccessTier::NAMES {
            let stored = record::encode(&current).unwrap();
            let unchanged = ShareTier { current, previous: None };
            assert_eq!(record::encode(&unchanged).unwrap(), stored);
            assert_eq!(record::decode::<ShareTier>(&stored), Ok(unchanged));
            for (_, previous) in AccessTier::NAMES {
                let tier = ShareTier { current, previous: Some(previous) };
                let stored = record::encode(&tier).unwrap();
                assert_eq!(record::decode::<ShareTier>(&stored), Ok(tier));
                assert!(!seen.contains(&stored));
                seen.push(stored);
            }
        }
        for unknown in [12_u32, 13, u32::MAX] {
            assert_eq!(
                record::decode::<ShareTier>(&record::encode(&unknown).unwrap()),
                Err(Damage::Undecodable)
            );
        }
    }
}
