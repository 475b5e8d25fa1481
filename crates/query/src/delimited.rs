//! Delimited text: its dialect, the ends of its records, and its fields.
//!
//! A quote at the beginning of a field opens a quoted section; any other quote is text. Within quotes, a
//! doubled quote stands for one, and separators are text. An escape character makes the next character text,
//! within quotes and without. If records end with a line feed, a carriage return before it belongs to the
//! separator. Empty records are skipped.
//!
//! The reader decides at each byte only when all bytes are available on which the decision can depend. So the
//! result does not depend on how the input is split into parts. The reader keeps its position and examines no
//! byte twice.

use std::borrow::Cow;
use std::ops::Range;

/// Maximum size of a record in bytes.
pub const MAX_RECORD: usize = 1 << 20;
/// Maximum length of a separator in bytes.
const MAX_SEPARATOR: usize = 8;
/// Maximum number of bytes that a decision depends on: a separator, two quotes, or an escape and the
/// escaped character.
const LOOKAHEAD: usize = 8;

/// The dialect of delimited text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delimited {
    pub(crate) column_separator: String,
    pub(crate) record_separator: String,
    pub(crate) quote: Option<char>,
    pub(crate) escape: Option<char>,
    pub(crate) has_headers: bool,
}

impl Default for Delimited {
    fn default() -> Self {
        Self {
            column_separator: ",".to_owned(),
            record_separator: "\n".to_owned(),
            quote: Some('"'),
            escape: None,
            has_headers: false,
        }
    }
}

impl Delimited {
    /// Sets the separators. Empty ones stand for the defaults. Returns `None` if one is too long.
    pub fn separated_by(self, column: &str, record: &str) -> Option<Self> {
        let or = |given: &str, default_dialect: &str| {
            if given.is_empty() { default_dialect } else { given }.to_owned()
        };
        let (column_separator, record_separator) = (or(column, ","), or(record, "\n"));
        let fits = column_separator.len().max(record_separator.len()) <= MAX_SEPARATOR;
        fits.then_some(Self { column_separator, record_separator, ..self })
    }

    /// Sets the character around fields that contain separators.
    #[must_use]
    pub fn quoted(self, quote: Option<char>) -> Self {
        Self { quote, ..self }
    }

    /// Sets the character that makes the next one text.
    #[must_use]
    pub fn escaped(self, escape: Option<char>) -> Self {
        Self { escape, ..self }
    }

    /// Sets whether the first record contains the column names.
    #[must_use]
    pub fn with_headers(self, has_headers: bool) -> Self {
        Self { has_headers, ..self }
    }
}

/// The position of a field in its record. A record is longer than [`MAX_RECORD`] by at most a few bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
    /// Whether the field begins with a quote.
    quoted: bool,
    /// Whether the field contains escapes or doubled quotes, so that its value is not a part of the record.
    marked: bool,
}

