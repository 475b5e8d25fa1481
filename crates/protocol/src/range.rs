//! Byte ranges: `Range`, `x-ms-range`, `x-ms-source-range`.
//!
//! The protocol has `bytes=first-` and `bytes=first-last`, one range at a time. `x-ms-range` takes precedence
//! over
//! `Range`. Other values (a suffix, several ranges, another unit) are ignored on reads, as HTTP specifies,
//! and the whole content is sent. On writes, and in the `x-ms-range` of a read of a file, they are refused.

use std::ops::Range;

use http::header::{CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};

use crate::error::{ErrorCode, Refusal};
use crate::header::Headers;

const X_MS_RANGE: &str = "x-ms-range";

/// A range as in a request.
///
/// ```
/// # use lazuli_protocol::{ByteRange, ErrorCode, Refusal};
/// let range = ByteRange::parse("bytes=10-99").expect("one range of bytes");
/// assert_eq!(range.within(50)?, 10..50);
/// assert_eq!(range.within(10).expect_err("begins after the end").code(), ErrorCode::InvalidRange);
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// The first byte.
    pub first: u64,
    /// The last byte, inclusive, never before the first; `None` means to the end.
    pub last: Option<u64>,
}

impl ByteRange {
    /// Parses `bytes=first-` or `bytes=first-last`.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
        // Offsets are file offsets, so they fit an i64. That also keeps `last + 1` from overflowing.
        let offset = |digits: &str| {
            let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            whole.then(|| digits.parse::<i64>().ok()).flatten().map(i64::unsigned_abs)
        };
        let first = offset(first)?;
        let last = if last.is_empty() { None } else { Some(offset(last).filter(|last| *last >= first)?) };
        Some(Self { first, last })
    }

    /// Returns the range of a read; `None` means everything.
    pub fn of_read(headers: &HeaderMap) -> Option<Self> {
        let own = headers.get(X_MS_RANGE).filter(|own| !own.is_empty());
        Self::parse(own.or_else(|| headers.get(RANGE))?.to_str().ok()?)
    }

    /// Returns the range of a read of a file; `None` means everything.
    pub fn of_file_read(headers: &HeaderMap) -> Result<Option<Self>, Refusal> {
        headers.value(X_MS_RANGE, Self::parse)?;
        Ok(Self::of_read(headers))
    }

    /// Returns the range of a write, which has to have an end.
    pub fn of_write(headers: &HeaderMap) -> Result<Range<u64>, Refusal> {
        let name = if headers.contains_key(X_MS_RANGE) { X_MS_RANGE } else { RANGE.as_str() };
        let range = headers.value(name, |text| {
            let Self { first, last } = Self::parse(text)?;
            Some(first..last? + 1)
        })?;
        range.ok_or_else(|| Refusal::missing_header(RANGE))
    }

    /// Returns the part of this range within `length` bytes: cut off at the end, and refused if it begins
    /// after the end.
    pub fn within(self, length: u64) -> Result<Range<u64>, Refusal> {
        if self.first >= length {
            let refusal = Refusal::new(ErrorCode::InvalidRange);
            return Err(refusal.header(CONTENT_RANGE, header(format!("bytes */{length}"))));
        }
        Ok(self.first..self.last.map_or(length, |last| length.min(last + 1)))
    }
}

/// Returns the `Content-Range` of a reply with a part of `length` bytes. The part is not empty.
pub fn content_range(part: &Range<u64>, length: u64) -> HeaderValue {
    header(format!("bytes {}-{}/{length}", part.start, part.end.saturating_sub(1)))
}

