//! `$filter` over the wire: types, logic, and refusals. The grammar is tested with its parser.

use crate::support::{JSON, encoded, insert, query_all, start};

#[tokio::test]
async fn filter_finds_exactly_the_matching_entities() {
    let server = start().await;
    let members = [
        r#""S":"apple","I":1,"B":true,"D":1.5"#,
        r#""S":"it's","I":2,"B":false,"D":"NaN","D@odata.type":"Edm.Double""#,
        r#""S":"","L":"3","L@odata.type":"Edm.Int64","D":3.0"#,
        r#""I":"2","T":"2020-02-03T04:05:06.1234567Z","T@odata.type":"Edm.DateTime""#,
        r#""G":"c9da6455-213d-42c9-9a79-3e9149a57833","G@odata.type":"Edm.Guid","Y":"AP8=","Y@odata.type":"Edm.Binary""#,
    ];
    for (i, members) in members.iter().enumerate() {
        insert(&server, ["p", "q"][i / 3], &format!("{i}"), members).await;
    }
    for (filter, expected) in [
        ("", "01234"),
        (" ", "01234"),
        ("true", "01234"),
        ("false", ""),
        ("S eq 'apple'", "0"),
        ("S eq 'it''s'", "1"),
        ("S ne ''", "01"),
        ("not (S ne '')", "234"),
        ("S ge 'b'", "1"),
        ("I eq 2", "1"),
        ("I ge 1", "01"),
        ("I eq '2'", "3"),
        ("L eq 3L", "2"),
        ("L gt 2", "2"),
        ("D eq 3", "2"),
        ("D ne 1.5", "12"),
        ("D gt 0.0", "02"),
        ("B", "0"),
        ("not B", "1234"),
        ("B eq false", "1"),
        ("T eq datetime'2020-02-03T04:05:06.1234567Z'", "3"),
        ("T lt datetime'2020-02-03T04:05:06.1234568Z'", "3"),
        ("G eq guid'C9DA6455-213D-42C9-9A79-3E9149A57833'", "4"),
        ("Y eq X'00ff' and Y eq binary'00FF'", "4"),
        ("PartitionKey eq 'q'", "34"),
        ("PartitionKey eq 'q' and RowKey eq '4'", "4"),
        ("RowKey gt '1' and RowKey le '3'", "23"),
        ("'1' lt RowKey", "234"),
        ("PartitionKey eq 'p' and (RowKey eq '0' or RowKey eq '2')", "02"),
        ("(PartitionKey eq 'p' and RowKey eq '0') or (PartitionKey eq 'q' and RowKey eq '4')", "04"),
        ("Timestamp gt datetime'2020-01-01T00:00:00Z'", "01234"),
        ("Timestamp lt datetime'2020-01-01T00:00:00Z'", ""),
        ("B or I eq 2 and S eq 'apple' or L eq 3L", "02"),
        ("Missing ne 'x'", ""),
        ("s eq 'apple'", ""),
        ("PartitionKey eq 'none'", ""),
    ] {
        let found = query_all(&server, &format!("$filter={}", encoded(filter))).await;
        let rows: String = found.into_iter().map(|(_, row)| row).collect();
        assert_eq!(rows, expected, "{filter}");
    }
}

#[tokio::test]
async fn malformed_filters_are_refused() {
    let server = start().await;
    for filter in
        ["S eq", "S eq 'x", "(S eq 'x'", "S eq S", "S eq null", "S eq 'x' And B", "5", &"(".repeat(9000)]
    {
        let target = format!("/people()?$filter={}", encoded(filter));
        server.get(&target, JSON).await.refused(400, "InvalidInput");
    }
}

#[tokio::test]
async fn filters_with_many_comparisons_are_accepted() {
    let server = start().await;
    for i in 0..50 {
        insert(&server, &format!("p{i:02}"), "r", "").await;
    }
    let each: Vec<_> =
        (0..50).step_by(2).map(|i| format!("(PartitionKey eq 'p{i:02}' and RowKey eq 'r')")).collect();
    let found = query_all(&server, &format!("$filter={}", encoded(&each.join(" or ")))).await;
    assert_eq!(found.len(), 25);
}
