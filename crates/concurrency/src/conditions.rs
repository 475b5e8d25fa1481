//! Condition headers: `If-Match`, `If-None-Match`, `If-Modified-Since`, `If-Unmodified-Since`.
//!
//! A read may combine them freely; a write has one condition. The caller checks the lease before the
//! conditions and the object's state after them. The caller also answers when a required object is missing.
//! The service decides which status code and error name a refusal gets.

use crate::{ETag, ETagPattern, Timestamp};

/// The condition headers of one request. Dates are compared to the second, as HTTP spells them.
///
/// ```
/// # use lazuli_concurrency::*;
/// let etag = ETag::from_stamp(Stamp::from_ticks(1));
/// let current = Validators { etag, last_modified: Timestamp::from_unix_seconds(1_000_000_000) };
///
/// // Create only if the object does not exist.
/// let create = Conditions { if_none_match: Some(ETagPattern::Any), ..Conditions::default() };
/// assert_eq!(create.evaluate_create(None, false), Ok(()));
/// assert_eq!(create.evaluate_create(Some(current), false), Err(ConditionRefusal::AlreadyExists));
///
/// // Replace only the version that was read.
/// let read = ETagPattern::OneOf(vec![Some(etag)]);
/// let replace = Conditions { if_match: Some(read), ..Conditions::default() };
/// assert_eq!(replace.evaluate_write(current), Ok(()));
/// let changed = Validators { etag: ETag::from_stamp(Stamp::from_ticks(2)), ..current };
/// assert_eq!(replace.evaluate_write(changed), Err(ConditionRefusal::ConditionNotMet));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Go ahead only if the object has one of these tags.
    pub if_match: Option<ETagPattern>,
    /// Go ahead only if the object has none of these tags.
    pub if_none_match: Option<ETagPattern>,
    /// Go ahead only if the object was modified after this date.
    pub if_modified_since: Option<Timestamp>,
    /// Go ahead only if the object was not modified after this date.
    pub if_unmodified_since: Option<Timestamp>,
}

/// The existing object's version, which conditions are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validators {
    /// The tag of the current version.
    pub etag: ETag,
    /// When the current version was written.
    pub last_modified: Timestamp,
}

/// How the request's API version evaluates conditions on reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadRules {
    /// Before 2013-08-15: one condition, evaluated as for a write.
    Single,
    /// Since 2013-08-15: any combination. `If-None-Match: *` is ignored.
    Combined,
    /// Since 2016-05-31: any combination. `If-None-Match: *` is refused, as no read can satisfy it.
    #[default]
    CombinedWithoutStar,
}

/// Why a request does not go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionRefusal {
    /// A read: the client's copy is current.
    #[error("the object was not modified")]
    NotModified,
    /// The object does not have the version that the client requires.
    #[error("a condition header is not met")]
    ConditionNotMet,
    /// A create with `If-None-Match: *`: the object exists.
    #[error("the object exists already")]
    AlreadyExists,
    /// The request is malformed: it has more conditions than the operation accepts.
    #[error("more than one condition where one is allowed")]
    MultipleConditionHeadersNotSupported,
    /// The request is malformed: a read with `If-None-Match: *`.
    #[error("no object can satisfy the condition")]
    UnsatisfiableCondition,
}

