//! The committer: the one thread that changes the store.
//!
//! The committer takes the waiting jobs as a group and checks each commit in order, against the published
//! state and the earlier commits of the group. It makes the accepted commits durable with one log frame,
//! applies them to the tree, publishes the new state, and only then answers all callers. Refusals wait too,
//! so no caller learns of a state that a crash could undo.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lsm_tree::SeqNo;

use super::EngineState;
use super::all_rows::{CountChange, encode_counts};
use super::group::{Changes, Group, Merged, RowOperation};
use super::queue::{Job, NextJobs, Work};
use super::recent_changes::RecentChanges;
use super::rows::{self, Preview, Stored};
use super::snapshot::{Headers, Snapshot};
use super::view::View;
use crate::digest::RangeDigest;
use crate::log::{AppendError, Lane, Log, is_full};
use crate::scheduling;
use crate::tombstones::{MAX_TOMBSTONES, Tombstones};
use crate::{
    Commit, CommitError, Condition, Mutation, RangeToken, ReadError, RowCounts, SpaceHeader, SpaceId, Token,
    keys,
};

/// Number of row changes remembered, see [`RecentChanges`].
const MIN_RECENT_CHANGES: usize = 1 << 15;
/// Maximum number of row changes remembered.
pub(super) const MAX_RECENT_CHANGES: usize = 2 * MIN_RECENT_CHANGES;
/// Maximum number of space headers kept for readers.
pub(super) const MAX_HEADERS: usize = 1024;
/// Maximum time that a group waits to become as large as the previous one.
const GATHER_TIME: Duration = Duration::from_micros(80);
/// After this long without a job, the durability of the last frame is noted in the log.
const NOTE_AFTER: Duration = Duration::from_millis(25);
/// After this long without a job, the memtable is flushed if it has [`IDLE_FLUSH_BYTES`].
const FLUSH_AFTER: Duration = Duration::from_secs(15);
const IDLE_FLUSH_BYTES: u64 = 4 << 20;
/// A memtable older than this is sealed at a fraction of its usual size. So where few rows are written,
/// little is in memory and little has to be replayed. Four such memtables are merged into the next level, so
/// the memory of a server under constant load goes up and down in cycles of three minutes.
const OLD_MEMTABLE: Duration = Duration::from_secs(45);
const OLD_MEMTABLE_FRACTION: u64 = 4;
/// Maximum time that a group waits for the flusher before its commits fail with [`CommitError::Busy`].
const MAX_FLUSH_WAIT: Duration = Duration::from_secs(5);
/// Interval of checks for clock work during that wait.
const FLUSH_WAIT_STEP: Duration = Duration::from_millis(100);

/// On a full disk a commit is accepted if its rows shrink by at least this much, and if what it writes is
/// [small](RECLAIM_SMALL_BYTES) or at most half of the rows that it replaces.
const RECLAIM_MIN_BYTES: usize = 16;
const RECLAIM_SMALL_BYTES: usize = 1 << 10;

/// The work that a group accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AcceptedWork {
    All,
    /// The disk is full: only work that frees space, and the clock's ceiling.
    Reclaiming,
    Nothing(CommitError),
}

/// The rows that one commit depends on.
struct KnownRows<'a> {
    /// The rows as the submitting thread read them.
    before: &'a Preview,
    /// The rows that were read again from the tree.
    now: HashMap<Bytes, Option<Stored>>,
}

/// The sizes of the committer's own structures, for metrics.
#[derive(Default)]
pub(crate) struct CommitterSizes {
    pub(super) recent_changes: AtomicUsize,
    pub(super) tombstones: AtomicUsize,
}

impl CommitterSizes {
    fn note(&self, recent_changes: usize, tombstones: usize) {
        self.recent_changes.store(recent_changes, Ordering::Relaxed);
        self.tombstones.store(tombstones, Ordering::Relaxed);
    }
}

