//! Negotiate on the wire (MS-SMB2 2.2.3, 2.2.4), and how clients of the first version begin.

use super::cursor::{Reader, Truncated, Writer, slice};
use super::header::HEADER;
use super::status::Status;

/// What the dialect is called when a client of the first version may know a newer one: the client asks again.
pub(crate) const ANY_DIALECT: u16 = 0x02ff;
/// Dialects that a client can offer.
const MAX_DIALECTS: usize = 64;
/// Contexts that a client can send.
const MAX_CONTEXTS: usize = 32;
/// Algorithms that a context can name.
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

/// The hash of pre-authentication integrity: there is only this.
pub(crate) const SHA_512: u16 = 1;
const SALT: usize = 32;

/// What a client offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) dialects: Vec<u16>,
    pub(crate) security_mode: u16,
    pub(crate) capabilities: u32,
    pub(crate) client_guid: [u8; 16],
    /// What it says beyond that if it knows 3.1.1.
    pub(crate) contexts: Contexts,
}

/// Algorithms that a client offers, the one it prefers first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contexts {
    pub(crate) hashes: Option<Vec<u16>>,
    pub(crate) ciphers: Option<Vec<u16>>,
    pub(crate) signing: Option<Vec<u16>>,
}

impl Request {
    const SIZE: u16 = 36;
    const SMB311: u16 = 0x0311;

    /// Reads a request.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = Reader::from(message, HEADER);
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
            true => Contexts::parse(message.get(offset..).ok_or(Truncated)?, contexts)?,
            false => Contexts::default(),
        };
        Ok(Self { dialects, security_mode, capabilities, client_guid, contexts })
    }
}

impl Contexts {
    fn parse(bytes: &[u8], count: usize) -> Result<Self, Status> {
        if count > MAX_CONTEXTS {
            return Err(Status::INVALID_PARAMETER);
        }
        let mut found = Self::default();
        let mut at = 0_usize;
        for _ in 0..count {
            at = at.next_multiple_of(8);
            let mut reader = Reader::from(bytes, at);
            let (kind, length, _) = (reader.u16()?, usize::from(reader.u16()?), reader.u32()?);
            let mut content = Reader::new(reader.take(length)?);
            at = reader.position();
            let place = match kind {
                context::PREAUTH => &mut found.hashes,
                context::ENCRYPTION => &mut found.ciphers,
                context::SIGNING => &mut found.signing,
                // Compression, the server's name, transports: nothing to agree on.
                _ => continue,
            };
            let algorithms = usize::from(content.u16()?);
            if algorithms == 0 || algorithms > MAX_ALGORITHMS || place.is_some() {
                return Err(Status::INVALID_PARAMETER);
            }
            if kind == context::PREAUTH {
                content.skip(2)?;
            }
            *place = Some((0..algorithms).map(|_| content.u16()).collect::<Result<_, _>>()?);
        }
        Ok(found)
    }
}

/// What the server says.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) security_mode: u16,
    pub(crate) dialect: u16,
    pub(crate) server_guid: [u8; 16],
    pub(crate) capabilities: u32,
    /// Bytes of a read, a write or anything else.
    pub(crate) max_transfer: u32,
    /// Now, as a file time.
    pub(crate) time: u64,
    /// What authentication begins with.
    pub(crate) token: Vec<u8>,
    /// In 3.1.1.
    pub(crate) contexts: Option<ChosenContexts>,
}

/// What was chosen of what the client's contexts offer.
#[derive(Clone, Debug)]
pub(crate) struct ChosenContexts {
    /// Random bytes, that make every hash different.
    pub(crate) salt: [u8; SALT],
    /// Said if the client has offered some, 0 for none of them.
    pub(crate) cipher: Option<u16>,
    pub(crate) signing: Option<u16>,
}

impl Response {
    const SIZE: u16 = 65;
    const TOKEN: usize = HEADER + 64;

    /// The body.
    pub(crate) fn write(&self) -> Vec<u8> {
        let contexts = self.contexts.as_ref().map(ChosenContexts::write).unwrap_or_default();
        let at = (Self::TOKEN + self.token.len()).next_multiple_of(8);
        let offset = if contexts.is_empty() { 0 } else { at };
        let mut writer = Writer::new();
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
            let mut writer = Writer::new();
            writer.u16(1).u16(number);
            writer.finish()
        };
        let mut preauth = Writer::new();
        preauth.u16(1).u16(SALT as u16).u16(SHA_512).put(&self.salt);
        let mut contexts = vec![(context::PREAUTH, preauth.finish())];
        contexts.extend(self.cipher.map(|number| (context::ENCRYPTION, one(number))));
        contexts.extend(self.signing.map(|number| (context::SIGNING, one(number))));
        contexts
    }
}

