//! The listening socket of one acceptor. Accepts a limited number of connections, serves each in its own
//! task, and shuts down in two stages.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::peers::{PeerShare, Peers};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::connection::{self, ClientAddress, EndpointBounds, Handler, Stage};
use crate::limits::Limits;
use crate::metrics::Connections;
use crate::proxies::{Proxied, read_preface};

/// Connections that the kernel queues while the acceptor is at its limit.
const BACKLOG: u32 = 1024;
/// Pause after a failed accept, which is usually caused by too few file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound socket that accepts no connections yet.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds `address`; port 0 takes any free port.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Lets a restarted server bind the same port at once.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let socket = socket.listen(BACKLOG)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Returns the bound address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts accepting connections.
    pub(crate) fn serve<H: Handler>(
        self,
        handler: Arc<H>,
        tls: Option<TlsAcceptor>,
        limits: Arc<Limits>,
        connections: Arc<Connections>,
    ) -> RunningListener {
        let total = u32::try_from(limits.connections).unwrap_or(u32::MAX).max(1);
        let slots = Arc::new(Semaphore::new(total as usize));
        let (stage, changes) = watch::channel(Stage::Open);
        let peers = Peers::new(total as usize, limits.limit_loopback);
        let bounds = EndpointBounds::new(limits);
        let slots_of_endpoint = Arc::clone(&slots);
        let acceptor = Acceptor { handler, tls, bounds, slots: slots_of_endpoint, peers, connections };
        tokio::spawn(accept(self.socket, acceptor, changes));
        RunningListener { stage, slots, total }
    }
}

/// A listener that accepts connections. Dropping it closes the socket and every connection.
#[derive(Debug)]
pub(crate) struct RunningListener {
    stage: watch::Sender<Stage>,
    slots: Arc<Semaphore>,
    total: u32,
}

impl RunningListener {
    /// Closes the listening socket and lets every connection finish the requests that it has begun.
    pub(crate) fn drain(&self) {
        self.stage.send_replace(Stage::Draining);
    }

    /// Waits until the last connection has closed.
    pub(crate) async fn drained(&self) {
        // Each connection holds a slot, so all slots are free afterwards. The semaphore is never closed.
        let _ = self.slots.acquire_many(self.total).await;
    }

    /// Closes all remaining connections.
    pub(crate) fn close(&self) {
        self.stage.send_replace(Stage::Closed);
    }
}

struct Acceptor<H> {
    handler: Arc<H>,
    tls: Option<TlsAcceptor>,
    bounds: EndpointBounds,
    slots: Arc<Semaphore>,
    peers: Arc<Peers>,
    connections: Arc<Connections>,
}

async fn accept<H: Handler>(socket: TcpListener, acceptor: Acceptor<H>, mut stage: watch::Receiver<Stage>) {
    loop {
        let (client, peer, slot) = tokio::select! {
            _ = stage.changed() => return,
            next = acceptor.next(&socket) => match next {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let is_proxied = acceptor.bounds.limits.trusted_proxies.contains(peer.ip());
        // Close the connection instead of letting it wait, else it would block other peers.
        let share = match is_proxied {
            true => None,
            false => match acceptor.peers.acquire(peer.ip(), 1) {
                Some(share) => Some(share),
                None => {
                    tracing::debug!(%peer, "closed a connection: the peer has too many");
                    continue;
                }
            },
        };
        let open = acceptor.connections.open();
        let (handler, tls) = (Arc::clone(&acceptor.handler), acceptor.tls.clone());
        let (bounds, stage, peers) = (acceptor.bounds.clone(), stage.clone(), Arc::clone(&acceptor.peers));
        tokio::spawn(async move {
            if !is_proxied {
                let peer = ClientAddress { address: peer, forwarded: false };
                connection::serve(client, peer, tls, bounds, handler, stage).await;
            } else if let Some((client, peer, share)) =
                behind_proxy(client, peer, &bounds.limits, &peers, stage.clone()).await
            {
                connection::serve(client, peer, tls, bounds, handler, stage).await;
                drop(share);
            }
            drop((share, slot, open));
        });
    }
}

/// Reads the PROXY header of a trusted proxy, if there is one. Returns the connection with the client's
/// address and the client's share of the connections, or `None` if the connection has to be closed.
async fn behind_proxy(
    mut socket: TcpStream,
    proxy: SocketAddr,
    limits: &Limits,
    peers: &Arc<Peers>,
    mut stage: watch::Receiver<Stage>,
) -> Option<(TcpStream, ClientAddress, Option<PeerShare>)> {
    let read = tokio::select! {
        // A connection that has sent no request does not delay a stop.
        _ = stage.wait_for(|stage| *stage != Stage::Open) => return None,
        read = tokio::time::timeout(limits.head_time, read_preface(&mut socket)) => read,
    };
    let client = |address, forwarded| ClientAddress { address, forwarded };
    match read {
        Ok(Ok(Proxied::WithoutHeader)) => Some((socket, client(proxy, true), None)),
        // Such a proxy does not look into requests, so their headers are the client's.
        Ok(Ok(Proxied::Unnamed)) => Some((socket, client(proxy, false), None)),
        Ok(Ok(Proxied::Client(address))) => match peers.acquire(address.ip(), 1) {
            // The client may be another trusted proxy.
            Some(share) => {
                let forwarded = limits.trusted_proxies.contains(address.ip());
                Some((socket, client(address, forwarded), Some(share)))
            }
            None => {
                tracing::debug!(client = %address, %proxy, "closed a connection: the client has too many");
                None
            }
        },
        Ok(Err(error)) => {
            tracing::debug!(%proxy, %error, "closed a connection of a proxy");
            None
        }
        Err(_) => {
            tracing::debug!(%proxy, "closed a connection of a proxy: it sent nothing in time");
            None
        }
    }
}

impl<H> Acceptor<H> {
    /// Accepts the next connection, once a slot is free.
    async fn next(&self, socket: &TcpListener) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(io::Error::other)?;
        let (client, peer) = socket.accept().await?;
        Ok((client, peer, slot))
    }
}