pub(crate) struct Committer {
    shared: Arc<EngineState>,
    log: Log,
    /// Rows are read from this view and added to its active memtable.
    view: Arc<View>,
    /// A memtable of this size is sealed and flushed.
    memtable_bytes: u64,
    /// Time at which the previous memtable was sealed.
    memtable_since: Instant,
    /// Recently used headers, copied into every published snapshot.
    headers: Arc<Headers>,
    tombstones: Tombstones,
    recent_changes: RecentChanges,
    counts: RowCounts,
    /// Number of jobs in the last group. The next one probably has as many.
    last_group: usize,
}

impl Committer {
    /// Makes the committer. No stamp up to `floor` will be issued again.
    pub(crate) fn new(shared: Arc<EngineState>, log: Log, memtable_bytes: u64, floor: Stamp) -> Self {
        let recent_changes = RecentChanges::new(MIN_RECENT_CHANGES, shared.seqno.get());
        let counts = shared.snapshots.current().counts;
        let view = shared.views.current();
        Self {
            shared,
            log,
            view,
            counts,
            memtable_bytes,
            memtable_since: Instant::now(),
            headers: Arc::default(),
            tombstones: Tombstones::new(MAX_TOMBSTONES, floor),
            recent_changes,
            last_group: 0,
        }
    }

    /// Runs until the queue is closed and empty, then seals the memtable for a last flush.
    pub(crate) fn run(mut self) {
        scheduling::committer();
        while let Some(jobs) = self.next_group() {
            let backpressure = self.wait_for_flusher();
            self.commit_group(jobs, backpressure);
            self.shared.committer_sizes.note(self.recent_changes.len(), self.tombstones.len());
            let is_old = self.memtable_since.elapsed() >= OLD_MEMTABLE;
            self.request_memtable(self.memtable_bytes / if is_old { OLD_MEMTABLE_FRACTION } else { 1 });
            if let Some(request) = self.log.segment_request() {
                self.shared.flusher.prepare(request);
            }
        }
        self.shut_down();
    }

    /// Prepares a clean shutdown: the next start continues at the last stamp, with an empty log.
    fn shut_down(&mut self) {
        if self.shared.is_stopped() {
            return;
        }
        let mut group = Group::default();
        self.set_ceiling(&mut group, self.shared.clock.freeze());
        if self.append_to_log(&group, Lane::Reclaim).is_ok() {
            self.apply(group);
        }
        // The flusher may have sealed the memtable already. Then this seals an empty one.
        self.shared.views.rotate(&self.shared.tree);
        self.adopt_view();
    }

    fn next_group(&mut self) -> Option<Vec<Job>> {
        let shared = self.shared.clone();
        let mut next = shared.queue.next_group(self.last_group, GATHER_TIME, Some(NOTE_AFTER));
        if matches!(next, NextJobs::TimedOut) {
            // Losing the note does no harm. But if the disk fails to write it, the next frame is not safe
            // either.
            if let Err(error) = self.log.note()
                && !is_full(&error)
                && !self.shared.is_stopped()
            {
                self.shared.stop("the log could not be written", &error);
            }
            next = shared.queue.next_group(1, GATHER_TIME, Some(FLUSH_AFTER));
        }
        if matches!(next, NextJobs::TimedOut) {
            self.request_memtable(IDLE_FLUSH_BYTES);
            next = shared.queue.next_group(1, GATHER_TIME, None);
        }
        match next {
            NextJobs::Jobs(jobs) => {
                self.last_group = jobs.len();
                Some(jobs)
            }
            NextJobs::TimedOut | NextJobs::Closed => None,
        }
    }

