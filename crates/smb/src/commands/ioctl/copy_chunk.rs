//! Server-side copies: a key for the file to copy from, and the pieces to copy.

use std::ops::Range;

use lazuli_file::opens::OpenId;

use crate::call::{Answer, Call, Reply};
use crate::changes::filter;
use crate::open::{FileId, Open, access};
use crate::wire::cursor::{Reader, Writer};
use crate::wire::ioctl::{Chunk, CopyChunks, IoctlRequest, code};
use crate::wire::status::Status;

/// What one request may copy, as on Windows.
const MAX_CHUNKS: u32 = 256;
const MAX_CHUNK_BYTES: u32 = 1 << 20;
const MAX_TOTAL_BYTES: u32 = 16 << 20;
/// Bytes of a key and what follows it.
const KEY: usize = 32;
/// Bytes that say what was copied.
const RESULT: usize = 12;

/// The key of an open: how the client names it anyway. It is good in its session only.
pub(super) fn resume_key(open: &Open, room: usize) -> Result<Vec<u8>, Status> {
    if room < KEY {
        return Err(Status::INVALID_PARAMETER);
    }
    let mut writer = Writer::new();
    writer.u64(open.id.persistent).u64(open.id.volatile).zeros(KEY - 16);
    Ok(writer.finish())
}

/// Copies pieces of the file of the key.
pub(super) async fn copy_chunk(call: &Call, to: &Open, request: &IoctlRequest<'_>) -> Answer {
    if (request.room as usize) < RESULT {
        return Err(Status::INVALID_PARAMETER.into());
    }
    let copy = CopyChunks::parse(request.input, MAX_CHUNKS)?;
    let key = FileId::read(&mut Reader::new(&copy.key))?;
    let from = call.session()?.open(key).ok_or(Status::OBJECT_NAME_NOT_FOUND)?;
    let (source, target) = check(&from, to, request.code)?;
    if !is_within_limits(&copy) {
        let limits = result(MAX_CHUNKS, MAX_CHUNK_BYTES, MAX_TOTAL_BYTES);
        return Ok(Reply::new(request.response(&limits)).with(Status::INVALID_PARAMETER));
    }
    let (mut done, mut total, mut status) = (0, 0, Status::SUCCESS);
    for chunk in &copy.chunks {
        // A failure says how far it got, too.
        if let Err(failed) = copy_one(call, source, target, *chunk).await {
            status = failed;
            break;
        }
        (done, total) = (done + 1, total + chunk.length);
    }
    if total > 0 {
        let what = filter::SIZE | filter::LAST_WRITE;
        call.server.changes.modified_open(&call.server.files, target, what);
    }
    Ok(Reply::new(request.response(&result(done, 0, total))).with(status))
}

/// Whether both handles allow it.
fn check(from: &Open, to: &Open, control: u32) -> Result<(OpenId, OpenId), Status> {
    to.needs(access::WRITE_DATA | access::APPEND_DATA)?;
    if control == code::SRV_COPYCHUNK {
        to.needs(access::READ_DATA)?;
    }
    from.needs(access::READ_DATA | access::EXECUTE)?;
    match (from.file, to.file) {
        (Some(source), Some(target)) if !from.is_directory && !to.is_directory => Ok((source, target)),
        _ => Err(Status::ACCESS_DENIED),
    }
}

fn is_within_limits(copy: &CopyChunks) -> bool {
    let is_good = |chunk: &Chunk| (1..=MAX_CHUNK_BYTES).contains(&chunk.length);
    let total = copy.chunks.iter().fold(0_u32, |sum, chunk| sum.saturating_add(chunk.length));
    copy.count <= MAX_CHUNKS && copy.chunks.iter().all(is_good) && total <= MAX_TOTAL_BYTES
}

async fn copy_one(call: &Call, from: OpenId, to: OpenId, chunk: Chunk) -> Result<(), Status> {
    let range = range(chunk.from, chunk.length.into())?;
    // An earlier piece may have made it longer.
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
    let mut writer = Writer::new();
    writer.u32(chunks).u32(bytes_of_chunk).u32(total);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_limits_of_three_kinds() {
        let copy = |count: u32, lengths: &[u32]| CopyChunks {
            key: [0; 24],
            count,
            chunks: lengths.iter().map(|length| Chunk { from: 0, to: 0, length: *length }).collect(),
        };
        for (copy, good) in [
            (copy(0, &[]), true),
            (copy(2, &[1, MAX_CHUNK_BYTES]), true),
            (copy(16, &[MAX_CHUNK_BYTES; 16]), true),
            (copy(17, &[MAX_CHUNK_BYTES; 17]), false),
            (copy(1, &[0]), false),
            (copy(1, &[MAX_CHUNK_BYTES + 1]), false),
            (copy(257, &[1; 256]), false),
        ] {
            assert_eq!(is_within_limits(&copy), good, "{}", copy.count);
        }
    }
}
