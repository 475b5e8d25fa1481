//! Entity Group Transaction: up to 100 writes to entities of one partition, all of them or none.
//!
//! A PartitionKey is a partition of the store, so a change set is one commit. All operations are decided on
//! the rows of one snapshot, by the same rules as single operations, and readers see all of their effects or
//! none. All written entities have the same stamp. Instead of a change set, a batch may contain a single
//! query of entities.
//!
//! The front end authenticates the batch by its own credentials. The permissions for each operation are
//! checked here. If an operation has credentials of its own, they must allow it too. If an operation fails,
//! the reply is that of the live service: status 202 with one part, which holds the refusal of that
//! operation, with its index before the message. A batch that cannot be parsed gets a plain refusal.

pub(crate) mod multipart;
mod reply;

use std::collections::HashSet;
use std::pin::Pin;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use lazuli_concurrency::Stamp;
use lazuli_protocol::request::{Caller, SubRequests, collect, full};
use lazuli_protocol::{ErrorCode, Headers, Operation, Query, Refusal, Request, Response, Service, names};
use lazuli_service::internal_error;
use lazuli_store::{Change, Decision, MAX_SCAN_BYTES, Reads};

use crate::json::parse::invalid;
use crate::write::{LinkBase, Write, WriteAction};
use crate::{TableService, authorization, keys};

use multipart::{BatchContents, BatchRequest};

/// Maximum number of operations in a change set.
const MAX_OPERATIONS: usize = 100;
/// Maximum size of the reply to one operation, in bytes. The largest is a page of entities; as JSON they take
/// several times the bytes of their rows.
const MAX_REPLY_BYTES: usize = 16 * MAX_SCAN_BYTES;

/// The operation that makes a change set fail.
#[derive(Debug)]
struct FailedOperation {
    index: usize,
    refusal: Refusal,
}

impl FailedOperation {
    /// Returns a function that adds the index of the operation to a refusal.
    fn at(index: usize) -> impl FnOnce(Refusal) -> Self {
        move |refusal| Self { index, refusal }
    }
}

/// A parsed change set: writes to different entities of one partition, in the order of the operations.
#[derive(Debug)]
struct ChangeSet<'a> {
    table: String,
    writes: Vec<Write<'a>>,
}

impl TableService {
    /// Handles Entity Group Transaction.
    pub(crate) async fn entity_group_transaction(&self, mut request: Request) -> Result<Response, Refusal> {
        let sub_requests = request.sub_requests.take();
        let sub_requests =
            sub_requests.ok_or_else(|| internal_error("a batch came without its sub-requests"))?;
        let content_type = request.headers.text(CONTENT_TYPE.as_str())?;
        let content_type = content_type.ok_or_else(|| Refusal::missing_header(CONTENT_TYPE))?.to_owned();
        let body = request.read_document().await?;
        match multipart::parse(&content_type, &body)? {
            BatchContents::Query(part) => self.batched_query(request, &*sub_requests, &part).await,
            BatchContents::ChangeSet(operations) => {
                self.change_set(&request, &*sub_requests, &operations).await
            }
        }
    }

