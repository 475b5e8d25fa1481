//! List Blobs: order, pages, delimiters, unusual names, included details, and cost.

use std::sync::Arc;

use crate::list_states::states;
use crate::support::{ACCOUNT, TestServer, key, start};
use bytes::Bytes;
use lazuli_auth::sign::{self, Resource};
use lazuli_protocol::ServiceKind;
use lazuli_store::{Commit, Partition, Reads};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

pub(crate) const LIST: &str = "/con?restype=container&comp=list";

pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

pub(crate) fn unescape(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// Returns the texts between two tags.
pub(crate) fn elements<'a>(text: &'a str, open: &str, close: &str) -> Vec<&'a str> {
    text.split(open).skip(1).map(|rest| rest.split_once(close).unwrap().0).collect()
}

/// Returns the names of a page, with a star after prefixes, and its marker.
pub(crate) fn names(text: &str) -> (Vec<String>, String) {
    let mut names = vec![];
    for entry in text.split("<Blob>").flat_map(|part| part.split("<BlobPrefix>")).skip(1) {
        let (name, rest) = entry.split_once("</Name>").unwrap();
        let star = if rest.starts_with("</BlobPrefix>") { "*" } else { "" };
        names.push(match name.strip_prefix("<Name Encoded=\"true\">") {
            Some(encoded) => percent_decode_str(encoded).decode_utf8().unwrap().into_owned() + star,
            None => unescape(name.strip_prefix("<Name>").unwrap()) + star,
        });
    }
    let marker = elements(text, "<NextMarker>", "<").first().copied().unwrap_or_default().to_owned();
    (names, marker)
}

impl TestServer {
    pub(crate) async fn list(&self, query: &str) -> String {
        self.get(&format!("{LIST}&{query}"), "").await.expect(200).text().to_owned()
    }

    /// Returns the names of all pages together, and the number of pages.
    pub(crate) async fn pages(&self, query: &str) -> (Vec<String>, usize) {
        let (mut all, mut marker, mut pages) = (vec![], String::new(), 0);
        loop {
            let (names, next) = names(&self.list(&format!("{query}&marker={marker}")).await);
            all.extend(names);
            pages += 1;
            if next.is_empty() {
                return (all, pages);
            }
            marker = next;
        }
    }

    pub(crate) async fn put_all(&self, names: &[&str]) {
        self.create_container("con").await;
        for name in names {
            self.put_block_blob(&format!("/con/{}", encode(name)), "").await;
        }
    }
}

#[tokio::test]
async fn names_are_in_byte_order_and_pages_neither_repeat_nor_skip() {
    let server = start().await;
    let sorted = ["A", "B", "Ba", "a", "a b", "a/b", "aa", "z", "ä", "\u{ffff}", "😀"];
    let mut shuffled = sorted;
    shuffled.reverse();
    server.put_all(&shuffled).await;
    for limit in 1..=12 {
        let (all, pages) = server.pages(&format!("maxresults={limit}")).await;
        assert_eq!(all, sorted, "{limit}");
        assert_eq!(pages, sorted.len().div_ceil(limit), "the last page is not empty");
    }
    for (prefix, expected) in
        [("a", &sorted[3..7]), ("B", &sorted[1..3]), ("b", &[]), ("\u{ffff}", &sorted[9..10])]
    {
        assert_eq!(server.pages(&format!("prefix={}", encode(prefix))).await.0, expected, "{prefix}");
    }
    assert_eq!(server.pages("startFrom=a%20b&endBefore=z").await.0, sorted[4..7]);
    assert_eq!(server.pages("prefix=a&startFrom=A&maxresults=1").await.0, sorted[3..7]);
    // A blob that is put between two pages appears if it sorts later, and never twice.
    let (first, marker) = names(&server.list("maxresults=3").await);
    server.put_block_blob("/con/AA", "").await;
    server.put_block_blob("/con/a%21", "").await;
    let (rest, _) = names(&server.list(&format!("marker={marker}")).await);
    assert_eq!(
        [first, rest].concat(),
        ["A", "B", "Ba", "a", "a b", "a!", "a/b", "aa", "z", "ä", "\u{ffff}", "😀"]
    );
}

