//! The table of operations. Every cell comes from the REST reference.
//!
//! Columns: variant, documented name, scope, addresses, methods, `restype`, `comp`, discriminators, account
//! SAS, service SAS, anonymous access, role, body, effect. Rows that differ only in their discriminators are
//! tried in order, the one without discriminators last.

use super::{AddressKind, Anonymous, BodyClass, Discriminator, Permission, Row, Scope};
use crate::account::Role;
use crate::kind::ServiceKind;

use AddressKind::{
    Container, Entity, Message, Messages, NamedTable, Object, Service, Table, TableBatch, Tables, Website,
};
use Anonymous::{Always, Never, PublicBlob, PublicContainer};
use BodyClass::{Large, Medium, Nothing, Optional, Small, Stream};
use Discriminator::{Header, HeaderIs, Query, QueryIs};

const READER: Role = Role::Reader;
const CONTRIBUTOR: Role = Role::Contributor;
const OWNER: Role = Role::Owner;
const READ: bool = true;
const WRITE: bool = false;

const GET: &[&str] = &["GET"];
const HEAD: &[&str] = &["HEAD"];
const GET_HEAD: &[&str] = &["GET", "HEAD"];
const PUT: &[&str] = &["PUT"];
const POST: &[&str] = &["POST"];
const DELETE: &[&str] = &["DELETE"];
const MERGE: &[&str] = &["MERGE", "PATCH"];
const OPTIONS: &[&str] = &["OPTIONS"];

const COPY_SOURCE: Discriminator = Header("x-ms-copy-source");
const BLOCK_BLOB: Discriminator = HeaderIs("x-ms-blob-type", "BlockBlob");
const REQUIRES_SYNC: Discriminator = HeaderIs("x-ms-requires-sync", "true");
const PEEK_ONLY: Discriminator = QueryIs("peekonly", "true");
const IF_MATCH: Discriminator = Header("if-match");
const LEASE_BREAK: Discriminator = HeaderIs("x-ms-lease-action", "break");
const PERMANENT: Discriminator = QueryIs("deletetype", "permanent");
const VERSION_ID: Discriminator = Query("versionid");
const TAGS: Discriminator = Header("x-ms-tags");
const COPIED_TAGS: Discriminator = HeaderIs("x-ms-copy-source-tag-option", "COPY");
const POLICY_UNTIL: Discriminator = Header("x-ms-immutability-policy-until-date");
const POLICY_MODE: Discriminator = Header("x-ms-immutability-policy-mode");
const LEGAL_HOLD: Discriminator = Header("x-ms-legal-hold");
const PUBLIC_ACCESS: Discriminator = Header("x-ms-blob-public-access");

macro_rules! operations {
    ($($service:ident {$(
        $variant:ident, $name:literal, $scope:ident, [$($place:ident),+], $methods:ident, $restype:literal, $comp:literal,
        [$($when:ident),*], $account:literal, $sas:literal, $anonymous:ident, $role:ident, $body:ident, $effect:ident;
    )+})+) => {
        /// A REST operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Operation {
            $($(#[doc = $name] $variant,)+)+
        }

        impl Operation {
            /// All operations, in the order of the table.
            pub const ALL: &[Self] = &[$($(Self::$variant,)+)+];

            /// Returns the operation's row of the table.
            pub fn row(self) -> &'static Row {
                &ROWS[self as usize]
            }
        }

        /// One row for each operation, at the index of its variant.
        pub(super) static ROWS: [Row; Operation::ALL.len()] = [$($(
            Row {
                operation: Operation::$variant,
                name: $name,
                service: ServiceKind::$service,
                scope: Scope::$scope,
                addresses: &[$($place),+],
                methods: $methods,
                restype: $restype,
                comp: $comp,
                discriminators: &[$($when),*],
                account_sas: Permission($account),
                service_sas: Permission($sas),
                anonymous: $anonymous,
                role: $role,
                body: $body,
                read: $effect,
            },
        )+)+];
    };
}

