//! The stream of an export.
//!
//! ```text
//! stream  = "lazuli stream 2\n" frame* end
//! frame   = kind:u8  length:u32  payload
//! clock   = ticks:u64
//! space   = space:u64  token:u64  epoch:u64  open:u8
//! data    = bytes of content, numbered from 0 in the order of the stream
//! pieces  = piece*                     the part of the content in this frame
//! piece   = 0 hole:u64 | 1 cleared:u64 | 2 length:u32 bytes | 3 number of data:u64
//! content = (empty)                    ends the content of the pieces before it
//! row     = space:u64  token:u64  partition  key  value  count:u8  part:u8*
//! end     = rows:u64  bytes of data:u64  SHA-256 of all before it
//! ```
//!
//! All integers are little-endian. `partition`, `key` and `value` have their length, a u32, before them.
//! Clock, spaces and rows come in the order of `transfer::read_all`. The contents of a row come before it, in
//! the order of its parts. Parts are the positions in its value where content references belong, which are
//! empty in the stream.
//!
//! The rows are those of a data directory of format 2. A stream of version 1 differs in its first line only:
//! its rows are those of format 1, which this program reads, too.

use std::io::{self, Read, Write};

use bytes::{Buf, BufMut, Bytes};
use lazuli_concurrency::Stamp;
use lazuli_store::embedded::transfer::Item;
use lazuli_store::{Row, SpaceHeader, SpaceId, Token};
use ring::digest::{Context, SHA256};

const MAGIC: &[u8; 16] = b"lazuli stream 2\n";
/// First line of the previous version, which can still be read.
const MAGIC_BEFORE: &[u8; 16] = b"lazuli stream 1\n";
/// Maximum length of a payload. Data is at most as long as an extent.
const MAX_PAYLOAD: usize = 16 << 20;
const DIGEST_BYTES: usize = 32;

/// Number of rows and bytes of content in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The clock, a space, or a row with the parts where content references belong.
    Item(Item, Vec<u8>),
    Data(Bytes),
    Pieces(Bytes),
    Content,
}

const CLOCK: u8 = 1;
const SPACE: u8 = 2;
const DATA: u8 = 3;
const PIECES: u8 = 4;
const CONTENT: u8 = 5;
const ROW: u8 = 6;
const END: u8 = 7;

/// Writes a stream.
pub(crate) struct StreamWriter<'a> {
    out: &'a mut dyn Write,
    digest: Context,
    counts: Counts,
}

impl<'a> StreamWriter<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        let mut writer = Self { out, digest: Context::new(&SHA256), counts: Counts::default() };
        writer.put(MAGIC)?;
        Ok(writer)
    }

    pub(crate) fn write(&mut self, frame: &Frame) -> io::Result<()> {
        let mut payload = vec![];
        let kind = match frame {
            Frame::Item(item, parts) => put_item(&mut payload, item, parts),
            Frame::Data(bytes) => {
                self.counts.bytes += bytes.len() as u64;
                return self.frame(DATA, bytes);
            }
            Frame::Pieces(pieces) => return self.frame(PIECES, pieces),
            Frame::Content => CONTENT,
        };
        self.counts.rows += u64::from(kind == ROW);
        self.frame(kind, &payload)
    }

    /// Writes the end. Readers refuse a stream without it.
    pub(crate) fn finish(mut self) -> io::Result<Counts> {
        self.put(&[END])?;
        self.put(&(16 + DIGEST_BYTES as u32).to_le_bytes())?;
        self.put(&self.counts.rows.to_le_bytes())?;
        self.put(&self.counts.bytes.to_le_bytes())?;
        self.out.write_all(self.digest.finish().as_ref())?;
        Ok(self.counts)
    }

    fn frame(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        if payload.len() > MAX_PAYLOAD {
            return Err(io::Error::other("a row is too large for a stream"));
        }
        self.put(&[kind])?;
        self.put(&(payload.len() as u32).to_le_bytes())?;
        self.put(payload)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.out.write_all(bytes)
    }
}

fn put_item(payload: &mut Vec<u8>, item: &Item, parts: &[u8]) -> u8 {
    match item {
        Item::Clock(token) => {
            payload.put_u64_le(token.0.ticks());
            CLOCK
        }
        Item::Space { space, header, token } => {
            payload.put_u64_le(space.0);
            payload.put_u64_le(token.0.ticks());
            payload.put_u64_le(header.epoch);
            payload.put_u8(header.open.into());
            SPACE
        }
        Item::Row { space, partition, row } => {
            payload.put_u64_le(space.0);
            payload.put_u64_le(row.token.0.ticks());
            for bytes in [partition, &row.key, &row.value] {
                payload.put_u32_le(bytes.len() as u32);
                payload.put_slice(bytes);
            }
            payload.put_u8(parts.len() as u8);
            payload.put_slice(parts);
            ROW
        }
    }
}

