//! Frames, as sent over a connection, and the messages in them.

use bytes::{Bytes, BytesMut};
use tokio::io::{self, AsyncRead, AsyncReadExt};

use crate::credits::MAX_PARKED_REQUEST;
use crate::wire::header::{HEADER_SIZE, MAGIC, MessageHeader, SmbCommand};

/// Maximum frame length after login: a write of 8 MiB and the other messages of its compound.
pub(crate) const MAX_FRAME: usize = (8 << 20) + (64 << 10);
/// Maximum frame length before login. A token of 16 KiB fits.
pub(crate) const MAX_FRAME_BYTES_BEFORE_LOGIN: usize = 20 << 10;
/// Maximum number of keep-alives before a frame, until a login. Reading one costs as much as a short frame.
const MAX_KEEP_ALIVES_BEFORE_LOGIN: usize = 16;
/// Maximum number of messages in a compound.
const MAX_COMPOUND: usize = 256;
/// First bytes of an encrypted frame.
pub(crate) const ENCRYPTED_MAGIC: [u8; 4] = *b"\xfdSMB";
/// First bytes of an SMB1 message.
pub(crate) const SMB1_MAGIC: [u8; 4] = *b"\xffSMB";
const PREFIX: usize = 4;

/// The frame violates the protocol, so the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message")]
pub(crate) struct MalformedFrame;

/// One message of a frame.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) header: MessageHeader,
    /// The message from its header up to the next header, including padding.
    pub(crate) bytes: Bytes,
}

impl Message {
    /// Returns a message of a frame. Copies a request that may have to wait out of a long frame, and a write
    /// that is the smaller part of its frame, so that they do not keep the frame in memory.
    fn new(header: MessageHeader, bytes: Bytes, frame: &Bytes) -> Self {
        let command = SmbCommand::from_code(header.command);
        let is_copied = match command {
            Some(SmbCommand::Write) => bytes.len() < frame.len() / 2,
            _ => {
                let waits = command.is_some_and(SmbCommand::may_wait);
                waits && bytes.len() <= MAX_PARKED_REQUEST && frame.len() > MAX_PARKED_REQUEST
            }
        };
        Self { header, bytes: if is_copied { Bytes::copy_from_slice(&bytes) } else { bytes } }
    }
}

/// Limits of a frame that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLimits {
    /// Maximum length of the frame.
    frame: usize,
    /// Maximum number of keep-alives before the frame.
    keep_alives: usize,
}

impl ReadLimits {
    pub(crate) const BEFORE_LOGIN: Self =
        Self { frame: MAX_FRAME_BYTES_BEFORE_LOGIN, keep_alives: MAX_KEEP_ALIVES_BEFORE_LOGIN };
    pub(crate) const AFTER_LOGIN: Self = Self { frame: MAX_FRAME, keep_alives: usize::MAX };
}

