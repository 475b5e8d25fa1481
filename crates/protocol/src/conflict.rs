//! The facts behind a refusal by a concurrency rule: what the client required, and what was there.
//!
//! A [`Conflict`] is attached to a [`Refusal`](crate::Refusal) for operators. Clients never see it, because
//! it may name other clients.

use std::net::IpAddr;

use lazuli_concurrency::{Conditions, ETagPattern, Lease, LeaseState, Timestamp, Validators};

/// Why a rule refused a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflict {
    /// The header or parameter that the rule compared, such as `If-Match`.
    pub condition: Option<&'static str>,
    /// The value that the client sent for it.
    pub given: Option<String>,
    /// The current ETag.
    pub current: Option<String>,
    /// When the current version was written.
    pub last_modified: Option<Timestamp>,
    /// The state of the lease: `leased`, `breaking`, `broken`, `expired` or `available`.
    pub lease: Option<&'static str>,
    /// Until when the lease lasts; `None` if it is infinite or has ended.
    pub lease_until: Option<Timestamp>,
    /// When the lease ended.
    pub lease_ended: Option<Timestamp>,
    /// The id of the message.
    pub message: Option<String>,
    /// Opens over SMB that stand in the way.
    pub opens: Vec<BlockingOpen>,
}

/// An open over SMB that stands in the way of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingOpen {
    /// The client's address.
    pub peer: IpAddr,
    /// The client's machine name.
    pub name: String,
    /// The access of the open: letters of `rwd`.
    pub access: String,
    /// The access that the open lets others have: letters of `rwd`.
    pub shared: String,
    /// When the file was opened.
    pub since: Timestamp,
}

/// The conflict of a refusal. Two refusals are equal whatever conflict they carry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attached(pub(crate) Option<Box<Conflict>>);

impl PartialEq for Attached {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Attached {}

impl Conflict {
    /// Describes conditions on an ETag that did not hold.
    pub fn of_etag<T>(
        condition: &'static str,
        given: &ETagPattern<T>,
        current: Option<(String, Timestamp)>,
    ) -> Self
    where
        T: std::fmt::Display,
    {
        let (current, last_modified) = current.unzip();
        Self {
            condition: Some(condition),
            given: Some(pattern_text(given)),
            current,
            last_modified,
            ..Self::default()
        }
    }

    /// Describes an object that exists already, by its ETag and the time at which it was written.
    pub fn of_version((current, written): (String, Timestamp)) -> Self {
        Self { current: Some(current), last_modified: Some(written), ..Self::default() }
    }

    /// Describes the state of a lease.
    pub fn of_lease(lease: &Lease, now: Timestamp) -> Self {
        let state = lease.state(now);
        // The end that the lease had while it lasted.
        let end = lease.changes_at(Timestamp::from_ticks(0));
        Self {
            condition: Some("x-ms-lease-id"),
            lease: Some(state_name(state)),
            lease_until: end.filter(|end| *end > now),
            lease_ended: end.filter(|end| *end <= now),
            ..Self::default()
        }
    }
}

impl Conflict {
    /// Describes conditions that do not hold for the current version.
    pub fn of_conditions(conditions: &Conditions, current: Option<Validators>) -> Self {
        let tag = current.map(|current| (current.etag.to_string(), current.last_modified));
        if let Some(given) = &conditions.if_match {
            return Self::of_etag("If-Match", given, tag);
        }
        if let Some(given) = &conditions.if_none_match {
            return Self::of_etag("If-None-Match", given, tag);
        }
        let (current, last_modified) = tag.unzip();
        let dates = [
            ("If-Unmodified-Since", conditions.if_unmodified_since),
            ("If-Modified-Since", conditions.if_modified_since),
        ];
        let date = dates.into_iter().find_map(|(name, date)| Some((name, crate::date::rfc1123(date?))));
        let (condition, given) = date.unzip();
        Self { condition, given, current, last_modified, ..Self::default() }
    }
}

fn pattern_text<T: std::fmt::Display>(pattern: &ETagPattern<T>) -> String {
    match pattern {
        ETagPattern::Any => "*".into(),
        ETagPattern::OneOf(tags) => {
            let text =
                |tag: &Option<T>| tag.as_ref().map_or("(not an ETag of this server)".into(), T::to_string);
            tags.iter().map(text).collect::<Vec<_>>().join(", ")
        }
    }
}

const fn state_name(state: LeaseState) -> &'static str {
    match state {
        LeaseState::Available => "available",
        LeaseState::Leased => "leased",
        LeaseState::Expired => "expired",
        LeaseState::Breaking => "breaking",
        LeaseState::Broken => "broken",
    }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::{LeaseAction, LeaseDuration, LeaseId};

    use super::*;

    #[test]
    fn conflict_of_a_lease_says_until_when_it_lasts_or_when_it_ended() {
        let (start, id) = (Timestamp::from_unix_seconds(1_000_000_000), LeaseId::from_bytes([1; 16]));
        let duration = LeaseDuration::from_seconds(15).unwrap();
        let acquire = LeaseAction::Acquire { proposed: Some(id), generated: id, duration };
        let lease = Lease::AVAILABLE.apply(acquire, start).unwrap().lease;
        let at = |seconds: u64| Timestamp::from_unix_seconds(1_000_000_000 + seconds);
        let held = Conflict::of_lease(&lease, at(5));
        assert_eq!((held.lease, held.lease_until, held.lease_ended), (Some("leased"), Some(at(15)), None));
        let over = Conflict::of_lease(&lease, at(20));
        assert_eq!((over.lease, over.lease_until, over.lease_ended), (Some("expired"), None, Some(at(15))));
    }
}
