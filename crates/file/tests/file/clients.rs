//! Requests of shipped clients that once failed. `docs/decisions/0019` gives the reason for each answer.

use lazuli_protocol::date;

use crate::support::{make_directory, make_file, start};

const PERMISSION: &str = "/docs?restype=share&comp=filepermission";
const SDDL: &str = "O:SYG:SYD:(A;;FA;;;BA)";

#[tokio::test]
async fn a_permission_may_be_sent_with_capitals() {
    let server = start().await;
    let bytes = "AQAEgDAAAABAAAAAAAAAABQAAAACABwAAQAAAAAAFAD/AR8AAQEAAAAAAAEAAAAAAQIAAAAAAAUgAAAAIAIAAAEBAAAAAAAFEgAAAA==";
    for (body, sddl) in [
        // .NET of 2020, Go of 2020.
        (format!(r#"{{"Permission":"{SDDL}"}}"#), SDDL),
        // .NET of 2025.
        (format!(r#"{{"permission":"{SDDL}","format":"Sddl"}}"#), SDDL),
        (format!(r#"{{"permission":"{bytes}","format":"Binary"}}"#), "O:BAG:SYD:(A;;FA;;;WD)"),
        (format!(r#"{{"Permission":"{SDDL}","Format":"SDDL"}}"#), SDDL),
        (format!(r#"{{"permission":"{SDDL}","format":null}}"#), SDDL),
    ] {
        let json = "content-type: application/json; charset=utf-8\nx-ms-version: 2025-05-05";
        let created = server.put(PERMISSION, json, body.clone()).await.expect(201);
        let key = created.header("x-ms-file-permission-key").unwrap();
        let send = async |version: &str| {
            let headers = format!("x-ms-file-permission-key: {key}\nx-ms-version: {version}");
            server.get(PERMISSION, &headers).await.expect(200).text().to_owned()
        };
        let with_format = format!(r#"{{"permission":"{sddl}","format":"sddl"}}"#);
        assert_eq!(send("2025-05-05").await, with_format, "{body}");
        assert_eq!(send("2024-11-04").await, with_format, "{body}");
        assert_eq!(send("2021-10-04").await, format!(r#"{{"permission":"{sddl}"}}"#), "{body}");
    }
    for bad in [
        r#"{"permission":"O:SYG:SYD:","format":"xml"}"#,
        r#"{"permission":"O:SYG:SYD:","Permission":"O:SYG:SYD:"}"#,
        r#"{"PERMISSION":"O:SYG:SYD:"}"#,
        "{}",
    ] {
        server.put(PERMISSION, "", bad).await.refused(400, "InvalidInput");
    }
}

#[tokio::test]
async fn missing_snapshot_answers_share_not_found_except_to_delete_share() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "f", 1).await;
    let unknown = "sharesnapshot=2025-02-04T10%3A17%3A47.0000000Z";
    for (method, target, headers) in [
        ("GET", "/docs?restype=share&", ""),
        ("HEAD", "/docs?restype=share&", ""),
        ("GET", "/docs?restype=share&comp=metadata&", ""),
        ("GET", "/docs?restype=share&comp=stats&", ""),
        ("PUT", "/docs?restype=share&comp=lease&", "x-ms-lease-action: acquire\nx-ms-lease-duration: -1"),
        ("GET", "/docs?restype=directory&comp=list&", ""),
        ("GET", "/docs/d?restype=directory&", ""),
        ("GET", "/docs/d?restype=directory&comp=metadata&", ""),
        ("GET", "/docs/d?comp=listhandles&", ""),
        ("GET", "/docs/f?", ""),
        ("HEAD", "/docs/f?", ""),
        ("GET", "/docs/f?comp=rangelist&", ""),
        ("PUT", "/docs/f?comp=forceclosehandles&", "x-ms-handle-id: *"),
    ] {
        let reply = server.call(method, &format!("{target}{unknown}"), headers, "").await;
        assert_eq!(reply.status, 404, "{method} {target}");
        assert_eq!(reply.header("x-ms-error-code"), Some("ShareNotFound"), "{method} {target}");
    }
    server.get(&format!("/docs/f?comp=rangelist&prev{unknown}"), "").await.refused(404, "ShareNotFound");
    let target = format!("/docs?restype=share&{unknown}");
    server.delete(&target, "").await.refused(404, "ShareSnapshotNotFound");
    server.delete(&target.replace("docs", "none"), "").await.refused(404, "ShareNotFound");
}

#[tokio::test]
async fn share_properties_include_tier_change_time_and_previous_tier() {
    let server = start().await;
    let at = |reason| Some(date::rfc1123(reason));
    let found = async |name: &str| {
        let reply = server.get(&format!("/{name}?restype=share"), "").await.expect(200);
        let header = |name: &str| reply.header(name).map(str::to_owned);
        let headers = (
            header("x-ms-access-tier"),
            header("x-ms-access-tier-change-time"),
            header("x-ms-access-tier-transition-state"),
        );
        let list = server.get(&format!("/?comp=list&prefix={name}"), "").await.expect(200).text().to_owned();
        let element = |name: &str| {
            let rest = list.split_once(&format!("<{name}>"))?.1;
            Some(rest.split('<').next()?.to_owned())
        };
        let listed =
            (element("AccessTier"), element("AccessTierChangeTime"), element("AccessTierTransitionState"));
        assert_eq!(headers, listed);
        let (tier, changed, state) = headers;
        (tier.unwrap(), changed, state)
    };
    let start = at(server.store.now());
    assert_eq!(found("docs").await, ("TransactionOptimized".into(), start.clone(), None));
    server.put("/more?restype=share", "x-ms-access-tier: Hot", "").await.expect(201);
    assert_eq!(found("more").await, ("Hot".into(), start.clone(), None));

    server.advance(100);
    let set = async |tier: &str| {
        let headers = format!("x-ms-access-tier: {tier}\nx-ms-share-quota: 5");
        server.put("/docs?restype=share&comp=properties", &headers, "").await.expect(200);
        at(server.store.now())
    };
    set("TransactionOptimized").await;
    assert_eq!(found("docs").await, ("TransactionOptimized".into(), start, None));
    let changed = set("Hot").await;
    let pending = Some("pending-from-transactionOptimized".to_owned());
    assert_eq!(found("docs").await, ("Hot".into(), changed.clone(), pending.clone()));
    server.advance(58);
    set("Hot").await;
    assert_eq!(found("docs").await, ("Hot".into(), changed.clone(), pending));
    server.advance(2);
    assert_eq!(found("docs").await, ("Hot".into(), changed, None));
    let changed = set("Cool").await;
    assert_eq!(found("docs").await, ("Cool".into(), changed, Some("pending-from-hot".into())));
    let changed = set("TransactionOptimized").await;
    let pending = Some("pending-from-cool".into());
    assert_eq!(found("docs").await, ("TransactionOptimized".into(), changed, pending));
}

#[tokio::test]
async fn set_file_properties_without_content_type_clears_it() {
    let server = start().await;
    for version in ["2014-02-14", "2018-03-28", "2021-10-04", "2025-05-05"] {
        let version = format!("x-ms-version: {version}");
        let create = format!("{version}\nx-ms-type: file\nx-ms-content-length: 4");
        server.put("/docs/f", &create, "").await.expect(201);
        let check = async |content_type: Option<&str>| {
            for method in ["HEAD", "GET"] {
                let found = server.call(method, "/docs/f", &version, "").await.expect(200);
                assert_eq!(found.header("content-type"), content_type, "{method} {version}");
            }
        };
        let set = async |headers: &str| {
            let headers = format!("{version}\n{headers}");
            server.put("/docs/f?comp=properties", &headers, "").await.expect(200);
        };
        check(Some("application/octet-stream")).await;
        set("x-ms-content-length: 5").await;
        check(Some("application/octet-stream")).await;
        server.put("/docs/f?comp=metadata", &format!("{version}\nx-ms-meta-a: 1"), "").await.expect(200);
        check(Some("application/octet-stream")).await;
        set("").await;
        check(None).await;
        set("x-ms-content-length: 6").await;
        check(None).await;
        let source = format!("http://{}/{}/docs/f", server.address, lazuli_testing::ACCOUNT);
        server.signed("PUT", "/docs/copy", &format!("x-ms-copy-source: {source}"), "").await.expect(202);
        let copy = server.get("/docs/copy", "").await.expect(200);
        assert_eq!(copy.header("content-type"), None);
        set("x-ms-content-type: text/plain").await;
        check(Some("text/plain")).await;
        set("x-ms-cache-control: no-cache").await;
        check(None).await;
        server.put("/docs/f", &create, "").await.expect(201);
        check(Some("application/octet-stream")).await;
    }
}

#[tokio::test]
async fn a_new_file_is_marked_for_archiving_and_a_directory_is_not() {
    let server = start().await;
    let file = "x-ms-type: file\nx-ms-content-length: 0";
    let permission = format!("x-ms-file-permission: {SDDL}");
    let restore = "x-ms-file-property-semantics: Restore";
    for (headers, attributes) in [
        (String::new(), "Archive"),
        ("x-ms-file-attributes: None".into(), "Archive"),
        ("x-ms-file-property-semantics: New".into(), "Archive"),
        ("x-ms-file-attributes: Hidden".into(), "Hidden | Archive"),
        (format!("x-ms-file-attributes: None\n{restore}\n{permission}"), "None"),
        (format!("x-ms-file-attributes: Hidden\n{restore}\n{permission}"), "Hidden"),
        ("x-ms-file-attributes: ReadOnly".into(), "ReadOnly | Archive"),
    ] {
        let made = server.put("/docs/f", &format!("{file}\n{headers}"), "").await.expect(201);
        assert_eq!(made.header("x-ms-file-attributes"), Some(attributes), "{headers}");
        let found = server.call("HEAD", "/docs/f", "", "").await.expect(200);
        assert_eq!(found.header("x-ms-file-attributes"), Some(attributes), "{headers}");
    }
    for (n, headers) in ["", "x-ms-file-attributes: None", restore].into_iter().enumerate() {
        let made = server.put(&format!("/docs/d{n}?restype=directory"), headers, "").await.expect(201);
        assert_eq!(made.header("x-ms-file-attributes"), Some("Directory"), "{headers}");
    }
}

#[tokio::test]
async fn range_md5_above_4_mib_is_refused_even_for_a_short_file() {
    let server = start().await;
    make_file(&server, "f", 1024).await;
    for (range, outcome) in [
        ("x-ms-range: bytes=0-4194303", (206, "")),
        ("x-ms-range: bytes=0-4194304", (400, "InvalidHeaderValue")),
        ("x-ms-range: bytes=0-", (206, "")),
        ("", (400, "InvalidHeaderValue")),
    ] {
        let headers = format!("{range}\nx-ms-range-get-content-md5: true");
        assert_eq!(server.get("/docs/f", &headers).await.outcome(), outcome, "{range}");
    }
}
