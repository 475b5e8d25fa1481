//! The tables of the specification, cell by cell.
//!
//! A cell is the resulting state with its id and the remaining seconds, such as `Breaking(A) 8`, or the name
//! of the refusal. All columns are evaluated at [`NOW`].

use super::*;

const A: LeaseId = LeaseId::from_bytes([0xA; 16]);
const B: LeaseId = LeaseId::from_bytes([0xB; 16]);
const C: LeaseId = LeaseId::from_bytes([0xC; 16]);
const X: LeaseId = LeaseId::from_bytes([0xFF; 16]);

const NOW: Timestamp = Timestamp::from_unix_seconds(1_000_000);

fn ago(seconds: u64) -> Timestamp {
    NOW - Span::seconds(seconds)
}

fn acquire_for(proposed: Option<LeaseId>, seconds: i64) -> LeaseAction {
    let duration = LeaseDuration::from_seconds(seconds).unwrap();
    LeaseAction::Acquire { proposed, generated: X, duration }
}

fn acquire(proposed: Option<LeaseId>) -> LeaseAction {
    acquire_for(proposed, 60)
}

fn renew(id: LeaseId) -> LeaseAction {
    LeaseAction::Renew { id }
}

fn change(id: LeaseId, proposed: LeaseId) -> LeaseAction {
    LeaseAction::Change { id, proposed }
}

fn release(id: LeaseId) -> LeaseAction {
    LeaseAction::Release { id }
}

fn break_in(seconds: i64) -> LeaseAction {
    LeaseAction::Break { period: Some(BreakPeriod::from_seconds(seconds).unwrap()) }
}

const BREAK: LeaseAction = LeaseAction::Break { period: None };

/// Applies successful actions in order and returns the resulting lease.
fn lease(actions: &[(Timestamp, LeaseAction)]) -> Lease {
    actions.iter().fold(Lease::AVAILABLE, |lease, (at, action)| lease.apply(*action, *at).unwrap().lease)
}

/// Returns the columns of the tables. Leases of 30 s were acquired 10 s ago, or 40 s ago if they have
/// expired. Each column lists every way to reach its state.
fn columns() -> [Vec<Lease>; 6] {
    let fixed = (ago(10), acquire_for(Some(A), 30));
    let infinite = (ago(10), acquire_for(Some(A), -1));
    let expired = (ago(40), acquire_for(Some(A), 30));
    [
        // Available
        vec![Lease::AVAILABLE, lease(&[fixed, (ago(5), release(A))])],
        // Leased(A), 20 s left
        vec![lease(&[fixed])],
        // Leased(A), infinite
        vec![lease(&[infinite])],
        // Breaking(A), 8 s left
        vec![lease(&[fixed, (ago(2), break_in(10))]), lease(&[infinite, (ago(2), break_in(10))])],
        // Broken(A)
        vec![
            lease(&[fixed, (ago(9), break_in(0))]),
            lease(&[fixed, (ago(9), break_in(9))]),
            lease(&[expired, (ago(30), BREAK)]),
            lease(&[expired, (ago(1), break_in(60))]),
            lease(&[infinite, (ago(9), BREAK)]),
        ],
        // Expired(A)
        vec![lease(&[expired])],
    ]
}

fn cell(lease: &Lease) -> String {
    let names = [(A, "(A)"), (B, "(B)"), (C, "(C)"), (X, "(X)")];
    let id = names.iter().find(|(id, _)| Some(*id) == lease.id()).map_or("", |(_, name)| name);
    let left = lease.changes_at(NOW).map(|end| format!(" {}", end.since(NOW).seconds_rounded_up()));
    format!("{:?}{id}{}", lease.state(NOW), left.unwrap_or_default())
}

/// Returns the deadline of a decision that depends on the state of each column.
fn deadlines() -> [Option<Timestamp>; 6] {
    [None, Some(NOW + Span::seconds(20)), None, Some(NOW + Span::seconds(8)), None, None]
}

