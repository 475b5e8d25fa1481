//! List Queues.

use lazuli_testing::{ACCOUNT, Reply};

use crate::support::{Server, start_empty};

async fn server() -> Server {
    let server = start_empty().await;
    for name in ["beta", "alpha", "alpha-2", "gamma"] {
        server.put(&format!("/{name}"), &format!("x-ms-meta-is: {name}"), "").await.expect(201);
    }
    server
}

fn names(reply: &Reply) -> Vec<&str> {
    reply.text().split("<Name>").skip(1).map(|rest| rest.split_once("</Name>").unwrap().0).collect()
}

#[tokio::test]
async fn queues_are_listed_by_name_with_the_requested_details() {
    let server = server().await;
    let all = server.get("/?comp=list", "").await.expect(200);
    let expected = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ServiceEndpoint=\"http://{}/{ACCOUNT}/\"><Queues>\
         <Queue><Name>alpha</Name></Queue><Queue><Name>alpha-2</Name></Queue><Queue><Name>beta</Name></Queue>\
         <Queue><Name>gamma</Name></Queue></Queues><NextMarker /></EnumerationResults>",
        server.address
    );
    assert_eq!(all.text(), expected);
    let some = server.get("/?comp=list&prefix=alpha&include=metadata&maxresults=10", "").await.expect(200);
    assert_eq!(names(&some), ["alpha", "alpha-2"]);
    assert!(some.text().contains("<Prefix>alpha</Prefix><MaxResults>10</MaxResults><Queues>"));
    assert!(some.text().contains("<Name>alpha</Name><Metadata><is>alpha</is></Metadata></Queue>"));
    assert!(names(&server.get("/?comp=list&prefix=x", "").await.expect(200)).is_empty());
    let old = server.get("/?comp=list&prefix=beta", "x-ms-version: 2012-02-12").await.expect(200);
    assert!(old.text().contains(&format!("<Url>http://{}/{ACCOUNT}/beta</Url>", server.address)));
}

#[tokio::test]
async fn pages_join_without_gap_or_repetition() {
    let server = server().await;
    let (mut all, mut marker) = (vec![], String::new());
    for _ in 0..4 {
        let page = server.get(&format!("/?comp=list&maxresults=1&marker={marker}"), "").await.expect(200);
        all.extend(names(&page).into_iter().map(str::to_owned));
        let next = page.text().split_once("<NextMarker>").map(|(_, rest)| rest.split_once('<').unwrap().0);
        marker = next.unwrap_or_default().to_owned();
    }
    assert_eq!(all, ["alpha", "alpha-2", "beta", "gamma"]);
    assert_eq!(marker, "");
}

#[tokio::test]
async fn invalid_parameters_are_refused() {
    let server = start_empty().await;
    for (query, code) in [
        ("maxresults=0", "OutOfRangeQueryParameterValue"),
        ("maxresults=-1", "OutOfRangeQueryParameterValue"),
        ("maxresults=x", "InvalidQueryParameterValue"),
        ("include=acl", "InvalidQueryParameterValue"),
        ("marker=a%20b", "InvalidMarker"),
    ] {
        server.get(&format!("/?comp=list&{query}"), "").await.refused(400, code);
    }
}
