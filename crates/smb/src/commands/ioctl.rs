//! IOCTL: the supported file system controls. Unsupported ones get the same errors as from Samba.

mod copy_chunk;
mod interfaces;
mod snapshots;
mod sparse;

use crate::call::{Call, CommandReply, CommandResult};
use crate::rpc::Pipe;
use crate::session::open::Open;
use crate::wire::FileId;
use crate::wire::create::access;
use crate::wire::cursor::{ByteReader, ByteWriter};
use crate::wire::info::MAX_TRANSACT;
use crate::wire::ioctl::{IoctlRequest, code};
use crate::wire::negotiate::capability;
use crate::wire::status::Status;

/// Controls that refer to no open.
const WITHOUT_FILE: [u32; 5] = [
    code::DFS_GET_REFERRALS,
    code::DFS_GET_REFERRALS_EX,
    code::PIPE_WAIT,
    code::QUERY_NETWORK_INTERFACE_INFO,
    code::VALIDATE_NEGOTIATE_INFO,
];
/// `COMPRESSION_FORMAT_NONE`.
const UNCOMPRESSED: u16 = 0;

/// Executes IOCTL.
pub(crate) async fn ioctl(call: &Call) -> CommandResult {
    let request = IoctlRequest::parse(&call.message)?;
    if request.max_output > MAX_TRANSACT || request.input.len() > MAX_TRANSACT as usize {
        return Err(Status::INVALID_PARAMETER.into());
    }
    if WITHOUT_FILE.contains(&request.code) {
        if request.id != FileId::RELATED {
            return Err(Status::INVALID_PARAMETER.into());
        }
        return match request.code {
            code::VALIDATE_NEGOTIATE_INFO => validate_negotiate(call, &request),
            code::QUERY_NETWORK_INTERFACE_INFO if has_multi_channel(call) => {
                let output = interfaces::interfaces(call.connection.local);
                if output.len() > request.max_output as usize {
                    return Err(Status::BUFFER_TOO_SMALL.into());
                }
                Ok(CommandReply::new(request.response(&output)))
            }
            // DFS is not supported.
            _ => Err(unsupported(call).into()),
        };
    }
    let open = call.open(request.id)?;
    if let Some(pipe) = &open.pipe {
        return pipe_transceive(call, &request, pipe).await;
    }
    let max_output = request.max_output as usize;
    let output = match request.code {
        code::SRV_REQUEST_RESUME_KEY => copy_chunk::resume_key(&open, max_output)?,
        code::SRV_COPYCHUNK | code::SRV_COPYCHUNK_WRITE => {
            return copy_chunk::copy_chunk(call, &open, &request).await;
        }
        code::SRV_ENUMERATE_SNAPSHOTS => snapshots::enumerate(call, max_output).await?,
        code::SET_SPARSE => sparse::set_sparse(call, &open, request.input).await?,
        code::SET_ZERO_DATA => sparse::zero(call, &open, request.input).await?,
        code::QUERY_ALLOCATED_RANGES => return sparse::allocated(call, &open, &request).await,
        code::GET_COMPRESSION if max_output < 2 => return Err(Status::INVALID_USER_BUFFER.into()),
        code::GET_COMPRESSION => UNCOMPRESSED.to_le_bytes().to_vec(),
        code::SET_COMPRESSION => {
            open.require_any(access::WRITE_DATA)?;
            if ByteReader::new(request.input).u16()? != UNCOMPRESSED {
                return Err(Status::NOT_SUPPORTED.into());
            }
            vec![]
        }
        code::CREATE_OR_GET_OBJECT_ID | code::GET_OBJECT_ID => object_id(&open, max_output)?,
        code::GET_REPARSE_POINT | code::SET_REPARSE_POINT => return Err(Status::NOT_A_REPARSE_POINT.into()),
        code::PIPE_TRANSCEIVE | code::PIPE_PEEK => return Err(Status::NOT_SUPPORTED.into()),
        _ => return Err(unsupported(call).into()),
    };
    Ok(CommandReply::new(request.response(&output)))
}

/// Returns whether multi-channel was negotiated.
fn has_multi_channel(call: &Call) -> bool {
    let negotiated = call.connection.negotiated.get();
    negotiated.is_some_and(|negotiated| negotiated.capabilities & capability::MULTI_CHANNEL != 0)
}

/// Returns the error for an unsupported control.
fn unsupported(call: &Call) -> Status {
    match &call.tree {
        Some(tree) if tree.tree.is_none() => Status::FS_DRIVER_REQUIRED,
        _ => Status::INVALID_DEVICE_REQUEST,
    }
}

/// Handles `FSCTL_VALIDATE_NEGOTIATE_INFO`. If the client's values differ, an attacker has modified the
/// negotiation, so the connection is closed.
fn validate_negotiate(call: &Call, request: &IoctlRequest<'_>) -> CommandResult {
    let negotiated = call.connection.negotiated.get().ok_or(Status::INVALID_PARAMETER)?;
    let Some(output) = negotiated.validate(request.input, call.server.guid.to_bytes_le()) else {
        call.connection.close();
        return Err(Status::ACCESS_DENIED.into());
    };
    if output.len() > request.max_output as usize {
        return Err(Status::BUFFER_TOO_SMALL.into());
    }
    Ok(CommandReply::new(request.response(&output)))
}

/// Writes to a pipe and reads its response.
async fn pipe_transceive(
    call: &Call,
    request: &IoctlRequest<'_>,
    pipe: &tokio::sync::Mutex<Pipe>,
) -> CommandResult {
    if request.code != code::PIPE_TRANSCEIVE {
        return Err(unsupported(call).into());
    }
    let mut pipe = pipe.lock().await;
    pipe.write(request.input).map_err(|_| Status::INVALID_PARAMETER)?;
    let read = pipe.read(request.max_output as usize).ok_or(Status::PIPE_EMPTY)?;
    let status = if read.is_more { Status::BUFFER_OVERFLOW } else { Status::SUCCESS };
    Ok(CommandReply::new(request.response(&read.bytes)).with_status(status))
}

/// Returns the permanent object id of a file: its own id twice (as object and birth object), and no domain.
fn object_id(open: &Open, max_output: usize) -> Result<Vec<u8>, Status> {
    if max_output < 64 {
        return Err(Status::BUFFER_TOO_SMALL);
    }
    let file = open.file()?.file;
    let mut writer = ByteWriter::new();
    for _ in 0..2 {
        writer.u64(file.node.0).u64(file.space.0);
        writer.zeros(8).u64(file.space.0);
    }
    Ok(writer.finish())
}
