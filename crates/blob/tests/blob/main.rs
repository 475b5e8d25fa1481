//! The blob service over a real port: one file for each family of operations, one program, so that it links once.
#![allow(clippy::unwrap_used, dead_code)]

mod append;
mod batch;
mod block;
mod container;
mod copy;
mod copy_outside;
mod delete;
mod encryption;
mod generation;
mod lease;
mod list;
mod list_containers;
mod page;
mod properties;
mod put;
mod race;
mod retention;
mod snapshot;
mod structured;
mod support;
mod tags;
mod tier;
mod watched;
mod web;
