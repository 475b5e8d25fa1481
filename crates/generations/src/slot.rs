//! The current row of a name: the generation that has the name, or a rename in progress to it or from it.
//!
//! From the preparation of a rename to its end, the rows of both names record it, with all that is needed to
//! finish or abort it. Every operation on a name reads its current row, so none can miss the rename.

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_concurrency::Stamp;
use lazuli_protocol::Refusal;
use lazuli_service::{Damage, record};
use lazuli_store::intent::IntentId;
use lazuli_store::{Partition, Row, SpaceId};
use serde::{Deserialize, Serialize};

use crate::{Generation, keys};

/// First byte of a row that records a rename. In other rows the first byte is the format of the record.
const RENAMING: u8 = 0xFE;

/// Everything needed to carry out a rename. Immutable once the rename has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rename {
    source: Vec<u8>,
    target: Vec<u8>,
    /// The value of the row to move.
    value: Vec<u8>,
}

impl Rename {
    pub(crate) fn new(source: &Partition, target: &Partition, value: &Bytes) -> Self {
        Self { source: source.key.to_vec(), target: target.key.to_vec(), value: value.to_vec() }
    }

    /// Returns the partition of the old name.
    pub(crate) fn source(&self) -> Partition {
        Partition::new(SpaceId::ROOT, self.source.clone())
    }

    /// Returns the partition of the new name.
    pub(crate) fn target(&self) -> Partition {
        Partition::new(SpaceId::ROOT, self.target.clone())
    }

    pub(crate) fn value(&self) -> Bytes {
        Bytes::copy_from_slice(&self.value)
    }
}

/// The two partitions of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Side {
    Target,
    Source,
}

/// A rename in progress, as the row of either name records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renaming {
    pub(crate) id: IntentId,
    pub(crate) side: Side,
    pub(crate) rename: Rename,
}

impl Renaming {
    /// Encodes the rename as the value of a row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        let fields = record::encode(&(self.id.0.ticks(), self.side, &self.rename))?;
        let mut value = BytesMut::with_capacity(1 + fields.len());
        value.put_u8(RENAMING);
        value.extend_from_slice(&fields);
        Ok(value.freeze())
    }

    /// Decodes the generation that is being renamed.
    pub(crate) fn generation<G: Generation>(&self) -> Result<G, Damage> {
        G::decode(&self.rename.value())
    }
}

/// The decoded current row of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot<G> {
    Free,
    Held(G),
    Renaming(Renaming),
}

impl<G: Generation> Slot<G> {
    /// Decodes the current row. A missing row means that the name is free.
    pub(crate) fn of(row: Option<&Row>) -> Result<Self, Damage> {
        let Some(row) = row else { return Ok(Self::Free) };
        match row.value.split_first() {
            Some((&RENAMING, fields)) => {
                let (id, side, rename) = record::decode(fields)?;
                Ok(Self::Renaming(Renaming { id: IntentId(Stamp::from_ticks(id)), side, rename }))
            }
            _ => G::decode(&row.value).map(Self::Held),
        }
    }

    /// Returns the space that the row names. During a rename both rows name the space, so a scan finds it
    /// under either name.
    pub(crate) fn space(&self) -> Result<Option<SpaceId>, Damage> {
        match self {
            Self::Free => Ok(None),
            Self::Held(current) => Ok(Some(current.space())),
            Self::Renaming(renaming) => renaming.generation::<G>().map(|current| Some(current.space())),
        }
    }
}

/// Returns the space that a row of the directory names, if the space is to be kept. Returns `None` for
/// garbage rows and rows of another kind. For scans of all rows of a store.
pub fn named_space<G: Generation>(partition: &[u8], row: &Row) -> Result<Option<SpaceId>, Damage> {
    if !partition.starts_with(&keys::kind(G::KIND)) {
        return Ok(None);
    }
    if row.key == keys::CURRENT {
        return Slot::<G>::of(Some(row))?.space();
    }
    match keys::deleted_at(&row.key) {
        Some(_) => G::decode(&row.value).map(|deleted| Some(deleted.space())),
        None => Ok(None),
    }
}

/// Returns whether a row records a rename in progress. Such a row does not hold a plain generation record.
pub fn is_being_renamed(row: &Row) -> bool {
    row.key == keys::CURRENT && row.value.first() == Some(&RENAMING)
}
