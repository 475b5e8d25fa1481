//! Tables: create, delete, access policies. Query Tables is in [`crate::query_tables`].
//!
//! Comparison of names ignores case. Names are returned with the case of their creation.

use http::StatusCode;
use http::header::LOCATION;
use lazuli_generations::{Created, Generation, Removal};
use lazuli_protocol::policy::SignedIdentifiers;
use lazuli_protocol::{Account, ErrorCode, Refusal, Request, Response, names};
use lazuli_service::reply::put;
use lazuli_store::{SpaceId, View};
use serde::{Deserialize, Serialize};

use crate::format::{self, Echo};
use crate::json::parse;
use crate::json::render::{Placement, Renderer};
use crate::{TableService, address};

/// The record of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) space: SpaceId,
    /// The name with the case of its creation.
    pub(crate) name: String,
    pub(crate) policies: SignedIdentifiers,
}

impl Generation for Table {
    const KIND: &'static str = "table";
    const NOT_FOUND: ErrorCode = ErrorCode::TableNotFound;
    const ALREADY_EXISTS: ErrorCode = ErrorCode::TableAlreadyExists;

    fn space(&self) -> SpaceId {
        self.space
    }
}

/// Returns the name by which a table is stored.
pub(crate) fn folded(name: &str) -> String {
    name.to_ascii_lowercase()
}

impl TableService {
    /// Returns the table with the given name.
    pub(crate) async fn table(&self, account: &Account, name: &str) -> Result<Table, Refusal> {
        names::check_table(name)?;
        self.tables.get(account, &folded(name)).await
    }

    /// Create Table.
    pub(crate) async fn create_table(&self, mut request: Request) -> Result<Response, Refusal> {
        format::check_content_type(&request.headers)?;
        let metadata = format::metadata(&request.headers, &request.query, request.version)?;
        let echo = format::echo(&request.headers)?;
        let name = parse::table_name(&request.read_document().await?)?;
        names::check_table(&name)?;
        let shown = name.clone();
        let make = move |space, _: &View<'_>| Table {
            space,
            name: shown.clone(),
            policies: SignedIdentifiers::default(),
        };
        let created = self.tables.create(&request.account, &folded(&name), make).await?;
        if let Created::Existing(_) = created {
            return Err(ErrorCode::TableAlreadyExists.into());
        }
        let mut response = if echo == Echo::NoContent {
            format::empty(StatusCode::NO_CONTENT)
        } else {
            let (endpoint, account) = (request.endpoint.as_str(), request.account.name.as_str());
            let mut body = Vec::new();
            let renderer = Renderer { metadata, endpoint, account, table: "Tables" };
            renderer.table(&mut body, Placement::Alone, &name);
            format::json(StatusCode::CREATED, metadata, body)
        };
        echo.confirm(&mut response.headers);
        let link = format!("{}/Tables('{name}')", request.endpoint);
        put(&mut response.headers, LOCATION.as_str(), &link);
        put(&mut response.headers, "dataserviceid", &link);
        Ok(response)
    }

    /// Delete Table.
    pub(crate) async fn delete_table(&self, request: Request) -> Result<Response, Refusal> {
        let name = address::table(&request.object)?;
        names::check_table(&name)?;
        let rule = |_: &mut Table, _: &View<'_>| Ok(Removal::default());
        let removed = self.tables.remove(request.account, &folded(&name), rule).await;
        removed.map_err(|refusal| match refusal.code() {
            ErrorCode::TableNotFound => ErrorCode::ResourceNotFound.into(),
            _ => refusal,
        })?;
        Ok(format::empty(StatusCode::NO_CONTENT))
    }

    /// Get Table ACL.
    pub(crate) async fn get_table_acl(&self, request: Request) -> Result<Response, Refusal> {
        let table = self.table(&request.account, &request.container).await?;
        Ok(Response::xml(table.policies.to_xml()))
    }

    /// Set Table ACL.
    pub(crate) async fn set_table_acl(&self, mut request: Request) -> Result<Response, Refusal> {
        names::check_table(&request.container)?;
        let policies = SignedIdentifiers::parse(&request.read_document().await?)?;
        let rule = |table: &mut Table, _: &View<'_>| {
            table.policies = policies.clone();
            Ok(((), None))
        };
        self.tables.change(&request.account, &folded(&request.container), rule).await?;
        Ok(Response::empty(StatusCode::NO_CONTENT))
    }
}
