//! What stands in parentheses behind a table's name: the keys of an entity, or behind `Tables` the name of a table.
//!
//! A quote inside a quoted string is doubled. Spaces between the parts do not matter.

use lazuli_protocol::{ErrorCode, Refusal};

use crate::keys::Keys;

/// The keys in `(PartitionKey='p',RowKey='r')`, in either order.
pub(crate) fn keys(object: &str) -> Result<Keys, Refusal> {
    let mut scan = Scan(object);
    scan.symbol("(").map_err(|_| wrong_number())?;
    let (mut partition, mut row) = (None, None);
    loop {
        let name = scan.name();
        let place = match name {
            "PartitionKey" => &mut partition,
            "RowKey" => &mut row,
            _ => return Err(wrong_number()),
        };
        scan.symbol("=")?;
        if place.replace(scan.quoted()?).is_some() {
            return Err(malformed());
        }
        if scan.symbol(",").is_err() {
            break;
        }
    }
    scan.end()?;
    let (Some(partition), Some(row)) = (partition, row) else { return Err(wrong_number()) };
    Ok(Keys { partition, row })
}

/// The name in `('t')` or `(TableName='t')`.
pub(crate) fn table(object: &str) -> Result<String, Refusal> {
    let mut scan = Scan(object);
    scan.symbol("(")?;
    if scan.name() == "TableName" {
        scan.symbol("=")?;
    }
    let name = scan.quoted()?;
    scan.end()?;
    Ok(name)
}

struct Scan<'a>(&'a str);

impl<'a> Scan<'a> {
    fn skip_spaces(&mut self) {
        self.0 = self.0.trim_start_matches(' ');
    }

    fn symbol(&mut self, symbol: &str) -> Result<(), Refusal> {
        self.skip_spaces();
        self.0 = self.0.strip_prefix(symbol).ok_or_else(malformed)?;
        Ok(())
    }

    fn name(&mut self) -> &'a str {
        self.skip_spaces();
        let end = self.0.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.0.len());
        let (name, rest) = self.0.split_at(end);
        self.0 = rest;
        name
    }

    fn quoted(&mut self) -> Result<String, Refusal> {
        self.skip_spaces();
        let (text, rest) = quoted(self.0).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(text)
    }

    fn end(&mut self) -> Result<(), Refusal> {
        self.symbol(")")?;
        if self.0.is_empty() { Ok(()) } else { Err(malformed()) }
    }
}

/// A string in quotes at the start of a text, and what follows it.
pub(crate) fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut string, mut rest) = (String::new(), text);
    loop {
        let (part, behind) = rest.strip_prefix('\'')?.split_once('\'')?;
        string.push_str(part);
        if !behind.starts_with('\'') {
            return Some((string, behind));
        }
        string.push('\'');
        rest = behind;
    }
}

/// Some clients compare the text.
fn wrong_number() -> Refusal {
    Refusal::new(ErrorCode::InvalidInput).message(
        "The number of keys specified in the URI does not match number of key properties for the resource.",
    )
}

fn malformed() -> Refusal {
    Refusal::new(ErrorCode::InvalidInput).message("The address of the entity or table is malformed.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_quoted_named_and_in_either_order() {
        for (object, partition, row) in [
            ("(PartitionKey='p',RowKey='r')", "p", "r"),
            ("(PartitionKey='p', RowKey='r')", "p", "r"),
            ("( RowKey = 'r' , PartitionKey = 'p' )", "p", "r"),
            ("(PartitionKey='',RowKey='')", "", ""),
            ("(PartitionKey='it''s',RowKey='x)''')", "it's", "x)'"),
            ("(PartitionKey='a''''b',RowKey=',RowKey=')", "a''b", ",RowKey="),
        ] {
            let expected = Keys { partition: partition.into(), row: row.into() };
            assert_eq!(keys(object), Ok(expected), "{object}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for object in [
            "",
            "()",
            "('p')",
            "(PartitionKey='p')",
            "(PartitionKey='p',PartitionKey='q')",
            "(PartitionKey='p',RowKey='r'",
            "(PartitionKey='p',RowKey='r')x",
            "(PartitionKey=p,RowKey=r)",
            "(PartitionKey='p',RowKey='r',Other='o')",
        ] {
            assert_eq!(keys(object).map_err(|r| r.code()), Err(ErrorCode::InvalidInput), "{object}");
        }
        assert_eq!(table("('abc')"), Ok("abc".into()));
        assert_eq!(table("(TableName='abc')"), Ok("abc".into()));
        assert!(table("(abc)").is_err() && table("('abc'").is_err());
    }
}
