//! Tests of anonymous callers, bearer tokens, and unusable accounts.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use common::{SUBJECT, TOKENS, TestRequest, World, block_on, detail, secret};
use http::Method;
use lazuli_auth::Authenticator;
use lazuli_auth::bearer::{FileKeys, Issuer};
use lazuli_protocol::account::Role;
use lazuli_protocol::error::ErrorFormat;
use lazuli_protocol::policy::PublicAccess;
use lazuli_protocol::properties::ServiceProperties;
use lazuli_protocol::request::Caller;
use lazuli_protocol::{Account, Accounts, ErrorCode, Operation, Refusal, ServiceKind};

fn challenge(refusal: &Refusal) -> Option<String> {
    let id = "00000000-0000-0000-0000-000000000000".parse().unwrap();
    let (_, headers, _) = refusal.render(ErrorFormat::Xml, &Method::GET, id, common::now());
    headers.get("www-authenticate").map(|value| value.to_str().unwrap().to_owned())
}

#[test]
fn anonymous_callers_may_read_public_resources_only() {
    use Operation::*;
    let blob_level = [GetBlob, GetBlobProperties, GetBlobMetadata, GetBlockList, GetPageRanges];
    let container_level = [GetContainerProperties, GetContainerMetadata, ListBlobs];
    for operation in ALL {
        for level in [PublicAccess::None, PublicAccess::Blob, PublicAccess::Container] {
            let mut world = World::new();
            world.public = Ok(level);
            let allowed = match level {
                PublicAccess::None => false,
                PublicAccess::Blob => blob_level.contains(operation),
                PublicAccess::Container => {
                    blob_level.contains(operation) || container_level.contains(operation)
                }
            } || operation.is_preflight()
                || matches!(operation, GetWebContent | GetWebContentProperties);
            let result = world.authenticate(&TestRequest::new(*operation));
            let expected =
                if allowed { Ok(Caller::Anonymous) } else { Err(ErrorCode::NoAuthenticationInformation) };
            assert_eq!(result.map_err(|refusal| refusal.code()), expected, "{operation:?} {level:?}");
        }
    }
}

const ALL: &[Operation] = Operation::ALL;

#[test]
fn without_credentials_newer_versions_are_challenged_and_older_ones_find_nothing() {
    let world = World::new();
    for (operation, version, challenged) in [
        (Operation::GetBlob, "2019-12-12", true),
        (Operation::PutBlob, "2021-12-02", true),
        (Operation::GetBlob, "2019-07-07", false),
        (Operation::GetBlob, "2009-09-19", false),
        (Operation::PutMessage, "2019-12-12", true),
        (Operation::PutMessage, "2019-07-07", false),
        (Operation::GetFile, "2019-12-12", true),
        (Operation::QueryEntities, "2020-12-06", true),
        (Operation::QueryEntities, "2020-10-02", false),
    ] {
        let refusal = world.authenticate(&TestRequest::new(operation).version(version)).unwrap_err();
        if challenged {
            assert_eq!(
                (refusal.status().as_u16(), refusal.code()),
                (401, ErrorCode::NoAuthenticationInformation)
            );
            let expected = "Bearer authorization_uri=https://issuer.example/tenant/oauth2/authorize \
                            resource_id=https://storage.azure.com";
            assert_eq!(challenge(&refusal).as_deref(), Some(expected), "{operation:?} {version}");
        } else {
            assert_eq!((refusal.status().as_u16(), refusal.code()), (404, ErrorCode::ResourceNotFound));
            assert_eq!(challenge(&refusal), None);
        }
    }
}

#[test]
fn account_may_forbid_public_access() {
    let mut world = World::new();
    world.public = Ok(PublicAccess::Container);
    world.account.settings.public_access_allowed = false;
    let refusal = world.authenticate(&TestRequest::new(Operation::GetBlob)).unwrap_err();
    assert_eq!((refusal.status().as_u16(), refusal.code()), (409, ErrorCode::PublicAccessNotPermitted));
    assert_eq!(
        world.code(&TestRequest::new(Operation::PutBlob)),
        Some(ErrorCode::NoAuthenticationInformation)
    );
}

#[test]
fn missing_and_private_containers_get_the_same_reply() {
    let mut world = World::new();
    world.public = Err(ErrorCode::ContainerNotFound.into());
    assert_eq!(
        world.code(&TestRequest::new(Operation::GetBlob)),
        Some(ErrorCode::NoAuthenticationInformation)
    );
    world.public = Err(ErrorCode::ServerBusy.into());
    assert_eq!(world.code(&TestRequest::new(Operation::GetBlob)), Some(ErrorCode::ServerBusy));
}

