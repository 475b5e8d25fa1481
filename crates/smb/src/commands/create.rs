//! Create: opens a file, a directory or a pipe, or gives a durable handle back.

mod asked;
mod durable;
pub(super) mod path;
mod rights;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use lazuli_concurrency::{Caching, ShareMode, Timestamp};
use lazuli_file::native::{Action, CreateRequest as Request, Created, Failure, Info, Tree};
use lazuli_file::opens::{CacheRequest, Client, OpenRequest, Opened, Place};
use lazuli_file::{INHERITED_SDDL, fold_name};
use lazuli_security::Descriptor;
use tokio::sync::Notify;

use super::{close, pipe};
use crate::call::{Answer, Call, Reply};
use crate::changes::filter;
use crate::granted::granted;
use crate::handles;
use crate::open::{Durable, LeaseKey, Open, access};
use crate::wire::create::{CreateRequest, CreateResponse, Lease, SecondLease, oplock, options, tag};
use crate::wire::status::Status;
use asked::Asked;
use path::Path;

/// The highest level of impersonation that there is.
const DELEGATE: u32 = 3;
/// What FileModeInformation tells of the options.
const MODE: u32 = 0x0000_103e;
const NORMAL: u32 = 0x0000_0080;

/// Create.
pub(crate) async fn create(call: &Call) -> Answer {
    let request = CreateRequest::parse(&call.message)?;
    let asked = Asked::of(&request, call.connection.dialect())?;
    if !call.session()?.has_room() {
        return Err(Status::TOO_MANY_OPENED_FILES.into());
    }
    let Some(tree) = &call.tree()?.tree else {
        return match asked.reconnect {
            Some(_) => Err(Status::OBJECT_NAME_NOT_FOUND.into()),
            None => pipe::create(call, &request).await,
        };
    };
    if let Some(wanted) = asked.reconnect {
        return durable::reconnect(call, &request, &asked, wanted).await;
    }
    let _beginning = durable::begin(call, &asked)?;
    if let Some(reply) = durable::replay(call, &request, &asked).await? {
        return Ok(reply);
    }
    // Before anything is made.
    if call.server.opens.is_full() {
        return Err(Status::TOO_MANY_OPENED_FILES.into());
    }
    if request.impersonation > DELEGATE {
        return Err(Status::BAD_IMPERSONATION_LEVEL.into());
    }
    open_file(call, tree, &request, &asked).await
}

async fn open_file(call: &Call, tree: &Tree, request: &CreateRequest, asked: &Asked) -> Answer {
    let path = Path::parse(&request.name)?;
    let (disposition, kind) = rights::check(request)?;
    let snapshot = snapshot(call, tree, &path, asked).await?;
    let granted = rights::granted(request.access, snapshot.is_some())?;
    let may = most(call, tree, &path.path, snapshot).await?;
    let granted = rights::granted_of(request.access, granted, may)?;
    if rights::replaces(disposition) && may & access::WRITE_DATA == 0 {
        return Err(Status::ACCESS_DENIED.into());
    }
    if request.options & options::DELETE_ON_CLOSE != 0 && granted & access::DELETE == 0 {
        return Err(Status::ACCESS_DENIED.into());
    }
    let key = asked.lease.map(|lease| LeaseKey { client: call.connection.client(), key: lease.key });
    check_key(call, key, &path.path).await?;
    let if_read_only = rights::if_read_only(request.access, granted);
    let waits = Arc::new(Notify::new());
    let login = call.session()?.login().ok_or(Status::USER_SESSION_DELETED)?;
    let open = OpenRequest {
        mode: ShareMode { access: rights::uses(granted), share: rights::shares(request.share) },
        looks: rights::looks(granted),
        overwrites: rights::replaces(disposition),
        delete_on_close: request.options & options::DELETE_ON_CLOSE != 0,
        cache: cache(request, asked, key),
        client: Client {
            session: call.session()?.id,
            ip: call.connection.peer.ip(),
            name: login.client_name.clone(),
        },
        place: Place::default(),
        at: Timestamp::default(),
        breaks: Some(call.server.handles.breaks.clone()),
        waits: Some(waits.clone()),
    };
    let create = Request {
        path: path.path,
        disposition,
        kind,
        attributes: rights::attributes(request.attributes),
        allocation: asked.allocation,
        permission: permission(asked)?,
        snapshot,
        if_read_only: if_read_only.map(rights::uses),
        open,
    };
    // In a box of its own: few requests open something.
    let create = Box::pin(call.server.files.create(tree, create));
    let created = wait_for(call, create, &waits).await?;
    let file = created.opened.id;
    let granted = if_read_only.filter(|_| created.is_only_read).unwrap_or(granted);
    match finish(call, request, asked, (granted, may), snapshot.is_some(), key, created) {
        Ok((open, reply)) => settle(call, &open).await.map(|()| reply).map_err(Into::into),
        Err(status) => {
            // It was opened, and nobody will ever close it.
            if let Some(key) = key {
                call.server.handles.leave(key, file);
            }
            let _ = call.server.files.close_open(file).await;
            Err(status.into())
        }
    }
}

