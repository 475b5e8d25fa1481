//! The SMB endpoint: the shares of the file service over SMB 2.0.2 to 3.1.1.
//!
//! A connection reads frames ([`connection`]), opens and checks them ([`crypto`]), and hands each message to its command
//! ([`commands`]), which works on a session, a tree and an open file. Files themselves are `lazuli_file`'s, as is the table
//! of who has them open, which requests over REST go through, too. [`wire`] is what messages look like.

mod call;
mod changes;
mod commands;
mod connection;
mod credits;
mod crypto;
mod failed_logins;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod granted;
mod handles;
mod negotiated;
mod ntlm;
mod open;
mod outgoing;
mod pattern;
mod places;
mod rpc;
mod sequence;
mod server;
mod session;
mod spnego;
mod strangers;
mod throttle;
mod wire;

pub use places::Limits;
pub use server::{Figures, Options, SmbServer};
