//! What a row holds: one state of a blob (current, snapshot or earlier version), a staged block, a container.
//!
//! A value is a byte that names its format, the length of its head, the head (postcard: fields in order, so a new field
//! is a new format), and then content as `extents` encodes it: the list of committed blocks, and the bytes. Content
//! comes last and is not copied when a row is read, so a listing pays for heads only.

use bytes::Bytes;
use lazuli_concurrency::{ETag, Lease, Span, Stamp, Timestamp, Validators};
use lazuli_copy::CopyState;
use lazuli_extents::Content;
use lazuli_generations::Generation;
use lazuli_generations::record::{
    self, decode_with, encode_with, etag, lease, optional_stamp, optional_ticks, stamp, ticks,
};
use lazuli_protocol::metadata::Metadata;
use lazuli_protocol::policy::{PublicAccess, SignedIdentifiers};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Row, SpaceId};
use serde::{Deserialize, Serialize};

pub(crate) use lazuli_generations::Damage;

/// One state of a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Blob {
    pub(crate) kind: Kind,
    /// False: there is nothing yet but staged blocks, and perhaps a lease. Only the current state can be so.
    pub(crate) committed: bool,
    #[serde(with = "ticks")]
    pub(crate) created: Timestamp,
    #[serde(with = "ticks")]
    pub(crate) modified: Timestamp,
    #[serde(with = "etag")]
    pub(crate) etag: ETag,
    /// Under versioning: which version this is. Its stamp, shown as a time.
    #[serde(with = "optional_stamp")]
    pub(crate) version: Option<Stamp>,
    /// The write that made the blob or replaced it as a whole: pages can be compared between states that share it.
    #[serde(with = "stamp")]
    pub(crate) incarnation: Stamp,
    pub(crate) headers: ContentHeaders,
    pub(crate) metadata: Metadata,
    pub(crate) tags: Tags,
    /// In the current state: under which claim its tags are indexed, see [`crate::tag_index`]. None without tags.
    #[serde(with = "optional_stamp")]
    pub(crate) tags_claim: Option<Stamp>,
    #[serde(with = "lease")]
    pub(crate) lease: Lease,
    pub(crate) tier: Tiering,
    pub(crate) copy: Option<BlobCopy>,
    pub(crate) encryption: Option<Encryption>,
    /// Of encrypted content: what the encryption of all of it starts from, see [`crate::sealed`].
    pub(crate) nonce: Option<[u8; 16]>,
    pub(crate) deleted: Option<Deleted>,
    #[serde(with = "optional_ticks")]
    pub(crate) expires: Option<Timestamp>,
    pub(crate) immutability: Option<Immutability>,
    pub(crate) legal_hold: LegalHold,
    /// Only in the current state, while blocks are staged. Their time may be up, see [`Self::staged`].
    pub(crate) staging: Option<Staging>,
    /// Committed blocks in order, see [`crate::block_list`]. Empty where no list was committed.
    #[serde(skip)]
    pub(crate) block_list: Content,
    #[serde(skip)]
    pub(crate) content: Content,
}

/// The types of blob, with what only one of them has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Block,
    Page { sequence_number: u64 },
    Append { blocks: u32, sealed: bool },
}

impl Kind {
    /// The value of `x-ms-blob-type`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Block => "BlockBlob",
            Self::Page { .. } => "PageBlob",
            Self::Append { .. } => "AppendBlob",
        }
    }

    /// Whether both are of one type.
    pub(crate) fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// The content headers that a blob is stored and served with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContentHeaders {
    pub(crate) content_type: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) cache_control: Option<String>,
    pub(crate) content_md5: Option<Vec<u8>>,
}

/// Blob index tags, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Tags(pub(crate) Vec<(String, String)>);

/// The access tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Tier {
    Hot,
    Cool,
    Cold,
    Archive,
    /// A premium page blob tier: P4, P6, …
    Premium(u8),
    /// The service chooses, and says what: see [`Tier::chosen`].
    Smart,
}

/// The tier of a blob, and what is being done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tiering {
    /// None: the account's default, shown as inferred.
    pub(crate) tier: Option<Tier>,
    #[serde(with = "optional_ticks")]
    pub(crate) changed: Option<Timestamp>,
    /// On its way out of the archive.
    pub(crate) rehydration: Option<Rehydration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rehydration {
    pub(crate) to: Tier,
    pub(crate) high_priority: bool,
    /// When it is done.
    #[serde(with = "ticks")]
    pub(crate) until: Timestamp,
}

/// The last copy onto a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlobCopy {
    pub(crate) state: CopyState,
    /// An incremental copy of a page blob's snapshots.
    pub(crate) incremental: bool,
    /// The snapshot that an incremental copy made last.
    #[serde(with = "optional_stamp")]
    pub(crate) destination_snapshot: Option<Stamp>,
}

