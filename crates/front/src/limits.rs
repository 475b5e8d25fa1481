//! All limits of the front door, with their defaults and reasons.
//!
//! Everything that a client can make grow, wait or loop is bounded by one of these limits. Limits of single
//! operations, such as the size of a block, are in `allowance.rs`.

use std::time::Duration;

use crate::proxies::TrustedProxies;

/// The limits of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections. Further ones wait in the kernel's backlog. One remote peer may hold at
    /// most three quarters of them; a peer on this machine may hold all, unless `limit_loopback` is set.
    pub connections: usize,
    /// Applies the limits for one peer to peers on this machine, too.
    pub limit_loopback: bool,
    /// Proxies that are believed when they name a client. The limits for one peer do not apply to their
    /// connections, unless a PROXY header names the client of a connection.
    pub trusted_proxies: TrustedProxies,
    /// Maximum number of requests in progress over all connections. Further ones get 503 `ServerBusy`.
    /// Requests whose reply has begun do not count, else a client that does not read would keep other clients
    /// out.
    pub requests: usize,
    /// Maximum number of requests on one HTTP/2 connection, until their replies are read. The memory holds
    /// two frames of up to 256 KiB of each unread reply, within [`Limits::unread_reply_bytes`]. Clients queue
    /// further requests, or open another connection.
    pub streams_per_connection: u32,
    /// Maximum number of requests over all HTTP/2 connections, until their replies are read. Further ones get
    /// 503 `ServerBusy`. One takes about 10 KiB apart from its body. One remote peer may have at most three
    /// quarters of them.
    pub streams: u32,
    /// Maximum bytes of streamed replies in memory over all connections. A reply that does not fit waits. One
    /// remote peer may hold at most three quarters of the bytes.
    pub unread_reply_bytes: u32,
    /// The time within which a client has to read a part of its replies during a shortage, else its
    /// connection ends. While a reply waits for [`Limits::unread_reply_bytes`]: a quarter of the bytes that
    /// its connection holds. While [`Limits::streams`] is reached: [`Limits::progress_bytes`] for each reply.
    pub shortage_time: Duration,
    /// Maximum bytes of documents, such as listings, in memory over all connections until their clients have
    /// read them. Documents of up to 64 KiB do not count; over HTTP/2, which carries many at once, those of
    /// up to 4 KiB. A document that does not fit gets 503 `ServerBusy`. One remote peer may hold at most
    /// three quarters of the bytes.
    pub document_bytes: u32,
    /// Maximum bytes that listings may take while they are built: the page and the rows behind it. The bytes
    /// are reserved before a request's rows are read, and a request that does not fit waits. One remote peer
    /// may reserve at most three quarters of the bytes.
    pub rendering_bytes: u32,
    /// Maximum number of requests that wait for [`Limits::rendering_bytes`]. Further ones get 503
    /// `ServerBusy`. One remote peer may have at most three quarters of the places.
    pub waiting_documents: u32,
    /// Maximum bytes of a request line with its headers. A longer head gets 431 and ends the connection.
    pub head_bytes: usize,
    /// Maximum number of header fields of one request. More get 431 over HTTP/1 and end the connection;
    /// HTTP/2 limits only their bytes. Metadata of 8 KiB can be many short pairs. More than 100 fields cost
    /// hyper two heap buffers for each request, 0.1 to 0.2 µs.
    pub head_fields: usize,
    /// Maximum bytes that one HTTP/1 connection buffers in each direction.
    pub buffer_bytes: usize,
    /// Bytes of request bodies that all connections may buffer ahead of their services. A new connection gets
    /// at most 1/64 of what others have left, but no less than 64 KiB or [`Limits::head_bytes`].
    pub input_bytes: u64,
    /// Time from the first byte of a request, or from the start of the connection, to the end of the headers.
    /// Includes TLS.
    pub head_time: Duration,
    /// Maximum time that a connection may be idle. Longer than the 90 to 120 s of client pools, so that the
    /// client closes first and no request meets a closing connection.
    pub idle_time: Duration,
    /// The time within which a client has to send or read [`Limits::progress_bytes`] more of a body.
    pub progress_time: Duration,
    /// Bytes that count as progress in [`Limits::progress_time`].
    pub progress_bytes: u64,
    /// Maximum unread bytes of a refused request's body that are read and discarded to keep the connection.
    /// If more are to come, the connection ends after the reply.
    pub drain_bytes: u64,
    /// Maximum wait for that rest. After the last reply of a connection: maximum time in which the client
    /// neither sends nor closes.
    pub drain_time: Duration,
    /// Maximum bytes that are read and discarded after the last reply of a connection. Many clients read no
    /// reply before they have sent their whole request, and closing a socket with unread input would destroy
    /// the reply. The default suffices for a body that exceeds the limit of versions before 2019-12-12, 256
    /// MiB, by one byte, with its framing.
    pub linger_bytes: u64,
    /// Maximum time for that reading. Not longer than a connection may be open without any request.
    pub linger_time: Duration,
    /// Maximum number of connections that may linger for [`Limits::linger_bytes`] and
    /// [`Limits::linger_time`]. Further ones get [`Limits::drain_bytes`] and [`Limits::drain_time`].
    /// One remote peer may have at most three quarters of the places.
    pub lingering_connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            limit_loopback: false,
            trusted_proxies: TrustedProxies::default(),
            requests: 16_384,
            streams_per_connection: 32,
            streams: 8192,
            unread_reply_bytes: 256 << 20,
            shortage_time: Duration::from_secs(10),
            document_bytes: 256 << 20,
            rendering_bytes: 256 << 20,
            waiting_documents: 1024,
            head_bytes: 64 * 1024,
            head_fields: 250,
            buffer_bytes: 256 * 1024,
            input_bytes: 512 << 20,
            head_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(300),
            progress_time: Duration::from_secs(60),
            progress_bytes: 1024,
            drain_bytes: 256 * 1024,
            drain_time: Duration::from_secs(2),
            linger_bytes: 272 << 20,
            linger_time: Duration::from_secs(30),
            lingering_connections: 256,
        }
    }
}