    async fn change_set(
        &self,
        request: &Request,
        sub_requests: &dyn SubRequests,
        operations: &[BatchRequest<'_>],
    ) -> Result<Response, Refusal> {
        let admitted = admit(request, sub_requests, operations).await;
        let change_set = match admitted
            .and_then(|callers| parse_change_set(request, sub_requests, operations, &callers))
        {
            Ok(change_set) => change_set,
            Err(failure) => return Ok(failed(request, sub_requests, operations, failure)),
        };
        let stamp = match self.commit(request, &change_set).await? {
            Ok(stamp) => stamp,
            Err(failure) => return Ok(failed(request, sub_requests, operations, failure)),
        };
        let (endpoint, account) = (request.endpoint.as_str(), request.account.name.as_str());
        let links = LinkBase { endpoint, account, table: &change_set.table };
        let mut parts = Vec::with_capacity(operations.len());
        for (operation, write) in operations.iter().zip(&change_set.writes) {
            parts.push(part(operation, write.respond(stamp, links)).await?);
        }
        Ok(reply::change_set(&parts))
    }

    /// Commits all writes, or returns the operation that failed.
    async fn commit(
        &self,
        request: &Request,
        change_set: &ChangeSet<'_>,
    ) -> Result<Result<Stamp, FailedOperation>, Refusal> {
        let Some(first) = change_set.writes.first() else { return Err(ErrorCode::InvalidInput.into()) };
        let table = match self.table(&request.account, &change_set.table).await {
            Ok(table) => table,
            Err(refusal) => return Ok(Err(FailedOperation { index: 0, refusal })),
        };
        let partition = keys::partition(table.space, &first.keys.partition);
        let rows: Vec<Bytes> = change_set.writes.iter().map(Write::row_key).collect();
        let mut index = None;
        let written = self.rows.transact(&partition, Reads::keys(rows.iter().cloned()), |view| {
            let mut change = Change::default();
            for (at, (write, row)) in change_set.writes.iter().zip(&rows).enumerate() {
                index = Some(at);
                change.mutations.push(write.apply(view.row(row))?);
            }
            index = None;
            // Merging a little into large entities rewrites far more than was sent.
            change.bulk = true;
            Ok(Decision::Write(change, view.stamp))
        });
        match (written.await, index) {
            (Ok(stamp), _) => Ok(Ok(stamp)),
            (Err(refusal), Some(index)) => Ok(Err(FailedOperation { index, refusal })),
            (Err(refusal), None) if refusal.code() == ErrorCode::TableNotFound => {
                Ok(Err(FailedOperation { index: 0, refusal }))
            }
            (Err(refusal), None) => Err(refusal),
        }
    }

    /// Executes a batch that consists of one query of entities.
    async fn batched_query(
        &self,
        request: Request,
        sub_requests: &dyn SubRequests,
        sub_request: &BatchRequest<'_>,
    ) -> Result<Response, Refusal> {
        let (operation, address) = sub_requests.locate(&sub_request.head)?;
        if operation != Operation::QueryEntities {
            return Err(invalid("A batch holds one change set or one query of entities."));
        }
        let (request_id, now) = (request.request_id, request.now);
        let executed = async {
            let own = admit(&request, sub_requests, std::slice::from_ref(sub_request)).await;
            let own = own.map_err(|failure| failure.refusal)?.pop().flatten();
            authorization::check_operation(&request.caller, operation, &address.container, request.version)?;
            let caller = authorization::narrower_caller(&request.caller, own, request.version)?;
            let query = Query::parse(sub_request.head.uri.query().unwrap_or_default())?;
            let inner = Request {
                operation,
                caller,
                container: address.container,
                object: address.object,
                query,
                headers: sub_request.head.headers.clone(),
                body: full(""),
                content_length: Some(0),
                ..request
            };
            part(sub_request, self.call(inner).await?).await
        };
        Ok(reply::batch(match executed.await {
            Ok(part) => part,
            Err(refusal) => {
                sub_requests.log_refusal(&sub_request.head, request_id, &refusal);
                reply::refused(&sub_request.ids, 0, &refusal, (request_id, now))
            }
        }))
    }
}

/// Returns the caller of each operation that has credentials of its own. Refuses the first operation whose
/// credentials do not allow it. Most operations have none; some clients repeat the signature of the batch.
async fn admit(
    request: &Request,
    sub_requests: &dyn SubRequests,
    operations: &[BatchRequest<'_>],
) -> Result<Vec<Option<Caller>>, FailedOperation> {
    let mut callers = vec![];
    for (index, BatchRequest { head, .. }) in operations.iter().take(MAX_OPERATIONS).enumerate() {
        let query = Query::parse(head.uri.query().unwrap_or_default()).map_err(FailedOperation::at(index))?;
        let has_credentials = query.contains("sig") || head.headers.contains_key(AUTHORIZATION);
        callers.push(match has_credentials {
            true => {
                let admitted = sub_requests.admit(head.clone(), request.request_id).await;
                Some(admitted.map_err(FailedOperation::at(index))?.caller)
            }
            false => None,
        });
    }
    Ok(callers)
}

/// Parses the operations of a change set in order. Refuses the first operation that its caller may not do, or
/// that cannot be in one change set with the operations before it.
fn parse_change_set<'a>(
    request: &Request,
    sub_requests: &dyn SubRequests,
    operations: &[BatchRequest<'a>],
    callers: &[Option<Caller>],
) -> Result<ChangeSet<'a>, FailedOperation> {
    if operations.len() > MAX_OPERATIONS {
        let refusal = invalid("The batch request operation exceeds the maximum 100 changes per change set.");
        return Err(FailedOperation { index: MAX_OPERATIONS - 1, refusal });
    }
    let mut change_set = ChangeSet { table: String::new(), writes: Vec::with_capacity(operations.len()) };
    for (index, operation) in operations.iter().enumerate() {
        let (table, write) =
            parse_write(request, sub_requests, operation).map_err(FailedOperation::at(index))?;
        if let Some(own) = callers.get(index).and_then(Option::as_ref) {
            authorization::check_keys(own, &write.keys, request.version)
                .map_err(FailedOperation::at(index))?;
        }
        match change_set.writes.first() {
            None => change_set.table = table,
            Some(first)
                if !change_set.table.eq_ignore_ascii_case(&table)
                    || first.keys.partition != write.keys.partition =>
            {
                let refusal = ErrorCode::CommandsInBatchActOnDifferentPartitions.into();
                return Err(FailedOperation { index, refusal });
            }
            Some(_) => {}
        }
        change_set.writes.push(write);
    }
    let mut rows = HashSet::with_capacity(change_set.writes.len());
    match change_set.writes.iter().position(|write| !rows.insert(write.keys.row.as_str())) {
        Some(index) => Err(FailedOperation { index, refusal: ErrorCode::InvalidDuplicateRow.into() }),
        None => Ok(change_set),
    }
}

/// Parses an operation. Returns the name of its table and the write.
fn parse_write<'a>(
    request: &Request,
    sub_requests: &dyn SubRequests,
    sub_request: &BatchRequest<'a>,
) -> Result<(String, Write<'a>), Refusal> {
    let (operation, address) = sub_requests.locate(&sub_request.head)?;
    let (caller, version) = (&request.caller, request.version);
    authorization::check_operation(caller, operation, &address.container, version)?;
    WriteAction::of(operation)?;
    names::check_table(&address.container)?;
    let query = Query::parse(sub_request.head.uri.query().unwrap_or_default())?;
    let options = (&sub_request.head.headers, &query, version);
    let write = Write::parse(operation, &address.object, options, sub_request.body)?;
    authorization::check_keys(caller, &write.keys, version)?;
    Ok((address.container, write))
}

/// Renders the reply to one operation as a part of the reply to the batch.
async fn part(sub_request: &BatchRequest<'_>, mut response: Response) -> Result<Bytes, Refusal> {
    let body = collect(Pin::new(&mut response.body), MAX_REPLY_BYTES).await?;
    Ok(reply::part(&sub_request.ids, response.status, &response.headers, &body))
}

/// Returns the reply to a change set that failed.
fn failed(
    request: &Request,
    sub_requests: &dyn SubRequests,
    operations: &[BatchRequest<'_>],
    FailedOperation { index, refusal }: FailedOperation,
) -> Response {
    if let Some(operation) = operations.get(index) {
        sub_requests.log_refusal(&operation.head, request.request_id, &refusal);
    }
    let none = multipart::ContentIds::default();
    let ids = operations.get(index).map_or(&none, |operation| &operation.ids);
    reply::change_set(&[reply::refused(ids, index, &refusal, (request.request_id, request.now))])
}
