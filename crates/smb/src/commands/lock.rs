//! LOCK: acquires and releases byte-range locks.

use lazuli_concurrency::{ByteRange, LockKind};
use lazuli_file::opens::{OpenId, OpenTable, RangeRefusal};

use crate::call::{Call, CommandReply, CommandResult};
use crate::negotiated::Dialect;
use crate::session::open::{LOCK_SEQUENCE_SLOTS, Open};
use crate::wire::io::empty_response;
use crate::wire::lock::{LockElement, LockRequest};
use crate::wire::status::Status;

/// Executes LOCK.
pub(crate) async fn lock(call: &Call) -> CommandResult {
    let request = LockRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    let file = open.file()?;
    if open.is_directory {
        return Err(Status::INVALID_PARAMETER.into());
    }
    let slot = SequenceSlot::of(call, &open, request.sequence);
    if slot.as_ref().is_some_and(|slot| slot.is_completed(&open)) {
        return Ok(CommandReply::new(empty_response()));
    }
    if let Some(slot) = &slot {
        slot.set(&open, None);
    }
    let table = call.server.files.opens();
    match request.elements[..] {
        [first, ..] if first.flags == LockElement::UNLOCK => unlock(table, file, &request.elements)?,
        [one] if matches!(one.flags, LockElement::SHARED | LockElement::EXCLUSIVE) => {
            lock_when_free(call, &open, file, one).await?;
        }
        _ => lock_all(table, file, &request.elements).await?,
    }
    if let Some(slot) = slot {
        slot.set(&open, Some(slot.number));
    }
    Ok(CommandReply::new(empty_response()))
}

/// Releases locks in order, up to the first range that is not locked.
fn unlock(table: &OpenTable, file: OpenId, elements: &[LockElement]) -> Result<(), Status> {
    for element in elements {
        if element.flags != LockElement::UNLOCK {
            return Err(Status::INVALID_PARAMETER);
        }
        table.unlock(file, element.range()).map_err(|_| Status::RANGE_NOT_LOCKED)?;
    }
    Ok(())
}

/// Acquires all locks or none, without waiting.
async fn lock_all(table: &OpenTable, file: OpenId, elements: &[LockElement]) -> Result<(), Status> {
    let mut locks = vec![];
    for element in elements {
        let kind = match element.flags & !LockElement::FAIL_IMMEDIATELY {
            LockElement::SHARED => LockKind::Shared,
            LockElement::EXCLUSIVE => LockKind::Exclusive,
            _ => return Err(Status::INVALID_PARAMETER),
        };
        // Only a request for a single lock may wait.
        if element.flags & LockElement::FAIL_IMMEDIATELY == 0 {
            return Err(Status::INVALID_PARAMETER);
        }
        locks.push((element.range(), kind));
    }
    for (index, (range, kind)) in locks.iter().enumerate() {
        if let Err(status) = try_lock(table, file, *range, *kind).await {
            for (range, kind) in locks[..index].iter().rev() {
                let _ = table.undo_lock(file, *range, *kind);
            }
            return Err(status);
        }
    }
    Ok(())
}

async fn try_lock(table: &OpenTable, file: OpenId, range: ByteRange, kind: LockKind) -> Result<(), Status> {
    if range.is_out_of_range() {
        return Err(Status::INVALID_LOCK_RANGE);
    }
    table.lock(file, range, kind).await.map_err(|refusal| match refusal {
        RangeRefusal::Closed(_) => Status::FILE_CLOSED,
        RangeRefusal::Locked(_) => Status::LOCK_NOT_GRANTED,
        RangeRefusal::TooMany => Status::INSUFFICIENT_RESOURCES,
    })
}

/// Acquires one lock. Waits until it is free.
async fn lock_when_free(call: &Call, open: &Open, file: OpenId, element: LockElement) -> Result<(), Status> {
    let table = call.server.files.opens();
    let kind = if element.flags == LockElement::SHARED { LockKind::Shared } else { LockKind::Exclusive };
    match try_lock(table, file, element.range(), kind).await {
        Err(Status::LOCK_NOT_GRANTED) => {}
        result => return result,
    }
    call.send_interim_response()?;
    tokio::select! {
        biased;
        () = open.closed.cancelled() => Err(Status::RANGE_NOT_LOCKED),
        () = call.cancelled.cancelled() => Err(Status::CANCELLED),
        locked = table.lock_when_free(file, element.range(), kind) => locked.map_err(|refusal| match refusal {
            RangeRefusal::TooMany => Status::INSUFFICIENT_RESOURCES,
            RangeRefusal::Closed(_) | RangeRefusal::Locked(_) => Status::RANGE_NOT_LOCKED,
        }),
    }
}

impl LockElement {
    const fn range(self) -> ByteRange {
        ByteRange { offset: self.offset, length: self.length }
    }
}

/// A slot of the open's lock sequence. A request that is repeated after its response was lost is not executed
/// twice.
struct SequenceSlot {
    index: usize,
    number: u8,
}

impl SequenceSlot {
    fn of(call: &Call, open: &Open, sequence: u32) -> Option<Self> {
        let (index, number) = ((sequence >> 4) as usize, (sequence & 0xf) as u8);
        let is_kept = call.connection.dialect() >= Dialect::Smb300 || open.durable.is_some();
        (is_kept && (1..=LOCK_SEQUENCE_SLOTS).contains(&index)).then(|| Self { index: index - 1, number })
    }

    fn is_completed(&self, open: &Open) -> bool {
        open.lock_sequence.lock()[self.index] == Some(self.number)
    }

    fn set(&self, open: &Open, number: Option<u8>) {
        open.lock_sequence.lock()[self.index] = number;
    }
}
