//! Insert, update, merge and delete of single entities. Operations in a transaction follow the same rules.
//!
//! The ETag of an entity is the stamp of the commit that wrote its row, so each change gives a new ETag.
//! Update, merge and delete have `If-Match`; insert-or-replace and insert-or-merge do not.

use http::header::{ETAG, LOCATION};
use http::{HeaderMap, StatusCode};
use lazuli_concurrency::{ETagPattern, Stamp, TableETag, Timestamp};
use lazuli_protocol::conflict::Conflict;
use lazuli_protocol::{ErrorCode, Headers, Operation, Query, Refusal, Request, Response, Version};
use lazuli_service::reply::put;
use lazuli_store::{Change, Decision, Mutation, Reads, Row};

use crate::entity::Entity;
use crate::format::{self, Echo};
use crate::json::parse::{self, EntityBody};
use crate::json::render::{Metadata, Placement, Renderer, entity_link};
use crate::keys::{self, Keys};
use crate::value::Value;
use crate::{TableService, address, authorization};

/// The write of one entity, parsed from a request.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    pub(crate) action: WriteAction,
    pub(crate) keys: Keys,
    /// `If-Match`; `None` if the write is unconditional.
    condition: Option<ETagPattern<TableETag>>,
    entity: Entity<'a>,
    reply: ReplyOptions,
}

/// The change that a write makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteAction {
    Insert,
    Replace,
    Merge,
    Delete,
}

/// The options for the reply to a write.
#[derive(Clone, Copy, Debug)]
struct ReplyOptions {
    echo: Echo,
    metadata: Metadata,
}

/// The parts of a request's address that the links in its reply need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkBase<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) account: &'a str,
    pub(crate) table: &'a str,
}

/// Returns the ETag and the time of the version in a row.
fn version(row: &Row) -> (String, Timestamp) {
    let tag = TableETag::from(row.token.0);
    (tag.to_string(), tag.timestamp())
}

