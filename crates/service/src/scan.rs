//! Scans the rows of a space in pages.

use bytes::Bytes;
use lazuli_concurrency::Pace;
use lazuli_protocol::Refusal;
use lazuli_store::{Row, SpaceId, Store, Which, prefix_range};

use crate::read_refusal;

/// A scan of the rows of all partitions whose keys begin with a prefix, in order. Each page has its own
/// snapshot, so the scan retains no overwritten rows, and may be dropped at any point.
pub struct SpaceScan<'a> {
    store: &'a dyn Store,
    space: SpaceId,
    which: Which,
    page_rows: usize,
    pace: Option<Pace>,
    /// Start of the next page; `None` after the last page.
    next: Option<(Bytes, Bytes)>,
    end: (Bytes, Bytes),
    is_first: bool,
}

impl<'a> SpaceScan<'a> {
    /// Creates a scan.
    pub fn new(store: &'a dyn Store, space: SpaceId, prefix: &[u8], which: Which, page_rows: usize) -> Self {
        let all = prefix_range(prefix);
        let (next, end) = (Some((all.start, Bytes::new())), (all.end, Bytes::new()));
        Self { store, space, which, page_rows, pace: None, next, end, is_first: true }
    }

    /// Pauses between two pages.
    #[must_use]
    pub fn paced(self, pace: Pace) -> Self {
        Self { pace: Some(pace), ..self }
    }

    /// Reads the next page of rows, each with the key of its partition. Returns `None` after the last page.
    pub async fn next(&mut self) -> Result<Option<Vec<(Bytes, Row)>>, Refusal> {
        let Some(from) = self.next.clone() else { return Ok(None) };
        if let Some(pace) = self.pace.filter(|_| !self.is_first) {
            pace.rest().await;
        }
        self.is_first = false;
        let page =
            self.store.scan_space(self.space, from, Some(self.end.clone()), self.which, self.page_rows);
        let page = page.await.map_err(read_refusal)?;
        self.next = page.next;
        Ok(Some(page.rows))
    }
}
