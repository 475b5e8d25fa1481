//! Writes a data directory as a stream.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use lazuli_content::record;
use lazuli_extents::{Content, ExtentId, Extents, LocalExtents, Piece, Pieces};
use lazuli_store::embedded::transfer::{self, Item};
use lazuli_store::{ReadError, Row};
use tokio::runtime::Runtime;

use super::stream::{Counts, Frame, StreamWriter};
use crate::Failure;
use crate::data::STORE;
use crate::services::{self, RowReader};

/// Approximate number of bytes of pieces in one frame.
const PIECES_BYTES: usize = 1 << 20;

/// Exports the data directory `dir`, which no process may change.
pub(crate) fn export(dir: &Path, out: &mut dyn Write) -> Result<Counts, Failure> {
    export_then(dir, out, || Ok(()))
}

/// Exports like [`export`], but writes the end of the stream only if `then` succeeds.
pub(crate) fn export_then(
    dir: &Path,
    out: &mut dyn Write,
    then: impl FnOnce() -> Result<(), Failure>,
) -> Result<Counts, Failure> {
    let extents = LocalExtents::open_read_only(dir).map_err(Failure::failed)?;
    let mut export = Export::new(Arc::new(extents), out)?;
    let read = transfer::read_all(&dir.join(STORE), |item| export.item(item).map_err(ReadError::Io));
    read.map_err(Failure::failed)?;
    then()?;
    export.finish()
}

/// Writes items and their content as a stream.
pub(crate) struct Export<'a> {
    runtime: Runtime,
    extents: Arc<dyn Extents>,
    readers: [RowReader; 5],
    /// The number of each extent range already in the stream: about 40 bytes per entry.
    written: HashMap<(ExtentId, u32, u32), u64>,
    stream: StreamWriter<'a>,
}

impl<'a> Export<'a> {
    pub(crate) fn new(extents: Arc<dyn Extents>, out: &'a mut dyn Write) -> Result<Self, Failure> {
        Ok(Self {
            runtime: Runtime::new().map_err(Failure::failed)?,
            extents,
            readers: services::readers(),
            written: HashMap::new(),
            stream: StreamWriter::new(out).map_err(Failure::failed)?,
        })
    }

    /// Ends the stream.
    pub(crate) fn finish(self) -> Result<Counts, Failure> {
        self.stream.finish().map_err(Failure::failed)
    }

    /// Writes the next item. Rows of the directory must come before those of the spaces that they name.
    pub(crate) fn item(&mut self, item: Item) -> Result<(), String> {
        let Item::Row { space, partition, row } = item else { return self.write(&Frame::Item(item, vec![])) };
        let mut contents = vec![];
        for reader in &mut self.readers {
            contents.extend(reader(space, &partition, &row)?);
        }
        contents.retain(|content| content.as_inline().is_none());
        let (value, taken) = record::take_contents(&row.value, &contents)
            .map_err(|_| "a file is being moved: start a server once, then export again".to_owned())?;
        let mut parts = vec![];
        for (part, content) in taken {
            self.content(&content)?;
            parts.push(part);
        }
        let item = Item::Row { space, partition, row: Row { value, ..row } };
        self.write(&Frame::Item(item, parts))
    }

    fn content(&mut self, content: &Content) -> Result<(), String> {
        let mut pieces = Pieces::new(&self.extents, content, 0..content.len());
        let mut encoded = vec![];
        while let Some((_, piece)) =
            self.runtime.block_on(pieces.next()).map_err(|error| error.to_string())?
        {
            match piece {
                Piece::Hole(length) => {
                    encoded.put_u8(0);
                    encoded.put_u64_le(length);
                }
                Piece::Cleared(length) => {
                    encoded.put_u8(1);
                    encoded.put_u64_le(length);
                }
                Piece::Inline(bytes) => {
                    encoded.put_u8(2);
                    encoded.put_u32_le(bytes.len() as u32);
                    encoded.put_slice(&bytes);
                }
                Piece::Data { extent, offset, len } => {
                    let next = self.written.len() as u64;
                    let number = *self.written.entry((extent.id, offset, len)).or_insert(next);
                    if number == next {
                        let read = self.extents.read(&extent, offset..offset + len);
                        let bytes = self.runtime.block_on(read).map_err(|error| error.to_string())?;
                        self.write(&Frame::Data(bytes))?;
                    }
                    encoded.put_u8(3);
                    encoded.put_u64_le(number);
                }
            }
            if encoded.len() >= PIECES_BYTES {
                self.write(&Frame::Pieces(Bytes::from(std::mem::take(&mut encoded))))?;
            }
        }
        if !encoded.is_empty() {
            self.write(&Frame::Pieces(encoded.into()))?;
        }
        self.write(&Frame::Content)
    }

    fn write(&mut self, frame: &Frame) -> Result<(), String> {
        self.stream.write(frame).map_err(|error: io::Error| error.to_string())
    }
}
