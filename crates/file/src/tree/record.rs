//! Values of rows: a share, a directory or file in its parent, a directory in its own partition.
//!
//! Each child has the epoch of the share's space in which it was written; [`crate::tree::children`] explains
//! why.

use bytes::Bytes;
use lazuli_concurrency::{ETag, FileLease, Lease, Span, Stamp, Timestamp, Validators};
use lazuli_content::record::{decode_with, encode_with};
use lazuli_copy::CopyState;
use lazuli_extents::Content;
use lazuli_generations::Generation;
use lazuli_protocol::policy::SignedIdentifiers;
use lazuli_protocol::{ErrorCode, Metadata, Refusal};
use lazuli_service::{Damage, record};
use lazuli_store::SpaceId;
use serde::{Deserialize, Serialize};

pub(crate) use lazuli_content::ContentHeaders;
pub(crate) use lazuli_service::Deleted;

/// SMB attributes of a directory.
pub(crate) const DIRECTORY: u32 = 0x10;
/// SMB attributes of a file without other attributes.
pub(crate) const NORMAL: u32 = 0x80;
/// The SMB attribute of a file that must not be changed.
pub(crate) const READ_ONLY: u32 = 0x1;
/// The SMB attribute of a file to archive.
pub(crate) const ARCHIVE: u32 = 0x20;
/// Time for which a change of a share's access tier is shown as pending.
const TIER_TRANSITION: Span = Span::seconds(60);

/// Id of a directory or file in its share, for as long as it exists: a stamp that was taken when it was
/// created, which is not always the stamp of its commit.
/// Clients see it as the file id, and the open-file table uses it as key.
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
    pub(crate) space: SpaceId,
    pub(crate) created: Timestamp,
    pub(crate) modified: Timestamp,
    pub(crate) etag: ETag,
    pub(crate) quota_gib: u32,
    pub(crate) tier: ShareTier,
    /// `None`: unchanged since the share was created.
    pub(crate) tier_changed: Option<Timestamp>,
    pub(crate) metadata: Metadata,
    pub(crate) policies: SignedIdentifiers,
    pub(crate) lease: Lease,
    pub(crate) deleted: Option<Deleted>,
    /// Only in a snapshot of a share.
    pub(crate) snapshot: Option<Snapshot>,
}

/// The part of the history that a snapshot shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// The snapshot shows the tree at the end of this epoch of the share's space.
    pub(crate) epoch: u64,
    /// The epoch has ended, with the share as this row has it. Otherwise the snapshot is being taken, or was
    /// interrupted by a crash.
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
    /// All tiers, with their names in headers.
    pub(crate) const NAMES: [(&'static str, Self); 3] =
        [("TransactionOptimized", Self::TransactionOptimized), ("Hot", Self::Hot), ("Cool", Self::Cool)];

    /// Returns the name in headers.
    pub(crate) fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// The access tier of a share and the previous one. Stored as one number: the tier's own if it never changed.
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

impl Share {
    /// Returns what conditions are evaluated against.
    pub(crate) fn validators(&self) -> Validators {
        Validators { etag: self.etag, last_modified: self.modified }
    }

    /// Sets a new ETag and date, because clients see the change.
    pub(crate) fn touch(&mut self, stamp: Stamp, now: Timestamp) {
        self.etag = stamp.into();
        self.modified = now;
    }

    /// Returns when the share got its access tier.
    pub(crate) fn tier_changed(&self) -> Timestamp {
        self.tier_changed.unwrap_or(self.created)
    }

    /// Returns the pending transition between access tiers, as clients see it.
    pub(crate) fn tier_transition(&self, now: Timestamp) -> Option<&'static str> {
        let previous = self.tier.previous.filter(|_| now < self.tier_changed() + TIER_TRANSITION)?;
        Some(match previous {
            AccessTier::TransactionOptimized => "pending-from-transactionOptimized",
            AccessTier::Hot => "pending-from-hot",
            AccessTier::Cool => "pending-from-cool",
        })
    }

    /// Returns the quota in bytes.
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

    fn kept_until(&self) -> Option<Timestamp> {
        self.deleted.map(|deleted| deleted.until)
    }
}

/// A directory in its own partition. The root has no such row until its properties are changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Own {
    /// The properties of the root. Other directories have them in their parent.
    pub(crate) root: Option<Node>,
}

/// A directory or a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// The epoch of the share's space in which this row was written.
    pub(crate) epoch: u64,
    pub(crate) id: NodeId,
    /// The name as written.
    pub(crate) name: String,
    pub(crate) modified: Timestamp,
    pub(crate) etag: ETag,
    pub(crate) properties: SmbProperties,
    pub(crate) metadata: Metadata,
    /// `None` for a directory.
    pub(crate) file: Option<File>,
}

/// Properties of files, but not of directories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) headers: ContentHeaders,
    pub(crate) lease: FileLease,
    /// The stamp of the creation or replacement. Ranges can be compared between states with the same value.
    pub(crate) incarnation: u64,
    /// The copy that produced or produces the content, until a change other than of ranges.
    pub(crate) copy: Option<CopyState>,
    #[serde(skip)]
    pub(crate) content: Content,
}

/// The properties that SMB clients see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SmbProperties {
    /// As SMB encodes them; never 0.
    pub(crate) attributes: u32,
    pub(crate) created: Timestamp,
    pub(crate) last_write: Timestamp,
    pub(crate) change: Timestamp,
    /// The last-access time, if a client has set it.
    pub(crate) accessed: Option<Timestamp>,
    /// The permission key. `None`: inherited from the share.
    pub(crate) permission: Option<String>,
}

/// Normalizes attributes: a directory has `DIRECTORY`, and a file without attributes has `NORMAL`.
pub(crate) fn normal(attributes: u32, is_directory: bool) -> u32 {
    match attributes & !(NORMAL | DIRECTORY) {
        rest if is_directory => rest | DIRECTORY,
        0 => NORMAL,
        rest => rest,
    }
}

impl Own {
    /// Encodes the row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        record::encode(self)
    }

    /// Decodes the row.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, Damage> {
        record::decode(value)
    }
}

impl Node {
    /// Returns the initial root directory of a share.
    pub(crate) fn root(share: &Share) -> Self {
        let properties = SmbProperties {
            attributes: DIRECTORY,
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

    /// Returns whether it is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.file.is_none()
    }

    /// Returns the length; 0 for a directory.
    pub(crate) fn length(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.content.len())
    }

    /// Returns what conditions are evaluated against.
    pub(crate) fn validators(&self) -> Validators {
        Validators { etag: self.etag, last_modified: self.modified }
    }

    /// Sets a new ETag and date, because clients see the change.
    pub(crate) fn touch(&mut self, stamp: Stamp, now: Timestamp) {
        self.etag = stamp.into();
        self.modified = now;
        self.properties.change = now;
    }

    /// Encodes the row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        let nothing = Content::empty();
        let content = self.file.as_ref().map_or(&nothing, |file| &file.content);
        encode_with(self, &[content])
    }

    /// Decodes the row.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, Damage> {
        let (mut node, [content]) = decode_with::<Self, 1>(value)?;
        if let Some(file) = &mut node.file {
            file.content = content;
        }
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_tier_keeps_its_old_encoding_and_a_changed_one_stores_both() {
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
