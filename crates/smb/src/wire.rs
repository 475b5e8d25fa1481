//! The wire format of the messages: parsing and writing, nothing else.
//!
//! Offsets in a message count from its header, so requests are parsed from the whole message.
//! docs/decisions/0015 explains why no crate is used for this.

pub(crate) mod access;
pub(crate) mod close;
pub(crate) mod create;
pub(crate) mod cursor;
pub(crate) mod directory;
mod file_id;
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

pub(crate) use file_id::FileId;
