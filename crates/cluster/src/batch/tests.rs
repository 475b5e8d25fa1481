use lazuli_rados::OmapComparison;

use super::*;

fn at(ticks: u64) -> Stamp {
    Stamp::from_ticks(ticks)
}

fn commit(stamp: u64, conditions: Vec<Condition>, mutations: Vec<Mutation>) -> Commit {
    Commit { stamp: at(stamp), epoch: 1, conditions, mutations, valid_until: None, fence: None, bulk: false }
}

fn normal(stamp: u64, conditions: Vec<Condition>, mutations: Vec<Mutation>) -> NormalCommit {
    NormalCommit::new(&"p".into(), &commit(stamp, conditions, mutations)).unwrap()
}

fn put(key: &'static str, value: &'static str) -> Mutation {
    Mutation::Put(key.into(), value.into())
}

fn row(key: &str) -> Bytes {
    row_key(b"p", key.as_bytes())
}

#[test]
fn mutations_of_one_row_become_one_effect() {
    let (delete, add) = (|| Mutation::Delete("k".into()), |n| Mutation::Add("k".into(), n));
    let count = |n: i64| RowEffect::Put(Bytes::copy_from_slice(&n.to_le_bytes()));
    let seven = Mutation::Put("k".into(), Bytes::copy_from_slice(&7i64.to_le_bytes()));
    for (mutations, expected) in [
        (vec![put("k", "1"), put("k", "2")], RowEffect::Put("2".into())),
        (vec![put("k", "1"), delete()], RowEffect::Delete),
        (vec![delete(), put("k", "2")], RowEffect::Put("2".into())),
        (vec![add(3), add(-5)], RowEffect::Add(-2)),
        (vec![seven, add(3)], count(10)),
        (vec![delete(), add(3)], count(3)),
        (vec![add(3), delete()], RowEffect::Delete),
    ] {
        let commit = normal(9, vec![], mutations.clone());
        assert_eq!(commit.effects.get(&row("k")), Some(&expected), "{mutations:?}");
    }
}

#[test]
fn contradicting_conditions_and_stamps_that_are_not_newer_conflict() {
    let unchanged = |ticks| Condition::Unchanged("k".into(), Token(at(ticks)));
    for (conditions, conflicts) in [
        (vec![unchanged(8)], false),
        (vec![unchanged(9)], true),
        (vec![unchanged(8), unchanged(8)], false),
        (vec![unchanged(8), unchanged(7)], true),
        (vec![unchanged(8), Condition::Absent("k".into())], true),
    ] {
        let commit = commit(9, conditions.clone(), vec![put("k", "v")]);
        let normal = NormalCommit::new(&"p".into(), &commit);
        assert_eq!(normal.err(), conflicts.then_some(CommitError::Conflict), "{conditions:?}");
    }
}

#[test]
fn commit_that_depends_on_an_earlier_one_waits_for_the_next_batch() {
    let range = || Condition::RangeUnchanged("a".into().."z".into(), RangeToken(0));
    let add = || normal(1, vec![], vec![Mutation::Add("n".into(), 1)]);
    let first = || normal(1, vec![], vec![put("a", "1")]);
    let table = [
        (vec![first(), normal(2, vec![], vec![put("b", "1")])], [true, true]),
        (vec![first(), normal(2, vec![], vec![put("a", "2")])], [true, false]),
        (vec![first(), normal(2, vec![Condition::Absent("a".into())], vec![put("b", "1")])], [true, false]),
        (vec![first(), normal(2, vec![range()], vec![put("b", "1")])], [true, false]),
        (vec![normal(2, vec![range()], vec![put("b", "1")]), first()], [true, true]),
        (vec![normal(2, vec![Condition::Absent("a".into())], vec![]), first()], [true, true]),
        (vec![add(), add()], [true, true]),
        (vec![add(), normal(2, vec![], vec![put("n", "1")])], [true, false]),
        (
            vec![add(), normal(2, vec![Condition::Absent("n".into())], vec![Mutation::Add("n".into(), 1)])],
            [true, false],
        ),
    ];
    for (commits, expected) in table {
        assert_eq!(admit(&commits), expected, "{commits:?}");
    }
}

#[test]
fn batch_is_limited_in_commits_and_bytes_but_takes_at_least_one_commit() {
    let many: Vec<_> = (0..MAX_COMMITS + 1)
        .map(|i| {
            let key = Bytes::from(i.to_string());
            NormalCommit::new(&"p".into(), &commit(1, vec![], vec![Mutation::Put(key, "".into())])).unwrap()
        })
        .collect();
    assert_eq!(admit(&many).iter().filter(|joins| **joins).count(), MAX_COMMITS);
    let large = |key: &'static str| Mutation::Put(key.into(), vec![0; MAX_BYTES].into());
    assert_eq!(
        admit(&[normal(1, vec![], vec![large("a")]), normal(1, vec![], vec![put("b", "")])]),
        [true, false]
    );
}

