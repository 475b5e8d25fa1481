//! Tables and their entities.
//!
//! Consecutive entities of one partition are written together, as one entity group transaction, and read back
//! by one query.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use http::{Method, StatusCode};
use lazuli_client::client::{Call, OperationFailure, Reply, TOO_LONG};
use lazuli_protocol::{ServiceKind, names};
use serde_json::{Value, json};

use super::entity::{ImportedEntity, key};
use super::pages::TokenChain;
use super::{
    Job, Jobs, Link, Links, Refused, Shared, copy_policies, copy_service_properties, exists_already,
    header_text,
};
use crate::calls::{encode, header};

const SERVICE: ServiceKind = ServiceKind::Table;
/// Number of entities that one page may have. Fewer are requested if a page is too long.
const PAGE_SIZES: [u32; 4] = [1000, 100, 10, 1];
/// Maximum number of entities that are written together.
const MAX_TOGETHER: usize = 100;
/// Maximum length of entities that are written together, in bytes.
const MAX_TOGETHER_BYTES: usize = 2 << 20;
const BATCH_TYPE: &str = "multipart/mixed; boundary=batch_import";

pub(super) async fn import(import: &Arc<Shared>) {
    let mut links = import.links();
    let mut pages = TablePages::new("/Tables", "", ["NextTableName", ""]);
    loop {
        let page = match pages.next(&mut links.source).await {
            Ok(Some(page)) => page,
            Ok(None) => break,
            Err(reason) => return import.left_out("the tables", reason),
        };
        for table in page {
            if import.give_up().is_some() {
                return;
            }
            let name = table.get("TableName").and_then(Value::as_str).unwrap_or_default().to_owned();
            if let Err(reason) = import_table(import, &mut links, &name).await {
                import.left_out(format_args!("table {name}"), reason);
            }
        }
    }
    copy_service_properties(import, &mut links, SERVICE).await;
}

async fn import_table(import: &Arc<Shared>, links: &mut Links, name: &str) -> Result<(), Refused> {
    names::check_table(name).map_err(|_| "the name is invalid")?;
    let mut is_new = true;
    if !import.is_dry_run {
        let create = json_call(
            Method::POST,
            "/Tables".into(),
            json!({"TableName": name}).to_string(),
            "return-no-content",
        )?;
        let expected = [StatusCode::CREATED, StatusCode::NO_CONTENT, StatusCode::CONFLICT];
        let reply = links.target.send(SERVICE, &create, &expected).await;
        let reply = reply.map_err(|failure| failure.to_string())?;
        is_new = reply.status != StatusCode::CONFLICT;
        // Tables have their error codes in the body.
        let code = String::from_utf8_lossy(&reply.body).contains("TableAlreadyExists");
        if !is_new && !code && !exists_already(&reply) {
            return Err(header_text(&reply.headers, "x-ms-error-code"));
        }
        copy_policies(links, SERVICE, &format!("/{name}"), "comp=acl", None).await?;
    }
    import.imported("tables", 0);
    let before = import.progress.verified("entities");
    import_entities(import, links, name, is_new).await?;
    if import.is_dry_run || import.give_up().is_some() {
        return Ok(());
    }
    let mut found = 0;
    let mut pages = TablePages::entities(name, "&$select=PartitionKey");
    while let Some(page) = pages.next(&mut links.target).await? {
        found += page.len() as u64;
    }
    let wanted = import.progress.verified("entities") - before;
    import.progress.compare_counts(format_args!("table {name}"), "entities", found, wanted);
    Ok(())
}

async fn import_entities(
    import: &Arc<Shared>,
    links: &mut Links,
    table: &str,
    is_new: bool,
) -> Result<(), Refused> {
    let mut pages = TablePages::entities(table, "");
    let mut jobs = Jobs::new(import);
    let listed = loop {
        let page = match pages.next(&mut links.source).await {
            Ok(Some(page)) => page,
            Ok(None) => break Ok(()),
            Err(reason) => break Err(reason),
        };
        let mut group = EntityGroup { table: table.into(), is_new, entities: vec![] };
        let mut bytes = 0;
        for entity in &page {
            let Some(entity) = ImportedEntity::read(entity) else {
                import.left_out(format_args!("an entity of table {table}"), "it has no keys");
                continue;
            };
            let length = entity.body.len();
            if import.is_dry_run {
                import.imported("entities", length as u64);
                continue;
            }
            let is_other = group.entities.first().is_some_and(|first| first.partition != entity.partition);
            if is_other || group.entities.len() == MAX_TOGETHER || bytes + length > MAX_TOGETHER_BYTES {
                let full = std::mem::take(&mut group.entities);
                jobs.start(EntityGroup { table: table.into(), is_new, entities: full }).await;
                bytes = 0;
            }
            bytes += length;
            group.entities.push(entity);
        }
        jobs.start(group).await;
        if import.give_up().is_some() {
            break Ok(());
        }
    };
    jobs.finish().await;
    listed
}

