//! Runs a statement over a blob that comes in pieces.
//!
//! A [`Scan`] holds the record that is not complete yet, the results that were not fetched yet, and nothing else that
//! grows with the blob. It does a bounded amount of work at a time, so whoever drives it can do other things in between.

use time::OffsetDateTime;

use crate::Format;
use crate::delimited::{DelimitedReader, Fields};
use crate::evaluate::Fuel;
use crate::lines::{Found, ValueReader};
use crate::report::{Failure, QueryError, parse_error, record_too_large, unknown_column};
use crate::row::{Row, for_each_row};
use crate::sink::Sink;
use crate::statement::Query;
use crate::syntax::TableStep;
use crate::tree::Tree;
use crate::write::Writer;

/// The longest record.
pub const MAX_RECORD: usize = 1 << 20;
/// What may be done for one record, results included.
const WORK_PER_RECORD: usize = 8 << 20;
/// What is done before others get their turn.
const WORK_PER_STEP: usize = 1 << 20;
/// Results and errors that are kept until they are fetched, but for those of one record.
const OUTPUT_PER_STEP: usize = 1 << 20;
const ERRORS_PER_STEP: usize = 1024;
/// What a record with an error costs at least.
const ERROR_COST: usize = 64;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More of the blob, or its end.
    Hungry,
    /// Another step, once results are fetched and others had their turn.
    Pause,
    /// Nothing. What was found is all.
    Done,
}

/// A statement on its way through a blob.
pub struct Scan {
    reader: Reader,
    sink: Sink,
    /// Which parts of a record are rows.
    table: Vec<TableStep>,
    /// The names of columns, once they were read.
    header: Option<Vec<String>>,
    /// What was fed and is not done with begins there.
    pending: Vec<u8>,
    start: usize,
    /// Where in the blob that is.
    position: u64,
    /// Where the last record began.
    record: u64,
    has_begun: bool,
    is_last: bool,
    is_over: bool,
    errors: Vec<QueryError>,
}

enum Reader {
    Delimited(Box<DelimitedReader>),
    Json(ValueReader),
}

impl Scan {
    /// A statement that was read for that input, before the first byte of it.
    pub fn new(query: Query, input: Format, output: Format, now: OffsetDateTime) -> Self {
        let reader = match input {
            Format::Delimited(dialect) => Reader::Delimited(Box::new(DelimitedReader::new(dialect))),
            Format::Json { record_separator } => Reader::Json(ValueReader::new(&record_separator)),
        };
        let table = query.select.table.clone();
        Self {
            reader,
            table,
            sink: Sink::new(query, Writer::new(output), now),
            header: None,
            pending: vec![],
            start: 0,
            position: 0,
            record: 0,
            has_begun: false,
            is_last: false,
            is_over: false,
            errors: vec![],
        }
    }

