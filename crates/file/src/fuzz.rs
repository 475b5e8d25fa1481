//! Entry points of fuzzers. No input may cause a panic. Each returns whether the input is valid, and
//! [`seeds`] has valid inputs for each.

pub mod seeds;

use crate::rest::rename;
use crate::tree::names;

/// Parses the source of a rename and its path.
pub fn rename_source(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let mut is_valid = false;
    for endpoint in ["http://127.0.0.1:10004/acc", "http://acc.file.localhost"] {
        if let Some((address, _)) = rename::source_in(text, endpoint, "acc", "s") {
            let paths = [false, true].map(|keep_dots| names::path(&address.object, keep_dots));
            is_valid |= paths.iter().any(Result::is_ok);
        }
    }
    is_valid
}

#[cfg(test)]
mod tests {
    // Sources made of random pieces of URLs.
    #[test]
    fn rename_source_parser_never_panics() {
        let pieces =
            ["http://", "127.0.0.1", "acc.file.localhost", "/acc/s/", "/s/", "%", "%2F", "?sig=", "..", "é"];
        let mut dice = 1_u64;
        for _ in 0..10_000 {
            let mut text = String::new();
            for _ in 0..6 {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text += pieces[(dice >> 33) as usize % pieces.len()];
            }
            super::rename_source(text.as_bytes());
        }
        super::rename_source(b"http://127.0.0.1/acc/s/\xff");
    }
}
