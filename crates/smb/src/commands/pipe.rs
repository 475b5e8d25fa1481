//! Pipes, as far as they are opened, read and written like files.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Mutex;

use crate::call::{Answer, Call, Reply};
use crate::open::{Open, access};
use crate::rpc::Pipe;
use crate::wire::create::{CreateRequest, CreateResponse};
use crate::wire::io::{read_response, write_response};
use crate::wire::status::Status;

const OPENED: u32 = 1;
const NORMAL: u32 = 0x0000_0080;
/// Bytes that are set aside for a pipe, as clients see it.
const ALLOCATED: u64 = 4096;

/// Opens the pipe of a name, with the shares that there are now.
pub(crate) async fn create(call: &Call, request: &CreateRequest) -> Answer {
    if !Pipe::exists(&request.name) {
        return Err(Status::OBJECT_NAME_NOT_FOUND.into());
    }
    let login = call.session()?.login().ok_or(Status::USER_SESSION_DELETED)?;
    let shares = call.server.files.share_names(&login.account).await?;
    let place = call.server.pipes.take().ok_or(Status::TOO_MANY_OPENED_FILES)?;
    let open = Arc::new(Open {
        pipe: Some(Mutex::new(Pipe::new(shares))),
        access: access::ALL,
        share: request.share,
        options: request.options,
        action: OPENED,
        ..Open::new(call, call.server.number(), place.into())?
    });
    call.session()?.add(open.clone());
    call.chain.lock().file = Some(open.id);
    let response = CreateResponse {
        action: OPENED,
        allocated: ALLOCATED,
        attributes: NORMAL,
        id: open.id,
        ..CreateResponse::default()
    };
    Ok(Reply::new(response.write()))
}

/// Reads what the pipe has to say.
pub(crate) async fn read(pipe: &Mutex<Pipe>, length: usize) -> Answer {
    let read = pipe.lock().await.read(length).ok_or(Status::PIPE_EMPTY)?;
    let reply = Reply::new(read_response(read.bytes.len()));
    let status = if read.is_more { Status::BUFFER_OVERFLOW } else { Status::SUCCESS };
    Ok(Reply { data: vec![Bytes::from(read.bytes)], ..reply }.with(status))
}

/// Says something to the pipe.
pub(crate) async fn write(pipe: &Mutex<Pipe>, data: &[u8]) -> Answer {
    pipe.lock().await.write(data).map_err(|_| Status::PIPE_DISCONNECTED)?;
    Ok(Reply::new(write_response(data.len())))
}
