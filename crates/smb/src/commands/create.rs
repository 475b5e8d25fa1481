//! CREATE: opens a file, a directory or a pipe, or reconnects a durable handle.

pub(crate) mod contexts;
mod durable;
pub(crate) mod path;
mod rights;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use lazuli_concurrency::{Caching, ShareMode, Timestamp};
use lazuli_file::handles::{Action, CreateRequest as Request, Created, Failure, Info, Tree};
use lazuli_file::opens::{CacheRequest, Client, OpenLocation, OpenRequest, Opened};
use lazuli_file::{INHERITED_SDDL, fold_name};
use lazuli_protocol::Account;
use lazuli_security::Descriptor;
use tokio::sync::Notify;

use super::pipe;
use crate::access_check::granted_access;
use crate::call::{Call, CommandReply, CommandResult};
use crate::change_notifier::filter;
use crate::session::handles;
use crate::session::open::{Durable, LeaseKey, Open};
use crate::wire::create::{CreateRequest, CreateResponse, Lease, LeaseV2, access, oplock, options, tag};
use crate::wire::status::Status;
use contexts::RequestedContexts;
use path::Path;

/// The highest impersonation level.
const DELEGATE: u32 = 3;
/// The create options that FileModeInformation reports.
const MODE: u32 = 0x0000_103e;
const NORMAL: u32 = 0x0000_0080;

/// Executes CREATE.
pub(crate) async fn create(call: &Call) -> CommandResult {
    let request = CreateRequest::parse(&call.message)?;
    let contexts = RequestedContexts::parse(&request, call.connection.dialect())?;
    if !call.session()?.can_open() {
        return Err(Status::TOO_MANY_OPENED_FILES.into());
    }
    let Some(tree) = &call.tree()?.tree else {
        return match contexts.reconnect {
            Some(_) => Err(Status::OBJECT_NAME_NOT_FOUND.into()),
            None => pipe::create(call, &request).await,
        };
    };
    if let Some(reconnect) = contexts.reconnect {
        return durable::reconnect_durable(call, &request, &contexts, reconnect).await;
    }
    let _in_progress = durable::begin_create(call, &contexts)?;
    if let Some(reply) = durable::replay_create(call, &request, &contexts).await? {
        return Ok(reply);
    }
    // Check before anything is created; `register_open` acquires the permit.
    if call.server.open_limit.is_full(account(call)?) {
        return Err(Status::TOO_MANY_OPENED_FILES.into());
    }
    if request.impersonation > DELEGATE {
        return Err(Status::BAD_IMPERSONATION_LEVEL.into());
    }
    open_file(call, tree, &request, &contexts).await
}

async fn open_file(
    call: &Call,
    tree: &Tree,
    request: &CreateRequest,
    contexts: &RequestedContexts,
) -> CommandResult {
    let path = Path::parse(&request.name)?;
    let (disposition, kind) = rights::check_options(request)?;
    let snapshot = find_snapshot(call, tree, &path, contexts).await?;
    let granted = rights::requested_access(request.access, snapshot.is_some())?;
    let allowed = maximal_access(call, tree, &path.path, snapshot).await?;
    let granted = rights::limit_access(request.access, granted, allowed)?;
    if rights::replaces(disposition) && allowed & access::WRITE_DATA == 0 {
        return Err(Status::ACCESS_DENIED.into());
    }
    if request.options & options::DELETE_ON_CLOSE != 0 && granted & access::DELETE == 0 {
        return Err(Status::ACCESS_DENIED.into());
    }
    let key = contexts.lease.map(|lease| LeaseKey { client: call.connection.client(), key: lease.key });
    check_key(call, key, &path.path).await?;
    let if_read_only = rights::access_if_read_only(request.access, granted);
    let waiting = Arc::new(Notify::new());
    let login = call.session()?.login().ok_or(Status::USER_SESSION_DELETED)?;
    let open = OpenRequest {
        mode: ShareMode {
            access: rights::sharing_access(granted),
            share: rights::shared_access(request.share),
        },
        attribute_open: rights::attribute_open(granted),
        overwrites: rights::replaces(disposition),
        delete_on_close: request.options & options::DELETE_ON_CLOSE != 0,
        cache: cache_request(request, contexts, key),
        client: Client {
            session: call.session()?.id,
            ip: call.connection.peer.ip(),
            name: login.client_name.clone(),
        },
        place: OpenLocation::default(),
        at: Timestamp::default(),
        breaks: Some(call.server.handles.breaks.clone()),
        waits: Some(waiting.clone()),
    };
    let create = Request {
        path: path.path,
        disposition,
        kind,
        attributes: rights::stored_attributes(request.attributes),
        allocation: contexts.allocation,
        permission: security_descriptor(contexts)?,
        snapshot,
        if_read_only: if_read_only.map(rights::sharing_access),
        open,
    };
    // Boxed to keep the futures of all other commands small.
    let create = Box::pin(call.server.files.create(tree, create));
    let created = wait_for_create(call, create, &waiting).await?;
    let file = created.opened.id;
    let granted = if_read_only.filter(|_| created.opened_read_only).unwrap_or(granted);
    match register_open(call, request, contexts, (granted, allowed), snapshot.is_some(), key, created) {
        Ok((open, reply)) => close_if_disconnected(call, &open).await.map(|()| reply).map_err(Into::into),
        Err(status) => {
            // The client will not close this open, because it does not know its id.
            if let Some(key) = key {
                call.server.handles.leave_lease(key, file);
            }
            let _ = call.server.files.close_open(file).await;
            Err(status.into())
        }
    }
}

