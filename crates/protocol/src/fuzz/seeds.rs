//! Valid inputs for the targets of [`super`], from which the fuzzer starts.

use crate::structured::message;

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Seeds of [`super::proxies`].
pub fn proxies() -> Vec<Vec<u8>> {
    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    let mut seeds = texts(&[
        "PROXY TCP4 192.0.2.1 10.0.0.1 4711 80\r\nGET / HTTP/1.1\r\n",
        "PROXY TCP6 2001:db8::1 ::1 4711 80\r\n",
        "PROXY UNKNOWN\r\n",
        "192.0.2.1, 127.0.0.1\n[2001:db8::1]:80",
        "http, https",
    ]);
    // IPv4, IPv6, and the proxy's own check of the server's health.
    for rest in [&b"\x21\x11\0\x0c\xc0\0\x02\x01\x0a\0\0\x01\x12\x67\0\x50"[..], b"\x20\0\0\0"] {
        seeds.push([SIGNATURE, rest].concat());
    }
    seeds.push([SIGNATURE, b"\x21\x21\0\x24", &[1; 36]].concat());
    seeds
}

/// Seeds of [`super::query`].
pub fn query() -> Vec<Vec<u8>> {
    texts(&[
        "restype=container&comp=list&prefix=a%20b%C3%A9%2F&delimiter=/&maxresults=10&include=metadata,copy&marker=AQID",
        "comp=list&include=snapshots&include=versions,deleted&showonly=deleted&timeout=30",
        "comp=block&blockid=QUFBQQ%3D%3D&snapshot=2021-04-20T15:54:52.9740791Z&versionid=2021-04-20T15:54:52+00:00",
        "visibilitytimeout=0&popreceipt=AQI+/w==&messagettl=-1&numofmessages=32&peekonly=true",
        "$filter=PartitionKey+eq+'p'&$select=A,B&$top=5&NextPartitionKey=1!4!cGFy",
        "sv=2021-12-02&sr=b&sp=r&se=2023-11-15&sig=a%2Bb/c=&deletetype=permanent&undelete",
    ])
}

/// Seeds of [`super::xml_service_properties`].
pub fn xml_service_properties() -> Vec<Vec<u8>> {
    const POLICY: &str = "<RetentionPolicy><Enabled>true</Enabled><Days>7</Days></RetentionPolicy>";
    const METRICS: &str = "<Version>1.0</Version><Enabled>true</Enabled><IncludeAPIs>false</IncludeAPIs>";
    let roots = [
        format!(
            "<Logging><Version>2.0</Version><Delete>true</Delete><Read>false</Read><Write>true</Write>{POLICY}</Logging>"
        ),
        format!("<HourMetrics>{METRICS}{POLICY}</HourMetrics><MinuteMetrics>{METRICS}{POLICY}</MinuteMetrics>"),
        format!("<Metrics>{METRICS}{POLICY}</Metrics>"),
        "<Cors><CorsRule><AllowedMethods>GET,PUT</AllowedMethods><AllowedOrigins>http://a.com,https://*.b.com\
         </AllowedOrigins><AllowedHeaders>x-ms-meta-*,x-a</AllowedHeaders><ExposedHeaders/>\
         <MaxAgeInSeconds>200</MaxAgeInSeconds></CorsRule></Cors>"
            .to_owned(),
        "<Cors />".to_owned(),
        "<DefaultServiceVersion>2021-12-02</DefaultServiceVersion><DeleteRetentionPolicy><Enabled>true</Enabled>\
         <Days>365</Days><AllowPermanentDelete>true</AllowPermanentDelete></DeleteRetentionPolicy>"
            .to_owned(),
        "<StaticWebsite><Enabled>true</Enabled><IndexDocument>i &amp; &#x41;&#66;</IndexDocument>\
         <ErrorDocument404Path><![CDATA[e/404.html]]></ErrorDocument404Path>\
         <DefaultIndexDocumentPath>d</DefaultIndexDocumentPath></StaticWebsite><!-- a comment -->"
            .to_owned(),
        "<ShareDeleteRetentionPolicy><Enabled>true</Enabled><Days>1</Days></ShareDeleteRetentionPolicy>\
         <ProtocolSettings><SMB><Multichannel><Enabled>true</Enabled></Multichannel><EncryptionInTransit>\
         <Required>true</Required></EncryptionInTransit></SMB></ProtocolSettings>"
            .to_owned(),
    ];
    let declarations =
        ["<?xml version=\"1.0\" encoding=\"utf-8\"?>", "\u{feff}<?xml version='1.0'?>\r\n", ""];
    let documents = roots.iter().zip(declarations.into_iter().cycle()).map(|(roots, declaration)| {
        format!("{declaration}<StorageServiceProperties>{roots}</StorageServiceProperties>").into_bytes()
    });
    documents.collect()
}