/// What a Negotiate of the first version offers of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OldOffer {
    /// Any dialect: the client is to ask again.
    Any,
    /// 2.0.2, and nothing newer.
    Smb202,
}

impl OldOffer {
    /// Reads it. None if it offers nothing.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        const NEGOTIATE: u8 = 0x72;
        const OLD_HEADER: usize = 32;
        let mut reader = Reader::new(frame);
        reader.skip(4).ok()?;
        if reader.u8().ok()? != NEGOTIATE {
            return None;
        }
        let mut reader = Reader::from(frame, OLD_HEADER);
        let words = usize::from(reader.u8().ok()?);
        reader.skip(2 * words).ok()?;
        let length = usize::from(reader.u16().ok()?);
        let names = slice(frame, reader.position(), length).ok()?;
        // Each is a byte that says it is a name, and ends with a zero.
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

    /// A request with these dialects and contexts.
    fn request(dialects: &[u16], contexts: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.zeros(HEADER).u16(36).u16(dialects.len() as u16).u16(1).u16(0).u32(0x7f).put(&[7; 16]);
        let offset = (HEADER + 36 + 2 * dialects.len()).next_multiple_of(8);
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
    fn a_request_of_3_1_1_says_what_it_knows() {
        let contexts = [
            (context::PREAUTH, [numbers(&[1, 4, SHA_512]), vec![9; 4]].concat()),
            (3, vec![1, 2, 3]),
            (context::ENCRYPTION, numbers(&[2, 2, 1])),
            (context::SIGNING, numbers(&[3, 2, 1, 0])),
        ];
        let parsed = Request::parse(&request(&[0x0202, 0x0311], &contexts)).expect("a request");
        assert_eq!(parsed.dialects, [0x0202, 0x0311]);
        assert_eq!((parsed.security_mode, parsed.capabilities, parsed.client_guid), (1, 0x7f, [7; 16]));
        assert_eq!(
            parsed.contexts,
            Contexts { hashes: Some(vec![SHA_512]), ciphers: Some(vec![2, 1]), signing: Some(vec![2, 1, 0]) }
        );
    }

    #[test]
    fn contexts_of_older_dialects_are_not_looked_at() {
        let bytes = request(&[0x0302], &[(context::PREAUTH, vec![])]);
        assert_eq!(Request::parse(&bytes).map(|request| request.contexts), Ok(Contexts::default()));
    }

    #[test]
    fn what_is_cut_empty_or_said_twice_is_refused() {
        let preauth = (context::PREAUTH, numbers(&[1, 0, SHA_512]));
        let bytes = request(&[0x0311], std::slice::from_ref(&preauth));
        for length in HEADER..bytes.len() {
            assert_eq!(Request::parse(&bytes[..length]), Err(Status::INVALID_PARAMETER), "{length}");
        }
        for contexts in [
            vec![preauth.clone(), preauth],
            vec![(context::ENCRYPTION, numbers(&[0]))],
            vec![(context::SIGNING, numbers(&[0]))],
            vec![(context::SIGNING, numbers(&[2, 1]))],
        ] {
            assert_eq!(Request::parse(&request(&[0x0311], &contexts)), Err(Status::INVALID_PARAMETER));
        }
        assert_eq!(Request::parse(&request(&[], &[])), Err(Status::INVALID_PARAMETER));
    }

    #[test]
    fn clients_of_the_first_version_name_what_else_they_know() {
        let frame = |names: &[&str]| {
            let names: Vec<u8> =
                names.iter().flat_map(|name| [&[2], name.as_bytes(), &[0]].concat()).collect();
            let mut writer = Writer::new();
            writer.put(b"\xffSMB").u8(0x72).zeros(27).u8(0).u16(names.len() as u16).put(&names);
            writer.finish()
        };
        let old = "NT LM 0.12";
        assert_eq!(OldOffer::parse(&frame(&[old])), None);
        assert_eq!(OldOffer::parse(&frame(&[old, "SMB 2.002"])), Some(OldOffer::Smb202));
        let bytes = frame(&[old, "SMB 2.002", "SMB 2.???"]);
        assert_eq!(OldOffer::parse(&bytes), Some(OldOffer::Any));
        for length in 0..bytes.len() {
            assert_eq!(OldOffer::parse(&bytes[..length]), None);
        }
    }
}
