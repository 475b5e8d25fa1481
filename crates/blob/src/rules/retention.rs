//! Expiry, immutability policies and legal holds. A blob that a policy or a hold protects does not expire.

use http::HeaderMap;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::{ErrorCode, Headers, Operation, Refusal, Request, date};

use super::precondition::Preconditions;
use crate::model::record::{Blob, Immutability};

pub(crate) const MODE: &str = "x-ms-immutability-policy-mode";
pub(crate) const UNTIL: &str = "x-ms-immutability-policy-until-date";
pub(crate) const HOLD: &str = "x-ms-legal-hold";
const EXPIRY: &str = "x-ms-expiry-time";
/// Maximum life of a blob, in milliseconds. Later dates cannot be represented.
const MAX_LIFE: i64 = 10_000 * 366 * 86_400 * 1000;

/// Refuses to protect a blob in a container without version-level immutability. A request can always end a
/// protection.
pub(crate) fn check_opted_in(request: &Request) -> Result<(), Refusal> {
    use Operation::{
        CopyBlob, CopyBlobFromUrl, IncrementalCopyBlob, PutBlob, PutBlobFromUrl, PutBlockList,
        SetBlobImmutabilityPolicy, SetBlobLegalHold,
    };
    let protects = matches!(
        request.operation,
        PutBlob
            | PutBlobFromUrl
            | PutBlockList
            | CopyBlob
            | CopyBlobFromUrl
            | IncrementalCopyBlob
            | SetBlobImmutabilityPolicy
            | SetBlobLegalHold
    );
    let settings = &request.account.settings;
    if !protects
        || settings.has_version_immutability(&request.container)
        || !asks_for_protection(&request.headers)?
    {
        return Ok(());
    }
    let message = "Version-level immutability is not enabled for the container.";
    Err(Refusal::new(ErrorCode::FeatureNotEnabled).message(message))
}

/// Returns whether a request sets a policy or a legal hold.
pub(crate) fn asks_for_protection(headers: &HeaderMap) -> Result<bool, Refusal> {
    Ok(headers.date(UNTIL)?.is_some() || headers.flag(HOLD)?.unwrap_or(false))
}

/// Sets the policy and the hold that the request names on a new blob.
pub(crate) fn protect(blob: &mut Blob, headers: &HeaderMap, now: Timestamp) -> Result<(), Refusal> {
    blob.immutability = immutability(headers, now)?;
    blob.legal_hold = headers.flag(HOLD)?.into();
    Ok(())
}

/// Returns the policy that a request names, if any.
pub(crate) fn immutability(headers: &HeaderMap, now: Timestamp) -> Result<Option<Immutability>, Refusal> {
    let locked = headers.one_of(MODE, &[("unlocked", false), ("locked", true)])?;
    match (headers.date(UNTIL)?, locked) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Refusal::missing_header(UNTIL)),
        (Some(until), _) if until <= now => Err(Refusal::invalid_header(UNTIL, date::rfc1123(until))),
        (Some(until), locked) => Ok(Some(Immutability { until, locked: locked.unwrap_or(false) })),
    }
}

/// Returns the policy that replaces the old one. A locked policy can only be extended.
pub(crate) fn replace_policy(old: Option<Immutability>, new: Immutability) -> Result<Immutability, Refusal> {
    match old {
        Some(old) if old.locked && (!new.locked || new.until < old.until) => {
            Err(ErrorCode::BlobImmutableDueToPolicy.into())
        }
        _ => Ok(new),
    }
}

/// Reads `If-Unmodified-Since`, the only condition of Set Blob Immutability Policy.
pub(crate) fn unmodified_since(headers: &HeaderMap) -> Result<Preconditions, Refusal> {
    let mut preconditions = Preconditions::default();
    preconditions.conditions.if_unmodified_since = headers.date("if-unmodified-since")?;
    Ok(preconditions)
}

/// The expiry that a request sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    Never,
    At(Timestamp),
    AfterNow(Span),
    AfterCreation(Span),
}

