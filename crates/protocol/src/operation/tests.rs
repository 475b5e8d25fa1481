use std::collections::HashSet;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::Operation::{self, *};
use super::{AddressKind, BodyClass, Permission, Scope, route};
use crate::account::Role;
use crate::address::Address;
use crate::error::{ErrorCode, Refusal};
use crate::kind::ServiceKind::{self, Blob, File, Queue, Table};
use crate::query::Query;

/// Routes a request of the form `METHOD /container/object?query`, followed by headers as `name: value`.
fn routed(service: ServiceKind, request: &str) -> Result<Operation, Refusal> {
    let (method, address, query, headers) = parsed(service, request);
    route(service, &method, &address.container, &address.object, &query, &headers)
}

fn parsed(service: ServiceKind, request: &str) -> (Method, Address, Query, HeaderMap) {
    let mut parts = request.split(" + ");
    let (method, target) = parts.next().unwrap().split_once(" /").unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query = Query::parse(query).unwrap();
    let address = Address::parse(service, "127.0.0.1", &format!("/account/{path}"), &query, &[]).unwrap();
    let headers = parts
        .map(|header| header.split_once(": ").unwrap())
        .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap()))
        .fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        });
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    (method, address, query, headers)
}

#[rustfmt::skip]
const EXAMPLES: &[(ServiceKind, &str, Operation)] = &[
    (Blob, "OPTIONS /c/b?comp=anything", PreflightBlobRequest),
    (Blob, "OPTIONS /", PreflightBlobRequest),
    (Blob, "GET /?restype=account&comp=properties", GetAccountInformation),
    (Blob, "HEAD /c?restype=account&comp=properties", GetAccountInformation),
    (Blob, "GET /c/b?restype=account&comp=properties", GetAccountInformation),
    (Blob, "GET /?comp=list&maxresults=5", ListContainers),
    (Blob, "GET /?restype=service&comp=properties", GetBlobServiceProperties),
    (Blob, "PUT /?restype=service&comp=properties", SetBlobServiceProperties),
    (Blob, "GET /?restype=service&comp=stats", GetBlobServiceStats),
    (Blob, "POST /?restype=service&comp=userdelegationkey", GetUserDelegationKey),
    (Table, "POST /t/Tables", InsertEntity),
    (Table, "POST /t/$batch", InsertEntity),
    (Table, "DELETE /t/Tables('t')", DeleteEntity),
    (Queue, "POST /?restype=service&comp=userdelegationkey", GetQueueUserDelegationKey),
    (File, "POST /?restype=service&comp=userdelegationkey", GetFileUserDelegationKey),
    (Blob, "POST /?comp=batch", BlobBatch),
    (Blob, "POST /?restype=container&comp=batch", BlobBatch),
    (Blob, "GET /?comp=blobs&where=a%3D'b'", FindBlobsByTags),
    (Blob, "PUT /c?restype=container", CreateContainer),
    (Blob, "GET /c?restype=container", GetContainerProperties),
    (Blob, "HEAD /c?restype=container", GetContainerProperties),
    (Blob, "HEAD /$root?restype=container", GetContainerProperties),
    (Blob, "HEAD /c?restype=container&comp=metadata", GetContainerMetadata),
    (Blob, "PUT /c?comp=metadata&restype=container", SetContainerMetadata),
    (Blob, "GET /c?restype=container&comp=acl", GetContainerAcl),
    (Blob, "HEAD /c?restype=container&comp=acl", GetContainerAcl),
    (Blob, "PUT /c?restype=container&comp=acl", SetContainerAcl),
    (Blob, "DELETE /c?restype=container", DeleteContainer),
    (Blob, "PUT /c?restype=container&comp=lease", LeaseContainer),
    (Blob, "GET /c?restype=container&comp=list&prefix=p", ListBlobs),
    (Blob, "PUT /c?restype=container&comp=undelete", RestoreContainer),
    (Blob, "PUT /c?restype=container&comp=rename", RenameContainer),
    (Blob, "POST /c?restype=container&comp=session", CreateSession),
    (Blob, "POST /c?restype=container&comp=batch", ContainerBatch),
    (Blob, "GET /c?restype=container&comp=blobs&where=x", FindBlobsByTagsInContainer),
    (Blob, "GET /c/b", GetBlob),
    (Blob, "GET /c/b/with/slashes?snapshot=2020-01-01T00:00:00.0000000Z", GetBlob),
    (Blob, "GET /b", GetBlob),
    (Blob, "GET /$root/b", GetBlob),
    (Blob, "HEAD /c/b", GetBlobProperties),
    (Blob, "GET /c/b?comp=metadata", GetBlobMetadata),
    (Blob, "HEAD /c/b?comp=metadata", GetBlobMetadata),
    (Blob, "PUT /c/b?comp=properties", SetBlobProperties),
    (Blob, "PUT /c/b?comp=metadata", SetBlobMetadata),
    (Blob, "PUT /b?comp=metadata", SetBlobMetadata),
    (Blob, "DELETE /c/b?versionid=x", DeleteBlob),
    (Blob, "PUT /c/b?comp=undelete", UndeleteBlob),
    (Blob, "PUT /c/b?comp=lease + x-ms-lease-action: acquire", LeaseBlob),
    (Blob, "PUT /c/b?comp=snapshot", SnapshotBlob),
    (Blob, "PUT /c/b?comp=copy&copyid=1 + x-ms-copy-action: abort", AbortCopyBlob),
    (Blob, "PUT /c/b?comp=tier", SetBlobTier),
    (Blob, "GET /c/b?comp=tags", GetBlobTags),
    (Blob, "PUT /c/b?comp=tags", SetBlobTags),
    (Blob, "POST /c/b?comp=query", QueryBlobContents),
    (Blob, "PUT /c/b?comp=expiry", SetBlobExpiry),
    (Blob, "PUT /c/b?comp=immutabilityPolicies", SetBlobImmutabilityPolicy),
    (Blob, "DELETE /c/b?comp=immutabilitypolicies", DeleteBlobImmutabilityPolicy),
    (Blob, "PUT /c/b?comp=legalhold", SetBlobLegalHold),
    (Blob, "PUT /c/b + x-ms-blob-type: BlockBlob + x-ms-copy-source: http://s", PutBlobFromUrl),
    (Blob, "PUT /c/b + x-ms-requires-sync: true + x-ms-copy-source: http://s", CopyBlobFromUrl),
    (Blob, "PUT /c/b + x-ms-copy-source: http://s", CopyBlob),
    (Blob, "PUT /c/b + x-ms-requires-sync: false + x-ms-copy-source: http://s", CopyBlob),
    (Blob, "PUT /c/b + x-ms-blob-type: BlockBlob", PutBlob),
    (Blob, "PUT /c/b + x-ms-blob-type: PageBlob", PutBlob),
    (Blob, "PUT /c/b", PutBlob),
    (Blob, "PUT /c/b?comp=block&blockid=QQ== + x-ms-copy-source: http://s", PutBlockFromUrl),
    (Blob, "PUT /c/b?comp=block&blockid=QQ==", PutBlock),
    (Blob, "PUT /c/b?comp=blocklist", PutBlockList),
    (Blob, "GET /c/b?comp=blocklist&blocklisttype=all", GetBlockList),
    (Blob, "PUT /c/b?comp=page + x-ms-copy-source: http://s", PutPageFromUrl),
    (Blob, "PUT /c/b?comp=page + x-ms-page-write: clear", PutPage),
    (Blob, "GET /c/b?comp=pagelist&prevsnapshot=x", GetPageRanges),
    (Blob, "PUT /c/b?comp=incrementalcopy + x-ms-copy-source: http://s", IncrementalCopyBlob),
    (Blob, "PUT /c/b?comp=appendblock + x-ms-copy-source: http://s", AppendBlockFromUrl),
    (Blob, "PUT /c/b?comp=appendblock", AppendBlock),
    (Blob, "PUT /c/b?comp=seal", SealAppendBlob),

    (Queue, "OPTIONS /q/messages", PreflightQueueRequest),
    (Queue, "GET /?comp=list", ListQueues),
    (Queue, "GET /?restype=service&comp=properties", GetQueueServiceProperties),
    (Queue, "PUT /?restype=service&comp=properties", SetQueueServiceProperties),
    (Queue, "GET /?restype=service&comp=stats", GetQueueServiceStats),
    (Queue, "PUT /q", CreateQueue),
    (Queue, "DELETE /q", DeleteQueue),
    (Queue, "GET /q?comp=metadata", GetQueueMetadata),
    (Queue, "HEAD /q?comp=metadata", GetQueueMetadata),
    (Queue, "PUT /q?comp=metadata", SetQueueMetadata),
    (Queue, "GET /q?comp=acl", GetQueueAcl),
    (Queue, "PUT /q?comp=acl", SetQueueAcl),
    (Queue, "POST /q/messages?messagettl=5", PutMessage),
    (Queue, "GET /q/messages?peekonly=true", PeekMessages),
    (Queue, "GET /q/messages?peekonly=false", GetMessages),
    (Queue, "GET /q/messages", GetMessages),
    (Queue, "GET /messages/messages", GetMessages),
    (Queue, "DELETE /q/messages", ClearMessages),
    (Queue, "PUT /q/messages/0bc1?popreceipt=x&visibilitytimeout=1", UpdateMessage),
    (Queue, "DELETE /q/messages/0bc1?popreceipt=x", DeleteMessage),

    (Table, "OPTIONS /Tables", PreflightTableRequest),
    (Table, "GET /?restype=service&comp=properties", GetTableServiceProperties),
    (Table, "PUT /?restype=service&comp=properties", SetTableServiceProperties),
    (Table, "GET /?restype=service&comp=stats", GetTableServiceStats),
    (Table, "GET /Tables", QueryTables),
    (Table, "GET /Tables()", QueryTables),
    (Table, "GET /Tables('t')", QueryTables),
    (Table, "POST /Tables", CreateTable),
    (Table, "POST /Tables()", CreateTable),
    (Table, "DELETE /Tables('t')", DeleteTable),
    (Table, "GET /t?comp=acl", GetTableAcl),
    (Table, "HEAD /t?comp=acl", GetTableAcl),
    (Table, "PUT /t?comp=acl", SetTableAcl),
    (Table, "GET /t()?$filter=x", QueryEntities),
    (Table, "GET /t", QueryEntities),
    (Table, "GET /t(PartitionKey='p',RowKey='r')", QueryEntities),
    (Table, "GET /t(PartitionKey='p/q',RowKey='r/s')", QueryEntities),
    (Table, "POST /t", InsertEntity),
    (Table, "POST /t()", InsertEntity),
    (Table, "PUT /t(PartitionKey='p',RowKey='r') + If-Match: *", UpdateEntity),
    (Table, "PUT /t(PartitionKey='p',RowKey='r')", InsertOrReplaceEntity),
    (Table, "POST /t(PartitionKey='p',RowKey='r') + X-HTTP-Method: PUT", InsertOrReplaceEntity),
    (Table, "MERGE /t(PartitionKey='p',RowKey='r') + If-Match: *", MergeEntity),
    (Table, "PATCH /t(PartitionKey='p', RowKey='r') + If-Match: W/\"x\"", MergeEntity),
    (Table, "POST /t(PartitionKey='p',RowKey='r') + X-HTTP-Method: MERGE + If-Match: *", MergeEntity),
    (Table, "MERGE /t(PartitionKey='p',RowKey='r')", InsertOrMergeEntity),
    // A header that repeats the method.
    (Table, "MERGE /t(PartitionKey='p',RowKey='r') + X-HTTP-Method: MERGE", InsertOrMergeEntity),
    (Table, "MERGE /t(PartitionKey='p',RowKey='r') + X-HTTP-Method: MERGE + If-Match: *", MergeEntity),
    (Table, "PATCH /t(PartitionKey='p',RowKey='r') + X-HTTP-Method: PATCH", InsertOrMergeEntity),
    (Table, "PUT /t(PartitionKey='p',RowKey='r') + X-HTTP-Method: PUT", InsertOrReplaceEntity),
    (Table, "DELETE /t(PartitionKey='p',RowKey='r') + X-HTTP-Method: DELETE", DeleteEntity),
    (Table, "GET /t + X-HTTP-Method: GET", QueryEntities),
    (Table, "POST /t + X-HTTP-Method: POST", InsertEntity),
    (Table, "DELETE /t(PartitionKey='',RowKey='')", DeleteEntity),
    (Table, "POST /t(PartitionKey='p',RowKey='r') + X-HTTP-Method: DELETE", DeleteEntity),
    (Table, "POST /$batch", EntityGroupTransaction),

    (File, "OPTIONS /s/f", PreflightFileRequest),
    (File, "GET /?comp=list", ListShares),
    (File, "GET /?restype=service&comp=properties", GetFileServiceProperties),
    (File, "PUT /?restype=service&comp=properties", SetFileServiceProperties),
    (File, "PUT /s?restype=share", CreateShare),
    (File, "GET /s?restype=share", GetShareProperties),
    (File, "HEAD /s?restype=share&sharesnapshot=x", GetShareProperties),
    (File, "HEAD /s?restype=share&comp=metadata", GetShareMetadata),
    (File, "PUT /s?restype=share&comp=properties", SetShareProperties),
    (File, "PUT /s?restype=share&comp=metadata", SetShareMetadata),
    (File, "GET /s?restype=share&comp=acl", GetShareAcl),
    (File, "PUT /s?restype=share&comp=acl", SetShareAcl),
    (File, "GET /s?restype=share&comp=stats", GetShareStats),
    (File, "PUT /s?restype=share&comp=snapshot", SnapshotShare),
    (File, "DELETE /s?restype=share", DeleteShare),
    (File, "PUT /s?restype=share&comp=undelete", RestoreShare),
    (File, "PUT /s?restype=share&comp=lease", LeaseShare),
    (File, "PUT /s?restype=share&comp=filepermission", CreatePermission),
    (File, "GET /s?restype=share&comp=filepermission", GetPermission),
    (File, "PUT /s/p/d?restype=directory", CreateDirectory),
    (File, "GET /s/p/d?restype=directory", GetDirectoryProperties),
    (File, "HEAD /s?restype=directory", GetDirectoryProperties),
    (File, "HEAD /s/d?restype=directory&comp=metadata", GetDirectoryMetadata),
    (File, "PUT /s/d?restype=directory&comp=properties", SetDirectoryProperties),
    (File, "PUT /s/d?restype=directory&comp=metadata", SetDirectoryMetadata),
    (File, "DELETE /s/d?restype=directory", DeleteDirectory),
    (File, "GET /s?restype=directory&comp=list", ListDirectoriesAndFiles),
    (File, "GET /s/d?restype=directory&comp=list", ListDirectoriesAndFiles),
    (File, "PUT /s/d?restype=directory&comp=rename", RenameDirectory),
    (File, "GET /s?comp=listhandles", ListHandles),
    (File, "GET /s/d?comp=listhandles", ListHandles),
    (File, "PUT /s/d?comp=forceclosehandles", ForceCloseHandles),
    (File, "GET /s/f", GetFile),
    (File, "HEAD /s/f", GetFileProperties),
    (File, "GET /s/f?comp=metadata", GetFileMetadata),
    (File, "PUT /s/f?comp=properties", SetFileProperties),
    (File, "PUT /s/f?comp=metadata", SetFileMetadata),
    (File, "PUT /s/f?comp=range + x-ms-copy-source: http://s", PutRangeFromUrl),
    (File, "PUT /s/f?comp=range + x-ms-write: clear", PutRange),
    (File, "GET /s/f?comp=rangelist", ListRanges),
    (File, "PUT /s/f + x-ms-copy-source: http://s", CopyFile),
    (File, "PUT /s/f + x-ms-type: file", CreateFile),
    (File, "PUT /s/f?comp=copy&copyid=1 + x-ms-copy-action: abort", AbortCopyFile),
    (File, "DELETE /s/f", DeleteFile),
    (File, "PUT /s/f?comp=rename", RenameFile),
    (File, "PUT /s/f?comp=lease", LeaseFile),
];