/// Reads a stream.
pub(crate) struct StreamReader<R> {
    input: R,
    digest: Context,
    counts: Counts,
}

impl<R: Read> StreamReader<R> {
    pub(crate) fn new(mut input: R) -> io::Result<Self> {
        let mut magic = [0; MAGIC.len()];
        input.read_exact(&mut magic)?;
        if magic != *MAGIC && magic != *MAGIC_BEFORE {
            return Err(damaged("it does not begin with the first line of a supported version"));
        }
        let mut digest = Context::new(&SHA256);
        digest.update(&magic);
        Ok(Self { input, digest, counts: Counts::default() })
    }

    /// Reads the next frame. Returns `None` at the end of a complete stream, and an error if the stream is
    /// truncated or damaged.
    pub(crate) fn next(&mut self) -> io::Result<Option<Frame>> {
        let mut head = [0; 5];
        self.input.read_exact(&mut head)?;
        self.digest.update(&head);
        let (kind, mut length) = (head[0], &head[1..]);
        let length = length.get_u32_le() as usize;
        if length > MAX_PAYLOAD {
            return Err(damaged("a frame is too long"));
        }
        let mut payload = vec![0; length];
        self.input.read_exact(&mut payload)?;
        if kind == END {
            return self.end(&payload).map(|()| None);
        }
        self.digest.update(&payload);
        let frame = parse(kind, payload.into()).ok_or_else(|| damaged("a frame is malformed"))?;
        match &frame {
            Frame::Item(Item::Row { .. }, _) => self.counts.rows += 1,
            Frame::Data(bytes) => self.counts.bytes += bytes.len() as u64,
            _ => {}
        }
        Ok(Some(frame))
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    fn end(&mut self, payload: &[u8]) -> io::Result<()> {
        let (mut counts, digest) =
            payload.split_at_checked(16).ok_or_else(|| damaged("its end is too short"))?;
        self.digest.update(counts);
        if self.digest.clone().finish().as_ref() != digest {
            return Err(damaged("its checksum is wrong"));
        }
        let counts = Counts { rows: counts.get_u64_le(), bytes: counts.get_u64_le() };
        if counts != self.counts || self.input.read(&mut [0])? != 0 {
            return Err(damaged("its counts do not match its content"));
        }
        Ok(())
    }
}

pub(crate) fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the stream is damaged: {what}"))
}

fn parse(kind: u8, mut payload: Bytes) -> Option<Frame> {
    let token = |payload: &mut Bytes| Some(Token(Stamp::from_ticks(payload.try_get_u64_le().ok()?)));
    let frame = match kind {
        CLOCK => Frame::Item(Item::Clock(token(&mut payload)?), vec![]),
        SPACE => {
            let space = SpaceId(payload.try_get_u64_le().ok()?);
            let token = token(&mut payload)?;
            let epoch = payload.try_get_u64_le().ok()?;
            let header = SpaceHeader { epoch, open: payload.try_get_u8().ok()? == 1 };
            Frame::Item(Item::Space { space, header, token }, vec![])
        }
        ROW => {
            let space = SpaceId(payload.try_get_u64_le().ok()?);
            let token = token(&mut payload)?;
            let mut take = || {
                let length = payload.try_get_u32_le().ok()? as usize;
                (length <= payload.len()).then(|| payload.split_to(length))
            };
            let (partition, key, value) = (take()?, take()?, take()?);
            let count = payload.try_get_u8().ok()?.into();
            let parts = (count <= payload.len()).then(|| payload.split_to(count))?;
            Frame::Item(Item::Row { space, partition, row: Row { key, value, token } }, parts.to_vec())
        }
        DATA => return Some(Frame::Data(payload)),
        PIECES => return Some(Frame::Pieces(payload)),
        CONTENT => Frame::Content,
        _ => return None,
    };
    payload.is_empty().then_some(frame)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns a stream that begins with the given line and has one row.
    fn stream(magic: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        let mut writer =
            StreamWriter { out: &mut out, digest: Context::new(&SHA256), counts: Counts::default() };
        writer.put(magic).unwrap();
        let row = Row { key: "k".into(), value: "v".into(), token: Token(Stamp::from_ticks(3)) };
        let item = Item::Row { space: SpaceId(7), partition: "p".into(), row };
        writer.write(&Frame::Item(item, vec![])).unwrap();
        writer.finish().unwrap();
        out
    }

    #[test]
    fn only_streams_of_this_and_the_previous_version_are_read() {
        let mut written = vec![];
        StreamWriter::new(&mut written).unwrap().finish().unwrap();
        assert!(written.starts_with(MAGIC));
        for magic in [MAGIC, MAGIC_BEFORE] {
            let stream = stream(magic);
            let mut reader = StreamReader::new(&*stream).unwrap();
            assert!(reader.next().unwrap().is_some() && reader.next().unwrap().is_none());
        }
        assert!(StreamReader::new(&*stream(b"lazuli stream 3\n")).is_err());
    }
}
