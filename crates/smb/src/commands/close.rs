//! Close.

use std::sync::Arc;

use lazuli_concurrency::Timestamp;
use lazuli_file::native::Failure;

use crate::call::{Answer, Call, Reply};
use crate::open::Open;
use crate::server::Server;
use crate::wire::close::{CloseRequest, CloseResponse, response};
use crate::wire::create::options;
use crate::wire::status::Status;

/// Close.
pub(crate) async fn close_file(call: &Call) -> Answer {
    let request = CloseRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    // Only one request closes it.
    let open = call.session()?.remove(open.id).ok_or(Status::FILE_CLOSED)?;
    let about = match open.file {
        Some(file) if request.postquery => {
            // What the client is told is what is there then: the time of the last write is that of the close.
            // If it fails, so does the close.
            let _ = call.server.files.flush(file).await;
            call.server.files.info(file).await.ok()
        }
        _ => None,
    };
    close(&call.server, &open).await?;
    let about = about.map(|info| CloseResponse {
        times: [info.created, info.accessed, info.written, info.changed].map(Timestamp::filetime),
        allocated: info.allocated,
        length: info.length,
        attributes: info.attributes,
    });
    Ok(Reply::new(response(about)))
}

/// Closes an open that was taken from its session.
pub(crate) async fn close(server: &Arc<Server>, open: &Arc<Open>) -> Result<(), Failure> {
    server.handles.remove(open);
    open.closed.cancel();
    let Some(file) = open.file else { return Ok(()) };
    let dooms = open.is_directory && open.options & options::DELETE_ON_CLOSE != 0;
    let doomed = if dooms { server.files.path_of(file) } else { None };
    if let Some(removed) = server.files.close_open(file).await? {
        server.changes.removed(file.file.space, &removed.path, removed.is_directory);
    } else if let Some(path) = doomed {
        // Others have it open; nothing will happen in it any more.
        server.changes.deleting(file.file.space, &path);
    }
    Ok(())
}

/// Closes an open without being asked: its tree, session or connection is gone.
pub(crate) async fn discard(server: &Arc<Server>, open: &Arc<Open>) {
    match close(server, open).await {
        // It was closed by force, which is as good.
        Ok(()) | Err(Failure::Closed) => {}
        Err(failure) => tracing::warn!(%failure, "a file could not be closed"),
    }
}
