//! Entry points for fuzzing. Each takes bytes that a client chose, and must not panic. Each returns whether
//! the bytes are valid, and [`seeds`] has valid bytes for each.

pub mod seeds;

use lazuli_protocol::Version;
use lazuli_store::SpaceId;

use crate::slot::{MessageId, PopReceipt};

/// The queue of the messages.
const QUEUE: SpaceId = SpaceId(7);

/// Parses the body of a Put Message or Update Message.
pub fn message(data: &[u8]) -> bool {
    let texts = [Version::NEWEST, Version::OLDEST].map(|version| crate::document::parse(data, version));
    texts.iter().any(|text| matches!(text, Ok(Some(_))))
}

/// Parses a pop receipt and the id of a message.
pub fn receipt(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let (receipt, id) = (text.parse::<PopReceipt>(), MessageId::parse(text, QUEUE));
    if let Ok(receipt) = &receipt {
        assert_eq!(receipt.to_string(), text);
    }
    if let Some(id) = id {
        assert_eq!(MessageId::parse(&id.to_guid(QUEUE).to_string(), QUEUE), Some(id));
    }
    receipt.is_ok() || id.is_some()
}

#[cfg(test)]
mod tests {
    use rand::prelude::*;

    /// Runs a target on inputs of randomly cut and joined pieces, with random bytes between them.
    fn run_random(target: fn(&[u8]) -> bool, pieces: &[&[u8]]) {
        let mut rng = rand::rng();
        for _ in 0..2000 {
            let mut input = Vec::new();
            for _ in 0..rng.random_range(0..12) {
                match pieces.get(rng.random_range(0..=pieces.len())) {
                    Some(piece) => {
                        input.extend_from_slice(&piece[..rng.random_range(piece.len() / 2..=piece.len())])
                    }
                    None => input.push(rng.random()),
                }
            }
            target(&input);
        }
    }

    #[test]
    fn message_parser_never_panics() {
        let pieces: [&[u8]; 7] = [
            b"<QueueMessage>",
            b"</QueueMessage>",
            b"<MessageText>",
            b"</MessageText>",
            b"&#xD;&amp;",
            b"<![CDATA[x]]>",
            "é😀".as_bytes(),
        ];
        run_random(super::message, &pieces);
    }

    #[test]
    fn receipt_parser_never_panics() {
        let pieces: [&[u8]; 4] =
            [b"CN4BAgMEBQYI3gECAwQFBx8", b"d63bddb4-1b1a-4f07-9c02-3e3d0f0e0a01", b"-", b"_"];
        run_random(super::receipt, &pieces);
    }
}