/// One condition header.
#[derive(Clone, Copy)]
enum Condition<'a> {
    Match(&'a ETagPattern),
    NoneMatch(&'a ETagPattern),
    ModifiedSince(Timestamp),
    UnmodifiedSince(Timestamp),
}

impl Conditions {
    /// Evaluates the conditions of a read of an existing object.
    ///
    /// Since 2013-08-15 the result is `If-Match AND If-Unmodified-Since AND (If-None-Match OR
    /// If-Modified-Since)`, where absent headers are neutral.
    pub fn evaluate_read(&self, current: Validators, rules: ReadRules) -> Result<(), ConditionRefusal> {
        if self.forbids_existence() {
            return match rules {
                ReadRules::CombinedWithoutStar => Err(ConditionRefusal::UnsatisfiableCondition),
                ReadRules::Combined | ReadRules::Single => {
                    Self { if_none_match: None, ..self.clone() }.evaluate_read(current, rules)
                }
            };
        }
        if rules == ReadRules::Single {
            return match self.single()? {
                Some(condition) if !condition.met_by(current) => Err(condition.unmet_on_read()),
                _ => Ok(()),
            };
        }
        let [matched, none_matched, modified, unmodified] =
            self.headers().map(|header| header.map(|condition| condition.met_by(current)));
        if matched == Some(false) || unmodified == Some(false) {
            return Err(ConditionRefusal::ConditionNotMet);
        }
        match (none_matched, modified) {
            (None, None) | (Some(true), _) | (_, Some(true)) => Ok(()),
            _ => Err(ConditionRefusal::NotModified),
        }
    }

    /// Evaluates the conditions of a write to an existing object. Ignores `If-None-Match: *`, because the
    /// operation itself requires the object to exist.
    pub fn evaluate_write(&self, current: Validators) -> Result<(), ConditionRefusal> {
        match self.single()? {
            Some(Condition::NoneMatch(ETagPattern::Any)) | None => Ok(()),
            Some(condition) if condition.met_by(current) => Ok(()),
            Some(_) => Err(ConditionRefusal::ConditionNotMet),
        }
    }

    /// Evaluates the conditions of a write that creates or replaces the object. `by_holder` means that the
    /// request has the id of the object's active lease: the holder may replace the object despite
    /// `If-None-Match: *`.
    pub fn evaluate_create(
        &self,
        current: Option<Validators>,
        by_holder: bool,
    ) -> Result<(), ConditionRefusal> {
        match (self.single()?, current) {
            (Some(Condition::NoneMatch(ETagPattern::Any)), Some(_)) if !by_holder => {
                Err(ConditionRefusal::AlreadyExists)
            }
            (_, Some(current)) => self.evaluate_write(current),
            (Some(Condition::Match(_)), None) => Err(ConditionRefusal::ConditionNotMet),
            // There is no tag and no date to compare with.
            (_, None) => Ok(()),
        }
    }

    /// Checks that a write has at most one condition. The evaluations check it too; call this to refuse a
    /// malformed request before anything that depends on the object.
    pub fn check_write(&self) -> Result<(), ConditionRefusal> {
        self.single().map(|_| ())
    }

    fn forbids_existence(&self) -> bool {
        self.if_none_match.as_ref().is_some_and(ETagPattern::is_any)
    }

    /// Returns the headers in the order M, N, S, U.
    fn headers(&self) -> [Option<Condition<'_>>; 4] {
        [
            self.if_match.as_ref().map(Condition::Match),
            self.if_none_match.as_ref().map(Condition::NoneMatch),
            self.if_modified_since.map(Condition::ModifiedSince),
            self.if_unmodified_since.map(Condition::UnmodifiedSince),
        ]
    }

    /// Returns the one condition of a write. In headers of two allowed pairs the tag decides and the date is
    /// ignored.
    fn single(&self) -> Result<Option<Condition<'_>>, ConditionRefusal> {
        let condition = match self.headers() {
            [matched, None, None, None] => matched,
            [None, none_matched, None, None] => none_matched,
            [None, None, modified, None] => modified,
            [None, None, None, unmodified] => unmodified,
            [None, none_matched, Some(_), None] => none_matched,
            [matched, None, None, Some(_)] => matched,
            _ => return Err(ConditionRefusal::MultipleConditionHeadersNotSupported),
        };
        match condition {
            Some(Condition::Match(tags) | Condition::NoneMatch(tags)) if tags.is_list() => {
                Err(ConditionRefusal::MultipleConditionHeadersNotSupported)
            }
            condition => Ok(condition),
        }
    }
}

