//! Shared Key and Shared Key Lite, tested with requests signed by other implementations.

#![allow(clippy::unwrap_used)]

mod common;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use common::{ACCOUNT, TestRequest, World, detail, key, now, operation, signed};
use http::{HeaderMap, HeaderName, HeaderValue};
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_concurrency::Span;
use lazuli_protocol::operation::route;
use lazuli_protocol::request::Caller;
use lazuli_protocol::{Address, ErrorCode, Key, Operation, Query, ServiceKind, Version, date};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vector {
    operation: String,
    method: String,
    path: String,
    query: String,
    headers: std::collections::BTreeMap<String, String>,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(include_str!("vectors/shared_key.json")).unwrap()
}

impl Vector {
    fn request(&self) -> TestRequest {
        let operation = operation(&self.operation);
        let names = ["x-ms-date", "Date"];
        let date = names.iter().find_map(|name| self.headers.get(*name)).unwrap();
        let mut request =
            TestRequest::new(operation).query(&self.query).version(&self.headers["x-ms-version"]);
        request.method = self.method.parse().unwrap();
        request.path = self.path.clone();
        request.now = date::parse_http(date).unwrap();
        self.headers.iter().fold(request, |request, (name, value)| request.header(name, value))
    }
}

#[test]
fn requests_signed_by_sdks_and_by_hand_are_accepted() {
    let world = World::new();
    for vector in vectors() {
        let result = world.authenticate(&vector.request());
        assert_eq!(result, Ok(Caller::Key), "{} {} {}", vector.operation, vector.path, vector.query);
    }
}

#[test]
fn requests_of_sdks_reach_their_operation() {
    for vector in vectors() {
        let operation = operation(&vector.operation);
        let service = operation.service();
        let path_style = vector.path.starts_with(&format!("/{ACCOUNT}"));
        let host = if path_style {
            "127.0.0.1:10000".into()
        } else {
            format!("{ACCOUNT}.{}.localhost", service.name())
        };
        let query = Query::parse(&vector.query).unwrap();
        let Address { account, container, object, .. } =
            Address::parse(service, &host, &vector.path, &query, &[]).unwrap();
        assert_eq!(account, ACCOUNT);
        let method = vector.method.parse().unwrap();
        let routed = route(service, &method, &container, &object, &query, &vector.request().headers);
        assert_eq!(routed, Ok(operation), "{}", vector.path);
    }
}

