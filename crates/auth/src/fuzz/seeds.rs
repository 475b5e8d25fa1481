//! Valid inputs for the entry points of [`super`], from which the fuzzer starts.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use lazuli_protocol::{Key, Query, ServiceKind, Version};

use super::{ACCOUNT, KEY, OWNER, PATH, TOKENS};
use crate::shared_key::{Message, Scheme};
use crate::sign;

const DATE: &str = "Tue, 14 Nov 2023 22:13:20 GMT";

/// Seeds of [`super::authorization_header`].
pub fn authorization_header() -> Vec<Vec<u8>> {
    let queries =
        ["", "comp=metadata&restype=container&timeout=30", "comp=list&include=a,b&include=c&update"];
    let headers: [&[(&'static str, &'static str)]; 3] = [
        &[],
        &[("content-type", "text/plain"), ("x-ms-version", "2021-12-02"), ("range", "bytes=0-1")],
        &[
            ("content-length", "0"),
            ("if-match", "\"0x1\""),
            ("x-ms-meta-a", " b "),
            ("x-ms-blob-type", "BlockBlob"),
        ],
    ];
    let mut seeds = vec![];
    for service in [ServiceKind::Blob, ServiceKind::Table] {
        for scheme in [Scheme::SharedKey, Scheme::SharedKeyLite] {
            for (query, headers) in queries.into_iter().zip(headers) {
                seeds.extend(signed_request(service, scheme, query, headers));
            }
        }
    }
    seeds.extend(tokens().map(|token| [b"Bearer ", token.as_bytes()].concat()).take(1));
    seeds
}

/// Returns an input with a correct signature.
fn signed_request(
    service: ServiceKind,
    scheme: Scheme,
    query: &str,
    further: &[(&'static str, &'static str)],
) -> Option<Vec<u8>> {
    let mut headers = HeaderMap::from_iter(
        further.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))),
    );
    headers.insert("x-ms-date", HeaderValue::from_static(DATE));
    let message = Message {
        scheme,
        service,
        account: ACCOUNT,
        method: "GET",
        path: PATH,
        query: &Query::parse(query).ok()?,
        headers: &headers,
        version: Version::NEWEST,
    };
    let authorization = sign::authorization(&message, &Key::from_bytes(KEY.to_vec())).ok()?;
    let lines: Vec<_> = further.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    let lines = lines.join("\n");
    let parts = [authorization.as_bytes(), DATE.as_bytes(), query.as_bytes(), lines.as_bytes()];
    Some(parts.join(&0))
}

