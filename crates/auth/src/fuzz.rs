//! Entry points for fuzzing: passes untrusted bytes to every parser and rule of this crate. Nothing may
//! panic. Each returns whether the bytes are valid, and [`seeds`] has valid bytes for each.

pub mod seeds;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::account::{Role, RoleAssignment, Settings};
use lazuli_protocol::policy::AccessPolicy;
use lazuli_protocol::{Account, Key, Operation, Query, ServiceKind, Version};

use crate::bearer::{Discovery, Issuer, KeySet, StaticKeys, Token};
use crate::sas::Sas;
use crate::user_delegation::{KeyInfo, MasterSecret};
use crate::{Credentials, Head, claimed_caller, shared_key};

/// 2023-11-14T22:13:20Z.
const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
/// 2026-05-20T12:00:00Z, when the tokens of the seeds are valid.
const NOW_OF_TOKENS: Timestamp = Timestamp::from_unix_seconds(1_779_278_400);
const SECRET: MasterSecret = MasterSecret::new([1; 32]);
const ACCOUNT: &str = "account";
const KEY: &[u8] = &[2; 64];
/// The subject that owns the account's data.
const OWNER: &str = "11111111-2222-3333-4444-555555555555";
const PATH: &str = "/account/container/a/b";

/// Tokens and the keys of their issuer. Created by `tests/vectors/generate.py`.
static TOKENS: LazyLock<serde_json::Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../tests/vectors/tokens.json")).unwrap_or_default());
static ISSUER_KEYS: LazyLock<KeySet> =
    LazyLock::new(|| KeySet::parse(TOKENS["jwks"].to_string().as_bytes()).unwrap_or_default());

/// Fuzzes the headers and the query that a Shared Key signature covers. The input has parts that end with a
/// NUL: Authorization, x-ms-date, the query, and further headers as lines of `name:value`.
pub fn authorization_header(bytes: &[u8]) -> bool {
    let mut parts = bytes.splitn(4, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let mut headers = HeaderMap::new();
    for name in [header::AUTHORIZATION, HeaderName::from_static("x-ms-date")] {
        if let Ok(value) = HeaderValue::from_bytes(part()) {
            headers.insert(name, value);
        }
    }
    let query = std::str::from_utf8(part()).ok().and_then(|text| Query::parse(text).ok());
    let query = query.unwrap_or_default();
    for line in part().split(|byte| *byte == b'\n').take(64) {
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':').unwrap_or(line.len()));
        let value = HeaderValue::from_bytes(value.strip_prefix(b":").unwrap_or_default());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) {
            headers.append(name, value);
        }
    }
    let _ = claimed_caller(&query, headers.get(header::AUTHORIZATION));
    let mut is_valid = false;
    for operation in [Operation::GetBlob, Operation::QueryEntities] {
        is_valid |= with_head(operation, &query, &headers, |head| match Credentials::of(head) {
            Ok(Some(Credentials::SharedKey(scheme, credential))) => {
                shared_key::verify(head, scheme, credential).is_ok()
            }
            Ok(Some(Credentials::Bearer(token))) => Token::parse(token).is_ok(),
            _ => false,
        });
    }
    is_valid
}

/// Fuzzes a query string with a signature.
pub fn sas_query(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(query) = Query::parse(text) else { return false };
    let mut is_granted = false;
    for operation in [
        Operation::GetBlob,
        Operation::ListBlobs,
        Operation::PutMessage,
        Operation::InsertEntity,
        Operation::GetFile,
    ] {
        is_granted |= with_head(operation, &query, &HeaderMap::new(), |head| {
            let Ok(sas) = Sas::parse(operation.service(), &query) else { return false };
            // Random bytes never guess a signature, so reach the rules after its verification with a
            // correct one.
            let signature = sas.sign(head, KEY, &SECRET).unwrap_or_default();
            let _ = sas.verify(head, &SECRET);
            let signed = format!("sig={}&{text}", signature.replace('+', "%2B"));
            let Ok(query) = Query::parse(&signed) else { return false };
            let head = Head { query: &query, ..*head };
            let sas = Sas::parse(operation.service(), &query);
            let Ok(verified) = sas.and_then(|sas| sas.verify(&head, &SECRET)) else { return false };
            let policy = match verified.policy(&head) {
                // A policy may have what the signature leaves out.
                Some((_, "full")) => AccessPolicy {
                    start: None,
                    expiry: Some(NOW + Span::seconds(60)),
                    permissions: Some("rwdlacup".into()),
                },
                _ => AccessPolicy::default(),
            };
            verified.grant(&head, &policy).is_ok()
        });
    }
    is_granted
}

/// Fuzzes a bearer token, an issuer's key set and its discovery document. Base64 hides the parts of a token
/// from the fuzzer, so header and claims may also be in clear, with a NUL between them.
pub fn jwt(bytes: &[u8]) -> bool {
    let is_document = KeySet::parse(bytes).is_ok() | Discovery::parse(bytes).is_ok();
    let Ok(text) = std::str::from_utf8(bytes) else { return is_document };
    let in_clear = text.split_once('\0').map(|(header, claims)| {
        format!("{}.{}.AA", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims))
    });
    let Ok(token) = Token::parse(in_clear.as_deref().unwrap_or(text)) else { return is_document };
    let is_signed = token.verify(&ISSUER_KEYS).is_ok() || in_clear.is_some();
    let _ = token.claimed_subject();
    let issuer = Issuer {
        name: "https://issuer.example/tenant".into(),
        audiences: vec!["my-client".into()],
        authorization_uri: String::new(),
        keys: Arc::new(StaticKeys::new(KeySet::default())),
    };
    // The fuzzer cannot sign other claims, so reach their rules without a signature.
    let has_subject = with_head(Operation::GetBlob, &Query::default(), &HeaderMap::new(), |head| {
        token.subject(&issuer, head.account, ServiceKind::Blob, NOW_OF_TOKENS).is_ok()
    });
    is_signed && has_subject
}

/// Fuzzes the body of Get User Delegation Key.
pub fn key_info(bytes: &[u8]) -> bool {
    KeyInfo::parse(bytes, NOW).is_ok()
}

fn with_head(
    operation: Operation,
    query: &Query,
    headers: &HeaderMap,
    run: impl FnOnce(&Head<'_>) -> bool,
) -> bool {
    let role = |service| RoleAssignment { subject: OWNER.into(), service, role: Role::Owner };
    let account = Account {
        name: ACCOUNT.into(),
        generation: 0,
        keys: vec![Key::from_bytes(KEY.to_vec())],
        settings: Settings::default(),
        roles: ServiceKind::ALL.map(role).to_vec(),
    };
    let (container, object) = match operation.service() {
        ServiceKind::Table => ("table", "(PartitionKey='p',RowKey='r')"),
        _ => ("container", "a/b"),
    };
    run(&Head {
        operation,
        account: &account,
        method: &Method::GET,
        path: PATH,
        container,
        object,
        query,
        headers,
        version: Version::NEWEST,
        secure: true,
        peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
        now: NOW,
    })
}
