//! Runs a statement over a blob that arrives in parts.
#![allow(dead_code)]

use lazuli_query::{Delimited, Format, Query, QueryError, QueryScan, ScanStep, StatementError};
use time::macros::datetime;

/// The results and errors of a statement.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) data: String,
    pub(crate) errors: Vec<QueryError>,
}

pub(crate) fn csv() -> Format {
    Format::default()
}

pub(crate) fn with_headers() -> Format {
    Format::Delimited(Delimited::default().with_headers(true))
}

pub(crate) fn json(separator: &str) -> Format {
    Format::Json { record_separator: separator.into() }
}

pub(crate) fn run(
    statement: &str,
    input: &Format,
    output: &Format,
    blob: &[u8],
    piece: usize,
) -> Result<Outcome, StatementError> {
    let query = Query::parse(statement, input)?;
    let mut scan = QueryScan::new(query, input.clone(), output.clone(), datetime!(2026-01-02 03:04:05 UTC));
    let mut pieces = blob.chunks(piece);
    let (mut data, mut errors) = (vec![], vec![]);
    loop {
        let step = scan.step();
        data.extend(scan.take_output());
        errors.extend(scan.take_errors());
        match step {
            ScanStep::Done => break,
            ScanStep::Pause => {}
            ScanStep::Hungry => match pieces.next() {
                Some(piece) => scan.feed(piece),
                None => scan.finish(),
            },
        }
    }
    Ok(Outcome { data: String::from_utf8(data).expect("UTF-8"), errors })
}