#[test]
fn any_change_of_a_signed_part_is_refused() {
    let world = World::new();
    type Change = (&'static str, fn(&mut TestRequest));
    let changes: [Change; 5] = [
        ("verb", |request| request.method = "TRACE".parse().unwrap()),
        ("path", |request| request.path.push('x')),
        ("comp", |request| request.query = format!("{}&comp=other", request.query.replace("comp", "pmoc"))),
        ("date", |request| {
            let later = date::rfc1123(request.now + Span::seconds(1));
            let name = if request.headers.contains_key("x-ms-date") { "x-ms-date" } else { "date" };
            request.headers.insert(name, later.parse().unwrap());
        }),
        ("header", |request| _ = request.headers.insert("x-ms-meta-new", HeaderValue::from_static("v"))),
    ];
    for vector in vectors() {
        let tables = operation(&vector.operation).service() == ServiceKind::Table;
        let lite = vector.headers["Authorization"].starts_with("SharedKeyLite");
        for (name, change) in changes {
            let mut request = vector.request();
            change(&mut request);
            // For tables, headers are not signed, and in the lite form neither is the method.
            let unsigned = (tables && name == "header") || (tables && lite && name == "verb");
            let expected = (!unsigned).then_some(ErrorCode::AuthenticationFailed);
            assert_eq!(world.code(&request), expected, "{name} of {} {}", vector.operation, vector.path);
        }
    }
}

fn get_blob() -> TestRequest {
    TestRequest::new(Operation::GetBlob)
        .header("x-ms-date", &date::rfc1123(now()))
        .header("x-ms-version", "2021-12-02")
}

#[test]
fn either_account_key_is_accepted_and_no_other() {
    let world = World::new();
    assert_eq!(world.authenticate(&signed(get_blob(), ACCOUNT, &key())), Ok(Caller::Key));
    assert_eq!(world.authenticate(&signed(get_blob(), ACCOUNT, &world.account.keys[0])), Ok(Caller::Key));
    let stranger = Key::from_bytes(vec![3; 64]);
    let refusal = world.authenticate(&signed(get_blob(), ACCOUNT, &stranger)).unwrap_err();
    assert_eq!(refusal.code(), ErrorCode::AuthenticationFailed);
    let string = "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Wed, 20 May 2026 12:00:00 GMT\nx-ms-version:2021-12-02\n\
                  /devstoreaccount1/devstoreaccount1/c/o";
    assert!(detail(&refusal).contains(string), "{}", detail(&refusal));
}

#[test]
fn date_may_be_off_by_fifteen_minutes_in_both_directions() {
    let world = World::new();
    for (offset, detail_start) in [
        (0, ""),
        (-15 * 60, ""),
        (15 * 60, ""),
        (-15 * 60 - 1, "Request date header too old"),
        (15 * 60 + 1, "Request date header too far in the future"),
        (24 * 3600, "Request date header too far in the future"),
    ] {
        let mut request = signed(get_blob(), ACCOUNT, &key());
        let span = Span::seconds(i64::unsigned_abs(offset));
        // The request is `offset` away from the server's time.
        request.now = if offset < 0 { now() + span } else { now() - span };
        let refusal = world.authenticate(&request).err();
        assert_eq!(refusal.is_none(), detail_start.is_empty(), "{offset}");
        assert!(refusal.is_none_or(|r| detail(&r).starts_with(detail_start)), "{offset}");
    }
}

#[test]
fn date_is_required_and_x_ms_date_takes_precedence() {
    let world = World::new();
    let date = date::rfc1123(now());
    let with = |headers: &[(&str, &str)]| {
        let request = headers
            .iter()
            .fold(TestRequest::new(Operation::GetBlob), |request, (name, value)| request.header(name, value));
        world.code(&signed(request, ACCOUNT, &key()))
    };
    let refused = Some(ErrorCode::AuthenticationFailed);
    assert_eq!(with(&[("x-ms-date", &date)]), None);
    assert_eq!(with(&[("date", &date)]), None);
    assert_eq!(with(&[("x-ms-date", &date), ("date", "long ago")]), None);
    assert_eq!(with(&[("x-ms-date", "long ago"), ("date", &date)]), refused);
    assert_eq!(with(&[("x-ms-date", "")]), refused);
    assert_eq!(with(&[]), refused);
}

#[test]
fn malformed_headers_are_refused_and_accounts_must_match() {
    let world = World::new();
    use ErrorCode::{AuthenticationFailed, InvalidAuthenticationInfo};
    for (value, expected) in [
        ("", InvalidAuthenticationInfo),
        ("SharedKey", InvalidAuthenticationInfo),
        ("SharedKey ", InvalidAuthenticationInfo),
        ("SharedKey devstoreaccount1", InvalidAuthenticationInfo),
        ("SharedKey :c2ln", InvalidAuthenticationInfo),
        ("SharedKey devstoreaccount1:", InvalidAuthenticationInfo),
        ("Basic dXNlcjpwYXNz", InvalidAuthenticationInfo),
        ("AWS4-HMAC-SHA256 Credential=x", InvalidAuthenticationInfo),
        ("SharedKey devstoreaccount1:not base64", InvalidAuthenticationInfo),
        ("SharedKey devstoreaccount1:c2ln", AuthenticationFailed),
        ("SharedKey other:c2ln", AuthenticationFailed),
    ] {
        let refusal = world.authenticate(&get_blob().header("authorization", value)).unwrap_err();
        assert_eq!(refusal.code(), expected, "{value:?}");
        assert_eq!(refusal.status(), if expected == AuthenticationFailed { 403 } else { 400 }, "{value:?}");
    }
    let twice = signed(get_blob(), ACCOUNT, &key()).header("authorization", "SharedKey a:b");
    assert_eq!(world.code(&twice), Some(InvalidAuthenticationInfo));
    // The signature is correct, but the header names another account.
    let mut claimed = signed(get_blob(), ACCOUNT, &key());
    let value = claimed.headers["authorization"].to_str().unwrap().replace(ACCOUNT, "other");
    claimed.headers.insert("authorization", value.parse().unwrap());
    assert_eq!(world.code(&claimed), Some(AuthenticationFailed));
    // Signed for another account with the correct key.
    assert_eq!(world.code(&signed(get_blob(), "other", &key())), Some(AuthenticationFailed));
}

#[test]
fn signed_header_may_be_sent_only_once() {
    let world = World::new();
    let repeated = |name: &str| {
        let request = signed(get_blob().header(name, "1"), ACCOUNT, &key()).header(name, "1");
        world.code(&request)
    };
    assert_eq!(repeated("x-ms-meta-a"), Some(ErrorCode::InvalidHeaderValue));
    assert_eq!(repeated("content-type"), Some(ErrorCode::InvalidHeaderValue));
    assert_eq!(repeated("accept"), None);
}

#[test]
fn secondary_account_signs_with_the_primary_name() {
    let world = World::new();
    let mut request = signed(get_blob(), ACCOUNT, &key());
    let value =
        request.headers["authorization"].to_str().unwrap().replace(ACCOUNT, "devstoreaccount1-secondary");
    request.headers.insert("authorization", value.parse().unwrap());
    assert_eq!(world.authenticate(&request), Ok(Caller::Key));
}

#[test]
fn signature_of_a_list_of_values_does_not_cover_a_repeated_parameter() {
    let world = World::new();
    let denied = Some(ErrorCode::AuthenticationFailed);
    for (signed_query, sent_query, expected) in [
        ("prefix=a,b", "prefix=a,b", None),
        // The service would list everything that begins with `a`.
        ("prefix=a,b", "prefix=a&prefix=b", denied),
        ("prefix=a,b", "prefix=b&Prefix=a", denied),
        ("prefix=a,b", "prefix=b&PREFI%58=a", denied),
        ("prefix=a&prefix=b", "prefix=a&prefix=b", denied),
        // The values of this parameter are a list in either form.
        ("include=metadata,tags", "include=metadata&include=tags", None),
        ("include=metadata,tags", "include=tags&include=metadata", None),
    ] {
        let date = date::rfc1123(now());
        let request = |query: &str| {
            TestRequest::new(Operation::ListBlobs).at("c", "").query(query).header("x-ms-date", &date)
        };
        let signed = signed(request(signed_query), ACCOUNT, &key());
        let replayed =
            request(sent_query).header("authorization", signed.headers["authorization"].to_str().unwrap());
        assert_eq!(world.code(&replayed), expected, "{signed_query} as {sent_query}");
    }
}

/// Returns a request with the signature of `string`, created with the account's key.
fn signed_as(request: TestRequest, scheme: &str, string: &str) -> TestRequest {
    let tag =
        ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key().bytes()), string.as_bytes());
    request.header("authorization", &format!("{scheme} {ACCOUNT}:{}", BASE64.encode(tag)))
}