/// A listing of tables or entities in pages.
struct TablePages {
    path: String,
    query: String,
    /// The parts of a continuation token.
    parts: [&'static str; 2],
    tokens: TokenChain,
    /// Index of the current page size.
    size: usize,
}

impl TablePages {
    fn new(path: impl Into<String>, query: impl Into<String>, parts: [&'static str; 2]) -> Self {
        Self { path: path.into(), query: query.into(), parts, tokens: TokenChain::default(), size: 0 }
    }

    fn entities(table: &str, query: &str) -> Self {
        Self::new(format!("/{table}()"), query, ["NextPartitionKey", "NextRowKey"])
    }

    /// Returns the objects of the next page; `None` after the last page.
    async fn next(&mut self, link: &mut Link) -> Result<Option<Vec<Value>>, Refused> {
        if self.tokens.has_ended {
            return Ok(None);
        }
        let reply = self.request(link).await?;
        let tokens = self.parts.iter().map(|part| match *part {
            "" => String::new(),
            part => header_text(&reply.headers, &format!("x-ms-continuation-{part}")),
        });
        let tokens = tokens.collect();
        let mut page: Value = serde_json::from_slice(&reply.body).map_err(|error| error.to_string())?;
        let objects = match page.get_mut("value").map(Value::take) {
            Some(Value::Array(objects)) => objects,
            _ => return Err("the answer is no list".into()),
        };
        self.tokens.advance(tokens, objects.is_empty())?;
        Ok(Some(objects))
    }

    async fn request(&mut self, link: &mut Link) -> Result<Reply, Refused> {
        loop {
            let mut query = format!("$top={}{}", PAGE_SIZES[self.size], self.query);
            let token = self.tokens.current.clone().unwrap_or_default();
            for (name, value) in self.parts.iter().zip(token.split('\n')) {
                if !value.is_empty() {
                    // Writing to a String cannot fail.
                    let _ = write!(query, "&{name}={}", encode(value));
                }
            }
            let mut call = Call::new(Method::GET, self.path.clone(), query);
            header(&mut call, "accept", "application/json;odata=minimalmetadata")?;
            header(&mut call, "dataserviceversion", "3.0")?;
            match link.send(SERVICE, &call, &[StatusCode::OK]).await {
                Err(OperationFailure::Wrong(TOO_LONG)) if self.size + 1 < PAGE_SIZES.len() => self.size += 1,
                reply => return reply.map_err(|failure| failure.to_string()),
            }
        }
    }
}

/// Entities of one partition.
struct EntityGroup {
    table: String,
    /// Whether the table did not exist before this run.
    is_new: bool,
    entities: Vec<ImportedEntity>,
}

impl Job for EntityGroup {
    async fn run(self, import: &Arc<Shared>, links: &mut Links) {
        let mut missing: Vec<&ImportedEntity> = self.entities.iter().collect();
        if !self.is_new {
            let count = missing.len();
            missing = self.differing(missing, &mut links.target).await;
            (missing.len()..count).for_each(|_| import.unchanged("entities"));
        }
        let wanted = missing.clone();
        if missing.len() > 1 {
            // The comparison decides what was written, so the answer does not matter.
            let _ = self.put_together(&missing, &mut links.target).await;
            missing = self.differing(missing, &mut links.target).await;
        }
        let mut failed = std::collections::BTreeSet::new();
        for entity in missing {
            if let Err(reason) = self.put(entity, &mut links.target).await {
                let (partition, row) = (&entity.partition, &entity.row);
                failed.insert(row);
                import.left_out(format_args!("entity {partition:?} {row:?} of table {}", self.table), reason);
            }
        }
        for entity in wanted.iter().filter(|entity| !failed.contains(&entity.row)) {
            import.imported("entities", entity.body.len() as u64);
        }
    }
}

impl EntityGroup {
    /// Returns the entities that the destination does not have in the same form.
    async fn differing<'a>(
        &self,
        entities: Vec<&'a ImportedEntity>,
        link: &mut Link,
    ) -> Vec<&'a ImportedEntity> {
        let Ok(found) = self.find(&entities, link).await else { return entities };
        let is_missing =
            |entity: &&ImportedEntity| !found.get(&entity.row).is_some_and(|found| entity.is_equal(found));
        entities.into_iter().filter(is_missing).collect()
    }

