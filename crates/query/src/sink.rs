//! Turns rows into results: the half of a [`QueryScan`](crate::QueryScan) that follows the readers.

use time::OffsetDateTime;

use crate::aggregate::{Accumulator, Contribution};
use crate::delimited::Fields;
use crate::evaluate::Context;
use crate::fuel::Fuel;
use crate::report::RecordFailure;
use crate::row::Row;
use crate::statement::Query;
use crate::syntax::Projection;
use crate::value::Value;
use crate::write::RowWriter;

pub(crate) struct Sink {
    pub(crate) query: Query,
    writer: RowWriter,
    now: OffsetDateTime,
    accumulators: Vec<Accumulator>,
    /// Number of result rows written so far.
    rows: u64,
    /// Whether the row of column names was written.
    has_header: bool,
    /// Bytes in the current batch of `sys.split`.
    batch: u64,
    pub(crate) output: Vec<u8>,
}

impl Sink {
    pub(crate) fn new(query: Query, writer: RowWriter, now: OffsetDateTime) -> Self {
        let accumulators = match &query.select.projection {
            Projection::Aggregates(aggregates) => aggregates.iter().map(|_| Accumulator::default()).collect(),
            _ => vec![],
        };
        Self { query, writer, now, accumulators, rows: 0, has_header: false, batch: 0, output: vec![] }
    }

    /// Returns whether no further row can change the result.
    pub(crate) fn is_full(&self) -> bool {
        let is_aggregate = matches!(self.query.select.projection, Projection::Aggregates(_));
        self.query.select.limit.is_some_and(|limit| self.rows >= limit && (!is_aggregate || limit == 0))
    }

    /// Processes a row. A row that fails leaves no partial output.
    pub(crate) fn take(&mut self, row: Row<'_>, fuel: &Fuel) -> Result<(), RecordFailure> {
        let context = Context { row, now: self.now, fuel };
        if let Some(predicate) = &self.query.select.predicate
            && context.truth(predicate)? != Some(true)
        {
            return Ok(());
        }
        match &self.query.select.projection {
            Projection::Split(_) => Ok(()),
            Projection::Aggregates(aggregates) => {
                let accumulators = &mut self.accumulators;
                let contributions = aggregates.iter().zip(&*accumulators).map(
                    |((aggregate, _), accumulator)| match &aggregate.of {
                        Some(of) => accumulator.contribution(aggregate.kind, context.value(of)?),
                        None => Ok(Contribution::One),
                    },
                );
                let contributions: Vec<_> = contributions.collect::<Result<_, RecordFailure>>()?;
                for (accumulator, contribution) in accumulators.iter_mut().zip(contributions) {
                    accumulator.add(contribution);
                }
                Ok(())
            }
            Projection::All | Projection::Columns(_) => {
                self.write_header(Some(row), None);
                let begin = self.output.len();
                let written = self.write_row(row, fuel);
                match written {
                    Ok(()) => self.rows += 1,
                    Err(_) => self.output.truncate(begin),
                }
                written
            }
        }
    }

    fn write_row(&mut self, row: Row<'_>, fuel: &Fuel) -> Result<(), RecordFailure> {
        let Self { query, writer, output, now, .. } = self;
        let context = Context { row, now: *now, fuel };
        writer.begin_row(output);
        let mut field = |name: Option<&str>, value: Value<'_>| {
            let before = output.len();
            writer.field(output, name, value);
            fuel.spend(1 + output.len() - before)
        };
        match &query.select.projection {
            Projection::Columns(columns) => {
                for column in columns {
                    field(column.name.as_deref(), context.value(&column.expression)?)?;
                }
            }
            _ => row.for_each_field(&mut field)?,
        }
        writer.end_row(output);
        fuel.spend(1)
    }

    /// Writes the column names before the first row, if the format has them.
    fn write_header(&mut self, row: Option<Row<'_>>, header: Option<&[String]>) {
        if self.has_header || !self.writer.has_headers() {
            return;
        }
        self.has_header = true;
        let mut names: Vec<Option<String>> = vec![];
        match (&self.query.select.projection, row) {
            (Projection::Columns(columns), _) => {
                names.extend(columns.iter().map(|column| column.name.clone()));
            }
            (Projection::Aggregates(aggregates), _) => {
                names.extend(aggregates.iter().map(|(_, name)| name.clone()));
            }
            (_, Some(Row::Delimited(Fields { header: Some(header), .. }))) => {
                names.extend(header.iter().cloned().map(Some));
            }
            (_, Some(row)) => {
                // Reading only names cannot fail.
                let _ = row.for_each_field(|name, _| {
                    names.push(name.map(str::to_owned));
                    Ok(())
                });
            }
            (_, None) => match header {
                Some(header) => names.extend(header.iter().cloned().map(Some)),
                None => return,
            },
        }
        self.writer.begin_row(&mut self.output);
        for (index, name) in names.into_iter().enumerate() {
            let name = name.unwrap_or_else(|| format!("_{}", index + 1));
            self.writer.field(&mut self.output, None, Value::Text(name.into()));
        }
        self.writer.end_row(&mut self.output);
    }

    /// Returns the batch size if the statement is `sys.split`.
    pub(crate) fn split(&self) -> Option<u64> {
        match self.query.select.projection {
            Projection::Split(size) => Some(size),
            _ => None,
        }
    }

    /// Adds the bytes of a complete record to the current batch of `sys.split`.
    pub(crate) fn take_into_batch(&mut self, bytes: u64, size: u64) {
        self.batch += bytes;
        if self.batch >= size {
            self.write_batch();
        }
    }

    fn write_batch(&mut self) {
        let batch = i64::try_from(std::mem::take(&mut self.batch)).unwrap_or(i64::MAX);
        self.write_values([(None, Value::Int(batch))]);
    }

    fn write_values<'a>(&mut self, values: impl IntoIterator<Item = (Option<&'a str>, Value<'a>)>) {
        self.writer.begin_row(&mut self.output);
        for (name, value) in values {
            self.writer.field(&mut self.output, name, value);
        }
        self.writer.end_row(&mut self.output);
        self.rows += 1;
    }

    /// Ends the result. If there were no rows, the column names come from the header.
    pub(crate) fn end(&mut self, header: Option<&[String]>) {
        if self.split().is_some() {
            if self.batch > 0 {
                self.write_batch();
            }
            return;
        }
        self.write_header(None, header);
        let accumulators = std::mem::take(&mut self.accumulators);
        if let (Projection::Aggregates(aggregates), false) = (&self.query.select.projection, self.is_full()) {
            let aggregates = aggregates.clone();
            let results = accumulators.into_iter().zip(&aggregates);
            let results = results.map(|(accumulator, (aggregate, name))| {
                (name.as_deref(), accumulator.result(aggregate.kind))
            });
            self.write_values(results);
        }
    }
}
