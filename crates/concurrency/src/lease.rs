//! The lease of a blob, container or share: which client may write, and until when.
//!
//! A lease is plain data in the object's record. Time alone never writes: whether a lease has expired, or a
//! break has ended, follows from the stored time and from `now`. [`Lease::apply`] changes the lease;
//! [`Lease::admits`] checks whether an operation may use the object. Both are pure and return the lease to
//! store.
//!
//! A decision that depends on a lease that will end has a `valid_until`: it holds for a commit before that
//! time and must be made again later. Refusals, and decisions that time cannot change, have none. The store
//! ensures that no other transaction changes the lease in between.
//!
//! Refusals are named like the protocol's error codes without the kind of object, which the service adds.

mod encoding;
mod id;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::fmt;

pub use encoding::LeaseDecodeError;
pub use id::{InvalidLeaseId, LeaseId};

use serde::{Deserialize, Serialize};

use crate::{Span, Timestamp};

/// The lease of one object. The default is no lease.
///
/// ```
/// # use lazuli_concurrency::*;
/// # let now = Timestamp::from_unix_seconds(1_000_000_000);
/// # let id = LeaseId::from_bytes([7; 16]);
/// let duration = LeaseDuration::from_seconds(15).expect("15 to 60 seconds");
/// let acquire = LeaseAction::Acquire { proposed: Some(id), generated: id, duration };
/// let lease = Lease::AVAILABLE.apply(acquire, now)?.lease;
///
/// // The holder may write, but only in a commit before the lease expires.
/// let by_holder = lease.admits(Access::Write, Some(id), now)?;
/// assert_eq!(by_holder.valid_until, Some(now + Span::seconds(15)));
/// assert_eq!(lease.admits(Access::Write, None, now), Err(LeaseRefusal::IdMissing));
///
/// // Nothing is written when a lease expires. The state follows from the time.
/// let later = now + Span::seconds(15);
/// assert_eq!(lease.state(later), LeaseState::Expired);
/// assert!(lease.admits(Access::Write, None, later).is_ok());
/// # Ok::<(), LeaseRefusal>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<u8>", try_from = "Vec<u8>")]
pub struct Lease(Stored);

/// The stored form. `Leased` also stands for a lease that has expired, `Breaking` for one whose break has
/// ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stored {
    #[default]
    Available,
    Leased {
        id: LeaseId,
        duration: LeaseDuration,
        since: Timestamp,
    },
    Breaking {
        id: LeaseId,
        ends: Timestamp,
    },
    Broken {
        id: LeaseId,
    },
}

/// The state of a lease at a given time. Displayed as in `x-ms-lease-state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// There is no lease, and no id is stored.
    Available,
    /// The holder of the id may write.
    Leased,
    /// The holder may still write until the break ends.
    Breaking,
    /// A break has ended the lease; the id is still stored.
    Broken,
    /// The lease has expired; the id is still stored.
    Expired,
}

/// Whether writes need the lease id. Displayed as in `x-ms-lease-status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// Leased or breaking.
    Locked,
    /// Available, broken or expired.
    Unlocked,
}

/// The duration of a lease: 15 to 60 seconds, or infinite. Displayed as in the response's
/// `x-ms-lease-duration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDuration(Option<u8>);

/// The maximum time that a break may take: 0 to 60 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakPeriod(u8);

/// A request to change a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// Acquire the lease. The holder may acquire it again with another duration.
    Acquire {
        /// The id that the client proposes, if any.
        proposed: Option<LeaseId>,
        /// A fresh random id, used if the client proposes none.
        generated: LeaseId,
        /// The requested duration.
        duration: LeaseDuration,
    },
    /// Restart the duration.
    Renew {
        /// The id that the client presents.
        id: LeaseId,
    },
    /// Change the id of the lease.
    Change {
        /// The id that the client presents.
        id: LeaseId,
        /// The new id.
        proposed: LeaseId,
    },
    /// Release the lease.
    Release {
        /// The id that the client presents.
        id: LeaseId,
    },
    /// End the lease. Needs no id.
    Break {
        /// The maximum time that the holder keeps the lease.
        period: Option<BreakPeriod>,
    },
}

