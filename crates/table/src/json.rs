//! Entities as JSON: [`parse`] reads the bodies of requests, [`render`] writes those of replies.

pub(crate) mod parse;
pub(crate) mod render;
