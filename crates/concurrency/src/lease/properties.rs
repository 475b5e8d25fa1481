//! Properties of leases that hold for every history of actions, uses and clock steps.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum HistoryStep {
    Act(LeaseAction),
    Use(Access, Option<LeaseId>),
    Wait(Span),
}

const IDS: [LeaseId; 3] =
    [LeaseId::from_bytes([0xA; 16]), LeaseId::from_bytes([0xB; 16]), LeaseId::from_bytes([0xC; 16])];

fn any_id() -> impl Strategy<Value = LeaseId> {
    prop::sample::select(&IDS[..])
}

fn any_access() -> impl Strategy<Value = Access> {
    prop::sample::select(vec![Access::Read, Access::Write, Access::CopyDestination, Access::Manage])
}

fn any_action() -> impl Strategy<Value = LeaseAction> {
    let duration = prop_oneof![Just(-1), 15..=60_i64].prop_map(|s| LeaseDuration::from_seconds(s).unwrap());
    let period = prop::option::of((0..=60_i64).prop_map(|s| BreakPeriod::from_seconds(s).unwrap()));
    prop_oneof![
        (prop::option::of(any_id()), any_id(), duration).prop_map(|(proposed, generated, duration)| {
            LeaseAction::Acquire { proposed, generated, duration }
        }),
        any_id().prop_map(|id| LeaseAction::Renew { id }),
        (any_id(), any_id()).prop_map(|(id, proposed)| LeaseAction::Change { id, proposed }),
        any_id().prop_map(|id| LeaseAction::Release { id }),
        period.prop_map(|period| LeaseAction::Break { period }),
    ]
}

/// Generates waits of up to 40 s. Some are whole seconds, so that leases end exactly on the tick.
fn any_wait() -> impl Strategy<Value = Span> {
    prop_oneof![(0..=40_u64).prop_map(Span::seconds), (0..400_000_000_u64).prop_map(Span::from_ticks)]
}

fn any_history() -> impl Strategy<Value = Vec<HistoryStep>> {
    let step = prop_oneof![
        any_action().prop_map(HistoryStep::Act),
        (any_access(), prop::option::of(any_id())).prop_map(|(access, id)| HistoryStep::Use(access, id)),
        any_wait().prop_map(HistoryStep::Wait),
    ];
    prop::collection::vec(step, 1..40)
}

/// Returns when the lock ends if no request comes, or the start of time if there is no lock.
fn locked_until(lease: &Lease, now: Timestamp) -> Timestamp {
    match lease.status(now) {
        LeaseStatus::Locked => lease.changes_at(now).unwrap_or(Timestamp::MAX),
        LeaseStatus::Unlocked => Timestamp::from_ticks(0),
    }
}

/// Returns times from `now` to just before a deadline, or to 1000 s later without a deadline.
fn times_before(deadline: Option<Timestamp>, now: Timestamp) -> impl Iterator<Item = Timestamp> {
    let last = deadline.map_or(now + Span::seconds(1000), |end| end - Span::from_ticks(1));
    let length = last.since(now).ticks();
    (0..=8).map(move |part| now + Span::from_ticks(length / 8 * part)).chain([last])
}

/// Checks the properties that every lease has at any time.
fn check_lease(lease: &Lease, now: Timestamp) -> Result<(), TestCaseError> {
    let state = lease.state(now);
    let locked = matches!(state, LeaseState::Leased | LeaseState::Breaking);
    prop_assert_eq!(lease.status(now) == LeaseStatus::Locked, locked);
    for access in [Access::Write, Access::CopyDestination, Access::Manage] {
        let writers = IDS.iter().filter(|id| lease.admits(access, Some(**id), now).is_ok()).count();
        let without_id = lease.admits(access, None, now).is_ok();
        prop_assert!(writers <= usize::from(locked), "{} writers", writers);
        prop_assert_eq!(without_id, !locked);
    }
    prop_assert!(lease.admits(Access::Read, None, now).is_ok());
    prop_assert_eq!(lease.id().is_none(), state == LeaseState::Available);
    prop_assert_eq!(lease.duration(now).is_some(), state == LeaseState::Leased);
    if let Some(end) = lease.changes_at(now) {
        prop_assert!(end > now);
        prop_assert_eq!(lease.state(end - Span::from_ticks(1)), state);
        prop_assert_ne!(lease.state(end), state);
        prop_assert_eq!(lease.status(end), LeaseStatus::Unlocked);
    }
    prop_assert_eq!(Lease::decode(&lease.encode()), Ok(*lease));
    Ok(())
}

