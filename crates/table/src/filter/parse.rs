//! Parses `$filter`.
//!
//! ```text
//! expr   := or ; or := and ("or" and)* ; and := not ("and" not)* ; not := ["not"] prim
//! prim   := "(" expr ")" | operand [cmp operand] ; cmp := eq ne gt ge lt le
//! operand:= property | literal
//! ```
//!
//! Operators whose right operand is not parsed yet are kept in a list instead of the call stack, so nesting
//! is not limited. Functions and arithmetic exist in OData, but the service never supported them. They are
//! refused as not implemented, not as malformed.

use lazuli_protocol::{ErrorCode, Refusal};

use super::{Comparison, Filter, Operator, Property, evaluate};
use crate::address::quoted;
use crate::json::parse::{double, guid, invalid, moment};
use crate::value::Value;

/// Maximum length of a filter, in bytes. Clients that query many entities at once send long ones.
const MAX_BYTES: usize = 64 << 10;
/// Maximum number of comparisons in a filter. The documented limit is 15, but the live service accepts more,
/// and clients rely on it.
const MAX_COMPARISONS: usize = 256;

const FUNCTIONS: [&str; 27] = [
    "all",
    "any",
    "cast",
    "ceiling",
    "concat",
    "contains",
    "day",
    "endswith",
    "floor",
    "hour",
    "indexof",
    "isof",
    "length",
    "minute",
    "month",
    "replace",
    "round",
    "second",
    "startswith",
    "substring",
    "substringof",
    "tolower",
    "toupper",
    "trim",
    "year",
    "date",
    "time",
];
const ARITHMETIC: [&str; 5] = ["add", "sub", "mul", "div", "mod"];

impl Filter {
    /// Parses a filter.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        if text.len() > MAX_BYTES {
            return Err(invalid("$filter is too long."));
        }
        let mut scan = FilterScanner { rest: text, comparisons: 0 };
        let mut pending = PendingExpression::default();
        'operand: loop {
            if scan.symbol('(') {
                pending.operators.push(PendingOperator::Open);
                continue;
            }
            if scan.keyword("not") {
                pending.operators.push(PendingOperator::Not);
                continue;
            }
            pending.operands.push(scan.condition()?);
            loop {
                if scan.symbol(')') {
                    pending.close()?;
                } else if scan.keyword("and") {
                    pending.push(PendingOperator::And)?;
                    continue 'operand;
                } else if scan.keyword("or") {
                    pending.push(PendingOperator::Or)?;
                    continue 'operand;
                } else if scan.rest.is_empty() {
                    return pending.finish();
                } else {
                    return Err(scan.unexpected());
                }
            }
        }
    }
}

/// An operator whose right operand is not complete, or an open parenthesis. In order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PendingOperator {
    Open,
    Or,
    And,
    Not,
}

/// Operands and operators that are not combined yet.
#[derive(Default)]
struct PendingExpression {
    operands: Vec<Filter>,
    operators: Vec<PendingOperator>,
}

impl PendingExpression {
    /// Adds a binary operator. First combines those operators before it that bind at least as tightly.
    fn push(&mut self, operator: PendingOperator) -> Result<(), Refusal> {
        self.apply_from(operator)?;
        self.operators.push(operator);
        Ok(())
    }

    fn close(&mut self) -> Result<(), Refusal> {
        self.apply_from(PendingOperator::Or)?;
        let open = self.operators.pop();
        open.map(drop).ok_or_else(|| invalid("$filter closes a parenthesis that is not open."))
    }

    fn finish(mut self) -> Result<Filter, Refusal> {
        self.apply_from(PendingOperator::Or)?;
        match self.operators.is_empty() {
            true => self.operands.pop().ok_or_else(incomplete),
            false => Err(invalid("$filter does not close a parenthesis.")),
        }
    }

    /// Combines the last operators, as long as their precedence is at least `lowest`.
    fn apply_from(&mut self, lowest: PendingOperator) -> Result<(), Refusal> {
        while let Some(operator) = self.operators.pop_if(|operator| *operator >= lowest) {
            let right = self.operands.pop().ok_or_else(incomplete)?;
            let combined = match operator {
                PendingOperator::Not => negate(right),
                _ => join(operator, self.operands.pop().ok_or_else(incomplete)?, right),
            };
            self.operands.push(combined);
        }
        Ok(())
    }
}

