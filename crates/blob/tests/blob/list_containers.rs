//! List Containers.

use crate::support::{TestServer, start};
use lazuli_account::Setting;

/// Returns the containers of a page, with `!` after deleted ones, and its marker.
fn containers(text: &str) -> (Vec<String>, String) {
    let entries = text.split("<Container>").skip(1);
    let name = |entry: &str| {
        let name = entry.strip_prefix("<Name>").unwrap().split_once('<').unwrap().0;
        format!("{name}{}", if entry.contains("<Deleted>true</Deleted>") { "!" } else { "" })
    };
    let marker = text.split_once("<NextMarker>").map_or("", |(_, rest)| rest.split_once('<').unwrap().0);
    (entries.map(name).collect(), marker.to_owned())
}

impl TestServer {
    async fn list_containers(&self, query: &str) -> String {
        self.get(&format!("/?comp=list&{query}"), "").await.expect(200).text().to_owned()
    }

    async fn all_containers(&self, query: &str) -> (Vec<String>, usize) {
        let (mut all, mut marker, mut pages) = (vec![], String::new(), 0);
        loop {
            let (found, next) = containers(&self.list_containers(&format!("{query}&marker={marker}")).await);
            all.extend(found);
            pages += 1;
            if next.is_empty() {
                return (all, pages);
            }
            marker = next;
        }
    }
}

#[tokio::test]
async fn containers_are_listed_in_order_and_in_pages() {
    let server = start().await;
    for name in ["bbb", "abc-2", "abc", "$web", "abc-1", "$root"] {
        server.create_container(name).await;
    }
    let sorted = ["$root", "$web", "abc", "abc-1", "abc-2", "bbb"];
    for limit in 1..=7 {
        let (all, pages) = server.all_containers(&format!("maxresults={limit}")).await;
        assert_eq!(all, sorted);
        assert_eq!(pages, sorted.len().div_ceil(limit));
    }
    assert_eq!(server.all_containers("prefix=abc-&maxresults=1").await.0, ["abc-1", "abc-2"]);
    assert_eq!(server.all_containers("prefix=x").await.0, [""; 0]);
    assert_eq!(server.all_containers("include=system").await.0, sorted);
    // A deleted container is not listed, whether it is swept or not.
    server.delete("/abc-1?restype=container", "").await.expect(202);
    assert_eq!(server.all_containers("prefix=abc-&maxresults=1").await, (vec!["abc-2".into()], 1));
    assert_eq!(server.all_containers("include=deleted&prefix=abc-").await.0, ["abc-2"]);
}

#[tokio::test]
async fn entry_has_the_documented_elements() {
    let server = start().await;
    let created = server
        .signed("PUT", "/con?restype=container", "x-ms-meta-a: 1\nx-ms-blob-public-access: blob", "")
        .await
        .expect(201);
    let (date, etag) = (created.header("last-modified").unwrap(), created.etag().replace('"', "&quot;"));
    let expected = format!(
        "<EnumerationResults ServiceEndpoint=\"http://{}/lapis/\"><Prefix>c</Prefix><MaxResults>5</MaxResults>\
         <Containers><Container><Name>con</Name><Properties><Last-Modified>{date}</Last-Modified><Etag>{etag}</Etag>\
         <LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState><PublicAccess>blob</PublicAccess>\
         <DefaultEncryptionScope>$account-encryption-key</DefaultEncryptionScope>\
         <DenyEncryptionScopeOverride>false</DenyEncryptionScopeOverride>\
         <HasImmutabilityPolicy>false</HasImmutabilityPolicy><HasLegalHold>false</HasLegalHold>\
         <ImmutableStorageWithVersioningEnabled>true</ImmutableStorageWithVersioningEnabled></Properties>\
         <Metadata><a>1</a></Metadata></Container></Containers><NextMarker /></EnumerationResults>",
        server.address
    );
    let text = server.list_containers("prefix=c&maxresults=5&include=metadata").await;
    assert!(text.ends_with(&expected), "{text}");
    assert!(!server.list_containers("").await.contains("<Metadata>"));
    let old = server.get("/?comp=list", "x-ms-version: 2011-08-18").await.expect(200);
    let url = format!("<Name>con</Name><Url>http://{}/lapis/con</Url><Properties>", server.address);
    assert!(old.text().contains(&url) && old.text().contains(" AccountName="), "{}", old.text());
    assert!(!old.text().contains("LeaseState"));
}

#[tokio::test]
async fn deleted_containers_are_listed_with_versions_until_their_retention_ends() {
    let server = start().await;
    server.set(Setting::ContainerSoftDelete(Some(2))).await;
    for _ in 0..2 {
        server.create_container("con").await;
        server.delete("/con?restype=container", "").await.expect(202);
        server.advance(3600);
    }
    server.create_container("con").await;
    server.create_container("other").await;
    assert_eq!(server.all_containers("").await.0, ["con", "other"]);
    for limit in 1..=5 {
        let (all, pages) = server.all_containers(&format!("include=deleted&maxresults={limit}")).await;
        assert_eq!(all, ["con", "con!", "con!", "other"]);
        assert_eq!(pages, 4usize.div_ceil(limit));
    }
    let text = server.list_containers("include=deleted").await;
    assert_eq!(text.matches("<Version>").count(), 2);
    let expired = "<LeaseStatus>unlocked</LeaseStatus><LeaseState>expired</LeaseState>";
    assert_eq!(text.matches(expired).count(), 2, "{text}");
    assert_eq!(text.matches("<LeaseState>available</LeaseState>").count(), 2);
    assert_eq!(text.matches("<RemainingRetentionDays>1</RemainingRetentionDays>").count(), 2);
    assert!(text.contains("<DeletedTime>Fri, 02 Jan 2026 03:04:05 GMT</DeletedTime>"), "{text}");
    server.advance(2 * 86_400 - 3600);
    assert_eq!(server.all_containers("include=deleted").await.0, ["con", "other"]);
}

#[tokio::test]
async fn invalid_parameters_are_refused() {
    let server = start().await;
    for (query, status, code) in [
        ("maxresults=0", 400, "OutOfRangeQueryParameterValue"),
        ("maxresults=x", 400, "InvalidQueryParameterValue"),
        ("include=snapshots", 400, "InvalidQueryParameterValue"),
        ("marker=%25", 400, "OutOfRangeInput"),
        ("include=metadata,deleted&include=system", 200, ""),
    ] {
        let reply = server.get(&format!("/?comp=list&{query}"), "").await;
        assert_eq!(reply.outcome(), (status, code), "{query}");
    }
    server.send("GET", "/?comp=list", "", "").await.refused(401, "NoAuthenticationInformation");
}
