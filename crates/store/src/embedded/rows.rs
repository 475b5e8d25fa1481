//! Rows in the tree: how a value carries its token, and reads at a sequence number.
//!
//! A stored value is the stamp of the commit that wrote it (eight little-endian bytes) and then the service's bytes.
//! The tree verifies the checksum of every block that it loads, so what comes back is what was written.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use lazuli_concurrency::Stamp;
use lsm_tree::SeqNo;
use xxhash_rust::xxh3::Xxh3;

use super::view::View;
use crate::{
    Commit, Condition, MAX_RANGE_DELETE, Mutation, RangeToken, ReadError, SpaceHeader, SpaceId, Token, keys,
};

/// Reads of this process that found a table damaged.
pub(super) static DAMAGED_READS: AtomicU64 = AtomicU64::new(0);

/// A row's token and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) token: Token,
    pub(crate) value: Bytes,
}

impl Stored {
    pub(crate) fn encode(stamp: Stamp, value: &[u8]) -> Bytes {
        let mut bytes = BytesMut::with_capacity(8 + value.len());
        bytes.put_u64_le(stamp.ticks());
        bytes.extend_from_slice(value);
        bytes.freeze()
    }

    pub(crate) fn decode(mut bytes: Bytes) -> Result<Self, ReadError> {
        match bytes.try_get_u64_le() {
            Ok(stamp) => Ok(Self { token: Token(Stamp::from_ticks(stamp)), value: bytes }),
            Err(_) => Err(ReadError::Damaged("a row without a stamp".into())),
        }
    }
}

/// Rows as they were at a sequence number, by full key.
pub(crate) struct Preview {
    pub(crate) seqno: SeqNo,
    pub(crate) rows: HashMap<Bytes, Option<Stored>>,
    /// Ranges that the commit removes.
    pub(crate) removed: Vec<RemovedRange>,
}

/// The rows of a range of full keys, without their values.
pub(crate) struct RemovedRange {
    pub(crate) range: Range<Bytes>,
    pub(crate) rows: Vec<(Bytes, Token)>,
}

impl Preview {
    /// Bytes of the keys in `removed`.
    pub(crate) fn removed_bytes(&self) -> usize {
        self.removed.iter().flat_map(|removed| &removed.rows).map(|(key, _)| key.len()).sum()
    }
}

/// Looks up the rows that a commit names, so that the committer need not. What cannot be read is left to it.
pub(crate) fn preview(view: &View, prefix: &Bytes, commit: &Commit, seqno: SeqNo) -> Preview {
    let conditions = commit.conditions.iter().filter_map(|condition| match condition {
        Condition::Absent(key) | Condition::Unchanged(key, _) => Some(key),
        Condition::RangeUnchanged(..) => None,
    });
    let mutations = commit.mutations.iter().filter_map(|mutation| match mutation {
        Mutation::Put(key, _) | Mutation::Delete(key) | Mutation::Add(key, _) => Some(key),
        Mutation::DeleteRange(_) => None,
    });
    let mut rows = HashMap::new();
    for key in conditions.chain(mutations) {
        if let Entry::Vacant(unknown) = rows.entry(keys::row(prefix, key))
            && let Ok(row) = get(view, unknown.key(), seqno)
        {
            unknown.insert(row);
        }
    }
    let mut removed = vec![];
    for mutation in &commit.mutations {
        if let Mutation::DeleteRange(asked) = mutation {
            let asked = keys::range(prefix, asked);
            let found = self::range(view, asked.clone(), seqno).take(MAX_RANGE_DELETE + 1);
            // Keys are slices of the blocks that they lie in. Those with their values would wait for the committer.
            let found = found.map(|row| row.map(|(key, row)| (Bytes::copy_from_slice(&key), row.token)));
            if let Ok(rows) = found.collect::<Result<Vec<_>, _>>() {
                removed.push(RemovedRange { range: asked, rows });
            }
        }
    }
    Preview { seqno, rows, removed }
}

/// Bytes that the tree takes for a key. No row has one as long.
const MAX_TREE_KEY: usize = u16::MAX as usize;

/// Reads one row as of `seqno`.
pub(crate) fn get(view: &View, key: &[u8], seqno: SeqNo) -> Result<Option<Stored>, ReadError> {
    if key.len() > MAX_TREE_KEY {
        return Ok(None);
    }
    view.get(key, seqno).map_err(read_error)?.map(|v| Stored::decode(v.into())).transpose()
}

/// Reads rows in order as of `seqno`.
pub(crate) fn range(
    view: &View,
    range: Range<Bytes>,
    seqno: SeqNo,
) -> impl Iterator<Item = Result<(Bytes, Stored), ReadError>> + use<> {
    // Cut so, a bound lies between the same rows: theirs are shorter.
    let bound = |key: Bytes| key.slice(..key.len().min(MAX_TREE_KEY));
    let range = bound(range.start)..bound(range.end);
    // The tree takes an inverted range for a mistake.
    let range = if range.start < range.end { range } else { range.start.clone()..range.start };
    view.range(range, seqno).map(|entry| {
        let entry = entry.map_err(read_error)?;
        Ok((entry.key.user_key.into(), Stored::decode(entry.value.into())?))
    })
}

/// Reads a space's header as of `seqno`.
pub(crate) fn header(view: &View, space: SpaceId, seqno: SeqNo) -> Result<Option<SpaceHeader>, ReadError> {
    match get(view, &keys::header(space), seqno)? {
        Some(stored) => decode_header(&stored.value).map(Some),
        None => Ok(None),
    }
}

pub(crate) fn encode_header(header: SpaceHeader) -> [u8; 9] {
    let mut bytes = [u8::from(header.open); 9];
    bytes[..8].copy_from_slice(&header.epoch.to_le_bytes());
    bytes
}

pub(crate) fn decode_header(bytes: &[u8]) -> Result<SpaceHeader, ReadError> {
    match bytes.first_chunk::<8>() {
        Some(epoch) if bytes.len() == 9 => {
            Ok(SpaceHeader { epoch: u64::from_le_bytes(*epoch), open: bytes[8] == 1 })
        }
        _ => Err(ReadError::Damaged("a space header of the wrong length".into())),
    }
}

/// Digests the rows of a range into a token.
#[derive(Default)]
pub(crate) struct RangeDigest(Xxh3);

impl RangeDigest {
    pub(crate) fn add(&mut self, key: &[u8], token: Token) {
        self.0.update(&(key.len() as u64).to_le_bytes());
        self.0.update(key);
        self.0.update(&token.0.ticks().to_le_bytes());
    }

    pub(crate) fn token(&self) -> RangeToken {
        RangeToken(self.0.digest128())
    }
}

pub(crate) fn read_error(error: lsm_tree::Error) -> ReadError {
    use std::io::ErrorKind::{InvalidData, UnexpectedEof};
    let error = match error {
        // A file that was cut short.
        lsm_tree::Error::Io(error) if matches!(error.kind(), UnexpectedEof | InvalidData) => {
            ReadError::Damaged(error.to_string())
        }
        lsm_tree::Error::Io(error) => ReadError::Io(error.to_string()),
        other => ReadError::Damaged(other.to_string()),
    };
    if matches!(error, ReadError::Damaged(_)) {
        DAMAGED_READS.fetch_add(1, Ordering::Relaxed);
    }
    error
}
