//! Leases on the wire: the headers of lease actions, and the error codes of lease refusals.
//!
//! The rules of leases are in [`lazuli_concurrency::lease`].

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use lazuli_concurrency::lease::Applied;
use lazuli_concurrency::{
    BreakPeriod, ConditionRefusal, Conditions, FileLeaseAction, Lease, LeaseAction, LeaseDuration, LeaseId,
    LeaseRefusal, Timestamp, Validators,
};

use crate::conflict::Conflict;
use crate::error::{ErrorCode, Refusal};
use crate::header::Headers;
use crate::request::Response;
use crate::version::Version;

const ACTION: &str = "x-ms-lease-action";
const ID: &str = "x-ms-lease-id";
const PROPOSED: &str = "x-ms-proposed-lease-id";
const DURATION: &str = "x-ms-lease-duration";
const BREAK_PERIOD: &str = "x-ms-lease-break-period";

/// The kind of leased resource, on which some error codes depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leased {
    /// A blob.
    Blob,
    /// A container or a share, which have the same codes.
    Container,
    /// A file.
    File,
}

#[derive(Clone, Copy)]
enum Verb {
    Acquire,
    Renew,
    Change,
    Release,
    Break,
}

const VERBS: [(&str, Verb); 5] = [
    ("acquire", Verb::Acquire),
    ("renew", Verb::Renew),
    ("change", Verb::Change),
    ("release", Verb::Release),
    ("break", Verb::Break),
];

/// Returns the lease id of a request, if it has one.
pub fn lease_id(headers: &HeaderMap) -> Result<Option<LeaseId>, Refusal> {
    headers.parsed(ID)
}

/// Returns the action of a Lease Blob, Lease Container or Lease Share request. `generated` is a new random id
/// for an acquire that proposes none.
pub fn lease_action(
    headers: &HeaderMap,
    version: Version,
    generated: LeaseId,
) -> Result<LeaseAction, Refusal> {
    Ok(match verb(headers)? {
        Verb::Acquire => LeaseAction::Acquire {
            proposed: headers.parsed(PROPOSED)?,
            generated,
            duration: headers
                .value(DURATION, |text| LeaseDuration::from_seconds(text.parse().ok()?))?
                .or_else(|| fixed_duration(version))
                .ok_or_else(|| Refusal::missing_header(DURATION))?,
        },
        Verb::Renew => LeaseAction::Renew { id: headers.required_parsed(ID)? },
        Verb::Change => LeaseAction::Change {
            id: headers.required_parsed(ID)?,
            proposed: headers.required_parsed(PROPOSED)?,
        },
        Verb::Release => LeaseAction::Release { id: headers.required_parsed(ID)? },
        Verb::Break => LeaseAction::Break {
            period: headers.value(BREAK_PERIOD, |text| BreakPeriod::from_seconds(text.parse().ok()?))?,
        },
    })
}

/// Returns the fixed duration of leases in versions that had no duration header.
fn fixed_duration(version: Version) -> Option<LeaseDuration> {
    if version.at_least(2012, 2, 12) { None } else { LeaseDuration::from_seconds(60) }
}

/// Returns a random lease id.
pub fn fresh_lease_id() -> LeaseId {
    LeaseId::from_bytes(uuid::Uuid::new_v4().into_bytes())
}

/// Returns the reply to a lease action, without the ETag and date of the leased resource.
pub fn lease_reply(action: LeaseAction, applied: &Applied) -> Response {
    let (status, shows_id) = match action {
        LeaseAction::Acquire { .. } => (StatusCode::CREATED, true),
        LeaseAction::Renew { .. } | LeaseAction::Change { .. } => (StatusCode::OK, true),
        LeaseAction::Release { .. } => (StatusCode::OK, false),
        LeaseAction::Break { .. } => (StatusCode::ACCEPTED, false),
    };
    let mut response = Response::empty(status);
    let id =
        applied.lease.id().filter(|_| shows_id).and_then(|id| HeaderValue::try_from(id.to_string()).ok());
    if let Some(id) = id {
        response.headers.insert(HeaderName::from_static(ID), id);
    }
    if let Some(seconds) = applied.lease_time {
        response.headers.insert(HeaderName::from_static("x-ms-lease-time"), HeaderValue::from(seconds));
    }
    response
}

