//! Query Tables: all of them, with `$filter` on TableName, `$top` and continuation, or one by its name.
//!
//! Names are shown as they were created. They are ordered and compared without regard to case.

use std::ops::ControlFlow;

use http::StatusCode;
use lazuli_protocol::{ErrorCode, Refusal, Request, Response, names};

use crate::filter::evaluate::Subject;
use crate::filter::{Filter, Property};
use crate::json::render::{Renderer, Stands};
use crate::table::folded;
use crate::value::Value;
use crate::{TableService, address, continuation, format, query};

/// A table as a filter sees it: by its folded name.
struct Named<'a>(&'a str);

impl Subject for Named<'_> {
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
            fold(filter);
        }
        let mut room = query::top(&request.query)?;
        let start = continuation::table(&request.query)?;

        let (endpoint, account) = (request.endpoint.as_str(), request.account.name.as_str());
        let renderer = Renderer { metadata, endpoint, account, table: "Tables" };
        let mut body = Vec::new();
        renderer.open_list(&mut body, "Tables");
        let mut next = None;
        if room > 0 {
            let listed = self.tables.list(&request.account, "", start.as_deref(), false, |entry| {
                if filter.as_ref().is_some_and(|filter| !filter.matches(&Named(entry.name))) {
                    return ControlFlow::Continue(());
                }
                if room == 0 {
                    return ControlFlow::Break(());
                }
                if body.last() == Some(&b'}') {
                    body.push(b',');
                }
                renderer.table(&mut body, Stands::InList, &entry.record.name);
                room -= 1;
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

    /// The table that a request addresses.
    pub(crate) async fn get_table(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = format::metadata(&request.headers, &request.query, request.version)?;
        let name = address::table(&request.object)?;
        names::check_table(&name)?;
        let found = self.tables.find(&request.account, &folded(&name)).await?;
        let table = found.ok_or(ErrorCode::ResourceNotFound)?;
        let (endpoint, account) = (request.endpoint.as_str(), request.account.name.as_str());
        let renderer = Renderer { metadata, endpoint, account, table: "Tables" };
        let mut body = Vec::new();
        renderer.table(&mut body, Stands::Alone, &table.name);
        Ok(format::json(StatusCode::OK, metadata, body))
    }
}

/// Folds the names that tables are compared with, as their own are.
fn fold(filter: &mut Filter) {
    match filter {
        Filter::Constant(_) => {}
        Filter::Comparison(comparison) => {
            if let Value::String(name) = &mut comparison.literal {
                *name = folded(name).into();
            }
        }
        Filter::Not(inner) => fold(inner),
        Filter::And(all) | Filter::Or(all) => all.iter_mut().for_each(fold),
    }
}
