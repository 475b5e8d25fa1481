//! The health of the data, as reported to operators on `/readyz` and in the log.
//!
//! `/readyz` needs no credentials, so only the log names objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::Span;
use lazuli_extents::LocalExtents;
use lazuli_front::Readiness;
use lazuli_store::embedded::{DamagedTable, Health, TaskFailure, log_failure};
use lazuli_store::{Embedded, RowPosition, SpaceId, Store};
use tokio::runtime::Handle;

/// Maximum number of scans of the directory when spaces are named.
const MAX_PAGES: usize = 64;
/// Rows in one scan.
const PAGE_ROWS: usize = 1024;

/// The remark of a server whose data is in memory.
pub(crate) const IN_MEMORY: &str = "in memory: nothing is stored on disk";
/// The beginning of the reasons for which a server with data in memory is degraded.
pub(crate) const NO_MEMORY: &str = "no memory left for";
const ROWS_FULL: &str = "no space left on the device: only deletes are accepted";
const CONTENT_FULL: &str = "no space left on the device: uploads are refused";

/// Whether content can be stored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ContentHealth {
    /// The disk has failed.
    pub(crate) stopped: bool,
    /// The last upload found no space.
    pub(crate) full: bool,
}

impl ContentHealth {
    pub(crate) fn of(extents: &LocalExtents) -> Self {
        Self { stopped: extents.is_stopped(), full: extents.is_full() }
    }
}

/// Returns the readiness that `/readyz` reports.
pub(crate) fn readiness(draining: bool, content: ContentHealth, health: &Health) -> Readiness {
    if draining {
        return Readiness::NotReady("draining".into());
    }
    if let Some(why) = &health.stopped {
        return Readiness::NotReady(format!("the store has stopped: {why}"));
    }
    if content.stopped {
        return Readiness::NotReady("content cannot be stored after a disk failure".into());
    }
    let mut reasons: Vec<_> = health.failing.iter().map(TaskFailure::to_string).collect();
    // A task that fails for lack of space says so itself.
    if health.full && reasons.is_empty() {
        reasons.push(ROWS_FULL.into());
    } else if content.full {
        reasons.push(CONTENT_FULL.into());
    }
    if reasons.is_empty() { Readiness::Ready } else { Readiness::Degraded(reasons) }
}

/// Returns what is refused because there is no space left, if anything is.
pub(crate) fn full(content: ContentHealth, health: &Health) -> Option<&'static str> {
    let content_full = content.full.then_some(CONTENT_FULL);
    if health.full { Some(ROWS_FULL) } else { content_full }
}

/// Adds an alarm to a readiness.
pub(crate) fn with_alarm(readiness: Readiness, alarm: String) -> Readiness {
    match readiness {
        Readiness::Ready | Readiness::ReadyWith(_) => Readiness::Degraded(vec![alarm]),
        Readiness::Degraded(mut reasons) => {
            reasons.push(alarm);
            Readiness::Degraded(reasons)
        }
        not_ready => not_ready,
    }
}

/// Describes a forward step of the machine's clock that the server ignores.
pub(crate) fn refused_step(step: Span) -> String {
    let hours = step.ticks() / Span::seconds(3600).ticks();
    format!("the machine's clock is {hours} hours ahead and is not followed")
}

/// Logs failures of the store's background tasks with the names of the objects. Must be called within a
/// runtime.
pub(crate) fn log_failures(store: &Arc<Embedded>) {
    let (runtime, weak) = (Handle::current(), Arc::downgrade(store));
    store.on_failure(Arc::new(move |failure| {
        let (failure, store) = (failure.clone(), weak.clone());
        runtime.spawn(async move {
            let objects = match (&failure.table, store.upgrade()) {
                (Some(table), Some(store)) => describe(&*store, table).await,
                _ => String::new(),
            };
            log_failure(&failure, &objects);
        });
    }));
}

