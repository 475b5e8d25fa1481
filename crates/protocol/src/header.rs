//! Typed reading of request headers, with the refusals that the protocol documents.
//!
//! [`Headers`] adds typed readers to [`HeaderMap`], so that a handler names what it needs and passes on the
//! refusal:
//! `request.headers.required_number("x-ms-blob-content-length", 0..=MAX)?`. Absent headers are `None`. An
//! empty value counts as absent, except for [`Headers::text`], where it may mean "clear this". A header that
//! may appear once is refused if it appears twice.

use std::ops::RangeInclusive;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderMap;
use lazuli_concurrency::{Conditions, ETagPattern, Timestamp};

use crate::date;
use crate::error::{ErrorCode, Refusal};

/// Maximum length of an MD5 value that is stored unchecked, in bytes.
const MAX_UNCHECKED_MD5: usize = 64;

/// Typed readers of request headers. Names are in lower case.
pub trait Headers {
    /// Returns the value as sent, which has to be UTF-8.
    fn text(&self, name: &str) -> Result<Option<&str>, Refusal>;

    /// Returns the trimmed value, if it is not empty.
    fn filled(&self, name: &str) -> Result<Option<&str>, Refusal> {
        Ok(self.text(name)?.map(str::trim).filter(|text| !text.is_empty()))
    }

    /// Returns a value that has to be present and not empty.
    fn required(&self, name: &str) -> Result<&str, Refusal> {
        self.filled(name)?.ok_or_else(|| Refusal::missing_header(name))
    }

    /// Returns a parsed value. `parse` returns `None` for an invalid value, which is refused.
    fn value<T>(&self, name: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Refusal> {
        let Some(text) = self.filled(name)? else { return Ok(None) };
        parse(text).map(Some).ok_or_else(|| Refusal::invalid_header(name, text))
    }

    /// Returns a value of a type that implements `FromStr`, such as a lease id or a GUID.
    fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        self.value(name, |text| text.parse().ok())
    }

    /// Like [`Headers::parsed`], for a required header.
    fn required_parsed<T: FromStr>(&self, name: &str) -> Result<T, Refusal> {
        self.parsed(name)?.ok_or_else(|| Refusal::missing_header(name))
    }

    /// Returns a whole number within a range.
    fn number(&self, name: &str, allowed: RangeInclusive<i64>) -> Result<Option<i64>, Refusal> {
        self.value(name, |text| {
            let digits = text.strip_prefix('-').unwrap_or(text);
            let whole = digits.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|number| whole && allowed.contains(number))
        })
    }

    /// Like [`Headers::number`], for a required header.
    fn required_number(&self, name: &str, allowed: RangeInclusive<i64>) -> Result<i64, Refusal> {
        self.number(name, allowed)?.ok_or_else(|| Refusal::missing_header(name))
    }

    /// Returns `true` or `false`, ignoring case.
    fn flag(&self, name: &str) -> Result<Option<bool>, Refusal> {
        self.value(name, |text| text.to_ascii_lowercase().parse().ok())
    }

    /// Returns the meaning of a word from a list, ignoring case.
    fn one_of<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>, Refusal> {
        self.value(name, |text| {
            words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)).map(|(_, meaning)| *meaning)
        })
    }

    /// Returns an HTTP date.
    fn date(&self, name: &str) -> Result<Option<Timestamp>, Refusal> {
        self.value(name, date::parse_http)
    }

    /// Returns an MD5 value: `Content-MD5` or one of its `x-ms-` forms.
    fn md5(&self, name: &str) -> Result<Option<[u8; 16]>, Refusal> {
        let Some(text) = self.filled(name)? else { return Ok(None) };
        let refusal =
            || Refusal::new(ErrorCode::InvalidMd5).detail("HeaderName", name).detail("HeaderValue", text);
        base64(text).map(Some).ok_or_else(refusal)
    }

    /// Returns an MD5 value that is stored for clients and never compared, so any Base64 is valid.
    fn unchecked_md5(&self, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
        let Some(text) = self.filled(name)? else { return Ok(None) };
        let refusal =
            || Refusal::new(ErrorCode::InvalidMd5).detail("HeaderName", name).detail("HeaderValue", text);
        let bytes = BASE64.decode(text).ok().filter(|bytes| bytes.len() <= MAX_UNCHECKED_MD5);
        bytes.map(Some).ok_or_else(refusal)
    }

    /// Returns a CRC-64 value. A value that is too long matches no content and is refused as a mismatch.
    fn crc64(&self, name: &str) -> Result<Option<[u8; 8]>, Refusal> {
        let Some(text) = self.filled(name)? else { return Ok(None) };
        let bytes = BASE64.decode(text).unwrap_or_default();
        match <[u8; 8]>::try_from(bytes.as_slice()) {
            Ok(crc64) => Ok(Some(crc64)),
            Err(_) if bytes.len() > 8 => Err(ErrorCode::Crc64Mismatch.into()),
            Err(_) => Err(Refusal::invalid_header(name, text)),
        }
    }

    /// Returns a date of a header that HTTP defines: an invalid date counts as absent. More than one date is
    /// refused.
    fn lenient_date(&self, name: &str) -> Result<Option<Timestamp>, Refusal> {
        let Some(text) = self.filled(name)? else { return Ok(None) };
        let is_first = |(end, _)| text.get(..end).and_then(date::parse_http).is_some();
        if text.match_indices(',').any(is_first) {
            return Err(Refusal::invalid_header(name, text));
        }
        Ok(date::parse_http(text))
    }

    /// Returns the condition headers of the addressed object.
    fn conditions(&self) -> Result<Conditions, Refusal> {
        let names = ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since"];
        conditions(self, names, Self::lenient_date)
    }

    /// Returns the condition headers of the blob whose tags are addressed. The tags have their own
    /// conditions.
    fn blob_conditions(&self) -> Result<Conditions, Refusal> {
        conditions(
            self,
            [
                "x-ms-blob-if-match",
                "x-ms-blob-if-none-match",
                "x-ms-blob-if-modified-since",
                "x-ms-blob-if-unmodified-since",
            ],
            Self::date,
        )
    }

    /// Returns the condition headers of a copy's source.
    fn source_conditions(&self) -> Result<Conditions, Refusal> {
        conditions(
            self,
            [
                "x-ms-source-if-match",
                "x-ms-source-if-none-match",
                "x-ms-source-if-modified-since",
                "x-ms-source-if-unmodified-since",
            ],
            Self::date,
        )
    }

    /// Returns a header that may appear more than once: its values joined by commas.
    fn joined(&self, name: &str) -> Result<Option<String>, Refusal>;
}

