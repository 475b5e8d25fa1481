//! Drops requests at every await point, as disconnecting clients do, and verifies that nothing is half done.
//!
//! Each trial creates an account, prepares the state that a case requires, polls the case's request a number
//! of times and drops it. Content sweeps and garbage sweeps run at the same time, and in half of the trials
//! the container, queue, table or share is deleted right afterwards. The store delays commits and decides
//! them in order, so that a dropped request leaves commits in the queue.
//!
//! After every trial:
//!
//! - the operation happened completely or not at all;
//! - everything that is listed can be read completely;
//! - the usage of a share is the sum of the lengths of its files;
//! - a container with a protected blob was not deleted;
//! - the same request, sent again, is answered in time, and not with a server error.
//!
//! After several trials the store is reopened and must show the same state. Then the accounts are removed and
//! swept, and neither content nor space headers may be left.

mod cases;
mod delayed_commits;
mod server;
pub(crate) mod state;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use lazuli_account::Setting;
use lazuli_concurrency::Pace;
use lazuli_protocol::{Account, Operation, ServiceKind};
use lazuli_store::{SpaceId, Store};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::time::timeout;

use cases::Case;
use server::{AllServices, TestReply, port};
use state::{StateReader, one};

/// A request that takes longer is considered to hang.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Trials between two reopenings of the store.
const BATCH_TRIALS: usize = 24;
/// Trials of one case in one round of a bounded run.
const SAMPLE_TRIALS: usize = 3;
/// Maximum number of scheduler turns by which a commit is delayed.
const MAX_TURNS: u32 = 40;

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// Random points, for this long.
    For(Duration),
    /// Every point of every case once, with and without a concurrent delete.
    All,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of requests that were dropped.
    pub drops: usize,
    /// Number of cases of which at least one request was dropped.
    pub cases: usize,
    /// Failures, with the case and its plan.
    pub failures: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests of {} cases dropped", self.drops, self.cases)?;
        self.failures.iter().try_for_each(|failure| write!(f, "\n\n{failure}"))
    }
}

/// Where a request is dropped, and what else happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TrialPlan {
    /// The number of await points after which the request is dropped; `None` to let it finish.
    point: Option<u32>,
    /// Delete the container, queue, table or share right afterwards.
    deletes: bool,
    /// Scheduler turns by which every commit is delayed.
    turns: u32,
    /// The await point at which sweeps begin.
    sweep_at: u32,
}

impl TrialPlan {
    const UNDISTURBED: Self = Self { point: None, deletes: false, turns: 0, sweep_at: u32::MAX };
}

/// The states before and after an operation, and its number of await points.
struct Reference {
    before: String,
    after: String,
    points: u32,
}

/// Runs the cases whose name contains `only`.
pub fn run(seed: u64, bound: Bound, only: &str) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut fuzzer = Fuzzer::open().await;
        let mut cases = cases::all();
        cases.retain(|case| case.name.contains(only));
        cases.shuffle(&mut StdRng::seed_from_u64(seed));
        match bound {
            Bound::For(time) => fuzzer.sample(seed, &cases, Instant::now() + time).await,
            Bound::All => fuzzer.every_point(seed, &cases).await,
        }
        fuzzer.end_batch().await;
        fuzzer.report
    })
}

/// Returns the writing operations that no case calls.
pub fn missing_operations() -> Vec<&'static str> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let called: BTreeSet<_> = runtime.block_on(async {
        let mut fuzzer = Fuzzer::open().await;
        let mut called = BTreeSet::new();
        for case in cases::all() {
            let (_, request) = fuzzer.prepare(&case).await.expect("prepared");
            let operation = server::operation(case.service, &request);
            called.insert(operation.unwrap_or_else(|refusal| panic!("{}: {refusal}", case.name)).name());
        }
        called
    });
    let all = Operation::ALL.iter().filter(|operation| !operation.row().read);
    all.map(|operation| operation.name()).filter(|name| !called.contains(name)).collect()
}

struct Fuzzer {
    dir: TempDir,
    /// `None` only while the store is being reopened.
    opened: Option<Arc<AllServices>>,
    /// Number of the server's tasks that never end.
    resident_tasks: usize,
    references: HashMap<&'static str, Reference>,
    /// Accounts of this batch, with their states.
    accounts: Vec<(Arc<Account>, ServiceKind, String, String)>,
    next_account: usize,
    report: Report,
}

