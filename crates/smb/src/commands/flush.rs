//! FLUSH: makes all written data durable before the response.

use crate::call::{Call, CommandReply, CommandResult};
use crate::wire::create::access;
use crate::wire::io::{empty_response, flush_request};

/// Executes FLUSH.
pub(crate) async fn flush(call: &Call) -> CommandResult {
    let open = call.open(flush_request(&call.message)?)?;
    if let Some(file) = open.file {
        open.require_any(access::WRITE_DATA | access::APPEND_DATA)?;
        call.server.files.flush(file).await?;
    }
    Ok(CommandReply::new(empty_response()))
}
