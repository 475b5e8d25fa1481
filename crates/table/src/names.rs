//! Names rows of this service as people do, for reports of damage.

use crate::TableRows;
use crate::keys::Keys;

impl TableRows {
    /// What a row in a table's space is of, to be read behind the table's name.
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
    fn an_entity_is_named_by_its_keys() {
        let name = TableRows::describe(&keys::partition_key("p"), &keys::row_key("r 😀"));
        assert_eq!(name.as_deref(), Some("(PartitionKey='p',RowKey='r 😀')"));
        assert_eq!(TableRows::describe(b"?", b"r"), None);
    }
}
