//! A folder of backups.
//!
//! ```text
//! LAZULI-BACKUP        marks the folder, and is its lock file
//! chunks/ab/ab12…      a chunk, named by its SHA-256
//! backups/000001-…     a manifest: JSON, then a line with its SHA-256
//! ```
//!
//! A manifest gets its name when all its chunks are durable, so a killed backup leaves only chunks that no
//! manifest names. Such chunks may be torn: a backup trusts only chunks of complete manifests, and writes all
//! others again.
//!
//! In an encrypted folder every chunk is an age file. Its name is the SHA-256 of the plain chunk, and
//! manifests are not encrypted, so the next backup needs no identity to find existing chunks.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::manifest::{CHUNK, Hash, Manifest};
use crate::Failure;
use crate::sealing::{Identities, Recipients};

const MARKER: &str = "LAZULI-BACKUP";
const MARKER_TEXT: &str = "lazuli backup 1\n";
/// Names the recipients of a folder whose chunks are encrypted.
const RECIPIENTS: &str = "recipients";
/// The marker of a folder whose chunks are encrypted.
const SEALED_TEXT: &str = "lazuli backup 1 age\n";
/// Upper bound of the bytes that encryption adds to a chunk, for a few hundred recipients.
const MAX_SEALING: usize = CHUNK / 8;
const CHUNKS: &str = "chunks";
const BACKUPS: &str = "backups";
const TEMPORARY: &str = "new";
/// Maximum length of a manifest: enough for about 15 TiB of data.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// Purpose of opening a repository.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Change,
}

/// An open, locked repository. Dropping it releases the lock.
pub(crate) struct Repository {
    dir: PathBuf,
    lock: File,
    /// Whether the chunks are encrypted.
    sealed: bool,
    keys: Keys,
}

/// The keys that encrypt or decrypt a repository's chunks.
#[derive(Default)]
struct Keys {
    recipients: Option<Recipients>,
    identities: Option<Identities>,
}

/// Result of pruning.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PruneTotals {
    pub(crate) backups: Vec<String>,
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
}

impl Repository {
    /// Opens a repository to change it. Creates it if the folder is missing or empty. With recipients, chunks
    /// are encrypted for them.
    pub(crate) fn create(dir: &Path, recipients: Option<Recipients>) -> Result<Self, Failure> {
        let io = |error| failed(dir, &error);
        fs::create_dir_all(dir).map_err(io)?;
        let marker = dir.join(MARKER);
        if !marker.exists() {
            if fs::read_dir(dir).map_err(io)?.next().is_some() {
                return Err(Failure::Failed(format!(
                    "{} is neither empty nor a folder of backups",
                    dir.display()
                )));
            }
            let text = if recipients.is_some() { SEALED_TEXT } else { MARKER_TEXT };
            fs::write(&marker, text).map_err(io)?;
        }
        let mut repository = Self::open(dir, Access::Change)?;
        let has = if repository.sealed { "encrypted" } else { "not encrypted" };
        if repository.sealed != recipients.is_some() {
            return Err(Failure::Failed(format!(
                "the backups in {} are {has}: use another folder",
                dir.display()
            )));
        }
        if let Some(recipients) = &recipients {
            check_recipients(dir, recipients)?;
        }
        repository.keys.recipients = recipients;
        for folder in [CHUNKS, BACKUPS] {
            fs::create_dir_all(dir.join(folder)).map_err(io)?;
        }
        Ok(repository)
    }

