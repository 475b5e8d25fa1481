//! Encodes the rows of a blob: its states (current, snapshot, earlier version) and staged blocks.
//!
//! A value is a byte that names the format, the length of the head, the head, and then content as `extents`
//! encodes it: the list of committed blocks, and the bytes. The head is postcard, whose fields are in order,
//! so a new field is a new format. Content comes last and is not copied when a row is read, so a listing pays
//! for heads only.

use bytes::Bytes;
use lazuli_concurrency::{ETag, Lease, Stamp, Timestamp, Validators};
use lazuli_content::record::{decode_versioned_with, decode_with, encode_versioned_with, encode_with};
use lazuli_copy::CopyState;
use lazuli_extents::Content;
use lazuli_protocol::metadata::Metadata;
use lazuli_protocol::{Refusal, date};
use lazuli_service::record::Versioned;
use lazuli_store::{Mutation, Row};
use serde::{Deserialize, Serialize};

use super::keys;
use super::staging::{Staging, StagingFormat1};
use super::tier::Tiering;

pub(crate) use lazuli_content::ContentHeaders;
pub(crate) use lazuli_service::{Damage, Deleted};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 512;
/// Maximum length of a page blob, in bytes.
pub(crate) const MAX_PAGE_BLOB: u64 = 8 << 40;
/// The content type of a blob that was created without one.
pub(crate) const DEFAULT_CONTENT_TYPE: &str = "application/octet-stream";

/// One state of a blob. `S` is [`StagingFormat1`] in format 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Blob<S = Staging> {
    pub(crate) kind: Kind,
    /// False while the blob has only staged blocks, and perhaps a lease. True in every state except the
    /// current one.
    pub(crate) committed: bool,
    pub(crate) created: Timestamp,
    pub(crate) modified: Timestamp,
    pub(crate) etag: ETag,
    /// The id of this version, if versioning was on. Clients see it as a time.
    pub(crate) version: Option<Stamp>,
    /// The stamp of the write that created or replaced the whole blob. Pages of two states can be compared if
    /// both have the same incarnation.
    pub(crate) incarnation: Stamp,
    pub(crate) headers: ContentHeaders,
    pub(crate) metadata: Metadata,
    pub(crate) tags: Tags,
    /// The claim under which the tags are indexed, see [`crate::index::tag_index`]. Only in a current state
    /// with tags.
    pub(crate) tags_claim: Option<Stamp>,
    pub(crate) lease: Lease,
    pub(crate) tier: Tiering,
    pub(crate) copy: Option<BlobCopy>,
    pub(crate) encryption: Option<Encryption>,
    /// The nonce of encrypted content, see [`crate::content::sealed`].
    pub(crate) nonce: Option<[u8; 16]>,
    pub(crate) deleted: Option<Deleted>,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) immutability: Option<Immutability>,
    pub(crate) legal_hold: LegalHold,
    /// Describes the staged blocks, which may have expired, see [`Self::staged`]. Only in the current state.
    pub(crate) staging: Option<S>,
    /// Committed blocks in order, see [`crate::content::block_list`]. Empty if no list was committed.
    #[serde(skip)]
    pub(crate) block_list: Content,
    #[serde(skip)]
    pub(crate) content: Content,
}

/// The types of blobs, with the properties of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Block,
    Page { sequence_number: u64 },
    Append { blocks: u32, sealed: bool },
}

impl Kind {
    /// Returns the value of `x-ms-blob-type`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Block => "BlockBlob",
            Self::Page { .. } => "PageBlob",
            Self::Append { .. } => "AppendBlob",
        }
    }

    /// Returns whether both blobs have the same type.
    pub(crate) fn is_same_type(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// Blob index tags, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Tags(pub(crate) Vec<(String, String)>);

/// The last copy to the blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlobCopy {
    pub(crate) state: CopyState,
    /// Whether this was an incremental copy of a page blob's snapshots.
    pub(crate) incremental: bool,
    /// The snapshot that the last incremental copy made.
    pub(crate) destination_snapshot: Option<Stamp>,
}

/// The key that the content is encrypted with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Encryption {
    /// A key of the client. Only the key's hash is stored.
    Customer { key_sha256: [u8; 32] },
    /// A named key of the account.
    Scope { name: String },
}

/// A policy that protects the blob from changes until a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Immutability {
    pub(crate) until: Timestamp,
    pub(crate) locked: bool,
}

impl Immutability {
    /// Returns the value of `x-ms-immutability-policy-mode`.
    pub(crate) const fn mode(&self) -> &'static str {
        if self.locked { "locked" } else { "unlocked" }
    }
}

/// Whether a legal hold protects the blob. The first two variants are encoded like the boolean of earlier
/// formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LegalHold {
    /// No request has set or lifted a hold.
    Never,
    Held,
    /// A hold was lifted.
    Lifted,
}