/// Returns Write Pages From URL as Microsoft.Azure.Storage 11.2.3 for .NET sends it: with a parameter without
/// `=`, which its query parser takes for a value without a name.
fn write_pages_from_url(query: &str) -> TestRequest {
    let date = date::rfc1123(now());
    let mut request = TestRequest::new(Operation::PutPageFromUrl).query(query).version("2019-07-07");
    request.path = format!("/{ACCOUNT}/c/b");
    for (name, value) in [
        ("content-length", "0"),
        ("x-ms-copy-source", "https://other.example/c/s?sig=x"),
        ("x-ms-date", &date),
        ("x-ms-page-write", "update"),
        ("x-ms-range", "bytes=0-511"),
        ("x-ms-source-range", "bytes=0-511"),
        ("x-ms-version", "2019-07-07"),
    ] {
        request = request.header(name, value);
    }
    request
}

#[test]
fn parameter_without_a_value_is_signed_as_a_name_or_as_a_value() {
    let world = World::new();
    let date = date::rfc1123(now());
    let headers = format!(
        "x-ms-copy-source:https://other.example/c/s?sig=x\nx-ms-date:{date}\nx-ms-page-write:update\n\
         x-ms-range:bytes=0-511\nx-ms-source-range:bytes=0-511\nx-ms-version:2019-07-07\n"
    );
    let resource = format!("/{ACCOUNT}/{ACCOUNT}/c/b");
    let string = |parameters: &str| format!("PUT\n\n\n\n\n\n\n\n\n\n\n\n{headers}{resource}{parameters}");
    for (query, parameters, accepted) in [
        ("comp=page&update", "\n:update\ncomp:page", true),
        ("comp=page&update", "\ncomp:page\nupdate:", true),
        ("update&comp=page", "\n:update\ncomp:page", true),
        ("comp=page&Update", "\n:Update\ncomp:page", true),
        ("comp=page&update&also", "\n:also,update\ncomp:page", true),
        ("comp=page&update=", "\ncomp:page\nupdate:", true),
        // A signature that omits the parameter, and one for another parameter.
        ("comp=page&update", "\ncomp:page", false),
        ("comp=page&clear", "\n:update\ncomp:page", false),
        ("comp=page&update=", "\n:update\ncomp:page", false),
        // Other queries that would have the same string to sign.
        ("update%0Acomp:page", "\n:update\ncomp:page", false),
        ("=update%0Acomp:page", "\n:update\ncomp:page", false),
        ("comp=page&=update", "\n:update\ncomp:page", false),
        ("a=1%0Acomp:page", "\na:1\ncomp:page", false),
        ("snapshot:2020-01-01T00=00:00Z", "\nsnapshot:2020-01-01T00:00:00Z", false),
        ("a:1%0Acomp=page", "\na:1\ncomp:page", false),
    ] {
        let request = signed_as(write_pages_from_url(query), "SharedKey", &string(parameters));
        let expected = (!accepted).then_some(ErrorCode::AuthenticationFailed);
        assert_eq!(world.code(&request), expected, "{query} {parameters:?}");
    }
    // The lite form signs only `comp`.
    let string = format!("PUT\n\n\n\n{headers}{resource}?comp=page");
    let request = signed_as(write_pages_from_url("comp=page&update"), "SharedKeyLite", &string);
    assert_eq!(world.code(&request), None);
}

