//! What the letters of a shared access signature allow, operation by operation.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Ask, SV, World, account_sas, container_sas};
use lazuli_protocol::{ErrorCode, Operation};

#[test]
fn what_is_not_covered_has_a_code_of_its_own() {
    let world = World::new();
    use ErrorCode::*;
    for (operation, query, expected) in [
        (Operation::GetBlob, account_sas(&[("ss", "qtf")]), AuthorizationServiceMismatch),
        (Operation::GetBlob, account_sas(&[("srt", "sc")]), AuthorizationResourceTypeMismatch),
        (Operation::ListContainers, account_sas(&[("srt", "co")]), AuthorizationResourceTypeMismatch),
        (Operation::ListBlobs, account_sas(&[("srt", "so")]), AuthorizationResourceTypeMismatch),
        (Operation::GetBlob, account_sas(&[("sp", "w")]), AuthorizationPermissionMismatch),
        (Operation::GetContainerAcl, account_sas(&[]), AuthorizationFailure),
        (Operation::SetContainerAcl, account_sas(&[]), AuthorizationFailure),
        (Operation::GetUserDelegationKey, account_sas(&[]), AuthorizationFailure),
        (Operation::GetBlob, account_sas(&[("sip", "10.0.0.2")]), AuthorizationSourceIPMismatch),
        (Operation::GetBlob, container_sas(&[("sp", "w")]), AuthorizationPermissionMismatch),
        (Operation::CreateContainer, container_sas(&[]), AuthorizationFailure),
        (Operation::DeleteContainer, container_sas(&[]), AuthorizationFailure),
        (Operation::GetContainerProperties, container_sas(&[]), AuthorizationFailure),
        (Operation::SetContainerMetadata, container_sas(&[]), AuthorizationFailure),
        (Operation::LeaseContainer, container_sas(&[]), AuthorizationFailure),
        (Operation::GetContainerAcl, container_sas(&[]), AuthorizationFailure),
    ] {
        assert_eq!(world.code(&Ask::new(operation).query(&query)), Some(expected), "{operation:?} {query}");
        // Before 2015-04-05 the resource was simply not there.
        let old = Ask::new(operation).query(&query).version("2014-02-14");
        assert_eq!(world.code(&old), Some(ResourceNotFound), "{operation:?} {query}");
    }
    let insecure =
        Ask { secure: false, ..Ask::new(Operation::GetBlob).query(account_sas(&[("spr", "https")])) };
    assert_eq!(world.code(&insecure), Some(AuthorizationProtocolMismatch));
    let refusal = world.ask(&Ask::new(Operation::GetBlob).query(account_sas(&[("ss", "q")]))).unwrap_err();
    assert_eq!(refusal.details(), [("ExtendedErrorDetail", "ss is 'q' and has to include 'b'.".to_owned())]);
}

