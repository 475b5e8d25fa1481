//! Entity tags: the version of an object as clients see it.
//!
//! A tag is made from the [`Stamp`] of the commit that wrote the object, so no two commits share a tag.
//! Blobs, containers, shares and files use [`ETag`] (`"0x8D…"`); table entities use [`TableETag`] (their
//! timestamp, weak). Tags are opaque to clients. A tag that this server never issued is not an error: it
//! equals no tag. [`ETagPattern`] is the value of an `If-Match` or `If-None-Match` header;
//! [`crate::conditions`] evaluates it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};

use crate::{Stamp, Timestamp};

/// The tag of a blob, container, share, directory or file. Displayed quoted, as in headers:
/// `"0x8D904140A3C1D37"`.
///
/// ```
/// # use lazuli_concurrency::{ETag, ETagPattern, Stamp};
/// let first = ETag::from_stamp(Stamp::from_ticks(0x8D904140A3C1D37));
/// let second = ETag::from_stamp(Stamp::from_ticks(0x8D904140A3C1D38));
/// assert_eq!(first.to_string(), r#""0x8D904140A3C1D37""#);
/// assert_eq!(r#""0x8D904140A3C1D37""#.parse(), Ok(first));
///
/// // The header `If-Match` of a client that has read the first version.
/// let if_match: ETagPattern = ETagPattern::parse(r#""0x8D904140A3C1D37""#);
/// assert!(if_match.matches(&first));
/// assert!(!if_match.matches(&second));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ETag(Stamp);

/// The tag of a table entity, displayed as `W/"datetime'2021-04-20T15%3A54%3A52.9740791Z'"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableETag(Timestamp);

/// The text is not a tag that this server issues, so it equals no tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an ETag of this store")]
pub struct UnknownETag;

/// The value of an `If-Match` or `If-None-Match` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ETagPattern<T = ETag> {
    /// `*`: any version of an existing object.
    Any,
    /// A list of tags; `None` stands for a tag that this server never issued.
    OneOf(Vec<Option<T>>),
}

impl ETag {
    /// Makes the tag of the version that a commit wrote.
    pub const fn from_stamp(stamp: Stamp) -> Self {
        Self(stamp)
    }

    /// Returns the stamp that the tag was made from.
    pub const fn stamp(self) -> Stamp {
        self.0
    }

    /// Returns the tag without quotes, as in XML listings and in headers of versions before 2011-08-18.
    pub fn unquoted(self) -> String {
        format!("0x{:X}", self.0.ticks())
    }
}

impl From<Stamp> for ETag {
    fn from(stamp: Stamp) -> Self {
        Self::from_stamp(stamp)
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"0x{:X}\"", self.0.ticks())
    }
}

impl FromStr for ETag {
    type Err = UnknownETag;

    /// Parses a tag with or without quotes. Only the canonical spelling of the number is accepted.
    fn from_str(text: &str) -> Result<Self, UnknownETag> {
        let opaque = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(text);
        let digits = opaque.strip_prefix("0x").ok_or(UnknownETag)?;
        let ticks = u64::from_str_radix(digits, 16).map_err(|_| UnknownETag)?;
        let tag = Self(Stamp::from_ticks(ticks));
        if tag.unquoted() == opaque { Ok(tag) } else { Err(UnknownETag) }
    }
}

const TABLE_FORMAT: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:7]Z");
/// Like [`TABLE_FORMAT`], with any number of fractional digits: clients may trim trailing zeros.
const TABLE_FORMAT_READ: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond]Z");

impl TableETag {
    /// Returns the entity's `Timestamp`.
    pub const fn timestamp(self) -> Timestamp {
        self.0
    }
}

impl From<Timestamp> for TableETag {
    fn from(timestamp: Timestamp) -> Self {
        // Keep the tag within the years that its format can express.
        Self(timestamp.min(Timestamp::MAX))
    }
}

impl From<Stamp> for TableETag {
    fn from(stamp: Stamp) -> Self {
        stamp.timestamp().into()
    }
}

