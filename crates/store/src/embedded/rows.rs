//! Rows in the tree: the encoding of values with their tokens, and reads at a sequence number.
//!
//! A stored value is the stamp of the commit that wrote it (eight little-endian bytes), followed by the
//! service's bytes. The tree verifies the checksum of every block that it loads, so it returns only bytes
//! that were written.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use lazuli_concurrency::Stamp;
use lsm_tree::SeqNo;

use super::view::View;
use crate::{Commit, Condition, Mutation, ReadError, SpaceHeader, SpaceId, Token, keys};

/// Number of reads in this process that found a damaged table.
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

    /// Decodes the value of the row with a full key.
    pub(crate) fn decode(key: &[u8], mut bytes: Bytes) -> Result<Self, ReadError> {
        match bytes.try_get_u64_le() {
            Ok(stamp) => Ok(Self { token: Token(Stamp::from_ticks(stamp)), value: bytes }),
            Err(_) => Err(ReadError::Damaged(format!("{}: no stamp", keys::describe(key)))),
        }
    }
}

/// The rows that a commit depends on, as read at a sequence number. By full key.
pub(crate) struct Preview {
    pub(crate) seqno: SeqNo,
    pub(crate) rows: HashMap<Bytes, Option<Stored>>,
}

/// Reads the rows that a commit names, so that the committer need not. Rows that cannot be read are left to
/// the committer.
pub(crate) fn preview(view: &View, prefix: &Bytes, commit: &Commit, seqno: SeqNo) -> Preview {
    let conditions = commit.conditions.iter().filter_map(|condition| match condition {
        Condition::Absent(key) | Condition::Unchanged(key, _) => Some(key),
        Condition::RangeUnchanged(..) => None,
    });
    let mutations = commit.mutations.iter().map(|mutation| match mutation {
        Mutation::Put(key, _) | Mutation::Delete(key) | Mutation::Add(key, _) => key,
    });
    let mut rows = HashMap::new();
    for key in conditions.chain(mutations) {
        if let Entry::Vacant(entry) = rows.entry(keys::row(prefix, key))
            && let Ok(row) = get(view, entry.key(), seqno)
        {
            entry.insert(row);
        }
    }
    Preview { seqno, rows }
}

/// Maximum bytes of a key in the tree. The keys of rows are shorter.
const MAX_TREE_KEY: usize = u16::MAX as usize;

/// Reads one row at `seqno`.
pub(crate) fn get(view: &View, key: &[u8], seqno: SeqNo) -> Result<Option<Stored>, ReadError> {
    if key.len() > MAX_TREE_KEY {
        return Ok(None);
    }
    let value = view.get(key, seqno).map_err(|error| read_error(error, || keys::describe(key)))?;
    value.map(|value| Stored::decode(key, value.into())).transpose()
}

/// Reads rows in order at `seqno`.
pub(crate) fn range(
    view: &View,
    range: Range<Bytes>,
    seqno: SeqNo,
) -> impl Iterator<Item = Result<(Bytes, Stored), ReadError>> + use<> {
    // A bound that is cut to this length lies between the same rows, because all rows have shorter keys.
    let bound = |key: Bytes| key.slice(..key.len().min(MAX_TREE_KEY));
    let range = bound(range.start)..bound(range.end);
    // The tree panics at an inverted range.
    let range = if range.start < range.end { range } else { range.start.clone()..range.start };
    let start = range.start.clone();
    let place = move || format!("at or after {}", keys::describe(&start));
    view.range(range, seqno).map(move |entry| {
        let entry = entry.map_err(|error| read_error(error, &place))?;
        let key = Bytes::from(entry.key.user_key);
        let stored = Stored::decode(&key, entry.value.into())?;
        Ok((key, stored))
    })
}

/// Reads a space's header at `seqno`.
pub(crate) fn header(view: &View, space: SpaceId, seqno: SeqNo) -> Result<Option<SpaceHeader>, ReadError> {
    match get(view, &keys::header(space), seqno)? {
        Some(stored) => decode_header(space, &stored.value).map(Some),
        None => Ok(None),
    }
}

pub(crate) fn encode_header(header: SpaceHeader) -> [u8; 9] {
    let mut bytes = [u8::from(header.open); 9];
    bytes[..8].copy_from_slice(&header.epoch.to_le_bytes());
    bytes
}

pub(crate) fn decode_header(space: SpaceId, bytes: &[u8]) -> Result<SpaceHeader, ReadError> {
    match bytes.first_chunk::<8>() {
        Some(epoch) if bytes.len() == 9 => {
            Ok(SpaceHeader { epoch: u64::from_le_bytes(*epoch), open: bytes[8] == 1 })
        }
        _ => Err(ReadError::Damaged(format!("header of {space}: wrong length"))),
    }
}

/// Converts an error of the tree. `place` names the rows that were read.
pub(crate) fn read_error(error: lsm_tree::Error, place: impl FnOnce() -> String) -> ReadError {
    use std::io::ErrorKind::{InvalidData, UnexpectedEof};
    let text = format!("{}: {error}", place());
    let error = match error {
        // The file was truncated.
        lsm_tree::Error::Io(error) if matches!(error.kind(), UnexpectedEof | InvalidData) => {
            ReadError::Damaged(text)
        }
        lsm_tree::Error::Io(_) => ReadError::Io(text),
        _ => ReadError::Damaged(text),
    };
    if matches!(error, ReadError::Damaged(_)) {
        DAMAGED_READS.fetch_add(1, Ordering::Relaxed);
    }
    error
}
