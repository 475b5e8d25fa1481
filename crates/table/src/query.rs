//! Query Entities: `$filter`, `$select`, `$top` and continuation.
//!
//! A page ends when it is full, or when many rows were read for it: then it may be short or even empty, and says where to
//! go on. Each span of keys is read in one snapshot and no partition lies in two, so a query sees an entity group
//! transaction whole or not at all. What is not judged by its keys alone is shown by the run, which the store may have in
//! memory, and judged by [columns](crate::columns).

use std::ops::ControlFlow;

use bytes::Bytes;
use http::StatusCode;
use lazuli_generations::{Damage, unreadable};
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Query, Refusal, Request, Response};
use lazuli_store::{MAX_SCAN_BYTES, MAX_SCAN_ROWS, Row, SpaceId, Stretch, Token};

use crate::columns::{Judge, Judged};
use crate::entity::{Entity, check_name};
use crate::filter::Filter;
use crate::filter::evaluate::Found;
use crate::filter::range::{Position, Reach, Span};
use crate::json::parse::invalid;
use crate::json::render::{Renderer, Stands};
use crate::keys::Keys;
use crate::{TableService, allowed, continuation, format, table_gone};

/// The most names in `$select`.
const MAX_SELECTED: usize = 255;
/// The most entities, or tables, of a page, and as many as there are if the client does not say.
const MAX_TOP: usize = 1000;
/// What OData has and the table service never had.
const UNSUPPORTED: [&str; 6] = ["$orderby", "$skip", "$inlinecount", "$count", "$expand", "$search"];

/// The properties that `$select` names, each once; `None`: all of them.
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
        // What no property can be called, such as an annotation, selects nothing.
        if check_name(name).is_ok() && !selected.iter().any(|other| other == name) {
            selected.push(name.to_owned());
        }
    }
    Ok(Some(selected))
}

/// How many entities or tables `$top` asks for.
pub(crate) fn top(query: &Query) -> Result<usize, Refusal> {
    let Some(text) = query.get("$top").filter(|text| !text.is_empty()) else { return Ok(MAX_TOP) };
    let asked = text.parse().ok().filter(|top| (0..=MAX_TOP).contains(top));
    asked.ok_or_else(|| invalid(format!("$top is not a number of at most {MAX_TOP}.")))
}

/// The condition of `$filter`. An empty one is none.
pub(crate) fn filter(query: &Query) -> Result<Option<Filter>, Refusal> {
    let text = query.get("$filter").filter(|text| !text.trim_ascii().is_empty());
    text.map(Filter::parse).transpose()
}

/// Refuses options that would change the answer if they were known.
pub(crate) fn check_options(query: &Query) -> Result<(), Refusal> {
    match UNSUPPORTED.into_iter().find(|name| query.contains(name)) {
        Some(name) => {
            Err(Refusal::new(ErrorCode::NotImplemented).message(format!("{name} is not supported.")))
        }
        None => Ok(()),
    }
}

/// A page that is being written.
struct Page<'a> {
    renderer: Renderer<'a>,
    filter: Option<&'a Filter>,
    select: Option<&'a [String]>,
    /// How many more entities it takes.
    room: usize,
    /// How many more rows, and bytes of them, are read for it.
    rows: usize,
    bytes: usize,
    /// As long as what is read at most: rows from memory hardly count as read.
    body: Vec<u8>,
}

