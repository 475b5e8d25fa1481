//! The committer: the one thread that changes the store.
//!
//! It takes what waits as a group, judges each commit in order against the published state and the commits before it
//! in the group, makes those that hold durable with one log frame, applies them to the tree, publishes, and only then
//! answers, those it refused included. So nobody ever learns of a state that a crash could take back.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lsm_tree::SeqNo;

use super::Shared;
use super::everything::{CountChange, encode_counts};
use super::graves::Graves;
use super::group::{Changes, Group, Merged, Operation};
use super::lately::Lately;
use super::queue::{GROUP_BYTES, Job, Taken, Work};
use super::rows::{self, Preview, RangeDigest, Stored};
use super::scheduling;
use super::snapshot::{Headers, Snapshot};
use super::view::View;
use crate::log::{AppendError, Lane, Log, is_full};
use crate::{
    Commit, CommitError, Condition, MAX_RANGE_DELETE, Mutation, RangeToken, ReadError, RowCounts,
    SpaceHeader, SpaceId, Token, keys,
};

/// Removals remembered, see [`Graves`].
const MAX_GRAVES: usize = 1 << 16;
/// Changes of rows remembered, see [`Lately`].
const MAX_CHANGES: usize = 1 << 15;
/// Changes of partitions remembered.
const MAX_PARTITIONS: usize = 1 << 13;
/// Space headers remembered for readers.
const MAX_HEADERS: usize = 1024;
/// How long a group waits to become as large as the last one.
const GATHER: Duration = Duration::from_micros(80);
/// With nothing to do for so long, the last frame's durability is noted in the log.
const QUIET: Duration = Duration::from_millis(25);
/// With nothing to do for so long, the memtable is flushed if it has [`IDLE_FLUSH_BYTES`].
const IDLE: Duration = Duration::from_secs(15);
const IDLE_FLUSH_BYTES: u64 = 4 << 20;
/// A memtable of this age is sealed at a fraction of its usual size. So little is in memory, and to be replayed, where few rows
/// are written.
const OLD: Duration = Duration::from_secs(60);
const OLD_FRACTION: u64 = 4;
/// How long a group waits for the flusher to catch up before its commits are told that the store is busy.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it looks up meanwhile.
const SLICE: Duration = Duration::from_millis(100);

/// On a full disk a commit is accepted if its rows shrink by at least this much, and if what it writes is
/// [small](RECLAIM_SMALL) or at most half of what was there.
const RECLAIM_LEAST: usize = 16;
const RECLAIM_SMALL: usize = 1 << 10;

/// Which work a group takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Admit {
    All,
    /// The disk is full: only what frees space, and the clock.
    Reclaiming,
    Nothing(CommitError),
}

/// Rows that one commit depends on.
struct Seen<'a> {
    /// As whoever submitted it found them.
    before: &'a Preview,
    /// As the tree has them now.
    now: HashMap<Bytes, Option<Stored>>,
}

pub(crate) struct Committer {
    shared: Arc<Shared>,
    log: Log,
    /// Rows are read from it and added to its active memtable.
    view: Arc<View>,
    /// A memtable of this size is sealed and flushed.
    memtable_bytes: u64,
    /// When the memtable before was sealed.
    sealed: Instant,
    /// Copied into every published snapshot.
    headers: Arc<Headers>,
    graves: Graves,
    lately: Lately,
    /// The same by partition: which ones have changed lately.
    lately_partitions: Lately,
    counts: RowCounts,
    /// Jobs in the last group: as many are expected in the next one.
    last_group: usize,
}

impl Committer {
    /// `floor`: no stamp up to it will be used again.
    pub(crate) fn new(shared: Arc<Shared>, log: Log, memtable_bytes: u64, floor: Stamp) -> Self {
        let [lately, lately_partitions] =
            [MAX_CHANGES, MAX_PARTITIONS].map(|most| Lately::new(most, shared.seqno.get()));
        let counts = shared.snapshots.current().counts;
        let view = shared.views.current();
        Self {
            shared,
            log,
            view,
            counts,
            memtable_bytes,
            sealed: Instant::now(),
            headers: Arc::default(),
            graves: Graves::new(MAX_GRAVES, floor),
            lately,
            lately_partitions,
            last_group: 0,
        }
    }

    /// Works until the queue is closed and empty, then leaves everything sealed for a last flush.
    pub(crate) fn run(mut self) {
        scheduling::prompt();
        while let Some(jobs) = self.next_group() {
            let room = self.wait_for_room();
            self.commit_group(jobs, room);
            let is_old = self.sealed.elapsed() >= OLD;
            self.ask_for_memtable(self.memtable_bytes / if is_old { OLD_FRACTION } else { 1 });
            if let Some(wanted) = self.log.wanted() {
                self.shared.flusher.prepare(wanted);
            }
        }
        self.rest();
    }

