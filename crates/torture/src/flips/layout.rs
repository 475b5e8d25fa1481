//! The bits of a data directory that are in use, and their purposes.
//!
//! Logs and segments are preallocated. In each of their blocks the bytes up to the last nonzero byte are in
//! use, and one bit of the zeros after that is flipped. In all other files every bit is in use.

use std::path::{Path, PathBuf};

use bytes::Buf;

/// Size of a block, in whose zeros one bit is flipped.
const BLOCK: usize = 4096;
/// Alignment of everything in a log.
const ALIGN: usize = 8;

/// The purpose of a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BitKind {
    /// The file that names the format.
    Format,
    /// The lock.
    Lock,
    /// The pointer to the tree's manifest.
    Current,
    /// The tree's manifest.
    Manifest,
    /// Rows in a table.
    TableData,
    /// The index of a table.
    TableIndex,
    /// The filter of a table.
    TableFilter,
    /// The metadata of a table.
    TableMetadata,
    /// The list of a table's sections, and the trailer.
    TableTrailer,
    /// A log segment.
    Log,
    /// A log segment that is kept for reuse.
    SpareLog,
    /// The header of a segment of extents.
    SegmentHeader,
    /// Extents.
    Extent,
    /// Preallocated zeros.
    Zeros,
}

/// One bit of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bit {
    /// The file, relative to the data directory.
    pub file: PathBuf,
    /// The offset of the byte.
    pub byte: usize,
    /// The bit in the byte.
    pub bit: u8,
    /// The purpose of the bit.
    pub kind: BitKind,
}

/// Files with their bytes.
pub type Files = Vec<(PathBuf, Vec<u8>)>;

/// Reads all files of a directory, in the order of their names.
pub fn files(dir: &Path) -> Files {
    let (mut found, mut folders) = (vec![], vec![dir.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("listed") {
            let path = entry.expect("listed").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).expect("read");
                found.push((path.strip_prefix(dir).expect("within it").to_path_buf(), bytes));
            }
        }
    }
    found.sort();
    found
}

/// Returns the bits to flip.
pub fn bits(files: &Files) -> Vec<Bit> {
    let mut bits = vec![];
    for (file, bytes) in files {
        for (byte, kind) in used(file, bytes) {
            // All bits of zeros are equivalent, so choose one by the block's number.
            let flipped = if kind == BitKind::Zeros {
                (byte / BLOCK % 8) as u8..=(byte / BLOCK % 8) as u8
            } else {
                0..=7
            };
            bits.extend(flipped.map(|bit| Bit { file: file.clone(), byte, bit, kind }));
        }
    }
    bits
}

/// Returns every byte in use, and one byte of each block of zeros.
fn used(file: &Path, bytes: &[u8]) -> Vec<(usize, BitKind)> {
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
    let folder = file.parent().and_then(|folder| folder.to_str()).expect("a folder");
    let all = |kind| (0..bytes.len()).map(|byte| (byte, kind)).collect();
    match (folder, name) {
        ("", "FORMAT") => all(BitKind::Format),
        ("", "LOCK") => all(BitKind::Lock),
        ("store/tree", "current") => all(BitKind::Current),
        ("store/tree", name) if name.starts_with('v') => all(BitKind::Manifest),
        ("store/tree/tables", _) => {
            let sections = sections(bytes);
            let kind = |byte| sections.iter().rev().find(|(start, _)| *start <= byte).map(|(_, kind)| *kind);
            (0..bytes.len()).map(|byte| (byte, kind(byte).expect("the first starts at 0"))).collect()
        }
        ("store/log", "spare" | "spare2" | "ready") => in_blocks(bytes, |_| BitKind::SpareLog),
        ("store/log", _) => in_blocks(bytes, |_| BitKind::Log),
        ("segments", _) => {
            in_blocks(bytes, |block| if block == 0 { BitKind::SegmentHeader } else { BitKind::Extent })
        }
        _ => panic!("{}: unknown kind of file", file.display()),
    }
}

fn in_blocks(bytes: &[u8], kind: impl Fn(usize) -> BitKind) -> Vec<(usize, BitKind)> {
    let mut used = vec![];
    for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
        let end =
            bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(ALIGN));
        let end = end.min(bytes.len());
        used.extend((0..end).map(|byte| (block * BLOCK + byte, kind(block))));
        if end < bytes.len() {
            used.push((block * BLOCK + (end + bytes.len()) / 2, BitKind::Zeros));
        }
    }
    used
}

/// Returns where the sections of a table start.
fn sections(table: &[u8]) -> Vec<(usize, BitKind)> {
    let contents = table.windows(4).rposition(|window| window == b"TOC!").expect("a list of sections");
    let mut list = &table[contents + 4..];
    let mut sections = vec![(contents, BitKind::TableTrailer)];
    for _ in 0..list.get_u32_le() {
        let (start, _) = (list.get_u64_le() as usize, list.get_u64_le());
        let length = list.get_u16_le().into();
        let kind = match &list[..length] {
            b"data" | b"" => BitKind::TableData,
            b"tli" | b"index" => BitKind::TableIndex,
            b"filter" | b"filter_tli" => BitKind::TableFilter,
            b"meta" | b"table_version" => BitKind::TableMetadata,
            other => panic!("an unknown section {:?}", String::from_utf8_lossy(other)),
        };
        sections.push((start, kind));
        list.advance(length);
    }
    sections.sort_unstable();
    assert_eq!(sections[0].0, 0, "the first section starts at 0");
    sections
}
