//! Tables and their entities.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{Method, StatusCode};
use lazuli_client::client::Call;
use lazuli_protocol::ServiceKind;
use serde_json::{Value, json};

use super::document::{Entity, Table};
use super::{
    Connections, Database, FolderError, Import, Step, access_policies, encode, run_step, service_properties,
};

/// Length of a GUID in text.
const GUID: usize = 36;

pub(super) async fn import(import: &Arc<Import>) -> Result<(), FolderError> {
    service_properties::import(import, Database::Table, ServiceKind::Table).await?;
    run_step(import, Database::Table, Tables).await?;
    run_step(import, Database::Table, Entities).await
}

struct Tables;

impl Step for Tables {
    type Document = Table;

    fn select(&self, import: &Import, collection: &str, document: Value) -> Option<(String, Table)> {
        let table: Table =
            (collection == "$TABLES_COLLECTION$").then(|| import.parse(collection, document))??;
        Some((table.table.clone(), table))
    }

    async fn run(&self, import: &Import, connections: &mut Connections, table: Table) {
        let created = async {
            let body = json!({"TableName": table.table}).to_string();
            let create = json_call(Method::POST, "/Tables".into(), body)?;
            let expected = [StatusCode::CREATED, StatusCode::NO_CONTENT, StatusCode::CONFLICT];
            let send = connections.send(&table.account, ServiceKind::Table, &create, &expected);
            send.await.map_err(|failure| failure.to_string())?;
            let policies = table.table_acl.as_deref().unwrap_or_default();
            if !policies.is_empty() {
                let path = format!("/{}", table.table);
                let set = Call::new(Method::PUT, path, "comp=acl").body(access_policies(policies));
                let send =
                    connections.send(&table.account, ServiceKind::Table, &set, &[StatusCode::NO_CONTENT]);
                send.await.map_err(|failure| failure.to_string())?;
            }
            Ok::<_, String>(())
        };
        match created.await {
            Ok(()) => import.progress.imported("tables", 0),
            Err(reason) => import.progress.left_out(format_args!("table {}", table.table), reason),
        }
    }
}

/// Imports entities. Their collections are called `ACCOUNT$TABLE`.
struct Entities;

/// An entity with its table.
struct PlacedEntity {
    account: String,
    table: String,
    entity: Entity,
}

impl Step for Entities {
    type Document = PlacedEntity;

    fn select(&self, import: &Import, collection: &str, document: Value) -> Option<(String, PlacedEntity)> {
        if collection.starts_with('$') {
            return None;
        }
        let Some((account, table)) = collection.split_once('$') else {
            import.progress.left_out(format_args!("a document of {collection}"), "unknown collection");
            return None;
        };
        let entity: Entity = import.parse(collection, document)?;
        // Entities with the same keys cannot exist twice, so any worker may import any entity.
        let key = format!("{}/{}", entity.partition_key, entity.row_key);
        Some((key, PlacedEntity { account: account.into(), table: table.into(), entity }))
    }

    async fn run(&self, import: &Import, connections: &mut Connections, placed: PlacedEntity) {
        let PlacedEntity { account, table, entity } = placed;
        let (partition, row) = (entity.partition_key, entity.row_key);
        let path = format!("/{table}(PartitionKey={},RowKey={})", key(&partition), key(&row));
        let body = body(entity.properties);
        let length = body.len() as u64;
        let sent = async {
            let call = json_call(Method::PUT, path, body)?;
            let expected = [StatusCode::NO_CONTENT];
            let send = connections.send(&account, ServiceKind::Table, &call, &expected);
            send.await.map_err(|failure| failure.to_string())
        };
        match sent.await {
            Ok(_) => import.progress.imported("entities", length),
            Err(reason) => {
                import
                    .progress
                    .left_out(format_args!("entity {partition:?} {row:?} of table {table}"), reason);
            }
        }
    }
}

/// Returns a key as it is written in a URL: quoted, with quotes doubled, encoded.
fn key(text: &str) -> String {
    format!("%27{}%27", encode(&text.replace('\'', "''")))
}

/// Returns the JSON of an entity. The server sets the timestamp. Azurite stores some GUIDs in Base64.
fn body(mut properties: serde_json::Map<String, Value>) -> String {
    properties.retain(|name, _| {
        name != "Timestamp" && name != "Timestamp@odata.type" && !name.starts_with("odata.")
    });
    let guids: Vec<_> = properties
        .iter()
        .filter(|(_, value)| value.as_str() == Some("Edm.Guid"))
        .filter_map(|(name, _)| name.strip_suffix("@odata.type").map(str::to_owned))
        .collect();
    for name in guids {
        let Some(Value::String(text)) = properties.get_mut(&name) else { continue };
        let decoded = BASE64_STANDARD.decode(&*text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some(decoded) = decoded.filter(|decoded| decoded.len() == GUID && text.len() != GUID) {
            *text = decoded;
        }
    }
    Value::Object(properties).to_string()
}

fn json_call(method: Method, path: String, body: String) -> Result<Call, String> {
    let mut call = Call::new(method, path, "").body(body.into());
    for (name, value) in [
        ("content-type", "application/json"),
        ("accept", "application/json;odata=nometadata"),
        ("prefer", "return-no-content"),
        ("dataserviceversion", "3.0"),
    ] {
        super::header(&mut call, name, value)?;
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_quoted_and_encoded() {
        assert_eq!(key("a'b"), "%27a%27%27b%27");
        assert_eq!(key("ü/"), "%27%C3%BC%2F%27");
        assert_eq!(key(""), "%27%27");
    }

    #[test]
    fn guids_in_base64_are_decoded_and_timestamps_removed() {
        let guid = "00000000-0000-0000-0000-000000000007";
        let entity = |text: &str| {
            let properties = json!({"g": text, "g@odata.type": "Edm.Guid", "Timestamp": "x",
                "Timestamp@odata.type": "Edm.DateTime", "s": text});
            let Value::Object(properties) = properties else { unreachable!() };
            serde_json::from_str::<Value>(&body(properties)).unwrap_or_default()
        };
        assert_eq!(entity(guid), json!({"g": guid, "g@odata.type": "Edm.Guid", "s": guid}));
        let encoded = BASE64_STANDARD.encode(guid);
        assert_eq!(entity(&encoded), json!({"g": guid, "g@odata.type": "Edm.Guid", "s": encoded}));
    }
}