#[test]
fn query_without_a_signature_is_anonymous() {
    let mut world = World::new();
    world.public = Ok(PublicAccess::Blob);
    assert_eq!(
        world.authenticate(&TestRequest::new(Operation::GetBlob).query("sv=2021-12-02&sp=r")),
        Ok(Caller::Anonymous)
    );
}

fn token(name: &str) -> String {
    let tokens: serde_json::Value = serde_json::from_str(TOKENS).unwrap();
    let all = tokens["tokens"].as_array().unwrap();
    all.iter().find(|t| t["name"] == name).unwrap()["token"].as_str().unwrap().to_owned()
}

fn bearer(operation: Operation) -> TestRequest {
    TestRequest::new(operation).header("authorization", &format!("Bearer {}", token("RS256")))
}

#[test]
fn subject_may_do_what_its_role_allows() {
    use Operation::*;
    let mismatch = Err(ErrorCode::AuthorizationPermissionMismatch);
    for (role, operation, expected) in [
        (None, GetBlob, mismatch),
        (None, GetUserDelegationKey, mismatch),
        (Some(Role::Reader), GetBlob, Ok(())),
        (Some(Role::Reader), ListContainers, Ok(())),
        (Some(Role::Reader), PeekMessages, Ok(())),
        (Some(Role::Reader), GetUserDelegationKey, Ok(())),
        (Some(Role::Reader), GetQueueUserDelegationKey, Ok(())),
        // Clients request it without the intent that all other file operations need.
        (Some(Role::Reader), GetFileUserDelegationKey, Ok(())),
        (None, GetFileUserDelegationKey, mismatch),
        (Some(Role::Reader), PutBlob, mismatch),
        (Some(Role::Reader), GetMessages, mismatch),
        // The transaction may hold a query. The service authorizes its operations.
        (Some(Role::Reader), EntityGroupTransaction, Ok(())),
        (Some(Role::Contributor), PutBlob, Ok(())),
        (Some(Role::Contributor), DeleteContainer, Ok(())),
        (Some(Role::Contributor), GetContainerAcl, mismatch),
        (Some(Role::Contributor), GetBlobTags, mismatch),
        (Some(Role::Contributor), SetBlobTags, mismatch),
        (Some(Role::Contributor), FindBlobsByTags, mismatch),
        (Some(Role::Contributor), FindBlobsByTagsInContainer, mismatch),
        (Some(Role::Owner), GetBlobTags, Ok(())),
        (Some(Role::Contributor), SetContainerAcl, mismatch),
        (Some(Role::Owner), SetContainerAcl, Ok(())),
        (Some(Role::Owner), SetTableAcl, Ok(())),
        (None, GetAccountInformation, mismatch),
        (Some(Role::Reader), GetAccountInformation, Ok(())),
    ] {
        let world = role.map_or_else(World::new, |role| World::new().with_role(role));
        let result = world.authenticate(&bearer(operation));
        let expected = expected.map(|()| Caller::Bearer { subject: SUBJECT.into(), role: role.unwrap() });
        assert_eq!(result.map_err(|refusal| refusal.code()), expected, "{role:?} {operation:?}");
    }
    // Tags and versions need the owner role.
    for (request, owner_only) in [
        (bearer(PutBlob).header("x-ms-tags", "a=1"), true),
        (bearer(DeleteBlob).query("versionid=2026-01-02T03:04:05.0000000Z"), true),
        (bearer(LeaseBlob).header("x-ms-lease-action", "break"), false),
    ] {
        let result = World::new()
            .with_role(Role::Contributor)
            .authenticate(&request)
            .map_err(|refusal| refusal.code());
        assert_eq!(result.err(), owner_only.then_some(ErrorCode::AuthorizationPermissionMismatch));
        assert!(World::new().with_role(Role::Owner).authenticate(&request).is_ok());
    }
}

#[test]
fn role_applies_to_its_service_and_the_highest_counts() {
    let mut world = World::new().with_role(Role::Owner);
    world.account.roles.retain(|assignment| assignment.service == ServiceKind::Blob);
    let reader =
        lazuli_protocol::account::RoleAssignment { role: Role::Reader, ..world.account.roles[0].clone() };
    world.account.roles.push(reader);
    assert_eq!(world.code(&bearer(Operation::SetContainerAcl)), None);
    assert_eq!(
        world.code(&bearer(Operation::PeekMessages)),
        Some(ErrorCode::AuthorizationPermissionMismatch)
    );
}

#[test]
fn invalid_token_is_challenged() {
    let world = World::new().with_role(Role::Owner);
    for name in
        ["expired", "other audience", "other issuer", "another key of that name", "alg none", "not base64"]
    {
        let request =
            TestRequest::new(Operation::GetBlob).header("authorization", &format!("Bearer {}", token(name)));
        let refusal = world.authenticate(&request).unwrap_err();
        assert_eq!(
            (refusal.status().as_u16(), refusal.code()),
            (401, ErrorCode::InvalidAuthenticationInfo),
            "{name}"
        );
        assert!(challenge(&refusal).unwrap().starts_with("Bearer authorization_uri="), "{name}");
    }
}

