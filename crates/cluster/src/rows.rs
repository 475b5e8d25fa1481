//! Ranges of rows within one shard, read page by page.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_rados::{ObjectName, OmapPage, OmapRange, ReadStep, ReadValue};
use lazuli_store::{RangeToken, Row};

use crate::access::{AccessError, ShardAccess};
use crate::batch::range_token;
use crate::keys::{after_stored, partition_end, row_key, split_row_key};
use crate::token;

/// Rows of one page.
pub(crate) const PAGE_ROWS: usize = 1024;

/// Returns the stored keys of a range of rows of a partition. An inverted range is empty.
pub(crate) fn range_of_partition(partition: &[u8], range: &Range<Bytes>) -> Range<Bytes> {
    let start = row_key(partition, &range.start);
    let end = row_key(partition, &range.end).min(partition_end(partition)).max(start.clone());
    start..end
}

/// Returns the step that reads the next page of a range.
pub(crate) fn page_of(range: Range<Bytes>, limit: usize) -> ReadStep {
    ReadStep::OmapRange(OmapRange { from: range.start, end: range.end, limit: limit.min(PAGE_ROWS) })
}

/// Returns the key to continue at after a page, or `None` if the range is complete.
pub(crate) fn after_page(page: &OmapPage, start: &Bytes) -> Option<Bytes> {
    let after = || page.entries.last().map_or_else(|| start.clone(), |(key, _)| after_stored(key));
    page.more.then(after)
}

/// Decodes a stored row. Returns its partition key and the row.
pub(crate) fn decode(access: &ShardAccess, key: &Bytes, stored: &Bytes) -> Result<(Bytes, Row), AccessError> {
    let damaged = || AccessError::Damaged(format!("row {} is damaged", key.escape_ascii()));
    let (partition, row_key) = split_row_key(key).ok_or_else(damaged)?;
    let (token, value) = token::decode_row(stored).ok_or_else(damaged)?;
    access.clock.observe(token.0);
    Ok((partition, Row { key: row_key, value, token }))
}

/// Returns the stamp of a bucket that a step read, and notes it.
pub(crate) fn bucket_stamp(access: &ShardAccess, stored: Option<&Bytes>) -> Stamp {
    let stamp = stored.and_then(|stored| token::decode(stored)).unwrap_or_default();
    access.clock.observe(stamp);
    stamp
}

/// Returns the token of a range of stored keys as it is now, or `None` if the range changed while it was
/// read, or the shard is gone.
pub(crate) async fn read_range(
    access: &ShardAccess,
    name: &ObjectName,
    bucket: &Bytes,
    range: Range<Bytes>,
) -> Result<Option<RangeToken>, AccessError> {
    let (mut rows, mut first_bucket, mut from) = (vec![], None, range.start.clone());
    loop {
        let steps =
            vec![ReadStep::Omap(vec![bucket.clone()]), page_of(from.clone()..range.end.clone(), PAGE_ROWS)];
        let Some(reply) = access.read(name, steps).await? else { return Ok(None) };
        let [ReadValue::Omap(buckets), ReadValue::OmapRange(page)] = &reply[..] else { return Ok(None) };
        let stamp = bucket_stamp(access, buckets.first().map(|(_, stored)| stored));
        if *first_bucket.get_or_insert(stamp) != stamp {
            return Ok(None);
        }
        for (key, stored) in &page.entries {
            rows.push(decode(access, key, stored)?.1);
        }
        match after_page(page, &from) {
            Some(next) => from = next,
            None => return Ok(Some(range_token(stamp, &rows))),
        }
    }
}
