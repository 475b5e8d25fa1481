//! The protocol version of a request, and the switches that depend on it.
//!
//! A version is a date. Every well-formed date from [`Version::OLDEST`] on is accepted, whether or not a
//! version was published on it. Dates after [`Version::NEWEST`] count as the newest version: refusing them
//! would lock out clients that are newer than this server.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::Refusal;

/// A protocol version.
///
/// ```
/// # use lazuli_protocol::Version;
/// let version = Version::parse("2021-12-02").expect("a date");
/// assert!(version.at_least(2016, 5, 31));
/// assert_eq!(Version::parse("2008-10-27"), None);
///
/// // A client that is newer than this server is served, too.
/// assert_eq!(Version::parse("9999-12-31"), Some(Version::NEWEST));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    year: u16,
    month: u8,
    day: u8,
}

impl Version {
    /// The oldest supported version.
    pub const OLDEST: Self = Self::new(2009, 9, 19);
    /// The newest known version.
    pub const NEWEST: Self = Self::new(2026, 10, 6);

    /// Makes the version of this date, for a behavior switch: `version >= Version::new(2015, 4, 5)`.
    pub const fn new(year: u16, month: u8, day: u8) -> Self {
        Self { year, month, day }
    }

    /// Returns whether behavior that was introduced on this date applies.
    pub const fn at_least(self, year: u16, month: u8, day: u8) -> bool {
        self.ordinal() >= Self::new(year, month, day).ordinal()
    }

    const fn ordinal(self) -> u32 {
        self.year as u32 * 10_000 + self.month as u32 * 100 + self.day as u32
    }

    /// Parses the value of a header, or refuses it.
    pub fn from_header(name: &str, text: &str) -> Result<Self, Refusal> {
        Self::parse(text).ok_or_else(|| Refusal::invalid_header(name, text))
    }

    /// Parses a version; `None` if it is not a date, or is older than [`Version::OLDEST`].
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: &[u8; 10] = text.as_bytes().try_into().ok()?;
        let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = *bytes else { return None };
        let number = |digits: &[u8]| {
            digits.iter().try_fold(0u16, |n, d| d.is_ascii_digit().then(|| n * 10 + u16::from(d - b'0')))
        };
        let (year, month, day) =
            (number(&[y1, y2, y3, y4])?, number(&[m1, m2])? as u8, number(&[d1, d2])? as u8);
        time::Date::from_calendar_date(i32::from(year), time::Month::try_from(month).ok()?, day).ok()?;
        let version = Self::new(year, month, day);
        (version >= Self::OLDEST).then(|| version.min(Self::NEWEST))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not a protocol version"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    #[test]
    fn dates_since_2009_are_versions_and_later_ones_count_as_the_newest() {
        for (text, expected) in [
            ("2009-09-19", Some("2009-09-19")),
            ("2021-12-02", Some("2021-12-02")),
            ("2026-10-06", Some("2026-10-06")),
            ("2026-10-07", Some("2026-10-06")),
            ("9999-12-31", Some("2026-10-06")),
            ("2009-09-18", None),
            ("2008-10-27", None),
            ("0000-00-00", None),
            ("2021-02-29", None),
            ("2021-13-01", None),
            ("2021-1-01", None),
            ("2021-12-02 ", None),
            ("2021-12-0x", None),
            ("2021/12/02", None),
            ("2025-01-05-preview", None),
            ("latest", None),
            ("", None),
        ] {
            assert_eq!(Version::parse(text).map(|v| v.to_string()).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn the_refusal_of_a_bad_version_names_the_header() {
        let refusal = Version::from_header("x-ms-version", "soon").unwrap_err();
        assert_eq!(refusal.code(), ErrorCode::InvalidHeaderValue);
        assert_eq!(
            refusal.details(),
            [("HeaderName", "x-ms-version".to_string()), ("HeaderValue", "soon".to_string())]
        );
    }

    #[test]
    fn versions_are_ordered_by_date() {
        let version = Version::new(2013, 8, 15);
        assert!(version.at_least(2013, 8, 15) && version.at_least(2012, 12, 31));
        assert!(!version.at_least(2013, 8, 16) && !version.at_least(2014, 1, 1));
        assert!(Version::OLDEST < version && version < Version::NEWEST);
    }

    #[test]
    fn versions_are_stored_as_text() {
        let json = serde_json::to_string(&Version::NEWEST).unwrap();
        assert_eq!(json, "\"2026-10-06\"");
        assert_eq!(serde_json::from_str::<Version>(&json).unwrap(), Version::NEWEST);
        assert!(serde_json::from_str::<Version>("\"x\"").is_err());
    }
}
