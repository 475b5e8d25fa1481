//! Fetches one small document over HTTP. No redirects, no retries, bounded in size and time.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri, header};
use lazuli_outbound::{Allow, Outbound};

/// Maximum size of a document, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Timeout for one document.
const TIME: Duration = Duration::from_secs(10);

/// Fetches a document. The operator chose the address, so all hosts are allowed.
pub(super) async fn get(at: &Uri) -> io::Result<Bytes> {
    tokio::time::timeout(TIME, fetch(at)).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn fetch(at: &Uri) -> io::Result<Bytes> {
    let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static("application/json"))]);
    let reply = Outbound::new([Allow::Everything]).get(at, headers).await.map_err(io::Error::other)?;
    if !reply.status.is_success() {
        return Err(io::Error::other(format!("{at} answers {}", reply.status)));
    }
    reply.collect(MAX_BYTES).await.map_err(io::Error::other)
}