fn negate(filter: Filter) -> Filter {
    match filter {
        Filter::Constant(is) => Filter::Constant(!is),
        Filter::Not(inner) => *inner,
        other => Filter::Not(Box::new(other)),
    }
}

fn join(operator: PendingOperator, left: Filter, right: Filter) -> Filter {
    let operands = |filter| match (operator, filter) {
        (PendingOperator::And, Filter::And(operands)) | (PendingOperator::Or, Filter::Or(operands)) => {
            operands
        }
        (_, single) => vec![single],
    };
    let mut all = operands(left);
    all.append(&mut operands(right));
    if operator == PendingOperator::And { Filter::And(all) } else { Filter::Or(all) }
}

/// One side of a comparison.
enum Operand {
    Property(Property),
    Literal(Value<'static>),
}

/// The part of a filter that is not parsed yet.
struct FilterScanner<'a> {
    rest: &'a str,
    /// Number of comparisons parsed so far.
    comparisons: usize,
}

impl<'a> FilterScanner<'a> {
    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    fn symbol(&mut self, symbol: char) -> bool {
        self.skip_spaces();
        let rest = self.rest.strip_prefix(symbol);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn keyword(&mut self, keyword: &str) -> bool {
        let is_next = self.peek_word() == keyword;
        if is_next {
            self.rest = &self.rest[keyword.len()..];
        }
        is_next
    }

    /// Returns the name or keyword that comes next; the empty string if something else comes next.
    fn peek_word(&mut self) -> &'a str {
        self.skip_spaces();
        let starts = self.rest.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
        if starts { &self.rest[..end] } else { "" }
    }

    /// Parses a comparison, or a property or constant that is a condition by itself.
    fn condition(&mut self) -> Result<Filter, Refusal> {
        self.comparisons += 1;
        if self.comparisons > MAX_COMPARISONS {
            return Err(invalid("$filter has too many comparisons."));
        }
        let left = self.operand()?;
        let word = self.peek_word();
        if ARITHMETIC.contains(&word) {
            return Err(not_implemented(word));
        }
        let Some(operator) = Operator::from_name(word) else {
            return match left {
                Operand::Property(property) => {
                    let literal = Value::Boolean(true);
                    Ok(Filter::Comparison(Comparison { property, operator: Operator::Equal, literal }))
                }
                Operand::Literal(Value::Boolean(is)) => Ok(Filter::Constant(is)),
                Operand::Literal(_) => Err(invalid("$filter has a literal that is not compared.")),
            };
        };
        self.rest = &self.rest[word.len()..];
        match (left, self.operand()?) {
            (Operand::Property(property), Operand::Literal(literal)) => {
                Ok(Filter::Comparison(Comparison { property, operator, literal }))
            }
            (Operand::Literal(literal), Operand::Property(property)) => {
                Ok(Filter::Comparison(Comparison { property, operator: operator.mirrored(), literal }))
            }
            (Operand::Literal(left), Operand::Literal(right)) => {
                Ok(Filter::Constant(evaluate::compare(&left, operator, &right)))
            }
            (Operand::Property(_), Operand::Property(_)) => {
                Err(invalid("$filter compares a property with another one: one side has to be a literal."))
            }
        }
    }

    fn operand(&mut self) -> Result<Operand, Refusal> {
        let word = self.peek_word();
        if word.is_empty() {
            return match self.rest.chars().next() {
                Some('\'') => Ok(Operand::Literal(Value::String(self.quoted()?.into()))),
                Some('0'..='9' | '-' | '.') => Ok(Operand::Literal(self.number()?)),
                _ => Err(self.unexpected()),
            };
        }
        self.rest = &self.rest[word.len()..];
        if self.rest.starts_with('\'') {
            let literal = prefixed(word, &self.quoted()?);
            let why = || format!("$filter has a literal that begins with {word} and cannot be read.");
            return literal.map(Operand::Literal).ok_or_else(|| invalid(why()));
        }
        if self.rest.trim_ascii_start().starts_with('(') && FUNCTIONS.contains(&word) {
            return Err(not_implemented(word));
        }
        Ok(match word {
            "true" => Operand::Literal(Value::Boolean(true)),
            "false" => Operand::Literal(Value::Boolean(false)),
            "NaN" => Operand::Literal(Value::Double(f64::NAN)),
            "INF" => Operand::Literal(Value::Double(f64::INFINITY)),
            "null" => return Err(invalid("$filter compares with null, which no property is.")),
            name => Operand::Property(Property::from_name(name)),
        })
    }

