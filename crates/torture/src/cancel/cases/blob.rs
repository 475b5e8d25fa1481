//! Blobs and containers.

use lazuli_protocol::ServiceKind;

use super::Case;

const C: &str = "PUT /ccc?restype=container";
const OTHER: &str = "PUT /other?restype=container";
const B: &str = "PUT /ccc/b\nx-ms-blob-type: BlockBlob\nx-ms-meta-a: 1\n\n@30000";
const BX: &str = "PUT /ccc/x\nx-ms-blob-type: BlockBlob\n\n@20000x";
const TAGGED: &str = "PUT /ccc/b\nx-ms-blob-type: BlockBlob\nx-ms-tags: color=blue&n=1\n\n@30000";
const A: &str = "PUT /ccc/a\nx-ms-blob-type: AppendBlob";
const A1: &str = "PUT /ccc/a?comp=appendblock\n\n@9000";
const P: &str = "PUT /ccc/p\nx-ms-blob-type: PageBlob\nx-ms-blob-content-length: 65536";
const P1: &str = "PUT /ccc/p?comp=page\nx-ms-page-write: update\nx-ms-range: bytes=0-20479\n\n@20480";
const SNAP: &str = "PUT /ccc/b?comp=snapshot";
const BLOCK1: &str = "PUT /ccc/b?comp=block&blockid=AAAA\n\n@20000";
const BLOCK2: &str = "PUT /ccc/b?comp=block&blockid=AAAB\n\n@70000xx";
const LIST: &str =
    "PUT /ccc/b?comp=blocklist\n\n<BlockList><Latest>AAAA</Latest><Latest>AAAB</Latest></BlockList>";
const LIST_TAGS: &str =
    "PUT /ccc/b?comp=blocklist\nx-ms-tags: color=blue\n\n<BlockList><Latest>AAAA</Latest></BlockList>";
const KEEP: &str = "PUT /?restype=service&comp=properties\n\n<StorageServiceProperties><DeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days></DeleteRetentionPolicy></StorageServiceProperties>";
const LEASE: &str = "PUT /ccc/b?comp=lease\nx-ms-lease-action: acquire\nx-ms-lease-duration: -1";
const POLICY: &str = "PUT /ccc/b?comp=immutabilityPolicies\nx-ms-immutability-policy-mode: unlocked\nx-ms-immutability-policy-until-date: Fri, 01 Jan 2100 00:00:00 GMT";
const BATCH: &str = "POST /?comp=batch\ncontent-type: multipart/mixed; boundary=batch_1\n\n--batch_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 0\r\n\r\nDELETE /ccc/b HTTP/1.1\r\nContent-Length: 0\r\n\r\n--batch_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 1\r\n\r\nDELETE /ccc/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n--batch_1--\r\n";
const CONTAINER_BATCH: &str = "POST /ccc?restype=container&comp=batch\ncontent-type: multipart/mixed; boundary=batch_1\n\n--batch_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 0\r\n\r\nDELETE /ccc/b HTTP/1.1\r\nContent-Length: 0\r\n\r\n--batch_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 1\r\n\r\nDELETE /ccc/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n--batch_1--\r\n";
const SET_ACL: &str = "PUT /ccc?restype=container&comp=acl\n\n<SignedIdentifiers><SignedIdentifier><Id>one</Id><AccessPolicy><Start>2020-01-01T00:00:00Z</Start><Expiry>2099-01-01T00:00:00Z</Expiry><Permission>r</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>";

