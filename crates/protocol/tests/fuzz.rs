//! Feeds noise and damaged valid input to every parser that reads the network. None may panic, and a parsed
//! value that is written and parsed again must be the same.

use lazuli_protocol::fuzz;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// Number of inputs: enough to reach every branch of a damaged input, few enough to take a second.
const CASES: u32 = 3000;

const PROPERTIES: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><StorageServiceProperties><Logging>\
    <Version>1.0</Version><Delete>true</Delete><Read>false</Read><Write>true</Write><RetentionPolicy>\
    <Enabled>true</Enabled><Days>7</Days></RetentionPolicy></Logging><HourMetrics><Version>1.0</Version>\
    <Enabled>false</Enabled><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy></HourMetrics><Cors><CorsRule>\
    <AllowedOrigins>http://a.com,*</AllowedOrigins><AllowedMethods>GET,PUT</AllowedMethods>\
    <AllowedHeaders>x-ms-meta-*</AllowedHeaders><ExposedHeaders>*</ExposedHeaders><MaxAgeInSeconds>5</MaxAgeInSeconds>\
    </CorsRule></Cors><DefaultServiceVersion>2021-12-02</DefaultServiceVersion><StaticWebsite><Enabled>true</Enabled>\
    <IndexDocument>i &amp; &#x41;</IndexDocument></StaticWebsite></StorageServiceProperties>";
const FILE_PROPERTIES: &str = "<StorageServiceProperties><ShareDeleteRetentionPolicy><Enabled>true</Enabled>\
    <Days>7</Days></ShareDeleteRetentionPolicy><ProtocolSettings><SMB><Multichannel><Enabled>true</Enabled>\
    </Multichannel></SMB></ProtocolSettings></StorageServiceProperties>";
const IDENTIFIERS: &str = "\u{feff}<SignedIdentifiers><SignedIdentifier><Id>MTIz</Id><AccessPolicy>\
    <Start>2021-04-20T15:54:52.9740791Z</Start><Expiry>2022-01-01</Expiry><Permission>rwd</Permission></AccessPolicy>\
    </SignedIdentifier><SignedIdentifier><Id><![CDATA[<x>]]></Id></SignedIdentifier></SignedIdentifiers>";

/// One way of corrupting an input.
#[derive(Clone, Debug)]
enum Corruption {
    Replace(u8),
    Insert(Vec<u8>),
    Delete(usize),
    Repeat(usize),
    Truncate,
}

fn corruption() -> impl Strategy<Value = Corruption> {
    prop_oneof![
        any::<u8>().prop_map(Corruption::Replace),
        prop::collection::vec(any::<u8>(), 1..8).prop_map(Corruption::Insert),
        "[<>&;%:=+T/()'\\-\n.0-9\"]{1,4}".prop_map(|text| Corruption::Insert(text.into_bytes())),
        (1usize..40).prop_map(Corruption::Delete),
        (1usize..200).prop_map(Corruption::Repeat),
        Just(Corruption::Truncate),
    ]
}

fn damaged(good: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let places = prop::collection::vec((any::<prop::sample::Index>(), corruption()), 0..4);
    (prop::sample::select(good), places).prop_map(|(good, damages)| {
        let mut bytes = good.as_bytes().to_vec();
        for (place, damage) in damages {
            let at = place.index(bytes.len() + 1);
            let end = |length: usize| (at + length).min(bytes.len());
            match damage {
                Corruption::Replace(byte) if at < bytes.len() => bytes[at] = byte,
                Corruption::Replace(byte) => bytes.push(byte),
                Corruption::Insert(insert) => drop(bytes.splice(at..at, insert)),
                Corruption::Delete(length) => drop(bytes.drain(at..end(length))),
                Corruption::Repeat(length) => {
                    let piece = bytes[at..end(length)].to_vec();
                    bytes.splice(at..at, piece);
                }
                Corruption::Truncate => bytes.truncate(at),
            }
        }
        bytes
    })
}

fn feed(parser: fn(&[u8]) -> bool, good: &'static [&'static str]) {
    let noise = prop::collection::vec(any::<u8>(), 0..200);
    let text = "\\PC{0,60}".prop_map(String::into_bytes);
    let input = prop_oneof![1 => noise, 1 => text, 4 => damaged(good)];
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let fed = runner.run(&input, |bytes| {
        parser(&bytes);
        Ok::<(), TestCaseError>(())
    });
    if let Err(failure) = fed {
        panic!("{failure}");
    }
}

#[test]
fn queries() {
    feed(
        fuzz::query,
        &["comp=list&restype=container&maxresults=10&include=metadata,copy&prefix=a%20b%C3%A9+&x"],
    );
}

#[test]
fn service_properties() {
    feed(fuzz::xml_service_properties, &[PROPERTIES, FILE_PROPERTIES]);
}

#[test]
fn signed_identifiers() {
    feed(fuzz::signed_identifiers, &[IDENTIFIERS]);
}

#[test]
fn dates() {
    feed(
        fuzz::dates,
        &[
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "2021-04-20",
            "2021-04-20T15:54:52.9740791Z",
            "9999-12-31T23:59:59.9999999+00:01",
        ],
    );
}

#[test]
fn addresses() {
    feed(
        fuzz::address,
        &[
            "127.0.0.1:10000\n/devstoreaccount1/c/a//b%20c\nrestype=container",
            "acct-secondary.blob.example.com\n/name\n",
            "[::1]:10002\n/devstoreaccount1/t(PartitionKey='p%2F',RowKey='r''s')\n",
        ],
    );
}

#[test]
fn ranges() {
    feed(
        fuzz::range,
        &["bytes=0-", "bytes=512-1023", "bytes=0-9223372036854775807", "bytes=-5", "bytes=0-1,2-3"],
    );
}

#[test]
fn headers() {
    feed(
        fuzz::metadata,
        &[
            "x-ms-meta-a:1\nX-Ms-Meta-b_2:two\nif-match:\"0x1\",\"0x2\"\nif-modified-since:Sun, 06 Nov 1994 08:49:37 GMT",
            "x-ms-meta-a:1\nx-ms-meta-A:2\ncontent-md5:1B2M2Y8AsgTpgAmY7PhCfg==\nx-ms-source-if-none-match:*",
        ],
    );
}

#[test]
fn versions() {
    feed(fuzz::version, &["2009-09-19", "2021-12-02", "2026-04-06"]);
}
