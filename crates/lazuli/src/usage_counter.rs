//! Keeps counts of what accounts hold, for `lazuli status`, `lazuli account remove` and metrics.
//!
//! A task walks over the rows of each account at a slow pace, and again when something may have changed. So a
//! figure has a time, and no request waits for a walk.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lazuli_account::AccountDirectory;
use lazuli_concurrency::{Clock, Pace, SystemClock};
use lazuli_metrics::MetricKind::Gauge;
use lazuli_metrics::Text;
use lazuli_protocol::{Account, Refusal, date};
use lazuli_store::RowCounts;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::background::ChoreHealth;
use crate::usage::{AccountUsage, ServiceUsage};

/// Minimum interval of counts.
const EVERY: Duration = Duration::from_secs(5);
/// After a count, the counter rests at least this many times as long as the count took.
const REST: u32 = 50;
/// Even if no row was added or removed, rows may have changed after this long.
const AGAIN_AFTER: Duration = Duration::from_secs(600);
/// Pause between the pages of a walk.
const PACE: Pace = Pace { pause: Duration::from_millis(2) };
/// Maximum number of rows that are counted at once for a waiting operator: some 10 ms.
const ROWS_AT_ONCE: u64 = 10_000;
/// Maximum number of accounts with metrics of their own. The rest share one.
const MAX_LABELED: usize = 100;
/// Label of the accounts beyond that. No account can have this name.
const OTHERS: &str = "(others)";

/// The counts of all accounts.
pub(crate) struct UsageCounter {
    accounts: AccountDirectory,
    /// By name. Has only accounts that existed at the last count.
    counted: Mutex<HashMap<String, Counted>>,
    health: Arc<ChoreHealth>,
}

/// The count of one account.
struct Counted {
    generation: u64,
    usage: AccountUsage,
    /// When the count began, in seconds since 1970.
    at: u64,
}

impl UsageCounter {
    pub(crate) fn new(accounts: AccountDirectory) -> Arc<Self> {
        Arc::new(Self { accounts, counted: Mutex::default(), health: ChoreHealth::new("usage counts") })
    }

    /// Returns the health of the task.
    pub(crate) fn health(&self) -> Arc<ChoreHealth> {
        self.health.clone()
    }

    /// Starts counting on the threads of a runtime. The task may be aborted at any point.
    pub(crate) fn start(self: &Arc<Self>, runtime: &Handle) -> JoinHandle<()> {
        let this = self.clone();
        runtime.spawn(async move { this.run().await })
    }

    async fn run(&self) {
        let mut last: Option<(Option<RowCounts>, Instant)> = None;
        loop {
            let (rows, began) = (self.accounts.store().row_counts(), Instant::now());
            let is_due = last.is_none_or(|(counted, at)| counted != rows || at.elapsed() >= AGAIN_AFTER);
            if is_due && self.health.run(self.count()).await.is_ok() {
                last = Some((rows, began));
            }
            sleep(EVERY.max(began.elapsed() * REST)).await;
        }
    }

    /// Counts all accounts.
    async fn count(&self) -> Result<(), String> {
        let accounts = self.accounts.list().await.map_err(|error| error.to_string())?;
        let exists = |name: &String| accounts.iter().any(|account| account.name == *name);
        self.counted.lock().retain(|name, _| exists(name));
        for account in &accounts {
            let now = SystemClock.now();
            let usage = AccountUsage::count_all(&**self.accounts.store(), account, PACE).await;
            let mut usage = usage.map_err(|refusal| format!("account {}: {refusal}", account.name))?;
            usage.counted_at = Some(date::iso8601_seconds(now));
            let counted = Counted { generation: account.generation, usage, at: now.unix_seconds() };
            self.counted.lock().insert(account.name.clone(), counted);
        }
        Ok(())
    }

    /// Returns the last count of an account, if there is one.
    pub(crate) fn last(&self, account: &Account) -> Option<AccountUsage> {
        let counted = self.counted.lock();
        let found = counted.get(&account.name).filter(|found| found.generation == account.generation);
        found.map(|found| found.usage.clone())
    }