operations! {
    Blob {
        PreflightBlobRequest, "Preflight Blob Request", Any, [Service, Container, Object], OPTIONS, "", "", [], "*", "*", Always, READER, Nothing, READ;
        GetAccountInformation, "Get Account Information", Any, [Service, Container, Object], GET_HEAD, "account", "properties", [], "*", "*", Never, READER, Nothing, READ;

        GetWebContent, "Get Web Content", Object, [Website], GET, "", "", [], "*", "*", Always, READER, Nothing, READ;
        GetWebContentProperties, "Get Web Content Properties", Object, [Website], HEAD, "", "", [], "*", "*", Always, READER, Nothing, READ;

        ListContainers, "List Containers", Service, [Service], GET, "", "list", [], "l", "", Never, READER, Nothing, READ;
        GetBlobServiceProperties, "Get Blob Service Properties", Service, [Service], GET, "service", "properties", [], "r", "", Never, READER, Nothing, READ;
        SetBlobServiceProperties, "Set Blob Service Properties", Service, [Service], PUT, "service", "properties", [], "w", "", Never, CONTRIBUTOR, Small, WRITE;
        GetBlobServiceStats, "Get Blob Service Stats", Service, [Service], GET, "service", "stats", [], "r", "", Never, READER, Nothing, READ;
        GetUserDelegationKey, "Get User Delegation Key", Service, [Service], POST, "service", "userdelegationkey", [], "", "", Never, READER, Small, READ;
        BlobBatch, "Blob Batch", Service, [Service], POST, "", "batch", [], "*", "", Never, READER, Medium, WRITE;
        FindBlobsByTags, "Find Blobs by Tags", Object, [Service], GET, "", "blobs", [], "f", "", Never, OWNER, Nothing, READ;

        CreateContainer, "Create Container", Container, [Container], PUT, "container", "", [], "c|w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        GetContainerProperties, "Get Container Properties", Container, [Container], GET_HEAD, "container", "", [], "r", "", PublicContainer, READER, Nothing, READ;
        GetContainerMetadata, "Get Container Metadata", Container, [Container], GET_HEAD, "container", "metadata", [], "r", "", PublicContainer, READER, Nothing, READ;
        SetContainerMetadata, "Set Container Metadata", Container, [Container], PUT, "container", "metadata", [], "w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        GetContainerAcl, "Get Container ACL", Container, [Container], GET_HEAD, "container", "acl", [], "", "", Never, OWNER, Nothing, READ;
        SetContainerAcl, "Set Container ACL", Container, [Container], PUT, "container", "acl", [], "", "", Never, OWNER, Small, WRITE;
        DeleteContainer, "Delete Container", Container, [Container], DELETE, "container", "", [], "d", "", Never, CONTRIBUTOR, Nothing, WRITE;
        LeaseContainer, "Lease Container", Container, [Container], PUT, "container", "lease", [], "w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        ListBlobs, "List Blobs", Container, [Container], GET, "container", "list", [], "l", "l", PublicContainer, READER, Nothing, READ;
        RestoreContainer, "Restore Container", Container, [Container], PUT, "container", "undelete", [], "w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        RenameContainer, "Rename Container", Container, [Container], PUT, "container", "rename", [], "c+d|w+d", "", Never, CONTRIBUTOR, Nothing, WRITE;
        ContainerBatch, "Blob Batch (container)", Container, [Container], POST, "container", "batch", [], "*", "*", Never, READER, Medium, WRITE;
        CreateSession, "Create Session", Container, [Container], POST, "container", "session", [], "", "", Never, READER, Small, READ;
        FindBlobsByTagsInContainer, "Find Blobs by Tags in Container", Object, [Container], GET, "container", "blobs", [], "f", "f", Never, OWNER, Nothing, READ;

        GetBlob, "Get Blob", Object, [Object], GET, "", "", [], "r", "r", PublicBlob, READER, Nothing, READ;
        GetBlobProperties, "Get Blob Properties", Object, [Object], HEAD, "", "", [], "r", "r", PublicBlob, READER, Nothing, READ;
        GetBlobMetadata, "Get Blob Metadata", Object, [Object], GET_HEAD, "", "metadata", [], "r", "r", PublicBlob, READER, Nothing, READ;
        SetBlobProperties, "Set Blob Properties", Object, [Object], PUT, "", "properties", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        SetBlobMetadata, "Set Blob Metadata", Object, [Object], PUT, "", "metadata", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        DeleteBlob, "Delete Blob", Object, [Object], DELETE, "", "", [], "d", "d", Never, CONTRIBUTOR, Nothing, WRITE;
        UndeleteBlob, "Undelete Blob", Object, [Object], PUT, "", "undelete", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        LeaseBlob, "Lease Blob", Object, [Object], PUT, "", "lease", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        SnapshotBlob, "Snapshot Blob", Object, [Object], PUT, "", "snapshot", [], "c|w", "c|w", Never, CONTRIBUTOR, Nothing, WRITE;
        AbortCopyBlob, "Abort Copy Blob", Object, [Object], PUT, "", "copy", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        SetBlobTier, "Set Blob Tier", Object, [Object], PUT, "", "tier", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        GetBlobTags, "Get Blob Tags", Object, [Object], GET, "", "tags", [], "t", "t", Never, OWNER, Nothing, READ;
        SetBlobTags, "Set Blob Tags", Object, [Object], PUT, "", "tags", [], "t", "t", Never, OWNER, Small, WRITE;
        QueryBlobContents, "Query Blob Contents", Object, [Object], POST, "", "query", [], "r", "r", Never, READER, Small, READ;
        SetBlobExpiry, "Set Blob Expiry", Object, [Object], PUT, "", "expiry", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        SetBlobImmutabilityPolicy, "Set Blob Immutability Policy", Object, [Object], PUT, "", "immutabilityPolicies", [], "i", "i", Never, OWNER, Nothing, WRITE;
        DeleteBlobImmutabilityPolicy, "Delete Blob Immutability Policy", Object, [Object], DELETE, "", "immutabilityPolicies", [], "i", "i", Never, OWNER, Nothing, WRITE;
        SetBlobLegalHold, "Set Blob Legal Hold", Object, [Object], PUT, "", "legalhold", [], "i", "i", Never, OWNER, Nothing, WRITE;

        PutBlobFromUrl, "Put Blob From URL", Object, [Object], PUT, "", "", [COPY_SOURCE, BLOCK_BLOB], "c|w", "c|w", Never, CONTRIBUTOR, Nothing, WRITE;
        CopyBlobFromUrl, "Copy Blob From URL", Object, [Object], PUT, "", "", [COPY_SOURCE, REQUIRES_SYNC], "c|w", "c|w", Never, CONTRIBUTOR, Nothing, WRITE;
        CopyBlob, "Copy Blob", Object, [Object], PUT, "", "", [COPY_SOURCE], "c|w", "c|w", Never, CONTRIBUTOR, Nothing, WRITE;
        PutBlob, "Put Blob", Object, [Object], PUT, "", "", [], "c|w", "c|w", Never, CONTRIBUTOR, Stream, WRITE;
        PutBlockFromUrl, "Put Block From URL", Object, [Object], PUT, "", "block", [COPY_SOURCE], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        PutBlock, "Put Block", Object, [Object], PUT, "", "block", [], "w", "w", Never, CONTRIBUTOR, Stream, WRITE;
        PutBlockList, "Put Block List", Object, [Object], PUT, "", "blocklist", [], "w", "w", Never, CONTRIBUTOR, Large, WRITE;
        GetBlockList, "Get Block List", Object, [Object], GET, "", "blocklist", [], "r", "r", PublicBlob, READER, Nothing, READ;
        PutPageFromUrl, "Put Page From URL", Object, [Object], PUT, "", "page", [COPY_SOURCE], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        PutPage, "Put Page", Object, [Object], PUT, "", "page", [], "w", "w", Never, CONTRIBUTOR, Medium, WRITE;
        GetPageRanges, "Get Page Ranges", Object, [Object], GET, "", "pagelist", [], "r", "r", PublicBlob, READER, Nothing, READ;
        IncrementalCopyBlob, "Incremental Copy Blob", Object, [Object], PUT, "", "incrementalcopy", [], "c|w", "c|w", Never, CONTRIBUTOR, Nothing, WRITE;
        AppendBlockFromUrl, "Append Block From URL", Object, [Object], PUT, "", "appendblock", [COPY_SOURCE], "a|w", "a|w", Never, CONTRIBUTOR, Nothing, WRITE;
        AppendBlock, "Append Block", Object, [Object], PUT, "", "appendblock", [], "a|w", "a|w", Never, CONTRIBUTOR, Stream, WRITE;
        SealAppendBlob, "Append Blob Seal", Object, [Object], PUT, "", "seal", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
    }
    Queue {
        PreflightQueueRequest, "Preflight Queue Request", Any, [Service, Container, Messages, Message], OPTIONS, "", "", [], "*", "*", Always, READER, Nothing, READ;

        ListQueues, "List Queues", Service, [Service], GET, "", "list", [], "l", "", Never, READER, Nothing, READ;
        GetQueueServiceProperties, "Get Queue Service Properties", Service, [Service], GET, "service", "properties", [], "r", "", Never, READER, Nothing, READ;
        SetQueueServiceProperties, "Set Queue Service Properties", Service, [Service], PUT, "service", "properties", [], "w", "", Never, CONTRIBUTOR, Small, WRITE;
        GetQueueServiceStats, "Get Queue Service Stats", Service, [Service], GET, "service", "stats", [], "r", "", Never, READER, Nothing, READ;
        GetQueueUserDelegationKey, "Get User Delegation Key (queue)", Service, [Service], POST, "service", "userdelegationkey", [], "", "", Never, READER, Small, READ;

        CreateQueue, "Create Queue", Container, [Container], PUT, "", "", [], "c|w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        DeleteQueue, "Delete Queue", Container, [Container], DELETE, "", "", [], "d", "", Never, CONTRIBUTOR, Nothing, WRITE;
        GetQueueMetadata, "Get Queue Metadata", Container, [Container], GET_HEAD, "", "metadata", [], "r", "r", Never, READER, Nothing, READ;
        SetQueueMetadata, "Set Queue Metadata", Container, [Container], PUT, "", "metadata", [], "w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        GetQueueAcl, "Get Queue ACL", Container, [Container], GET_HEAD, "", "acl", [], "", "", Never, OWNER, Nothing, READ;
        SetQueueAcl, "Set Queue ACL", Container, [Container], PUT, "", "acl", [], "", "", Never, OWNER, Small, WRITE;

        PutMessage, "Put Message", Object, [Messages], POST, "", "", [], "a", "a", Never, CONTRIBUTOR, Small, WRITE;
        PeekMessages, "Peek Messages", Object, [Messages], GET, "", "", [PEEK_ONLY], "r", "r", Never, READER, Nothing, READ;
        GetMessages, "Get Messages", Object, [Messages], GET, "", "", [], "p", "p", Never, CONTRIBUTOR, Nothing, WRITE;
        ClearMessages, "Clear Messages", Object, [Messages], DELETE, "", "", [], "d", "", Never, CONTRIBUTOR, Nothing, WRITE;
        UpdateMessage, "Update Message", Object, [Message], PUT, "", "", [], "u", "u", Never, CONTRIBUTOR, Small, WRITE;
        DeleteMessage, "Delete Message", Object, [Message], DELETE, "", "", [], "p", "p", Never, CONTRIBUTOR, Nothing, WRITE;
    }
    Table {
        PreflightTableRequest, "Preflight Table Request", Any, [Service, Tables, NamedTable, Table, Entity, TableBatch], OPTIONS, "", "", [], "*", "*", Always, READER, Nothing, READ;

        GetTableServiceProperties, "Get Table Service Properties", Service, [Service], GET, "service", "properties", [], "r", "", Never, READER, Nothing, READ;
        SetTableServiceProperties, "Set Table Service Properties", Service, [Service], PUT, "service", "properties", [], "w", "", Never, CONTRIBUTOR, Small, WRITE;
        GetTableServiceStats, "Get Table Service Stats", Service, [Service], GET, "service", "stats", [], "r", "", Never, READER, Nothing, READ;

        QueryTables, "Query Tables", Container, [Tables, NamedTable], GET, "", "", [], "l", "", Never, READER, Nothing, READ;
        CreateTable, "Create Table", Container, [Tables], POST, "", "", [], "c|w", "", Never, CONTRIBUTOR, Small, WRITE;
        DeleteTable, "Delete Table", Container, [NamedTable], DELETE, "", "", [], "d", "", Never, CONTRIBUTOR, Nothing, WRITE;
        GetTableAcl, "Get Table ACL", Container, [Table], GET_HEAD, "", "acl", [], "", "", Never, OWNER, Nothing, READ;
        SetTableAcl, "Set Table ACL", Container, [Table], PUT, "", "acl", [], "", "", Never, OWNER, Small, WRITE;

        QueryEntities, "Query Entities", Object, [Table, Entity], GET, "", "", [], "r", "r", Never, READER, Nothing, READ;
        InsertEntity, "Insert Entity", Object, [Table], POST, "", "", [], "a", "a", Never, CONTRIBUTOR, Medium, WRITE;
        UpdateEntity, "Update Entity", Object, [Entity], PUT, "", "", [IF_MATCH], "u", "u", Never, CONTRIBUTOR, Medium, WRITE;
        InsertOrReplaceEntity, "Insert Or Replace Entity", Object, [Entity], PUT, "", "", [], "a+u", "a+u", Never, CONTRIBUTOR, Medium, WRITE;
        MergeEntity, "Merge Entity", Object, [Entity], MERGE, "", "", [IF_MATCH], "u", "u", Never, CONTRIBUTOR, Medium, WRITE;
        InsertOrMergeEntity, "Insert Or Merge Entity", Object, [Entity], MERGE, "", "", [], "a+u", "a+u", Never, CONTRIBUTOR, Medium, WRITE;
        DeleteEntity, "Delete Entity", Object, [Entity], DELETE, "", "", [], "d", "d", Never, CONTRIBUTOR, Nothing, WRITE;
        EntityGroupTransaction, "Entity Group Transaction", Object, [TableBatch], POST, "", "", [], "*", "*", Never, READER, Medium, WRITE;
    }
    File {
        PreflightFileRequest, "Preflight File Request", Any, [Service, Container, Object], OPTIONS, "", "", [], "*", "*", Always, READER, Nothing, READ;

        ListShares, "List Shares", Service, [Service], GET, "", "list", [], "l", "", Never, READER, Nothing, READ;
        GetFileServiceProperties, "Get File Service Properties", Service, [Service], GET, "service", "properties", [], "r", "", Never, READER, Nothing, READ;
        SetFileServiceProperties, "Set File Service Properties", Service, [Service], PUT, "service", "properties", [], "w", "", Never, CONTRIBUTOR, Small, WRITE;
        GetFileUserDelegationKey, "Get User Delegation Key (file)", Service, [Service], POST, "service", "userdelegationkey", [], "", "", Never, READER, Small, READ;

        CreateShare, "Create Share", Container, [Container], PUT, "share", "", [], "c|w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        GetShareProperties, "Get Share Properties", Container, [Container], GET_HEAD, "share", "", [], "r", "", Never, READER, Nothing, READ;
        GetShareMetadata, "Get Share Metadata", Container, [Container], GET_HEAD, "share", "metadata", [], "r", "", Never, READER, Nothing, READ;
        SetShareProperties, "Set Share Properties", Container, [Container], PUT, "share", "properties", [], "w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        SetShareMetadata, "Set Share Metadata", Container, [Container], PUT, "share", "metadata", [], "w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        GetShareAcl, "Get Share ACL", Container, [Container], GET_HEAD, "share", "acl", [], "", "", Never, OWNER, Nothing, READ;
        SetShareAcl, "Set Share ACL", Container, [Container], PUT, "share", "acl", [], "", "", Never, OWNER, Small, WRITE;
        GetShareStats, "Get Share Stats", Container, [Container], GET, "share", "stats", [], "r", "", Never, READER, Nothing, READ;
        SnapshotShare, "Snapshot Share", Container, [Container], PUT, "share", "snapshot", [], "c|w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        DeleteShare, "Delete Share", Container, [Container], DELETE, "share", "", [], "d", "", Never, CONTRIBUTOR, Nothing, WRITE;
        RestoreShare, "Restore Share", Container, [Container], PUT, "share", "undelete", [], "w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        LeaseShare, "Lease Share", Container, [Container], PUT, "share", "lease", [], "w", "", Never, CONTRIBUTOR, Nothing, WRITE;
        CreatePermission, "Create Permission", Container, [Container], PUT, "share", "filepermission", [], "c|w", "c|w", Never, CONTRIBUTOR, Small, WRITE;
        GetPermission, "Get Permission", Container, [Container], GET, "share", "filepermission", [], "r", "r", Never, READER, Nothing, READ;

        CreateDirectory, "Create Directory", Object, [Container, Object], PUT, "directory", "", [], "c|w", "c|w", Never, CONTRIBUTOR, Nothing, WRITE;
        GetDirectoryProperties, "Get Directory Properties", Object, [Container, Object], GET_HEAD, "directory", "", [], "r", "r", Never, READER, Nothing, READ;
        GetDirectoryMetadata, "Get Directory Metadata", Object, [Container, Object], GET_HEAD, "directory", "metadata", [], "r", "r", Never, READER, Nothing, READ;
        SetDirectoryProperties, "Set Directory Properties", Object, [Container, Object], PUT, "directory", "properties", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        SetDirectoryMetadata, "Set Directory Metadata", Object, [Container, Object], PUT, "directory", "metadata", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        DeleteDirectory, "Delete Directory", Object, [Container, Object], DELETE, "directory", "", [], "d", "d", Never, CONTRIBUTOR, Nothing, WRITE;
        ListDirectoriesAndFiles, "List Directories and Files", Container, [Container, Object], GET, "directory", "list", [], "l", "l", Never, READER, Nothing, READ;
        RenameDirectory, "Rename Directory", Object, [Object], PUT, "directory", "rename", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        ListHandles, "List Handles", Object, [Container, Object], GET, "", "listhandles", [], "r|l", "r|l", Never, READER, Nothing, READ;
        ForceCloseHandles, "Force Close Handles", Object, [Container, Object], PUT, "", "forceclosehandles", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;

        GetFile, "Get File", Object, [Object], GET, "", "", [], "r", "r", Never, READER, Nothing, READ;
        GetFileProperties, "Get File Properties", Object, [Object], HEAD, "", "", [], "r", "r", Never, READER, Nothing, READ;
        GetFileMetadata, "Get File Metadata", Object, [Object], GET_HEAD, "", "metadata", [], "r", "r", Never, READER, Nothing, READ;
        SetFileProperties, "Set File Properties", Object, [Object], PUT, "", "properties", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        SetFileMetadata, "Set File Metadata", Object, [Object], PUT, "", "metadata", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        PutRangeFromUrl, "Put Range from URL", Object, [Object], PUT, "", "range", [COPY_SOURCE], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        PutRange, "Put Range", Object, [Object], PUT, "", "range", [], "w", "w", Never, CONTRIBUTOR, Medium, WRITE;
        ListRanges, "List Ranges", Object, [Object], GET, "", "rangelist", [], "r", "r", Never, READER, Nothing, READ;
        CopyFile, "Copy File", Object, [Object], PUT, "", "", [COPY_SOURCE], "w", "c|w", Never, CONTRIBUTOR, Nothing, WRITE;
        CreateFile, "Create File", Object, [Object], PUT, "", "", [], "c|w", "c|w", Never, CONTRIBUTOR, Optional, WRITE;
        AbortCopyFile, "Abort Copy File", Object, [Object], PUT, "", "copy", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        DeleteFile, "Delete File", Object, [Object], DELETE, "", "", [], "d", "d", Never, CONTRIBUTOR, Nothing, WRITE;
        RenameFile, "Rename File", Object, [Object], PUT, "", "rename", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
        LeaseFile, "Lease File", Object, [Object], PUT, "", "lease", [], "w", "w", Never, CONTRIBUTOR, Nothing, WRITE;
    }
}

