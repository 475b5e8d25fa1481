//! The attacks of the security review of 17 November, written anew from its text: what a caller with few
//! rights can reach through the whole server. Decision 0035 names the attacks that are elsewhere.

use std::net::UdpSocket;
use std::time::Duration;

use lazuli_account::Setting;
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_auth::sign::{self, Resource};
use lazuli_concurrency::Clock;
use lazuli_protocol::{Query, ServiceKind, Version, date};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{ACCOUNT, Reply, TestServer, VERSION, key, start, start_allowing};

const SE: (&str, &str) = ("se", "2099-12-31T00:00:00Z");
const SV: (&str, &str) = ("sv", "2022-11-02");
const BLOCK: &str = "x-ms-blob-type: BlockBlob";

fn with_query(target: &str, query: &str) -> String {
    let separator = if target.contains('?') { '&' } else { '?' };
    format!("{target}{separator}{query}")
}

/// Appends an account SAS with some letters.
fn with_letters(target: &str, letters: &str) -> String {
    let fields = [SV, ("ss", "b"), ("srt", "sco"), ("sp", letters), SE];
    with_query(target, &sign::account_sas(ACCOUNT, &key(), &fields))
}

/// Appends a SAS for a container or a blob.
fn with_service_sas(target: &str, path: &str, more: &[(&str, &str)]) -> String {
    let resource = Resource { service: ServiceKind::Blob, account: ACCOUNT, path, timestamp: "" };
    let fields = [&[SV, SE][..], more].concat();
    with_query(target, &sign::service_sas(&resource, &key(), &fields))
}

impl TestServer {
    /// Signs one request with the account's key and sends another one with its signature.
    async fn replay(&self, signed_target: &str, sent_target: &str) -> Reply {
        let (path, query) = signed_target.split_once('?').unwrap();
        let now = date::rfc1123(self.clock.now());
        let headers = [("x-ms-date", now.as_str()), ("x-ms-version", VERSION)];
        let headers_signed = headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
        let message = Message {
            scheme: Scheme::SharedKey,
            service: ServiceKind::Blob,
            account: ACCOUNT,
            method: "GET",
            path: &format!("/{ACCOUNT}{path}"),
            query: &Query::parse(query).unwrap(),
            headers: &headers_signed,
            version: Version::parse(VERSION).unwrap(),
        };
        let authorization = sign::authorization(&message, &key()).unwrap();
        let lines = headers.map(|(name, value)| format!("{name}: {value}")).join("\n");
        let lines = format!("{lines}\nauthorization: {}", authorization.to_str().unwrap());
        self.send("GET", sent_target, &lines, "").await
    }
}

