//! Bearer tokens of an issuer in a file, over TLS with a self-signed certificate.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use lazuli_account::DEVELOPMENT_KEY;
use lazuli_auth::sign;
use lazuli_concurrency::{Clock, Span, SystemClock};
use lazuli_protocol::{Key, date};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use support::{DEVELOPMENT_ACCOUNT, Reply, Server, read_reply, succeed};

const ISSUER: &str = "https://issuer.example/tenant";

struct TokenIssuer(EcdsaKeyPair);

impl TokenIssuer {
    /// Creates an issuer with its documents in a directory.
    fn new(directory: &Path) -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
        let point = &key.public_key().as_ref()[1..];
        let (x, y) = (URL_SAFE_NO_PAD.encode(&point[..32]), URL_SAFE_NO_PAD.encode(&point[32..]));
        let keys = format!(r#"{{"keys":[{{"kty":"EC","crv":"P-256","kid":"k","x":"{x}","y":"{y}"}}]}}"#);
        let discovery = format!(r#"{{"issuer":"{ISSUER}","jwks_uri":"keys.json"}}"#);
        std::fs::write(directory.join("keys.json"), keys).unwrap();
        std::fs::write(directory.join("issuer.json"), discovery).unwrap();
        Self(key)
    }

    fn token(&self, subject: &str, audience: &str) -> String {
        let expiry = (SystemClock.now() + Span::seconds(600)).unix_seconds();
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","kid":"k"}"#);
        let claims = format!(
            r#"{{"iss":"{ISSUER}","aud":"{audience}","oid":"{subject}","tid":"ours","exp":{expiry}}}"#
        );
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
        let signature = self.0.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// A client that trusts only the server's own certificate.
struct OauthClient {
    address: String,
    tls: Arc<ClientConfig>,
}

impl OauthClient {
    /// Creates a client for a service of the server.
    fn new(server: &Server, service: &str, data: &Path) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(data.join("tls/self-signed.crt")).unwrap()).unwrap();
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { address: server.address(service).into(), tls: Arc::new(tls) }
    }

    fn call(&self, method: &str, target: &str, token: Option<&str>, body: &str) -> Reply {
        self.call_with(method, target, token, "", body)
    }

    /// Sends a request with further headers, each with its line end.
    fn call_with(&self, method: &str, target: &str, token: Option<&str>, headers: &str, body: &str) -> Reply {
        let connection = ClientConnection::new(self.tls.clone(), "127.0.0.1".try_into().unwrap()).unwrap();
        let mut stream = StreamOwned::new(connection, TcpStream::connect(&self.address).unwrap());
        let authorization =
            token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        write!(
            stream,
            "{method} /{DEVELOPMENT_ACCOUNT}{target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{authorization}\
             {headers}x-ms-version: 2021-12-02\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        read_reply(UntilClosed(stream))
    }
}

/// A reader that treats a TLS connection closed without `close_notify` as ended: a server may do this after a
/// complete reply.
struct UntilClosed<R>(R);

impl<R: Read> Read for UntilClosed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buffer) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
            read => read,
        }
    }
}