/// Describes a damaged table file: the rows around the damage, and the containers, tables, queues and shares
/// in it.
pub(crate) async fn describe(store: &dyn Store, table: &DamagedTable) -> String {
    let names = names(store).await;
    let name = |space: SpaceId| match names.get(&space) {
        Some(name) => name.clone(),
        None if space == SpaceId::ROOT => "the directory of accounts".to_owned(),
        None => space.to_string(),
    };
    let row = |row: &RowPosition| format!("{} {}", name(row.space), row.partition.escape_ascii());
    let around = match (&table.before, &table.after) {
        (Some(before), Some(after)) => format!("damage from {} to {}", row(before), row(after)),
        (Some(before), None) => format!("damage after {}", row(before)),
        (None, Some(after)) => format!("damage before {}", row(after)),
        (None, None) => "damage throughout".to_owned(),
    };
    let spaces: Vec<_> = table.spaces.iter().map(|space| name(*space)).collect();
    let more = if table.more_spaces { ", and more" } else { "" };
    format!("{around}; the table holds rows of {}{more}", spaces.join(", "))
}

/// Returns the names of spaces as `KIND ACCOUNT/NAME`. Rows that cannot be read are skipped.
async fn names(store: &dyn Store) -> BTreeMap<SpaceId, String> {
    let mut names = BTreeMap::new();
    let mut from = (Bytes::new(), Bytes::new());
    for _ in 0..MAX_PAGES {
        let which = lazuli_store::Which::All;
        let Ok(page) = store.scan_space(SpaceId::ROOT, from, None, which, PAGE_ROWS).await else { break };
        for (partition, row) in &page.rows {
            if let Some(space) = crate::services::space_named_by(partition, row)
                && let Some(name) = object_name(partition)
            {
                names.insert(space, name);
            }
        }
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    names
}

/// Converts `blob/ACCOUNT/GENERATION/NAME` into a readable name.
fn object_name(partition: &[u8]) -> Option<String> {
    let mut parts = std::str::from_utf8(partition).ok()?.splitn(4, '/');
    let (kind, account, _, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    Some(format!("{kind} {account}/{name}"))
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Timestamp;
    use lazuli_store::embedded::{Cause, Task};

    use super::*;

    fn failing(cause: Cause) -> TaskFailure {
        let since = Timestamp::from_unix_seconds(0);
        let table = DamagedTable {
            path: "/data/store/tree/tables/17".into(),
            before: None,
            after: None,
            spaces: vec![],
            more_spaces: false,
        };
        let table = (cause == Cause::Damaged).then_some(table);
        TaskFailure { task: Task::Compaction, cause, error: "EIO".into(), since, attempts: 3, table }
    }

    #[test]
    fn readiness_reports_each_problem_and_only_outages_make_it_not_ready() {
        let not_ready = |reason: &str| Readiness::NotReady(reason.into());
        let degraded = |reason: &str| Readiness::Degraded(vec![reason.into()]);
        let stopped = Health { stopped: Some("a background thread died: x".into()), ..Health::default() };
        let task = |cause| Health { failing: vec![failing(cause)], ..Health::default() };
        let full = Health { full: true, ..Health::default() };
        let content = ContentHealth::default();
        let content_stopped = ContentHealth { stopped: true, ..content };
        let content_full = ContentHealth { full: true, ..content };
        for (draining, content, health, expected) in [
            (false, content, Health::default(), Readiness::Ready),
            (true, content, Health::default(), not_ready("draining")),
            (false, content, stopped, not_ready("the store has stopped: a background thread died: x")),
            (
                false,
                content_stopped,
                Health::default(),
                not_ready("content cannot be stored after a disk failure"),
            ),
            (false, content, task(Cause::Io), degraded("compaction fails (3 attempts): EIO")),
            (
                false,
                content,
                task(Cause::Damaged),
                degraded("compaction fails (3 attempts): table 17 is damaged"),
            ),
            (
                false,
                content,
                task(Cause::Full),
                degraded("compaction fails (3 attempts): no space left on the device"),
            ),
            (false, content_full, full, degraded("no space left on the device: only deletes are accepted")),
            (
                false,
                content_full,
                Health::default(),
                degraded("no space left on the device: uploads are refused"),
            ),
        ] {
            assert_eq!(readiness(draining, content, &health), expected, "{health:?}");
        }
    }
}