/// Reads a frame. Returns `None` at the end of the connection. Calls `limits` once the frame's length is
/// known.
pub(crate) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    limits: impl Fn() -> ReadLimits,
) -> io::Result<Option<BytesMut>> {
    let mut keep_alives = 0;
    loop {
        let mut prefix = [0; PREFIX];
        match stream.read_exact(&mut prefix).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        };
        let [kind, length @ ..] = prefix;
        let length = length.into_iter().fold(0, |length, byte| length << 8 | usize::from(byte));
        match kind {
            0 if length > limits().frame => return Err(io::ErrorKind::InvalidData.into()),
            0 => {
                let mut frame = BytesMut::with_capacity(length);
                let mut rest = stream.take(length as u64);
                while frame.len() < length {
                    if rest.read_buf(&mut frame).await? == 0 {
                        return Ok(None);
                    }
                }
                return Ok(Some(frame));
            }
            // A session keep-alive of NetBIOS.
            0x85 if length == 0 && keep_alives < limits().keep_alives => keep_alives += 1,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Returns the length prefix of a frame.
pub(crate) fn prefix(length: usize) -> [u8; PREFIX] {
    debug_assert!(length < 1 << 24, "the length prefix has 24 bits");
    let [.., a, b, c] = (length as u32).to_be_bytes();
    [0, a, b, c]
}

/// Splits an unencrypted frame into its messages.
pub(crate) fn split(frame: &Bytes) -> Result<Vec<Message>, MalformedFrame> {
    let mut messages = vec![];
    let mut rest = frame.clone();
    loop {
        if messages.len() == MAX_COMPOUND || !rest.starts_with(&MAGIC) || rest.len() < HEADER_SIZE + 2 {
            return Err(MalformedFrame);
        }
        let header = MessageHeader::parse(&rest).map_err(|_| MalformedFrame)?;
        let next = header.next as usize;
        if next == 0 {
            messages.push(Message::new(header, rest, frame));
            return Ok(messages);
        }
        if next < HEADER_SIZE + 2 || !next.is_multiple_of(8) || next >= rest.len() {
            return Err(MalformedFrame);
        }
        let following = rest.split_off(next);
        messages.push(Message::new(header, rest, frame));
        rest = following;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cursor::ByteWriter;

    fn message(next: u32, length: usize) -> Vec<u8> {
        of(SmbCommand::Echo, next, length)
    }

    fn of(command: SmbCommand, next: u32, length: usize) -> Vec<u8> {
        let header = MessageHeader {
            credit_charge: 1,
            status: 0,
            command: command as u16,
            credits: 1,
            flags: 0,
            next,
            message_id: 3,
            async_id: 0,
            tree_id: 0,
            session_id: 0,
            signature: [0; 16],
        };
        let mut writer = ByteWriter::new();
        header.write(&mut writer);
        writer.zeros(length - HEADER_SIZE);
        writer.finish()
    }

    #[test]
    fn a_compound_is_split_into_its_messages() {
        let frame = Bytes::from([message(72, 72), message(0, 68)].concat());
        let messages = split(&frame).unwrap();
        assert_eq!(messages.iter().map(|message| message.bytes.len()).collect::<Vec<_>>(), [72, 68]);
    }

    #[test]
    fn requests_that_may_wait_do_not_keep_a_long_frame_in_memory() {
        for (command, is_copied) in [
            (SmbCommand::Create, true),
            (SmbCommand::Lock, true),
            (SmbCommand::ChangeNotify, true),
            (SmbCommand::Write, true),
            (SmbCommand::Read, false),
        ] {
            let long = 1 << 20;
            let frame =
                Bytes::from([of(SmbCommand::Write, long, long as usize), of(command, 0, 72)].concat());
            let last = split(&frame).unwrap().pop().unwrap();
            assert_eq!(last.bytes, frame[long as usize..]);
            // Succeeds only if the message does not share the frame's memory.
            assert_eq!(frame.try_into_mut().is_ok(), is_copied, "{command:?}");
        }
    }

    #[test]
    fn wrong_offsets_between_messages_are_refused() {
        for frame in [
            message(8, 72),
            message(70, 80),
            message(72, 72),
            message(!7, 72),
            message(0, 65),
            [message(72, 72), message(72, 70)].concat(),
            [message(72, 72), vec![0; 70]].concat(),
            vec![],
        ] {
            assert_eq!(split(&Bytes::from(frame)).err(), Some(MalformedFrame));
        }
        let endless = message(72, 72).repeat(MAX_COMPOUND + 1);
        assert_eq!(split(&Bytes::from(endless)).err(), Some(MalformedFrame));
    }

    fn at_most(frame: usize) -> impl Fn() -> ReadLimits {
        move || ReadLimits { frame, keep_alives: 2 }
    }

    #[tokio::test]
    async fn a_frame_is_read_completely_or_not_at_all() {
        let whole = [&prefix(3)[..], b"abc"].concat();
        assert_eq!(read(&mut &whole[..], at_most(10)).await.unwrap().unwrap(), b"abc"[..]);
        assert!(read(&mut &whole[..6], at_most(10)).await.unwrap().is_none());
        assert!(read(&mut &whole[..], at_most(2)).await.is_err());
        assert!(read(&mut &b"\x81\0\0\0"[..], at_most(10)).await.is_err());
        assert!(read(&mut &[][..], at_most(10)).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn keep_alives_before_a_frame_are_limited() {
        let after = |count| [&b"\x85\0\0\0".repeat(count)[..], &prefix(3)[..], b"abc"].concat();
        assert_eq!(read(&mut &after(2)[..], at_most(10)).await.unwrap().unwrap(), b"abc"[..]);
        assert!(read(&mut &after(3)[..], at_most(10)).await.is_err());
    }
}
