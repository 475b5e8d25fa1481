//! CLOSE.

use lazuli_concurrency::Timestamp;

use crate::call::{Call, CommandReply, CommandResult};
use crate::session::handles;
use crate::wire::close::{CloseRequest, CloseResponse, response};
use crate::wire::status::Status;

/// Executes CLOSE.
pub(crate) async fn close_file(call: &Call) -> CommandResult {
    let request = CloseRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    // Only one request closes the open.
    let open = call.session()?.remove_open(open.id).ok_or(Status::FILE_CLOSED)?;
    let about = match open.file {
        Some(file) if request.postquery => {
            // Flush first, so that the response has the final size and last write time. Ignore the error: the
            // close fails with it, too.
            let _ = call.server.files.flush(file).await;
            call.server.files.info(file).await.ok()
        }
        _ => None,
    };
    handles::close(&call.server, &open).await?;
    let about = about.map(|info| CloseResponse {
        times: [info.created, info.accessed, info.written, info.changed].map(Timestamp::filetime),
        allocated: info.allocated,
        length: info.length,
        attributes: info.attributes,
    });
    Ok(CommandReply::new(response(about)))
}
