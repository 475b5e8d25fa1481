//! The HTTP front door: from bytes on a socket to an authenticated, typed request, and back.
//!
//! A request takes these steps: [`listener`](server::HttpServer) → connection → pipeline (address, query,
//! version, operation, authentication, limits) → [`Service`](lazuli_protocol::Service) → reply.
//!
//! No bytes that a client sends or withholds make this crate panic, hang or grow without bound, and a slow
//! client slows down no other. Permissions are decided by `lazuli-auth`, and requests are carried out by the
//! services.

mod access_log;
mod allowance;
mod body;
mod body_progress;
mod connection;
mod console;
mod console_caller;
mod document_memory;
mod exchange;
mod input_memory;
mod limits;
mod listener;
mod metrics;
mod observe;
mod outcome;
mod pace;
mod pipeline;
mod poll_loop;
mod proxies;
mod record;
mod refusal_log;
mod reply;
mod reply_memory;
mod server;
mod source;
mod spelling;
mod sub_requests;
mod tls;
mod traces;

pub use console::{
    Console, ConsoleBody, ConsolePages, ConsoleRequest, ConsoleSocket, MetricsText, Readiness,
    ReadinessCheck, StorageEntry, whole,
};
pub use limits::Limits;
pub use metrics::Metrics;
pub use pipeline::Admission;
pub use proxies::TrustedProxies;
pub use server::{BindError, BoundEndpoints, Endpoint, HttpServer};
pub use tls::{Tls, TlsError};
