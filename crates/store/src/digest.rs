//! Digests of ranges of rows: what a [`RangeToken`] is made of, in every engine.

use xxhash_rust::xxh3::Xxh3;

use crate::{RangeToken, Token};

/// Digests the keys and tokens of the rows of a range, in order.
#[derive(Default)]
pub(crate) struct RangeDigest(Xxh3);

impl RangeDigest {
    pub(crate) fn add(&mut self, key: &[u8], token: Token) {
        self.0.update(&(key.len() as u64).to_le_bytes());
        self.0.update(key);
        self.0.update(&token.0.ticks().to_le_bytes());
    }

    pub(crate) fn token(&self) -> RangeToken {
        RangeToken(self.0.digest128())
    }
}
