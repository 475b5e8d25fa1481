//! Get Blob Tags, Set Blob Tags, conditions on tags, Find Blobs by Tags.

use std::sync::Arc;

use bytes::Bytes;
use lazuli_account::Setting;
use lazuli_auth::sign;
use lazuli_concurrency::Pace;
use lazuli_store::{Mutation, Partition, Reads, prefix_range};

use crate::support::{ACCOUNT, Reply, TestServer, key, start};

const BLOCK: &str = "x-ms-blob-type: BlockBlob";

/// Renders a tags document from `key=value` words.
fn document(words: &str) -> String {
    let tags = words.split_whitespace().map(|word| {
        let (key, value) = word.split_once('=').unwrap();
        format!("<Tag><Key>{key}</Key><Value>{value}</Value></Tag>")
    });
    format!("<?xml version=\"1.0\"?><Tags><TagSet>{}</TagSet></Tags>", tags.collect::<String>())
}

/// Returns the tags of a document as words.
fn words(document: &str) -> String {
    let tags = document.split("<Key>").skip(1).map(|tag| {
        let (key, rest) = tag.split_once("</Key><Value>").unwrap();
        format!("{key}={}", rest.split_once("</Value>").unwrap().0)
    });
    tags.collect::<Vec<_>>().join(" ")
}

fn encoded(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02X}")).collect()
}

impl TestServer {
    async fn put_tagged(&self, blob: &str, tags: &str) -> Reply {
        self.put(blob, &format!("{BLOCK}\nx-ms-tags: {tags}"), "content").await.expect(201)
    }

    async fn set_tags(&self, blob: &str, headers: &str, tags: &str) -> Reply {
        self.put(&format!("{blob}?comp=tags"), headers, document(tags)).await
    }

    async fn tags(&self, blob: &str) -> String {
        let separator = if blob.contains('?') { '&' } else { '?' };
        let reply = self.get(&format!("{blob}{separator}comp=tags"), "").await.expect(200);
        assert_eq!(reply.header("etag"), None);
        words(reply.text())
    }

    /// Returns one page: `container/name key=value …` for each match, and the marker.
    async fn find_page(&self, scope: &str, query: &str, more: &str) -> (Vec<String>, String) {
        let target = format!("{scope}comp=blobs&where={}{more}", encoded(query));
        let reply = self.get(&target, "").await.expect(200);
        let matches = reply.text().split("<Blob>").skip(1).map(|found| {
            let part = |from: &str, to: &str| found.split_once(from).unwrap().1.split_once(to).unwrap().0;
            let (container, name) = (part("<ContainerName>", "<"), part("<Name>", "<"));
            format!("{container}/{name} {}", words(found))
        });
        let marker = match reply.text().split_once("<NextMarker>") {
            Some((_, rest)) => rest.split_once('<').unwrap().0.to_owned(),
            None => String::new(),
        };
        (matches.collect(), marker)
    }

    async fn find(&self, query: &str) -> Vec<String> {
        self.find_page("/?", query, "").await.0
    }

    async fn find_in(&self, container: &str, query: &str) -> Vec<String> {
        self.find_page(&format!("/{container}?restype=container&"), query, "").await.0
    }
}

#[tokio::test]
async fn set_tags_replaces_all_tags_and_keeps_the_etag() {
    let server = start().await;
    server.create_container("con").await;
    let put = server.put_tagged("/con/b", "color=blue&a+b=x%2By").await;
    assert_eq!(server.tags("/con/b").await, "a b=x+y color=blue");
    let head = server.head("/con/b", "").await;
    assert_eq!((head.header("x-ms-tag-count"), head.etag()), (Some("2"), put.etag()));
    server.set_tags("/con/b", "", "size=7 empty=").await.expect(204);
    assert_eq!(server.tags("/con/b").await, "empty= size=7");
    let got = server.get("/con/b", "").await;
    assert_eq!((got.etag(), got.text(), got.header("x-ms-tag-count")), (put.etag(), "content", Some("2")));
    server.set_tags("/con/b", "", "").await.expect(204);
    assert_eq!(server.tags("/con/b").await, "");
    assert_eq!(server.head("/con/b", "").await.header("x-ms-tag-count"), None);

    server.put_tagged("/con/b", "a=1").await;
    server.put("/con/b?comp=metadata", "x-ms-meta-a: 1", "").await.expect(200);
    assert_eq!(server.tags("/con/b").await, "a=1");
    server.put_block_blob("/con/b", "").await;
    assert_eq!(server.tags("/con/b").await, "", "replaced");
    server.put("/con/b?comp=blocklist", "x-ms-tags: a=2", "<BlockList/>").await.expect(201);
    assert_eq!(server.tags("/con/b").await, "a=2");
    assert_eq!(server.find("a='2'").await, ["con/b a=2"]);
}

