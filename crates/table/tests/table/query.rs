//! Query Entities: pages, continuation, `$select`, `$top`, and ranges of keys in signatures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazuli_auth::sign::{self, Resource};
use lazuli_protocol::{Query, ServiceKind};
use lazuli_store::interposed::{Interposed, Interposer};
use lazuli_table::TableService;
use lazuli_testing::{ACCOUNT, key};

use crate::support::{JSON, Server, at, create, encoded, insert, keys, next, query_all, start};

#[tokio::test]
async fn entities_are_returned_in_the_order_of_their_keys() {
    let server = start().await;
    let ordered = [
        ("", ""),
        ("", "a"),
        ("A", "z"),
        ("a", "1"),
        ("a", "10"),
        ("a", "2"),
        ("ä", ""),
        ("😀", ""),
        ("\u{FF61}", ""),
    ];
    for (partition, row) in ordered.iter().rev() {
        insert(&server, partition, row, "").await;
    }
    for target in ["/people", "/people()"] {
        let reply = server.get(target, JSON).await.expect(200);
        let expected: Vec<_> = ordered.iter().map(|(p, r)| ((*p).to_owned(), (*r).to_owned())).collect();
        assert_eq!(keys(&reply), expected);
        assert_eq!(next(target, &reply), None);
    }
}