/// Returns the action of a Lease File request. File leases are infinite and cannot be renewed.
pub fn file_lease_action(headers: &HeaderMap, generated: LeaseId) -> Result<FileLeaseAction, Refusal> {
    Ok(match verb(headers)? {
        Verb::Acquire => {
            headers.required_number(DURATION, -1..=-1)?;
            FileLeaseAction::Acquire { proposed: headers.parsed(PROPOSED)?, generated }
        }
        Verb::Renew => return Err(Refusal::invalid_header(ACTION, "renew")),
        Verb::Change => FileLeaseAction::Change {
            id: headers.required_parsed(ID)?,
            proposed: headers.required_parsed(PROPOSED)?,
        },
        Verb::Release => FileLeaseAction::Release { id: headers.required_parsed(ID)? },
        Verb::Break => FileLeaseAction::Break,
    })
}

fn verb(headers: &HeaderMap) -> Result<Verb, Refusal> {
    headers.one_of(ACTION, &VERBS)?.ok_or_else(|| Refusal::missing_header(ACTION))
}

impl Refusal {
    /// Refuses a lease action, or an operation on a leased resource.
    pub fn lease(refusal: LeaseRefusal, leased: Leased) -> Self {
        use LeaseRefusal as R;
        let code = match (refusal, leased) {
            (R::AlreadyPresent, _) => ErrorCode::LeaseAlreadyPresent,
            (R::IsBreakingAndCannotBeAcquired, _) => ErrorCode::LeaseIsBreakingAndCannotBeAcquired,
            (R::IsBreakingAndCannotBeChanged, _) => ErrorCode::LeaseIsBreakingAndCannotBeChanged,
            (R::IsBrokenAndCannotBeRenewed, _) => ErrorCode::LeaseIsBrokenAndCannotBeRenewed,
            (R::IdMismatchWithLeaseOperation, _) => ErrorCode::LeaseIdMismatchWithLeaseOperation,
            (R::NotPresentWithLeaseOperation, _) => ErrorCode::LeaseNotPresentWithLeaseOperation,
            (R::IdMissing, _) => ErrorCode::LeaseIdMissing,
            (R::IdMismatchWithOperation, Leased::Blob) => ErrorCode::LeaseIdMismatchWithBlobOperation,
            (R::IdMismatchWithOperation, Leased::Container) => {
                ErrorCode::LeaseIdMismatchWithContainerOperation
            }
            (R::IdMismatchWithOperation, Leased::File) => ErrorCode::LeaseIdMismatchWithFileOperation,
            (R::NotPresentWithOperation, Leased::Blob) => ErrorCode::LeaseNotPresentWithBlobOperation,
            (R::NotPresentWithOperation, Leased::Container) => {
                ErrorCode::LeaseNotPresentWithContainerOperation
            }
            (R::NotPresentWithOperation, Leased::File) => ErrorCode::LeaseNotPresentWithFileOperation,
            (R::Lost, _) => ErrorCode::LeaseLost,
            (R::InfiniteDurationRequired, _) => ErrorCode::InfiniteLeaseDurationRequired,
        };
        let of = |what| Self::new(code).message(code.message().replace("the blob", what));
        match leased {
            Leased::Blob => Self::new(code),
            Leased::Container => of("the container"),
            Leased::File => of("the file"),
        }
    }
}

impl Refusal {
    /// Refuses a request whose conditions do not hold for the current version.
    pub fn unmet(refusal: ConditionRefusal, conditions: &Conditions, current: Option<Validators>) -> Self {
        match refusal {
            ConditionRefusal::ConditionNotMet | ConditionRefusal::AlreadyExists => {
                Self::from(refusal).with_conflict(Conflict::of_conditions(conditions, current))
            }
            _ => refusal.into(),
        }
    }

    /// Refuses a lease action, or an operation on a leased resource, and attaches the state of the lease.
    pub fn leased(refusal: LeaseRefusal, leased: Leased, lease: &Lease, now: Timestamp) -> Self {
        Self::lease(refusal, leased).with_conflict(Conflict::of_lease(lease, now))
    }
}

