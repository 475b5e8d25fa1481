//! QUERY_INFO: information about a file or file system, and security descriptors.
//!
//! Each class has a fixed part. A smaller output buffer is an error. If the rest does not fit, it is
//! truncated with a warning.

mod filesystem;

use lazuli_file::handles::Info;
use lazuli_security::{Descriptor, part};

use crate::call::{Call, CommandError, CommandReply, CommandResult};
use crate::negotiated::Dialect;
use crate::session::open::Open;
use crate::wire::create::access;
use crate::wire::cursor::ByteWriter;
use crate::wire::info::{self, InfoType, MAX_TRANSACT, QueryInfoRequest, class, data_response};
use crate::wire::status::Status;

/// The data of an information class, and the length of its fixed part.
struct InfoData {
    fixed_length: usize,
    data: Vec<u8>,
}

impl InfoData {
    /// Returns data that must fit completely.
    fn fixed(data: Vec<u8>) -> Self {
        Self { fixed_length: data.len(), data }
    }

    /// Returns data that may be truncated after `fixed_length` bytes.
    fn truncatable(fixed_length: usize, data: Vec<u8>) -> Self {
        Self { fixed_length, data }
    }

    /// Returns the response with as much data as fits.
    fn reply(mut self, max_output: usize) -> CommandResult {
        if max_output < self.fixed_length {
            return Err(Status::INFO_LENGTH_MISMATCH.into());
        }
        let status = if self.data.len() > max_output { Status::BUFFER_OVERFLOW } else { Status::SUCCESS };
        self.data.truncate(max_output);
        Ok(CommandReply::new(data_response(&self.data)).with_status(status))
    }
}

/// Executes QUERY_INFO.
pub(crate) async fn query_info(call: &Call) -> CommandResult {
    let request = QueryInfoRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    if request.max_output > MAX_TRANSACT || request.input > MAX_TRANSACT {
        return Err(Status::INVALID_PARAMETER.into());
    }
    let max_output = request.max_output as usize;
    if open.file.is_none() {
        return about_pipe(&request)?.reply(max_output);
    }
    match request.kind {
        InfoType::File => about_file(call, &open, request.class).await?.reply(max_output),
        InfoType::FileSystem => filesystem::query(call, &open, request.class).await?.reply(max_output),
        InfoType::Security => security(call, &open, request.additional, max_output).await,
        InfoType::Quota => Err(Status::INVALID_PARAMETER.into()),
    }
}

/// Pipes support only FileStandardInformation.
fn about_pipe(request: &QueryInfoRequest) -> Result<InfoData, Status> {
    if (request.kind, request.class) != (InfoType::File, class::STANDARD) {
        return Err(Status::NOT_SUPPORTED);
    }
    let mut writer = ByteWriter::new();
    writer.u64(4096).u64(0).u32(1).u8(1).u8(0).u16(0);
    Ok(InfoData::fixed(writer.finish()))
}

async fn about_file(call: &Call, open: &Open, class: u8) -> Result<InfoData, Status> {
    if matches!(class, class::BASIC | class::ALL | class::NETWORK_OPEN | class::ATTRIBUTE_TAG) {
        open.require_any(access::READ_ATTRIBUTES)?;
    }
    let info = call.server.files.info(open.file()?).await?;
    let number = |value: u32| InfoData::fixed(value.to_le_bytes().to_vec());
    Ok(match class {
        class::BASIC => InfoData::fixed(info::basic(&info)),
        class::STANDARD => InfoData::fixed(info::standard(&info)),
        class::INTERNAL => InfoData::fixed(info.id.0.to_le_bytes().to_vec()),
        class::EA | class::ALIGNMENT => number(0),
        class::ACCESS => number(open.access),
        class::NAME => InfoData::truncatable(8, info::name(&full_path(&info))),
        class::POSITION => InfoData::fixed(open.position().to_le_bytes().to_vec()),
        class::FULL_EA => {
            open.require_any(access::READ_EA)?;
            return Err(Status::NO_EAS_ON_FILE);
        }
        class::MODE => number(open.mode()),
        class::ALL => InfoData::truncatable(104, all_information(open, &info)),
        // There are no short names, so this is the file's name.
        class::ALTERNATE_NAME => InfoData::truncatable(8, info::name(&info.name)),
        class::STREAM => InfoData::truncatable(if info.is_directory { 0 } else { 32 }, info::streams(&info)),
        class::COMPRESSION => InfoData::fixed(info::compression(&info)),
        class::NETWORK_OPEN => InfoData::fixed(info::network_open(&info)),
        class::ATTRIBUTE_TAG => {
            let mut writer = ByteWriter::new();
            writer.u32(info.attributes).u32(0);
            InfoData::fixed(writer.finish())
        }
        class::NORMALIZED_NAME if call.connection.dialect() < Dialect::Smb311 => {
            return Err(Status::NOT_SUPPORTED);
        }
        class::NORMALIZED_NAME => InfoData::truncatable(8, info::name(&info.path.replace('/', "\\"))),
        class::ID => {
            let mut writer = ByteWriter::new();
            writer.u64(filesystem::serial(open)?).u128(info.id.0.into());
            InfoData::fixed(writer.finish())
        }
        class::PIPE | class::PIPE_LOCAL | class::PIPE_REMOTE => return Err(Status::INVALID_PARAMETER),
        _ => return Err(Status::INVALID_INFO_CLASS),
    })
}

/// Returns FileAllInformation.
fn all_information(open: &Open, info: &Info) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.put(&info::basic(info)).put(&info::standard(info)).u64(info.id.0).u32(0).u32(open.access);
    writer.u64(open.position()).u32(open.mode()).u32(0).put(&info::name(&full_path(info)));
    writer.finish()
}

/// Returns the path from the share's root, with backslashes.
fn full_path(info: &Info) -> String {
    format!("\\{}", info.path.replace('/', "\\"))
}

/// Returns the requested parts of the security descriptor.
async fn security(call: &Call, open: &Open, parts: u32, max_output: usize) -> CommandResult {
    if parts & (part::OWNER | part::GROUP | part::DACL | part::LABEL) != 0 {
        open.require_any(access::READ_CONTROL)?;
    }
    if parts & part::SACL != 0 {
        open.require_any(access::SYSTEM_SECURITY)?;
    }
    let sddl = call.server.files.permission_of(open.file()?).await?;
    let descriptor = Descriptor::from_sddl(&sddl).map_err(|_| Status::NOT_SUPPORTED)?;
    let bytes = descriptor.filter_parts(parts).to_bytes();
    if bytes.len() > max_output {
        let data = (bytes.len() as u32).to_le_bytes().to_vec();
        return Err(CommandError { status: Status::BUFFER_TOO_SMALL, data });
    }
    Ok(CommandReply::new(data_response(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_smaller_than_the_fixed_part_is_an_error_and_the_rest_is_truncated() {
        let data = || InfoData::truncatable(4, vec![1, 2, 3, 4, 5, 6]);
        assert!(data().reply(3).is_err_and(|refused| refused.status == Status::INFO_LENGTH_MISMATCH));
        let cut = data().reply(5).ok().unwrap();
        assert_eq!((cut.status, &cut.body[8..]), (Status::BUFFER_OVERFLOW, &[1, 2, 3, 4, 5][..]));
        let whole = data().reply(100).ok().unwrap();
        assert_eq!((whole.status, whole.body.len()), (Status::SUCCESS, 14));
    }
}