    /// Returns what an account holds: exactly if that is little, else the last count, if there is one.
    pub(crate) async fn usage(&self, account: &Account) -> Result<AccountUsage, Refusal> {
        let mut rows_left = ROWS_AT_ONCE;
        let usage = AccountUsage::count(&**self.accounts.store(), account, &mut rows_left).await?;
        let last = self.last(account).filter(|_| usage.is_partial);
        // The last count may be from before the account was filled.
        Ok(last.filter(|last| !last.is_empty()).unwrap_or(usage))
    }

    /// Adds the metrics. Accounts are few, because only operators add them; still the number of labels has a
    /// limit.
    pub(crate) fn render(&self, text: &mut Text) {
        let counted = self.counted.lock();
        let mut accounts: Vec<_> = counted.iter().collect();
        accounts.sort_by(|(a, left), (b, right)| right.usage.bytes().cmp(&left.usage.bytes()).then(a.cmp(b)));
        let mut series: Vec<(&str, &'static str, ServiceUsage)> = vec![];
        for (index, (name, of_account)) in accounts.iter().enumerate() {
            let label = if index < MAX_LABELED { name.as_str() } else { OTHERS };
            for (kind, usage) in &of_account.usage.services {
                let same = |(account, service, _): &&mut (&str, &str, _)| {
                    (*account, *service) == (label, kind.name())
                };
                match series.iter_mut().find(same).filter(|_| label == OTHERS) {
                    Some((_, _, sum)) => sum.add(usage),
                    None => series.push((label, kind.name(), *usage)),
                }
            }
        }
        type Figure = fn(&ServiceUsage) -> u64;
        let families: [(&str, &str, Figure); 3] = [
            ("lazuli_resources", "Containers, queues, tables and shares when last counted.", |usage| {
                usage.resources
            }),
            (
                "lazuli_objects",
                "Blobs, messages, entities, files and directories when last counted.",
                |usage| usage.objects,
            ),
            ("lazuli_object_bytes", "Bytes of content and of rows when last counted.", |usage| usage.bytes),
        ];
        for (name, help, figure) in families {
            text.family(name, Gauge, help);
            for (account, service, usage) in &series {
                let labels = format!("account=\"{account}\",service=\"{service}\"");
                text.series(name, &labels, figure(usage));
            }
        }
        let help = "When the oldest of the counts began, in seconds since 1970; 0 before the first.";
        let oldest = accounts.iter().map(|(_, counted)| counted.at).min().unwrap_or(0);
        text.one("lazuli_objects_counted_timestamp_seconds", Gauge, help, oldest);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use lazuli_protocol::ServiceKind;
    use lazuli_store::Embedded;

    use super::*;

    #[tokio::test]
    async fn accounts_beyond_the_limit_share_one_label() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(dir.path(), Arc::new(SystemClock), lazuli_store::Options::SMALL).unwrap();
        let accounts = AccountDirectory::open(Arc::new(store)).await.unwrap();
        let counter = UsageCounter::new(accounts);
        for number in 0..MAX_LABELED as u64 + 3 {
            let mut usage = AccountUsage::default();
            let held = ServiceUsage { resources: 1, objects: 2, bytes: 1000 - number };
            usage.services.insert(ServiceKind::Blob, held);
            let counted = Counted { generation: 0, usage, at: 1000 + number };
            counter.counted.lock().insert(format!("account{number}"), counted);
        }
        let mut text = Text::default();
        counter.render(&mut text);
        let text = text.finish();
        let labeled = text.lines().filter(|line| line.starts_with("lazuli_objects{"));
        assert_eq!(labeled.count(), MAX_LABELED + 1, "{text}");
        for line in [
            "lazuli_resources{account=\"(others)\",service=\"blob\"} 3\n",
            "lazuli_objects{account=\"(others)\",service=\"blob\"} 6\n",
            "lazuli_object_bytes{account=\"account0\",service=\"blob\"} 1000\n",
            "lazuli_objects_counted_timestamp_seconds 1000\n",
        ] {
            assert!(text.contains(line), "{line}:\n{text}");
        }
    }
}
