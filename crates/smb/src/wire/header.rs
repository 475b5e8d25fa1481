//! The header of every message.

use super::cursor::{Reader, Truncated, Writer};
use super::status::Status;

/// Bytes that a header takes.
pub(crate) const HEADER: usize = 64;
/// What a plain message starts with.
pub(crate) const MAGIC: [u8; 4] = *b"\xfeSMB";
/// Where the signature is.
pub(crate) const SIGNATURE: std::ops::Range<usize> = 48..64;
/// The message id of what the server sends by itself.
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

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
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

impl Command {
    const ALL: [Self; 19] = [
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

    /// Whether it may have to wait until other clients act.
    pub(crate) const fn waits(self) -> bool {
        matches!(self, Self::Create | Self::Lock | Self::ChangeNotify)
    }

    /// The command of that number.
    pub(crate) fn of(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) credit_charge: u16,
    /// The status in responses; in requests the number of the channel's sequence.
    pub(crate) status: u32,
    pub(crate) command: u16,
    /// Credits that are asked for, or granted.
    pub(crate) credits: u16,
    pub(crate) flags: u32,
    /// Where the next message of a compound starts; 0 in the last.
    pub(crate) next: u32,
    pub(crate) message_id: u64,
    /// Of a message that is asynchronous, in place of the tree.
    pub(crate) async_id: u64,
    pub(crate) tree_id: u32,
    pub(crate) session_id: u64,
    pub(crate) signature: [u8; 16],
}

impl Header {
    /// Reads a header, whose first four bytes have been looked at.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(message);
        if reader.array()? != MAGIC || reader.u16()? != HEADER as u16 {
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

    /// The number that grows when a client has lost one of a session's connections.
    pub(crate) const fn channel_sequence(&self) -> u16 {
        self.status as u16
    }

    /// The header of a response to a request, without credits.
    pub(crate) fn answer(&self, status: Status) -> Self {
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

    /// Writes it.
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.put(&MAGIC).u16(HEADER as u16).u16(self.credit_charge).u32(self.status);
        writer.u16(self.command).u16(self.credits).u32(self.flags).u32(self.next).u64(self.message_id);
        if self.flags & flags::ASYNC == 0 {
            writer.u32(0xfeff).u32(self.tree_id);
        } else {
            writer.u64(self.async_id);
        }
        writer.u64(self.session_id).put(&self.signature);
    }
}
