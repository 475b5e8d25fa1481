//! The language of tag conditions and of Find Blobs by Tags.
//!
//! ```text
//! expression = term (OR term)*
//! term       = factor (AND factor)*
//! factor     = "(" expression ")" | operand operator 'value'
//! operand    = name | "name" | @container
//! operator   = "=" | "<>" | "<" | "<=" | ">" | ">="
//! ```
//!
//! Values compare by their bytes. A condition compares only tags. A query has neither `OR` nor `<>`, so it is
//! a list of comparisons, and those with one tag are a range of the index.

use std::ops::Range;

use bytes::Bytes;

use crate::model::keys;
use crate::model::record::Tags;

/// Maximum number of `AND` and `OR` in one expression.
const MAX_LOGICAL_OPERATORS: usize = 10;
/// Maximum depth of nested parentheses.
const MAX_DEPTH: usize = 16;

/// The reason why a text is not an expression.
pub(crate) type ExpressionError = &'static str;

/// A condition on the tags of a blob: `x-ms-if-tags`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TagCondition(Expression);

impl TagCondition {
    /// Parses the value of the header.
    pub(crate) fn parse(text: &str) -> Result<Self, ExpressionError> {
        let expression = parse(text)?;
        if expression.comparisons().iter().any(|comparison| comparison.operand == Operand::Container) {
            return Err("A condition has tags only.");
        }
        Ok(Self(expression))
    }

    /// Returns whether a blob with these tags meets the condition.
    pub(crate) fn holds(&self, tags: &Tags) -> bool {
        self.0.holds(tags)
    }
}

/// The expression of Find Blobs by Tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TagQuery {
    /// Restricts the query to these containers. Several different names match no container.
    pub(crate) containers: Vec<String>,
    comparisons: Vec<(String, Operator, String)>,
}

impl TagQuery {
    /// Parses a `where` parameter.
    pub(crate) fn parse(text: &str, may_name_container: bool) -> Result<Self, ExpressionError> {
        let expression = parse(text)?;
        if expression.has_alternatives() {
            return Err("OR is not supported.");
        }
        let mut query = Self { containers: vec![], comparisons: vec![] };
        for Comparison { operand, operator, value } in expression.comparisons() {
            match (operand, operator) {
                (_, Operator::NotEqual) => return Err("<> is not supported."),
                (Operand::Tag(tag), operator) => {
                    query.comparisons.push((tag.clone(), *operator, value.clone()));
                }
                (Operand::Container, Operator::Equal) if may_name_container => {
                    query.containers.push(value.clone());
                }
                (Operand::Container, _) => return Err("@container is not supported so."),
            }
        }
        if query.comparisons.is_empty() {
            return Err("It names no tag.");
        }
        query.containers.sort_unstable();
        query.containers.dedup();
        Ok(query)
    }

    /// Returns whether a blob with these tags matches the query.
    pub(crate) fn matches(&self, tags: &Tags) -> bool {
        self.comparisons.iter().all(|(tag, operator, value)| operator.holds(tags.get(tag), value))
    }

    /// Returns whether the query compares this tag.
    pub(crate) fn names(&self, tag: &str) -> bool {
        self.comparisons.iter().any(|(named, ..)| named == tag)
    }

    /// Returns the tag whose index to read: one that must equal a value, if there is one.
    pub(crate) fn tag(&self) -> &str {
        let exact = self.comparisons.iter().find(|(_, operator, _)| *operator == Operator::Equal);
        exact.or(self.comparisons.first()).map_or("", |(tag, ..)| tag)
    }