/// The use that an operation makes of the leased object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Needs no id, but an id that is sent must be correct. Most operations on containers are reads in this
    /// sense.
    Read,
    /// A write to a blob, a file or the properties of a share: needs the id while locked. A write without an
    /// id clears a lease that has ended.
    Write,
    /// Like [`Access::Write`], for the destination of an asynchronous copy: needs an infinite lease.
    CopyDestination,
    /// Delete or rename of a container, or delete of a share: needs the id while locked. Keeps a lease that
    /// has ended, so that its holder can still renew it.
    Manage,
}

/// The result of a lease action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The lease to store.
    pub lease: Lease,
    /// For a break: whole seconds until the lease is broken, as in the `x-ms-lease-time` header.
    pub lease_time: Option<u64>,
    /// The result holds for a commit before this time.
    pub valid_until: Option<Timestamp>,
}

/// Permission to use the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The lease to store with the operation's own changes.
    pub lease: Lease,
    /// The request came with the id of the active lease.
    pub by_holder: bool,
    /// The admission holds for a commit before this time.
    pub valid_until: Option<Timestamp>,
}

/// Why a lease action or the use of a leased object is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    /// Acquire: another client holds the lease.
    #[error("there is already a lease")]
    AlreadyPresent,
    /// Acquire: the client's own lease is being broken.
    #[error("the lease is being broken and cannot be acquired until it is")]
    IsBreakingAndCannotBeAcquired,
    /// Change: the client's own lease is being broken.
    #[error("the lease is being broken and cannot be changed")]
    IsBreakingAndCannotBeChanged,
    /// Renew: a break of the client's own lease has begun or ended.
    #[error("the lease is broken and cannot be renewed")]
    IsBrokenAndCannotBeRenewed,
    /// Renew, change or release: the id is not that of the lease.
    #[error("the lease id does not match the lease")]
    IdMismatchWithLeaseOperation,
    /// Change or break: there is no lease.
    #[error("there is no lease")]
    NotPresentWithLeaseOperation,
    /// Use: the object is locked and the request has no id.
    #[error("the object is leased and the request has no lease id")]
    IdMissing,
    /// Use: the object is locked under another id.
    #[error("the lease id does not match the object's lease")]
    IdMismatchWithOperation,
    /// Use: the request has an id, but the object has no lease.
    #[error("the request has a lease id but the object no lease")]
    NotPresentWithOperation,
    /// Use: the request has an id, and the object's lease has expired or is broken.
    #[error("the object's lease has ended")]
    Lost,
    /// Copy: the holder's lease may end before the copy does.
    #[error("the destination of a copy needs an infinite lease")]
    InfiniteDurationRequired,
}

impl Lease {
    /// The state without a lease.
    pub const AVAILABLE: Self = Self(Stored::Available);

    /// Returns the state at the given time.
    pub fn state(&self, now: Timestamp) -> LeaseState {
        match self.0 {
            Stored::Available => LeaseState::Available,
            Stored::Leased { duration, since, .. } => match duration.end(since) {
                Some(expires) if expires <= now => LeaseState::Expired,
                _ => LeaseState::Leased,
            },
            Stored::Breaking { ends, .. } if ends <= now => LeaseState::Broken,
            Stored::Breaking { .. } => LeaseState::Breaking,
            Stored::Broken { .. } => LeaseState::Broken,
        }
    }

    /// Returns whether the object is locked at the given time.
    pub fn status(&self, now: Timestamp) -> LeaseStatus {
        self.state(now).status()
    }

    /// Returns the id, also that of a lease that has ended.
    pub const fn id(&self) -> Option<LeaseId> {
        match self.0 {
            Stored::Available => None,
            Stored::Leased { id, .. } | Stored::Breaking { id, .. } | Stored::Broken { id } => Some(id),
        }
    }

