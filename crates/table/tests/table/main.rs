//! Tests of the table service over a real port, with one module for each family of operations.
#![allow(clippy::unwrap_used)]

mod batch;
mod filter;
mod model;
mod query;
mod query_tables;
mod races;
mod sas;
mod scans;
mod support;
mod tables;
mod write;
