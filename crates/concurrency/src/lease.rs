//! The lease of a blob, container or share: who may write, and until when.
//!
//! A lease is plain data in the object's record. Time alone never writes: that a lease has expired, or that a break
//! has ended, follows from the stored moment and from `now`. Changing the lease is [`Lease::apply`], using the object
//! is [`Lease::admits`]; both are pure and give back the lease to store.
//!
//! A decision that rests on a lease which will run out carries `valid_until`: it holds for a commit before that
//! moment and has to be made again after it. A refusal, and a decision that time cannot overturn, carry none. That
//! nobody else changes the lease in between is the store's business.
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

use crate::{Span, Timestamp};

/// The lease of one object. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease(Stored);

/// What is kept. `Leased` also stands for a lease that has expired, `Breaking` for one whose break has ended.
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

/// The state of a lease at some moment. Displayed as in `x-ms-lease-state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// There is no lease and no id is remembered.
    Available,
    /// The holder of the id may write.
    Leased,
    /// The holder may still write, for as long as the break lasts.
    Breaking,
    /// A break has ended the lease; its id is remembered.
    Broken,
    /// The lease ran out; its id is remembered.
    Expired,
}

/// Whether writing needs the id. Displayed as in `x-ms-lease-status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// Leased or breaking.
    Locked,
    /// Anything else.
    Unlocked,
}

/// How long a lease lasts: 15 to 60 seconds, or for ever. Displayed as in the response's `x-ms-lease-duration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDuration(Option<u8>);

/// How long a break may take at most: 0 to 60 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakPeriod(u8);

/// A request to change a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// Take the lease, or take it anew with another duration.
    Acquire {
        /// The id that the client wants, if it wants one.
        proposed: Option<LeaseId>,
        /// The id for a client that does not: fresh and random.
        generated: LeaseId,
        /// How long the lease shall last.
        duration: LeaseDuration,
    },
    /// Start the duration again.
    Renew {
        /// The id that the client presents.
        id: LeaseId,
    },
    /// Hold the lease under another id.
    Change {
        /// The id that the client presents.
        id: LeaseId,
        /// The id that it shall have.
        proposed: LeaseId,
    },
    /// Give the lease up.
    Release {
        /// The id that the client presents.
        id: LeaseId,
    },
    /// End the lease without knowing its id.
    Break {
        /// How long the holder may keep it at most.
        period: Option<BreakPeriod>,
    },
}

/// What an operation does with the leased object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Needs no id, but an id that is sent must be right. For containers this is every operation but the delete.
    Read,
    /// A write to a blob or file: needs the id while locked. Without one it makes an ended lease forgotten.
    Write,
    /// As [`Access::Write`], as the destination of an asynchronous copy: a lease that ends will not do.
    CopyDestination,
    /// A write to a container or share: needs the id while locked. It leaves an ended lease alone, so that its holder
    /// can still renew it.
    Manage,
}

/// The outcome of a lease action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The lease to store.
    pub lease: Lease,
    /// For a break: whole seconds until the lease is broken, the `x-ms-lease-time` header.
    pub lease_time: Option<u64>,
    /// The outcome holds for a commit before this moment.
    pub valid_until: Option<Timestamp>,
}

/// Leave to use the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The lease to store with the operation's own changes.
    pub lease: Lease,
    /// The request came with the id of the active lease.
    pub by_holder: bool,
    /// The admission holds for a commit before this moment.
    pub valid_until: Option<Timestamp>,
}

/// Why a lease action or the use of a leased object is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    /// Acquire: somebody holds the lease.
    #[error("there is already a lease")]
    AlreadyPresent,
    /// Acquire: the lease is the client's own, and is being broken.
    #[error("the lease is being broken and cannot be acquired until it is")]
    IsBreakingAndCannotBeAcquired,
    /// Change: the lease is the client's own, and is being broken.
    #[error("the lease is being broken and cannot be changed")]
    IsBreakingAndCannotBeChanged,
    /// Renew: the lease was the client's own, and a break has begun or ended.
    #[error("the lease is broken and cannot be renewed")]
    IsBrokenAndCannotBeRenewed,
    /// Renew, change or release: the id is not the lease's.
    #[error("the lease id does not match the lease")]
    IdMismatchWithLeaseOperation,
    /// Change or break: there is no lease to do it to.
    #[error("there is no lease")]
    NotPresentWithLeaseOperation,
    /// Use: the object is locked and the request has no id.
    #[error("the object is leased and the request has no lease id")]
    IdMissing,
    /// Use: the object is locked under another id.
    #[error("the lease id does not match the object's lease")]
    IdMismatchWithOperation,
    /// Use: the request has an id, the object no lease.
    #[error("the request has a lease id but the object no lease")]
    NotPresentWithOperation,
    /// Use: the request has an id, and the object's lease has expired or is broken.
    #[error("the object's lease has ended")]
    Lost,
    /// Copy: the holder's lease will end, the copy may not have by then.
    #[error("the destination of a copy needs an infinite lease")]
    InfiniteDurationRequired,
}

impl Lease {
    /// No lease.
    pub const AVAILABLE: Self = Self(Stored::Available);

    /// The state at a moment.
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

    /// The status at a moment.
    pub fn status(&self, now: Timestamp) -> LeaseStatus {
        self.state(now).status()
    }

    /// The id, also of a lease that has ended and is not forgotten.
    pub const fn id(&self) -> Option<LeaseId> {
        match self.0 {
            Stored::Available => None,
            Stored::Leased { id, .. } | Stored::Breaking { id, .. } | Stored::Broken { id } => Some(id),
        }
    }

    /// The duration, which is reported only while leased.
    pub fn duration(&self, now: Timestamp) -> Option<LeaseDuration> {
        match self.0 {
            Stored::Leased { duration, .. } if self.state(now) == LeaseState::Leased => Some(duration),
            _ => None,
        }
    }

    /// When the state will change by itself: always after `now`, if at all.
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

    /// Carries out a lease action.
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

    /// Judges whether an operation may use the object, given the id that came with the request.
    ///
    /// An object that does not exist is judged as [`Lease::AVAILABLE`].
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

    /// An expired lease is renewed like a running one: had anybody written since, the id would be forgotten.
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

    /// A change to the id that the lease has already succeeds whatever id is presented, so that it can be retried.
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

    /// The lease ends at the end of the period or when it would have ended anyway, whichever comes first; at once if
    /// there is neither.
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
    /// The status that goes with the state.
    pub const fn status(self) -> LeaseStatus {
        match self {
            Self::Leased | Self::Breaking => LeaseStatus::Locked,
            Self::Available | Self::Broken | Self::Expired => LeaseStatus::Unlocked,
        }
    }
}

impl LeaseDuration {
    /// A lease that never expires.
    pub const INFINITE: Self = Self(None);

    /// The duration of a request's `x-ms-lease-duration`: −1, or 15 to 60.
    pub const fn from_seconds(seconds: i64) -> Option<Self> {
        match seconds {
            -1 => Some(Self::INFINITE),
            15..=60 => Some(Self(Some(seconds as u8))),
            _ => None,
        }
    }

    /// The end of a lease of this duration, if it has one.
    fn end(self, since: Timestamp) -> Option<Timestamp> {
        self.0.map(|seconds| since + Span::seconds(u64::from(seconds)))
    }
}

impl BreakPeriod {
    /// Break at once.
    pub const NONE: Self = Self(0);

    /// The period of an `x-ms-lease-break-period`: 0 to 60.
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
