//! Describes rows of this service in words, for reports of damage.

use crate::TableRows;
use crate::keys::Keys;

impl TableRows {
    /// Describes a row in a table's space. The text follows the table's name. Returns `None` for an unknown
    /// row.
    pub fn describe(partition: &[u8], key: &[u8]) -> Option<String> {
        let Keys { partition, row } = Keys::of_row(partition, key)?;
        Some(format!("(PartitionKey='{partition}',RowKey='{row}')"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    #[test]
    fn entity_is_described_by_its_keys() {
        let name = TableRows::describe(&keys::partition_key("p"), &keys::row_key("r 😀"));
        assert_eq!(name.as_deref(), Some("(PartitionKey='p',RowKey='r 😀')"));
        assert_eq!(TableRows::describe(b"?", b"r"), None);
    }
}
