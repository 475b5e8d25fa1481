//! The order in which operations take the locks of the file service.
//!
//! An operation that holds a lock waits only for locks further down in this table. So no two operations can
//! wait for each other.
//!
//! | rank | lock | held while |
//! |---|---|---|
//! | `ClientWait` | no lock, but a wait for SMB clients | a break or a granted request is outstanding |
//! | `ShareDeletion` | `FileService::share_deletions` | a share is deleted (shared) or restored (exclusive) |
//! | `Snapshot` | `FileService::snapshot_lock` | a snapshot is taken, or a sweep lists snapshots |
//! | `File` | `WriteBuffer::lock` of an open file | writes are committed, or the row changes |
//! | `DirectoryMove` | `FileService::directory_moves` | a directory moves, or a path is read again |
//! | `QuotaRenewal` | `Usage::renewals` of a share | a slice is renewed or released, or a recount |
//! | `QuotaChange` | `Usage::changes` of a share | a length changes (shared), or a recount (exclusive) |
//! | `Directory` | `FileService::directory_locks` | a child changes (shared), or moves (exclusive) |
//! | `Partition` | queue of a partition in `lazuli_store::Gate` | a transaction that conflicted is repeated |
//! | `OpenTable` | shard of the open-file table | the state of one file is read or changed |
//! | `MoveList` | directory moves in the open-file table | a move is announced or looked for |
//! | `UsageTable` | `Usages::shares` | the usage of a share is looked up or evicted |
//! | `Usage` | `Usage::sums` of a share | bytes of the quota are counted |
//!
//! The last four block the thread and are never held across an `await`. Further rules:
//!
//! - No operation holds two locks of one rank. A move takes its two `Directory` locks together, in slot
//!   order.
//! - A grant in the open-file table ([`Admission`](crate::opens::Admission)) works like a lock: other
//!   operations wait for its end. They hold no lock meanwhile, so the granted request may take any lock.
//! - A lock taken with `try_lock` can be out of order, because its holder did not wait. It counts as held
//!   from then on.
//! - Pins of content are no locks, but sweeps wait for them. An operation pins content after it has waited in
//!   the queue of a partition.
//! - Ordinary transactions wait only inside `lazuli_store::transact`, whose rules cannot wait for locks.
//!   Their queues, and those of `lazuli_generations` for the rows of shares, rank as `Partition` and are not
//!   tracked.
//!
//! With debug assertions each wait is checked: [`HeldRank::wait`] panics if the operation holds a lock of the
//! same rank or one further down. Other builds check and store nothing.
//!
//! An operation is a task, or a future in [`operation`]. A guard can be dropped in any task: it remembers the
//! operation that it counts for.

use std::ops::{Deref, DerefMut};

/// A kind of lock. The order of the variants is the lock order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Waiting for a client or a granted request.
    ClientWait,
    /// Deleting or restoring shares.
    ShareDeletion,
    /// Taking snapshots.
    Snapshot,
    /// Changing an open file.
    File,
    /// Moving directories.
    DirectoryMove,
    /// Renewing a slice of a quota.
    QuotaRenewal,
    /// Changing lengths in a share.
    QuotaChange,
    /// Writing to a directory.
    Directory,
    /// Repeating a transaction on a partition.
    Partition,
    /// A shard of the open-file table.
    OpenTable,
    /// The directories that are being moved.
    MoveList,
    /// The usages of all shares.
    UsageTable,
    /// The usage of one share.
    Usage,
}

/// Records that an operation holds a lock, until this is dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct HeldRank {
    #[cfg(debug_assertions)]
    entry: tracker::Entry,
}

/// The guard of a lock, with its rank.
#[must_use]
#[derive(Debug)]
pub(crate) struct Ranked<G> {
    // Released in this order.
    guard: G,
    held: HeldRank,
}

impl HeldRank {
    /// Checks that the operation may wait for a lock of this rank, and records that it holds it.
    #[inline]
    pub(crate) fn wait(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        tracker::check(rank);
        Self::taken(rank)
    }

    /// Records a lock that was taken without waiting.
    #[inline]
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "only debug builds keep ranks"))]
    pub(crate) fn taken(rank: Rank) -> Self {
        Self {
            #[cfg(debug_assertions)]
            entry: tracker::Entry::new(rank),
        }
    }
}

impl<G> Ranked<G> {
    /// Waits for a lock.
    pub(crate) async fn wait(rank: Rank, lock: impl Future<Output = G>) -> Self {
        let held = HeldRank::wait(rank);
        Self { guard: lock.await, held }
    }

    /// Takes a lock that blocks the thread.
    pub(crate) fn block(rank: Rank, lock: impl FnOnce() -> G) -> Self {
        let held = HeldRank::wait(rank);
        Self { guard: lock(), held }
    }

    /// Takes a lock that was free.
    pub(crate) fn taken(rank: Rank, guard: G) -> Self {
        Self { guard, held: HeldRank::taken(rank) }
    }

    /// Makes the current operation the holder.
    #[inline]
    pub(crate) fn adopt(&mut self) {
        #[cfg(debug_assertions)]
        self.held.entry.adopt();
        let _ = &self.held;
    }
}

impl<G: Deref> Deref for Ranked<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ranked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// Checks that the operation holds no lock before it waits for a client or a granted request.
#[inline]
pub(crate) fn check_client_wait() {
    drop(HeldRank::wait(Rank::ClientWait));
}

