//! The file service over a real port, one module for each family of operations.
#![allow(clippy::unwrap_used)]

mod clients;
mod content;
mod copies;
mod create_only;
mod handles;
mod held_store;
mod interrupted;
mod lease;
mod nodes;
mod open_handles;
mod opens;
mod operations;
mod quota;
mod races;
mod range_diff;
mod remote_copies;
mod rename;
mod share_lease;
mod shares;
mod smb_races;
mod snapshots;
mod support;
