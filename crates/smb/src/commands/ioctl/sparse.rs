//! Sparse files: the mark, making holes, and where there are none.

use crate::call::{Answer, Call, Reply};
use crate::changes::filter;
use crate::open::{Open, access};
use crate::wire::cursor::{Reader, Writer};
use crate::wire::ioctl::IoctlRequest;
use crate::wire::status::Status;

/// The attribute of a sparse file.
const SPARSE: u32 = 0x200;
/// Bytes that tell of a range.
const RANGE: usize = 16;

/// Marks a file as sparse, or not. Nothing else is done to it.
pub(super) async fn set_sparse(call: &Call, open: &Open, input: &[u8]) -> Result<Vec<u8>, Status> {
    open.needs(access::WRITE_DATA | access::WRITE_ATTRIBUTES | access::APPEND_DATA)?;
    if open.is_directory {
        return Err(Status::INVALID_PARAMETER);
    }
    let sparse = input.first().is_none_or(|sparse| *sparse != 0);
    call.server.files.set_sparse(open.file()?, sparse).await?;
    Ok(vec![])
}

/// Makes a range zeros.
pub(super) async fn zero(call: &Call, open: &Open, input: &[u8]) -> Result<Vec<u8>, Status> {
    open.needs(access::WRITE_DATA)?;
    let mut reader = Reader::new(input);
    let (start, end) = (reader.u64()?, reader.u64()?);
    if open.is_directory || start > end || end.cast_signed() < 0 {
        return Err(Status::INVALID_PARAMETER);
    }
    let file = open.file()?;
    if start < end {
        call.server.files.zero(file, start..end).await?;
        call.server.changes.modified_open(&call.server.files, file, filter::LAST_WRITE);
    }
    Ok(vec![])
}

/// The ranges that hold bytes, as many as there is room for. A file that is not sparse has no holes to tell of.
pub(super) async fn allocated(call: &Call, open: &Open, request: &IoctlRequest<'_>) -> Answer {
    open.needs(access::READ_DATA)?;
    let mut reader = Reader::new(request.input);
    let (start, length) = (reader.u64()?, reader.u64()?);
    let about = call.server.files.info(open.file()?).await?;
    if length == 0 || start >= about.length {
        return Ok(Reply::new(request.response(&[])));
    }
    let end = start.checked_add(length).ok_or(Status::INVALID_PARAMETER)?.min(about.length);
    let room = request.room as usize / RANGE;
    if room == 0 {
        return Err(Status::BUFFER_TOO_SMALL.into());
    }
    let ranges = if about.attributes & SPARSE == 0 {
        std::iter::once(start..end).collect()
    } else {
        call.server.files.allocated_ranges(open.file()?, start..end, room + 1).await?
    };
    let mut writer = Writer::new();
    for range in ranges.iter().take(room) {
        writer.u64(range.start).u64(range.end - range.start);
    }
    let status = if ranges.len() > room { Status::BUFFER_OVERFLOW } else { Status::SUCCESS };
    Ok(Reply::new(request.response(&writer.finish())).with(status))
}
