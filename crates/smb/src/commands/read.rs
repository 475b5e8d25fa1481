//! READ.

use std::sync::atomic::Ordering;

use crate::call::{Call, CommandReply, CommandResult};
use crate::wire::create::access;
use crate::wire::io::{ReadRequest, read_response};
use crate::wire::status::Status;

/// Maximum number of bytes in one read or write.
pub(crate) const MAX_LENGTH: usize = 8 << 20;
/// Signed or encrypted reads of more bytes than this run in a task of their own.
const MIN_YIELD_LENGTH: usize = 256 << 10;
/// Maximum file offset of the protocol.
pub(crate) const MAX_OFFSET: u64 = i64::MAX as u64;

/// Executes READ.
pub(crate) async fn read(call: &Call) -> CommandResult {
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
    open.require_any(access::READ_DATA | access::EXECUTE)?;
    let end = request.offset.checked_add(u64::from(request.length)).filter(|end| *end <= MAX_OFFSET);
    let end = end.ok_or(Status::INVALID_PARAMETER)?;
    let data = match length {
        // An empty read conflicts with no lock.
        0 => vec![],
        _ if length > MIN_YIELD_LENGTH && call.is_protected() => {
            // Signing and encrypting take long. Yielding lets the reader start the next request.
            tokio::task::yield_now().await;
            call.server.files.read_at(file, request.offset..end).await?
        }
        _ => call.server.files.read_at(file, request.offset..end).await?,
    };
    let length_read: usize = data.iter().map(|part| part.len()).sum();
    if (length_read == 0 && length > 0) || length_read < request.minimum as usize {
        return Err(Status::END_OF_FILE.into());
    }
    open.position.store(request.offset + length_read as u64, Ordering::Relaxed);
    Ok(CommandReply { data, ..CommandReply::new(read_response(length_read)) })
}