/// Which key the content is encrypted with, if the request named one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Encryption {
    /// The client's own key, of which only the hash is known here.
    Customer { key_sha256: [u8; 32] },
    /// A named key of the account.
    Scope { name: String },
}

/// Deleted, but kept for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deleted {
    #[serde(with = "ticks")]
    pub(crate) at: Timestamp,
    #[serde(with = "ticks")]
    pub(crate) until: Timestamp,
}

impl Deleted {
    /// Deleted now and kept for so many days.
    pub(crate) fn keep(days: u16, now: Timestamp) -> Self {
        Self { at: now, until: now + Span::seconds(u64::from(days) * 86_400) }
    }
}

/// A time until which the blob can neither be changed nor deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Immutability {
    #[serde(with = "ticks")]
    pub(crate) until: Timestamp,
    pub(crate) locked: bool,
}

/// Whether a legal hold keeps the blob as it is. In a row the first two are what a boolean is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LegalHold {
    /// It was never said.
    Never,
    Held,
    /// It does not, and that was said.
    Lifted,
}

impl LegalHold {
    pub(crate) fn is_held(self) -> bool {
        self == Self::Held
    }

    /// What was last said.
    pub(crate) fn said(self) -> Option<bool> {
        (self != Self::Never).then(|| self.is_held())
    }
}

impl From<Option<bool>> for LegalHold {
    fn from(said: Option<bool>) -> Self {
        match said {
            None => Self::Never,
            Some(true) => Self::Held,
            Some(false) => Self::Lifted,
        }
    }
}

impl Blob {
    /// A new blob of no bytes, as a commit with that stamp makes it.
    pub(crate) fn new(kind: Kind, stamp: Stamp, now: Timestamp) -> Self {
        Self {
            kind,
            committed: true,
            created: now,
            modified: now,
            etag: stamp.into(),
            version: None,
            incarnation: stamp,
            headers: ContentHeaders::default(),
            metadata: Metadata::default(),
            tags: Tags::default(),
            tags_claim: None,
            lease: Lease::AVAILABLE,
            tier: Tiering::default(),
            copy: None,
            encryption: None,
            nonce: None,
            deleted: None,
            expires: None,
            immutability: None,
            legal_hold: LegalHold::Never,
            staging: None,
            block_list: Content::empty(),
            content: Content::empty(),
        }
    }

    /// What conditions are judged against.
    pub(crate) fn validators(&self) -> Validators {
        Validators { etag: self.etag, last_modified: self.modified }
    }

    /// A change that clients see: a new tag, a new date.
    pub(crate) fn touch(&mut self, stamp: Stamp, now: Timestamp) {
        self.etag = stamp.into();
        self.modified = now;
    }

    /// Whether it can be read: committed, not deleted, not expired.
    pub(crate) fn is_live(&self, now: Timestamp) -> bool {
        self.committed && self.deleted.is_none() && !self.has_expired(now)
    }

    /// Whether there is something to write to or to lease: also what has nothing but staged blocks.
    pub(crate) fn is_there(&self, now: Timestamp) -> bool {
        self.deleted.is_none() && !self.has_expired(now)
    }

    /// Whether its time is up. Such a blob does not exist any more, and is swept later.
    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        let ran_out = self.expires.is_some_and(|expires| expires <= now) && !self.is_protected(now);
        ran_out
            || self.deleted.is_some_and(|deleted| deleted.until <= now)
            || (!self.committed && self.staged(now).is_none())
    }

    /// When it will have expired, if nothing changes before. Of what has not.
    pub(crate) fn ends_at(&self) -> Option<Timestamp> {
        let policy_ends = self.immutability.map(|policy| policy.until);
        let expires = self.expires.filter(|_| !self.legal_hold.is_held());
        let runs_out = expires.map(|expires| policy_ends.map_or(expires, |ends| ends.max(expires)));
        let staging = self.staging.filter(|_| !self.committed).map(|staging| staging.until);
        [runs_out, self.deleted.map(|deleted| deleted.until), staging].into_iter().flatten().min()
    }

    /// Whether a legal hold or a policy keeps it as it is.
    pub(crate) fn is_protected(&self, now: Timestamp) -> bool {
        self.legal_hold.is_held() || self.immutability.is_some_and(|policy| policy.until > now)
    }

    /// The blocks that are staged at a moment, if their time is not up.
    pub(crate) fn staged(&self, now: Timestamp) -> Option<Staging> {
        self.staging.filter(|staging| staging.until > now)
    }

    /// All content that the row refers to.
    pub(crate) fn contents(&self) -> [&Content; 2] {
        [&self.content, &self.block_list]
    }

    /// The value of its row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        encode_with(self, &[&self.block_list, &self.content])
    }

    /// Reads a row.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, Damage> {
        let (mut blob, [block_list, content]) = decode_with::<Self, 2>(value)?;
        blob.block_list = block_list;
        blob.content = content;
        Ok(blob)
    }
}

