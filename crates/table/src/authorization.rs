//! Authorization checks that need the keys or the operations of a request, beyond those of the front end.
//!
//! A shared access signature may be restricted to a range of keys. The address of a transaction does not name
//! its table and operations, so permission to send a transaction does not imply permission for them.

use std::cmp::Ordering;

use bytes::Bytes;
use lazuli_protocol::request::{Caller, TableRange};
use lazuli_protocol::{ErrorCode, Operation, Refusal, Version};

use crate::filter::range::{RowSpan, successor};
use crate::keys::{Keys, ordinal, partition_key, row_key};

/// Refuses a write outside the range of keys that the caller may reach.
pub(crate) fn check_keys(caller: &Caller, keys: &Keys, version: Version) -> Result<(), Refusal> {
    match caller {
        Caller::Sas(grant) if !contains(&grant.table_range, keys) => {
            Err(Refusal::not_authorized(ErrorCode::AuthorizationPermissionMismatch, version))
        }
        _ => Ok(()),
    }
}

/// Refuses an operation in a transaction if the caller may not send it alone.
pub(crate) fn check_operation(
    caller: &Caller,
    operation: Operation,
    table: &str,
    version: Version,
) -> Result<(), Refusal> {
    let row = operation.row();
    let is_allowed = match caller {
        Caller::Key => true,
        Caller::Sas(grant) => match &grant.table {
            Some(granted) if !granted.eq_ignore_ascii_case(table) => {
                return Err(Refusal::not_authorized(ErrorCode::AuthorizationFailure, version));
            }
            Some(_) => row.service_sas.granted_by(&grant.permissions),
            None => row.account_sas.granted_by(&grant.permissions),
        },
        Caller::Bearer { role, .. } => *role >= row.role,
        Caller::Anonymous => false,
    };
    if is_allowed {
        Ok(())
    } else {
        Err(Refusal::not_authorized(ErrorCode::AuthorizationPermissionMismatch, version))
    }
}

/// Returns the caller of a transaction or the caller of one operation in it, whichever reaches fewer keys.
/// Refuses them if both are restricted and their ranges differ.
pub(crate) fn narrower_caller(
    batch_caller: &Caller,
    own: Option<Caller>,
    version: Version,
) -> Result<Caller, Refusal> {
    let reach = |caller: &Caller| match caller {
        Caller::Sas(grant) => grant.table_range.clone(),
        _ => TableRange::default(),
    };
    let Some(own) = own.filter(|own| reach(own) != TableRange::default()) else {
        return Ok(batch_caller.clone());
    };
    if reach(batch_caller) == TableRange::default() || reach(batch_caller) == reach(&own) {
        Ok(own)
    } else {
        Err(Refusal::not_authorized(ErrorCode::AuthorizationPermissionMismatch, version))
    }
}

/// Returns whether a range of keys, ends included, contains an entity.
pub(crate) fn contains(range: &TableRange, keys: &Keys) -> bool {
    let at = |partition: &Option<String>, row: &Option<String>| {
        let of_partition = ordinal(&keys.partition, partition.as_deref()?);
        Some(match row {
            Some(row) => of_partition.then_with(|| ordinal(&keys.row, row)),
            None => of_partition,
        })
    };
    at(&range.start_partition, &range.start_row) != Some(Ordering::Less)
        && at(&range.end_partition, &range.end_row) != Some(Ordering::Greater)
}