    /// Returns the duration, which is reported only while leased.
    pub fn duration(&self, now: Timestamp) -> Option<LeaseDuration> {
        match self.0 {
            Stored::Leased { duration, .. } if self.state(now) == LeaseState::Leased => Some(duration),
            _ => None,
        }
    }

    /// Returns when the state will change without a request. Always later than `now`.
    pub fn changes_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.0 {
            Stored::Leased { duration, since, .. } => duration.end(since),
            Stored::Breaking { ends, .. } => Some(ends),
            Stored::Available | Stored::Broken { .. } => None,
        }
        .filter(|end| *end > now)
    }

    /// Whether time can never change the state.
    pub(crate) fn is_timeless(&self) -> bool {
        self.changes_at(Timestamp::from_ticks(0)).is_none()
    }

    /// Applies a lease action.
    pub fn apply(&self, action: LeaseAction, now: Timestamp) -> Result<Applied, LeaseRefusal> {
        let stored = match action {
            LeaseAction::Acquire { proposed, generated, duration } => {
                self.check_acquire(proposed, now)?;
                Stored::Leased { id: proposed.unwrap_or(generated), duration, since: now }
            }
            LeaseAction::Renew { id } => self.renew(id, now)?,
            LeaseAction::Change { id, proposed } => self.change(id, proposed, now)?,
            LeaseAction::Release { id } if self.id() == Some(id) => Stored::Available,
            LeaseAction::Release { .. } => return Err(LeaseRefusal::IdMismatchWithLeaseOperation),
            LeaseAction::Break { period } => self.break_within(period, now)?,
        };
        let lease = Self(stored);
        let lease_time = match action {
            LeaseAction::Break { .. } => {
                Some(lease.changes_at(now).map_or(0, |end| end.since(now).seconds_rounded_up()))
            }
            _ => None,
        };
        Ok(Applied { lease, lease_time, valid_until: self.changes_at(now) })
    }

    /// Checks whether an operation may use the object, given the id in the request.
    ///
    /// For an object that does not exist, call this on [`Lease::AVAILABLE`].
    pub fn admits(
        &self,
        access: Access,
        presented: Option<LeaseId>,
        now: Timestamp,
    ) -> Result<Admission, LeaseRefusal> {
        let state = self.state(now);
        let by_holder = match (state, presented) {
            (LeaseState::Available, Some(_)) => return Err(LeaseRefusal::NotPresentWithOperation),
            (LeaseState::Broken | LeaseState::Expired, Some(_)) => return Err(LeaseRefusal::Lost),
            (LeaseState::Leased | LeaseState::Breaking, Some(_)) if presented == self.id() => true,
            (LeaseState::Leased | LeaseState::Breaking, Some(_)) => {
                return Err(LeaseRefusal::IdMismatchWithOperation);
            }
            (LeaseState::Leased | LeaseState::Breaking, None) if access != Access::Read => {
                return Err(LeaseRefusal::IdMissing);
            }
            (_, None) => false,
        };
        let ends = self.changes_at(now);
        if access == Access::CopyDestination && ends.is_some() {
            return Err(LeaseRefusal::InfiniteDurationRequired);
        }
        let forgets = matches!(access, Access::Write | Access::CopyDestination)
            && matches!(state, LeaseState::Broken | LeaseState::Expired);
        Ok(Admission {
            lease: if forgets { Self::AVAILABLE } else { *self },
            by_holder,
            valid_until: ends.filter(|_| by_holder),
        })
    }

    fn check_acquire(&self, proposed: Option<LeaseId>, now: Timestamp) -> Result<(), LeaseRefusal> {
        let own = proposed.is_some() && proposed == self.id();
        match self.state(now) {
            LeaseState::Available | LeaseState::Broken | LeaseState::Expired => Ok(()),
            LeaseState::Leased if own => Ok(()),
            LeaseState::Breaking if own => Err(LeaseRefusal::IsBreakingAndCannotBeAcquired),
            LeaseState::Leased | LeaseState::Breaking => Err(LeaseRefusal::AlreadyPresent),
        }
    }

    /// Renews a running or expired lease. The id of an expired lease is still stored only if no write has
    /// cleared it.
    fn renew(&self, presented: LeaseId, now: Timestamp) -> Result<Stored, LeaseRefusal> {
        match self.0 {
            Stored::Leased { id, duration, .. } if id == presented => {
                Ok(Stored::Leased { id, duration, since: now })
            }
            Stored::Breaking { id, .. } | Stored::Broken { id } if id == presented => {
                Err(LeaseRefusal::IsBrokenAndCannotBeRenewed)
            }
            _ => Err(LeaseRefusal::IdMismatchWithLeaseOperation),
        }
    }

    /// Changes the id. Changing to the id that the lease already has succeeds with any presented id, so that
    /// clients can retry.
    fn change(&self, presented: LeaseId, proposed: LeaseId, now: Timestamp) -> Result<Stored, LeaseRefusal> {
        match (self.state(now), self.0) {
            (LeaseState::Leased, Stored::Leased { id, duration, since })
                if id == presented || id == proposed =>
            {
                Ok(Stored::Leased { id: proposed, duration, since })
            }
            (LeaseState::Breaking, Stored::Breaking { id, .. }) if id == presented => {
                Err(LeaseRefusal::IsBreakingAndCannotBeChanged)
            }
            (LeaseState::Leased | LeaseState::Breaking, _) => Err(LeaseRefusal::IdMismatchWithLeaseOperation),
            _ => Err(LeaseRefusal::NotPresentWithLeaseOperation),
        }
    }

    /// Ends the lease after the period or when it would have ended anyway, whichever is earlier. With
    /// neither, ends it at once.
    fn break_within(&self, period: Option<BreakPeriod>, now: Timestamp) -> Result<Stored, LeaseRefusal> {
        let id = self.id().ok_or(LeaseRefusal::NotPresentWithLeaseOperation)?;
        let ends = match self.status(now) {
            LeaseStatus::Locked => {
                [period.map(|p| now + p.span()), self.changes_at(now)].into_iter().flatten().min()
            }
            LeaseStatus::Unlocked => None,
        };
        Ok(match ends.filter(|end| *end > now) {
            Some(ends) => Stored::Breaking { id, ends },
            None => Stored::Broken { id },
        })
    }
}

