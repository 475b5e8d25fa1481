//! Insert, update, merge and delete of single entities; the rule that each follows is also that of the operations in a
//! transaction.
//!
//! An entity's tag is the stamp of the commit that wrote its row, so nothing changes without a new tag. Update, merge and
//! delete come with `If-Match`, insert-or-replace and insert-or-merge without.

use http::header::{ETAG, LOCATION};
use http::{HeaderMap, HeaderValue, StatusCode};
use lazuli_concurrency::{ETagPattern, Stamp, TableETag};
use lazuli_protocol::{ErrorCode, Headers, Operation, Query, Refusal, Request, Response, Version};
use lazuli_store::{Change, Decision, Mutation, Reads, Row};

use crate::entity::Entity;
use crate::format::{self, Echo};
use crate::json::parse::{self, Sent};
use crate::json::render::{Metadata, Renderer, Stands, entity_link};
use crate::keys::{self, Keys};
use crate::value::Value;
use crate::{TableService, address, allowed};

/// One entity is to be changed.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    pub(crate) action: Action,
    pub(crate) keys: Keys,
    /// `If-Match`. `None`: whatever is there, or nothing.
    condition: Option<ETagPattern<TableETag>>,
    entity: Entity<'a>,
    reply: Reply,
}

/// What is to become of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Insert,
    Replace,
    Merge,
    Delete,
}

/// How the client wants to hear of it.
#[derive(Clone, Copy, Debug)]
struct Reply {
    echo: Echo,
    metadata: Metadata,
}

/// Where a write came from, for the links in its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) account: &'a str,
    pub(crate) table: &'a str,
}

impl Action {
    /// What an operation does to an entity, if it changes one.
    pub(crate) fn of(operation: Operation) -> Result<Self, Refusal> {
        match operation {
            Operation::InsertEntity => Ok(Self::Insert),
            Operation::UpdateEntity | Operation::InsertOrReplaceEntity => Ok(Self::Replace),
            Operation::MergeEntity | Operation::InsertOrMergeEntity => Ok(Self::Merge),
            Operation::DeleteEntity => Ok(Self::Delete),
            _ => Err(parse::invalid("The operation does not change an entity.")),
        }
    }
}

impl<'a> Write<'a> {
    /// The write that an operation on a table asks for.
    pub(crate) fn parse(
        operation: Operation,
        object: &str,
        (headers, query, version): (&HeaderMap, &Query, Version),
        body: &'a [u8],
    ) -> Result<Self, Refusal> {
        let action = Action::of(operation)?;
        let addressed = (action != Action::Insert).then(|| address::keys(object)).transpose()?;
        let condition = condition(action, headers)?;
        if action != Action::Delete {
            format::check_content_type(headers)?;
        }
        let reply = match action {
            Action::Insert => {
                Reply { echo: format::echo(headers)?, metadata: format::metadata(headers, query, version)? }
            }
            _ => Reply { echo: Echo::NoContent, metadata: Metadata::None },
        };
        let sent = match action {
            Action::Delete => Sent::default(),
            _ => parse::entity(body)?,
        };
        let keys = match addressed {
            None => Keys { partition: key(sent.partition)?, row: key(sent.row)? },
            Some(keys) => {
                // Clients send keys of other types as they print them in the address: there is nothing to compare.
                let is_other = |sent, key: &str| matches!(sent, Some(Value::String(sent)) if sent != key);
                if is_other(sent.partition, &keys.partition) || is_other(sent.row, &keys.row) {
                    return Err(parse::invalid("The keys in the body are not those of the address."));
                }
                keys
            }
        };
        keys.check()?;
        sent.entity.check(&keys)?;
        Ok(Self { action, keys, condition, entity: sent.entity, reply })
    }

    /// The row that it changes.
    pub(crate) fn row_key(&self) -> bytes::Bytes {
        keys::row_key(&self.keys.row)
    }

