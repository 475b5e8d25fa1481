//! The file id, by which a client names an open.

use super::cursor::{ByteReader, Truncated};

/// The id of an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    /// Survives a reconnect, for durable handles.
    pub(crate) persistent: u64,
    /// Unique within its session.
    pub(crate) volatile: u64,
}

impl FileId {
    /// Refers to the open of the previous request in the compound.
    pub(crate) const RELATED: Self = Self { persistent: u64::MAX, volatile: u64::MAX };

    /// Reads a file id.
    pub(crate) fn read(reader: &mut ByteReader<'_>) -> Result<Self, Truncated> {
        Ok(Self { persistent: reader.u64()?, volatile: reader.u64()? })
    }
}
