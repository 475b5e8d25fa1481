//! Query Entities: `$filter`, `$select`, `$top` and continuation.
//!
//! A page ends when it is full, or when many rows were read for it. In the latter case it may be short or
//! even empty, and contains a continuation token. Each span of keys is read in one snapshot, and no partition
//! lies in two spans. So a query sees an entity group transaction completely or not at all. Filters on more
//! than keys read rows in runs, which the store may have in memory, and are evaluated by
//! [columns](crate::columns).

use std::ops::ControlFlow;

use bytes::Bytes;
use http::StatusCode;
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Query, Refusal, Request, Response};
use lazuli_service::{Damage, read_refusal};
use lazuli_store::{MAX_SCAN_BYTES, MAX_SCAN_ROWS, Row, RowPosition, SpaceId, Stretch, Token};

use crate::columns::{RunFilter, RunMatches};
use crate::entity::{Entity, check_name};
use crate::filter::Filter;
use crate::filter::evaluate::FoundEntity;
use crate::filter::range::{Position, RowSpan, ScanRanges};
use crate::json::parse::invalid;
use crate::json::render::{Placement, Renderer};
use crate::keys::Keys;
use crate::{TableService, authorization, continuation, format};

/// Maximum number of names in `$select`.
const MAX_SELECTED: usize = 255;
/// Maximum and default number of entities or tables in a page.
const MAX_TOP: usize = 1000;
/// Query options of OData that the table service never supported.
const UNSUPPORTED: [&str; 6] = ["$orderby", "$skip", "$inlinecount", "$count", "$expand", "$search"];

/// Parses `$select`. Returns each selected property once; `None` for all properties.
pub(crate) fn select(query: &Query) -> Result<Option<Vec<String>>, Refusal> {
    let Some(names) = query.get("$select").map(str::trim).filter(|names| !names.is_empty()) else {
        return Ok(None);
    };
    let mut selected: Vec<String> = Vec::new();
    for name in names.split(',').map(str::trim) {
        if name == "*" {
            return Ok(None);
        }
        if selected.len() == MAX_SELECTED {
            return Err(invalid("$select names too many properties."));
        }
        // A name that no property can have, such as that of an annotation, selects nothing.
        if check_name(name).is_ok() && !selected.iter().any(|other| other == name) {
            selected.push(name.to_owned());
        }
    }
    Ok(Some(selected))
}

/// Parses `$top`, the maximum number of entities or tables.
pub(crate) fn top(query: &Query) -> Result<usize, Refusal> {
    let Some(text) = query.get("$top").filter(|text| !text.is_empty()) else { return Ok(MAX_TOP) };
    let top = text.parse().ok().filter(|top| (0..=MAX_TOP).contains(top));
    top.ok_or_else(|| invalid(format!("$top is not a number of at most {MAX_TOP}.")))
}

/// Parses `$filter`. An empty filter counts as missing.
pub(crate) fn filter(query: &Query) -> Result<Option<Filter>, Refusal> {
    let text = query.get("$filter").filter(|text| !text.trim_ascii().is_empty());
    text.map(Filter::parse).transpose()
}

/// Refuses options that would change the result but are not supported.
pub(crate) fn check_options(query: &Query) -> Result<(), Refusal> {
    match UNSUPPORTED.into_iter().find(|name| query.contains(name)) {
        Some(name) => {
            Err(Refusal::new(ErrorCode::NotImplemented).message(format!("{name} is not supported.")))
        }
        None => Ok(()),
    }
}

/// A damaged row, and where it is.
type DamagedRow = (Damage, Position);

/// A page of entities that is being written.
struct EntityPage<'a> {
    renderer: Renderer<'a>,
    filter: Option<&'a Filter>,
    select: Option<&'a [String]>,
    /// Number of entities that may still be added.
    remaining_entities: usize,
    /// Number of rows, and of their bytes, that may still be read.
    remaining_rows: usize,
    remaining_bytes: usize,
    /// The body so far. Its size has a limit of its own, because rows from memory are charged little.
    body: Vec<u8>,
}

