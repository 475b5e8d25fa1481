//! The text of one line: `key=value` pairs, or a JSON object.
//!
//! Clients choose names, paths and ids. A value never ends its line or looks like another field: text lines
//! quote it and escape control characters, JSON lines use JSON strings.

use std::fmt::Display;
use std::io::Write;
use std::time::SystemTime;

use time::OffsetDateTime;

/// The format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// `TIME key=value key=value`.
    Text,
    /// A JSON object.
    Json,
}

/// A line under construction.
#[derive(Debug)]
pub struct Line<'a> {
    text: &'a mut Vec<u8>,
    format: LineFormat,
}

// Writing to a Vec cannot fail, so the results of `write!` and serde are ignored.
impl<'a> Line<'a> {
    /// Begins a line with a time.
    pub(super) fn begin(text: &'a mut Vec<u8>, format: LineFormat, at: SystemTime) -> Self {
        let at = OffsetDateTime::from(at);
        let (hour, minute, second, micros) = (at.hour(), at.minute(), at.second(), at.microsecond());
        let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
        if format == LineFormat::Json {
            text.extend_from_slice(b"{\"timestamp\":\"");
        }
        let _ = write!(text, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z");
        if format == LineFormat::Json {
            text.push(b'"');
        }
        Self { text, format }
    }

    pub(super) fn end(self) {
        self.text.extend_from_slice(if self.format == LineFormat::Json { b"}\n" } else { b"\n" });
    }

    fn key(&mut self, key: &str) {
        let _ = match self.format {
            LineFormat::Text => write!(self.text, " {key}="),
            LineFormat::Json => write!(self.text, ",\"{key}\":"),
        };
    }

    /// Adds text that a client may have chosen.
    pub fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        let _ = match self.format {
            LineFormat::Json => serde_json::to_writer(&mut *self.text, value).map_err(Into::into),
            LineFormat::Text if is_plain(value) => self.text.write_all(value.as_bytes()),
            LineFormat::Text => write!(self.text, "{value:?}"),
        };
    }

    /// Adds text that a client may have chosen, if there is any.
    pub fn optional(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(key, value);
        }
    }

    /// Adds a value whose text has only letters, digits and punctuation, such as an id or an address.
    pub fn display(&mut self, key: &str, value: impl Display) {
        self.key(key);
        let _ = match self.format {
            LineFormat::Text => write!(self.text, "{value}"),
            LineFormat::Json => write!(self.text, "\"{value}\""),
        };
    }

    /// Adds a number.
    pub fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        let _ = write!(self.text, "{value}");
    }

    /// Adds a truth value.
    pub fn flag(&mut self, key: &str, value: bool) {
        self.key(key);
        let _ = write!(self.text, "{value}");
    }
}

/// Returns whether a value needs no quotes.
fn is_plain(value: &str) -> bool {
    !value.is_empty()
        && value.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'='))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    const HOSTILE: &str = "a\nb\" status=200 \u{1b}[31m\u{202e}\\";

    fn line(format: LineFormat) -> String {
        let mut text = vec![];
        let mut line =
            Line::begin(&mut text, format, SystemTime::UNIX_EPOCH + Duration::from_micros(1_500_007));
        line.text("service", "blob");
        line.text("path", HOSTILE);
        line.optional("account", None);
        line.text("empty", "");
        line.number("status", 404);
        line.flag("aborted", true);
        line.display("peer", "[::1]:80");
        line.end();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn client_text_cannot_end_a_line_or_add_a_field() {
        assert_eq!(
            line(LineFormat::Text),
            "1970-01-01T00:00:01.500007Z service=blob \
             path=\"a\\nb\\\" status=200 \\u{1b}[31m\\u{202e}\\\\\" empty=\"\" status=404 aborted=true peer=[::1]:80\n"
        );
        let json = line(LineFormat::Json);
        assert_eq!((json.lines().count(), json.contains('\u{1b}')), (1, false));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["path"], &json["status"]), (&HOSTILE.into(), &404.into()));
        assert_eq!(
            (&json["timestamp"], &json["aborted"]),
            (&"1970-01-01T00:00:01.500007Z".into(), &true.into())
        );
        assert_eq!((&json["peer"], &json["account"]), (&"[::1]:80".into(), &serde_json::Value::Null));
    }
}
