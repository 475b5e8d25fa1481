//! Messages as they are on the wire: parsed from bytes and written to them, nothing else.
//!
//! Offsets in a message count from its header, so requests are parsed from the whole message. Our own, rather than a crate's:
//! docs/decisions/0015.

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
