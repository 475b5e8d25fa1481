//! File attributes, as SMB encodes them.

/// A directory.
pub(crate) const DIRECTORY: u32 = 0x10;
/// A file without other attributes.
pub(crate) const NORMAL: u32 = 0x80;
/// A file that must not be changed.
pub(crate) const READ_ONLY: u32 = 0x1;
/// A file to archive.
pub(crate) const ARCHIVE: u32 = 0x20;

/// Normalizes attributes: a directory has `DIRECTORY`, and a file without attributes has `NORMAL`.
pub(crate) fn normal(attributes: u32, is_directory: bool) -> u32 {
    match attributes & !(NORMAL | DIRECTORY) {
        rest if is_directory => rest | DIRECTORY,
        0 => NORMAL,
        rest => rest,
    }
}
