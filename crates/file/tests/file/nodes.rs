//! Directories and files: create, properties, metadata, delete, list.

use crate::support::{make_directory, make_file, names, start};

#[tokio::test]
async fn names_ignore_case_but_keep_their_spelling() {
    let server = start().await;
    make_directory(&server, "Photos").await;
    make_file(&server, "photos/Cat.JPG", 3).await;
    assert_eq!(names(&server, "PHOTOS").await, ["Cat.JPG"]);
    let found = server.call("HEAD", "/docs/PHOTOS/cat.jpg", "", "").await.expect(200);
    assert_eq!(found.header("content-length"), Some("3"));
    let again = server.put("/docs/PHOTOS?restype=directory", "", "").await;
    again.refused(409, "ResourceAlreadyExists");
    assert_eq!(names(&server, "").await, ["Photos"]);
}

#[tokio::test]
async fn parent_directory_must_exist() {
    let server = start().await;
    let file = "x-ms-type: file\nx-ms-content-length: 1";
    server.put("/docs/no/f", file, "").await.refused(404, "ParentNotFound");
    server.put("/docs/no/d?restype=directory", "", "").await.refused(404, "ParentNotFound");
    make_file(&server, "f", 1).await;
    server.put("/docs/f/g", file, "").await.refused(404, "ParentNotFound");
    server.get("/docs/no/f", "").await.refused(404, "ParentNotFound");
    server.get("/docs/no/d?restype=directory", "").await.refused(404, "ParentNotFound");
    server.get("/docs/no/d?restype=directory&comp=list", "").await.refused(404, "ParentNotFound");
    server.get("/docs/f/g", "").await.refused(404, "ParentNotFound");
    server.get("/docs/no", "").await.refused(404, "ResourceNotFound");
    server.get("/docs/no?restype=directory", "").await.refused(404, "ResourceNotFound");
    server.get("/docs/no?restype=directory&comp=list", "").await.refused(404, "ResourceNotFound");
}

#[tokio::test]
async fn directory_and_file_operations_refuse_the_other_kind() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "f", 1).await;
    // The Azure CLI relies on this to distinguish files from directories.
    server.call("HEAD", "/docs/d", "", "").await.refused(404, "ResourceNotFound");
    server.get("/docs/f?restype=directory", "").await.refused(404, "ResourceNotFound");
    let file = "x-ms-type: file\nx-ms-content-length: 1";
    server.put("/docs/d", file, "").await.refused(409, "ResourceTypeMismatch");
    server.put("/docs/f?restype=directory", "", "").await.refused(409, "ResourceTypeMismatch");
    server.put("/docs/d?restype=directory", "", "").await.refused(409, "ResourceAlreadyExists");
    server.get("/docs/d", "").await.refused(409, "ResourceTypeMismatch");
    server.put("/docs/d?comp=metadata", "", "").await.refused(409, "ResourceTypeMismatch");
    server.delete("/docs/d", "").await.refused(409, "ResourceTypeMismatch");
    server.delete("/docs/f?restype=directory", "").await.refused(409, "ResourceTypeMismatch");
}

#[tokio::test]
async fn properties_that_smb_clients_see_are_set_and_kept() {
    let server = start().await;
    let headers = "x-ms-type: file\nx-ms-content-length: 5\nx-ms-file-attributes: ReadOnly|Hidden\n\
                   x-ms-file-creation-time: 2020-01-02T03:04:05.1234567Z\nx-ms-file-last-write-time: now\n\
                   x-ms-content-type: text/plain\nx-ms-meta-a: b";
    let created = server.put("/docs/f", headers, "").await.expect(201);
    let found = server.call("HEAD", "/docs/f", "", "").await.expect(200);
    for (name, value) in [
        ("x-ms-file-attributes", "ReadOnly | Hidden | Archive"),
        ("x-ms-file-creation-time", "2020-01-02T03:04:05.1234567Z"),
        ("x-ms-file-parent-id", "0"),
        ("content-type", "text/plain"),
        ("x-ms-meta-a", "b"),
        ("x-ms-type", "File"),
    ] {
        assert_eq!(found.header(name), Some(value));
    }
    assert_eq!(found.header("x-ms-file-id"), created.header("x-ms-file-id"));
    server.delete("/docs/f", "").await.refused(409, "ReadOnlyAttribute");
    let metadata = server.put("/docs/f?comp=metadata", "x-ms-meta-c: d", "").await;
    metadata.refused(409, "ReadOnlyAttribute");
    server.put("/docs/f?comp=properties", "x-ms-file-attributes: None", "").await.expect(200);
    server.put("/docs/f?comp=metadata", "x-ms-meta-c: d", "").await.expect(200);
    let found = server.get("/docs/f?comp=metadata", "").await.expect(200);
    assert_eq!((found.header("x-ms-meta-a"), found.header("x-ms-meta-c")), (None, Some("d")));
    server.delete("/docs/f", "").await.expect(202);
    server.get("/docs/f", "").await.refused(404, "ResourceNotFound");
}

