//! The lease of a file: three states, always infinite.
//!
//! A file lease is the lease of [`crate::lease`] without time: acquired without end, broken at once, never
//! renewed. No decision depends on `now`, and none has a deadline. The file service checks the lease against
//! SMB opens, using [`FileLease::state`].

use serde::{Deserialize, Serialize};

use crate::lease::LeaseDecodeError;
use crate::{
    Access, BreakPeriod, Lease, LeaseAction, LeaseDuration, LeaseId, LeaseRefusal, LeaseState, LeaseStatus,
    Timestamp,
};

/// The lease of one file. The default is no lease.
///
/// Invariant: the inner lease is available, leased without end, or broken. Time never changes its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Lease", try_from = "Lease")]
pub struct FileLease(Lease);

/// A request to change a file's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLeaseAction {
    /// Acquire the lease.
    Acquire {
        /// The id that the client proposes, if any.
        proposed: Option<LeaseId>,
        /// A fresh random id, used if the client proposes none.
        generated: LeaseId,
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
    /// End the lease at once. Needs no id.
    Break,
}

/// Stands for the current time, which does not matter because of the invariant.
const ANY_TIME: Timestamp = Timestamp::from_ticks(0);

impl FileLease {
    /// The state without a lease.
    pub const AVAILABLE: Self = Self(Lease::AVAILABLE);

    /// Returns the state: available, leased or broken.
    pub fn state(&self) -> LeaseState {
        self.0.state(ANY_TIME)
    }

    /// Returns whether the file is locked.
    pub fn status(&self) -> LeaseStatus {
        self.0.status(ANY_TIME)
    }

    /// Returns the id, also that of a broken lease.
    pub const fn id(&self) -> Option<LeaseId> {
        self.0.id()
    }

    /// Returns the duration, which is reported only while leased.
    pub fn duration(&self) -> Option<LeaseDuration> {
        self.0.duration(ANY_TIME)
    }

    /// Applies a lease action and returns the lease to store.
    pub fn apply(&self, action: FileLeaseAction) -> Result<Self, LeaseRefusal> {
        let action = match action {
            FileLeaseAction::Acquire { proposed, generated } => {
                LeaseAction::Acquire { proposed, generated, duration: LeaseDuration::INFINITE }
            }
            FileLeaseAction::Change { id, proposed } => LeaseAction::Change { id, proposed },
            FileLeaseAction::Release { id } => LeaseAction::Release { id },
            FileLeaseAction::Break => LeaseAction::Break { period: Some(BreakPeriod::NONE) },
        };
        self.0.apply(action, ANY_TIME).map(|applied| Self(applied.lease))
    }

    /// Checks whether an operation may use the file, given the id in the request, and returns the lease to
    /// store with the operation's own changes.
    ///
    /// For a file that does not exist, call this on [`FileLease::AVAILABLE`].
    pub fn admits(&self, access: Access, presented: Option<LeaseId>) -> Result<Self, LeaseRefusal> {
        self.0.admits(access, presented, ANY_TIME).map(|admission| Self(admission.lease))
    }
}

impl From<FileLease> for Lease {
    fn from(lease: FileLease) -> Self {
        lease.0
    }
}

impl TryFrom<Lease> for FileLease {
    type Error = LeaseDecodeError;

