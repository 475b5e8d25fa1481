//! Shared access signatures: those created by SDKs, and every rule about fields and permissions.

#![allow(clippy::unwrap_used)]

mod common;

use common::{
    ACCOUNT, LATER, SV, TestRequest, World, account_sas, changed, container_sas, detail, operation,
    service_sas,
};
use lazuli_auth::sign::{self, Resource};
use lazuli_protocol::account::Role;
use lazuli_protocol::policy::AccessPolicy;
use lazuli_protocol::request::{Caller, TableRange};
use lazuli_protocol::{ErrorCode, Operation, ServiceKind, date};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vector {
    name: String,
    operation: String,
    container: String,
    object: String,
    query: String,
    #[serde(default)]
    response_headers: Vec<(String, String)>,
    table_range: Option<[String; 4]>,
    scope: Option<String>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    policy: bool,
    #[serde(default)]
    delegated: bool,
    #[serde(default)]
    refused: bool,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(include_str!("vectors/sas.json")).unwrap()
}

impl Vector {
    fn request(&self) -> TestRequest {
        let request =
            TestRequest::new(operation(&self.operation)).at(&self.container, &self.object).query(&self.query);
        let request = self.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        TestRequest { secure: self.delegated, ..request }
    }

    fn world(&self) -> World {
        let mut world = if self.delegated { World::new().with_role(Role::Contributor) } else { World::new() };
        if self.policy {
            world.policy = Ok(Some(policy(None, Some(LATER), Some("r"))));
        }
        world
    }
}

fn policy(start: Option<&str>, expiry: Option<&str>, permissions: Option<&str>) -> AccessPolicy {
    let [start, expiry] = [start, expiry].map(|moment| moment.map(|text| date::parse_iso8601(text).unwrap()));
    AccessPolicy { start, expiry, permissions: permissions.map(str::to_owned) }
}

#[test]
fn signatures_created_by_sdks_are_accepted_with_the_expected_grants() {
    for vector in vectors() {
        if vector.refused {
            assert_eq!(
                vector.world().code(&vector.request()),
                Some(ErrorCode::AuthenticationFailed),
                "{}",
                vector.name
            );
            continue;
        }
        let grant = vector.world().grant(&vector.request());
        let headers: Vec<_> = grant
            .response_headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        assert_eq!(headers, vector.response_headers, "{}", vector.name);
        assert_eq!(grant.encryption_scope, vector.scope, "{}", vector.name);
        let range = vector.table_range.map_or(TableRange::default(), |[spk, srk, epk, erk]| TableRange {
            start_partition: Some(spk),
            start_row: Some(srk),
            end_partition: Some(epk),
            end_row: Some(erk),
        });
        assert_eq!(grant.table_range, range, "{}", vector.name);
        assert!(!grant.permissions.is_empty(), "{}", vector.name);
    }
}

#[test]
fn any_change_of_a_signed_field_is_refused() {
    for vector in vectors() {
        let parameters: Vec<_> = vector.query.split('&').collect();
        for (i, parameter) in parameters.iter().enumerate() {
            let (name, value) = parameter.split_once('=').unwrap();
            let changed = match name {
                "st" => "2026-05-20T10%3A00%3A00Z".to_owned(),
                "se" => "2026-05-20T14%3A00%3A00Z".to_owned(),
                "skt" | "ske" => value.replace("00%3A00%3A00Z", "00%3A00%3A01Z"),
                "snapshot" | "versionid" => value.replace("2026", "2025"),
                "sv" if value == "2019-02-02" => "2019-07-07".to_owned(),
                "sv" => "2026-09-09".to_owned(),
                "sig" => format!("A{value}"),
                "spr" => "https".to_owned(),
                "sip" => "10.0.0.1-10.0.0.8".to_owned(),
                "sp" if value.len() > 1 => value[..value.len() - 1].to_owned(),
                "sp" => if vector.operation == "PutMessage" { "ra" } else { "rd" }.to_owned(),
                "sr" => if value == "b" { "c" } else { "b" }.to_owned(),
                "ss" => format!("{value}q"),
                "srt" => format!("{value}s"),
                "tn" => "other".to_owned(),
                _ => format!("{value}x"),
            };
            let parameter = format!("{name}={changed}");
            let query: Vec<_> =
                (0..parameters.len()).map(|j| if i == j { &parameter } else { parameters[j] }).collect();
            let code = vector.world().code(&vector.request().query(query.join("&")));
            assert_eq!(code, Some(ErrorCode::AuthenticationFailed), "{} {name}", vector.name);
        }
    }
}

