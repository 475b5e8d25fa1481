//! The query string, decoded once by the front door.
//!
//! Names are stored in lower case and looked up without regard to case; values are percent-decoded UTF-8.
//! Repeated parameters and their order are kept because Shared Key signs them. `+` is a space, as in HTML
//! forms and as some clients send it, except in parameters that contain no spaces (Base64, times), where many
//! clients send `+` literally.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use percent_encoding::percent_decode_str;

use crate::error::{ErrorCode, Refusal};

/// Maximum number of parameters. No operation and signature have more together.
const MAX_PARAMETERS: usize = 128;

/// Parameters of Base64 or times, in which `+` is literal.
const LITERAL_PLUS_PARAMETERS: [&str; 10] =
    ["sig", "blockid", "popreceipt", "marker", "st", "se", "skt", "ske", "snapshot", "versionid"];

/// Decoded query parameters.
///
/// ```
/// # use lazuli_protocol::{ErrorCode, Query, Refusal};
/// let query = Query::parse("comp=list&prefix=a%2Fb&MaxResults=10&include=tags,metadata")?;
/// assert_eq!(query.get("prefix"), Some("a/b"));
/// assert_eq!(query.get("delimiter"), None);
/// assert_eq!(query.number("maxresults", 1..=5000)?, Some(10));
/// assert_eq!(query.list("include", &[("tags", 'T'), ("metadata", 'M')])?, ['T', 'M']);
///
/// let refusal = query.number("maxresults", 1..=5).expect_err("out of range");
/// assert_eq!(refusal.code(), ErrorCode::OutOfRangeQueryParameterValue);
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    parameters: Vec<Parameter>,
}

/// One decoded parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name in lower case.
    pub name: String,
    /// The value; empty if none was sent.
    pub value: String,
    /// The name as sent, for a parameter without `=`.
    pub bare: Option<String>,
}

impl Query {
    /// Parses the part of a URI after `?`.
    pub fn parse(raw: &str) -> Result<Self, Refusal> {
        let mut parameters = Vec::new();
        for part in raw.split('&').filter(|part| !part.is_empty()) {
            if parameters.len() == MAX_PARAMETERS {
                return Err(
                    Refusal::new(ErrorCode::InvalidUri).message("The URI has too many query parameters.")
                );
            }
            let (sent, value) = part.split_once('=').unwrap_or((part, ""));
            let sent = decode(sent).ok_or(ErrorCode::InvalidUri)?;
            let name = sent.to_lowercase();
            let spaced = match value.contains('+') && !LITERAL_PLUS_PARAMETERS.contains(&name.as_str()) {
                true => Cow::Owned(value.replace('+', " ")),
                false => Cow::Borrowed(value),
            };
            let value = decode(&spaced).ok_or_else(|| {
                Refusal::invalid_query(&name, value, "The value is not percent-encoded UTF-8.")
            })?;
            let bare = (!part.contains('=')).then_some(sent);
            parameters.push(Parameter { name, value, bare });
        }
        Ok(Self { parameters })
    }

    /// Returns the first value of a parameter, if it was sent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_all(name).next()
    }

    /// Returns all values of a parameter, in the order sent.
    pub fn get_all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let named = move |parameter: &&Parameter| parameter.name.eq_ignore_ascii_case(name);
        self.parameters.iter().filter(named).map(|parameter| parameter.value.as_str())
    }

    /// Returns whether the parameter was sent, with or without a value.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns all parameters in the order sent: names in lower case, values decoded.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parameters.iter().map(|parameter| (parameter.name.as_str(), parameter.value.as_str()))
    }

    /// Returns all parameters in the order sent, with those without `=` marked.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns the value of a parameter that has to be present and not empty.
    pub fn required(&self, name: &str) -> Result<&str, Refusal> {
        self.get(name).filter(|value| !value.is_empty()).ok_or_else(|| Refusal::missing_query(name))
    }

    /// Returns a whole number within a range; `None` if absent or empty.
    pub fn number(&self, name: &str, allowed: RangeInclusive<i64>) -> Result<Option<i64>, Refusal> {
        let Some(text) = self.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Refusal::invalid_query(name, text, "The value is not a whole number."));
        }
        // A number that does not fit an i64 is out of every range.
        match text.parse() {
            Ok(number) if allowed.contains(&number) => Ok(Some(number)),
            _ => Err(Refusal::new(ErrorCode::OutOfRangeQueryParameterValue)
                .detail("QueryParameterName", name)
                .detail("QueryParameterValue", text)
                .detail("MinimumAllowed", allowed.start().to_string())
                .detail("MaximumAllowed", allowed.end().to_string())),
        }
    }

    /// Returns `maxresults`: at least 1, capped at `cap`, which is also the default.
    pub fn max_results(&self, cap: u16) -> Result<usize, Refusal> {
        let requested = self.number("maxresults", 1..=i64::from(i32::MAX))?;
        Ok(requested.map_or(usize::from(cap), |requested| (requested as usize).min(usize::from(cap))))
    }

    /// Returns `true` or `false`, ignoring case; `None` if absent or empty.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Refusal> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) if text.eq_ignore_ascii_case("true") => Ok(Some(true)),
            Some(text) if text.eq_ignore_ascii_case("false") => Ok(Some(false)),
            Some(text) => Err(Refusal::invalid_query(name, text, "The value is neither true nor false.")),
        }
    }

    /// Returns the meanings of the words of a list such as `include`, comma-separated or repeated. Refuses
    /// words that are not in `known`.
    pub fn list<T: Copy>(&self, name: &str, known: &[(&str, T)]) -> Result<Vec<T>, Refusal> {
        self.get_all(name)
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(|word| {
                let found = known.iter().find(|(k, _)| k.eq_ignore_ascii_case(word));
                found.map(|(_, meaning)| *meaning).ok_or_else(|| {
                    Refusal::invalid_query(name, word, "The value is not one that this operation knows.")
                })
            })
            .collect()
    }
}

