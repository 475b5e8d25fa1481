//! Sparse files: the attribute, zeroing ranges, and allocated ranges.

use crate::call::{Call, CommandReply, CommandResult};
use crate::change_notifier::filter;
use crate::session::open::Open;
use crate::wire::create::access;
use crate::wire::cursor::{ByteReader, ByteWriter};
use crate::wire::ioctl::IoctlRequest;
use crate::wire::status::Status;

/// The attribute of sparse files.
const SPARSE: u32 = 0x200;
/// Bytes of one range.
const RANGE: usize = 16;

/// Sets or clears the sparse attribute. The content does not change.
pub(super) async fn set_sparse(call: &Call, open: &Open, input: &[u8]) -> Result<Vec<u8>, Status> {
    open.require_any(access::WRITE_DATA | access::WRITE_ATTRIBUTES | access::APPEND_DATA)?;
    if open.is_directory {
        return Err(Status::INVALID_PARAMETER);
    }
    let sparse = input.first().is_none_or(|sparse| *sparse != 0);
    call.server.files.set_sparse(open.file()?, sparse).await?;
    Ok(vec![])
}

/// Zeroes a range.
pub(super) async fn zero(call: &Call, open: &Open, input: &[u8]) -> Result<Vec<u8>, Status> {
    open.require_any(access::WRITE_DATA)?;
    let mut reader = ByteReader::new(input);
    let (start, end) = (reader.u64()?, reader.u64()?);
    if open.is_directory || start > end || end.cast_signed() < 0 {
        return Err(Status::INVALID_PARAMETER);
    }
    let file = open.file()?;
    if start < end {
        call.server.files.zero(file, start..end).await?;
        call.server.notifier.notify_open_modified(&call.server.files, file, filter::LAST_WRITE);
    }
    Ok(vec![])
}

/// Returns the allocated ranges, as many as fit. A file that is not sparse has no holes.
pub(super) async fn allocated(call: &Call, open: &Open, request: &IoctlRequest<'_>) -> CommandResult {
    open.require_any(access::READ_DATA)?;
    let mut reader = ByteReader::new(request.input);
    let (start, length) = (reader.u64()?, reader.u64()?);
    let about = call.server.files.info(open.file()?).await?;
    if length == 0 || start >= about.length {
        return Ok(CommandReply::new(request.response(&[])));
    }
    let end = start.checked_add(length).ok_or(Status::INVALID_PARAMETER)?.min(about.length);
    let max_ranges = request.max_output as usize / RANGE;
    if max_ranges == 0 {
        return Err(Status::BUFFER_TOO_SMALL.into());
    }
    let ranges = if about.attributes & SPARSE == 0 {
        std::iter::once(start..end).collect()
    } else {
        call.server.files.allocated_ranges(open.file()?, start..end, max_ranges + 1).await?
    };
    let mut writer = ByteWriter::new();
    for range in ranges.iter().take(max_ranges) {
        writer.u64(range.start).u64(range.end - range.start);
    }
    let status = if ranges.len() > max_ranges { Status::BUFFER_OVERFLOW } else { Status::SUCCESS };
    Ok(CommandReply::new(request.response(&writer.finish())).with_status(status))
}
