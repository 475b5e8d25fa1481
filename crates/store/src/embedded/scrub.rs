//! Verifies tables in parts, also while the store is open, so that a scrub can pause at any point and
//! continue after a restart.
//!
//! A table is an archive whose sections are blocks, each with a checksum. They are read from their file, not
//! through the tree: nothing enters its cache, and the caller decides how the file is read. Tables never
//! change. A table that compaction has replaced is missing, which is not damage.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lsm_tree::coding::Decode;
use lsm_tree::table::block::Header as BlockHeader;
use xxhash_rust::xxh3::xxh3_128;

use super::manifest::{self, Manifest, SectionRange};
use super::{DamagedTable, Embedded, OpenError, failures};

/// Maximum number of attempts to read the manifest, which the tree may be replacing.
const MAX_ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);

/// Fills a buffer from an offset in a file, with zeros after the end of the file.
pub type ReadAt<'a> = &'a mut dyn FnMut(&mut [u8], u64) -> io::Result<()>;

/// A table of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFile {
    /// The table's number. A later table has a higher one.
    pub id: u64,
    /// The table's file.
    pub path: PathBuf,
    /// The length of the file in bytes.
    pub length: u64,
}

/// The result of verifying a part of a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ScrubbedTable {
    /// The offset to continue at, or `None` at the end of the table.
    pub next: Option<u64>,
    /// Number of bytes read.
    pub bytes: u64,
    /// The offsets of damaged blocks, each with a description.
    pub damage: Vec<(u64, String)>,
}

/// Lists the tables of a store, which may be open, by their ids. Fails if the manifest is damaged. Blocks.
pub fn tables(store: &Path) -> Result<Vec<TableFile>, OpenError> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match Manifest::read(&store.join("tree"), &store.join("log")) {
            Ok(manifest) => return Ok(manifest.map_or_else(Vec::new, |manifest| files(&manifest))),
            Err(error) if attempts == MAX_ATTEMPTS => return Err(error),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn files(manifest: &Manifest) -> Vec<TableFile> {
    let file = |path: PathBuf| {
        let id = path.file_name()?.to_str()?.parse().ok()?;
        // A missing table was just replaced.
        let length = path.metadata().map_or(0, |metadata| metadata.len());
        Some(TableFile { id, path, length })
    };
    let mut files: Vec<_> = manifest.paths().into_iter().filter_map(file).collect();
    files.sort_unstable_by_key(|file| file.id);
    files
}

/// Verifies blocks of a table from an offset on, until about `budget` bytes are read. Fails with `NotFound`
/// if the table was removed. Blocks.
pub fn table_part(table: &TableFile, from: u64, budget: u64, read: ReadAt<'_>) -> io::Result<ScrubbedTable> {
    let mut part = ScrubbedTable::default();
    let sections = match manifest::block_sections(&File::open(&table.path)?)? {
        Ok(sections) => sections,
        Err(what) => {
            part.damage.push((0, what.to_owned()));
            return Ok(part);
        }
    };
    let mut at = from;
    while part.bytes < budget {
        let Some(section) =
            sections.iter().filter(|section| section.end > at).min_by_key(|section| section.start)
        else {
            return Ok(part);
        };
        at = at.max(section.start);
        at = verify_block(section, at, &mut part, read)?;
    }
    part.next = Some(at);
    Ok(part)
}

/// Verifies one block. Returns the offset of the next one.
fn verify_block(
    section: &SectionRange,
    at: u64,
    part: &mut ScrubbedTable,
    read: ReadAt<'_>,
) -> io::Result<u64> {
    let mut header = vec![0; BlockHeader::serialized_len()];
    read(&mut header, at)?;
    part.bytes += header.len() as u64;
    let start = at + header.len() as u64;
    let header = BlockHeader::decode_from(&mut &header[..]).ok();
    let Some(header) = header.filter(|header| start + u64::from(header.data_length) <= section.end) else {
        // The offset of the next block is unknown.
        part.damage.push((at, "the header of a block is damaged".into()));
        return Ok(section.end);
    };
    let mut block = vec![0; header.data_length as usize];
    read(&mut block, start)?;
    part.bytes += block.len() as u64;
    if xxh3_128(&block) != header.checksum.into_u128() {
        part.damage.push((at, "the checksum of a block does not match".into()));
    }
    Ok(start + block.len() as u64)
}

impl Embedded {
    /// Describes a damaged table: the rows around the damage, and the spaces that have rows in it. Returns
    /// `None` if the tree can read all of its rows, or has replaced it. Reads the whole table. Blocks.
    pub fn describe_table(&self, id: u64) -> Option<DamagedTable> {
        failures::describe(&self.shared.tree, id)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use bytes::Bytes;
    use lazuli_concurrency::SystemClock;

    use super::*;
    use crate::{Commit, Mutation, Options, Partition, SpaceId, Store};

    /// Creates a store with tables of many blocks.
    fn filled_store(dir: &Path) -> Embedded {
        let store = Embedded::open(dir, Arc::new(SystemClock), Options::SMALL).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            for n in 0u32..400 {
                let row = Mutation::Put(Bytes::copy_from_slice(&n.to_be_bytes()), vec![n as u8; 3000].into());
                let (stamp, mutations) = (store.stamp(), vec![row]);
                let commit = Commit {
                    stamp,
                    epoch: 0,
                    conditions: vec![],
                    mutations,
                    valid_until: None,
                    fence: None,
                    bulk: false,
                };
                store.commit(&Partition::new(SpaceId::ROOT, "p"), commit).await.unwrap();
            }
        });
        store.close();
        store
    }

    /// Verifies a table in parts of one block. Returns the damage, the bytes read and the number of parts.
    fn scrub_table(table: &TableFile) -> (Vec<(u64, String)>, u64, usize) {
        let file = File::open(&table.path).unwrap();
        let mut read = |buffer: &mut [u8], at: u64| file.read_exact_at(buffer, at);
        let (mut from, mut damage, mut bytes, mut parts) = (Some(0), vec![], 0, 0);
        while let Some(at) = from {
            let part = table_part(table, at, 1, &mut read).unwrap();
            (from, parts, bytes) = (part.next, parts + 1, bytes + part.bytes);
            damage.extend(part.damage);
        }
        (damage, bytes, parts)
    }

    #[test]
    fn flipped_byte_anywhere_in_a_table_is_found_once_and_sound_tables_have_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        drop(filled_store(dir.path()));
        let tables = tables(dir.path()).unwrap();
        let table = tables.iter().max_by_key(|table| table.length).unwrap();
        let (damage, bytes, parts) = scrub_table(table);
        assert_eq!(damage, []);
        assert!(parts > 10, "{parts} parts");
        assert!(
            bytes * 100 > table.length * 95 && bytes <= table.length,
            "{bytes} of {} bytes",
            table.length
        );
        let sound = std::fs::read(&table.path).unwrap();
        let length = sound.len();
        for at in [5, 40, length / 3, length / 2, length - 200, length - 20] {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            std::fs::write(&table.path, &bytes).unwrap();
            let (damage, _, _) = scrub_table(table);
            assert_eq!(damage.len(), 1, "byte {at} of {length}: {damage:?}");
        }
        std::fs::remove_file(&table.path).unwrap();
        let mut read = |_: &mut [u8], _| Ok(());
        assert_eq!(table_part(table, 0, 1, &mut read).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