/// Returns the stored entries that a batch sets.
fn set(
    batch: &[&NormalCommit],
    stored: &BTreeMap<Bytes, Bytes>,
    fence: Option<Stamp>,
) -> BTreeMap<Bytes, Bytes> {
    let op = compose(batch, stored, at(100), fence).into_op(vec![], ("a".into(), "own".into()));
    match op.steps.last() {
        Some(WriteStep::SetOmap(entries)) => entries.iter().cloned().collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn additions_are_added_up_and_compare_the_counter_that_was_read() {
    let add = |n| normal(1, vec![], vec![Mutation::Add("n".into(), n)]);
    let (a, b) = (add(3), add(4));
    let stored = BTreeMap::from([(row("n"), token::encode_row(Token(at(50)), &10i64.to_le_bytes()))]);
    for (stored, expected, requirement) in [
        (stored, 17i64, RowRequirement::Unchanged(Token(at(50)))),
        (BTreeMap::new(), 7, RowRequirement::Absent),
    ] {
        let entries = set(&[&a, &b], &stored, None);
        assert_eq!(entries[&row("n")], token::encode_row(Token(at(100)), &expected.to_le_bytes()));
        assert_eq!(entries[&a.bucket], token::encode(at(100)));
        let steps = compose(&[&a, &b], &stored, at(100), None);
        assert_eq!(steps.comparisons, requirement.steps(&row("n")));
    }
}

#[test]
fn fence_is_raised_and_never_lowered_and_the_earliest_deadline_is_compared() {
    let time = |ticks| Some(Timestamp::from_ticks(ticks));
    let mut a = normal(1, vec![], vec![put("a", "1")]);
    let mut b = normal(1, vec![], vec![put("b", "1")]);
    (a.fence, a.valid_until, b.valid_until) = (time(500), time(700), time(600));
    let raised = set(&[&a, &b], &BTreeMap::new(), Some(at(400)));
    assert_eq!(raised[&DEADLINE_FENCE], token::encode(at(500)));
    assert!(!set(&[&a, &b], &BTreeMap::new(), Some(at(500))).contains_key(&DEADLINE_FENCE));
    let comparisons = compose(&[&a, &b], &BTreeMap::new(), at(100), Some(at(400))).comparisons;
    let fence = |ticks| token::later_than_fence(&DEADLINE_FENCE, at(ticks));
    assert_eq!(comparisons[..2], [fence(600), fence(500)]);
}

#[test]
fn refused_commit_is_judged_by_what_is_stored() {
    let stored_row = |ticks| token::encode_row(Token(at(ticks)), b"v");
    let bucket = bucket_key(b"p");
    let bucket_stored = |ticks| BTreeMap::from([(bucket_key(b"p"), token::encode(at(ticks)))]);
    let unchanged = normal(9, vec![Condition::Unchanged("k".into(), Token(at(5)))], vec![]);
    let blind = normal(9, vec![], vec![put("k", "v")]);
    let range = Condition::RangeUnchanged("a".into().."z".into(), range_token(at(7), []));
    let ranged = normal(9, vec![range], vec![]);
    let mut late = blind.clone();
    late.valid_until = Some(Timestamp::from_ticks(500));
    let fenced = |ticks| BTreeMap::from([(DEADLINE_FENCE, token::encode(at(ticks)))]);
    let with_row = |ticks| BTreeMap::from([(row("k"), stored_row(ticks))]);
    assert_eq!(bucket, ranged.bucket);
    for (commit, stored, expected) in [
        (&unchanged, with_row(5), Verdict::Keep),
        (&unchanged, with_row(6), Verdict::Conflict),
        (&unchanged, BTreeMap::new(), Verdict::Conflict),
        (&blind, with_row(8), Verdict::Keep),
        (&blind, with_row(10), Verdict::Conflict),
        (&ranged, bucket_stored(7), Verdict::Keep),
        (&ranged, bucket_stored(8), Verdict::CheckRanges),
        (&late, fenced(499), Verdict::Keep),
        (&late, fenced(500), Verdict::Expired),
    ] {
        assert_eq!(judge(commit, &stored), expected, "{commit:?} {stored:?}");
    }
}

#[test]
fn ranges_have_equal_digests_only_for_equal_rows() {
    let row = |key: &'static str, ticks| Row { key: key.into(), value: "v".into(), token: Token(at(ticks)) };
    let token = range_token(at(7), &[row("a", 1), row("b", 2)]);
    assert_eq!(bucket_of_token(token), at(7));
    assert!(same_digest(token, range_token(at(9), &[row("a", 1), row("b", 2)])));
    assert!(!same_digest(token, range_token(at(7), &[row("a", 1), row("b", 3)])));
    assert!(!same_digest(token, range_token(at(7), &[row("a", 1)])));
}

#[test]
fn comparisons_of_ranges_test_the_bucket_exactly() {
    let condition = |bucket| Condition::RangeUnchanged("a".into().."z".into(), range_token(at(bucket), []));
    for (bucket, stored) in [(7, token::encode(at(7))), (0, Bytes::new())] {
        let commit = normal(9, vec![condition(bucket)], vec![]);
        let comparisons = compose(&[&commit], &BTreeMap::new(), at(100), None).comparisons;
        let key = commit.bucket.clone();
        assert_eq!(
            comparisons,
            [WriteStep::Compare { key, comparison: OmapComparison::Equal, value: stored }]
        );
    }
}
