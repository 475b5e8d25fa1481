//! Counts what an account holds, by a walk over its rows.
//!
//! The walk costs time in proportion to the number of rows, so it ends at a limit and reports that it did.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use indicatif::{HumanBytes, HumanCount};
use lazuli_blob::is_blob_row;
use lazuli_concurrency::Pace;
use lazuli_file::FileRows;
use lazuli_generations::keys;
use lazuli_protocol::{Account, Refusal, ServiceKind};
use lazuli_queue::QueueRows;
use lazuli_service::{SpaceScan, read_refusal};
use lazuli_store::{Row, SpaceId, Store, Which};
use lazuli_table::TableRows;
use serde::{Deserialize, Serialize};

use crate::services;

/// Maximum number of rows that commands count in one account.
pub(crate) const MAX_ROWS: u64 = 1_000_000;
/// Rows in one scan.
const PAGE_ROWS: usize = 1024;

/// Contents of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountUsage {
    /// Services that hold nothing are absent.
    pub(crate) services: BTreeMap<ServiceKind, ServiceUsage>,
    /// The account has more rows than were counted.
    pub(crate) is_partial: bool,
    /// When a background task began to count, in ISO 8601; `None` if the count is of now.
    #[serde(default)]
    pub(crate) counted_at: Option<String>,
}

/// Contents of an account in one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceUsage {
    /// Containers, tables, queues or shares, with those that were deleted and can be restored.
    pub(crate) resources: u64,
    /// Blobs, entities, messages, or files and directories.
    pub(crate) objects: u64,
    /// Bytes of content and of rows, before compression and without deduplication.
    pub(crate) bytes: u64,
}

/// The extent and the speed of a count.
#[derive(Debug)]
struct Walk {
    rows_left: u64,
    pace: Option<Pace>,
    /// Rows and spaces since the last pause.
    since_pause: u64,
}

impl Walk {
    /// Records the rows of a page, and pauses if it is time.
    async fn passed(&mut self, rows: usize) {
        let rows = rows as u64;
        self.rows_left = self.rows_left.saturating_sub(rows);
        // A space without rows costs as much as a row.
        self.since_pause += rows + 1;
        if let Some(pace) = self.pace.filter(|_| self.since_pause >= PAGE_ROWS as u64) {
            self.since_pause = 0;
            pace.rest().await;
        }
    }

    fn next_page(&self) -> usize {
        usize::try_from(self.rows_left).unwrap_or(usize::MAX).min(PAGE_ROWS)
    }
}

impl AccountUsage {
    /// Counts what an account holds. Stops after `rows_left` rows, and deducts those that were counted.
    pub(crate) async fn count(
        store: &dyn Store,
        account: &Account,
        rows_left: &mut u64,
    ) -> Result<Self, Refusal> {
        let mut walk = Walk { rows_left: *rows_left, pace: None, since_pause: 0 };
        let usage = Self::walk(store, account, &mut walk).await;
        *rows_left = walk.rows_left;
        usage
    }

    /// Counts everything that an account holds, with pauses.
    pub(crate) async fn count_all(store: &dyn Store, account: &Account, pace: Pace) -> Result<Self, Refusal> {
        Self::walk(store, account, &mut Walk { rows_left: u64::MAX, pace: Some(pace), since_pause: 0 }).await
    }

    async fn walk(store: &dyn Store, account: &Account, walk: &mut Walk) -> Result<Self, Refusal> {
        let mut usage = Self::default();
        for kind in ServiceKind::ALL {
            let prefix = keys::account(kind.name(), account);
            let mut scan = SpaceScan::new(store, SpaceId::ROOT, &prefix, Which::All, PAGE_ROWS);
            while walk.rows_left > 0
                && let Some(rows) = scan.next().await?
            {
                for (partition, row) in rows {
                    let Some(space) = services::space_named_by(&partition, &row) else { continue };
                    let counted = usage.services.entry(kind).or_default();
                    counted.resources += 1;
                    counted.add_space(store, kind, space, walk).await?;
                    walk.passed(1).await;
                }
            }
        }
        usage.is_partial = walk.rows_left == 0;
        Ok(usage)
    }

