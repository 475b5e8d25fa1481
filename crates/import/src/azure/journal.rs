//! The journal of an import: which objects were copied and verified, so that a later run does not copy them
//! again.
//!
//! A record is the digest of an object's name and of its ETags on both sides. If either side changes, the
//! record no longer matches, and the object is compared or copied again. A journal takes about 35 bytes per
//! object on disk and 32 in memory.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;

use parking_lot::Mutex;
use ring::digest::{Context, SHA256};

/// The first line begins with this, and ends with the names of both accounts.
const HEADER: &str = "lazuli import azure 1 ";
/// Length of the longest line that belongs to a journal, in bytes.
const MAX_LINE: usize = 1024;

/// The records of an import.
pub struct Journal {
    records: Mutex<HashSet<u128>>,
    /// `None` for an import that only counts.
    file: Option<Mutex<File>>,
}

impl Journal {
    /// Returns a journal that is not stored.
    pub fn in_memory() -> Self {
        Self { records: Mutex::default(), file: None }
    }

    /// Opens or creates a journal of an import from one account to another. Fails if another import is
    /// using it, or if it belongs to other accounts.
    pub fn open(path: &Path, accounts: &str) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.try_lock().map_err(|_| io::Error::other("another import is using this journal"))?;
        let header = format!("{HEADER}{accounts}\n");
        let mut records = HashSet::new();
        let (mut complete, mut is_first) = (0, true);
        let mut reader = BufReader::new(&mut file);
        let mut line = vec![];
        loop {
            line.clear();
            let read = io::Read::take(&mut reader, MAX_LINE as u64).read_until(b'\n', &mut line)?;
            // A line that a killed import did not complete is overwritten.
            let is_torn = !line.ends_with(b"\n") && read < MAX_LINE;
            if is_first && line != header.as_bytes() && !(is_torn && header.as_bytes().starts_with(&line)) {
                return Err(io::Error::other("this is the journal of another import, or no journal"));
            }
            if is_torn {
                break;
            }
            if !is_first {
                let digits = std::str::from_utf8(&line).unwrap_or_default().trim_end();
                let record = u128::from_str_radix(digits, 16);
                records.insert(record.map_err(|_| io::Error::other("the journal is damaged"))?);
            }
            is_first = false;
            complete += read as u64;
        }
        file.set_len(complete)?;
        file.seek(SeekFrom::Start(complete))?;
        if is_first {
            file.write_all(header.as_bytes())?;
        }
        Ok(Self { records: Mutex::new(records), file: Some(Mutex::new(file)) })
    }

    /// Returns whether the journal has a record.
    pub(super) fn has(&self, record: u128) -> bool {
        self.records.lock().contains(&record)
    }

    /// Adds a record.
    pub(super) fn add(&self, record: u128) -> io::Result<()> {
        if let Some(file) = &self.file {
            file.lock().write_all(format!("{record:032x}\n").as_bytes())?;
        }
        self.records.lock().insert(record);
        Ok(())
    }
}

/// Returns the record of these parts.
pub(super) fn record(parts: &[&str]) -> u128 {
    let mut digest = Context::new(&SHA256);
    for part in parts {
        digest.update(&(part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    let digest = digest.finish();
    digest.as_ref().iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_a_restart_and_an_incomplete_line_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (first, second) = (record(&["a", "b"]), record(&["ab", ""]));
        assert_ne!(first, second);
        let journal = Journal::open(&path, "a to b").unwrap();
        journal.add(first).unwrap();
        assert!(Journal::open(&path, "a to b").is_err(), "two imports used one journal");
        drop(journal);
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"0123").unwrap();
        let journal = Journal::open(&path, "a to b").unwrap();
        assert!(journal.has(first) && !journal.has(second));
        journal.add(second).unwrap();
        drop(journal);
        assert!(Journal::open(&path, "a to b").unwrap().has(second));
        assert!(Journal::open(&path, "a to c").is_err(), "the journal belongs to other accounts");
    }

    #[test]
    fn other_files_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        std::fs::write(&path, "Dear reader,\n").unwrap();
        assert!(Journal::open(&path, "a to b").is_err());
        std::fs::write(&path, "Dear reader").unwrap();
        assert!(Journal::open(&path, "a to b").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "Dear reader");
    }
}