impl WriteAction {
    /// Returns the change that an operation makes. Refuses operations that change no entity.
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
    /// Parses the write from an operation on a table.
    pub(crate) fn parse(
        operation: Operation,
        object: &str,
        (headers, query, version): (&HeaderMap, &Query, Version),
        body: &'a [u8],
    ) -> Result<Self, Refusal> {
        let action = WriteAction::of(operation)?;
        let addressed = (action != WriteAction::Insert).then(|| address::keys(object)).transpose()?;
        let condition = condition(action, headers)?;
        if action != WriteAction::Delete {
            format::check_content_type(headers)?;
        }
        let reply = match action {
            WriteAction::Insert => ReplyOptions {
                echo: format::echo(headers)?,
                metadata: format::metadata(headers, query, version)?,
            },
            _ => ReplyOptions { echo: Echo::NoContent, metadata: Metadata::None },
        };
        let sent = match action {
            WriteAction::Delete => EntityBody::default(),
            _ => parse::entity(body)?,
        };
        let keys = match addressed {
            None => Keys { partition: key(sent.partition)?, row: key(sent.row)? },
            Some(keys) => {
                // A client whose keys are not strings sends them in the body with their own types, and as
                // text in the address. Only strings can be compared.
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

    /// Returns the key of the row that the write changes.
    pub(crate) fn row_key(&self) -> bytes::Bytes {
        keys::row_key(&self.keys.row)
    }

    /// Applies the write to the current row. Refuses the write if its condition does not hold.
    pub(crate) fn apply(&self, current: Option<&Row>) -> Result<Mutation, Refusal> {
        match (self.action, &self.condition, current) {
            (WriteAction::Insert, _, Some(row)) => {
                let conflict = Conflict::of_version(version(row));
                return Err(Refusal::new(ErrorCode::EntityAlreadyExists).with_conflict(conflict));
            }
            (WriteAction::Delete, _, None) | (_, Some(_), None) => {
                return Err(ErrorCode::ResourceNotFound.into());
            }
            (_, Some(condition), Some(row)) if !condition.matches(&row.token.0.into()) => {
                let conflict = Conflict::of_etag("If-Match", condition, Some(version(row)));
                return Err(Refusal::new(ErrorCode::UpdateConditionNotSatisfied).with_conflict(conflict));
            }
            _ => {}
        }
        let key = self.row_key();
        match (self.action, current) {
            (WriteAction::Delete, _) => Ok(Mutation::Delete(key)),
            (WriteAction::Merge, Some(row)) => {
                let mut merged = Entity::decode(&row.value)?;
                merged.merge(&self.entity);
                merged.check(&self.keys)?;
                Ok(Mutation::Put(key, merged.encode()?))
            }
            _ => Ok(Mutation::Put(key, self.entity.encode()?)),
        }
    }

    /// Returns the reply after a commit with the given stamp.
    pub(crate) fn respond(&self, stamp: Stamp, links: LinkBase<'_>) -> Response {
        let mut response = match (self.action, self.reply.echo) {
            (WriteAction::Insert, Echo::Unspecified | Echo::Content) => {
                let renderer = Renderer {
                    metadata: self.reply.metadata,
                    endpoint: links.endpoint,
                    account: links.account,
                    table: links.table,
                };
                let mut body = Vec::new();
                renderer.entity(&mut body, Placement::Alone, (&self.keys, stamp, &self.entity), None);
                format::json(StatusCode::CREATED, self.reply.metadata, body)
            }
            _ => format::empty(StatusCode::NO_CONTENT),
        };
        let headers = &mut response.headers;
        if self.action != WriteAction::Delete {
            put(headers, ETAG.as_str(), TableETag::from(stamp).to_string());
        }
        if self.action == WriteAction::Insert {
            self.reply.echo.confirm(headers);
            let link = format!("{}/{}", links.endpoint, entity_link(links.table, &self.keys));
            put(headers, LOCATION.as_str(), &link);
            put(headers, "dataserviceid", &link);
        }
        response
    }
}

/// Returns the PartitionKey or RowKey in the body of an insertion.
fn key(sent: Option<Value<'_>>) -> Result<String, Refusal> {
    match sent {
        None => Err(ErrorCode::PropertiesNeedValue.into()),
        Some(Value::String(key)) => Ok(key.into_owned()),
        Some(_) => Err(parse::invalid("PartitionKey and RowKey are strings.")),
    }
}

/// Parses `If-Match`. Insert ignores it, and delete requires it.
fn condition(action: WriteAction, headers: &HeaderMap) -> Result<Option<ETagPattern<TableETag>>, Refusal> {
    if action != WriteAction::Insert && headers.filled("if-none-match")?.is_some() {
        return Err(parse::invalid("If-None-Match is not supported here."));
    }
    let Some(text) = headers.filled("if-match")? else {
        return match action {
            WriteAction::Delete => Err(Refusal::missing_header("If-Match")),
            _ => Ok(None),
        };
    };
    if action == WriteAction::Insert {
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
    /// Serves Insert Entity, Update Entity, Merge Entity, Insert Or Replace Entity, Insert Or Merge Entity
    /// and Delete Entity.
    pub(crate) async fn write_entity(&self, mut request: Request) -> Result<Response, Refusal> {
        let body = request.read_document().await?;
        let table = self.table(&request.account, &request.container).await?;
        let options = (&request.headers, &request.query, request.version);
        let write = Write::parse(request.operation, &request.object, options, &body)?;
        authorization::check_keys(&request.caller, &write.keys, request.version)?;
        let partition = keys::partition(table.space, &write.keys.partition);
        let row = write.row_key();
        let written = self.rows.transact(&partition, Reads::key(row.clone()), |view| {
            let mutation = write.apply(view.row(&row))?;
            Ok(Decision::Write(Change::of([mutation]), view.stamp))
        });
        let stamp = written.await?;
        let links = LinkBase {
            endpoint: &request.endpoint,
            account: &request.account.name,
            table: &request.container,
        };
        Ok(write.respond(stamp, links))
    }
}