impl Expiry {
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Self, Refusal> {
        const OPTION: &str = "x-ms-expiry-option";
        #[derive(Clone, Copy)]
        enum Option {
            NeverExpire,
            Absolute,
            RelativeToNow,
            RelativeToCreation,
        }
        let options = [
            ("NeverExpire", Option::NeverExpire),
            ("Absolute", Option::Absolute),
            ("RelativeToNow", Option::RelativeToNow),
            ("RelativeToCreation", Option::RelativeToCreation),
        ];
        let span = || headers.required_number(EXPIRY, 1..=MAX_LIFE).map(|ms| Span::millis(ms.unsigned_abs()));
        match headers.one_of(OPTION, &options)?.ok_or_else(|| Refusal::missing_header(OPTION))? {
            Option::NeverExpire => Ok(Self::Never),
            Option::Absolute => {
                headers.date(EXPIRY)?.ok_or_else(|| Refusal::missing_header(EXPIRY)).map(Self::At)
            }
            Option::RelativeToNow => span().map(Self::AfterNow),
            Option::RelativeToCreation => span().map(Self::AfterCreation),
        }
    }

    /// Returns the time of expiry. Refuses a time that is not in the future.
    pub(crate) fn of(self, created: Timestamp, now: Timestamp) -> Result<Option<Timestamp>, Refusal> {
        let at = match self {
            Self::Never => return Ok(None),
            Self::At(at) => at,
            Self::AfterNow(span) => now.saturating_add(span),
            Self::AfterCreation(span) => created.saturating_add(span),
        };
        if at <= now { Err(Refusal::invalid_header(EXPIRY, date::rfc1123(at))) } else { Ok(Some(at)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let value = |value: &str| HeaderValue::from_str(value).unwrap();
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), value(v))).collect()
    }

    #[test]
    fn expiry_is_a_future_date_or_a_span() {
        let created = Timestamp::from_unix_seconds(1_699_999_000);
        let (soon, past) = (date::rfc1123(NOW + Span::seconds(5)), date::rfc1123(NOW));
        let code = ErrorCode::InvalidHeaderValue;
        let missing = ErrorCode::MissingRequiredHeader;
        for (option, time, expected) in [
            ("NeverExpire", "", Ok(None)),
            ("Absolute", soon.as_str(), Ok(Some(NOW + Span::seconds(5)))),
            ("Absolute", past.as_str(), Err(code)),
            ("Absolute", "5000", Err(code)),
            ("Absolute", "", Err(missing)),
            ("relativetonow", "5000", Ok(Some(NOW + Span::seconds(5)))),
            ("RelativeToNow", "0", Err(code)),
            ("RelativeToNow", "-1", Err(code)),
            ("RelativeToNow", soon.as_str(), Err(code)),
            ("RelativeToNow", "9223372036854775807", Err(code)),
            ("RelativeToNow", "", Err(missing)),
            ("RelativeToCreation", "1005000", Ok(Some(NOW + Span::seconds(5)))),
            ("RelativeToCreation", "1000000", Err(code)),
            ("Sometime", "5000", Err(code)),
            ("", "5000", Err(missing)),
        ] {
            let headers = headers(&[("x-ms-expiry-option", option), ("x-ms-expiry-time", time)]);
            let expiry = Expiry::parse(&headers).and_then(|expiry| expiry.of(created, NOW));
            assert_eq!(expiry.map_err(|refusal| refusal.code()), expected, "{option} {time}");
        }
    }

    #[test]
    fn locked_policy_can_only_be_extended() {
        let policy = |days: u64, locked| Immutability { until: NOW + Span::seconds(days * 86_400), locked };
        for (old, new, allowed) in [
            (None, policy(1, true), true),
            (Some(policy(2, false)), policy(1, false), true),
            (Some(policy(2, false)), policy(1, true), true),
            (Some(policy(2, true)), policy(3, true), true),
            (Some(policy(2, true)), policy(2, true), true),
            (Some(policy(2, true)), policy(1, true), false),
            (Some(policy(2, true)), policy(3, false), false),
        ] {
            assert_eq!(replace_policy(old, new).is_ok(), allowed, "{old:?} {new:?}");
        }
    }
}
