//! Create Container, properties, metadata, access policies, public access, and the use of leased containers.

use crate::lease::headers;
use crate::support::{Reply, TestServer, start};
use lazuli_account::Setting;

const CON: &str = "/con?restype=container";
const STATES: [&str; 5] = ["available", "leased", "breaking", "broken", "expired"];

/// Renders a document of access policies.
fn policies(ids: &[&str]) -> String {
    let identifiers = ids.iter().map(|id| {
        format!(
            "<SignedIdentifier><Id>{id}</Id><AccessPolicy><Start>2020-01-01T00:00:00Z</Start>\
             <Expiry>2099-01-01T00:00:00Z</Expiry><Permission>rl</Permission></AccessPolicy></SignedIdentifier>"
        )
    });
    format!("<SignedIdentifiers>{}</SignedIdentifiers>", identifiers.collect::<String>())
}

impl TestServer {
    async fn set_acl(&self, container: &str, headers: &str, body: String) -> Reply {
        self.signed("PUT", &format!("/{container}?restype=container&comp=acl"), headers, body).await
    }
}

#[tokio::test]
async fn container_properties_are_reported() {
    let server = start().await;
    let created = server.put(CON, "x-ms-meta-color: blue", "").await.expect(201);
    for method in ["GET", "HEAD"] {
        let found = server.call(method, CON, "", "").await.expect(200);
        for (name, value) in [
            ("etag", created.etag()),
            ("last-modified", created.header("last-modified").unwrap()),
            ("x-ms-meta-color", "blue"),
            ("x-ms-lease-status", "unlocked"),
            ("x-ms-lease-state", "available"),
            ("x-ms-has-immutability-policy", "false"),
            ("x-ms-has-legal-hold", "false"),
            ("x-ms-default-encryption-scope", "$account-encryption-key"),
            ("x-ms-deny-encryption-scope-override", "false"),
        ] {
            assert_eq!(found.header(name), Some(value), "{name}");
        }
        assert_eq!(found.header("x-ms-blob-public-access"), None);
    }
    let old = server.get(CON, "x-ms-version: 2015-12-11").await.expect(200);
    assert_eq!(old.header("x-ms-has-legal-hold"), None);
    server.put(CON, "", "").await.refused(409, "ContainerAlreadyExists");
}

#[tokio::test]
async fn container_names_are_checked_and_system_names_refused() {
    let server = start().await;
    for (name, outcome) in [
        ("ab", (400, "OutOfRangeInput")),
        ("Abc", (400, "InvalidResourceName")),
        ("a--b", (400, "InvalidResourceName")),
        ("$logs", (400, "InvalidResourceName")),
        ("$blobchangefeed", (400, "InvalidResourceName")),
        ("$other", (400, "InvalidResourceName")),
        ("$root", (201, "")),
        ("$web", (201, "")),
    ] {
        let reply = server.put(&format!("/{name}?restype=container"), "", "").await;
        assert_eq!(reply.outcome(), outcome, "{name}");
    }
    server.put_block_blob("/in-the-root", "x").await;
    assert_eq!(server.get("/$root/in-the-root", "").await.expect(200).text(), "x");
}

#[tokio::test]
async fn metadata_is_replaced_as_a_whole() {
    let server = start().await;
    server.put(CON, "x-ms-meta-a: 1\nx-ms-meta-b: 2", "").await.expect(201);
    let target = format!("{CON}&comp=metadata");
    server.put(&target, "x-ms-meta-B: 3", "").await.expect(200);
    let found = server.get(&target, "").await.expect(200);
    assert_eq!((found.header("x-ms-meta-a"), found.header("x-ms-meta-b")), (None, Some("3")));
    assert_eq!(found.header("x-ms-lease-state"), None);
    server.put(&target, "", "").await.expect(200);
    assert_eq!(server.head(&target, "").await.expect(200).header("x-ms-meta-b"), None);
    server.put(&target, "x-ms-meta-1a: x", "").await.refused(400, "InvalidMetadata");
    server.put("/none?restype=container&comp=metadata", "", "").await.refused(404, "ContainerNotFound");
}

