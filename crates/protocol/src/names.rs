//! The rules for names of accounts, containers, queues, shares, tables and blobs.
//!
//! The rules for file paths are in the file service.

use crate::error::{ErrorCode, Refusal};

/// The container of blobs with the address `/name`.
pub const ROOT_CONTAINER: &str = "$root";
/// The container of an account's static website.
pub const WEB_CONTAINER: &str = "$web";
/// Containers whose names break the usual rules.
const SPECIAL_CONTAINERS: [&str; 4] = [ROOT_CONTAINER, WEB_CONTAINER, "$logs", "$blobchangefeed"];
const MAX_BLOB_NAME: usize = 1024;
const MAX_BLOB_SEGMENTS: usize = 254;

/// Returns whether a name is valid for an account: 3 to 24 lower-case letters and digits.
pub fn is_account(name: &str) -> bool {
    (3..=24).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// Checks the name of a container: the rule of queues, or one of the special names.
pub fn check_container(name: &str) -> Result<(), Refusal> {
    if SPECIAL_CONTAINERS.contains(&name) { Ok(()) } else { check_dns(name) }
}

/// Checks the name of a queue.
pub fn check_queue(name: &str) -> Result<(), Refusal> {
    check_dns(name)
}

/// Checks the name of a share.
pub fn check_share(name: &str) -> Result<(), Refusal> {
    check_dns(name)
}

/// Checks the name of a table: 3 to 63 letters and digits, beginning with a letter, and not `tables`.
pub fn check_table(name: &str) -> Result<(), Refusal> {
    check_length(name)?;
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if !starts_well || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
        Err(Refusal::new(ErrorCode::InvalidResourceName))
    } else if name.eq_ignore_ascii_case("tables") {
        Err(Refusal::new(ErrorCode::InvalidInput))
    } else {
        Ok(())
    }
}

/// Checks the name of a blob: 1 to 1024 characters, at most 254 segments, no control characters, and no slash
/// in the root container. Everything else is valid, including `.`, `..` and empty segments.
/// [`Address`](crate::Address) has already replaced backslashes by slashes.
pub fn check_blob(container: &str, name: &str) -> Result<(), Refusal> {
    // The protocol counts UTF-16 code units.
    let length = name.encode_utf16().take(MAX_BLOB_NAME + 1).count();
    if length == 0 || length > MAX_BLOB_NAME {
        return Err(Refusal::new(ErrorCode::OutOfRangeInput));
    }
    let bad_segments = name.split('/').take(MAX_BLOB_SEGMENTS + 1).count() > MAX_BLOB_SEGMENTS
        || (container == ROOT_CONTAINER && name.contains('/'));
    if bad_segments || name.bytes().any(|b| b < b' ') {
        return Err(Refusal::new(ErrorCode::InvalidResourceName));
    }
    Ok(())
}

/// Checks a DNS label: 3 to 63 lower-case letters, digits and single dashes between them.
fn check_dns(name: &str) -> Result<(), Refusal> {
    check_length(name)?;
    let characters = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if characters && name.split('-').all(|part| !part.is_empty()) {
        Ok(())
    } else {
        Err(Refusal::new(ErrorCode::InvalidResourceName))
    }
}

fn check_length(name: &str) -> Result<(), Refusal> {
    if (3..=63).contains(&name.chars().count()) { Ok(()) } else { Err(bad_length()) }
}

fn bad_length() -> Refusal {
    Refusal::new(ErrorCode::OutOfRangeInput)
        .message("The specified resource name length is not within the permissible limits.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorCode::{InvalidInput as Reserved, InvalidResourceName as Name, OutOfRangeInput as Length};

    fn code(checked: Result<(), Refusal>) -> Option<ErrorCode> {
        checked.err().map(|refusal| refusal.code())
    }

    #[test]
    fn names_of_containers_queues_and_shares_are_dns_labels() {
        let (longest, too_long) = ("a".repeat(63), "a".repeat(64));
        for (name, expected) in [
            ("abc", None),
            ("0-1-2", None),
            (&longest, None),
            (&too_long, Some(Length)),
            ("ab", Some(Length)),
            ("", Some(Length)),
            ("-abc", Some(Name)),
            ("abc-", Some(Name)),
            ("a--b", Some(Name)),
            ("Abc", Some(Name)),
            ("a.b", Some(Name)),
            ("a/b", Some(Name)),
            ("äbc", Some(Name)),
            ("$abc", Some(Name)),
        ] {
            for check in [check_container, check_queue, check_share] {
                assert_eq!(code(check(name)), expected, "{name:?}");
            }
        }
        for name in SPECIAL_CONTAINERS {
            assert_eq!(code(check_container(name)), None);
            assert_eq!(code(check_queue(name)), Some(Name));
        }
    }

    #[test]
    fn table_names_are_alphanumeric_and_begin_with_a_letter() {
        let (longest, too_long) = ("T".repeat(63), "T".repeat(64));
        for (name, expected) in [
            ("Customers2", None),
            (longest.as_str(), None),
            (too_long.as_str(), Some(Length)),
            ("ab", Some(Length)),
            ("1abc", Some(Name)),
            ("a_b", Some(Name)),
            ("a-b", Some(Name)),
            ("tables", Some(Reserved)),
            ("Tables", Some(Reserved)),
        ] {
            assert_eq!(code(check_table(name)), expected, "{name:?}");
        }
    }

    #[test]
    fn blob_names_may_contain_almost_anything() {
        let longest = "é".repeat(1024);
        let pairs = "😀".repeat(512);
        let deepest = vec!["a"; 254].join("/");
        for (name, expected) in [
            ("a", None),
            (".", None),
            ("../x", None),
            ("a//b", None),
            ("/", None),
            ("a b?#%", None),
            ("\u{ffff}\u{7f}", None),
            (&longest, None),
            (&(longest.clone() + "x"), Some(Length)),
            (&pairs, None),
            (&(pairs.clone() + "x"), Some(Length)),
            ("", Some(Length)),
            (&deepest, None),
            (&(deepest.clone() + "/a"), Some(Name)),
            ("a\nb", Some(Name)),
            ("a\0", Some(Name)),
        ] {
            assert_eq!(code(check_blob("abc", name)), expected, "{name:?}");
        }
        assert_eq!(code(check_blob("$root", "a.txt")), None);
        assert_eq!(code(check_blob("$root", "a/b")), Some(Name));
    }

    #[test]
    fn account_names_are_short_and_lower_case() {
        for name in ["abc", "devstoreaccount1", &"a".repeat(24)] {
            assert!(is_account(name), "{name}");
        }
        for name in ["", "ab", &"a".repeat(25), "Abc", "a-b", "a.b", "äbc"] {
            assert!(!is_account(name), "{name}");
        }
    }
}
