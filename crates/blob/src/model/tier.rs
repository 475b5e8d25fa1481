//! The access tier of a blob, and its way out of the archive.
//!
//! Bytes never move. A tier is a label for clients, except that archived bytes can neither be read nor
//! written until the blob is rehydrated. That takes a time that is known when it begins, so nothing has to
//! happen at its end.

use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::{ErrorCode, Refusal};
use serde::{Deserialize, Serialize};

/// Duration of a rehydration. The cloud service takes up to 15 hours, or one hour with high priority. Bytes
/// are always available here, but clients should meet blobs that are not ready yet.
const REHYDRATION: Span = Span::seconds(60 * 60);
const QUICK_REHYDRATION: Span = Span::seconds(60);

/// The access tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Tier {
    Hot,
    Cool,
    Cold,
    Archive,
    /// A premium page blob tier: P4, P6, …
    Premium(u8),
    /// The service chooses the tier, see [`Tier::chosen`].
    Smart,
}

impl Tier {
    /// Parses the value of `x-ms-access-tier`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        const PREMIUM: [u8; 11] = [4, 6, 10, 15, 20, 30, 40, 50, 60, 70, 80];
        for tier in [Self::Hot, Self::Cool, Self::Cold, Self::Archive, Self::Smart] {
            if tier.name().eq_ignore_ascii_case(text) {
                return Some(tier);
            }
        }
        let level = text.strip_prefix(['P', 'p'])?.parse().ok()?;
        PREMIUM.contains(&level).then_some(Self::Premium(level))
    }

    /// Returns the value of `x-ms-access-tier`.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Hot => "Hot".into(),
            Self::Cool => "Cool".into(),
            Self::Cold => "Cold".into(),
            Self::Archive => "Archive".into(),
            Self::Premium(level) => format!("P{level}"),
            Self::Smart => "Smart".into(),
        }
    }

    /// Returns the tier that the service chooses for a [`Tier::Smart`] blob. Bytes never move, so it is the
    /// default tier.
    pub(crate) fn chosen(self, default_tier: &str) -> Option<&str> {
        (self == Self::Smart).then_some(default_tier)
    }
}

/// The tier of a blob, and its rehydration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tiering {
    /// `None` means the default of the account, which clients see as inferred.
    pub(crate) tier: Option<Tier>,
    pub(crate) changed: Option<Timestamp>,
    /// The running rehydration.
    pub(crate) rehydration: Option<Rehydration>,
}

impl Tiering {
    /// Returns the tier at a time. A rehydration that has ended by then has taken effect.
    pub(crate) fn at(&self, now: Timestamp) -> Self {
        match self.rehydration {
            Some(rehydration) if rehydration.until <= now => {
                Self { tier: Some(rehydration.to), changed: Some(rehydration.until), rehydration: None }
            }
            _ => *self,
        }
    }

    /// Returns whether the bytes are archived at a time.
    pub(crate) fn is_archived(&self, now: Timestamp) -> bool {
        self.at(now).tier == Some(Tier::Archive)
    }

    /// Returns the tier after a Set Blob Tier to `to`. `self` is the tier at `now`.
    pub(crate) fn set(self, to: Tier, quick: bool, now: Timestamp) -> Result<Self, Refusal> {
        match (self.tier, self.rehydration) {
            (_, Some(under_way)) if under_way.to != to => Err(ErrorCode::BlobBeingRehydrated.into()),
            (_, Some(under_way)) => {
                Ok(Self { rehydration: Some(under_way.with_priority(quick, now)), ..self })
            }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rehydration {
    pub(crate) to: Tier,
    pub(crate) high_priority: bool,
    /// Time at which the rehydration ends.
    pub(crate) until: Timestamp,
}

impl Rehydration {
    pub(crate) fn begin(to: Tier, quick: bool, now: Timestamp) -> Self {
        let time = if quick { QUICK_REHYDRATION } else { REHYDRATION };
        Self { to, high_priority: quick, until: now + time }
    }

    /// Raises the priority if `quick`. It is never lowered.
    fn with_priority(self, quick: bool, now: Timestamp) -> Self {
        if self.high_priority || !quick {
            return self;
        }
        Self { high_priority: true, until: self.until.min(now + QUICK_REHYDRATION), ..self }
    }

    /// Returns the value of `x-ms-archive-status`.
    pub(crate) const fn status(&self) -> &'static str {
        match self.to {
            Tier::Cool => "rehydrate-pending-to-cool",
            Tier::Cold => "rehydrate-pending-to-cold",
            Tier::Smart => "rehydrate-pending-to-smart",
            _ => "rehydrate-pending-to-hot",
        }
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
    fn set_tier_follows_the_documented_transitions() {
        let refused = Some(ErrorCode::BlobBeingRehydrated);
        // current tier, then the result for hot, cool, cold and archive: whether it rehydrates, or the
        // refusal
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
    fn rehydration_ends_without_a_request_and_its_priority_can_be_raised() {
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
    fn premium_tier_can_only_be_raised() {
        assert!(online(Tier::Premium(10)).set(Tier::Premium(4), false, NOW).is_err());
        assert!(online(Tier::Premium(4)).set(Tier::Premium(10), false, NOW).is_ok());
    }
}
