//! The operations that the letters of shared access signatures allow.

#![allow(clippy::unwrap_used)]

mod common;

use common::{SV, TestRequest, World, account_sas, container_sas};
use lazuli_protocol::{ErrorCode, Operation};

#[test]
fn each_kind_of_mismatch_has_its_own_code() {
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
        assert_eq!(
            world.code(&TestRequest::new(operation).query(&query)),
            Some(expected),
            "{operation:?} {query}"
        );
        // Before 2015-04-05 the resource was reported as missing.
        let old = TestRequest::new(operation).query(&query).version("2014-02-14");
        assert_eq!(world.code(&old), Some(ResourceNotFound), "{operation:?} {query}");
    }
    let insecure = TestRequest {
        secure: false,
        ..TestRequest::new(Operation::GetBlob).query(account_sas(&[("spr", "https")]))
    };
    assert_eq!(world.code(&insecure), Some(AuthorizationProtocolMismatch));
    let refusal = world
        .authenticate(&TestRequest::new(Operation::GetBlob).query(account_sas(&[("ss", "q")])))
        .unwrap_err();
    assert_eq!(refusal.details(), [("ExtendedErrorDetail", "ss is 'q' and has to include 'b'.".to_owned())]);
}

/// Operations by service, resource type and letters, as in the documentation of account SAS.
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
fn account_permissions_match_the_documentation() {
    let world = World::new();
    for (srt, alternatives, operations) in ACCOUNT_PERMISSIONS {
        for operation in *operations {
            let code = |srt: &str, sp: &str| {
                world.code(&TestRequest::new(*operation).query(account_sas(&[("srt", srt), ("sp", sp)])))
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
fn breaking_a_lease_needs_write_or_since_2017_delete() {
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
        let header = |operation| TestRequest::new(operation).header("x-ms-lease-action", action);
        let account = account_sas(&[("sv", sv), ("sp", sp)]);
        for operation in [Operation::LeaseBlob, Operation::LeaseContainer] {
            let request = header(operation).query(&account);
            assert_eq!(world.code(&request), expected, "{operation:?} {sv} {sp} {action}");
        }
        let request = header(Operation::LeaseBlob).query(container_sas(&[("sv", sv), ("sp", sp)]));
        assert_eq!(world.code(&request), expected, "{sv} {sp} {action}");
    }
}

#[test]
fn tags_versions_and_permanent_deletes_need_their_own_letters() {
    let world = World::new();
    let mismatch = Some(ErrorCode::AuthorizationPermissionMismatch);
    for (operation, header, parameter, sp, expected) in [
        (Operation::PutBlob, Some(("x-ms-tags", "a=b")), "", "w", mismatch),
        (Operation::PutBlob, Some(("x-ms-tags", "a=b")), "", "wt", None),
        (Operation::PutBlobFromUrl, Some(("x-ms-copy-source-tag-option", "COPY")), "", "w", mismatch),
        (Operation::PutBlobFromUrl, Some(("x-ms-copy-source-tag-option", " copy ")), "", "w", mismatch),
        (Operation::PutBlobFromUrl, Some(("x-ms-copy-source-tag-option", "COPY")), "", "wt", None),
        (Operation::PutBlobFromUrl, Some(("x-ms-copy-source-tag-option", "REPLACE")), "", "w", None),
        (Operation::CopyBlobFromUrl, Some(("x-ms-copy-source-tag-option", "COPY")), "", "c", mismatch),
        (Operation::CopyBlobFromUrl, Some(("x-ms-copy-source-tag-option", "COPY")), "", "ct", None),
        // Copy Blob may continue after its request, so it ignores this header.
        (Operation::CopyBlob, Some(("x-ms-copy-source-tag-option", "COPY")), "", "c", None),
        (Operation::DeleteBlob, None, "versionid=x", "d", mismatch),
        (Operation::DeleteBlob, None, "versionid=x", "x", None),
        // An empty id counts as absent: the current blob is deleted.
        (Operation::DeleteBlob, None, "versionid=", "x", mismatch),
        (Operation::DeleteBlob, None, "versionid=", "d", None),
        (Operation::DeleteBlob, None, "versionid=x&deletetype=permanent", "x", mismatch),
        (Operation::DeleteBlob, None, "versionid=x&deletetype=permanent", "y", None),
    ] {
        let request =
            TestRequest::new(operation).query(format!("{}&{parameter}", container_sas(&[("sp", sp)])));
        let request = header.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        assert_eq!(world.code(&request), expected, "{operation:?} {parameter} {sp}");
    }
}

#[test]
fn headers_that_protect_a_blob_require_the_protect_permission() {
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
            let request = |query: String| {
                let request = TestRequest::new(operation).query(query);
                headers.iter().fold(request, |request, (name, value)| request.header(name, value))
            };
            let world = World::new();
            for query in [account_sas(&[("sp", letters)]), container_sas(&[("sp", letters)])] {
                assert_eq!(world.code(&request(query)), expected, "{operation:?} {letters} {headers:?}");
            }
        }
    }
}

#[test]
fn roles_without_the_right_to_protect_or_publish_cannot_do_so_through_headers() {
    use lazuli_protocol::account::Role;
    for (operation, name, value) in [
        (Operation::PutBlob, "x-ms-legal-hold", "true"),
        (Operation::PutBlockList, "x-ms-immutability-policy-until-date", "Fri, 31 Dec 9999 00:00:00 GMT"),
        (Operation::CreateContainer, "x-ms-blob-public-access", "container"),
        (Operation::CopyBlobFromUrl, "x-ms-copy-source-tag-option", "COPY"),
    ] {
        let request = TestRequest::new(operation).header("authorization", &common::bearer());
        let contributor = World::new().with_role(Role::Contributor);
        assert_eq!(contributor.code(&request), None, "{operation:?}");
        let request = request.header(name, value);
        let denied = Some(ErrorCode::AuthorizationPermissionMismatch);
        assert_eq!(contributor.code(&request), denied, "{operation:?}");
        assert_eq!(World::new().with_role(Role::Owner).code(&request), None, "{operation:?}");
    }
}

#[test]
fn no_sas_can_make_a_container_public() {
    let world = World::new();
    let request = TestRequest::new(Operation::CreateContainer).at("c", "").query(account_sas(&[]));
    assert_eq!(world.code(&request), None);
    let public = request.header("x-ms-blob-public-access", "container");
    assert_eq!(world.code(&public), Some(ErrorCode::AuthorizationFailure));
}
