//! Manifests: the list of files and chunks of a backup.

use std::fmt;
use std::path::{Component, Path};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// Bytes of a chunk. The last one of a file may be shorter.
pub(crate) const CHUNK: usize = 1 << 20;
/// The format of manifests that this program writes.
pub(crate) const FORMAT: u32 = 1;

/// The SHA-256 of a chunk, which is its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Hash([u8; 32]);

impl Hash {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Self(hash)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for Hash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut hash = [0; 32];
        if text.len() != 64 || !text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err("not a SHA-256");
        }
        for (i, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| "not a SHA-256")?;
        }
        Ok(Self(hash))
    }
}

/// One backup: all files of a data directory, and the chunks that they are made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    pub(crate) id: String,
    /// The version of the program that wrote the manifest.
    pub(crate) lazuli: String,
    pub(crate) files: Vec<Entry>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Path in the data directory.
    pub(crate) path: String,
    pub(crate) length: u64,
    /// See [`super::source::SourceFile`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) identity: Option<String>,
    /// `None` for a chunk of zeros.
    pub(crate) chunks: Vec<Option<Hash>>,
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Manifest {
    /// Returns the total bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }

    /// Returns the chunks of all files.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Hash> {
        self.files.iter().flat_map(|file| file.chunks.iter().copied().flatten())
    }

    /// Checks that the manifest describes a data directory.
    pub(crate) fn verify(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!(
                "the manifest has format {}; this program reads format {FORMAT}",
                self.format
            ));
        }
        for file in &self.files {
            let path = Path::new(&file.path);
            let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
            if !is_below || file.path.is_empty() {
                return Err(format!("the path {:?} is outside of the data directory", file.path));
            }
            if file.chunks.len() as u64 != file.length.div_ceil(CHUNK as u64) {
                return Err(format!("the number of chunks of {} does not match its length", file.path));
            }
        }
        Ok(())
    }
}

impl Entry {
    /// Returns the length in bytes of the chunk with this number.
    pub(crate) fn chunk_bytes(&self, number: usize) -> usize {
        (self.length - (number * CHUNK) as u64).min(CHUNK as u64) as usize
    }
}
