//! The listening socket of one endpoint: accepts up to a number of connections, serves each in a task of its own,
//! and closes in two stages.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::peers::Peers;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::connection::{self, Handler, Stage};
use crate::limits::Limits;
use crate::metrics::Connections;

/// Connections that the kernel holds for us while we are at our limit.
const BACKLOG: u32 = 1024;
/// The pause after accepting failed, usually for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound socket that does not accept yet.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds `address`; port 0 takes any free port.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restarted server takes its port back at once.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let socket = socket.listen(BACKLOG)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// The address that was bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts accepting.
    pub(crate) fn serve<H: Handler>(
        self,
        handler: Arc<H>,
        tls: Option<TlsAcceptor>,
        limits: Arc<Limits>,
        connections: Arc<Connections>,
    ) -> Serving {
        let total = u32::try_from(limits.connections).unwrap_or(u32::MAX).max(1);
        let slots = Arc::new(Semaphore::new(total as usize));
        let (stage, changes) = watch::channel(Stage::Open);
        let peers = Peers::new(total as usize, limits.counts_this_machine);
        let farewells = Arc::new(Semaphore::new(limits.farewells.min(Semaphore::MAX_PERMITS)));
        let slots_of_endpoint = Arc::clone(&slots);
        let endpoint =
            Endpoint { handler, tls, limits, farewells, slots: slots_of_endpoint, peers, connections };
        tokio::spawn(accept(self.socket, endpoint, changes));
        Serving { stage, slots, total }
    }
}

/// A listener at work. Dropping it closes the socket and every connection.
#[derive(Debug)]
pub(crate) struct Serving {
    stage: watch::Sender<Stage>,
    slots: Arc<Semaphore>,
    total: u32,
}

impl Serving {
    /// Closes the listening socket and lets every connection finish the requests that it has begun.
    pub(crate) fn drain(&self) {
        self.stage.send_replace(Stage::Draining);
    }

    /// Waits until the last connection is gone.
    pub(crate) async fn drained(&self) {
        // All slots are free when nobody holds one. The semaphore is never closed.
        let _ = self.slots.acquire_many(self.total).await;
    }

    /// Drops what is still there.
    pub(crate) fn close(&self) {
        self.stage.send_replace(Stage::Closed);
    }
}

struct Endpoint<H> {
    handler: Arc<H>,
    tls: Option<TlsAcceptor>,
    limits: Arc<Limits>,
    farewells: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    peers: Arc<Peers>,
    connections: Arc<Connections>,
}

async fn accept<H: Handler>(socket: TcpListener, endpoint: Endpoint<H>, mut stage: watch::Receiver<Stage>) {
    loop {
        let (client, peer, slot) = tokio::select! {
            _ = stage.changed() => return,
            next = endpoint.next(&socket) => match next {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        // Who has enough is hung up on: if it waited its turn, everybody would.
        let Some(share) = endpoint.peers.take(peer.ip(), 1) else {
            tracing::debug!(%peer, "a peer has too many connections");
            continue;
        };
        let open = endpoint.connections.open();
        let (handler, tls) = (Arc::clone(&endpoint.handler), endpoint.tls.clone());
        let bounds = (Arc::clone(&endpoint.limits), Arc::clone(&endpoint.farewells));
        let stage = stage.clone();
        tokio::spawn(async move {
            connection::serve(client, peer, tls, bounds, handler, stage).await;
            drop((share, slot, open));
        });
    }
}

impl<H> Endpoint<H> {
    /// The next connection, once there is room for one.
    async fn next(&self, socket: &TcpListener) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(io::Error::other)?;
        let (client, peer) = socket.accept().await?;
        Ok((client, peer, slot))
    }
}
