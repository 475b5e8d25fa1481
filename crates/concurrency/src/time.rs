//! Time as a value.
//!
//! A [`Timestamp`] counts ticks of 100 ns since 0001-01-01T00:00:00Z: the resolution and epoch of the
//! protocol's ETags, snapshot ids and table timestamps. A [`Stamp`] is a timestamp that is issued only once:
//! the identity of one commit. Nothing in this crate reads a clock; callers that need the time are given a
//! [`Clock`].

use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Ticks in one second.
pub const TICKS_PER_SECOND: u64 = 10_000_000;
/// Ticks between 0001-01-01 and 1970-01-01.
const UNIX_EPOCH_TICKS: u64 = 621_355_968_000_000_000;
/// Ticks between 0001-01-01 and 1601-01-01, where Windows file times start.
const FILETIME_EPOCH_TICKS: u64 = 504_911_232_000_000_000;
/// 9999-12-31T23:59:59.9999999Z, which means "never" in the protocol.
const MAX_TICKS: u64 = 3_155_378_975_999_999_999;

/// A point in time, in ticks of 100 ns since 0001-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

/// A duration, in ticks of 100 ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

/// The identity of one commit. Unique, and growing within a row, also across restarts and clock steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(u64);

impl Timestamp {
    /// The last time that the protocol can express.
    pub const MAX: Self = Self(MAX_TICKS);

    /// Makes a timestamp from ticks since 0001-01-01.
    pub const fn from_ticks(ticks: u64) -> Self {
        Self(ticks)
    }

    /// Returns the ticks since 0001-01-01.
    pub const fn ticks(self) -> u64 {
        self.0
    }

    /// Makes a timestamp from whole seconds since 1970-01-01.
    pub const fn from_unix_seconds(seconds: u64) -> Self {
        Self(UNIX_EPOCH_TICKS + seconds * TICKS_PER_SECOND)
    }

    /// Returns the whole seconds since 1970-01-01; 0 for earlier times.
    pub const fn unix_seconds(self) -> u64 {
        self.0.saturating_sub(UNIX_EPOCH_TICKS) / TICKS_PER_SECOND
    }

    /// Returns the nanoseconds since 1970-01-01; negative for earlier times.
    pub const fn unix_nanos(self) -> i128 {
        (self.0 as i128 - UNIX_EPOCH_TICKS as i128) * 100
    }

    /// Makes a timestamp from nanoseconds since 1970-01-01, rounded down to a tick. Returns `None` outside
    /// the years 1 to 9999.
    pub fn from_unix_nanos(nanos: i128) -> Option<Self> {
        let ticks = nanos.div_euclid(100) + i128::from(UNIX_EPOCH_TICKS);
        u64::try_from(ticks).ok().filter(|t| *t <= MAX_TICKS).map(Self)
    }

    /// Returns the ticks since 1601-01-01, the file time of SMB and NTFS.
    pub const fn filetime(self) -> u64 {
        self.0.saturating_sub(FILETIME_EPOCH_TICKS)
    }

    /// Makes a timestamp from a Windows file time, at most [`Timestamp::MAX`].
    pub const fn from_filetime(filetime: u64) -> Self {
        Self(FILETIME_EPOCH_TICKS).saturating_add(Span(filetime))
    }

    /// Truncates the time to whole seconds, the resolution of HTTP dates.
    pub const fn whole_second(self) -> Self {
        Self(self.0 - self.0 % TICKS_PER_SECOND)
    }

    /// Adds a span, up to [`Timestamp::MAX`].
    pub const fn saturating_add(self, span: Span) -> Self {
        let t = self.0.saturating_add(span.0);
        Self(if t > MAX_TICKS { MAX_TICKS } else { t })
    }