#[tokio::test]
async fn container_etag_changes_with_its_properties_but_not_with_leases_or_blobs() {
    let server = start().await;
    let mut tag = server.put(CON, "", "").await.expect(201).etag().to_owned();
    for (change, what) in [
        (true, "metadata"),
        (true, "metadata"),
        (true, "acl"),
        (false, "lease-action=acquire lease-duration=-1 proposed-lease-id=A"),
        (false, "lease-action=renew lease-id=A"),
        (false, "lease-action=change lease-id=A proposed-lease-id=B"),
        (false, "lease-action=break lease-break-period=5"),
        (false, "lease-action=release lease-id=B"),
        (false, "blob"),
    ] {
        server.advance(1);
        let reply = match what {
            "metadata" => server.put(&format!("{CON}&comp=metadata"), "", "").await.expect(200),
            "acl" => server.set_acl("con", "", String::new()).await.expect(200),
            "blob" => server.put_block_blob("/con/b", "").await,
            action => server.lease(CON, action).await,
        };
        assert!(reply.status.is_success(), "{what}");
        let found = server.head(CON, "").await.expect(200);
        assert_eq!(found.etag() != tag, change, "{what}");
        if change {
            assert_eq!(found.etag(), reply.etag(), "{what}");
            assert_eq!(found.header("last-modified"), reply.header("last-modified"), "{what}");
        }
        tag = found.etag().to_owned();
    }
}

#[tokio::test]
async fn every_container_change_checks_all_four_conditions() {
    let server = start().await;
    let created = server.put(CON, "", "").await.expect(201);
    let date = created.header("last-modified").unwrap();
    let unmet = [
        "if-match: \"0x1\"".to_owned(),
        format!("if-none-match: {}", created.etag()),
        format!("if-modified-since: {date}"),
        "if-unmodified-since: Sun, 06 Nov 1994 08:49:37 GMT".to_owned(),
    ];
    let acquire = headers("lease-action=acquire lease-duration=15");
    for condition in &unmet {
        let metadata = server.put(&format!("{CON}&comp=metadata"), condition, "").await;
        let acl = server.set_acl("con", condition, String::new()).await;
        let lease = server.put(&format!("{CON}&comp=lease"), &format!("{acquire}{condition}"), "").await;
        let delete = server.delete(CON, condition).await;
        for reply in [metadata, acl, lease, delete] {
            reply.refused(412, "ConditionNotMet");
        }
        // Reads of containers ignore conditions.
        server.get(CON, condition).await.expect(200);
    }
    let both = "if-match: \"0x1\"\nif-none-match: \"0x1\"";
    server.delete(CON, both).await.refused(400, "MultipleConditionHeadersNotSupported");
    assert_eq!(server.head(CON, "").await.etag(), created.etag());
    let met = format!("if-match: {}", created.etag());
    let changed = server.put(&format!("{CON}&comp=metadata"), &met, "").await.expect(200);
    server.put(&format!("{CON}&comp=metadata"), &met, "").await.refused(412, "ConditionNotMet");
    server.delete(CON, &format!("if-match: {}", changed.etag())).await.expect(202);
}

#[tokio::test]
async fn only_deleting_a_leased_container_requires_the_id_and_a_wrong_id_is_refused() {
    let server = start().await;
    const ABSENT: &str = "412 LeaseNotPresentWithContainerOperation";
    const OTHER: &str = "412 LeaseIdMismatchWithContainerOperation";
    const MISSING: &str = "412 LeaseIdMissing";
    const LOST: &str = "412 LeaseLost";
    let table = [
        ("", [["200"; 5], ["202", MISSING, MISSING, "202", "202"]]),
        ("lease-id=A", [[ABSENT, "200", "200", LOST, LOST], [ABSENT, "202", "202", LOST, LOST]]),
        ("lease-id=B", [[ABSENT, OTHER, OTHER, LOST, LOST]; 2]),
    ];
    for (row, (words, [used, deleted])) in table.into_iter().enumerate() {
        for (column, state) in STATES.iter().enumerate() {
            let name = format!("con-{row}-{column}");
            let con = format!("/{name}?restype=container");
            server.blob_in_state(&con, state).await;
            let lines = headers(words);
            let uses = [
                server.get(&con, &lines).await,
                server.get(&format!("{con}&comp=metadata"), &lines).await,
                server.put(&format!("{con}&comp=metadata"), &lines, "").await,
                server.signed("GET", &format!("{con}&comp=acl"), &lines, "").await,
                server.set_acl(&name, &lines, String::new()).await,
            ];
            for (at, reply) in uses.into_iter().enumerate() {
                assert_eq!(outcome_text(&reply), used[column], "use {at} with {words} of {state}");
            }
            assert_eq!(
                server.lease_state(&con).await,
                *state,
                "using the container keeps its lease, even an ended one"
            );
            server.put_block_blob(&format!("/{name}/b"), "").await;
            assert_eq!(
                outcome_text(&server.delete(&con, &lines).await),
                deleted[column],
                "delete with {words} of {state}"
            );
        }
    }
}

fn outcome_text(reply: &Reply) -> String {
    match reply.header("x-ms-error-code") {
        Some(code) => format!("{} {code}", reply.status.as_u16()),
        None => reply.status.as_u16().to_string(),
    }
}

