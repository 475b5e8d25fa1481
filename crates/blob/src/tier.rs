//! Set Blob Tier: how readily a blob's bytes are at hand.
//!
//! The bytes never move here. A tier is what clients are told, except that what is archived can neither be read nor
//! written until it is rehydrated, which takes a time that is known when it begins; nothing has to happen at its end.

use http::{HeaderMap, StatusCode};
use lazuli_concurrency::{Access, ConditionRefusal, Conditions, Span, Timestamp, Validators};
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response};

use crate::BlobService;
use crate::precondition::Preconditions;
use crate::put::{ACCESS_TIER, access_tier, check_no_pending_copy};
use crate::record::{Blob, Kind, Rehydration, Tier, Tiering};
use crate::target::{Amended, not_found};

/// How long it takes to come out of the archive. The cloud service takes up to 15 hours and one hour: nobody waits for
/// bytes here, but software that has to wait is to meet a blob that is not ready yet.
const REHYDRATION: Span = Span::seconds(60 * 60);
const QUICK_REHYDRATION: Span = Span::seconds(60);

impl BlobService {
    /// Set Blob Tier.
    pub(crate) async fn set_blob_tier(&self, request: Request) -> Result<Response, Refusal> {
        let tier = access_tier(&request)?;
        let tier = tier.ok_or_else(|| Refusal::missing_header(ACCESS_TIER))?;
        let quick = is_high_priority(&request)?;
        let preconditions = Preconditions::of_tags(&request)?;
        let target = self.target(&request).await?;
        let amended = self.amend(&target, None, |blob, now| {
            let valid_until = preconditions.admit_lease(blob.as_ref(), Access::Read, now)?.valid_until;
            let mut blob = blob.ok_or_else(not_found)?;
            preconditions.check_conditions(&blob)?;
            check_tier(blob.kind, tier, blob.content.len())?;
            check_no_pending_copy(&blob)?;
            blob.tier = blob.tier.at(now).set(tier, quick, now)?;
            let rehydrates = blob.tier.rehydration.is_some();
            Ok(Amended { blob, valid_until, answer: rehydrates })
        });
        let rehydrates = amended.await?;
        Ok(Response::empty(if rehydrates { StatusCode::ACCEPTED } else { StatusCode::OK }))
    }
}

/// Conditions on when the tier of a blob was last changed: for Delete Blob, so that what was moved to another tier
/// meanwhile is not deleted by a rule that was about the old one.
#[derive(Clone)]
pub(crate) struct TierConditions(Conditions);

impl TierConditions {
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Self, Refusal> {
        let conditions = Conditions {
            if_modified_since: headers.date("x-ms-access-tier-if-modified-since")?,
            if_unmodified_since: headers.date("x-ms-access-tier-if-unmodified-since")?,
            ..Conditions::default()
        };
        conditions.check_write()?;
        Ok(Self(conditions))
    }

    /// A blob whose tier was never changed has had it since it was made.
    pub(crate) fn check(&self, blob: &Blob, now: Timestamp) -> Result<(), Refusal> {
        let last_modified = blob.tier.at(now).changed.unwrap_or(blob.created);
        match self.0.evaluate_write(Validators { last_modified, ..blob.validators() }) {
            Err(ConditionRefusal::ConditionNotMet) => {
                Err(ErrorCode::AccessTierChangeTimeConditionNotMet.into())
            }
            judged => Ok(judged?),
        }
    }
}

/// Whether a rehydration is to be quick: `x-ms-rehydrate-priority`.
pub(crate) fn is_high_priority(request: &Request) -> Result<bool, Refusal> {
    let priorities = [("Standard", false), ("High", true)];
    Ok(request.headers.one_of("x-ms-rehydrate-priority", &priorities)?.unwrap_or(false))
}