    fn try_from(lease: Lease) -> Result<Self, LeaseDecodeError> {
        if lease.is_timeless() { Ok(Self(lease)) } else { Err(LeaseDecodeError::Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LeaseId = LeaseId::from_bytes([0xA; 16]);
    const B: LeaseId = LeaseId::from_bytes([0xB; 16]);
    const C: LeaseId = LeaseId::from_bytes([0xC; 16]);
    const X: LeaseId = LeaseId::from_bytes([0xFF; 16]);

    const fn acquire(proposed: Option<LeaseId>) -> FileLeaseAction {
        FileLeaseAction::Acquire { proposed, generated: X }
    }

    const fn change(id: LeaseId, proposed: LeaseId) -> FileLeaseAction {
        FileLeaseAction::Change { id, proposed }
    }

    const fn release(id: LeaseId) -> FileLeaseAction {
        FileLeaseAction::Release { id }
    }

    /// Returns the columns of the tables: Available, Leased(A), Broken(A).
    fn columns() -> [FileLease; 3] {
        let leased = FileLease::AVAILABLE.apply(acquire(Some(A))).unwrap();
        let broken = leased.apply(FileLeaseAction::Break).unwrap();
        [FileLease::AVAILABLE, leased, broken]
    }

    /// Formats a table cell: the resulting lease as `State(id)`, or the name of the refusal.
    fn cell(outcome: Result<FileLease, LeaseRefusal>) -> String {
        let lease = match outcome {
            Ok(lease) => lease,
            Err(refusal) => return format!("{refusal:?}"),
        };
        let name = [(A, "(A)"), (B, "(B)"), (C, "(C)"), (X, "(X)")];
        let id = name.iter().find(|(id, _)| Some(*id) == lease.id()).map_or("", |(_, name)| name);
        format!("{:?}{id}", lease.state())
    }

    #[test]
    fn lease_actions_answer_as_in_the_table() {
        let absent = "NotPresentWithLeaseOperation";
        let wrong = "IdMismatchWithLeaseOperation";
        let taken = "AlreadyPresent";
        //                                              Available    Leased(A)    Broken(A)
        let rows = [
            ("Acquire, no id", acquire(None), ["Leased(X)", taken, "Leased(X)"]),
            ("Acquire A", acquire(Some(A)), ["Leased(A)", "Leased(A)", "Leased(A)"]),
            ("Acquire B", acquire(Some(B)), ["Leased(B)", taken, "Leased(B)"]),
            ("Break", FileLeaseAction::Break, [absent, "Broken(A)", "Broken(A)"]),
            ("Change A to B", change(A, B), [absent, "Leased(B)", absent]),
            ("Change B to A", change(B, A), [absent, "Leased(A)", absent]),
            ("Change B to C", change(B, C), [absent, wrong, absent]),
            ("Release A", release(A), [wrong, "Available", "Available"]),
            ("Release B", release(B), [wrong, wrong, wrong]),
        ];
        for (name, action, expected) in rows {
            assert_eq!(columns().map(|lease| cell(lease.apply(action))), expected, "{name}");
        }
    }

    #[test]
    fn operations_are_admitted_as_in_the_table() {
        use Access::{Read, Write};
        let absent = "NotPresentWithOperation";
        let wrong = "IdMismatchWithOperation";
        //                             Available    Leased(A)    Broken(A)
        let rows = [
            ("write A", Write, Some(A), [absent, "Leased(A)", "Lost"]),
            ("write B", Write, Some(B), [absent, wrong, "Lost"]),
            ("write", Write, None, ["Available", "IdMissing", "Available"]),
            ("read A", Read, Some(A), [absent, "Leased(A)", "Lost"]),
            ("read B", Read, Some(B), [absent, wrong, "Lost"]),
            ("read", Read, None, ["Available", "Leased(A)", "Broken(A)"]),
        ];
        for (name, access, id, expected) in rows {
            assert_eq!(columns().map(|lease| cell(lease.admits(access, id))), expected, "{name}");
        }
    }

    #[test]
    fn only_a_leased_file_is_locked_and_its_lease_is_infinite() {
        let infinite = Some(LeaseDuration::INFINITE);
        assert_eq!(columns().map(|lease| lease.duration()), [None, infinite, None]);
        let [free, locked] = [LeaseStatus::Unlocked, LeaseStatus::Locked];
        assert_eq!(columns().map(|lease| lease.status()), [free, locked, free]);
    }

    #[test]
    fn file_lease_decodes_as_encoded_and_leases_with_an_end_are_refused() {
        for lease in columns() {
            assert_eq!(FileLease::try_from(Lease::from(lease)), Ok(lease));
        }
        let acquire = |seconds| LeaseAction::Acquire {
            proposed: None,
            generated: X,
            duration: LeaseDuration::from_seconds(seconds).unwrap(),
        };
        let now = Timestamp::from_unix_seconds(1000);
        let fixed = Lease::AVAILABLE.apply(acquire(15), now).unwrap().lease;
        let infinite = Lease::AVAILABLE.apply(acquire(-1), now).unwrap().lease;
        let breaking = LeaseAction::Break { period: BreakPeriod::from_seconds(9) };
        let breaking = infinite.apply(breaking, now).unwrap().lease;
        for lease in [fixed, breaking] {
            assert_eq!(FileLease::try_from(lease), Err(LeaseDecodeError::Malformed), "{lease:?}");
        }
    }
}
