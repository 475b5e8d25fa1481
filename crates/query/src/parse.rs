//! Parses statements.
//!
//! ```text
//! statement  = SELECT projection FROM table [[AS] alias] [WHERE or] [LIMIT number] [;]
//! projection = * | sys.split(number) | item (, item)*          item = aggregate or expression, [[AS] name]
//! table      = BlobStorage [ [*] step* ]                       step = .name | [number] | [*]
//! or         = and (OR and)*      and = not (AND not)*      not = NOT not | test
//! test       = sum [ comparison sum | [NOT] BETWEEN sum AND sum | [NOT] IN (or, …)
//!                  | [NOT] LIKE sum [ESCAPE 'c'] | IS [NOT] NULL | IS [NOT] MISSING ]
//! sum        = product ((+ | -) product)*      product = sign ((* | / | %) sign)*
//! sign       = - sign | + sign | primary
//! primary    = literal | ( or ) | call | column
//! ```

mod call;
mod expression;

use crate::StatementError;
use crate::syntax::{Aggregate, AggregateKind, Column, PathStep, Projection, Select, Selected, TableStep};
use crate::token::{Token, tokens};

/// Maximum length of a statement in bytes, as documented.
const MAX_STATEMENT: usize = 256 << 10;
/// Maximum number of expressions in a projection, as documented.
const MAX_COLUMNS: usize = 49;
/// Maximum nesting of parentheses, calls and negations.
const MAX_DEPTH: usize = 64;
/// Maximum number of steps in a path.
const MAX_STEPS: usize = 64;
/// Minimum batch size of `sys.split` in bytes, as documented.
const MIN_SPLIT: i64 = 10 << 20;
/// The name of the table in a statement.
const TABLE: &str = "BlobStorage";

/// Words that cannot be names unless quoted.
const RESERVED: [&str; 15] = [
    "SELECT", "FROM", "WHERE", "LIMIT", "AS", "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS",
    "NULL", "MISSING",
];

/// Parses a statement.
pub(crate) fn parse(statement: &str) -> Result<Select, StatementError> {
    if statement.len() > MAX_STATEMENT {
        return Err(StatementError::at(MAX_STATEMENT, "The expression is longer than 256 KiB."));
    }
    let mut parser = Parser { tokens: tokens(statement)?, at: 0, end: statement.len(), depth: 0 };
    parser.statement()
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    end: usize,
    depth: usize,
}

/// An item of a projection.
enum Item {
    Column(Selected),
    Aggregate(Aggregate, Option<String>),
}

impl Parser {
    fn statement(&mut self) -> Result<Select, StatementError> {
        self.expect_word("SELECT")?;
        let projection = self.projection()?;
        self.expect_word("FROM")?;
        let table = self.table()?;
        let alias = self.alias()?;
        let predicate = if self.word("WHERE") { Some(self.or()?) } else { None };
        let limit = if self.word("LIMIT") { Some(self.limit()?) } else { None };
        self.symbol(";");
        if self.at < self.tokens.len() {
            return Err(self.unexpected());
        }
        let mut select = Select { projection, table, predicate, limit };
        let visit = &mut |column: &mut Column| {
            strip_table(column, alias.as_deref());
            Ok::<(), StatementError>(())
        };
        select.try_for_each_column(visit)?;
        Ok(select)
    }

    fn projection(&mut self) -> Result<Projection, StatementError> {
        if self.symbol("*") {
            return Ok(Projection::All);
        }
        if self.is_call_of("sys", "split") {
            self.at += 4;
            let size = match self.next() {
                Some(Token::Int(size)) if size >= MIN_SPLIT => size.unsigned_abs(),
                _ => return Err(self.refuse("sys.split takes a number of at least 10485760.")),
            };
            self.expect(")")?;
            return Ok(Projection::Split(size));
        }
        let mut items = vec![self.item()?];
        while self.symbol(",") {
            if items.len() == MAX_COLUMNS {
                return Err(self.refuse("A projection lists at most 49 expressions."));
            }
            items.push(self.item()?);
        }
        let (mut columns, mut aggregates) = (vec![], vec![]);
        for item in items {
            match item {
                Item::Column(column) => columns.push(column),
                Item::Aggregate(aggregate, name) => aggregates.push((aggregate, name)),
            }
        }
        match (columns.is_empty(), aggregates.is_empty()) {
            (false, false) => {
                Err(self.refuse("Aggregates and other expressions cannot be selected together."))
            }
            (true, _) => Ok(Projection::Aggregates(aggregates)),
            (false, true) => Ok(Projection::Columns(columns)),
        }
    }

    fn item(&mut self) -> Result<Item, StatementError> {
        const AGGREGATES: [(&str, AggregateKind); 6] = [
            ("COUNT", AggregateKind::Count),
            ("AVERAGE", AggregateKind::Average),
            ("AVG", AggregateKind::Average),
            ("MIN", AggregateKind::Min),
            ("MAX", AggregateKind::Max),
            ("SUM", AggregateKind::Sum),
        ];
        let kind =
            AGGREGATES.iter().find(|(name, _)| self.is_word(name) && self.is_symbol_at(self.at + 1, "("));
        let Some((_, kind)) = kind else {
            let expression = self.or()?;
            return Ok(Item::Column(Selected { expression, name: self.alias()? }));
        };
        self.at += 2;
        let of = if *kind == AggregateKind::Count && self.symbol("*") { None } else { Some(self.or()?) };
        self.expect(")")?;
        Ok(Item::Aggregate(Aggregate { kind: *kind, of }, self.alias()?))
    }

