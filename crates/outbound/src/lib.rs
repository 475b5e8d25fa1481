//! Requests that the server makes of others: the source of a copy, the keys of an issuer.
//!
//! A URL that a client names could point anywhere, also to where only this machine can reach. So [`Outbound`] decides
//! by the [`Allow`] list, and it decides about the very address that it then connects to: a name is resolved once, and
//! what it resolves to is judged, not the name alone. No redirect is followed, for it would be one more URL to judge.

mod allow;
mod client;

pub use allow::Allow;
pub use client::{Error, MAX_CONNECTIONS, Outbound, Reply};
