//! What remains to be checked of what a caller may do, once it is known to which entities.
//!
//! A shared access signature for a table may reach a range of keys only. And who may send a transaction need not be
//! allowed every operation in it, nor its table, which the address of a transaction does not name.

use std::cmp::Ordering;

use bytes::Bytes;
use lazuli_protocol::request::{Caller, TableRange};
use lazuli_protocol::{ErrorCode, Operation, Refusal, Version};

use crate::filter::range::{Span, after};
use crate::keys::{Keys, ordinal, partition_key, row_key};

/// Refuses a write outside of the range that the caller may reach.
pub(crate) fn check_keys(caller: &Caller, keys: &Keys, version: Version) -> Result<(), Refusal> {
    match caller {
        Caller::Sas(grant) if !contains(&grant.table_range, keys) => {
            Err(Refusal::not_authorized(ErrorCode::AuthorizationPermissionMismatch, version))
        }
        _ => Ok(()),
    }
}

/// Refuses an operation in a transaction that the caller could not have sent alone.
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

/// The caller of a transaction, or the one of an operation in it, whichever reaches fewer keys. Refuses two that reach
/// different ranges.
pub(crate) fn narrower(of_all: &Caller, own: Option<Caller>, version: Version) -> Result<Caller, Refusal> {
    let reach = |caller: &Caller| match caller {
        Caller::Sas(grant) => grant.table_range.clone(),
        _ => TableRange::default(),
    };
    let Some(own) = own.filter(|own| reach(own) != TableRange::default()) else { return Ok(of_all.clone()) };
    if reach(of_all) == TableRange::default() || reach(of_all) == reach(&own) {
        Ok(own)
    } else {
        Err(Refusal::not_authorized(ErrorCode::AuthorizationPermissionMismatch, version))
    }
}

/// Whether a range of keys, its ends included, reaches an entity.
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

/// The same range as rows: what a query is clipped to.
pub(crate) fn span(range: &TableRange) -> Span {
    let start = range.start_partition.as_deref().map(partition_key);
    let start_row = range.start_row.as_deref().filter(|_| start.is_some()).map(row_key);
    let end = range.end_partition.as_deref().map(|partition| match &range.end_row {
        Some(row) => (partition_key(partition), after(&row_key(row))),
        None => (after(&partition_key(partition)), Bytes::new()),
    });
    Span { from: (start.unwrap_or_default(), start_row.unwrap_or_default()), end }
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
    fn a_role_allows_in_a_transaction_what_it_allows_alone() {
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
    fn before_2015_what_a_signature_does_not_reach_looks_as_if_it_were_not_there() {
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
    fn a_range_includes_its_ends_and_row_keys_matter_only_in_the_partitions_at_its_ends() {
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
            span(range).contains(&(partition_key(partition), row_key(row)))
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