/// A request whose permission and role differ from its operation's row.
pub(super) type Exception = (Operation, Discriminator, Permission, Role);

/// Exceptions from the operations' usual permissions and roles. The first match applies.
pub(super) static EXCEPTIONS: &[Exception] = &[
    (Operation::LeaseBlob, LEASE_BREAK, Permission("w|d"), CONTRIBUTOR),
    (Operation::LeaseContainer, LEASE_BREAK, Permission("w|d"), CONTRIBUTOR),
    (Operation::LeaseFile, LEASE_BREAK, Permission("w|d"), CONTRIBUTOR),
    (Operation::LeaseShare, LEASE_BREAK, Permission("w|d"), CONTRIBUTOR),
    (Operation::DeleteBlob, PERMANENT, Permission("y"), OWNER),
    (Operation::DeleteBlob, VERSION_ID, Permission("x"), OWNER),
    (Operation::PutBlob, TAGS, Permission("c+t|w+t"), OWNER),
    (Operation::PutBlobFromUrl, TAGS, Permission("c+t|w+t"), OWNER),
    (Operation::PutBlockList, TAGS, Permission("w+t"), OWNER),
    (Operation::CopyBlob, TAGS, Permission("c+t|w+t"), OWNER),
    (Operation::CopyBlobFromUrl, TAGS, Permission("c+t|w+t"), OWNER),
    (Operation::PutBlobFromUrl, COPIED_TAGS, Permission("c+t|w+t"), OWNER),
    (Operation::CopyBlobFromUrl, COPIED_TAGS, Permission("c+t|w+t"), OWNER),
];

/// Operations, headers, and the operation whose permission is required as well if one of the headers is
/// present.
pub(super) type AdditionalPermission = (&'static [Operation], &'static [Discriminator], Operation);

/// Requests that also do what another operation does.
pub(super) static ADDITIONAL_PERMISSIONS: &[AdditionalPermission] = &[
    (
        &[
            Operation::PutBlob,
            Operation::PutBlobFromUrl,
            Operation::PutBlockList,
            Operation::CopyBlob,
            Operation::CopyBlobFromUrl,
            Operation::IncrementalCopyBlob,
        ],
        &[POLICY_UNTIL, POLICY_MODE, LEGAL_HOLD],
        Operation::SetBlobImmutabilityPolicy,
    ),
    (&[Operation::CreateContainer], &[PUBLIC_ACCESS], Operation::SetContainerAcl),
];
