//! `lazuli compact`: frees offline and at once the disk space that a running server frees gradually.

use std::path::Path;
use std::sync::Arc;

use indicatif::HumanBytes;
use lazuli_concurrency::Pace;
use lazuli_extents::Extents;
use lazuli_store::Trust;

use crate::Failure;
use crate::check::spinner;
use crate::data::{self, Data};

/// Rewrites the rows without removed ones, and frees content that no row refers to.
pub(crate) fn run(dir: &Path, accept_missing_rows: bool) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::failed)?;
    runtime.block_on(compact(dir, accept_missing_rows))
}

async fn compact(dir: &Path, accept_missing_rows: bool) -> Result<(), Failure> {
    let data = Data::open(data::lock_stopped(dir)?, None, Trust::MayBeBehind)?;
    let extents: Arc<dyn Extents> = Arc::new(data.extents.clone());
    let progress = spinner("rows");
    let before = data.store.disk_bytes();
    let store = Arc::clone(&data.store);
    tokio::task::spawn_blocking(move || store.compact())
        .await
        .map_err(Failure::failed)?
        .map_err(Failure::failed)?;
    progress.finish_and_clear();
    println!("rows: {} before, {} now", HumanBytes(before), HumanBytes(data.store.disk_bytes()));

    let progress = spinner("content");
    let before = extents.storage_use().allocated_bytes;
    let sweeper = data.sweeper();
    if accept_missing_rows {
        sweeper.accept_missing_rows().await.map_err(Failure::failed)?;
    }
    let freed = sweeper.sweep(Pace::FULL).await.map_err(Failure::failed)?;
    progress.finish_and_clear();
    let now = extents.storage_use().allocated_bytes;
    println!(
        "content: {} before, {} now, {} in use",
        HumanBytes(before),
        HumanBytes(now),
        HumanBytes(freed.live_bytes)
    );
    Ok(())
}