impl LegalHold {
    pub(crate) fn is_held(self) -> bool {
        self == Self::Held
    }

    /// Returns the value that the last request set, if any request has.
    pub(crate) fn last_set(self) -> Option<bool> {
        (self != Self::Never).then(|| self.is_held())
    }
}

impl From<Option<bool>> for LegalHold {
    fn from(set: Option<bool>) -> Self {
        match set {
            None => Self::Never,
            Some(true) => Self::Held,
            Some(false) => Self::Lifted,
        }
    }
}

impl Blob {
    /// Returns a new empty blob, created by a commit with this stamp.
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

    /// Returns the values that condition headers are compared with.
    pub(crate) fn validators(&self) -> Validators {
        Validators { etag: self.etag, last_modified: self.modified }
    }

    /// Sets a new `ETag` and `Last-Modified`.
    pub(crate) fn touch(&mut self, stamp: Stamp, now: Timestamp) {
        self.etag = stamp.into();
        self.modified = now;
    }

    /// Returns whether clients can read the blob: it is committed, not deleted and not expired.
    pub(crate) fn is_live(&self, now: Timestamp) -> bool {
        self.committed && self.deleted.is_none() && !self.has_expired(now)
    }

    /// Returns whether the blob can be written to or leased. Unlike [`Self::is_live`], the blob may have only
    /// staged blocks.
    pub(crate) fn is_present(&self, now: Timestamp) -> bool {
        self.deleted.is_none() && !self.has_expired(now)
    }

    /// Returns whether the blob has expired. Clients do not see expired blobs; a background task removes
    /// them.
    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        let ran_out = self.expires.is_some_and(|expires| expires <= now) && !self.is_protected(now);
        ran_out
            || self.deleted.is_some_and(|deleted| deleted.until <= now)
            || (!self.committed && self.staged(now).is_none())
    }

    /// Returns the earliest time at which this state expires, or `None` if it never does.
    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        let policy_ends = self.immutability.map(|policy| policy.until);
        let expires = self.expires.filter(|_| !self.legal_hold.is_held());
        let runs_out = expires.map(|expires| policy_ends.map_or(expires, |ends| ends.max(expires)));
        let staging = self.staging.filter(|_| !self.committed).map(|staging| staging.until);
        [runs_out, self.deleted.map(|deleted| deleted.until), staging].into_iter().flatten().min()
    }

    /// Returns whether a legal hold or a policy protects the blob.
    pub(crate) fn is_protected(&self, now: Timestamp) -> bool {
        self.legal_hold.is_held() || self.immutability.is_some_and(|policy| policy.until > now)
    }

    /// Returns the description of the staged blocks, if they have not expired.
    pub(crate) fn staged(&self, now: Timestamp) -> Option<Staging> {
        self.staging.filter(|staging| staging.until > now)
    }

    /// Returns all content that the row refers to.
    pub(crate) fn contents(&self) -> [&Content; 2] {
        [&self.content, &self.block_list]
    }

    /// Returns a copy without the properties of a current state.
    pub(crate) fn as_past_state(&self) -> Self {
        Self { lease: Lease::AVAILABLE, staging: None, expires: None, ..self.clone() }
    }

    /// Returns the blob as an earlier version.
    pub(crate) fn as_version(&self, version: Stamp) -> Self {
        Self { version: Some(version), ..self.as_past_state() }
    }

    /// Returns the blob as a snapshot, which is not a version and not protected.
    pub(crate) fn as_snapshot(&self) -> Self {
        Self { version: None, immutability: None, legal_hold: LegalHold::Never, ..self.as_past_state() }
    }

    /// Returns the change that drops the staged blocks. The same commit must replace or remove the blob's
    /// row, so that no row names their generation.
    pub(crate) fn drop_staged(&self) -> Option<Mutation> {
        self.staging.map(|_| Mutation::Delete(keys::STAGED_COUNT))
    }

    /// Returns the value of the blob's row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        encode_versioned_with(self, &[&self.block_list, &self.content])
    }

    /// Decodes the value of a row.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, Damage> {
        let (mut blob, [block_list, content]) = decode_versioned_with::<Self, 2>(value)?;
        blob.block_list = block_list;
        blob.content = content;
        Ok(blob)
    }
}

impl Versioned for Blob {
    const FORMAT: u8 = 2;
    type Previous = Blob<StagingFormat1>;
}

impl From<Blob<StagingFormat1>> for Blob {
    fn from(before: Blob<StagingFormat1>) -> Self {
        Self {
            kind: before.kind,
            committed: before.committed,
            created: before.created,
            modified: before.modified,
            etag: before.etag,
            version: before.version,
            incarnation: before.incarnation,
            headers: before.headers,
            metadata: before.metadata,
            tags: before.tags,
            tags_claim: before.tags_claim,
            lease: before.lease,
            tier: before.tier,
            copy: before.copy,
            encryption: before.encryption,
            nonce: before.nonce,
            deleted: before.deleted,
            expires: before.expires,
            immutability: before.immutability,
            legal_hold: before.legal_hold,
            staging: before.staging.map(Staging::from),
            block_list: before.block_list,
            content: before.content,
        }
    }
}

