//! Queues: create, delete, metadata, access policies, properties of the service.

use crate::support::{body, count, start, start_empty};

#[tokio::test]
async fn creating_again_succeeds_if_the_metadata_is_equal() {
    let server = start_empty().await;
    let meta = "x-ms-meta-color: blue\nx-ms-meta-size: 7";
    server.put("/jobs", meta, "").await.expect(201);
    server.put("/jobs", "x-ms-meta-SIZE: 7\nx-ms-meta-Color: blue", "").await.expect(204);
    server.put("/jobs", "", "").await.refused(409, "QueueAlreadyExists");
    server.put("/jobs", "x-ms-meta-color: blue", "").await.refused(409, "QueueAlreadyExists");
    let shown = server.get("/jobs?comp=metadata", "").await.expect(200);
    assert_eq!((shown.header("x-ms-meta-color"), shown.header("x-ms-meta-size")), (Some("blue"), Some("7")));
}

#[tokio::test]
async fn names_are_checked_by_every_operation() {
    let server = start_empty().await;
    let long = "a".repeat(64);
    for (name, code) in [
        ("ab", "OutOfRangeInput"),
        (&long, "OutOfRangeInput"),
        ("Jobs", "InvalidResourceName"),
        ("jo--bs", "InvalidResourceName"),
        ("-jobs", "InvalidResourceName"),
        ("jobs-", "InvalidResourceName"),
        ("jo_bs", "InvalidResourceName"),
    ] {
        for (method, target, text) in [
            ("PUT", "", ""),
            ("DELETE", "", ""),
            ("GET", "?comp=metadata", ""),
            ("PUT", "?comp=metadata", ""),
            ("POST", "/messages", &body("a")),
            ("GET", "/messages", ""),
            ("GET", "/messages?peekonly=true", ""),
            ("DELETE", "/messages", ""),
            ("DELETE", "/messages/x?popreceipt=y", ""),
            ("PUT", "/messages/x?popreceipt=y&visibilitytimeout=0", ""),
        ] {
            let reply = server.call(method, &format!("/{name}{target}"), "", text.to_owned()).await;
            assert_eq!(reply.outcome(), (400, code), "{method} {name}{target}");
        }
        server.signed("GET", &format!("/{name}?comp=acl"), "", "").await.refused(400, code);
        server.signed("PUT", &format!("/{name}?comp=acl"), "", "").await.refused(400, code);
    }
    server.put(&format!("/{}", "a".repeat(63)), "", "").await.expect(201);
    server.put("/0-9", "", "").await.expect(201);
}

#[tokio::test]
async fn missing_queue_is_404_for_every_operation() {
    let server = start_empty().await;
    for (method, target, text) in [
        ("DELETE", "", ""),
        ("GET", "?comp=metadata", ""),
        ("PUT", "?comp=metadata", ""),
        ("POST", "/messages", &body("a")),
        ("GET", "/messages", ""),
        ("GET", "/messages?peekonly=true", ""),
        ("DELETE", "/messages", ""),
        ("DELETE", "/messages/x?popreceipt=y", ""),
        ("PUT", "/messages/x?popreceipt=y&visibilitytimeout=0", ""),
    ] {
        let reply = server.call(method, &format!("/none{target}"), "", text.to_owned()).await;
        assert_eq!(reply.outcome(), (404, "QueueNotFound"), "{method} {target}");
    }
    server.signed("GET", "/none?comp=acl", "", "").await.refused(404, "QueueNotFound");
    server.signed("PUT", "/none?comp=acl", "", "").await.refused(404, "QueueNotFound");
    let head = server.call("HEAD", "/none?comp=metadata", "", "").await;
    assert_eq!((head.outcome(), head.text()), ((404, "QueueNotFound"), ""));
}

#[tokio::test]
async fn deleting_a_queue_removes_its_messages_and_frees_its_name() {
    let server = start().await;
    server.post("/jobs/messages", "", body("old")).await.expect(201);
    server.delete("/jobs", "").await.expect(204);
    server.delete("/jobs", "").await.refused(404, "QueueNotFound");
    server.post("/jobs/messages", "", body("lost")).await.refused(404, "QueueNotFound");
    server.put("/jobs", "x-ms-meta-new: yes", "").await.expect(201);
    assert_eq!(count(&server).await, 0);
    assert!(!server.get("/jobs/messages", "").await.text().contains("old"));
}

