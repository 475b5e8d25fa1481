//! Wildcards of directory listings, as the file system of Windows understands them. Case does not count.
//!
//! `*` and `?` are what they are everywhere. Clients turn what DOS programs ask for into three more: `<` is a `*` that stops
//! before the last dot of the name, `>` is a `?` that also matches nothing before a dot or at the end, and `"` is a dot
//! or the end.

use lazuli_file::fold_name;

/// The longest pattern, in characters. No name is longer than a quarter of it.
const MAX_PATTERN: usize = 1024;

/// A pattern that names are matched with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<char>);

impl Pattern {
    /// The pattern of that text, if it can be one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let folded: Vec<char> = fold_name(text).chars().collect();
        let is_good = !folded.is_empty() && folded.len() <= MAX_PATTERN;
        (is_good && !text.contains(['/', '\\', '\0'])).then_some(Self(folded))
    }

    /// The folded name that alone can match, if there are no wildcards.
    pub(crate) fn literal(&self) -> Option<String> {
        let is_wild = |c: &char| matches!(c, '*' | '?' | '<' | '>' | '"');
        (!self.0.iter().any(is_wild)).then(|| self.0.iter().collect())
    }

    /// Whether a name matches.
    pub(crate) fn matches(&self, name: &str) -> bool {
        if self.0 == ['*'] {
            return true;
        }
        let name: Vec<char> = fold_name(name).chars().collect();
        let last_dot = name.iter().rposition(|c| *c == '.');
        // Which beginnings of the pattern match the part of the name that has been read.
        let mut reached = vec![false; self.0.len() + 1];
        reached[0] = true;
        self.pass_over(&mut reached, None);
        for (at, read) in name.iter().enumerate() {
            let mut next = vec![false; self.0.len() + 1];
            for (place, wanted) in self.0.iter().enumerate().filter(|(place, _)| reached[*place]) {
                match wanted {
                    '*' => next[place] = true,
                    '<' if *read != '.' || Some(at) != last_dot => next[place] = true,
                    '?' => next[place + 1] = true,
                    '>' if *read != '.' => next[place + 1] = true,
                    '"' if *read == '.' => next[place + 1] = true,
                    other if other == read => next[place + 1] = true,
                    _ => {}
                }
            }
            reached = next;
            self.pass_over(&mut reached, name.get(at + 1));
        }
        reached[self.0.len()]
    }

    /// Goes over what may match nothing, before the next character or at the end of the name.
    fn pass_over(&self, reached: &mut [bool], next: Option<&char>) {
        for (place, wanted) in self.0.iter().enumerate() {
            let may_be_nothing = match wanted {
                '*' | '<' => true,
                '>' => matches!(next, None | Some('.')),
                '"' => next.is_none(),
                _ => false,
            };
            if reached[place] && may_be_nothing {
                reached[place + 1] = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns_as_on_windows() {
        for (pattern, matching, others) in [
            ("*", &["a", "a.b", ".", ""][..], &[][..]),
            ("*.*", &["a.b", ".", "a.b.c"], &["a"]),
            ("?", &["a", "Ü"], &["", "ab"]),
            ("a?c*", &["abc", "ABCd", "axc.txt"], &["ac", "bbc"]),
            ("*.txt", &["a.txt", "A.TXT", ".txt", "a.b.txt"], &["a.txt2", "txt"]),
            ("<.txt", &["a.txt", "a.b.txt"], &["a.txt.b", "a"]),
            ("<.b", &["a.b", "a.a.b"], &["a.b.c"]),
            ("<", &["a", "abc"], &["a.b"]),
            ("<\"*", &["a", "a.b", "a.b.c"], &[]),
            ("t>>>>>>>.txt", &["t.txt", "t12.txt", "t1234567.txt"], &["t12345678.txt", "x.txt"]),
            (">>>\">>>", &["a", "abc", "a.b", "abc.def"], &["abcd", "a.bcde", "a.b.c"]),
            ("foo\"", &["foo", "foo.", "FOO"], &["foo.a", "fo"]),
            ("file", &["file", "FILE"], &["file.txt", "fil"]),
        ] {
            let parsed = Pattern::parse(pattern).unwrap();
            for name in matching {
                assert!(parsed.matches(name), "{pattern:?} {name:?}");
            }
            for name in others {
                assert!(!parsed.matches(name), "{pattern:?} {name:?}");
            }
        }
    }

    #[test]
    fn a_pattern_of_stars_takes_no_longer_than_any_other() {
        let pattern = Pattern::parse(&"*a".repeat(100)).unwrap();
        assert!(pattern.matches(&"a".repeat(200)));
        assert!(!pattern.matches(&"a".repeat(99)));
    }

    #[test]
    fn what_can_be_no_pattern_is_refused_and_a_name_is_known_for_one() {
        for text in ["", "a/b", "a\\b", "a\0", &"x".repeat(1025)] {
            assert_eq!(Pattern::parse(text), None, "{text:?}");
        }
        assert_eq!(Pattern::parse("Name.txt").unwrap().literal(), Some("NAME.TXT".into()));
        for text in ["*", "a?", "a<", "a>", "a\""] {
            assert_eq!(Pattern::parse(text).unwrap().literal(), None);
        }
    }
}