    /// Opens an existing repository.
    pub(crate) fn open(dir: &Path, access: Access) -> Result<Self, Failure> {
        let mut lock = match File::open(dir.join(MARKER)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Failure::Failed(format!("{} is not a folder of backups", dir.display())));
            }
            Err(error) => return Err(failed(dir, &error)),
        };
        let mut text = String::new();
        (&mut lock).take(1024).read_to_string(&mut text).map_err(|error| failed(dir, &error))?;
        if text != MARKER_TEXT && text != SEALED_TEXT {
            return Err(Failure::Failed(format!(
                "{}: {MARKER} says {:?}, which this program does not know",
                dir.display(),
                text.trim()
            )));
        }
        let how = match access {
            Access::Read => FlockOperation::NonBlockingLockShared,
            Access::Change => FlockOperation::NonBlockingLockExclusive,
        };
        if flock(&lock, how).is_err() {
            return Err(Failure::Failed(format!("{} is in use by another process", dir.display())));
        }
        Ok(Self { dir: dir.into(), lock, sealed: text == SEALED_TEXT, keys: Keys::default() })
    }

    /// Sets the identities that decrypt chunks. Encrypted chunks cannot be read without them.
    pub(crate) fn with_identities(mut self, identities: Option<Identities>) -> Result<Self, Failure> {
        if self.sealed && identities.is_none() {
            return Err(Failure::Usage(format!(
                "the backups in {} are encrypted: --identity is missing",
                self.dir.display()
            )));
        }
        self.keys.identities = identities;
        Ok(self)
    }

    /// Lists the ids of the backups, oldest first.
    pub(crate) fn list(&self) -> Result<Vec<String>, Failure> {
        let dir = self.dir.join(BACKUPS);
        let mut ids = vec![];
        for entry in fs::read_dir(&dir).map_err(|error| failed(&dir, &error))? {
            let name = entry.map_err(|error| failed(&dir, &error))?.file_name();
            ids.extend(name.to_str().filter(|name| *name != TEMPORARY).map(str::to_owned));
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// Returns an id for the next backup, above all others. `date` is only for readers.
    pub(crate) fn next_id(&self, date: &str) -> Result<String, Failure> {
        let number = |id: &String| id.split('-').next().and_then(|number| number.parse::<u64>().ok());
        let last = self.list()?.iter().filter_map(number).max().unwrap_or(0);
        Ok(format!("{:06}-{date}", last + 1))
    }

    /// Reads a manifest and verifies it.
    pub(crate) fn read_manifest(&self, id: &str) -> Result<Manifest, Failure> {
        let path = self.dir.join(BACKUPS).join(id);
        let mut bytes = vec![];
        File::open(&path)
            .and_then(|file| file.take(MAX_MANIFEST_BYTES).read_to_end(&mut bytes))
            .map_err(|error| failed(&path, &error))?;
        let damaged = |what: String| Failure::Failed(format!("{}: damaged: {what}", path.display()));
        let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let end = text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        let (json, hash) = text.split_at(end);
        if Hash::of(json).to_string().as_bytes() != hash.get(1..).unwrap_or_default() {
            return Err(damaged("its checksum is wrong".into()));
        }
        let manifest: Manifest = serde_json::from_slice(json).map_err(|error| damaged(error.to_string()))?;
        manifest.verify().map_err(damaged)?;
        Ok(manifest)
    }

    /// Makes all chunks durable, then the manifest, which completes the backup.
    pub(crate) fn write_manifest(&self, manifest: &Manifest) -> Result<(), Failure> {
        let dir = self.dir.join(BACKUPS);
        let write = || -> io::Result<()> {
            rustix::fs::syncfs(&self.lock)?;
            let json = serde_json::to_vec(manifest)?;
            let mut file = File::create(dir.join(TEMPORARY))?;
            file.write_all(&json)?;
            file.write_all(format!("\n{}\n", Hash::of(&json)).as_bytes())?;
            file.sync_all()?;
            fs::rename(dir.join(TEMPORARY), dir.join(&manifest.id))?;
            File::open(&dir)?.sync_all()
        };
        write().map_err(|error| failed(&dir, &error))
    }

    /// Returns the existing chunks of complete backups.
    pub(crate) fn trusted_chunks(&self) -> Result<HashSet<Hash>, Failure> {
        let mut trusted = HashSet::new();
        for id in self.list()? {
            trusted.extend(self.read_manifest(&id)?.chunks());
        }
        trusted.retain(|hash| self.path_of(hash).is_file());
        Ok(trusted)
    }

    /// Writes a chunk. Not durable before [`write_manifest`](Self::write_manifest).
    pub(crate) fn write_chunk(&self, hash: &Hash, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.path_of(hash);
        let temporary = self.dir.join(CHUNKS).join(TEMPORARY);
        let write = || -> io::Result<()> {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary)?;
            match &self.keys.recipients {
                Some(recipients) => file.write_all(&recipients.seal_bytes(bytes)?)?,
                None => file.write_all(bytes)?,
            }
            fs::rename(&temporary, &path)
        };
        write().map_err(|error| failed(&path, &error))
    }

    /// Reads a chunk of `length` bytes and verifies it.
    pub(crate) fn read_chunk(&self, hash: &Hash, length: usize) -> Result<Vec<u8>, Failure> {
        let path = self.path_of(hash);
        let mut bytes = Vec::with_capacity(length);
        let mut read = || -> io::Result<()> {
            let file = File::open(&path)?.take((CHUNK + MAX_SEALING) as u64);
            match self.keys.identities.as_ref().filter(|_| self.sealed) {
                Some(identities) => identities.open(file)?.take(CHUNK as u64 + 1).read_to_end(&mut bytes)?,
                None => file.take(CHUNK as u64 + 1).read_to_end(&mut bytes)?,
            };
            Ok(())
        };
        read().map_err(|error| failed(&path, &error))?;
        if bytes.len() != length || Hash::of(&bytes) != *hash {
            return Err(Failure::Failed(format!(
                "{}: the chunk is damaged: remove this file and back up again; the chunk is written anew if its content \
                 still exists",
                path.display()
            )));
        }
        Ok(bytes)
    }

    /// Removes all but the newest `keep` backups, then all chunks that the remaining ones do not need.
    pub(crate) fn prune(&self, keep: usize, dry_run: bool) -> Result<PruneTotals, Failure> {
        let mut ids = self.list()?;
        let kept = ids.split_off(ids.len().saturating_sub(keep));
        // Read all manifests before removing any chunk: an unreadable manifest would lose its chunks.
        let mut needed = HashSet::new();
        for id in &kept {
            needed.extend(self.read_manifest(id)?.chunks());
        }
        let mut pruned = PruneTotals { backups: ids, ..PruneTotals::default() };
        let dir = self.dir.join(BACKUPS);
        let io = |error| failed(&self.dir, &error);
        if !dry_run {
            for id in &pruned.backups {
                fs::remove_file(dir.join(id)).map_err(io)?;
            }
            File::open(&dir).and_then(|dir| dir.sync_all()).map_err(io)?;
        }
        for folder in fs::read_dir(self.dir.join(CHUNKS)).map_err(io)? {
            let folder = folder.map_err(io)?;
            if !folder.file_type().map_err(io)?.is_dir() {
                continue;
            }
            for chunk in fs::read_dir(folder.path()).map_err(io)? {
                let chunk = chunk.map_err(io)?;
                let hash = chunk.file_name().into_string().ok().and_then(|name| Hash::try_from(name).ok());
                if hash.is_some_and(|hash| !needed.contains(&hash)) {
                    pruned.chunks += 1;
                    pruned.bytes += chunk.metadata().map_err(io)?.len();
                    if !dry_run {
                        fs::remove_file(chunk.path()).map_err(io)?;
                    }
                }
            }
        }
        Ok(pruned)
    }

    fn path_of(&self, hash: &Hash) -> PathBuf {
        let name = hash.to_string();
        self.dir.join(CHUNKS).join(&name[..2]).join(name)
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}

/// Records the recipients of the first backup. Refuses recipients of a later one that differ: chunks are
/// shared, and the new recipients could not read the old ones.
fn check_recipients(dir: &Path, recipients: &Recipients) -> Result<(), Failure> {
    let (path, wanted) = (dir.join(RECIPIENTS), recipients.to_text());
    match fs::read_to_string(&path) {
        Ok(found) if found == wanted => Ok(()),
        Ok(_) => Err(Failure::Failed(format!(
            "the backups in {} are encrypted for other recipients, and chunks are shared: use another folder",
            dir.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::write(&path, wanted).map_err(|error| failed(&path, &error))
        }
        Err(error) => Err(failed(&path, &error)),
    }
}
