//! Copies a data directory into a repository. Chunks that the repository already has are not written again.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use indicatif::{ProgressBar, ProgressStyle};
use lazuli_concurrency::{Clock, SystemClock};
use lazuli_protocol::date;

use super::manifest::{CHUNK, Entry, FORMAT, Hash, Manifest};
use super::repository::Repository;
use super::source::{BackupSource, SourceFile};
use crate::Failure;

/// A file whose allocation is less than this fraction (1/n) of its stored chunks is read again. Otherwise
/// backups would keep freed content forever.
const MIN_ALLOCATED: u64 = 2;

/// Result of a copy.
pub(crate) struct CopyResult {
    pub(crate) manifest: Manifest,
    /// Bytes of chunks that the repository did not have.
    pub(crate) written: u64,
}

/// Copies all chunks. The manifest is not written yet.
pub(crate) fn copy(
    source: &BackupSource,
    repository: Option<&Repository>,
    dry_run: bool,
) -> Result<CopyResult, Failure> {
    let ids = repository.map_or(Ok(vec![]), Repository::list)?;
    let last = match (repository, ids.last()) {
        (Some(repository), Some(id)) => Some(repository.read_manifest(id)?),
        _ => None,
    };
    let before = last.iter().flat_map(|last| &last.files).map(|file| (file.path.as_str(), file)).collect();
    let date: String =
        date::iso8601_seconds(SystemClock.now()).chars().filter(|c| *c != '-' && *c != ':').collect();
    let bar = ProgressBar::new(source.files.iter().map(|file| file.length).sum()).with_style(
        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let mut copy = Copy {
        before,
        trusted: repository.map_or(Ok(HashSet::new()), Repository::trusted_chunks)?,
        repository: repository.filter(|_| !dry_run),
        written: 0,
        zeros: vec![0; CHUNK],
        bar,
    };
    let files = source.files.iter().map(|file| copy.file(source, file)).collect::<Result<_, _>>()?;
    copy.bar.finish_and_clear();
    let id = repository.map_or(Ok(String::new()), |repository| repository.next_id(&date))?;
    let manifest = Manifest { format: FORMAT, id, lazuli: env!("CARGO_PKG_VERSION").into(), files };
    Ok(CopyResult { manifest, written: copy.written })
}

struct Copy<'a> {
    /// Files of the last backup by their paths.
    before: HashMap<&'a str, &'a Entry>,
    /// Chunks of complete backups.
    trusted: HashSet<Hash>,
    /// `None` in a dry run.
    repository: Option<&'a Repository>,
    written: u64,
    zeros: Vec<u8>,
    bar: ProgressBar,
}

impl Copy<'_> {
    fn file(&mut self, source: &BackupSource, wanted: &SourceFile) -> Result<Entry, Failure> {
        let path = source.dir.join(&wanted.path);
        let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", path.display()));
        let file = File::open(&path).map_err(failed)?;
        let length = wanted.length;
        let allocated = file.metadata().map_err(failed)?.blocks() * 512;
        let mut chunks = self.known(wanted, allocated);
        self.bar.inc((chunks.len() * CHUNK) as u64);
        let mut buffer = vec![0; CHUNK];
        while chunks.len() as u64 * (CHUNK as u64) < length {
            let at = chunks.len() as u64 * CHUNK as u64;
            let bytes = &mut buffer[..(length - at).min(CHUNK as u64) as usize];
            file.read_exact_at(bytes, at).map_err(failed)?;
            chunks.push(self.chunk(bytes)?);
            self.bar.inc(bytes.len() as u64);
        }
        Ok(Entry { path: wanted.path.clone(), length, identity: wanted.identity.clone(), chunks })
    }

    /// Returns the chunks at the file's beginning that the last backup has. In a file with the same identity,
    /// bytes never change, except that they are freed.
    fn known(&self, wanted: &SourceFile, allocated: u64) -> Vec<Option<Hash>> {
        let Some(before) = self.before.get(wanted.path.as_str()) else { return vec![] };
        if wanted.identity.is_none() || before.identity != wanted.identity {
            return vec![];
        }
        let stored = before.chunks.iter().flatten().count() * CHUNK;
        if before.length >= wanted.length && allocated < stored as u64 / MIN_ALLOCATED {
            return vec![];
        }
        let whole = before.length.min(wanted.length) / CHUNK as u64;
        let count = if before.length == wanted.length { before.chunks.len() } else { whole as usize };
        let known = before.chunks.iter().take(count);
        known.take_while(|chunk| chunk.is_none_or(|hash| self.trusted.contains(&hash))).copied().collect()
    }

    fn chunk(&mut self, bytes: &[u8]) -> Result<Option<Hash>, Failure> {
        if bytes == &self.zeros[..bytes.len()] {
            return Ok(None);
        }
        let hash = Hash::of(bytes);
        if self.trusted.insert(hash) {
            if let Some(repository) = self.repository {
                repository.write_chunk(&hash, bytes)?;
            }
            self.written += bytes.len() as u64;
        }
        Ok(Some(hash))
    }
}