    /// What it does to the row as it is.
    pub(crate) fn apply(&self, current: Option<&Row>) -> Result<Mutation, Refusal> {
        match (self.action, &self.condition, current) {
            (Action::Insert, _, Some(_)) => return Err(ErrorCode::EntityAlreadyExists.into()),
            (Action::Delete, _, None) | (_, Some(_), None) => return Err(ErrorCode::ResourceNotFound.into()),
            (_, Some(condition), Some(row)) if !condition.matches(&row.token.0.into()) => {
                return Err(ErrorCode::UpdateConditionNotSatisfied.into());
            }
            _ => {}
        }
        let key = self.row_key();
        match (self.action, current) {
            (Action::Delete, _) => Ok(Mutation::Delete(key)),
            (Action::Merge, Some(row)) => {
                let mut merged = Entity::decode(&row.value)?;
                merged.merge(&self.entity);
                merged.check(&self.keys)?;
                Ok(Mutation::Put(key, merged.encode()?))
            }
            _ => Ok(Mutation::Put(key, self.entity.encode()?)),
        }
    }

    /// The reply once it was committed with that stamp.
    pub(crate) fn respond(&self, stamp: Stamp, origin: Origin<'_>) -> Response {
        let mut response = match (self.action, self.reply.echo) {
            (Action::Insert, Echo::Unasked | Echo::Content) => {
                let renderer = Renderer {
                    metadata: self.reply.metadata,
                    endpoint: origin.endpoint,
                    account: origin.account,
                    table: origin.table,
                };
                let mut body = Vec::new();
                renderer.entity(&mut body, Stands::Alone, (&self.keys, stamp, &self.entity), None);
                format::json(StatusCode::CREATED, self.reply.metadata, body)
            }
            _ => format::empty(StatusCode::NO_CONTENT),
        };
        let headers = &mut response.headers;
        if self.action != Action::Delete {
            put(headers, ETAG.as_str(), &TableETag::from(stamp).to_string());
        }
        if self.action == Action::Insert {
            self.reply.echo.confirm(headers);
            let link = format!("{}/{}", origin.endpoint, entity_link(origin.table, &self.keys));
            put(headers, LOCATION.as_str(), &link);
            put(headers, "dataserviceid", &link);
        }
        response
    }
}

/// A key of an entity that is inserted.
fn key(sent: Option<Value<'_>>) -> Result<String, Refusal> {
    match sent {
        None => Err(ErrorCode::PropertiesNeedValue.into()),
        Some(Value::String(key)) => Ok(key.into_owned()),
        Some(_) => Err(parse::invalid("PartitionKey and RowKey are strings.")),
    }
}

/// Adds a header whose value is known to be good for one; a value that is not, is left out.
pub(crate) fn put(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// What `If-Match` says, where it may be.
fn condition(action: Action, headers: &HeaderMap) -> Result<Option<ETagPattern<TableETag>>, Refusal> {
    if action != Action::Insert && headers.filled("if-none-match")?.is_some() {
        return Err(parse::invalid("If-None-Match is not supported here."));
    }
    let Some(text) = headers.filled("if-match")? else {
        return match action {
            Action::Delete => Err(Refusal::missing_header("If-Match")),
            _ => Ok(None),
        };
    };
    if action == Action::Insert {
        return Ok(None);
    }
    let is_tag = text.strip_prefix("W/").unwrap_or(text).strip_prefix('"').is_some_and(|t| t.ends_with('"'));
    let pattern = ETagPattern::parse(text);
    if (is_tag || pattern.is_any()) && !pattern.is_list() {
        Ok(Some(pattern))
    } else {
        Err(parse::invalid("The ETag in If-Match is malformed."))
    }
}

impl TableService {
    /// Insert Entity, Update Entity, Merge Entity, Insert Or Replace Entity, Insert Or Merge Entity, Delete Entity.
    pub(crate) async fn write_entity(&self, mut request: Request) -> Result<Response, Refusal> {
        let limit = request.operation.row().body.limit().unwrap_or_default();
        let body = request.read_body(limit).await?;
        let table = self.table(&request.account, &request.container).await?;
        let said = (&request.headers, &request.query, request.version);
        let write = Write::parse(request.operation, &request.object, said, &body)?;
        allowed::check_keys(&request.caller, &write.keys, request.version)?;
        let partition = keys::partition(table.space, &write.keys.partition);
        let row = write.row_key();
        let written = self.transact(&partition, Reads::key(row.clone()), |view| {
            let mutation = write.apply(view.row(&row))?;
            Ok(Decision::Write(Change::of([mutation]), view.stamp))
        });
        let stamp = written.await?;
        let origin =
            Origin { endpoint: &request.endpoint, account: &request.account.name, table: &request.container };
        Ok(write.respond(stamp, origin))
    }
}