/// Converts a range of keys to the range of rows to which a query is clipped.
pub(crate) fn row_span(range: &TableRange) -> RowSpan {
    let start = range.start_partition.as_deref().map(partition_key);
    let start_row = range.start_row.as_deref().filter(|_| start.is_some()).map(row_key);
    let end = range.end_partition.as_deref().map(|partition| match &range.end_row {
        Some(row) => (partition_key(partition), successor(&row_key(row))),
        None => (successor(&partition_key(partition)), Bytes::new()),
    });
    RowSpan { from: (start.unwrap_or_default(), start_row.unwrap_or_default()), end }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazuli_protocol::account::Role;
    use lazuli_protocol::request::Grant;

    const NEW: Version = Version::new(2019, 2, 2);

    fn code(caller: &Caller, operation: Operation, version: Version) -> Result<(), ErrorCode> {
        check_operation(caller, operation, "People", version).map_err(|refusal| refusal.code())
    }

    #[test]
    fn role_allows_the_same_operations_alone_and_in_a_transaction() {
        let mismatch = Err(ErrorCode::AuthorizationPermissionMismatch);
        for (role, operation, expected) in [
            (Role::Reader, Operation::QueryEntities, Ok(())),
            (Role::Reader, Operation::InsertEntity, mismatch),
            (Role::Reader, Operation::DeleteEntity, mismatch),
            (Role::Contributor, Operation::InsertOrMergeEntity, Ok(())),
            (Role::Contributor, Operation::SetTableAcl, mismatch),
        ] {
            let caller = Caller::Bearer { subject: "s".into(), role };
            assert_eq!(code(&caller, operation, NEW), expected, "{role:?} {operation:?}");
        }
        assert_eq!(code(&Caller::Key, Operation::DeleteEntity, NEW), Ok(()));
        assert_eq!(code(&Caller::Anonymous, Operation::QueryEntities, NEW), mismatch);
    }

    #[test]
    fn unreachable_tables_and_operations_are_not_found_before_2015() {
        let grant = |table: &str| {
            Caller::Sas(Grant { permissions: "ra".into(), table: Some(table.into()), ..Default::default() })
        };
        let old = Version::new(2014, 2, 14);
        for (table, operation, expected) in [
            ("people", Operation::InsertEntity, None),
            ("people", Operation::DeleteEntity, Some(ErrorCode::AuthorizationPermissionMismatch)),
            ("other", Operation::InsertEntity, Some(ErrorCode::AuthorizationFailure)),
        ] {
            let caller = grant(table);
            assert_eq!(code(&caller, operation, NEW).err(), expected, "{table} {operation:?}");
            let before = expected.map(|_| ErrorCode::ResourceNotFound);
            assert_eq!(code(&caller, operation, old).err(), before, "{table} {operation:?}");
        }
    }

    #[test]
    fn range_includes_its_ends_and_row_keys_apply_only_in_the_end_partitions() {
        let some = |text: &str| Some(text.to_owned());
        let range = TableRange {
            start_partition: some("b"),
            start_row: some("5"),
            end_partition: some("d"),
            end_row: some("5"),
        };
        let reaches = |range: &TableRange, partition: &str, row: &str| {
            contains(range, &Keys { partition: partition.into(), row: row.into() })
        };
        let reads = |range: &TableRange, partition: &str, row: &str| {
            row_span(range).contains(&(partition_key(partition), row_key(row)))
        };
        for (partition, row, expected) in [
            ("a", "9", false),
            ("b", "4", false),
            ("b", "5", true),
            ("c", "0", true),
            ("d", "5", true),
            ("d", "6", false),
            ("e", "0", false),
        ] {
            assert_eq!(reaches(&range, partition, row), expected, "{partition} {row}");
            assert_eq!(reads(&range, partition, row), expected, "{partition} {row}");
        }
        let whole = TableRange { start_partition: some("b"), end_partition: some("b"), ..Default::default() };
        assert!(reaches(&whole, "b", "") && !reaches(&whole, "a", "") && !reaches(&whole, "ba", ""));
        assert!(reads(&whole, "b", "") && !reads(&whole, "a", "") && !reads(&whole, "ba", ""));
        let unnamed = TableRange { end_partition: some(""), end_row: some("5"), ..Default::default() };
        assert!(reaches(&unnamed, "", "5") && !reaches(&unnamed, "", "6") && !reaches(&unnamed, "a", "1"));
        assert!(reads(&unnamed, "", "5") && !reads(&unnamed, "", "6") && !reads(&unnamed, "a", "1"));
        assert!(reaches(&TableRange::default(), "", "") && reads(&TableRange::default(), "", ""));
    }
}