impl Page<'_> {
    fn is_done(&self) -> bool {
        self.room == 0 || self.rows == 0 || self.bytes == 0 || self.body.len() >= MAX_SCAN_BYTES
    }

    fn spend(&mut self, (rows, bytes): (usize, usize)) {
        self.rows = self.rows.saturating_sub(rows);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Adds the entity of a row if it matches the filter.
    fn add(
        &mut self,
        name: (&[u8], &[u8]),
        value: &[u8],
        Token(stamp): Token,
        filter: Option<&Filter>,
    ) -> Result<(), Damage> {
        let keys = Keys::of_row(name.0, name.1).ok_or(Damage::Undecodable)?;
        let entity = Entity::decode(value)?;
        if filter.is_none_or(|filter| filter.matches(&Found { keys: &keys, stamp, entity: &entity })) {
            if self.body.last() == Some(&b'}') {
                self.body.push(b',');
            }
            self.renderer.entity(&mut self.body, Stands::InList, (&keys, stamp, &entity), self.select);
            self.room -= 1;
        }
        Ok(())
    }

    /// Adds the entities of a run that match; breaks off before the first row that the page does not take.
    fn add_run(&mut self, stretch: &Stretch, judge: &Judge<'_>) -> Result<ControlFlow<usize>, Damage> {
        let Stretch { run, rows, .. } = stretch;
        if self.is_done() {
            return Ok(ControlFlow::Break(rows.start));
        }
        let judged = judge.judge(run);
        self.spend(judge.cost(stretch, &judged));
        let Judged { matching, end, .. } = judged;
        let filter = self.filter;
        let judged = matching.within(rows.start..rows.end.min(end)).map(|row| (row, None));
        // What columns could not judge is judged, or found to be damaged, row by row.
        let others = (rows.start.max(end)..rows.end).map(|row| (row, filter));
        for (row, filter) in judged.chain(others) {
            self.add((run.partition(row), run.key(row)), run.value(row), run.token(row), filter)?;
            if self.room == 0 || self.body.len() >= MAX_SCAN_BYTES {
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
        let reach = reach(&request, filter.as_ref())?;
        let table = self.table(&request.account, &request.container).await?;

        let renderer = Renderer {
            metadata,
            endpoint: &request.endpoint,
            account: &request.account.name,
            table: &request.container,
        };
        let (filter, select) = (filter.as_ref(), select.as_deref());
        let (rows, bytes) = (MAX_SCAN_ROWS, MAX_SCAN_BYTES);
        let mut page = Page { renderer, filter, select, room: top, rows, bytes, body: Vec::new() };
        renderer.open_list(&mut page.body, &request.container);
        let next = if top == 0 { None } else { self.fill(&mut page, table.space, reach).await? };
        Renderer::close_list(&mut page.body);

        let mut response = format::json(StatusCode::OK, metadata, page.body);
        if let Some(next) = next {
            continuation::put_position(&mut response.headers, &next);
        }
        Ok(response)
    }

    /// Reads rows for a page until it is full or enough were read; where the next one begins, if more are left.
    async fn fill(
        &self,
        page: &mut Page<'_>,
        space: SpaceId,
        reach: Reach,
    ) -> Result<Option<Position>, Refusal> {
        let judge = page.filter.and_then(Judge::of);
        for Span { from, end } in reach.spans {
            if page.is_done() {
                return Ok(Some(from));
            }
            let mut damage = None;
            let visited = match &judge {
                Some(judge) => {
                    let mut visitor = |stretch: &Stretch| match page.add_run(stretch, judge) {
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
                        if page.is_done() {
                            return ControlFlow::Break(());
                        }
                        page.spend((1, row.value.len()));
                        let (name, filter) = ((&*partition, &*row.key), page.filter);
                        damage = page.add(name, &row.value, row.token, filter).err();
                        if damage.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    };
                    self.store.visit_space(space, from, end, &mut visitor).await
                }
            };
            let visited = visited.map_err(unreadable)?;
            if !visited.space.is_some_and(|space| space.open) {
                return Err(table_gone());
            }
            if let Some(damage) = damage {
                return Err(damage.into());
            }
            if visited.next.is_some() {
                return Ok(visited.next);
            }
        }
        Ok(None)
    }
}

/// The rows that a query asks for and its caller may see.
fn reach(request: &Request, filter: Option<&Filter>) -> Result<Reach, Refusal> {
    let mut reach = Reach::of(filter);
    if let Some(from) = continuation::position(&request.query)? {
        reach.clip(&Span { from, end: None });
    }
    if let Caller::Sas(grant) = &request.caller {
        reach.clip(&allowed::span(&grant.table_range));
    }
    Ok(reach)
}
