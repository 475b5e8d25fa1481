//! Scans and visits of the rows of a space, page by page. A page is one op on one shard, so it is one
//! snapshot of every partition in it.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_rados::{Pool, ReadValue};
use lazuli_store::{
    AllVisitor, MAX_SCAN_BYTES, MAX_SCAN_ROWS, Row, RowPosition, RunBuilder, RunVisitor, SpaceHeader,
    SpaceId, SpacePage, Stretch, Visited, Visitor, Which,
};

use crate::access::AccessError;
use crate::keys::{partition_start, row_key, rows_end, space_of_root, successor};
use crate::protocol::Protocol;
use crate::read::Routed;
use crate::rows::{PAGE_ROWS, decode, page_of};

/// Rows to read for each wanted partition, if only first rows are wanted.
const ROWS_PER_FIRST: usize = 8;

/// A position in a space: partition key and row key.
type RowPlace = (Bytes, Bytes);

/// Rows that one op read.
struct ShardPage {
    space: Option<SpaceHeader>,
    rows: Vec<(Bytes, Row)>,
    next: Option<RowPlace>,
}

impl Protocol {
    /// Reads rows of a space in order, from one position up to another.
    pub(crate) async fn scan(
        self: &Arc<Self>,
        space: SpaceId,
        from: RowPlace,
        end: Option<RowPlace>,
        which: Which,
        limit: usize,
    ) -> Result<SpacePage, AccessError> {
        let limit = limit.min(MAX_SCAN_ROWS);
        let asked = if which == Which::First { limit.saturating_mul(ROWS_PER_FIRST) } else { limit };
        let page = self.page(space, from, end.as_ref(), asked.saturating_add(1)).await?;
        let (mut rows, mut next, mut bytes) = (vec![], page.next, 0);
        for (partition, row) in page.rows {
            let is_later = rows.last().is_some_and(|(last, _): &(Bytes, Row)| *last == partition);
            if which == Which::First && is_later {
                continue;
            }
            if rows.len() == limit || bytes >= MAX_SCAN_BYTES {
                return Ok(SpacePage { space: page.space, rows, next: Some((partition, row.key)) });
            }
            bytes += partition.len() + row.key.len() + row.value.len();
            rows.push((partition, row));
        }
        if let (Which::First, Some(at), Some((last, _))) = (which, &mut next, rows.last())
            && at.0 <= *last
        {
            *at = (successor(last), Bytes::new());
        }
        Ok(SpacePage { space: page.space, rows, next })
    }

    /// Passes rows to a visitor.
    pub(crate) async fn visit(
        self: &Arc<Self>,
        space: SpaceId,
        from: RowPlace,
        end: Option<RowPlace>,
        visitor: &mut Visitor<'_>,
    ) -> Result<Visited, AccessError> {
        let page = self.scan(space, from, end, Which::All, PAGE_ROWS).await?;
        for (partition, row) in page.rows {
            let place = (partition.clone(), row.key.clone());
            if visitor(partition, row).is_break() {
                return Ok(Visited { space: page.space, next: Some(place) });
            }
        }
        Ok(Visited { space: page.space, next: page.next })
    }