impl fmt::Display for TableETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = OffsetDateTime::from_unix_timestamp_nanos(self.0.unix_nanos()).map_err(|_| fmt::Error)?;
        let date = date.format(TABLE_FORMAT).map_err(|_| fmt::Error)?;
        write!(f, "W/\"datetime'{}'\"", date.replace(':', "%3A"))
    }
}

impl FromStr for TableETag {
    type Err = UnknownETag;

    /// Parses a tag, also if its colons are no longer percent-encoded.
    fn from_str(text: &str) -> Result<Self, UnknownETag> {
        let date =
            text.strip_prefix("W/\"datetime'").and_then(|t| t.strip_suffix("'\"")).ok_or(UnknownETag)?;
        let date = date.replace("%3A", ":").replace("%3a", ":");
        let date = PrimitiveDateTime::parse(&date, TABLE_FORMAT_READ).map_err(|_| UnknownETag)?;
        let nanos = date.assume_utc().unix_timestamp_nanos();
        // The server never issues tags finer than one tick.
        if nanos % 100 != 0 {
            return Err(UnknownETag);
        }
        Timestamp::from_unix_nanos(nanos).map(Self).ok_or(UnknownETag)
    }
}

impl<T: FromStr + PartialEq> ETagPattern<T> {
    /// Parses a header value: `*`, or tags separated by commas. Never fails: text that is not a tag of this
    /// server matches nothing.
    pub fn parse(header: &str) -> Self {
        if header.trim() == "*" {
            return Self::Any;
        }
        let mut quoted = false;
        let tags = header.split(|c| {
            quoted ^= c == '"';
            c == ',' && !quoted
        });
        Self::OneOf(tags.map(str::trim).filter(|tag| !tag.is_empty()).map(|tag| tag.parse().ok()).collect())
    }

    /// Whether the pattern matches the tag of an existing object.
    pub fn matches(&self, current: &T) -> bool {
        match self {
            Self::Any => true,
            Self::OneOf(tags) => tags.iter().flatten().any(|tag| tag == current),
        }
    }
}