#[tokio::test]
async fn too_many_or_malformed_tags_are_refused() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "").await;
    let many = (0..11).map(|n| format!("k{n}=v")).collect::<Vec<_>>();
    for (tags, code) in [
        (many.join(" "), "TagsTooLarge"),
        (format!("{}=v", "k".repeat(129)), "TagsTooLarge"),
        (format!("k={}", "v".repeat(257)), "TagsTooLarge"),
        ("a=1 a=2".to_owned(), "DuplicateTagNames"),
        ("=1".to_owned(), "EmptyTagName"),
        ("a=?".to_owned(), "InvalidTags"),
    ] {
        server.set_tags("/con/b", "", &tags).await.refused(400, code);
        let header = format!("{BLOCK}\nx-ms-tags: {}", tags.replace(' ', "&").replace('?', "%3F"));
        server.put("/con/new", &header, "").await.refused(400, code);
    }
    server.get("/con/new", "").await.refused(404, "BlobNotFound");
    server.put("/con/b?comp=tags", "", "<Tags>").await.refused(400, "InvalidXmlDocument");
    let wrong = "content-md5: AAAAAAAAAAAAAAAAAAAAAA==";
    server.set_tags("/con/b", wrong, "").await.refused(400, "Md5Mismatch");
    server.set_tags("/con/none", "", "a=1").await.refused(404, "BlobNotFound");
    server.set_tags("/nothing/b", "", "a=1").await.refused(404, "ContainerNotFound");
    server.get("/con/none?comp=tags", "").await.refused(404, "BlobNotFound");
    let snapshot =
        server.put("/con/b?comp=tags&snapshot=2026-01-02T03:04:05.0000000Z", "", document("")).await;
    snapshot.refused(400, "InvalidQueryParameterValue");
}

#[tokio::test]
async fn set_tags_requires_the_lease_id_and_get_tags_refuses_a_wrong_one() {
    let server = start().await;
    server.create_container("con").await;
    server.put_tagged("/con/b", "a=1").await;
    let id = "x-ms-lease-id: aaaaaaaa-0000-4000-8000-00000000000a";
    let other = "x-ms-lease-id: bbbbbbbb-0000-4000-8000-00000000000a";
    server.set_tags("/con/b", id, "a=2").await.refused(412, "LeaseNotPresentWithBlobOperation");
    let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1
        x-ms-proposed-lease-id: aaaaaaaa-0000-4000-8000-00000000000a";
    server.put("/con/b?comp=lease", acquire, "").await.expect(201);
    server.set_tags("/con/b", "", "a=2").await.refused(412, "LeaseIdMissing");
    server.set_tags("/con/b", other, "a=2").await.refused(412, "LeaseIdMismatchWithBlobOperation");
    assert_eq!(server.find("a='2'").await, Vec::<String>::new());
    assert_eq!(server.find("a='1'").await, ["con/b a=1"]);
    server.get("/con/b?comp=tags", other).await.refused(412, "LeaseIdMismatchWithBlobOperation");
    server.get("/con/b?comp=tags", "").await.expect(200);
    server.set_tags("/con/b", id, "a=3").await.expect(204);
    assert_eq!(server.tags("/con/b").await, "a=3");
}