/// Operations by service, resource type and letters, as the documentation of account SAS lists them.
#[rustfmt::skip]
const ACCOUNT_PERMISSIONS: &[(&str, &[&str], &[Operation])] = {
    use Operation::*;
    &[
        ("s", &["l"], &[ListContainers, ListQueues, ListShares]),
        ("s", &["r"], &[GetBlobServiceProperties, GetBlobServiceStats, GetQueueServiceProperties, GetQueueServiceStats,
            GetTableServiceProperties, GetTableServiceStats, GetFileServiceProperties]),
        ("s", &["w"], &[SetBlobServiceProperties, SetQueueServiceProperties, SetTableServiceProperties, SetFileServiceProperties]),
        ("c", &["c", "w"], &[CreateContainer, CreateQueue, CreateTable, CreateShare, SnapshotShare]),
        ("c", &["r"], &[GetContainerProperties, GetContainerMetadata, GetQueueMetadata, GetShareProperties, GetShareMetadata, GetShareStats]),
        ("c", &["w"], &[SetContainerMetadata, LeaseContainer, SetQueueMetadata, SetShareProperties, SetShareMetadata]),
        ("c", &["d"], &[DeleteContainer, DeleteQueue, DeleteTable, DeleteShare]),
        ("c", &["l"], &[ListBlobs, QueryTables, ListDirectoriesAndFiles]),
        ("o", &["c", "w"], &[PutBlob, SnapshotBlob, CopyBlob, IncrementalCopyBlob, CreateDirectory, CreateFile]),
        ("o", &["r"], &[GetBlob, GetBlobProperties, GetBlobMetadata, GetBlockList, GetPageRanges, PeekMessages, QueryEntities,
            GetDirectoryProperties, GetDirectoryMetadata, GetFile, GetFileProperties, GetFileMetadata, ListRanges]),
        ("o", &["w"], &[SetBlobProperties, SetBlobMetadata, LeaseBlob, AbortCopyBlob, PutBlock, PutBlockList, PutPage,
            SetDirectoryMetadata, SetFileMetadata, PutRange, CopyFile, AbortCopyFile]),
        ("o", &["t"], &[GetBlobTags, SetBlobTags]),
        ("o", &["f"], &[FindBlobsByTags]),
        ("o", &["d"], &[DeleteBlob, ClearMessages, DeleteEntity, DeleteDirectory, DeleteFile]),
        ("o", &["a", "w"], &[AppendBlock]),
        ("o", &["a"], &[PutMessage, InsertEntity]),
        ("o", &["p"], &[GetMessages, DeleteMessage]),
        ("o", &["u"], &[UpdateMessage, UpdateEntity, MergeEntity]),
        ("o", &["au"], &[InsertOrMergeEntity, InsertOrReplaceEntity]),
    ]
};

#[test]
fn account_permissions_are_those_of_the_documentation() {
    let world = World::new();
    for (srt, alternatives, operations) in ACCOUNT_PERMISSIONS {
        for operation in *operations {
            let code = |srt: &str, sp: &str| {
                world.code(&Ask::new(*operation).query(account_sas(&[("srt", srt), ("sp", sp)])))
            };
            for letters in *alternatives {
                assert_eq!(code(srt, letters), None, "{operation:?} {letters}");
            }
            let enough = |letter: &char| alternatives.contains(&letter.to_string().as_str());
            for letter in "rwdxylacupfti".chars().filter(|letter| !enough(letter)) {
                let expected = Some(ErrorCode::AuthorizationPermissionMismatch);
                assert_eq!(code(srt, &letter.to_string()), expected, "{operation:?} {letter}");
            }
            for other in ["s", "c", "o"].iter().filter(|other| *other != srt) {
                let expected = Some(ErrorCode::AuthorizationResourceTypeMismatch);
                assert_eq!(code(other, alternatives[0]), expected, "{operation:?} {other}");
            }
        }
    }
}

#[test]
fn breaking_a_lease_takes_write_or_since_2017_delete() {
    let world = World::new();
    let mismatch = Some(ErrorCode::AuthorizationPermissionMismatch);
    for (sv, sp, action, expected) in [
        (SV, "w", "acquire", None),
        (SV, "w", "break", None),
        (SV, "d", "break", None),
        (SV, "d", "acquire", mismatch),
        ("2017-07-29", "d", "break", None),
        ("2017-04-17", "d", "break", mismatch),
        ("2017-04-17", "w", "break", None),
    ] {
        let header = |operation| Ask::new(operation).header("x-ms-lease-action", action);
        let account = account_sas(&[("sv", sv), ("sp", sp)]);
        for operation in [Operation::LeaseBlob, Operation::LeaseContainer] {
            let ask = header(operation).query(&account);
            assert_eq!(world.code(&ask), expected, "{operation:?} {sv} {sp} {action}");
        }
        let ask = header(Operation::LeaseBlob).query(container_sas(&[("sv", sv), ("sp", sp)]));
        assert_eq!(world.code(&ask), expected, "{sv} {sp} {action}");
    }
}