/// Blocks are staged for a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Staging {
    /// All their ids have so many bytes.
    pub(crate) id_length: u8,
    /// When they are all gone, unless another one is staged before.
    #[serde(with = "ticks")]
    pub(crate) until: Timestamp,
}

impl Staging {
    /// How long blocks are kept after the last one was staged.
    const KEPT: Span = Span::seconds(7 * 86_400);
    /// How exactly that is known. Noting every block would make those that are put in parallel wait for each other.
    const NOTED_EVERY: Span = Span::seconds(3600);

    /// The first block is staged.
    pub(crate) fn begin(id_length: u8, now: Timestamp) -> Self {
        Self { id_length, until: now + Self::KEPT + Self::NOTED_EVERY }
    }

    /// Another block is staged. The same again if that need not be noted.
    #[must_use]
    pub(crate) fn go_on(self, now: Timestamp) -> Self {
        if self.until < now + Self::KEPT { Self::begin(self.id_length, now) } else { self }
    }
}

/// A block that was put and not yet committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StagedBlock {
    pub(crate) encryption: Option<Encryption>,
    /// What its encryption starts from.
    pub(crate) nonce: Option<[u8; 16]>,
    #[serde(skip)]
    pub(crate) content: Content,
}

impl StagedBlock {
    /// The value of its row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        encode_with(self, &[&self.content])
    }

    /// Reads a row.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, Damage> {
        let (mut block, [content]) = decode_with::<Self, 1>(value)?;
        block.content = content;
        Ok(block)
    }
}

/// A container, current or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Container {
    /// Where its blobs are.
    #[serde(with = "record::space")]
    pub(crate) space: SpaceId,
    #[serde(with = "ticks")]
    pub(crate) modified: Timestamp,
    #[serde(with = "etag")]
    pub(crate) etag: ETag,
    pub(crate) metadata: Metadata,
    pub(crate) public_access: PublicAccess,
    pub(crate) policies: SignedIdentifiers,
    #[serde(with = "lease")]
    pub(crate) lease: Lease,
    /// The scope of blobs that name none.
    pub(crate) default_encryption_scope: Option<String>,
    /// Whether blobs must not name another.
    pub(crate) deny_encryption_scope_override: bool,
    /// Whether a policy or a hold has ever been set in it, see [`crate::protection`].
    pub(crate) protects: bool,
    pub(crate) deleted: Option<Deleted>,
}

impl Container {
    /// What conditions are judged against.
    pub(crate) fn validators(&self) -> Validators {
        Validators { etag: self.etag, last_modified: self.modified }
    }
}

impl Generation for Container {
    const KIND: &'static str = "blob";
    const NOT_FOUND: ErrorCode = ErrorCode::ContainerNotFound;
    const ALREADY_EXISTS: ErrorCode = ErrorCode::ContainerAlreadyExists;

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

/// Reads a blob's row, if it is there.
pub(crate) fn blob(row: Option<&Row>) -> Result<Option<Blob>, Damage> {
    row.map(|row| Blob::decode(&row.value)).transpose()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use lazuli_generations::record::FORMAT;

    fn blob() -> Blob {
        let now = Timestamp::from_unix_seconds(1_700_000_000);
        Blob {
            version: Some(Stamp::from_ticks(5)),
            headers: ContentHeaders { content_type: Some("text/plain".into()), ..Default::default() },
            tags: Tags(vec![("a".into(), "b".into())]),
            deleted: Some(Deleted::keep(3, now)),
            content: Content::inline("hello"),
            block_list: Content::hole(9),
            ..Blob::new(Kind::Page { sequence_number: 7 }, Stamp::from_ticks(9), now)
        }
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        let blob = blob();
        assert_eq!(Blob::decode(&blob.encode().unwrap()), Ok(blob));
    }

    #[test]
    fn a_legal_hold_is_stored_as_when_it_was_a_boolean() {
        for (hold, stored) in [(LegalHold::Never, false), (LegalHold::Held, true)] {
            assert_eq!(record::encode(&hold).unwrap(), record::encode(&stored).unwrap());
        }
        for said in [None, Some(true), Some(false)] {
            assert_eq!(LegalHold::from(said).said(), said);
        }
    }

    #[test]
    fn no_damaged_record_is_read_and_none_panics() {
        let value = blob().encode().unwrap();
        for length in 0..value.len() {
            assert!(Blob::decode(&value.slice(..length)).is_err(), "{length}");
        }
        let newer = [&[FORMAT + 1], &value[1..]].concat();
        assert_eq!(Blob::decode(&newer.into()), Err(Damage::Format(FORMAT + 1)));
    }
}
