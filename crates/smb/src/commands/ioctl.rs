//! Ioctl: the file system controls that clients ask for. What is not known is answered as Samba does.

mod copy_chunk;
mod interfaces;
mod snapshots;
mod sparse;

use crate::call::{Answer, Call, Reply};
use crate::open::{FileId, Open, access};
use crate::rpc::Pipe;
use crate::wire::cursor::{Reader, Writer};
use crate::wire::info::MAX_TRANSACT;
use crate::wire::ioctl::{IoctlRequest, code};
use crate::wire::negotiate::capability;
use crate::wire::status::Status;

/// Controls that are about no file.
const WITHOUT_FILE: [u32; 5] = [
    code::DFS_GET_REFERRALS,
    code::DFS_GET_REFERRALS_EX,
    code::PIPE_WAIT,
    code::QUERY_NETWORK_INTERFACE_INFO,
    code::VALIDATE_NEGOTIATE_INFO,
];
/// The compression of a file that has none.
const UNCOMPRESSED: u16 = 0;

/// Ioctl.
pub(crate) async fn ioctl(call: &Call) -> Answer {
    let request = IoctlRequest::parse(&call.message)?;
    if request.room > MAX_TRANSACT || request.input.len() > MAX_TRANSACT as usize {
        return Err(Status::INVALID_PARAMETER.into());
    }
    if WITHOUT_FILE.contains(&request.code) {
        if request.id != FileId::RELATED {
            return Err(Status::INVALID_PARAMETER.into());
        }
        return match request.code {
            code::VALIDATE_NEGOTIATE_INFO => validate_negotiate(call, &request),
            code::QUERY_NETWORK_INTERFACE_INFO if may_bind(call) => {
                let output = interfaces::interfaces(call.connection.local);
                if output.len() > request.room as usize {
                    return Err(Status::BUFFER_TOO_SMALL.into());
                }
                Ok(Reply::new(request.response(&output)))
            }
            // There is no distributed file system.
            _ => Err(unknown(call).into()),
        };
    }
    let open = call.open(request.id)?;
    if let Some(pipe) = &open.pipe {
        return transceive(call, &request, pipe).await;
    }
    let room = request.room as usize;
    let output = match request.code {
        code::SRV_REQUEST_RESUME_KEY => copy_chunk::resume_key(&open, room)?,
        code::SRV_COPYCHUNK | code::SRV_COPYCHUNK_WRITE => {
            return copy_chunk::copy_chunk(call, &open, &request).await;
        }
        code::SRV_ENUMERATE_SNAPSHOTS => snapshots::enumerate(call, room).await?,
        code::SET_SPARSE => sparse::set_sparse(call, &open, request.input).await?,
        code::SET_ZERO_DATA => sparse::zero(call, &open, request.input).await?,
        code::QUERY_ALLOCATED_RANGES => return sparse::allocated(call, &open, &request).await,
        code::GET_COMPRESSION if room < 2 => return Err(Status::INVALID_USER_BUFFER.into()),
        code::GET_COMPRESSION => UNCOMPRESSED.to_le_bytes().to_vec(),
        code::SET_COMPRESSION => {
            open.needs(access::WRITE_DATA)?;
            if Reader::new(request.input).u16()? != UNCOMPRESSED {
                return Err(Status::NOT_SUPPORTED.into());
            }
            vec![]
        }
        code::CREATE_OR_GET_OBJECT_ID | code::GET_OBJECT_ID => object_id(&open, room)?,
        code::GET_REPARSE_POINT | code::SET_REPARSE_POINT => return Err(Status::NOT_A_REPARSE_POINT.into()),
        code::PIPE_TRANSCEIVE | code::PIPE_PEEK => return Err(Status::NOT_SUPPORTED.into()),
        _ => return Err(unknown(call).into()),
    };
    Ok(Reply::new(request.response(&output)))
}

/// Whether the client was told that a session can have more than one connection.
fn may_bind(call: &Call) -> bool {
    let negotiated = call.connection.negotiated.get();
    negotiated.is_some_and(|negotiated| negotiated.capabilities & capability::MULTI_CHANNEL != 0)
}

/// What a control that is not known is answered with.
fn unknown(call: &Call) -> Status {
    match &call.tree {
        Some(tree) if tree.tree.is_none() => Status::FS_DRIVER_REQUIRED,
        _ => Status::INVALID_DEVICE_REQUEST,
    }
}

/// The client repeats what it has negotiated. If that is not what came here, somebody is in between.
fn validate_negotiate(call: &Call, request: &IoctlRequest<'_>) -> Answer {
    let negotiated = call.connection.negotiated.get().ok_or(Status::INVALID_PARAMETER)?;
    let Some(output) = negotiated.validate(request.input, call.server.guid.to_bytes_le()) else {
        call.connection.close();
        return Err(Status::ACCESS_DENIED.into());
    };
    if output.len() > request.room as usize {
        return Err(Status::BUFFER_TOO_SMALL.into());
    }
    Ok(Reply::new(request.response(&output)))
}

/// Writes to a pipe and reads what it answers.
async fn transceive(call: &Call, request: &IoctlRequest<'_>, pipe: &tokio::sync::Mutex<Pipe>) -> Answer {
    if request.code != code::PIPE_TRANSCEIVE {
        return Err(unknown(call).into());
    }
    let mut pipe = pipe.lock().await;
    pipe.write(request.input).map_err(|_| Status::INVALID_PARAMETER)?;
    let read = pipe.read(request.room as usize).ok_or(Status::PIPE_EMPTY)?;
    let status = if read.is_more { Status::BUFFER_OVERFLOW } else { Status::SUCCESS };
    Ok(Reply::new(request.response(&read.bytes)).with(status))
}

/// Names a file for good: itself, where it was born, and no domain.
fn object_id(open: &Open, room: usize) -> Result<Vec<u8>, Status> {
    if room < 64 {
        return Err(Status::BUFFER_TOO_SMALL);
    }
    let file = open.file()?.file;
    let mut writer = Writer::new();
    for _ in 0..2 {
        writer.u64(file.node.0).u64(file.space.0);
        writer.zeros(8).u64(file.space.0);
    }
    Ok(writer.finish())
}
