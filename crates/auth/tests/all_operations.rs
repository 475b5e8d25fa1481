//! Two rules for every operation: no credential of a request is ignored, and the permission to create allows
//! only operations that do not change what exists.
//!
//! The tests cover the whole operation table, so a new operation must be added here.

#![allow(clippy::unwrap_used)]

mod common;

use common::{
    ACCOUNT, SV, TestRequest, World, account_sas, bearer, delegated, key, now, service_sas, signed,
};
use lazuli_protocol::account::Role;
use lazuli_protocol::operation::{Anonymous, Permission};
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Key, Operation, ServiceKind, date};

fn request(operation: Operation, query: &str) -> TestRequest {
    TestRequest::new(operation)
        .query(query)
        .header("x-ms-date", &date::rfc1123(now()))
        .header("x-ms-file-request-intent", "backup")
}

type Header = (&'static str, fn(TestRequest) -> TestRequest);

/// Every kind of Authorization header, valid and invalid.
const HEADERS: [Header; 7] = [
    ("Shared Key", |request| signed(request, ACCOUNT, &key())),
    ("Shared Key, signed with another key", |request| {
        signed(request, ACCOUNT, &Key::from_bytes(vec![1; 64]))
    }),
    ("Shared Key, unreadable", |request| request.header("authorization", "SharedKey x")),
    ("Shared Key Lite, signed wrongly", |request| {
        request.header("authorization", &format!("SharedKeyLite {ACCOUNT}:c2ln"))
    }),
    ("bearer token", |request| request.header("authorization", &bearer())),
    ("bearer token, not ours", |request| request.header("authorization", "Bearer abc.def.ghi")),
    ("another scheme", |request| request.header("authorization", "Basic YTpi")),
];

#[test]
fn no_operation_ignores_a_second_credential() {
    let world = World::new().with_role(Role::Owner);
    for operation in Operation::ALL {
        // Preflight requests and websites need no credential.
        if operation.row().anonymous == Anonymous::Always {
            let request = request(*operation, "sig=x").header("authorization", "Basic YTpi");
            assert_eq!(world.authenticate(&request), Ok(Caller::Anonymous), "{operation:?}");
            continue;
        }
        let needed = operation.row().account_sas;
        let too_little = "rwdxylacupfti".chars().map(String::from).find(|letter| !needed.granted_by(letter));
        let too_little = too_little.unwrap_or_else(|| "r".into());
        let signatures = [
            ("good", account_sas(&[])),
            ("expired", account_sas(&[("se", "2026-05-20T11:00:00Z")])),
            ("without the permission", account_sas(&[("sp", &too_little)])),
            ("signed wrongly", account_sas(&[]).replace("sig=", "sig=AAAA")),
            ("incomplete", "sig=c2ln".to_owned()),
        ];
        for (name, query) in &signatures {
            let alone = world.authenticate(&request(*operation, query));
            let holds = match *name {
                "good" => needed != Permission::NEVER,
                "without the permission" => needed == Permission::ANY,
                _ => false,
            };
            assert_eq!(alone.is_ok(), holds, "{operation:?} {name}");
            for (header, add) in HEADERS {
                let of_header = world.authenticate(&add(request(*operation, "")));
                let both = world.authenticate(&add(request(*operation, query)));
                let what = format!("{operation:?}, {header}, SAS {name}");
                match (&of_header, &alone) {
                    (Ok(_), Ok(_)) => assert_eq!(both, alone, "{what}"),
                    (Ok(_), Err(refusal)) => {
                        assert_eq!(both.unwrap_err().code(), refusal.code(), "{what}");
                    }
                    (Err(refusal), Ok(_)) => assert_eq!(both.unwrap_err().code(), refusal.code(), "{what}"),
                    (Err(_), Err(_)) => assert!(both.is_err(), "{what}"),
                }
            }
        }
    }
}

#[test]
fn invalid_signature_with_a_token_fails_authentication() {
    let world = World::new().with_role(Role::Owner);
    for (service, operation) in [
        (ServiceKind::Blob, Operation::GetBlob),
        (ServiceKind::Queue, Operation::GetQueueMetadata),
        (ServiceKind::File, Operation::CreateDirectory),
    ] {
        // From the tests of the .NET clients: a key for a tenant's users, and a signature that names no user.
        let unbound = [("sv", "2025-07-05"), ("sp", "r"), ("skdutid", common::TENANT)];
        let expired = [("se", "2026-05-20T11:30:00Z")];
        for query in [
            delegated(service, &unbound),
            delegated(service, &expired),
            delegated(service, &[]).replace("sig=", "sig=AAAA"),
        ] {
            let request = request(operation, &query).header("authorization", &bearer());
            assert_eq!(world.code(&request), Some(ErrorCode::AuthenticationFailed), "{service:?} {query}");
        }
    }
}

#[test]
fn token_without_a_role_is_accepted_only_from_the_user_that_a_signature_is_bound_to() {
    // The owner of the key has a role, the caller has none.
    let owner = common::SUBJECT;
    let tokens: serde_json::Value = serde_json::from_str(common::TOKENS).unwrap();
    let other = format!("Bearer {}", tokens["by_sub"].as_str().unwrap());
    let world = World::new().with_role(Role::Owner);
    let get = |changes: &[(&str, &str)], token: &str| {
        let query = delegated(ServiceKind::Blob, &[&[("sv", "2025-07-05")], changes].concat());
        world.code(&request(Operation::GetBlob, &query).header("authorization", token))
    };
    assert_eq!(get(&[], &bearer()), None);
    assert_eq!(get(&[], &other), Some(ErrorCode::AuthorizationPermissionMismatch));
    assert_eq!(get(&[("sduoid", owner)], &other), Some(ErrorCode::AuthenticationFailed));
    assert_eq!(get(&[("sduoid", owner)], &bearer()), None);
    assert_eq!(get(&[("sduoid", "subject")], &other), None);
}

/// The kinds of SAS that allow an operation with only `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CreateOnly {
    account: bool,
    service: bool,
    delegated: bool,
}