#[test]
fn columns_are_in_the_states_of_their_headings() {
    use LeaseState::*;
    let heads = [Available, Leased, Leased, Breaking, Broken, Expired];
    for (leases, head) in columns().iter().zip(heads) {
        for lease in leases {
            assert_eq!(lease.state(NOW), head, "{lease:?}");
        }
    }
}

#[test]
fn lease_actions_answer_as_in_the_table() {
    let absent = "NotPresentWithLeaseOperation";
    let wrong = "IdMismatchWithLeaseOperation";
    let taken = "AlreadyPresent";
    let no_acquire = "IsBreakingAndCannotBeAcquired";
    let no_change = "IsBreakingAndCannotBeChanged";
    let no_renew = "IsBrokenAndCannotBeRenewed";
    let x = "Leased(X) 60";
    let a = "Leased(A) 60";
    let b = "Leased(B) 60";
    let free = "Available";
    let broken = "Broken(A)";
    #[rustfmt::skip]
    let rows = [
        //                                Available  Leased(A) 20      Leased(A) infinite  Breaking(A) 8    Broken(A)  Expired(A)
        ("Acquire, no id", acquire(None), [x,        taken,            taken,              taken,           x,         x]),
        ("Acquire A", acquire(Some(A)),   [a,        a,                a,                  no_acquire,      a,         a]),
        ("Acquire B", acquire(Some(B)),   [b,        taken,            taken,              taken,           b,         b]),
        ("Renew A", renew(A),             [wrong,    "Leased(A) 30",   "Leased(A)",        no_renew,        no_renew,  "Leased(A) 30"]),
        ("Renew B", renew(B),             [wrong,    wrong,            wrong,              wrong,           wrong,     wrong]),
        ("Change A to B", change(A, B),   [absent,   "Leased(B) 20",   "Leased(B)",        no_change,       absent,    absent]),
        ("Change A to A", change(A, A),   [absent,   "Leased(A) 20",   "Leased(A)",        no_change,       absent,    absent]),
        ("Change B to A", change(B, A),   [absent,   "Leased(A) 20",   "Leased(A)",        wrong,           absent,    absent]),
        ("Change B to C", change(B, C),   [absent,   wrong,            wrong,              wrong,           absent,    absent]),
        ("Release A", release(A),         [wrong,    free,             free,               free,            free,      free]),
        ("Release B", release(B),         [wrong,    wrong,            wrong,              wrong,           wrong,     wrong]),
        ("Break 0", break_in(0),          [absent,   broken,           broken,             broken,          broken,    broken]),
        ("Break 5", break_in(5),          [absent,   "Breaking(A) 5",  "Breaking(A) 5",    "Breaking(A) 5", broken,    broken]),
        ("Break 60", break_in(60),        [absent,   "Breaking(A) 20", "Breaking(A) 60",   "Breaking(A) 8", broken,    broken]),
        ("Break, no period", BREAK,       [absent,   "Breaking(A) 20", broken,             "Breaking(A) 8", broken,    broken]),
    ];
    for (name, action, expected) in rows {
        for ((leases, expected), deadline) in columns().iter().zip(expected).zip(deadlines()) {
            for lease in leases {
                match lease.apply(action, NOW) {
                    Err(refusal) => assert_eq!(format!("{refusal:?}"), expected, "{name} on {lease:?}"),
                    Ok(applied) => {
                        assert_eq!(cell(&applied.lease), expected, "{name} on {lease:?}");
                        assert_eq!(applied.valid_until, deadline, "{name} on {lease:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn operations_on_a_blob_are_admitted_as_in_the_table() {
    use Access::{Read, Write};
    let absent = "NotPresentWithOperation";
    let wrong = "IdMismatchWithOperation";
    let missing = "IdMissing";
    let free = "Available";
    #[rustfmt::skip]
    check_uses([
        //                           Available Leased(A) 20    Leased(A) infinite  Breaking(A) 8    Broken(A)    Expired(A)
        ("write A", Write, Some(A), [absent,   "Leased(A) 20", "Leased(A)",        "Breaking(A) 8", "Lost",      "Lost"]),
        ("write B", Write, Some(B), [absent,   wrong,          wrong,              wrong,           "Lost",      "Lost"]),
        ("write", Write, None,      [free,     missing,        missing,            missing,         free,        free]),
        ("read A", Read, Some(A),   [absent,   "Leased(A) 20", "Leased(A)",        "Breaking(A) 8", "Lost",      "Lost"]),
        ("read B", Read, Some(B),   [absent,   wrong,          wrong,              wrong,           "Lost",      "Lost"]),
        ("read", Read, None,        [free,     "Leased(A) 20", "Leased(A)",        "Breaking(A) 8", "Broken(A)", "Expired(A)"]),
    ]);
}

#[test]
fn deleting_a_container_or_managing_a_share_needs_the_id_and_keeps_an_ended_lease() {
    use Access::{Manage, Read};
    let absent = "NotPresentWithOperation";
    let wrong = "IdMismatchWithOperation";
    let missing = "IdMissing";
    let free = "Available";
    #[rustfmt::skip]
    check_uses([
        //                           Available Leased(A) 20    Leased(A) infinite  Breaking(A) 8    Broken(A)    Expired(A)
        ("delete A", Manage, Some(A), [absent, "Leased(A) 20", "Leased(A)",        "Breaking(A) 8", "Lost",      "Lost"]),
        ("delete B", Manage, Some(B), [absent, wrong,          wrong,              wrong,           "Lost",      "Lost"]),
        ("delete", Manage, None,      [free,   missing,        missing,            missing,         "Broken(A)", "Expired(A)"]),
        ("other A", Read, Some(A),    [absent, "Leased(A) 20", "Leased(A)",        "Breaking(A) 8", "Lost",      "Lost"]),
        ("other B", Read, Some(B),    [absent, wrong,          wrong,              wrong,           "Lost",      "Lost"]),
        ("other", Read, None,         [free,   "Leased(A) 20", "Leased(A)",        "Breaking(A) 8", "Broken(A)", "Expired(A)"]),
    ]);
}

#[test]
fn destination_of_a_copy_needs_an_infinite_lease() {
    use Access::CopyDestination;
    let absent = "NotPresentWithOperation";
    let wrong = "IdMismatchWithOperation";
    let missing = "IdMissing";
    let finite = "InfiniteDurationRequired";
    let free = "Available";
    #[rustfmt::skip]
    check_uses([
        //                                  Available  Leased(A) 20  Leased(A) infinite  Breaking(A) 8  Broken(A)  Expired(A)
        ("copy A", CopyDestination, Some(A), [absent,  finite,       "Leased(A)",        finite,        "Lost",    "Lost"]),
        ("copy B", CopyDestination, Some(B), [absent,  wrong,        wrong,              wrong,         "Lost",    "Lost"]),
        ("copy", CopyDestination, None,      [free,    missing,      missing,            missing,       free,      free]),
    ]);
}

fn check_uses<const ROWS: usize>(rows: [(&str, Access, Option<LeaseId>, [&str; 6]); ROWS]) {
    for (name, access, id, expected) in rows {
        for ((leases, expected), deadline) in columns().iter().zip(expected).zip(deadlines()) {
            for lease in leases {
                match lease.admits(access, id, NOW) {
                    Err(refusal) => assert_eq!(format!("{refusal:?}"), expected, "{name} on {lease:?}"),
                    Ok(admission) => {
                        assert_eq!(cell(&admission.lease), expected, "{name} on {lease:?}");
                        // An operation that is admitted without an id does not depend on the lease.
                        assert_eq!(admission.by_holder, id.is_some(), "{name} on {lease:?}");
                        assert_eq!(
                            admission.valid_until,
                            deadline.filter(|_| id.is_some()),
                            "{name} on {lease:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn write_without_id_clears_a_lease_that_has_ended() {
    for column in [4, 5] {
        for ended in &columns()[column] {
            let admission = ended.admits(Access::Write, None, NOW).unwrap();
            for action in [renew(A), release(A)] {
                let refusal = admission.lease.apply(action, NOW).unwrap_err();
                assert_eq!(refusal, LeaseRefusal::IdMismatchWithLeaseOperation, "{action:?} after {ended:?}");
            }
        }
    }
}

#[test]
fn only_a_break_reports_the_remaining_time_rounded_up_to_seconds() {
    let [_, fixed, infinite, breaking, broken, expired] = columns().map(|leases| leases[0]);
    let later = NOW + Span::millis(300);
    let rows = [
        (fixed, BREAK, NOW, Some(20)),
        (fixed, BREAK, later, Some(20)),
        (fixed, break_in(5), later, Some(5)),
        (fixed, break_in(0), NOW, Some(0)),
        (infinite, BREAK, NOW, Some(0)),
        (infinite, break_in(60), later, Some(60)),
        (breaking, BREAK, later, Some(8)),
        (breaking, break_in(60), NOW, Some(8)),
        (broken, BREAK, NOW, Some(0)),
        (broken, break_in(60), NOW, Some(0)),
        (expired, break_in(60), NOW, Some(0)),
        (fixed, acquire(Some(A)), NOW, None),
        (fixed, renew(A), NOW, None),
        (fixed, change(A, B), NOW, None),
        (fixed, release(A), NOW, None),
    ];
    for (lease, action, now, expected) in rows {
        let applied = lease.apply(action, now).unwrap();
        assert_eq!(applied.lease_time, expected, "{action:?} on {lease:?}");
    }
}

#[test]
fn fixed_leases_and_breaks_end_exactly_on_the_tick() {
    let end_of = |lease: Lease| lease.changes_at(NOW).unwrap();
    let [_, fixed, infinite, breaking, _, _] = columns().map(|leases| leases[0]);
    let tick = Span::from_ticks(1);
    for (lease, before, after) in [
        (fixed, LeaseState::Leased, LeaseState::Expired),
        (breaking, LeaseState::Breaking, LeaseState::Broken),
    ] {
        let end = end_of(lease);
        assert_eq!(lease.state(end - tick), before);
        assert_eq!(lease.state(end), after);
        assert_eq!(lease.changes_at(end - tick), Some(end));
        assert_eq!(lease.changes_at(end), None);
    }
    assert_eq!(infinite.state(Timestamp::MAX), LeaseState::Leased);
    // A fixed lease that is broken without a period ends when it would have expired, and as broken.
    let broken = fixed.apply(BREAK, NOW).unwrap().lease;
    assert_eq!(end_of(broken), end_of(fixed));
    assert_eq!(broken.state(end_of(fixed)), LeaseState::Broken);
}

#[test]
fn headers_report_state_status_and_the_duration_only_while_leased() {
    let rows = [
        ("available", "unlocked", None),
        ("leased", "locked", Some("fixed")),
        ("leased", "locked", Some("infinite")),
        ("breaking", "locked", None),
        ("broken", "unlocked", None),
        ("expired", "unlocked", None),
    ];
    for (leases, (state, status, duration)) in columns().iter().zip(rows) {
        for lease in leases {
            assert_eq!(lease.state(NOW).to_string(), state);
            assert_eq!(lease.status(NOW).to_string(), status);
            assert_eq!(lease.duration(NOW).map(|d| d.to_string()).as_deref(), duration);
        }
    }
}

#[test]
fn durations_and_break_periods_have_the_documented_bounds() {
    let accepted = |from: fn(i64) -> bool| (-100..=400).filter(|s| from(*s)).collect::<Vec<_>>();
    let durations = accepted(|s| LeaseDuration::from_seconds(s).is_some());
    assert_eq!(durations, [-1].into_iter().chain(15..=60).collect::<Vec<_>>());
    let periods = accepted(|s| BreakPeriod::from_seconds(s).is_some());
    assert_eq!(periods, (0..=60).collect::<Vec<_>>());
}
