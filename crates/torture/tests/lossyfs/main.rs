//! Tests of the lossy file system itself: power cuts, faults, and ordinary behavior as a file system.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod file_system;
mod forget;
mod tear;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use lazuli_torture::{CutMode, LossyFs};

pub(crate) const PAGE: usize = 4096;
pub(crate) const SECTOR: usize = 512;

/// Returns everything on the disk: path to content. Directories have a trailing `/` and no content.
pub(crate) fn snapshot(root: &Path) -> BTreeMap<String, Vec<u8>> {
    fn visit(directory: &Path, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                visit(&entry.path(), &format!("{name}/"), found);
                found.insert(format!("{name}/"), Vec::new());
            } else {
                found.insert(name, fs::read(entry.path()).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(root, "", &mut found);
    found
}

pub(crate) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Creates a file that survives any cut, in a directory that does.
pub(crate) fn durable(root: &Path, name: &str, content: &[u8]) -> io::Result<File> {
    let path = root.join(name);
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    file.write_all(content)?;
    file.sync_all()?;
    sync(path.parent().expect("a file has a parent"))?;
    Ok(file)
}

pub(crate) fn cut_and_boot(fs: &LossyFs, mode: CutMode, seed: u64) {
    fs.cut(mode, seed);
    fs.boot().unwrap();
}

pub(crate) fn errno(result: io::Result<impl std::fmt::Debug>) -> Option<rustix::io::Errno> {
    rustix::io::Errno::from_io_error(&result.unwrap_err())
}
