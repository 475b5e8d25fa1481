//! The three messages of NTLM as bytes.

use lazuli_concurrency::Timestamp;

use super::{MAGIC, Malformed};
use crate::wire::cursor::{Reader, Truncated, Writer, slice, text, utf16};

/// What clients know this server as.
const SERVER_NAME: &str = "LAZULI";
/// The longest messages that are looked at, which are kept while a login is under way. Real ones have a few hundred bytes.
const MAX_OFFER: usize = 1 << 10;
const MAX_ANSWER: usize = 4 << 10;

/// Where the attributes begin in a response.
const RESPONSE_ATTRIBUTES: usize = 44;

const OFFER: u32 = 1;
const CHALLENGE: u32 = 2;
const ANSWER: u32 = 3;

/// Flags of all messages.
pub(super) mod flags {
    pub(crate) const UNICODE: u32 = 0x0000_0001;
    pub(crate) const REQUEST_TARGET: u32 = 0x0000_0004;
    pub(crate) const SIGN: u32 = 0x0000_0010;
    pub(crate) const SEAL: u32 = 0x0000_0020;
    pub(crate) const NTLM: u32 = 0x0000_0200;
    pub(crate) const ALWAYS_SIGN: u32 = 0x0000_8000;
    pub(crate) const TARGET_TYPE_SERVER: u32 = 0x0002_0000;
    pub(crate) const EXTENDED_SESSION_SECURITY: u32 = 0x0008_0000;
    pub(crate) const TARGET_INFO: u32 = 0x0080_0000;
    pub(crate) const VERSION: u32 = 0x0200_0000;
    pub(crate) const KEY_128: u32 = 0x2000_0000;
    pub(crate) const KEY_EXCHANGE: u32 = 0x4000_0000;
    pub(crate) const KEY_56: u32 = 0x8000_0000;

    /// What the server does if the client wants it.
    pub(crate) const OPTIONAL: u32 =
        SIGN | SEAL | ALWAYS_SIGN | EXTENDED_SESSION_SECURITY | VERSION | KEY_128 | KEY_EXCHANGE | KEY_56;
}

/// Attributes of the server, and of the client's answer.
mod attribute {
    pub(crate) const END: u16 = 0;
    pub(crate) const COMPUTER: u16 = 1;
    pub(crate) const DOMAIN: u16 = 2;
    pub(crate) const DNS_COMPUTER: u16 = 3;
    pub(crate) const DNS_DOMAIN: u16 = 4;
    pub(crate) const FLAGS: u16 = 6;
    pub(crate) const TIMESTAMP: u16 = 7;
}

impl From<Truncated> for Malformed {
    fn from(_: Truncated) -> Self {
        Self
    }
}

fn begin(bytes: &[u8], kind: u32) -> Result<Reader<'_>, Malformed> {
    let mut reader = Reader::new(bytes);
    let longest = if kind == OFFER { MAX_OFFER } else { MAX_ANSWER };
    if bytes.len() > longest || reader.array()? != MAGIC || reader.u32()? != kind {
        return Err(Malformed);
    }
    Ok(reader)
}

/// The flags of a client's offer. Clients without Unicode are too old for NTLMv2.
pub(super) fn parse_offer(bytes: &[u8]) -> Result<u32, Malformed> {
    let flags = begin(bytes, OFFER)?.u32()?;
    if flags & flags::UNICODE == 0 { Err(Malformed) } else { Ok(flags) }
}

/// The challenge.
pub(super) fn challenge(offered: u32, nonce: [u8; 8], now: Timestamp) -> Vec<u8> {
    const FIXED: usize = 56;
    /// A Windows that knows all this, and the revision of the protocol.
    const VERSION: [u8; 8] = [6, 1, 0, 0, 0, 0, 0, 15];
    let flags = offered & flags::OPTIONAL
        | flags::UNICODE
        | flags::REQUEST_TARGET
        | flags::NTLM
        | flags::TARGET_TYPE_SERVER
        | flags::TARGET_INFO;
    let (name, attributes) = (utf16(SERVER_NAME), attributes(now));
    let mut writer = Writer::new();
    writer.put(&MAGIC).u32(CHALLENGE);
    writer.u16(name.len() as u16).u16(name.len() as u16).u32(FIXED as u32);
    writer.u32(flags).put(&nonce).zeros(8);
    writer.u16(attributes.len() as u16).u16(attributes.len() as u16).u32((FIXED + name.len()) as u32);
    writer.put(if flags & flags::VERSION == 0 { &[0; 8] } else { &VERSION });
    writer.put(&name).put(&attributes);
    writer.finish()
}

