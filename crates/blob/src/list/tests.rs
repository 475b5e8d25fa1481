use lazuli_concurrency::Stamp;
use lazuli_protocol::{Query, Version};

use super::*;

#[test]
fn marker_round_trips() {
    let partition = Bytes::from_static(b"bname/\xff");
    let version = keys::version(Stamp::from_ticks(0));
    for (key, latest) in [
        (Bytes::new(), Bytes::new()),
        (keys::snapshot(Stamp::from_ticks(0)), Bytes::new()),
        (keys::snapshot(Stamp::from_ticks(0)), version.clone()),
        (LAST, Bytes::new()),
        (LAST, keys::deleted(&version)),
    ] {
        let position = Position { partition: partition.clone(), key, latest };
        assert_eq!(Position::parse(&position.clone().marker()), position);
    }
    for none in [&b""[..], b"\0", b"\0\0", b"\0\x02v"] {
        assert_eq!(Position::parse(none), Position::at(keys::BLOBS));
    }
    let key = Position { key: Bytes::from_static(b"\0"), ..Position::at(keys::BLOBS) };
    assert_eq!(Position::parse(b"\0\0\0"), key);
}

#[test]
fn names_are_folded_at_the_first_delimiter_after_the_prefix() {
    for (query, name, expected) in [
        ("delimiter=/", "a/b/c", Some("a/")),
        ("delimiter=/", "abc", None),
        ("delimiter=/", "/", Some("/")),
        ("delimiter=/&prefix=a/", "a/b/c", Some("a/b/")),
        ("delimiter=/&prefix=a/", "a/b", None),
        ("delimiter=/&prefix=a/", "a//", Some("a//")),
        ("delimiter=--&prefix=x-", "x--y", None),
        ("delimiter=--&prefix=x-", "x---y", Some("x---")),
        ("delimiter=%C3%A4", "aäb", Some("aä")),
        ("", "a/b", None),
    ] {
        let query = Query::parse(query).unwrap();
        let page = PageRequest::parse(ServiceKind::Blob, &query, MAX_RESULTS).unwrap();
        assert_eq!(fold(name, &page), expected, "{name}");
    }
}

#[test]
fn include_values_depend_on_the_version() {
    let include = |words: &str, version| {
        let query = Query::parse(&format!("include={words}")).unwrap();
        BlobInclude::parse(&query, Version::parse(version).unwrap()).map_err(|refusal| refusal.code())
    };
    let all = "snapshots,metadata,uncommittedblobs,copy,deleted,tags,versions,deletedwithversions,\
               immutabilitypolicy,legalhold,permissions";
    let everything = BlobInclude {
        snapshots: true,
        metadata: true,
        uncommitted: true,
        copy: true,
        deleted: true,
        tags: true,
        versions: true,
        deleted_with_versions: true,
        immutability_policy: true,
        legal_hold: true,
    };
    assert_eq!(include(all, "2021-12-02"), Ok(everything));
    assert_eq!(include("", "2021-12-02"), Ok(BlobInclude::default()));
    assert_eq!(
        include("Metadata", "2009-09-19"),
        Ok(BlobInclude { metadata: true, ..BlobInclude::default() })
    );
    assert_eq!(include("copy", "2011-08-18"), Err(ErrorCode::InvalidQueryParameterValue));
    assert_eq!(include("versions", "2019-07-07"), Err(ErrorCode::InvalidQueryParameterValue));
    assert_eq!(include("everything", "2021-12-02"), Err(ErrorCode::InvalidQueryParameterValue));
}

#[test]
fn row_kinds_are_in_key_order() {
    let kinds = states::kinds();
    assert!(kinds.is_sorted_by_key(|(_, start)| start.clone()));
    for (kind, start) in kinds {
        let first = [&start[..], &[0; 8]].concat();
        assert_eq!(keys::row_kind(&first), Some(kind));
    }
}
