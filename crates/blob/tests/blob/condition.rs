//! Condition headers, and which operations change a blob's `ETag`: the documented tables.

use crate::support::{Reply, TestServer, start};

/// A write to an existing blob: its name, the type of blob, and its query, headers and body.
type Write = (&'static str, &'static str, &'static str, &'static str, &'static str);

const WRITES: [Write; 11] = [
    ("Put Blob", "BlockBlob", "", "x-ms-blob-type: BlockBlob", "new"),
    ("Put Blob (append)", "AppendBlob", "", "x-ms-blob-type: AppendBlob", ""),
    ("Put Blob (page)", "PageBlob", "", "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512", ""),
    ("Put Block List", "BlockBlob", "?comp=blocklist", "", "<BlockList/>"),
    ("Append Block", "AppendBlob", "?comp=appendblock", "", "more"),
    ("Append Blob Seal", "AppendBlob", "?comp=seal", "", ""),
    ("Put Page (clear)", "PageBlob", "?comp=page", "x-ms-page-write: clear\nx-ms-range: bytes=0-511", ""),
    ("Set Blob Metadata", "BlockBlob", "?comp=metadata", "", ""),
    ("Set Blob Properties", "BlockBlob", "?comp=properties", "", ""),
    ("Set Blob Properties (resize)", "PageBlob", "?comp=properties", "x-ms-blob-content-length: 1024", ""),
    (
        "Set Blob Properties (sequence number)",
        "PageBlob",
        "?comp=properties",
        "x-ms-sequence-number-action: increment",
        "",
    ),
];

impl TestServer {
    async fn make(&self, blob: &str, kind: &str) -> Reply {
        let headers = match kind {
            "PageBlob" => "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512".to_owned(),
            kind => format!("x-ms-blob-type: {kind}"),
        };
        self.put(blob, &headers, "").await.expect(201)
    }
}

/// Returns headers that the current state meets, and headers that it does not.
fn conditions(current: &Reply) -> [(char, String, String); 4] {
    let (etag, date) = (current.etag(), current.header("last-modified").unwrap());
    let before = "Thu, 01 Jan 2026 00:00:00 GMT";
    [
        ('M', format!("if-match: {etag}"), "if-match: \"0x1\"".into()),
        ('N', "if-none-match: \"0x1\"".into(), format!("if-none-match: {etag}")),
        ('S', format!("if-modified-since: {before}"), format!("if-modified-since: {date}")),
        ('U', format!("if-unmodified-since: {date}"), format!("if-unmodified-since: {before}")),
    ]
}

#[tokio::test]
async fn write_succeeds_if_its_condition_is_met() {
    let server = start().await;
    server.create_container("con").await;
    for (n, (name, kind, query, own, body)) in WRITES.iter().enumerate() {
        let blob = format!("/con/{n}");
        let write = async |headers: &str| {
            server.put(&format!("{blob}{query}"), &format!("{own}\n{headers}"), *body).await
        };
        for at in 0..4 {
            let current = server.make(&blob, kind).await;
            let (header, met, unmet) = &conditions(&current)[at];
            write(unmet).await.refused(412, "ConditionNotMet");
            assert_eq!(server.head(&blob, "").await.etag(), current.etag(), "{name}");
            let reply = write(met).await;
            assert!(reply.status.is_success(), "{name} {header}: {:?}", reply.outcome());
        }
        // In the two allowed pairs, the `ETag` decides.
        for (tag, date) in [(0, 3), (1, 2)] {
            let current = server.make(&blob, kind).await;
            let all = conditions(&current);
            let pair = format!("{}\n{}", all[tag].2, all[date].1);
            write(&pair).await.refused(412, "ConditionNotMet");
            let reply = write(&format!("{}\n{}", all[tag].1, all[date].2)).await;
            assert!(reply.status.is_success(), "{name}: {:?}", reply.outcome());
        }
        let current = server.make(&blob, kind).await;
        let all = conditions(&current);
        for (one, two) in [(0, 1), (0, 2), (1, 3), (2, 3)] {
            let both = format!("{}\n{}", all[one].1, all[two].1);
            write(&both).await.refused(400, "MultipleConditionHeadersNotSupported");
        }
        let two_tags = format!("if-match: {}, \"0x1\"", current.etag());
        write(&two_tags).await.refused(400, "MultipleConditionHeadersNotSupported");
        let any = write("if-match: *").await;
        assert!(any.status.is_success(), "{name}: {:?}", any.outcome());
    }
}

#[tokio::test]
async fn existence_conditions_depend_on_whether_the_operation_creates() {
    let server = start().await;
    server.create_container("con").await;
    for (n, (name, kind, query, own, body)) in WRITES.iter().enumerate() {
        let creates = name.starts_with("Put Bl");
        let write = async |blob: &str, headers: &str| {
            let reply = server.put(&format!("{blob}{query}"), &format!("{own}\n{headers}"), *body).await;
            let (status, code) = reply.outcome();
            format!("{status} {code}")
        };
        let blob = format!("/con/{n}");
        server.make(&blob, kind).await;
        let exists = write(&blob, "if-none-match: *").await;
        assert_eq!(exists == "409 BlobAlreadyExists", creates, "{name}: {exists}");
        assert!(creates || exists.starts_with("20"), "{name}: {exists}");
        for headers in ["if-match: *", "if-match: \"0x1\""] {
            let absent = write("/con/none", headers).await;
            let expected = if creates { "412 ConditionNotMet" } else { "404 BlobNotFound" };
            assert_eq!(absent, expected, "{name} {headers}");
        }
        if creates {
            let dated = "if-unmodified-since: Thu, 01 Jan 2026 00:00:00 GMT";
            assert_eq!(write(&format!("/con/new-{n}"), dated).await, "201 ", "{name}");
            assert_eq!(write(&format!("/con/newer-{n}"), "if-none-match: *").await, "201 ", "{name}");
        }
    }
}

#[tokio::test]
async fn read_combines_conditions_as_documented() {
    let server = start().await;
    server.create_container("con").await;
    let current = server.put_block_blob("/con/b", "content").await;
    let all = conditions(&current);
    // Upper case: met. Lower case: unmet. A dot: not sent. In the order M, U, N, S.
    for (row, status) in [
        ("m...", 412),
        ("mUNS", 412),
        (".u..", 412),
        ("MuNS", 412),
        ("..n.", 304),
        ("..ns", 304),
        ("MUns", 304),
        ("...s", 304),
        ("MU.s", 304),
        ("..Ns", 200),
        ("..nS", 200),
        ("MUNS", 200),
        ("M...", 200),
        (".U..", 200),
    ] {
        let mut headers = String::new();
        for letter in row.chars().filter(|letter| *letter != '.') {
            let (_, met, unmet) = all.iter().find(|(name, ..)| *name == letter.to_ascii_uppercase()).unwrap();
            headers += if letter.is_uppercase() { met } else { unmet };
            headers += "\n";
        }
        for target in ["/con/b", "/con/b?comp=metadata"] {
            let reply = server.get(target, &headers).await;
            assert_eq!(reply.status.as_u16(), status, "{row} {target}");
            if status != 200 {
                assert_eq!(reply.header("x-ms-error-code"), Some("ConditionNotMet"), "{row}");
            }
        }
        assert_eq!(server.head("/con/b", &headers).await.status.as_u16(), status, "{row}");
    }
    server.get("/con/b", "if-none-match: *").await.refused(400, "UnsatisfiableCondition");
    server.get("/con/none", "if-match: *").await.refused(404, "BlobNotFound");
    for name in ["if-modified-since", "if-unmodified-since"] {
        server.get("/con/b", &format!("{name}: yesterday")).await.expect(200);
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for two in [format!("{name}: {date}, {date}"), format!("{name}: {date}\n{name}: {date}")] {
            server.get("/con/b", &two).await.refused(400, "InvalidHeaderValue");
        }
    }
}

#[tokio::test]
async fn operations_change_the_etag_as_documented() {
    let server = start().await;
    server.create_container("con").await;
    let lease = "x-ms-lease-action: acquire\nx-ms-lease-duration: 15";
    let policy = "x-ms-immutability-policy-until-date: Fri, 01 Jan 2100 00:00:00 GMT";
    let keeps: [Write; 8] = [
        ("Put Block", "BlockBlob", "?comp=block&blockid=AAAA", "", "block"),
        ("Set Blob Tags", "BlockBlob", "?comp=tags", "", "<Tags><TagSet/></Tags>"),
        ("Snapshot Blob", "BlockBlob", "?comp=snapshot", "", ""),
        ("Lease Blob", "BlockBlob", "?comp=lease", lease, ""),
        ("Set Blob Tier", "BlockBlob", "?comp=tier", "x-ms-access-tier: Cool", ""),
        ("Set Blob Immutability Policy", "BlockBlob", "?comp=immutabilityPolicies", policy, ""),
        ("Set Blob Legal Hold", "BlockBlob", "?comp=legalhold", "x-ms-legal-hold: true", ""),
        ("Undelete Blob", "BlockBlob", "?comp=undelete", "", ""),
    ];
    for (n, (name, kind, query, own, body)) in WRITES.iter().chain(&keeps).enumerate() {
        let changes = *name != "Append Blob Seal" && !keeps.iter().any(|(kept, ..)| kept == name);
        let blob = format!("/con/{n}");
        let made = server.make(&blob, kind).await;
        server.advance(2);
        let reply = server.put(&format!("{blob}{query}"), own, *body).await;
        assert!(reply.status.is_success(), "{name}: {:?}", reply.outcome());
        let now = server.head(&blob, "").await.expect(200);
        assert_eq!(now.etag() != made.etag(), changes, "{name}");
        assert_eq!(now.header("last-modified") != made.header("last-modified"), changes, "{name}");
        if let Some(etag) = reply.header("etag").filter(|_| *name != "Snapshot Blob") {
            assert_eq!(etag, now.etag(), "{name}");
        }
        server.get(&blob, "").await.expect(200);
        assert_eq!(server.head(&blob, "").await.etag(), now.etag(), "reads keep the ETag");
    }
    let (one, two) = (server.put_block_blob("/con/x", "1").await, server.put_block_blob("/con/x", "1").await);
    assert_eq!(one.header("last-modified"), two.header("last-modified"));
    assert_ne!(one.etag(), two.etag(), "two writes in one second have different ETags");
}
