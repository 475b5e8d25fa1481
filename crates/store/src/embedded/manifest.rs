//! Verifies the tree's files before the tree opens them.
//!
//! The tree trusts its manifest. If a bit in it is flipped, the tree returns other rows, removes tables that
//! it takes for orphans, or allocates as much memory as a damaged length says. It only verifies the checksums
//! of blocks. So everything that the tree reads without a checksum is verified here first:
//!
//! ```text
//! current    id:u64  xxh3-128 of v<id>:u128  0:u8
//! v<id>      an archive; its section `tables` holds
//!            levels:u8 { runs:u8 { tables:u32 { id:u64  0:u8  xxh3-128:u128  seqno:u64 } } }
//! tables/<id>  an archive of blocks
//! archive    sections  contents  SFA!  1:u8  0:u8  xxh3-128 of contents:u128  start of contents:u64
//!            length of contents:u64
//! contents   TOC!  entries:u32 { start:u64  length:u64  name length:u16  name }
//! ```
//!
//! Opening verifies the contents of every table file, which takes two short reads each.
//! [`Manifest::damaged_tables`] verifies every byte of them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Buf;
use tempfile::TempDir;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::OpenError;

const CURRENT_FILE: &str = "current";
const TABLES_DIRECTORY: &str = "tables";
/// The name of a table's section that has no blocks.
const VERSION_SECTION: &[u8] = b"table_version";
/// Length of `current`, in bytes.
const CURRENT_BYTES: usize = 25;
/// The number that the tree writes for "XXH3".
const XXH3_KIND: u8 = 0;
/// Length of an archive's trailer, which follows its contents, in bytes.
const TRAILER_BYTES: usize = 38;
const TRAILER_MAGIC: &[u8] = b"SFA!\x01\x00";
const CONTENTS_MAGIC: &[u8] = b"TOC!";
/// Maximum length of an archive's contents. A manifest and a table have fewer than 10 sections each.
const MAX_CONTENTS_BYTES: u64 = 64 << 10;
/// Maximum length of a manifest: 8 million tables, 500 TiB.
const MAX_MANIFEST_BYTES: u64 = 256 << 20;
/// Bytes read at a time to verify a whole table.
const READ_BYTES: usize = 1 << 20;

/// A manifest with a valid checksum.
#[derive(Debug)]
pub(crate) struct Manifest {
    tree: PathBuf,
    name: String,
    /// The bytes of `current`.
    current: Vec<u8>,
    /// The bytes of the manifest.
    bytes: Vec<u8>,
    tables: Vec<NamedTable>,
}

/// A table that the manifest names.
#[derive(Debug, PartialEq, Eq)]
struct NamedTable {
    id: u64,
    /// The checksum of the whole file.
    checksum: u128,
}

