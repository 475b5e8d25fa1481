//! Shares: create, properties, metadata, policies, delete, list, permissions.

use crate::support::{make_file, names, start};

#[tokio::test]
async fn a_share_has_a_quota_a_tier_and_metadata() {
    let server = start().await;
    server.put("/docs?restype=share", "", "").await.refused(409, "ShareAlreadyExists");
    let headers = "x-ms-share-quota: 7\nx-ms-access-tier: Hot\nx-ms-meta-owner: me";
    let created = server.put("/more?restype=share", headers, "").await.expect(201);
    let found = server.get("/more?restype=share", "").await.expect(200);
    assert_eq!(found.etag(), created.etag());
    for (name, value) in [("x-ms-share-quota", "7"), ("x-ms-access-tier", "Hot"), ("x-ms-meta-owner", "me")] {
        assert_eq!(found.header(name), Some(value));
    }
    server.put("/more?restype=share&comp=properties", "x-ms-share-quota: 9", "").await.expect(200);
    let found = server.get("/more?restype=share", "").await.expect(200);
    assert_eq!(found.header("x-ms-share-quota"), Some("9"));
    assert_ne!(found.etag(), created.etag());
    for (headers, code) in [
        ("x-ms-share-quota: 0", "InvalidHeaderValue"),
        ("x-ms-share-quota: x", "InvalidHeaderValue"),
        ("x-ms-access-tier: Warm", "InvalidHeaderValue"),
    ] {
        server.put("/bad-one?restype=share", headers, "").await.refused(400, code);
    }
    server.get("/nobody?restype=share", "").await.refused(404, "ShareNotFound");
}

#[tokio::test]
async fn a_deleted_share_is_gone_and_its_name_is_free_for_an_empty_one() {
    let server = start().await;
    make_file(&server, "f", 10).await;
    server.delete("/docs?restype=share", "").await.expect(202);
    server.get("/docs/f", "").await.refused(404, "ShareNotFound");
    server.put("/docs?restype=share", "", "").await.expect(201);
    assert_eq!(names(&server, "").await, Vec::<String>::new());
    let swept = server.service.sweep(lazuli_extents::Pace::FULL).await.unwrap();
    assert_eq!(swept.spaces, 1);
}

#[tokio::test]
async fn shares_are_listed_by_name() {
    let server = start().await;
    for name in ["aaa", "bbb"] {
        server.put(&format!("/{name}?restype=share"), "x-ms-meta-a: b", "").await.expect(201);
    }
    let listed = server.get("/?comp=list&include=metadata&maxresults=2", "").await.expect(200);
    let text = listed.text();
    assert!(text.contains("<Name>aaa</Name>") && text.contains("<Name>bbb</Name>") && !text.contains("docs"));
    assert!(text.contains("<Metadata><a>b</a></Metadata>") && text.contains("<Quota>5120</Quota>"), "{text}");
    assert!(!text.contains("<NextMarker />"), "{text}");
    let all = server.get("/?comp=list&prefix=do", "").await.expect(200);
    assert!(all.text().contains("<Name>docs</Name>") && !all.text().contains("aaa"));
}

#[tokio::test]
async fn a_permission_is_kept_under_a_key() {
    let server = start().await;
    let sddl = "O:SYG:SYD:(A;;FA;;;BA)";
    let body = format!(r#"{{"permission":"{sddl}"}}"#);
    let created = server.put("/docs?restype=share&comp=filepermission", "", body).await.expect(201);
    let key = created.header("x-ms-file-permission-key").unwrap().to_owned();
    let headers = format!("x-ms-file-permission-key: {key}");
    let found = server.get("/docs?restype=share&comp=filepermission", &headers).await.expect(200);
    assert_eq!(found.text(), format!(r#"{{"permission":"{sddl}"}}"#));
    let unknown = "x-ms-file-permission-key: 1*2";
    let found = server.get("/docs?restype=share&comp=filepermission", unknown).await;
    found.refused(400, "FileInvalidPermissionKey");
    let bad = r#"{"permission":"nonsense"}"#;
    let refused = server.put("/docs?restype=share&comp=filepermission", "", bad).await;
    refused.refused(400, "FileInvalidPermission");
}
