//! Valid inputs for the entry points of [`super`], from which the fuzzer starts.

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Seeds of [`super::batch`].
pub fn batch() -> Vec<Vec<u8>> {
    texts(&[
        "--b\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 0\r\n\r\n\
         DELETE /container/blob%20a HTTP/1.1\r\nx-ms-date: Thu, 14 Jun 2018 16:46:54 GMT\r\n\
         Authorization: SharedKey account:AA==\r\nContent-Length: 0\r\n\r\n\
         --b\r\nContent-Type: application/http\r\nContent-ID: 1\r\n\r\n\
         DELETE /container/b?snapshot=2021-04-20T15:54:52.9740791Z HTTP/1.1\r\nx-ms-delete-snapshots: only\r\n\r\n--b--\r\n",
        "--b\nContent-Type: application/http; msgtype=request\nContent-ID: x\n\n\
         PUT http://h:1/account/container/b?comp=tier HTTP/1.1\nx-ms-access-tier: Cool\n\n--b--",
        "multipart/mixed; boundary=batch_357de4f7-6d0b-4e02-8cd2-6361411a9525",
        "Multipart/Mixed; charset=utf-8; boundary=\"b\"",
    ])
}

/// Seeds of [`super::copy_source`].
pub fn copy_source() -> Vec<Vec<u8>> {
    texts(&[
        "http://127.0.0.1:10000/dev1/container/a%20b/%C3%A9?snapshot=2021-04-20T15:54:52.9740791Z",
        "https://account.blob.core.windows.net/container/b c?sv=2021-12-02&sr=b&sp=r&sig=AA%3D%3D&versionid=x",
        "http://acc.b/container%2Fname?token=x&X-Amz-Signature=y",
        "http://[::1]:10001/dev1/container/b?sharesnapshot=x&sig=y",
        "http://dev2.file.localhost:10000/share/dir/file?se=2023",
        "/dev1/container/blob?snapshot=2021-04-20T15:54:52.9740791Z",
    ])
}

/// Seeds of [`super::previous_snapshot_url`].
pub fn previous_snapshot_url() -> Vec<Vec<u8>> {
    texts(&[
        "http://h:1/account/box/a%20b/c?snapshot=2026-01-02T03:04:05.0000000Z",
        "https://account.blob.host/box\\a b%2Fc?sig=x&snapshot=2026-01-02T03:04:05.0000000Z",
    ])
}

/// Seeds of [`super::block_list`].
pub fn block_list() -> Vec<Vec<u8>> {
    texts(&[
        "\u{feff}<?xml version='1.0'?><BlockList> <Committed>AA==</Committed>\r\n<Latest> AAA= </Latest>\
         <Uncommitted>QUFBQUFB</Uncommitted></BlockList>",
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<BlockList><!-- c --><Latest>&#x41;A==</Latest>\
         <Latest><![CDATA[AAAA]]></Latest></BlockList>",
        "<BlockList />",
    ])
}

/// Seeds of [`super::tags`].
pub fn tags() -> Vec<Vec<u8>> {
    texts(&[
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><Tags><TagSet><Tag><Key>a b</Key><Value>1+-./:=_</Value></Tag>\
         <Tag><Key>c</Key><Value></Value></Tag></TagSet></Tags>",
        "<Tags><TagSet/></Tags>",
        "project=lazuli&state=in%20progress&a+b=c%2Bd&empty=",
    ])
}

/// Seeds of [`super::query_request`].
pub fn query_request() -> Vec<Vec<u8>> {
    texts(&[
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><QueryRequest><QueryType>SQL</QueryType>\
         <Expression>SELECT _2, name FROM BlobStorage WHERE price &lt; 10 AND _1 LIKE 'a%' LIMIT 3</Expression>\
         <InputSerialization><Format><Type>delimited</Type><DelimitedTextConfiguration><ColumnSeparator>\t</ColumnSeparator>\
         <FieldQuote>\"</FieldQuote><RecordSeparator>\r\n</RecordSeparator><EscapeChar>\\</EscapeChar>\
         <HasHeaders>true</HasHeaders></DelimitedTextConfiguration></Format></InputSerialization>\
         <OutputSerialization><Format><Type>json</Type><JsonTextConfiguration><RecordSeparator>;</RecordSeparator>\
         </JsonTextConfiguration></Format></OutputSerialization></QueryRequest>",
        "<QueryRequest><QueryType>sql</QueryType><Expression><![CDATA[SELECT COUNT(*) FROM BlobStorage[*].a[*]]]></Expression>\
         <InputSerialization><Format><Type>JSON</Type><JsonTextConfiguration><RecordSeparator/></JsonTextConfiguration>\
         <ArrowConfiguration/></Format></InputSerialization></QueryRequest>",
        "<QueryRequest><QueryType>SQL</QueryType><Expression>SELECT * FROM BlobStorage</Expression></QueryRequest>",
    ])
}

/// Seeds of [`super::tag_query`].
pub fn tag_query() -> Vec<Vec<u8>> {
    texts(&[
        "a = '1'",
        "\"a b\" >= '2020-01-01' AND \"a b\" < '2021' AND @container = 'con'",
        "(a='1' OR b<>'2') AND (c <= '3' or not_a_word > '')",
        "and = '1' and or='2'",
    ])
}

/// Seeds of [`super::marker`].
pub fn marker() -> Vec<Vec<u8>> {
    [
        &b"name\0\0key"[..],
        b"a/b c\0\x09s\0\0\0\0\0\0\0\x01s\0\0\0\0\0\0\0\x02",
        "\u{e9}\0deleted/\0\0\0\0\0\0\0\x07".as_bytes(),
    ]
    .map(<[u8]>::to_vec)
    .to_vec()
}
