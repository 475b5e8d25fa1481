//! Static websites.

use crate::support::{Reply, TestServer, start};

const WEBSITE: &str = "<StorageServiceProperties><StaticWebsite><Enabled>true</Enabled>\
     <IndexDocument>index.html</IndexDocument><ErrorDocument404Path>errors/404.html</ErrorDocument404Path>\
     </StaticWebsite></StorageServiceProperties>";

async fn start_website() -> TestServer {
    let server = start().await;
    server.create_container("$web").await;
    for (name, body) in [
        ("index.html", "home"),
        ("docs/index.html", "docs"),
        ("docs/page%20one", "one"),
        ("errors/404.html", "sorry"),
    ] {
        let headers = "x-ms-blob-type: BlockBlob\nx-ms-blob-content-type: text/html";
        server.put(&format!("/$web/{name}"), headers, body).await.expect(201);
    }
    server.put("/?restype=service&comp=properties", "", WEBSITE).await.expect(202);
    server
}

impl TestServer {
    /// Sends a request to the website, as a browser does.
    async fn browse(&self, method: &str, path: &str, headers: &str) -> Reply {
        self.send_path(method, path, &format!("host: lapis.web.localhost\n{headers}"), "").await
    }
}

#[tokio::test]
async fn website_serves_pages_directory_indexes_and_the_error_page() {
    let server = start_website().await;
    for (path, status, body) in [
        ("/", 200, "home"),
        ("/index.html", 200, "home"),
        ("/docs/", 200, "docs"),
        ("/docs", 200, "docs"),
        ("/docs/page%20one", 200, "one"),
        ("/?anything=%zz&comp=list&restype=container", 200, "home"),
        ("/docs/?snapshot=x&timeout=x", 200, "docs"),
        ("/nothing", 404, "sorry"),
        ("/nothing/", 404, "sorry"),
        ("/index.html/", 404, "sorry"),
    ] {
        let got = server.browse("GET", path, "").await.expect(status);
        assert_eq!(got.text(), body, "{path}");
        assert_eq!(got.header("content-type"), Some("text/html"), "{path}");
        assert_eq!(got.header("x-ms-error-code"), (status == 404).then_some("WebContentNotFound"), "{path}");
        let head = server.browse("HEAD", path, "").await.expect(status);
        assert_eq!(head.header("content-length"), Some(body.len().to_string().as_str()), "{path}");
    }
    let long = format!("/{}", "x".repeat(2000));
    assert_eq!(server.browse("GET", &long, "").await.expect(404).text(), "sorry");
}

#[tokio::test]
async fn website_supports_ranges_and_conditions() {
    let server = start_website().await;
    let page = server.browse("GET", "/docs/", "").await.expect(200);
    let tag = page.etag();
    assert!(tag.starts_with('"'), "{tag}");
    server.browse("GET", "/docs/", &format!("if-none-match: {tag}")).await.expect(304);
    let part = server.browse("GET", "/docs/", "range: bytes=1-2").await.expect(206);
    assert_eq!(part.text(), "oc");
    // Headers of the blob protocol are ignored.
    let headers = "x-ms-range: bytes=1-2\nx-ms-version: 2009-01-01\nx-ms-lease-id: nonsense";
    assert_eq!(server.browse("GET", "/docs/", headers).await.expect(200).text(), "docs");
    assert_eq!(server.browse("GET", "/nothing", "range: bytes=0-0").await.expect(404).text(), "sorry");
}

#[tokio::test]
async fn website_is_read_only_and_can_be_disabled() {
    let server = start_website().await;
    for method in ["PUT", "POST", "DELETE", "OPTIONS"] {
        server.browse(method, "/index.html", "").await.expect(405);
    }
    // The same blobs are not public through the blob service.
    server.send("GET", "/$web/index.html", "", "").await.refused(401, "NoAuthenticationInformation");
    server.delete("/$web/errors/404.html", "").await.expect(202);
    let missing = server.browse("GET", "/nothing", "").await.refused(404, "WebContentNotFound");
    assert_eq!(missing.header("content-type"), Some("text/html"));
    assert!(missing.text().contains("<h1>The requested content does not exist.</h1>"));
    let off = WEBSITE.replace("true", "false");
    server.put("/?restype=service&comp=properties", "", off).await.expect(202);
    server.browse("GET", "/", "").await.refused(404, "WebContentNotFound");
    server.send_path("GET", "/", "host: unknown.web.localhost", "").await.expect(403);
}

#[tokio::test]
async fn website_without_its_container_has_no_pages() {
    let server = start().await;
    server.put("/?restype=service&comp=properties", "", WEBSITE).await.expect(202);
    server.browse("GET", "/", "").await.refused(404, "WebContentNotFound");
}