#[test]
fn every_example_request_reaches_its_operation() {
    for (service, request, operation) in EXAMPLES {
        assert_eq!(routed(*service, request), Ok(*operation), "{service:?} {request}");
    }
}

#[test]
fn every_operation_has_an_example() {
    let reached: HashSet<_> = EXAMPLES.iter().map(|(_, _, operation)| *operation).collect();
    let of_website = |o: &Operation| o.row().addresses == [AddressKind::Website];
    let missing: Vec<_> = Operation::ALL.iter().filter(|o| !reached.contains(o) && !of_website(o)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn websites_support_only_get_and_head() {
    for (method, operation) in [
        (Method::GET, Ok(Operation::GetWebContent)),
        (Method::HEAD, Ok(Operation::GetWebContentProperties)),
        (Method::PUT, Err(ErrorCode::UnsupportedHttpVerb)),
        (Method::OPTIONS, Err(ErrorCode::UnsupportedHttpVerb)),
    ] {
        assert_eq!(super::route_website(&method).map_err(|refusal| refusal.code()), operation, "{method}");
    }
}

#[test]
fn rows_are_at_the_index_of_their_operation_and_match_distinct_requests() {
    let mut seen = HashSet::new();
    let mut names = HashSet::new();
    for operation in Operation::ALL {
        let row = operation.row();
        assert_eq!(row.operation, *operation);
        assert!(names.insert(row.name), "{} twice", row.name);
        for address in row.addresses {
            for method in row.methods {
                let key = format!(
                    "{:?} {address:?} {method} {} {} {:?}",
                    row.service,
                    row.restype,
                    row.comp.to_lowercase(),
                    row.discriminators
                );
                assert!(seen.insert(key.clone()), "{key}");
            }
        }
    }
}

#[test]
fn unsupported_combinations_are_refused_as_documented() {
    use ErrorCode::*;
    for (service, request, code) in [
        (Blob, "GET /", InvalidQueryParameterValue),
        (Blob, "PUT /?restype=container", InvalidQueryParameterValue),
        (Blob, "GET /?restype=container&comp=batch", UnsupportedHttpVerb),
        (Blob, "POST /?restype=share&comp=batch", InvalidQueryParameterValue),
        (Blob, "GET /c?comp=list", InvalidQueryParameterValue),
        (Blob, "GET /c/b?comp=nonsense", InvalidQueryParameterValue),
        (Blob, "GET /c/b?restype=container", InvalidQueryParameterValue),
        (Blob, "GET /c?restype=share", InvalidQueryParameterValue),
        (Blob, "GET /c?restype=container&comp=nonsense", InvalidQueryParameterValue),
        (Blob, "POST /c/b", UnsupportedHttpVerb),
        (Blob, "PATCH /c?restype=container", UnsupportedHttpVerb),
        (Blob, "DELETE /c/b?comp=metadata", UnsupportedHttpVerb),
        (Blob, "get /c/b", UnsupportedHttpVerb),
        (Blob, "POST /c/b?comp=lease + X-HTTP-Method: PUT", UnsupportedHttpVerb),
        (Queue, "GET /q", UnsupportedHttpVerb),
        (Queue, "GET /q?comp=list", InvalidQueryParameterValue),
        (Queue, "PUT /q/messages", UnsupportedHttpVerb),
        (Queue, "GET /q/letters", InvalidUri),
        (Queue, "GET /q/messages/1/2", InvalidUri),
        (Table, "PUT /Tables", MethodNotAllowed),
        (Table, "DELETE /t", MethodNotAllowed),
        (Table, "GET /$batch", MethodNotAllowed),
        (Table, "GET /t?comp=list", InvalidQueryParameterValue),
        (Table, "GET /t(PartitionKey='p'", InvalidUri),
        (Table, "GET /t/(PartitionKey='p'", InvalidUri),
        (Table, "PUT /t/u", MethodNotAllowed),
        (Table, "POST /$batch/t", InvalidUri),
        (Table, "GET /Tables/t('u')", InvalidUri),
        (Table, "POST /t + X-HTTP-Method: MERGE + X-HTTP-Method: PUT", XMethodIncorrectCount),
        (Table, "POST /t + X-HTTP-Method: GET", XMethodIncorrectValue),
        (Table, "PUT /t(PartitionKey='p',RowKey='r') + X-HTTP-Method: MERGE", XMethodNotUsingPost),
        (Table, "MERGE /t(PartitionKey='p',RowKey='r') + X-HTTP-Method: DELETE", XMethodNotUsingPost),
        (Table, "MERGE /t + X-HTTP-Method: MERGE + X-HTTP-Method: MERGE", XMethodIncorrectCount),
        (File, "GET /s", InvalidQueryParameterValue),
        (File, "GET /s/f?restype=share", InvalidQueryParameterValue),
        (File, "POST /s/f", UnsupportedHttpVerb),
    ] {
        let refusal = routed(service, request).unwrap_err();
        assert_eq!(refusal.code(), code, "{service:?} {request}");
    }
}

#[test]
fn permissions_are_alternatives_of_required_letters() {
    for (permission, letters, granted) in [
        ("r", "r", true),
        ("r", "w", false),
        ("c|w", "c", true),
        ("c|w", "rw", true),
        ("c|w", "rd", false),
        ("a+u", "a", false),
        ("a+u", "rau", true),
        ("c+t|w+t", "ct", true),
        ("c+t|w+t", "cw", false),
        ("*", "", true),
        ("", "racwdl", false),
    ] {
        assert_eq!(Permission(permission).granted_by(letters), granted, "{permission} by {letters}");
    }
}

#[test]
fn exceptions_change_the_permission_of_an_operation() {
    for (request, account, service) in [
        ("PUT /c/b?comp=lease + x-ms-lease-action: acquire", "w", "w"),
        ("PUT /c/b?comp=lease + x-ms-lease-action: break", "w|d", "w|d"),
        ("PUT /c?restype=container&comp=lease + x-ms-lease-action: break", "w|d", ""),
        ("PUT /c?restype=container&comp=rename", "c+d|w+d", ""),
        ("DELETE /c/b", "d", "d"),
        ("DELETE /c/b?versionid=", "d", "d"),
        ("DELETE /c/b?versionid=1", "x", "x"),
        ("DELETE /c/b?versionid=1&deletetype=permanent", "y", "y"),
        ("PUT /c/b + x-ms-tags: a=b", "c+t|w+t", "c+t|w+t"),
        ("PUT /c/b", "c|w", "c|w"),
    ] {
        let operation = routed(Blob, request).unwrap();
        let (_, _, query, headers) = parsed(Blob, request);
        assert_eq!(operation.account_permission(&query, &headers), Permission(account), "{request}");
        assert_eq!(operation.service_permission(&query, &headers), Permission(service), "{request}");
    }
}

#[test]
fn the_columns_are_consistent() {
    for row in Operation::ALL.iter().map(|o| o.row()) {
        let name = row.name;
        // A reader changes nothing, and changing access control requires an owner.
        if row.role == Role::Reader && !row.read {
            let is_batch = name.starts_with("Blob Batch") || name == "Entity Group Transaction";
            assert!(is_batch, "{name}: its parts are authorized one by one");
        }
        if name.ends_with("ACL") {
            assert_eq!(row.role, Role::Owner, "{name}");
            assert_eq!(row.account_sas, Permission::NEVER, "{name}");
        }
        // Only an account SAS covers the service itself.
        if row.scope == Scope::Service {
            assert_eq!(row.service_sas, Permission::NEVER, "{name}");
        }
        if row.anonymous != super::Anonymous::Never {
            assert!(row.read, "{name}");
        }
        if row.methods == ["GET"] || row.methods == ["GET", "HEAD"] {
            assert_eq!(row.body, BodyClass::Nothing, "{name}");
        }
    }
}
