//! Opens, reads and writes named pipes.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Mutex;

use crate::call::{Call, CommandReply, CommandResult};
use crate::rpc::Pipe;
use crate::session::open::Open;
use crate::wire::create::access;
use crate::wire::create::{CreateRequest, CreateResponse};
use crate::wire::io::{read_response, write_response};
use crate::wire::status::Status;

const OPENED: u32 = 1;
const NORMAL: u32 = 0x0000_0080;
/// Allocation size that is reported for a pipe.
const ALLOCATED: u64 = 4096;

/// Opens a pipe by name. The pipe lists the shares that exist now.
pub(crate) async fn create(call: &Call, request: &CreateRequest) -> CommandResult {
    if !Pipe::exists(&request.name) {
        return Err(Status::OBJECT_NAME_NOT_FOUND.into());
    }
    let login = call.session()?.login().ok_or(Status::USER_SESSION_DELETED)?;
    let shares = call.server.files.share_names(&login.account).await?;
    let permit = call.server.pipe_limit.acquire(&login.account).ok_or(Status::TOO_MANY_OPENED_FILES)?;
    let open = Arc::new(Open {
        pipe: Some(Mutex::new(Pipe::new(shares))),
        access: access::ALL,
        share: request.share,
        options: request.options,
        action: OPENED,
        ..call.new_open(call.server.next_id(), permit.into())?
    });
    call.session()?.add_open(open.clone());
    call.compound.lock().file = Some(open.id);
    let response = CreateResponse {
        action: OPENED,
        allocated: ALLOCATED,
        attributes: NORMAL,
        id: open.id,
        ..CreateResponse::default()
    };
    Ok(CommandReply::new(response.write()))
}

/// Reads from the pipe.
pub(crate) async fn read(pipe: &Mutex<Pipe>, length: usize) -> CommandResult {
    let read = pipe.lock().await.read(length).ok_or(Status::PIPE_EMPTY)?;
    let reply = CommandReply::new(read_response(read.bytes.len()));
    let status = if read.is_more { Status::BUFFER_OVERFLOW } else { Status::SUCCESS };
    Ok(CommandReply { data: vec![Bytes::from(read.bytes)], ..reply }.with_status(status))
}

/// Writes to the pipe.
pub(crate) async fn write(pipe: &Mutex<Pipe>, data: &[u8]) -> CommandResult {
    pipe.lock().await.write(data).map_err(|_| Status::PIPE_DISCONNECTED)?;
    Ok(CommandReply::new(write_response(data.len())))
}
