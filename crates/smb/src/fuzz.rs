//! Entry points of the fuzzers: no input may cause a panic. Each returns whether the input is valid, and
//! [`seeds`] has valid inputs for each.

pub mod seeds;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_security::Descriptor;

use crate::commands::create::contexts::RequestedContexts;
use crate::commands::create::path::Path;
use crate::commands::tree;
use crate::crypto::TransformHeader;
use crate::negotiated::{Dialect, Negotiated};
use crate::ntlm::{AuthenticateMessage, ChallengedLogin};
use crate::pattern::Pattern;
use crate::rpc::Pipe;
use crate::spnego::{AcceptStep, Acceptor};
use crate::wire::cursor::ByteReader;
use crate::wire::header::{HEADER_SIZE, MessageHeader, SmbCommand};
use crate::wire::info::InfoType;
use crate::wire::{
    close, create, directory, info, io, ioctl, lock, negotiate, notify, oplock, session_setup,
};
use crate::{frame, ntlm};

/// The password of the fuzzed logins.
const PASSWORD: &str = "password";
/// The server's random bytes in the first and the second step of a login.
const NONCES: [[u8; 8]; 2] = [[1; 8], [2; 8]];

/// Parses a plain, encrypted or SMB1 frame, and each message of a plain one.
pub fn frame(data: &[u8]) -> bool {
    let is_encrypted = TransformHeader::parse(data).is_some();
    let is_smb1 = negotiate::Smb1Negotiate::parse(data).is_some();
    let messages = frame::split(&Bytes::copy_from_slice(data)).unwrap_or_default();
    let are_valid = messages.iter().map(|message| request(&message.bytes)).collect::<Vec<_>>();
    is_encrypted || is_smb1 || are_valid.contains(&true)
}

/// Parses a message, with the structures in it.
pub fn request(data: &[u8]) -> bool {
    let message = Bytes::copy_from_slice(data);
    let Ok(header) = MessageHeader::parse(data) else { return false };
    let Some(command) = SmbCommand::from_code(header.command) else { return false };
    match command {
        SmbCommand::Negotiate => negotiate_request(data),
        SmbCommand::SessionSetup => {
            let request = session_setup::SessionSetupRequest::parse(data);
            let step =
                |token: &[u8]| Acceptor::default().step(token, NONCES[0], Timestamp::default()).is_ok();
            request.is_ok_and(|request| step(request.token))
        }
        SmbCommand::TreeConnect => tree::share_name(data).is_ok(),
        SmbCommand::Logoff | SmbCommand::TreeDisconnect | SmbCommand::Echo | SmbCommand::Cancel => {
            ByteReader::from(data, HEADER_SIZE).u16() == Ok(4)
        }
        SmbCommand::Create => create_request(&message),
        SmbCommand::Close => close::CloseRequest::parse(data).is_ok(),
        SmbCommand::Flush => io::flush_request(data).is_ok(),
        SmbCommand::Read => io::ReadRequest::parse(data).is_ok(),
        SmbCommand::Write => io::WriteRequest::parse(&message).is_ok(),
        SmbCommand::Lock => lock::LockRequest::parse(data).is_ok(),
        SmbCommand::OplockBreak => oplock::Acknowledgment::parse(data).is_ok(),
        SmbCommand::QueryDirectory => {
            let request = directory::QueryDirectoryRequest::parse(data);
            let pattern = request.ok().and_then(|request| Pattern::parse(&request.pattern));
            pattern.map(|pattern| (pattern.matches("name.txt"), pattern.literal())).is_some()
        }
        SmbCommand::ChangeNotify => notify::ChangeNotifyRequest::parse(data).is_ok(),
        SmbCommand::QueryInfo => info::QueryInfoRequest::parse(data).is_ok(),
        SmbCommand::SetInfo => info::SetInfoRequest::parse(data).is_ok_and(|request| set_info(&request)),
        SmbCommand::Ioctl => ioctl::IoctlRequest::parse(data).is_ok_and(|request| control(&request)),
    }
}

fn negotiate_request(data: &[u8]) -> bool {
    let Ok(request) = negotiate::NegotiateRequest::parse(data) else { return false };
    Negotiated::choose(&request, true).is_ok()
}

