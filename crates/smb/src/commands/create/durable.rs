//! Durable handles: reconnects after a lost connection, and replays of CREATE.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lazuli_file::fold_name;
use parking_lot::Mutex;

use super::contexts::{Reconnect, RequestedContexts};
use super::create_reply;
use super::path::Path;
use crate::call::{Call, CommandReply, CommandResult};
use crate::session::handles::{self, CreateInProgress};
use crate::session::open::{LeaseKey, Open};
use crate::wire::create::{CreateRequest, Lease, oplock};
use crate::wire::header::flags;
use crate::wire::status::Status;

/// The create action `FILE_OPENED`.
const OPENED: u32 = 1;

/// Reconnects a durable open.
pub(super) async fn reconnect_durable(
    call: &Call,
    request: &CreateRequest,
    contexts: &RequestedContexts,
    reconnect: Reconnect,
) -> CommandResult {
    let not_found = Status::OBJECT_NAME_NOT_FOUND;
    let old = call.server.handles.find_disconnected(reconnect.persistent).ok_or(not_found)?;
    let durable = old
        .durable
        .filter(|durable| reconnect.create_guid.is_none_or(|guid| durable.create_guid.unwrap_or(0) == guid))
        .ok_or(not_found)?;
    let (Some(file), session) = (old.file, call.session()?) else { return Err(not_found.into()) };
    if call.tree()?.tree.as_ref().is_none_or(|tree| tree.space() != file.file.space) {
        return Err(not_found.into());
    }
    let key = contexts.lease.map(|lease| LeaseKey { client: call.connection.client(), key: lease.key });
    if old.lease != key {
        return Err(not_found.into());
    }
    let info = call.server.files.info(file).await.map_err(|_| not_found)?;
    if key.is_some() && fold_name(&info.path) != fold_name(&Path::parse(&request.name)?.path) {
        return Err(Status::INVALID_PARAMETER.into());
    }
    let open = Arc::new(Open {
        file: old.file,
        access: old.access,
        maximal_access: old.maximal_access,
        share: old.share,
        options: old.options,
        action: OPENED,
        lease: old.lease,
        durable: Some(durable),
        lock_sequence: Mutex::new(*old.lock_sequence.lock()),
        position: AtomicU64::new(old.position.load(Ordering::Relaxed)),
        mode: AtomicU32::new(old.mode.load(Ordering::Relaxed)),
        ..call.new_open(old.id.persistent, old.permit.clone())?
    });
    if !call.server.handles.reclaim(&old, &open) {
        return Err(not_found.into());
    }
    session.add_open(open.clone());
    super::close_if_disconnected(call, &open).await?;
    call.compound.lock().file = Some(open.id);
    let (level, lease) = current_cache(call, &open, contexts)?;
    Ok(create_reply(&open, &info, contexts, level, lease))
}

/// Marks a CREATE with a create GUID as in progress. Fails if one with the same GUID is in progress already.
pub(super) fn begin_create(
    call: &Call,
    contexts: &RequestedContexts,
) -> Result<Option<CreateInProgress>, Status> {
    let Some(guid) = contexts.durable.and_then(|request| request.create_guid) else { return Ok(None) };
    match call.server.handles.begin_create(call.connection.client(), guid) {
        Some(beginning) => Ok(Some(beginning)),
        None if call.header.flags & flags::REPLAY != 0 => Err(Status::FILE_NOT_AVAILABLE),
        None => Err(Status::DUPLICATE_OBJECTID),
    }
}

/// Answers a replayed CREATE whose first response was lost.
pub(super) async fn replay_create(
    call: &Call,
    request: &CreateRequest,
    contexts: &RequestedContexts,
) -> Result<Option<CommandReply>, Status> {
    let Some(guid) = contexts.durable.and_then(|request| request.create_guid) else { return Ok(None) };
    let Some((open, is_disconnected)) =
        call.server.handles.find_by_create_guid(call.connection.client(), guid)
    else {
        return Ok(None);
    };
    if call.header.flags & flags::REPLAY == 0 {
        return Err(Status::DUPLICATE_OBJECTID);
    }
    let key = contexts.lease.map(|lease| LeaseKey { client: call.connection.client(), key: lease.key });
    if open.lease != key {
        return Err(Status::ACCESS_DENIED);
    }
    let is_own =
        open.session.upgrade().is_some_and(|own| call.session.as_ref().is_some_and(|it| it.id == own.id));
    if is_disconnected || !is_own {
        return Err(Status::DUPLICATE_OBJECTID);
    }
    let info = call.server.files.info(open.file()?).await?;
    call.compound.lock().file = Some(open.id);
    let (_, lease) = current_cache(call, &open, contexts)?;
    // The response repeats the requested oplock level, whatever level is held.
    let mut contexts = contexts.clone();
    if lease.is_none() && request.oplock_level != oplock::BATCH {
        contexts.durable = None;
    }
    Ok(Some(create_reply(&open, &info, &contexts, request.oplock_level, lease)))
}

/// Returns the oplock level and the lease that an open has now.
fn current_cache(
    call: &Call,
    open: &Open,
    contexts: &RequestedContexts,
) -> Result<(u8, Option<Lease>), Status> {
    let opened = call.server.files.opens().opened(open.file()?).ok_or(Status::FILE_CLOSED)?;
    let lease = match (open.lease, contexts.lease) {
        (Some(key), Some(lease)) => Some(super::join_lease(call, key, &lease, &opened)?),
        _ => None,
    };
    Ok((handles::oplock_level(opened.caching), lease))
}
