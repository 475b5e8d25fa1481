//! Every bound of the front door, with its default and its reason.
//!
//! Nothing that a client's bytes can reach grows, waits or loops beyond one of these. What an operation may carry
//! (the size of a block, of an entity) belongs to the operation: `allowance.rs`.

use std::time::Duration;

/// The bounds of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections served at once by one endpoint. A further one waits in the kernel's backlog. Who has three quarters of them, and is
    /// not on this machine, gets no more.
    pub connections: usize,
    /// Whether who is on this machine gets no more than others, too.
    pub counts_this_machine: bool,
    /// Requests at work at once on one endpoint, over all its connections. A further one gets 503 `ServerBusy`. One whose
    /// reply has begun is not counted: a client that does not read would keep others out.
    pub requests: usize,
    /// Requests under way at once on one HTTP/2 connection, until their replies are taken. Of a reply that is not taken two pieces
    /// are in memory, of up to 256 KiB each: with the default a client that reads nothing holds 16 MiB with a connection, beside
    /// what is counted by [`Limits::document_bytes`].
    /// Clients have others wait, or open another connection.
    pub streams_per_connection: u32,
    /// Bytes of replies that are one piece, such as listings, and are larger than the pieces of others, which one endpoint holds
    /// until their clients have taken them, over all its connections. A further one gets 503 `ServerBusy`; so does one to a peer
    /// that has three quarters of them, and is not on this machine.
    pub document_bytes: u32,
    /// Bytes that listings may take while they are made, on one endpoint: the page and the rows that it is made of. What a
    /// request may need is reserved before it is read, and one that does not fit waits.
    pub making_bytes: u32,
    /// Bytes of a request line with its headers. More gets 431 and the connection ends.
    pub head_bytes: usize,
    /// Header fields of one request. More gets 431 over HTTP/1 and the connection ends; HTTP/2 bounds their bytes. Metadata of
    /// 8 KiB can be many short pairs. More than a hundred cost hyper two heap buffers for each request, a tenth or two of
    /// a microsecond.
    pub head_fields: usize,
    /// Bytes that one connection buffers in each direction; on HTTP/2 beside them, what is said at
    /// [`Limits::streams_per_connection`].
    pub buffer_bytes: usize,
    /// From the first byte of a request (or from the connection's start) to the end of its headers, TLS included.
    pub head_time: Duration,
    /// How long a connection may stay open without a request.
    /// Longer than the 90 to 120 s that client pools keep theirs, so that the client closes first and no request
    /// meets a closing connection.
    pub idle_time: Duration,
    /// The time in which a client has to send or take [`Limits::progress_bytes`] more of a body.
    pub progress_time: Duration,
    /// What counts as progress in [`Limits::progress_time`].
    pub progress_bytes: u64,
    /// Unread bytes of a refused request's body that are read and thrown away to keep the connection.
    /// With more to come the connection ends after the reply.
    pub drain_bytes: u64,
    /// How long to wait for that rest. After the last reply of a connection, how long the client may send nothing and
    /// not close it either.
    pub drain_time: Duration,
    /// Bytes that are read and thrown away after the last reply of a connection. Many clients read no reply before they
    /// have sent their whole request, and closing a socket with unread input would take the reply away from them. Enough
    /// for the largest body of the versions before 2019-12-12, 256 MiB, one byte too long, with its framing.
    pub farewell_bytes: u64,
    /// How long that reading may take altogether. No longer than a connection may stay open without any request.
    pub farewell_time: Duration,
    /// Connections of one endpoint at once that get [`Limits::farewell_bytes`] and [`Limits::farewell_time`]. A further one
    /// gets [`Limits::drain_bytes`] and [`Limits::drain_time`].
    pub farewells: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            counts_this_machine: false,
            requests: 16_384,
            streams_per_connection: 32,
            document_bytes: 256 << 20,
            making_bytes: 256 << 20,
            head_bytes: 64 * 1024,
            head_fields: 250,
            buffer_bytes: 256 * 1024,
            head_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(300),
            progress_time: Duration::from_secs(60),
            progress_bytes: 1024,
            drain_bytes: 256 * 1024,
            drain_time: Duration::from_secs(2),
            farewell_bytes: 272 << 20,
            farewell_time: Duration::from_secs(30),
            farewells: 256,
        }
    }
}