#[tokio::test]
async fn tag_operations_obey_conditions_on_the_blob() {
    let server = start().await;
    server.create_container("things").await;
    let etag = server.put_tagged("/things/b", "a=1").await.etag().to_owned();
    let (past, now) = ("Thu, 01 Jan 2026 00:00:00 GMT", "Fri, 02 Jan 2026 03:04:05 GMT");
    for (condition, holds) in [
        (format!("if-match: {etag}"), true),
        ("if-match: \"0x1\"".into(), false),
        ("if-none-match: \"0x1\"".into(), true),
        (format!("if-none-match: {etag}"), false),
        (format!("if-modified-since: {past}"), true),
        (format!("if-modified-since: {now}"), false),
        (format!("if-unmodified-since: {now}"), true),
        (format!("if-unmodified-since: {past}"), false),
    ] {
        let headers = format!("x-ms-blob-{condition}");
        let refused = (412, "ConditionNotMet");
        let set = server.set_tags("/things/b", &headers, "a=1").await;
        assert_eq!(set.outcome(), if holds { (204, "") } else { refused }, "{condition}");
        let get = server.get("/things/b?comp=tags", &headers).await;
        assert_eq!(get.outcome(), if holds { (200, "") } else { refused }, "{condition}");
    }
}

#[tokio::test]
async fn operations_obey_tag_conditions() {
    let server = start().await;
    server.create_container("con").await;
    server.put_tagged("/con/b", "status=draft&rank=5").await;
    let (met, unmet) =
        ("x-ms-if-tags: status = 'draft' AND rank > '4'", "x-ms-if-tags: \"status\" = 'final'");
    server.get("/con/b", met).await.expect(200);
    server.get("/con/b", unmet).await.refused(412, "ConditionNotMet");
    server.head("/con/b", unmet).await.expect(412);
    server.get("/con/b?comp=tags", unmet).await.refused(412, "ConditionNotMet");
    server.get("/con/b?comp=blocklist", unmet).await.refused(412, "ConditionNotMet");
    server.get("/con/b?comp=blocklist", met).await.expect(200);
    server.put("/con/b?comp=metadata", unmet, "").await.refused(412, "ConditionNotMet");
    server.put("/con/b?comp=properties", met, "").await.expect(200);
    server.set_tags("/con/b", unmet, "").await.refused(412, "ConditionNotMet");
    let acquire = format!("x-ms-lease-action: acquire\nx-ms-lease-duration: 15\n{unmet}");
    server.put("/con/b?comp=lease", &acquire, "").await.refused(412, "ConditionNotMet");
    server.put("/con/b", &format!("{BLOCK}\n{unmet}"), "").await.refused(412, "ConditionNotMet");
    server.put("/con/new", &format!("{BLOCK}\n{met}"), "").await.refused(412, "ConditionNotMet");
    server.delete("/con/b", unmet).await.refused(412, "ConditionNotMet");
    server.put("/con/b?comp=snapshot", unmet, "").await.refused(412, "ConditionNotMet");
    server.put("/con/b?comp=snapshot", met, "").await.expect(201);
    let cool = "x-ms-access-tier: Cool";
    server.put("/con/b?comp=tier", &format!("{cool}\n{unmet}"), "").await.refused(412, "ConditionNotMet");
    server.put("/con/b?comp=tier", &format!("{cool}\n{met}"), "").await.expect(200);
    server.put("/con/b", &format!("{BLOCK}\n{met}"), "").await.expect(201);
    server.get("/con/b", "x-ms-if-tags: status ==").await.refused(400, "InvalidHeaderValue");
    server.get("/con/b", "x-ms-if-tags: @container='con'").await.refused(400, "InvalidHeaderValue");

    let fields = |permissions: &'static str| {
        [("sv", "2022-11-02"), ("ss", "b"), ("srt", "o"), ("sp", permissions), ("se", "2099-12-31T00:00:00Z")]
    };
    for (permissions, status) in [("r", 403), ("rt", 412)] {
        let sas = sign::account_sas(ACCOUNT, &key(), &fields(permissions));
        let reply = server.send("GET", &format!("/con/b?{sas}"), met, "").await;
        assert_eq!(reply.status.as_u16(), status, "{permissions}");
    }
}

