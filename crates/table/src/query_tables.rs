//! Query Tables: lists tables, with `$filter` on TableName, `$top` and continuation, or returns one table by
//! its name.
//!
//! Names are returned with the case of their creation. Order and comparison ignore case.

use std::ops::ControlFlow;

use http::StatusCode;
use lazuli_protocol::{ErrorCode, Refusal, Request, Response, names};

use crate::filter::evaluate::FilterSubject;
use crate::filter::{Filter, Property};
use crate::json::render::{Placement, Renderer};
use crate::table::folded;
use crate::value::Value;
use crate::{TableService, address, continuation, format, query};

/// A table on which a filter is evaluated, by its folded name.
struct ListedTable<'a>(&'a str);

impl FilterSubject for ListedTable<'_> {
    fn get(&self, property: &Property) -> Option<Value<'_>> {
        match property {
            Property::Named(name) if name == "TableName" => Some(Value::String(self.0.into())),
            _ => None,
        }
    }
}

impl TableService {
    /// Query Tables.
    pub(crate) async fn query_tables(&self, request: Request) -> Result<Response, Refusal> {
        query::check_options(&request.query)?;
        let metadata = format::metadata(&request.headers, &request.query, request.version)?;
        let mut filter = query::filter(&request.query)?;
        if let Some(filter) = &mut filter {
            fold_literals(filter);
        }
        let mut remaining = query::top(&request.query)?;
        let start = continuation::table(&request.query)?;

        let (endpoint, account) = (request.endpoint.as_str(), request.account.name.as_str());
        let renderer = Renderer { metadata, endpoint, account, table: "Tables" };
        let mut body = Vec::new();
        renderer.open_list(&mut body, "Tables");
        let mut next = None;
        if remaining > 0 {
            let listed = self.tables.list(&request.account, "", start.as_deref(), false, |entry| {
                if filter.as_ref().is_some_and(|filter| !filter.matches(&ListedTable(entry.name))) {
                    return ControlFlow::Continue(());
                }
                if remaining == 0 {
                    return ControlFlow::Break(());
                }
                if body.last() == Some(&b'}') {
                    body.push(b',');
                }
                renderer.table(&mut body, Placement::InList, &entry.record.name);
                remaining -= 1;
                ControlFlow::Continue(())
            });
            next = listed.await?;
        }
        Renderer::close_list(&mut body);

        let mut response = format::json(StatusCode::OK, metadata, body);
        if let Some(next) = next {
            continuation::put_table(&mut response.headers, &next);
        }
        Ok(response)
    }

    /// Returns the table that a request addresses.
    pub(crate) async fn get_table(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = format::metadata(&request.headers, &request.query, request.version)?;
        let name = address::table(&request.object)?;
        names::check_table(&name)?;
        let found = self.tables.find(&request.account, &folded(&name)).await?;
        let table = found.ok_or(ErrorCode::ResourceNotFound)?;
        let (endpoint, account) = (request.endpoint.as_str(), request.account.name.as_str());
        let renderer = Renderer { metadata, endpoint, account, table: "Tables" };
        let mut body = Vec::new();
        renderer.table(&mut body, Placement::Alone, &table.name);
        Ok(format::json(StatusCode::OK, metadata, body))
    }
}

/// Folds the string literals of a filter like the names of tables.
fn fold_literals(filter: &mut Filter) {
    match filter {
        Filter::Constant(_) => {}
        Filter::Comparison(comparison) => {
            if let Value::String(name) = &mut comparison.literal {
                *name = folded(name).into();
            }
        }
        Filter::Not(inner) => fold_literals(inner),
        Filter::And(all) | Filter::Or(all) => all.iter_mut().for_each(fold_literals),
    }
}
