//! The speed of the machine without Lazuli: appends that are each followed by `fdatasync`, `dd`, and
//! `md5sum`.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::BenchError;
use super::round::Round;

/// Approximate number of bytes in the store's log for a commit of one row of [500
/// bytes](super::rows::VALUE_BYTES).
pub(crate) const RECORD_BYTES: usize = 600;

const TMPFS_MAGIC: u32 = 0x0102_1994;

/// A file that grows by synced records.
#[derive(Debug)]
pub(crate) struct GrowingFile {
    path: PathBuf,
    file: File,
}

impl GrowingFile {
    /// Creates an empty file and syncs it and its directory.
    pub(crate) fn create(dir: &Path) -> Result<Self, BenchError> {
        let path = dir.join("raw");
        let create = || {
            let file = File::create(&path)?;
            file.sync_all()?;
            File::open(dir)?.sync_all()?;
            Ok(file)
        };
        Ok(Self { file: create().map_err(BenchError::at(&path))?, path })
    }

    /// Appends and syncs a record repeatedly for the given time.
    pub(crate) async fn round(mut self, time: Duration) -> Result<(Round, Self), BenchError> {
        tokio::task::spawn_blocking(move || {
            let round = self.append_for(time).map_err(BenchError::at(&self.path))?;
            Ok((round, self))
        })
        .await?
    }

    fn append_for(&mut self, time: Duration) -> std::io::Result<Round> {
        let record = [0x5a; RECORD_BYTES];
        self.file.seek(SeekFrom::End(0))?;
        let mut round = Round::default();
        let start = Instant::now();
        let mut last = start;
        while last - start < time {
            self.file.write_all(&record)?;
            self.file.sync_data()?;
            let now = Instant::now();
            round.note(now - last, Ok(()));
            last = now;
        }
        round.finish(last - start);
        Ok(round)
    }
}

/// Measures how long `dd` takes to write and sync `mib` MiB of zeros to a new file, and `md5sum` to read the
/// file.
pub(crate) async fn dd_and_md5sum(dir: &Path, mib: u64) -> Result<(Duration, Duration), BenchError> {
    let path = dir.join("dd");
    let (to, count) = (format!("of={}", path.display()), format!("count={mib}"));
    let dd = time("dd", &["if=/dev/zero", "bs=1M", "conv=fdatasync", "status=none", &to, &count]).await?;
    let md5sum = time("md5sum", &[&path.to_string_lossy()]).await?;
    std::fs::remove_file(&path).map_err(BenchError::at(&path))?;
    Ok((dd, md5sum))
}

/// Measures how long a program takes.
async fn time(program: &'static str, args: &[&str]) -> Result<Duration, BenchError> {
    let failed = |reason: String| BenchError::Program(program, reason);
    let mut command = tokio::process::Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let start = Instant::now();
    let output = command.output().await.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(start.elapsed()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().into())),
    }
}

/// Returns a warning if the directory is in memory, where syncing costs nothing.
pub(crate) fn tmpfs_warning(dir: &Path) -> Option<String> {
    let filesystem = rustix::fs::statfs(dir).ok()?;
    (u32::try_from(filesystem.f_type) == Ok(TMPFS_MAGIC))
        .then(|| format!("{} is in memory (tmpfs): nothing here was durable", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn growing_file_grows_by_the_records_that_were_counted() {
        let dir = tempfile::tempdir().unwrap();
        let file = GrowingFile::create(dir.path()).unwrap();
        let (first, file) = file.round(Duration::from_millis(5)).await.unwrap();
        let (second, file) = file.round(Duration::from_millis(5)).await.unwrap();
        let records = first.latency.count() + second.latency.count();
        assert!(records >= 2 && first.per_s > 0.0);
        assert_eq!(std::fs::metadata(&file.path).unwrap().len(), records * RECORD_BYTES as u64);
    }

    #[tokio::test]
    async fn dd_removes_its_file_and_failures_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (dd, md5sum) = dd_and_md5sum(dir.path(), 1).await.unwrap();
        assert!(dd > Duration::ZERO && md5sum > Duration::ZERO);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let failure = dd_and_md5sum(&dir.path().join("nowhere"), 1).await.unwrap_err();
        assert!(failure.to_string().starts_with("dd: "), "{failure}");
    }
}