#[tokio::test]
async fn find_returns_blobs_by_their_current_tags() {
    let server = start().await;
    for container in ["con", "other"] {
        server.create_container(container).await;
    }
    server.put_tagged("/con/a", "color=blue&size=1").await;
    server.put_tagged("/con/b", "color=blue&size=2").await;
    server.put_tagged("/con/c%20%26", "color=red&size=10").await;
    server.put_tagged("/other/d", "color=blue").await;
    server.put_block_blob("/other/e", "").await;
    for (query, found) in [
        ("color='blue'", &["con/a color=blue", "con/b color=blue", "other/d color=blue"][..]),
        ("color = 'blue' AND size = '2'", &["con/b color=blue size=2"]),
        ("size >= '1' and size < '2'", &["con/a size=1", "con/c &amp; size=10"]),
        ("@container='other' AND color>'a'", &["other/d color=blue"]),
        ("@container='other' AND @container='con' AND color>'a'", &[]),
        ("@container='none' AND color>'a'", &[]),
        ("\"color\" > 'blue'", &["con/c &amp; color=red"]),
        ("size='3'", &[]),
        ("shape='round'", &[]),
    ] {
        assert_eq!(server.find(query).await, found, "{query}");
    }
    assert_eq!(server.find_in("con", "color='blue'").await, ["con/a color=blue", "con/b color=blue"]);
    assert_eq!(server.find_in("other", "size>''").await, Vec::<String>::new());

    server.set_tags("/con/a", "", "color=green").await.expect(204);
    server.put_block_blob("/con/b", "untagged").await;
    server.delete("/con/c%20%26", "").await.expect(202);
    assert_eq!(server.find("color>''").await, ["con/a color=green", "other/d color=blue"]);
    server.delete("/other?restype=container", "").await.expect(202);
    let server = server.restart().await;
    assert_eq!(server.find("color>''").await, ["con/a color=green"]);
    assert_eq!(server.find("size>''").await, Vec::<String>::new());

    let get = async |target: &str| server.get(target, "").await;
    get("/?comp=blobs").await.refused(400, "MissingRequiredQueryParameter");
    for query in ["a", "a='1' OR b='2'", "a<>'1'", "@container='con'"] {
        let target = format!("/?comp=blobs&where={}", encoded(query));
        get(&target).await.refused(400, "InvalidQueryParameterValue");
    }
    let target = format!("/con?restype=container&comp=blobs&where={}", encoded("@container='con' AND a='1'"));
    get(&target).await.refused(400, "InvalidQueryParameterValue");
    let target = format!("/gone?restype=container&comp=blobs&where={}", encoded("a='1'"));
    get(&target).await.refused(404, "ContainerNotFound");
}

#[tokio::test]
async fn find_pages_continue_at_the_marker() {
    let server = start().await;
    let mut expected = vec![];
    for container in ["con-a", "con-b", "con-c"] {
        server.create_container(container).await;
        for n in 0..5 {
            server.put_tagged(&format!("/{container}/{n}"), &format!("n={n}&all=1")).await;
            expected.push(format!("{container}/{n} all=1"));
        }
    }
    for limit in [1, 2, 5, 7, 20] {
        let (mut found, mut marker) = (vec![], String::new());
        loop {
            let more = format!("&maxresults={limit}&marker={marker}");
            let (page, next) = server.find_page("/?", "all='1'", &more).await;
            assert!(page.len() <= limit);
            found.extend(page);
            if next.is_empty() {
                break;
            }
            marker = next;
        }
        assert_eq!(found, expected, "{limit}");
    }
    let scope = "/con-b?restype=container&";
    let (first, marker) = server.find_page(scope, "n>'0'", "&maxresults=3").await;
    let (second, end) = server.find_page(scope, "n>'0'", &format!("&maxresults=3&marker={marker}")).await;
    assert_eq!([first, second].concat(), ["con-b/1 n=1", "con-b/2 n=2", "con-b/3 n=3", "con-b/4 n=4"]);
    assert_eq!(end, "");
}

