//! The interface of extent engines, with its guarantees.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::Pace;

use crate::extent::{Error, ExtentId, ExtentRef};
use crate::gather::Gathered;
use crate::pin::{Pin, Pins, Writer};

/// A store of immutable sequences of bytes.
///
/// - An extent that [`append`](Self::append) returned and a later [`sync`](Self::sync) confirmed survives a
///   crash.
/// - [`read`](Self::read) returns the bytes that were appended, or an error. It never returns other bytes.
/// - An extent is kept while a record refers to it (the next [`Sweep`](crate::Sweep) learns this from the
///   records), while the [`Writer`] that appended it exists, or while content that contains it is
///   [held](Pin::hold). Later it may be freed. Its id is never used again.
///
/// [`conformance`](crate::conformance) checks an implementation.
#[async_trait]
pub trait Extents: Send + Sync + 'static {
    /// Stores a payload of 1 byte to [`MAX_EXTENT_BYTES`](crate::MAX_EXTENT_BYTES), given in parts. This
    /// process can read it immediately; it is durable after the next [`sync`](Self::sync).
    async fn append(&self, writer: &Writer, payload: Vec<Bytes>) -> Result<ExtentRef, Error> {
        self.append_with_hint(writer, Payload::Parts(payload), AppendHint::None).await
    }

    /// Stores a payload like [`append`](Self::append), with a hint about the caller's next call.
    async fn append_with_hint(
        &self,
        writer: &Writer,
        payload: Payload,
        hint: AppendHint,
    ) -> Result<ExtentRef, Error>;

    /// Begins an extent of `bytes` bytes whose payload arrives in small parts. Its capacity is at most
    /// [`preferred_bytes`](Self::preferred_bytes).
    fn gather(&self, bytes: usize) -> Gathered;

    /// Returns when everything that was appended before the call is durable. Concurrent calls share the cost.
    async fn sync(&self) -> Result<(), Error>;

    /// Reads and verifies a part of an extent.
    async fn read(&self, extent: &ExtentRef, range: Range<u32>) -> Result<Bytes, Error>;

    /// Returns the payload size that is efficient for this engine. Streams are cut into extents of this size.
    fn preferred_bytes(&self) -> usize;

    /// Returns the registry of the pins, holds and writers of this store.
    fn pins(&self) -> &Arc<Pins>;

    /// Returns how much is stored.
    fn storage_use(&self) -> StorageUse;

    /// Notes that records stopped referring to about `bytes` bytes. Only a hint for
    /// [`StorageUse::sweep_due`].
    fn released(&self, bytes: u64);

    /// Begins to mark the extents in use. Call it through [`Sweep`](crate::Sweep), which knows how to walk
    /// content.
    async fn begin_mark(&self) -> Result<Box<dyn Mark>, Error>;

    /// Announces a write. Call it before the first append, and keep the writer until the record's commit is
    /// decided.
    fn writer(&self) -> Writer {
        self.pins().writer()
    }

    /// Announces a read. Call it before the record is read, then turn the pin into a hold on the content
    /// found there.
    fn pin(&self) -> Pin {
        self.pins().pin()
    }
}

/// The payload of one append.
#[derive(Debug)]
pub enum Payload {
    /// Parts, in order.
    Parts(Vec<Bytes>),
    /// A payload that was gathered in aligned memory.
    Gathered(Box<Gathered>),
}

/// A hint about the call that follows an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendHint {
    /// Unknown.
    None,
    /// A [`sync`](Extents::sync), immediately. The engine may begin it on the thread of the append. The
    /// caller must still call `sync`, which then finds little to do.
    SyncFollows,
}

/// The set of extents in use that a sweep builds, as an engine represents it.
#[async_trait]
pub trait Mark: Send {
    /// Adds a part of an extent. Returns false if the extent's beginning was added before.
    fn insert(&mut self, extent: &ExtentRef, range: Range<u32>) -> bool;

    /// Returns the first id that had not been assigned when the mark began. Ids grow in the order of
    /// appending.
    fn horizon(&self) -> ExtentId;

    /// Keeps every extent below `id`, inserted or not: something unreadable may refer to it.
    fn keep_below(&mut self, id: ExtentId);

    /// Frees every extent that was not inserted, not kept, and appended before the mark began.
    async fn free(self: Box<Self>, pace: Pace) -> Result<Freed, Error>;
}

/// The amount that an engine stores, and the changes since the last sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageUse {
    /// Number of segment files or objects.
    pub segments: u64,
    /// Bytes allocated on disk, including preallocated space.
    pub allocated_bytes: u64,
    /// Bytes that the last sweep found in use; `None` if no sweep has run since the start.
    pub live_bytes: Option<u64>,
    /// Bytes appended since that sweep began its mark.
    pub appended_since_mark: u64,
    /// Bytes that were [released](Extents::released) since that sweep began its mark.
    pub released_since_mark: u64,
    /// An append has found no space since then. A sweep may not help, so pause before another one.
    pub full: bool,
}

/// Result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Bytes returned to the file system.
    pub bytes: u64,
    /// Segments or objects that were removed.
    pub segments: u64,
    /// Bytes found in use.
    pub live_bytes: u64,
    /// Map nodes that could not be read. No extent older than such a node was freed.
    pub damaged_nodes: u64,
}

/// Minimum number of bytes appended or released before a sweep is due. Before the first sweep: minimum number
/// of bytes on disk. Does not apply if an append found no space. The background task may sweep earlier while
/// content is quiet.
pub const SWEEP_MIN_BYTES: u64 = 24 << 20;

impl StorageUse {
    /// Returns whether a sweep is due, with the usual minimum of garbage.
    pub fn should_sweep(&self) -> bool {
        self.sweep_due(SWEEP_MIN_BYTES)
    }

    /// Returns whether a sweep is due: an append found no space, or more than `min_bytes` and more than a
    /// quarter of the bytes in use were appended or released since the last sweep. A steady overwrite load
    /// then leaves at most that quarter as garbage, plus what is written during the sweep. Before the first
    /// sweep of a process, more than `min_bytes` on disk are enough.
    pub fn sweep_due(&self, min_bytes: u64) -> bool {
        let changed = self.appended_since_mark.max(self.released_since_mark);
        self.full
            || match self.live_bytes {
                None => self.allocated_bytes > min_bytes,
                Some(live) => changed > (live / 4).max(min_bytes),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_is_due_after_a_quarter_of_the_live_bytes_changed() {
        let mib = |n: u64| n << 20;
        let space = |live, appended, released, full| StorageUse {
            live_bytes: live,
            allocated_bytes: mib(100),
            appended_since_mark: mib(appended),
            released_since_mark: mib(released),
            full,
            ..StorageUse::default()
        };
        for (space, due) in [
            (space(Some(mib(1000)), 0, 0, false), false),
            (space(Some(mib(1000)), 250, 250, false), false),
            (space(Some(mib(1000)), 251, 0, false), true),
            (space(Some(mib(1000)), 0, 251, false), true),
            (space(Some(mib(10)), 24, 0, false), false),
            (space(Some(mib(10)), 25, 0, false), true),
            (space(Some(mib(10)), 0, 0, true), true),
            (space(None, 0, 0, false), true),
        ] {
            assert_eq!(space.should_sweep(), due, "{space:?}");
        }
        assert!(!StorageUse::default().should_sweep(), "an empty store");
    }
}