/// A block that is not yet committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StagedBlock {
    pub(crate) encryption: Option<Encryption>,
    /// The nonce of the content's encryption.
    pub(crate) nonce: Option<[u8; 16]>,
    #[serde(skip)]
    pub(crate) content: Content,
}

impl StagedBlock {
    /// Returns the value of the block's row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        encode_with(self, &[&self.content])
    }

    /// Decodes the value of a row.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, Damage> {
        let (mut block, [content]) = decode_with::<Self, 1>(value)?;
        block.content = content;
        Ok(block)
    }
}

/// Returns the id of a snapshot or version as text: a time with seven decimals.
pub(crate) fn stamp_text(stamp: Stamp) -> String {
    date::iso8601(Timestamp::from_ticks(stamp.ticks()))
}

/// Decodes the row of a blob, if it exists.
pub(crate) fn blob(row: Option<&Row>) -> Result<Option<Blob>, Damage> {
    row.map(|row| Blob::decode(&row.value)).transpose()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use lazuli_service::record;

    use super::*;

    fn blob() -> Blob {
        let now = Timestamp::from_unix_seconds(1_700_000_000);
        Blob {
            staging: Some(Staging::begin(6, Stamp::from_ticks(8), now)),
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
    fn record_round_trips() {
        let blob = blob();
        assert_eq!(Blob::decode(&blob.encode().unwrap()), Ok(blob));
    }

    #[test]
    fn legal_hold_is_encoded_like_the_boolean_of_earlier_formats() {
        for (hold, stored) in [(LegalHold::Never, false), (LegalHold::Held, true)] {
            assert_eq!(record::encode(&hold).unwrap(), record::encode(&stored).unwrap());
        }
        for set in [None, Some(true), Some(false)] {
            assert_eq!(LegalHold::from(set).last_set(), set);
        }
    }

    #[test]
    fn damaged_record_is_refused_without_a_panic() {
        let value = blob().encode().unwrap();
        for length in 0..value.len() {
            assert!(Blob::decode(&value.slice(..length)).is_err(), "{length}");
        }
        let newer = [&[Blob::FORMAT + 1], &value[1..]].concat();
        assert_eq!(Blob::decode(&newer.into()), Err(Damage::Format(Blob::FORMAT + 1)));
    }

    /// A blob with a staged block as version 0.1.0 wrote it. The row is from the data directory in
    /// `crates/lazuli/tests/fixtures`.
    const FORMAT_1: &[u8] = b"\x01t\x00\x00\x00\x00\x01\xfc\xf1\xc7\x8d\xaa\xa5\xd1\xef\x08\xfc\xf1\xc7\x8d\xaa\
        \xa5\xd1\xef\x08\xc6\xf1\xc7\x8d\xaa\xa5\xd1\xef\x08\x00\xc6\xf1\xc7\x8d\xaa\xa5\xd1\xef\x08\x01\
        \x18application/octet-stream\x00\x00\x00\x00\x00\x02\x05color\x04blue\x04size\x0242\x00\x00\x02\x01\x00\
        \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x06\xb0\x8c\xf5\xe2\xb2\xd6\xd2\xef\x08(\x00\x00\x00\x01\
        \x00\x00\x00 \x00\x00\x00\x06block0\xa0\x86\x01\x00\x00\x00\x00\x00\x00\x06block1\xa1\x86\x01\x00\
        \x00\x00\x00\x00\x00:\x00\x00\x00\x01\x00\x02\x00\x00\x00\x00\x00\x01K\x00\x01\x00\x00\x00\x00\x00\
        \xa0\x86\x01\x00$~\xbdh\x00\x00\x00\x00\xa0\x86\x01\x00\x01d\x00\x01\x00\x00\x00\x00\x00\xa1\x86\x01\
        \x00_\xbe\xd1\x85\x00\x00\x00\x00\xa1\x86\x01\x00";

    #[test]
    fn staged_blocks_of_a_format_1_record_have_generation_0() {
        let value = Bytes::from_static(FORMAT_1);
        let blob = Blob::decode(&value).unwrap();
        assert_eq!(blob.staging.map(|staging| (staging.generation, staging.id_length)), Some((0, 6)));
        assert_eq!((blob.metadata.iter().count(), blob.content.len()), (2, 200_001));
        let again = blob.encode().unwrap();
        assert_eq!((again[0], Blob::decode(&again)), (2, Ok(blob)));
    }
}