#[tokio::test]
async fn list_has_the_requested_level_of_metadata() {
    let server = start().await;
    let empty = server.get("/people()", JSON).await.expect(200);
    let endpoint = format!("http://{}/lapis", server.address);
    assert_eq!(empty.text(), format!(r#"{{"odata.metadata":"{endpoint}/$metadata#people","value":[]}}"#));
    insert(&server, "p", "1", "").await;
    insert(&server, "p", "2", r#""L":"5","L@odata.type":"Edm.Int64""#).await;
    let none = server.get("/people()", "accept: application/json;odata=nometadata").await.expect(200);
    assert!(
        none.text().starts_with(r#"{"value":[{"PartitionKey":"p","RowKey":"1","Timestamp":"#),
        "{}",
        none.text()
    );
    assert!(none.text().ends_with(r#""L":"5"}]}"#), "{}", none.text());
    let kind = none.header("content-type");
    assert_eq!(kind, Some("application/json;odata=nometadata;streaming=true;charset=utf-8"));
    let full = server.get("/people()", "accept: application/json;odata=fullmetadata").await.expect(200);
    for part in [
        r##"/$metadata#people""##,
        r#""odata.type":"lapis.people""#,
        r#""odata.editLink":"people(PartitionKey='p',RowKey='2')""#,
    ] {
        assert!(full.text().contains(part), "{}", full.text());
    }
}

#[tokio::test]
async fn page_has_at_most_top_entities_and_the_next_page_follows() {
    let server = start().await;
    for i in 0..7 {
        insert(&server, ["p", "q"][i / 4], &format!("r{i}"), "").await;
    }
    for (top, pages) in [(1, 7), (2, 4), (3, 3), (7, 1), (1000, 1)] {
        let mut target = Some(format!("/people()?$top={top}"));
        let (mut found, mut count) = (vec![], 0);
        while let Some(page) = target {
            let reply = server.get(&page, JSON).await.expect(200);
            assert!(keys(&reply).len() <= top);
            found.extend(keys(&reply));
            count += 1;
            target = next(&format!("/people()?$top={top}"), &reply);
        }
        assert_eq!(count, pages, "$top={top}");
        let rows: Vec<_> = found.iter().map(|(_, row)| row.as_str()).collect();
        assert_eq!(rows, ["r0", "r1", "r2", "r3", "r4", "r5", "r6"]);
    }
    let none = server.get("/people()?$top=0", JSON).await.expect(200);
    assert!(keys(&none).is_empty() && next("", &none).is_none());
    for top in ["1001", "-1", "x", "1.0", "99999999999999999999"] {
        server.get(&format!("/people()?$top={top}"), JSON).await.refused(400, "InvalidInput");
    }
}

#[tokio::test]
async fn page_has_at_most_1000_entities() {
    let server = start().await;
    for i in 0..1003 {
        insert(&server, "p", &format!("{i:04}"), "").await;
    }
    let first = server.get("/people()", JSON).await.expect(200);
    assert_eq!(keys(&first).len(), 1000);
    let rest = server.get(&next("/people()", &first).unwrap(), JSON).await.expect(200);
    assert_eq!(keys(&rest).len(), 3);
    let exactly = server.get("/people()?$filter=RowKey%20lt%20'1000'", JSON).await.expect(200);
    assert_eq!(keys(&exactly).len(), 1000);
}

#[tokio::test]
async fn large_entities_end_a_page_early_and_none_is_lost() {
    let server = start().await;
    let big: Vec<String> = (0..15).map(|i| format!(r#""P{i}":"{}""#, "x".repeat(32 << 10))).collect();
    for i in 0..40 {
        insert(&server, "p", &format!("{i:02}"), &big.join(",")).await;
    }
    let first = server.get("/people()", JSON).await.expect(200);
    assert!((30..40).contains(&keys(&first).len()) && next("", &first).is_some());
    assert_eq!(query_all(&server, "$select=RowKey").await.len(), 40);
    // A page also ends early if none of the rows that were read matched.
    let target = "/people()?$filter=RowKey%20eq%20'39'";
    let first = server.get(target, JSON).await.expect(200);
    assert!(keys(&first).is_empty());
    let second = server.get(&next(target, &first).unwrap(), JSON).await.expect(200);
    assert_eq!(keys(&second), [("p".to_owned(), "39".to_owned())]);
}

#[tokio::test]
async fn continuation_stays_valid_while_entities_change() {
    let server = start().await;
    for row in ["b", "d", "f", "h"] {
        insert(&server, "p", row, "").await;
    }
    let target = "/people()?$top=2";
    let first = server.get(target, JSON).await.expect(200);
    let following = next(target, &first).unwrap();
    for (gone, come) in [("f", "e"), ("b", "a"), ("h", "g")] {
        server.delete(&at("p", gone), "if-match: *").await.expect(204);
        insert(&server, "p", come, "").await;
    }
    // The token points to `f`: new entities before that position are not seen, those after it are.
    let second = server.get(&following, JSON).await.expect(200);
    assert_eq!(keys(&second), [("p".to_owned(), "g".to_owned())]);
}

#[tokio::test]
async fn invalid_continuation_tokens_are_refused() {
    let server = start().await;
    for token in ["x", "1!4!abc", "2!0!"] {
        let target = format!("/people()?NextPartitionKey={token}&NextRowKey=1!0!");
        server.get(&target, JSON).await.refused(400, "InvalidInput");
    }
}

#[tokio::test]
async fn select_returns_named_properties_and_null_for_missing_ones() {
    let server = start().await;
    insert(&server, "p", "r", r#""A":1,"B":2.5"#).await;
    let none = "accept: application/json;odata=nometadata";
    for (select, expected) in [
        ("A", r#"{"A":1}"#),
        ("B,%20A", r#"{"A":1,"B":2.5}"#),
        ("RowKey,PartitionKey", r#"{"PartitionKey":"p","RowKey":"r"}"#),
        ("A,C,A,C", r#"{"A":1,"C":null}"#),
        ("odata.etag,A", r#"{"A":1}"#),
        ("PartitionKey,a", r#"{"PartitionKey":"p","a":null}"#),
    ] {
        let reply = server.get(&format!("/people()?$select={select}"), none).await.expect(200);
        assert_eq!(reply.text(), format!(r#"{{"value":[{expected}]}}"#), "{select}");
        let one = server.get(&format!("{}?$select={select}", at("p", "r")), none).await.expect(200);
        assert_eq!(one.text(), expected, "{select}");
    }
    for all in ["*", "", "A,*"] {
        let reply = server.get(&format!("/people()?$select={all}"), none).await.expect(200);
        assert!(reply.text().ends_with(r#""A":1,"B":2.5}]}"#), "{}", reply.text());
    }
    let many = vec!["A"; 256].join(",");
    assert!(
        server
            .get(&format!("/people()?$select={many}"), none)
            .await
            .expect(200)
            .text()
            .contains(r#"{"A":1}"#)
    );
    let many: Vec<_> = (0..256).map(|i| format!("A{i}")).collect();
    server.get(&format!("/people()?$select={}", many.join(",")), none).await.refused(400, "InvalidInput");
}

#[tokio::test]
async fn missing_table_cannot_be_queried_and_recreated_table_is_empty() {
    let server = start().await;
    server.get("/nobody()", JSON).await.refused(404, "TableNotFound");
    server.get("/nobody()?$filter=false", JSON).await.refused(404, "TableNotFound");
    insert(&server, "p", "r", "").await;
    server.delete("/Tables('people')", "").await.expect(204);
    server.get("/people()", JSON).await.refused(404, "TableNotFound");
    create(&server, "people").await;
    assert!(query_all(&server, "").await.is_empty());
}

#[tokio::test]
async fn unsupported_options_are_refused_as_not_implemented() {
    let server = start().await;
    for option in
        ["$orderby=RowKey", "$skip=5", "$inlinecount=allpages", "$filter=startswith(A,'x')", "$expand=A"]
    {
        server.get(&format!("/people()?{option}"), JSON).await.refused(501, "NotImplemented");
        server.get(&format!("/Tables?{option}"), JSON).await.refused(501, "NotImplemented");
    }
}

/// Inserts twenty-five entities in five partitions.
async fn spread(server: &Server) {
    for partition in ["a", "b", "c", "d", "e"] {
        for row in ["1", "2", "3", "4", "5"] {
            insert(server, partition, row, r#""A":1"#).await;
        }
    }
}

#[tokio::test]
async fn query_is_clipped_to_the_key_range_of_its_signature() {
    let server = start().await;
    spread(&server).await;
    let resource = Resource { service: ServiceKind::Table, account: ACCOUNT, path: "people", timestamp: "" };
    for (range, expected) in [
        ("", "a1".."f"),
        ("spk=b", "b1".."f"),
        ("spk=b&srk=4", "b4".."f"),
        ("epk=b", "a1".."b6"),
        ("epk=b&erk=2", "a1".."b3"),
        ("spk=b&srk=4&epk=d&erk=2", "b4".."d3"),
        ("spk=c&srk=3&epk=c&erk=3", "c3".."c4"),
        ("spk=x", "x".."x"),
    ] {
        for (filter, keeps) in [("", None), ("RowKey ne '3'", Some('3')), ("PartitionKey ne 'b'", Some('b'))]
        {
            let mut fields =
                vec![("tn", "people"), ("sp", "r"), ("sv", "2022-11-02"), ("se", "2099-12-31T00:00:00Z")];
            let parsed = Query::parse(range).unwrap();
            fields.extend(parsed.iter());
            let sas = sign::service_sas(&resource, &key(), &fields);
            let target = format!("/people()?{sas}&$filter={}&$top=3", encoded(filter));
            let (mut page, mut found) = (Some(target.clone()), vec![]);
            while let Some(at) = page {
                let reply = server.send("GET", &at, JSON, "").await.expect(200);
                found.extend(keys(&reply).into_iter().map(|(partition, row)| partition + &row));
                page = next(&target, &reply);
            }
            let all = ["a", "b", "c", "d", "e"].iter().flat_map(|p| (1..=5).map(move |r| format!("{p}{r}")));
            let left = all.filter(|key| expected.contains(&key.as_str()));
            let left: Vec<_> = left.filter(|key| keeps.is_none_or(|c| !key.contains(c))).collect();
            assert_eq!(found, left, "{range} {filter}");
        }
    }
}

/// Counts the rows that were read for queries.
static READ: AtomicUsize = AtomicUsize::new(0);

struct Counting;

impl Interposer for Counting {
    fn scanned(&self, rows: usize) {
        READ.fetch_add(rows, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn query_reads_only_rows_in_its_key_range_and_only_those_its_page_needs() {
    let server = lazuli_testing::start(ServiceKind::Table, |parts| {
        TableService::new(Arc::new(Interposed::new(parts.store, Counting)), parts.accounts)
    });
    let server = server.await;
    create(&server, "people").await;
    spread(&server).await;
    for (options, read, found) in [
        ("", 25, 25),
        ("$filter=PartitionKey eq 'c'", 5, 5),
        ("$filter=PartitionKey eq 'c' and A eq 2", 5, 0),
        ("$filter=PartitionKey eq 'c' and RowKey eq '3'", 1, 1),
        ("$filter=PartitionKey eq 'c' and RowKey gt '3'", 2, 2),
        ("$filter=(PartitionKey eq 'a' and RowKey eq '1') or (PartitionKey eq 'e' and RowKey eq '5')", 2, 2),
        ("$filter=PartitionKey lt 'c'", 10, 10),
        ("$filter=A eq 2", 25, 0),
        ("$filter=false", 0, 0),
        // Three rows, and the one with which the next page begins.
        ("$top=3", 4, 3),
        // Filters on more than keys read whole runs.
        ("$filter=A eq 1&$top=3", 25, 3),
    ] {
        let before = READ.load(Ordering::SeqCst);
        let reply = server.get(&format!("/people()?{}", options.replace(' ', "%20")), JSON).await.expect(200);
        assert_eq!(READ.load(Ordering::SeqCst) - before, read, "{options}");
        assert_eq!(keys(&reply).len(), found, "{options}");
    }
}
