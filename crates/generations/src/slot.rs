//! What the row of a name says: who has the name, or that a rename to it or from it is under way.
//!
//! While a rename is prepared and not yet ended, the rows of both names say so, and hold all that is needed to end it. They
//! are the rows that everybody reads, so nobody can overlook it.

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_concurrency::Stamp;
use lazuli_protocol::Refusal;
use lazuli_store::intent::IntentId;
use lazuli_store::{Partition, Row, SpaceId};
use serde::{Deserialize, Serialize};

use crate::{Damage, Generation, keys, record};

/// What the value of a row begins with while a rename is under way; else it is the format of a record.
const RENAMING: u8 = 0xFE;

/// A rename: what has to be known to carry it out. Never changes once it has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rename {
    source: Vec<u8>,
    target: Vec<u8>,
    /// The value of the row that is renamed.
    value: Vec<u8>,
}

impl Rename {
    pub(crate) fn new(source: &Partition, target: &Partition, value: &Bytes) -> Self {
        Self { source: source.key.to_vec(), target: target.key.to_vec(), value: value.to_vec() }
    }

    /// The partition of the old name.
    pub(crate) fn source(&self) -> Partition {
        Partition::new(SpaceId::ROOT, self.source.clone())
    }

    /// The partition of the new name.
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

/// What the row of either name says while a rename is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renaming {
    pub(crate) id: IntentId,
    pub(crate) side: Side,
    pub(crate) rename: Rename,
}

impl Renaming {
    /// The value of the row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        let fields = record::encode(&(self.id.0.ticks(), self.side, &self.rename))?;
        let mut value = BytesMut::with_capacity(1 + fields.len());
        value.put_u8(RENAMING);
        value.extend_from_slice(&fields);
        Ok(value.freeze())
    }

    /// What is being renamed.
    pub(crate) fn generation<G: Generation>(&self) -> Result<G, Damage> {
        G::decode(&self.rename.value())
    }
}

/// What the row of a name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot<G> {
    Free,
    Held(G),
    Renaming(Renaming),
}

impl<G: Generation> Slot<G> {
    /// Of the row, if it is there.
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

    /// The space that it names. What is being renamed is named by both names, so that it is found whichever is looked at.
    pub(crate) fn space(&self) -> Result<Option<SpaceId>, Damage> {
        match self {
            Self::Free => Ok(None),
            Self::Held(current) => Ok(Some(current.space())),
            Self::Renaming(renaming) => renaming.generation::<G>().map(|current| Some(current.space())),
        }
    }
}

/// The space that a row of the directory names, if it is to be kept: for those who walk over all rows of a store. None for
/// a row of garbage, and for a row of another kind.
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
