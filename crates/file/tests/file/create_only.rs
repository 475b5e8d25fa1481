//! A shared access signature with only the permission `c` must not change files that exist, whatever the
//! operation.

use lazuli_auth::sign::{self, Resource};
use lazuli_protocol::{Operation, ServiceKind};
use lazuli_testing::{ACCOUNT, key};

use crate::support::{Server, make_directory, make_file, start, write};

const LATER: &str = "2099-12-31T00:00:00Z";

/// Returns the target with an account SAS and with a service SAS of the share, each with `c` alone.
fn create_only(target: &str) -> [String; 2] {
    let fields = [("sv", "2022-11-02"), ("ss", "f"), ("srt", "sco"), ("sp", "c"), ("se", LATER)];
    let account = sign::account_sas(ACCOUNT, &key(), &fields);
    let resource = Resource { service: ServiceKind::File, account: ACCOUNT, path: "docs", timestamp: "" };
    let fields = [("sv", "2022-11-02"), ("sr", "s"), ("sp", "c"), ("se", LATER)];
    let share = sign::service_sas(&resource, &key(), &fields);
    let separator = if target.contains('?') { '&' } else { '?' };
    [account, share].map(|sas| format!("{target}{separator}{sas}"))
}

async fn seen(server: &Server) -> Vec<String> {
    let mut seen = vec![];
    for target in ["/docs/file", "/docs/dir?restype=directory", "/docs?restype=share"] {
        let got = server.get(target, "").await.expect(200);
        seen.push(format!("{:?} {:?}", got.header("etag"), got.body));
    }
    seen
}

#[tokio::test]
async fn create_only_signature_never_changes_an_existing_object() {
    use Operation::*;
    let server = start().await;
    make_directory(&server, "dir").await;
    make_file(&server, "file", 4).await;
    write(&server, "file", 0, b"kept").await;
    make_file(&server, "source", 4).await;
    write(&server, "source", 0, b"copy").await;
    let source =
        format!("x-ms-copy-source: http://{}/{ACCOUNT}{}", server.address, server.allowed("/docs/source"));
    let permission = r#"{"permission":"O:BAG:BAD:(A;;FA;;;BA)"}"#;
    for operation in Operation::ALL.iter().filter(|operation| operation.service() == ServiceKind::File) {
        let row = operation.row();
        if ![row.account_sas, row.service_sas].iter().any(|needed| needed.granted_by("c")) {
            continue;
        }
        let (target, headers, body, expected) = match operation {
            PreflightFileRequest => continue,
            CreateShare => ("/docs?restype=share", "x-ms-meta-a: 1", "", (409, "ShareAlreadyExists")),
            // A snapshot and a permission are new objects; the share does not change.
            SnapshotShare => ("/docs?restype=share&comp=snapshot", "", "", (201, "")),
            CreatePermission => ("/docs?restype=share&comp=filepermission", "", permission, (201, "")),
            CreateDirectory => {
                ("/docs/dir?restype=directory", "x-ms-meta-a: 1", "", (409, "ResourceAlreadyExists"))
            }
            CreateFile => {
                let headers = "x-ms-type: file\nx-ms-content-length: 9";
                ("/docs/file", headers, "", (403, "AuthorizationPermissionMismatch"))
            }
            CopyFile => ("/docs/file", source.as_str(), "", (403, "AuthorizationPermissionMismatch")),
            other => panic!("{other:?} has no row here"),
        };
        let before = seen(&server).await;
        for target in create_only(target) {
            let reply = server.send("PUT", &target, headers, body.to_owned()).await;
            let refused = reply.status.as_u16() == 403;
            assert!(refused || reply.outcome() == expected, "{operation:?} {:?}", reply.outcome());
            assert_eq!(seen(&server).await, before, "{operation:?}");
        }
    }
}
