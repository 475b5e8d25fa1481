//! The tokens of a statement.

use crate::StatementError;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// A name or a keyword, depending on the position.
    Word(String),
    /// `"a name"`
    Name(String),
    /// `'text'`
    Text(String),
    Int(i64),
    Float(f64),
    Symbol(&'static str),
}

/// Longer symbols come before their prefixes.
const SYMBOLS: [&str; 19] =
    ["!=", "<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "%", "(", ")", "[", "]", ",", ".", ";"];

/// Returns the tokens of a statement with their positions in bytes.
pub(crate) fn tokens(statement: &str) -> Result<Vec<(Token, usize)>, StatementError> {
    let mut tokens = Vec::new();
    let mut rest = statement;
    loop {
        rest = rest.trim_start();
        let at = statement.len() - rest.len();
        let Some(first) = rest.chars().next() else { return Ok(tokens) };
        let (token, rest_after) = match first {
            '\'' => quoted(rest, '\'').map(|(text, rest_after)| (Token::Text(text), rest_after)),
            '"' => quoted(rest, '"').map(|(name, rest_after)| (Token::Name(name), rest_after)),
            '0'..='9' => Some(number(rest)),
            '.' if rest[1..].starts_with(|next: char| next.is_ascii_digit()) => Some(number(rest)),
            _ if is_word_character(first) => {
                let end = rest.find(|next| !is_word_character(next)).unwrap_or(rest.len());
                Some((Token::Word(rest[..end].to_owned()), &rest[end..]))
            }
            _ => symbol(rest),
        }
        .ok_or_else(|| StatementError::at(at, format!("'{first}' is not understood here.")))?;
        tokens.push((token, at));
        rest = rest_after;
    }
}

fn is_word_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_' || character == '$'
}

fn symbol(rest: &str) -> Option<(Token, &str)> {
    SYMBOLS.iter().find_map(|symbol| Some((Token::Symbol(symbol), rest.strip_prefix(symbol)?)))
}

/// Returns the text between quotes and the rest. A doubled quote stands for one. Returns `None` if the
/// quotes are not closed.
fn quoted(rest: &str, quote: char) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut rest = rest.strip_prefix(quote)?;
    loop {
        let (part, after) = rest.split_once(quote)?;
        text.push_str(part);
        match after.strip_prefix(quote) {
            Some(more) => {
                text.push(quote);
                rest = more;
            }
            None => return Some((text, after)),
        }
    }
}

/// Parses a number without a sign. A number that does not fit in 64 bits becomes a floating-point number.
fn number(rest: &str) -> (Token, &str) {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut end = digits(rest);
    let mut is_whole = true;
    if rest[end..].starts_with('.') && digits(&rest[end + 1..]) > 0 {
        end += 1 + digits(&rest[end + 1..]);
        is_whole = false;
    }
    if rest[end..].starts_with(['e', 'E']) {
        let sign = usize::from(rest[end + 1..].starts_with(['+', '-']));
        let exponent = digits(&rest[end + 1 + sign..]);
        if exponent > 0 {
            end += 1 + sign + exponent;
            is_whole = false;
        }
    }
    let text = &rest[..end];
    let token = match text.parse() {
        Ok(int) if is_whole => Token::Int(int),
        _ => Token::Float(text.parse().unwrap_or(f64::INFINITY)),
    };
    (token, &rest[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_is_split_into_tokens() {
        let read = tokens("SELECT _1,\"a \"\"b\" FROM t WHERE x!='it''s' AND y<=-1.5e3 % .5;").unwrap();
        let read: Vec<_> = read.into_iter().map(|(token, _)| token).collect();
        let word = |text: &str| Token::Word(text.into());
        assert_eq!(
            read,
            [
                word("SELECT"),
                word("_1"),
                Token::Symbol(","),
                Token::Name("a \"b".into()),
                word("FROM"),
                word("t"),
                word("WHERE"),
                word("x"),
                Token::Symbol("!="),
                Token::Text("it's".into()),
                word("AND"),
                word("y"),
                Token::Symbol("<="),
                Token::Symbol("-"),
                Token::Float(1500.0),
                Token::Symbol("%"),
                Token::Float(0.5),
                Token::Symbol(";"),
            ]
        );
    }

    #[test]
    fn numbers_end_at_the_first_other_character() {
        for (text, expected) in [
            ("12", vec![Token::Int(12)]),
            ("9223372036854775808", vec![Token::Float(9223372036854775808.0)]),
            ("1.", vec![Token::Int(1), Token::Symbol(".")]),
            ("1e", vec![Token::Int(1), Token::Word("e".into())]),
            ("1e5", vec![Token::Float(1e5)]),
        ] {
            let read: Vec<_> = tokens(text).unwrap().into_iter().map(|(token, _)| token).collect();
            assert_eq!(read, expected, "{text}");
        }
    }

    #[test]
    fn invalid_token_is_reported_with_its_position() {
        for (text, at) in [("a ?", 2), ("'open", 0), ("a \"open", 2), ("a # b", 2)] {
            assert_eq!(tokens(text).unwrap_err().position, at, "{text}");
        }
    }
}
