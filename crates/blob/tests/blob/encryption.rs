//! Customer-provided keys and encryption scopes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use lazuli_account::Setting;
use lazuli_auth::sign::{self, Resource};
use lazuli_protocol::ServiceKind;
use ring::digest::{SHA256, digest};

use crate::support::{ACCOUNT, Reply, TestServer, allowed, key, start_with_files};

const BLOCK: &str = "x-ms-blob-type: BlockBlob";

/// Returns the headers of a customer-provided key.
fn customer(byte: u8) -> String {
    let key = [byte; 32];
    let sha256 = digest(&SHA256, &key);
    format!(
        "x-ms-encryption-key: {}\nx-ms-encryption-key-sha256: {}\nx-ms-encryption-algorithm: AES256",
        BASE64.encode(key),
        BASE64.encode(sha256)
    )
}

fn sha256(byte: u8) -> String {
    BASE64.encode(digest(&SHA256, &[byte; 32]))
}

fn scope(name: &str) -> String {
    format!("x-ms-encryption-scope: {name}")
}

fn with(one: &str, other: &str) -> String {
    format!("{one}\n{other}")
}

/// Returns incompressible bytes that occur nowhere else.
fn random(length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    getrandom::fill(&mut bytes).unwrap();
    bytes.into()
}

async fn start_with_scopes() -> TestServer {
    let server = start_with_files().await;
    for name in ["first", "second"] {
        server.set(Setting::AddEncryptionScope(name.into())).await;
    }
    server.create_container("things").await;
    server
}

#[tokio::test]
async fn encrypted_content_round_trips_and_is_not_on_disk() {
    let server = start_with_scopes().await;
    let plain = random(200_000);
    server.put("/things/plain", BLOCK, plain.slice(..100)).await.expect(201);
    server.put("/things/plain2", BLOCK, plain.slice(100_000..)).await.expect(201);
    let small = random(5000);
    let large = random((5 << 20) + 77);
    for (name, headers) in [("key", customer(1)), ("scope", scope("first"))] {
        for (size, body) in [("small", &small), ("large", &large)] {
            let target = format!("/things/{name}-{size}");
            let put = server.put(&target, &with(BLOCK, &headers), body.clone()).await.expect(201);
            assert_eq!(put.header("x-ms-request-server-encrypted"), Some("true"));
            let read = if name == "key" { headers.as_str() } else { "" };
            let got = server.get(&target, read).await.expect(200);
            assert!(got.body == body, "{target}");
            assert_eq!(got.header("content-md5"), put.header("content-md5"));
            assert_eq!(got.header("x-ms-server-encrypted"), Some("true"));
            for reply in [&put, &got, &server.head(&target, read).await.expect(200)] {
                let shown =
                    (reply.header("x-ms-encryption-key-sha256"), reply.header("x-ms-encryption-scope"));
                let hash = sha256(1);
                let expected =
                    if name == "key" { (Some(hash.as_str()), None) } else { (None, Some("first")) };
                assert_eq!(shown, expected, "{target}");
            }
        }
    }
    let server = server.restart().await;
    for body in [plain.slice(10..42), plain.slice(150_000..150_032)] {
        assert!(server.is_on_disk(&body), "the search must find unencrypted content");
    }
    for secret in [small.slice(1000..1032), large.slice(..32), large.slice(3 << 20..(3 << 20) + 32)] {
        assert!(!server.is_on_disk(&secret));
    }
    assert!(!server.is_on_disk(&[1; 32]), "the key must not be stored");
    assert!(server.get("/things/key-large", &customer(1)).await.expect(200).body == large);
    assert!(server.get("/things/scope-large", "").await.expect(200).body == large);
}