    fn commit_group(&mut self, jobs: Vec<Job>, backpressure: Result<(), CommitError>) {
        self.adopt_view();
        let accepted = match backpressure {
            Ok(()) => AcceptedWork::All,
            Err(CommitError::Full) => AcceptedWork::Reclaiming,
            Err(refused) => AcceptedWork::Nothing(refused),
        };
        let (mut group, mut results) = self.check_all(&jobs, accepted);
        self.add_counts(&mut group);
        let mut outcome = self.append_to_log(&group, lane(&group, accepted));
        let mut is_full = accepted == AcceptedWork::Reclaiming;
        if outcome == Err(CommitError::Full) && accepted == AcceptedWork::All {
            is_full = true;
            (group, results) = self.check_all(&jobs, AcceptedWork::Reclaiming);
            self.add_counts(&mut group);
            outcome = self.append_to_log(&group, lane(&group, AcceptedWork::Reclaiming));
        }
        if is_full || !group.operations.is_empty() {
            self.shared.full.store(is_full, Ordering::Relaxed);
        }
        if outcome.is_ok() {
            self.apply(group);
        }
        let is_decided = !matches!(outcome, Err(CommitError::Unknown | CommitError::Stopped));
        for (Job { work, answer, .. }, result) in jobs.into_iter().zip(results) {
            if let Some(answer) = answer {
                // A result may depend on earlier commits of the group. If they did not become durable, it is
                // void. A job that only waits for earlier commits is done once they are decided.
                let only_waits = matches!(work, Work::Republish) && is_decided;
                // Ignore the error: the caller may have been dropped.
                let _ = answer.send(if only_waits { result } else { outcome.and(result) });
            }
        }
    }

    /// Checks jobs in order. Returns the group of the accepted ones and a result for each job.
    fn check_all(&mut self, jobs: &[Job], accepted: AcceptedWork) -> (Group, Vec<Result<(), CommitError>>) {
        let mut group = Group::default();
        let results = jobs.iter().map(|job| self.check_work(&mut group, &job.work, accepted)).collect();
        (group, results)
    }

    fn check_work(
        &mut self,
        group: &mut Group,
        work: &Work,
        accepted: AcceptedWork,
    ) -> Result<(), CommitError> {
        if self.shared.is_stopped() {
            return Err(CommitError::Stopped);
        }
        match work {
            Work::Commit { space, prefix, commit, preview } => {
                accepted.check(true)?;
                self.check_below_ceiling(group, commit.stamp)?;
                let known_rows = KnownRows { before: preview, now: HashMap::new() };
                self.check_commit(group, known_rows, *space, (prefix, commit), accepted)
            }
            Work::SetSpace { space, from, to, stamp } => {
                accepted.check(!to.open)?;
                self.check_below_ceiling(group, *stamp)?;
                if self.header(group, *space)? != *from {
                    return Err(CommitError::Conflict);
                }
                let key = Bytes::copy_from_slice(&keys::header(*space));
                group.put(self.shared.seqno.next(), key, *stamp, &rows::encode_header(*to));
                group.headers.insert(*space, Some(*to));
                group.changes_headers = true;
                Ok(())
            }
            Work::Sweep { space, keys, read_at, last } => {
                accepted.check(true)?;
                if self.header(group, *space)?.is_some_and(|h| h.open) {
                    return Err(CommitError::Gone);
                }
                // Whether the space was empty says nothing if it was open when it was read.
                if *last && self.recent_changes.may_differ(&keys::header(*space), *read_at) {
                    return Err(CommitError::Conflict);
                }
                // An earlier sweep whose caller was dropped may have removed some of these rows.
                let present: Vec<_> = keys
                    .iter()
                    .filter_map(|key| {
                        self.is_present(group, key, *read_at).map(|is| is.then_some(key)).transpose()
                    })
                    .collect::<Result<_, _>>()?;
                let seqno = self.shared.seqno.next();
                group.count_change.removed += present.len() as u64;
                for key in present {
                    group.remove(seqno, key.clone());
                }
                if *last {
                    group.remove(seqno, Bytes::copy_from_slice(&keys::header(*space)));
                    group.headers.insert(*space, None);
                    group.changes_headers = true;
                }
                Ok(())
            }
            Work::Ceiling => {
                let clock = &self.shared.clock;
                let is_full = accepted == AcceptedWork::Reclaiming;
                let ceiling = if is_full { clock.next_ceiling_if_full() } else { clock.next_ceiling() };
                self.set_ceiling(group, ceiling);
                Ok(())
            }
            Work::Republish => Ok(()),
        }
    }