const NONE: CreateOnly = CreateOnly { account: false, service: false, delegated: false };
const ACCOUNT_ONLY: CreateOnly = CreateOnly { account: true, ..NONE };
const DELEGATED_ONLY: CreateOnly = CreateOnly { delegated: true, ..NONE };
const RESOURCE: CreateOnly = CreateOnly { service: true, delegated: true, ..NONE };
const EVERY: CreateOnly = CreateOnly { account: true, service: true, delegated: true };

/// Returns the operations that `c` alone allows. Each service tests in its `create_only.rs` that they do not
/// change what exists.
#[rustfmt::skip]
fn create_only(operation: Operation) -> CreateOnly {
    use Operation::*;
    match operation {
        // Any SAS is accepted: these operations read, or carry requests that are authorized one by one.
        PreflightBlobRequest | PreflightQueueRequest | PreflightTableRequest | PreflightFileRequest
        | GetWebContent | GetWebContentProperties | GetAccountInformation | ContainerBatch => EVERY,
        BlobBatch => ACCOUNT_ONLY,
        // A table SAS has no letter c.
        EntityGroupTransaction => ACCOUNT_ONLY,

        CreateContainer | CreateQueue | CreateTable | CreateShare | SnapshotShare => ACCOUNT_ONLY,
        PutBlob | PutBlobFromUrl | CopyBlob | CopyBlobFromUrl | IncrementalCopyBlob | SnapshotBlob
        | CreateDirectory | CreateFile | CreatePermission => EVERY,
        CopyFile => RESOURCE,
        PutBlock | PutBlockFromUrl | PutBlockList => DELEGATED_ONLY,

        ListContainers | GetBlobServiceProperties | SetBlobServiceProperties | GetBlobServiceStats | GetUserDelegationKey
        | FindBlobsByTags | GetContainerProperties | GetContainerMetadata | SetContainerMetadata | GetContainerAcl
        | SetContainerAcl | DeleteContainer | LeaseContainer | ListBlobs | RestoreContainer | RenameContainer
        | CreateSession | FindBlobsByTagsInContainer | GetBlob | GetBlobProperties | GetBlobMetadata | SetBlobProperties
        | SetBlobMetadata | DeleteBlob | UndeleteBlob | LeaseBlob | AbortCopyBlob | SetBlobTier | GetBlobTags
        | SetBlobTags | QueryBlobContents | SetBlobExpiry | SetBlobImmutabilityPolicy | DeleteBlobImmutabilityPolicy
        | SetBlobLegalHold | GetBlockList | PutPageFromUrl | PutPage | GetPageRanges | AppendBlockFromUrl | AppendBlock
        | SealAppendBlob => NONE,
        ListQueues | GetQueueServiceProperties | SetQueueServiceProperties | GetQueueServiceStats
        | GetQueueUserDelegationKey | DeleteQueue | GetQueueMetadata | SetQueueMetadata | GetQueueAcl | SetQueueAcl
        | PutMessage | PeekMessages | GetMessages | ClearMessages | UpdateMessage | DeleteMessage => NONE,
        GetTableServiceProperties | SetTableServiceProperties | GetTableServiceStats | QueryTables | DeleteTable
        | GetTableAcl | SetTableAcl | QueryEntities | InsertEntity | UpdateEntity | InsertOrReplaceEntity | MergeEntity
        | InsertOrMergeEntity | DeleteEntity => NONE,
        ListShares | GetFileServiceProperties | SetFileServiceProperties | GetFileUserDelegationKey | GetShareProperties
        | GetShareMetadata | SetShareProperties | SetShareMetadata | GetShareAcl | SetShareAcl | GetShareStats
        | DeleteShare | RestoreShare | LeaseShare | GetPermission | GetDirectoryProperties | GetDirectoryMetadata
        | SetDirectoryProperties | SetDirectoryMetadata | DeleteDirectory | ListDirectoriesAndFiles | RenameDirectory
        | ListHandles | ForceCloseHandles | GetFile | GetFileProperties | GetFileMetadata | SetFileProperties
        | SetFileMetadata | PutRangeFromUrl | PutRange | ListRanges | AbortCopyFile | DeleteFile | RenameFile
        | LeaseFile => NONE,
    }
}

