//! Fetches one small document over HTTP. No redirects, no second try, bounded in size and time.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Larger than any document of an issuer.
const MAX_BYTES: usize = 1 << 20;
/// How long one document may take.
const TIME: Duration = Duration::from_secs(10);

/// The document at that address.
pub(super) async fn get(at: &Uri) -> io::Result<Bytes> {
    tokio::time::timeout(TIME, fetch(at)).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn fetch(at: &Uri) -> io::Result<Bytes> {
    let host = at.host().ok_or(io::ErrorKind::InvalidInput)?;
    let bare = host.trim_matches(['[', ']']);
    if at.scheme_str() == Some("https") {
        let stream = TcpStream::connect((bare, at.port_u16().unwrap_or(443))).await?;
        let name = ServerName::try_from(bare.to_owned()).map_err(io::Error::other)?;
        exchange(TlsConnector::from(tls()?).connect(name, stream).await?, at).await
    } else {
        exchange(TcpStream::connect((bare, at.port_u16().unwrap_or(80))).await?, at).await
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    at: &Uri,
) -> io::Result<Bytes> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let request = Request::get(at.path_and_query().map_or("/", |path| path.as_str()))
        .header(header::HOST, at.authority().map_or("", |authority| authority.as_str()))
        .header(header::ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let reply = sender.send_request(request).await.map_err(io::Error::other)?;
    let status = reply.status();
    let body = Limited::new(reply.into_body(), MAX_BYTES).collect().await.map_err(io::Error::other)?;
    connection.abort();
    if !status.is_success() {
        return Err(io::Error::other(format!("{at} answers {status}")));
    }
    Ok(body.to_bytes())
}

/// Trusts whom the machine trusts.
fn tls() -> io::Result<Arc<ClientConfig>> {
    static TLS: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = TLS.get() {
        return Ok(config.clone());
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TLS.get_or_init(|| Arc::new(config)).clone())
}