    /// Refuses a stamp at or above the ceiling, because it might be issued again after a crash.
    fn check_below_ceiling(&self, group: &Group, stamp: Stamp) -> Result<(), CommitError> {
        let ceiling = group.ceiling.unwrap_or_else(|| self.shared.clock.ceiling());
        if stamp.timestamp() < ceiling { Ok(()) } else { Err(CommitError::Busy) }
    }

    fn set_ceiling(&self, group: &mut Group, ceiling: Timestamp) {
        let stamp = Stamp::from_ticks(ceiling.ticks());
        let seqno = self.shared.seqno.next();
        group.put(seqno, Bytes::from_static(keys::CLOCK), stamp, &ceiling.ticks().to_le_bytes());
        group.ceiling = Some(ceiling);
    }

    fn check_commit(
        &mut self,
        group: &mut Group,
        mut known_rows: KnownRows<'_>,
        space: SpaceId,
        (prefix, commit): (&Bytes, &Commit),
        accepted: AcceptedWork,
    ) -> Result<(), CommitError> {
        match self.header(group, space)? {
            Some(header) if header.open && header.epoch == commit.epoch => {}
            _ => return Err(CommitError::Gone),
        }
        if commit.valid_until.is_some_and(|until| self.shared.peek_time() >= until) {
            return Err(CommitError::Expired);
        }
        for condition in &commit.conditions {
            let holds = match condition {
                Condition::Absent(key) => self.row(group, &mut known_rows, keys::row(prefix, key))?.is_none(),
                Condition::Unchanged(key, token) => {
                    let row = self.row(group, &mut known_rows, keys::row(prefix, key))?;
                    row.is_some_and(|row| row.token == *token)
                }
                Condition::RangeUnchanged(range, token) => self.range_token(group, prefix, range)? == *token,
            };
            if !holds {
                return Err(CommitError::Conflict);
            }
        }
        let (changes, count_change) = self.changes(group, &mut known_rows, prefix, commit)?;
        if accepted == AcceptedWork::Reclaiming && !self.reclaims(group, &mut known_rows, &changes)? {
            return Err(CommitError::Full);
        }
        group.count_change.add(count_change);
        let seqno = self.shared.seqno.next();
        for (key, change) in changes {
            match change {
                Some(Stored { token: Token(stamp), value }) => group.put(seqno, key, stamp, &value),
                None => {
                    self.tombstones.insert(&key, commit.stamp);
                    group.remove(seqno, key);
                }
            }
        }
        Ok(())
    }

    /// Returns whether the commit may be accepted on a full disk: its rows shrink, and the new rows are small
    /// or at most half of the old ones.
    fn reclaims(
        &self,
        group: &Group,
        known_rows: &mut KnownRows<'_>,
        changes: &Changes,
    ) -> Result<bool, CommitError> {
        let size = |key: &Bytes, row: &Stored| key.len() + row.value.len();
        let after = changes.iter().filter_map(|(key, row)| Some(size(key, row.as_ref()?))).sum::<usize>();
        let needed = if after <= RECLAIM_SMALL_BYTES { after } else { 2 * after } + RECLAIM_MIN_BYTES;
        let mut before = 0;
        for key in changes.keys() {
            if before >= needed {
                break;
            }
            before += self.row(group, known_rows, key.clone())?.map_or(0, |row| size(key, &row));
        }
        Ok(before >= needed)
    }

