//! Entry points for fuzzing: passes untrusted bytes to every parser and rule of this crate. Nothing may
//! panic.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, header};
use lazuli_concurrency::Timestamp;
use lazuli_protocol::account::Settings;
use lazuli_protocol::policy::AccessPolicy;
use lazuli_protocol::{Account, Key, Operation, Query, ServiceKind, Version};

use crate::bearer::{Issuer, KeySet, StaticKeys, Token};
use crate::sas::Sas;
use crate::user_delegation::{KeyInfo, MasterSecret};
use crate::{Credentials, Head, shared_key};

const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
const SECRET: MasterSecret = MasterSecret::new([1; 32]);
const KEY: &[u8] = &[2; 64];

/// Fuzzes the value of an Authorization header and, after a NUL, of an x-ms-date header.
pub fn authorization_header(bytes: &[u8]) {
    let mut headers = HeaderMap::new();
    let names = [header::AUTHORIZATION, header::HeaderName::from_static("x-ms-date")];
    for (name, value) in names.into_iter().zip(bytes.split(|byte| *byte == 0)) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    }
    for operation in [Operation::GetBlob, Operation::QueryEntities] {
        with_head(operation, &Query::default(), &headers, |head| {
            if let Ok(Some(Credentials::SharedKey(scheme, credential))) = Credentials::of(head) {
                let _ = shared_key::verify(head, scheme, credential);
            }
        });
    }
}

/// Fuzzes a query string with a signature.
pub fn sas_query(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(query) = Query::parse(text) else { return };
    for operation in [
        Operation::GetBlob,
        Operation::ListBlobs,
        Operation::PutMessage,
        Operation::InsertEntity,
        Operation::GetFile,
    ] {
        with_head(operation, &query, &HeaderMap::new(), |head| {
            let Ok(sas) = Sas::parse(operation.service(), &query) else { return };
            // Random bytes never guess a signature, so reach the rules after its verification with a
            // correct one.
            let signature = sas.sign(head, KEY).unwrap_or_default();
            let _ = sas.verify(head, &SECRET);
            let signed = format!("sig={}&{text}", signature.replace('+', "%2B"));
            let Ok(query) = Query::parse(&signed) else { return };
            let head = Head { query: &query, ..*head };
            if let Ok(verified) =
                Sas::parse(operation.service(), &query).and_then(|sas| sas.verify(&head, &SECRET))
            {
                let _ = verified.policy(&head);
                let _ = verified.grant(&head, &AccessPolicy::default());
            }
        });
    }
}

/// Fuzzes a bearer token and an issuer's key set.
pub fn jwt(bytes: &[u8]) {
    let _ = KeySet::parse(bytes);
    let Some(token) = std::str::from_utf8(bytes).ok().and_then(|text| Token::parse(text).ok()) else {
        return;
    };
    let _ = token.verify(&KeySet::default());
    let issuer = Issuer {
        name: "https://issuer".into(),
        audiences: Vec::new(),
        authorization_uri: String::new(),
        keys: Arc::new(StaticKeys::new(KeySet::default())),
    };
    with_head(Operation::GetBlob, &Query::default(), &HeaderMap::new(), |head| {
        let _ = token.subject(&issuer, head.account, ServiceKind::Blob, NOW);
    });
}

/// Fuzzes the body of Get User Delegation Key.
pub fn key_info(bytes: &[u8]) {
    let _ = KeyInfo::parse(bytes, NOW);
}

fn with_head(operation: Operation, query: &Query, headers: &HeaderMap, run: impl FnOnce(&Head<'_>)) {
    let account = Account {
        name: "account".into(),
        generation: 0,
        keys: vec![Key::from_bytes(KEY.to_vec())],
        settings: Settings::default(),
        roles: Vec::new(),
    };
    let (container, object) = match operation.service() {
        ServiceKind::Table => ("table", "(PartitionKey='p',RowKey='r')"),
        _ => ("container", "a/b"),
    };
    run(&Head {
        operation,
        account: &account,
        method: &Method::GET,
        path: "/account/container/a/b",
        container,
        object,
        query,
        headers,
        version: Version::NEWEST,
        secure: true,
        peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
        now: NOW,
    });
}