#[test]
fn tables_sign_no_parameter_except_comp() {
    let world = World::new();
    let date = date::rfc1123(now());
    for (scheme, verb) in [("SharedKey", "GET\n\n\n"), ("SharedKeyLite", "")] {
        for (query, resource) in [("update", ""), ("comp=acl&update", "?comp=acl")] {
            let request = TestRequest::new(Operation::GetTableAcl).query(query).header("x-ms-date", &date);
            let string = format!("{verb}{date}\n/{ACCOUNT}{}{resource}", request.path);
            assert_eq!(world.code(&signed_as(request, scheme, &string)), None, "{scheme} {query}");
        }
    }
}

#[test]
fn account_key_cannot_request_a_user_delegation_key() {
    let world = World::new();
    use Operation::{GetFileUserDelegationKey, GetQueueUserDelegationKey, GetUserDelegationKey};
    for operation in [GetUserDelegationKey, GetQueueUserDelegationKey, GetFileUserDelegationKey] {
        let request = TestRequest::new(operation).header("x-ms-date", &date::rfc1123(now()));
        let refusal = world.authenticate(&signed(request, ACCOUNT, &key())).unwrap_err();
        assert_eq!(refusal.code(), ErrorCode::AuthenticationFailed);
        assert_eq!(detail(&refusal), "Only authentication scheme Bearer is supported");
    }
}

#[test]
fn strings_to_sign_may_contain_non_ascii_bytes() {
    let mut headers = HeaderMap::new();
    headers.insert(HeaderName::from_static("x-ms-meta-a"), HeaderValue::from_bytes("ü".as_bytes()).unwrap());
    let query = Query::default();
    let message = Message {
        scheme: Scheme::SharedKey,
        service: ServiceKind::Blob,
        account: "a",
        method: "GET",
        path: "",
        query: &query,
        headers: &headers,
        version: Version::NEWEST,
    };
    let string = String::from_utf8(message.string_to_sign().unwrap()).unwrap();
    assert!(string.ends_with("x-ms-meta-a:ü\n/a/"), "{string}");
}
