//! Finds the boundaries of the values in a stream of JSON.
//!
//! Values are separated by white space, by the record separator, or not at all. A top-level array is not a
//! record: its items are. This module does not check whether a value is valid JSON. A value ends where its
//! brackets are balanced, and the parser then checks its text.

use std::ops::Range;

/// The result of looking for the next value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ValueSearch {
    /// No complete value yet. The first `passed` bytes of the buffer are no longer needed.
    More { passed: usize },
    /// A value. The first `passed` bytes of the buffer end with it.
    Value { at: Range<usize>, passed: usize },
    /// The byte at this position cannot begin a value.
    Unexpected { at: usize },
    /// The stream ends within a value.
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    Brackets { depth: usize },
    Text,
    Word,
}

/// Finds the values of a stream.
#[derive(Debug)]
pub(crate) struct ValueReader {
    separator: Vec<u8>,
    /// Offset in the buffer up to which all bytes were examined.
    at: usize,
    /// Start and kind of the current value.
    value: Option<(usize, ValueKind)>,
    in_text: bool,
    in_array: bool,
}

impl ValueReader {
    pub(crate) fn new(separator: &str) -> Self {
        let separator = separator.as_bytes().to_vec();
        Self { separator, at: 0, value: None, in_text: false, in_array: false }
    }

    /// Returns the start of the current value.
    pub(crate) fn begun_at(&self) -> Option<usize> {
        self.value.map(|(start, _)| start)
    }

    /// Returns how many bytes of the current value were examined.
    pub(crate) fn looked_at(&self) -> usize {
        self.value.map_or(0, |(start, _)| self.at - start)
    }

    /// Looks for the next value in `buffer`. The caller then removes the passed bytes, if any, so that the
    /// buffer otherwise begins where it did before.
    pub(crate) fn next(&mut self, buffer: &[u8], last: bool) -> ValueSearch {
        loop {
            let found = match self.value {
                None => self.begin(buffer, last),
                Some((start, kind)) => self.go_on(buffer, last, start, kind),
            };
            if let Some(found) = found {
                if let ValueSearch::More { passed } | ValueSearch::Value { passed, .. } = &found {
                    self.at -= passed;
                }
                return found;
            }
        }
    }

    /// Looks for the beginning of a value.
    fn begin(&mut self, buffer: &[u8], last: bool) -> Option<ValueSearch> {
        let rest = &buffer[self.at..];
        let Some(byte) = rest.first() else { return Some(ValueSearch::More { passed: self.at }) };
        let kind = match byte {
            b' ' | b'\t' | b'\r' | b'\n' | 0x1e => {
                self.at += 1;
                return None;
            }
            b'{' => ValueKind::Brackets { depth: 0 },
            b'[' if self.in_array => ValueKind::Brackets { depth: 0 },
            b'[' => {
                (self.at, self.in_array) = (self.at + 1, true);
                return None;
            }
            b'"' => ValueKind::Text,
            _ if !self.separator.is_empty()
                && self.separator.starts_with(&rest[..rest.len().min(self.separator.len())]) =>
            {
                if rest.len() >= self.separator.len() {
                    self.at += self.separator.len();
                    return None;
                }
                return Some(if last { ValueSearch::Cut } else { ValueSearch::More { passed: self.at } });
            }
            b',' if self.in_array => {
                self.at += 1;
                return None;
            }
            b']' if self.in_array => {
                (self.at, self.in_array) = (self.at + 1, false);
                return None;
            }
            b',' | b':' | b']' | b'}' => return Some(ValueSearch::Unexpected { at: self.at }),
            _ => ValueKind::Word,
        };
        self.value = Some((self.at, kind));
        self.in_text = false;
        None
    }

    /// Looks for the end of the current value.
    fn go_on(&mut self, buffer: &[u8], last: bool, start: usize, kind: ValueKind) -> Option<ValueSearch> {
        let Some(byte) = buffer.get(self.at) else {
            return Some(match kind {
                ValueKind::Word if last => self.end(start),
                _ if last => ValueSearch::Cut,
                _ => ValueSearch::More { passed: 0 },
            });
        };
        if kind == ValueKind::Word {
            let ends = byte.is_ascii_whitespace()
                || b",:[]{}\"\x1e".contains(byte)
                || (self.at > start && self.separator.first() == Some(byte));
            if ends {
                return Some(self.end(start));
            }
            self.at += 1;
            return None;
        }
        if self.in_text {
            return self.go_on_in_text(buffer, last, start, kind);
        }
        self.at += 1;
        let depth = match (kind, byte) {
            (_, b'"') => {
                self.in_text = true;
                return None;
            }
            (ValueKind::Brackets { depth }, b'{' | b'[') => depth + 1,
            (ValueKind::Brackets { depth }, b'}' | b']') => depth.saturating_sub(1),
            _ => return None,
        };
        self.value = Some((start, ValueKind::Brackets { depth }));
        (depth == 0).then(|| self.end(start))
    }