/// What the server says of itself. The time makes clients sign their answer.
fn attributes(now: Timestamp) -> Vec<u8> {
    let mut writer = Writer::new();
    let (name, dns_name) = (utf16(SERVER_NAME), utf16(&SERVER_NAME.to_lowercase()));
    let names = [
        (attribute::DOMAIN, &name),
        (attribute::COMPUTER, &name),
        (attribute::DNS_DOMAIN, &dns_name),
        (attribute::DNS_COMPUTER, &dns_name),
    ];
    for (id, value) in names {
        writer.u16(id).u16(value.len() as u16).put(value);
    }
    writer.u16(attribute::TIMESTAMP).u16(8).u64(now.filetime());
    writer.u16(attribute::END).u16(0);
    writer.finish()
}

/// An attribute of a list, if it has it before its end.
fn find_attribute(attributes: &[u8], wanted: u16) -> Result<Option<&[u8]>, Malformed> {
    let mut reader = Reader::new(attributes);
    while !reader.rest().is_empty() {
        let (id, length) = (reader.u16()?, usize::from(reader.u16()?));
        let value = reader.take(length)?;
        if id == wanted {
            return Ok(Some(value));
        }
        if id == attribute::END {
            break;
        }
    }
    Ok(None)
}

/// The client's answer to the challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The name that the client gave.
    pub(crate) user: String,
    /// The domain that it gave, which only goes into the proof.
    pub(super) domain: String,
    /// The name of its machine.
    pub(crate) workstation: String,
    pub(super) flags: u32,
    /// The proof, followed by what it was computed from.
    pub(super) response: Vec<u8>,
    /// The session's key, encrypted.
    pub(super) exchanged: Vec<u8>,
    pub(super) is_anonymous: bool,
    pub(super) bytes: Vec<u8>,
}

impl Answer {
    const SIGNATURE: std::ops::Range<usize> = 72..88;

    /// Reads an answer.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = begin(bytes, ANSWER)?;
        let mut field = || -> Result<&[u8], Malformed> {
            let (length, _, offset) = (reader.u16()?, reader.u16()?, reader.u32()?);
            Ok(slice(bytes, offset as usize, usize::from(length))?)
        };
        let (lm, response) = (field()?, field()?);
        let (domain, user, workstation, exchanged) = (field()?, field()?, field()?, field()?);
        // Ancient clients end before the flags.
        let flags = reader.u32()?;
        if flags & flags::UNICODE == 0 {
            return Err(Malformed);
        }
        if let Some(attributes) = response.get(RESPONSE_ATTRIBUTES..) {
            find_attribute(attributes, attribute::END)?;
        }
        let text = |bytes| text(bytes).ok_or(Malformed);
        Ok(Self {
            user: text(user)?,
            domain: text(domain)?,
            workstation: text(workstation)?,
            flags,
            response: response.to_vec(),
            exchanged: exchanged.to_vec(),
            is_anonymous: user.is_empty() && response.is_empty() && matches!(lm, [] | [0]),
            bytes: bytes.to_vec(),
        })
    }

    /// Whether the client does not say who it is.
    pub(crate) const fn is_anonymous(&self) -> bool {
        self.is_anonymous
    }

    /// The signature over all three messages. Whether there is one is part of what the password proves, so that nobody can
    /// take it away on the wire.
    pub(super) fn signature(&self) -> Option<[u8; 16]> {
        const IS_SIGNED: u32 = 2;
        let flags = find_attribute(self.response.get(RESPONSE_ATTRIBUTES..)?, attribute::FLAGS).ok()??;
        if Reader::new(flags).u32().ok()? & IS_SIGNED == 0 {
            return None;
        }
        // One that is too short to hold it is not signed right.
        let signature = self.bytes.get(Self::SIGNATURE).and_then(|bytes| bytes.try_into().ok());
        Some(signature.unwrap_or_default())
    }

    /// The message with zeros in place of its signature.
    pub(super) fn without_signature(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        if let Some(signature) = bytes.get_mut(Self::SIGNATURE) {
            signature.fill(0);
        }
        bytes
    }
}