fn create_request(message: &Bytes) -> bool {
    let Ok(request) = create::CreateRequest::parse(message) else { return false };
    if let Some(descriptor) = request.contexts.get(create::tag::SECURITY_DESCRIPTOR) {
        security(descriptor);
    }
    let contexts =
        [Dialect::Smb202, Dialect::Smb311].map(|dialect| RequestedContexts::parse(&request, dialect).is_ok());
    Path::parse(&request.name).is_ok() && contexts.contains(&true)
}

fn set_info(request: &info::SetInfoRequest<'_>) -> bool {
    use crate::wire::info::class;
    match (request.kind, request.class) {
        (InfoType::Security, _) => security(request.input),
        (InfoType::File, class::BASIC) => info::new_basic(request.input).is_ok(),
        (InfoType::File, class::RENAME | class::RENAME_EX) => {
            info::NewName::parse(request.input).is_ok_and(|new| Path::parse(&new.name).is_ok())
        }
        _ => info::at_least(request.input, 8).is_ok(),
    }
}

fn control(request: &ioctl::IoctlRequest<'_>) -> bool {
    use crate::wire::ioctl::code;
    let _ = request.response(&[]);
    match request.code {
        code::SRV_COPYCHUNK | code::SRV_COPYCHUNK_WRITE => {
            ioctl::CopyChunks::parse(request.input, 256).is_ok()
        }
        code::VALIDATE_NEGOTIATE_INFO => seeds::negotiated()
            .is_some_and(|negotiated| negotiated.validate(request.input, [3; 16]).is_some()),
        code::PIPE_TRANSCEIVE => rpc(request.input),
        code::SET_ZERO_DATA | code::QUERY_ALLOCATED_RANGES => ByteReader::new(request.input).u128().is_ok(),
        _ => true,
    }
}

/// Parses a security descriptor as bytes and as text. A valid one must survive a round trip.
pub fn security(data: &[u8]) -> bool {
    let checked = str::from_utf8(data).is_ok_and(|text| Descriptor::check_sddl(text).is_ok());
    let text = str::from_utf8(data).ok().and_then(|text| Descriptor::from_sddl(text).ok());
    let descriptors = [Descriptor::from_bytes(data).ok(), text];
    for descriptor in descriptors.iter().flatten() {
        assert_eq!(Descriptor::from_bytes(&descriptor.to_bytes()).as_ref(), Ok(descriptor));
        assert_eq!(Descriptor::from_sddl(&descriptor.to_sddl()).as_ref(), Ok(descriptor));
    }
    checked || descriptors.iter().any(Option::is_some)
}

/// Processes two tokens of a login. The first byte is the length of the first token.
pub fn spnego(data: &[u8]) -> bool {
    let [split, tokens @ ..] = data else { return false };
    let (first, second) = tokens.split_at(usize::from(*split).min(tokens.len()));
    let mut acceptor = Acceptor::default();
    let _ = acceptor.step(first, NONCES[0], Timestamp::default());
    match acceptor.step(second, NONCES[1], Timestamp::default()) {
        Ok(AcceptStep::Authenticate(proof)) => {
            let _ = proof.anonymous_token();
            proof.verify_password(PASSWORD).is_some() || proof.message.is_anonymous()
        }
        _ => false,
    }
}

/// Checks an NTLM AUTHENTICATE message.
pub fn ntlm(data: &[u8]) -> bool {
    let challenged = ChallengedLogin::new(&ntlm::fuzz::negotiate(), NONCES[0], Timestamp::default());
    let (Ok(challenged), Ok(message)) = (challenged, AuthenticateMessage::parse(data)) else { return false };
    challenged.verify_password(&message, PASSWORD).is_some() || message.is_anonymous()
}

