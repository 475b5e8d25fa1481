//! The queue service over a real port: one file for each family of operations, one program, so that it links once.
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
mod update;
