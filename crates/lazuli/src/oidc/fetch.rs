//! Fetches one small document over HTTP. No redirects, no second try, bounded in size and time.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri, header};
use lazuli_outbound::{Allow, Outbound};

/// Larger than any document of an issuer.
const MAX_BYTES: usize = 1 << 20;
/// How long one document may take.
const TIME: Duration = Duration::from_secs(10);

/// The document at that address, which the operator chose: it may be anywhere.
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