#[test]
fn missing_and_malformed_fields_fail_authentication() {
    let world = World::new();
    for (query, expected) in [
        (container_sas(&[]), ""),
        (container_sas(&[("sr", "")]), "sr is mandatory. Cannot be empty"),
        (container_sas(&[("sp", "")]), "sp is mandatory. Cannot be empty"),
        (container_sas(&[("se", "")]), "se is mandatory. Cannot be empty"),
        (container_sas(&[("sv", "soon")]), "sv is not a version."),
        (container_sas(&[("se", "tomorrow")]), "se is not a date."),
        (container_sas(&[("st", "2026-05-20T11:00:00")]), "st is not a date."),
        (container_sas(&[("sr", "z")]), "sr is not a resource of this service."),
        (container_sas(&[("sp", "wr")]), "sp has letters that are unknown or out of order."),
        (container_sas(&[("sp", "rr")]), "sp has letters that are unknown or out of order."),
        (container_sas(&[("sip", "here")]), "sip is not an address or a range of addresses."),
        (container_sas(&[("spr", "http")]), "spr is neither https nor https,http."),
        (container_sas(&[("sv", "2019-12-12"), ("ses", "s")]), "ses is not a field of this version."),
        (
            container_sas(&[("si", "unknown")]),
            "SAS identifier cannot be found for specified signed identifier",
        ),
        (container_sas(&[("rscd", "a\nb")]), "rscd has a line feed."),
        (account_sas(&[]), ""),
        (account_sas(&[("ss", "")]), "ss is mandatory. Cannot be empty"),
        (account_sas(&[("srt", "")]), "srt is mandatory. Cannot be empty"),
        (account_sas(&[("sp", "")]), "sp is mandatory. Cannot be empty"),
        (account_sas(&[("sp", "rr")]), "sp has letters that are unknown or repeated."),
        (account_sas(&[("sv", "2015-02-21")]), "sv is older than signatures of this kind."),
        (account_sas(&[("se", "2026-05-20T12:00:00Z")]), "Signed expiry time ["),
        (
            account_sas(&[("st", "2026-05-20T12:00:01Z")]),
            "Signature not valid in the specified time frame: Start [",
        ),
        (container_sas(&[("se", "2026-05-20")]), "Signed expiry time ["),
        ("sr=c&sp=r&se=2030-01-01&sv=2021-12-02&sig=".into(), "sig is mandatory. Cannot be empty"),
        (
            "sr=c&sp=r&se=2030-01-01&sv=2021-12-02&sig=c2ln".into(),
            "Signature did not match. String to sign used was r\n",
        ),
    ] {
        let refusal = world.authenticate(&TestRequest::new(Operation::GetBlob).query(&query)).err();
        assert_eq!(refusal.is_none(), expected.is_empty(), "{query}: {refusal:?}");
        if let Some(refusal) = refusal {
            assert_eq!(refusal.code(), ErrorCode::AuthenticationFailed, "{query}");
            assert!(detail(&refusal).starts_with(expected), "{query}: {}", detail(&refusal));
        }
    }
}