impl Headers for HeaderMap {
    fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let mut values = self.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        match std::str::from_utf8(value.as_bytes()) {
            Ok(text) if values.next().is_none() => Ok(Some(text)),
            _ => Err(Refusal::invalid_header(name, String::from_utf8_lossy(value.as_bytes()))),
        }
    }

    fn joined(&self, name: &str) -> Result<Option<String>, Refusal> {
        let mut joined: Option<String> = None;
        for value in self.get_all(name) {
            let text = std::str::from_utf8(value.as_bytes())
                .map_err(|_| Refusal::invalid_header(name, String::from_utf8_lossy(value.as_bytes())))?;
            joined = Some(joined.map_or_else(|| text.to_owned(), |before| before + "," + text));
        }
        Ok(joined.filter(|joined| !joined.trim().is_empty()))
    }
}

fn conditions<H: Headers + ?Sized>(
    headers: &H,
    [if_match, if_none_match, if_modified_since, if_unmodified_since]: [&str; 4],
    date: impl Fn(&H, &str) -> Result<Option<Timestamp>, Refusal>,
) -> Result<Conditions, Refusal> {
    Ok(Conditions {
        if_match: headers.joined(if_match)?.as_deref().map(ETagPattern::parse),
        if_none_match: headers.joined(if_none_match)?.as_deref().map(ETagPattern::parse),
        if_modified_since: date(headers, if_modified_since)?,
        if_unmodified_since: date(headers, if_unmodified_since)?,
    })
}

