//! Wildcards of directory listings, with the semantics of Windows file systems. Matching ignores case.
//!
//! `*` and `?` have their usual meaning. Clients translate the patterns of DOS programs to three more
//! characters: `<` is a `*` that stops before the last dot of the name, `>` is a `?` that also matches
//! nothing before a dot or at the end, and `"` matches a dot or the end.

use lazuli_file::fold_name;

/// Maximum length of a pattern in characters. The longest name has a quarter of that.
const MAX_PATTERN: usize = 1024;

/// A pattern, folded for comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<char>);

impl Pattern {
    /// Parses a pattern. Returns `None` if it is empty, too long, or contains a separator or NUL.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let folded: Vec<char> = fold_name(text).chars().collect();
        let is_valid = !folded.is_empty() && folded.len() <= MAX_PATTERN;
        (is_valid && !text.contains(['/', '\\', '\0'])).then_some(Self(folded))
    }

    /// Returns the folded name that the pattern matches if it has no wildcards.
    pub(crate) fn literal(&self) -> Option<String> {
        let is_wild = |c: &char| matches!(c, '*' | '?' | '<' | '>' | '"');
        (!self.0.iter().any(is_wild)).then(|| self.0.iter().collect())
    }

    /// Returns whether a name matches.
    pub(crate) fn matches(&self, name: &str) -> bool {
        if self.0 == ['*'] {
            return true;
        }
        let name: Vec<char> = fold_name(name).chars().collect();
        let last_dot = name.iter().rposition(|c| *c == '.');
        // Whether each prefix of the pattern matches the characters of the name that were read so far.
        let mut reached = vec![false; self.0.len() + 1];
        reached[0] = true;
        self.skip_optional(&mut reached, None);
        for (at, read) in name.iter().enumerate() {
            let mut next = vec![false; self.0.len() + 1];
            for (position, expected) in self.0.iter().enumerate().filter(|(position, _)| reached[*position]) {
                match expected {
                    '*' => next[position] = true,
                    '<' if *read != '.' || Some(at) != last_dot => next[position] = true,
                    '?' => next[position + 1] = true,
                    '>' if *read != '.' => next[position + 1] = true,
                    '"' if *read == '.' => next[position + 1] = true,
                    other if other == read => next[position + 1] = true,
                    _ => {}
                }
            }
            reached = next;
            self.skip_optional(&mut reached, name.get(at + 1));
        }
        reached[self.0.len()]
    }

    /// Extends `reached` over pattern characters that may match nothing before the character `next`, or at
    /// the end of the name.
    fn skip_optional(&self, reached: &mut [bool], next: Option<&char>) {
        for (position, expected) in self.0.iter().enumerate() {
            let may_be_nothing = match expected {
                '*' | '<' => true,
                '>' => matches!(next, None | Some('.')),
                '"' => next.is_none(),
                _ => false,
            };
            if reached[position] && may_be_nothing {
                reached[position + 1] = true;
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
    fn a_pattern_of_many_stars_needs_no_backtracking() {
        let pattern = Pattern::parse(&"*a".repeat(100)).unwrap();
        assert!(pattern.matches(&"a".repeat(200)));
        assert!(!pattern.matches(&"a".repeat(99)));
    }

    #[test]
    fn invalid_patterns_are_refused_and_literal_names_are_recognized() {
        for text in ["", "a/b", "a\\b", "a\0", &"x".repeat(1025)] {
            assert_eq!(Pattern::parse(text), None, "{text:?}");
        }
        assert_eq!(Pattern::parse("Name.txt").unwrap().literal(), Some("NAME.TXT".into()));
        for text in ["*", "a?", "a<", "a>", "a\""] {
            assert_eq!(Pattern::parse(text).unwrap().literal(), None);
        }
    }
}