#[test]
fn service_sas_of_every_version_are_accepted() {
    let world = World::new();
    for (service, path, sv, fields) in [
        (ServiceKind::Blob, "c/o", "", &[("sr", "b")][..]),
        (ServiceKind::Blob, "c/o", "2012-02-12", &[("sr", "b")]),
        (ServiceKind::Blob, "c/o", "2013-08-15", &[("sr", "b"), ("rsct", "x/y")]),
        (ServiceKind::Blob, "c", "2015-02-21", &[("sr", "c")]),
        (ServiceKind::Blob, "c", "2015-04-05", &[("sr", "c"), ("sip", "10.0.0.1")]),
        (ServiceKind::Blob, "c", "2018-11-09", &[("sr", "c")]),
        (ServiceKind::Blob, "c", "2020-12-06", &[("sr", "c"), ("ses", "s")]),
        (ServiceKind::File, "c", "2015-02-21", &[("sr", "s")]),
        (ServiceKind::File, "c/o", "2021-12-02", &[("sr", "f")]),
        (ServiceKind::Queue, "q", "2012-02-12", &[]),
        (ServiceKind::Queue, "q", "2015-04-05", &[("spr", "https")]),
        (ServiceKind::Table, "t", "2012-02-12", &[("tn", "T"), ("spk", "a")]),
        (ServiceKind::Table, "t", "2019-02-02", &[("tn", "t")]),
    ] {
        let operation = match service {
            ServiceKind::Blob => Operation::GetBlob,
            ServiceKind::File => Operation::GetFile,
            ServiceKind::Queue => Operation::PeekMessages,
            ServiceKind::Table => Operation::QueryEntities,
        };
        let fields = changed(&[("sv", sv), ("sp", "r"), ("se", LATER)], fields);
        let query = service_sas(service, path, &fields);
        assert_eq!(world.code(&TestRequest::new(operation).query(&query)), None, "{query}");
        // The versions differ: a string to sign of one is not that of another.
        let other = query.replace(sv, "2017-11-09");
        if !sv.is_empty() {
            assert_eq!(
                world.code(&TestRequest::new(operation).query(other)),
                Some(ErrorCode::AuthenticationFailed),
                "{query}"
            );
        }
    }
}

#[test]
fn blob_sas_without_a_version_is_valid_for_at_most_an_hour_unless_a_policy_can_revoke_it() {
    let mut world = World::new();
    world.policy = Ok(Some(AccessPolicy::default()));
    let refused = Some(ErrorCode::AuthenticationFailed);
    for (fields, expected) in [
        (&[("se", LATER)][..], None),
        (&[("se", "2026-05-20T13:00:01Z")], refused),
        (&[("st", "2026-05-20T11:30:00Z"), ("se", "2026-05-20T12:30:00Z")], None),
        (&[("st", "2026-05-20T11:00:00Z"), ("se", "2026-05-20T12:30:00Z")], refused),
        (&[("si", "policy"), ("se", "2099-01-01")], None),
        (&[("sv", "2012-02-12"), ("se", "2099-01-01")], None),
        (&[("sv", "2011-08-18"), ("se", LATER)], refused),
    ] {
        let fields = changed(&[("sr", "b"), ("sp", "r")], fields);
        let query = service_sas(ServiceKind::Blob, "c/o", &fields);
        assert_eq!(world.code(&TestRequest::new(Operation::GetBlob).query(query)), expected, "{fields:?}");
    }
}

#[test]
fn fields_that_a_version_does_not_sign_have_no_effect() {
    let world = World::new();
    let old =
        service_sas(ServiceKind::Blob, "c", &[("sv", "2012-02-12"), ("sr", "c"), ("sp", "r"), ("se", LATER)]);
    let request = TestRequest::new(Operation::GetBlob)
        .query(format!("{old}&rsct=text%2Fhtml&sip=1.1.1.1&spr=https&spk=a"));
    let grant = world.grant(&TestRequest { secure: false, ..request });
    assert_eq!(grant.response_headers, []);
    assert_eq!(grant.table_range, TableRange::default());
    let account = format!("{}&rsct=text%2Fhtml&spk=a&tn=t", account_sas(&[]));
    assert_eq!(world.grant(&TestRequest::new(Operation::GetBlob).query(&account)).response_headers, []);
    assert_eq!(
        world.grant(&TestRequest::new(Operation::QueryEntities).query(&account)).table_range,
        TableRange::default()
    );
}

#[test]
fn signature_cannot_be_presented_as_one_of_another_resource_kind() {
    let world = World::new();
    for (sv, kind, code) in [
        ("2017-11-09", "sr=d&sdd=1", Some(ErrorCode::AuthenticationFailed)),
        ("2017-11-09", "sr=bs&snapshot=2026-05-20T11:00:00.0000000Z", Some(ErrorCode::AuthenticationFailed)),
        ("2017-11-09", "sr=bv&versionid=2026-05-20T11:00:00.0000000Z", Some(ErrorCode::AuthenticationFailed)),
        ("2017-11-09", "sr=b", None),
    ] {
        let fields = [("sv", sv), ("sr", "b"), ("sp", "r"), ("se", LATER)];
        let blob = service_sas(ServiceKind::Blob, "c/reports", &fields);
        let object = if kind.starts_with("sr=d") { "reports/secret" } else { "reports" };
        let request = TestRequest::new(Operation::GetBlob).at("c", object).query(blob.replace("sr=b", kind));
        assert_eq!(world.code(&request), code, "{sv} {kind}");
    }
}