/// Returns the maximal access that the access list at a path grants, or all rights if access lists do not
/// apply. The parent directory can also grant deletion and reading of attributes.
async fn maximal_access(
    call: &Call,
    tree: &Tree,
    path: &str,
    snapshot: Option<Timestamp>,
) -> Result<u32, Status> {
    if !call.server.options.enforce_permissions {
        return Ok(access::ALL);
    }
    let Some(allowed) = acl_access(call, tree, path, snapshot).await? else { return Ok(access::ALL) };
    if allowed == access::ALL || path.is_empty() {
        return Ok(allowed);
    }
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let parent = acl_access(call, tree, directory, snapshot).await?.unwrap_or(access::ALL);
    let delete = if parent & access::DELETE_CHILD == 0 { 0 } else { access::DELETE };
    let read_attributes = if parent & access::READ_DATA == 0 { 0 } else { access::READ_ATTRIBUTES };
    Ok(allowed | delete | read_attributes)
}

/// Returns what the access list at a path grants, or `None` if nothing exists there.
async fn acl_access(
    call: &Call,
    tree: &Tree,
    path: &str,
    snapshot: Option<Timestamp>,
) -> Result<Option<u32>, Status> {
    let Some(sddl) = call.server.files.permission_at(tree, path, snapshot).await? else { return Ok(None) };
    let descriptor = Descriptor::from_sddl(&sddl).map_err(|_| Status::ACCESS_DENIED)?;
    Ok(Some(granted_access(&descriptor, rights::map_generic)))
}

/// Closes a new open if its tree connect was disconnected meanwhile. Nothing else would close it.
async fn close_if_disconnected(call: &Call, open: &Arc<Open>) -> Result<(), Status> {
    let session = call.session()?;
    if session.tree(open.tree.id).is_some() {
        return Ok(());
    }
    if session.remove_open(open.id).is_some() {
        handles::close(&call.server, open).await?;
    }
    Err(Status::NETWORK_NAME_DELETED)
}

/// Waits for an open. If that depends on other clients, sends an interim response.
async fn wait_for_create(
    call: &Call,
    mut create: Pin<Box<impl Future<Output = Result<Created, Failure>>>>,
    waiting: &Notify,
) -> Result<Created, Status> {
    tokio::select! {
        biased;
        created = &mut create => return Ok(created?),
        () = waiting.notified() => call.send_interim_response()?,
    }
    tokio::select! {
        biased;
        created = &mut create => return Ok(created?),
        () = call.cancelled.cancelled() => {}
    }
    if call.is_abandoned() { Err(Status::CANCELLED) } else { Ok(create.await?) }
}

/// Returns the account of a call's session.
fn account(call: &Call) -> Result<&Arc<Account>, Status> {
    let login = call.session()?.login().ok_or(Status::USER_SESSION_DELETED)?;
    Ok(&login.account)
}

