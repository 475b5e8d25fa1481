//! User delegation: from a bearer token to a key, and from the key to signatures.

#![allow(clippy::unwrap_used)]

mod common;

use common::{SV, TENANT, TestRequest, World};
use lazuli_protocol::account::Role;
use lazuli_protocol::{ErrorCode, Operation, ServiceKind, date};

/// Returns a user delegation SAS for container `c`.
fn delegated(changes: &[(&str, &str)]) -> String {
    common::delegated(ServiceKind::Blob, changes)
}

#[test]
fn user_delegation_sas_grants_what_both_its_owner_and_its_letters_allow() {
    use ErrorCode::{AuthenticationFailed, AuthorizationFailure, AuthorizationPermissionMismatch};
    let request = |operation, changes: &[(&str, &str)]| TestRequest::new(operation).query(delegated(changes));
    for (role, operation, changes, expected) in [
        (Some(Role::Contributor), Operation::PutBlob, &[][..], None),
        (Some(Role::Reader), Operation::GetBlob, &[], None),
        (Some(Role::Reader), Operation::PutBlob, &[], Some(AuthorizationPermissionMismatch)),
        (None, Operation::GetBlob, &[], Some(AuthorizationPermissionMismatch)),
        (Some(Role::Owner), Operation::GetBlob, &[("sp", "w")], Some(AuthorizationPermissionMismatch)),
        (Some(Role::Owner), Operation::CreateContainer, &[], Some(AuthorizationFailure)),
        (Some(Role::Reader), Operation::GetAccountInformation, &[], None),
        (Some(Role::Owner), Operation::GetBlob, &[("sks", "q")], Some(AuthenticationFailed)),
        (Some(Role::Owner), Operation::GetBlob, &[("skoid", "other")], Some(AuthenticationFailed)),
        (
            Some(Role::Owner),
            Operation::GetBlob,
            &[("ske", "2026-05-20T15:00:00Z")],
            Some(AuthenticationFailed),
        ),
        (Some(Role::Owner), Operation::GetBlob, &[("si", "policy")], Some(AuthenticationFailed)),
        (Some(Role::Owner), Operation::GetBlob, &[("skv", "")], Some(AuthenticationFailed)),
        (Some(Role::Owner), Operation::GetBlob, &[("sv", "2018-03-28")], Some(AuthenticationFailed)),
        // The same time in another spelling.
        (Some(Role::Owner), Operation::GetBlob, &[("skt", "2026-05-20T11:00:00.0000000Z")], None),
    ] {
        let world = role.map_or_else(World::new, |role| World::new().with_role(role));
        assert_eq!(world.code(&request(operation, changes)), expected, "{role:?} {operation:?} {changes:?}");
    }
}

#[test]
fn owner_without_the_right_to_read_tags_cannot_delegate_it() {
    for (role, granted) in [(Role::Reader, "r"), (Role::Contributor, "r"), (Role::Owner, "rt")] {
        let world = World::new().with_role(role);
        let grant = world.grant(&TestRequest::new(Operation::GetBlob).query(delegated(&[("sp", "rt")])));
        assert_eq!(grant.permissions, granted, "{role:?}");
    }
}

#[test]
fn user_delegation_sas_expires_with_its_key() {
    let world = World::new().with_role(Role::Reader);
    let query = delegated(&[("se", "2026-05-21")]);
    for (now, expected) in [
        ("2026-05-20T11:00:00Z", None),
        ("2026-05-20T13:59:59Z", None),
        ("2026-05-20T14:00:00Z", Some(ErrorCode::AuthenticationFailed)),
        ("2026-05-20T10:59:59Z", Some(ErrorCode::AuthenticationFailed)),
    ] {
        let now = date::parse_iso8601(now).unwrap();
        assert_eq!(
            world.code(&TestRequest { now, ..TestRequest::new(Operation::GetBlob).query(&query) }),
            expected,
            "{now:?}"
        );
    }
}

#[test]
fn user_delegation_sas_bound_to_a_user_needs_the_users_token() {
    let world = World::new().with_role(Role::Reader);
    let tokens: serde_json::Value = serde_json::from_str(common::TOKENS).unwrap();
    let bearer = |token: &serde_json::Value| format!("Bearer {}", token.as_str().unwrap());
    let (owner, other) = (bearer(&tokens["tokens"][0]["token"]), bearer(&tokens["by_sub"]));
    let bound = |more: &[(&str, &str)]| {
        let changes = [&[("sv", "2025-07-05"), ("sduoid", common::SUBJECT)], more].concat();
        TestRequest::new(Operation::GetBlob).query(delegated(&changes))
    };
    let refused = Some(ErrorCode::AuthenticationFailed);
    assert_eq!(world.code(&bound(&[])), refused);
    assert_eq!(world.code(&bound(&[]).header("authorization", &owner)), None);
    assert_eq!(world.code(&bound(&[]).header("authorization", &other)), refused);
    assert_eq!(world.code(&bound(&[("skdutid", TENANT)]).header("authorization", &owner)), None);
    assert_eq!(world.code(&bound(&[("skdutid", "another")]).header("authorization", &owner)), refused);
}

#[test]
fn key_for_the_users_of_a_tenant_signs_only_for_a_named_user() {
    let world = World::new().with_role(Role::Reader);
    let tokens: serde_json::Value = serde_json::from_str(common::TOKENS).unwrap();
    let owner = format!("Bearer {}", tokens["tokens"][0]["token"].as_str().unwrap());
    let user = ("sduoid", common::SUBJECT);
    for (sv, user, expected) in [
        ("2025-07-05", Some(user), None),
        ("2025-07-05", None, Some("sduoid is mandatory. Cannot be empty")),
        // Older signatures do not cover the user: the holder of one could insert any user.
        (SV, Some(user), Some("skdutid is not a field of this version.")),
    ] {
        let changes: Vec<_> = [("sv", sv), ("skdutid", TENANT)].into_iter().chain(user).collect();
        let request = TestRequest::new(Operation::GetBlob).query(delegated(&changes));
        let request = if user.is_some() { request.header("authorization", &owner) } else { request };
        let refusal = world.authenticate(&request).err();
        assert_eq!(refusal.as_ref().map(common::detail), expected, "{sv} {user:?}");
        let code = refusal.map(|refusal| refusal.code());
        assert_eq!(code, expected.map(|_| ErrorCode::AuthenticationFailed), "{sv} {user:?}");
    }
}

#[test]
fn agents_and_correlation_id_of_a_user_delegation_sas_must_be_guids() {
    let world = World::new().with_role(Role::Reader);
    for name in ["saoid", "suoid", "scid"] {
        let request =
            |sv, value| TestRequest::new(Operation::GetBlob).query(delegated(&[("sv", sv), (name, value)]));
        assert_eq!(world.code(&request(SV, common::SUBJECT)), None, "{name}");
        let refusal = world.authenticate(&request(SV, "somebody")).unwrap_err();
        assert_eq!(refusal.code(), ErrorCode::AuthenticationFailed);
        assert_eq!(common::detail(&refusal), format!("{name} is not a GUID."));
        assert_eq!(
            world.code(&request("2019-12-12", "somebody")),
            None,
            "{name} is not a field of that version"
        );
    }
}