#[tokio::test]
async fn every_valid_name_is_listed_unchanged() {
    let server = start().await;
    let odd = [
        " ",
        "!",
        "\"quoted\"",
        "#",
        "%41",
        "&amp;",
        "'",
        "+",
        ".",
        "..",
        "/",
        "//",
        "/lead",
        "<xml>",
        "a?b=c",
        "tail/",
        "é\u{301}",
        "\u{7f}",
        "\u{85}",
        "\u{fffe}x",
        "\u{ffff}",
        "日本語/ファイル",
        "🦀",
    ];
    server.put_all(&odd).await;
    let (all, _) = server.pages("").await;
    let mut expected = odd.to_vec();
    expected.sort_unstable();
    assert_eq!(all, expected);
    for name in odd {
        let (found, _) = names(&server.list(&format!("prefix={}&maxresults=1", encode(name))).await);
        assert_eq!(found, [name]);
    }
}

#[tokio::test]
async fn delimiter_folds_names_into_prefixes() {
    let server = start().await;
    let all = ["a", "a/1", "a/2/x", "a/2/y", "a/3", "a0", "b/", "b/1", "c--d--e", "c--f", "zz/"];
    server.put_all(&all).await;
    let cases: [(&str, &[&str]); 9] = [
        ("delimiter=/", &["a", "a/*", "a0", "b/*", "c--d--e", "c--f", "zz/*"]),
        ("delimiter=/&prefix=a", &["a", "a/*", "a0"]),
        ("delimiter=/&prefix=a/", &["a/1", "a/2/*", "a/3"]),
        ("delimiter=/&prefix=b/", &["b/", "b/1"]),
        ("delimiter=/&prefix=a/2/", &["a/2/x", "a/2/y"]),
        ("delimiter=--", &["a", "a/1", "a/2/x", "a/2/y", "a/3", "a0", "b/", "b/1", "c--*", "zz/"]),
        ("delimiter=--&prefix=c--", &["c--d--*", "c--f"]),
        (
            "delimiter=/x",
            &["a", "a/1", "a/2/x*", "a/2/y", "a/3", "a0", "b/", "b/1", "c--d--e", "c--f", "zz/"],
        ),
        ("delimiter=/&startFrom=a/2", &["a/*", "a0", "b/*", "c--d--e", "c--f", "zz/*"]),
    ];
    for (query, expected) in cases {
        for limit in [1, 2, 3, 5000] {
            let (found, pages) = server.pages(&format!("{query}&maxresults={limit}")).await;
            assert_eq!(found, expected, "{query} {limit}");
            assert_eq!(pages, expected.len().div_ceil(limit), "{query} {limit}");
        }
    }
    let text = server.list("delimiter=/&prefix=a/&maxresults=7").await;
    let echo = "<Prefix>a/</Prefix><MaxResults>7</MaxResults><Delimiter>/</Delimiter><Blobs>";
    assert!(text.contains(echo), "{text}");
    assert!(text.contains("<BlobPrefix><Name>a/2/</Name></BlobPrefix>"), "{text}");
}

