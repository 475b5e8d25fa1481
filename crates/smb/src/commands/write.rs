//! WRITE.

use bytes::Bytes;
use lazuli_file::handles::Failure;

use super::read::{MAX_LENGTH, MAX_OFFSET};
use crate::call::{Call, CommandReply, CommandResult};
use crate::change_notifier::filter;
use crate::wire::create::{access, options};
use crate::wire::io::{WriteRequest, write_response};
use crate::wire::status::Status;

/// Maximum end of a file, as on NTFS. The quota is checked elsewhere.
const MAX_END: u64 = 0xfff_ffff_0000;

/// Executes WRITE.
pub(crate) async fn write(call: &Call) -> CommandResult {
    let request = WriteRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    let length = request.data.len();
    if length > MAX_LENGTH {
        return Err(Status::INVALID_PARAMETER.into());
    }
    if let Some(pipe) = &open.pipe {
        return super::pipe::write(pipe, &request.data).await;
    }
    let file = open.file()?;
    if open.is_directory {
        return Err(Status::INVALID_DEVICE_REQUEST.into());
    }
    open.require_any(access::WRITE_DATA | access::APPEND_DATA)?;
    let max_end = if length == 0 { MAX_OFFSET } else { MAX_END };
    let end = request.offset.checked_add(length as u64).filter(|end| *end <= max_end);
    end.ok_or(Status::INVALID_PARAMETER)?;
    let write_through = request.write_through || open.options & options::WRITE_THROUGH != 0;
    if length > 0 {
        let data = detach(request.data, &call.message);
        let written = call.server.files.write_at(file, request.offset, data, write_through).await;
        written.map_err(|failure| match failure {
            // Clients expect this error for a file that is too large.
            Failure::OutOfBounds => Status::DISK_FULL,
            failure => failure.into(),
        })?;
        call.server.notifier.notify_open_modified(
            &call.server.files,
            file,
            filter::LAST_WRITE | filter::SIZE,
        );
    }
    Ok(CommandReply::new(write_response(length)))
}

/// Copies data out of a much longer message, because files keep dirty data in memory until it is stored.
fn detach(data: Bytes, message: &Bytes) -> Bytes {
    if data.len() < message.len() / 2 { Bytes::copy_from_slice(&data) } else { data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_data_does_not_keep_a_long_message_in_memory() {
        for (length, is_detached) in [(100, false), (50, false), (49, true), (0, true)] {
            let message = Bytes::from(vec![7; 100]);
            let data = detach(message.slice(..length), &message);
            assert_eq!(data, message[..length]);
            // Succeeds only if the data does not share the message's memory.
            assert_eq!(message.try_into_mut().is_ok(), is_detached, "{length}");
        }
    }
}
