//! NEGOTIATE (MS-SMB2 2.2.3, 2.2.4), and the SMB1 Negotiate with which clients may begin.

use super::cursor::{ByteReader, ByteWriter, Truncated, slice};
use super::header::HEADER_SIZE;
use super::status::Status;

/// The dialect in a response to SMB1 that requests another Negotiate with SMB2.
pub(crate) const ANY_DIALECT: u16 = 0x02ff;
/// Maximum number of dialects in a request.
const MAX_DIALECTS: usize = 64;
/// Maximum number of negotiate contexts in a request.
const MAX_CONTEXTS: usize = 32;
/// Maximum number of algorithms in a context.
const MAX_ALGORITHMS: usize = 64;

/// Security modes.
pub(crate) mod mode {
    pub(crate) const SIGNING_ENABLED: u16 = 1;
    pub(crate) const SIGNING_REQUIRED: u16 = 2;
}

/// Capabilities.
pub(crate) mod capability {
    pub(crate) const LEASING: u32 = 0x02;
    pub(crate) const LARGE_MTU: u32 = 0x04;
    pub(crate) const MULTI_CHANNEL: u32 = 0x08;
    pub(crate) const ENCRYPTION: u32 = 0x40;
}

mod context {
    pub(crate) const PREAUTH: u16 = 1;
    pub(crate) const ENCRYPTION: u16 = 2;
    pub(crate) const SIGNING: u16 = 8;
}

/// The only hash algorithm for preauthentication integrity.
pub(crate) const SHA_512: u16 = 1;
/// Bytes of the salt.
const SALT: usize = 32;

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NegotiateRequest {
    pub(crate) dialects: Vec<u16>,
    pub(crate) security_mode: u16,
    pub(crate) capabilities: u32,
    pub(crate) client_guid: [u8; 16],
    /// The negotiate contexts of 3.1.1.
    pub(crate) contexts: NegotiateContexts,
}

/// The algorithms that a client offers, in order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NegotiateContexts {
    pub(crate) hashes: Option<Vec<u16>>,
    pub(crate) ciphers: Option<Vec<u16>>,
    pub(crate) signing: Option<Vec<u16>>,
}

impl NegotiateRequest {
    const SIZE: u16 = 36;
    const SMB311: u16 = 0x0311;

    /// Parses a request.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != Self::SIZE {
            return Err(Status::INVALID_PARAMETER);
        }
        let count = usize::from(reader.u16()?);
        if count == 0 || count > MAX_DIALECTS {
            return Err(Status::INVALID_PARAMETER);
        }
        let security_mode = reader.u16()?;
        reader.skip(2)?;
        let (capabilities, client_guid) = (reader.u32()?, reader.array()?);
        let (offset, contexts, _) = (reader.u32()? as usize, usize::from(reader.u16()?), reader.u16()?);
        let dialects = (0..count).map(|_| reader.u16()).collect::<Result<Vec<_>, _>>()?;
        let contexts = match dialects.contains(&Self::SMB311) {
            true => NegotiateContexts::parse(message.get(offset..).ok_or(Truncated)?, contexts)?,
            false => NegotiateContexts::default(),
        };
        Ok(Self { dialects, security_mode, capabilities, client_guid, contexts })
    }
}

impl NegotiateContexts {
    fn parse(bytes: &[u8], count: usize) -> Result<Self, Status> {
        if count > MAX_CONTEXTS {
            return Err(Status::INVALID_PARAMETER);
        }
        let mut contexts = Self::default();
        let mut at = 0_usize;
        for _ in 0..count {
            at = at.next_multiple_of(8);
            let mut reader = ByteReader::from(bytes, at);
            let (kind, length, _) = (reader.u16()?, usize::from(reader.u16()?), reader.u32()?);
            let mut content = ByteReader::new(reader.take(length)?);
            at = reader.position();
            let slot = match kind {
                context::PREAUTH => &mut contexts.hashes,
                context::ENCRYPTION => &mut contexts.ciphers,
                context::SIGNING => &mut contexts.signing,
                // Compression, server name and transport are not negotiated.
                _ => continue,
            };
            let algorithms = usize::from(content.u16()?);
            if algorithms == 0 || algorithms > MAX_ALGORITHMS || slot.is_some() {
                return Err(Status::INVALID_PARAMETER);
            }
            if kind == context::PREAUTH {
                content.skip(2)?;
            }
            *slot = Some((0..algorithms).map(|_| content.u16()).collect::<Result<_, _>>()?);
        }
        Ok(contexts)
    }
}

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct NegotiateResponse {
    pub(crate) security_mode: u16,
    pub(crate) dialect: u16,
    pub(crate) server_guid: [u8; 16],
    pub(crate) capabilities: u32,
    /// Maximum number of bytes in one read, write or transaction.
    pub(crate) max_transfer: u32,
    /// The current time, as a file time.
    pub(crate) time: u64,
    /// The first token of the authentication.
    pub(crate) token: Vec<u8>,
    /// Present in 3.1.1.
    pub(crate) contexts: Option<ChosenContexts>,
}

