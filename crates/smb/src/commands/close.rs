//! Close.

use std::sync::Arc;

use crate::open::Open;
use crate::server::Server;

/// Ends an open without being asked: its tree, session or connection is gone. `lost`: the connection; what is durable stays.
pub(crate) async fn end(server: &Arc<Server>, open: Arc<Open>, _lost: bool) {
    open.closed.cancel();
    let Some(file) = open.file else { return };
    if let Err(failure) = server.files.close_open(file).await {
        tracing::warn!(%failure, "a file could not be closed");
    }
}