#[tokio::test]
async fn ranges_at_odd_offsets_decrypt() {
    let server = start_with_scopes().await;
    let body = random(700_001);
    server.put("/things/b", &with(BLOCK, &customer(1)), body.clone()).await.expect(201);
    for (first, last) in [(0, 0), (1, 1), (15, 17), (262_143, 262_145), (3, 700_000), (699_999, 700_000)] {
        let range = format!("{}\nx-ms-range: bytes={first}-{last}", customer(1));
        let got = server.get("/things/b", &range).await.expect(206);
        assert!(got.body == body[first..=last], "{first}-{last}");
        let digested = with(&range, "x-ms-range-get-content-crc64: true");
        assert!(server.get("/things/b", &digested).await.expect(206).body == body[first..=last]);
    }
}

#[tokio::test]
async fn read_requires_the_right_key() {
    let server = start_with_scopes().await;
    server.put("/things/key", &with(BLOCK, &customer(1)), "secret").await.expect(201);
    server.put("/things/scope", &with(BLOCK, &scope("first")), "secret").await.expect(201);
    server.put("/things/plain", BLOCK, "open").await.expect(201);
    let missing = (409, "BlobUsesCustomerSpecifiedEncryption");
    let wrong = (409, "BlobCustomerSpecifiedEncryptionMismatch");
    let needless = (409, "BlobDoesNotUseCustomerSpecifiedEncryption");
    for (blob, headers, outcome) in [
        ("key", String::new(), missing),
        ("key", customer(2), wrong),
        ("key", customer(1), (200, "")),
        // A read ignores the scope header.
        ("scope", String::new(), (200, "")),
        ("scope", scope("second"), (200, "")),
        ("scope", customer(1), wrong),
        ("plain", customer(1), needless),
        ("plain", String::new(), (200, "")),
    ] {
        for (method, query) in
            [("GET", ""), ("HEAD", ""), ("GET", "?comp=metadata"), ("HEAD", "?comp=metadata")]
        {
            let reply = server.call(method, &format!("/things/{blob}{query}"), &headers, "").await;
            assert_eq!(reply.outcome(), outcome, "{method} {blob}{query} {headers}");
        }
    }
}

#[tokio::test]
async fn change_requires_the_encryption_of_the_blob() {
    let server = start_with_scopes().await;
    server.put("/things/key", &with(BLOCK, &customer(1)), "secret").await.expect(201);
    server.put("/things/scope", &with(BLOCK, &scope("first")), "secret").await.expect(201);
    server.put("/things/plain", BLOCK, "open").await.expect(201);
    let missing = (409, "BlobUsesCustomerSpecifiedEncryption");
    let wrong = (409, "BlobCustomerSpecifiedEncryptionMismatch");
    let needless = (409, "BlobDoesNotUseCustomerSpecifiedEncryption");
    for (blob, headers, outcome) in [
        ("key", String::new(), missing),
        ("key", customer(2), wrong),
        ("key", scope("first"), wrong),
        ("key", customer(1), (200, "")),
        ("scope", String::new(), missing),
        ("scope", scope("second"), wrong),
        ("scope", scope("first"), (200, "")),
        ("plain", customer(1), needless),
        ("plain", scope("first"), needless),
    ] {
        let target = format!("/things/{blob}?comp=metadata");
        let reply = server.put(&target, &with("x-ms-meta-a: b", &headers), "").await;
        assert_eq!(reply.outcome(), outcome, "{blob} {headers}");
    }
    // Changes of metadata need no key, but a key in the request must be right.
    let target = "/things/key?comp=properties";
    server.put(target, "x-ms-blob-content-type: text/plain", "").await.expect(200);
    server.put(target, &customer(2), "").await.refused(409, "BlobCustomerSpecifiedEncryptionMismatch");
    // A request that replaces a blob chooses its encryption.
    server.put("/things/key", &with(BLOCK, &scope("second")), "other").await.expect(201);
    assert_eq!(server.get("/things/key", "").await.expect(200).text(), "other");
}