    /// A clean end: the next start goes on from the very stamp that was last given out, with an empty log.
    fn rest(&mut self) {
        if self.shared.is_stopped() {
            return;
        }
        let mut group = Group::default();
        self.set_ceiling(&mut group, self.shared.clock.freeze());
        if self.make_durable(&group, Lane::Reclaim).is_ok() {
            self.apply(group);
        }
        // The flusher may have sealed the memtable already; then this finds an empty one.
        self.shared.views.rotate(&self.shared.tree);
        self.adopt_view();
    }

    fn next_group(&mut self) -> Option<Vec<Job>> {
        let shared = self.shared.clone();
        let mut taken = shared.queue.take(self.last_group, GATHER, Some(QUIET));
        if matches!(taken, Taken::Nothing) {
            // The note itself may be lost; but a disk that fails to write is not trusted with the next frame.
            if let Err(error) = self.log.note()
                && !is_full(&error)
                && !self.shared.is_stopped()
            {
                self.shared.stop("the log could not be written", &error);
            }
            taken = shared.queue.take(1, GATHER, Some(IDLE));
        }
        if matches!(taken, Taken::Nothing) {
            self.ask_for_memtable(IDLE_FLUSH_BYTES);
            taken = shared.queue.take(1, GATHER, None);
        }
        match taken {
            Taken::Jobs(jobs) => {
                self.last_group = jobs.len();
                Some(jobs)
            }
            Taken::Nothing | Taken::Closed => None,
        }
    }

    fn commit_group(&mut self, mut jobs: Vec<Job>, room: Result<(), CommitError>) {
        self.adopt_view();
        let admit = match room {
            Ok(()) => Admit::All,
            Err(CommitError::Full) => Admit::Reclaiming,
            Err(refused) => Admit::Nothing(refused),
        };
        let (mut group, mut judged) = self.judge_all(&jobs, admit);
        self.add_counts(&mut group);
        let mut outcome = self.make_durable(&group, lane(&group, admit));
        let mut is_full = admit == Admit::Reclaiming;
        if outcome == Err(CommitError::Full) && admit == Admit::All {
            is_full = true;
            (group, judged) = self.judge_all(&jobs, Admit::Reclaiming);
            self.add_counts(&mut group);
            outcome = self.make_durable(&group, lane(&group, Admit::Reclaiming));
        }
        if is_full || !group.operations.is_empty() {
            self.shared.full.store(is_full, Ordering::Relaxed);
        }
        self.shared.queue.put_back(jobs.drain(judged.len()..));
        if outcome.is_ok() {
            self.apply(group);
        }
        let is_decided = !matches!(outcome, Err(CommitError::Unknown | CommitError::Stopped));
        for (Job { work, answer, .. }, judged) in jobs.into_iter().zip(judged) {
            if let Some(answer) = answer {
                // A refusal was judged beside commits that did not become durable: it is as void as they are. But who
                // only waits for them to be decided has what he wants.
                let only_waits = matches!(work, Work::Republish) && is_decided;
                // Whoever waited may have gone away.
                let _ = answer.send(if only_waits { judged } else { outcome.and(judged) });
            }
        }
    }

    /// Judges jobs in order, as many as fit into a group.
    fn judge_all(&mut self, jobs: &[Job], admit: Admit) -> (Group, Vec<Result<(), CommitError>>) {
        let (mut group, mut judged) = (Group::default(), Vec::with_capacity(jobs.len()));
        for job in jobs {
            judged.push(self.judge(&mut group, &job.work, admit));
            if group.bytes > GROUP_BYTES {
                // A job may come to much more than it looked like: one removes all rows of a range.
                break;
            }
        }
        (group, judged)
    }