const fn case(name: &'static str, setup: &'static [&'static str], request: &'static str) -> Case {
    Case::new(ServiceKind::Blob, name, setup, request)
}

pub(super) const CASES: &[Case] = &[
    case("properties of the service", &[], KEEP),
    case("create a container", &[], C),
    case("metadata of a container", &[C], "PUT /ccc?restype=container&comp=metadata\nx-ms-meta-a: 2"),
    case("access to a container", &[C], SET_ACL),
    case("delete a container", &[C, B], "DELETE /ccc?restype=container"),
    case(
        "lease a container",
        &[C],
        "PUT /ccc?restype=container&comp=lease\nx-ms-lease-action: acquire\nx-ms-lease-duration: -1",
    ),
    case(
        "restore a container",
        &[C, B, "DELETE /ccc?restype=container", "GET /?comp=list&include=deleted"],
        "PUT /ccc?restype=container&comp=undelete\nx-ms-deleted-container-name: ccc\nx-ms-deleted-container-version: <<Version>>",
    ),
    case(
        "rename a container",
        &[OTHER, "PUT /other/b\nx-ms-blob-type: BlockBlob\n\n@30000"],
        "PUT /ccc?restype=container&comp=rename\nx-ms-source-container-name: other",
    ),
    case("put a blob", &[C], B),
    case("put a small blob", &[C], "PUT /ccc/b\nx-ms-blob-type: BlockBlob\n\nsmall"),
    case("replace a blob", &[C, B], "PUT /ccc/b\nx-ms-blob-type: BlockBlob\n\n@90000x"),
    case(
        "replace a blob that has staged blocks",
        &[C, B, BLOCK1],
        "PUT /ccc/b\nx-ms-blob-type: BlockBlob\n\n@90000x",
    ),
    case(
        "replace a soft-deleted blob",
        &[KEEP, C, B, "DELETE /ccc/b"],
        "PUT /ccc/b\nx-ms-blob-type: BlockBlob\n\n@90000x",
    ),
    case("replace a blob and keep it", &[KEEP, C, B], "PUT /ccc/b\nx-ms-blob-type: BlockBlob\n\n@90000x"),
    case("put a version", &[C, B], "PUT /ccc/b\nx-ms-blob-type: BlockBlob\n\n@90000x").versioned(),
    case("put a blob with tags", &[C], TAGGED),
    case(
        "replace a blob with tags",
        &[C, TAGGED],
        "PUT /ccc/b\nx-ms-blob-type: BlockBlob\nx-ms-tags: color=red\n\n@90000x",
    ),
    case(
        "put a blob under legal hold",
        &[C],
        "PUT /ccc/b\nx-ms-blob-type: BlockBlob\nx-ms-legal-hold: true\n\n@30000",
    ),
    case(
        "put a blob under a policy",
        &[C],
        "PUT /ccc/b\nx-ms-blob-type: BlockBlob\nx-ms-immutability-policy-mode: unlocked\nx-ms-immutability-policy-until-date: Fri, 01 Jan 2100 00:00:00 GMT\n\n@30000",
    ),
    case("put an append blob", &[C], A),
    case("put a page blob", &[C], P),
    case("headers of a blob", &[C, B], "PUT /ccc/b?comp=properties\nx-ms-blob-content-type: text/x"),
    case("headers of a version", &[C, B], "PUT /ccc/b?comp=metadata\nx-ms-meta-a: 2").versioned(),
    case("resize a page blob", &[C, P, P1], "PUT /ccc/p?comp=properties\nx-ms-blob-content-length: 1024"),
    case("metadata of a blob", &[C, B], "PUT /ccc/b?comp=metadata\nx-ms-meta-a: 2"),
    case("delete a blob", &[C, B], "DELETE /ccc/b"),
    case(
        "delete a blob with snapshots",
        &[C, B, SNAP, SNAP],
        "DELETE /ccc/b\nx-ms-delete-snapshots: include",
    ),
    case("delete snapshots", &[C, B, SNAP, SNAP], "DELETE /ccc/b\nx-ms-delete-snapshots: only"),
    case("delete a snapshot", &[C, B, SNAP], "DELETE /ccc/b?snapshot=<<x-ms-snapshot>>"),
    case("delete a current version", &[C, B, B], "DELETE /ccc/b").versioned(),
    case(
        "delete a version",
        &[
            C,
            B,
            BX,
            "PUT /ccc/b\nx-ms-blob-type: BlockBlob\n\nnew",
            "GET /ccc?restype=container&comp=list&include=versions",
        ],
        "DELETE /ccc/b?versionid=<<VersionId>>",
    )
    .versioned(),
    case("delete a blob with tags", &[C, TAGGED], "DELETE /ccc/b"),
    case("soft-delete a blob", &[KEEP, C, B], "DELETE /ccc/b"),
    case(
        "soft-delete a blob with snapshots",
        &[KEEP, C, B, SNAP],
        "DELETE /ccc/b\nx-ms-delete-snapshots: include",
    ),
    case("undelete a blob", &[KEEP, C, B, "DELETE /ccc/b"], "PUT /ccc/b?comp=undelete"),
    case(
        "undelete a blob and snapshots",
        &[KEEP, C, B, SNAP, "DELETE /ccc/b\nx-ms-delete-snapshots: include"],
        "PUT /ccc/b?comp=undelete",
    ),
    case("lease a blob", &[C, B], LEASE),
    case(
        "break the lease of a blob",
        &[C, B, LEASE],
        "PUT /ccc/b?comp=lease\nx-ms-lease-action: break\nx-ms-lease-break-period: 0",
    ),
    case("snapshot a blob", &[C, B], SNAP),
    case("snapshot a page blob", &[C, P, P1], "PUT /ccc/p?comp=snapshot"),
    case(
        "abort a copy that has ended",
        &[C, B, "PUT /ccc/y\nx-ms-copy-source: <<blob>>/ccc/b"],
        "PUT /ccc/y?comp=copy&copyid=<<x-ms-copy-id>>\nx-ms-copy-action: abort",
    ),
    case("tier of a blob", &[C, B], "PUT /ccc/b?comp=tier\nx-ms-access-tier: Cool"),
    case(
        "tags of a blob",
        &[C, TAGGED],
        "PUT /ccc/b?comp=tags\n\n<Tags><TagSet><Tag><Key>color</Key><Value>blue</Value></Tag><Tag><Key>m</Key><Value>2</Value></Tag></TagSet></Tags>",
    ),
    case(
        "expiry of a blob",
        &[C, B],
        "PUT /ccc/b?comp=expiry\nx-ms-expiry-option: RelativeToNow\nx-ms-expiry-time: 100000000",
    ),
    case("immutability policy", &[C, B], POLICY),
    case("delete an immutability policy", &[C, B, POLICY], "DELETE /ccc/b?comp=immutabilityPolicies"),
    case("legal hold", &[C, B], "PUT /ccc/b?comp=legalhold\nx-ms-legal-hold: true"),
    case(
        "end a legal hold",
        &[C, B, "PUT /ccc/b?comp=legalhold\nx-ms-legal-hold: true"],
        "PUT /ccc/b?comp=legalhold\nx-ms-legal-hold: false",
    ),
    case(
        "put a blob from a URL",
        &[C, BX],
        "PUT /ccc/b\nx-ms-blob-type: BlockBlob\nx-ms-copy-source: <<blob>>/ccc/x",
    ),
    case(
        "copy a blob from a URL",
        &[C, BX, B],
        "PUT /ccc/b\nx-ms-requires-sync: true\nx-ms-copy-source: <<blob>>/ccc/x",
    ),
    case("copy a blob", &[C, BX, B], "PUT /ccc/b\nx-ms-copy-source: <<blob>>/ccc/x"),
    case(
        "copy a blob of another container",
        &[C, OTHER, "PUT /other/b\nx-ms-blob-type: BlockBlob\n\n@30000"],
        "PUT /ccc/b\nx-ms-copy-source: <<blob>>/other/b",
    ),
    case(
        "copy a file to a blob",
        &[
            C,
            "file>PUT /sss?restype=share",
            "file>PUT /sss/f\nx-ms-type: file\nx-ms-content-length: 20000",
            "file>PUT /sss/f?comp=range\nx-ms-write: update\nx-ms-range: bytes=0-19999\n\n@20000",
        ],
        "PUT /ccc/b\nx-ms-copy-source: <<file>>/sss/f",
    )
    .in_parts(),
    case("put a block", &[C], BLOCK1),
    case("put a block in addition to others", &[C, B, BLOCK2], BLOCK1),
    case(
        "put a block from a URL",
        &[C, BX],
        "PUT /ccc/b?comp=block&blockid=AAAA\nx-ms-copy-source: <<blob>>/ccc/x",
    ),
    case("commit blocks", &[C, BLOCK1, BLOCK2], LIST),
    case("commit blocks over a blob", &[C, B, BLOCK1, BLOCK2], LIST),
    case("commit blocks and leave some", &[C, BLOCK1, BLOCK2], LIST_TAGS),
    case("commit blocks again", &[C, BLOCK1, BLOCK2, LIST], LIST),
    case("commit blocks as a version", &[C, B, BLOCK1, BLOCK2], LIST).versioned(),
    case(
        "put a page",
        &[C, P, P1],
        "PUT /ccc/p?comp=page\nx-ms-page-write: update\nx-ms-range: bytes=4096-36863\n\n@32768x",
    ),
    case(
        "clear pages",
        &[C, P, P1],
        "PUT /ccc/p?comp=page\nx-ms-page-write: clear\nx-ms-range: bytes=512-8191",
    ),
    case(
        "put a page of a snapshot's blob",
        &[C, P, P1, "PUT /ccc/p?comp=snapshot"],
        "PUT /ccc/p?comp=page\nx-ms-page-write: update\nx-ms-range: bytes=4096-36863\n\n@32768x",
    ),
    case(
        "put a page from a URL",
        &[C, P, BX, "PUT /ccc/src\nx-ms-blob-type: BlockBlob\n\n@8192"],
        "PUT /ccc/p?comp=page\nx-ms-page-write: update\nx-ms-range: bytes=0-8191\nx-ms-source-range: bytes=0-8191\nx-ms-copy-source: <<blob>>/ccc/src",
    ),
    case(
        "copy incrementally",
        &[C, P, P1, "PUT /ccc/p?comp=snapshot"],
        "PUT /ccc/i?comp=incrementalcopy\nx-ms-copy-source: <<blob>>/ccc/p?snapshot=<<x-ms-snapshot>>",
    ),
    case("append a block", &[C, A, A1], "PUT /ccc/a?comp=appendblock\n\n@40000x"),
    case(
        "append a block from a URL",
        &[C, A, A1, BX],
        "PUT /ccc/a?comp=appendblock\nx-ms-copy-source: <<blob>>/ccc/x",
    ),
    case("seal an append blob", &[C, A, A1], "PUT /ccc/a?comp=seal"),
    case("batch of an account", &[C, B, BX], BATCH).in_parts(),
    case("batch of a container", &[C, B, BX], CONTAINER_BATCH).in_parts(),
];