#[tokio::test]
async fn metadata_is_replaced_as_a_whole_and_returned_by_get_and_head() {
    let server = start().await;
    server.put("/jobs?comp=metadata", "x-ms-meta-a: 1\nx-ms-meta-b: 2", "").await.expect(204);
    for method in ["GET", "HEAD"] {
        let shown = server.call(method, "/jobs?comp=metadata", "", "").await.expect(200);
        assert_eq!((shown.header("x-ms-meta-a"), shown.header("x-ms-meta-b")), (Some("1"), Some("2")));
        assert_eq!((shown.header("x-ms-approximate-messages-count"), shown.text()), (Some("0"), ""));
    }
    server.put("/jobs?comp=metadata", "x-ms-meta-c: 3", "").await.expect(204);
    let shown = server.get("/jobs?comp=metadata", "").await.expect(200);
    assert_eq!((shown.header("x-ms-meta-a"), shown.header("x-ms-meta-c")), (None, Some("3")));
    server.put("/jobs?comp=metadata", "", "").await.expect(204);
    assert_eq!(server.get("/jobs?comp=metadata", "").await.expect(200).header("x-ms-meta-c"), None);
    for (headers, code) in [
        ("x-ms-meta-a-b: 1", "InvalidMetadata"),
        (&format!("x-ms-meta-a: {}", "v".repeat(8192)), "MetadataTooLarge"),
    ] {
        server.put("/jobs?comp=metadata", headers, "").await.refused(400, code);
        server.put("/other", headers, "").await.refused(400, code);
    }
}

#[tokio::test]
async fn access_policies_are_stored_as_set() {
    let server = start().await;
    let empty = "<?xml version=\"1.0\" encoding=\"utf-8\"?><SignedIdentifiers></SignedIdentifiers>";
    assert_eq!(server.signed("GET", "/jobs?comp=acl", "", "").await.expect(200).text(), empty);
    let policy = "<SignedIdentifiers><SignedIdentifier><Id>a</Id><AccessPolicy>\
                  <Start>2026-01-01T00:00:00.0000000Z</Start><Expiry>2026-02-01T00:00:00.0000000Z</Expiry>\
                  <Permission>raup</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>";
    server.signed("PUT", "/jobs?comp=acl", "", policy).await.expect(204);
    assert!(server.signed("GET", "/jobs?comp=acl", "", "").await.expect(200).text().ends_with(policy));
    let head = server.signed("HEAD", "/jobs?comp=acl", "", "").await.expect(200);
    assert_eq!(head.text(), "");

    let one = |n: usize| format!("<SignedIdentifier><Id>{n}</Id></SignedIdentifier>");
    let six: String = (0..6).map(one).collect();
    for body in ["<SignedIdentifiers>", &format!("<SignedIdentifiers>{six}</SignedIdentifiers>")] {
        server.signed("PUT", "/jobs?comp=acl", "", body.to_owned()).await.refused(400, "InvalidXmlDocument");
    }
    server.signed("PUT", "/jobs?comp=acl", "", "").await.expect(204);
    assert_eq!(server.signed("GET", "/jobs?comp=acl", "", "").await.expect(200).text(), empty);
}

#[tokio::test]
async fn queue_service_has_its_own_properties() {
    let server = start().await;
    let cors = "<StorageServiceProperties><Cors><CorsRule><AllowedOrigins>http://a.example</AllowedOrigins>\
                <AllowedMethods>GET</AllowedMethods><MaxAgeInSeconds>5</MaxAgeInSeconds><ExposedHeaders>*</ExposedHeaders>\
                <AllowedHeaders>*</AllowedHeaders></CorsRule></Cors></StorageServiceProperties>";
    server.put("/?restype=service&comp=properties", "", cors).await.expect(202);
    let shown = server.get("/?restype=service&comp=properties", "").await.expect(200);
    assert!(shown.text().contains("<AllowedOrigins>http://a.example</AllowedOrigins>"));
    let got = server.get("/jobs/messages", "origin: http://a.example").await.expect(200);
    assert_eq!(got.header("access-control-allow-origin"), Some("http://a.example"));
}