fn header(ascii: String) -> HeaderValue {
    HeaderValue::try_from(ascii).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;

    #[test]
    fn a_range_has_a_first_and_an_optional_last_byte() {
        let max = i64::MAX as u64;
        for (text, expected) in [
            ("bytes=0-", Some((0, None))),
            ("bytes=0-0", Some((0, Some(0)))),
            ("bytes=255-511", Some((255, Some(511)))),
            ("bytes=0-9223372036854775807", Some((0, Some(max)))),
            ("bytes=0-9223372036854775808", None),
            ("bytes=5-4", None),
            ("bytes=-5", None),
            ("bytes=-", None),
            ("bytes=0-1,4-5", None),
            ("bytes=a-b", None),
            ("bytes=+1-2", None),
            ("bytes=1", None),
            ("chunks=0-1", None),
            ("0-1", None),
            ("", None),
        ] {
            let range = ByteRange::parse(text).map(|range| (range.first, range.last));
            assert_eq!(range, expected, "{text:?}");
        }
    }

    fn headers(range: Option<&'static str>, own: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.extend(range.map(|range| (RANGE, HeaderValue::from_static(range))));
        headers.extend(own.map(|own| (HeaderName::from_static(X_MS_RANGE), HeaderValue::from_static(own))));
        headers
    }

    #[test]
    fn on_reads_x_ms_range_takes_precedence_and_only_files_refuse_other_ranges() {
        let strange = Err(ErrorCode::InvalidHeaderValue);
        for (range, own, expected, of_file) in [
            (None, None, None, Ok(None)),
            (Some("bytes=1-"), None, Some(1), Ok(Some(1))),
            (Some("bytes=1-"), Some(""), Some(1), Ok(Some(1))),
            (Some("bytes=1-"), Some("bytes=2-"), Some(2), Ok(Some(2))),
            (Some("bytes=-5"), None, None, Ok(None)),
            (Some("bytes=0-1,4-5"), None, None, Ok(None)),
            (Some("bytes=-5"), Some("bytes=2-"), Some(2), Ok(Some(2))),
            (Some("bytes=1-"), Some("bytes=-1-"), None, strange),
            (None, Some("bytes=-2-497"), None, strange),
        ] {
            let headers = headers(range, own);
            let first = |range: Option<ByteRange>| range.map(|range| range.first);
            assert_eq!(first(ByteRange::of_read(&headers)), expected, "{range:?} {own:?}");
            let read = ByteRange::of_file_read(&headers).map_err(|refusal| refusal.code());
            assert_eq!(read.map(first), of_file, "{range:?} {own:?}");
        }
    }

    #[test]
    fn on_writes_a_range_with_an_end_is_required() {
        for (range, own, expected) in [
            (Some("bytes=0-511"), None, Ok(0..512)),
            (Some("bytes=0-511"), Some("bytes=512-1023"), Ok(512..1024)),
            (None, None, Err(ErrorCode::MissingRequiredHeader)),
            (Some("bytes=0-"), None, Err(ErrorCode::InvalidHeaderValue)),
            (Some("bytes=0-511"), Some("bytes=512-"), Err(ErrorCode::InvalidHeaderValue)),
            (Some("bytes=-5"), None, Err(ErrorCode::InvalidHeaderValue)),
        ] {
            let write = ByteRange::of_write(&headers(range, own)).map_err(|refusal| refusal.code());
            assert_eq!(write, expected, "{range:?} {own:?}");
        }
    }

    #[test]
    fn a_range_is_cut_off_at_the_end_and_refused_after_it() {
        for (text, length, expected) in [
            ("bytes=0-", 10, Some(0..10)),
            ("bytes=3-5", 10, Some(3..6)),
            ("bytes=9-100", 10, Some(9..10)),
            ("bytes=0-9223372036854775807", 10, Some(0..10)),
            ("bytes=10-", 10, None),
            ("bytes=0-", 0, None),
        ] {
            let part = ByteRange::parse(text).unwrap().within(length);
            assert_eq!(part.clone().ok(), expected, "{text} of {length}");
            if let Err(refusal) = part {
                assert_eq!(refusal.status(), 416);
            }
        }
        assert_eq!(content_range(&(3..6), 10), "bytes 3-5/10");
    }
}