impl Manifest {
    /// Reads and verifies the manifest in `tree`. Returns `None` if no tree was ever created there, provided
    /// that `log` has no segments either.
    pub(crate) fn read(tree: &Path, log: &Path) -> Result<Option<Self>, OpenError> {
        let path = tree.join(CURRENT_FILE);
        let current = match std::fs::read(&path) {
            Ok(current) => current,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return if was_created(tree, log)? { Err(damaged(&path, "it is missing")) } else { Ok(None) };
            }
            Err(error) => return Err(error.into()),
        };
        let mut fields = &current[..];
        if current.len() != CURRENT_BYTES || current.last() != Some(&XXH3_KIND) {
            return Err(damaged(&path, "it does not name a manifest"));
        }
        let (name, checksum) = (format!("v{}", fields.get_u64_le()), fields.get_u128_le());
        let path = tree.join(&name);
        let bytes = match read_bounded(&path, MAX_MANIFEST_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damaged(&path, "it is missing, but `current` names it"));
            }
            Err(error) => return Err(error.into()),
        };
        if xxh3_128(&bytes) != checksum {
            return Err(damaged(&path, "its checksum is not the one in `current`"));
        }
        let tables = tables(&bytes).ok_or_else(|| damaged(&path, "its list of tables cannot be read"))?;
        Ok(Some(Self { tree: tree.into(), name, current, bytes, tables }))
    }

    /// Verifies that all tables exist, and what the tree reads of them without a checksum.
    pub(crate) fn verify_contents(&self) -> Result<(), OpenError> {
        for table in &self.tables {
            let path = self.path_of(table);
            match verify_contents(&path) {
                Ok(None) => {}
                Ok(Some(what)) => return Err(damaged(&path, what)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(damaged(&path, "it is missing"));
                }
                Err(error) => return Err(error.into()),
            }
        }
        // The tree panics if there is a directory among its tables.
        for entry in read_dir_if_exists(&self.tree.join(TABLES_DIRECTORY))? {
            let entry = entry?;
            let name = entry.file_name();
            let is_table =
                name.to_str().is_some_and(|name| name.starts_with('.') || name.parse::<u64>().is_ok());
            if entry.file_type()?.is_dir() || !is_table {
                return Err(damaged(&entry.path(), "it is not a table"));
            }
        }
        Ok(())
    }

    /// Reads every table. Returns those that are missing or changed, each with a description. Reports
    /// progress as the number of tables read and the total.
    pub(crate) fn damaged_tables(
        &self,
        mut progress: impl FnMut(u64, u64),
    ) -> io::Result<Vec<(PathBuf, &'static str)>> {
        let mut found = vec![];
        for (done, table) in self.tables.iter().enumerate() {
            progress(done as u64, self.tables.len() as u64);
            let path = self.path_of(table);
            match checksum(&path) {
                Ok(checksum) if checksum == table.checksum => {}
                Ok(_) => found.push((path, "its checksum is wrong")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => found.push((path, "it is missing")),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Returns the error for a tree that could not be opened. Names the damaged table, if there is one.
    pub(crate) fn explain(&self, error: String) -> OpenError {
        match self.damaged_tables(|_, _| ()) {
            Ok(tables) if !tables.is_empty() => damaged(&tables[0].0, error),
            _ => OpenError::Tree(error),
        }
    }

    /// Makes a temporary folder that the tree can open without changing the store: a copy of the manifest,
    /// and links to its tables.
    pub(crate) fn view(&self) -> io::Result<TempDir> {
        let view = empty_view()?;
        let tree = self.tree.canonicalize()?;
        for name in [CURRENT_FILE, &self.name] {
            std::fs::copy(tree.join(name), view.path().join(name))?;
        }
        let tables = view.path().join(TABLES_DIRECTORY);
        std::fs::create_dir(&tables)?;
        for NamedTable { id, .. } in &self.tables {
            let name = id.to_string();
            std::os::unix::fs::symlink(tree.join(TABLES_DIRECTORY).join(&name), tables.join(name))?;
        }
        Ok(view)
    }

    /// Returns the names of the files in the tree's directory, other than tables.
    pub(crate) fn own_files(&self) -> [&str; 2] {
        [CURRENT_FILE, &self.name]
    }

    /// Returns the tables, each with its path in the tree's directory and the checksum of its bytes.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (PathBuf, u128)> {
        self.tables
            .iter()
            .map(|table| (Path::new(TABLES_DIRECTORY).join(table.id.to_string()), table.checksum))
    }

    /// Creates a directory with the manifest as it was read and links to its tables. Fails with `NotFound` if
    /// the tree has removed one of them.
    pub(crate) fn link_into(&self, into: &Path) -> io::Result<()> {
        std::fs::create_dir_all(into.join(TABLES_DIRECTORY))?;
        for (table, _) in self.tables() {
            std::fs::hard_link(self.tree.join(&table), into.join(&table))?;
        }
        std::fs::write(into.join(&self.name), &self.bytes)?;
        std::fs::write(into.join(CURRENT_FILE), &self.current)
    }

    /// Returns the files of all tables.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.tables.iter().map(|table| self.path_of(table)).collect()
    }

    fn path_of(&self, table: &NamedTable) -> PathBuf {
        self.tree.join(TABLES_DIRECTORY).join(table.id.to_string())
    }
}

/// Returns the files of all existing tables, whether a manifest names them or not.
pub(crate) fn present_tables(tree: &Path) -> io::Result<Vec<PathBuf>> {
    let mut tables = vec![];
    for entry in read_dir_if_exists(&tree.join(TABLES_DIRECTORY))? {
        let entry = entry?;
        let is_table = entry.file_name().to_str().is_some_and(|name| name.parse::<u64>().is_ok());
        if is_table && entry.file_type()?.is_file() {
            tables.push(entry.path());
        }
    }
    tables.sort_unstable();
    Ok(tables)
}

/// Makes a temporary folder for a view of a tree that was never created.
pub(crate) fn empty_view() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("lazuli-check").tempdir().map_err(|error| {
        let directory = std::env::temp_dir();
        let what = format!("no temporary folder in {} (TMPDIR names another): {error}", directory.display());
        io::Error::new(error.kind(), what)
    })
}

fn damaged(path: &Path, what: impl Into<String>) -> OpenError {
    OpenError::Damaged { path: path.into(), what: what.into() }
}

/// Returns whether a tree was ever created here. The first manifest, v0, is durable before the first log
/// segment is created.
fn was_created(tree: &Path, log: &Path) -> io::Result<bool> {
    let any_name = |dir: &Path, matches: fn(&str) -> bool| -> io::Result<bool> {
        for entry in read_dir_if_exists(dir)? {
            if entry?.file_name().to_str().is_some_and(matches) {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let is_later_manifest =
        |name: &str| name != "v0" && name.strip_prefix('v').is_some_and(|id| id.parse::<u64>().is_ok());
    Ok(any_name(tree, is_later_manifest)?
        || any_name(&tree.join(TABLES_DIRECTORY), |_| true)?
        || any_name(log, |name| name.ends_with(".log"))?)
}

fn read_dir_if_exists(dir: &Path) -> io::Result<impl Iterator<Item = io::Result<std::fs::DirEntry>>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => Ok(Some(entries).into_iter().flatten()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None.into_iter().flatten()),
        Err(error) => Err(error),
    }
}

fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn checksum(path: &Path) -> io::Result<u128> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; READ_BYTES];
    let mut hash = Xxh3::new();
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.digest128()),
            length => hash.update(&buffer[..length]),
        }
    }
}