fn check_applied(
    before: &Lease,
    action: LeaseAction,
    applied: &Applied,
    now: Timestamp,
) -> Result<(), TestCaseError> {
    let starts_clock = matches!(action, LeaseAction::Acquire { .. } | LeaseAction::Renew { .. });
    let keeps_leased = matches!(action, LeaseAction::Change { .. });
    let after = applied.lease;
    if after.state(now) == LeaseState::Leased {
        let leased_before = before.state(now) == LeaseState::Leased;
        prop_assert!(starts_clock || (keeps_leased && leased_before), "{:?} leased {:?}", action, before);
    }
    if !starts_clock {
        prop_assert!(locked_until(&after, now) <= locked_until(before, now), "{:?} lengthened", action);
    }
    if let LeaseAction::Break { period } = action {
        prop_assert!(matches!(after.state(now), LeaseState::Breaking | LeaseState::Broken));
        prop_assert_eq!(after.id(), before.id());
        if let (Some(seconds), Some(period)) = (applied.lease_time, period) {
            prop_assert!(seconds <= u64::from(period.0));
        }
    }
    for time in times_before(applied.valid_until, now) {
        prop_assert!(before.apply(action, time).is_ok(), "{:?} fails at {:?}", action, time);
        prop_assert!(applied.valid_until.is_none() || before.state(time) == before.state(now));
    }
    Ok(())
}

fn check_admission(
    before: &Lease,
    (access, id): (Access, Option<LeaseId>),
    admission: &Admission,
    now: Timestamp,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(admission.by_holder, id.is_some());
    prop_assert!(admission.lease == *before || admission.lease == Lease::AVAILABLE);
    if before.status(now) == LeaseStatus::Locked {
        prop_assert_eq!(admission.lease, *before);
    }
    for time in times_before(admission.valid_until, now) {
        let again = before.admits(access, id, time);
        prop_assert!(again.is_ok(), "{:?} fails at {:?}", access, time);
        if admission.by_holder {
            prop_assert_eq!(again, Ok(*admission));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn lease_properties_hold_in_every_history(history in any_history()) {
        let mut now = Timestamp::from_unix_seconds(1_000_000);
        let mut lease = Lease::AVAILABLE;
        check_lease(&lease, now)?;
        for step in history {
            match step {
                HistoryStep::Act(action) => {
                    if let Ok(applied) = lease.apply(action, now) {
                        check_applied(&lease, action, &applied, now)?;
                        lease = applied.lease;
                    }
                }
                HistoryStep::Use(access, id) => {
                    if let Ok(admission) = lease.admits(access, id, now) {
                        check_admission(&lease, (access, id), &admission, now)?;
                        lease = admission.lease;
                    }
                }
                HistoryStep::Wait(span) => {
                    let earlier = lease.state(now);
                    now = now + span;
                    let allowed = match earlier {
                        LeaseState::Leased => [LeaseState::Leased, LeaseState::Expired],
                        LeaseState::Breaking => [LeaseState::Breaking, LeaseState::Broken],
                        unlocked => [unlocked; 2],
                    };
                    prop_assert!(allowed.contains(&lease.state(now)), "{:?} became {:?}", earlier, lease.state(now));
                }
            }
            check_lease(&lease, now)?;
        }
    }
}
