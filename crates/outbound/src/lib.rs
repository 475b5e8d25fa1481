//! Outbound requests of the server: to the source of a copy, to an issuer for its keys, and to a
//! collector of traces.
//!
//! A client can name any URL, even one that only this machine can reach. So [`Outbound`] checks every
//! connection against the [`Allow`] list. It resolves a name once, checks the resulting address, and connects
//! to that address. It follows no redirects, because each would be another URL to check.

mod allow;
mod client;

pub use allow::Allow;
pub use client::{Error, MAX_CONNECTIONS, Outbound, OutboundReply, tls_connector};
pub use tokio_rustls::TlsConnector;