    /// Returns the commit's changes, row by row, and their effect on the row counts.
    fn changes(
        &self,
        group: &Group,
        known_rows: &mut KnownRows<'_>,
        prefix: &Bytes,
        commit: &Commit,
    ) -> Result<(Changes, CountChange), CommitError> {
        let (mut changes, mut counted) = (Changes::new(), CountChange::default());
        let stamp = commit.stamp;
        for mutation in &commit.mutations {
            match mutation {
                Mutation::Put(key, value) => {
                    let key = keys::row(prefix, key);
                    let is_present = self.check_stamp(group, known_rows, &changes, &key, stamp)?;
                    counted.added += u64::from(!is_present);
                    changes.insert(key, Some(Stored { token: Token(stamp), value: value.clone() }));
                }
                Mutation::Delete(key) => {
                    let key = keys::row(prefix, key);
                    if self.check_stamp(group, known_rows, &changes, &key, stamp)? {
                        counted.removed += 1;
                        changes.insert(key, None);
                    }
                }
                Mutation::Add(key, amount) => {
                    let key = keys::row(prefix, key);
                    let counter = match changes.get(&key) {
                        Some(changed) => changed.clone(),
                        None => {
                            let row = self.row(group, known_rows, key.clone())?;
                            if row.is_none() && !self.tombstones.permits(&key, stamp) {
                                return Err(CommitError::Conflict);
                            }
                            row
                        }
                    };
                    counted.added += u64::from(counter.is_none());
                    // Additions never conflict with each other, so a late stamp is raised instead.
                    let token = match &counter {
                        Some(row) => stamp.max(Stamp::from_ticks(row.token.0.ticks() + 1)),
                        None => stamp,
                    };
                    let sum = counter.as_ref().map_or(0, |row| count(&row.value)).wrapping_add(*amount);
                    let value = Bytes::copy_from_slice(&sum.to_le_bytes());
                    changes.insert(key, Some(Stored { token: Token(token), value }));
                }
            }
        }
        Ok((changes, counted))
    }

    /// Returns whether a row that existed below a sequence number still exists.
    fn is_present(&self, group: &Group, key: &Bytes, read_at: SeqNo) -> Result<bool, CommitError> {
        if let Some(changed) = group.changes.get(key) {
            return Ok(changed.is_some());
        }
        if !self.recent_changes.may_differ(key, read_at) {
            return Ok(true);
        }
        let row = rows::get(&self.view, key, self.shared.seqno.get()).map_err(unreadable)?;
        Ok(row.is_some())
    }

    /// Adds the new row counts to a group that changes them.
    fn add_counts(&self, group: &mut Group) {
        if !group.count_change.is_empty() {
            let value = encode_counts(group.count_change.applied_to(self.counts));
            let seqno = self.shared.seqno.next();
            group.put(seqno, Bytes::from_static(keys::COUNTS), Stamp::from_ticks(0), &value);
        }
    }

    /// Returns whether the row exists. Fails with a conflict if the stamp is not above the row's last one.
    fn check_stamp(
        &self,
        group: &Group,
        known_rows: &mut KnownRows<'_>,
        own_changes: &Changes,
        key: &Bytes,
        stamp: Stamp,
    ) -> Result<bool, CommitError> {
        if let Some(changed) = own_changes.get(key) {
            return Ok(changed.is_some());
        }
        match self.row(group, known_rows, key.clone())? {
            Some(row) if row.token.0 >= stamp => Err(CommitError::Conflict),
            Some(_) => Ok(true),
            None if !self.tombstones.permits(key, stamp) => Err(CommitError::Conflict),
            None => Ok(false),
        }
    }

    fn header(&self, group: &mut Group, space: SpaceId) -> Result<Option<SpaceHeader>, CommitError> {
        if let Some(header) = group.headers.get(&space).or_else(|| self.headers.get(&space)) {
            return Ok(*header);
        }
        let header = rows::header(&self.view, space, self.shared.seqno.get()).map_err(unreadable)?;
        group.headers.insert(space, header);
        Ok(header)
    }

    /// Returns a row as the next commit must see it. Reads it from the tree if the submitting thread did not,
    /// or if it may have changed since.
    fn row(
        &self,
        group: &Group,
        known_rows: &mut KnownRows<'_>,
        key: Bytes,
    ) -> Result<Option<Stored>, CommitError> {
        if let Some(row) = group.changes.get(&key).or_else(|| known_rows.now.get(&key)) {
            return Ok(row.clone());
        }
        if let Some(row) = known_rows.before.rows.get(&key)
            && !self.recent_changes.may_differ(&key, known_rows.before.seqno)
        {
            return Ok(row.clone());
        }
        let row = rows::get(&self.view, &key, self.shared.seqno.get()).map_err(unreadable)?;
        known_rows.now.insert(key, row.clone());
        Ok(row)
    }

