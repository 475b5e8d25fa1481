//! Operators, from the lowest to the highest precedence.

use super::Parser;
use crate::StatementError;
use crate::syntax::{Absence, Arithmetic, Column, Comparison, Expression, Literal, PathStep};
use crate::token::Token;

const COMPARISONS: [(&str, Comparison); 7] = [
    ("=", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("<>", Comparison::NotEqual),
    ("<", Comparison::Less),
    ("<=", Comparison::LessOrEqual),
    (">", Comparison::Greater),
    (">=", Comparison::GreaterOrEqual),
];
const SUMS: [(&str, Arithmetic); 2] = [("+", Arithmetic::Add), ("-", Arithmetic::Subtract)];
const PRODUCTS: [(&str, Arithmetic); 3] =
    [("*", Arithmetic::Multiply), ("/", Arithmetic::Divide), ("%", Arithmetic::Remainder)];

impl Parser {
    pub(super) fn or(&mut self) -> Result<Expression, StatementError> {
        let first = self.and()?;
        self.chain(first, "OR", Self::and, Expression::Any)
    }

    fn and(&mut self) -> Result<Expression, StatementError> {
        let first = self.not()?;
        self.chain(first, "AND", Self::not, Expression::All)
    }

    fn chain(
        &mut self,
        first: Expression,
        word: &str,
        rule: fn(&mut Self) -> Result<Expression, StatementError>,
        make: fn(Vec<Expression>) -> Expression,
    ) -> Result<Expression, StatementError> {
        if !self.is_word(word) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.word(word) {
            parts.push(rule(self)?);
        }
        Ok(make(parts))
    }

    fn not(&mut self) -> Result<Expression, StatementError> {
        if self.word("NOT") {
            return Ok(Expression::Not(Box::new(self.deeper(Self::not)?)));
        }
        self.test()
    }

    fn test(&mut self) -> Result<Expression, StatementError> {
        let value = Box::new(self.sum()?);
        for (symbol, comparison) in COMPARISONS {
            if self.symbol(symbol) {
                return Ok(Expression::Compare(value, comparison, Box::new(self.sum()?)));
            }
        }
        if self.word("IS") {
            let negated = self.word("NOT");
            let absence = match () {
                () if self.word("NULL") => Absence::Null,
                () if self.word("MISSING") => Absence::Missing,
                () => return Err(self.refuse("IS asks for NULL or MISSING.")),
            };
            return Ok(negate_if(negated, Expression::Is(value, absence)));
        }
        let negated = self.word("NOT");
        let test = if self.word("BETWEEN") {
            let low = self.sum()?;
            self.expect_word("AND")?;
            Expression::Between(value, Box::new((low, self.sum()?)))
        } else if self.word("IN") {
            Expression::In(value, self.list()?)
        } else if self.word("LIKE") {
            let pattern = Box::new(self.sum()?);
            Expression::Like(value, pattern, self.escape()?)
        } else if negated {
            return Err(self.unexpected());
        } else {
            return Ok(*value);
        };
        Ok(negate_if(negated, test))
    }

    fn list(&mut self) -> Result<Vec<Expression>, StatementError> {
        self.expect("(")?;
        self.arguments()
    }

    /// Parses one or more expressions up to a closing parenthesis.
    pub(super) fn arguments(&mut self) -> Result<Vec<Expression>, StatementError> {
        let mut list = vec![self.deeper(Self::or)?];
        while self.symbol(",") {
            list.push(self.deeper(Self::or)?);
        }
        self.expect(")")?;
        Ok(list)
    }

    fn escape(&mut self) -> Result<Option<char>, StatementError> {
        if !self.word("ESCAPE") {
            return Ok(None);
        }
        let character = match self.next() {
            Some(Token::Text(text)) => {
                let mut characters = text.chars();
                characters.next().filter(|_| characters.next().is_none())
            }
            _ => None,
        };
        character.map(Some).ok_or_else(|| self.refuse("ESCAPE takes one character."))
    }

    fn sum(&mut self) -> Result<Expression, StatementError> {
        self.arithmetic(&SUMS, |parser| parser.arithmetic(&PRODUCTS, Self::sign))
    }

    fn arithmetic(
        &mut self,
        operators: &[(&str, Arithmetic)],
        rule: impl Fn(&mut Self) -> Result<Expression, StatementError>,
    ) -> Result<Expression, StatementError> {
        let first = rule(self)?;
        let mut rest = vec![];
        while let Some((_, operator)) = operators.iter().find(|(symbol, _)| self.symbol(symbol)) {
            rest.push((*operator, rule(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Arithmetic(Box::new(first), rest) })
    }

    fn sign(&mut self) -> Result<Expression, StatementError> {
        if self.symbol("+") {
            return self.deeper(Self::sign);
        }
        if self.symbol("-") {
            return Ok(match self.deeper(Self::sign)? {
                Expression::Literal(Literal::Int(int)) => Expression::Literal(Literal::Int(-int)),
                Expression::Literal(Literal::Float(float)) => Expression::Literal(Literal::Float(-float)),
                other => Expression::Negative(Box::new(other)),
            });
        }
        self.primary()
    }

    fn primary(&mut self) -> Result<Expression, StatementError> {
        if self.symbol("(") {
            let inner = self.deeper(Self::or)?;
            self.expect(")")?;
            return Ok(inner);
        }
        let literal = match self.peek() {
            Some(Token::Int(int)) => Literal::Int(*int),
            Some(Token::Float(float)) if float.is_finite() => Literal::Float(*float),
            Some(Token::Text(text)) => Literal::Text(text.clone()),
            Some(Token::Word(word)) if word.eq_ignore_ascii_case("NULL") => Literal::Null,
            Some(Token::Word(word)) if word.eq_ignore_ascii_case("TRUE") => Literal::Boolean(true),
            Some(Token::Word(word)) if word.eq_ignore_ascii_case("FALSE") => Literal::Boolean(false),
            Some(Token::Word(word)) if super::is_reserved(word) => return Err(self.unexpected()),
            Some(Token::Word(_)) if self.is_symbol_at(self.at + 1, "(") => return self.call(),
            Some(Token::Word(_) | Token::Name(_)) => return self.column(),
            _ => return Err(self.refuse("An expression is expected.")),
        };
        self.at += 1;
        Ok(Expression::Literal(literal))
    }

    fn column(&mut self) -> Result<Expression, StatementError> {
        let mut steps: Vec<PathStep> = vec![self.name()?];
        while let Some(step) = self.step()? {
            if steps.len() == super::MAX_STEPS {
                return Err(self.refuse("The path is too long."));
            }
            steps.push(step);
        }
        Ok(Expression::Column(Column { steps, ordinal: None }))
    }
}

fn negate_if(negated: bool, test: Expression) -> Expression {
    if negated { Expression::Not(Box::new(test)) } else { test }
}
