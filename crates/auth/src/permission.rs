//! Decides whether the letters of a shared access signature, or the role of an OAuth subject, allow an
//! operation.
//!
//! The operation table says what each operation needs. Two rules depend on data and are left to the services,
//! which find the letters in `Grant.permissions`. With `c` and without `w`, nothing that exists may be
//! overwritten (403 `UnauthorizedBlobOverwrite`), including staged blocks. And each operation in an entity
//! group transaction needs its own permission, although any letters admit the transaction.

use lazuli_protocol::account::Role;
use lazuli_protocol::operation::{Permission, Scope};
use lazuli_protocol::{Account, ErrorCode, Operation, Refusal, ServiceKind, Version};

use crate::refusal::authentication_failed;
use crate::{Head, letter};

/// The letters of signatures for blobs, containers and directories, in the accepted orders: the documented
/// one, and those of clients that write another.
const BLOB_LETTERS: &[&str] = &[
    "racwdxyltfmeopi",
    // JavaScript, and older versions of Java.
    "racwdxltmeiyf",
    // Rust, and Java.
    "racwdxytlmeopi",
];
const FILE_LETTERS: &[&str] = &["rcwdl"];
const QUEUE_LETTERS: &[&str] = &["raup"];
const TABLE_LETTERS: &[&str] = &["raud"];
/// The letters of an account SAS. Any order is accepted, because clients write several.
const ACCOUNT_LETTERS: &str = "rwdxylacupfti";

/// Refuses the `sp` of a service or user delegation SAS with unknown, repeated or misordered letters. The
/// letters of a stored access policy may have any order.
pub(crate) fn check_service_letters(service: ServiceKind, letters: &str) -> Result<(), Refusal> {
    let orders = match service {
        ServiceKind::Blob => BLOB_LETTERS,
        ServiceKind::File => FILE_LETTERS,
        ServiceKind::Queue => QUEUE_LETTERS,
        ServiceKind::Table => TABLE_LETTERS,
    };
    // Clients write these two letters in both orders.
    let letters = letters.replace("wc", "cw");
    let in_order = |order: &&str| {
        let mut rest = order.chars();
        letters.chars().all(|letter| rest.any(|known| known == letter))
    };
    orders
        .iter()
        .any(in_order)
        .then_some(())
        .ok_or_else(|| authentication_failed("sp has letters that are unknown or out of order."))
}

/// Refuses the `sp` of an account SAS with unknown or repeated letters.
pub(crate) fn check_account_letters(letters: &str) -> Result<(), Refusal> {
    let once =
        |(i, letter): (usize, char)| ACCOUNT_LETTERS.contains(letter) && !letters[..i].contains(letter);
    letters
        .char_indices()
        .all(once)
        .then_some(())
        .ok_or_else(|| authentication_failed("sp has letters that are unknown or repeated."))
}

/// Checks whether an account SAS allows the operation: service, resource type, letters.
pub(crate) fn check_account(
    head: &Head<'_>,
    ss: &str,
    srt: &str,
    letters: &str,
    sv: Version,
) -> Result<(), Refusal> {
    let row = head.operation.row();
    let service = letter(row.service);
    if !ss.contains(service) {
        return Err(mismatch(ErrorCode::AuthorizationServiceMismatch, head, "ss", ss, service));
    }
    let needed = head.operation.account_permission(head.query, head.headers);
    if needed == Permission::NEVER {
        return Err(Refusal::not_authorized(ErrorCode::AuthorizationFailure, head.version));
    }
    let scope = match row.scope {
        Scope::Service => Some("s"),
        Scope::Container => Some("c"),
        Scope::Object => Some("o"),
        Scope::Any => None,
    };
    if let Some(scope) = scope.filter(|scope| !srt.contains(*scope)) {
        return Err(mismatch(ErrorCode::AuthorizationResourceTypeMismatch, head, "srt", srt, scope));
    }
    check_letters(head, needed, letters, sv)
}

/// Checks whether the letters of a service SAS allow the operation.
pub(crate) fn check_service(head: &Head<'_>, letters: &str, sv: Version) -> Result<(), Refusal> {
    check_resource(head, head.operation.service_permission(head.query, head.headers), letters, sv)
}

/// Checks whether the letters of a user delegation SAS allow the operation.
pub(crate) fn check_delegated(head: &Head<'_>, letters: &str, sv: Version) -> Result<(), Refusal> {
    let version = sv.min(head.version);
    let needed = head.operation.delegated_permission(head.query, head.headers, version);
    check_resource(head, needed, letters, sv)
}