#[test]
fn tokens_need_an_issuer_tls_and_a_recent_version() {
    let world = World::new().with_role(Role::Owner);
    let refusal =
        world.authenticate(&TestRequest { secure: false, ..bearer(Operation::GetBlob) }).unwrap_err();
    assert_eq!((refusal.status().as_u16(), refusal.code()), (403, ErrorCode::AuthenticationFailed));
    let refusal = world.authenticate(&bearer(Operation::GetBlob).version("2017-07-29")).unwrap_err();
    assert_eq!(refusal.code(), ErrorCode::AuthenticationFailed);
    assert_eq!(detail(&refusal), "Authentication scheme Bearer is not supported in this version.");
    assert_eq!(world.code(&bearer(Operation::GetBlob).version("2017-11-09")), None);

    let mut world = World::new().with_role(Role::Owner);
    world.authenticator = Authenticator::new(secret(), None);
    let refusal = world.authenticate(&bearer(Operation::GetBlob)).unwrap_err();
    assert_eq!((refusal.status().as_u16(), refusal.code()), (401, ErrorCode::InvalidAuthenticationInfo));
    assert!(challenge(&refusal).unwrap().ends_with(" resource_id=https://storage.azure.com"));
}

#[test]
fn token_should_be_sent_again_if_the_keys_are_unavailable() {
    let mut world = World::new().with_role(Role::Owner);
    let issuer = Issuer {
        name: "https://issuer.example".into(),
        audiences: vec![],
        authorization_uri: "https://issuer.example".into(),
        keys: Arc::new(FileKeys::new("/nowhere/jwks.json")),
    };
    world.authenticator = Authenticator::new(secret(), Some(issuer));
    assert_eq!(world.code(&bearer(Operation::GetBlob)), Some(ErrorCode::ServerBusy));
}

#[test]
fn file_operations_need_the_intent_to_bypass_file_permissions() {
    let world = World::new().with_role(Role::Owner);
    assert_eq!(world.code(&bearer(Operation::GetFile)), Some(ErrorCode::MissingRequiredHeader));
    assert_eq!(world.code(&bearer(Operation::GetFile).header("x-ms-file-request-intent", "backup")), None);
}

#[test]
fn service_and_share_operations_of_files_need_no_intent() {
    use Operation::*;
    let world = World::new().with_role(Role::Owner);
    let free = [
        PreflightFileRequest,
        ListShares,
        GetFileServiceProperties,
        SetFileServiceProperties,
        GetFileUserDelegationKey,
        CreateShare,
        GetShareProperties,
        GetShareMetadata,
        SetShareProperties,
        SetShareMetadata,
        GetShareAcl,
        SetShareAcl,
        GetShareStats,
        SnapshotShare,
        DeleteShare,
        RestoreShare,
        LeaseShare,
    ];
    for operation in ALL.iter().filter(|operation| operation.service() == ServiceKind::File) {
        let expected = if free.contains(operation) { None } else { Some(ErrorCode::MissingRequiredHeader) };
        assert_eq!(world.code(&bearer(*operation)), expected, "{operation:?}");
    }
}

struct FixedAccounts(Vec<Account>);

#[async_trait]
impl Accounts for FixedAccounts {
    async fn account(&self, name: &str) -> Result<Option<Arc<Account>>, Refusal> {
        Ok(self.0.iter().find(|account| account.name == name).cloned().map(Arc::new))
    }

    async fn service_properties(
        &self,
        _: &Account,
        _: ServiceKind,
    ) -> Result<Arc<ServiceProperties>, Refusal> {
        unreachable!("authentication does not read service properties")
    }
}

#[test]
fn unknown_and_disabled_accounts_are_refused() {
    let account = World::new().account;
    let mut disabled = account.clone();
    disabled.name = "disabled".into();
    disabled.settings.disabled = true;
    let directory = FixedAccounts(vec![account, disabled]);
    let find = |name| block_on(lazuli_auth::account(&directory, name)).map(|account| account.name.clone());
    assert_eq!(find("devstoreaccount1").as_deref(), Ok("devstoreaccount1"));
    let refusal = find("disabled").unwrap_err();
    assert_eq!((refusal.status().as_u16(), refusal.code()), (403, ErrorCode::AccountIsDisabled));
    let refusal = find("nobody").unwrap_err();
    assert_eq!((refusal.status().as_u16(), refusal.code()), (403, ErrorCode::AuthenticationFailed));
}
