//! Content of a backup, fetched on demand for a partial restore.

use std::collections::HashSet;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_extents::{
    AppendHint, Error, ExtentRef, Extents, Gathered, LocalExtents, Mark, Payload, Pins, StorageUse, Writer,
    frame_range,
};
use parking_lot::Mutex;

use super::manifest::{CHUNK, Manifest};
use super::repository::Repository;
use super::snapshot::SEGMENTS;
use crate::Failure;

/// The segments of a backup as sparse files. A read fetches and verifies the chunks that it needs first.
pub(super) struct LazyExtents {
    local: LocalExtents,
    dir: PathBuf,
    repository: Repository,
    manifest: Manifest,
    fetched: Mutex<HashSet<(u64, usize)>>,
}

impl LazyExtents {
    /// Makes empty segments in `dir`.
    pub(super) fn new(repository: Repository, manifest: Manifest, dir: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(dir.join(SEGMENTS)).map_err(Failure::failed)?;
        for file in manifest.files.iter().filter(|file| is_segment(&file.path)) {
            let made = File::create_new(dir.join(&file.path)).and_then(|made| made.set_len(file.length));
            made.map_err(Failure::failed)?;
        }
        let local = LocalExtents::open_read_only(dir).map_err(Failure::failed)?;
        Ok(Self { local, dir: dir.into(), repository, manifest, fetched: Mutex::default() })
    }

    fn fetch(&self, extent: &ExtentRef) -> Result<(), Error> {
        let (segment, range) = (extent.id.segment(), frame_range(extent));
        let path = format!("{SEGMENTS}/{segment:016x}.seg");
        let Some(file) = self.manifest.files.iter().find(|file| file.path == path) else { return Ok(()) };
        let mut fetched = self.fetched.lock();
        for i in range.start as usize / CHUNK..(range.end as usize).div_ceil(CHUNK) {
            if let Some(Some(hash)) = file.chunks.get(i)
                && fetched.insert((segment, i))
            {
                let chunk = self.repository.read_chunk(hash, file.chunk_bytes(i));
                let chunk = chunk.map_err(|failure| Error::Damaged(failure.to_string()))?;
                let written = File::options().write(true).open(self.dir.join(&path));
                written?.write_all_at(&chunk, (i * CHUNK) as u64)?;
            }
        }
        Ok(())
    }
}

/// Returns whether a file of a backup is a segment of content.
pub(super) fn is_segment(path: &str) -> bool {
    path.strip_prefix(SEGMENTS).is_some_and(|rest| rest.starts_with('/'))
}

#[async_trait]
impl Extents for LazyExtents {
    async fn append_with_hint(
        &self,
        writer: &Writer,
        payload: Payload,
        hint: AppendHint,
    ) -> Result<ExtentRef, Error> {
        self.local.append_with_hint(writer, payload, hint).await
    }

    fn gather(&self, bytes: usize) -> Gathered {
        self.local.gather(bytes)
    }

    async fn sync(&self) -> Result<(), Error> {
        self.local.sync().await
    }

    async fn read(&self, extent: &ExtentRef, range: Range<u32>) -> Result<Bytes, Error> {
        self.fetch(extent)?;
        self.local.read(extent, range).await
    }

    fn preferred_bytes(&self) -> usize {
        self.local.preferred_bytes()
    }

    fn pins(&self) -> &Arc<Pins> {
        self.local.pins()
    }

    fn storage_use(&self) -> StorageUse {
        self.local.storage_use()
    }

    fn released(&self, bytes: u64) {
        self.local.released(bytes);
    }

    async fn begin_mark(&self) -> Result<Box<dyn Mark>, Error> {
        self.local.begin_mark().await
    }
}
