//! Entry points of the fuzzers: no input may cause a panic.

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_security::Descriptor;

use crate::crypto::TransformHeader;
use crate::pattern::Pattern;
use crate::rpc::Pipe;
use crate::spnego::{AcceptStep, Acceptor};
use crate::wire::header::{MessageHeader, SmbCommand};
use crate::wire::{
    close, create, directory, info, io, ioctl, lock, negotiate, notify, oplock, session_setup,
};
use crate::{frame, ntlm};

/// Parses a plain or encrypted frame, and the first messages of a connection.
pub fn frame(data: &[u8]) {
    let _ = TransformHeader::parse(data);
    let _ = negotiate::Smb1Negotiate::parse(data);
    for message in frame::split(&Bytes::copy_from_slice(data)).unwrap_or_default() {
        let _ = negotiate::NegotiateRequest::parse(&message.bytes);
        let _ = session_setup::SessionSetupRequest::parse(&message.bytes);
    }
}

/// Parses a request about a file.
pub fn request(data: &[u8]) {
    let message = Bytes::copy_from_slice(data);
    let Ok(header) = MessageHeader::parse(data) else { return };
    match SmbCommand::from_code(header.command) {
        Some(SmbCommand::Create) => drop(create::CreateRequest::parse(&message)),
        Some(SmbCommand::Close) => drop(close::CloseRequest::parse(data)),
        Some(SmbCommand::Read) => drop(io::ReadRequest::parse(data)),
        Some(SmbCommand::Write) => drop(io::WriteRequest::parse(&message)),
        Some(SmbCommand::Lock) => drop(lock::LockRequest::parse(data)),
        Some(SmbCommand::OplockBreak) => drop(oplock::Acknowledgment::parse(data)),
        Some(SmbCommand::QueryDirectory) => {
            if let Ok(request) = directory::QueryDirectoryRequest::parse(data) {
                let _ = Pattern::parse(&request.pattern).map(|pattern| pattern.matches("name.txt"));
            }
        }
        Some(SmbCommand::ChangeNotify) => drop(notify::ChangeNotifyRequest::parse(data)),
        Some(SmbCommand::QueryInfo) => drop(info::QueryInfoRequest::parse(data)),
        Some(SmbCommand::SetInfo) => {
            if let Ok(request) = info::SetInfoRequest::parse(data) {
                let _ = (info::new_basic(request.input), info::NewName::parse(request.input));
                security(request.input);
            }
        }
        Some(SmbCommand::Ioctl) => {
            if let Ok(request) = ioctl::IoctlRequest::parse(data) {
                let _ = ioctl::CopyChunks::parse(request.input, 256);
            }
        }
        _ => {}
    }
}

/// Parses a security descriptor as bytes and as text. A valid one must survive a round trip.
pub fn security(data: &[u8]) {
    let _ = str::from_utf8(data).map(Descriptor::check_sddl);
    let text = str::from_utf8(data).ok().and_then(|text| Descriptor::from_sddl(text).ok());
    for descriptor in [Descriptor::from_bytes(data).ok(), text].into_iter().flatten() {
        assert_eq!(Descriptor::from_bytes(&descriptor.to_bytes()).as_ref(), Ok(&descriptor));
        assert_eq!(Descriptor::from_sddl(&descriptor.to_sddl()).as_ref(), Ok(&descriptor));
    }
}

/// Processes two tokens of a login. The first byte is the length of the first token.
pub fn spnego(data: &[u8]) {
    let [split, tokens @ ..] = data else { return };
    let (first, second) = tokens.split_at(usize::from(*split).min(tokens.len()));
    let mut acceptor = Acceptor::default();
    let _ = acceptor.step(first, [1; 8], Timestamp::default());
    if let Ok(AcceptStep::Authenticate(proof)) = acceptor.step(second, [2; 8], Timestamp::default()) {
        let _ = proof.verify_password("password");
    }
}

/// Checks an NTLM AUTHENTICATE message.
pub fn ntlm(data: &[u8]) {
    let negotiate = [&ntlm::MAGIC[..], &[1, 0, 0, 0], &0xe208_8297_u32.to_le_bytes()].concat();
    let Ok(challenged) = ntlm::ChallengedLogin::new(&negotiate, [1; 8], Timestamp::default()) else { return };
    if let Ok(message) = ntlm::AuthenticateMessage::parse(data) {
        let _ = challenged.verify_password(&message, "password");
    }
}

/// Writes to the pipe that lists shares.
pub fn rpc(data: &[u8]) {
    let mut pipe = Pipe::new(vec!["alpha".into(), "beta".into()]);
    let _ = pipe.write(data);
    while pipe.read(100).is_some() {}
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const ROUNDS: usize = 20_000;

    /// Runs `target` on the beginning of a seed with random bytes after it, and on seeds with a few bytes
    /// changed.
    fn fuzz(target: fn(&[u8]), seeds: &[&[u8]]) {
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
