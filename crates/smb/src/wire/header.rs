//! The message header.

use super::cursor::{ByteReader, ByteWriter, Truncated};
use super::status::Status;

/// Bytes of a header.
pub(crate) const HEADER_SIZE: usize = 64;
/// First bytes of an unencrypted message.
pub(crate) const MAGIC: [u8; 4] = *b"\xfeSMB";
/// Position of the signature.
pub(crate) const SIGNATURE: std::ops::Range<usize> = 48..64;
/// The message id of unsolicited messages.
pub(crate) const UNSOLICITED: u64 = u64::MAX;

/// Flags of a header.
pub(crate) mod flags {
    pub(crate) const RESPONSE: u32 = 0x0000_0001;
    pub(crate) const ASYNC: u32 = 0x0000_0002;
    pub(crate) const RELATED: u32 = 0x0000_0004;
    pub(crate) const SIGNED: u32 = 0x0000_0008;
    pub(crate) const PRIORITY: u32 = 0x0000_0070;
    pub(crate) const REPLAY: u32 = 0x2000_0000;
}

/// The command of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SmbCommand {
    Negotiate,
    SessionSetup,
    Logoff,
    TreeConnect,
    TreeDisconnect,
    Create,
    Close,
    Flush,
    Read,
    Write,
    Lock,
    Ioctl,
    Cancel,
    Echo,
    QueryDirectory,
    ChangeNotify,
    QueryInfo,
    SetInfo,
    OplockBreak,
}

impl SmbCommand {
    pub(crate) const ALL: [Self; 19] = [
        Self::Negotiate,
        Self::SessionSetup,
        Self::Logoff,
        Self::TreeConnect,
        Self::TreeDisconnect,
        Self::Create,
        Self::Close,
        Self::Flush,
        Self::Read,
        Self::Write,
        Self::Lock,
        Self::Ioctl,
        Self::Cancel,
        Self::Echo,
        Self::QueryDirectory,
        Self::ChangeNotify,
        Self::QueryInfo,
        Self::SetInfo,
        Self::OplockBreak,
    ];

    /// Returns the name, as in the protocol's specification without underscores.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Negotiate => "Negotiate",
            Self::SessionSetup => "SessionSetup",
            Self::Logoff => "Logoff",
            Self::TreeConnect => "TreeConnect",
            Self::TreeDisconnect => "TreeDisconnect",
            Self::Create => "Create",
            Self::Close => "Close",
            Self::Flush => "Flush",
            Self::Read => "Read",
            Self::Write => "Write",
            Self::Lock => "Lock",
            Self::Ioctl => "Ioctl",
            Self::Cancel => "Cancel",
            Self::Echo => "Echo",
            Self::QueryDirectory => "QueryDirectory",
            Self::ChangeNotify => "ChangeNotify",
            Self::QueryInfo => "QueryInfo",
            Self::SetInfo => "SetInfo",
            Self::OplockBreak => "OplockBreak",
        }
    }

    /// Returns whether the command may have to wait for other clients.
    pub(crate) const fn may_wait(self) -> bool {
        matches!(self, Self::Create | Self::Lock | Self::ChangeNotify)
    }

    /// Returns the command with this code.
    pub(crate) fn from_code(code: u16) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// The header of a request or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageHeader {
    pub(crate) credit_charge: u16,
    /// In a response the status, in a request the channel sequence number.
    pub(crate) status: u32,
    pub(crate) command: u16,
    /// Credits requested or granted.
    pub(crate) credits: u16,
    pub(crate) flags: u32,
    /// Offset of the next message of a compound, or 0 in the last one.
    pub(crate) next: u32,
    pub(crate) message_id: u64,
    /// Id of an asynchronous message, in place of the tree id.
    pub(crate) async_id: u64,
    pub(crate) tree_id: u32,
    pub(crate) session_id: u64,
    pub(crate) signature: [u8; 16],
}

impl MessageHeader {
    /// Parses a header.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Truncated> {
        let mut reader = ByteReader::new(message);
        if reader.array()? != MAGIC || reader.u16()? != HEADER_SIZE as u16 {
            return Err(Truncated);
        }
        let (credit_charge, status) = (reader.u16()?, reader.u32()?);
        let (command, credits, flags, next) = (reader.u16()?, reader.u16()?, reader.u32()?, reader.u32()?);
        let message_id = reader.u64()?;
        let (mut async_id, mut tree_id) = (0, 0);
        if flags & flags::ASYNC != 0 {
            async_id = reader.u64()?;
        } else {
            reader.skip(4)?;
            tree_id = reader.u32()?;
        }
        let (session_id, signature) = (reader.u64()?, reader.array()?);
        Ok(Self {
            credit_charge,
            status,
            command,
            credits,
            flags,
            next,
            message_id,
            async_id,
            tree_id,
            session_id,
            signature,
        })
    }

    /// Returns the channel sequence number, which the client increments when it has lost a connection of its
    /// session.
    pub(crate) const fn channel_sequence(&self) -> u16 {
        self.status as u16
    }

    /// Returns the header of a response, without credits.
    pub(crate) fn response(&self, status: Status) -> Self {
        let kept = flags::RELATED | flags::PRIORITY | flags::REPLAY;
        Self {
            status: status.0,
            credits: 0,
            flags: self.flags & kept | flags::RESPONSE,
            next: 0,
            async_id: 0,
            signature: [0; 16],
            ..*self
        }
    }

    /// Writes the header.
    pub(crate) fn write(&self, writer: &mut ByteWriter) {
        writer.put(&MAGIC).u16(HEADER_SIZE as u16).u16(self.credit_charge).u32(self.status);
        writer.u16(self.command).u16(self.credits).u32(self.flags).u32(self.next).u64(self.message_id);
        if self.flags & flags::ASYNC == 0 {
            writer.u32(0xfeff).u32(self.tree_id);
        } else {
            writer.u64(self.async_id);
        }
        writer.u64(self.session_id).put(&self.signature);
    }
}
