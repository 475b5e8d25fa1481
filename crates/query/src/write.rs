//! Encodes results as delimited text or JSON.

use std::io::Write;

use crate::Format;
use crate::delimited::Delimited;
use crate::value::{Value, float_text};

/// Encodes result rows in a format.
#[derive(Debug)]
pub(crate) struct RowWriter {
    format: Format,
    /// Number of fields in the current row, including missing ones, which JSON omits.
    fields: usize,
    /// Whether the current row has no JSON fields yet.
    is_empty: bool,
}

impl RowWriter {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, fields: 0, is_empty: true }
    }

    /// Returns whether the first row contains the column names.
    pub(crate) fn has_headers(&self) -> bool {
        matches!(&self.format, Format::Delimited(dialect) if dialect.has_headers)
    }

    pub(crate) fn begin_row(&mut self, out: &mut Vec<u8>) {
        (self.fields, self.is_empty) = (0, true);
        if matches!(self.format, Format::Json { .. }) {
            out.push(b'{');
        }
    }

    /// Writes the next field. A field without a name is named after its position.
    pub(crate) fn field(&mut self, out: &mut Vec<u8>, name: Option<&str>, value: Value<'_>) {
        self.fields += 1;
        match &self.format {
            Format::Delimited(dialect) => {
                if self.fields > 1 {
                    out.extend_from_slice(dialect.column_separator.as_bytes());
                }
                if let Some(text) = value.into_text() {
                    delimited(out, dialect, &text);
                }
            }
            Format::Json { .. } if value == Value::Missing => {}
            Format::Json { .. } => {
                if !self.is_empty {
                    out.push(b',');
                }
                self.is_empty = false;
                match name {
                    Some(name) => json_text(out, name),
                    None => json_text(out, &format!("_{}", self.fields)),
                }
                out.push(b':');
                json(out, value);
            }
        }
    }

    pub(crate) fn end_row(&mut self, out: &mut Vec<u8>) {
        match &self.format {
            Format::Delimited(dialect) => out.extend_from_slice(dialect.record_separator.as_bytes()),
            Format::Json { record_separator } => {
                out.push(b'}');
                out.extend_from_slice(record_separator.as_bytes());
            }
        }
    }
}

/// Writes a field, in quotes if it could be misread without them. Without a quote character, escapes are
/// used.
fn delimited(out: &mut Vec<u8>, dialect: &Delimited, text: &str) {
    let escape = dialect.escape.filter(|_| dialect.escape != dialect.quote);
    // The first character of a separator could form one with the text after the field.
    let begins_separator = |character: char| {
        let separators = [&dialect.column_separator, &dialect.record_separator];
        separators.iter().any(|separator| separator.starts_with(character))
            || (character == '\r' && dialect.record_separator == "\n")
    };
    let is_split = text.contains(begins_separator);
    let is_marked = [dialect.quote, escape].into_iter().flatten().any(|mark| text.contains(mark));
    if !is_split && !is_marked {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    let mut utf8 = [0; 4];
    let mut push = |out: &mut Vec<u8>, character: char| {
        out.extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
    };
    if let Some(quote) = dialect.quote {
        push(out, quote);
        for character in text.chars() {
            if character == quote || Some(character) == escape {
                push(out, escape.unwrap_or(quote));
            }
            push(out, character);
        }
        push(out, quote);
        return;
    }
    let begins_mark = |character: char| Some(character) == escape || begins_separator(character);
    for character in text.chars() {
        if let Some(escape) = escape.filter(|_| begins_mark(character)) {
            push(out, escape);
        }
        push(out, character);
    }
}

fn json(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Missing | Value::Null => out.extend_from_slice(b"null"),
        Value::Boolean(boolean) => out.extend_from_slice(if boolean { b"true" } else { b"false" }),
        // Writing to memory cannot fail.
        Value::Int(int) => drop(write!(out, "{int}")),
        Value::Float(float) => out.extend_from_slice(float_text(float).as_bytes()),
        Value::Json(tree) => drop(serde_json::to_writer(out, tree)),
        Value::Text(text) => json_text(out, &text),
        Value::Timestamp(_) => json_text(out, &value.into_text().unwrap_or_default()),
    }
}

fn json_text(out: &mut Vec<u8>, text: &str) {
    drop(serde_json::to_writer(out, text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_only_if_necessary() {
        let default_dialect = Delimited::default();
        let other =
            Delimited::default().separated_by(";", ".").unwrap().quoted(Some('\'')).escaped(Some('\\'));
        let bare = Delimited::default().separated_by(";", ".").unwrap().quoted(None).escaped(Some('\\'));
        for (dialect, text, expected) in [
            (&default_dialect, "", ""),
            (&default_dialect, "plain text", "plain text"),
            (&default_dialect, "a,b", "\"a,b\""),
            (&default_dialect, "a\nb", "\"a\nb\""),
            (&default_dialect, "a\r", "\"a\r\""),
            (&default_dialect, "say \"hi\"", "\"say \"\"hi\"\"\""),
            (&other, "1.0", "'1.0'"),
            (&other, "a,b", "a,b"),
            (&other, "it's", "'it\\'s'"),
            (&other, "a\\b", "'a\\\\b'"),
            (&bare, "a;b.c\\d", "a\\;b\\.c\\\\d"),
        ] {
            let mut out = vec![];
            delimited(&mut out, dialect, text);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{text}");
        }
    }
}
