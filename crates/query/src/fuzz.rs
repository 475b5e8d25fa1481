//! Entry points for fuzzing: passes untrusted bytes to the parser and the readers. Nothing may panic. Each
//! returns whether the bytes are valid, and [`seeds`] has valid bytes for each.

pub mod seeds;

use bytes::Bytes;
use time::OffsetDateTime;

use crate::{Delimited, Format, Query, QueryReply, QueryScan, ReplyStep, ScanStep};

const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

/// Fuzzes a statement: the text before the first zero byte, run over the bytes after it. The bytes are valid
/// if the statement finds no error in them, in one of the formats.
pub fn statement(data: &[u8]) -> bool {
    let split = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let Ok(statement) = std::str::from_utf8(&data[..split]) else { return false };
    let blob = data.get(split + 1..).unwrap_or_default();
    let json = Format::Json { record_separator: "\n".to_owned() };
    let mut is_valid = false;
    for input in [Format::default(), Format::Delimited(Delimited::default().with_headers(true)), json.clone()]
    {
        if let Ok(query) = Query::parse(statement, &input) {
            is_valid |= run(query, (input, json.clone()), blob, 7);
        }
    }
    is_valid
}

/// Fuzzes the readers of all formats with the bytes of a blob. The first byte is the size of its parts. The
/// bytes are valid if they have no error in one of the formats.
pub fn blob(data: &[u8]) -> bool {
    let Some((piece, blob)) = data.split_first() else { return false };
    let piece = 1 + usize::from(*piece);
    let odd =
        Delimited::default().separated_by("::", "!").map(|odd| odd.quoted(Some('\'')).escaped(Some('\\')));
    let json = Format::Json { record_separator: "--".to_owned() };
    let mut is_valid = false;
    for input in [Format::default(), Format::Delimited(odd.unwrap_or_default()), json.clone()] {
        for output in [Format::default(), json.clone()] {
            if let Ok(query) = Query::parse("SELECT * FROM BlobStorage", &input) {
                is_valid |= run(query, (input.clone(), output), blob, piece);
            }
        }
        if let Ok(query) = Query::parse("SELECT * FROM BlobStorage", &input) {
            reply(query, (input, json.clone()), blob, piece);
        }
    }
    is_valid && !blob.is_empty()
}

/// Runs a query over a blob in pieces. Returns whether it finds no error.
fn run(query: Query, (input, output): (Format, Format), blob: &[u8], piece: usize) -> bool {
    let mut scan = QueryScan::new(query, input, output, NOW);
    let mut pieces = blob.chunks(piece);
    let mut is_valid = true;
    loop {
        let step = scan.step();
        scan.take_output();
        is_valid &= scan.take_errors().is_empty();
        match step {
            ScanStep::Done => return is_valid,
            ScanStep::Pause => {}
            ScanStep::Hungry => match pieces.next() {
                Some(piece) => scan.feed(piece),
                None => scan.finish(),
            },
        }
    }
}

/// Encodes the reply to a query of a blob that arrives in pieces.
fn reply(query: Query, formats: (Format, Format), blob: &[u8], piece: usize) {
    let mut reply = QueryReply::new(query, formats, blob.len() as u64, NOW, [7; 16]);
    let mut pieces = blob.chunks(piece);
    loop {
        match reply.step() {
            ReplyStep::Done => return,
            ReplyStep::Send(_) | ReplyStep::Pause => {}
            ReplyStep::Feed => match pieces.next() {
                Some(piece) => reply.feed(Bytes::copy_from_slice(piece)),
                None => reply.finish(),
            },
        }
    }
}