/// The chosen algorithms.
#[derive(Clone, Debug)]
pub(crate) struct ChosenContexts {
    /// Random bytes that make each preauthentication hash different.
    pub(crate) salt: [u8; SALT],
    /// Present if the client has sent the context. 0 if no cipher is supported by both.
    pub(crate) cipher: Option<u16>,
    pub(crate) signing: Option<u16>,
}

impl NegotiateResponse {
    const SIZE: u16 = 65;
    const TOKEN: usize = HEADER_SIZE + 64;

    /// Returns the body.
    pub(crate) fn write(&self) -> Vec<u8> {
        let contexts = self.contexts.as_ref().map(ChosenContexts::write).unwrap_or_default();
        let at = (Self::TOKEN + self.token.len()).next_multiple_of(8);
        let offset = if contexts.is_empty() { 0 } else { at };
        let mut writer = ByteWriter::new();
        writer.u16(Self::SIZE).u16(self.security_mode).u16(self.dialect).u16(contexts.len() as u16);
        writer.put(&self.server_guid).u32(self.capabilities);
        writer.u32(self.max_transfer).u32(self.max_transfer).u32(self.max_transfer);
        writer.u64(self.time).u64(0);
        writer.u16(Self::TOKEN as u16).u16(self.token.len() as u16).u32(offset as u32);
        writer.put(&self.token);
        for (kind, content) in contexts {
            writer.align(8).u16(kind).u16(content.len() as u16).u32(0).put(&content);
        }
        writer.finish()
    }
}

impl ChosenContexts {
    fn write(&self) -> Vec<(u16, Vec<u8>)> {
        let one = |number: u16| {
            let mut writer = ByteWriter::new();
            writer.u16(1).u16(number);
            writer.finish()
        };
        let mut preauth = ByteWriter::new();
        preauth.u16(1).u16(SALT as u16).u16(SHA_512).put(&self.salt);
        let mut contexts = vec![(context::PREAUTH, preauth.finish())];
        contexts.extend(self.cipher.map(|number| (context::ENCRYPTION, one(number))));
        contexts.extend(self.signing.map(|number| (context::SIGNING, one(number))));
        contexts
    }
}

/// The SMB2 dialects in an SMB1 Negotiate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Smb1Negotiate {
    /// Any dialect. The client must negotiate again with SMB2.
    Any,
    /// 2.0.2 only.
    Smb202,
}

