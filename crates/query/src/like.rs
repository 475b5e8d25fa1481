//! `LIKE`: `%` matches any text, `_` any single character.

use crate::fuel::Fuel;
use crate::report::RecordFailure;

enum Piece {
    Any,
    One,
    Exactly(char),
}

/// Returns whether text matches a pattern. Only the last `%` is ever retried, so the number of steps is at
/// most the length of the text times that of the pattern. Each step costs fuel.
pub(crate) fn is_like(
    text: &str,
    pattern: &str,
    escape: Option<char>,
    fuel: &Fuel,
) -> Result<bool, RecordFailure> {
    fuel.spend(text.len() / 4 + pattern.len())?;
    let text: Vec<char> = text.chars().collect();
    let pattern = pieces(pattern, escape);
    let (mut at, mut piece) = (0, 0);
    // The position after the last `%` in the pattern, and the text position where its continuation was last
    // tried.
    let mut retry: Option<(usize, usize)> = None;
    while at < text.len() {
        fuel.spend(1)?;
        match pattern.get(piece) {
            Some(Piece::Any) => {
                piece += 1;
                retry = Some((piece, at));
                continue;
            }
            Some(Piece::One) => {
                (at, piece) = (at + 1, piece + 1);
                continue;
            }
            Some(Piece::Exactly(character)) if *character == text[at] => {
                (at, piece) = (at + 1, piece + 1);
                continue;
            }
            _ => {}
        }
        let Some((after, from)) = retry else { return Ok(false) };
        retry = Some((after, from + 1));
        (at, piece) = (from + 1, after);
    }
    Ok(pattern[piece..].iter().all(|piece| matches!(piece, Piece::Any)))
}

fn pieces(pattern: &str, escape: Option<char>) -> Vec<Piece> {
    let mut characters = pattern.chars();
    let mut pieces = vec![];
    while let Some(character) = characters.next() {
        pieces.push(match character {
            _ if Some(character) == escape => Piece::Exactly(characters.next().unwrap_or(character)),
            '%' => Piece::Any,
            '_' => Piece::One,
            _ => Piece::Exactly(character),
        });
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_must_match_the_whole_text() {
        for (text, pattern, expected) in [
            ("", "", true),
            ("", "%", true),
            ("a", "", false),
            ("abc", "abc", true),
            ("abc", "a%", true),
            ("abc", "%c", true),
            ("abc", "%b%", true),
            ("abc", "a_c", true),
            ("abc", "a_", false),
            ("abc", "____", false),
            ("aXbXc", "a%X%c", true),
            ("mississippi", "m%iss%ip%i", true),
            ("mississippi", "m%iss%ipp", false),
            ("größe", "gr__e", true),
            ("100%", "100!%", true),
            ("1000", "100!%", false),
        ] {
            let fuel = Fuel::new(10_000);
            assert_eq!(is_like(text, pattern, Some('!'), &fuel), Ok(expected), "{text} {pattern}");
        }
    }

    #[test]
    fn work_of_matching_is_bounded() {
        let (text, pattern) = ("a".repeat(100_000), format!("%{}b", "a".repeat(1000)));
        assert_eq!(is_like(&text, &pattern, None, &Fuel::new(1_000_000)), Err(RecordFailure::TooComplex));
    }
}