/// Seeds of [`super::signed_identifiers`].
pub fn signed_identifiers() -> Vec<Vec<u8>> {
    texts(&[
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><SignedIdentifiers><SignedIdentifier><Id>MTIz</Id><AccessPolicy>\
         <Start>2021-04-20T15:54:52.9740791Z</Start><Expiry>2022-01-01</Expiry><Permission>rwd</Permission>\
         </AccessPolicy></SignedIdentifier></SignedIdentifiers>",
        "\u{feff}<SignedIdentifiers>\n<SignedIdentifier><Id><![CDATA[<x>]]></Id></SignedIdentifier>\n\
         <SignedIdentifier><Id>b&amp;&#x63;</Id><AccessPolicy><Start/><Expiry></Expiry><Permission/></AccessPolicy>\
         </SignedIdentifier></SignedIdentifiers>",
    ])
}

/// Seeds of [`super::dates`].
pub fn dates() -> Vec<Vec<u8>> {
    texts(&[
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "2021-04-20",
        "2021-04-20T15:54Z",
        "2021-04-20T15:54:52Z",
        "2021-04-20T15:54:52.9740791Z",
        "2021-04-20T15:54:52.974-08:30",
    ])
}

/// Seeds of [`super::address`].
pub fn address() -> Vec<Vec<u8>> {
    texts(&[
        "127.0.0.1:10000\n/devstoreaccount1/container/a//b%20c/%C3%A9\n",
        "localhost\n/devstoreaccount1-secondary/container\nrestype=container&comp=list",
        "acct-secondary.blob.example.com\n/name\n",
        "acct.blob.core.windows.net:443\n//container/a\\b\nsnapshot=2021-04-20T15:54:52.9740791Z",
        "acct.example.com\n/$root/name\n",
        "acct.web.localhost\n/a/index.html\n",
        "acct.z1.web.core.windows.net\n/$web/b\n",
        "[::1]:10002\n/devstoreaccount1/table(PartitionKey='p%2F',RowKey='r''s')\n",
        "acct.table.core.windows.net\n/Tables('mytable')\n",
        "127.0.0.1:10001\n/devstoreaccount1/queue/messages/d63bddb4-1b1a-4f07-9c02-3e3d0f0e0a01\npopreceipt=AQ==",
        "acct.file.core.windows.net\n/share/dir%2Ffile\nrestype=directory",
    ])
}

/// Seeds of [`super::range`].
pub fn range() -> Vec<Vec<u8>> {
    texts(&["bytes=0-", "bytes=512-1023", "bytes=0-9223372036854775807", " bytes=7-7 "])
}

/// Seeds of [`super::metadata`].
pub fn metadata() -> Vec<Vec<u8>> {
    texts(&[
        "x-ms-meta-a:1\nX-Ms-Meta-b_2: two \nif-match:\"0x8D1\",W/\"0x2\"\nif-modified-since:Sun, 06 Nov 1994 08:49:37 GMT",
        "x-ms-meta-zeta:a\nlazuli-metadata-spelling:Zeta,Other\ncontent-md5:1B2M2Y8AsgTpgAmY7PhCfg==\n\
         x-ms-content-crc64:AAAAAAAAAAA=\nx-ms-source-if-none-match:*\nif-none-match:*",
        "x-ms-meta-_x:\nx-ms-lease-id:d63bddb4-1b1a-4f07-9c02-3e3d0f0e0a01\nx-ms-blob-content-length:1024\n\
         x-ms-delete-snapshots:include\nx-ms-blob-if-match:\"0x1\"\nif-unmodified-since:Sunday, 06-Nov-94 08:49:37 GMT",
    ])
}

/// Seeds of [`super::version`].
pub fn version() -> Vec<Vec<u8>> {
    texts(&["2009-09-19", "2021-12-02", "2026-10-06", "9999-12-31"])
}

/// Seeds of [`super::structured`].
pub fn structured() -> Vec<Vec<u8>> {
    let seed = |(content, segment, piece): (&str, u64, u8)| {
        // The target writes the version and the length itself.
        let message = message(content.as_bytes(), segment);
        [&[content.len() as u8, piece], &message[9..]].concat()
    };
    let long = "lazuli".repeat(30);
    [("", 4, 1), ("123456789", 9, 100), ("123456789", 4, 3), (&*long, 64, 13)].map(seed).to_vec()
}