#[tokio::test]
async fn access_policies_round_trip() {
    let server = start().await;
    server.create_container("con").await;
    let target = format!("{CON}&comp=acl");
    let empty = server.signed("GET", &target, "", "").await.expect(200);
    assert!(empty.text().ends_with("<SignedIdentifiers></SignedIdentifiers>"), "{}", empty.text());
    assert_eq!(empty.header("x-ms-blob-public-access"), None);
    server.set_acl("con", "x-ms-blob-public-access: blob", policies(&["one", "two"])).await.expect(200);
    let server = server.restart().await;
    let set = server.signed("GET", &target, "", "").await.expect(200);
    assert_eq!(set.header("content-type"), Some("application/xml"));
    assert_eq!(set.header("x-ms-blob-public-access"), Some("blob"));
    assert_eq!(set.text().matches("<Permission>rl</Permission>").count(), 2);
    assert!(set.text().contains("<Id>one</Id>"), "{}", set.text());
    assert_eq!(server.signed("HEAD", &target, "", "").await.expect(200).etag(), set.etag());
    // Policies that are omitted are removed.
    server.set_acl("con", "", String::new()).await.expect(200);
    assert_eq!(server.signed("GET", &target, "", "").await.header("x-ms-blob-public-access"), None);

    let six = policies(&["1", "2", "3", "4", "5", "6"]);
    server.set_acl("con", "", six).await.refused(400, "InvalidXmlDocument");
    server.set_acl("con", "", policies(&[&"x".repeat(65)])).await.refused(400, "InvalidXmlDocument");
    server.set_acl("con", "", "<Signed".into()).await.refused(400, "InvalidXmlDocument");
    let level = server.set_acl("con", "x-ms-blob-public-access: all", String::new()).await;
    level.refused(400, "InvalidHeaderValue");
    server.set_acl("none", "", String::new()).await.refused(404, "ContainerNotFound");
    // A signature in a URI does not allow this operation.
    server.get(&target, "").await.refused(403, "AuthorizationFailure");
}

#[tokio::test]
async fn anonymous_callers_read_only_public_blobs_and_containers() {
    let server = start().await;
    let list = |container: &str| format!("/{container}?restype=container&comp=list");
    for (name, level) in [("none", ""), ("blobs", "blob"), ("all", "container")] {
        let header =
            if level.is_empty() { String::new() } else { format!("x-ms-blob-public-access: {level}") };
        server.signed("PUT", &format!("/{name}?restype=container"), &header, "").await.expect(201);
        server.put_block_blob(&format!("/{name}/b"), "x").await;
        let shown = server.get(&format!("/{name}?restype=container"), "").await.expect(200);
        assert_eq!(shown.header("x-ms-blob-public-access"), Some(level).filter(|level| !level.is_empty()));
    }
    for (container, blob, container_status) in [("none", 401, 401), ("blobs", 200, 401), ("all", 200, 200)] {
        let read = server.send("GET", &format!("/{container}/b"), "", "").await;
        assert_eq!(read.status, blob, "{container}");
        for target in [list(container), format!("/{container}?restype=container")] {
            let read = server.send("GET", &target, "", "").await;
            assert_eq!(read.status, container_status, "{target}");
        }
        let write = server.send("PUT", &format!("/{container}/b"), "x-ms-blob-type: BlockBlob", "").await;
        write.refused(401, "NoAuthenticationInformation");
    }
    // Set Container ACL makes containers private and public.
    server.set_acl("all", "", String::new()).await.expect(200);
    server.send("GET", "/all/b", "", "").await.expect(401);
    server.set_acl("none", "x-ms-blob-public-access: blob", String::new()).await.expect(200);
    server.send("GET", "/none/b", "", "").await.expect(200);

    server.set(Setting::PublicAccess(false)).await;
    server.send("GET", "/none/b", "", "").await.refused(409, "PublicAccessNotPermitted");
    let public = "x-ms-blob-public-access: blob";
    server.set_acl("none", public, String::new()).await.refused(409, "PublicAccessNotPermitted");
    server.signed("PUT", "/new?restype=container", public, "").await.refused(409, "PublicAccessNotPermitted");
    server.set_acl("none", "", String::new()).await.expect(200);
}

#[tokio::test]
async fn create_session_is_refused_so_clients_keep_their_tokens() {
    let server = start().await;
    server.create_container("con").await;
    let body = "<CreateSessionRequest><AuthenticationType>HMAC</AuthenticationType></CreateSessionRequest>";
    let reply = server.signed("POST", "/con?restype=container&comp=session", "", body).await;
    reply.refused(400, "FeatureNotEnabled");
}
