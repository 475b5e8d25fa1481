//! The SMB endpoint: accepts connections and serves them until it is stopped.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lazuli_account::AccountDirectory;
use lazuli_file::FileService;
use lazuli_metrics::{Text, Traffic};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::dispatch;
use crate::server::{Options, ServerState};
use crate::session::handles;

/// TCP keep-alive: after this idle time, probe the client at this interval, and close the connection after
/// this many unanswered probes.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 5;

/// Current sizes and counters of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Open connections.
    pub connections: usize,
    /// Connections that have not logged in.
    pub unauthenticated: usize,
    /// Unauthenticated connections that were dropped in favor of newer ones, since the start.
    pub dropped_unauthenticated: u64,
    /// Failed logins since the start.
    pub failed_logins: u64,
    /// Addresses, accounts and pairs of both with failed logins.
    pub throttled: usize,
    /// Sessions, including those that are being set up.
    pub sessions: usize,
    /// Tree connects of all sessions.
    pub trees: usize,
    /// Open files and directories, including disconnected durable handles.
    pub opens: usize,
    /// Open files and directories of the account that has the most.
    pub most_opens_of_account: usize,
    /// Byte-range locks.
    pub locks: usize,
    /// Open pipes.
    pub pipes: usize,
    /// Bytes of buffered change notifications.
    pub kept_event_bytes: usize,
    /// Handles that watch a directory.
    pub watches: usize,
    /// Peers with connections that count toward a limit.
    pub peers: usize,
    /// Sessions whose opens are being closed.
    pub ending_sessions: usize,
}

/// The SMB endpoint. Clones share their state.
#[derive(Clone)]
pub struct SmbServer(Arc<ServerState>);

impl SmbServer {
    /// Returns an endpoint for the shares of these accounts.
    pub fn new(files: FileService, accounts: AccountDirectory, options: Options) -> Self {
        Self(Arc::new(ServerState::new(files, accounts, options)))
    }

    /// Returns current sizes and counters.
    pub fn figures(&self) -> Figures {
        let server = &self.0;
        Figures {
            connections: server.connection_limit.used(),
            unauthenticated: server.unauthenticated.count(),
            dropped_unauthenticated: server.unauthenticated.dropped(),
            failed_logins: server.failed_logins.count(),
            throttled: server.throttle.entries(),
            sessions: server.session_limit.used(),
            trees: server.tree_limit.used(),
            opens: server.open_limit.used(),
            most_opens_of_account: server.open_limit.max_used_by_account(),
            locks: server.files.opens().locks(),
            pipes: server.pipe_limit.used(),
            kept_event_bytes: server.notifier.total_buffered_bytes(),
            watches: server.notifier.watches(),
            peers: server.peers.count(),
            ending_sessions: server.sessions.ending(),
        }
    }

    /// Adds the metrics of requests.
    pub fn render(&self, text: &mut Text) {
        self.0.requests.render(text);
    }

    /// Returns the requests since the start, for a summary.
    pub fn traffic(&self) -> Traffic {
        self.0.requests.traffic()
    }

    /// Serves connections until `stop` resolves. Then closes all opens, which flushes all writes.
    pub async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        let (closing, tasks) = (CancellationToken::new(), tokio_util::task::TaskTracker::new());
        tasks.spawn(handles::send_breaks(self.0.clone(), closing.clone()));
        tasks.spawn(end_revoked_sessions(self.0.clone(), closing.clone()));
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // Close the connection if all clients together or this peer have too many.
                    let Some(permit) = self.0.connection_limit.acquire() else { continue };
                    let Some(share) = self.0.peers.acquire(peer.ip(), 1) else { continue };
                    let (server, closing) = (self.0.clone(), closing.clone());
                    tasks.spawn(async move {
                        configure_socket(&stream);
                        dispatch::serve(server, stream, peer, closing).await;
                        drop((permit, share));
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "could not accept an SMB connection");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        closing.cancel();
        tasks.close();
        tasks.wait().await;
        handles::close_disconnected(&self.0).await;
        Ok(())
    }
}

/// Ends sessions whose account key is no longer valid, until the server stops. Their opens may block other
/// clients even if they send no further request.
async fn end_revoked_sessions(server: Arc<ServerState>, closing: CancellationToken) {
    let mut changes = server.account_changes.clone();
    loop {
        tokio::select! {
            Ok(()) = changes.changed() => {}
            () = closing.cancelled() => return,
            else => return,
        }
        for session in server.sessions.all() {
            // If the account cannot be read, the check is repeated at the session's next request.
            if matches!(session.is_authorized(&server).await, Ok(false)) {
                session.end(&server, false).await;
            }
        }
    }
}

/// Sends responses without delay, and detects clients that have vanished. Otherwise their opens and locks
/// would block other clients forever.
fn configure_socket(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true).and_then(|()| Ok(enable_keep_alive(stream)?)) {
        tracing::debug!(%error, "could not set the TCP options of an SMB connection");
    }
}

/// Enables TCP keep-alive, and limits how long sent data may stay unacknowledged.
fn enable_keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, (KEEP_ALIVE_IDLE + PROBE_INTERVAL * PROBES).as_millis() as u32)?;
    sockopt::set_socket_keepalive(stream, true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