#[test]
fn subject_with_a_role_gets_a_user_delegation_key_that_survives_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let issuer = TokenIssuer::new(dir.path());
    let document = dir.path().join("issuer.json");
    let options = [
        "--tls-self-signed",
        "--oidc-issuer",
        document.to_str().unwrap(),
        "--oidc-audience",
        "https://our.example",
    ];
    let server = Server::start_with(&data, &options, &[]);
    assert!(server.ready["blob"].starts_with("https://127.0.0.1:"), "{}", server.ready["blob"]);
    let client = OauthClient::new(&server, "blob", &data);
    let path = data.to_str().unwrap();
    succeed(&["account", "set", DEVELOPMENT_ACCOUNT, "--role", "me=blob:reader", "--data", path]);

    let (storage, ours) = ("https://storage.azure.com", "https://our.example");
    for (subject, audience, status) in
        [("me", storage, 200), ("me", ours, 200), ("me", "https://other.example", 401), ("you", storage, 403)]
    {
        let token = issuer.token(subject, audience);
        let reply = client.call("GET", "/?restype=service&comp=properties", Some(&token), "");
        assert_eq!(reply.status, status, "{subject} {audience}: {}", reply.text());
    }
    let unauthorized = client.call("GET", "/?restype=service&comp=properties", None, "");
    assert_eq!(unauthorized.status, 401);
    assert!(
        unauthorized.head.to_lowercase().contains("www-authenticate: bearer authorization_uri="),
        "{}",
        unauthorized.head
    );

    let now = SystemClock.now();
    let (start, expiry) = (date::iso8601_seconds(now), date::iso8601_seconds(now + Span::seconds(3600)));
    let info = format!("<KeyInfo><Start>{start}</Start><Expiry>{expiry}</Expiry></KeyInfo>");
    let target = "/?restype=service&comp=userdelegationkey";
    let first = client.call("POST", target, Some(&issuer.token("me", storage)), &info);
    assert_eq!(first.status, 200, "{}", first.text());
    assert!(first.text().contains("<SignedOid>me</SignedOid>"), "{}", first.text());
    server.stop();

    // The secret behind the key and the certificate are kept across restarts.
    let server = Server::start_with(&data, &options, &[]);
    let again = OauthClient { address: server.address("blob").into(), tls: client.tls };
    let second = again.call("POST", target, Some(&issuer.token("me", storage)), &info);
    assert_eq!(second.text(), first.text());
}

// The .NET client sends no `x-ms-file-request-intent` for these operations.
#[test]
fn bearer_token_lists_creates_and_deletes_shares_without_intent_header() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let issuer = TokenIssuer::new(dir.path());
    let document = dir.path().join("issuer.json");
    let options = ["--tls-self-signed", "--oidc-issuer", document.to_str().unwrap()];
    let server = Server::start_with(&data, &options, &[]);
    let client = OauthClient::new(&server, "file", &data);
    let path = data.to_str().unwrap();
    succeed(&["account", "set", DEVELOPMENT_ACCOUNT, "--role", "me=file:owner", "--data", path]);
    let token = issuer.token("me", "https://storage.azure.com");
    let properties = "<StorageServiceProperties><ShareDeleteRetentionPolicy><Enabled>true</Enabled><Days>3</Days>\
        </ShareDeleteRetentionPolicy></StorageServiceProperties>";
    for (method, target, body, status, code) in [
        ("PUT", "/docs?restype=share", "", 201, ""),
        ("GET", "/?comp=list", "", 200, "<Name>docs</Name>"),
        ("GET", "/?restype=service&comp=properties", "", 200, "<StorageServiceProperties>"),
        ("PUT", "/?restype=service&comp=properties", properties, 202, ""),
        ("GET", "/docs?restype=share", "", 200, ""),
        ("PUT", "/docs/d?restype=directory", "", 400, "x-ms-file-request-intent"),
        ("GET", "/docs?restype=directory&comp=list", "", 400, "x-ms-file-request-intent"),
        ("DELETE", "/docs?restype=share", "", 202, ""),
        ("DELETE", "/none?restype=share", "", 404, "ShareNotFound"),
    ] {
        let reply = client.call(method, target, Some(&token), body);
        assert_eq!(reply.status, status, "{method} {target}: {}", reply.text());
        assert!(reply.text().contains(code), "{method} {target}: {}", reply.text());
    }
}

