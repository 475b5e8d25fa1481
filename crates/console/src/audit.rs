//! The audit log: sign-ins, changes through the console, and what could reveal a secret. Entries are
//! rows, and also go to the log target `audit`. They never contain a secret.
//!
//! ```text
//! space     partition        row                        value
//! ROOT      console/audit    STAMP in hexadecimal       an entry
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use lazuli_concurrency::Span;
use lazuli_store::{
    Change, Decision, Gate, Mutation, Never, Partition, Reads, SpaceId, Store, prefix_range, transact,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::hub::{Hub, Topic};
use crate::reply::{self, time_text};
use crate::session::FORMAT;

const AUDIT: &[u8] = b"console/audit";
/// Maximum number of entries.
const MAX_ENTRIES: usize = 100_000;
/// Entries are kept for this long.
const LIFE: Span = Span::seconds(90 * 24 * 60 * 60);
/// Old entries are removed once for this many new ones.
const PRUNE_EVERY: u64 = 64;
/// Entries that are removed at once.
const PRUNED: usize = 128;
/// Entries of one page.
pub(crate) const PAGE: usize = 100;

/// One entry.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditEntry {
    pub(crate) principal: String,
    pub(crate) peer: String,
    pub(crate) action: String,
    /// The account that the action concerns.
    pub(crate) account: Option<String>,
    pub(crate) object: Option<String>,
    pub(crate) outcome: String,
    pub(crate) request_id: Option<String>,
}

/// The audit log.
pub(crate) struct Audit {
    store: Arc<dyn Store>,
    gate: Gate,
    hub: Arc<Hub>,
    written: AtomicU64,
}

impl Audit {
    pub(crate) fn new(store: Arc<dyn Store>, hub: Arc<Hub>) -> Self {
        Self { store, gate: Gate::default(), hub, written: AtomicU64::new(0) }
    }

    /// Stores an entry. A failure is logged: what the entry reports has happened already.
    pub(crate) async fn write(&self, entry: AuditEntry) {
        tracing::info!(
            target: "audit",
            principal = entry.principal,
            peer = entry.peer,
            action = entry.action,
            account = entry.account,
            object = entry.object,
            outcome = entry.outcome,
            request_id = entry.request_id,
        );
        let partition = partition();
        let written = transact(&*self.store, &self.gate, &partition, Reads::default(), |view| {
            let row = as_json(&entry, view.now);
            let value = Bytes::from([&[FORMAT][..], row.to_string().as_bytes()].concat());
            let key = Bytes::from(format!("{:016x}", view.stamp.ticks()));
            Ok::<_, Never>(Decision::Write(Change::of([Mutation::Put(key, value)]), row))
        });
        match written.await {
            Ok(mut row) => self.hub.send(Topic::Audit, None, |id| {
                row["id"] = json!(id);
                row.to_string()
            }),
            Err(error) => tracing::error!(%error, "an entry of the audit log was not stored"),
        }
        if self.written.fetch_add(1, Relaxed).is_multiple_of(PRUNE_EVERY) {
            self.prune().await;
        }
    }

    /// Removes entries that are too old or too many.
    async fn prune(&self) {
        let reads = Reads::default().and_range(all(), MAX_ENTRIES);
        let Ok(set) = self.store.read(&partition(), &reads).await else { return };
        let is_full = set.ranges.iter().any(|range| range.more);
        let oldest = self.store.now().ticks().saturating_sub(LIFE.ticks());
        let limit = format!("{oldest:016x}");
        let rows = set.ranges.into_iter().flat_map(|range| range.rows).take(PRUNED);
        let old =
            rows.filter(|row| is_full || *row.key < *limit.as_bytes()).map(|row| Mutation::Delete(row.key));
        let mutations: Vec<_> = old.collect();
        if mutations.is_empty() {
            return;
        }
        let partition = partition();
        let pruned = transact(&*self.store, &self.gate, &partition, Reads::default(), |_| {
            Ok::<_, Never>(Decision::Write(Change::of(mutations.clone()), ()))
        });
        if let Err(error) = pruned.await {
            tracing::warn!(%error, "could not remove old entries of the audit log");
        }
    }

    /// Returns a page of entries, newest first, before an entry.
    pub(crate) async fn page(&self, before: Option<&str>) -> reply::Result<(Vec<Value>, Option<String>)> {
        let is_key = |text: &&str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let end = before.filter(is_key).map_or(all().end, |key| Bytes::from(key.to_owned()));
        let reads = Reads::default().and_range(all().start..end, MAX_ENTRIES);
        let set = self.store.read(&partition(), &reads).await.map_err(reply::Problem::internal)?;
        let rows: Vec<_> = set.ranges.into_iter().flat_map(|range| range.rows).collect();
        let next = rows.len().checked_sub(PAGE).filter(|at| *at > 0);
        let next = next.and_then(|at| String::from_utf8(rows[at].key.to_vec()).ok());
        let decoded = rows.iter().rev().take(PAGE).filter_map(|row| decode(&row.value));
        Ok((decoded.collect(), next))
    }
}

fn as_json(entry: &AuditEntry, now: lazuli_concurrency::Timestamp) -> Value {
    let mut row = json!(entry);
    row["at"] = json!(time_text(now));
    row
}

fn decode(value: &[u8]) -> Option<Value> {
    value.strip_prefix(&[FORMAT]).and_then(|json| serde_json::from_slice(json).ok())
}

/// Verifies a row of [`SpaceId::ROOT`] if it belongs to this module.
pub(crate) fn check_row(partition: &[u8], value: &[u8]) -> Result<(), String> {
    match partition == AUDIT && decode(value).is_none() {
        true => Err("an entry of the audit log cannot be decoded".into()),
        false => Ok(()),
    }
}

fn partition() -> Partition {
    Partition::new(SpaceId::ROOT, AUDIT)
}

fn all() -> std::ops::Range<Bytes> {
    prefix_range(b"").start..Bytes::from_static(b"g")
}
