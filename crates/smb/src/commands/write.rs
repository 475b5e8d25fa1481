//! Write.

use bytes::Bytes;
use lazuli_file::native::Failure;

use super::read::{MAX_LENGTH, MAX_OFFSET};
use crate::call::{Answer, Call, Reply};
use crate::changes::filter;
use crate::open::access;
use crate::wire::create::options;
use crate::wire::io::{WriteRequest, write_response};
use crate::wire::status::Status;

/// Where files end at the latest, as clients know them. Whether there is room for that is another question.
const MAX_END: u64 = 0xfff_ffff_0000;

/// Write.
pub(crate) async fn write(call: &Call) -> Answer {
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
    open.needs(access::WRITE_DATA | access::APPEND_DATA)?;
    let most = if length == 0 { MAX_OFFSET } else { MAX_END };
    let end = request.offset.checked_add(length as u64).filter(|end| *end <= most);
    end.ok_or(Status::INVALID_PARAMETER)?;
    let through = request.through || open.options & options::WRITE_THROUGH != 0;
    if length > 0 {
        let data = apart(request.data, &call.message);
        let written = call.server.files.write_at(file, request.offset, data, through).await;
        written.map_err(|failure| match failure {
            // No disk has room for such a file.
            Failure::OutOfBounds => Status::DISK_FULL,
            failure => failure.into(),
        })?;
        call.server.changes.modified_open(&call.server.files, file, filter::LAST_WRITE | filter::SIZE);
    }
    Ok(Reply::new(write_response(length)))
}

/// What is written, without the message that it came in if that is much longer: files keep it until it is stored.
fn apart(data: Bytes, message: &Bytes) -> Bytes {
    if data.len() < message.len() / 2 { Bytes::copy_from_slice(&data) } else { data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_data_does_not_keep_a_long_message() {
        for (length, is_apart) in [(100, false), (50, false), (49, true), (0, true)] {
            let message = Bytes::from(vec![7; 100]);
            let data = apart(message.slice(..length), &message);
            assert_eq!(data, message[..length]);
            // Nobody else has it, so it can be had whole.
            assert_eq!(message.try_into_mut().is_ok(), is_apart, "{length}");
        }
    }
}
