//! The wire format of the three NTLM messages.

use lazuli_concurrency::Timestamp;

use super::{MAGIC, MalformedNtlm};
use crate::wire::cursor::{ByteReader, ByteWriter, Truncated, slice, text, utf16};

/// The server's name in challenges.
const SERVER_NAME: &str = "LAZULI";
/// Maximum message lengths, because the messages are kept during a login. Real ones have a few hundred bytes.
const MAX_NEGOTIATE: usize = 1 << 10;
const MAX_AUTHENTICATE: usize = 4 << 10;

/// Offset of the attributes in a response.
const RESPONSE_ATTRIBUTES: usize = 44;

const NEGOTIATE: u32 = 1;
const CHALLENGE: u32 = 2;
const AUTHENTICATE: u32 = 3;

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

    /// Features that the server enables if the client requests them.
    pub(crate) const OPTIONAL: u32 =
        SIGN | SEAL | ALWAYS_SIGN | EXTENDED_SESSION_SECURITY | VERSION | KEY_128 | KEY_EXCHANGE | KEY_56;
}

/// Attributes (`AV_PAIR`) in challenges and responses.
mod attribute {
    pub(crate) const END: u16 = 0;
    pub(crate) const COMPUTER: u16 = 1;
    pub(crate) const DOMAIN: u16 = 2;
    pub(crate) const DNS_COMPUTER: u16 = 3;
    pub(crate) const DNS_DOMAIN: u16 = 4;
    pub(crate) const FLAGS: u16 = 6;
    pub(crate) const TIMESTAMP: u16 = 7;
}

impl From<Truncated> for MalformedNtlm {
    fn from(_: Truncated) -> Self {
        Self
    }
}

fn begin(bytes: &[u8], kind: u32) -> Result<ByteReader<'_>, MalformedNtlm> {
    let mut reader = ByteReader::new(bytes);
    let max_length = if kind == NEGOTIATE { MAX_NEGOTIATE } else { MAX_AUTHENTICATE };
    if bytes.len() > max_length || reader.array()? != MAGIC || reader.u32()? != kind {
        return Err(MalformedNtlm);
    }
    Ok(reader)
}

/// Parses a NEGOTIATE message and returns its flags. Clients without Unicode do not support NTLMv2.
pub(super) fn parse_negotiate(bytes: &[u8]) -> Result<u32, MalformedNtlm> {
    let flags = begin(bytes, NEGOTIATE)?.u32()?;
    if flags & flags::UNICODE == 0 { Err(MalformedNtlm) } else { Ok(flags) }
}

/// Returns a CHALLENGE message.
pub(super) fn challenge(client_flags: u32, nonce: [u8; 8], now: Timestamp) -> Vec<u8> {
    const FIXED: usize = 56;
    /// A Windows version with all features, and the NTLM revision.
    const VERSION: [u8; 8] = [6, 1, 0, 0, 0, 0, 0, 15];
    let flags = client_flags & flags::OPTIONAL
        | flags::UNICODE
        | flags::REQUEST_TARGET
        | flags::NTLM
        | flags::TARGET_TYPE_SERVER
        | flags::TARGET_INFO;
    let (name, attributes) = (utf16(SERVER_NAME), attributes(now));
    let mut writer = ByteWriter::new();
    writer.put(&MAGIC).u32(CHALLENGE);
    writer.u16(name.len() as u16).u16(name.len() as u16).u32(FIXED as u32);
    writer.u32(flags).put(&nonce).zeros(8);
    writer.u16(attributes.len() as u16).u16(attributes.len() as u16).u32((FIXED + name.len()) as u32);
    writer.put(if flags & flags::VERSION == 0 { &[0; 8] } else { &VERSION });
    writer.put(&name).put(&attributes);
    writer.finish()
}

/// Returns the server's attributes. The timestamp makes clients add a MIC to their response.
fn attributes(now: Timestamp) -> Vec<u8> {
    let mut writer = ByteWriter::new();
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

/// Finds an attribute in a list.
fn find_attribute(attributes: &[u8], wanted: u16) -> Result<Option<&[u8]>, MalformedNtlm> {
    let mut reader = ByteReader::new(attributes);
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

/// An AUTHENTICATE message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthenticateMessage {
    /// The user name.
    pub(crate) user: String,
    /// The domain, which is only used in the proof.
    pub(super) domain: String,
    /// The name of the client's machine.
    pub(crate) workstation: String,
    pub(super) flags: u32,
    /// The proof, followed by the data that it covers.
    pub(super) response: Vec<u8>,
    /// The encrypted session key.
    pub(super) encrypted_session_key: Vec<u8>,
    pub(super) is_anonymous: bool,
    pub(super) bytes: Vec<u8>,
}

impl AuthenticateMessage {
    const MIC: std::ops::Range<usize> = 72..88;

    /// Parses a message.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, MalformedNtlm> {
        let mut reader = begin(bytes, AUTHENTICATE)?;
        let mut field = || -> Result<&[u8], MalformedNtlm> {
            let (length, _, offset) = (reader.u16()?, reader.u16()?, reader.u32()?);
            Ok(slice(bytes, offset as usize, usize::from(length))?)
        };
        let (lm, response) = (field()?, field()?);
        let (domain, user, workstation, encrypted_session_key) = (field()?, field()?, field()?, field()?);
        // Fails for very old clients, whose message ends before the flags.
        let flags = reader.u32()?;
        if flags & flags::UNICODE == 0 {
            return Err(MalformedNtlm);
        }
        if let Some(attributes) = response.get(RESPONSE_ATTRIBUTES..) {
            find_attribute(attributes, attribute::END)?;
        }
        let text = |bytes| text(bytes).ok_or(MalformedNtlm);
        Ok(Self {
            user: text(user)?,
            domain: text(domain)?,
            workstation: text(workstation)?,
            flags,
            response: response.to_vec(),
            encrypted_session_key: encrypted_session_key.to_vec(),
            is_anonymous: user.is_empty() && response.is_empty() && matches!(lm, [] | [0]),
            bytes: bytes.to_vec(),
        })
    }

    /// Returns whether the login is anonymous.
    pub(crate) const fn is_anonymous(&self) -> bool {
        self.is_anonymous
    }

    /// Returns the MIC over all three messages, or `None` if there is none. The password's proof covers
    /// whether there is one, so an attacker cannot remove it.
    pub(super) fn mic(&self) -> Option<[u8; 16]> {
        const HAS_MIC: u32 = 2;
        let flags = find_attribute(self.response.get(RESPONSE_ATTRIBUTES..)?, attribute::FLAGS).ok()??;
        if ByteReader::new(flags).u32().ok()? & HAS_MIC == 0 {
            return None;
        }
        // A message too short for a MIC has an invalid one.
        let mic = self.bytes.get(Self::MIC).and_then(|bytes| bytes.try_into().ok());
        Some(mic.unwrap_or_default())
    }

    /// Returns the message with a zeroed MIC.
    pub(super) fn without_mic(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        if let Some(mic) = bytes.get_mut(Self::MIC) {
            mic.fill(0);
        }
        bytes
    }
}