impl LeaseState {
    /// Returns whether an object in this state is locked.
    pub const fn status(self) -> LeaseStatus {
        match self {
            Self::Leased | Self::Breaking => LeaseStatus::Locked,
            Self::Available | Self::Broken | Self::Expired => LeaseStatus::Unlocked,
        }
    }
}

impl LeaseDuration {
    /// The duration of a lease that never expires.
    pub const INFINITE: Self = Self(None);

    /// Parses the seconds of a request's `x-ms-lease-duration`: −1, or 15 to 60.
    pub const fn from_seconds(seconds: i64) -> Option<Self> {
        match seconds {
            -1 => Some(Self::INFINITE),
            15..=60 => Some(Self(Some(seconds as u8))),
            _ => None,
        }
    }

    /// Returns the end of a lease of this duration that started at `since`, if it ends.
    fn end(self, since: Timestamp) -> Option<Timestamp> {
        self.0.map(|seconds| since + Span::seconds(u64::from(seconds)))
    }
}

impl BreakPeriod {
    /// End the lease at once.
    pub const NONE: Self = Self(0);

    /// Parses the seconds of an `x-ms-lease-break-period`: 0 to 60.
    pub const fn from_seconds(seconds: i64) -> Option<Self> {
        match seconds {
            0..=60 => Some(Self(seconds as u8)),
            _ => None,
        }
    }

    fn span(self) -> Span {
        Span::seconds(u64::from(self.0))
    }
}

impl fmt::Display for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Available => "available",
            Self::Leased => "leased",
            Self::Breaking => "breaking",
            Self::Broken => "broken",
            Self::Expired => "expired",
        })
    }
}

impl fmt::Display for LeaseStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locked => "locked",
            Self::Unlocked => "unlocked",
        })
    }
}

impl fmt::Display for LeaseDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::INFINITE { "infinite" } else { "fixed" })
    }
}
