//! Create Table, Delete Table, Get and Set Table ACL.

use crate::support::{JSON, create, start};

#[tokio::test]
async fn table_is_created_once_regardless_of_case() {
    let server = start().await;
    let created = server.post("/Tables", JSON, r#"{"TableName":"MyTable"}"#).await.expect(201);
    let endpoint = format!("http://{}/lapis", server.address);
    let body =
        format!(r#"{{"odata.metadata":"{endpoint}/$metadata#Tables/@Element","TableName":"MyTable"}}"#);
    assert_eq!(created.text(), body);
    assert_eq!(created.header("location"), Some(format!("{endpoint}/Tables('MyTable')").as_str()));
    assert_eq!(created.header("preference-applied"), None);
    for name in ["MyTable", "mytable", "MYTABLE"] {
        let body = format!(r#"{{"TableName":"{name}"}}"#);
        server.post("/Tables", JSON, body).await.refused(409, "TableAlreadyExists");
    }
}

#[tokio::test]
async fn prefer_decides_whether_the_table_is_returned_and_is_confirmed() {
    let server = start().await;
    for (table, prefer, status) in [("aaa", "return-no-content", 204), ("bbb", "return-content", 201)] {
        let headers = format!("{JSON}\nprefer: {prefer}");
        let body = format!(r#"{{"TableName":"{table}"}}"#);
        let created = server.post("/Tables()", &headers, body).await.expect(status);
        assert_eq!(created.header("preference-applied"), Some(prefer));
        assert_eq!(created.body.is_empty(), status == 204);
    }
}

#[tokio::test]
async fn invalid_table_names_are_refused() {
    let server = start().await;
    for (name, code) in [
        ("ab", "OutOfRangeInput"),
        (&"x".repeat(64), "OutOfRangeInput"),
        ("1abc", "InvalidResourceName"),
        ("my-table", "InvalidResourceName"),
        ("tables", "InvalidInput"),
    ] {
        let body = format!(r#"{{"TableName":"{name}"}}"#);
        server.post("/Tables", JSON, body).await.refused(400, code);
    }
    server.post("/Tables", JSON, "{}").await.refused(400, "PropertiesNeedValue");
    server.post("/Tables", JSON, "{").await.refused(400, "InvalidInput");
}

#[tokio::test]
async fn deleted_table_frees_its_name_for_an_empty_table() {
    let server = start().await;
    crate::support::insert(&server, "p", "r", "").await;
    server.delete("/Tables('PEOPLE')", "").await.expect(204);
    server.get(&crate::support::at("p", "r"), JSON).await.refused(404, "TableNotFound");
    server.delete("/Tables('people')", "").await.refused(404, "ResourceNotFound");
    create(&server, "people").await;
    server.get(&crate::support::at("p", "r"), JSON).await.refused(404, "ResourceNotFound");
    let swept = server.service.sweep(lazuli_concurrency::Pace::FULL).await.unwrap();
    assert_eq!(swept.spaces, 1);
}

#[tokio::test]
async fn access_policies_are_stored_and_returned_as_xml() {
    let server = start().await;
    let policy = "<SignedIdentifiers><SignedIdentifier><Id>one</Id><AccessPolicy>\
                  <Start>2026-01-01T00:00:00.0000000Z</Start><Expiry>2027-01-01T00:00:00.0000000Z</Expiry>\
                  <Permission>raud</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>";
    server.signed("PUT", "/people?comp=acl", "", policy).await.expect(204);
    let found = server.signed("GET", "/people?comp=acl", "", "").await.expect(200);
    assert!(found.text().ends_with(policy), "{}", found.text());
    server.signed("GET", "/nobody?comp=acl", "", "").await.refused(404, "TableNotFound");
    let server = server.restart().await;
    let found = server.signed("GET", "/people?comp=acl", "", "").await.expect(200);
    assert!(found.text().ends_with(policy), "{}", found.text());
}