#[test]
fn resource_kinds_are_known_from_the_version_that_introduced_them() {
    let world = World::new();
    let time = "2026-05-20T11:00:00.0000000Z";
    for (sr, name, value, before, since) in [
        ("bs", "snapshot", time, "2018-03-28", "2018-11-09"),
        ("bv", "versionid", time, "2019-07-07", "2019-12-12"),
        ("d", "sdd", "1", "2019-12-12", "2020-02-10"),
    ] {
        for (sv, is_known) in [(before, false), (since, true)] {
            let timestamp = if sr == "d" { "" } else { time };
            let resource = Resource { service: ServiceKind::Blob, account: ACCOUNT, path: "c/o", timestamp };
            let fields = [("sv", sv), ("sr", sr), (name, value), ("sp", "r"), ("se", LATER)];
            let query = sign::service_sas(&resource, &common::key(), &fields);
            let refusal = world.authenticate(&TestRequest::new(Operation::GetBlob).query(query)).err();
            let expected = if is_known { "" } else { "sr is not a resource of this service." };
            assert_eq!(refusal.as_ref().map_or("", detail), expected, "{sr} {sv}: {refusal:?}");
        }
    }
}

#[test]
fn empty_bound_of_a_table_sas_is_ignored_because_it_is_signed_like_an_absent_one() {
    let world = World::new();
    let fields = [("sv", SV), ("tn", "t"), ("sp", "r"), ("se", LATER), ("spk", "a"), ("epk", "b")];
    let sas = service_sas(ServiceKind::Table, "t", &fields);
    let range =
        |query: String| world.grant(&TestRequest::new(Operation::QueryEntities).query(query)).table_range;
    assert_eq!(range(format!("{sas}&srk=&erk=")), range(sas.clone()));
    let bounds = range(sas);
    assert_eq!((bounds.start_partition.as_deref(), bounds.start_row), (Some("a"), None));
    assert_eq!((bounds.end_partition.as_deref(), bounds.end_row), (Some("b"), None));
}

#[test]
fn row_key_bound_of_a_table_sas_also_applies_in_the_partition_with_the_empty_key() {
    let world = World::new();
    let range = |partition, row| {
        let fields = [("sv", SV), ("tn", "t"), ("sp", "r"), ("se", LATER), (partition, ""), (row, "5")];
        let query = service_sas(ServiceKind::Table, "t", &fields);
        world.grant(&TestRequest::new(Operation::QueryEntities).query(query)).table_range
    };
    let key = |key: &str| Some(key.to_owned());
    let from = TableRange { start_partition: key(""), start_row: key("5"), ..TableRange::default() };
    assert_eq!(range("spk", "srk"), from);
    let to = TableRange { end_partition: key(""), end_row: key("5"), ..TableRange::default() };
    assert_eq!(range("epk", "erk"), to);
}

#[test]
fn row_key_bound_of_a_table_sas_needs_its_partition_key() {
    let world = World::new();
    for (row, partition) in [("srk", "spk"), ("erk", "epk")] {
        let fields = [("sv", SV), ("tn", "t"), ("sp", "r"), ("se", LATER), (row, "5")];
        let query = service_sas(ServiceKind::Table, "t", &fields);
        let refusal =
            world.authenticate(&TestRequest::new(Operation::QueryEntities).query(query)).unwrap_err();
        assert_eq!(refusal.code(), ErrorCode::AuthenticationFailed);
        assert_eq!(detail(&refusal), format!("{row} is given without {partition}."));
    }
}

