//! Entry points for fuzzing: passes untrusted bytes to the parser and the readers. Nothing may panic.

use time::OffsetDateTime;

use crate::{Delimited, Format, Query, QueryScan, ScanStep};

/// Fuzzes a statement: the text before the first zero byte, run over the bytes after it.
pub fn statement(data: &[u8]) {
    let split = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let Ok(statement) = std::str::from_utf8(&data[..split]) else { return };
    let blob = data.get(split + 1..).unwrap_or_default();
    let json = Format::Json { record_separator: "\n".to_owned() };
    for input in [Format::default(), Format::Delimited(Delimited::default().with_headers(true)), json.clone()]
    {
        if let Ok(query) = Query::parse(statement, &input) {
            run(query, input, json.clone(), blob, 7);
        }
    }
}

/// Fuzzes the readers of all formats with the bytes of a blob. The first byte is the size of its parts.
pub fn blob(data: &[u8]) {
    let Some((piece, blob)) = data.split_first() else { return };
    let odd =
        Delimited::default().separated_by("::", "!").map(|odd| odd.quoted(Some('\'')).escaped(Some('\\')));
    let json = Format::Json { record_separator: "--".to_owned() };
    for input in [Format::default(), Format::Delimited(odd.unwrap_or_default()), json.clone()] {
        for output in [Format::default(), json.clone()] {
            if let Ok(query) = Query::parse("SELECT * FROM BlobStorage", &input) {
                run(query, input.clone(), output, blob, 1 + usize::from(*piece));
            }
        }
    }
}

fn run(query: Query, input: Format, output: Format, blob: &[u8], piece: usize) {
    let mut scan = QueryScan::new(query, input, output, OffsetDateTime::UNIX_EPOCH);
    let mut pieces = blob.chunks(piece);
    loop {
        match scan.step() {
            ScanStep::Done => return,
            ScanStep::Pause => {
                scan.take_output();
                scan.take_errors();
            }
            ScanStep::Hungry => match pieces.next() {
                Some(piece) => scan.feed(piece),
                None => scan.finish(),
            },
        }
    }
}