impl EntityPage<'_> {
    fn is_full(&self) -> bool {
        self.remaining_entities == 0
            || self.remaining_rows == 0
            || self.remaining_bytes == 0
            || self.body.len() >= MAX_SCAN_BYTES
    }

    fn charge(&mut self, (rows, bytes): (usize, usize)) {
        self.remaining_rows = self.remaining_rows.saturating_sub(rows);
        self.remaining_bytes = self.remaining_bytes.saturating_sub(bytes);
    }

    /// Adds the entity of a row if it matches the filter.
    fn add(
        &mut self,
        (partition, row): (&[u8], &[u8]),
        value: &[u8],
        Token(stamp): Token,
        filter: Option<&Filter>,
    ) -> Result<(), DamagedRow> {
        let damaged = |damage| (damage, (Bytes::copy_from_slice(partition), Bytes::copy_from_slice(row)));
        let keys = Keys::of_row(partition, row).ok_or(Damage::Undecodable).map_err(damaged)?;
        let entity = Entity::decode(value).map_err(damaged)?;
        if filter.is_none_or(|filter| filter.matches(&FoundEntity { keys: &keys, stamp, entity: &entity })) {
            if self.body.last() == Some(&b'}') {
                self.body.push(b',');
            }
            self.renderer.entity(&mut self.body, Placement::InList, (&keys, stamp, &entity), self.select);
            self.remaining_entities -= 1;
        }
        Ok(())
    }

    /// Adds the matching entities of a run. When the page is full, breaks with the row at which the next page
    /// begins.
    fn add_run(
        &mut self,
        stretch: &Stretch,
        run_filter: &RunFilter<'_>,
    ) -> Result<ControlFlow<usize>, DamagedRow> {
        let Stretch { run, rows, .. } = stretch;
        if self.is_full() {
            return Ok(ControlFlow::Break(rows.start));
        }
        let matches = run_filter.evaluate(run);
        self.charge(run_filter.cost(stretch, &matches));
        let RunMatches { matching, end, .. } = matches;
        let filter = self.filter;
        let matching = matching.within(rows.start..rows.end.min(end)).map(|row| (row, None));
        // From the first undecodable row on, rows are evaluated one by one, and the damage is reported.
        let others = (rows.start.max(end)..rows.end).map(|row| (row, filter));
        for (row, filter) in matching.chain(others) {
            self.add((run.partition(row), run.key(row)), run.value(row), run.token(row), filter)?;
            if self.remaining_entities == 0 || self.body.len() >= MAX_SCAN_BYTES {
                return Ok(ControlFlow::Break(row + 1));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl TableService {
    /// Query Entities.
    pub(crate) async fn query_entities(&self, request: Request) -> Result<Response, Refusal> {
        check_options(&request.query)?;
        let metadata = format::metadata(&request.headers, &request.query, request.version)?;
        let (filter, select) = (filter(&request.query)?, select(&request.query)?);
        let top = top(&request.query)?;
        let ranges = scan_ranges(&request, filter.as_ref())?;
        let table = self.table(&request.account, &request.container).await?;

        let renderer = Renderer {
            metadata,
            endpoint: &request.endpoint,
            account: &request.account.name,
            table: &request.container,
        };
        let (filter, select) = (filter.as_ref(), select.as_deref());
        let mut page = EntityPage {
            renderer,
            filter,
            select,
            remaining_entities: top,
            remaining_rows: MAX_SCAN_ROWS,
            remaining_bytes: MAX_SCAN_BYTES,
            body: Vec::new(),
        };
        renderer.open_list(&mut page.body, &request.container);
        let next = if top == 0 { None } else { self.fill(&mut page, table.space, ranges).await? };
        Renderer::close_list(&mut page.body);

        let mut response = format::json(StatusCode::OK, metadata, page.body);
        if let Some(next) = next {
            continuation::put_position(&mut response.headers, &next);
        }
        Ok(response)
    }

    /// Fills a page until it is full or enough rows were read. Returns the position of the next page if rows
    /// are left.
    async fn fill(
        &self,
        page: &mut EntityPage<'_>,
        space: SpaceId,
        ranges: ScanRanges,
    ) -> Result<Option<Position>, Refusal> {
        let run_filter = page.filter.and_then(RunFilter::new);
        for RowSpan { from, end } in ranges.spans {
            if page.is_full() {
                return Ok(Some(from));
            }
            let mut damage = None;
            let visited = match &run_filter {
                Some(run_filter) => {
                    let mut visitor = |stretch: &Stretch| match page.add_run(stretch, run_filter) {
                        Ok(flow) => flow,
                        Err(found) => {
                            damage = Some(found);
                            ControlFlow::Break(stretch.rows.start)
                        }
                    };
                    self.store.visit_runs(space, from, end, &mut visitor).await
                }
                None => {
                    let mut visitor = |partition: Bytes, row: Row| {
                        if page.is_full() {
                            return ControlFlow::Break(());
                        }
                        page.charge((1, row.value.len()));
                        let (position, filter) = ((&*partition, &*row.key), page.filter);
                        damage = page.add(position, &row.value, row.token, filter).err();
                        if damage.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    };
                    self.store.visit_space(space, from, end, &mut visitor).await
                }
            };
            let visited = visited.map_err(read_refusal)?;
            if !visited.space.is_some_and(|space| space.open) {
                return Err(ErrorCode::TableNotFound.into());
            }
            if let Some((damage, (partition, key))) = damage {
                return Err(damage.at(RowPosition { space, partition, key }));
            }
            if visited.next.is_some() {
                return Ok(visited.next);
            }
        }
        Ok(None)
    }
}

/// Returns the rows that a query can match, that follow its continuation token, and that its caller may see.
fn scan_ranges(request: &Request, filter: Option<&Filter>) -> Result<ScanRanges, Refusal> {
    let mut ranges = ScanRanges::of(filter);
    if let Some(from) = continuation::position(&request.query)? {
        ranges.clip(&RowSpan { from, end: None });
    }
    if let Caller::Sas(grant) = &request.caller {
        ranges.clip(&authorization::row_span(&grant.table_range));
    }
    Ok(ranges)
}