#[tokio::test]
async fn find_returns_only_current_versions_by_default() {
    let server = start().await;
    server.create_container("con").await;
    server.set(Setting::BlobVersioning(true)).await;
    let first = server.put_tagged("/con/b", "a=1").await;
    let first = first.header("x-ms-version-id").unwrap().to_owned();
    let second = server.put_tagged("/con/b", "a=2").await;
    let second = second.header("x-ms-version-id").unwrap().to_owned();
    assert_eq!(server.find("a>''").await, ["con/b a=2"]);
    assert_eq!(server.tags(&format!("/con/b?versionid={first}")).await, "a=1");
    for (version, tags) in [(&first, "a=3"), (&second, "a=4")] {
        let target = format!("/con/b?comp=tags&versionid={version}");
        server.put(&target, "", document(tags)).await.expect(204);
        assert_eq!(server.tags(&format!("/con/b?versionid={version}")).await, tags);
    }
    assert_eq!(server.find("a>''").await, ["con/b a=4"]);
    server.put("/con/b?comp=metadata", "x-ms-meta-a: 1", "").await.expect(200);
    assert_eq!(server.find("a>''").await, ["con/b a=4"]);
    for scope in ["/?", "/con?restype=container&"] {
        let query = format!("{scope}comp=blobs&where={}", encoded("a>''"));
        server.get(&format!("{query}&include=none"), "").await.expect(200);
        let unknown = server.get(&format!("{query}&include=everything"), "").await;
        unknown.refused(400, "InvalidQueryParameterValue");
    }
    server.delete("/con/b", "").await.expect(202);
    assert_eq!(server.find("a>''").await, Vec::<String>::new());
}

