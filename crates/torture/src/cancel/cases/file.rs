//! Shares, directories and files.

use lazuli_protocol::ServiceKind;

use super::Case;

const S: &str = "PUT /sss?restype=share";
const OTHER: &str = "PUT /other?restype=share";
const D: &str = "PUT /sss/d?restype=directory";
const E: &str = "PUT /sss/e?restype=directory";
const F: &str = "PUT /sss/d/f\nx-ms-type: file\nx-ms-content-length: 30000\nx-ms-meta-a: 1";
const F1: &str = "PUT /sss/d/f?comp=range\nx-ms-write: update\nx-ms-range: bytes=0-29999\n\n@30000";
const G: &str = "PUT /sss/e/g\nx-ms-type: file\nx-ms-content-length: 9000";
const G1: &str = "PUT /sss/e/g?comp=range\nx-ms-write: update\nx-ms-range: bytes=0-8999\n\n@9000x";
const SNAP: &str = "PUT /sss?restype=share&comp=snapshot";
const KEEP: &str = "PUT /?restype=service&comp=properties\n\n<StorageServiceProperties><ShareDeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days></ShareDeleteRetentionPolicy></StorageServiceProperties>";
const ACL: &str = "PUT /sss?restype=share&comp=acl\n\n<SignedIdentifiers><SignedIdentifier><Id>one</Id><AccessPolicy><Start>2020-01-01T00:00:00Z</Start><Expiry>2099-01-01T00:00:00Z</Expiry><Permission>r</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>";
const LEASE: &str = "PUT /sss/d/f?comp=lease\nx-ms-lease-action: acquire\nx-ms-lease-duration: -1";

