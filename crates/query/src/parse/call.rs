//! Function calls, some of which have a special syntax.

use super::Parser;
use crate::StatementError;
use crate::moment::Part;
use crate::syntax::{Expression, Function, TrimSide, Type};
use crate::token::Token;

impl Parser {
    /// Parses a call. Its name and opening parenthesis come next.
    pub(super) fn call(&mut self) -> Result<Expression, StatementError> {
        let Some(Token::Word(name)) = self.peek() else { return Err(self.unexpected()) };
        let name = name.to_ascii_uppercase();
        let refused = self.refuse(format!("{name} is not a function, or not one that can stand here."));
        self.at += 2;
        let (function, count) = match name.as_str() {
            "CAST" => return self.cast(),
            "TRIM" => return self.trim(),
            "EXTRACT" => return self.extract(),
            "DATE_ADD" => return self.of_two_after_part(Function::DateAdd),
            "DATE_DIFF" => return self.of_two_after_part(Function::DateDiff),
            "UTCNOW" => {
                self.expect(")")?;
                return Ok(Expression::Call(Function::UtcNow, vec![]));
            }
            "CHAR_LENGTH" | "CHARACTER_LENGTH" => (Function::CharLength, 1..=1),
            "LOWER" => (Function::Lower, 1..=1),
            "UPPER" => (Function::Upper, 1..=1),
            "SUBSTRING" => (Function::Substring, 2..=3),
            "TO_STRING" => (Function::ToString, 2..=2),
            "TO_TIMESTAMP" => (Function::ToTimestamp, 1..=1),
            "NULLIF" => (Function::NullIf, 2..=2),
            "COALESCE" => (Function::Coalesce, 1..=usize::MAX),
            _ => return Err(refused),
        };
        let arguments = self.arguments()?;
        if !count.contains(&arguments.len()) {
            return Err(self.refuse(format!("{name} does not take {} arguments.", arguments.len())));
        }
        Ok(Expression::Call(function, arguments))
    }

    /// Parses `CAST(value AS type)`.
    fn cast(&mut self) -> Result<Expression, StatementError> {
        const TYPES: [(&str, Type); 5] = [
            ("INT", Type::Int),
            ("FLOAT", Type::Float),
            ("STRING", Type::String),
            ("TIMESTAMP", Type::Timestamp),
            ("BOOLEAN", Type::Boolean),
        ];
        let value = self.deeper(Self::or)?;
        self.expect_word("AS")?;
        let Some((_, of)) = TYPES.iter().find(|(name, _)| self.word(name)) else {
            return Err(self.refuse("The types are INT, FLOAT, STRING, TIMESTAMP and BOOLEAN."));
        };
        self.expect(")")?;
        Ok(Expression::Cast(Box::new(value), *of))
    }

    /// Parses `TRIM(text)`, `TRIM(characters FROM text)`, `TRIM(BOTH|LEADING|TRAILING [characters] FROM
    /// text)`.
    fn trim(&mut self) -> Result<Expression, StatementError> {
        const SIDES: [(&str, TrimSide); 3] =
            [("BOTH", TrimSide::Both), ("LEADING", TrimSide::Leading), ("TRAILING", TrimSide::Trailing)];
        // The word may also be the name of a column.
        let is_column = self.is_symbol_at(self.at + 1, ")") || self.is_symbol_at(self.at + 1, ".");
        let side = SIDES.iter().find(|(word, _)| !is_column && self.word(word)).map(|(_, side)| *side);
        let mut arguments = vec![];
        if side.is_some() && self.word("FROM") {
            arguments.push(self.deeper(Self::or)?);
        } else {
            let first = self.deeper(Self::or)?;
            if self.word("FROM") {
                arguments.push(self.deeper(Self::or)?);
            } else if side.is_some() {
                return Err(self.refuse("FROM is expected."));
            }
            arguments.push(first);
        }
        self.expect(")")?;
        Ok(Expression::Call(Function::Trim(side.unwrap_or(TrimSide::Both)), arguments))
    }

    /// Parses `EXTRACT(part FROM time)`.
    fn extract(&mut self) -> Result<Expression, StatementError> {
        let part = self.part()?;
        self.expect_word("FROM")?;
        let time = self.deeper(Self::or)?;
        self.expect(")")?;
        Ok(Expression::Call(Function::Extract(part), vec![time]))
    }

    /// Parses `DATE_ADD(part, quantity, time)` and `DATE_DIFF(part, time, time)`.
    fn of_two_after_part(&mut self, function: fn(Part) -> Function) -> Result<Expression, StatementError> {
        let part = self.part()?;
        if matches!(part, Part::TimezoneHour | Part::TimezoneMinute) {
            return Err(self.refuse("Times do not differ by that part."));
        }
        self.expect(",")?;
        let arguments = self.arguments()?;
        if arguments.len() != 2 {
            return Err(self.refuse("Two arguments are expected behind the part."));
        }
        Ok(Expression::Call(function(part), arguments))
    }

    /// Parses a part of a date, quoted or not.
    fn part(&mut self) -> Result<Part, StatementError> {
        let part = match self.peek() {
            Some(Token::Word(name) | Token::Text(name)) => Part::parse(name),
            _ => None,
        };
        let part = part.ok_or_else(|| self.refuse("This is not a part of a date."))?;
        self.at += 1;
        Ok(part)
    }
}