#[tokio::test]
async fn invalid_key_headers_are_refused() {
    let server = start_with_scopes().await;
    let good = customer(1);
    let short = BASE64.encode([1; 31]);
    let (name, value) = good.lines().next().unwrap().split_once(": ").unwrap();
    for (headers, code) in [
        (good.replace(value, &short), "InvalidHeaderValue"),
        (good.replace(value, "not base64"), "InvalidHeaderValue"),
        (good.replace(&sha256(1), &sha256(2)), "InvalidHeaderValue"),
        (good.replace("AES256", "AES128"), "InvalidHeaderValue"),
        (good.replace(&format!("{name}: {value}\n"), ""), "MissingRequiredHeader"),
        (good.lines().take(2).collect::<Vec<_>>().join("\n"), "MissingRequiredHeader"),
        (good.lines().take(1).collect::<Vec<_>>().join("\n"), "MissingRequiredHeader"),
        (with(&good, &scope("first")), "InvalidHeaderValue"),
        (scope("unknown"), "InvalidHeaderValue"),
    ] {
        let reply = server.put("/things/b", &with(BLOCK, &headers), "x").await.refused(400, code);
        assert!(!reply.text().contains(value), "{}", reply.text());
    }
    server.get("/things/b", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn algorithm_without_a_key_is_ignored() {
    let server = start_with_scopes().await;
    let alone = "x-ms-encryption-algorithm: AES256\nx-ms-source-encryption-algorithm: AES256";
    let put = server.put("/things/b", &with(BLOCK, alone), "x").await.expect(201);
    assert_eq!(put.header("x-ms-encryption-key-sha256"), None);
    for (method, target) in [("GET", "/things/b"), ("HEAD", "/things/b"), ("PUT", "/things/b?comp=metadata")]
    {
        server.call(method, target, alone, "").await.expect(200);
    }
    server.put("/things/b?comp=block&blockid=AAAA", alone, "x").await.expect(201);
    let scoped = with(&with(BLOCK, &scope("first")), alone);
    let put = server.put("/things/scoped", &scoped, "x").await.expect(201);
    assert_eq!(put.header("x-ms-encryption-scope"), Some("first"));
    server.put("/things/key", &with(BLOCK, &customer(1)), "x").await.expect(201);
    server.get("/things/key", alone).await.refused(409, "BlobUsesCustomerSpecifiedEncryption");
}

/// Puts a blob with these headers. The reply has its scope.
async fn scope_of(server: &TestServer, target: &str, headers: &str) -> Reply {
    server.put(target, &with(BLOCK, headers), "x").await
}

#[tokio::test]
async fn container_default_scope_applies_and_can_be_enforced() {
    let server = start_with_scopes().await;
    let open = "x-ms-default-encryption-scope: first\nx-ms-deny-encryption-scope-override: false";
    let strict = "x-ms-default-encryption-scope: first\nx-ms-deny-encryption-scope-override: true";
    server.put("/open?restype=container", open, "").await.expect(201);
    server.put("/strict?restype=container", strict, "").await.expect(201);
    let unknown = "x-ms-default-encryption-scope: third";
    server.put("/unknown?restype=container", unknown, "").await.refused(400, "InvalidHeaderValue");
    for (container, headers, expected) in [
        ("open", String::new(), Some("first")),
        ("open", scope("second"), Some("second")),
        ("open", customer(1), None),
        ("strict", String::new(), Some("first")),
        ("strict", scope("first"), Some("first")),
    ] {
        let reply = scope_of(&server, &format!("/{container}/b"), &headers).await.expect(201);
        assert_eq!(reply.header("x-ms-encryption-scope"), expected, "{container} {headers}");
    }
    for headers in [scope("second"), customer(1)] {
        scope_of(&server, "/strict/b", &headers)
            .await
            .refused(403, "RequestForbiddenByContainerEncryptionPolicy");
    }
    // The default scope applies to changes, too.
    scope_of(&server, "/open/b", "").await.expect(201);
    server.put("/open/b?comp=metadata", "x-ms-meta-a: b", "").await.expect(200);
    scope_of(&server, "/open/b", &scope("second")).await.expect(201);
    let reply = server.put("/open/b?comp=metadata", "x-ms-meta-a: b", "").await;
    reply.refused(409, "BlobUsesCustomerSpecifiedEncryption");
}

#[tokio::test]
async fn signature_may_name_an_encryption_scope() {
    let server = start_with_scopes().await;
    let sas = |name: &'static str| {
        let fields = [("sv", "2022-11-02"), ("sr", "c"), ("sp", "rcw"), ("se", "2099-12-31"), ("ses", name)];
        let resource =
            Resource { service: ServiceKind::Blob, account: ACCOUNT, path: "things", timestamp: "" };
        sign::service_sas(&resource, &key(), &fields)
    };
    let (first, second) = (sas("first"), sas("second"));
    let put = server.send("PUT", &format!("/things/b?{first}"), BLOCK, "secret").await.expect(201);
    assert_eq!(put.header("x-ms-encryption-scope"), Some("first"));
    let other = with(BLOCK, &scope("second"));
    server.send("PUT", &format!("/things/b?{first}"), &other, "x").await.refused(400, "InvalidHeaderValue");
    // A signature for one scope can read blobs of another.
    let got = server.send("GET", &format!("/things/b?{second}"), "", "").await.expect(200);
    assert_eq!(got.text(), "secret");
}

#[tokio::test]
async fn removed_scope_decrypts_nothing() {
    let server = start_with_scopes().await;
    server.put("/things/b", &with(BLOCK, &scope("first")), "secret").await.expect(201);
    server.set(Setting::RemoveEncryptionScope("first".into())).await;
    server.get("/things/b", "").await.refused(403, "AuthorizationFailure");
    server.set(Setting::AddEncryptionScope("first".into())).await;
    assert_eq!(server.get("/things/b", "").await.expect(200).text(), "secret");
}

/// Returns the headers of a customer-provided key for the source of a copy.
fn source_key(byte: u8) -> String {
    customer(byte).replace("x-ms-encryption-", "x-ms-source-encryption-")
}

#[tokio::test]
async fn copy_reads_with_the_source_key_and_can_change_the_key() {
    let server = start_with_scopes().await;
    let body = random(70_000);
    server.put("/things/source", &with(BLOCK, &customer(1)), body.clone()).await.expect(201);
    let source = allowed(&format!("http://{}/{ACCOUNT}/things/source", server.address));
    let from = format!("x-ms-copy-source: {source}");
    for (way, status) in [("", 202), ("x-ms-requires-sync: true", 202), (BLOCK, 201)] {
        let (server, from) = (&server, &from);
        let copy = async |keys: &str| server.put("/things/copy", &format!("{from}\n{way}\n{keys}"), "").await;
        for (keys, read) in [
            (with(&source_key(1), &customer(2)), customer(2)),
            (with(&source_key(1), &customer(1)), customer(1)),
            (with(&source_key(1), &scope("first")), String::new()),
            (source_key(1), String::new()),
        ] {
            copy(&keys).await.expect(status);
            assert!(server.get("/things/copy", &read).await.expect(200).body == body, "{way} {keys}");
        }
        for (keys, code) in [
            (customer(1), "BlobUsesCustomerSpecifiedEncryption"),
            (with(&source_key(2), &customer(1)), "BlobCustomerSpecifiedEncryptionMismatch"),
        ] {
            let refused = copy(&keys).await.expect(409);
            let code_of_source = refused.header("x-ms-copy-source-error-code");
            assert_eq!(code_of_source.or(refused.header("x-ms-error-code")), Some(code), "{way}");
        }
        copy(&source_key(1).replace("AES256", "AES128")).await.refused(400, "InvalidHeaderValue");
    }
    // Change the key of a blob in place, and copy a part of it to a block.
    let part = format!("{from}\nx-ms-source-range: bytes=33-60000\n{}\n{}", source_key(1), customer(3));
    server.put(&format!("/things/b?comp=block&blockid={}", block_id(0)), &part, "").await.expect(201);
    server.commit("/things/b", &[0], &customer(3)).await.expect(201);
    assert!(server.get("/things/b", &customer(3)).await.expect(200).body == body.slice(33..60_001));
    let again = format!("{from}\n{BLOCK}\n{}\n{}", source_key(1), customer(4));
    server.put("/things/source", &again, "").await.expect(201);
    assert!(server.get("/things/source", &customer(4)).await.expect(200).body == body);
}

fn block_id(index: usize) -> String {
    BASE64.encode(format!("{index:06}"))
}

impl TestServer {
    async fn stage(&self, target: &str, index: usize, headers: &str, body: Bytes) -> Reply {
        self.put(&format!("{target}?comp=block&blockid={}", block_id(index)), headers, body).await
    }

    async fn commit(&self, target: &str, indexes: &[usize], headers: &str) -> Reply {
        let blocks: String =
            indexes.iter().map(|index| format!("<Latest>{}</Latest>", block_id(*index))).collect();
        let list = format!("<BlockList>{blocks}</BlockList>");
        self.put(&format!("{target}?comp=blocklist"), headers, list).await
    }
}

#[tokio::test]
async fn blocks_are_encrypted_separately_and_read_as_one_blob() {
    let server = start_with_scopes().await;
    for (name, headers, read) in [("key", customer(1), customer(1)), ("scope", scope("first"), String::new())]
    {
        let target = format!("/things/{name}");
        // Small and large blocks, in another order than they were put, and one of them twice.
        let blocks: Vec<_> = [100, 300_000, 1, 70_001].map(random).into();
        for (index, block) in blocks.iter().enumerate() {
            let staged = server.stage(&target, index, &headers, block.clone()).await.expect(201);
            assert_eq!(staged.header("x-ms-encryption-scope").is_some(), name == "scope");
            assert_eq!(staged.header("x-ms-encryption-key-sha256").is_some(), name == "key");
        }
        server.commit(&target, &[3, 0, 1, 2, 0], &headers).await.expect(201);
        let whole: Vec<u8> = [3, 0, 1, 2, 0].iter().flat_map(|index| blocks[*index].to_vec()).collect();
        assert!(server.get(&target, &read).await.expect(200).body == whole);
        // Read around every boundary between blocks.
        for at in [70_001, 70_101, 370_101, 370_102] {
            let range = with(&read, &format!("x-ms-range: bytes={}-{}", at - 20, at + 19));
            let got = server.get(&target, &range).await.expect(206);
            assert!(got.body == whole[at - 20..at + 20], "{at}");
        }
        // Put a new block between two committed ones.
        let more = random(5000);
        server.stage(&target, 9, &headers, more.clone()).await.expect(201);
        server.commit(&target, &[1, 9, 3], &headers).await.expect(201);
        let whole = [&blocks[1][..], &more, &blocks[3]].concat();
        assert!(server.get(&target, &read).await.expect(200).body == whole);
        assert!(blocks.iter().filter(|block| block.len() > 32).all(|block| !server.is_on_disk(&block[..32])));
    }
}

#[tokio::test]
async fn all_blocks_of_a_list_must_have_its_encryption() {
    let server = start_with_scopes().await;
    let missing = (409, "BlobUsesCustomerSpecifiedEncryption");
    let wrong = (409, "BlobCustomerSpecifiedEncryptionMismatch");
    let needless = (409, "BlobDoesNotUseCustomerSpecifiedEncryption");
    for (staged, committed, outcome) in [
        (customer(1), customer(1), (201, "")),
        (customer(1), String::new(), missing),
        (customer(1), customer(2), wrong),
        (scope("first"), String::new(), missing),
        (scope("first"), scope("second"), wrong),
        (String::new(), customer(1), needless),
        (String::new(), String::new(), (201, "")),
    ] {
        server.put("/things/b", BLOCK, "what is there need not be encrypted alike").await.expect(201);
        server.stage("/things/b", 0, &staged, random(10)).await.expect(201);
        let reply = server.commit("/things/b", &[0], &committed).await;
        assert_eq!(reply.outcome(), outcome, "{staged} | {committed}");
    }
    // Committed blocks cannot be kept with another key either.
    server.stage("/things/b", 0, &customer(1), random(10)).await.expect(201);
    server.commit("/things/b", &[0], &customer(1)).await.expect(201);
    server.stage("/things/b", 1, &customer(2), random(10)).await.expect(201);
    assert_eq!(server.commit("/things/b", &[0, 1], &customer(2)).await.outcome(), wrong);
    server.commit("/things/b", &[1], &customer(2)).await.expect(201);
}

#[tokio::test]
async fn appends_are_encrypted_separately() {
    let server = start_with_scopes().await;
    let create = with("x-ms-blob-type: AppendBlob", &customer(1));
    server.put("/things/log", &create, "").await.expect(201);
    let mut whole = vec![];
    for round in 0..40 {
        let piece = random(1 + round * 997);
        let appended =
            server.put("/things/log?comp=appendblock", &customer(1), piece.clone()).await.expect(201);
        assert_eq!(appended.header("x-ms-encryption-key-sha256"), Some(sha256(1).as_str()));
        whole.extend_from_slice(&piece);
    }
    assert!(server.get("/things/log", &customer(1)).await.expect(200).body == whole);
    let range = with(&customer(1), "x-ms-range: bytes=3000-600000");
    assert!(server.get("/things/log", &range).await.expect(206).body == whole[3000..=600_000]);
    assert!(!server.is_on_disk(&whole[500_000..500_032]));
    for (headers, outcome) in [
        (String::new(), (409, "BlobUsesCustomerSpecifiedEncryption")),
        (customer(2), (409, "BlobCustomerSpecifiedEncryptionMismatch")),
    ] {
        let reply = server.put("/things/log?comp=appendblock", &headers, "more").await;
        assert_eq!(reply.outcome(), outcome);
    }
    let server = server.restart().await;
    assert!(server.get("/things/log", &customer(1)).await.expect(200).body == whole);
}

#[tokio::test]
async fn parallel_appends_to_an_encrypted_blob_keep_every_byte() {
    let server = start_with_scopes().await;
    let create = with("x-ms-blob-type: AppendBlob", &scope("first"));
    server.put("/things/log", &create, "").await.expect(201);
    let headers = scope("first");
    let appends = (0..32_u8).map(|index| {
        let (server, headers) = (&server, &headers);
        async move {
            server.put("/things/log?comp=appendblock", headers, vec![index; 100]).await.expect(201);
        }
    });
    futures_util::future::join_all(appends).await;
    let got = server.get("/things/log", "").await.expect(200);
    let mut pieces: Vec<_> = got.body.chunks(100).map(<[u8]>::to_vec).collect();
    pieces.sort();
    assert_eq!(pieces, (0..32_u8).map(|index| vec![index; 100]).collect::<Vec<_>>());
}

fn page_range(first: u64, length: usize, headers: &str) -> String {
    let last = first + length as u64 - 1;
    format!("x-ms-page-write: update\nx-ms-range: bytes={first}-{last}\n{headers}")
}

#[tokio::test]
async fn pages_are_encrypted_in_place() {
    let server = start_with_scopes().await;
    for (name, headers, read) in [("key", customer(1), customer(1)), ("scope", scope("first"), String::new())]
    {
        let target = format!("/things/{name}");
        let pages = format!("{target}?comp=page");
        let create = format!("x-ms-blob-type: PageBlob\nx-ms-blob-content-length: {}\n{headers}", 1 << 20);
        server.put(&target, &create, "").await.expect(201);
        let mut whole = vec![0; 1 << 20];
        assert!(server.get(&target, &read).await.expect(200).body == whole, "unwritten pages read as zeros");
        // Write the same pages twice, adjacent pages, a large range, and zeros.
        for (at, body) in [
            (512, random(512)),
            (512, random(1024)),
            (1536, random(512)),
            (300 << 10, random(400 << 10)),
            (512 << 10, Bytes::from(vec![0; 4096])),
        ] {
            let put =
                server.put(&pages, &page_range(at, body.len(), &headers), body.clone()).await.expect(201);
            assert_eq!(put.header("x-ms-encryption-scope").is_some(), name == "scope");
            let at = at as usize;
            whole[at..at + body.len()].copy_from_slice(&body);
            assert!(server.get(&target, &read).await.expect(200).body == whole, "{at}");
        }
        for (first, last) in [(0, 600), (511, 512), (513, 513), (1000, 700_000), (1_048_575, 1_048_575)] {
            let range = with(&read, &format!("x-ms-range: bytes={first}-{last}"));
            let got = server.get(&target, &range).await.expect(206);
            assert!(got.body == whole[first..=last], "{first}-{last}");
        }
        assert!(!server.is_on_disk(&whole[600..632]) && !server.is_on_disk(&whole[400 << 10..][..32]));
        let clear = "x-ms-page-write: clear\nx-ms-range: bytes=512-1535";
        server.put(&pages, clear, "").await.refused(409, "BlobUsesCustomerSpecifiedEncryption");
        server.put(&pages, &with(clear, &headers), "").await.expect(201);
        whole[512..1536].fill(0);
        assert!(server.get(&target, &read).await.expect(200).body == whole);
        for (headers, outcome) in [
            (String::new(), (409, "BlobUsesCustomerSpecifiedEncryption")),
            (customer(2), (409, "BlobCustomerSpecifiedEncryptionMismatch")),
        ] {
            let reply = server.put(&pages, &page_range(0, 512, &headers), random(512)).await;
            assert_eq!(reply.outcome(), outcome);
        }
        let clear = with("x-ms-page-write: clear\nx-ms-range: bytes=0-511", &customer(2));
        server.put(&pages, &clear, "").await.refused(409, "BlobCustomerSpecifiedEncryptionMismatch");
        // A longer blob has zeros at its end, and these can be written.
        let length = with("x-ms-blob-content-length: 1049600", &headers);
        server.put(&format!("{target}?comp=properties"), &length, "").await.expect(200);
        whole.resize(1_049_600, 0);
        let body = random(512);
        server.put(&pages, &page_range(1_049_088, 512, &headers), body.clone()).await.expect(201);
        whole[1_049_088..].copy_from_slice(&body);
        assert!(server.get(&target, &read).await.expect(200).body == whole);
    }
}

#[tokio::test]
async fn snapshot_requires_the_key_and_keeps_its_encryption() {
    let server = start_with_scopes().await;
    let body = random(100_000);
    for (name, headers, read) in [("key", customer(1), customer(1)), ("scope", scope("first"), String::new())]
    {
        let target = format!("/things/{name}");
        server.put(&target, &with(BLOCK, &headers), body.clone()).await.expect(201);
        let snapshot = format!("{target}?comp=snapshot");
        server.put(&snapshot, "", "").await.refused(409, "BlobUsesCustomerSpecifiedEncryption");
        server.put(&snapshot, &customer(2), "").await.refused(409, "BlobCustomerSpecifiedEncryptionMismatch");
        let taken = server.put(&snapshot, &headers, "").await.expect(201);
        let id = taken.header("x-ms-snapshot").unwrap();
        server.put(&target, BLOCK, "something else").await.expect(201);
        let earlier = format!("{target}?snapshot={id}");
        assert!(server.get(&earlier, &read).await.expect(200).body == body);
        if name == "key" {
            server.get(&earlier, "").await.refused(409, "BlobUsesCustomerSpecifiedEncryption");
        }
    }
}