    /// The next bytes of the blob. To be called when a step is hungry.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.drain(..std::mem::take(&mut self.start));
        self.pending.extend_from_slice(bytes);
    }

    /// That was all of the blob.
    pub fn finish(&mut self) {
        self.is_last = true;
    }

    /// Whether results or errors have to be fetched before anything else is done.
    pub fn is_loaded(&self) -> bool {
        self.sink.output.len() >= OUTPUT_PER_STEP || self.errors.len() >= ERRORS_PER_STEP
    }

    /// Fetches results. What is written later comes behind them.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sink.output)
    }

    /// Fetches errors.
    pub fn take_errors(&mut self) -> Vec<QueryError> {
        std::mem::take(&mut self.errors)
    }

    /// Looks at records until there are no more, or a bounded amount of work is done.
    pub fn step(&mut self) -> Step {
        let mut work = WORK_PER_STEP;
        while !self.is_over {
            if self.sink.is_full() {
                self.end();
                break;
            }
            if work == 0 || self.is_loaded() {
                return Step::Pause;
            }
            match self.next_record() {
                Ok(Some(cost)) => work = work.saturating_sub(cost),
                Ok(None) if self.is_last => self.end(),
                Ok(None) => return Step::Hungry,
                Err(fatal) => {
                    self.errors.push(fatal);
                    self.is_over = true;
                }
            }
        }
        Step::Done
    }

    fn end(&mut self) {
        self.sink.end(self.header.as_deref());
        self.is_over = true;
    }

    /// Looks at the next record and tells what that took; `None` if there is no whole one.
    fn next_record(&mut self) -> Result<Option<usize>, QueryError> {
        if !self.has_begun {
            let unread = &self.pending[self.start..];
            if !self.is_last && unread.len() < BYTE_ORDER_MARK.len() {
                return Ok(None);
            }
            let mark = if unread.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
            self.has_begun = true;
            self.pass(mark);
        }
        match &self.reader {
            Reader::Delimited(_) => self.next_delimited(),
            Reader::Json(_) => self.next_value(),
        }
    }

    fn pass(&mut self, bytes: usize) {
        self.start += bytes;
        self.position += bytes as u64;
    }

    fn next_delimited(&mut self) -> Result<Option<usize>, QueryError> {
        let Self {
            reader: Reader::Delimited(reader), sink, header, pending, start, position, errors, ..
        } = self
        else {
            return Ok(None);
        };
        let unread = &pending[*start..];
        let found = reader.next(unread, self.is_last);
        if found.unwrap_or(reader.looked_at()) > MAX_RECORD {
            return Err(record_too_large(*position));
        }
        let Some(length) = found else { return Ok(None) };
        let fuel = Fuel::new(WORK_PER_RECORD);
        if let Some(size) = sink.split() {
            sink.take_into_batch(length as u64, size);
        } else if !matches!(reader.spans(), [span] if span.is_blank()) {
            let record = std::str::from_utf8(&unread[..length]).map_err(|_| Failure::NotUtf8);
            let awaits_header = reader.dialect().has_headers && header.is_none();
            let fields = record.map(|record| Fields {
                record,
                spans: reader.spans(),
                dialect: reader.dialect(),
                header: header.as_deref(),
            });
            if awaits_header {
                let fields = fields.map_err(|_| parse_error(*position, "The header is not UTF-8."))?;
                let names: Vec<_> =
                    (0..fields.len()).map(|at| fields.get(at).unwrap_or_default().into_owned()).collect();
                sink.query.bind(&names).map_err(|name| unknown_column(&name, *position))?;
                *header = Some(names);
            } else {
                let taken = fields.and_then(|fields| sink.take(Row::Delimited(fields), &fuel));
                report(taken, *position, &fuel, errors)?;
            }
        }
        let cost = length + WORK_PER_RECORD - fuel.left();
        self.pass(length);
        Ok(Some(cost))
    }

    fn next_value(&mut self) -> Result<Option<usize>, QueryError> {
        let Self {
            reader: Reader::Json(reader), sink, table, pending, start, position, errors, record, ..
        } = self
        else {
            return Ok(None);
        };
        let unread = &pending[*start..];
        let (at, passed) = match reader.next(unread, self.is_last) {
            Found::More { passed } if reader.looked_at() <= MAX_RECORD => {
                self.pass(passed);
                return Ok(None);
            }
            Found::More { .. } => {
                return Err(record_too_large(*position + reader.begun_at().unwrap_or(0) as u64));
            }
            Found::Value { at, .. } if at.len() > MAX_RECORD => {
                return Err(record_too_large(*position + at.start as u64));
            }
            Found::Value { at, passed } => (at, passed),
            Found::Unexpected { at } => {
                let token = char::from(unread[at]);
                let byte = *position + at as u64;
                let description =
                    format!("Unexpected token '{token}' at [byte: {byte}]. Expecting tokens '{{', or '['. ");
                return Err(parse_error(*record, description));
            }
            Found::Cut => {
                let begun = reader.begun_at().map_or(*record, |at| *position + at as u64);
                return Err(parse_error(begun, "The blob ends within a value."));
            }
        };
        *record = *position + at.start as u64;
        let fuel = Fuel::new(WORK_PER_RECORD);
        match std::str::from_utf8(&unread[at]) {
            Err(_) => errors.push(Failure::NotUtf8.at(*record)),
            Ok(text) => {
                let tree = Tree::parse(text).map_err(|reason| parse_error(*record, reason))?;
                let whole = table.is_empty();
                for_each_row(&tree, table, &mut |tree| {
                    if sink.is_full() {
                        return Ok(());
                    }
                    report(sink.take(Row::Json { tree, whole }, &fuel), *record, &fuel, errors)
                })?;
            }
        }
        let cost = passed + WORK_PER_RECORD - fuel.left();
        self.pass(passed);
        Ok(Some(cost))
    }
}

/// Notes the failure of a row. One that ends the query is given back.
fn report(
    taken: Result<(), Failure>,
    position: u64,
    fuel: &Fuel,
    errors: &mut Vec<QueryError>,
) -> Result<(), QueryError> {
    let Err(failure) = taken else { return Ok(()) };
    let error = failure.at(position);
    if error.fatal {
        return Err(error);
    }
    fuel.spend(ERROR_COST).map_err(|failure| failure.at(position))?;
    errors.push(error);
    Ok(())
}
