//! Runs a statement over a blob that arrives in parts.
//!
//! A [`QueryScan`] holds the incomplete record and the results that were not fetched yet; nothing else grows
//! with the blob. It does a bounded amount of work per step, so that its caller can run other tasks in
//! between.

use time::OffsetDateTime;

use crate::Format;
use crate::delimited::{DelimitedReader, Fields, MAX_RECORD};
use crate::fuel::Fuel;
use crate::lines::{ValueReader, ValueSearch};
use crate::report::{QueryError, RecordFailure, parse_error, record_too_large, unknown_column};
use crate::row::{Row, for_each_row};
use crate::sink::Sink;
use crate::statement::Query;
use crate::syntax::TableStep;
use crate::tree::JsonValue;
use crate::write::RowWriter;

/// Maximum work for one record, including its results, in units of [`Fuel`].
const WORK_PER_RECORD: usize = 8 << 20;
/// Maximum work per step.
const WORK_PER_STEP: usize = 1 << 20;
/// Pending results in bytes, and pending errors, at which a step pauses. One record may exceed them.
const OUTPUT_PER_STEP: usize = 1 << 20;
const ERRORS_PER_STEP: usize = 1024;
/// Minimum cost of a record with an error.
const ERROR_COST: usize = 64;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The next action of the caller of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanStep {
    /// Feed more of the blob, or its end.
    Hungry,
    /// Fetch the results, yield to other tasks, and call `step` again.
    Pause,
    /// Stop: all results were found.
    Done,
}

/// A statement that runs over a blob.
pub struct QueryScan {
    reader: RecordReader,
    sink: Sink,
    /// The path from a record to its rows.
    table: Vec<TableStep>,
    /// The column names, once they were read.
    header: Option<Vec<String>>,
    /// Bytes that were fed; those before `start` are done.
    pending: Vec<u8>,
    start: usize,
    /// Offset of `start` in the blob.
    position: u64,
    /// Offset of the last record in the blob.
    record: u64,
    has_begun: bool,
    is_last: bool,
    is_over: bool,
    errors: Vec<QueryError>,
}

enum RecordReader {
    Delimited(Box<DelimitedReader>),
    Json(ValueReader),
}

impl QueryScan {
    /// Creates a scan from the beginning of a blob. The query must have been parsed for the same input
    /// format.
    pub fn new(query: Query, input: Format, output: Format, now: OffsetDateTime) -> Self {
        let reader = match input {
            Format::Delimited(dialect) => RecordReader::Delimited(Box::new(DelimitedReader::new(dialect))),
            Format::Json { record_separator } => RecordReader::Json(ValueReader::new(&record_separator)),
        };
        let table = query.select.table.clone();
        Self {
            reader,
            table,
            sink: Sink::new(query, RowWriter::new(output), now),
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

    /// Adds the next bytes of the blob, after [`ScanStep::Hungry`].
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.drain(..std::mem::take(&mut self.start));
        self.pending.extend_from_slice(bytes);
    }

    /// Marks the end of the blob.
    pub fn finish(&mut self) {
        self.is_last = true;
    }

    /// Returns whether results or errors must be fetched before the next step.
    pub fn is_loaded(&self) -> bool {
        self.sink.output.len() >= OUTPUT_PER_STEP || self.errors.len() >= ERRORS_PER_STEP
    }

    /// Returns and removes the results so far. Later results follow them.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sink.output)
    }

    /// Returns and removes the errors so far.
    pub fn take_errors(&mut self) -> Vec<QueryError> {
        std::mem::take(&mut self.errors)
    }

    /// Processes records until there are no more, or a bounded amount of work is done.
    pub fn step(&mut self) -> ScanStep {
        let mut work = WORK_PER_STEP;
        while !self.is_over {
            if self.sink.is_full() {
                self.end();
                break;
            }
            if work == 0 || self.is_loaded() {
                return ScanStep::Pause;
            }
            match self.next_record() {
                Ok(Some(cost)) => work = work.saturating_sub(cost),
                Ok(None) if self.is_last => self.end(),
                Ok(None) => return ScanStep::Hungry,
                Err(fatal) => {
                    self.errors.push(fatal);
                    self.is_over = true;
                }
            }
        }
        ScanStep::Done
    }

    fn end(&mut self) {
        self.sink.end(self.header.as_deref());
        self.is_over = true;
    }

    /// Processes the next record and returns the cost. Returns `None` if there is no complete record.
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
            RecordReader::Delimited(_) => self.next_delimited(),
            RecordReader::Json(_) => self.next_value(),
        }
    }

    fn pass(&mut self, bytes: usize) {
        self.start += bytes;
        self.position += bytes as u64;
    }

    fn next_delimited(&mut self) -> Result<Option<usize>, QueryError> {
        let Self {
            reader: RecordReader::Delimited(reader),
            sink,
            header,
            pending,
            start,
            position,
            errors,
            ..
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
            let record = std::str::from_utf8(&unread[..length]).map_err(|_| RecordFailure::NotUtf8);
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
            reader: RecordReader::Json(reader),
            sink,
            table,
            pending,
            start,
            position,
            errors,
            record,
            ..
        } = self
        else {
            return Ok(None);
        };
        let unread = &pending[*start..];
        let (at, passed) = match reader.next(unread, self.is_last) {
            ValueSearch::More { passed } if reader.looked_at() <= MAX_RECORD => {
                self.pass(passed);
                return Ok(None);
            }
            ValueSearch::More { .. } => {
                return Err(record_too_large(*position + reader.begun_at().unwrap_or(0) as u64));
            }
            ValueSearch::Value { at, .. } if at.len() > MAX_RECORD => {
                return Err(record_too_large(*position + at.start as u64));
            }
            ValueSearch::Value { at, passed } => (at, passed),
            ValueSearch::Unexpected { at } => {
                let token = char::from(unread[at]);
                let byte = *position + at as u64;
                let description =
                    format!("Unexpected token '{token}' at [byte: {byte}]. Expecting tokens '{{', or '['. ");
                return Err(parse_error(*record, description));
            }
            ValueSearch::Cut => {
                let begun = reader.begun_at().map_or(*record, |at| *position + at as u64);
                return Err(parse_error(begun, "The blob ends within a value."));
            }
        };
        *record = *position + at.start as u64;
        let fuel = Fuel::new(WORK_PER_RECORD);
        match std::str::from_utf8(&unread[at]) {
            Err(_) => errors.push(RecordFailure::NotUtf8.at(*record)),
            Ok(text) => {
                let tree = JsonValue::parse(text).map_err(|reason| parse_error(*record, reason))?;
                let is_whole_record = table.is_empty();
                for_each_row(&tree, table, &mut |tree| {
                    if sink.is_full() {
                        return Ok(());
                    }
                    report(sink.take(Row::Json { tree, is_whole_record }, &fuel), *record, &fuel, errors)
                })?;
            }
        }
        let cost = passed + WORK_PER_RECORD - fuel.left();
        self.pass(passed);
        Ok(Some(cost))
    }
}

/// Records the failure of a row. Returns an error that ends the query.
fn report(
    taken: Result<(), RecordFailure>,
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
