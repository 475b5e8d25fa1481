//! Makes a data directory of a stream.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use lazuli_extents::{Content, Edit, ExtentRef, Extents, LocalExtents};
use lazuli_generations::record;
use lazuli_store::Directory;
use lazuli_store::embedded::transfer::{Item, Loader};
use tokio::runtime::Runtime;

use super::stream::{Counts, Frame, StreamReader, damaged};
use crate::backup::fresh::Fresh;
use crate::data::STORE;
use crate::{Failure, check};

/// Contents that one row may have.
const MAX_CONTENTS: usize = 16;

/// Reads a stream to its end, and writes nothing.
pub(crate) fn verify(input: impl Read) -> Result<Counts, Failure> {
    let mut stream = StreamReader::new(input).map_err(Failure::failed)?;
    while stream.next().map_err(Failure::failed)?.is_some() {}
    Ok(stream.counts())
}

/// Builds a new data directory, verifies it, and makes it visible only then.
pub(crate) fn import(input: impl Read, into: &Path) -> Result<Counts, Failure> {
    let fresh = Fresh::begin(into)?;
    let built = build(input, &fresh.dir()).and_then(|counts| check::run(&fresh.dir()).map(|()| counts));
    match built {
        Ok(counts) => {
            fresh.finish()?;
            Ok(counts)
        }
        Err(error) => {
            fresh.abandon();
            Err(error)
        }
    }
}

fn build(input: impl Read, dir: &Path) -> Result<Counts, Failure> {
    let directory = Directory::open(dir).map_err(Failure::failed)?;
    let store = directory.subdirectory(STORE).map_err(Failure::failed)?;
    let extents = LocalExtents::open(dir, Default::default()).map_err(Failure::failed)?;
    let mut import = Import {
        runtime: Runtime::new().map_err(Failure::failed)?,
        extents: Arc::new(extents),
        loader: Loader::create(&store).map_err(Failure::failed)?,
        data: vec![],
        pieces: vec![],
        contents: vec![],
    };
    let mut stream = StreamReader::new(input).map_err(Failure::failed)?;
    while let Some(frame) = stream.next().map_err(Failure::failed)? {
        import.frame(frame).map_err(Failure::Failed)?;
    }
    import.runtime.block_on(import.extents.sync()).map_err(Failure::failed)?;
    import.loader.finish().map_err(Failure::failed)?;
    Ok(stream.counts())
}

struct Import {
    runtime: Runtime,
    extents: Arc<dyn Extents>,
    loader: Loader,
    /// Where data lies now, by its number: 16 bytes for each.
    data: Vec<ExtentRef>,
    /// Of the content that is being told.
    pieces: Vec<Bytes>,
    /// Of the row that comes next.
    contents: Vec<Content>,
}

impl Import {
    fn frame(&mut self, frame: Frame) -> Result<(), String> {
        match frame {
            Frame::Data(bytes) => {
                let writer = self.extents.writer();
                let append = self.extents.append(&writer, vec![bytes]);
                let extent = self.runtime.block_on(append).map_err(|error| error.to_string())?;
                self.data.push(extent);
            }
            Frame::Pieces(pieces) => self.pieces.push(pieces),
            Frame::Content => {
                let pieces = std::mem::take(&mut self.pieces);
                let content = self.runtime.block_on(self.content(pieces))?;
                if self.contents.len() == MAX_CONTENTS {
                    return Err(damaged("a row has too many contents").to_string());
                }
                self.contents.push(content);
            }
            Frame::Item(item, parts) => {
                let contents = std::mem::take(&mut self.contents);
                let item = with_contents(item, &parts, contents).map_err(|error| error.to_string())?;
                self.loader.put(item).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    async fn content(&self, pieces: Vec<Bytes>) -> Result<Content, String> {
        let cut = || damaged("a piece of content cannot be understood").to_string();
        let failed = |error: lazuli_extents::Error| error.to_string();
        let mut edit = Edit::new(&self.extents, &self.extents.writer(), &Content::empty());
        for mut told in pieces {
            while let Ok(kind) = told.try_get_u8() {
                match kind {
                    0 | 1 => {
                        let length = told.try_get_u64_le().map_err(|_| cut())?;
                        let start = edit.len();
                        edit.append(&Content::hole(length)).await.map_err(failed)?;
                        if kind == 1 {
                            edit.clear(start..start + length).await.map_err(failed)?;
                        }
                    }
                    2 => {
                        let length = told.try_get_u32_le().map_err(|_| cut())? as usize;
                        if length > told.len() {
                            return Err(cut());
                        }
                        edit.append(&Content::inline(told.split_to(length))).await.map_err(failed)?;
                    }
                    3 => {
                        let number = told.try_get_u64_le().map_err(|_| cut())?;
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
