//! The client side of the protocol, for commands of Lazuli that talk to a server: the account and its
//! endpoints ([`account`]), and signed requests ([`client`]).
//!
//! Not a client library for applications: use an Azure SDK for those.

pub mod account;
pub mod client;
