//! The SMB endpoint of a running server.

use std::net::SocketAddr;

use lazuli_account::AccountDirectory;
use lazuli_smb::{Limits, Options, SmbServer};
use lazuli_telemetry::Telemetry;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::Failure;
use crate::config::Config;
use crate::services::Services;

/// The endpoint, serving until it is stopped.
pub(crate) struct Smb {
    address: SocketAddr,
    server: SmbServer,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Smb {
    /// Binds the address of the endpoint, if the endpoint is enabled.
    pub(crate) async fn bind(config: &Config) -> Result<Option<TcpListener>, Failure> {
        let Some(address) = config.smb else { return Ok(None) };
        let bound = TcpListener::bind(address).await;
        bound
            .map(Some)
            .map_err(|error| Failure::Failed(format!("cannot listen on {address} for SMB: {error}")))
    }

    /// Starts the endpoint on its socket, if it is enabled.
    pub(crate) fn start(
        listener: Option<TcpListener>,
        config: &Config,
        connections: usize,
        services: &Services,
        accounts: &AccountDirectory,
        telemetry: Telemetry,
    ) -> Result<Option<Self>, Failure> {
        let Some(listener) = listener else { return Ok(None) };
        let address = listener.local_addr().map_err(Failure::failed)?;
        let usual = Limits::default();
        let options = Options {
            require_encryption: !config.smb_unencrypted,
            // Messages that are neither signed nor encrypted could be modified, and a login could be relayed.
            require_signing: config.smb_require_signing || config.smb_unencrypted,
            enforce_permissions: config.smb_enforce_permissions,
            limits: Limits { connections: connections.min(usual.connections), ..usual },
            telemetry,
            ..Options::default()
        };
        let server = SmbServer::new(services.file.clone(), accounts.clone(), options);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving_server = server.clone();
        let serving = tokio::spawn(async move {
            // Stop when the sender signals or is dropped.
            let stopped = async move { drop(stopped.await) };
            if let Err(error) = serving_server.serve(listener, stopped).await {
                tracing::error!(%error, %address, "SMB listener stopped; restart the server to serve SMB again");
            }
        });
        Ok(Some(Self { address, server, stop, serving }))
    }

    /// Returns the server, for metrics.
    pub(crate) fn server(&self) -> SmbServer {
        self.server.clone()
    }

    /// Returns the address of the listener.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Disconnects all clients and makes their writes durable.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.serving.await;
    }
}