/// Makes a future an operation of its own, for the check of the lock order. It counts the locks that the
/// caller holds now as held. Needed for a part of an operation that goes on in another task, and for futures
/// that share a task or move to another one.
#[cfg(debug_assertions)]
pub fn operation<F: Future>(future: F) -> impl Future<Output = F::Output> {
    tracker::operation(future)
}

/// Makes a future an operation of its own, for the check of the lock order in debug builds.
#[cfg(not(debug_assertions))]
pub fn operation<F: Future>(future: F) -> F {
    future
}

#[cfg(debug_assertions)]
mod tracker {
    use std::collections::HashMap;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread::ThreadId;

    use parking_lot::Mutex;

    use super::Rank;

    tokio::task_local! {
        static OPERATION: u64;
    }

    /// The holder of locks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Operation {
        Future(u64),
        Task(tokio::task::Id),
        Thread(ThreadId),
    }

    type Ranks = HashMap<Operation, Vec<Rank>>;

    static HELD: LazyLock<Mutex<Ranks>> = LazyLock::new(Mutex::default);
    static NEXT: AtomicU64 = AtomicU64::new(0);

    impl Operation {
        fn current() -> Self {
            let future = OPERATION.try_with(|id| Self::Future(*id)).ok();
            future
                .or_else(|| tokio::task::try_id().map(Self::Task))
                .unwrap_or_else(|| Self::Thread(std::thread::current().id()))
        }
    }

    /// A lock that is held.
    #[derive(Debug)]
    pub(super) struct Entry {
        operation: Operation,
        rank: Rank,
    }

    impl Entry {
        pub(super) fn new(rank: Rank) -> Self {
            let operation = Operation::current();
            HELD.lock().entry(operation).or_default().push(rank);
            Self { operation, rank }
        }

        pub(super) fn adopt(&mut self) {
            *self = Self::new(self.rank);
        }
    }

    impl Drop for Entry {
        fn drop(&mut self) {
            let mut held = HELD.lock();
            let Some(ranks) = held.get_mut(&self.operation) else { return };
            if let Some(index) = ranks.iter().rposition(|rank| *rank == self.rank) {
                ranks.remove(index);
            }
            if ranks.is_empty() {
                held.remove(&self.operation);
            }
        }
    }

    pub(super) fn check(rank: Rank) {
        let operation = Operation::current();
        let held = HELD.lock().get(&operation).cloned().unwrap_or_default();
        assert!(
            held.iter().all(|other| *other < rank),
            "lock order: an operation that holds {held:?} waits for {rank:?}"
        );
    }

    pub(super) fn operation<F: Future>(future: F) -> impl Future<Output = F::Output> {
        let held = HELD.lock().get(&Operation::current()).cloned().unwrap_or_default();
        // Boxed, so that callers hold no larger futures than in other builds.
        let future = Box::pin(future);
        OPERATION.scope(NEXT.fetch_add(1, Ordering::Relaxed), async move {
            let _held: Vec<_> = held.into_iter().map(Entry::new).collect();
            future.await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn locks_in_order_are_taken_and_released_in_any_order() {
        let file = HeldRank::wait(Rank::File);
        let usage = HeldRank::wait(Rank::Usage);
        drop(file);
        drop(usage);
        check_client_wait();
        let _deletion = HeldRank::wait(Rank::ShareDeletion);
    }

    #[tokio::test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order: an operation that holds [Directory] waits for File")]
    async fn lock_out_of_order_panics() {
        let directory = tokio::sync::RwLock::new(());
        let _directory = Ranked::wait(Rank::Directory, directory.read()).await;
        let file = tokio::sync::Mutex::new(());
        let _file = Ranked::wait(Rank::File, file.lock()).await;
    }

    #[tokio::test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order: an operation that holds [Directory] waits for DirectoryMove")]
    async fn a_directory_move_does_not_wait_with_a_lock_on_a_directory() {
        use crate::tree::{directory_locks::DirectoryLocks, move_locks::DirectoryMoveLocks};
        use lazuli_store::{Partition, SpaceId};
        let directory = Partition::new(SpaceId(1), &b"d"[..]);
        let _directory = DirectoryLocks::default().shared(&directory).await;
        let _paused = DirectoryMoveLocks::default().pause(SpaceId(1)).await;
    }

    #[tokio::test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "waits for ClientWait")]
    async fn waiting_for_a_client_with_a_lock_panics() {
        let _file = HeldRank::wait(Rank::File);
        check_client_wait();
    }

    #[tokio::test]
    #[cfg(debug_assertions)]
    async fn spawned_part_inherits_the_locks_of_its_operation() {
        let _directory = HeldRank::wait(Rank::Directory);
        let part = operation(async { drop(HeldRank::wait(Rank::File)) });
        assert!(tokio::spawn(part).await.is_err_and(|error| error.is_panic()));
        let other = async { drop(HeldRank::wait(Rank::File)) };
        assert!(tokio::spawn(other).await.is_ok(), "another operation holds nothing");
    }

    #[tokio::test]
    #[cfg(debug_assertions)]
    async fn a_guard_counts_for_the_operation_that_adopts_it() {
        let take = || Ranked::taken(Rank::QuotaChange, Box::new(()));
        let mut guard = tokio::spawn(async move { take() }).await.unwrap();
        check_client_wait();
        guard.adopt();
        let result = std::panic::catch_unwind(check_client_wait);
        assert!(result.is_err());
        drop(guard);
        check_client_wait();
    }
}