fn check_resource(head: &Head<'_>, needed: Permission, letters: &str, sv: Version) -> Result<(), Refusal> {
    if needed == Permission::NEVER {
        return Err(Refusal::not_authorized(ErrorCode::AuthorizationFailure, head.version));
    }
    check_letters(head, needed, letters, sv)
}

fn check_letters(head: &Head<'_>, needed: Permission, letters: &str, sv: Version) -> Result<(), Refusal> {
    if let Some((further, _)) = head.operation.additional_permission(head.query, head.headers) {
        let code = match further {
            Permission::NEVER => ErrorCode::AuthorizationFailure,
            _ => ErrorCode::AuthorizationPermissionMismatch,
        };
        if !further.granted_by(letters) {
            return Err(Refusal::not_authorized(code, head.version));
        }
    }
    use Operation::{LeaseBlob, LeaseContainer};
    // Before 2017-07-29 the delete permission did not include the right to break a lease.
    let without_delete = matches!(head.operation, LeaseBlob | LeaseContainer) && !sv.at_least(2017, 7, 29);
    let granted = if without_delete {
        needed.granted_by(&letters.replace('d', ""))
    } else {
        needed.granted_by(letters)
    };
    granted
        .then_some(())
        .ok_or_else(|| Refusal::not_authorized(ErrorCode::AuthorizationPermissionMismatch, head.version))
}

fn mismatch(code: ErrorCode, head: &Head<'_>, name: &str, value: &str, needed: &str) -> Refusal {
    let refusal = Refusal::not_authorized(code, head.version);
    if head.version.at_least(2024, 8, 4) {
        return refusal
            .detail("ExtendedErrorDetail", format!("{name} is '{value}' and has to include '{needed}'."));
    }
    refusal
}

/// Returns the highest role of a subject for a service of the account.
pub(crate) fn role_of(account: &Account, subject: &str, service: ServiceKind) -> Option<Role> {
    let own = |assignment: &&lazuli_protocol::account::RoleAssignment| {
        assignment.subject == subject && assignment.service == service
    };
    account.roles.iter().filter(own).map(|assignment| assignment.role).max()
}

/// Checks whether a subject's role allows the operation, and returns the role.
pub(crate) fn check_role(head: &Head<'_>, subject: &str) -> Result<Role, Refusal> {
    let needed = head.operation.role(head.query, head.headers);
    role_of(head.account, subject, head.operation.service())
        .filter(|role| *role >= needed)
        .ok_or_else(|| Refusal::new(ErrorCode::AuthorizationPermissionMismatch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_a_service_sas_are_ordered_and_unique() {
        use ServiceKind::{Blob, File, Queue, Table};
        for (service, letters, valid) in [
            (Blob, "r", true),
            (Blob, "racwdxltfmeopi", true),
            (Blob, "racwdxyltmeopi", true),
            (Blob, "rl", true),
            (Blob, "rwcd", true),
            (Blob, "racwdxltmeiyf", true),
            (Blob, "racwdxtmeiy", true),
            (Blob, "racwdxty", true),
            (Blob, "racwdxytlmei", true),
            (Blob, "racwdtl", true),
            (Blob, "rtlf", false),
            (Blob, "rtly", false),
            (Blob, "ryy", false),
            (Blob, "rit", false),
            (Blob, "rwcwd", false),
            (Blob, "rwca", false),
            (Blob, "lr", false),
            (Blob, "wr", false),
            (Blob, "rr", false),
            (Blob, "ru", false),
            (Blob, "R", false),
            (Blob, "r w", false),
            (File, "rcwdl", true),
            (File, "rwcdl", true),
            (File, "ra", false),
            (Queue, "raup", true),
            (Queue, "rpu", false),
            (Table, "raud", true),
            (Table, "rw", false),
        ] {
            assert_eq!(check_service_letters(service, letters).is_ok(), valid, "{service:?} {letters}");
        }
    }

    #[test]
    fn letters_of_an_account_sas_may_have_any_order_but_not_repeat() {
        for (letters, valid) in [
            ("rwdxylacupfti", true),
            ("rwdlacupiytfx", true),
            ("wr", true),
            ("rr", false),
            ("rz", false),
            ("é", false),
        ] {
            assert_eq!(check_account_letters(letters).is_ok(), valid, "{letters}");
        }
    }
}
