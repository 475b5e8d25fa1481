//! The front door: from bytes on a socket to an authenticated, typed request, and back.
//!
//! A request walks one way: [`listener`](server::Server) → connection → pipeline (address, query, version, operation,
//! authentication, limits) → [`Service`](lazuli_protocol::Service) → reply. What a request means is for the services;
//! what a caller may do is decided by `lazuli-auth`. This crate promises that no bytes that a client can send or
//! withhold make it panic, hang or grow without bound, and that one client's slowness stays its own.

mod access_log;
mod allowance;
mod body;
mod carried;
mod connection;
mod console;
mod documents;
mod exchange;
mod limits;
mod listener;
mod metrics;
mod pace;
mod pipeline;
mod refusal_log;
mod reply;
mod server;
mod source;
mod spelling;
mod tls;
mod turn;

pub use access_log::TARGET as ACCESS_LOG;
pub use console::{Console, MetricsText, Readiness, ReadinessCheck};
pub use limits::Limits;
pub use metrics::Metrics;
pub use pipeline::Gate;
pub use refusal_log::TARGET as REFUSAL_LOG;
pub use server::{BindError, Endpoint, Server};
pub use tls::{Tls, TlsError};
