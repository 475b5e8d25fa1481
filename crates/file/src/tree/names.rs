//! Names of directories and files: which are valid, and which are equal.
//!
//! Names keep their spelling. They are compared as Windows does it: without regard to case, by the simple
//! upper case of each character.

use bytes::Bytes;
use lazuli_protocol::{ErrorCode, Refusal};

/// Maximum length of a path, in UTF-16 code units.
const MAX_PATH_UNITS: usize = 2048;
/// Maximum length of a name, in UTF-16 code units.
const MAX_NAME_UNITS: usize = 255;
/// Maximum depth of directories.
const MAX_DEPTH: usize = 250;
const FORBIDDEN: &[char] = &['"', '\\', '/', ':', '|', '<', '>', '*', '?'];
/// Names that Windows reserves for devices, with any extension.
const DEVICES: [&str; 6] = ["PRN", "AUX", "NUL", "CON", "CLOCK$", "CONIN$"];

/// The name of a directory or file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// As written.
    pub(crate) text: String,
    /// For comparison: equal names have equal folded names.
    pub(crate) folded: Bytes,
}

impl Name {
    /// Makes a name that is known to be valid.
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.to_owned(), folded: fold(text).into() }
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        let units = text.encode_utf16().take(MAX_NAME_UNITS + 1).count();
        let is_bad = units == 0
            || units > MAX_NAME_UNITS
            || text == "."
            || text == ".."
            || text.contains(FORBIDDEN)
            || text.chars().any(char::is_control)
            || is_device(text);
        if is_bad { Err(bad_path()) } else { Ok(Self::new(text)) }
    }
}

/// Parses a path below a share at which something may be created. Without `keep_dots`, dots at the end of
/// names are dropped.
pub(crate) fn path(object: &str, keep_dots: bool) -> Result<Vec<Name>, Refusal> {
    let names = existing_path(object, keep_dots)?;
    let is_long = object.encode_utf16().take(MAX_PATH_UNITS + 1).count() > MAX_PATH_UNITS;
    if is_long || names.len() > MAX_DEPTH { Err(bad_path()) } else { Ok(names) }
}

/// Parses the path of an existing object. It may be deeper than a new one, because directories above it can
/// be moved.
pub(crate) fn existing_path(object: &str, keep_dots: bool) -> Result<Vec<Name>, Refusal> {
    // The path of a directory may end with a slash.
    let object = object.strip_suffix('/').unwrap_or(object);
    if object.is_empty() {
        return Ok(vec![]);
    }
    let names = object.split('/').map(|name| match keep_dots || matches!(name, "." | "..") {
        true => Name::parse(name),
        false => Name::parse(name.trim_end_matches('.')),
    });
    names.collect()
}

/// Folds a name, or the beginning of one, for comparison.
pub fn fold(text: &str) -> String {
    let upper = |c: char| {
        let mut upper = c.to_uppercase();
        match (upper.next(), upper.next()) {
            (Some(single), None) => single,
            // Windows does not fold a character whose upper case has several characters.
            _ => c,
        }
    };
    text.chars().map(upper).collect()
}

fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let is_port = |port: &str| {
        let number = stem.strip_prefix(port).filter(|number| number.len() == 1);
        number.is_some_and(|number| number.bytes().all(|digit| (b'1'..=b'9').contains(&digit)))
    };
    DEVICES.contains(&stem.as_str()) || is_port("COM") || is_port("LPT")
}

fn bad_path() -> Refusal {
    ErrorCode::InvalidFileOrDirectoryPathName.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(object: &str, keep_dots: bool) -> Option<Vec<String>> {
        path(object, keep_dots).ok().map(|names| names.into_iter().map(|name| name.text).collect())
    }

    #[test]
    fn path_names_lose_trailing_dots_unless_kept() {
        assert_eq!(texts("", false), Some(vec![]));
        assert_eq!(texts("a/B c/d.txt", false), Some(vec!["a".into(), "B c".into(), "d.txt".into()]));
        assert_eq!(texts("dir/", false), Some(vec!["dir".into()]));
        assert_eq!(texts("a../b.", false), Some(vec!["a".into(), "b".into()]));
        assert_eq!(texts("a../b.", true), Some(vec!["a..".into(), "b.".into()]));
        assert_eq!(texts("COM0/com10/nullable/ünï😀", false).map(|names| names.len()), Some(4));
    }

    #[test]
    fn invalid_paths_are_refused() {
        let long = "x".repeat(256);
        let deep = vec!["d"; 251].join("/");
        for object in [
            "a//b", "/a", ".", "a/..", "...", "a:b", "a|b", "a<b", "a>b", "a*b", "a?b", "a\"b", "a\\b",
            "a\u{1}b", "con", "NUL.txt", "Com1", "lpt9.log", "CLOCK$", &long, &deep,
        ] {
            assert_eq!(texts(object, false), None, "{object:?}");
        }
        assert!(texts(&"x".repeat(255), false).is_some());
        assert!(texts(&vec!["d"; 250].join("/"), false).is_some());
        let long = vec!["x".repeat(204); 10].join("/");
        assert!(texts(&format!("{long}x"), false).is_none() && texts(&long[1..], false).is_some());
        for moved in [&deep, &format!("{long}x")] {
            assert!(existing_path(moved, false).is_ok());
        }
    }

    #[test]
    fn names_that_differ_in_case_are_equal() {
        assert_eq!(Name::new("Straße.TXT").folded, Name::new("straße.txt").folded);
        assert_eq!(Name::new("ünï").folded, Name::new("ÜNÏ").folded);
        assert_ne!(Name::new("strasse").folded, Name::new("straße").folded);
    }
}