    fn quoted(&mut self) -> Result<String, Refusal> {
        let (text, rest) = quoted(self.rest).ok_or_else(|| invalid("$filter does not close a quote."))?;
        self.rest = rest;
        Ok(text)
    }

    /// Parses a number. An integer has the narrowest type that holds it, unless the suffix `L` makes it an
    /// Int64.
    fn number(&mut self) -> Result<Value<'static>, Refusal> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-');
        let (text, rest) = self.rest.split_at(self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len()));
        self.rest = rest;
        let value = if let Some(long) = text.strip_suffix(['L', 'l']) {
            long.parse().ok().map(Value::Int64)
        } else if let Some(number) = text.strip_suffix(['D', 'd']) {
            double(number).map(Value::Double)
        } else {
            let (int32, int64) = (text.parse().map(Value::Int32), text.parse().map(Value::Int64));
            int32.or(int64).ok().or_else(|| double(text).map(Value::Double))
        };
        value.ok_or_else(|| invalid("$filter has a number that cannot be read."))
    }

    fn unexpected(&self) -> Refusal {
        match self.rest.chars().next() {
            Some(c) => invalid(format!("$filter has {c:?} where something else has to be.")),
            None => incomplete(),
        }
    }
}

/// Parses a literal whose type is named before the quotes.
fn prefixed(prefix: &str, text: &str) -> Option<Value<'static>> {
    match prefix.to_ascii_lowercase().as_str() {
        "datetime" => moment(text).map(|moment| Value::DateTime(moment.ticks())),
        "guid" => guid(text).map(Value::Guid),
        "x" | "binary" => hexadecimal(text).map(|bytes| Value::Binary(bytes.into())),
        _ => None,
    }
}

fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

fn incomplete() -> Refusal {
    invalid("$filter ends where something has to follow.")
}

