//! The file service over a real port, one module for each family of operations.
#![allow(clippy::unwrap_used)]

mod clients;
mod content;
mod copies;
mod copies_outside;
mod create_only;
mod handles;
mod held_up;
mod hold_up;
mod interrupted;
mod lease;
mod nodes;
mod open_handles;
mod opens;
mod operations;
mod quota;
mod races;
mod range_diff;
mod rename;
mod share_lease;
mod shares;
mod snapshots;
mod support;