    fn range_token(
        &self,
        group: &Group,
        prefix: &Bytes,
        range: &Range<Bytes>,
    ) -> Result<RangeToken, CommitError> {
        let mut digest = RangeDigest::default();
        let range = keys::range(prefix, range);
        let tree = rows::range(&self.view, range.clone(), self.shared.seqno.get());
        for row in Merged::new(tree, &range, &group.changes) {
            let (key, stored) = row.map_err(unreadable)?;
            digest.add(&key[prefix.len()..], stored.token);
        }
        Ok(digest.token())
    }

    fn append_to_log(&mut self, group: &Group, lane: Lane) -> Result<(), CommitError> {
        if group.operations.is_empty() {
            return Ok(());
        }
        let appended = self.log.append(&mut group.encode(), lane);
        if appended.is_err() && group.ceiling.is_some() {
            self.shared.clock.note_failed_request();
        }
        match appended {
            Ok(()) => Ok(()),
            Err(AppendError::Full) => Err(CommitError::Full),
            Err(AppendError::TooLarge) => Err(CommitError::TooLarge),
            Err(AppendError::Short(error)) => {
                tracing::warn!(%error, "no log segment can be opened; commits are refused until descriptors and memory are free");
                Err(CommitError::Busy)
            }
            Err(AppendError::Broken(error)) => {
                self.shared.stop("the log could not be written", &error);
                Err(CommitError::Unknown)
            }
        }
    }

    /// Applies a durable group to the tree and publishes it.
    fn apply(&mut self, group: Group) {
        for RowOperation { seqno, key, value } in group.operations {
            self.recent_changes.record(&key, seqno);
            self.view.insert(key, value, seqno);
        }
        if !group.headers.is_empty() {
            add_headers(Arc::make_mut(&mut self.headers), group.headers);
        }
        self.counts = group.count_change.applied_to(self.counts);
        // Every operation below the counter is in the tree, because only this thread adds operations.
        let seqno = self.shared.seqno.get();
        if group.changes_headers {
            self.shared.header_cache.changed_before(seqno);
        }
        self.shared.runs.invalidate(group.changes.keys(), seqno);
        self.shared.snapshots.publish(Snapshot {
            seqno,
            view: self.view.clone(),
            headers: self.headers.clone(),
            counts: self.counts,
        });
        if let Some(ceiling) = group.ceiling {
            self.shared.clock.raise(ceiling);
        }
    }

    /// Requests that the flusher seals the memtable if it has reached `bytes`.
    fn request_memtable(&self, bytes: u64) {
        let is_sealed = self.shared.views.current().active_id() != self.view.active_id();
        if self.view.active_bytes() >= bytes && !is_sealed && !self.shared.is_stopped() {
            self.shared.flusher.seal();
        }
    }

    /// Switches to the newest view. If its active memtable is new, switches to a new log segment too, so that
    /// the old memtable can be flushed.
    fn adopt_view(&mut self) {
        let newest = self.shared.views.current();
        let is_sealed = newest.active_id() != self.view.active_id();
        self.view = newest;
        if !is_sealed || self.shared.is_stopped() {
            return;
        }
        match self.log.rotate(0) {
            Ok(()) => {}
            Err(AppendError::Broken(error)) => {
                return self.shared.stop("the log could not be continued", &error);
            }
            // Keep using the segment; it is kept when the memtable is flushed. The next append meets the same
            // obstacle and reports it.
            Err(AppendError::Full | AppendError::Short(_) | AppendError::TooLarge) => {}
        }
        self.memtable_since = Instant::now();
        self.shared.flusher.flush_before(self.log.segment());
    }

    fn wait_for_flusher_until(&self, deadline: Instant) -> Result<(), CommitError> {
        let view = || self.shared.views.current();
        self.shared.flusher.wait_until_caught_up(view, self.memtable_bytes, deadline)
    }

