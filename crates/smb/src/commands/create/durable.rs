//! Durable handles: given back to a client whose connection was lost, and opens that are asked for twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lazuli_file::fold_name;
use parking_lot::Mutex;

use super::asked::{Asked, Reconnect};
use super::path::Path;
use super::respond;
use crate::call::{Answer, Call, Reply};
use crate::handles::{self, Beginning};
use crate::open::{LeaseKey, Open};
use crate::wire::create::{CreateRequest, Lease, oplock};
use crate::wire::header::flags;
use crate::wire::status::Status;

/// It was there already.
const OPENED: u32 = 1;

/// Gives an open back.
pub(super) async fn reconnect(
    call: &Call,
    request: &CreateRequest,
    asked: &Asked,
    wanted: Reconnect,
) -> Answer {
    let gone = Status::OBJECT_NAME_NOT_FOUND;
    let old = call.server.handles.find_lost(wanted.persistent).ok_or(gone)?;
    let durable = old
        .durable
        .filter(|durable| wanted.create_guid.is_none_or(|guid| durable.create_guid.unwrap_or(0) == guid))
        .ok_or(gone)?;
    let (Some(file), session) = (old.file, call.session()?) else { return Err(gone.into()) };
    if call.tree()?.tree.as_ref().is_none_or(|tree| tree.space() != file.file.space) {
        return Err(gone.into());
    }
    let key = asked.lease.map(|lease| LeaseKey { client: call.connection.client(), key: lease.key });
    if old.lease != key {
        return Err(gone.into());
    }
    let info = call.server.files.info(file).await.map_err(|_| gone)?;
    if key.is_some() && fold_name(&info.path) != fold_name(&Path::parse(&request.name)?.path) {
        return Err(Status::INVALID_PARAMETER.into());
    }
    let open = Arc::new(Open {
        file: old.file,
        access: old.access,
        most: old.most,
        share: old.share,
        options: old.options,
        action: OPENED,
        lease: old.lease,
        durable: Some(durable),
        lock_sequence: Mutex::new(*old.lock_sequence.lock()),
        position: AtomicU64::new(old.position.load(Ordering::Relaxed)),
        mode: AtomicU32::new(old.mode.load(Ordering::Relaxed)),
        ..Open::new(call, old.id.persistent, old.place.clone())?
    });
    if !call.server.handles.reclaim(&old, &open) {
        return Err(gone.into());
    }
    session.add(open.clone());
    super::settle(call, &open).await?;
    call.chain.lock().file = Some(open.id);
    let (level, lease) = held(call, &open, asked)?;
    Ok(respond(&open, &info, asked, level, lease))
}

/// Begins an open that its client has given a name, so that it does not begin twice.
pub(super) fn begin(call: &Call, asked: &Asked) -> Result<Option<Beginning>, Status> {
    let Some(guid) = asked.durable.and_then(|wish| wish.create_guid) else { return Ok(None) };
    match call.server.handles.begin(call.connection.client(), guid) {
        Some(beginning) => Ok(Some(beginning)),
        None if call.header.flags & flags::REPLAY != 0 => Err(Status::FILE_NOT_AVAILABLE),
        None => Err(Status::DUPLICATE_OBJECTID),
    }
}

/// Answers an open that was made already: its first answer was lost with the connection.
pub(super) async fn replay(
    call: &Call,
    request: &CreateRequest,
    asked: &Asked,
) -> Result<Option<Reply>, Status> {
    let Some(guid) = asked.durable.and_then(|wish| wish.create_guid) else { return Ok(None) };
    let Some((open, is_lost)) = call.server.handles.find_named(call.connection.client(), guid) else {
        return Ok(None);
    };
    if call.header.flags & flags::REPLAY == 0 {
        return Err(Status::DUPLICATE_OBJECTID);
    }
    let key = asked.lease.map(|lease| LeaseKey { client: call.connection.client(), key: lease.key });
    if open.lease != key {
        return Err(Status::ACCESS_DENIED);
    }
    let is_own =
        open.session.upgrade().is_some_and(|own| call.session.as_ref().is_some_and(|it| it.id == own.id));
    if is_lost || !is_own {
        return Err(Status::DUPLICATE_OBJECTID);
    }
    let info = call.server.files.info(open.file()?).await?;
    call.chain.lock().file = Some(open.id);
    let (_, lease) = held(call, &open, asked)?;
    // An oplock is answered as it was asked for, whatever is held.
    let mut asked = asked.clone();
    if lease.is_none() && request.oplock_level != oplock::BATCH {
        asked.durable = None;
    }
    Ok(Some(respond(&open, &info, &asked, request.oplock_level, lease)))
}

/// The oplock or lease that an open has now.
fn held(call: &Call, open: &Open, asked: &Asked) -> Result<(u8, Option<Lease>), Status> {
    let opened = call.server.files.opens().opened(open.file()?).ok_or(Status::FILE_CLOSED)?;
    let lease = match (open.lease, asked.lease) {
        (Some(key), Some(lease)) => Some(super::join(call, key, &lease, &opened)?),
        _ => None,
    };
    Ok((handles::level(opened.caching), lease))
}