impl Span {
    fn from(start: usize) -> Self {
        Self { start: start as u32, ..Self::default() }
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(crate) fn is_blank(self) -> bool {
        self.start == self.end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldState {
    FieldStart,
    Plain,
    Quoted,
}

/// Finds the ends of records and fields.
#[derive(Debug)]
pub(crate) struct DelimitedReader {
    dialect: Delimited,
    quote: String,
    escape: String,
    /// The bytes that begin a separator, a quote or an escape.
    special: [bool; 256],
    state: FieldState,
    /// Offset in the record up to which all bytes were examined.
    at: usize,
    field: Span,
    spans: Vec<Span>,
}

impl DelimitedReader {
    pub(crate) fn new(dialect: Delimited) -> Self {
        let text = |character: Option<char>| character.map(String::from).unwrap_or_default();
        let (quote, escape) = (text(dialect.quote), text(dialect.escape));
        let mut special = [false; 256];
        for mark in [&dialect.column_separator, &dialect.record_separator, &quote, &escape] {
            if let Some(first) = mark.bytes().next() {
                special[usize::from(first)] = true;
            }
        }
        let (state, field) = (FieldState::FieldStart, Span::default());
        Self { dialect, quote, escape, special, state, at: 0, field, spans: vec![] }
    }

    pub(crate) fn dialect(&self) -> &Delimited {
        &self.dialect
    }

    /// Returns the fields of the last record.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns how many bytes of the current record were examined.
    pub(crate) fn looked_at(&self) -> usize {
        self.at
    }

    /// Returns the length of the record at the start of `buffer`, including its separator. Returns `None` if
    /// more bytes are needed or no record is left. `buffer` must begin at the same position until a record
    /// was found, which the caller then removes.
    pub(crate) fn next(&mut self, buffer: &[u8], last: bool) -> Option<usize> {
        if self.at == 0 {
            self.spans.clear();
            self.state = FieldState::FieldStart;
            self.field = Span::default();
        }
        // Stop at the maximum size: the fields of a longer record could fill the memory.
        while self.at <= MAX_RECORD {
            if self.state != FieldState::FieldStart {
                let plain = buffer[self.at..].iter().position(|byte| self.special[usize::from(*byte)]);
                self.at = plain.map_or(buffer.len(), |plain| self.at + plain);
            }
            let rest = &buffer[self.at..];
            if rest.is_empty() && last {
                return self.end_of_input();
            }
            if rest.is_empty() || (!last && rest.len() < LOOKAHEAD) {
                return None;
            }
            if self.is_end_of_record(rest) {
                self.end_field(buffer, self.dialect.record_separator == "\n");
                let length = self.at + self.dialect.record_separator.len();
                self.at = 0;
                return Some(length);
            }
            self.pass(buffer);
        }
        None
    }

    fn is_end_of_record(&self, rest: &[u8]) -> bool {
        self.state != FieldState::Quoted && rest.starts_with(self.dialect.record_separator.as_bytes())
    }

    fn end_of_input(&mut self) -> Option<usize> {
        let length = self.at;
        if length == 0 {
            return None;
        }
        self.field.end = length as u32;
        self.spans.push(self.field);
        self.at = 0;
        Some(length)
    }

    fn end_field(&mut self, buffer: &[u8], strip: bool) {
        let strip = strip && self.at > self.field.start as usize && buffer.get(self.at - 1) == Some(&b'\r');
        self.field.end = (self.at - usize::from(strip)) as u32;
        self.spans.push(self.field);
    }

    /// Moves past the next bytes, which do not end the record.
    fn pass(&mut self, buffer: &[u8]) {
        let rest = &buffer[self.at..];
        let (quote, escape) = (self.quote.as_bytes(), self.escape.as_bytes());
        let is_quote = !quote.is_empty() && rest.starts_with(quote);
        let is_escape = !escape.is_empty() && escape != quote && rest.starts_with(escape);
        match self.state {
            FieldState::FieldStart if is_quote => {
                self.field.quoted = true;
                self.state = FieldState::Quoted;
                self.at += quote.len();
            }
            FieldState::Quoted if is_quote && rest[quote.len()..].starts_with(quote) => {
                self.field.marked = true;
                self.at += 2 * quote.len();
            }
            FieldState::Quoted if is_quote => {
                self.state = FieldState::Plain;
                self.at += quote.len();
            }
            _ if is_escape => {
                self.field.marked = true;
                self.at = (self.at + escape.len() + 1).min(buffer.len());
                if self.state == FieldState::FieldStart {
                    self.state = FieldState::Plain;
                }
            }
            FieldState::Quoted => self.at += 1,
            FieldState::FieldStart | FieldState::Plain
                if rest.starts_with(self.dialect.column_separator.as_bytes()) =>
            {
                self.end_field(buffer, false);
                self.at += self.dialect.column_separator.len();
                self.field = Span::from(self.at);
                self.state = FieldState::FieldStart;
            }
            FieldState::FieldStart => self.state = FieldState::Plain,
            FieldState::Plain => self.at += 1,
        }
    }
}

/// The fields of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    pub(crate) record: &'a str,
    pub(crate) spans: &'a [Span],
    pub(crate) dialect: &'a Delimited,
    /// The column names, if the text has a header.
    pub(crate) header: Option<&'a [String]>,
}

impl<'a> Fields<'a> {
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns a field, counted from zero.
    pub(crate) fn get(&self, index: usize) -> Option<Cow<'a, str>> {
        let span = self.spans.get(index)?;
        let raw = self.record.get(span.range())?;
        if !span.quoted && !span.marked {
            return Some(Cow::Borrowed(raw));
        }
        let inner = self.dialect.quote.filter(|_| span.quoted && !span.marked).and_then(|quote| {
            let inner = raw.strip_prefix(quote)?.strip_suffix(quote)?;
            (!inner.contains(quote)).then_some(inner)
        });
        Some(inner.map_or_else(|| Cow::Owned(self.unmarked(raw, span.quoted)), Cow::Borrowed))
    }

    /// Returns the value of a field with quotes or escapes.
    fn unmarked(&self, raw: &str, quoted: bool) -> String {
        let (quote, escape) =
            (self.dialect.quote, self.dialect.escape.filter(|_| self.dialect.escape != self.dialect.quote));
        let mut text = String::with_capacity(raw.len());
        let mut characters = raw.chars().peekable();
        let mut within = quoted;
        if quoted {
            characters.next();
        }
        while let Some(character) = characters.next() {
            if Some(character) == escape {
                text.extend(characters.next());
            } else if within && Some(character) == quote {
                if characters.next_if_eq(&character).is_some() {
                    text.push(character);
                } else {
                    within = false;
                }
            } else {
                text.push(character);
            }
        }
        text
    }

    /// Returns the name of a column.
    pub(crate) fn name(&self, index: usize) -> Option<&'a str> {
        self.header?.get(index).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the records of a text that arrives in parts of `piece` bytes.
    fn read(dialect: &Delimited, text: &str, piece: usize) -> Vec<Vec<String>> {
        let mut reader = DelimitedReader::new(dialect.clone());
        let (mut buffer, mut records) = (vec![], vec![]);
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(piece).collect();
        for at in 0..=pieces.len() {
            buffer.extend_from_slice(pieces.get(at).copied().unwrap_or_default());
            while let Some(length) = reader.next(&buffer, at == pieces.len()) {
                let record = std::str::from_utf8(&buffer[..length]).unwrap();
                let fields = Fields { record, spans: reader.spans(), dialect, header: None };
                records.push((0..fields.len()).map(|at| fields.get(at).unwrap().into_owned()).collect());
                buffer.drain(..length);
            }
        }
        assert!(buffer.is_empty());
        records
    }

    #[test]
    fn records_are_split_into_fields() {
        let default_dialect = Delimited::default();
        let tabs = Delimited::default().separated_by("\t", "\r\n").unwrap().quoted(None);
        let escaped =
            Delimited::default().separated_by("::", "!").unwrap().quoted(Some('\'')).escaped(Some('\\'));
        let rows: [(&Delimited, &str, &[&[&str]]); 16] = [
            (&default_dialect, "", &[]),
            (&default_dialect, "a", &[&["a"]]),
            (&default_dialect, "a,b\nc,d\n", &[&["a", "b"], &["c", "d"]]),
            (&default_dialect, "a,b\r\nc\r\n", &[&["a", "b"], &["c"]]),
            (&default_dialect, ",\n,,\n", &[&["", ""], &["", "", ""]]),
            (&default_dialect, "\"a,b\",\"c\nd\"\n", &[&["a,b", "c\nd"]]),
            (&default_dialect, "\"say \"\"hi\"\"\",\"\"\n", &[&["say \"hi\"", ""]]),
            (&default_dialect, "a\"b,\"c\"d\n", &[&["a\"b", "cd"]]),
            (&default_dialect, "\"open\n", &[&["open\n"]]),
            (&default_dialect, "\"a\"\r\n", &[&["a"]]),
            (&default_dialect, "ä,\u{1f600}\n", &[&["ä", "\u{1f600}"]]),
            (&tabs, "a\tb\r\n\"c\nd\t\r", &[&["a", "b"], &["\"c\nd", "\r"]]),
            (&escaped, "a::b!c", &[&["a", "b"], &["c"]]),
            (&escaped, "'a!::b'::c\\!d!", &[&["a!::b", "c!d"]]),
            (&escaped, "'it\\'s'::'it''s'!", &[&["it's", "it's"]]),
            (&escaped, "a:b::\\", &[&["a:b", ""]]),
        ];
        for (dialect, text, expected) in rows {
            for piece in [1, 2, 3, 7, 1000] {
                assert_eq!(read(dialect, text, piece), expected, "{text:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn length_of_separators_is_limited() {
        assert!(
            Delimited::default().separated_by("", "").is_some_and(|dialect| dialect == Delimited::default())
        );
        assert!(Delimited::default().separated_by("123456789", "\n").is_none());
        assert!(Delimited::default().separated_by(",", "123456789").is_none());
    }
}
