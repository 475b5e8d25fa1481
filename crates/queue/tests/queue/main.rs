//! Tests of the queue service over a real port, with one module for each family of operations.
#![allow(clippy::unwrap_used)]

mod clear;
mod expiry;
mod get;
mod list;
mod model;
mod put;
mod queues;
mod race;
mod restart;
mod sas;
mod support;
mod survey;
mod update;
