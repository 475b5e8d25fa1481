//! The server: what all connections share.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lazuli_account::AccountDirectory;
use lazuli_concurrency::{Clock, SystemClock};
use lazuli_file::FileService;
use lazuli_protocol::peers::Peers;
use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::changes::Changes;
use crate::connection;
use crate::failed_logins::FailedLogins;
use crate::handles::{self, Handles};
use crate::places::{Limits, Places};
use crate::session::Session;
use crate::strangers::Strangers;
use crate::throttle::Throttle;

/// After how long without a word a client is asked whether it is still there, how often, and how many times.
const SILENCE: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 5;

/// How the endpoint behaves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether sessions have to be encrypted, wherever the client is.
    pub require_encryption: bool,
    /// Whether sessions of clients on this machine have to be, too.
    pub require_encryption_on_loopback: bool,
    /// Whether what is not encrypted has to be signed.
    pub require_signing: bool,
    /// Whether the holder of a key is held to access lists, too. Else the key opens everything.
    pub enforce_permissions: bool,
    /// How much all clients together can have.
    pub limits: Limits,
    /// Whether who is on this machine gets no more of them than others, too.
    pub counts_this_machine: bool,
}

/// What an endpoint counts. Sizes are those of now; the rest only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Connections.
    pub connections: usize,
    /// Connections that have not logged in.
    pub strangers: usize,
    /// Connections that were dropped for others because they had not logged in, ever.
    pub dropped_strangers: u64,
    /// Logins that have failed, ever.
    pub failed_logins: u64,
    /// Addresses, accounts and pairs of them whose failed logins are remembered.
    pub throttled: usize,
    /// Sessions, those that are being set up included.
    pub sessions: usize,
    /// Connections of sessions to shares.
    pub trees: usize,
    /// Open files and directories, those that wait for lost clients included.
    pub opens: usize,
    /// Open pipes.
    pub pipes: usize,
    /// Bytes of change notifications that are kept for clients.
    pub kept_event_bytes: usize,
}

/// The endpoint. Clones are the same endpoint.
#[derive(Clone)]
pub struct SmbServer(Arc<Server>);

/// What all connections share.
pub(crate) struct Server {
    pub(crate) files: FileService,
    pub(crate) accounts: AccountDirectory,
    pub(crate) account_changes: watch::Receiver<u64>,
    pub(crate) options: Options,
    pub(crate) changes: Arc<Changes>,
    /// Names the server to clients, as long as it runs.
    pub(crate) guid: Uuid,
    pub(crate) sessions: Sessions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) throttle: Throttle,
    pub(crate) failed_logins: FailedLogins,
    pub(crate) strangers: Arc<Strangers>,
    pub(crate) handles: Handles,
    pub(crate) session_places: Places,
    pub(crate) trees: Places,
    pub(crate) opens: Places,
    pub(crate) pipes: Places,
    numbers: AtomicU64,
    connections: Places,
    peers: Arc<Peers>,
}

/// All sessions, by number.
#[derive(Default)]
pub(crate) struct Sessions {
    live: Mutex<HashMap<u64, Arc<Session>>>,
    /// Those whose opens are being closed. Nobody can use them any more.
    ending: Mutex<HashMap<u64, Arc<Session>>>,
}

impl Sessions {
    /// The session of that number.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Session>> {
        self.live.lock().get(&id).cloned()
    }

    /// The same, even if it is ending.
    pub(crate) fn get_even_ending(&self, id: u64) -> Option<Arc<Session>> {
        self.get(id).or_else(|| self.ending.lock().get(&id).cloned())
    }

    fn all(&self) -> Vec<Arc<Session>> {
        self.live.lock().values().cloned().collect()
    }

    /// Adds a session.
    pub(crate) fn add(&self, session: Arc<Session>) {
        self.live.lock().insert(session.id, session);
    }

    /// Takes a session away that ends. None: it was ending already.
    pub(crate) fn end(&self, id: u64) -> Option<Ending<'_>> {
        let mut live = self.live.lock();
        let session = live.remove(&id)?;
        // Before anybody can miss it.
        self.ending.lock().insert(id, session.clone());
        Some(Ending { sessions: self, session })
    }
}