/// Appends a signature that allows everything to a target.
fn owned(target: &str) -> String {
    let fields =
        [("sv", "2021-12-02"), ("ss", "b"), ("srt", "sco"), ("sp", "rwdlac"), ("se", "2099-12-31T00:00:00Z")];
    let key = Key::from_base64(DEVELOPMENT_KEY).unwrap();
    let separator = if target.contains('?') { '&' } else { '?' };
    format!("{target}{separator}{}", sign::account_sas(DEVELOPMENT_ACCOUNT, &key, &fields))
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Returns a user delegation SAS for the container `things` that is bound to values of parameters. The query
/// has neither these parameters nor the list of their names, which is not signed. Written from the protocol's
/// reference, without the server's code.
fn bound_signature(key_reply: &str, bound: &[(&str, &str)]) -> String {
    let tag = |name: &str| {
        let rest = key_reply.split(&format!("<{name}>")).nth(1).unwrap_or_default();
        rest.split('<').next().unwrap_or_default().to_owned()
    };
    let fields = [
        ("sp", "rl".to_owned()),
        ("se", "2099-12-31T00:00:00Z".into()),
        ("skoid", tag("SignedOid")),
        ("sktid", tag("SignedTid")),
        ("skt", tag("SignedStart")),
        ("ske", tag("SignedExpiry")),
        ("sks", tag("SignedService")),
        ("skv", tag("SignedVersion")),
        ("sv", "2026-04-06".into()),
        ("sr", "c".into()),
    ];
    let field = |name: &str| fields.iter().find(|(n, _)| *n == name).map_or("", |(_, value)| value.as_str());
    let bound: String = bound.iter().map(|(name, value)| format!("\n{name}:{value}")).collect();
    let resource = format!("/blob/{DEVELOPMENT_ACCOUNT}/things");
    let key_fields = ["skoid", "sktid", "skt", "ske", "sks", "skv"].map(field);
    let lines = [
        &[field("sp"), "", field("se"), &resource][..],
        &key_fields,
        &[""; 7],
        &[field("sv"), field("sr"), "", "", "", &bound],
        &[""; 5],
    ];
    let string = lines.concat().join("\n");
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(tag("Value")).unwrap());
    let signature = STANDARD.encode(hmac::sign(&key, string.as_bytes()));
    let fields = fields.iter().filter(|(_, value)| !value.is_empty());
    let query: Vec<_> = fields.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    format!("{}&sig={}", query.join("&"), encoded(&signature))
}

// Finding F3 of the security review.
#[test]
fn f3_the_holder_of_a_bound_signature_cannot_drop_or_move_its_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let issuer = TokenIssuer::new(dir.path());
    let document = dir.path().join("issuer.json");
    let options = ["--tls-self-signed", "--oidc-issuer", document.to_str().unwrap()];
    let server = Server::start_with(&data, &options, &[]);
    let client = OauthClient::new(&server, "blob", &data);
    let path = data.to_str().unwrap();
    succeed(&["account", "set", DEVELOPMENT_ACCOUNT, "--role", "me=blob:reader", "--data", path]);
    assert_eq!(client.call("PUT", &owned("/things?restype=container"), None, "").status, 201);
    for name in ["d1/own", "d1:x", "d2/foreign"] {
        let put = client.call_with(
            "PUT",
            &owned(&format!("/things/{name}")),
            None,
            "x-ms-blob-type: BlockBlob\r\n",
            "x",
        );
        assert_eq!(put.status, 201, "{}", put.text());
    }
    let now = SystemClock.now();
    let (start, expiry) = (date::iso8601_seconds(now), date::iso8601_seconds(now + Span::seconds(3600)));
    let info = format!("<KeyInfo><Start>{start}</Start><Expiry>{expiry}</Expiry></KeyInfo>");
    let token = issuer.token("me", "https://storage.azure.com");
    let key = client.call("POST", "/?restype=service&comp=userdelegationkey", Some(&token), &info);
    assert_eq!(key.status, 200, "{}", key.text());
    let list = |signature: &str, parameters: &str| {
        client.call("GET", &format!("/things?restype=container&comp=list&{signature}{parameters}"), None, "")
    };

    let directory = bound_signature(&key.text(), &[("prefix", "d1/")]);
    let own = list(&directory, "&srq=prefix&prefix=d1/");
    assert_eq!(own.status, 200, "{}", own.text());
    assert!(own.text().contains("d1/own") && !own.text().contains("foreign"), "{}", own.text());
    for attack in [
        "",
        "&prefix=d1/",
        "&srq=prefix",
        "&srq=prefix&prefix=",
        "&srq=prefix&prefix=d",
        "&srq=prefix&prefix=d1/&prefix=",
        "&srq=prefix&prefix=&prefix=d1/",
        "&srq=prefix&PREFIX=d1/&prefix=",
        "&srq=prefix&prefix=d1/&srq=",
        "&srq=&srq=prefix&prefix=d1/",
        "&srh=prefix&prefix=d1/",
        "&srq=prefix,prefix&prefix=d1/",
        "&srq=delimiter&delimiter=%0Aprefix:d1/",
        "&srq=marker&marker=d1/",
        "&rscc=%0Aprefix:d1/",
        "&ses=%0A%0Aprefix:d1/",
        "&srq=%0Aprefix:d1/",
        "&srq=prefix:d1/&prefix:d1/=",
    ] {
        let reply = list(&directory, attack);
        let shows = |name: &str| reply.text().contains(name);
        assert!(!shows("foreign") && !shows("d1:x"), "{attack}: {}", reply.text());
        assert!(matches!(reply.status, 200 | 400 | 403), "{attack}: {}", reply.text());
    }
    // Values with colons, and several names: the requests of the review.
    let colon = bound_signature(&key.text(), &[("prefix", "d1:x")]);
    assert_eq!(list(&colon, "&srq=prefix&prefix=d1:x").status, 200);
    for attack in ["&srq=prefix:d1&prefix:d1=x", "&srq=prefix%3Ad1&prefix%3Ad1=x"] {
        assert_eq!(list(&colon, attack).status, 403, "{attack}");
    }
    let both = bound_signature(&key.text(), &[("delimiter", "/"), ("prefix", "d1/")]);
    assert_eq!(list(&both, "&srq=delimiter,prefix&delimiter=/&prefix=d1/").status, 200);
    for attack in
        ["&srq=delimiter&delimiter=/%0Aprefix:d1/", "&srq=delimiter,prefix&delimiter=/%0Aprefix:d1/"]
    {
        assert_eq!(list(&both, attack).status, 403, "{attack}");
    }
}

