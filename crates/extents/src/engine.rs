//! What a place for bytes promises, whichever it is.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::extent::{Error, ExtentId, ExtentRef};
use crate::gather::Gathered;
use crate::pin::{Pin, Pins, Writer};
use crate::sweep::{Freed, Pace};

/// A place for immutable runs of bytes.
///
/// - What [`append`](Self::append) returned and a later [`sync`](Self::sync) confirmed survives a crash.
/// - [`read`](Self::read) returns the bytes that were appended, or an error; never others.
/// - An extent lives while a record refers to it (as the next [`Sweep`](crate::Sweep) is told), while the [`Writer`]
///   that appended it lives, or while content that contains it is [held](Pin::hold). After that it may be freed, and
///   its id is never used again.
///
/// [`conformance`](crate::conformance) checks an implementation.
#[async_trait]
pub trait Extents: Send + Sync + 'static {
    /// Stores a payload of 1 byte to [`MAX_EXTENT_BYTES`](crate::MAX_EXTENT_BYTES), given in parts. It can be read at
    /// once, by this process; it is durable after the next [`sync`](Self::sync).
    async fn append(&self, writer: &Writer, payload: Vec<Bytes>) -> Result<ExtentRef, Error> {
        self.append_then(writer, Payload::Parts(payload), Next::Any).await
    }

    /// The same, with a word on what comes next.
    async fn append_then(&self, writer: &Writer, payload: Payload, next: Next) -> Result<ExtentRef, Error>;

    /// Begins an extent whose payload arrives bit by bit: so many bytes of it, [`preferred_bytes`](Self::preferred_bytes)
    /// at most.
    fn gather(&self, bytes: usize) -> Gathered;

    /// Returns when everything that was appended before the call is durable. Calls made at the same time share the cost.
    async fn sync(&self) -> Result<(), Error>;

    /// Reads a part of an extent, verified.
    async fn read(&self, extent: &ExtentRef, range: Range<u32>) -> Result<Bytes, Error>;

    /// Payload bytes that make an extent efficient here: what a stream of bytes should be cut into.
    fn preferred_bytes(&self) -> usize;

    /// Who writes and reads at the moment.
    fn pins(&self) -> &Arc<Pins>;

    /// How much is stored.
    fn space(&self) -> Space;

    /// Tells that records stopped referring to about so many bytes. A hint for [`Space::sweep_due`], nothing more.
    fn released(&self, bytes: u64);

    /// Begins to find out what lives. Use [`Sweep`](crate::Sweep), which knows how to walk content.
    async fn begin_mark(&self) -> Result<Box<dyn Mark>, Error>;

    /// Announces a write: taken before the first append, kept until the record that refers to it is committed.
    fn writer(&self) -> Writer {
        self.pins().writer()
    }

    /// Announces a read: taken before the record is read, then turned into a hold on the content found there.
    fn pin(&self) -> Pin {
        self.pins().pin()
    }
}

/// What an extent is made of.
#[derive(Debug)]
pub enum Payload {
    /// Parts, one behind the other.
    Parts(Vec<Bytes>),
    /// What was gathered.
    Gathered(Box<Gathered>),
}

/// What an append is followed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Who knows.
    Any,
    /// A [`sync`](Extents::sync), at once: it may as well begin when the append ends, where it ends. The call is still
    /// needed, and finds little to do.
    Sync,
}

/// The set of what was found to live, in the terms of an engine.
#[async_trait]
pub trait Mark: Send {
    /// Notes that a part of an extent is referred to. False if the extent's beginning was noted before.
    fn live(&mut self, extent: &ExtentRef, range: Range<u32>) -> bool;

    /// The first id that had not been given out when the mark began. Ids grow in the order of appending.
    fn horizon(&self) -> ExtentId;

    /// Keeps every extent below an id, whether it was noted or not: something that cannot be read may refer to it.
    fn keep_below(&mut self, id: ExtentId);

    /// Frees what was neither noted nor kept nor appended since the mark began.
    async fn free(self: Box<Self>, pace: Pace) -> Result<Freed, Error>;
}

/// How much is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Segment files, or objects.
    pub segments: u64,
    /// Bytes taken on disk, what is set aside for appending included.
    pub allocated_bytes: u64,
    /// Bytes taken by what lived when the last sweep looked; `None` if there was no sweep since the start.
    pub live_bytes: Option<u64>,
    /// Bytes taken by what was appended since that sweep began to look.
    pub appended_since_mark: u64,
    /// Bytes that were [released](Extents::released) since then.
    pub released_since_mark: u64,
    /// An append found no space since then. A sweep may or may not help, so do not repeat it without a pause.
    pub full: bool,
}

/// Garbage up to this much is not worth a sweep.
pub const SWEEP_MIN_BYTES: u64 = 64 << 20;

impl Space {
    /// Whether it is time to sweep.
    pub fn should_sweep(&self) -> bool {
        self.sweep_due(SWEEP_MIN_BYTES)
    }

    /// Whether it is time to sweep: a quarter of what lives was written or released since the last time, and at least
    /// `min_bytes`. A steady overwrite load then leaves at most that quarter plus what is written during the sweep as
    /// garbage. After a start, when nothing is known, `min_bytes` on disk are reason enough.
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
    fn a_sweep_is_due_after_a_quarter_of_what_lives_has_changed() {
        let mib = |n: u64| n << 20;
        let space = |live, appended, released, full| Space {
            live_bytes: live,
            allocated_bytes: mib(100),
            appended_since_mark: mib(appended),
            released_since_mark: mib(released),
            full,
            ..Space::default()
        };
        for (space, due) in [
            (space(Some(mib(1000)), 0, 0, false), false),
            (space(Some(mib(1000)), 250, 250, false), false),
            (space(Some(mib(1000)), 251, 0, false), true),
            (space(Some(mib(1000)), 0, 251, false), true),
            (space(Some(mib(10)), 64, 0, false), false),
            (space(Some(mib(10)), 65, 0, false), true),
            (space(Some(mib(10)), 0, 0, true), true),
            (space(None, 0, 0, false), true),
        ] {
            assert_eq!(space.should_sweep(), due, "{space:?}");
        }
        assert!(!Space::default().should_sweep(), "an empty store");
    }
}