#[tokio::test]
async fn f2_a_caller_that_may_only_write_makes_no_blob_that_the_owner_cannot_delete() {
    let server = start().await;
    server.create_container("things").await;
    server.put_block_blob("/things/source", "hello").await;
    let until = "x-ms-immutability-policy-until-date: Fri, 31 Dec 9999 00:00:00 GMT";
    let locks = [
        until.to_owned(),
        format!("{until}\nx-ms-immutability-policy-mode: Locked"),
        "x-ms-immutability-policy-mode: unlocked".into(),
        "x-ms-legal-hold: true".into(),
        "X-MS-Legal-Hold: TRUE".into(),
        // The first value is blank, as if the header were absent.
        "x-ms-legal-hold:\nx-ms-legal-hold: true".into(),
        format!("x-ms-immutability-policy-until-date:\n{until}"),
    ];
    let source = with_letters(&server.url(ACCOUNT, "/things/source"), "r");
    let block = "<BlockList><Uncommitted>YQ==</Uncommitted></BlockList>";
    for letters in ["c", "w", "cw", "cwt", "rwdlact"] {
        for lock in &locks {
            let writes = [
                ("/things/b", BLOCK.to_owned(), "x"),
                ("/things/b?comp=blocklist", String::new(), block),
                ("/things/b", format!("x-ms-copy-source: {source}"), ""),
                ("/things/b", format!("x-ms-copy-source: {source}\nx-ms-requires-sync: true"), ""),
                ("/things/b", format!("x-ms-copy-source: {source}\n{BLOCK}"), ""),
                ("/things/b?comp=immutabilityPolicies", String::new(), ""),
                ("/things/b?comp=legalhold", String::new(), ""),
            ];
            for (target, headers, body) in writes {
                server.put("/things/b?comp=block&blockid=YQ==", "", "x").await.expect(201);
                let target = with_letters(target, letters);
                let reply = server.send("PUT", &target, &format!("{headers}\n{lock}"), body).await;
                let gone = server.delete("/things/b", "").await;
                // A request without effect may succeed. Then the owner can still delete what it wrote.
                assert!(
                    matches!(gone.status.as_u16(), 202 | 404),
                    "{letters} {headers} {lock}: {reply:?} {gone:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn f8_no_spelling_of_an_internal_address_is_requested_as_a_copy_source() {
    // A listener on all addresses of this machine.
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = start_allowing(&["public"]).await;
    server.create_container("things").await;
    let mut hosts: Vec<String> = [
        "127.0.0.1",
        "127.1",
        "127.9.9.9",
        "0",
        "0.0.0.0",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "8.8.8.8@127.0.0.1",
        "127.0.0.1%23.example.com",
        "169.254.169.254",
        "168.63.129.16",
        "[::ffff:168.63.129.16]",
        "[64:ff9b::a83f:8110]",
        "100.100.100.200",
        "10.0.0.1",
        "192.168.0.1",
        "[fd00:ec2::254]",
        "[fe80::1]",
    ]
    .map(str::to_owned)
    .into();
    // An address of an interface. Connecting sends no packet.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    if socket.connect("198.51.100.1:9").is_ok() {
        hosts.push(socket.local_addr().unwrap().ip().to_string());
    }
    for host in hosts {
        for headers in ["", "x-ms-requires-sync: true", BLOCK] {
            let headers = format!("x-ms-copy-source: http://{host}:{port}/a/b\n{headers}");
            let reply = tokio::time::timeout(Duration::from_secs(60), server.put("/things/b", &headers, ""));
            let reply = reply.await.unwrap_or_else(|_| panic!("{host} was requested"));
            assert!(reply.status.is_client_error(), "{host}: {reply:?}");
        }
    }
    // The first connection to the listener is the test's own.
    let own = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (_, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, own.local_addr().unwrap());
}

#[tokio::test]
async fn f9_a_caller_that_may_not_set_the_acl_makes_no_container_public() {
    let server = start().await;
    for letters in ["c", "w", "rwdlacupitfx"] {
        for access in ["container", "blob", "CONTAINER", " blob "] {
            let headers = format!("x-ms-blob-public-access: {access}");
            server.send("PUT", &with_letters("/open?restype=container", letters), &headers, "").await;
            let headers = format!("x-ms-blob-public-access:\n{headers}");
            server.send("PUT", &with_letters("/open?restype=container", letters), &headers, "").await;
            let acl = with_letters("/open?restype=container&comp=acl", letters);
            server.send("PUT", &acl, &headers, "").await.expect(403);
        }
    }
    server.put("/open?restype=container", "", "").await;
    server.put("/open/b", BLOCK, "secret").await.expect(201);
    for target in ["/open/b", "/open?restype=container&comp=list", "/open?restype=container"] {
        let anonymous = server.send("GET", target, "", "").await;
        assert!(anonymous.status.is_client_error(), "{target}: {anonymous:?}");
    }
}

#[tokio::test]
async fn f10_anonymous_callers_see_no_deleted_and_no_unfinished_blob() {
    let server = start().await;
    let public = "x-ms-blob-public-access: container";
    server.signed("PUT", "/open?restype=container", public, "").await.expect(201);
    server.soft_delete(Some(7)).await;
    server.versioning(true).await;
    server.put_block_blob("/open/redacted", "first").await;
    let version = server.put_block_blob("/open/redacted", "second").await;
    let version = version.header("x-ms-version-id").unwrap().to_owned();
    server.put("/open/unfinished?comp=block&blockid=YQ==", "", "draft").await.expect(201);
    let snapshot = server.snapshot("/open/redacted").await;
    // The owner redacts the blob as 0033 says: with its versions and snapshots.
    server.delete("/open/redacted", "x-ms-delete-snapshots: include").await.expect(202);
    let listed = server.get("/open?restype=container&comp=list&include=versions", "").await.expect(200);
    let versions: Vec<_> = listed.text().split("<VersionId>").skip(1).collect();
    for version in versions.iter().map(|rest| rest.split('<').next().unwrap()) {
        server.delete(&format!("/open/redacted?versionid={version}"), "").await;
    }
    for include in ["deleted", "versions,deleted", "deletedwithversions", "uncommittedblobs", "Deleted"] {
        for list in [format!("include={include}"), format!("include=metadata&include={include}")] {
            let target = format!("/open?restype=container&comp=list&{list}");
            let reply = server.send("GET", &target, "", "").await;
            assert_eq!(reply.status.as_u16(), 404, "{list}: {}", reply.text());
        }
    }
    for query in ["", &format!("?versionid={version}"), &format!("?snapshot={snapshot}"), "?deleted=true"] {
        let reply = server.send("GET", &format!("/open/redacted{query}"), "", "").await;
        assert!(reply.status.is_client_error(), "{query}: {reply:?}");
    }
    let blocks = server.send("GET", "/open/unfinished?comp=blocklist&blocklisttype=all", "", "").await;
    assert!(!blocks.text().contains("YQ=="), "{}", blocks.text());
}

#[tokio::test]
async fn f11_a_recorded_signature_is_good_for_no_other_query() {
    let server = start().await;
    server.create_container("things").await;
    for name in ["a", "b"] {
        server.put_block_blob(&format!("/things/{name}"), name).await;
    }
    let list = "/things?restype=container&comp=list";
    let signed = format!("{list}&delimiter=/&prefix=a");
    let own = server.replay(&signed, &signed).await.expect(200);
    assert!(own.text().contains("<Name>a</Name>") && !own.text().contains("<Name>b</Name>"));
    for sent in [
        format!("{list}&delimiter=/%0Aprefix:a"),
        format!("{list}&delimiter=/%0aprefix%3Aa"),
        format!("{list}%0Adelimiter:/%0Aprefix:a"),
        format!("{list}&delimiter=/&delimiter%3A=%0Aprefix:a"),
        format!("{list}&delimiter=/&prefix="),
        format!("{list}&delimiter=/&prefix=a&prefix="),
        format!("{list}&delimiter=/&prefix=&prefix=a"),
        format!("{list}&delimiter=/&Prefix=a&prefix=b"),
        format!("{list}&delimiter=/&prefix=a&marker=x"),
        format!("{list}&delimiter=/"),
    ] {
        let reply = server.replay(&signed, &sent).await;
        assert!(matches!(reply.status.as_u16(), 400 | 403), "{sent}: {}", reply.text());
    }
    // Values that are joined with commas.
    let signed = format!("{list}&prefix=,a");
    assert!(!server.replay(&signed, &signed).await.expect(200).text().contains("<Name>"));
    for sent in [format!("{list}&prefix=&prefix=a"), format!("{list}&prefix=a&prefix=")] {
        server.replay(&signed, &sent).await.refused(403, "AuthenticationFailed");
    }
}

#[tokio::test]
async fn f11_signatures_for_https_or_for_a_directory_reach_nothing_else() {
    let server = start().await;
    server.set(Setting::BlobVersioning(false)).await;
    server.create_container("things").await;
    for name in ["a", "a%2Fb", "ab", "c"] {
        server.put_block_blob(&format!("/things/{name}"), name).await;
    }
    // For HTTPS only, sent over HTTP: directly, and as a source.
    let only_https = [("sr", "b"), ("sp", "r"), ("spr", "https")];
    let signed = with_service_sas("/things/c", "things/c", &only_https);
    server.send("GET", &signed, "", "").await.expect(403);
    for scheme in ["http", "https"] {
        let source = format!("{scheme}://{}/{ACCOUNT}{signed}", server.address);
        for headers in ["", "x-ms-requires-sync: true", BLOCK] {
            let headers = format!("x-ms-copy-source: {source}\n{headers}");
            let reply = server.put("/things/copy", &headers, "").await;
            assert!(reply.status.is_client_error(), "{scheme} {headers}: {reply:?}");
        }
    }
    // For the directory `a`, in every spelling.
    for (path, depth) in [("things/a", "1"), ("things/a/", "1"), ("things/a/", "2"), ("things/a//", "2")] {
        for sent in ["0", "1", "2"] {
            let signed = with_service_sas("", path, &[("sr", "d"), ("sp", "rl"), ("sdd", depth)]);
            let query =
                signed.trim_start_matches('?').replace(&format!("sdd={depth}"), &format!("sdd={sent}"));
            for outside in ["/things/ab", "/things/c", "/things/a/../c", "/things/a%2F..%2Fc", "/things//c"] {
                let reply = server.send("GET", &with_query(outside, &query), "", "").await;
                assert!(reply.status.is_client_error(), "{path} {sent} {outside}: {reply:?}");
            }
            let list = "/things?restype=container&comp=list";
            for prefix in ["", "&prefix=", "&prefix=a", "&prefix=ab", "&prefix=c", "&prefix=a/../c"] {
                let reply = server.send("GET", &with_query(&format!("{list}{prefix}"), &query), "", "").await;
                let names = reply.text().matches("<Name>").count();
                let inside = ["<Name>a/", "<Name>a<"].map(|name| reply.text().matches(name).count());
                let inside: usize = inside.iter().sum();
                assert_eq!(names, inside, "{path} {sent} {prefix}: {}", reply.text());
            }
        }
    }
}
