//! Query Tables: lists of tables, and single tables.

use lazuli_testing::Reply;

use crate::support::{JSON, Server, create, encoded, start, values};

fn names(reply: &Reply) -> Vec<String> {
    values(reply).iter().map(|table| table["TableName"].as_str().unwrap().to_owned()).collect()
}

async fn listed(server: &Server, options: &str) -> (Vec<String>, usize) {
    let (mut found, mut pages, mut next) = (vec![], 0, String::new());
    loop {
        let reply = server.get(&format!("/Tables?{options}{next}"), JSON).await.expect(200);
        found.extend(names(&reply));
        pages += 1;
        match reply.header("x-ms-continuation-nexttablename") {
            Some(token) => next = format!("&NextTableName={}", encoded(token)),
            None => return (found, pages),
        }
    }
}

#[tokio::test]
async fn tables_are_listed_in_order_and_in_pages_with_their_original_names() {
    let server = start().await;
    for name in ["Zebra", "apple", "Banana"] {
        create(&server, name).await;
    }
    create(&server, "gone").await;
    server.delete("/Tables('gone')", "").await.expect(204);
    let all = ["apple", "Banana", "people", "Zebra"];
    for (top, pages) in [(1, 4), (2, 2), (3, 2), (4, 1), (1000, 1)] {
        let (found, count) = listed(&server, &format!("$top={top}")).await;
        assert_eq!(found, all);
        assert_eq!(count, pages, "$top={top}");
    }
    assert_eq!(names(&server.get("/Tables()", JSON).await.expect(200)), all);
    assert!(names(&server.get("/Tables?$top=0", JSON).await.expect(200)).is_empty());
    server.get("/Tables?$top=1001", JSON).await.refused(400, "InvalidInput");
    server.get("/Tables?NextTableName=x", JSON).await.refused(400, "InvalidInput");
}

#[tokio::test]
async fn filter_on_names_ignores_case() {
    let server = start().await;
    for name in ["Zebra", "apple", "Banana"] {
        create(&server, name).await;
    }
    for (filter, expected) in [
        ("TableName eq 'apple'", "apple"),
        ("TableName eq 'BANANA'", "Banana"),
        ("TableName ne 'people'", "apple Banana Zebra"),
        ("TableName ge 'b' and TableName lt 'q'", "Banana people"),
        ("TableName gt 'B' and TableName lt 'C'", "Banana"),
        ("TableName eq 'apple' or TableName eq 'zebra'", "apple Zebra"),
        ("not (TableName lt 'p')", "people Zebra"),
        ("'people' le TableName", "people Zebra"),
        ("false", ""),
        ("Other eq 'apple'", ""),
    ] {
        let (found, _) = listed(&server, &format!("$filter={}&$top=1", encoded(filter))).await;
        assert_eq!(found.join(" "), expected, "{filter}");
    }
    server.get("/Tables?$filter=TableName%20eq", JSON).await.refused(400, "InvalidInput");
}

#[tokio::test]
async fn table_is_found_by_name_with_the_requested_metadata() {
    let server = start().await;
    create(&server, "Apple").await;
    let endpoint = format!("http://{}/lapis", server.address);
    for (level, one, list) in [
        (
            "nometadata",
            r#"{"TableName":"Apple"}"#.to_owned(),
            r#"{"value":[{"TableName":"Apple"}]}"#.to_owned(),
        ),
        (
            "minimalmetadata",
            format!(r#"{{"odata.metadata":"{endpoint}/$metadata#Tables/@Element","TableName":"Apple"}}"#),
            format!(
                r#"{{"odata.metadata":"{endpoint}/$metadata#Tables","value":[{{"TableName":"Apple"}}]}}"#
            ),
        ),
        (
            "fullmetadata",
            format!(
                r#"{{"odata.metadata":"{endpoint}/$metadata#Tables/@Element","odata.type":"lapis.Tables","odata.id":"{endpoint}/Tables('Apple')","odata.editLink":"Tables('Apple')","TableName":"Apple"}}"#
            ),
            format!(
                r#"{{"odata.metadata":"{endpoint}/$metadata#Tables","value":[{{"odata.type":"lapis.Tables","odata.id":"{endpoint}/Tables('Apple')","odata.editLink":"Tables('Apple')","TableName":"Apple"}}]}}"#
            ),
        ),
    ] {
        let accept = format!("accept: application/json;odata={level}");
        assert_eq!(server.get("/Tables('apple')", &accept).await.expect(200).text(), one);
        let found = server.get("/Tables?$filter=TableName%20eq%20'Apple'", &accept).await.expect(200);
        assert_eq!(found.text(), list);
    }
    server.get("/Tables('nobody')", JSON).await.refused(404, "ResourceNotFound");
    server.get("/Tables('a')", JSON).await.refused(400, "OutOfRangeInput");
}
