//! Frames: what comes over the connection in one piece, and the messages that are in it.

use bytes::{Bytes, BytesMut};
use tokio::io::{self, AsyncRead, AsyncReadExt};

use crate::credits::MAX_WAITING;
use crate::wire::header::{Command, HEADER, Header, MAGIC};

/// The longest frame of a client that has logged in: a write of 8 MiB, and what may come with it in a compound.
pub(crate) const MAX_FRAME: usize = (8 << 20) + (64 << 10);
/// The longest frame of a client that has not: a token of 16 KiB has room in it.
pub(crate) const MAX_FIRST_FRAME: usize = 20 << 10;
/// Messages that a compound can have.
const MAX_COMPOUND: usize = 256;
/// What an encrypted message starts with.
pub(crate) const SEALED: [u8; 4] = *b"\xfdSMB";
/// What a message of the first version starts with.
pub(crate) const OLD: [u8; 4] = *b"\xffSMB";
const PREFIX: usize = 4;

/// Not what this protocol sends: the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message")]
pub(crate) struct Malformed;

/// One message of a frame.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    /// From its header to the next one's, what fills the space between them included.
    pub(crate) bytes: Bytes,
}

impl Message {
    /// A message of a frame. One that may have to wait does not keep a long frame in memory, nor does what is written and is
    /// the smaller part of it.
    fn new(header: Header, bytes: Bytes, frame: &Bytes) -> Self {
        let command = Command::of(header.command);
        let is_apart = match command {
            Some(Command::Write) => bytes.len() < frame.len() / 2,
            _ => {
                let waits = command.is_some_and(Command::waits);
                waits && bytes.len() <= MAX_WAITING && frame.len() > MAX_WAITING
            }
        };
        Self { header, bytes: if is_apart { Bytes::copy_from_slice(&bytes) } else { bytes } }
    }
}

/// Reads a frame; none at the end of the connection. The limit is asked for when its length is known.
pub(crate) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    limit: impl Fn() -> usize,
) -> io::Result<Option<BytesMut>> {
    loop {
        let mut prefix = [0; PREFIX];
        match stream.read_exact(&mut prefix).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        };
        let [kind, length @ ..] = prefix;
        let length = length.into_iter().fold(0, |length, byte| length << 8 | usize::from(byte));
        match kind {
            0 if length > limit() => return Err(io::ErrorKind::InvalidData.into()),
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
            // A sign of life.
            0x85 if length == 0 => {}
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// What goes before a frame.
pub(crate) fn prefix(length: usize) -> [u8; PREFIX] {
    debug_assert!(length < 1 << 24, "no frame is so long");
    let [.., a, b, c] = (length as u32).to_be_bytes();
    [0, a, b, c]
}

/// The messages of a plain frame.
pub(crate) fn split(frame: &Bytes) -> Result<Vec<Message>, Malformed> {
    let mut messages = vec![];
    let mut rest = frame.clone();
    loop {
        if messages.len() == MAX_COMPOUND || !rest.starts_with(&MAGIC) || rest.len() < HEADER + 2 {
            return Err(Malformed);
        }
        let header = Header::parse(&rest).map_err(|_| Malformed)?;
        let next = header.next as usize;
        if next == 0 {
            messages.push(Message::new(header, rest, frame));
            return Ok(messages);
        }
        if next < HEADER + 2 || !next.is_multiple_of(8) || next >= rest.len() {
            return Err(Malformed);
        }
        let following = rest.split_off(next);
        messages.push(Message::new(header, rest, frame));
        rest = following;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cursor::Writer;

    fn message(next: u32, length: usize) -> Vec<u8> {
        of(Command::Echo, next, length)
    }

    fn of(command: Command, next: u32, length: usize) -> Vec<u8> {
        let header = Header {
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
        let mut writer = Writer::new();
        header.write(&mut writer);
        writer.zeros(length - HEADER);
        writer.finish()
    }

    #[test]
    fn a_compound_is_taken_apart() {
        let frame = Bytes::from([message(72, 72), message(0, 68)].concat());
        let messages = split(&frame).unwrap();
        assert_eq!(messages.iter().map(|message| message.bytes.len()).collect::<Vec<_>>(), [72, 68]);
    }

    #[test]
    fn what_may_wait_keeps_nothing_of_a_long_frame_but_itself() {
        for (command, is_apart) in [
            (Command::Create, true),
            (Command::Lock, true),
            (Command::ChangeNotify, true),
            (Command::Write, true),
            (Command::Read, false),
        ] {
            let long = 1 << 20;
            let frame = Bytes::from([of(Command::Write, long, long as usize), of(command, 0, 72)].concat());
            let last = split(&frame).unwrap().pop().unwrap();
            assert_eq!(last.bytes, frame[long as usize..]);
            // Nobody else has it, so it can be had whole.
            assert_eq!(frame.try_into_mut().is_ok(), is_apart, "{command:?}");
        }
    }

    #[test]
    fn offsets_that_lead_astray_are_refused() {
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
            assert_eq!(split(&Bytes::from(frame)).err(), Some(Malformed));
        }
        let endless = message(72, 72).repeat(MAX_COMPOUND + 1);
        assert_eq!(split(&Bytes::from(endless)).err(), Some(Malformed));
    }

    #[tokio::test]
    async fn a_frame_is_read_whole_or_not_at_all() {
        let whole = [&prefix(3)[..], b"abc"].concat();
        assert_eq!(read(&mut &whole[..], || 10).await.unwrap().unwrap(), b"abc"[..]);
        assert!(read(&mut &whole[..6], || 10).await.unwrap().is_none());
        assert!(read(&mut &whole[..], || 2).await.is_err());
        assert!(read(&mut &b"\x81\0\0\0"[..], || 10).await.is_err());
        assert!(read(&mut &[][..], || 10).await.unwrap().is_none());
    }
}