    /// Returns the rows of that tag's index that can match.
    pub(crate) fn rows(&self) -> Range<Bytes> {
        let mut rows = keys::all_tag_values();
        for (_, operator, value) in self.comparisons.iter().filter(|(tag, ..)| tag == self.tag()) {
            let equal = keys::tag_value(value);
            let (start, end) = match operator {
                Operator::Equal => (Some(equal.start), Some(equal.end)),
                Operator::Greater => (Some(equal.end), None),
                Operator::GreaterOrEqual => (Some(equal.start), None),
                Operator::Less => (None, Some(equal.start)),
                Operator::LessOrEqual => (None, Some(equal.end)),
                Operator::NotEqual => (None, None),
            };
            rows.start = start.map_or(rows.start.clone(), |start| start.max(rows.start.clone()));
            rows.end = end.map_or(rows.end.clone(), |end| end.min(rows.end.clone()));
        }
        rows
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    Compare(Comparison),
    All(Vec<Expression>),
    Any(Vec<Expression>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Comparison {
    operand: Operand,
    operator: Operator,
    value: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operand {
    Tag(String),
    Container,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Operator {
    /// Compares a tag with a value. A missing tag differs from every value.
    fn holds(self, tag: Option<&str>, value: &str) -> bool {
        let Some(tag) = tag else { return self == Self::NotEqual };
        match self {
            Self::Equal => tag == value,
            Self::NotEqual => tag != value,
            Self::Less => tag < value,
            Self::LessOrEqual => tag <= value,
            Self::Greater => tag > value,
            Self::GreaterOrEqual => tag >= value,
        }
    }
}

impl Expression {
    fn holds(&self, tags: &Tags) -> bool {
        match self {
            Self::Compare(Comparison { operand: Operand::Tag(tag), operator, value }) => {
                operator.holds(tags.get(tag), value)
            }
            Self::Compare(_) => false,
            Self::All(parts) => parts.iter().all(|part| part.holds(tags)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(tags)),
        }
    }

    fn has_alternatives(&self) -> bool {
        match self {
            Self::Compare(_) => false,
            Self::All(parts) => parts.iter().any(Self::has_alternatives),
            Self::Any(_) => true,
        }
    }

    fn comparisons(&self) -> Vec<&Comparison> {
        match self {
            Self::Compare(comparison) => vec![comparison],
            Self::All(parts) | Self::Any(parts) => parts.iter().flat_map(Self::comparisons).collect(),
        }
    }
}

fn parse(text: &str) -> Result<Expression, ExpressionError> {
    let mut parser = Parser { rest: text, logical_operators: 0 };
    let expression = parser.expression(0)?;
    if parser.rest.trim_start().is_empty() { Ok(expression) } else { Err("There is something behind it.") }
}

struct Parser<'a> {
    rest: &'a str,
    logical_operators: usize,
}

impl<'a> Parser<'a> {
    fn expression(&mut self, depth: usize) -> Result<Expression, ExpressionError> {
        let mut terms = vec![self.term(depth)?];
        while self.logical_operator("OR")? {
            terms.push(self.term(depth)?);
        }
        Ok(single_or(terms, Expression::Any))
    }

    fn term(&mut self, depth: usize) -> Result<Expression, ExpressionError> {
        let mut factors = vec![self.factor(depth)?];
        while self.logical_operator("AND")? {
            factors.push(self.factor(depth)?);
        }
        Ok(single_or(factors, Expression::All))
    }

    fn factor(&mut self, depth: usize) -> Result<Expression, ExpressionError> {
        if !self.symbol("(") {
            return self.comparison().map(Expression::Compare);
        }
        if depth == MAX_DEPTH {
            return Err("Parentheses are nested too deeply.");
        }
        let inner = self.expression(depth + 1)?;
        if self.symbol(")") { Ok(inner) } else { Err("A parenthesis is not closed.") }
    }

    fn comparison(&mut self) -> Result<Comparison, ExpressionError> {
        let operand = self.operand()?;
        let operator = self.operator()?;
        let value = self.quoted('\'')?.ok_or("A value stands in single quotes.")?;
        Ok(Comparison { operand, operator, value: value.to_owned() })
    }

    fn operand(&mut self) -> Result<Operand, ExpressionError> {
        if let Some(tag) = self.quoted('"')? {
            return if tag.is_empty() { Err("A tag has no name.") } else { Ok(Operand::Tag(tag.to_owned())) };
        }
        let is_container = self.symbol("@");
        match (is_container, self.word()) {
            (true, word) if word.eq_ignore_ascii_case("container") => Ok(Operand::Container),
            (false, word) if !word.is_empty() => Ok(Operand::Tag(word.to_owned())),
            _ => Err("The name of a tag is missing."),
        }
    }

    fn operator(&mut self) -> Result<Operator, ExpressionError> {
        // Longer operators come first.
        let operators = [
            ("<>", Operator::NotEqual),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("=", Operator::Equal),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let found = operators.into_iter().find(|(symbol, _)| self.symbol(symbol));
        found.map(|(_, operator)| operator).ok_or("An operator is missing.")
    }

    /// Consumes `AND` or `OR`, in any case.
    fn logical_operator(&mut self, name: &str) -> Result<bool, ExpressionError> {
        let before = self.rest;
        if !self.word().eq_ignore_ascii_case(name) {
            self.rest = before;
            return Ok(false);
        }
        self.logical_operators += 1;
        if self.logical_operators > MAX_LOGICAL_OPERATORS {
            return Err("There are more than ten logical operators.");
        }
        Ok(true)
    }

    fn symbol(&mut self, symbol: &str) -> bool {
        let found = self.rest.trim_start().strip_prefix(symbol);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    /// Consumes the next characters that a name can have without quotes.
    fn word(&mut self) -> &'a str {
        let text = self.rest.trim_start();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.:/+".contains(c);
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.rest = rest;
        word
    }

    /// Consumes the text between two quotes, if the next character is a quote.
    fn quoted(&mut self, quote: char) -> Result<Option<&'a str>, ExpressionError> {
        let Some(text) = self.rest.trim_start().strip_prefix(quote) else { return Ok(None) };
        let (inner, rest) = text.split_once(quote).ok_or("A quote is not closed.")?;
        self.rest = rest;
        Ok(Some(inner))
    }
}

fn single_or(mut parts: Vec<Expression>, many: fn(Vec<Expression>) -> Expression) -> Expression {
    match parts.len() {
        1 => parts.remove(0),
        _ => many(parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(text: &str) -> Tags {
        let pair = |pair: &str| pair.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
        Tags(text.split_whitespace().filter_map(pair).collect())
    }

    #[test]
    fn condition_holds_for_the_tags_it_describes() {
        for (condition, holds, fails) in [
            ("a = '1'", &["a=1", "a=1 b=2"][..], &["", "a=2", "b=1"][..]),
            ("\"a b\"='1'", &[], &["a=1"]),
            ("a<>'1'", &["", "a=2"], &["a=1"]),
            ("a > '1' AND a <= '3'", &["a=2", "a=3", "a=10"], &["a=1", "a=4", ""]),
            ("a >= '1' and a < '3'", &["a=1", "a=2"], &["a=3", "a=0"]),
            ("a='1' OR b='1' AND c='1'", &["a=1", "b=1 c=1"], &["b=1", "c=1"]),
            ("(a='1' OR b='1') AND c='1'", &["a=1 c=1", "b=1 c=1"], &["a=1", "c=1"]),
            ("((a = 'x y'))", &[], &["a=x"]),
            ("and = '1' or or = '2'", &["and=1", "or=2"], &[""]),
        ] {
            let parsed =
                TagCondition::parse(condition).unwrap_or_else(|reason| panic!("{condition}: {reason}"));
            for text in holds {
                assert!(parsed.holds(&tags(text)), "{condition} with {text}");
            }
            for text in fails {
                assert!(!parsed.holds(&tags(text)), "{condition} with {text}");
            }
        }
    }

    #[test]
    fn invalid_expression_is_refused() {
        let deep = format!("{}a='1'{}", "(".repeat(17), ")".repeat(17));
        let long = ["a='1'"; 12].join(" AND ");
        for text in [
            "",
            " ",
            "a",
            "a=",
            "a='1",
            "a=1",
            "='1'",
            "a='1' b='2'",
            "a='1' AND",
            "AND a='1'",
            "(a='1'",
            "a='1')",
            "a=='1'",
            "a!='1'",
            "\"\"='1'",
            "a='1''2'",
            "@container='c'",
            &deep,
            &long,
        ] {
            assert!(TagCondition::parse(text).is_err(), "{text}");
        }
        assert!(TagCondition::parse(&["a='1'"; 11].join(" AND ")).is_ok());
        assert!(TagCondition::parse(&format!("{}a='1'{}", "(".repeat(16), ")".repeat(16))).is_ok());
    }

    #[test]
    fn query_matches_if_all_comparisons_hold() {
        let query = TagQuery::parse("\"a\">='1' AND b='2' and (@container = 'con')", true).unwrap();
        assert_eq!((query.tag(), query.containers.as_slice()), ("b", &["con".to_owned()][..]));
        assert!(query.matches(&tags("a=1 b=2")) && !query.matches(&tags("b=2")));
        assert!(query.names("a") && !query.names("c"));
        assert_eq!(query.rows(), keys::tag_value("2"));
        for (text, account) in [
            ("a='1' OR b='2'", true),
            ("a<>'1'", true),
            ("@container='con'", true),
            ("@container>'con' AND a='1'", true),
            ("@box='con' AND a='1'", true),
            ("@container='con' AND a='1'", false),
            ("", true),
        ] {
            assert!(TagQuery::parse(text, account).is_err(), "{text}");
        }
    }

    #[test]
    fn range_of_values_is_a_range_of_rows() {
        let row = |value: &str| keys::tag_entry(value, "blob", lazuli_concurrency::Stamp::from_ticks(7));
        for (text, inside, outside) in [
            ("a='1'", &["1"][..], &["", "0", "10", "2"][..]),
            ("a=''", &[""], &["0"]),
            ("a>'1'", &["10", "1 ", "2", "z"], &["", "1", "0"]),
            ("a>='1'", &["1", "10", "2"], &["", "0"]),
            ("a<'1'", &["", "0", "0z"], &["1", "10"]),
            ("a<='1'", &["", "0", "1"], &["10", "1 ", "2"]),
            ("a>='1' AND a<'2' AND b<'0'", &["1", "19"], &["0", "2"]),
            ("a>'2' AND a<'1'", &[], &["1", "2"]),
        ] {
            let rows = TagQuery::parse(text, true).unwrap().rows();
            for value in inside {
                assert!(rows.contains(&row(value)), "{text}: {value}");
            }
            for value in outside {
                assert!(!rows.contains(&row(value)), "{text}: {value}");
            }
        }
    }
}