/// Decodes percent-encoded text. Returns `None` if a `%` is not followed by two hexadecimal digits, or the
/// bytes are not UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut escapes = text.split('%').skip(1).map(str::as_bytes);
    escapes
        .all(|e| matches!(e, [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit()))
        .then_some(())?;
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ignore_case_and_values_are_decoded_in_the_order_sent() {
        let query = Query::parse(
            "Comp=list&&include=snapshots&include=metadata%2Ccopy&prefix=a%20b+c%2B%C3%A9&blockid=a+b%2B&x",
        )
        .unwrap();
        assert_eq!(query.get("comp"), Some("list"));
        assert_eq!(query.get("prefix"), Some("a b c+é"));
        assert_eq!(query.get("blockid"), Some("a+b+"));
        assert_eq!(query.get("x"), Some(""));
        assert_eq!(query.get("y"), None);
        assert_eq!(query.get_all("include").collect::<Vec<_>>(), ["snapshots", "metadata,copy"]);
        let names: Vec<_> = query.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["comp", "include", "include", "prefix", "blockid", "x"]);
        let bare = |raw| Query::parse(raw).unwrap().parameters()[0].bare.clone();
        assert_eq!((bare("X%41&y"), bare("x="), bare("=x")), (Some("XA".into()), None, None));
        assert_eq!(Query::parse("a=b=c").unwrap().get("a"), Some("b=c"));
        assert_eq!(Query::parse("").unwrap(), Query::default());
    }

    #[test]
    fn undecodable_parameters_are_refused() {
        for (raw, code) in [
            ("prefix=%", ErrorCode::InvalidQueryParameterValue),
            ("prefix=%4", ErrorCode::InvalidQueryParameterValue),
            ("prefix=100%&x=1", ErrorCode::InvalidQueryParameterValue),
            ("prefix=%zz", ErrorCode::InvalidQueryParameterValue),
            ("prefix=%ff", ErrorCode::InvalidQueryParameterValue),
            ("%ff=1", ErrorCode::InvalidUri),
            (&"a&".repeat(MAX_PARAMETERS + 1), ErrorCode::InvalidUri),
        ] {
            assert_eq!(Query::parse(raw).unwrap_err().code(), code, "{raw}");
        }
        assert!(Query::parse(&"a&".repeat(MAX_PARAMETERS)).is_ok());
    }

    #[test]
    fn malformed_and_out_of_range_numbers_are_refused() {
        use ErrorCode::{InvalidQueryParameterValue as Form, OutOfRangeQueryParameterValue as Range};
        for (raw, expected) in [
            ("", Ok(None)),
            ("n=", Ok(None)),
            ("n=1", Ok(Some(1))),
            ("n=32", Ok(Some(32))),
            ("n=0", Err(Range)),
            ("n=33", Err(Range)),
            ("n=-1", Err(Range)),
            ("n=99999999999999999999", Err(Range)),
            ("n=ten", Err(Form)),
            ("n=1.5", Err(Form)),
            ("n=%201", Err(Form)),
            ("n=+1", Err(Form)),
            ("n=-", Err(Form)),
        ] {
            let number = Query::parse(raw).unwrap().number("n", 1..=32);
            assert_eq!(number.map_err(|refusal| refusal.code()), expected, "{raw}");
        }
        let refusal = Query::parse("n=0").unwrap().number("n", 1..=32).unwrap_err();
        assert_eq!(
            refusal.details()[2..],
            [("MinimumAllowed", "1".to_string()), ("MaximumAllowed", "32".to_string())]
        );
    }

    #[test]
    fn large_max_results_are_capped_instead_of_refused() {
        for (raw, expected) in [("", 5000), ("maxresults=7", 7), ("maxresults=5001", 5000)] {
            assert_eq!(Query::parse(raw).unwrap().max_results(5000), Ok(expected));
        }
        for raw in ["maxresults=0", "maxresults=-1"] {
            let refusal = Query::parse(raw).unwrap().max_results(5000).unwrap_err();
            assert_eq!(refusal.code(), ErrorCode::OutOfRangeQueryParameterValue);
        }
    }

    #[test]
    fn lists_are_split_and_checked() {
        let known = [("metadata", 1), ("deleted", 2), ("copy", 3)];
        let list = |raw: &str| Query::parse(raw).unwrap().list("include", &known).map_err(|r| r.code());
        assert_eq!(list("include=metadata,Copy&include=deleted,"), Ok(vec![1, 3, 2]));
        assert_eq!(list(""), Ok(vec![]));
        assert_eq!(list("include=metadata,all"), Err(ErrorCode::InvalidQueryParameterValue));
    }

    #[test]
    fn flags_and_required_parameters_are_checked() {
        let query = Query::parse("peekonly=True&x=1&empty=").unwrap();
        assert_eq!(query.flag("peekonly"), Ok(Some(true)));
        assert_eq!(query.flag("empty"), Ok(None));
        assert!(query.flag("x").is_err());
        assert_eq!(query.required("x"), Ok("1"));
        for name in ["empty", "gone"] {
            let refusal = query.required(name).unwrap_err();
            assert_eq!(refusal.code(), ErrorCode::MissingRequiredQueryParameter);
            assert_eq!(refusal.details(), [("QueryParameterName", name.to_string())]);
        }
    }
}
