//! How long a blob stays: Set Blob Expiry, Set and Delete Blob Immutability Policy, Set Blob Legal Hold.
//!
//! An expiry ends a blob; a policy and a hold keep it as it is, and win over the expiry while they last.

use http::{HeaderMap, StatusCode};
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response, date};
use lazuli_store::{Change, Decision, Mutation, Reads};

use crate::precondition::{Preconditions, check_mutable};
use crate::protection::Protecting;
use crate::put::check_no_pending_copy;
use crate::record::{self, Blob, Immutability};
use crate::target::{Amended, not_found};
use crate::{BlobService, keys, reply};

const UNTIL: &str = "x-ms-immutability-policy-until-date";
const MODE: &str = "x-ms-immutability-policy-mode";
const HOLD: &str = "x-ms-legal-hold";
const EXPIRY: &str = "x-ms-expiry-time";
/// The longest that a blob can be told to live, in milliseconds: longer than dates go.
const MAX_LIFE: i64 = 10_000 * 366 * 86_400 * 1000;

impl BlobService {
    /// Set Blob Expiry.
    pub(crate) async fn set_blob_expiry(&self, request: Request) -> Result<Response, Refusal> {
        let expiry = Expiry::parse(&request.headers)?;
        let preconditions = Preconditions::of_lease_only(&request)?;
        let target = self.write_target(&request).await?;
        let changed = self.transact(&target.partition, Reads::key(keys::BASE), |view| {
            let blob = record::blob(view.row(&keys::BASE))?;
            let admission = preconditions.admit_write(blob.as_ref(), view.now)?;
            let mut blob = blob.ok_or_else(not_found)?;
            check_mutable(&blob, view.now)?;
            check_no_pending_copy(&blob)?;
            blob.expires = expiry.of(blob.created, view.now)?;
            blob.lease = admission.lease;
            blob.touch(view.stamp, view.now);
            let put = Mutation::Put(keys::BASE, blob.encode()?);
            Ok(Decision::Write(Change::of([put]).until(admission.valid_until), blob))
        });
        let mut response = Response::empty(StatusCode::OK);
        reply::validators(&mut response.headers, changed.await?.validators(), request.version);
        Ok(response)
    }

    /// Set Blob Immutability Policy.
    pub(crate) async fn set_blob_immutability_policy(&self, request: Request) -> Result<Response, Refusal> {
        let asked = immutability(&request.headers, request.now)?;
        let asked = asked.ok_or_else(|| Refusal::missing_header(UNTIL))?;
        let unmodified = unmodified_since(&request.headers)?;
        let target = self.target(&request).await?;
        let protecting = Protecting::new(&request, &target);
        let amended = self.amend(&target, Some(&protecting), |blob, _| {
            let mut blob = blob.ok_or_else(not_found)?;
            unmodified.check_conditions(&blob)?;
            blob.immutability = Some(replace_policy(blob.immutability, asked)?);
            Ok(Amended { blob, valid_until: None, answer: () })
        });
        amended.await?;
        let mut response = Response::empty(StatusCode::OK);
        reply::put(&mut response.headers, UNTIL, date::rfc1123(asked.until));
        reply::put(&mut response.headers, MODE, asked.mode());
        Ok(response)
    }

    /// Delete Blob Immutability Policy.
    pub(crate) async fn delete_blob_immutability_policy(
        &self,
        request: Request,
    ) -> Result<Response, Refusal> {
        let target = self.target(&request).await?;
        let amended = self.amend(&target, None, |blob, _| {
            let mut blob = blob.ok_or_else(not_found)?;
            if blob.immutability.is_some_and(|policy| policy.locked) {
                return Err(ErrorCode::ImmutabilityPolicyDeleteOnLockedPolicy.into());
            }
            blob.immutability = None;
            Ok(Amended { blob, valid_until: None, answer: () })
        });
        amended.await?;
        Ok(Response::empty(StatusCode::OK))
    }

    /// Set Blob Legal Hold.
    pub(crate) async fn set_blob_legal_hold(&self, request: Request) -> Result<Response, Refusal> {
        let hold = request.headers.flag(HOLD)?.ok_or_else(|| Refusal::missing_header(HOLD))?;
        let target = self.target(&request).await?;
        let protecting = Protecting::if_asked(&request, &target)?;
        let amended = self.amend(&target, protecting.as_ref(), |blob, _| {
            let mut blob = blob.ok_or_else(not_found)?;
            blob.legal_hold = Some(hold).into();
            Ok(Amended { blob, valid_until: None, answer: () })
        });
        amended.await?;
        let mut response = Response::empty(StatusCode::OK);
        reply::put(&mut response.headers, HOLD, hold.to_string());
        Ok(response)
    }
}

/// Gives a new blob the policy and the hold that the request wants for it.
pub(crate) fn protect(blob: &mut Blob, headers: &HeaderMap, now: Timestamp) -> Result<(), Refusal> {
    blob.immutability = immutability(headers, now)?;
    blob.legal_hold = headers.flag(HOLD)?.into();
    Ok(())
}

/// Whether a request wants a blob to be protected.
pub(crate) fn asks_for_protection(headers: &HeaderMap) -> Result<bool, Refusal> {
    Ok(headers.date(UNTIL)?.is_some() || headers.flag(HOLD)?.unwrap_or(false))
}

/// The policy that a request names, if it names one.
fn immutability(headers: &HeaderMap, now: Timestamp) -> Result<Option<Immutability>, Refusal> {
    let locked = headers.one_of(MODE, &[("unlocked", false), ("locked", true)])?;
    match (headers.date(UNTIL)?, locked) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Refusal::missing_header(UNTIL)),
        (Some(until), _) if until <= now => Err(Refusal::invalid_header(UNTIL, date::rfc1123(until))),
        (Some(until), locked) => Ok(Some(Immutability { until, locked: locked.unwrap_or(false) })),
    }
}

/// The policy after a request for another. One that is locked can only be made to last longer.
fn replace_policy(old: Option<Immutability>, new: Immutability) -> Result<Immutability, Refusal> {
    match old {
        Some(old) if old.locked && (!new.locked || new.until < old.until) => {
            Err(ErrorCode::BlobImmutableDueToPolicy.into())
        }
        _ => Ok(new),
    }
}

/// The one condition that Set Blob Immutability Policy takes.
fn unmodified_since(headers: &HeaderMap) -> Result<Preconditions, Refusal> {
    let mut preconditions = Preconditions::default();
    preconditions.conditions.if_unmodified_since = headers.date("if-unmodified-since")?;
    Ok(preconditions)
}

/// When a blob is to expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    Never,
    At(Timestamp),
    AfterNow(Span),
    AfterCreation(Span),
}

impl Expiry {
    fn parse(headers: &HeaderMap) -> Result<Self, Refusal> {
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

    /// The moment, which has to be still to come.
    fn of(self, created: Timestamp, now: Timestamp) -> Result<Option<Timestamp>, Refusal> {
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
    fn an_expiry_is_a_date_or_a_span_and_still_to_come() {
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
    fn a_locked_policy_can_only_be_made_to_last_longer() {
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