    fn judge(&mut self, group: &mut Group, work: &Work, admit: Admit) -> Result<(), CommitError> {
        if self.shared.is_stopped() {
            return Err(CommitError::Stopped);
        }
        match work {
            Work::Commit { space, prefix, commit, preview } => {
                admit.check(true)?;
                self.check_below_ceiling(group, commit.stamp)?;
                let seen = Seen { before: preview, now: HashMap::new() };
                self.judge_commit(group, seen, *space, (prefix, commit), admit)
            }
            Work::SetSpace { space, from, to, stamp } => {
                admit.check(!to.open)?;
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
            Work::Sweep { space, keys, seen, last } => {
                admit.check(true)?;
                if self.header(group, *space)?.is_some_and(|h| h.open) {
                    return Err(CommitError::Gone);
                }
                // A sweep that was dropped may have removed some of them already.
                let present: Vec<_> = keys
                    .iter()
                    .filter_map(|key| {
                        self.is_present(group, key, *seen).map(|is| is.then_some(key)).transpose()
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
                let is_full = admit == Admit::Reclaiming;
                let ceiling = if is_full { clock.next_ceiling_if_full() } else { clock.next_ceiling() };
                self.set_ceiling(group, ceiling);
                Ok(())
            }
            Work::Republish => Ok(()),
        }
    }

    /// A stamp that is not below the ceiling might be given out once more after a crash.
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

    fn judge_commit(
        &mut self,
        group: &mut Group,
        mut seen: Seen<'_>,
        space: SpaceId,
        (prefix, commit): (&Bytes, &Commit),
        admit: Admit,
    ) -> Result<(), CommitError> {
        match self.header(group, space)? {
            Some(header) if header.open && header.epoch == commit.epoch => {}
            _ => return Err(CommitError::Gone),
        }
        if commit.valid_until.is_some_and(|until| self.shared.shown() >= until) {
            return Err(CommitError::Expired);
        }
        for condition in &commit.conditions {
            let holds = match condition {
                Condition::Absent(key) => self.row(group, &mut seen, keys::row(prefix, key))?.is_none(),
                Condition::Unchanged(key, token) => {
                    let row = self.row(group, &mut seen, keys::row(prefix, key))?;
                    row.is_some_and(|row| row.token == *token)
                }
                Condition::RangeUnchanged(range, token) => self.range_token(group, prefix, range)? == *token,
            };
            if !holds {
                return Err(CommitError::Conflict);
            }
        }
        let (changes, count_change) = self.changes(group, &mut seen, prefix, commit)?;
        if admit == Admit::Reclaiming && !self.reclaims(group, &mut seen, &changes)? {
            return Err(CommitError::Full);
        }
        group.count_change.add(count_change);
        let seqno = self.shared.seqno.next();
        for (key, change) in changes {
            match change {
                Some(Stored { token: Token(stamp), value }) => group.put(seqno, key, stamp, &value),
                None => {
                    self.graves.bury(&key, commit.stamp);
                    group.remove(seqno, key);
                }
            }
        }
        Ok(())
    }

    /// Whether changes leave much less than they find.
    fn reclaims(&self, group: &Group, seen: &mut Seen<'_>, changes: &Changes) -> Result<bool, CommitError> {
        let size = |key: &Bytes, row: &Stored| key.len() + row.value.len();
        let after = changes.iter().filter_map(|(key, row)| Some(size(key, row.as_ref()?))).sum::<usize>();
        let needed = if after <= RECLAIM_SMALL { after } else { 2 * after } + RECLAIM_LEAST;
        let mut before = 0;
        for key in changes.keys() {
            if before >= needed {
                break;
            }
            before += self.row(group, seen, key.clone())?.map_or(0, |row| size(key, &row));
        }
        Ok(before >= needed)
    }

    /// What the commit's mutations come to, row by row.
    fn changes(
        &self,
        group: &Group,
        seen: &mut Seen<'_>,
        prefix: &Bytes,
        commit: &Commit,
    ) -> Result<(Changes, CountChange), CommitError> {
        let (mut changes, mut counted) = (Changes::new(), CountChange::default());
        let stamp = commit.stamp;
        for mutation in &commit.mutations {
            match mutation {
                Mutation::Put(key, value) => {
                    let key = keys::row(prefix, key);
                    let is_present = self.check_stamp(group, seen, &changes, &key, stamp)?;
                    counted.added += u64::from(!is_present);
                    changes.insert(key, Some(Stored { token: Token(stamp), value: value.clone() }));
                }
                Mutation::Delete(key) => {
                    let key = keys::row(prefix, key);
                    if self.check_stamp(group, seen, &changes, &key, stamp)? {
                        counted.removed += 1;
                        changes.insert(key, None);
                    }
                }
                Mutation::DeleteRange(range) => {
                    let range = keys::range(prefix, range);
                    let mut removed = vec![];
                    for row in self.rows_to_remove(group, seen.before, &changes, prefix, range) {
                        let (key, stored) = row.map_err(unreadable)?;
                        if !changes.contains_key(&key) && stored.token.0 >= stamp {
                            return Err(CommitError::Conflict);
                        }
                        removed.push(key);
                        if removed.len() > MAX_RANGE_DELETE {
                            return Err(CommitError::TooLarge);
                        }
                    }
                    counted.removed += removed.len() as u64;
                    changes.extend(removed.into_iter().map(|key| (key, None)));
                }
                Mutation::Add(key, amount) => {
                    let key = keys::row(prefix, key);
                    let counter = match changes.get(&key) {
                        Some(changed) => changed.clone(),
                        None => {
                            let row = self.row(group, seen, key.clone())?;
                            if row.is_none() && !self.graves.allow(&key, stamp) {
                                return Err(CommitError::Conflict);
                            }
                            row
                        }
                    };
                    counted.added += u64::from(counter.is_none());
                    // Additions never conflict with each other, so a late stamp is moved up instead.
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

    /// Whether a row that was there below a sequence number still is.
    fn is_present(&self, group: &Group, key: &Bytes, seen: SeqNo) -> Result<bool, CommitError> {
        if let Some(changed) = group.changes.get(key) {
            return Ok(changed.is_some());
        }
        if !self.lately.may_differ(key, seen) {
            return Ok(true);
        }
        let row = rows::get(&self.view, key, self.shared.seqno.get()).map_err(unreadable)?;
        Ok(row.is_some())
    }

    /// Makes the new counts of rows part of a group that changes them.
    fn add_counts(&self, group: &mut Group) {
        if !group.count_change.is_empty() {
            let value = encode_counts(group.count_change.applied_to(self.counts));
            let seqno = self.shared.seqno.next();
            group.put(seqno, Bytes::from_static(keys::COUNTS), Stamp::from_ticks(0), &value);
        }
    }

    /// Whether the row is there; a conflict if the stamp is not above its last one.
    fn check_stamp(
        &self,
        group: &Group,
        seen: &mut Seen<'_>,
        mine: &Changes,
        key: &Bytes,
        stamp: Stamp,
    ) -> Result<bool, CommitError> {
        if let Some(changed) = mine.get(key) {
            return Ok(changed.is_some());
        }
        match self.row(group, seen, key.clone())? {
            Some(row) if row.token.0 >= stamp => Err(CommitError::Conflict),
            Some(_) => Ok(true),
            None if !self.graves.allow(key, stamp) => Err(CommitError::Conflict),
            None => Ok(false),
        }
    }

    fn header(&self, group: &mut Group, space: SpaceId) -> Result<Option<SpaceHeader>, CommitError> {
        if let Some(known) = group.headers.get(&space).or_else(|| self.headers.get(&space)) {
            return Ok(*known);
        }
        let header = rows::header(&self.view, space, self.shared.seqno.get()).map_err(unreadable)?;
        group.headers.insert(space, header);
        Ok(header)
    }

    /// A row as it is for the next commit. Looked up in the tree if nobody did before, or if it may have changed since.
    fn row(&self, group: &Group, seen: &mut Seen<'_>, key: Bytes) -> Result<Option<Stored>, CommitError> {
        if let Some(known) = group.changes.get(&key).or_else(|| seen.now.get(&key)) {
            return Ok(known.clone());
        }
        if let Some(known) = seen.before.rows.get(&key)
            && !self.lately.may_differ(&key, seen.before.seqno)
        {
            return Ok(known.clone());
        }
        let row = rows::get(&self.view, &key, self.shared.seqno.get()).map_err(unreadable)?;
        seen.now.insert(key, row.clone());
        Ok(row)
    }

    fn rows(
        &self,
        group: &Group,
        mine: &Changes,
        range: Range<Bytes>,
    ) -> impl Iterator<Item = Result<(Bytes, Stored), ReadError>> + use<> {
        let tree = rows::range(&self.view, range.clone(), self.shared.seqno.get());
        Merged::new(tree, &range, [&group.changes, mine])
    }

    /// Rows that a removal finds, perhaps without their values. The tree is not read if the partition has not changed since
    /// the commit was submitted.
    fn rows_to_remove<'a>(
        &self,
        group: &Group,
        before: &'a Preview,
        mine: &Changes,
        prefix: &Bytes,
        range: Range<Bytes>,
    ) -> Box<dyn Iterator<Item = Result<(Bytes, Stored), ReadError>> + 'a> {
        let known = before.removed.iter().find(|known| known.range == range);
        match known.filter(|_| !self.lately_partitions.may_differ(prefix, before.seqno)) {
            Some(known) => {
                let row = |(key, token): &(Bytes, Token)| {
                    Ok((key.clone(), Stored { token: *token, value: Bytes::new() }))
                };
                Box::new(Merged::new(known.rows.iter().map(row), &range, [&group.changes, mine]))
            }
            None => Box::new(self.rows(group, mine, range)),
        }
    }

    fn range_token(
        &self,
        group: &Group,
        prefix: &Bytes,
        range: &Range<Bytes>,
    ) -> Result<RangeToken, CommitError> {
        let mut digest = RangeDigest::default();
        for row in self.rows(group, &Changes::new(), keys::range(prefix, range)) {
            let (key, stored) = row.map_err(unreadable)?;
            digest.add(&key[prefix.len()..], stored.token);
        }
        Ok(digest.token())
    }

    fn make_durable(&mut self, group: &Group, lane: Lane) -> Result<(), CommitError> {
        if group.operations.is_empty() {
            return Ok(());
        }
        let appended = self.log.append(&mut group.encode(), lane);
        if appended.is_err() && group.ceiling.is_some() {
            self.shared.clock.refused();
        }
        match appended {
            Ok(()) => Ok(()),
            Err(AppendError::Full) => Err(CommitError::Full),
            Err(AppendError::TooLarge) => Err(CommitError::TooLarge),
            Err(AppendError::Short(error)) => {
                tracing::warn!(%error, "the log cannot be continued for now");
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
        for Operation { seqno, key, value } in group.operations {
            self.lately.change(&key, seqno);
            if let Some(prefix) = keys::partition_prefix(&key) {
                self.lately_partitions.change(prefix, seqno);
            }
            self.view.insert(key, value, seqno);
        }
        if !group.headers.is_empty() {
            let headers = Arc::make_mut(&mut self.headers);
            if headers.len() >= MAX_HEADERS {
                headers.clear();
            }
            headers.extend(group.headers);
        }
        self.counts = group.count_change.applied_to(self.counts);
        // Every operation below the counter is in the tree: this thread alone adds them.
        let seqno = self.shared.seqno.get();
        if group.changes_headers {
            self.shared.header_cache.changed_before(seqno);
        }
        self.shared.runs.changing(group.changes.keys(), seqno);
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

    /// Has the memtable sealed if it has grown to `bytes`.
    fn ask_for_memtable(&self, bytes: u64) {
        let is_sealed = self.shared.views.current().active_id() != self.view.active_id();
        if self.view.active_bytes() >= bytes && !is_sealed && !self.shared.is_stopped() {
            self.shared.flusher.seal();
        }
    }

    /// Goes on with the newest view. If that has another active memtable, the log goes on in another segment, and the old
    /// memtable can be flushed.
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
            // The segment stays in use, and stays when the memtable is flushed. What was missing is met again, and answered,
            // by the next append.
            Err(AppendError::Full | AppendError::Short(_) | AppendError::TooLarge) => {}
        }
        self.sealed = Instant::now();
        self.shared.flusher.flush_before(self.log.segment());
    }

    fn wait_while_behind(&self, deadline: Instant) -> Result<(), CommitError> {
        let view = || self.shared.views.current();
        self.shared.flusher.wait_while_behind(view, self.memtable_bytes, deadline)
    }

    /// Waits while the flusher is behind; `Busy` if that takes too long.
    /// The clock does not wait with it.
    fn wait_for_room(&mut self) -> Result<(), CommitError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let slice = (Instant::now() + SLICE).min(deadline);
            match self.wait_while_behind(slice) {
                Err(CommitError::Busy) if Instant::now() < deadline => {
                    if self.shared.clock.is_asked() {
                        let job = Job { work: Work::Ceiling, answer: None, _room: None };
                        self.commit_group(vec![job], Ok(()));
                    }
                }
                room => return room,
            }
        }
    }
}

impl Admit {
    /// Refuses work, unless it frees space on a full disk.
    fn check(self, frees: bool) -> Result<(), CommitError> {
        match self {
            Self::All => Ok(()),
            Self::Reclaiming if frees => Ok(()),
            Self::Reclaiming => Err(CommitError::Full),
            Self::Nothing(refused) => Err(refused),
        }
    }
}

/// How much of the log a group may use.
fn lane(group: &Group, admit: Admit) -> Lane {
    match admit {
        Admit::All => Lane::Usual,
        _ if group.ceiling.is_some() && group.operations.len() == 1 => Lane::Ceiling,
        _ => Lane::Reclaim,
    }
}

fn count(value: &[u8]) -> i64 {
    value.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

fn unreadable(error: ReadError) -> CommitError {
    tracing::error!(%error, "a row could not be read for a commit");
    CommitError::Unreadable
}