#[tokio::test]
async fn stored_md5_is_the_one_that_the_client_sends() {
    let server = start().await;
    make_file(&server, "f", 3).await;
    for md5 in ["TURBd01EQXdNREE9", "kAFQmDzST7DWlj99KOF/cg=="] {
        let headers = format!("x-ms-content-md5: {md5}");
        server.put("/docs/f?comp=properties", &headers, "").await.expect(200);
        assert_eq!(server.get("/docs/f", "").await.expect(200).header("content-md5"), Some(md5));
        let part = server.get("/docs/f", "x-ms-range: bytes=0-1").await.expect(206);
        assert_eq!(part.header("x-ms-content-md5"), Some(md5));
    }
    let long = format!("x-ms-content-md5: {}", "AAAA".repeat(22));
    for bad in ["x-ms-content-md5: no Base64", &long] {
        server.put("/docs/f?comp=properties", bad, "").await.refused(400, "InvalidMd5");
    }
}

#[tokio::test]
async fn listing_supports_prefix_pages_and_includes() {
    let server = start().await;
    for name in ["b", "a1", "a2", "C"] {
        make_file(&server, name, 7).await;
    }
    make_directory(&server, "a3").await;
    assert_eq!(names(&server, "").await, ["a1", "a2", "a3", "b", "C"]);
    let page = server.get("/docs?restype=directory&comp=list&prefix=A&maxresults=2", "").await.expect(200);
    let marker = page.text().split("<NextMarker>").nth(1).unwrap().split('<').next().unwrap().to_owned();
    assert!(page.text().contains("<Name>a2</Name>") && !page.text().contains("<Name>a3</Name>"));
    let target = format!("/docs?restype=directory&comp=list&prefix=A&marker={marker}");
    let rest = server.get(&target, "").await.expect(200);
    assert!(rest.text().contains("<Directory><FileId>") && rest.text().contains("<Name>a3</Name>"));
    assert!(rest.text().contains("<NextMarker />") && !rest.text().contains("<Name>b</Name>"));
    let target = "/docs?restype=directory&comp=list&include=Timestamps,Etag,Attributes,PermissionKey";
    for headers in ["", "x-ms-file-extended-info: true"] {
        let full = server.get(target, headers).await.expect(200);
        for element in ["<CreationTime>", "<Etag>", "<Attributes>Archive</Attributes>", "<PermissionKey>"] {
            assert!(full.text().contains(element), "{element} {}", full.text());
        }
    }
}

#[tokio::test]
async fn names_that_xml_cannot_hold_are_listed_encoded() {
    let server = start().await;
    make_directory(&server, "d%EF%BF%BE").await;
    make_file(&server, "d%EF%BF%BE/%EF%BF%BFf%20g", 1).await;
    let list = "/docs/d%EF%BF%BE?restype=directory&comp=list&prefix=%EF%BF%BF";
    let text = server.get(list, "").await.expect(200).text().to_owned();
    for part in [
        "Encoded=\"true\" DirectoryPath=\"d%EF%BF%BE\"",
        "<Prefix Encoded=\"true\">%EF%BF%BF</Prefix>",
        "<Name Encoded=\"true\">%EF%BF%BFf%20g</Name>",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text =
        server.get("/docs?restype=directory&comp=list&prefix=d", "").await.expect(200).text().to_owned();
    assert!(!text.contains("Encoded=\"true\" DirectoryPath"), "{text}");
}

#[tokio::test]
async fn tree_survives_a_restart() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_directory(&server, "d/e").await;
    make_file(&server, "d/e/f", 9).await;
    let server = server.restart().await;
    assert_eq!(names(&server, "d/e").await, ["f"]);
}

#[tokio::test]
async fn bad_names_are_refused() {
    let server = start().await;
    for name in ["a%3Ab", "con", "a%2A", "x%00", "..%2Fa"] {
        let reply = server.put(&format!("/docs/{name}?restype=directory"), "", "").await;
        reply.refused(400, "InvalidFileOrDirectoryPathName");
    }
}