    /// Reads the entities from the destination, as far as one page holds them.
    async fn find(
        &self,
        entities: &[&ImportedEntity],
        link: &mut Link,
    ) -> Result<BTreeMap<String, ImportedEntity>, Refused> {
        let rows = || entities.iter().map(|entity| &entity.row);
        let (Some(first), Some(least), Some(greatest)) = (entities.first(), rows().min(), rows().max())
        else {
            return Ok(BTreeMap::new());
        };
        let filter = format!(
            "PartitionKey%20eq%20{}%20and%20RowKey%20ge%20{}%20and%20RowKey%20le%20{}",
            key(&first.partition),
            key(least),
            key(greatest)
        );
        let mut pages = TablePages::entities(&self.table, &format!("&$filter={filter}"));
        let page = pages.next(link).await?.unwrap_or_default();
        let entities = page.iter().filter_map(ImportedEntity::read);
        Ok(entities.map(|entity| (entity.row.clone(), entity)).collect())
    }

    async fn put_together(&self, entities: &[&ImportedEntity], link: &mut Link) -> Result<(), Refused> {
        let endpoint = link.endpoint(SERVICE)?;
        let mut body = String::from(
            "--batch_import\r\nContent-Type: multipart/mixed; boundary=changeset_import\r\n\r\n",
        );
        for entity in entities {
            // Writing to a String cannot fail.
            let _ = write!(
                body,
                "--changeset_import\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n\
                 PUT {endpoint}{} HTTP/1.1\r\nContent-Type: application/json\r\n\
                 Accept: application/json;odata=nometadata\r\nDataServiceVersion: 3.0\r\n\r\n{}\r\n",
                entity.path(&self.table),
                entity.body
            );
        }
        body += "--changeset_import--\r\n--batch_import--\r\n";
        let mut call = Call::new(Method::POST, "/$batch", "").body(body.into());
        header(&mut call, "content-type", BATCH_TYPE)?;
        header(&mut call, "dataserviceversion", "3.0")?;
        let sent = link.send(SERVICE, &call, &[StatusCode::ACCEPTED]).await;
        sent.map(drop).map_err(|failure| failure.to_string())
    }

    /// Writes one entity and reads it back.
    async fn put(&self, entity: &ImportedEntity, link: &mut Link) -> Result<(), Refused> {
        let path = entity.path(&self.table);
        let call = json_call(Method::PUT, path.clone(), entity.body.clone(), "return-no-content")?;
        let sent = link.send(SERVICE, &call, &[StatusCode::NO_CONTENT]).await;
        sent.map_err(|failure| failure.to_string())?;
        let mut call = Call::new(Method::GET, path, "");
        header(&mut call, "accept", "application/json;odata=minimalmetadata")?;
        header(&mut call, "dataserviceversion", "3.0")?;
        let reply = link.send(SERVICE, &call, &[StatusCode::OK]).await;
        let reply = reply.map_err(|failure| failure.to_string())?;
        let found = serde_json::from_slice(&reply.body).ok().and_then(|found| ImportedEntity::read(&found));
        match found.is_some_and(|found| entity.is_equal(&found)) {
            true => Ok(()),
            false => Err("what was read back differs".into()),
        }
    }
}

fn json_call(method: Method, path: String, body: String, prefer: &str) -> Result<Call, Refused> {
    let mut call = Call::new(method, path, "").body(body.into());
    for (name, value) in [
        ("content-type", "application/json"),
        ("accept", "application/json;odata=nometadata"),
        ("prefer", prefer),
        ("dataserviceversion", "3.0"),
    ] {
        header(&mut call, name, value)?;
    }
    Ok(call)
}
