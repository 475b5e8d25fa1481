//! What client and server have agreed on.

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dialect {
    Smb202,
    Smb210,
    Smb300,
    Smb302,
    Smb311,
}

/// What client and server have agreed on.
#[derive(Debug)]
pub(crate) struct Negotiated {
    pub(crate) dialect: Dialect,
}
