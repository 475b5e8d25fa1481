//! The directory of segment files: which segments exist, their sizes, and their open files.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, SeekFrom, flock, ftruncate, seek};
use rustix::io::Errno;

use super::disk::allocated;
use super::read::read_blocking;
use super::{Mode, OpenError};
use crate::segment::{BLOCK, HeaderError, SegmentHeader};

/// Maximum number of files that are kept open for reading.
pub(super) const MAX_OPEN: usize = 256;
/// Number of the highest segments that a crash can leave with preallocated space at the end. Older ones are
/// trimmed: the one before the highest is trimmed when the highest begins.
const MAX_UNTRIMMED: usize = 2;

/// The directory `segments`.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Open, and locked while this process uses the directory.
    pub(crate) handle: File,
    mode: Mode,
    table: Mutex<SegmentTable>,
}

#[derive(Debug, Default)]
struct SegmentTable {
    /// Bytes on disk of every segment.
    segments: BTreeMap<u64, u64>,
    /// Open files, each with the value of `uses` at its last use.
    open: HashMap<u64, (Arc<File>, u64)>,
    /// Counts uses of open files.
    uses: u64,
}

impl Directory {
    /// Opens and locks the directory below `data`, and inspects every segment. In read-write mode, creates
    /// the directory if it does not exist.
    pub(crate) fn open(data: &Path, mode: Mode) -> Result<Self, OpenError> {
        let path = data.join("segments");
        if mode == Mode::ReadWrite && !path.exists() {
            fs::create_dir_all(&path)?;
            File::open(data)?.sync_all()?;
        }
        let handle = File::open(&path)?;
        let lock = match mode {
            Mode::ReadWrite => FlockOperation::NonBlockingLockExclusive,
            Mode::ReadOnly => FlockOperation::NonBlockingLockShared,
        };
        flock(&handle, lock).map_err(|e| match e {
            Errno::WOULDBLOCK => OpenError::Locked,
            e => OpenError::Io(e.into()),
        })?;
        let directory = Self { path, handle, mode, table: Mutex::default() };
        let ids = directory.list()?;
        for id in &ids {
            let file = directory.open_file(*id)?;
            directory.inspect(*id, &file)?;
            directory.set_allocated(*id, &file)?;
        }
        // Only now, when every segment is known to have a supported format.
        if mode == Mode::ReadWrite {
            for id in ids.iter().rev().take(MAX_UNTRIMMED) {
                let file = directory.open_file(*id)?;
                trim(&file).map_err(io::Error::from)?;
                directory.set_allocated(*id, &file)?;
            }
        }
        Ok(directory)
    }

