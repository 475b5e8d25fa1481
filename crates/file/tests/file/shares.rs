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
async fn name_of_a_deleted_share_is_free_for_a_new_empty_share() {
    let server = start().await;
    make_file(&server, "f", 10).await;
    server.delete("/docs?restype=share", "").await.expect(202);
    server.get("/docs/f", "").await.refused(404, "ShareNotFound");
    server.put("/docs?restype=share", "", "").await.expect(201);
    assert_eq!(names(&server, "").await, Vec::<String>::new());
    let swept = server.service.sweep(lazuli_concurrency::Pace::FULL).await.unwrap();
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
    assert_eq!(found.text(), format!(r#"{{"permission":"{sddl}","format":"sddl"}}"#));
    let unknown = "x-ms-file-permission-key: 1*2";
    let found = server.get("/docs?restype=share&comp=filepermission", unknown).await;
    found.refused(400, "FileInvalidPermissionKey");
    let malformed = "x-ms-file-permission-key: invalidPermission";
    let found = server.get("/docs?restype=share&comp=filepermission", malformed).await;
    found.refused(400, "InvalidHeaderValue");
    for bad in [
        r#"{"permission":"nonsense"}"#,
        r#"{"permission":"O:SYG:SYD:","format":"binary"}"#,
        r#"{"permission":"O:SYG:SYD:(A;;FA;;;XX)"}"#,
    ] {
        let refused = server.put("/docs?restype=share&comp=filepermission", "", bad).await;
        refused.refused(400, "FileInvalidPermission");
    }
}

#[tokio::test]
async fn a_permission_that_is_too_long_for_a_header_is_set_by_its_key() {
    let server = start().await;
    let entries = "(A;;FA;;;S-1-5-21-2127521184-1604012920-1887927527-1001)".repeat(1500);
    let sddl = format!("O:SYG:SYD:{entries}");
    let place = "/docs?restype=share&comp=filepermission";
    let created = server.put(place, "", format!(r#"{{"permission":"{sddl}"}}"#)).await.expect(201);
    let key = format!("x-ms-file-permission-key: {}", created.header("x-ms-file-permission-key").unwrap());
    let file = "x-ms-type: file\nx-ms-content-length: 0";
    let put = server.put("/docs/f", &format!("{file}\n{key}"), "").await.expect(201);
    assert_eq!(put.header("x-ms-file-permission-key"), created.header("x-ms-file-permission-key"));
    let found = server.get(place, &key).await.expect(200);
    assert_eq!(found.text(), format!(r#"{{"permission":"{sddl}","format":"sddl"}}"#));
    for (length, outcome) in [(8 << 10, (201, "")), ((8 << 10) + 1, (400, "FileInvalidPermission"))] {
        let permission = format!("x-ms-file-permission: O:SYG:SYD:P{}(A;;FA;;;SY)", " ".repeat(length - 23));
        let put = server.put("/docs/g", &format!("{file}\n{permission}"), "").await;
        assert_eq!(put.outcome(), outcome, "{length}");
    }
}

#[tokio::test]
async fn permission_can_be_sent_and_returned_as_bytes() {
    let server = start().await;
    let place = "/docs?restype=share&comp=filepermission";
    let (sddl, bytes) = (
        "O:BAG:SYD:(A;;FA;;;WD)",
        "AQAEgDAAAABAAAAAAAAAABQAAAACABwAAQAAAAAAFAD/AR8AAQEAAAAAAAEAAAAAAQIAAAAAAAUgAAAAIAIAAAEBAAAAAAAFEgAAAA==",
    );
    let body = format!(r#"{{"permission":"{bytes}","format":"binary"}}"#);
    let made = server.put(place, "", body).await.expect(201);
    let key = made.header("x-ms-file-permission-key").unwrap();
    let file = "x-ms-type: file\nx-ms-content-length: 1\nx-ms-file-permission-format: binary";
    let created =
        server.put("/docs/f", &format!("{file}\nx-ms-file-permission: {bytes}"), "").await.expect(201);
    assert_eq!(created.header("x-ms-file-permission-key"), Some(key));
    for (format, permission) in [("binary", bytes), ("sddl", sddl)] {
        let headers = format!("x-ms-file-permission-key: {key}\nx-ms-file-permission-format: {format}");
        let found = server.get(place, &headers).await.expect(200);
        assert_eq!(found.text(), format!(r#"{{"permission":"{permission}","format":"{format}"}}"#));
    }
    let headers = format!("x-ms-file-permission-key: {key}\nx-ms-file-permission-format: xml");
    server.get(place, &headers).await.refused(400, "InvalidHeaderValue");
}

/// Sets the number of days for which deleted shares are retained.
pub(crate) async fn keep_deleted(server: &crate::support::Server, days: u16) {
    let body = format!(
        "<StorageServiceProperties><ShareDeleteRetentionPolicy><Enabled>true</Enabled><Days>{days}</Days>\
         </ShareDeleteRetentionPolicy></StorageServiceProperties>"
    );
    server.put("/?restype=service&comp=properties", "", body).await.expect(202);
}

pub(crate) fn deleted_version(text: &str) -> String {
    text.split("<Version>").nth(1).unwrap().split('<').next().unwrap().to_owned()
}

#[tokio::test]
async fn deleted_share_can_be_restored_with_its_files_during_retention() {
    let server = start().await;
    keep_deleted(&server, 7).await;
    make_file(&server, "f", 10).await;
    let taken = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
    let id = taken.header("x-ms-snapshot").unwrap();
    server.delete("/docs?restype=share", "x-ms-delete-snapshots: include").await.expect(202);
    // Any later, fewer than seven days remain.
    server.advance(0);
    assert!(!server.get("/?comp=list", "").await.expect(200).text().contains("docs"));
    let listed = server.get("/?comp=list&include=deleted,snapshots", "").await.expect(200);
    let text = listed.text();
    assert!(text.contains("<Deleted>true</Deleted>") && !text.contains("<Snapshot>"), "{text}");
    assert!(text.contains("<RemainingRetentionDays>6</RemainingRetentionDays>"), "{text}");
    let version = deleted_version(text);

    let undelete = "/docs?restype=share&comp=undelete";
    let both = |name: &str, version: &str| {
        format!("x-ms-deleted-share-name: {name}\nx-ms-deleted-share-version: {version}")
    };
    let only = "x-ms-deleted-share-name: docs";
    server.put(undelete, only, "").await.refused(400, "MissingRequiredHeader");
    server.put(undelete, &both("other", &version), "").await.refused(400, "InvalidHeaderValue");
    server.put(undelete, &both("docs", "0000000000000001"), "").await.refused(404, "ShareNotFound");
    server.put(undelete, &both("docs", "nonsense"), "").await.refused(404, "ShareNotFound");
    server.put("/docs?restype=share", "", "").await.expect(201);
    server.put(undelete, &both("docs", &version), "").await.refused(409, "ShareAlreadyExists");
    server.delete("/docs?restype=share", "").await.expect(202);
    let restored = server.put(undelete, &both("docs", &version), "").await.expect(201);
    assert_eq!(restored.etag(), server.get("/docs?restype=share", "").await.expect(200).etag());
    assert_eq!(names(&server, "").await, ["f"]);
    let found = server.get(&format!("/docs/f?sharesnapshot={id}"), "").await.expect(200);
    assert_eq!(found.body.len(), 10);
    let stats = server.get("/docs?restype=share&comp=stats", "").await.expect(200);
    assert!(stats.text().contains("<ShareUsageBytes>10</ShareUsageBytes>"));
    server.put(undelete, &both("docs", &version), "").await.refused(409, "ShareAlreadyExists");

    server.delete("/docs?restype=share", "x-ms-delete-snapshots: include").await.expect(202);
    let listed = server.get("/?comp=list&include=deleted", "").await.expect(200);
    let version = listed.text().rsplit("<Version>").next().unwrap().split('<').next().unwrap().to_owned();
    server.advance(7 * 86_400);
    server.put(undelete, &both("docs", &version), "").await.refused(404, "ShareNotFound");
    let listed = server.get("/?comp=list&include=deleted", "").await.expect(200);
    assert!(!listed.text().contains("docs"), "{}", listed.text());
    assert_eq!(server.service.sweep(lazuli_concurrency::Pace::FULL).await.unwrap().spaces, 2);
}

#[tokio::test]
async fn every_change_of_a_share_checks_conditional_headers() {
    let server = start().await;
    let etag = server.get("/docs?restype=share", "").await.expect(200).etag().to_owned();
    let stale = "if-match: \"0x1\"".to_owned();
    let same = format!("if-none-match: {etag}");
    for conditions in [&stale, &same] {
        for comp in ["&comp=metadata", "&comp=properties"] {
            let reply = server.put(&format!("/docs?restype=share{comp}"), conditions, "").await;
            reply.refused(412, "ConditionNotMet");
        }
        server.delete("/docs?restype=share", conditions).await.refused(412, "ConditionNotMet");
    }
    let two = format!("if-match: {etag}\nif-none-match: \"0x1\"");
    let reply = server.put("/docs?restype=share&comp=metadata", &two, "").await;
    reply.refused(400, "MultipleConditionHeadersNotSupported");
    let current = format!("if-match: {etag}\nx-ms-meta-a: b");
    server.put("/docs?restype=share&comp=metadata", &current, "").await.expect(200);
    server.delete("/docs?restype=share", &format!("if-match: {etag}")).await.refused(412, "ConditionNotMet");
}