    /// Passes rows to a visitor of runs.
    pub(crate) async fn visit_in_runs(
        self: &Arc<Self>,
        space: SpaceId,
        from: RowPlace,
        end: Option<RowPlace>,
        visitor: &mut RunVisitor<'_>,
    ) -> Result<Visited, AccessError> {
        let SpacePage { space, rows, next } = self.scan(space, from, end, Which::All, PAGE_ROWS).await?;
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            let mut run = RunBuilder::default();
            while let Some((partition, row)) = rows.next_if(|_| run.has_room()) {
                run.add(&partition, &row.key, &row.value, row.token);
            }
            let stretch = Stretch { rows: 0..run.len(), run: Arc::new(run.finish()), kept: false };
            if let ControlFlow::Break(row) = visitor(&stretch)
                && stretch.rows.contains(&row)
            {
                let copy = Bytes::copy_from_slice;
                let place = (copy(stretch.run.partition(row)), copy(stretch.run.key(row)));
                return Ok(Visited { space, next: Some(place) });
            }
        }
        Ok(Visited { space, next })
    }

    /// Passes rows of all spaces to a visitor.
    pub(crate) async fn visit_spaces(
        self: &Arc<Self>,
        from: Option<RowPosition>,
        visitor: &mut AllVisitor<'_>,
    ) -> Result<Option<RowPosition>, AccessError> {
        let start = from.as_ref().map(|from| from.space);
        let mut place = from.map_or_else(RowPlace::default, |from| (from.partition, from.key));
        for space in self.spaces_from(start).await? {
            let page = self.scan(space, std::mem::take(&mut place), None, Which::All, PAGE_ROWS).await?;
            let position = |(partition, key)| RowPosition { space, partition, key };
            let is_empty = page.rows.is_empty();
            for (partition, row) in page.rows {
                let at = (partition.clone(), row.key.clone());
                if visitor(space, partition, row).is_break() {
                    return Ok(Some(position(at)));
                }
            }
            if let Some(next) = page.next {
                return Ok(Some(position(next)));
            }
            if !is_empty {
                let next = SpaceId(space.0.saturating_add(1));
                return Ok(Some(RowPosition { space: next, partition: Bytes::new(), key: Bytes::new() }));
            }
        }
        Ok(None)
    }

    /// Returns the ids of all spaces from one on, in order. A walk lists the pool only for its first page:
    /// the rows of spaces that are created later need not be visited.
    async fn spaces_from(&self, start: Option<SpaceId>) -> Result<Vec<SpaceId>, AccessError> {
        let known = self.listed_spaces.lock().clone().filter(|_| start.is_some());
        let spaces = match known {
            Some(known) => known,
            None => {
                let spaces = Arc::new(self.list_spaces().await?);
                *self.listed_spaces.lock() = Some(spaces.clone());
                spaces
            }
        };
        Ok(spaces.iter().filter(|space| start.is_none_or(|start| **space >= start)).copied().collect())
    }

    async fn list_spaces(&self) -> Result<Vec<SpaceId>, AccessError> {
        let (mut spaces, mut cursor) = (vec![], None);
        loop {
            let listed = self.access.cluster.list(Pool::Meta, cursor).await;
            let (names, next) = listed.map_err(|error| AccessError::Unavailable(error.to_string()))?;
            spaces.extend(names.iter().filter_map(space_of_root));
            match next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        spaces.sort_unstable();
        spaces.dedup();
        Ok(spaces)
    }

    /// Reads one page from the first shard that has rows from the position on.
    async fn page(
        self: &Arc<Self>,
        space: SpaceId,
        from: RowPlace,
        end: Option<&RowPlace>,
        limit: usize,
    ) -> Result<ShardPage, AccessError> {
        let mut from = from;
        loop {
            let name = self.routes.locate(space, &from.0);
            let start = row_key(&from.0, &from.1);
            let last =
                end.map_or_else(rows_end, |(partition, row)| row_key(partition, row)).max(start.clone());
            let step = page_of(start..last.clone(), limit);
            let Some((seen, reply)) = self.access.read_with_header(&name, vec![step]).await? else {
                if let Some(space) = self.without_shard(space, &name).await? {
                    return Ok(ShardPage { space, rows: vec![], next: None });
                }
                continue;
            };
            if let Routed::Again = self.route(space, &name, &seen, &from.0).await? {
                continue;
            }
            let Some(header) = self.header_of_read(space, &seen).await? else { continue };
            let upper = seen.header.upper.as_deref();
            let above = upper.map_or_else(rows_end, partition_start);
            let Some(ReadValue::OmapRange(page)) = reply.into_iter().next() else { continue };
            let mut rows = vec![];
            for (key, stored) in page.entries.iter().filter(|(key, _)| *key < above) {
                rows.push(decode(&self.access, key, stored)?);
            }
            let is_shard_complete = !page.more || page.entries.last().is_some_and(|(key, _)| *key >= above);
            let next = match (is_shard_complete, upper) {
                (false, _) => rows.last().map(|(partition, row)| (partition.clone(), successor(&row.key))),
                // The range may end within this shard.
                (true, Some(upper)) if last > above => Some((Bytes::copy_from_slice(upper), Bytes::new())),
                (true, _) => None,
            };
            match next {
                Some(next) if rows.is_empty() => from = next,
                next => return Ok(ShardPage { space: header, rows, next }),
            }
        }
    }
}
