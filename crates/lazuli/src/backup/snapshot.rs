//! A snapshot of the data directory of a running server: a folder of hard links that is a data directory
//! itself.
//!
//! While the snapshot exists, no content is freed, but commits continue. Rows are captured before content, so
//! the content of every captured row exists when content is captured.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lazuli_extents::{CapturedSegment, Error, Extents, LocalExtents, Mark};
use lazuli_store::embedded::backup;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::data::STORE;

/// The folder's name in the data directory.
pub(crate) const SNAPSHOT: &str = "snapshot";
pub(crate) const SEGMENTS: &str = "segments";
pub(crate) const FORMAT: &str = "FORMAT";

/// Maximum wait for a content sweep or another backup.
const PATIENCE: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(20);

/// A segment of a snapshot, as sent over the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) identity: Option<String>,
    pub(crate) length: u64,
}

impl From<CapturedSegment> for Segment {
    fn from(CapturedSegment { name, identity, length }: CapturedSegment) -> Self {
        Self { name, identity, length }
    }
}

/// A snapshot. Dropping it removes the folder and resumes sweeps.
pub(crate) struct Snapshot {
    dir: PathBuf,
    pub(crate) segments: Vec<Segment>,
    /// While this mark exists, no sweep can free content.
    _mark: Box<dyn Mark>,
}

impl Snapshot {
    /// Takes a snapshot of a data directory that this process has locked.
    pub(crate) async fn take(data: &Path, extents: &LocalExtents) -> Result<Self, String> {
        let mark = hold_content(extents).await?;
        let mut snapshot = Self { dir: data.join(SNAPSHOT), segments: vec![], _mark: mark };
        let (data, dir, extents) = (data.to_owned(), snapshot.dir.clone(), extents.clone());
        let captured = tokio::task::spawn_blocking(move || -> Result<_, String> {
            remove(&data).map_err(|error| error.to_string())?;
            fs::create_dir_all(dir.join(SEGMENTS)).map_err(|error| error.to_string())?;
            backup::capture(&data.join(STORE), &dir.join(STORE)).map_err(|error| error.to_string())?;
            let segments = extents.capture(&dir.join(SEGMENTS)).map_err(|error| error.to_string())?;
            fs::copy(data.join(FORMAT), dir.join(FORMAT)).map_err(|error| error.to_string())?;
            Ok(segments)
        });
        let captured = captured.await.map_err(|error| error.to_string())??;
        snapshot.segments = captured.into_iter().map(Segment::from).collect();
        Ok(snapshot)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::warn!(%error, dir = %self.dir.display(), "could not remove the snapshot of a backup; the next start removes it");
        }
    }
}

/// Removes the snapshot of a killed server.
pub(crate) fn remove(data: &Path) -> io::Result<()> {
    match fs::remove_dir_all(data.join(SNAPSHOT)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

async fn hold_content(extents: &LocalExtents) -> Result<Box<dyn Mark>, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match extents.begin_mark().await {
            Ok(mark) => return Ok(mark),
            Err(Error::Busy(_)) if Instant::now() < deadline => sleep(PAUSE).await,
            Err(Error::Busy(_)) => {
                return Err("timed out waiting for a content sweep or another backup".into());
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