    /// Waits while the flusher is behind, and raises the clock's ceiling meanwhile. Returns `Full` at once if
    /// a flush or compaction fails because the disk is full, and `Busy` after [`MAX_FLUSH_WAIT`].
    fn wait_for_flusher(&mut self) -> Result<(), CommitError> {
        let deadline = Instant::now() + MAX_FLUSH_WAIT;
        loop {
            let step_end = (Instant::now() + FLUSH_WAIT_STEP).min(deadline);
            match self.wait_for_flusher_until(step_end) {
                Err(CommitError::Busy) if Instant::now() < deadline => {
                    if self.shared.clock.is_ceiling_requested() {
                        let job = Job { work: Work::Ceiling, answer: None, _permit: None };
                        self.commit_group(vec![job], Ok(()));
                    }
                }
                result => return result,
            }
        }
    }
}

impl AcceptedWork {
    /// Checks whether work is accepted. `frees` means that the work can free space; `check_commit` decides
    /// later whether a commit does.
    fn check(self, frees: bool) -> Result<(), CommitError> {
        match self {
            Self::All => Ok(()),
            Self::Reclaiming if frees => Ok(()),
            Self::Reclaiming => Err(CommitError::Full),
            Self::Nothing(refused) => Err(refused),
        }
    }
}

/// Adds the headers that a group used or changed. Forgets all others if there would be too many: what is
/// missing is read from the tree.
fn add_headers(headers: &mut Headers, used: Headers) {
    if headers.len() + used.len() > MAX_HEADERS {
        headers.clear();
    }
    headers.extend(used.into_iter().take(MAX_HEADERS));
}

/// Returns the part of the log's space that a group may use.
fn lane(group: &Group, accepted: AcceptedWork) -> Lane {
    match accepted {
        AcceptedWork::All => Lane::Usual,
        _ if group.ceiling.is_some() && group.operations.len() == 1 => Lane::Ceiling,
        _ => Lane::Reclaim,
    }
}

fn count(value: &[u8]) -> i64 {
    value.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

/// Converts the failure to read a row that a commit depends on. The error names the row.
pub(super) fn unreadable(error: ReadError) -> CommitError {
    tracing::error!(%error, "a commit failed because a row could not be read");
    CommitError::Unreadable
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::SystemClock;

    use super::*;
    use crate::{Embedded, Options, Partition, Store};

    fn headers(spaces: Range<u64>) -> Headers {
        spaces.map(|space| (SpaceId(space), None)).collect()
    }

    #[test]
    fn published_headers_are_bounded_and_the_newest_are_kept() {
        let mut all = headers(0..1000);
        add_headers(&mut all, headers(1000..1024));
        assert_eq!(all.len(), MAX_HEADERS);
        add_headers(&mut all, headers(2000..2010));
        assert_eq!(all, headers(2000..2010));
        add_headers(&mut all, headers(3000..5000));
        assert_eq!(all.len(), MAX_HEADERS);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn header_stays_if_the_space_was_read_as_empty_while_it_was_open() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
        let (space, open) = (SpaceId(7), SpaceHeader { epoch: 0, open: true });
        store.set_space(space, None, open).await.unwrap();
        let read_at = store.shared.snapshots.current().seqno;
        let (stamp, mutations) = (store.stamp(), vec![Mutation::Put("a".into(), "1".into())]);
        let commit = Commit {
            stamp,
            epoch: 0,
            conditions: vec![],
            mutations,
            valid_until: None,
            fence: None,
            bulk: false,
        };
        store.commit(&Partition::new(space, "p"), commit).await.unwrap();
        let closed = SpaceHeader { epoch: 1, open: false };
        store.set_space(space, Some(open), closed).await.unwrap();
        let sweep = Work::Sweep { space, keys: vec![], read_at, last: true };
        assert_eq!(store.shared.queue.submit(sweep).await, Err(CommitError::Conflict));
        assert_eq!(store.space(space).await.unwrap(), Some(closed));
        let start = || (Bytes::new(), Bytes::new());
        while store.sweep_space(space, start(), 10).await.unwrap().is_some() {}
        assert_eq!(store.space(space).await.unwrap(), None, "the row is removed, then the header");
    }
}
