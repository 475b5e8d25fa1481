//! Flush: what was written is durable when this is answered.

use crate::call::{Answer, Call, Reply};
use crate::open::access;
use crate::wire::io::{done_response, flush_request};

/// Flush.
pub(crate) async fn flush(call: &Call) -> Answer {
    let open = call.open(flush_request(&call.message)?)?;
    if let Some(file) = open.file {
        open.needs(access::WRITE_DATA | access::APPEND_DATA)?;
        call.server.files.flush(file).await?;
    }
    Ok(Reply::new(done_response()))
}
