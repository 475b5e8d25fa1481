//! Read.

use std::sync::atomic::Ordering;

use crate::call::{Answer, Call, Reply};
use crate::open::access;
use crate::wire::io::{ReadRequest, read_response};
use crate::wire::status::Status;

/// Bytes that one request reads or writes at most.
pub(crate) const MAX_LENGTH: usize = 8 << 20;
/// Bytes from which on a read that is signed or encrypted is done beside those that follow it.
const ASIDE: usize = 256 << 10;
/// The last byte that a file can have.
pub(crate) const MAX_OFFSET: u64 = i64::MAX as u64;

/// Read.
pub(crate) async fn read(call: &Call) -> Answer {
    let request = ReadRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    let length = request.length as usize;
    if length > MAX_LENGTH {
        return Err(Status::INVALID_PARAMETER.into());
    }
    if let Some(pipe) = &open.pipe {
        return super::pipe::read(pipe, length).await;
    }
    let file = open.file()?;
    if open.is_directory {
        return Err(Status::INVALID_DEVICE_REQUEST.into());
    }
    open.needs(access::READ_DATA | access::EXECUTE)?;
    let end = request.offset.checked_add(u64::from(request.length)).filter(|end| *end <= MAX_OFFSET);
    let end = end.ok_or(Status::INVALID_PARAMETER)?;
    let data = match length {
        // Nothing is read, so no lock is in the way.
        0 => vec![],
        _ if length > ASIDE && call.is_protected() => {
            // What is signed or encrypted takes long; whoever comes next need not wait for it.
            tokio::task::yield_now().await;
            call.server.files.read_at(file, request.offset..end).await?
        }
        _ => call.server.files.read_at(file, request.offset..end).await?,
    };
    let found: usize = data.iter().map(|part| part.len()).sum();
    if (found == 0 && length > 0) || found < request.minimum as usize {
        return Err(Status::END_OF_FILE.into());
    }
    open.position.store(request.offset + found as u64, Ordering::Relaxed);
    Ok(Reply { data, ..Reply::new(read_response(found)) })
}