/// Verifies the contents of an archive. Returns a description of the damage, if any.
pub(crate) fn verify_contents(path: &Path) -> io::Result<Option<&'static str>> {
    Ok(read_contents(&File::open(path)?)?.err())
}

/// The range of a file that is a section of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SectionRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Returns the sections with blocks of a table, or a description of the damage to its contents.
pub(crate) fn block_sections(file: &File) -> io::Result<Result<Vec<SectionRange>, &'static str>> {
    let contents = match read_contents(file)? {
        Ok(contents) => contents,
        Err(what) => return Ok(Err(what)),
    };
    let blocks =
        sections(&contents).unwrap_or_default().into_iter().filter(|section| section.name != VERSION_SECTION);
    Ok(Ok(blocks
        .map(|section| SectionRange { start: section.start, end: section.start + section.length })
        .collect()))
}

/// Reads and verifies the contents of an archive. Returns a description of the damage, if any.
fn read_contents(file: &File) -> io::Result<Result<Vec<u8>, &'static str>> {
    let length = file.metadata()?.len();
    let Some(end) = length.checked_sub(TRAILER_BYTES as u64) else { return Ok(Err("it is too short")) };
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, end)?;
    let Some((checksum, start)) = parse_trailer(&trailer, end) else {
        return Ok(Err("its trailer cannot be read"));
    };
    let mut contents = vec![0; (end - start) as usize];
    file.read_exact_at(&mut contents, start)?;
    if xxh3_128(&contents) != checksum {
        return Ok(Err("the checksum of its contents is wrong"));
    }
    let Some(sections) = sections(&contents) else { return Ok(Err("its contents cannot be read")) };
    let fits =
        |section: &Section<'_>| section.start.checked_add(section.length).is_some_and(|end| end <= start);
    match sections.iter().all(fits) {
        true => Ok(Ok(contents)),
        false => Ok(Err("its contents name offsets past its end")),
    }
}

/// Returns the checksum and the start of the contents, which end at the trailer's offset.
fn parse_trailer(trailer: &[u8], end: u64) -> Option<(u128, u64)> {
    let mut fields = trailer.strip_prefix(TRAILER_MAGIC)?;
    let (checksum, start, length) =
        (fields.try_get_u128_le().ok()?, fields.try_get_u64_le().ok()?, fields.try_get_u64_le().ok()?);
    (length <= MAX_CONTENTS_BYTES && start.checked_add(length)? == end).then_some((checksum, start))
}

/// A section of an archive.
struct Section<'a> {
    name: &'a [u8],
    start: u64,
    length: u64,
}

fn sections(contents: &[u8]) -> Option<Vec<Section<'_>>> {
    let mut rest = contents.strip_prefix(CONTENTS_MAGIC)?;
    let mut sections = vec![];
    for _ in 0..rest.try_get_u32_le().ok()? {
        let (start, length) = (rest.try_get_u64_le().ok()?, rest.try_get_u64_le().ok()?);
        let name_length = rest.try_get_u16_le().ok()?;
        let (name, after_name) = rest.split_at_checked(name_length.into())?;
        sections.push(Section { name, start, length });
        rest = after_name;
    }
    rest.is_empty().then_some(sections)
}

/// Decodes the list of tables in a manifest.
fn tables(manifest: &[u8]) -> Option<Vec<NamedTable>> {
    let (rest, trailer) = manifest.split_at_checked(manifest.len().checked_sub(TRAILER_BYTES)?)?;
    let (_, start) = parse_trailer(trailer, rest.len() as u64)?;
    let sections = sections(rest.get(start as usize..)?)?;
    let list = sections.iter().find(|section| section.name == b"tables")?;
    let mut list = rest.get(list.start as usize..)?.get(..list.length as usize)?;
    let mut tables = vec![];
    for _ in 0..list.try_get_u8().ok()? {
        for _ in 0..list.try_get_u8().ok()? {
            for _ in 0..list.try_get_u32_le().ok()? {
                let (id, kind) = (list.try_get_u64_le().ok()?, list.try_get_u8().ok()?);
                let (checksum, _seqno) = (list.try_get_u128_le().ok()?, list.try_get_u64_le().ok()?);
                if kind != XXH3_KIND {
                    return None;
                }
                tables.push(NamedTable { id, checksum });
            }
        }
    }
    list.is_empty().then_some(tables)
}