impl Condition<'_> {
    fn met_by(self, current: Validators) -> bool {
        let modified_since = |date: Timestamp| current.last_modified.whole_second() > date.whole_second();
        match self {
            Self::Match(tags) => tags.matches(&current.etag),
            Self::NoneMatch(tags) => !tags.matches(&current.etag),
            Self::ModifiedSince(date) => modified_since(date),
            Self::UnmodifiedSince(date) => !modified_since(date),
        }
    }

    const fn unmet_on_read(self) -> ConditionRefusal {
        match self {
            Self::Match(_) | Self::UnmodifiedSince(_) => ConditionRefusal::ConditionNotMet,
            Self::NoneMatch(_) | Self::ModifiedSince(_) => ConditionRefusal::NotModified,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stamp;
    use ConditionRefusal::*;

    /// The state of a header in a table row: absent, met by the current version, or not met.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum HeaderCase {
        Absent,
        Met,
        Unmet,
    }
    use HeaderCase::*;

    const ALL: [HeaderCase; 3] = [Absent, Met, Unmet];
    const CURRENT: Validators = Validators {
        etag: ETag::from_stamp(Stamp::from_ticks(0xA)),
        last_modified: Timestamp::from_unix_seconds(1000),
    };

    fn tags(header: &str) -> Option<ETagPattern> {
        Some(ETagPattern::parse(header))
    }

    fn at(seconds: u64) -> Option<Timestamp> {
        Some(Timestamp::from_unix_seconds(seconds))
    }

    fn pick<T>(header: HeaderCase, met: Option<T>, unmet: Option<T>) -> Option<T> {
        match header {
            Absent => None,
            Met => met,
            Unmet => unmet,
        }
    }

    /// Conditions in the order of the tables: M, U, N, S.
    fn conditions(m: HeaderCase, u: HeaderCase, n: HeaderCase, s: HeaderCase) -> Conditions {
        Conditions {
            if_match: pick(m, tags("0xA"), tags("0xB")),
            if_none_match: pick(n, tags("0xB"), tags("0xA")),
            if_modified_since: pick(s, at(999), at(1000)),
            if_unmodified_since: pick(u, at(1000), at(999)),
        }
    }

    fn read(conditions: &Conditions) -> Result<(), ConditionRefusal> {
        conditions.evaluate_read(CURRENT, ReadRules::CombinedWithoutStar)
    }

    #[test]
    fn reads_combine_conditions_as_in_the_table() {
        let fine = &[Absent, Met][..];
        //           M         U         N          S                 result
        let rows = [
            (&[Unmet][..], &ALL[..], &ALL[..], &ALL[..], Err(ConditionNotMet)),
            (&ALL[..], &[Unmet][..], &ALL[..], &ALL[..], Err(ConditionNotMet)),
            (fine, fine, &[Unmet], &[Unmet, Absent], Err(NotModified)),
            (fine, fine, &[Absent], &[Unmet], Err(NotModified)),
            (fine, fine, &[Met], &[Unmet], Ok(())),
            (fine, fine, &[Unmet], &[Met], Ok(())),
            // The table leaves out the case in which no header is unmet.
            (fine, fine, fine, fine, Ok(())),
        ];
        let mut combinations = 0;
        for (m, u, n, s) in every_combination() {
            let matching_rows: Vec<_> = rows
                .iter()
                .filter(|row| {
                    row.0.contains(&m) && row.1.contains(&u) && row.2.contains(&n) && row.3.contains(&s)
                })
                .collect();
            let expected =
                matching_rows.first().unwrap_or_else(|| panic!("no row for {m:?} {u:?} {n:?} {s:?}")).4;
            for rules in [ReadRules::Combined, ReadRules::CombinedWithoutStar] {
                let result = conditions(m, u, n, s).evaluate_read(CURRENT, rules);
                assert_eq!(result, expected, "M {m:?}, U {u:?}, N {n:?}, S {s:?}");
            }
            combinations += 1;
        }
        assert_eq!(combinations, 81);
    }

    fn every_combination() -> impl Iterator<Item = (HeaderCase, HeaderCase, HeaderCase, HeaderCase)> {
        ALL.into_iter().flat_map(|m| {
            ALL.into_iter().flat_map(move |u| {
                ALL.into_iter().flat_map(move |n| ALL.into_iter().map(move |s| (m, u, n, s)))
            })
        })
    }

    #[test]
    fn if_match_takes_any_tag_of_a_list_and_if_none_match_needs_all_to_differ() {
        let rows = [
            (tags("0xB, 0xA"), None, Ok(())),
            (tags("0xB, 0xC"), None, Err(ConditionNotMet)),
            (tags("*"), None, Ok(())),
            (tags("unknown"), None, Err(ConditionNotMet)),
            (None, tags("0xB, 0xC"), Ok(())),
            (None, tags("0xB, 0xA"), Err(NotModified)),
            (None, tags("unknown"), Ok(())),
        ];
        for (if_match, if_none_match, expected) in rows {
            let conditions = Conditions { if_match, if_none_match, ..Conditions::default() };
            assert_eq!(read(&conditions), expected, "{conditions:?}");
        }
    }

    #[test]
    fn dates_are_compared_to_the_second() {
        let half_past =
            Validators { last_modified: Timestamp::from_unix_nanos(1_000_500_000_000).unwrap(), ..CURRENT };
        // Columns: date, modified since, unmodified since.
        let rows = [(999, true, false), (1000, false, true), (1001, false, true)];
        for (date, modified, unmodified) in rows {
            let since = Conditions { if_modified_since: at(date), ..Conditions::default() };
            let until = Conditions { if_unmodified_since: at(date), ..Conditions::default() };
            assert_eq!(since.evaluate_write(half_past).is_ok(), modified, "{date}");
            assert_eq!(until.evaluate_write(half_past).is_ok(), unmodified, "{date}");
        }
    }

    #[test]
    fn result_of_a_read_with_if_none_match_star_depends_on_the_version() {
        let star = Conditions { if_none_match: tags("*"), ..Conditions::default() };
        let star_and_unmet = Conditions { if_match: tags("0xB"), ..star.clone() };
        let rows = [
            (ReadRules::Single, Ok(()), Err(ConditionNotMet)),
            (ReadRules::Combined, Ok(()), Err(ConditionNotMet)),
            (ReadRules::CombinedWithoutStar, Err(UnsatisfiableCondition), Err(UnsatisfiableCondition)),
        ];
        for (rules, alone, with_unmet_match) in rows {
            assert_eq!(star.evaluate_read(CURRENT, rules), alone, "{rules:?}");
            assert_eq!(star_and_unmet.evaluate_read(CURRENT, rules), with_unmet_match, "{rules:?}");
        }
    }

    /// Returns which of the four headers decides about a write, or the refusal if there are too many.
    fn deciding_header(
        m: HeaderCase,
        u: HeaderCase,
        n: HeaderCase,
        s: HeaderCase,
    ) -> Result<HeaderCase, ConditionRefusal> {
        match [m, u, n, s].map(|header| header != Absent) {
            [_, false, false, false] | [true, true, false, false] => Ok(m),
            [false, true, false, false] => Ok(u),
            [false, false, true, _] => Ok(n),
            [false, false, false, true] => Ok(s),
            _ => Err(MultipleConditionHeadersNotSupported),
        }
    }

    #[test]
    fn writes_take_one_header_or_the_pairs_in_which_the_tag_decides() {
        for (m, u, n, s) in every_combination() {
            let conditions = conditions(m, u, n, s);
            let expected = match deciding_header(m, u, n, s) {
                Ok(Unmet) => Err(ConditionNotMet),
                decided => decided.map(|_| ()),
            };
            assert_eq!(conditions.evaluate_write(CURRENT), expected, "M {m:?}, U {u:?}, N {n:?}, S {s:?}");
            assert_eq!(conditions.evaluate_create(Some(CURRENT), false), expected, "{conditions:?}");
            assert_eq!(conditions.check_write(), deciding_header(m, u, n, s).map(|_| ()), "{conditions:?}");
        }
    }

    #[test]
    fn reads_before_2013_08_15_take_one_condition_with_the_answers_of_a_read() {
        for (m, u, n, s) in every_combination() {
            let expected = match deciding_header(m, u, n, s) {
                Ok(Unmet) if n != Absent || s != Absent => Err(NotModified),
                Ok(Unmet) => Err(ConditionNotMet),
                decided => decided.map(|_| ()),
            };
            let result = conditions(m, u, n, s).evaluate_read(CURRENT, ReadRules::Single);
            assert_eq!(result, expected, "M {m:?}, U {u:?}, N {n:?}, S {s:?}");
        }
    }

    #[test]
    fn write_refuses_a_list_of_tags() {
        for list in ["0xA, 0xB", "unknown, 0xA"] {
            let matching = Conditions { if_match: tags(list), ..Conditions::default() };
            let none_matching = Conditions { if_none_match: tags(list), ..Conditions::default() };
            for conditions in [matching, none_matching] {
                assert_eq!(conditions.evaluate_write(CURRENT), Err(MultipleConditionHeadersNotSupported));
                assert_eq!(
                    conditions.evaluate_create(None, false),
                    Err(MultipleConditionHeadersNotSupported)
                );
                let old = conditions.evaluate_read(CURRENT, ReadRules::Single);
                assert_eq!(old, Err(MultipleConditionHeadersNotSupported));
            }
        }
    }

    #[test]
    fn writes_and_creates_answer_as_in_the_table() {
        let star = Conditions { if_none_match: tags("*"), ..Conditions::default() };
        let star_and_date = Conditions { if_modified_since: at(1000), ..star.clone() };
        let matching = Conditions { if_match: tags("0xA"), ..Conditions::default() };
        let matching_any = Conditions { if_match: tags("*"), ..Conditions::default() };
        let matching_unknown = Conditions { if_match: tags("\"someone else's\""), ..Conditions::default() };
        let none_matching = Conditions { if_none_match: tags("0xA"), ..Conditions::default() };
        let modified = Conditions { if_modified_since: at(1000), ..Conditions::default() };
        let unmodified = Conditions { if_unmodified_since: at(999), ..Conditions::default() };
        let match_and_date =
            Conditions { if_match: tags("0xA"), if_unmodified_since: at(999), ..Conditions::default() };
        let none = Conditions::default();
        let unmet = Err(ConditionNotMet);
        // conditions, create over an existing object, the same by the lease's holder, create anew, write to
        // an existing object
        let rows = [
            (&none, Ok(()), Ok(()), Ok(()), Ok(())),
            (&star, Err(AlreadyExists), Ok(()), Ok(()), Ok(())),
            (&star_and_date, Err(AlreadyExists), Ok(()), Ok(()), Ok(())),
            (&matching, Ok(()), Ok(()), unmet, Ok(())),
            (&matching_any, Ok(()), Ok(()), unmet, Ok(())),
            (&matching_unknown, unmet, unmet, unmet, unmet),
            (&none_matching, unmet, unmet, Ok(()), unmet),
            (&modified, unmet, unmet, Ok(()), unmet),
            (&unmodified, unmet, unmet, Ok(()), unmet),
            (&match_and_date, Ok(()), Ok(()), unmet, Ok(())),
        ];
        for (conditions, over, by_holder, anew, write) in rows {
            assert_eq!(conditions.evaluate_create(Some(CURRENT), false), over, "over: {conditions:?}");
            assert_eq!(
                conditions.evaluate_create(Some(CURRENT), true),
                by_holder,
                "by holder: {conditions:?}"
            );
            assert_eq!(conditions.evaluate_create(None, false), anew, "anew: {conditions:?}");
            assert_eq!(conditions.evaluate_write(CURRENT), write, "write: {conditions:?}");
        }
    }
}