fn not_implemented(what: &str) -> Refusal {
    Refusal::new(ErrorCode::NotImplemented).message(format!("{what} is not supported in $filter."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String, ErrorCode> {
        Filter::parse(text).map(|filter| shown(&filter)).map_err(|refusal| refusal.code())
    }

    /// Formats a tree with all parentheses.
    fn shown(filter: &Filter) -> String {
        let joined = |filters: &[Filter], by: &str| {
            format!("({})", filters.iter().map(shown).collect::<Vec<_>>().join(by))
        };
        match filter {
            Filter::Constant(is) => is.to_string(),
            Filter::Comparison(c) => {
                let property = match &c.property {
                    Property::Named(name) => name.clone(),
                    key => format!("{key:?}"),
                };
                format!("{property} {:?} {:?}", c.operator, c.literal)
            }
            Filter::Not(inner) => format!("!{}", shown(inner)),
            Filter::And(all) => joined(all, " & "),
            Filter::Or(all) => joined(all, " | "),
        }
    }

    #[test]
    fn not_binds_tighter_than_and_and_and_tighter_than_or() {
        for (text, expected) in [
            ("a", "a"),
            ("(a)", "a"),
            ("not a", "!a"),
            ("not not a", "a"),
            ("a or b and c", "(a | (b & c))"),
            ("a and b or c", "((a & b) | c)"),
            ("(a or b) and c", "((a | b) & c)"),
            ("not a and b", "(!a & b)"),
            ("not (a and b)", "!(a & b)"),
            ("not(a)and(b)or(not(c))", "((!a & b) | !c)"),
            ("a and b and c", "(a & b & c)"),
            ("((((a) or (b)) or (c)) or (d))", "(a | b | c | d)"),
            ("a and (b and c)", "(a & b & c)"),
            ("  (  a  )  ", "a"),
            ("a or not b and not (c or d)", "(a | (!b & !(c | d)))"),
        ] {
            let found = parsed(text).map(|shown| shown.replace(" Equal Boolean(true)", ""));
            assert_eq!(found.as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn every_type_has_a_literal_on_either_side_of_a_comparison() {
        for (text, expected) in [
            ("P eq 'x'", r#"P Equal String("x")"#),
            ("P ne ''", r#"P NotEqual String("")"#),
            ("P eq 'it''s'", r#"P Equal String("it's")"#),
            ("P eq ''''", r#"P Equal String("'")"#),
            ("P eq '''a'''''", r#"P Equal String("'a''")"#),
            ("P eq ' and )('", r#"P Equal String(" and )(")"#),
            ("P gt 5", "P Greater Int32(5)"),
            ("P ge -5", "P GreaterOrEqual Int32(-5)"),
            ("P lt 5L", "P Less Int64(5)"),
            ("P le 2147483648", "P LessOrEqual Int64(2147483648)"),
            ("P eq 9223372036854775808", "P Equal Double(9.223372036854776e18)"),
            ("P eq 5.0", "P Equal Double(5.0)"),
            ("P eq 1e5", "P Equal Double(100000.0)"),
            ("P eq -1.5E-3", "P Equal Double(-0.0015)"),
            ("P eq 5d", "P Equal Double(5.0)"),
            ("P eq NaN", "P Equal Double(NaN)"),
            ("P eq -INF", "P Equal Double(-inf)"),
            ("P eq true", "P Equal Boolean(true)"),
            ("P eq false", "P Equal Boolean(false)"),
            ("P eq datetime'0001-01-01T00:00:00Z'", "P Equal DateTime(0)"),
            ("P eq datetime'0001-01-01T00:00:00.0000001'", "P Equal DateTime(1)"),
            ("P eq X'00fF'", "P Equal Binary([0, 255])"),
            ("P eq binary''", "P Equal Binary([])"),
            ("5 lt P", "P Greater Int32(5)"),
            ("'a' ge P", r#"P LessOrEqual String("a")"#),
            ("'p' eq PartitionKey", r#"PartitionKey Equal String("p")"#),
            ("Ünï_9 eq 1", "Ünï_9 Equal Int32(1)"),
            ("_p eq 1", "_p Equal Int32(1)"),
            ("eq eq 1", "eq Equal Int32(1)"),
            ("1 eq 1", "true"),
            ("1 gt 1", "false"),
            ("true", "true"),
            ("not false", "true"),
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(expected), "{text}");
        }
        let guid = parsed("P eq guid'01020304-0506-0708-090A-0b0c0d0e0f10'").unwrap();
        assert!(guid.starts_with("P Equal Guid([1, 2, 3, 4, "), "{guid}");
    }

    #[rustfmt::skip]
    const MALFORMED: [&str; 45] = [
        "", " ", "(", ")", "()", "not", "P eq", "eq 5", "P eq 5 and", "and P eq 5", "P eq 5 or or Q eq 5", "P eq 5)",
        "(P eq 5", "P eq 'x", "P eq \"x\"", "P eq 5 5", "P 5", "5", "'x'", "P eq Q", "P eq null", "P == 5", "P eq 5eq",
        "P eq 5x", "P eq 1e400", "P eq 5.5L", "P eq --5", "P eq 1.2.3", "P eq 9223372036854775808L", "P EQ 5",
        "P eq 5 AND Q eq 5", "P eq datetime'x'", "P eq guid'x'", "P eq X'0'", "P eq X'0g'", "P eq y'00'", "P eq 5 eq 5",
        "a/b eq 5", "P eq 'x''", "f(P) eq 5", "(P) eq 5", "P eq (5)", "P\u{A0}eq 5", "\0", "P eq5",
    ];

    #[test]
    fn unsupported_filters_are_not_reported_as_malformed() {
        for text in MALFORMED {
            assert_eq!(parsed(text), Err(ErrorCode::InvalidInput), "{text}");
        }
        for text in [
            "startswith(P, 'x')",
            "substringof('x', P) eq true",
            "not length (P) eq 5",
            "P add 5 eq 6",
            "tolower(P) eq 'x'",
        ] {
            assert_eq!(parsed(text), Err(ErrorCode::NotImplemented), "{text}");
        }
    }

    #[test]
    fn nesting_is_unlimited_but_comparisons_and_length_are_not() {
        let deep = 30_000;
        assert_eq!(parsed(&format!("{}true{}", "(".repeat(deep), ")".repeat(deep))).as_deref(), Ok("true"));
        assert_eq!(parsed(&"(".repeat(60_000)), Err(ErrorCode::InvalidInput));
        assert_eq!(parsed(&format!("{}true", "not ".repeat(10_000))).as_deref(), Ok("true"));
        let many = |count: usize| vec!["not (a"; count].join(" and ") + &")".repeat(count);
        assert!(parsed(&many(MAX_COMPARISONS)).is_ok());
        assert_eq!(parsed(&many(MAX_COMPARISONS + 1)), Err(ErrorCode::InvalidInput));
        assert_eq!(parsed(&format!("P eq '{}'", "x".repeat(MAX_BYTES))), Err(ErrorCode::InvalidInput));
    }
}
