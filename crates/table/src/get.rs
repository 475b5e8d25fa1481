//! Point reads: Query Entities with the address of one entity.

use http::StatusCode;
use http::header::ETAG;
use lazuli_concurrency::TableETag;
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Refusal, Request, Response};
use lazuli_service::reply::put;
use lazuli_store::{Reads, RowPosition};

use crate::entity::Entity;
use crate::json::render::{Placement, Renderer};
use crate::{TableService, address, authorization, format, keys, query};

impl TableService {
    /// Returns the entity that a request addresses.
    pub(crate) async fn get_entity(&self, request: Request) -> Result<Response, Refusal> {
        let keys = address::keys(&request.object)?;
        keys.check()?;
        let metadata = format::metadata(&request.headers, &request.query, request.version)?;
        let select = query::select(&request.query)?;
        let table = self.table(&request.account, &request.container).await?;
        let is_permitted = match &request.caller {
            Caller::Sas(grant) => authorization::contains(&grant.table_range, &keys),
            _ => true,
        };
        let partition = keys::partition(table.space, &keys.partition);
        let set = self.rows.read(&partition, &Reads::key(keys::row_key(&keys.row))).await?;
        let row = set.rows.into_iter().next().flatten().filter(|_| is_permitted);
        let row = row.ok_or(ErrorCode::ResourceNotFound)?;
        let entity = Entity::decode(&row.value);
        let entity = entity.map_err(|damage| damage.at(RowPosition::new(&partition, &row.key)))?;

        let renderer = Renderer {
            metadata,
            endpoint: &request.endpoint,
            account: &request.account.name,
            table: &request.container,
        };
        let mut body = Vec::new();
        renderer.entity(&mut body, Placement::Alone, (&keys, row.token.0, &entity), select.as_deref());
        let mut response = format::json(StatusCode::OK, metadata, body);
        put(&mut response.headers, ETAG.as_str(), TableETag::from(row.token.0).to_string());
        Ok(response)
    }
}