/// Returns a service SAS for the resource of [`TestRequest::new`].
fn of_resource(service: ServiceKind, sp: &str) -> String {
    let (path, more) = match service {
        ServiceKind::Blob => ("c", ("sr", "c")),
        ServiceKind::File => ("c", ("sr", "s")),
        ServiceKind::Queue => ("q", ("spr", "https")),
        ServiceKind::Table => ("t", ("tn", "t")),
    };
    service_sas(service, path, &[("sv", SV), ("sp", sp), ("se", common::LATER), more])
}

#[test]
fn permission_to_create_allows_only_the_operations_of_this_table() {
    let world = World::new().with_role(Role::Owner);
    let new = "2026-04-06";
    for operation in Operation::ALL {
        let service = operation.service();
        let lets_through =
            |query: &str| world.authenticate(&TestRequest::new(*operation).query(query)).is_ok();
        let found = CreateOnly {
            account: lets_through(&account_sas(&[("sp", "c")])),
            service: lets_through(&of_resource(service, "c")),
            delegated: lets_through(&delegated(service, &[("sv", new), ("sp", "c")])),
        };
        assert_eq!(found, create_only(*operation), "{operation:?}");
    }
}

#[test]
fn blocks_need_write_but_since_2026_a_user_delegation_sas_may_create() {
    use Operation::{PutBlock, PutBlockFromUrl, PutBlockList};
    let world = World::new().with_role(Role::Owner);
    let mismatch = Some(ErrorCode::AuthorizationPermissionMismatch);
    let (old, new) = ("2026-02-06", "2026-04-06");
    for operation in [PutBlock, PutBlockFromUrl, PutBlockList] {
        let code =
            |version, query: &str| world.code(&TestRequest::new(operation).query(query).version(version));
        for (version, sv, expected) in
            [(old, old, mismatch), (old, new, mismatch), (new, old, mismatch), (new, new, None)]
        {
            let query = delegated(ServiceKind::Blob, &[("sv", sv), ("sp", "c")]);
            assert_eq!(code(version, &query), expected, "{operation:?} {version} {sv}");
            let query = delegated(ServiceKind::Blob, &[("sv", sv), ("sp", "w")]);
            assert_eq!(code(version, &query), None, "{operation:?} {version} {sv}");
        }
        for letters in ["c", "rc", "rac"] {
            assert_eq!(code(new, &of_resource(ServiceKind::Blob, letters)), mismatch, "{operation:?}");
            assert_eq!(code(new, &account_sas(&[("sp", letters)])), mismatch, "{operation:?}");
        }
        assert_eq!(code(new, &of_resource(ServiceKind::Blob, "w")), None, "{operation:?}");
        assert_eq!(code(new, &account_sas(&[("sp", "w")])), None, "{operation:?}");
    }
    // The permission for tags does not replace write.
    for (query, expected) in [
        (account_sas(&[("sp", "ct")]), mismatch),
        (of_resource(ServiceKind::Blob, "ct"), mismatch),
        (of_resource(ServiceKind::Blob, "wt"), None),
        (delegated(ServiceKind::Blob, &[("sv", new), ("sp", "ct")]), None),
        (delegated(ServiceKind::Blob, &[("sv", new), ("sp", "c")]), mismatch),
    ] {
        let request = TestRequest::new(PutBlockList).query(&query).header("x-ms-tags", "a=b").version(new);
        assert_eq!(world.code(&request), expected, "{query}");
    }
}
