//! Imports data of other stores into a running server, through the public protocol.
//!
//! - [`azurite`] reads the folder of a stopped Azurite;
//! - [`azure`] reads a running store through the protocol: the cloud, Azurite or another Lazuli;
//! - [`destination`] sends requests to the server and repeats those that it could not answer;
//! - [`report`] counts what was imported and names what was left out.
//!
//! Everything goes through the protocol, so imported data obeys the same rules as data of any client. New are
//! the properties that the protocol cannot set: ETags, times, identifiers of snapshots and messages, and pop
//! receipts.

pub mod azure;
pub mod azurite;
mod calls;
pub mod destination;
pub mod report;