impl<T> ETagPattern<T> {
    /// Whether the pattern is `*`.
    pub const fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }

    /// Whether the header lists more than one tag. Only reads accept lists.
    pub fn is_list(&self) -> bool {
        matches!(self, Self::OneOf(tags) if tags.len() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: u64 = 637_545_308_929_740_791; // 2021-04-20T15:54:52.9740791Z

    fn etag(ticks: u64) -> ETag {
        Stamp::from_ticks(ticks).into()
    }

    #[test]
    fn tag_is_the_quoted_upper_case_hexadecimal_of_its_stamp() {
        assert_eq!(etag(0x8D9_0414_0A3C_1D37).to_string(), "\"0x8D904140A3C1D37\"");
        assert_eq!(etag(0x8D9_0414_0A3C_1D37).unquoted(), "0x8D904140A3C1D37");
    }

    #[test]
    fn tag_is_parsed_with_or_without_quotes_and_in_no_other_spelling() {
        let tag = etag(0x8D9_0414_0A3C_1D37);
        for text in ["\"0x8D904140A3C1D37\"", "0x8D904140A3C1D37"] {
            assert_eq!(text.parse(), Ok(tag), "{text}");
        }
        for text in [
            "",
            "\"",
            "\"\"",
            "0x",
            "0x+8D904140A3C1D37",
            "0x8d904140a3c1d37",
            "0X8D904140A3C1D37",
            "0x08D904140A3C1D37",
            "8D904140A3C1D37",
            "\"0x8D904140A3C1D37",
            "0x8D904140A3C1D37\"",
            "W/\"0x8D904140A3C1D37\"",
            "'0x8D904140A3C1D37'",
            "0x18D904140A3C1D370",
            "anything else",
        ] {
            assert_eq!(text.parse::<ETag>(), Err(UnknownETag), "{text}");
        }
    }

    #[test]
    fn table_tag_has_seven_fractional_digits_and_encoded_colons() {
        let rows = [
            (TICKS, "W/\"datetime'2021-04-20T15%3A54%3A52.9740791Z'\""),
            (TICKS - 791, "W/\"datetime'2021-04-20T15%3A54%3A52.9740000Z'\""),
            (0, "W/\"datetime'0001-01-01T00%3A00%3A00.0000000Z'\""),
            (u64::MAX, "W/\"datetime'9999-12-31T23%3A59%3A59.9999999Z'\""),
        ];
        for (ticks, text) in rows {
            let tag = TableETag::from(Stamp::from_ticks(ticks));
            assert_eq!(tag.to_string(), text);
            assert_eq!(text.parse(), Ok(tag), "{text}");
        }
    }

    #[test]
    fn table_tags_are_compared_by_the_time_that_they_express() {
        let tag = TableETag::from(Timestamp::from_ticks(TICKS - 791));
        for text in [
            "W/\"datetime'2021-04-20T15:54:52.9740000Z'\"",
            "W/\"datetime'2021-04-20T15%3a54%3a52.974Z'\"",
            "W/\"datetime'2021-04-20T15%3A54%3A52.974000000Z'\"",
        ] {
            assert_eq!(text.parse(), Ok(tag), "{text}");
        }
        for text in [
            "",
            "W/\"\"",
            "W/\"0x5B168C7B6E589D2\"",
            "\"datetime'2021-04-20T15%3A54%3A52.9740000Z'\"",
            "W/\"datetime'2021-04-20T15%3A54%3A52.974000050Z'\"",
            "W/\"datetime'2021-02-30T15%3A54%3A52.9740000Z'\"",
            "W/\"datetime'2021-04-20T15%3A54%3A52.9740000'\"",
            "W/\"datetime'2021-04-20T15%3A54%3A52.9740000Z",
        ] {
            assert_eq!(text.parse::<TableETag>(), Err(UnknownETag), "{text}");
        }
    }

    #[test]
    fn pattern_is_a_star_or_a_list_of_tags_and_unknown_tags_match_nothing() {
        let (a, b) = (etag(0xA), etag(0xB));
        let one_of = |tags: &[Option<ETag>]| ETagPattern::OneOf(tags.to_vec());
        let rows = [
            ("*", ETagPattern::Any),
            (" * ", ETagPattern::Any),
            ("\"0xA\"", one_of(&[Some(a)])),
            ("0xA", one_of(&[Some(a)])),
            ("\"0xA\", \"0xB\"", one_of(&[Some(a), Some(b)])),
            ("0xA,0xB", one_of(&[Some(a), Some(b)])),
            ("\"0xA\",,", one_of(&[Some(a)])),
            ("\"x\", 0xB", one_of(&[None, Some(b)])),
            ("W/\"0xA\"", one_of(&[None])),
            ("\"*\"", one_of(&[None])),
            ("*, 0xA", one_of(&[None, Some(a)])),
            ("\"0xA,0xB\"", one_of(&[None])),
            ("\"0xA, 0xB", one_of(&[None])),
            ("", one_of(&[])),
        ];
        for (header, pattern) in rows {
            assert_eq!(ETagPattern::parse(header), pattern, "{header}");
        }
    }

    #[test]
    fn list_matches_any_of_its_tags_and_star_matches_all() {
        let (a, b, c) = (etag(0xA), etag(0xB), etag(0xC));
        let list = ETagPattern::parse("0xA, unknown, 0xB");
        assert_eq!([a, b, c].map(|tag| list.matches(&tag)), [true, true, false]);
        assert!(list.is_list() && !list.is_any());
        assert!(ETagPattern::Any.matches(&c) && ETagPattern::<ETag>::Any.is_any());
        assert!(!ETagPattern::<ETag>::parse("0xA").is_list());
        assert!(!ETagPattern::<ETag>::parse("").matches(&a));
        // Two unknown tags are still a list of two.
        assert!(ETagPattern::<ETag>::parse("x, y").is_list());
    }
}
