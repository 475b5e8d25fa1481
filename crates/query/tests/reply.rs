//! The body of a reply, decoded like a client.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use lazuli_query::{Format, Query, QueryReply, ReplyStep};
use time::macros::datetime;

const SYNC: [u8; 16] = *b"0123456789abcdef";

/// A record of a reply.
#[derive(Debug, PartialEq)]
enum Record {
    Data(Vec<u8>),
    Error(bool, String, i64),
    Progress(i64, i64),
    End(i64),
}

/// Decodes a container: a header, then blocks that end with the sync marker.
fn decode(mut body: &[u8]) -> Vec<Record> {
    assert!(body.starts_with(b"Obj\x01"));
    body = &body[4..];
    for _ in 0..long(&mut body) {
        bytes(&mut body);
        bytes(&mut body);
    }
    assert_eq!(long(&mut body), 0);
    let mut records = vec![];
    loop {
        assert!(body.starts_with(&SYNC));
        body = &body[SYNC.len()..];
        if body.is_empty() {
            return records;
        }
        assert_eq!(long(&mut body), 1);
        let length = long(&mut body) as usize;
        let (mut record, rest) = body.split_at(length);
        body = rest;
        records.push(match long(&mut record) {
            0 => Record::Data(bytes(&mut record)),
            1 => {
                let fatal = record[0] == 1;
                record = &record[1..];
                let name = String::from_utf8(bytes(&mut record)).unwrap();
                bytes(&mut record);
                Record::Error(fatal, name, long(&mut record))
            }
            2 => Record::Progress(long(&mut record), long(&mut record)),
            3 => Record::End(long(&mut record)),
            kind => panic!("{kind}"),
        });
        assert!(record.is_empty());
    }
}

fn long(body: &mut &[u8]) -> i64 {
    let (mut value, mut shift) = (0_u64, 0);
    loop {
        let byte = body[0];
        *body = &body[1..];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return (value >> 1) as i64 ^ -((value & 1) as i64);
        }
    }
}

fn bytes(body: &mut &[u8]) -> Vec<u8> {
    let length = long(body) as usize;
    let (bytes, rest) = body.split_at(length);
    *body = rest;
    bytes.to_vec()
}

/// Returns the reply to a statement, and the size of its largest part.
fn reply(statement: &str, input: Format, blob: &[u8], piece: usize) -> (Vec<Record>, usize) {
    let query = Query::parse(statement, &input).unwrap();
    let now = datetime!(2026-01-02 03:04:05 UTC);
    let mut reply = QueryReply::new(query, (input, Format::default()), blob.len() as u64, now, SYNC);
    let mut pieces = blob.chunks(piece);
    let (mut body, mut largest) = (vec![], 0);
    loop {
        match reply.step() {
            ReplyStep::Send(bytes) => {
                largest = largest.max(bytes.len());
                body.extend_from_slice(&bytes);
            }
            ReplyStep::Pause => {}
            ReplyStep::Feed => match pieces.next() {
                Some(piece) => reply.feed(Bytes::copy_from_slice(piece)),
                None => reply.finish(),
            },
            ReplyStep::Done => return (decode(&body), largest),
        }
    }
}

fn data(text: &str) -> Record {
    Record::Data(text.as_bytes().to_vec())
}

fn json() -> Format {
    Format::Json { record_separator: "\n".into() }
}

#[test]
fn small_blob_returns_data_progress_and_end() {
    let (records, _) = reply("SELECT _1 FROM BlobStorage", Format::default(), b"1,2\n3,4\n", 3);
    assert_eq!(records, [data("1\n3\n"), Record::Progress(8, 8), Record::End(8)]);
    let (records, _) = reply("SELECT _1 FROM BlobStorage", Format::default(), b"", 3);
    assert_eq!(records, [data(""), Record::Progress(0, 0), Record::End(0)]);
}

#[test]
fn errors_follow_data_even_if_there_is_none() {
    let error = |fatal, name: &str, at| Record::Error(fatal, name.into(), at);
    let (records, _) = reply("SELECT _2 FROM BlobStorage", Format::default(), b"1\n3,4\n", 99);
    assert_eq!(
        records,
        [data("4\n"), error(false, "InvalidColumnOrdinal", 0), Record::Progress(6, 6), Record::End(6)]
    );
    let (records, _) = reply("SELECT * FROM BlobStorage", json(), b"{name: owner}\n{}", 99);
    assert_eq!(records, [data(""), error(true, "ParseError", 0), Record::Progress(16, 16), Record::End(16)]);
}

#[test]
fn progress_is_reported_every_four_mebibytes_and_once_at_the_end() {
    const MIB: usize = 1 << 20;
    for (length, expected) in [
        (16 * MIB, vec![4 * MIB, 8 * MIB, 12 * MIB, 16 * MIB]),
        (5 * MIB, vec![4 * MIB, 5 * MIB]),
        (4 * MIB, vec![4 * MIB]),
    ] {
        let blob = b"100,200,300,400\n".repeat(length / 16);
        let (records, largest) = reply("SELECT * FROM BlobStorage", Format::default(), &blob, 3 * MIB + 7);
        let mut progress = vec![];
        let mut all = vec![];
        for record in &records {
            match record {
                Record::Progress(scanned, total) => {
                    assert_eq!(*total, length as i64);
                    progress.push(*scanned as usize);
                }
                Record::Data(data) => all.extend_from_slice(data),
                Record::End(total) => assert_eq!(*total, length as i64),
                Record::Error(..) => panic!("{record:?}"),
            }
        }
        assert_eq!(progress, expected);
        assert!(all == blob);
        assert!(largest < 2 * MIB, "{largest}");
        assert!(matches!(records.last(), Some(Record::End(_))));
    }
}

#[test]
fn limit_ends_the_scan() {
    let blob = b"100,200,300,400\n".repeat(1 << 20);
    let (records, _) = reply("SELECT _1 FROM BlobStorage LIMIT 1", Format::default(), &blob, 1000);
    assert_eq!(records, [data("100\n"), Record::Progress(1000, 1 << 24), Record::End(1 << 24)]);
}