    fn list(&self) -> io::Result<Vec<u64>> {
        let mut ids = vec![];
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            match name.to_str().and_then(parse_name) {
                Some(id) => ids.push(id),
                None => tracing::warn!(?name, "ignored a file that is not a segment"),
            }
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// Refuses newer formats. A damaged segment header loses no data: every frame is self-describing.
    fn inspect(&self, id: u64, file: &File) -> Result<(), OpenError> {
        match read_segment_header(file, id)? {
            Err(HeaderError::NewerFormat(version)) => Err(OpenError::NewerFormat { version, segment: id }),
            Err(HeaderError::Damaged) => {
                tracing::warn!(segment = id, "segment header is damaged or incomplete; reads do not need it");
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    pub(crate) fn path_of(&self, id: u64) -> PathBuf {
        self.path.join(name(id))
    }

    fn open_file(&self, id: u64) -> io::Result<File> {
        OpenOptions::new().read(true).write(self.mode == Mode::ReadWrite).open(self.path_of(id))
    }

    /// Returns every segment, lowest first.
    pub(crate) fn segments(&self) -> Vec<u64> {
        self.table.lock().segments.keys().copied().collect()
    }

    /// Returns every segment with its bytes on disk, lowest first.
    pub(crate) fn sizes(&self) -> Vec<(u64, u64)> {
        self.table.lock().segments.iter().map(|(id, bytes)| (*id, *bytes)).collect()
    }

    /// Returns the highest segment that exists, or 0.
    pub(crate) fn highest(&self) -> u64 {
        self.table.lock().segments.last_key_value().map_or(0, |(id, _)| *id)
    }

    /// Returns the number of open files that are kept.
    pub(crate) fn open_files(&self) -> usize {
        self.table.lock().open.len()
    }

    /// Returns the number of segments and their bytes on disk.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let table = self.table.lock();
        (table.segments.len() as u64, table.segments.values().sum())
    }

    /// Creates the file of a new segment. Neither durable nor listed yet.
    pub(crate) fn create(&self, id: u64) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open(self.path_of(id))
    }

    /// Records a segment's bytes on disk. Adds the segment if it is new.
    pub(crate) fn set_allocated(&self, id: u64, file: &File) -> io::Result<()> {
        let bytes = allocated(file)?;
        self.table.lock().segments.insert(id, bytes);
        Ok(())
    }

    /// Returns the file of a segment if it is open.
    pub(crate) fn opened(&self, id: u64) -> Option<Arc<File>> {
        let mut table = self.table.lock();
        table.uses += 1;
        let now = table.uses;
        let (file, used) = table.open.get_mut(&id)?;
        *used = now;
        Some(file.clone())
    }

    /// Returns the file of a segment, or `None` if there is no such segment. Blocks.
    pub(crate) fn file(&self, id: u64) -> io::Result<Option<Arc<File>>> {
        if let Some(file) = self.opened(id) {
            return Ok(Some(file));
        }
        match self.open_file(id) {
            Ok(file) => {
                let file = Arc::new(file);
                self.keep_open(id, &file);
                Ok(Some(file))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Keeps a file open, closing the least recently used one if necessary.
    pub(crate) fn keep_open(&self, id: u64, file: &Arc<File>) {
        let mut table = self.table.lock();
        if table.open.len() >= MAX_OPEN
            && let Some(oldest) = table.open.iter().min_by_key(|(_, (_, used))| *used).map(|(id, _)| *id)
        {
            table.open.remove(&oldest);
        }
        table.uses += 1;
        let now = table.uses;
        table.open.insert(id, (file.clone(), now));
    }

    /// Removes the file of a segment.
    pub(crate) fn remove(&self, id: u64) -> io::Result<()> {
        let mut table = self.table.lock();
        table.open.remove(&id);
        table.segments.remove(&id);
        drop(table);
        fs::remove_file(self.path_of(id))
    }
}

/// Returns the name of a segment's file.
pub(crate) fn name(id: u64) -> String {
    format!("{id:016x}.seg")
}

pub(crate) fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg").filter(|digits| digits.len() == 16)?;
    let id = u64::from_str_radix(digits, 16).ok()?;
    // Segment ids have 48 bits. Each segment has exactly one valid name, so accept only what `name` returns.
    (id > 0 && id >> 48 == 0 && format!("{id:016x}") == digits).then_some(id)
}

/// Reads block 0 of a segment.
pub(crate) fn read_segment_header(file: &File, id: u64) -> io::Result<Result<SegmentHeader, HeaderError>> {
    let mut block = vec![0; BLOCK as usize];
    read_blocking(file, &mut block, 0)?;
    Ok(decode_segment_header(&block, id))
}

/// Decodes block 0 of a segment. The header of another segment counts as damaged.
pub(crate) fn decode_segment_header(block: &[u8], id: u64) -> Result<SegmentHeader, HeaderError> {
    SegmentHeader::decode(block).and_then(|header| match header.id == id {
        true => Ok(header),
        false => Err(HeaderError::Damaged),
    })
}

/// Cuts off preallocated space at the end of a file that was never written to.
fn trim(file: &File) -> Result<(), Errno> {
    let mut end = BLOCK;
    loop {
        match next_data(file, end)? {
            None => break,
            Some(data) => match seek(file, SeekFrom::Hole(data)) {
                Ok(hole) => end = hole.next_multiple_of(BLOCK),
                Err(_) => return Ok(()),
            },
        }
    }
    if end < file.metadata().map_err(|_| Errno::IO)?.len() { ftruncate(file, end) } else { Ok(()) }
}

/// Returns the next offset that is not in a hole, from `offset` on. On a file system without holes, returns
/// `offset`.
pub(crate) fn next_data(file: &File, offset: u64) -> Result<Option<u64>, Errno> {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset)),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_name;

    #[test]
    fn only_canonical_names_are_segments() {
        for (name, id) in [
            ("0000000000000001.seg", Some(1)),
            ("0000ffffffffffff.seg", Some((1 << 48) - 1)),
            ("0001000000000000.seg", None),
            ("0000000000000000.seg", None),
            ("000000000000000A.seg", None),
            ("+00000000000000a.seg", None),
            ("1.seg", None),
            ("0000000000000001.tmp", None),
        ] {
            assert_eq!(parse_name(name), id, "{name}");
        }
    }
}
