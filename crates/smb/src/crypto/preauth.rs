//! Preauthentication integrity: a hash over the messages before there is a key to sign them.

use ring::digest::{Context, SHA512};

/// A chained SHA-512 hash: each message is hashed together with the previous hash. The keys of SMB 3.1.1
/// depend on it. So if an attacker modifies a message, client and server derive different keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preauth([u8; 64]);

impl Default for Preauth {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Preauth {
    /// Adds a message, including its header.
    pub(crate) fn add(&mut self, message: &[u8]) {
        let mut context = Context::new(&SHA512);
        context.update(&self.0);
        context.update(message);
        self.0.copy_from_slice(context.finish().as_ref());
    }

    /// Returns the hash.
    pub(crate) const fn value(&self) -> &[u8; 64] {
        &self.0
    }

    /// Returns a chain with this hash.
    #[cfg(test)]
    pub(crate) const fn of(value: [u8; 64]) -> Self {
        Self(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_hashed_with_the_previous_hash() {
        let mut chain = Preauth::default();
        chain.add(b"one");
        let first = ring::digest::digest(&SHA512, &[&[0; 64][..], b"one"].concat());
        assert_eq!(chain.value(), first.as_ref());
        chain.add(b"two");
        assert_eq!(chain.value(), ring::digest::digest(&SHA512, &[first.as_ref(), b"two"].concat()).as_ref());
    }
}