    fn go_on_in_text(
        &mut self,
        buffer: &[u8],
        last: bool,
        start: usize,
        kind: ValueKind,
    ) -> Option<ValueSearch> {
        let end = buffer[self.at..].iter().position(|byte| matches!(byte, b'"' | b'\\'));
        self.at = end.map_or(buffer.len(), |end| self.at + end);
        match buffer.get(self.at..) {
            // The escaped character may be in the next part.
            Some([b'\\']) if !last => Some(ValueSearch::More { passed: 0 }),
            Some([b'\\', ..]) => {
                self.at = (self.at + 2).min(buffer.len());
                None
            }
            Some([b'"', ..]) => {
                self.at += 1;
                self.in_text = false;
                (kind == ValueKind::Text).then(|| self.end(start))
            }
            _ => Some(if last { ValueSearch::Cut } else { ValueSearch::More { passed: 0 } }),
        }
    }

    fn end(&mut self, start: usize) -> ValueSearch {
        self.value = None;
        ValueSearch::Value { at: start..self.at, passed: self.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the values of a text that arrives in parts of `piece` bytes, and how the stream ends.
    fn read(separator: &str, text: &str, piece: usize) -> (Vec<String>, Option<ValueSearch>) {
        let mut reader = ValueReader::new(separator);
        let (mut buffer, mut values, mut position) = (vec![], vec![], 0);
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(piece).collect();
        for at in 0..=pieces.len() {
            buffer.extend_from_slice(pieces.get(at).copied().unwrap_or_default());
            loop {
                let passed = match reader.next(&buffer, at == pieces.len()) {
                    ValueSearch::Value { at, passed } => {
                        values.push(String::from_utf8(buffer[at].to_vec()).unwrap());
                        passed
                    }
                    ValueSearch::More { passed } => {
                        buffer.drain(..passed);
                        position += passed;
                        break;
                    }
                    ValueSearch::Unexpected { at } => {
                        return (values, Some(ValueSearch::Unexpected { at: position + at }));
                    }
                    found => return (values, Some(found)),
                };
                buffer.drain(..passed);
                position += passed;
            }
        }
        (values, None)
    }

    #[test]
    fn values_end_where_their_brackets_are_balanced() {
        let rows: [(&str, &str, &[&str], Option<ValueSearch>); 15] = [
            ("\n", "", &[], None),
            ("\n", " \n ", &[], None),
            ("\n", "{\"a\":1}\n{\"a\":2}", &["{\"a\":1}", "{\"a\":2}"], None),
            ("\n", "{\"a\":1}{}{\"b\":[{}]}", &["{\"a\":1}", "{}", "{\"b\":[{}]}"], None),
            (";", "{};{} ; {}", &["{}", "{}", "{}"], None),
            ("--", "{}--1--\"x\"", &["{}", "1", "\"x\""], None),
            ("\n", "{\"a}\":\"\\\"}\\\\\"}1", &["{\"a}\":\"\\\"}\\\\\"}", "1"], None),
            ("\n", "[{\"a\":1}, 2 ,[3,[4]]]\n{}", &["{\"a\":1}", "2", "[3,[4]]", "{}"], None),
            ("\n", "true null 1.5", &["true", "null", "1.5"], None),
            ("\n", "{name: owner}", &["{name: owner}"], None),
            ("\n", "100,200", &["100"], Some(ValueSearch::Unexpected { at: 3 })),
            ("\n", "{}}", &["{}"], Some(ValueSearch::Unexpected { at: 2 })),
            ("\n", "{\"a\":", &[], Some(ValueSearch::Cut)),
            ("\n", "\"a", &[], Some(ValueSearch::Cut)),
            ("\n", "\"a\\", &[], Some(ValueSearch::Cut)),
        ];
        for (separator, text, values, end) in rows {
            for piece in [1, 2, 3, 1000] {
                let (found, how) = read(separator, text, piece);
                assert_eq!(
                    (found.as_slice(), &how),
                    (values.iter().map(|v| v.to_string()).collect::<Vec<_>>().as_slice(), &end),
                    "{text:?} by {piece}"
                );
            }
        }
    }
}
