//! Serves the shares of the file service over SMB 2.0.2 to 3.1.1.
//!
//! [`dispatch`] reads the frames of a connection, decrypts and verifies them ([`crypto`]), and passes each
//! message to its command ([`commands`]). A command works on a session, a tree connect and an open.
//! `lazuli_file` stores the files and owns the open-file table, which REST requests use as well. [`wire`]
//! defines the layout of the messages.

mod access_check;
mod access_log;
mod bind_responses;
mod call;
mod change_notifier;
mod channel_sequence;
mod commands;
mod connection;
mod credits;
mod crypto;
mod dispatch;
mod endpoint;
mod failed_logins;
mod frame;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod limits;
mod negotiated;
mod ntlm;
mod pattern;
mod request_counters;
mod rpc;
mod server;
mod session;
mod spnego;
mod throttle;
mod unauthenticated;
mod wire;

pub use endpoint::{Figures, SmbServer};
pub use limits::Limits;
pub use server::Options;