impl Tiering {
    /// The tier after a request for another. `self` is how it is at this moment.
    pub(crate) fn set(self, to: Tier, quick: bool, now: Timestamp) -> Result<Self, Refusal> {
        match (self.tier, self.rehydration) {
            (_, Some(under_way)) if under_way.to != to => Err(ErrorCode::BlobBeingRehydrated.into()),
            (_, Some(under_way)) => Ok(Self { rehydration: Some(under_way.hurried(quick, now)), ..self }),
            (Some(Tier::Archive), None) if to != Tier::Archive => {
                Ok(Self { rehydration: Some(Rehydration::begin(to, quick, now)), ..self })
            }
            (Some(Tier::Premium(now)), None) if matches!(to, Tier::Premium(to) if to < now) => {
                Err(ErrorCode::CannotChangeToLowerTier.into())
            }
            _ => Ok(Self { tier: Some(to), changed: Some(now), rehydration: None }),
        }
    }
}

impl Rehydration {
    /// Out of the archive from now on.
    pub(crate) fn begin(to: Tier, quick: bool, now: Timestamp) -> Self {
        let time = if quick { QUICK_REHYDRATION } else { REHYDRATION };
        Self { to, high_priority: quick, until: now + time }
    }

    /// The priority can be raised on the way, not lowered.
    fn hurried(self, quick: bool, now: Timestamp) -> Self {
        if self.high_priority || !quick {
            return self;
        }
        Self { high_priority: true, until: self.until.min(now + QUICK_REHYDRATION), ..self }
    }
}

/// Refuses a tier in a request that makes a blob, if one of this type and length cannot have it. A premium tier is no
/// value of the header where a block blob is made.
pub(crate) fn check_new_tier(kind: Kind, tier: Option<Tier>, length: u64) -> Result<(), Refusal> {
    match (kind, tier) {
        (Kind::Block, Some(tier @ Tier::Premium(_))) => {
            Err(Refusal::invalid_header(ACCESS_TIER, tier.name()))
        }
        (kind, Some(tier)) => check_tier(kind, tier, length),
        (_, None) => Ok(()),
    }
}

/// Refuses a tier that a blob of this type and length cannot have.
fn check_tier(kind: Kind, tier: Tier, length: u64) -> Result<(), Refusal> {
    match (kind, tier) {
        (Kind::Block, Tier::Hot | Tier::Cool | Tier::Cold | Tier::Archive | Tier::Smart) => Ok(()),
        (Kind::Page { .. }, Tier::Premium(level)) if length <= premium_limit(level) => Ok(()),
        (Kind::Page { .. }, Tier::Premium(_)) => Err(ErrorCode::BlobTierInadequateForContentLength.into()),
        _ => Err(ErrorCode::InvalidBlobTier.into()),
    }
}

/// Refuses a new length that a blob of this tier cannot have.
pub(crate) fn check_length_in_tier(tier: Option<Tier>, length: u64) -> Result<(), Refusal> {
    match tier {
        Some(Tier::Premium(level)) if length > premium_limit(level) => {
            Err(ErrorCode::ContentLengthLargerThanTierLimit.into())
        }
        _ => Ok(()),
    }
}