#[tokio::test]
async fn find_returns_versions_on_request() {
    let server = start().await;
    for container in ["con-a", "con-b"] {
        server.create_container(container).await;
    }
    server.put_tagged("/con-a/unversioned", "a=0").await;
    server.set(Setting::BlobVersioning(true)).await;
    for tags in ["a=1", "b=1", "a=2"] {
        server.put_tagged("/con-a/b", tags).await;
        server.put_tagged("/con-b/b", tags).await;
    }
    server.put_tagged("/con-b/gone", "a=4").await;
    server.delete("/con-b/gone", "").await.expect(202);
    // This also turns the current version into an earlier one.
    server.put("/con-b/b?comp=snapshot", "", "").await.expect(201);

    let expected = ["con-a/b a=2", "con-a/b a=1", "con-a/unversioned a=0"];
    let expected = [&expected[..], &["con-b/b a=2", "con-b/b a=1", "con-b/b a=2", "con-b/gone a=4"]].concat();
    for limit in 1..=8 {
        let (mut found, mut marker) = (vec![], String::new());
        loop {
            let more = format!("&include=versions&maxresults={limit}&marker={marker}");
            let (page, next) = server.find_page("/?", "a>''", &more).await;
            assert!(page.len() <= limit);
            found.extend(page);
            if next.is_empty() {
                break;
            }
            marker = next;
        }
        assert_eq!(found, expected, "{limit}");
    }
    let scope = "/con-b?restype=container&";
    assert_eq!(server.find_page(scope, "a>''", "&include=versions").await.0, expected[3..]);
    let one = server.get(&format!("{scope}comp=blobs&where={}&include=versions", encoded("a='2'")), "").await;
    assert!(one.text().contains("<VersionId>2") && one.text().contains("<IsCurrentVersion>true<"));
    let one = server.get(&format!("{scope}comp=blobs&where={}&include=versions", encoded("a='1'")), "").await;
    assert!(one.text().contains("<VersionId>2") && !one.text().contains("<IsCurrentVersion>"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn version_is_found_once_if_its_blob_is_overwritten_during_the_scan() {
    let server = std::sync::Arc::new(start().await);
    server.create_container("con").await;
    server.set(Setting::BlobVersioning(true)).await;
    // These are too many to be read at once.
    for version in 0..300 {
        server.put_tagged("/con/b", &format!("a={version:03}")).await;
    }
    let other = server.clone();
    server.watched.interposer.after_next_scan(move || {
        let overwrite = async {
            other.put_tagged("/con/b", "a=300").await;
            other.put_tagged("/con/b", "a=301").await;
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(overwrite));
    });
    let (found, _) = server.find_page("/con?restype=container&", "a>''", "&include=versions").await;
    let earlier = (0..299).map(|version| format!("con/b a={version:03}"));
    assert_eq!(found, ["con/b a=299".to_owned()].into_iter().chain(earlier).collect::<Vec<_>>());
}

#[tokio::test]
async fn version_is_found_on_one_page_if_its_blob_is_overwritten_between_two() {
    let server = start().await;
    server.create_container("con").await;
    let page = async |more: &str| {
        let more = format!("&include=versions{more}");
        server.find_page("/con?restype=container&", "a>''", &more).await
    };
    // The overwrite turns it into a version. Its other row makes the first page end before it.
    server.put_tagged("/con/b", "a=1").await;
    server.put("/con/b?comp=snapshot", "", "").await.expect(201);
    server.set(Setting::BlobVersioning(true)).await;
    for (current, next, rest) in [("1", "2", vec![]), ("2", "3", vec!["con/b a=1"])] {
        let (first, marker) = page("&maxresults=1").await;
        assert_eq!(first, [format!("con/b a={current}")]);
        server.put_tagged("/con/b", &format!("a={next}")).await;
        assert_eq!(page(&format!("&marker={marker}")).await.0, rest, "{current}");
    }
}

#[tokio::test]
async fn stale_index_rows_are_ignored_and_removed_when_old() {
    let server = start().await;
    server.create_container("con").await;
    server.put_tagged("/con/b", "a=1").await;
    let claim = server.store.stamp().ticks().to_be_bytes();
    for name in [&b"1\0b"[..], b"1\0none"] {
        let row = [name, &claim].concat();
        server.change_row("ta", Mutation::Put(row.into(), Bytes::new())).await;
    }
    let rows = async || {
        let index = Partition::new(server.only_space().await, "ta");
        let reads = Reads::default().and_range(prefix_range(b""), 10);
        server.store.read(&index, &reads).await.unwrap().ranges[0].rows.len()
    };
    for (seconds, left) in [(0, 3), (3599, 3), (1, 1)] {
        server.advance(seconds);
        server.service.expire(Pace::FULL).await.unwrap();
        assert_eq!(rows().await, left);
        assert_eq!(server.find("a='1'").await, ["con/b a=1"]);
    }
    server.set_tags("/con/b", "", "").await.expect(204);
    assert_eq!(rows().await, 0);
}

#[tokio::test]
async fn restored_blob_is_found_by_its_tags() {
    let server = start().await;
    server.create_container("con").await;
    server.soft_delete(Some(3)).await;
    server.put_tagged("/con/b", "a=1").await;
    server.delete("/con/b", "").await.expect(202);
    assert_eq!(server.find("a='1'").await, Vec::<String>::new());
    server.advance(86_400);
    server.service.expire(Pace::FULL).await.unwrap();
    server.put("/con/b?comp=undelete", "", "").await.expect(200);
    assert_eq!(server.find("a='1'").await, ["con/b a=1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn index_matches_the_blobs_after_concurrent_tag_changes() {
    let server = Arc::new(start().await);
    server.create_container("con").await;
    const CLIENTS: usize = 32;
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let server = server.clone();
            tokio::spawn(async move {
                for turn in 0..6 {
                    let blob = format!("/con/{}", (client + turn) % 3);
                    let value = (client * 7 + turn) % 4;
                    match turn % 3 {
                        0 => drop(server.put_tagged(&blob, &format!("v={value}&w=x")).await),
                        1 => {
                            let reply = server.set_tags(&blob, "", &format!("v={value}")).await;
                            assert!(matches!(reply.status.as_u16(), 204 | 404));
                        }
                        _ => drop(server.delete(&blob, "").await),
                    }
                    // Changes by a single client are found immediately.
                    let own = format!("/con/own-{client}");
                    server.put_tagged(&own, &format!("own{client}={turn}")).await;
                    let found = server.find(&format!("own{client}>=''")).await;
                    assert_eq!(found, [format!("con/own-{client} own{client}={turn}")]);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let mut expected = vec![];
    for blob in 0..3 {
        let reply = server.get(&format!("/con/{blob}?comp=tags"), "").await;
        if reply.status == 200 {
            let words = words(reply.text());
            let value = words.split_whitespace().next().unwrap().to_owned();
            expected.push(format!("con/{blob} {value}"));
        }
    }
    expected.sort_by_key(|found| found.chars().rev().collect::<String>());
    let mut found = server.find("v>=''").await;
    found.sort_by_key(|found| found.chars().rev().collect::<String>());
    assert_eq!(found, expected);
}
