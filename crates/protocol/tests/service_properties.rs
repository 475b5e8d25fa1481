//! Get and Set Service Properties as documents.

use lazuli_protocol::properties::{ServiceProperties, Update};
use lazuli_protocol::{ErrorCode, ServiceKind, Version};

use ServiceKind::{Blob, File, Queue, Table};

const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>";
const OFF: &str = "<RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>";
const WEEK: &str = "<RetentionPolicy><Enabled>true</Enabled><Days>7</Days></RetentionPolicy>";

fn document(roots: &str) -> String {
    format!("{DECLARATION}<StorageServiceProperties>{roots}</StorageServiceProperties>")
}

fn logging(retention: &str) -> String {
    format!(
        "<Logging><Version>2.0</Version><Delete>true</Delete><Read>false</Read><Write>true</Write>{retention}</Logging>"
    )
}

fn metrics(root: &str, children: &str) -> String {
    format!("<{root}><Version>1.0</Version>{children}</{root}>")
}

fn rule(methods: &str, origins: &str, headers: &str, exposed: &str) -> String {
    format!(
        "<CorsRule><AllowedMethods>{methods}</AllowedMethods><AllowedOrigins>{origins}</AllowedOrigins>\
         <AllowedHeaders>{headers}</AllowedHeaders><ExposedHeaders>{exposed}</ExposedHeaders>\
         <MaxAgeInSeconds>200</MaxAgeInSeconds></CorsRule>"
    )
}

fn set(service: ServiceKind, roots: &str) -> Result<ServiceProperties, ErrorCode> {
    let mut properties = ServiceProperties::default();
    let update = Update::parse(service, document(roots).as_bytes()).map_err(|refusal| refusal.code())?;
    properties.apply(update);
    Ok(properties)
}

#[test]
fn a_new_account_has_everything_disabled() {
    let common = metrics("HourMetrics", &format!("<Enabled>false</Enabled>{OFF}"))
        + &metrics("MinuteMetrics", &format!("<Enabled>false</Enabled>{OFF}"))
        + "<Cors></Cors>";
    let logging = format!(
        "<Logging><Version>1.0</Version><Delete>false</Delete><Read>false</Read><Write>false</Write>{OFF}</Logging>"
    );
    let blob = "<DeleteRetentionPolicy><Enabled>false</Enabled><AllowPermanentDelete>false</AllowPermanentDelete>\
                </DeleteRetentionPolicy><StaticWebsite><Enabled>false</Enabled></StaticWebsite>";
    let file = "<ShareDeleteRetentionPolicy><Enabled>false</Enabled></ShareDeleteRetentionPolicy><ProtocolSettings>\
                <SMB><Multichannel><Enabled>false</Enabled></Multichannel></SMB></ProtocolSettings>";
    for (service, roots) in [
        (Blob, format!("{logging}{common}{blob}")),
        (Queue, format!("{logging}{common}")),
        (Table, format!("{logging}{common}")),
        (File, format!("{common}{file}")),
    ] {
        assert_eq!(ServiceProperties::default().to_xml(service, Version::NEWEST), document(&roots));
    }
}

#[test]
fn properties_are_returned_as_set() {
    let analytics = logging(WEEK)
        + &metrics("HourMetrics", &format!("<Enabled>true</Enabled><IncludeAPIs>true</IncludeAPIs>{WEEK}"))
        + &metrics("MinuteMetrics", &format!("<Enabled>true</Enabled><IncludeAPIs>false</IncludeAPIs>{OFF}"));
    let cors = format!(
        "<Cors>{}{}</Cors>",
        rule("GET,PUT", "http://a.com,https://*.b.com", "x-ms-meta-*,x-a", ""),
        rule("DELETE", "*", "", "*")
    );
    let blob = "<DefaultServiceVersion>2021-12-02</DefaultServiceVersion><DeleteRetentionPolicy><Enabled>true</Enabled>\
        <Days>365</Days><AllowPermanentDelete>true</AllowPermanentDelete></DeleteRetentionPolicy><StaticWebsite>\
        <Enabled>true</Enabled><IndexDocument>index.html</IndexDocument><ErrorDocument404Path>e/404.html\
        </ErrorDocument404Path></StaticWebsite>";
    let file = "<ShareDeleteRetentionPolicy><Enabled>true</Enabled><Days>1</Days></ShareDeleteRetentionPolicy>\
        <ProtocolSettings><SMB><Multichannel><Enabled>true</Enabled></Multichannel><EncryptionInTransit>\
        <Required>true</Required></EncryptionInTransit></SMB></ProtocolSettings>";
    let metrics_only = &analytics[logging(WEEK).len()..];
    for (service, roots) in [
        (Blob, format!("{analytics}{cors}{blob}")),
        (Queue, format!("{analytics}{cors}")),
        (Table, format!("{analytics}{cors}")),
        (File, format!("{metrics_only}{cors}{file}")),
    ] {
        let properties = set(service, &roots).unwrap();
        assert_eq!(properties.to_xml(service, Version::NEWEST), document(&roots));
        let stored = serde_json::to_string(&properties).unwrap();
        assert_eq!(serde_json::from_str::<ServiceProperties>(&stored).unwrap(), properties);
    }
}

#[test]
fn properties_without_newer_fields_still_load() {
    assert_eq!(serde_json::from_str::<ServiceProperties>("{}").unwrap(), ServiceProperties::default());
}

