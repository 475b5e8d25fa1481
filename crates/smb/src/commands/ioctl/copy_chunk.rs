//! Server-side copy: resume keys of source files, and copying of chunks.

use std::ops::Range;

use lazuli_file::opens::OpenId;

use crate::call::{Call, CommandReply, CommandResult};
use crate::change_notifier::filter;
use crate::session::open::Open;
use crate::wire::FileId;
use crate::wire::create::access;
use crate::wire::cursor::{ByteReader, ByteWriter};
use crate::wire::ioctl::{Chunk, CopyChunks, IoctlRequest, code};
use crate::wire::status::Status;

/// Limits of one request, as on Windows.
const MAX_CHUNKS: u32 = 256;
const MAX_CHUNK_BYTES: u32 = 1 << 20;
const MAX_TOTAL_BYTES: u32 = 16 << 20;
/// Bytes of a resume key response.
const RESUME_KEY_SIZE: usize = 32;
/// Bytes of a copy response.
const RESULT_SIZE: usize = 12;

/// Returns the resume key of an open: its file id. The key is valid only in the same session.
pub(super) fn resume_key(open: &Open, max_output: usize) -> Result<Vec<u8>, Status> {
    if max_output < RESUME_KEY_SIZE {
        return Err(Status::INVALID_PARAMETER);
    }
    let mut writer = ByteWriter::new();
    writer.u64(open.id.persistent).u64(open.id.volatile).zeros(RESUME_KEY_SIZE - 16);
    Ok(writer.finish())
}

/// Copies chunks from the file of the resume key.
pub(super) async fn copy_chunk(call: &Call, to: &Open, request: &IoctlRequest<'_>) -> CommandResult {
    if (request.max_output as usize) < RESULT_SIZE {
        return Err(Status::INVALID_PARAMETER.into());
    }
    let copy = CopyChunks::parse(request.input, MAX_CHUNKS)?;
    let key = FileId::read(&mut ByteReader::new(&copy.key))?;
    let from = call.session()?.find_open(key).ok_or(Status::OBJECT_NAME_NOT_FOUND)?;
    let (source, target) = check(&from, to, request.code)?;
    if !is_within_limits(&copy) {
        let limits = result(MAX_CHUNKS, MAX_CHUNK_BYTES, MAX_TOTAL_BYTES);
        return Ok(CommandReply::new(request.response(&limits)).with_status(Status::INVALID_PARAMETER));
    }
    let (mut copied, mut total, mut status) = (0, 0, Status::SUCCESS);
    for chunk in &copy.chunks {
        // A failed request reports how much was copied, too.
        if let Err(failed) = copy_one(call, source, target, *chunk).await {
            status = failed;
            break;
        }
        (copied, total) = (copied + 1, total + chunk.length);
    }
    if total > 0 {
        let what = filter::SIZE | filter::LAST_WRITE;
        call.server.notifier.notify_open_modified(&call.server.files, target, what);
    }
    Ok(CommandReply::new(request.response(&result(copied, 0, total))).with_status(status))
}

/// Checks that both handles allow the copy.
fn check(from: &Open, to: &Open, control: u32) -> Result<(OpenId, OpenId), Status> {
    to.require_any(access::WRITE_DATA | access::APPEND_DATA)?;
    if control == code::SRV_COPYCHUNK {
        to.require_any(access::READ_DATA)?;
    }
    from.require_any(access::READ_DATA | access::EXECUTE)?;
    match (from.file, to.file) {
        (Some(source), Some(target)) if !from.is_directory && !to.is_directory => Ok((source, target)),
        _ => Err(Status::ACCESS_DENIED),
    }
}

fn is_within_limits(copy: &CopyChunks) -> bool {
    let is_valid = |chunk: &Chunk| (1..=MAX_CHUNK_BYTES).contains(&chunk.length);
    let total = copy.chunks.iter().fold(0_u32, |sum, chunk| sum.saturating_add(chunk.length));
    copy.count <= MAX_CHUNKS && copy.chunks.iter().all(is_valid) && total <= MAX_TOTAL_BYTES
}

async fn copy_one(call: &Call, from: OpenId, to: OpenId, chunk: Chunk) -> Result<(), Status> {
    let range = range(chunk.from, chunk.length.into())?;
    // An earlier chunk may have extended the file.
    let end = call.server.files.info(from).await?.length;
    if range.end > end {
        return Err(Status::INVALID_VIEW_SIZE);
    }
    call.server.files.copy_range(from, range, to, chunk.to).await?;
    Ok(())
}

fn range(start: u64, length: u64) -> Result<Range<u64>, Status> {
    Ok(start..start.checked_add(length).ok_or(Status::INVALID_PARAMETER)?)
}

fn result(chunks: u32, bytes_of_chunk: u32, total: u32) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u32(chunks).u32(bytes_of_chunk).u32(total);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_count_chunk_length_and_total_length_are_limited() {
        let copy = |count: u32, lengths: &[u32]| CopyChunks {
            key: [0; 24],
            count,
            chunks: lengths.iter().map(|length| Chunk { from: 0, to: 0, length: *length }).collect(),
        };
        for (copy, is_valid) in [
            (copy(0, &[]), true),
            (copy(2, &[1, MAX_CHUNK_BYTES]), true),
            (copy(16, &[MAX_CHUNK_BYTES; 16]), true),
            (copy(17, &[MAX_CHUNK_BYTES; 17]), false),
            (copy(1, &[0]), false),
            (copy(1, &[MAX_CHUNK_BYTES + 1]), false),
            (copy(257, &[1; 256]), false),
        ] {
            assert_eq!(is_within_limits(&copy), is_valid, "{}", copy.count);
        }
    }
}