#[test]
fn tags_versions_and_permanent_deletes_take_letters_of_their_own() {
    let world = World::new();
    let mismatch = Some(ErrorCode::AuthorizationPermissionMismatch);
    for (operation, header, parameter, sp, expected) in [
        (Operation::PutBlob, Some(("x-ms-tags", "a=b")), "", "w", mismatch),
        (Operation::PutBlob, Some(("x-ms-tags", "a=b")), "", "wt", None),
        (Operation::DeleteBlob, None, "versionid=x", "d", mismatch),
        (Operation::DeleteBlob, None, "versionid=x", "x", None),
        // An empty id is none: it is the current blob that is deleted.
        (Operation::DeleteBlob, None, "versionid=", "x", mismatch),
        (Operation::DeleteBlob, None, "versionid=", "d", None),
        (Operation::DeleteBlob, None, "versionid=x&deletetype=permanent", "x", mismatch),
        (Operation::DeleteBlob, None, "versionid=x&deletetype=permanent", "y", None),
    ] {
        let ask = Ask::new(operation).query(format!("{}&{parameter}", container_sas(&[("sp", sp)])));
        let ask = header.into_iter().fold(ask, |ask, (name, value)| ask.header(name, value));
        assert_eq!(world.code(&ask), expected, "{operation:?} {parameter} {sp}");
    }
}

#[test]
fn headers_that_protect_a_blob_need_the_permission_to_protect_it() {
    use ErrorCode::AuthorizationPermissionMismatch as Mismatch;
    let until = ("x-ms-immutability-policy-until-date", "Fri, 31 Dec 9999 00:00:00 GMT");
    let mode = ("x-ms-immutability-policy-mode", "Locked");
    let (hold, tags) = (("x-ms-legal-hold", "true"), ("x-ms-tags", "a=b"));
    let writes = [
        Operation::PutBlob,
        Operation::PutBlobFromUrl,
        Operation::PutBlockList,
        Operation::CopyBlob,
        Operation::CopyBlobFromUrl,
    ];
    for operation in writes {
        for (letters, headers, expected) in [
            ("cw", &[][..], None),
            ("cw", &[until], Some(Mismatch)),
            ("cw", &[mode], Some(Mismatch)),
            ("cw", &[hold], Some(Mismatch)),
            ("cwi", &[until, mode, hold], None),
            ("i", &[hold], Some(Mismatch)),
            ("cwt", &[hold, tags], Some(Mismatch)),
            ("cwi", &[hold, tags], Some(Mismatch)),
            ("cwti", &[hold, tags], None),
        ] {
            let ask = |query: String| {
                let ask = Ask::new(operation).query(query);
                headers.iter().fold(ask, |ask, (name, value)| ask.header(name, value))
            };
            let world = World::new();
            for query in [account_sas(&[("sp", letters)]), container_sas(&[("sp", letters)])] {
                assert_eq!(world.code(&ask(query)), expected, "{operation:?} {letters} {headers:?}");
            }
        }
    }
}

#[test]
fn roles_that_may_not_protect_or_publish_may_not_do_it_by_headers() {
    use lazuli_protocol::account::Role;
    for (operation, name, value) in [
        (Operation::PutBlob, "x-ms-legal-hold", "true"),
        (Operation::PutBlockList, "x-ms-immutability-policy-until-date", "Fri, 31 Dec 9999 00:00:00 GMT"),
        (Operation::CreateContainer, "x-ms-blob-public-access", "container"),
    ] {
        let ask = Ask::new(operation).header("authorization", &common::bearer());
        let contributor = World::new().with_role(Role::Contributor);
        assert_eq!(contributor.code(&ask), None, "{operation:?}");
        let ask = ask.header(name, value);
        let denied = Some(ErrorCode::AuthorizationPermissionMismatch);
        assert_eq!(contributor.code(&ask), denied, "{operation:?}");
        assert_eq!(World::new().with_role(Role::Owner).code(&ask), None, "{operation:?}");
    }
}

#[test]
fn no_sas_makes_a_container_public() {
    let world = World::new();
    let ask = Ask::new(Operation::CreateContainer).at("c", "").query(account_sas(&[]));
    assert_eq!(world.code(&ask), None);
    let public = ask.header("x-ms-blob-public-access", "container");
    assert_eq!(world.code(&public), Some(ErrorCode::AuthorizationFailure));
}