const fn case(name: &'static str, setup: &'static [&'static str], request: &'static str) -> Case {
    Case::new(ServiceKind::File, name, setup, request)
}

pub(super) const CASES: &[Case] = &[
    case("properties of the file service", &[], KEEP),
    case("create a share", &[], S),
    case("properties of a share", &[S], "PUT /sss?restype=share&comp=properties\nx-ms-share-quota: 77"),
    case("metadata of a share", &[S], "PUT /sss?restype=share&comp=metadata\nx-ms-meta-a: 2"),
    case("access to a share", &[S], ACL),
    case("snapshot a share", &[S, D, F, F1], SNAP),
    case("snapshot a share again", &[S, D, F, F1, SNAP], SNAP),
    case("delete a share", &[S, D, F, F1], "DELETE /sss?restype=share"),
    case(
        "delete a share with snapshots",
        &[S, D, F, F1, SNAP],
        "DELETE /sss?restype=share\nx-ms-delete-snapshots: include",
    ),
    case(
        "delete a share snapshot",
        &[S, D, F, F1, SNAP],
        "DELETE /sss?restype=share&sharesnapshot=<<x-ms-snapshot>>",
    ),
    case("soft-delete a share", &[KEEP, S, D, F, F1], "DELETE /sss?restype=share"),
    case(
        "restore a share",
        &[KEEP, S, D, F, F1, "DELETE /sss?restype=share", "GET /?comp=list&include=deleted"],
        "PUT /sss?restype=share&comp=undelete\nx-ms-deleted-share-name: sss\nx-ms-deleted-share-version: <<Version>>",
    ),
    case(
        "lease a share",
        &[S],
        "PUT /sss?restype=share&comp=lease\nx-ms-lease-action: acquire\nx-ms-lease-duration: -1",
    ),
    case(
        "create a permission",
        &[S],
        "PUT /sss?restype=share&comp=filepermission\n\n{\"permission\":\"O:SYG:SYD:(A;;FA;;;SY)\"}",
    ),
    case("create a directory", &[S], D),
    case(
        "properties of a directory",
        &[S, D],
        "PUT /sss/d?restype=directory&comp=properties\nx-ms-file-attributes: Hidden",
    ),
    case("metadata of a directory", &[S, D], "PUT /sss/d?restype=directory&comp=metadata\nx-ms-meta-a: 2"),
    case("delete a directory", &[S, D], "DELETE /sss/d?restype=directory"),
    case(
        "rename a directory",
        &[S, D, E, F, F1],
        "PUT /sss/e/moved?restype=directory&comp=rename\nx-ms-file-rename-source: <<file>>/sss/d",
    ),
    case("force handles to close", &[S, D, F], "PUT /sss/d/f?comp=forceclosehandles\nx-ms-handle-id: *"),
    case("create a file", &[S, D], F),
    case(
        "create a file over another",
        &[S, D, F, F1],
        "PUT /sss/d/f\nx-ms-type: file\nx-ms-content-length: 500",
    ),
    case(
        "create a file over another in a snapshot",
        &[S, D, F, F1, SNAP],
        "PUT /sss/d/f\nx-ms-type: file\nx-ms-content-length: 500",
    ),
    case("properties of a file", &[S, D, F, F1], "PUT /sss/d/f?comp=properties\nx-ms-content-type: text/x"),
    case("resize a file", &[S, D, F, F1], "PUT /sss/d/f?comp=properties\nx-ms-content-length: 70000"),
    case("shrink a file", &[S, D, F, F1], "PUT /sss/d/f?comp=properties\nx-ms-content-length: 100"),
    case("metadata of a file", &[S, D, F, F1], "PUT /sss/d/f?comp=metadata\nx-ms-meta-a: 2"),
    case(
        "write a range",
        &[S, D, F, F1],
        "PUT /sss/d/f?comp=range\nx-ms-write: update\nx-ms-range: bytes=1000-25999\n\n@25000x",
    ),
    case(
        "write a range of a file in a snapshot",
        &[S, D, F, F1, SNAP],
        "PUT /sss/d/f?comp=range\nx-ms-write: update\nx-ms-range: bytes=1000-25999\n\n@25000x",
    ),
    case(
        "clear a range",
        &[S, D, F, F1],
        "PUT /sss/d/f?comp=range\nx-ms-write: clear\nx-ms-range: bytes=1000-25999",
    ),
    case(
        "write a range from a URL",
        &[S, D, E, F, F1, G, G1],
        "PUT /sss/d/f?comp=range\nx-ms-write: update\nx-ms-range: bytes=0-8999\nx-ms-source-range: bytes=0-8999\nx-ms-copy-source: <<file>>/sss/e/g",
    ),
    case("copy a file", &[S, D, E, F, F1, G, G1], "PUT /sss/d/f\nx-ms-copy-source: <<file>>/sss/e/g"),
    case(
        "copy a file to another share",
        &[S, OTHER, D, F, F1],
        "PUT /other/f\nx-ms-copy-source: <<file>>/sss/d/f",
    ),
    case(
        "copy a blob to a file",
        &[S, "blob>PUT /ccc?restype=container", "blob>PUT /ccc/b\nx-ms-blob-type: BlockBlob\n\n@20000"],
        "PUT /sss/f\nx-ms-copy-source: <<blob>>/ccc/b",
    )
    .in_parts(),
    case(
        "abort a copy of a file that has ended",
        &[S, D, F, F1, "PUT /sss/y\nx-ms-copy-source: <<file>>/sss/d/f"],
        "PUT /sss/y?comp=copy&copyid=<<x-ms-copy-id>>\nx-ms-copy-action: abort",
    ),
    case("delete a file", &[S, D, F, F1], "DELETE /sss/d/f"),
    case("delete a file in a snapshot", &[S, D, F, F1, SNAP], "DELETE /sss/d/f"),
    case(
        "rename a file",
        &[S, D, E, F, F1],
        "PUT /sss/e/h?comp=rename\nx-ms-file-rename-source: <<file>>/sss/d/f",
    ),
    case(
        "rename a file in its directory",
        &[S, D, F, F1],
        "PUT /sss/d/h?comp=rename\nx-ms-file-rename-source: <<file>>/sss/d/f",
    ),
    case(
        "rename a file over another",
        &[S, D, E, F, F1, G, G1],
        "PUT /sss/e/g?comp=rename\nx-ms-file-rename-replace-if-exists: true\nx-ms-file-rename-source: <<file>>/sss/d/f",
    ),
    case(
        "rename a file in a snapshot",
        &[S, D, E, F, F1, SNAP],
        "PUT /sss/e/h?comp=rename\nx-ms-file-rename-source: <<file>>/sss/d/f",
    ),
    case("lease a file", &[S, D, F], LEASE),
    case("break the lease of a file", &[S, D, F, LEASE], "PUT /sss/d/f?comp=lease\nx-ms-lease-action: break"),
];
