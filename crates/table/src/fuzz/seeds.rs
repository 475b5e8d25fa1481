//! Valid inputs for the entry points of [`super`], from which the fuzzer starts.

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Seeds of [`super::entity`].
pub fn entity() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"PartitionKey":"p","RowKey":"r","Timestamp":"2021-04-20T15:54:52.9740791Z","odata.etag":"W/\"x\"",
            "I":-7,"L":"9007199254740993","L@odata.type":"Edm.Int64","D":1.5e3,"B":true,"N":null,"S":"\u00e4\ud83d\ude00"}"#,
        r#"{"T@odata.type":"Edm.DateTime","T":"2021-04-20T15:54:52.9740791Z","G@odata.type":"Edm.Guid",
            "G":"c9da6455-213d-42c9-9a79-3e9149a57833","X":"AP8=","X@odata.type":"Edm.Binary"}"#,
        r#"{"D@odata.type":"Edm.Double","D":"NaN","E@odata.type":"Edm.Double","E":"-Infinity","F@odata.type":"Edm.Double","F":"5",
            "S@odata.type":"Edm.String","S":"","B@odata.type":"Edm.Boolean","B":false,"I@odata.type":"Edm.Int32","I":2147483647}"#,
        r#"{"TableName":"mytable"}"#,
    ])
}

/// Seeds of [`super::address`].
pub fn address() -> Vec<Vec<u8>> {
    texts(&[
        "(PartitionKey='it''s',RowKey='r')",
        "( RowKey = '' , PartitionKey = 'p' )",
        "('Table')",
        "(TableName='t')",
    ])
}

/// Seeds of [`super::filter`].
pub fn filter() -> Vec<Vec<u8>> {
    texts(&[
        "not (PartitionKey eq 'p' and RowKey ge 'r') or P gt 5 and true",
        "PartitionKey ge 'a' and PartitionKey lt 'b' and (RowKey eq 'x' or RowKey eq 'it''s')",
        "D lt -1.5e3 or L eq 5L or G eq guid'c9da6455-213d-42c9-9a79-3e9149a57833'",
        "T ge datetime'2020-02-03T04:05:06.1234567Z' and (Y ne X'00ff' or 'it''s' le S) and Timestamp lt datetime'2030-01-01'",
        "P eq 9223372036854775808 or P le 5d or P eq NaN or P ne -INF or not false or B or Z eq binary'0a'",
    ])
}

/// Seeds of [`super::query`].
pub fn query() -> Vec<Vec<u8>> {
    texts(&[
        "$select=A,B,*&$top=7&NextPartitionKey=1!4!cGFy&NextRowKey=1!0!&NextTableName=1!4!cGFy",
        "$filter=PartitionKey%20eq%20'p'%20and%20P%20gt%205&$select=PartitionKey,%20RowKey&$format=application/json;odata=nometadata",
    ])
}

/// Seeds of [`super::batch`].
pub fn batch() -> Vec<Vec<u8>> {
    texts(&[
        "--b\r\nContent-Type: multipart/mixed; boundary=changeset_1\r\n\r\n--changeset_1\r\nContent-Type: application/http\r\n\
         Content-Transfer-Encoding: binary\r\n\r\nPOST http://h/t HTTP/1.1\r\nPrefer: return-content\r\n\
         Content-Type: application/json\r\nAccept: application/json;odata=minimalmetadata\r\nContent-ID: 1\r\n\r\n\
         {\"PartitionKey\":\"p\",\"RowKey\":\"r\",\"A@odata.type\":\"Edm.Int64\",\"A\":\"5\"}\r\n\
         --changeset_1\r\nContent-Type: application/http\r\n\r\nMERGE /t(PartitionKey='p',RowKey='s') HTTP/1.1\r\n\
         If-Match: W/\"datetime'2021-04-20T15%3A54%3A52.9740791Z'\"\r\n\r\n{\"B\":true}\r\n\
         --changeset_1\r\nContent-Type: application/http\r\nContent-ID: 3\r\n\r\n\
         DELETE /t(PartitionKey='p',RowKey='q') HTTP/1.1\r\nIf-Match: *\r\n\r\n\r\n--changeset_1--\r\n--b--\r\n",
        "--b\nContent-Type: application/http\n\nGET t()?$top=1&$select=A HTTP/1.1\nAccept: application/json\n\n--b--",
        "multipart/mixed; boundary=\"c d\"\n--c d\nContent-Type: multipart/mixed; boundary=c\n\n--c\n\
         Content-Type: application/http\n\nPUT https://a.table.host/t(PartitionKey='p',RowKey='') HTTP/1.1\n\n{}\n--c--\n--c d--\n",
    ])
}