impl Smb1Negotiate {
    /// Parses a frame. Returns `None` if it offers no SMB2 dialect.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        const NEGOTIATE: u8 = 0x72;
        const OLD_HEADER: usize = 32;
        let mut reader = ByteReader::new(frame);
        reader.skip(4).ok()?;
        if reader.u8().ok()? != NEGOTIATE {
            return None;
        }
        let mut reader = ByteReader::from(frame, OLD_HEADER);
        let words = usize::from(reader.u8().ok()?);
        reader.skip(2 * words).ok()?;
        let length = usize::from(reader.u16().ok()?);
        let names = slice(frame, reader.position(), length).ok()?;
        // Each name is a type byte and a zero-terminated string.
        let offers = |name: &[u8]| names.split(|byte| *byte == 0).any(|part| part == [&[2], name].concat());
        match (offers(b"SMB 2.???"), offers(b"SMB 2.002")) {
            (true, _) => Some(Self::Any),
            (false, true) => Some(Self::Smb202),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a request with these dialects and contexts.
    fn request(dialects: &[u16], contexts: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut writer = ByteWriter::new();
        writer.zeros(HEADER_SIZE).u16(36).u16(dialects.len() as u16).u16(1).u16(0).u32(0x7f).put(&[7; 16]);
        let offset = (HEADER_SIZE + 36 + 2 * dialects.len()).next_multiple_of(8);
        writer.u32(offset as u32).u16(contexts.len() as u16).u16(0);
        dialects.iter().for_each(|dialect| _ = writer.u16(*dialect));
        for (kind, content) in contexts {
            writer.align(8).u16(*kind).u16(content.len() as u16).u32(0).put(content);
        }
        writer.finish()
    }

    fn numbers(numbers: &[u16]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    #[test]
    fn a_request_of_3_1_1_has_contexts() {
        let contexts = [
            (context::PREAUTH, [numbers(&[1, 4, SHA_512]), vec![9; 4]].concat()),
            (3, vec![1, 2, 3]),
            (context::ENCRYPTION, numbers(&[2, 2, 1])),
            (context::SIGNING, numbers(&[3, 2, 1, 0])),
        ];
        let parsed = NegotiateRequest::parse(&request(&[0x0202, 0x0311], &contexts)).expect("a request");
        assert_eq!(parsed.dialects, [0x0202, 0x0311]);
        assert_eq!((parsed.security_mode, parsed.capabilities, parsed.client_guid), (1, 0x7f, [7; 16]));
        assert_eq!(
            parsed.contexts,
            NegotiateContexts {
                hashes: Some(vec![SHA_512]),
                ciphers: Some(vec![2, 1]),
                signing: Some(vec![2, 1, 0])
            }
        );
    }

    #[test]
    fn contexts_of_older_dialects_are_ignored() {
        let bytes = request(&[0x0302], &[(context::PREAUTH, vec![])]);
        assert_eq!(
            NegotiateRequest::parse(&bytes).map(|request| request.contexts),
            Ok(NegotiateContexts::default())
        );
    }

    #[test]
    fn truncated_empty_and_repeated_contexts_are_refused() {
        let preauth = (context::PREAUTH, numbers(&[1, 0, SHA_512]));
        let bytes = request(&[0x0311], std::slice::from_ref(&preauth));
        for length in HEADER_SIZE..bytes.len() {
            assert_eq!(NegotiateRequest::parse(&bytes[..length]), Err(Status::INVALID_PARAMETER), "{length}");
        }
        for contexts in [
            vec![preauth.clone(), preauth],
            vec![(context::ENCRYPTION, numbers(&[0]))],
            vec![(context::SIGNING, numbers(&[0]))],
            vec![(context::SIGNING, numbers(&[2, 1]))],
        ] {
            assert_eq!(
                NegotiateRequest::parse(&request(&[0x0311], &contexts)),
                Err(Status::INVALID_PARAMETER)
            );
        }
        assert_eq!(NegotiateRequest::parse(&request(&[], &[])), Err(Status::INVALID_PARAMETER));
    }

    #[test]
    fn smb1_clients_offer_smb2_dialects_by_name() {
        let frame = |names: &[&str]| {
            let names: Vec<u8> =
                names.iter().flat_map(|name| [&[2], name.as_bytes(), &[0]].concat()).collect();
            let mut writer = ByteWriter::new();
            writer.put(b"\xffSMB").u8(0x72).zeros(27).u8(0).u16(names.len() as u16).put(&names);
            writer.finish()
        };
        let negotiate_smb1 = "NT LM 0.12";
        assert_eq!(Smb1Negotiate::parse(&frame(&[negotiate_smb1])), None);
        assert_eq!(Smb1Negotiate::parse(&frame(&[negotiate_smb1, "SMB 2.002"])), Some(Smb1Negotiate::Smb202));
        let bytes = frame(&[negotiate_smb1, "SMB 2.002", "SMB 2.???"]);
        assert_eq!(Smb1Negotiate::parse(&bytes), Some(Smb1Negotiate::Any));
        for length in 0..bytes.len() {
            assert_eq!(Smb1Negotiate::parse(&bytes[..length]), None);
        }
    }
}
