//! Lock: byte-range locks, taken and given up.

use lazuli_concurrency::{ByteRange, LockKind};
use lazuli_file::opens::{OpenId, OpenTable, RangeRefusal};

use crate::call::{Answer, Call, Reply};
use crate::negotiated::Dialect;
use crate::open::{LOCK_SEQUENCES, Open};
use crate::wire::io::done_response;
use crate::wire::lock::{Element, LockRequest};
use crate::wire::status::Status;

/// Lock.
pub(crate) async fn lock(call: &Call) -> Answer {
    let request = LockRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    let file = open.file()?;
    if open.is_directory {
        return Err(Status::INVALID_PARAMETER.into());
    }
    let place = Place::of(call, &open, request.sequence);
    if place.as_ref().is_some_and(|place| place.is_done(&open)) {
        return Ok(Reply::new(done_response()));
    }
    if let Some(place) = &place {
        place.set(&open, None);
    }
    let table = call.server.files.opens();
    match request.elements[..] {
        [first, ..] if first.flags == Element::UNLOCK => unlock(table, file, &request.elements)?,
        [one] if matches!(one.flags, Element::SHARED | Element::EXCLUSIVE) => {
            lock_when_free(call, &open, file, one).await?;
        }
        _ => lock_all(table, file, &request.elements).await?,
    }
    if let Some(place) = place {
        place.set(&open, Some(place.number));
    }
    Ok(Reply::new(done_response()))
}

/// Gives up locks one after the other, up to the first that is none.
fn unlock(table: &OpenTable, file: OpenId, elements: &[Element]) -> Result<(), Status> {
    for element in elements {
        if element.flags != Element::UNLOCK {
            return Err(Status::INVALID_PARAMETER);
        }
        table.unlock(file, element.range()).map_err(|_| Status::RANGE_NOT_LOCKED)?;
    }
    Ok(())
}

/// Takes all locks or none, at once.
async fn lock_all(table: &OpenTable, file: OpenId, elements: &[Element]) -> Result<(), Status> {
    let mut wanted = vec![];
    for element in elements {
        let kind = match element.flags & !Element::FAIL_IMMEDIATELY {
            Element::SHARED => LockKind::Shared,
            Element::EXCLUSIVE => LockKind::Exclusive,
            _ => return Err(Status::INVALID_PARAMETER),
        };
        // Only one that is alone may wait.
        if element.flags & Element::FAIL_IMMEDIATELY == 0 {
            return Err(Status::INVALID_PARAMETER);
        }
        wanted.push((element.range(), kind));
    }
    for (index, (range, kind)) in wanted.iter().enumerate() {
        if let Err(status) = try_lock(table, file, *range, *kind).await {
            for (range, kind) in wanted[..index].iter().rev() {
                let _ = table.take_back(file, *range, *kind);
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
    })
}

/// Takes one lock, as soon as it can be had.
async fn lock_when_free(call: &Call, open: &Open, file: OpenId, element: Element) -> Result<(), Status> {
    let table = call.server.files.opens();
    let kind = if element.flags == Element::SHARED { LockKind::Shared } else { LockKind::Exclusive };
    match try_lock(table, file, element.range(), kind).await {
        Err(Status::LOCK_NOT_GRANTED) => {}
        done => return done,
    }
    call.pend()?;
    tokio::select! {
        biased;
        () = open.closed.cancelled() => Err(Status::RANGE_NOT_LOCKED),
        () = call.cancelled.cancelled() => Err(Status::CANCELLED),
        locked = table.lock_when_free(file, element.range(), kind) => locked.map_err(|_| Status::RANGE_NOT_LOCKED),
    }
}

impl Element {
    const fn range(self) -> ByteRange {
        ByteRange { offset: self.offset, length: self.length }
    }
}

/// A place in the sequence of lock requests: a request that comes again, after its answer was lost, is not done twice.
struct Place {
    index: usize,
    number: u8,
}

impl Place {
    fn of(call: &Call, open: &Open, sequence: u32) -> Option<Self> {
        let (index, number) = ((sequence >> 4) as usize, (sequence & 0xf) as u8);
        let is_kept = call.connection.dialect() >= Dialect::Smb300 || open.durable.is_some();
        (is_kept && (1..=LOCK_SEQUENCES).contains(&index)).then(|| Self { index: index - 1, number })
    }

    fn is_done(&self, open: &Open) -> bool {
        open.lock_sequence.lock()[self.index] == Some(self.number)
    }

    fn set(&self, open: &Open, number: Option<u8>) {
        open.lock_sequence.lock()[self.index] = number;
    }
}