// Findings F2 and F9 of the security review, with bearer tokens.
#[test]
fn f2_f9_a_contributor_neither_protects_a_blob_nor_publishes_a_container() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let issuer = TokenIssuer::new(dir.path());
    let document = dir.path().join("issuer.json");
    let options = ["--tls-self-signed", "--oidc-issuer", document.to_str().unwrap()];
    let server = Server::start_with(&data, &options, &[]);
    let client = OauthClient::new(&server, "blob", &data);
    let path = data.to_str().unwrap();
    for setting in [["--role", "me=blob:contributor"], ["--version-immutability", "on"]] {
        succeed(&["account", "set", DEVELOPMENT_ACCOUNT, setting[0], setting[1], "--data", path]);
    }
    let token = issuer.token("me", "https://storage.azure.com");
    let send =
        |target: &str, headers: &str| client.call_with("PUT", target, Some(&token), headers, "").status;
    assert_eq!(send("/things?restype=container", "x-ms-blob-public-access: container\r\n"), 403);
    assert_eq!(send("/things?restype=container", ""), 201);
    let block = "x-ms-blob-type: BlockBlob\r\n";
    let until = "x-ms-immutability-policy-until-date: Fri, 31 Dec 9999 00:00:00 GMT\r\n";
    for lock in ["x-ms-legal-hold: true\r\n", until, "x-ms-tags: a=b\r\nx-ms-legal-hold: true\r\n"] {
        assert_eq!(send("/things/b", &format!("{block}{lock}")), 403, "{lock}");
    }
    assert_eq!(send("/things/b", block), 201);
    assert_eq!(send("/things/b?comp=legalhold", "x-ms-legal-hold: true\r\n"), 403);
    assert_eq!(send("/things?restype=container&comp=acl", "x-ms-blob-public-access: container\r\n"), 403);
    assert_eq!(client.call("GET", "/things/b", None, "").status, 401);
    assert_eq!(client.call("DELETE", "/things/b", Some(&token), "").status, 202);
}