/// All that the access list of what is at a path grants, if anybody is held to it. What can be removed from its directory
/// can be deleted, whatever it says itself.
async fn most(call: &Call, tree: &Tree, path: &str, snapshot: Option<Timestamp>) -> Result<u32, Status> {
    if !call.server.options.enforce_permissions {
        return Ok(access::ALL);
    }
    let Some(may) = listed(call, tree, path, snapshot).await? else { return Ok(access::ALL) };
    if may == access::ALL || path.is_empty() {
        return Ok(may);
    }
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let above = listed(call, tree, directory, snapshot).await?.unwrap_or(access::ALL);
    let removes = if above & access::DELETE_CHILD == 0 { 0 } else { access::DELETE };
    let lists = if above & access::READ_DATA == 0 { 0 } else { access::READ_ATTRIBUTES };
    Ok(may | removes | lists)
}

/// What the access list of what is at a path grants; none if there is nothing.
async fn listed(
    call: &Call,
    tree: &Tree,
    path: &str,
    snapshot: Option<Timestamp>,
) -> Result<Option<u32>, Status> {
    let Some(sddl) = call.server.files.permission_at(tree, path, snapshot).await? else { return Ok(None) };
    let descriptor = Descriptor::from_sddl(&sddl).map_err(|_| Status::ACCESS_DENIED)?;
    Ok(Some(granted(&descriptor, rights::generic)))
}

/// Closes an open again whose tree was disconnected while it was opened: nobody else would.
async fn settle(call: &Call, open: &Arc<Open>) -> Result<(), Status> {
    let session = call.session()?;
    if session.tree(open.tree.id).is_some() {
        return Ok(());
    }
    if session.remove(open.id).is_some() {
        close::close(&call.server, open).await?;
    }
    Err(Status::NETWORK_NAME_DELETED)
}

/// Waits for an open, and tells the client if that is for other clients to act.
async fn wait_for(
    call: &Call,
    mut create: Pin<Box<impl Future<Output = Result<Created, Failure>>>>,
    waits: &Notify,
) -> Result<Created, Status> {
    tokio::select! {
        biased;
        created = &mut create => return Ok(created?),
        () = waits.notified() => call.pend()?,
    }
    tokio::select! {
        biased;
        created = &mut create => return Ok(created?),
        () = call.cancelled.cancelled() => {}
    }
    if call.is_given_up() { Err(Status::CANCELLED) } else { Ok(create.await?) }
}

/// Makes an open of what the file service has opened, and the answer.
fn finish(
    call: &Call,
    request: &CreateRequest,
    asked: &Asked,
    (granted, most): (u32, u32),
    is_snapshot: bool,
    key: Option<LeaseKey>,
    created: Created,
) -> Result<(Arc<Open>, Reply), Status> {
    let Created { opened, action, info, .. } = created;
    let server = &call.server;
    let key = key.filter(|_| !info.is_directory);
    let leases = key.zip(asked.lease);
    if let Some((key, lease)) = leases {
        join(call, key, &lease, &opened)?;
    }
    let durable = asked.durable.filter(|_| opened.caching.contains(Caching::H) && !info.is_directory);
    let place = server.opens.take().ok_or(Status::TOO_MANY_OPENED_FILES)?;
    let open = Arc::new(Open {
        file: Some(opened.id),
        is_directory: info.is_directory,
        access: granted,
        most: if is_snapshot { most & rights::READ_ONLY } else { most },
        share: request.share,
        options: request.options,
        action: number(action),
        lease: key,
        durable: durable.map(|wish| Durable {
            timeout: wish.timeout,
            create_guid: wish.create_guid,
            client: call.connection.client(),
        }),
        named: asked.durable.and_then(|wish| Some((call.connection.client(), wish.create_guid?))),
        mode: AtomicU32::new(request.options & MODE),
        ..Open::new(call, server.handles.persistent(opened.id), place.into())?
    });
    add(call, &open)?;
    // What was broken before it could be told to anybody is told here.
    let opened = server.files.opens().opened(opened.id).unwrap_or(opened);
    let lease = leases.and_then(|(key, lease)| join(call, key, &lease, &opened).ok());
    let space = opened.id.file.space;
    match action {
        Action::Created => server.changes.created(space, &info.path, info.is_directory),
        Action::Opened => {}
        Action::Overwritten | Action::Superseded => {
            server.changes.modified(
                space,
                &info.path,
                filter::ATTRIBUTES | filter::SIZE | filter::LAST_WRITE,
            );
        }
    }
    let level = if info.is_directory { oplock::NONE } else { handles::level(opened.caching) };
    let reply = respond(&open, &info, asked, level, lease);
    Ok((open, reply))
}

/// Enters an open where it is found.
fn add(call: &Call, open: &Arc<Open>) -> Result<(), Status> {
    call.server.handles.add(open);
    call.session()?.add(open.clone());
    call.chain.lock().file = Some(open.id);
    Ok(())
}