#[test]
fn signature_covers_only_its_resource() {
    let world = World::new();
    let fields = |sr| [("sv", SV), ("sr", sr), ("sp", "rwl"), ("se", LATER)];
    let blob = service_sas(ServiceKind::Blob, "c/o", &fields("b"));
    let container = service_sas(ServiceKind::Blob, "c", &fields("c"));
    let share = service_sas(ServiceKind::File, "c", &changed(&fields("s"), &[]));
    let table = service_sas(ServiceKind::Table, "t", &[("sv", SV), ("tn", "t"), ("sp", "r"), ("se", LATER)]);
    let refused = Some(ErrorCode::AuthenticationFailed);
    for (operation, sas, container, object, expected) in [
        (Operation::GetBlob, &blob, "c", "o", None),
        (Operation::GetBlob, &blob, "c", "other", refused),
        (Operation::GetBlob, &blob, "d", "o", refused),
        (Operation::ListBlobs, &blob, "c", "", refused),
        (Operation::GetBlob, &container, "c", "anything/at/all", None),
        (Operation::ListBlobs, &container, "c", "", None),
        (Operation::GetBlob, &container, "cc", "o", refused),
        (Operation::ListContainers, &container, "", "", refused),
        (Operation::GetFile, &share, "c", "o", None),
        (Operation::GetFile, &container, "c", "o", refused),
        (Operation::GetBlob, &share, "c", "o", refused),
        (Operation::QueryEntities, &table, "t", "()", None),
        (Operation::QueryEntities, &table, "T", "(PartitionKey='p',RowKey='r')", None),
        (Operation::QueryEntities, &table, "u", "", refused),
        (Operation::EntityGroupTransaction, &table, "$batch", "", None),
    ] {
        let request = TestRequest::new(operation).at(container, object).query(sas);
        assert_eq!(world.code(&request), expected, "{operation:?} {container}/{object}");
    }
    // The tables of a transaction are in its body, so the service must compare them.
    let request = TestRequest::new(Operation::EntityGroupTransaction).at("$batch", "").query(&table);
    assert_eq!(world.grant(&request).table.as_deref(), Some("t"));
}

#[test]
fn directory_sas_covers_only_paths_at_least_as_deep_as_its_depth() {
    let world = World::new();
    let sas = |path: &str, sdd: &str| {
        let fields = [("sv", SV), ("sr", "d"), ("sdd", sdd), ("sp", "rl"), ("se", LATER)];
        service_sas(ServiceKind::Blob, path, &changed(&fields, &[]))
    };
    use ErrorCode::{AuthenticationFailed, QueryParameterSasMandatory, QueryParameterSddInvalid};
    for (query, object, expected) in [
        (sas("c/d1/d2", "2"), "d1/d2/file", Ok("d1/d2")),
        (sas("c/d1/d2", "2"), "d1/d2/d3/file", Ok("d1/d2")),
        (sas("c/d1/d2", "2"), "d1/d2", Ok("d1/d2")),
        (sas("c/d1/d2/", "2"), "d1/d2/file", Ok("d1/d2")),
        (sas("c", "0"), "any/file", Ok("")),
        (sas("c/d1/d2", "2"), "d1/other/file", Err(AuthenticationFailed)),
        (sas("c/d1/d2", "2"), "d1//d2/file", Err(AuthenticationFailed)),
        (sas("c/d1/d2", "1"), "d1/d2/file", Err(AuthenticationFailed)),
        (sas("c/d1/d2", "2"), "d1", Err(AuthenticationFailed)),
        (sas("c/d1/d2", "3"), "d1/d2", Err(AuthenticationFailed)),
        // A signature for `d1/` is one for `d1`, never for the directory without a name in it.
        (sas("c/d1/", "2"), "d1//file", Err(AuthenticationFailed)),
        (sas("c/d1/", "1"), "d1/file", Ok("d1")),
        (sas("c/d1/d2", "two"), "d1/d2/file", Err(QueryParameterSddInvalid)),
        (sas("c/d1/d2", "-1"), "d1/d2/file", Err(QueryParameterSddInvalid)),
        (sas("c/d1/d2", ""), "d1/d2/file", Err(QueryParameterSasMandatory)),
    ] {
        let result = world.authenticate(&TestRequest::new(Operation::GetBlob).at("c", object).query(&query));
        let directory = match &result {
            Ok(Caller::Sas(grant)) => Ok(grant.directory.as_deref().unwrap()),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.code()),
        };
        assert_eq!(directory, expected, "{object} {query}");
    }
    let listing = TestRequest::new(Operation::ListBlobs).at("c", "").query(sas("c/d1", "1") + "&prefix=d1/x");
    assert_eq!(world.grant(&listing).directory.as_deref(), Some("d1"));
    let elsewhere =
        TestRequest::new(Operation::ListBlobs).at("c", "").query(sas("c/d1", "1") + "&prefix=d2/");
    assert_eq!(world.code(&elsewhere), Some(AuthenticationFailed));
}

