//! How often each step of the protocols was performed, by this front end.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! events {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// A step of a protocol, or the outcome of an op in doubt.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ProtocolEvent {
            $($(#[doc = $doc])* $name,)*
        }

        impl ProtocolEvent {
            /// All events.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

events! {
    /// S1: a shard began to split.
    SplitBegun,
    /// S2: the new shard of a split was created.
    SplitCreated,
    /// S3: rows were copied into the new shard.
    SplitCopied,
    /// S4: the old shard gave the range up.
    SplitNarrowed,
    /// S5: the new shard took the range over.
    SplitActivated,
    /// S6: rows outside of the old shard's bounds were removed.
    SplitCleaned,
    /// A split was given up, because the pool was full.
    SplitGivenUp,
    /// A split whose new shard did not exist yet was continued.
    HelpedBeforeCreation,
    /// A split whose new shard existed was continued.
    HelpedWhileCopying,
    /// A shard that was built but not active was met.
    HelpedBeforeActivation,
    /// The header of a space with one shard was changed in one op.
    ChangedAlone,
    /// E1: a change of a space's header began.
    ChangeBegun,
    /// E2: a shard was frozen.
    ShardFrozen,
    /// E2: a shard that an older change had frozen was frozen again.
    ShardFrozenAgain,
    /// E3: a change was decided.
    ChangeDecided,
    /// E4: a shard was thawed.
    ShardThawed,
    /// A change that another front end had begun, or that this one had dropped, was continued.
    HelpedChange,
    /// A frozen shard whose change was decided was met.
    HelpedThaw,
    /// A helper found that a later change had frozen a shard, and stopped.
    OvertakenHelper,
    /// A reader found a frozen shard, and the change was not decided.
    ReadBeforeDecision,
    /// A reader found a frozen shard, and the change was decided.
    ReadAfterDecision,
    /// A reader found a frozen shard, and a later change was decided.
    ReadAgainAfterDecision,
    /// A batch was committed.
    BatchCommitted,
    /// An op in doubt had taken effect.
    DoubtApplied,
    /// An op in doubt had not taken effect, and never will.
    DoubtNotApplied,
    /// An op in doubt had not taken effect, as an earlier probe had ensured.
    DoubtNotAppliedByEarlierProbe,
    /// The outcome of an op in doubt could not be learned, because the shard or this front end was gone.
    DoubtUnknown,
    /// A batch was refused because the header had changed.
    RefusedByHeader,
    /// A batch was refused because of a row, a bucket, a counter or a deadline.
    RefusedByCondition,
    /// A range was unchanged although its bucket had changed.
    RangeConfirmed,
    /// A shard was gone.
    ShardGone,
}

/// Counts of events.
#[derive(Debug)]
pub struct ProtocolEvents(Vec<AtomicU64>);

impl Default for ProtocolEvents {
    fn default() -> Self {
        Self(ProtocolEvent::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl ProtocolEvents {
    pub(crate) fn count(&self, event: ProtocolEvent) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often an event happened.
    pub fn of(&self, event: ProtocolEvent) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }

    /// Adds the counts of another front end.
    pub fn add(&self, other: &Self) {
        for (mine, other) in self.0.iter().zip(&other.0) {
            mine.fetch_add(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl fmt::Display for ProtocolEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for event in ProtocolEvent::ALL {
            writeln!(f, "{:>9} {event:?}", self.of(*event))?;
        }
        Ok(())
    }
}
