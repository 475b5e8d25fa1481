//! Entities as JSON: [`parse`] reads what clients send, [`render`] writes what they get.

pub(crate) mod parse;
pub(crate) mod render;
