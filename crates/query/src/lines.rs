//! Where the values of a stream of JSON begin and end.
//!
//! Values follow each other with white space, the record separator or nothing in between. An array that is not within
//! another value is no record itself: its items are. Whether a value is one is left to the parser; here it ends where its
//! brackets do, so its text can be given to one.

use std::ops::Range;

/// What a piece of a stream begins with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing yet. So many bytes need not be kept.
    More { passed: usize },
    /// A value lies there; so many bytes are done with.
    Value { at: Range<usize>, passed: usize },
    /// The byte there cannot begin a value.
    Unexpected { at: usize },
    /// The stream ends within a value.
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Brackets { depth: usize },
    Text,
    Word,
}

/// Finds the values of a stream.
#[derive(Debug)]
pub(crate) struct ValueReader {
    separator: Vec<u8>,
    /// How far has been looked.
    at: usize,
    /// Where the value begins that is being looked at, and what it is.
    value: Option<(usize, Kind)>,
    in_text: bool,
    in_array: bool,
}

impl ValueReader {
    pub(crate) fn new(separator: &str) -> Self {
        let separator = separator.as_bytes().to_vec();
        Self { separator, at: 0, value: None, in_text: false, in_array: false }
    }

    /// Where the value begins that is being looked at.
    pub(crate) fn begun_at(&self) -> Option<usize> {
        self.value.map(|(start, _)| start)
    }

    /// How long the value is at least that is being looked at.
    pub(crate) fn looked_at(&self) -> usize {
        self.value.map_or(0, |(start, _)| self.at - start)
    }

    /// The value that `buffer` begins with, of which the caller then takes away what is passed. Otherwise `buffer`
    /// begins where it did before.
    pub(crate) fn next(&mut self, buffer: &[u8], last: bool) -> Found {
        loop {
            let found = match self.value {
                None => self.begin(buffer, last),
                Some((start, kind)) => self.go_on(buffer, last, start, kind),
            };
            if let Some(found) = found {
                if let Found::More { passed } | Found::Value { passed, .. } = &found {
                    self.at -= passed;
                }
                return found;
            }
        }
    }

    /// Looks for the beginning of a value.
    fn begin(&mut self, buffer: &[u8], last: bool) -> Option<Found> {
        let rest = &buffer[self.at..];
        let Some(byte) = rest.first() else { return Some(Found::More { passed: self.at }) };
        let kind = match byte {
            b' ' | b'\t' | b'\r' | b'\n' | 0x1e => {
                self.at += 1;
                return None;
            }
            b'{' => Kind::Brackets { depth: 0 },
            b'[' if self.in_array => Kind::Brackets { depth: 0 },
            b'[' => {
                (self.at, self.in_array) = (self.at + 1, true);
                return None;
            }
            b'"' => Kind::Text,
            _ if !self.separator.is_empty()
                && self.separator.starts_with(&rest[..rest.len().min(self.separator.len())]) =>
            {
                if rest.len() >= self.separator.len() {
                    self.at += self.separator.len();
                    return None;
                }
                return Some(if last { Found::Cut } else { Found::More { passed: self.at } });
            }
            b',' if self.in_array => {
                self.at += 1;
                return None;
            }
            b']' if self.in_array => {
                (self.at, self.in_array) = (self.at + 1, false);
                return None;
            }
            b',' | b':' | b']' | b'}' => return Some(Found::Unexpected { at: self.at }),
            _ => Kind::Word,
        };
        self.value = Some((self.at, kind));
        self.in_text = false;
        None
    }

    /// Looks for the end of a value.
    fn go_on(&mut self, buffer: &[u8], last: bool, start: usize, kind: Kind) -> Option<Found> {
        let Some(byte) = buffer.get(self.at) else {
            return Some(match kind {
                Kind::Word if last => self.end(start),
                _ if last => Found::Cut,
                _ => Found::More { passed: 0 },
            });
        };
        if kind == Kind::Word {
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
            (Kind::Brackets { depth }, b'{' | b'[') => depth + 1,
            (Kind::Brackets { depth }, b'}' | b']') => depth.saturating_sub(1),
            _ => return None,
        };
        self.value = Some((start, Kind::Brackets { depth }));
        (depth == 0).then(|| self.end(start))
    }

    fn go_on_in_text(&mut self, buffer: &[u8], last: bool, start: usize, kind: Kind) -> Option<Found> {
        let end = buffer[self.at..].iter().position(|byte| matches!(byte, b'"' | b'\\'));
        self.at = end.map_or(buffer.len(), |end| self.at + end);
        match buffer.get(self.at..) {
            // What is escaped may come with the next piece.
            Some([b'\\']) if !last => Some(Found::More { passed: 0 }),
            Some([b'\\', ..]) => {
                self.at = (self.at + 2).min(buffer.len());
                None
            }
            Some([b'"', ..]) => {
                self.at += 1;
                self.in_text = false;
                (kind == Kind::Text).then(|| self.end(start))
            }
            _ => Some(if last { Found::Cut } else { Found::More { passed: 0 } }),
        }
    }

    fn end(&mut self, start: usize) -> Found {
        self.value = None;
        Found::Value { at: start..self.at, passed: self.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of a text, fed in pieces of that size, and how it ends.
    fn read(separator: &str, text: &str, piece: usize) -> (Vec<String>, Option<Found>) {
        let mut reader = ValueReader::new(separator);
        let (mut buffer, mut values, mut position) = (vec![], vec![], 0);
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(piece).collect();
        for at in 0..=pieces.len() {
            buffer.extend_from_slice(pieces.get(at).copied().unwrap_or_default());
            loop {
                let passed = match reader.next(&buffer, at == pieces.len()) {
                    Found::Value { at, passed } => {
                        values.push(String::from_utf8(buffer[at].to_vec()).unwrap());
                        passed
                    }
                    Found::More { passed } => {
                        buffer.drain(..passed);
                        position += passed;
                        break;
                    }
                    Found::Unexpected { at } => {
                        return (values, Some(Found::Unexpected { at: position + at }));
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
    fn values_end_where_their_brackets_do() {
        let rows: [(&str, &str, &[&str], Option<Found>); 15] = [
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
            ("\n", "100,200", &["100"], Some(Found::Unexpected { at: 3 })),
            ("\n", "{}}", &["{}"], Some(Found::Unexpected { at: 2 })),
            ("\n", "{\"a\":", &[], Some(Found::Cut)),
            ("\n", "\"a", &[], Some(Found::Cut)),
            ("\n", "\"a\\", &[], Some(Found::Cut)),
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