/// A session ends. When this is dropped it has.
pub(crate) struct Ending<'a> {
    sessions: &'a Sessions,
    session: Arc<Session>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.sessions.ending.lock().remove(&self.session.id);
        self.session.ended.cancel();
    }
}

impl Server {
    /// A number that was never given out before, and is not 0.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a client from there has to encrypt.
    pub(crate) fn must_encrypt(&self, peer: SocketAddr) -> bool {
        if peer.ip().to_canonical().is_loopback() {
            self.options.require_encryption_on_loopback
        } else {
            self.options.require_encryption
        }
    }
}

impl SmbServer {
    /// An endpoint for the shares of these accounts.
    pub fn new(files: FileService, accounts: AccountDirectory, options: Options) -> Self {
        let limits = options.limits;
        Self(Arc::new(Server {
            files,
            account_changes: accounts.changes(),
            accounts,
            peers: Peers::new(limits.connections, options.counts_this_machine),
            options,
            changes: Arc::default(),
            guid: Uuid::new_v4(),
            handles: Handles::new(Uuid::new_v4().as_u64_pair().1),
            sessions: Sessions::default(),
            clock: Arc::new(SystemClock),
            throttle: Throttle::default(),
            failed_logins: FailedLogins::default(),
            strangers: Strangers::new(limits.strangers),
            session_places: Places::new(limits.sessions),
            trees: Places::new(limits.trees),
            opens: Places::new(limits.opens),
            pipes: Places::new(limits.pipes),
            numbers: AtomicU64::new(1),
            connections: Places::new(limits.connections),
        }))
    }

    /// What the endpoint counts.
    pub fn figures(&self) -> Figures {
        let server = &self.0;
        Figures {
            connections: server.connections.taken(),
            strangers: server.strangers.count(),
            dropped_strangers: server.strangers.dropped(),
            failed_logins: server.failed_logins.count(),
            throttled: server.throttle.remembered(),
            sessions: server.session_places.taken(),
            trees: server.trees.taken(),
            opens: server.opens.taken(),
            pipes: server.pipes.taken(),
            kept_event_bytes: server.changes.kept_bytes(),
        }
    }

    /// Serves connections until told to stop; then closes what is open, so that everything written is durable.
    pub async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        let (closing, tasks) = (CancellationToken::new(), tokio_util::task::TaskTracker::new());
        tasks.spawn(handles::tell_all(self.0.clone(), closing.clone()));
        tasks.spawn(end_unwelcome(self.0.clone(), closing.clone()));
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // Who is one too many is hung up on, and who has enough.
                    let Some(room) = self.0.connections.take() else { continue };
                    let Some(share) = self.0.peers.take(peer.ip(), 1) else { continue };
                    let (server, closing) = (self.0.clone(), closing.clone());
                    tasks.spawn(async move {
                        prepare(&stream);
                        connection::serve(server, stream, peer, closing).await;
                        drop((room, share));
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        closing.cancel();
        tasks.close();
        tasks.wait().await;
        handles::close_lost(&self.0).await;
        Ok(())
    }
}

/// Ends sessions whose accounts let them in no more, until the server stops: they may be in the way of others without ever asking
/// for anything again.
async fn end_unwelcome(server: Arc<Server>, closing: CancellationToken) {
    let mut changes = server.account_changes.clone();
    loop {
        tokio::select! {
            Ok(()) = changes.changed() => {}
            () = closing.cancelled() => return,
            else => return,
        }
        for session in server.sessions.all() {
            // If that cannot be told, its next request is refused.
            if matches!(session.is_welcome(&server).await, Ok(false)) {
                session.end(&server, false).await;
            }
        }
    }
}

/// Answers are sent at once, and a client that has vanished is noticed although nothing is said: else what it has open and
/// locked would be in the way of others for ever.
fn prepare(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true).and_then(|()| Ok(watch(stream)?)) {
        tracing::debug!(%error, "a connection could not be set up");
    }
}

/// Has the kernel ask whether the client is there, and end the connection if it does not answer, or takes nothing.
fn watch(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_tcp_keepidle(stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, (SILENCE + PROBE_INTERVAL * PROBES).as_millis() as u32)?;
    sockopt::set_socket_keepalive(stream, true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