/// The answer to an open that was granted that level of oplock, or a lease.
fn respond(open: &Open, info: &Info, asked: &Asked, level: u8, lease: Option<Lease>) -> Reply {
    let mut contexts = vec![];
    if asked.maximal_access.is_some_and(|known| known != info.written.filetime()) {
        contexts.push((tag::MAXIMAL_ACCESS, [0u32.to_le_bytes(), open.most.to_le_bytes()].concat()));
    }
    match (asked.durable, open.durable) {
        (Some(wish), Some(durable)) if wish.create_guid.is_some() => {
            let timeout = durable.timeout.as_millis() as u64;
            contexts.push((tag::DURABLE_REQUEST_V2, timeout.to_le_bytes().to_vec()));
        }
        (Some(_), Some(_)) => contexts.push((tag::DURABLE_REQUEST, vec![0; 8])),
        _ => {}
    }
    if asked.on_disk_id {
        let volume = open.file.map_or(0, |file| file.file.space.0);
        let mut id = [info.id.0.to_le_bytes(), volume.to_le_bytes()].concat();
        id.resize(32, 0);
        contexts.push((tag::ON_DISK_ID, id));
    }
    let oplock_level = if let Some(lease) = lease {
        contexts.push((tag::LEASE, lease.write()));
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
        contexts,
    };
    Reply::new(response.write())
}

/// An open becomes one of those that share a lease. What the client is told of it.
fn join(call: &Call, key: LeaseKey, asked: &Lease, opened: &Opened) -> Result<Lease, Status> {
    let epoch = asked.second.map(|second| second.epoch);
    let joined = call.server.handles.join(call.session()?, key, opened.id, opened.epoch, epoch);
    let joined = joined.ok_or(Status::INVALID_PARAMETER)?;
    let parent =
        asked.second.filter(|_| asked.flags & Lease::HAS_PARENT != 0).map(|second| second.parent_key);
    let mut flags = if opened.breaking { Lease::BREAKING } else { 0 };
    let second = joined.is_second.then(|| {
        if parent.is_some() {
            flags |= Lease::HAS_PARENT;
        }
        SecondLease { parent_key: parent.unwrap_or_default(), epoch: joined.epoch }
    });
    Ok(Lease { key: key.key, state: opened.caching.bits(), flags, second })
}

/// Refuses the key of a lease that the client has on another file.
async fn check_key(call: &Call, key: Option<LeaseKey>, path: &str) -> Result<(), Status> {
    let Some(open) = key.and_then(|key| call.server.handles.leased(key)) else { return Ok(()) };
    match call.server.files.info(open).await {
        Ok(info) if fold_name(&info.path) != fold_name(path) => Err(Status::INVALID_PARAMETER),
        _ => Ok(()),
    }
}

/// What the client wants to cache.
fn cache(request: &CreateRequest, asked: &Asked, key: Option<LeaseKey>) -> CacheRequest {
    match (request.oplock_level, key, asked.lease) {
        (oplock::II, ..) => CacheRequest::Oplock(Caching::R),
        (oplock::EXCLUSIVE, ..) => CacheRequest::Oplock(Caching::RW),
        (oplock::BATCH, ..) => CacheRequest::Oplock(Caching::RWH),
        (oplock::LEASE, Some(LeaseKey { client, key }), Some(lease)) => {
            // What cannot be had is a lease all the same, of nothing.
            let state = Caching::from_bits(lease.state & Caching::RWH.bits()).unwrap_or(Caching::NONE);
            CacheRequest::Lease { client, key, state }
        }
        _ => CacheRequest::None,
    }
}

/// The security descriptor for what is made, if the client has one for it.
fn permission(asked: &Asked) -> Result<Option<String>, Status> {
    let Some(bytes) = &asked.descriptor else { return Ok(None) };
    let descriptor = Descriptor::from_bytes(bytes).map_err(|_| Status::INVALID_PARAMETER)?;
    let inherited = Descriptor::from_sddl(INHERITED_SDDL).unwrap_or_default();
    Ok(Some(descriptor.or(inherited).to_sddl()))
}

/// The snapshot that is meant, by the path or by a context. Both know only its second.
async fn snapshot(call: &Call, tree: &Tree, path: &Path, asked: &Asked) -> Result<Option<Timestamp>, Status> {
    let warped = asked.timewarp.filter(|time| *time != 0).map(Timestamp::from_filetime);
    let Some(time) = warped.or(path.snapshot) else { return Ok(None) };
    let snapshots = call.server.files.snapshots_of(tree).await?;
    let found = snapshots.iter().find(|snapshot| **snapshot == time);
    let found =
        found.or_else(|| snapshots.iter().find(|snapshot| snapshot.whole_second() == time.whole_second()));
    found.copied().map(Some).ok_or(Status::OBJECT_NAME_NOT_FOUND)
}

/// What came of a disposition, as the protocol numbers it.
const fn number(action: Action) -> u32 {
    match action {
        Action::Superseded => 0,
        Action::Opened => 1,
        Action::Created => 2,
        Action::Overwritten => 3,
    }
}