/// Registers what the file service has opened, and returns the open and the reply.
fn register_open(
    call: &Call,
    request: &CreateRequest,
    contexts: &RequestedContexts,
    (granted, maximal_access): (u32, u32),
    is_snapshot: bool,
    key: Option<LeaseKey>,
    created: Created,
) -> Result<(Arc<Open>, CommandReply), Status> {
    let Created { opened, action, info, .. } = created;
    let server = &call.server;
    let key = key.filter(|_| !info.is_directory);
    let leases = key.zip(contexts.lease);
    if let Some((key, lease)) = leases {
        join_lease(call, key, &lease, &opened)?;
    }
    let durable = contexts.durable.filter(|_| opened.caching.contains(Caching::H) && !info.is_directory);
    let permit = server.open_limit.acquire(account(call)?).ok_or(Status::TOO_MANY_OPENED_FILES)?;
    let open = Arc::new(Open {
        file: Some(opened.id),
        is_directory: info.is_directory,
        access: granted,
        maximal_access: if is_snapshot { maximal_access & rights::READ_ONLY } else { maximal_access },
        share: request.share,
        options: request.options,
        action: action_code(action),
        lease: key,
        durable: durable.map(|request| Durable {
            timeout: request.timeout,
            create_guid: request.create_guid,
            client: call.connection.client(),
        }),
        client_create_guid: contexts
            .durable
            .and_then(|request| Some((call.connection.client(), request.create_guid?))),
        mode: AtomicU32::new(request.options & MODE),
        ..call.new_open(server.handles.persistent_id(opened.id), permit.into())?
    });
    register(call, &open)?;
    // A break that began before the open was registered is not sent; the response reports the reduced cache.
    let opened = server.files.opens().opened(opened.id).unwrap_or(opened);
    let lease = leases.and_then(|(key, lease)| join_lease(call, key, &lease, &opened).ok());
    let space = opened.id.file.space;
    match action {
        Action::Created => server.notifier.notify_created(space, &info.path, info.is_directory),
        Action::Opened => {}
        Action::Overwritten | Action::Superseded => {
            server.notifier.notify_modified(
                space,
                &info.path,
                filter::ATTRIBUTES | filter::SIZE | filter::LAST_WRITE,
            );
        }
    }
    let level = if info.is_directory { oplock::NONE } else { handles::oplock_level(opened.caching) };
    let reply = create_reply(&open, &info, contexts, level, lease);
    Ok((open, reply))
}

/// Registers an open with the server, the session and the compound.
fn register(call: &Call, open: &Arc<Open>) -> Result<(), Status> {
    call.server.handles.add(open);
    call.session()?.add_open(open.clone());
    call.compound.lock().file = Some(open.id);
    Ok(())
}

/// Returns the response to CREATE with an oplock level or a lease.
fn create_reply(
    open: &Open,
    info: &Info,
    contexts: &RequestedContexts,
    level: u8,
    lease: Option<Lease>,
) -> CommandReply {
    let mut response_contexts = vec![];
    if contexts.maximal_access.is_some_and(|known| known != info.written.filetime()) {
        response_contexts
            .push((tag::MAXIMAL_ACCESS, [0u32.to_le_bytes(), open.maximal_access.to_le_bytes()].concat()));
    }
    match (contexts.durable, open.durable) {
        (Some(request), Some(durable)) if request.create_guid.is_some() => {
            let timeout = durable.timeout.as_millis() as u64;
            response_contexts.push((tag::DURABLE_REQUEST_V2, timeout.to_le_bytes().to_vec()));
        }
        (Some(_), Some(_)) => response_contexts.push((tag::DURABLE_REQUEST, vec![0; 8])),
        _ => {}
    }
    if contexts.on_disk_id {
        let volume = open.file.map_or(0, |file| file.file.space.0);
        let mut id = [info.id.0.to_le_bytes(), volume.to_le_bytes()].concat();
        id.resize(32, 0);
        response_contexts.push((tag::ON_DISK_ID, id));
    }
    let oplock_level = if let Some(lease) = lease {
        response_contexts.push((tag::LEASE, lease.write()));
        oplock::LEASE
    } else {
        level
    };
    let times = [info.created, info.accessed, info.written, info.changed].map(Timestamp::filetime);
    let response = CreateResponse {
        oplock_level,
        action: open.action,
        times,
        allocated: info.allocated,
        length: info.length,
        attributes: if info.attributes == 0 { NORMAL } else { info.attributes },
        id: open.id,
        contexts: response_contexts,
    };
    CommandReply::new(response.write())
}