#[test]
fn each_term_is_in_the_signature_or_in_the_policy_but_never_in_both() {
    use ErrorCode::{AuthenticationFailed, InvalidQueryParameterValue};
    let past = Some("2026-05-20T11:00:00Z");
    let future = Some(LATER);
    for (sas, policy, expected) in [
        (&[("sp", ""), ("se", "")][..], policy(None, future, Some("r")), None),
        (&[("sp", ""), ("se", "")], policy(past, future, Some("r")), None),
        (&[("sp", "")], policy(None, None, Some("r")), None),
        (&[("sp", "")], policy(None, None, Some("lwr")), None),
        (&[("se", "")], policy(past, future, None), None),
        (&[], AccessPolicy::default(), None),
        (&[("se", "")], policy(None, future, Some("r")), Some(InvalidQueryParameterValue)),
        (&[("sp", "")], policy(None, future, Some("r")), Some(InvalidQueryParameterValue)),
        (
            &[("sp", ""), ("se", ""), ("st", "2026-05-20")],
            policy(past, future, Some("r")),
            Some(InvalidQueryParameterValue),
        ),
        (&[("sp", ""), ("se", "")], policy(None, None, Some("r")), Some(AuthenticationFailed)),
        (&[("sp", ""), ("se", "")], policy(None, future, None), Some(AuthenticationFailed)),
        (&[("sp", ""), ("se", "")], policy(None, past, Some("r")), Some(AuthenticationFailed)),
        (&[("sp", ""), ("se", "")], policy(future, future, Some("r")), Some(AuthenticationFailed)),
        (
            &[("sp", ""), ("se", "")],
            policy(None, future, Some("w")),
            Some(ErrorCode::AuthorizationPermissionMismatch),
        ),
    ] {
        let mut world = World::new();
        world.policy = Ok(Some(policy.clone()));
        let query = container_sas(&[sas, &[("si", "policy")]].concat());
        assert_eq!(
            world.code(&TestRequest::new(Operation::GetBlob).query(query)),
            expected,
            "{sas:?} {policy:?}"
        );
    }
}

#[test]
fn unreadable_policy_is_not_a_missing_policy() {
    let request = || TestRequest::new(Operation::GetBlob).query(container_sas(&[("si", "policy")]));
    let mut world = World::new();
    world.policy = Err(ErrorCode::ServerBusy.into());
    assert_eq!(world.code(&request()), Some(ErrorCode::ServerBusy));
    world.policy = Err(ErrorCode::ContainerNotFound.into());
    assert_eq!(world.code(&request()), Some(ErrorCode::AuthenticationFailed));
    // An account SAS has no policies, so `si` is ignored.
    let account = TestRequest::new(Operation::GetBlob).query(account_sas(&[]) + "&si=policy");
    assert_eq!(world.code(&account), None);
}

#[test]
fn encryption_scope_of_a_signature_must_match_the_requested_one() {
    let world = World::new();
    let request = || TestRequest::new(Operation::PutBlob).query(container_sas(&[("ses", "s1")]));
    assert_eq!(world.grant(&request()).encryption_scope.as_deref(), Some("s1"));
    assert_eq!(world.code(&request().header("x-ms-encryption-scope", "s1")), None);
    assert_eq!(
        world.code(&request().header("x-ms-encryption-scope", "s2")),
        Some(ErrorCode::InvalidHeaderValue)
    );
}

#[test]
fn response_header_with_an_invalid_value_is_refused() {
    let world = World::new();
    let request = TestRequest::new(Operation::GetBlob).query(container_sas(&[("rscd", "a\u{1}b")]));
    assert_eq!(world.code(&request), Some(ErrorCode::InvalidQueryParameterValue));
}

