//! Entry points for fuzzing: each takes whatever a client could send, and must not panic.

use crate::json::parse;
use crate::json::render::{Metadata, Renderer, Stands};
use crate::keys::Keys;
use lazuli_concurrency::Stamp;

/// The body of a write: what can be read is written and read back the same.
pub fn entity(data: &[u8]) {
    let Ok(sent) = parse::entity(data) else { return };
    let renderer = Renderer { metadata: Metadata::Minimal, endpoint: "http://h", account: "a", table: "t" };
    let mut json = Vec::new();
    let keys = Keys::default();
    renderer.entity(&mut json, Stands::Alone, (&keys, Stamp::from_ticks(1), &sent.entity), None);
    let again = parse::entity(&json).map(|again| again.entity.encode());
    assert_eq!(again, Ok(sent.entity.encode()), "{:?}", String::from_utf8_lossy(&json));
}

/// The address of an entity or a table.
pub fn address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = crate::address::keys(text);
    let _ = crate::address::table(text);
}
