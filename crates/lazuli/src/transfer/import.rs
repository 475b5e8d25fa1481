//! Creates a data directory from a stream.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use lazuli_content::record;
use lazuli_extents::{Content, Edit, ExtentRef, Extents, LocalExtents, Writer};
use lazuli_store::embedded::Loader;
use lazuli_store::embedded::transfer::Item;
use lazuli_store::{Directory, SpaceId, Token};
use tokio::runtime::Runtime;

use super::stream::{Counts, Frame, StreamReader, damaged};
use crate::backup::new_directory::NewDirectory;
use crate::data::STORE;
use crate::{Failure, check};

/// Maximum number of contents of one row.
const MAX_CONTENTS: usize = 16;

/// Verifies a stream to its end without writing anything.
pub(crate) fn verify(input: impl Read) -> Result<Counts, Failure> {
    let mut stream = StreamReader::new(input).map_err(Failure::failed)?;
    while stream.next().map_err(Failure::failed)?.is_some() {}
    Ok(stream.counts())
}

/// Builds a new data directory, verifies it, then makes it visible.
pub(crate) fn import(input: impl Read, into: &Path) -> Result<Counts, Failure> {
    let new_directory = NewDirectory::begin(into)?;
    let built = build(input, &new_directory.dir())
        .and_then(|counts| check::run(&new_directory.dir()).map(|()| counts));
    match built {
        Ok(counts) => {
            new_directory.finish()?;
            Ok(counts)
        }
        Err(error) => {
            new_directory.abandon();
            Err(error)
        }
    }
}

fn build(input: impl Read, dir: &Path) -> Result<Counts, Failure> {
    let directory = Directory::open(dir).map_err(Failure::failed)?;
    let store = directory.subdirectory(STORE).map_err(Failure::failed)?;
    let extents = LocalExtents::open(dir, Default::default()).map_err(Failure::failed)?;
    let extents: Arc<dyn Extents> = Arc::new(extents);
    let mut import = Import {
        runtime: Runtime::new().map_err(Failure::failed)?,
        contents: StreamContents::new(extents.clone()),
        loader: Loader::create(&store).map_err(Failure::failed)?,
        last: None,
    };
    let mut stream = StreamReader::new(input).map_err(Failure::failed)?;
    while let Some(frame) = stream.next().map_err(Failure::failed)? {
        let item = import.runtime.block_on(import.contents.frame(frame)).map_err(Failure::Failed)?;
        item.map_or(Ok(()), |item| import.load(item)).map_err(Failure::Failed)?;
    }
    import.runtime.block_on(extents.sync()).map_err(Failure::failed)?;
    import.loader.finish().map_err(Failure::failed)?;
    Ok(stream.counts())
}

struct Import {
    runtime: Runtime,
    contents: StreamContents,
    loader: Loader,
    /// The last loaded row.
    last: Option<(SpaceId, Bytes, Bytes)>,
}

impl Import {
    fn load(&mut self, item: Item) -> Result<(), String> {
        let loaded = match item {
            Item::Clock(Token(ceiling)) => {
                self.loader.clock(ceiling.timestamp());
                Ok(())
            }
            Item::Space { space, header, token } => self.loader.header(space, header, token),
            Item::Row { space, partition, row } => {
                let place = Some((space, partition.clone(), row.key.clone()));
                // A repeated row would be counted twice.
                if place <= self.last {
                    return Err(damaged("rows are not in order").to_string());
                }
                self.last = place;
                self.loader.row(space, &partition, &row)
            }
        };
        loaded.map_err(|error| error.to_string())
    }
}

/// Stores the content of a stream and puts its references into the rows that follow.
pub(crate) struct StreamContents {
    extents: Arc<dyn Extents>,
    /// Keeps stored content until its rows are stored.
    writer: Writer,
    /// The stored extent of each data number: 16 bytes per entry.
    data: Vec<ExtentRef>,
    /// State of the content that is being received.
    pieces: Vec<Bytes>,
    /// Contents of the next row.
    contents: Vec<Content>,
}

impl StreamContents {
    pub(crate) fn new(extents: Arc<dyn Extents>) -> Self {
        let writer = extents.writer();
        Self { extents, writer, data: vec![], pieces: vec![], contents: vec![] }
    }

    /// Processes the next frame. Returns an item with its content if the frame has one. The content is not
    /// durable yet.
    pub(crate) async fn frame(&mut self, frame: Frame) -> Result<Option<Item>, String> {
        match frame {
            Frame::Data(bytes) => {
                let append = self.extents.append(&self.writer, vec![bytes]);
                self.data.push(append.await.map_err(|error| error.to_string())?);
            }
            Frame::Pieces(pieces) => self.pieces.push(pieces),
            Frame::Content => {
                let pieces = std::mem::take(&mut self.pieces);
                let content = self.content(pieces).await?;
                if self.contents.len() == MAX_CONTENTS {
                    return Err(damaged("a row has too many contents").to_string());
                }
                self.contents.push(content);
            }
            Frame::Item(item, parts) => {
                let contents = std::mem::take(&mut self.contents);
                return with_contents(item, &parts, contents).map(Some).map_err(|error| error.to_string());
            }
        }
        Ok(None)
    }

    async fn content(&self, pieces: Vec<Bytes>) -> Result<Content, String> {
        let cut = || damaged("a piece of content is malformed").to_string();
        let failed = |error: lazuli_extents::Error| error.to_string();
        let mut edit = Edit::new(&self.extents, &self.writer, &Content::empty());
        for mut encoded in pieces {
            while let Ok(kind) = encoded.try_get_u8() {
                match kind {
                    0 | 1 => {
                        let length = encoded.try_get_u64_le().map_err(|_| cut())?;
                        let start = edit.len();
                        edit.append(&Content::hole(length)).await.map_err(failed)?;
                        if kind == 1 {
                            edit.clear(start..start + length).await.map_err(failed)?;
                        }
                    }
                    2 => {
                        let length = encoded.try_get_u32_le().map_err(|_| cut())? as usize;
                        if length > encoded.len() {
                            return Err(cut());
                        }
                        edit.append(&Content::inline(encoded.split_to(length))).await.map_err(failed)?;
                    }
                    3 => {
                        let number = encoded.try_get_u64_le().map_err(|_| cut())?;
                        let extent = usize::try_from(number).ok().and_then(|number| self.data.get(number));
                        let extent = extent.ok_or_else(cut)?;
                        edit.append(&Content::extent(*extent)).await.map_err(failed)?;
                    }
                    _ => return Err(cut()),
                }
            }
        }
        edit.finish().await.map_err(failed)
    }
}

fn with_contents(item: Item, parts: &[u8], contents: Vec<Content>) -> io::Result<Item> {
    if parts.len() != contents.len() {
        return Err(damaged("a row does not have its contents"));
    }
    match item {
        Item::Row { space, partition, mut row } if !parts.is_empty() => {
            let contents: Vec<_> = parts.iter().copied().zip(contents).collect();
            row.value = record::put_contents(&row.value, &contents)
                .map_err(|_| damaged("content belongs nowhere in its row"))?;
            Ok(Item::Row { space, partition, row })
        }
        item => Ok(item),
    }
}
