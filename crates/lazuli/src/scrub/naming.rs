//! Finds the objects that refer to damaged content, in one scan of all rows.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_extents::{Damage, Extents, LocalExtents};
use lazuli_store::{Row, RowPosition, SpaceId, Store};
use tokio::runtime::Handle;

use crate::names::{Names, RowLocation};
use crate::services;
use crate::survey::Findings;

/// Number of rows read at a time.
const PAGE_ROWS: usize = 1024;

/// A page of rows with their spaces and partitions.
type Page = Vec<(SpaceId, Bytes, Row)>;

/// Returns the damaged places that rows refer to, each with its line in the format of `lazuli check`. Damage
/// that no row refers to is in garbage, or in content that was being freed.
pub(super) async fn damaged_content(
    store: &Arc<dyn Store>,
    extents: &LocalExtents,
    damage: &[Damage],
) -> Result<Vec<(String, String)>, String> {
    let (mut names, mut findings) = (Names::default(), Findings::default());
    let mut verifier = extents.verifier_of(damage);
    let mut readers = services::readers();
    let mut from = None;
    loop {
        // Pin the content that a page refers to until the page is checked.
        let pin = extents.pin();
        let (page, next) = read_page(store, from).await?;
        let mut found = vec![];
        for (space, partition, row) in &page {
            names.learn(*space, partition, row);
            for reader in &mut readers {
                // An undecodable row is damage of another kind, which requests and checks report.
                let contents = reader(*space, partition, row).unwrap_or_default();
                found.extend(
                    contents.into_iter().map(|content| (RowLocation::of(*space, partition, row), content)),
                );
            }
        }
        let _held = pin.hold(found.iter().map(|(_, content)| content));
        for (place, content) in &found {
            let damaged = verifier.content(content).await.map_err(|error| error.to_string())?;
            for (extent, error) in damaged {
                findings.damaged_extent(extents, &extent, &error, place.clone());
            }
        }
        match next {
            Some(next) => from = Some(next),
            None => return Ok(findings.content_lines(&names)),
        }
    }
}

async fn read_page(
    store: &Arc<dyn Store>,
    from: Option<RowPosition>,
) -> Result<(Page, Option<RowPosition>), String> {
    let store = store.clone();
    let read = tokio::task::spawn_blocking(move || {
        let mut page = vec![];
        let mut visitor = |space, partition: Bytes, row: Row| {
            if page.len() == PAGE_ROWS {
                return ControlFlow::Break(());
            }
            page.push((space, partition, row));
            ControlFlow::Continue(())
        };
        let next = Handle::current().block_on(store.visit_all(from, &mut visitor));
        next.map(|next| (page, next)).map_err(|error| error.to_string())
    });
    read.await.map_err(|_| "the scan was stopped".to_owned())?
}
