//! Gives back the space of content that no row refers to any more.

use std::sync::Arc;
use std::time::Duration;

use lazuli_extents::{Extents, Freed, Pace, Sweep};
use lazuli_store::{Embedded, ReadError};

use crate::records::{self, Found};
use crate::services;

/// Rows read between two pauses.
const STRIDE: u64 = 1024;

/// Looks at all rows, then frees what none of them refers to. If one cannot be understood, nothing is freed, because
/// what it refers to is not known. Nothing is freed either if the future is dropped before it gets to that.
pub(crate) async fn sweep(
    store: &Arc<Embedded>,
    extents: &Arc<dyn Extents>,
    pace: Pace,
) -> Result<Freed, String> {
    let mut sweep = Sweep::begin(extents, pace).await.map_err(|error| error.to_string())?;
    let store = Arc::clone(store);
    let (mut found, walk) = records::walk(services::readers(), move |visit| {
        let mut rows = 0u64;
        store.for_each_row(|space, partition, row| {
            rows += 1;
            if rows.is_multiple_of(STRIDE) && pace.pause > Duration::ZERO {
                std::thread::sleep(pace.pause);
            }
            visit(space, partition, row)
        })
    });
    while let Some(found) = found.recv().await {
        match found {
            Found::Content(content) => sweep.live(&content).await.map_err(|error| error.to_string())?,
            Found::Damage(damage) => return Err(damage),
        }
    }
    // Only a walk that came to its end has seen everything.
    let walked: Result<(), ReadError> = walk.await.map_err(|error| error.to_string())?;
    walked.map_err(|error| error.to_string())?;
    sweep.finish().await.map_err(|error| error.to_string())
}