fn base64<const N: usize>(text: &str) -> Option<[u8; N]> {
    BASE64.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use lazuli_concurrency::LeaseId;

    fn headers(pairs: &[(&'static str, &[u8])]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_bytes(v).unwrap())).collect()
    }

    #[test]
    fn text_must_be_utf8_and_appear_once() {
        let map = headers(&[("a", "é".as_bytes()), ("b", b"\xff"), ("c", b"1"), ("c", b"2"), ("d", b"")]);
        assert_eq!(map.text("a"), Ok(Some("é")));
        assert_eq!(map.text("d"), Ok(Some("")));
        assert_eq!(map.filled("d"), Ok(None));
        assert_eq!(map.text("z"), Ok(None));
        for name in ["b", "c"] {
            assert_eq!(map.text(name).unwrap_err().code(), ErrorCode::InvalidHeaderValue);
        }
        assert_eq!(map.joined("c"), Ok(Some("1,2".to_owned())));
        assert_eq!(map.joined("d"), Ok(None));
        for name in ["d", "z"] {
            let refusal = map.required(name).unwrap_err();
            assert_eq!(refusal.code(), ErrorCode::MissingRequiredHeader);
            assert_eq!(refusal.details(), [("HeaderName", name.to_string())]);
        }
    }

    #[test]
    fn numbers_flags_and_words_are_parsed_strictly() {
        for (value, number) in [
            ("-1", Some(-1)),
            ("60", Some(60)),
            (" 7 ", Some(7)),
            ("61", None),
            ("-2", None),
            ("+5", None),
            ("1e1", None),
            ("0x1", None),
            ("9223372036854775808", None),
            ("-", None),
        ] {
            let map = headers(&[("n", value.as_bytes())]);
            let read = map.number("n", -1..=60);
            match number {
                Some(number) => assert_eq!(read, Ok(Some(number)), "{value}"),
                None => {
                    let expected = [("HeaderName", "n".to_string()), ("HeaderValue", value.to_string())];
                    assert_eq!(read.unwrap_err().details(), expected, "{value}");
                }
            }
        }
        let map = headers(&[("yes", b"True"), ("no", b"false"), ("bad", b"1"), ("empty", b"")]);
        assert_eq!(map.flag("yes"), Ok(Some(true)));
        assert_eq!(map.flag("no"), Ok(Some(false)));
        assert_eq!(map.flag("empty"), Ok(None));
        assert!(map.flag("bad").is_err());
        assert_eq!(map.one_of("yes", &[("true", 1), ("false", 0)]), Ok(Some(1)));
        assert!(map.one_of("bad", &[("true", 1)]).is_err());
        assert_eq!(map.required_number("empty", 0..=1).unwrap_err().code(), ErrorCode::MissingRequiredHeader);
    }

    #[test]
    fn invalid_guids_dates_and_digests_are_refused_with_their_header() {
        let map = headers(&[
            ("id", b"{D63BDDB4-1B1A-4F07-9C02-3E3D0F0E0A01}"),
            ("date", b"Sun, 06 Nov 1994 08:49:37 GMT"),
            ("md5", b"1B2M2Y8AsgTpgAmY7PhCfg=="),
            ("crc", b"AAAAAAAAAAA="),
            ("bad", b"soon"),
        ]);
        let id: LeaseId = "d63bddb4-1b1a-4f07-9c02-3e3d0f0e0a01".parse().unwrap();
        assert_eq!(map.parsed("id"), Ok(Some(id)));
        assert_eq!(map.date("date").unwrap().map(Timestamp::unix_seconds), Some(784_111_777));
        assert_eq!(map.md5("md5").unwrap().map(|md5| md5[0]), Some(0xd4));
        assert_eq!(map.crc64("crc"), Ok(Some([0; 8])));
        assert_eq!(map.md5("gone"), Ok(None));
        assert_eq!(map.parsed::<LeaseId>("bad").unwrap_err().code(), ErrorCode::InvalidHeaderValue);
        assert_eq!(map.date("bad").unwrap_err().code(), ErrorCode::InvalidHeaderValue);
        assert_eq!(map.md5("bad").unwrap_err().code(), ErrorCode::InvalidMd5);
        assert_eq!(map.md5("crc").unwrap_err().code(), ErrorCode::InvalidMd5);
        assert_eq!(map.crc64("md5").unwrap_err().code(), ErrorCode::Crc64Mismatch);
        assert_eq!(map.crc64("bad").unwrap_err().code(), ErrorCode::InvalidHeaderValue);
        assert_eq!(
            map.required_parsed::<LeaseId>("gone").unwrap_err().code(),
            ErrorCode::MissingRequiredHeader
        );
    }

    #[test]
    fn each_kind_of_condition_has_its_own_headers() {
        let map = headers(&[
            ("if-match", b"\"0x1\", \"0x2\""),
            ("if-match", b"\"0x3\""),
            ("if-unmodified-since", b"Sun, 06 Nov 1994 08:49:37 GMT"),
            ("x-ms-source-if-none-match", b"*"),
        ]);
        let target = map.conditions().unwrap();
        assert_eq!(target.if_match, Some(ETagPattern::parse("\"0x1\",\"0x2\",\"0x3\"")));
        assert!(target.if_none_match.is_none() && target.if_unmodified_since.is_some());
        let source = map.source_conditions().unwrap();
        assert_eq!((source.if_match, source.if_none_match), (None, Some(ETagPattern::Any)));

        let date: &[u8] = b"Sun, 06 Nov 1994 08:49:37 GMT";
        let twice = headers(&[("if-modified-since", date), ("if-modified-since", date)]);
        assert_eq!(twice.conditions().unwrap_err().code(), ErrorCode::InvalidHeaderValue);
        let list = headers(&[("if-modified-since", &[date, b", ", date].concat())]);
        assert_eq!(list.conditions().unwrap_err().code(), ErrorCode::InvalidHeaderValue);
        let none = headers(&[("if-modified-since", b"yesterday"), ("if-unmodified-since", b"0, 1")]);
        assert_eq!(none.conditions(), Ok(Conditions::default()), "as HTTP has it");
        let own = headers(&[("x-ms-source-if-modified-since", b"yesterday")]);
        assert_eq!(own.source_conditions().unwrap_err().code(), ErrorCode::InvalidHeaderValue);
    }
}
