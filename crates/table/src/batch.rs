//! Entity Group Transaction: up to 100 writes to entities of one partition, all of them or none.
//!
//! A PartitionKey is a partition of the store, so the change set is one commit: every operation is judged on the rows as
//! they are in one snapshot, by the same rules as if it had come alone, and nobody sees some of them without the others.
//! All entities that it writes carry the same stamp. A batch may instead hold a single query of entities.
//!
//! Who sends the batch was found out by its own credentials; what each operation needs is checked here. An operation that
//! brings credentials itself has to be allowed by those, too. An operation that
//! fails is answered as the live service does it: 202, with that operation's refusal as the only part, its index in front
//! of the message. A batch that cannot be read at all gets a plain refusal.

pub(crate) mod multipart;
mod reply;

use std::collections::HashSet;
use std::pin::Pin;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use lazuli_concurrency::Stamp;
use lazuli_protocol::request::{Caller, Carried, collect, full};
use lazuli_protocol::{ErrorCode, Headers, Operation, Query, Refusal, Request, Response, Service, names};
use lazuli_store::{Change, Decision, MAX_SCAN_BYTES, Reads};

use crate::json::parse::invalid;
use crate::write::{Action, Origin, Write};
use crate::{TableService, allowed, keys};

use multipart::{Contents, Sent};

/// The most operations in a change set.
const MAX_OPERATIONS: usize = 100;
/// The longest reply to one operation, which is a page of entities: JSON takes several times the bytes of their rows.
const MAX_REPLY: usize = 16 * MAX_SCAN_BYTES;

/// The operation that fails a change set, and why.
#[derive(Debug)]
struct Failure {
    index: usize,
    refusal: Refusal,
}

impl Failure {
    fn at(index: usize) -> impl FnOnce(Refusal) -> Self {
        move |refusal| Self { index, refusal }
    }
}

/// What a change set asks for: writes to different entities of one partition, in their order.
#[derive(Debug)]
struct Group<'a> {
    table: String,
    writes: Vec<Write<'a>>,
}

impl TableService {
    /// Entity Group Transaction.
    pub(crate) async fn entity_group_transaction(&self, mut request: Request) -> Result<Response, Refusal> {
        let carried = request.carried.take().ok_or(ErrorCode::InternalError)?;
        let content_type = request.headers.text(CONTENT_TYPE.as_str())?;
        let content_type = content_type.ok_or_else(|| Refusal::missing_header(CONTENT_TYPE))?.to_owned();
        let limit = request.operation.row().body.limit().unwrap_or_default();
        let body = request.read_body(limit).await?;
        match multipart::contents(&content_type, &body)? {
            Contents::Query(sent) => self.batched_query(request, &*carried, &sent).await,
            Contents::ChangeSet(operations) => self.change_set(&request, &*carried, &operations).await,
        }
    }