    fn table(&mut self) -> Result<Vec<TableStep>, StatementError> {
        if !self.word(TABLE) {
            return Err(self.refuse("The table is BlobStorage."));
        }
        if !self.is_symbol_at(self.at, "[") {
            return Ok(vec![]);
        }
        let mut steps = vec![];
        while let Some(step) = self.table_step()? {
            if steps.len() == MAX_STEPS {
                return Err(self.refuse("The path is too long."));
            }
            steps.push(step);
        }
        // `BlobStorage[*]` is equivalent to `BlobStorage`.
        match steps.first() {
            Some(TableStep::Each) => Ok(steps.split_off(1)),
            _ => Err(self.refuse("A path begins with BlobStorage[*].")),
        }
    }

    fn table_step(&mut self) -> Result<Option<TableStep>, StatementError> {
        if self.is_symbol_at(self.at, "[") && self.is_symbol_at(self.at + 1, "*") {
            self.at += 2;
            self.expect("]")?;
            return Ok(Some(TableStep::Each));
        }
        Ok(self.step()?.map(TableStep::To))
    }

    /// Parses `.name` or `[number]`, if present.
    fn step(&mut self) -> Result<Option<PathStep>, StatementError> {
        if self.symbol(".") {
            return self.name().map(Some);
        }
        if !self.symbol("[") {
            return Ok(None);
        }
        let index = match self.next() {
            Some(Token::Int(index)) => usize::try_from(index).ok(),
            _ => None,
        };
        let index = index.ok_or_else(|| self.refuse("An index is a number."))?;
        self.expect("]")?;
        Ok(Some(PathStep::Index(index)))
    }

    /// Parses a name, quoted or not.
    fn name(&mut self) -> Result<PathStep, StatementError> {
        match self.next() {
            Some(Token::Name(name)) => Ok(PathStep::Field { name, exact: true }),
            Some(Token::Word(name)) => Ok(PathStep::Field { name, exact: false }),
            _ => Err(self.refuse("A name is expected.")),
        }
    }

    /// Parses `[AS] name`, if present.
    fn alias(&mut self) -> Result<Option<String>, StatementError> {
        let explicit = self.word("AS");
        let is_name = match self.peek() {
            Some(Token::Name(_)) => true,
            Some(Token::Word(word)) => !is_reserved(word),
            _ => false,
        };
        if !is_name {
            return if explicit { Err(self.unexpected()) } else { Ok(None) };
        }
        match self.next() {
            Some(Token::Name(name) | Token::Word(name)) => Ok(Some(name)),
            _ => Ok(None),
        }
    }

    fn limit(&mut self) -> Result<u64, StatementError> {
        match self.next() {
            Some(Token::Int(limit)) => Ok(limit.unsigned_abs()),
            _ => Err(self.refuse("A limit is a number.")),
        }
    }

    /// Runs a rule one level deeper.
    fn deeper<T>(
        &mut self,
        rule: impl FnOnce(&mut Self) -> Result<T, StatementError>,
    ) -> Result<T, StatementError> {
        if self.depth == MAX_DEPTH {
            return Err(self.refuse("The expression is nested too deeply."));
        }
        self.depth += 1;
        let result = rule(self);
        self.depth -= 1;
        result
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).map(|(token, _)| token.clone());
        self.at += usize::from(token.is_some());
        token
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Word(found)) if found.eq_ignore_ascii_case(word))
    }

    /// Returns whether `first.second(` comes next.
    fn is_call_of(&self, first: &str, second: &str) -> bool {
        use Token::{Symbol, Word};
        match self.tokens.get(self.at..self.at + 4) {
            Some([(Word(a), _), (Symbol("."), _), (Word(b), _), (Symbol("("), _)]) => {
                a.eq_ignore_ascii_case(first) && b.eq_ignore_ascii_case(second)
            }
            _ => false,
        }
    }

    fn is_symbol_at(&self, at: usize, symbol: &str) -> bool {
        matches!(self.tokens.get(at), Some((Token::Symbol(found), _)) if *found == symbol)
    }

    fn word(&mut self, word: &str) -> bool {
        let is = self.is_word(word);
        self.at += usize::from(is);
        is
    }

    fn symbol(&mut self, symbol: &str) -> bool {
        let is = self.is_symbol_at(self.at, symbol);
        self.at += usize::from(is);
        is
    }

    fn expect_word(&mut self, word: &str) -> Result<(), StatementError> {
        if self.word(word) { Ok(()) } else { Err(self.refuse(format!("{word} is expected."))) }
    }

    fn expect(&mut self, symbol: &str) -> Result<(), StatementError> {
        if self.symbol(symbol) { Ok(()) } else { Err(self.refuse(format!("'{symbol}' is expected."))) }
    }

    fn unexpected(&self) -> StatementError {
        self.refuse("This is not expected here.")
    }

    /// Returns an error at the next token, or at the end of the statement.
    fn refuse(&self, reason: impl Into<String>) -> StatementError {
        StatementError::at(self.tokens.get(self.at).map_or(self.end, |(_, at)| *at), reason)
    }
}

fn is_reserved(word: &str) -> bool {
    RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(word))
}

/// Removes the table name or alias from the path of a column.
fn strip_table(column: &mut Column, alias: Option<&str>) {
    let names_table = |step: &PathStep| step.is_to(TABLE) || alias.is_some_and(|alias| step.is_to(alias));
    if column.steps.len() > 1 && column.steps.first().is_some_and(names_table) {
        column.steps.remove(0);
    }
}

#[cfg(test)]
mod tests;
