//! Parses the names of files and directories in requests.

use lazuli_concurrency::Timestamp;
use lazuli_protocol::date::parse_iso8601;

use crate::wire::status::Status;

/// The stream that is the file's content. Other streams are not supported.
const DEFAULT_STREAM: &str = "::$DATA";
/// Characters that no file name may contain.
const FORBIDDEN_CHARACTERS: [char; 7] = ['"', '<', '>', '|', '*', '?', ':'];

/// A path with slashes, and the time of the snapshot that it names, in whole seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) path: String,
    pub(crate) snapshot: Option<Timestamp>,
}

impl Path {
    /// Parses a name with backslashes. Slashes count as backslashes, as in Samba.
    pub(crate) fn parse(name: &str) -> Result<Self, Status> {
        if name.starts_with(['\\', '/']) {
            return Err(Status::INVALID_PARAMETER);
        }
        let at = name.len().saturating_sub(DEFAULT_STREAM.len());
        let name = match name.get(at..) {
            Some(end) if at > 0 && end.eq_ignore_ascii_case(DEFAULT_STREAM) => &name[..at],
            _ => name,
        };
        let (mut parts, mut snapshot) = (vec![], None);
        for part in name.split(['\\', '/']).filter(|part| !part.is_empty()) {
            match part {
                "." => return Err(Status::OBJECT_NAME_INVALID),
                ".." => {
                    parts.pop().ok_or(Status::OBJECT_PATH_SYNTAX_BAD)?;
                }
                _ if snapshot.is_none() && gmt_token(part).is_some() => snapshot = gmt_token(part),
                _ if part.contains(FORBIDDEN_CHARACTERS) || part.contains(|c: char| c < ' ') => {
                    return Err(Status::OBJECT_NAME_INVALID);
                }
                _ => parts.push(part),
            }
        }
        Ok(Self { path: parts.join("/"), snapshot })
    }
}

/// Parses a snapshot name `@GMT-YYYY.MM.DD-HH.MM.SS`.
fn gmt_token(part: &str) -> Option<Timestamp> {
    let (date, time) = part.strip_prefix("@GMT-")?.split_once('-')?;
    if date.len() != 10 || time.len() != 8 {
        return None;
    }
    parse_iso8601(&format!("{}T{}Z", date.replace('.', "-"), time.replace('.', ":")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_to_paths_or_refused() {
        for (name, path) in [
            ("", Ok("")),
            ("a", Ok("a")),
            (r"a\b c\d.e", Ok("a/b c/d.e")),
            (r"a\\b\", Ok("a/b")),
            (r"a\..\b", Ok("b")),
            ("a::$DATA", Ok("a")),
            ("a::$data", Ok("a")),
            (r"\a", Err(Status::INVALID_PARAMETER)),
            (r"..\a", Err(Status::OBJECT_PATH_SYNTAX_BAD)),
            (r"a\.\b", Err(Status::OBJECT_NAME_INVALID)),
            ("a:stream", Err(Status::OBJECT_NAME_INVALID)),
            ("::$DATA", Err(Status::OBJECT_NAME_INVALID)),
            ("a*", Err(Status::OBJECT_NAME_INVALID)),
            ("a/b", Ok("a/b")),
            ("/a", Err(Status::INVALID_PARAMETER)),
            ("a\u{1}", Err(Status::OBJECT_NAME_INVALID)),
        ] {
            assert_eq!(Path::parse(name).map(|path| path.path).as_deref(), path.as_deref(), "{name}");
        }
    }

    #[test]
    fn a_gmt_token_names_a_snapshot_anywhere_in_the_path() {
        let second = Timestamp::from_unix_seconds(1_709_210_096);
        for name in [r"@GMT-2024.02.29-12.34.56\a", r"a\@GMT-2024.02.29-12.34.56", "@GMT-2024.02.29-12.34.56"]
        {
            let path = Path::parse(name).unwrap();
            assert_eq!(path.snapshot, Some(second), "{name}");
            assert!(!path.path.contains('@'));
        }
        for name in [
            "@GMT-2024.02.29",
            "@GMT-2024.02.29-12.34.5x",
            "@GMT-2024.13.29-12.34.56",
            "@GMT-24.2.29-12.34.56",
        ] {
            assert_eq!(Path::parse(name), Ok(Path { path: name.into(), snapshot: None }));
        }
    }
}