/// The longest blob of a premium tier.
fn premium_limit(level: u8) -> u64 {
    const GIB: u64 = 1 << 30;
    match level {
        0..=4 => 32 * GIB,
        5..=6 => 64 * GIB,
        7..=10 => 128 * GIB,
        11..=15 => 256 * GIB,
        16..=20 => 512 * GIB,
        21..=30 => 1024 * GIB,
        31..=40 => 2048 * GIB,
        41..=50 => 4096 * GIB,
        _ => 8192 * GIB,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Tier::{Archive, Cold, Cool, Hot};

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    fn online(tier: Tier) -> Tiering {
        Tiering { tier: Some(tier), ..Tiering::default() }
    }

    fn rehydrating(to: Tier) -> Tiering {
        online(Archive).set(to, false, NOW).unwrap()
    }

    #[test]
    fn a_request_for_a_tier_is_answered_as_in_the_table() {
        let refused = Some(ErrorCode::BlobBeingRehydrated);
        // now, then to hot, to cool, to cold, to the archive: whether it takes its time, or why not
        let rows = [
            (Tiering::default(), [Ok(false), Ok(false), Ok(false), Ok(false)]),
            (online(Hot), [Ok(false), Ok(false), Ok(false), Ok(false)]),
            (online(Cool), [Ok(false), Ok(false), Ok(false), Ok(false)]),
            (online(Cold), [Ok(false), Ok(false), Ok(false), Ok(false)]),
            (online(Archive), [Ok(true), Ok(true), Ok(true), Ok(false)]),
            (rehydrating(Hot), [Ok(true), Err(refused), Err(refused), Err(refused)]),
            (rehydrating(Cool), [Err(refused), Ok(true), Err(refused), Err(refused)]),
            (rehydrating(Cold), [Err(refused), Err(refused), Ok(true), Err(refused)]),
        ];
        for (tiering, expected) in rows {
            for (to, expected) in [Hot, Cool, Cold, Archive].into_iter().zip(expected) {
                let set = tiering.set(to, false, NOW);
                let outcome =
                    set.map(|set| set.rehydration.is_some()).map_err(|refusal| Some(refusal.code()));
                assert_eq!(outcome, expected, "{tiering:?} to {to:?}");
            }
        }
    }

    #[test]
    fn a_rehydration_ends_by_itself_and_can_be_hurried() {
        let slow = rehydrating(Cool);
        let later = NOW + Span::seconds(60);
        assert!(slow.is_archived(later));
        assert_eq!(slow.at(NOW + REHYDRATION).tier, Some(Cool));
        assert_eq!(slow.at(NOW + REHYDRATION).changed, Some(NOW + REHYDRATION));
        let quick = slow.set(Cool, true, later).unwrap();
        assert!(!quick.is_archived(later + QUICK_REHYDRATION));
        assert_eq!(quick.set(Cool, false, later), Ok(quick), "it cannot be slowed down again");
        let last = NOW + Span::seconds(60 * 60 - 1);
        let rehydration = slow.set(Cool, true, last).unwrap().rehydration.unwrap();
        assert_eq!(rehydration.until, NOW + REHYDRATION, "hurry does not make it later");
    }

    #[test]
    fn tiers_are_for_types_and_lengths() {
        let page = Kind::Page { sequence_number: 0 };
        let append = Kind::Append { blocks: 0, sealed: false };
        for (kind, tier, length, code) in [
            (Kind::Block, Hot, 0, None),
            (Kind::Block, Tier::Premium(4), 0, Some(ErrorCode::InvalidBlobTier)),
            (page, Tier::Premium(4), 32 << 30, None),
            (page, Tier::Premium(4), (32 << 30) + 512, Some(ErrorCode::BlobTierInadequateForContentLength)),
            (page, Tier::Premium(60), 8 << 40, None),
            (page, Cool, 0, Some(ErrorCode::InvalidBlobTier)),
            (append, Cool, 0, Some(ErrorCode::InvalidBlobTier)),
        ] {
            assert_eq!(
                check_tier(kind, tier, length).err().map(|refusal| refusal.code()),
                code,
                "{kind:?} {tier:?}"
            );
        }
        let new = |kind| check_new_tier(kind, Some(Tier::Premium(4)), 0).err().map(|refusal| refusal.code());
        assert_eq!(new(Kind::Block), Some(ErrorCode::InvalidHeaderValue));
        assert_eq!((new(page), new(append)), (None, Some(ErrorCode::InvalidBlobTier)));
        assert!(online(Tier::Premium(10)).set(Tier::Premium(4), false, NOW).is_err());
        assert!(online(Tier::Premium(4)).set(Tier::Premium(10), false, NOW).is_ok());
    }
}