/// Adds an open to a lease. Returns the lease for the response.
fn join_lease(call: &Call, key: LeaseKey, requested: &Lease, opened: &Opened) -> Result<Lease, Status> {
    let epoch = requested.v2.map(|v2| v2.epoch);
    let joined = call.server.handles.join_lease(call.session()?, key, opened.id, opened.epoch, epoch);
    let joined = joined.ok_or(Status::INVALID_PARAMETER)?;
    let parent = requested.v2.filter(|_| requested.flags & Lease::HAS_PARENT != 0).map(|v2| v2.parent_key);
    let mut flags = if opened.breaking { Lease::BREAKING } else { 0 };
    let v2 = joined.is_v2.then(|| {
        if parent.is_some() {
            flags |= Lease::HAS_PARENT;
        }
        LeaseV2 { parent_key: parent.unwrap_or_default(), epoch: joined.epoch }
    });
    Ok(Lease { key: key.key, state: opened.caching.bits(), flags, v2 })
}

/// Fails if the client uses the lease key for another file.
async fn check_key(call: &Call, key: Option<LeaseKey>, path: &str) -> Result<(), Status> {
    let Some(open) = key.and_then(|key| call.server.handles.open_with_lease(key)) else { return Ok(()) };
    match call.server.files.info(open).await {
        Ok(info) if fold_name(&info.path) != fold_name(path) => Err(Status::INVALID_PARAMETER),
        _ => Ok(()),
    }
}

/// Returns the cache that the client requests.
fn cache_request(
    request: &CreateRequest,
    contexts: &RequestedContexts,
    key: Option<LeaseKey>,
) -> CacheRequest {
    match (request.oplock_level, key, contexts.lease) {
        (oplock::II, ..) => CacheRequest::Oplock(Caching::R),
        (oplock::EXCLUSIVE, ..) => CacheRequest::Oplock(Caching::RW),
        (oplock::BATCH, ..) => CacheRequest::Oplock(Caching::RWH),
        (oplock::LEASE, Some(LeaseKey { client, key }), Some(lease)) => {
            // Invalid combinations are granted as a lease without rights.
            let state = Caching::from_bits(lease.state & Caching::RWH.bits()).unwrap_or(Caching::NONE);
            CacheRequest::Lease { client, key, state }
        }
        _ => CacheRequest::None,
    }
}

/// Returns the SDDL of the requested security descriptor, completed with defaults, or `None` if the client
/// sends none.
fn security_descriptor(contexts: &RequestedContexts) -> Result<Option<String>, Status> {
    let Some(bytes) = &contexts.descriptor else { return Ok(None) };
    let descriptor = Descriptor::from_bytes(bytes).map_err(|_| Status::INVALID_PARAMETER)?;
    let inherited = Descriptor::from_sddl(INHERITED_SDDL).unwrap_or_default();
    Ok(Some(descriptor.or_defaults(inherited).to_sddl()))
}

/// Returns the snapshot that the path or a context names. Paths and some clients name it only by its second.
async fn find_snapshot(
    call: &Call,
    tree: &Tree,
    path: &Path,
    contexts: &RequestedContexts,
) -> Result<Option<Timestamp>, Status> {
    let twrp = contexts.timewarp.filter(|time| *time != 0).map(Timestamp::from_filetime);
    let Some(time) = twrp.or(path.snapshot) else { return Ok(None) };
    let snapshots = call.server.files.snapshots_of(tree).await?;
    let found = snapshots.iter().find(|snapshot| **snapshot == time);
    let found =
        found.or_else(|| snapshots.iter().find(|snapshot| snapshot.whole_second() == time.whole_second()));
    found.copied().map(Some).ok_or(Status::OBJECT_NAME_NOT_FOUND)
}

/// Returns the number of a create action in the protocol.
const fn action_code(action: Action) -> u32 {
    match action {
        Action::Superseded => 0,
        Action::Opened => 1,
        Action::Created => 2,
        Action::Overwritten => 3,
    }
}