    /// Returns the time that has passed since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(t: SystemTime) -> Self {
        let since = t.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(UNIX_EPOCH_TICKS + (since.as_nanos() / 100) as u64)
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        self.saturating_add(span)
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Span {
    /// A span of no length.
    pub const ZERO: Self = Self(0);

    /// Makes a span of whole seconds.
    pub const fn seconds(s: u64) -> Self {
        Self(s.saturating_mul(TICKS_PER_SECOND))
    }

    /// Makes a span of milliseconds.
    pub const fn millis(ms: u64) -> Self {
        Self(ms.saturating_mul(TICKS_PER_SECOND / 1000))
    }

    /// Makes a span from ticks of 100 ns.
    pub const fn from_ticks(ticks: u64) -> Self {
        Self(ticks)
    }

    /// Returns the ticks of 100 ns.
    pub const fn ticks(self) -> u64 {
        self.0
    }

    /// Returns the seconds, rounded up as `x-ms-lease-time` reports them.
    pub const fn seconds_rounded_up(self) -> u64 {
        self.0.div_ceil(TICKS_PER_SECOND)
    }
}

impl From<Span> for std::time::Duration {
    fn from(s: Span) -> Self {
        Self::from_nanos(s.0.saturating_mul(100))
    }
}

impl Stamp {
    /// Makes a stamp from ticks. Only a store issues new stamps; all other code decodes stored ones.
    pub const fn from_ticks(ticks: u64) -> Self {
        Self(ticks)
    }

    /// Returns the ticks since 0001-01-01.
    pub const fn ticks(self) -> u64 {
        self.0
    }

    /// Returns the time of the commit, as the protocol reports it.
    pub const fn timestamp(self) -> Timestamp {
        Timestamp(self.0)
    }
}

/// The source of time. The whole server shares one clock.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time. May step backward, as machine clocks do; the store makes it monotonic.
    fn now(&self) -> Timestamp;

    /// Continues after `latest`, a time that was issued before a restart. Fails if the clock must be wrong.
    fn resume(&self, latest: Timestamp) -> Result<(), WrongTime> {
        let _ = latest;
        Ok(())
    }
}

/// The clock's time must be wrong, or the times known before were wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongTime {
    /// The clock is far behind the latest known time.
    #[error("the machine's clock is {} s behind the latest time known", latest.since(*machine).seconds_rounded_up())]
    Behind {
        /// The clock's time.
        machine: Timestamp,
        /// The latest known time.
        latest: Timestamp,
    },
    /// The clock is far ahead of the latest known time.
    #[error("the machine's clock is {} s ahead of the latest time known", machine.since(*latest).seconds_rounded_up())]
    Ahead {
        /// The clock's time.
        machine: Timestamp,
        /// The latest known time.
        latest: Timestamp,
    },
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }
}

/// A clock that only tests advance.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Makes a clock that shows `start`.
    pub const fn new(start: Timestamp) -> Self {
        Self(AtomicU64::new(start.0))
    }

    /// Moves the clock forward.
    pub fn advance(&self, span: Span) {
        self.0.fetch_add(span.0, Ordering::SeqCst);
    }

    /// Sets the clock, also to an earlier time.
    pub fn set(&self, to: Timestamp) {
        self.0.store(to.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_time_out_of_range_saturates() {
        assert_eq!(Timestamp::from_filetime(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_filetime(Timestamp::MAX.filetime()), Timestamp::MAX);
        assert_eq!(Timestamp::from_filetime(7).filetime(), 7);
    }

    #[test]
    fn known_date_has_the_known_number_of_ticks() {
        // 2021-04-20T15:54:52.9740791Z
        let t = Timestamp::from_unix_nanos(1_618_934_092_974_079_100).unwrap();
        assert_eq!(t.ticks(), 637_545_308_929_740_791);
        assert_eq!(t.unix_nanos(), 1_618_934_092_974_079_100);
        assert_eq!(t.whole_second().unix_seconds(), 1_618_934_092);
        assert_eq!(Timestamp::from_filetime(t.filetime()), t);
    }

    #[test]
    fn spans_round_up_to_seconds_and_times_saturate() {
        assert_eq!(Span::from_ticks(1).seconds_rounded_up(), 1);
        assert_eq!(Span::seconds(15).seconds_rounded_up(), 15);
        assert_eq!(Timestamp::MAX + Span::seconds(1), Timestamp::MAX);
        assert_eq!(Timestamp::from_ticks(5) - Span::seconds(1), Timestamp::from_ticks(0));
    }

    #[test]
    fn manual_clock_moves_only_on_request() {
        let clock = ManualClock::new(Timestamp::from_unix_seconds(100));
        clock.advance(Span::seconds(5));
        assert_eq!(clock.now().unix_seconds(), 105);
        clock.set(Timestamp::from_unix_seconds(1));
        assert_eq!(clock.now().unix_seconds(), 1);
    }
}