/// Writes to the pipe that lists shares. Returns whether the pipe has answered.
pub fn rpc(data: &[u8]) -> bool {
    let mut pipe = Pipe::new(vec!["alpha".into(), "beta".into()]);
    let is_accepted = pipe.write(data).is_ok();
    let mut has_answered = false;
    while pipe.read(100).is_some() {
        has_answered = true;
    }
    is_accepted && has_answered
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const ROUNDS: usize = 20_000;

    /// Runs `target` on the beginning of a seed with random bytes after it, and on seeds with a few bytes
    /// changed.
    fn fuzz(target: fn(&[u8]) -> bool, seeds: &[&[u8]]) {
        let mut rng = StdRng::seed_from_u64(7);
        for round in 0..ROUNDS {
            let mut bytes = seeds[round % seeds.len()].to_vec();
            let length = rng.random_range(0..=bytes.len() + 40);
            bytes.resize_with(length, || rng.random());
            for _ in 0..rng.random_range(0..4) {
                if let Some(last) = bytes.len().checked_sub(1) {
                    bytes[rng.random_range(0..=last)] = rng.random();
                }
            }
            target(&bytes);
        }
    }

    #[test]
    fn no_frame_makes_the_parsers_panic() {
        let header = |command: u8, body: &[u8]| {
            let mut message = [0; 64];
            message[..6].copy_from_slice(b"\xfeSMB\x40\0");
            message[12] = command;
            [&message[..], body].concat()
        };
        let negotiate = header(
            0,
            &[&[36, 0, 2, 0, 1, 0, 0, 0][..], &[0; 20], &[104, 0, 0, 0, 2, 0, 0, 0, 0x10, 2, 0x11, 3]]
                .concat(),
        );
        let contexts = [
            &negotiate[..],
            &[1, 0, 6, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0],
        ]
        .concat();
        let setup = header(1, &[&[25, 0, 0, 1][..], &[0; 8], &[88, 0, 4, 0], &[0; 8], b"abcd"].concat());
        let old = [b"\xffSMB\x72".as_slice(), &[0; 27], &[0, 11, 0, 2], b"SMB 2.???\0"].concat();
        fuzz(frame, &[&negotiate, &contexts, &setup, &old, b"\xfdSMB"]);
    }

    #[test]
    fn no_request_makes_the_parsers_panic() {
        let sizes = [
            (5, 57),
            (6, 24),
            (8, 49),
            (9, 49),
            (10, 48),
            (11, 57),
            (14, 33),
            (15, 32),
            (16, 41),
            (17, 33),
            (18, 24),
        ];
        let requests = sizes.map(|(command, size)| {
            let mut message = [0; 200];
            message[..6].copy_from_slice(b"\xfeSMB\x40\0");
            (message[12], message[64]) = (command, size);
            message
        });
        fuzz(request, &requests.each_ref().map(|message| &message[..]));
    }

    #[test]
    fn valid_descriptors_survive_a_round_trip() {
        let sddl =
            "O:SYG:BAD:PAI(A;OICI;FA;;;SY)(OA;;FR;bf967a86-0de6-11d0-a285-00aa003049e2;;AN)S:(ML;;0x1;;;ME)";
        let bytes = Descriptor::from_sddl(sddl).unwrap().to_bytes();
        fuzz(security, &[&bytes, sddl.as_bytes()]);
    }

    #[test]
    fn no_token_makes_the_authentication_panic() {
        let token = crate::spnego::initial_token();
        let negotiate = [&ntlm::MAGIC[..], &[1, 0, 0, 0], &0xe208_8297_u32.to_le_bytes()].concat();
        let answer = [&ntlm::MAGIC[..], &[3, 0, 0, 0], &[0; 48], &[1, 0, 0, 0], &[0; 40]].concat();
        let both = [&[16][..], &negotiate, &answer].concat();
        fuzz(spnego, &[&[&[200][..], &token].concat(), &both]);
        fuzz(super::ntlm, &[&answer]);
    }

    #[test]
    fn no_bytes_make_the_pipe_panic() {
        let bind = [&[5, 0, 11, 3, 0x10, 0, 0, 0, 28, 0, 0, 0, 1, 0, 0, 0][..], &[0; 12]].concat();
        let request = [&[5, 0, 0, 3, 0x10, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0][..], &[0; 24]].concat();
        fuzz(rpc, &[&bind, &request, &[&bind[..], &request].concat()]);
    }
}
