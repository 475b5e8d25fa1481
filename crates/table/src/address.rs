//! Parses the parentheses in an address: after a table's name they hold the keys of an entity, after `Tables`
//! the name of a table.
//!
//! A quote in a quoted string is doubled. Spaces between the parts are ignored.

use lazuli_protocol::{ErrorCode, Refusal};

use crate::keys::Keys;

/// Parses the keys in `(PartitionKey='p',RowKey='r')`, in either order.
pub(crate) fn keys(object: &str) -> Result<Keys, Refusal> {
    let mut scan = AddressScanner(object);
    scan.symbol("(").map_err(|_| wrong_number_of_keys())?;
    let (mut partition, mut row) = (None, None);
    loop {
        let name = scan.name();
        let key = match name {
            "PartitionKey" => &mut partition,
            "RowKey" => &mut row,
            _ => return Err(wrong_number_of_keys()),
        };
        scan.symbol("=")?;
        if key.replace(scan.quoted()?).is_some() {
            return Err(malformed());
        }
        if scan.symbol(",").is_err() {
            break;
        }
    }
    scan.end()?;
    let (Some(partition), Some(row)) = (partition, row) else { return Err(wrong_number_of_keys()) };
    Ok(Keys { partition, row })
}

/// Parses the name in `('t')` or `(TableName='t')`.
pub(crate) fn table(object: &str) -> Result<String, Refusal> {
    let mut scan = AddressScanner(object);
    scan.symbol("(")?;
    if scan.name() == "TableName" {
        scan.symbol("=")?;
    }
    let name = scan.quoted()?;
    scan.end()?;
    Ok(name)
}

/// The part of an address that is not parsed yet.
struct AddressScanner<'a>(&'a str);

impl<'a> AddressScanner<'a> {
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

/// Parses a quoted string at the start of a text. Returns the string and the rest of the text.
pub(crate) fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut string, mut rest) = (String::new(), text);
    loop {
        let (part, after) = rest.strip_prefix('\'')?.split_once('\'')?;
        string.push_str(part);
        if !after.starts_with('\'') {
            return Some((string, after));
        }
        string.push('\'');
        rest = after;
    }
}

/// Returns the refusal of the live service. Some clients compare its text.
fn wrong_number_of_keys() -> Refusal {
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
    fn invalid_addresses_are_refused() {
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
