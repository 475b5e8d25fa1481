//! The tier that a request names, and the blobs that can have it.

use http::HeaderMap;
use lazuli_concurrency::{ConditionRefusal, Conditions, Timestamp, Validators};
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request};

use crate::model::record::{Blob, Kind};
use crate::model::tier::Tier;

/// The header that names a tier.
pub(crate) const ACCESS_TIER: &str = "x-ms-access-tier";

/// Reads `x-ms-access-tier`, if it was sent. Older versions do not have the newest tiers.
pub(crate) fn access_tier(request: &Request) -> Result<Option<Tier>, Refusal> {
    let is_known = |tier: &Tier| *tier != Tier::Cold || request.version.at_least(2021, 12, 2);
    request.headers.value(ACCESS_TIER, |text| Tier::parse(text).filter(is_known))
}

/// The conditions of Delete Blob on the last change of the tier. They keep a lifecycle rule for one tier from
/// deleting a blob that has moved to another.
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

    /// Checks the conditions. If the tier was never changed, the creation of the blob counts.
    pub(crate) fn check(&self, blob: &Blob, now: Timestamp) -> Result<(), Refusal> {
        let last_modified = blob.tier.at(now).changed.unwrap_or(blob.created);
        match self.0.evaluate_write(Validators { last_modified, ..blob.validators() }) {
            Err(ConditionRefusal::ConditionNotMet) => {
                Err(ErrorCode::AccessTierChangeTimeConditionNotMet.into())
            }
            checked => Ok(checked?),
        }
    }
}

/// Returns whether `x-ms-rehydrate-priority` asks for high priority.
pub(crate) fn is_high_priority(request: &Request) -> Result<bool, Refusal> {
    let priorities = [("Standard", false), ("High", true)];
    Ok(request.headers.one_of("x-ms-rehydrate-priority", &priorities)?.unwrap_or(false))
}

/// Refuses a tier that a new blob of this type and length cannot have. For a block blob, a premium tier is an
/// invalid header.
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
pub(crate) fn check_tier(kind: Kind, tier: Tier, length: u64) -> Result<(), Refusal> {
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

/// Returns the maximum length of a blob of a premium tier, in bytes.
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
    use Tier::{Cool, Hot};

    #[test]
    fn tiers_depend_on_blob_type_and_length() {
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
    }
}