/// Copies a blob's row to many names, which is faster than requests.
async fn multiply(server: &TestServer, container_of: &str, names: impl Iterator<Item = String>) {
    let space = server.space_of(container_of);
    let seed = Partition::new(space, format!("b{container_of}"));
    let row = server.store.read(&seed, &Reads::key("b")).await.unwrap().rows.remove(0).unwrap();
    let epoch = server.store.space(space).await.unwrap().unwrap().epoch;
    let mut commits = tokio::task::JoinSet::new();
    for name in names {
        let (store, value) = (Arc::clone(&server.store), row.value.clone());
        commits.spawn(async move {
            let put = lazuli_store::Mutation::Put(Bytes::from_static(b"b"), value);
            let commit = Commit {
                stamp: store.stamp(),
                epoch,
                conditions: vec![],
                mutations: vec![put],
                valid_until: None,
                fence: None,
                bulk: false,
            };
            store.commit(&Partition::new(space, format!("b{name}")), commit).await.unwrap();
        });
        if commits.len() == 256 {
            commits.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(done) = commits.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cost_of_a_page_does_not_depend_on_the_blobs_under_its_prefixes() {
    let server = start().await;
    server.put_all(&["first", "huge/0", "last", "wide/0"]).await;
    multiply(&server, "huge/0", (0..20_000).map(|at| format!("huge/{at:05}"))).await;
    multiply(&server, "huge/0", (0..2000).map(|at| format!("wide/{at:04}/only"))).await;
    server.watched.interposer.take_rows();
    assert_eq!(names(&server.list("delimiter=/").await).0, ["first", "huge/*", "last", "wide/*"]);
    let read = server.watched.interposer.take_rows();
    assert!(read <= 100, "{read} rows were read for four entries");

    // If every entry is a prefix of one blob, the scan reads each row once.
    let (found, pages) = server.pages("delimiter=/&prefix=wide/").await;
    assert_eq!((found.len(), pages), (2001, 1));
    let read = server.watched.interposer.take_rows();
    assert!(read <= 2001, "{read} rows were read for 2001 entries");

    let (found, pages) = server.pages("prefix=huge/").await;
    assert_eq!((found.len(), pages), (20_001, 5));
    let read = server.watched.interposer.take_rows();
    assert!(read <= 20_001 + 5 * 1024, "{read} rows were read for 20001 entries");
    let (found, _) = names(&server.list("maxresults=1").await);
    assert_eq!(found, ["first"]);
    assert!(server.watched.interposer.take_rows() <= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_hidden_blobs_ends_early_with_a_marker() {
    let server = start().await;
    server.put_all(&["a", "gone/0", "gone/live", "z"]).await;
    server.soft_delete(Some(1)).await;
    server.delete("/con/gone/0", "").await.expect(202);
    multiply(&server, "gone/0", (0..18_000).map(|at| format!("gone/{at:05}"))).await;
    for (query, expected) in [
        ("", ["a", "gone/live", "z"]),
        ("include=snapshots", ["a", "gone/live", "z"]),
        ("delimiter=/", ["a", "gone/*", "z"]),
    ] {
        server.watched.interposer.take_rows();
        let (first, marker) = names(&server.list(query).await);
        assert_eq!(first, ["a"], "{query}");
        assert!(!marker.is_empty(), "{query}");
        let read = server.watched.interposer.take_rows();
        assert!(read < 16_384 + 1024, "{read} rows were read for one entry");
        assert_eq!(server.pages(query).await, (expected.map(str::to_owned).to_vec(), 2), "{query}");
    }
}

#[tokio::test]
async fn entries_of_all_blob_types_end_with_ormetadata() {
    let server = start().await;
    server.put_all(&["b"]).await;
    server.put("/con/a", "x-ms-blob-type: AppendBlob", "").await.expect(201);
    server.put("/con/p", "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 0", "").await.expect(201);
    let listed = server.get(LIST, "").await.expect(200);
    assert_eq!(listed.text().matches("</Properties><OrMetadata /></Blob>").count(), 3, "{}", listed.text());
}

#[tokio::test]
async fn entry_has_the_documented_elements() {
    let server = start().await;
    server.create_container("con").await;
    let headers = "x-ms-blob-type: BlockBlob
        x-ms-blob-content-type: text/plain
        x-ms-blob-cache-control: no-store
        x-ms-meta-color: <blue>";
    let put = server.put("/con/b", headers, "hello").await.expect(201);
    let date = put.header("last-modified").unwrap();
    let etag = put.etag().trim_matches('"');
    let expected = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults \
         ServiceEndpoint=\"http://{}/{ACCOUNT}/\" ContainerName=\"con\"><Blobs><Blob><Name>b</Name><Properties>\
         <Creation-Time>{date}</Creation-Time><Last-Modified>{date}</Last-Modified><Etag>{etag}</Etag>\
         <Content-Length>5</Content-Length><Content-Type>text/plain</Content-Type><Content-Encoding />\
         <Content-Language /><Content-CRC64 /><Content-MD5>XUFAKrxLKna5cZ2REBfFkg==</Content-MD5>\
         <Cache-Control>no-store</Cache-Control><Content-Disposition /><BlobType>BlockBlob</BlobType>\
         <AccessTier>Hot</AccessTier><AccessTierInferred>true</AccessTierInferred>\
         <LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>\
         <ServerEncrypted>true</ServerEncrypted></Properties><Metadata><color>&lt;blue&gt;</color></Metadata>\
         <OrMetadata /></Blob></Blobs><NextMarker /></EnumerationResults>",
        server.address
    );
    let listed = server.get(&format!("{LIST}&include=metadata"), "").await.expect(200);
    assert_eq!(listed.text(), expected);
    assert_eq!(listed.header("content-type"), Some("application/xml"));
    assert!(!server.list("").await.contains("<Metadata>"));

    let old = server.get(LIST, "x-ms-version: 2011-08-18").await.expect(200);
    let expected = format!(
        "ContainerName=\"http://{0}/{ACCOUNT}/con\"><Blobs><Blob><Name>b</Name>\
         <Url>http://{0}/{ACCOUNT}/con/b</Url><Properties><Last-Modified>{date}</Last-Modified><Etag>{etag}</Etag>\
         <Content-Length>5</Content-Length><Content-Type>text/plain</Content-Type><Content-Encoding />\
         <Content-Language /><Content-MD5>XUFAKrxLKna5cZ2REBfFkg==</Content-MD5>\
         <Cache-Control>no-store</Cache-Control><BlobType>BlockBlob</BlobType><LeaseStatus>unlocked</LeaseStatus>\
         </Properties></Blob></Blobs><NextMarker /></EnumerationResults>",
        server.address
    );
    assert!(old.text().ends_with(&expected), "{}", old.text());
}

#[tokio::test]
async fn entries_of_page_and_append_blobs_have_their_properties() {
    let server = start().await;
    server.create_container("con").await;
    let page = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 1024\nx-ms-blob-sequence-number: 7";
    server.put("/con/page", page, "").await.expect(201);
    let text = server.list("").await;
    let expected =
        "<x-ms-blob-sequence-number>7</x-ms-blob-sequence-number><BlobType>PageBlob</BlobType><LeaseStatus>";
    assert!(text.contains(expected), "{text}");
    server.get(LIST, "x-ms-version: 2014-02-14").await.expect(200);
    server.put("/con/append", "x-ms-blob-type: AppendBlob", "").await.expect(201);
    assert!(server.list("").await.contains("<BlobType>AppendBlob</BlobType>"));
    server.get(LIST, "x-ms-version: 2014-02-14").await.refused(409, "FeatureVersionMismatch");
    server.lease("/con/page", "lease-action=acquire lease-duration=-1").await.expect(201);
    let leased = "<LeaseStatus>locked</LeaseStatus><LeaseState>leased</LeaseState><LeaseDuration>infinite</LeaseDuration>";
    assert!(server.list("").await.contains(leased));
}

#[tokio::test]
async fn uncommitted_blob_is_listed_on_request() {
    let server = start().await;
    server.put_all(&["a"]).await;
    server.put("/con/b?comp=block&blockid=AAAA", "", "x").await.expect(201);
    server.put("/con/a?comp=block&blockid=AAAA", "", "x").await.expect(201);
    assert_eq!(states(&server.list("include=metadata,snapshots,copy,deleted,versions").await), ["a"]);
    let text = server.list("include=uncommittedblobs,metadata").await;
    assert_eq!(states(&text), ["a", "b"]);
    let entry = "<Name>b</Name><Properties><Content-Length>0</Content-Length><BlobType>BlockBlob</BlobType>\
                 <AccessTier>Hot</AccessTier><AccessTierInferred>true</AccessTierInferred>\
                 <LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState>";
    assert!(text.contains(entry), "{text}");
}

#[tokio::test]
async fn listing_skips_the_rows_of_staged_blocks() {
    let server = start().await;
    server.put_all(&["a", "b"]).await;
    server.versioning(true).await;
    for at in 0..300u32 {
        let id = format!("{at:06}");
        server.put(&format!("/con/a?comp=block&blockid={}", encode(&base64(&id))), "", "x").await.expect(201);
    }
    server.watched.interposer.take_rows();
    let (found, _) = names(&server.list("include=versions&maxresults=1").await);
    assert_eq!(found, ["a"]);
    let read = server.watched.interposer.take_rows();
    assert!(read < 20, "{read} rows were read for one entry");
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[tokio::test]
async fn invalid_parameters_are_refused() {
    let server = start().await;
    server.create_container("con").await;
    for (query, status, code) in [
        ("maxresults=0", 400, "OutOfRangeQueryParameterValue"),
        ("maxresults=-1", 400, "OutOfRangeQueryParameterValue"),
        ("maxresults=many", 400, "InvalidQueryParameterValue"),
        ("include=everything", 400, "InvalidQueryParameterValue"),
        ("include=metadata,", 200, ""),
        ("include=metadata&include=copy", 200, ""),
        ("include=permissions", 200, ""),
        ("showonly=files", 400, "InvalidQueryParameterValue"),
        ("marker=not%20one", 400, "OutOfRangeInput"),
        ("marker=AAAA", 200, ""),
        ("maxresults=999999", 200, ""),
        ("delimiter=&prefix=&marker=", 200, ""),
    ] {
        let reply = server.get(&format!("{LIST}&{query}"), "").await;
        assert_eq!(reply.outcome(), (status, code), "{query}");
    }
    let old = server.get(&format!("{LIST}&include=versions"), "x-ms-version: 2018-03-28").await;
    old.refused(400, "InvalidQueryParameterValue");
    server.get("/none?restype=container&comp=list", "").await.refused(404, "ContainerNotFound");
    server.get("/No?restype=container&comp=list", "").await.refused(400, "OutOfRangeInput");
}

/// Returns a signature for a directory, or for the container if `directory` is empty.
fn directory_sas(directory: &str, permissions: &str) -> String {
    let path = format!("con/{directory}");
    let resource = Resource {
        service: ServiceKind::Blob,
        account: ACCOUNT,
        path: path.trim_end_matches('/'),
        timestamp: "",
    };
    let depth = directory.split('/').count().to_string();
    let mut fields = vec![("sv", "2022-11-02"), ("se", "2099-12-31T00:00:00Z"), ("sp", permissions)];
    match directory {
        "" => fields.push(("sr", "c")),
        _ => fields.extend([("sr", "d"), ("sdd", depth.as_str())]),
    }
    sign::service_sas(&resource, &key(), &fields)
}

#[tokio::test]
async fn directory_signature_lists_only_its_directory() {
    let server = start().await;
    let all = ["a", "a/b", "a/b!", "a/b!/x", "a/b/1", "a/b/2/x", "a/b0", "a/bc", "a/c/1"];
    server.put_all(&all).await;
    let sas = directory_sas("a/b", "l");
    for (query, expected) in [
        ("prefix=a/b", vec!["a/b", "a/b/1", "a/b/2/x"]),
        ("prefix=a/b/", vec!["a/b/1", "a/b/2/x"]),
        ("prefix=a/b/2", vec!["a/b/2/x"]),
        ("prefix=a/b&delimiter=/", vec!["a/b", "a/b/*"]),
        ("prefix=a/b/&delimiter=/", vec!["a/b/1", "a/b/2/*"]),
        ("prefix=a/b&maxresults=1", vec!["a/b"]),
    ] {
        let reply = server.send("GET", &format!("{LIST}&{query}&{sas}"), "", "").await.expect(200);
        assert_eq!(names(reply.text()).0, expected, "{query}");
    }
    for prefix in ["", "a", "a/", "a/bc", "a/c/"] {
        let reply = server.send("GET", &format!("{LIST}&prefix={prefix}&{sas}"), "", "").await;
        assert_eq!(reply.status, 403, "{prefix}");
    }
    // A forged marker does not lead out of the prefix.
    for marker in ["a/c/1", "a/c/1\0\u{7f}", "a/b0\0z", "a/bc", "a"] {
        use base64::Engine;
        let marker = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(marker);
        for prefix in ["a/b", "a/b/"] {
            let target = format!("{LIST}&prefix={prefix}&marker={marker}&{sas}");
            let (found, _) = names(server.send("GET", &target, "", "").await.expect(200).text());
            assert!(found.iter().all(|name| name == "a/b" || name.starts_with("a/b/")), "{marker} {found:?}");
        }
    }
}

#[tokio::test]
async fn details_are_listed_only_on_request() {
    let server = start().await;
    server.create_container("con").await;
    server.put("/con/b", "x-ms-blob-type: BlockBlob\nx-ms-tags: color=blue&size=3", "x").await.expect(201);
    let source = format!("x-ms-copy-source: http://{}/{ACCOUNT}/con/b", server.address);
    server.put("/con/c", &source, "").await.expect(202);
    server.put("/con/b?comp=tier", "x-ms-access-tier: Cool", "").await.expect(200);
    let policy = "x-ms-immutability-policy-until-date: Sat, 03 Jan 2026 00:00:00 GMT\n\
                  x-ms-immutability-policy-mode: unlocked";
    server.put("/con/b?comp=immutabilityPolicies", policy, "").await.expect(200);
    server.put("/con/b?comp=legalhold", "x-ms-legal-hold: true", "").await.expect(200);
    let always = [
        "<TagCount>2</TagCount>",
        "<AccessTier>Cool</AccessTier><AccessTierChangeTime>Fri, 02 Jan 2026 03:04:05 GMT</AccessTierChangeTime>",
    ];
    let included = [
        (
            "tags",
            "<Tags><TagSet><Tag><Key>color</Key><Value>blue</Value></Tag>\
             <Tag><Key>size</Key><Value>3</Value></Tag></TagSet></Tags>",
        ),
        ("copy", "<CopyStatus>success</CopyStatus><CopySource>http://"),
        ("copy", "<CopyProgress>1/1</CopyProgress><CopyCompletionTime>"),
        (
            "immutabilitypolicy",
            "<ImmutabilityPolicyUntilDate>Sat, 03 Jan 2026 00:00:00 GMT</ImmutabilityPolicyUntilDate>\
             <ImmutabilityPolicyMode>unlocked</ImmutabilityPolicyMode>",
        ),
        ("legalhold", "<LegalHold>true</LegalHold>"),
    ];
    let plain = server.list("").await;
    for text in always {
        assert!(plain.contains(text), "{text} in {plain}");
    }
    for (word, text) in included {
        assert!(!plain.contains(text), "{text} in {plain}");
        let with = server.list(&format!("include={word}")).await;
        assert!(with.contains(text), "{text} in {with}");
    }
}

#[tokio::test]
async fn listing_tags_requires_permission_to_read_tags() {
    let server = start().await;
    server.put_all(&["a"]).await;
    let target = format!("{LIST}&include=tags");
    server
        .send("GET", &format!("{target}&{}", directory_sas("", "l")), "", "")
        .await
        .refused(403, "AuthorizationPermissionMismatch");
    server.send("GET", &format!("{target}&{}", directory_sas("", "lt")), "", "").await.expect(200);
    server.signed("GET", &target, "", "").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_has_every_blob_that_existed_throughout() {
    const WRITERS: usize = 32;
    let server = Arc::new(start().await);
    let fixed: Vec<_> = (0..200).map(|at| format!("{at:03}")).collect();
    server.put_all(&fixed.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let writers = (0..WRITERS).map(|writer| {
        let server = server.clone();
        tokio::spawn(async move {
            for at in 0..20 {
                let name = format!("/con/{:03}-{writer}", at * 10);
                server.put_block_blob(&name, "x").await;
                server.put_block_blob(&format!("/con/{:03}", at * 10), "y").await;
                server.delete(&name, "").await.expect(202);
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    while writers.iter().any(|writer| !writer.is_finished()) {
        let (found, _) = server.pages("maxresults=37").await;
        assert!(found.is_sorted_by(|a, b| a < b), "a name was listed twice");
        assert_eq!(found.iter().filter(|name| name.len() == 3).count(), fixed.len());
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(server.pages("").await.0, fixed);
}

#[tokio::test]
async fn anonymous_listing_may_include_versions_but_not_deleted_or_uncommitted_blobs() {
    let server = start().await;
    server
        .signed("PUT", "/open?restype=container", "x-ms-blob-public-access: container", "")
        .await
        .expect(201);
    server.put_block_blob("/open/b", "1").await;
    let version = "x-ms-version: 2021-12-02";
    for (include, status, code) in [
        ("metadata", 200, ""),
        ("snapshots", 200, ""),
        ("versions", 200, ""),
        ("deleted", 404, "ResourceNotFound"),
        ("deletedwithversions", 404, "ResourceNotFound"),
        ("uncommittedblobs", 404, "ResourceNotFound"),
        ("metadata,uncommittedblobs", 404, "ResourceNotFound"),
    ] {
        let target = format!("/open?restype=container&comp=list&include={include}");
        let anonymous = server.send("GET", &target, version, "").await;
        assert_eq!(anonymous.outcome(), (status, code), "{include}");
        server.get(&target, "").await.expect(200);
    }
}
