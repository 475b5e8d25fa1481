//! The wire format of the messages: parsing and writing, nothing else.
//!
//! Offsets in a message count from its header, so requests are parsed from the whole message.
//! docs/decisions/0015 explains why no crate is used for this.

pub(crate) mod close;
pub(crate) mod create;
pub(crate) mod cursor;
pub(crate) mod directory;
pub(crate) mod header;
pub(crate) mod info;
pub(crate) mod io;
pub(crate) mod ioctl;
pub(crate) mod lock;
pub(crate) mod negotiate;
pub(crate) mod notify;
pub(crate) mod oplock;
pub(crate) mod session_setup;
pub(crate) mod status;
pub(crate) mod time;

use cursor::{ByteReader, Truncated};

/// The id of an open, by which a client names it.
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
