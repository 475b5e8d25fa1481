//! Tests the blob service over a real port, with one file for each family of operations. They are one
//! program, so that they are linked only once.
#![allow(clippy::unwrap_used, dead_code)]

mod append;
mod batch;
mod block;
mod clock;
mod condition;
mod container;
mod copy;
mod create_only;
mod delete;
mod encryption;
mod expiry;
mod generation;
mod incremental_copy;
mod isolation;
mod lease;
mod list;
mod list_containers;
mod list_states;
mod page;
mod properties;
mod put;
mod put_from_url;
mod query;
mod race;
mod remote_copy;
mod rename;
mod retention;
mod snapshot;
mod store_probe;
mod structured;
mod support;
mod tags;
mod tier;
mod website;