/// The answer to a failed condition. `AlreadyExists` is answered for blobs; the file service has its own
/// answer.
impl From<ConditionRefusal> for Refusal {
    fn from(refusal: ConditionRefusal) -> Self {
        match refusal {
            ConditionRefusal::NotModified => Self::not_modified(),
            ConditionRefusal::ConditionNotMet => Self::new(ErrorCode::ConditionNotMet),
            ConditionRefusal::AlreadyExists => Self::new(ErrorCode::BlobAlreadyExists),
            ConditionRefusal::MultipleConditionHeadersNotSupported => {
                Self::new(ErrorCode::MultipleConditionHeadersNotSupported)
            }
            ConditionRefusal::UnsatisfiableCondition => Self::new(ErrorCode::UnsatisfiableCondition),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use lazuli_concurrency::{ETag, ETagPattern, Stamp};

    const GENERATED: LeaseId = LeaseId::from_bytes([9; 16]);
    const A: LeaseId = LeaseId::from_bytes([0xaa; 16]);
    const B: LeaseId = LeaseId::from_bytes([0xbb; 16]);

    /// Builds headers from `name=value` words; `A` and `B` stand for the lease ids.
    fn headers(words: &str) -> HeaderMap {
        let ids = |value: &str| match value {
            "A" => A.to_string(),
            "B" => B.to_string(),
            other => other.to_owned(),
        };
        words
            .split_whitespace()
            .map(|word| word.split_once('=').unwrap())
            .map(|(name, value)| (format!("x-ms-{name}"), ids(value)))
            .map(|(name, value)| (HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap()))
            .collect()
    }

    #[test]
    fn unmet_condition_names_both_versions_to_operators_only() {
        let current = Validators {
            etag: ETag::from_stamp(Stamp::from_ticks(2)),
            last_modified: Timestamp::from_unix_seconds(7),
        };
        let conditions =
            Conditions { if_match: Some(ETagPattern::parse("\"0x1\"")), ..Conditions::default() };
        let refusal = Refusal::unmet(ConditionRefusal::ConditionNotMet, &conditions, Some(current));
        let conflict = refusal.conflict().unwrap();
        assert_eq!(conflict.condition, Some("If-Match"));
        assert_eq!(conflict.given.as_deref(), Some("\"0x1\""));
        assert_eq!(conflict.current.as_deref(), Some("\"0x2\""));
        assert_eq!(conflict.last_modified, Some(current.last_modified));
        assert_eq!(refusal, Refusal::new(ErrorCode::ConditionNotMet), "the client sees no difference");
    }

    #[test]
    fn lease_actions_require_their_headers() {
        use ErrorCode::{InvalidHeaderValue as Invalid, MissingRequiredHeader as Missing};
        use LeaseAction as L;
        let acquire = |proposed, seconds| L::Acquire {
            proposed,
            generated: GENERATED,
            duration: LeaseDuration::from_seconds(seconds).unwrap(),
        };
        for (words, expected) in [
            ("lease-action=acquire lease-duration=15", Ok(acquire(None, 15))),
            ("lease-action=Acquire lease-duration=-1 proposed-lease-id=A", Ok(acquire(Some(A), -1))),
            ("lease-action=acquire", Err(Missing)),
            ("lease-action=acquire lease-duration=14", Err(Invalid)),
            ("lease-action=acquire lease-duration=61", Err(Invalid)),
            ("lease-action=acquire lease-duration=0", Err(Invalid)),
            ("lease-action=acquire lease-duration=x", Err(Invalid)),
            ("lease-action=acquire lease-duration=15 proposed-lease-id=x", Err(Invalid)),
            ("lease-action=renew lease-id=A", Ok(L::Renew { id: A })),
            ("lease-action=renew", Err(Missing)),
            ("lease-action=renew lease-id=x", Err(Invalid)),
            ("lease-action=change lease-id=A proposed-lease-id=B", Ok(L::Change { id: A, proposed: B })),
            ("lease-action=change lease-id=A", Err(Missing)),
            ("lease-action=change proposed-lease-id=B", Err(Missing)),
            ("lease-action=release lease-id=A", Ok(L::Release { id: A })),
            ("lease-action=release", Err(Missing)),
            ("lease-action=break", Ok(L::Break { period: None })),
            ("lease-action=break lease-break-period=0", Ok(L::Break { period: Some(BreakPeriod::NONE) })),
            ("lease-action=break lease-break-period=61", Err(Invalid)),
            ("lease-action=break lease-break-period=-1", Err(Invalid)),
            ("lease-action=steal", Err(Invalid)),
            ("", Err(Missing)),
        ] {
            let action = lease_action(&headers(words), Version::NEWEST, GENERATED);
            assert_eq!(action.map_err(|refusal| refusal.code()), expected, "{words}");
        }
        let old = Version::parse("2011-08-18").unwrap();
        let action = lease_action(&headers("lease-action=acquire"), old, GENERATED);
        assert_eq!(action, Ok(acquire(None, 60)), "there was no other");
    }

    #[test]
    fn file_leases_are_infinite_and_cannot_be_renewed() {
        use ErrorCode::{InvalidHeaderValue as Invalid, MissingRequiredHeader as Missing};
        use FileLeaseAction as F;
        for (words, expected) in [
            (
                "lease-action=acquire lease-duration=-1",
                Ok(F::Acquire { proposed: None, generated: GENERATED }),
            ),
            ("lease-action=acquire lease-duration=15", Err(Invalid)),
            ("lease-action=acquire", Err(Missing)),
            ("lease-action=renew lease-id=A", Err(Invalid)),
            ("lease-action=change lease-id=A proposed-lease-id=B", Ok(F::Change { id: A, proposed: B })),
            ("lease-action=release lease-id=A", Ok(F::Release { id: A })),
            ("lease-action=break", Ok(F::Break)),
        ] {
            let action = file_lease_action(&headers(words), GENERATED).map_err(|refusal| refusal.code());
            assert_eq!(action, expected, "{words}");
        }
    }

    #[test]
    fn refused_lease_actions_are_conflicts_and_refused_operations_failed_preconditions() {
        use LeaseRefusal as R;
        for (refusal, leased, status, code) in [
            (R::AlreadyPresent, Leased::Blob, 409, "LeaseAlreadyPresent"),
            (R::IdMismatchWithLeaseOperation, Leased::File, 409, "LeaseIdMismatchWithLeaseOperation"),
            (R::IdMissing, Leased::Container, 412, "LeaseIdMissing"),
            (R::IdMismatchWithOperation, Leased::Blob, 412, "LeaseIdMismatchWithBlobOperation"),
            (R::IdMismatchWithOperation, Leased::File, 412, "LeaseIdMismatchWithFileOperation"),
            (R::NotPresentWithOperation, Leased::Container, 412, "LeaseNotPresentWithContainerOperation"),
            (R::Lost, Leased::Blob, 412, "LeaseLost"),
            (R::InfiniteDurationRequired, Leased::Blob, 412, "InfiniteLeaseDurationRequired"),
        ] {
            let refusal = Refusal::lease(refusal, leased);
            assert_eq!((refusal.status().as_u16(), refusal.code().name()), (status, code));
        }
        for (refusal, leased, text) in [
            (R::IdMissing, Leased::Blob, "There is currently a lease on the blob and no lease ID"),
            (R::IdMissing, Leased::File, "There is currently a lease on the file and no lease ID"),
            (
                R::IdMismatchWithLeaseOperation,
                Leased::Container,
                "did not match the lease ID for the container.",
            ),
            (R::IdMismatchWithOperation, Leased::Container, "did not match the lease ID for the container."),
        ] {
            assert!(Refusal::lease(refusal, leased).text().contains(text), "{text}");
        }
        for (refusal, status) in [
            (ConditionRefusal::NotModified, 304),
            (ConditionRefusal::ConditionNotMet, 412),
            (ConditionRefusal::AlreadyExists, 409),
            (ConditionRefusal::MultipleConditionHeadersNotSupported, 400),
            (ConditionRefusal::UnsatisfiableCondition, 400),
        ] {
            assert_eq!(Refusal::from(refusal).status().as_u16(), status);
        }
    }
}
