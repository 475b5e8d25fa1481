//! No input from a client causes a panic.

use lazuli_auth::fuzz;
use proptest::prelude::*;

/// Generates query strings that look like signatures: known names and almost valid values.
fn sas() -> impl Strategy<Value = String> {
    let names = prop::sample::select(vec![
        "sv",
        "sr",
        "sp",
        "st",
        "se",
        "si",
        "sip",
        "spr",
        "ss",
        "srt",
        "sig",
        "tn",
        "spk",
        "srk",
        "sdd",
        "ses",
        "rsct",
        "rscd",
        "skoid",
        "sktid",
        "skt",
        "ske",
        "sks",
        "skv",
        "srh",
        "srq",
        "snapshot",
        "versionid",
        "prefix",
        "sduoid",
    ]);
    let values = prop_oneof![
        prop::sample::select(vec![
            "2021-12-02",
            "2012-02-12",
            "2030-01-01",
            "2020-01-01T00:00Z",
            "b",
            "c",
            "d",
            "bs",
            "s",
            "f",
            "rwdl",
            "raup",
            "bqtf",
            "sco",
            "1.1.1.1-2.2.2.2",
            "127.0.0.1",
            "https",
            "table",
            "0",
            "2",
            "99999999999999999999",
            "",
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,12}".prop_map(|text| text.replace(['%', '&', '#'], "")),
    ];
    prop::collection::vec((names, values), 0..16).prop_map(|pairs| {
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        fuzz::authorization_header(&bytes);
        fuzz::sas_query(&bytes);
        fuzz::jwt(&bytes);
        fuzz::key_info(&bytes);
    }

    #[test]
    fn headers_never_panic(account in "[a-z]{0,8}", signature in "[A-Za-z0-9+/=:]{0,48}", date in "[ -~]{0,32}") {
        for scheme in ["SharedKey", "SharedKeyLite", "Bearer", ""] {
            fuzz::authorization_header(format!("{scheme} {account}:{signature}\0{date}").as_bytes());
        }
    }

    #[test]
    fn signatures_never_panic(query in sas()) {
        fuzz::sas_query(query.as_bytes());
    }

    #[test]
    fn tokens_never_panic(header in "[ -~]{0,32}", claims in "[ -~]{0,64}", signature in "[A-Za-z0-9_-]{0,16}") {
        use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
        let claims = URL_SAFE_NO_PAD.encode(format!("{{{claims}}}"));
        for header in [format!("{{{header}}}"), r#"{"alg":"RS256"}"#.into(), r#"{"alg":"ES256","kid":"x"}"#.into()] {
            fuzz::jwt(format!("{}.{claims}.{signature}", URL_SAFE_NO_PAD.encode(header)).as_bytes());
        }
    }

    #[test]
    fn key_infos_never_panic(start in "[0-9TZ:+. -]{0,30}", expiry in "\\PC{0,30}") {
        fuzz::key_info(format!("<KeyInfo><Start>{start}</Start><Expiry>{expiry}</Expiry></KeyInfo>").as_bytes());
    }
}