#[test]
fn headers_and_parameters_bound_by_a_user_delegation_sas_must_be_sent() {
    let world = World::new().with_role(Role::Contributor);
    let vector = vectors().into_iter().find(|vector| !vector.headers.is_empty()).unwrap();
    let refused = Some(ErrorCode::AuthenticationFailed);
    assert_eq!(world.code(&vector.request()), None);
    assert_eq!(world.code(&TestRequest { headers: Default::default(), ..vector.request() }), refused);
    let other = TestRequest { headers: Default::default(), ..vector.request() }.header("x-ms-meta-a", "2");
    assert_eq!(world.code(&other), refused);
    let properties = vector.query.replace("comp=metadata", "comp=properties");
    assert_eq!(world.code(&vector.request().query(properties)), refused);
}

#[test]
fn bound_values_of_a_user_delegation_sas_cannot_be_split_elsewhere() {
    let world = World::new().with_role(Role::Reader);
    let key = common::user_delegation_key(ServiceKind::Blob, "");
    // The signed lines of bound headers and parameters, and the lists of names that the holder sends.
    let sas = |headers: &str, parameters: &str, srh: &str, srq: &str| {
        let head = ["rl", "", LATER, "/blob/devstoreaccount1/c", common::SUBJECT, common::TENANT];
        let owner = [common::KEY_START, common::KEY_END, "b", SV, "", "", "", "", "", "", "", "2026-04-06"];
        let rest = ["c", "", "", headers, parameters, "", "", "", "", ""];
        let string = [&head[..], &owner, &rest].concat().join("\n");
        let tag =
            ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.bytes()), string.as_bytes());
        let signature = base64::engine::Engine::encode(&base64::engine::general_purpose::STANDARD, tag);
        format!(
            "sv=2026-04-06&sr=c&sp=rl&se={LATER}&skoid={}&sktid={}&skt={}&ske={}&sks=b&skv={SV}&srh={srh}&srq={srq}&sig={}",
            common::SUBJECT,
            common::TENANT,
            common::KEY_START,
            common::KEY_END,
            signature.replace('+', "%2B"),
        )
    };
    for (headers, parameters, srh, srq, sent, accepted) in [
        ("", "\nprefix:d1:x", "", "prefix", "&prefix=d1:x", true),
        ("", "\nprefix:d1:x", "", "prefix:d1", "&prefix:d1=x", false),
        ("", "\ndelimiter:/\nprefix:d1/", "", "delimiter,prefix", "&delimiter=/&prefix=d1/", true),
        ("", "\ndelimiter:/\nprefix:d1/", "", "delimiter", "&delimiter=/%0Aprefix:d1/", false),
        ("", "\nprefix:d1\nx", "", "prefix", "&prefix=d1%0Ax", false),
        ("x-ms-meta-a:b:\n", "", "x-ms-meta-a:b", "", "", false),
        ("", "\ninclude:metadata", "", "include", "&include=metadata", true),
        ("", "\ninclude:metadata", "", "include", "&include=metadata&include=snapshots", false),
    ] {
        let query = sas(headers, parameters, srh, srq) + sent;
        let code = world.code(&TestRequest::new(Operation::ListBlobs).at("c", "").query(&query));
        let expected = (!accepted).then_some(ErrorCode::AuthenticationFailed);
        assert_eq!(code, expected, "{srh} {srq} {sent}");
    }
    let query = sas("if-match:\"1\"\n", "", "if-match", "");
    let once = TestRequest::new(Operation::ListBlobs).at("c", "").query(&query).header("if-match", "\"1\"");
    assert_eq!(world.code(&once), None);
    let twice = once.header("if-match", "\"2\"");
    assert_eq!(world.code(&twice), Some(ErrorCode::AuthenticationFailed));
}

#[test]
fn refusal_names_the_parameter_that_is_in_both_places() {
    let mut world = World::new();
    world.policy = Ok(Some(policy(None, None, Some("r"))));
    let refusal = world
        .authenticate(&TestRequest::new(Operation::GetBlob).query(container_sas(&[("si", "policy")])))
        .unwrap_err();
    assert_eq!(refusal.details()[0], ("QueryParameterName", "sp".to_owned()));
}
