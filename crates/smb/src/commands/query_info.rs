//! Query Info: about a file, the file system it is in, or who may do what with it.
//!
//! A class has a fixed part. Less room than that is an error; what does not fit of the rest is cut off, with a warning.

mod filesystem;

use lazuli_file::native::Info;
use lazuli_security::{Descriptor, part};

use crate::call::{Answer, Call, Refused, Reply};
use crate::negotiated::Dialect;
use crate::open::{Open, access};
use crate::wire::cursor::Writer;
use crate::wire::info::{self, InfoType, MAX_TRANSACT, QueryInfoRequest, class, data_response};
use crate::wire::status::Status;

/// What is known of a class: the least that the client has to have room for, and everything.
struct Known {
    fixed: usize,
    data: Vec<u8>,
}

impl Known {
    /// All of it has to fit.
    fn fixed(data: Vec<u8>) -> Self {
        Self { fixed: data.len(), data }
    }

    /// What is behind so many bytes may be cut off.
    fn from(fixed: usize, data: Vec<u8>) -> Self {
        Self { fixed, data }
    }

    /// As much of it as the client has room for.
    fn answer(mut self, room: usize) -> Answer {
        if room < self.fixed {
            return Err(Status::INFO_LENGTH_MISMATCH.into());
        }
        let status = if self.data.len() > room { Status::BUFFER_OVERFLOW } else { Status::SUCCESS };
        self.data.truncate(room);
        Ok(Reply::new(data_response(&self.data)).with(status))
    }
}

/// Query Info.
pub(crate) async fn query_info(call: &Call) -> Answer {
    let request = QueryInfoRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    if request.room > MAX_TRANSACT || request.input > MAX_TRANSACT {
        return Err(Status::INVALID_PARAMETER.into());
    }
    let room = request.room as usize;
    if open.file.is_none() {
        return about_pipe(&request)?.answer(room);
    }
    match request.kind {
        InfoType::File => about_file(call, &open, request.class).await?.answer(room),
        InfoType::FileSystem => filesystem::about(call, &open, request.class).await?.answer(room),
        InfoType::Security => security(call, &open, request.additional, room).await,
        InfoType::Quota => Err(Status::INVALID_PARAMETER.into()),
    }
}

/// Pipes say little: that they are there.
fn about_pipe(request: &QueryInfoRequest) -> Result<Known, Status> {
    if (request.kind, request.class) != (InfoType::File, class::STANDARD) {
        return Err(Status::NOT_SUPPORTED);
    }
    let mut writer = Writer::new();
    writer.u64(4096).u64(0).u32(1).u8(1).u8(0).u16(0);
    Ok(Known::fixed(writer.finish()))
}

async fn about_file(call: &Call, open: &Open, class: u8) -> Result<Known, Status> {
    if matches!(class, class::BASIC | class::ALL | class::NETWORK_OPEN | class::ATTRIBUTE_TAG) {
        open.needs(access::READ_ATTRIBUTES)?;
    }
    let about = call.server.files.info(open.file()?).await?;
    let number = |value: u32| Known::fixed(value.to_le_bytes().to_vec());
    Ok(match class {
        class::BASIC => Known::fixed(info::basic(&about)),
        class::STANDARD => Known::fixed(info::standard(&about)),
        class::INTERNAL => Known::fixed(about.id.0.to_le_bytes().to_vec()),
        class::EA | class::ALIGNMENT => number(0),
        class::ACCESS => number(open.access),
        class::NAME => Known::from(8, info::name(&name(&about))),
        class::POSITION => Known::fixed(open.position().to_le_bytes().to_vec()),
        class::FULL_EA => {
            open.needs(access::READ_EA)?;
            return Err(Status::NO_EAS_ON_FILE);
        }
        class::MODE => number(open.mode()),
        class::ALL => Known::from(104, all(open, &about)),
        // There are no names beside those that files were given.
        class::ALTERNATE_NAME => Known::from(8, info::name(&about.name)),
        class::STREAM => Known::from(if about.is_directory { 0 } else { 32 }, info::streams(&about)),
        class::COMPRESSION => Known::fixed(info::compression(&about)),
        class::NETWORK_OPEN => Known::fixed(info::network_open(&about)),
        class::ATTRIBUTE_TAG => {
            let mut writer = Writer::new();
            writer.u32(about.attributes).u32(0);
            Known::fixed(writer.finish())
        }
        class::NORMALIZED_NAME if call.connection.dialect() < Dialect::Smb311 => {
            return Err(Status::NOT_SUPPORTED);
        }
        class::NORMALIZED_NAME => Known::from(8, info::name(&about.path.replace('/', "\\"))),
        class::ID => {
            let mut writer = Writer::new();
            writer.u64(filesystem::serial(open)?).u128(about.id.0.into());
            Known::fixed(writer.finish())
        }
        class::PIPE | class::PIPE_LOCAL | class::PIPE_REMOTE => return Err(Status::INVALID_PARAMETER),
        _ => return Err(Status::INVALID_INFO_CLASS),
    })
}

/// Several classes in one.
fn all(open: &Open, about: &Info) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.put(&info::basic(about)).put(&info::standard(about)).u64(about.id.0).u32(0).u32(open.access);
    writer.u64(open.position()).u32(open.mode()).u32(0).put(&info::name(&name(about)));
    writer.finish()
}

/// The path as clients know it.
fn name(about: &Info) -> String {
    format!("\\{}", about.path.replace('/', "\\"))
}

/// The parts of the security descriptor that are asked for.
async fn security(call: &Call, open: &Open, parts: u32, room: usize) -> Answer {
    if parts & (part::OWNER | part::GROUP | part::DACL | part::LABEL) != 0 {
        open.needs(access::READ_CONTROL)?;
    }
    if parts & part::SACL != 0 {
        open.needs(access::SYSTEM_SECURITY)?;
    }
    let sddl = call.server.files.permission_of(open.file()?).await?;
    let descriptor = Descriptor::from_sddl(&sddl).map_err(|_| Status::NOT_SUPPORTED)?;
    let bytes = descriptor.only(parts).to_bytes();
    if bytes.len() > room {
        let data = (bytes.len() as u32).to_le_bytes().to_vec();
        return Err(Refused { status: Status::BUFFER_TOO_SMALL, data });
    }
    Ok(Reply::new(data_response(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_room_than_the_fixed_part_is_an_error_and_the_rest_is_cut_off() {
        let known = || Known::from(4, vec![1, 2, 3, 4, 5, 6]);
        assert!(known().answer(3).is_err_and(|refused| refused.status == Status::INFO_LENGTH_MISMATCH));
        let cut = known().answer(5).ok().unwrap();
        assert_eq!((cut.status, &cut.body[8..]), (Status::BUFFER_OVERFLOW, &[1, 2, 3, 4, 5][..]));
        let whole = known().answer(100).ok().unwrap();
        assert_eq!((whole.status, whole.body.len()), (Status::SUCCESS, 14));
    }
}