    async fn change_set(
        &self,
        request: &Request,
        carried: &dyn Carried,
        operations: &[Sent<'_>],
    ) -> Result<Response, Refusal> {
        let admitted = admit(request, carried, operations).await;
        let group = match admitted.and_then(|callers| group(request, carried, operations, &callers)) {
            Ok(group) => group,
            Err(failure) => return Ok(failed(request, operations, failure)),
        };
        let stamp = match self.commit(request, &group).await? {
            Ok(stamp) => stamp,
            Err(failure) => return Ok(failed(request, operations, failure)),
        };
        let (endpoint, account) = (request.endpoint.as_str(), request.account.name.as_str());
        let origin = Origin { endpoint, account, table: &group.table };
        let mut parts = Vec::with_capacity(operations.len());
        for (operation, write) in operations.iter().zip(&group.writes) {
            parts.push(part(operation, write.respond(stamp, origin)).await?);
        }
        Ok(reply::change_set(&parts))
    }

    /// Carries out all writes, or says which one cannot be carried out.
    async fn commit(&self, request: &Request, group: &Group<'_>) -> Result<Result<Stamp, Failure>, Refusal> {
        let Some(first) = group.writes.first() else { return Err(ErrorCode::InvalidInput.into()) };
        let table = match self.table(&request.account, &group.table).await {
            Ok(table) => table,
            Err(refusal) => return Ok(Err(Failure { index: 0, refusal })),
        };
        let partition = keys::partition(table.space, &first.keys.partition);
        let rows: Vec<Bytes> = group.writes.iter().map(Write::row_key).collect();
        let mut index = None;
        let written = self.transact(&partition, Reads::keys(rows.iter().cloned()), |view| {
            let mut change = Change::default();
            for (at, (write, row)) in group.writes.iter().zip(&rows).enumerate() {
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
            (Err(refusal), Some(index)) => Ok(Err(Failure { index, refusal })),
            (Err(refusal), None) if refusal.code() == ErrorCode::TableNotFound => {
                Ok(Err(Failure { index: 0, refusal }))
            }
            (Err(refusal), None) => Err(refusal),
        }
    }

    /// The other kind of batch: one query of entities.
    async fn batched_query(
        &self,
        request: Request,
        carried: &dyn Carried,
        sent: &Sent<'_>,
    ) -> Result<Response, Refusal> {
        let (operation, address) = carried.locate(&sent.head)?;
        if operation != Operation::QueryEntities {
            return Err(invalid("A batch holds one change set or one query of entities."));
        }
        let (request_id, now) = (request.request_id, request.now);
        let asked = async {
            let own = admit(&request, carried, std::slice::from_ref(sent)).await;
            let own = own.map_err(|failure| failure.refusal)?.pop().flatten();
            allowed::check_operation(&request.caller, operation, &address.container, request.version)?;
            let caller = allowed::narrower(&request.caller, own, request.version)?;
            let query = Query::parse(sent.head.uri.query().unwrap_or_default())?;
            let inner = Request {
                operation,
                caller,
                container: address.container,
                object: address.object,
                query,
                headers: sent.head.headers.clone(),
                body: full(""),
                content_length: Some(0),
                ..request
            };
            part(sent, self.call(inner).await?).await
        };
        Ok(reply::batch(match asked.await {
            Ok(part) => part,
            Err(refusal) => reply::refused(&sent.ids, 0, &refusal, (request_id, now)),
        }))
    }
}

/// The caller of each operation that brings credentials of its own. Refuses the first whose credentials do not allow it.
/// Most bring none; some clients repeat the signature of the batch.
async fn admit(
    request: &Request,
    carried: &dyn Carried,
    operations: &[Sent<'_>],
) -> Result<Vec<Option<Caller>>, Failure> {
    let mut callers = vec![];
    for (index, Sent { head, .. }) in operations.iter().take(MAX_OPERATIONS).enumerate() {
        let query = Query::parse(head.uri.query().unwrap_or_default()).map_err(Failure::at(index))?;
        let brings_its_own = query.contains("sig") || head.headers.contains_key(AUTHORIZATION);
        callers.push(match brings_its_own {
            true => {
                let admitted = carried.admit(head.clone(), request.request_id).await;
                Some(admitted.map_err(Failure::at(index))?.caller)
            }
            false => None,
        });
    }
    Ok(callers)
}

/// Reads the operations of a change set, in order, and refuses the first that its caller may not do or that cannot be in
/// one with those before it.
fn group<'a>(
    request: &Request,
    carried: &dyn Carried,
    operations: &[Sent<'a>],
    callers: &[Option<Caller>],
) -> Result<Group<'a>, Failure> {
    if operations.len() > MAX_OPERATIONS {
        let refusal = invalid("The batch request operation exceeds the maximum 100 changes per change set.");
        return Err(Failure { index: MAX_OPERATIONS - 1, refusal });
    }
    let mut group = Group { table: String::new(), writes: Vec::with_capacity(operations.len()) };
    for (index, operation) in operations.iter().enumerate() {
        let (table, write) = read(request, carried, operation).map_err(Failure::at(index))?;
        if let Some(own) = callers.get(index).and_then(Option::as_ref) {
            allowed::check_keys(own, &write.keys, request.version).map_err(Failure::at(index))?;
        }
        match group.writes.first() {
            None => group.table = table,
            Some(first)
                if !group.table.eq_ignore_ascii_case(&table)
                    || first.keys.partition != write.keys.partition =>
            {
                let refusal = ErrorCode::CommandsInBatchActOnDifferentPartitions.into();
                return Err(Failure { index, refusal });
            }
            Some(_) => {}
        }
        group.writes.push(write);
    }
    let mut rows = HashSet::with_capacity(group.writes.len());
    match group.writes.iter().position(|write| !rows.insert(write.keys.row.as_str())) {
        Some(index) => Err(Failure { index, refusal: ErrorCode::InvalidDuplicateRow.into() }),
        None => Ok(group),
    }
}

/// The table that an operation is for, and what it does to it.
fn read<'a>(
    request: &Request,
    carried: &dyn Carried,
    sent: &Sent<'a>,
) -> Result<(String, Write<'a>), Refusal> {
    let (operation, address) = carried.locate(&sent.head)?;
    let (caller, version) = (&request.caller, request.version);
    allowed::check_operation(caller, operation, &address.container, version)?;
    Action::of(operation)?;
    names::check_table(&address.container)?;
    let query = Query::parse(sent.head.uri.query().unwrap_or_default())?;
    let said = (&sent.head.headers, &query, version);
    let write = Write::parse(operation, &address.object, said, sent.body)?;
    allowed::check_keys(caller, &write.keys, version)?;
    Ok((address.container, write))
}

/// One part of the reply.
async fn part(sent: &Sent<'_>, mut response: Response) -> Result<Bytes, Refusal> {
    let body = collect(Pin::new(&mut response.body), MAX_REPLY).await?;
    Ok(reply::part(&sent.ids, response.status, &response.headers, &body))
}

/// The reply to a change set of which nothing was carried out.
fn failed(request: &Request, operations: &[Sent<'_>], Failure { index, refusal }: Failure) -> Response {
    let none = multipart::Ids::default();
    let ids = operations.get(index).map_or(&none, |operation| &operation.ids);
    reply::change_set(&[reply::refused(ids, index, &refusal, (request.request_id, request.now))])
}