#[test]
fn missing_elements_are_kept_and_an_empty_cors_element_clears() {
    let cors = format!("<Cors>{}</Cors>", rule("GET", "*", "*", "*"));
    let mut properties = set(Blob, &(logging(WEEK) + &cors)).unwrap();
    let mut apply = |roots: &str| {
        properties.apply(Update::parse(Blob, document(roots).as_bytes()).unwrap());
        (properties.logging.retention_days, properties.cors.len())
    };
    assert_eq!(apply(""), (Some(7), 1));
    assert_eq!(apply(&logging(OFF)), (None, 1));
    assert_eq!(apply("<Cors />"), (None, 0));
}

#[test]
fn each_service_has_its_own_elements() {
    let blob_only = ["<DefaultServiceVersion>2021-12-02</DefaultServiceVersion>", "<StaticWebsite/>"];
    for (service, root) in [
        (File, logging(OFF).as_str()),
        (Queue, blob_only[0]),
        (Table, blob_only[1]),
        (File, blob_only[1]),
        (Queue, "<DeleteRetentionPolicy/>"),
        (Blob, "<ShareDeleteRetentionPolicy/>"),
        (Blob, "<ProtocolSettings/>"),
        (Blob, "<Color/>"),
    ] {
        assert_eq!(set(service, root), Err(ErrorCode::UnsupportedXmlNode), "{service:?} {root}");
    }
}

#[test]
fn elements_must_be_complete_and_within_limits() {
    let retention = |inner: &str| format!("<DeleteRetentionPolicy>{inner}</DeleteRetentionPolicy>");
    for roots in [
        retention("<Enabled>true</Enabled>"),
        retention("<Enabled>true</Enabled><Days>0</Days>"),
        retention("<Enabled>true</Enabled><Days>366</Days>"),
        retention("<Enabled>maybe</Enabled>"),
        retention("<Days>1</Days>"),
        logging(""),
        logging(OFF).replace("<Read>false</Read>", ""),
        logging(OFF).replace("2.0", "two"),
        metrics("HourMetrics", OFF),
        metrics("HourMetrics", &format!("<Enabled>true</Enabled>{OFF}")),
        metrics("HourMetrics", "<Enabled>false</Enabled>"),
        "<StaticWebsite><IndexDocument>i</IndexDocument></StaticWebsite>".to_owned(),
    ] {
        assert_eq!(set(Blob, &roots).err(), Some(ErrorCode::InvalidXmlDocument), "{roots}");
    }
    let bad_version = "<DefaultServiceVersion>soon</DefaultServiceVersion>";
    assert_eq!(set(Blob, bad_version), Err(ErrorCode::InvalidXmlNodeValue));
    assert_eq!(set(Blob, &retention("<Enabled>false</Enabled>")).unwrap().delete_retention.days, None);
}

#[test]
fn cors_rules_are_limited() {
    let list = |count: usize, word: &str| vec![word; count].join(",");
    let long = |length: usize| "o".repeat(length);
    let one = |rule: String| format!("<Cors>{rule}</Cors>");
    for (roots, fine) in [
        (one(rule("GET", "*", "*", "*").repeat(5)), true),
        (one(rule("GET", "*", "*", "*").repeat(6)), false),
        (one(rule("GET", &list(64, "a"), "", "")), true),
        (one(rule("GET", &list(65, "a"), "", "")), false),
        (one(rule("GET", "*", &(list(64, "h") + ",x*,y*"), "")), true),
        (one(rule("GET", "*", &list(65, "h"), "")), false),
        (one(rule("GET", "*", "x*,y*,z*", "")), false),
        (one(rule("GET", "*", "", "x*,y*,z*")), false),
        (one(rule("GET", &long(256), "", "")), true),
        (one(rule("GET", &long(257), "", "")), false),
        // 2 KiB in total: 8 origins of 255 bytes, 3 for GET, and the headers.
        (one(rule("GET", &list(8, &long(255)), "", "12345")), true),
        (one(rule("GET", &list(8, &long(255)), "", "123456")), false),
        (one(rule("", "*", "", "")), false),
        (one(rule("GET", "", "", "")), false),
        (one(rule("BREW", "*", "", "")), false),
        (one(rule("GET", "*", "", "").replace("200", "-1")), false),
        (one(rule("GET", "*", "", "").replace("<ExposedHeaders></ExposedHeaders>", "")), false),
    ] {
        let expected = if fine { None } else { Some(ErrorCode::InvalidXmlDocument) };
        assert_eq!(set(Queue, &roots).err(), expected, "{roots}");
    }
}

#[test]
fn older_versions_get_their_own_document() {
    let xml = |version: (u16, u8, u8)| {
        ServiceProperties::default().to_xml(Blob, Version::new(version.0, version.1, version.2))
    };
    let roots = ["<Metrics>", "<HourMetrics>", "<Cors>", "<DeleteRetentionPolicy>", "<StaticWebsite>"];
    for (version, expected) in [
        ((2012, 2, 12), [true, false, false, false, false]),
        ((2013, 8, 15), [false, true, true, false, false]),
        ((2017, 7, 29), [false, true, true, true, false]),
        ((2018, 3, 28), [false, true, true, true, true]),
    ] {
        assert_eq!(roots.map(|root| xml(version).contains(root)), expected, "{version:?}");
    }
    let old = metrics("Metrics", &format!("<Enabled>true</Enabled><IncludeAPIs>true</IncludeAPIs>{OFF}"));
    assert!(set(Blob, &old).unwrap().hour_metrics.enabled);
}
