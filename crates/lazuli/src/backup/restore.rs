//! `lazuli restore`: restores a backup into an empty directory, and verifies it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{HumanBytes, ProgressBar};

use super::manifest::{CHUNK, Entry, Manifest};
use super::new_directory::NewDirectory;
use super::partial_restore::{self, RestoreSelection};
use super::repository::{Access, Repository};
use crate::sealing::IdentityArgs;
use crate::{Failure, check};

/// Blocks of zeros of this size become holes: freed content must stay a hole.
const BLOCK: usize = 4096;

#[derive(Args)]
pub(crate) struct RestoreArgs {
    /// The folder that keeps backups
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The id of the backup, as listed by lazuli backup list [default: the newest]
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
    /// The new data directory, which must not exist or must be empty
    #[arg(long, value_name = "DIR", required_unless_present = "only", conflicts_with = "only")]
    into: Option<PathBuf>,
    /// Restore only this, into the running server: container:ACCOUNT/NAME, or table, queue or share in its
    /// place; or account:NAME
    #[arg(long, value_name = "WHAT")]
    only: Option<RestoreSelection>,
    /// With --only: the new name, which must be free; ACCOUNT/NAME for another account [default for an
    /// account: its own]
    #[arg(long = "as", id = "name", value_name = "NAME", requires = "only")]
    name: Option<String>,
    /// With --only: the data directory of the server [default: ./lazuli-data]
    #[arg(long, value_name = "DIR", requires = "only")]
    data: Option<PathBuf>,
    /// Verify every chunk of the backup, but write nothing
    #[arg(long, conflicts_with = "only")]
    dry_run: bool,
    /// Keep the restored data directory even if it is damaged, as the original was
    #[arg(long, conflicts_with = "only")]
    accept_damage: bool,
    #[command(flatten)]
    identities: IdentityArgs,
}

/// Restores a whole data directory.
pub(crate) fn run(args: &RestoreArgs) -> Result<(), Failure> {
    let identities = args.identities.load()?;
    let repository = Repository::open(&args.from, Access::Read)?.with_identities(identities)?;
    let id = match &args.backup {
        Some(id) => id.clone(),
        None => repository
            .list()?
            .pop()
            .ok_or_else(|| Failure::Failed(format!("{} holds no backup", args.from.display())))?,
    };
    let manifest = repository.read_manifest(&id)?;
    if let Some(only) = &args.only {
        return partial_restore::run(
            repository,
            manifest,
            &partial_restore::server_directory(args.data.clone()),
            only,
            args.name.as_deref(),
        );
    }
    let into = args.into.as_ref().ok_or_else(|| Failure::Usage("--into is missing".into()))?;
    let progress = ProgressBar::new(manifest.chunks().count() as u64);
    if args.dry_run {
        for file in &manifest.files {
            each_chunk(&repository, file, &progress, |_, _| Ok(()))?;
        }
        progress.finish_and_clear();
        println!("backup {id}: {} can be restored", HumanBytes(manifest.bytes()));
        return Ok(());
    }
    let new_directory = NewDirectory::begin(into)?;
    let restored = write_files(&repository, &manifest, &new_directory.dir(), &progress, |_| true);
    progress.finish_and_clear();
    let verified = restored.and_then(|()| match check::run(&new_directory.dir()) {
        Err(damage) if args.accept_damage => {
            eprintln!("lazuli: {damage}");
            Ok(())
        }
        checked => checked,
    });
    if let Err(error) = verified {
        new_directory.abandon();
        return Err(error);
    }
    new_directory.finish()?;
    println!("restored backup {id}: {} in {} files", HumanBytes(manifest.bytes()), manifest.files.len());
    Ok(())
}

/// Writes the files of a backup whose paths are selected.
pub(super) fn write_files(
    repository: &Repository,
    manifest: &Manifest,
    dir: &Path,
    progress: &ProgressBar,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    for file in manifest.files.iter().filter(|file| is_wanted(&file.path)) {
        let path = dir.join(&file.path);
        let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", path.display()));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let written = File::create_new(&path).map_err(failed)?;
        written.set_len(file.length).map_err(failed)?;
        each_chunk(repository, file, progress, |at, bytes| {
            write_sparse(&written, at, bytes).map_err(failed)
        })?;
    }
    // An empty tree has no tables, and an empty store no segments.
    for folder in ["store/log", "store/tree/tables", "segments"] {
        fs::create_dir_all(dir.join(folder)).map_err(Failure::failed)?;
    }
    Ok(())
}

fn each_chunk(
    repository: &Repository,
    file: &Entry,
    progress: &ProgressBar,
    mut visit: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for (i, hash) in file.chunks.iter().enumerate() {
        if let Some(hash) = hash {
            visit((i * CHUNK) as u64, &repository.read_chunk(hash, file.chunk_bytes(i))?)?;
            progress.inc(1);
        }
    }
    Ok(())
}

/// Writes bytes, skipping blocks of zeros.
fn write_sparse(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    let is_zero = |block: &[u8]| block == &[0; BLOCK][..block.len()];
    let mut start = 0;
    while start < bytes.len() {
        let rest = &bytes[start..];
        let zeros = rest.chunks(BLOCK).take_while(|block| is_zero(block)).count() * BLOCK;
        let data =
            rest[zeros.min(rest.len())..].chunks(BLOCK).take_while(|block| !is_zero(block)).count() * BLOCK;
        let from = (start + zeros).min(bytes.len());
        let to = (from + data).min(bytes.len());
        file.write_all_at(&bytes[from..to], at + from as u64)?;
        start = to;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn blocks_of_zeros_become_holes_and_all_other_bytes_are_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = vec![0u8; 64 * BLOCK + 100];
        bytes[3 * BLOCK + 5] = 1;
        bytes[4 * BLOCK] = 2;
        bytes[64 * BLOCK + 99] = 3;
        file.as_file().set_len(bytes.len() as u64).unwrap();
        write_sparse(file.as_file(), 0, &bytes).unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), bytes);
        assert!(file.as_file().metadata().unwrap().blocks() * 512 < 16 * BLOCK as u64);
    }
}