impl Fuzzer {
    async fn open() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let opened = Some(AllServices::open(dir.path()).await);
        let resident_tasks = Handle::current().metrics().num_alive_tasks();
        let (references, accounts, next_account, report) = Default::default();
        Self { dir, opened, resident_tasks, references, accounts, next_account, report }
    }

    fn server(&self) -> &Arc<AllServices> {
        self.opened.as_ref().expect("open")
    }

    async fn sample(&mut self, seed: u64, cases: &[Case], deadline: Instant) {
        let mut random: Vec<_> = cases.iter().map(|case| case_random(seed, case)).collect();
        while Instant::now() < deadline && !cases.is_empty() {
            for (case, random) in cases.iter().zip(&mut random) {
                if Instant::now() >= deadline {
                    return;
                }
                let Some(points) = self.points(case).await else { continue };
                for _ in 0..SAMPLE_TRIALS {
                    let point = random.random_range(1..=points);
                    let deletes = random.random();
                    self.drop_at(case, point, deletes, random).await;
                }
            }
        }
    }

    async fn every_point(&mut self, seed: u64, cases: &[Case]) {
        for case in cases {
            let mut random = case_random(seed, case);
            let Some(points) = self.points(case).await else { continue };
            for point in 1..=points {
                for deletes in [false, true] {
                    self.drop_at(case, point, deletes, &mut random).await;
                }
            }
        }
    }

    async fn drop_at(&mut self, case: &Case, point: u32, deletes: bool, random: &mut StdRng) {
        let plan = TrialPlan {
            point: Some(point),
            deletes,
            turns: random.random_range(0..MAX_TURNS),
            sweep_at: random.random_range(0..=point),
        };
        if let Err(wrong) = self.trial(case, plan).await {
            self.report.failures.push(format!("{} ({plan:?}): {wrong}", case.name));
        }
        self.report.drops += 1;
        if self.accounts.len() >= BATCH_TRIALS {
            self.end_batch().await;
        }
    }

    /// Returns the number of await points of a case's request; `None` if the request failed, which is
    /// reported once.
    async fn points(&mut self, case: &Case) -> Option<u32> {
        if !self.references.contains_key(case.name) {
            self.report.cases += 1;
            if let Err(wrong) = self.run_reference(case).await {
                self.report.failures.push(format!("{}, not dropped: {wrong}", case.name));
                let (before, after) = Default::default();
                self.references.insert(case.name, Reference { before, after, points: 0 });
            }
        }
        Some(self.references[case.name].points).filter(|points| *points > 0)
    }

    /// Runs a case without dropping its request.
    async fn run_reference(&mut self, case: &Case) -> Result<(), String> {
        let (account, request) = self.prepare(case).await?;
        let before = self.state(&account, case).await?;
        let (reply, points) = self.call(&account, case, &request, TrialPlan::UNDISTURBED).await?;
        let reply = reply.ok_or("no answer")?;
        let is_expected = reply.is_success() || case.name.starts_with("abort") && reply.status == 409;
        if !is_expected {
            return Err(format!("{} {}", reply.status, reply.text()));
        }
        self.wait_until_idle().await?;
        let after = self.state(&account, case).await?;
        if before == after && !case.name.starts_with("abort") && !is_invisible(case) {
            return Err("no change is visible".into());
        }
        self.accounts.push((account, case.service, after.clone(), case.name.to_owned()));
        self.references.insert(case.name, Reference { before, after, points });
        Ok(())
    }

    async fn trial(&mut self, case: &Case, plan: TrialPlan) -> Result<(), String> {
        let (account, request) = self.prepare(case).await?;
        let (_, _) = self.call(&account, case, &request, plan).await?;
        let deleted = match plan.deletes {
            true => Some(self.answer(&account, case.service, cases::delete(case.service)).await?),
            false => None,
        };
        self.wait_until_idle().await?;
        let state = self.state(&account, case).await?;
        let is_deleted = deleted.as_ref().is_some_and(TestReply::is_success);
        if !is_deleted && !case.in_parts {
            self.compare(case, &state)?;
        }
        if is_deleted && case.service == ServiceKind::Blob {
            self.check_protected_blobs(&account).await?;
        }
        if !plan.deletes {
            // The outcome depends on whether the dropped request took effect.
            self.answer(&account, case.service, &request).await.map_err(|wrong| format!("again: {wrong}"))?;
        }
        self.wait_until_idle().await?;
        let state = self.state(&account, case).await?;
        self.accounts.push((account, case.service, state, format!("{} {plan:?}", case.name)));
        Ok(())
    }

    fn compare(&self, case: &Case, state: &str) -> Result<(), String> {
        let reference = &self.references[case.name];
        if state == reference.before || state == reference.after {
            return Ok(());
        }
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        let (now, before, after) = (lines(state), lines(&reference.before), lines(&reference.after));
        Err(format!(
            "half of it happened:\nnew since before: {:#?}\ngone since before: {:#?}\n\
             not in the state after it: {:#?}\nmissing from the state after it: {:#?}",
            now.difference(&before).collect::<Vec<_>>(),
            before.difference(&now).collect::<Vec<_>>(),
            now.difference(&after).collect::<Vec<_>>(),
            after.difference(&now).collect::<Vec<_>>(),
        ))
    }

    /// Restores a container that was deleted and verifies that none of its blobs is protected.
    async fn check_protected_blobs(&self, account: &Arc<Account>) -> Result<(), String> {
        let blob = ServiceKind::Blob;
        let listed = self.answer(account, blob, "GET /?comp=list&include=deleted").await?.text();
        let deleted = state::all(&listed, "Container").find(|xml| one(xml, "Deleted") == "true");
        let Some(version) = deleted.map(|xml| one(xml, "Version")) else { return Ok(()) };
        let restore = format!(
            "PUT /ccc?restype=container&comp=undelete\nx-ms-deleted-container-name: ccc\n\
             x-ms-deleted-container-version: {version}"
        );
        if !self.answer(account, blob, &restore).await?.is_success() {
            return Ok(());
        }
        let list = "GET /ccc?restype=container&comp=list&include=immutabilitypolicy,legalhold";
        let listed = self.answer(account, blob, list).await?.text();
        if listed.contains("<LegalHold>true") || listed.contains("<ImmutabilityPolicyMode>") {
            return Err(format!("a protected blob was deleted with its container: {listed}"));
        }
        Ok(())
    }

    /// Sends a request that has to be answered in time.
    async fn answer(
        &self,
        account: &Arc<Account>,
        service: ServiceKind,
        request: &str,
    ) -> Result<TestReply, String> {
        let line = request.lines().next().unwrap_or_default();
        let answer = timeout(TIMEOUT, self.server().call(account, service, request)).await;
        let reply = answer.map_err(|_| format!("{line} hangs"))??;
        match reply.status {
            500.. => Err(format!("{line}: {} {}", reply.status, reply.text())),
            _ => Ok(reply),
        }
    }

    /// Sends a case's request. Returns the reply, unless the request was dropped, and the number of await
    /// points.
    async fn call(
        &self,
        account: &Arc<Account>,
        case: &Case,
        request: &str,
        plan: TrialPlan,
    ) -> Result<(Option<TestReply>, u32), String> {
        self.server().delayed.interposer.delay(plan.turns);
        let (server, mut points) = (self.server().clone(), 0);
        let called = {
            let mut called = pin!(self.server().call(account, case.service, request));
            let counted = std::future::poll_fn(|cx| {
                if points == plan.sweep_at {
                    let server = server.clone();
                    // Sweeps may be refused if their space is deleted meanwhile.
                    tokio::spawn(async move {
                        let _ = tokio::join!(server.sweep_garbage(), server.sweeper.sweep(Pace::FULL));
                    });
                }
                if let Poll::Ready(reply) = called.as_mut().poll(cx) {
                    return Poll::Ready(Some(reply));
                }
                points += 1;
                if plan.point == Some(points) { Poll::Ready(None) } else { Poll::Pending }
            });
            timeout(TIMEOUT, counted).await.map_err(|_| "the request hangs".to_owned())?
        };
        Ok((called.transpose()?, points))
    }

    /// Waits until every commit is decided and every task of the request has ended.
    async fn wait_until_idle(&self) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        while Handle::current().metrics().num_alive_tasks() > self.resident_tasks {
            if Instant::now() > deadline {
                return Err("tasks of the request do not end".into());
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        self.server().delayed.interposer.delay(0);
        self.server().delayed.wait_for_commits().await.map_err(|error| error.to_string())
    }

    async fn state(&self, account: &Arc<Account>, case: &Case) -> Result<String, String> {
        StateReader { server: self.server(), account }.state(case.service).await
    }

    /// Creates an account in the state that a case requires. Returns the account and the case's request.
    async fn prepare(&mut self, case: &Case) -> Result<(Arc<Account>, String), String> {
        self.next_account += 1;
        let name = format!("account{:06}", self.next_account);
        let mut account = self.server().add_account(&name).await;
        if case.versioned {
            let set = self.server().accounts.set(&name, vec![Setting::BlobVersioning(true)]).await;
            account = set.map_err(|error| error.to_string())?;
        }
        self.server().delayed.interposer.delay(0);
        let url = |service| format!("http://127.0.0.1:{}/{name}", port(service));
        let mut values = HashMap::from([
            ("blob".to_owned(), url(ServiceKind::Blob)),
            ("file".to_owned(), url(ServiceKind::File)),
        ]);
        for request in case.setup {
            let (service, request) = match request.split_once('>').filter(|(name, _)| name.len() == 4) {
                Some(("blob", request)) => (ServiceKind::Blob, request),
                Some(("file", request)) => (ServiceKind::File, request),
                _ => (case.service, *request),
            };
            let request = substitute(request, &values);
            let reply = self.answer(&account, service, &request).await?;
            if !reply.is_success() {
                return Err(format!("{request}: {} {}", reply.status, reply.text()));
            }
            remember_values(&reply, &mut values);
        }
        let request = substitute(case.request, &values);
        Ok((account, request))
    }

    /// Reopens the store, compares the states, removes all accounts and verifies that nothing is left.
    async fn end_batch(&mut self) {
        if let Err(wrong) = self.try_end_batch().await {
            let names: Vec<_> = self.accounts.iter().map(|(_, _, _, name)| name.as_str()).collect();
            self.report.failures.push(format!("{wrong}\nafter one of {names:#?}"));
        }
        self.accounts.clear();
    }

    async fn try_end_batch(&mut self) -> Result<(), String> {
        self.reopen().await;
        for (account, service, state, name) in &self.accounts {
            let found = StateReader { server: self.server(), account }.state(*service).await;
            if found.as_ref() != Ok(state) {
                return Err(format!("{name}: another state after the store was opened again: {found:?}"));
            }
        }
        for account in self.server().accounts.list().await.map_err(|error| error.to_string())? {
            self.server().accounts.remove(&account.name).await.map_err(|error| error.to_string())?;
        }
        // The first sweep finds the removed accounts, the second one what they leave.
        for _ in 0..2 {
            self.server().sweep_garbage().await.map_err(|refusal| format!("garbage: {refusal}"))?;
        }
        let swept = self.server().sweeper.sweep(Pace::FULL).await.map_err(|error| error.to_string())?;
        if swept.live_bytes > 0 {
            return Err(format!("{} bytes of content are left", swept.live_bytes));
        }
        let mut spaces = self.server().store.spaces().map_err(|error| error.to_string())?;
        spaces.retain(|(space, _)| *space != SpaceId::ROOT);
        if !spaces.is_empty() {
            return Err(format!("spaces are left: {spaces:?}"));
        }
        Ok(())
    }

    async fn reopen(&mut self) {
        let store = self.server().store.clone();
        tokio::task::spawn_blocking(move || store.close()).await.expect("closed");
        self.opened = None;
        let deadline = Instant::now() + TIMEOUT;
        while Handle::current().metrics().num_alive_tasks() > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        self.opened = Some(AllServices::open(self.dir.path()).await);
        // The tasks that resume copies end soon.
        self.resident_tasks = self.resident_tasks.min(Handle::current().metrics().num_alive_tasks());
    }
}

/// Cases whose effect is not part of what [`state`] reads.
fn is_invisible(case: &Case) -> bool {
    ["create a permission", "force handles", "commit blocks again"]
        .iter()
        .any(|name| case.name.starts_with(name))
}

fn case_random(seed: u64, case: &Case) -> StdRng {
    let mut hasher = DefaultHasher::new();
    (seed, case.name).hash(&mut hasher);
    StdRng::seed_from_u64(hasher.finish())
}

fn substitute(request: &str, values: &HashMap<String, String>) -> String {
    values.iter().fold(request.to_owned(), |text, (name, value)| text.replace(&format!("<<{name}>>"), value))
}

fn remember_values(reply: &TestReply, values: &mut HashMap<String, String>) {
    for (name, value) in &reply.headers {
        if let Ok(value) = value.to_str() {
            values.insert(name.to_string(), value.to_owned());
        }
    }
    let text = reply.text();
    for name in ["Version", "VersionId", "MessageId", "PopReceipt"] {
        let value = one(&text, name);
        if !value.is_empty() {
            values.insert(name.to_owned(), value.replace('+', "%2B").replace('=', "%3D"));
        }
    }
}