/// Seeds of [`super::sas_query`]. The target replaces the signature.
pub fn sas_query() -> Vec<Vec<u8>> {
    let delegated = format!(
        "&skoid={OWNER}&sktid=66666666-7777-8888-9999-000000000000&skt=2023-11-14T22:00:00Z\
         &ske=2023-11-15T22:00:00Z&sks=b&skv=2021-12-02&se=2023-11-15&sp=r&sig=AA"
    );
    let mut seeds: Vec<String> = [
        // Account SAS.
        "sv=2021-12-02&ss=bqtf&srt=sco&sp=rwdlacupx&se=2023-11-15T00:00:00Z&sig=AA",
        "sv=2015-04-05&ss=b&srt=o&sp=r&st=2023-11-14&se=2023-11-15&spr=https,http&sip=127.0.0.1-127.0.0.9&sig=AA",
        "sv=2022-11-02&ss=b&srt=sco&sp=rl&se=2023-11-15T00:00Z&ses=scope&sip=127.0.0.1&spr=https&sig=AA",
        // Service SAS of blobs: without a version, and of each kind of resource.
        "sr=b&sp=r&se=2023-11-14T23:00:00Z&sig=AA",
        "sv=2012-02-12&sr=c&sp=rwdl&se=2023-11-15&sig=AA",
        "sv=2013-08-15&sr=b&sp=r&se=2023-11-15&rscc=no-cache&rscd=attachment&rsce=gzip&rscl=en&rsct=text/plain&sig=AA",
        "sv=2018-11-09&sr=bs&snapshot=2023-11-14T20:00:00.0000000Z&sp=r&se=2023-11-15&sig=AA",
        "sv=2019-12-12&sr=bv&versionid=2023-11-14T20:00:00.0000000Z&sp=r&se=2023-11-15&sig=AA",
        "sv=2020-02-10&sr=d&sdd=1&sp=rl&se=2023-11-15&sig=AA",
        "sv=2020-12-06&sr=c&ses=scope&sp=racwdxltfmeop&se=2023-11-15T22:13:20Z&sig=AA",
        "sv=2021-12-02&sr=c&si=full&sig=AA",
        // Of a directory that is listed.
        "sv=2020-02-10&sr=d&sdd=2&prefix=a/b/&delimiter=/&sp=rl&se=2023-11-15&sig=AA",
        // Files, queues and tables.
        "sv=2021-12-02&sr=s&sp=rcwdl&se=2023-11-15&sig=AA",
        "sv=2015-02-21&sr=f&sp=r&se=2023-11-15&sig=AA",
        "sv=2021-12-02&sp=raup&se=2023-11-15&sig=AA",
        "sv=2021-12-02&tn=Table&sp=raud&se=2023-11-15&spk=a&srk=b&epk=c&erk=d&sig=AA",
        "sv=2012-02-12&tn=table&si=full&sig=AA",
    ]
    .map(str::to_owned)
    .to_vec();
    for fields in [
        "sv=2018-11-09&sr=b",
        "sv=2020-02-10&sr=c&saoid=11111111-2222-3333-4444-555555555555&scid=11111111-2222-3333-4444-555555555555",
        "sv=2020-02-10&sr=d&sdd=1&suoid=11111111-2222-3333-4444-555555555555",
        "sv=2025-07-05&sr=b&skdutid=66666666-7777-8888-9999-000000000000&sduoid=11111111-2222-3333-4444-555555555555",
        "sv=2026-04-06&sr=b&srh=x-ms-date,range&srq=comp,timeout&timeout=30",
    ] {
        seeds.push(format!("{fields}{delegated}"));
    }
    seeds.push(format!("sv=2025-07-05{}", delegated.replace("sks=b", "sks=q").replace("sp=r&", "sp=raup&")));
    seeds.push(format!("sv=2025-07-05&sr=f{}", delegated.replace("sks=b", "sks=f")));
    seeds.into_iter().map(String::into_bytes).collect()
}

/// Seeds of [`super::jwt`].
pub fn jwt() -> Vec<Vec<u8>> {
    let documents = [
        TOKENS["jwks"].to_string(),
        r#"{"keys":[{"kty":"EC","kid":"k","use":"sig","crv":"P-256","x":"AA","y":"AA"},{"kty":"RSA","n":"AQAB","e":"AQAB"}]}"#.to_owned(),
        "{\"typ\":\"JWT\",\"alg\":\"RS256\",\"kid\":\"k\"}\0{\"iss\":\"https://issuer.example/tenant\",\
         \"aud\":[\"a\",\"my-client\"],\"exp\":1779282000.5,\"nbf\":1779278340,\"oid\":\"o\",\"tid\":\"t\"}"
            .to_owned(),
        "{\"alg\":\"ES256\"}\0{\"iss\":\"https://issuer.example/tenant\",\
         \"aud\":\"https://account.blob.core.windows.net/\",\"exp\":1779282000,\"sub\":\"s\"}"
            .to_owned(),
        r#"{"issuer":"https://i","jwks_uri":"https://i/keys","authorization_endpoint":"https://i/auth"}"#.to_owned(),
    ];
    documents.into_iter().chain(tokens().map(str::to_owned)).map(String::into_bytes).collect()
}

/// Returns tokens that are valid for the fuzzed account.
fn tokens() -> impl Iterator<Item = &'static str> {
    let tokens = TOKENS["tokens"].as_array().into_iter().flatten();
    let valid = tokens.filter(|token| token["error"].is_null() && token["name"] != "audience of the account");
    valid.filter_map(|token| token["token"].as_str())
}

/// Seeds of [`super::key_info`].
pub fn key_info() -> Vec<Vec<u8>> {
    [
        "<KeyInfo><Start>2023-11-14T22:13:20Z</Start><Expiry>2023-11-21T22:13:20Z</Expiry></KeyInfo>",
        "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><KeyInfo><Start>2023-11-14</Start><Expiry>2023-11-15</Expiry></KeyInfo>",
        "<?xml version='1.0'?>\n<KeyInfo>\n <Start/>\n <Expiry>2023-11-15T00:00:00.0000000Z</Expiry>\n</KeyInfo>",
        "<KeyInfo><Expiry><![CDATA[2023-11-15]]></Expiry><!-- c --><DelegatedUserTid>6666&#x36;&amp;</DelegatedUserTid></KeyInfo>",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