    /// Returns whether an account has any container, table, queue or share, including those that were deleted
    /// and can be restored. Reads up to the first one.
    pub(crate) async fn is_any_held(store: &dyn Store, account: &Account) -> Result<bool, Refusal> {
        for kind in ServiceKind::ALL {
            let prefix = keys::account(kind.name(), account);
            let mut scan = SpaceScan::new(store, SpaceId::ROOT, &prefix, Which::All, PAGE_ROWS);
            while let Some(rows) = scan.next().await? {
                if rows.iter().any(|(partition, row)| services::space_named_by(partition, row).is_some()) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns whether the account holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Returns the number of bytes in all services.
    pub(crate) fn bytes(&self) -> u64 {
        self.services.values().map(|usage| usage.bytes).sum()
    }
}

impl ServiceUsage {
    /// Adds what another account holds.
    pub(crate) fn add(&mut self, other: &Self) {
        self.resources += other.resources;
        self.objects += other.objects;
        self.bytes += other.bytes;
    }

    async fn add_space(
        &mut self,
        store: &dyn Store,
        kind: ServiceKind,
        space: SpaceId,
        walk: &mut Walk,
    ) -> Result<(), Refusal> {
        let mut from = (Bytes::new(), Bytes::new());
        while walk.rows_left > 0 {
            let limit = walk.next_page();
            let page = store.scan_space(space, from, None, Which::All, limit).await.map_err(read_refusal)?;
            walk.passed(page.rows.len()).await;
            for (partition, row) in &page.rows {
                self.objects += u64::from(is_object(kind, partition, row));
                self.bytes += bytes_of(kind, space, partition, row);
            }
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(())
    }
}

fn is_object(kind: ServiceKind, partition: &[u8], row: &Row) -> bool {
    match kind {
        ServiceKind::Blob => is_blob_row(partition, row),
        ServiceKind::Queue => QueueRows::is_message(partition, row),
        ServiceKind::Table => TableRows::is_entity(partition, row),
        ServiceKind::File => FileRows::is_node(partition, row),
    }
}

/// Returns the bytes of a row and of its content. A damaged row counts as it is.
fn bytes_of(kind: ServiceKind, space: SpaceId, partition: &[u8], row: &Row) -> u64 {
    let contents = match kind {
        ServiceKind::Blob => lazuli_blob::content_of_row(space, partition, row).unwrap_or_default(),
        ServiceKind::File => lazuli_file::content_of_row(space, partition, row).unwrap_or_default(),
        ServiceKind::Queue | ServiceKind::Table => vec![],
    };
    match contents.is_empty() {
        true => row.value.len() as u64,
        false => contents.iter().map(lazuli_extents::Content::len).sum(),
    }
}

/// Returns what the resources and the objects of a service are called: one, and several.
const fn words(kind: ServiceKind) -> [(&'static str, &'static str); 2] {
    match kind {
        ServiceKind::Blob => [("container", "containers"), ("blob", "blobs")],
        ServiceKind::Queue => [("queue", "queues"), ("message", "messages")],
        ServiceKind::Table => [("table", "tables"), ("entity", "entities")],
        ServiceKind::File => [("share", "shares"), ("file or directory", "files and directories")],
    }
}

fn counted(count: u64, (one, several): (&str, &str)) -> String {
    format!("{} {}", HumanCount(count), if count == 1 { one } else { several })
}

impl fmt::Display for AccountUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        let part = |(kind, usage): (&ServiceKind, &ServiceUsage)| {
            let [resource, object] = words(*kind);
            format!("{} with {}", counted(usage.resources, resource), counted(usage.objects, object))
        };
        let parts: Vec<_> = self.services.iter().map(part).collect();
        let more = if self.is_partial { "more than " } else { "" };
        write!(f, "{more}{}, {} in all", parts.join(", "), HumanBytes(self.bytes()))?;
        self.counted_at.as_ref().map_or(Ok(()), |at| write!(f, " (as of {at})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_each_service_that_holds_something() {
        let usage = |resources, objects, bytes| ServiceUsage { resources, objects, bytes };
        let mut held = AccountUsage::default();
        assert_eq!(held.to_string(), "nothing");
        held.services.insert(ServiceKind::Blob, usage(2, 1, 1024));
        held.services.insert(ServiceKind::File, usage(1, 12_000, 1024));
        let text = held.to_string();
        assert!(text.contains("2 containers with 1 blob"), "{text}");
        assert!(text.contains("1 share with 12,000 files and directories"), "{text}");
        assert!(text.ends_with(", 2.00 KiB in all"), "{text}");
        held.is_partial = true;
        assert!(held.to_string().starts_with("more than "));
    }
}
