//! XML: a [`Writer`] for replies and a bounded pull [`Reader`] for request bodies.

mod reader;
mod writer;

pub use reader::Reader;
pub use reader::{invalid, missing};
pub use writer::{Writer, encoded};

/// Returns whether XML 1.0 allows the character, escaped or not.
pub const fn is_char(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}
