//! Pipes, as far as they are opened, read and written like files.

use tokio::sync::Mutex;

use crate::call::Answer;
use crate::rpc::Pipe;
use crate::wire::status::Status;

/// Reads what the pipe has to say.
pub(crate) async fn read(_pipe: &Mutex<Pipe>, _length: usize) -> Answer {
    Err(Status::NOT_SUPPORTED.into())
}

/// Says something to the pipe.
pub(crate) async fn write(_pipe: &Mutex<Pipe>, _data: &[u8]) -> Answer {
    Err(Status::NOT_SUPPORTED.into())
}
