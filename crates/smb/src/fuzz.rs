//! What fuzzers run: whatever the bytes, nothing panics.

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_security::Descriptor;

use crate::crypto::Transform;
use crate::pattern::Pattern;
use crate::rpc::Pipe;
use crate::spnego::{Acceptor, Step};
use crate::wire::header::{Command, Header};
use crate::wire::{
    close, create, directory, info, io, ioctl, lock, negotiate, notify, oplock, session_setup,
};
use crate::{frame, ntlm};

/// A plain or encrypted frame, and the messages that begin a connection.
pub fn frame(data: &[u8]) {
    let _ = Transform::parse(data);
    let _ = negotiate::OldOffer::parse(data);
    for message in frame::split(&Bytes::copy_from_slice(data)).unwrap_or_default() {
        let _ = negotiate::Request::parse(&message.bytes);
        let _ = session_setup::Request::parse(&message.bytes);
    }
}

/// A request about a file, by the command that it names.
pub fn request(data: &[u8]) {
    let message = Bytes::copy_from_slice(data);
    let Ok(header) = Header::parse(data) else { return };
    match Command::of(header.command) {
        Some(Command::Create) => drop(create::CreateRequest::parse(&message)),
        Some(Command::Close) => drop(close::CloseRequest::parse(data)),
        Some(Command::Read) => drop(io::ReadRequest::parse(data)),
        Some(Command::Write) => drop(io::WriteRequest::parse(&message)),
        Some(Command::Lock) => drop(lock::LockRequest::parse(data)),
        Some(Command::OplockBreak) => drop(oplock::Acknowledgement::parse(data)),
        Some(Command::QueryDirectory) => {
            if let Ok(request) = directory::QueryDirectoryRequest::parse(data) {
                let _ = Pattern::parse(&request.pattern).map(|pattern| pattern.matches("name.txt"));
            }
        }
        Some(Command::ChangeNotify) => drop(notify::ChangeNotifyRequest::parse(data)),
        Some(Command::QueryInfo) => drop(info::QueryInfoRequest::parse(data)),
        Some(Command::SetInfo) => {
            if let Ok(request) = info::SetInfoRequest::parse(data) {
                let _ = (info::new_basic(request.input), info::NewName::parse(request.input));
                security(request.input);
            }
        }
        Some(Command::Ioctl) => {
            if let Ok(request) = ioctl::IoctlRequest::parse(data) {
                let _ = ioctl::CopyChunks::parse(request.input, 256);
            }
        }
        _ => {}
    }
}

/// A security descriptor, as bytes and as text: what is understood is understood again.
pub fn security(data: &[u8]) {
    let _ = str::from_utf8(data).map(Descriptor::check_sddl);
    let text = str::from_utf8(data).ok().and_then(|text| Descriptor::from_sddl(text).ok());
    for descriptor in [Descriptor::from_bytes(data).ok(), text].into_iter().flatten() {
        assert_eq!(Descriptor::from_bytes(&descriptor.to_bytes()).as_ref(), Ok(&descriptor));
        assert_eq!(Descriptor::from_sddl(&descriptor.to_sddl()).as_ref(), Ok(&descriptor));
    }
}

/// Two tokens of a login, the first as long as the first byte says.
pub fn spnego(data: &[u8]) {
    let [split, tokens @ ..] = data else { return };
    let (first, second) = tokens.split_at(usize::from(*split).min(tokens.len()));
    let mut acceptor = Acceptor::default();
    let _ = acceptor.step(first, [1; 8], Timestamp::default());
    if let Ok(Step::Answered(answered)) = acceptor.step(second, [2; 8], Timestamp::default()) {
        let _ = answered.check("password");
    }
}

/// An answer to a challenge.
pub fn ntlm(data: &[u8]) {
    let offer = [&ntlm::MAGIC[..], &[1, 0, 0, 0], &0xe208_8297_u32.to_le_bytes()].concat();
    let Ok(challenged) = ntlm::Challenged::new(&offer, [1; 8], Timestamp::default()) else { return };
    if let Ok(answer) = ntlm::Answer::parse(data) {
        let _ = challenged.check(&answer, "password");
    }
}

/// What is written to the pipe that lists shares.
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

    /// Runs it on what begins like a message and goes on at random, and on messages with a few bytes changed.
    fn batter(target: fn(&[u8]), seeds: &[&[u8]]) {
        let mut dice = StdRng::seed_from_u64(7);
        for round in 0..ROUNDS {
            let mut bytes = seeds[round % seeds.len()].to_vec();
            let length = dice.random_range(0..=bytes.len() + 40);
            bytes.resize_with(length, || dice.random());
            for _ in 0..dice.random_range(0..4) {
                if let Some(last) = bytes.len().checked_sub(1) {
                    bytes[dice.random_range(0..=last)] = dice.random();
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
        batter(frame, &[&negotiate, &contexts, &setup, &old, b"\xfdSMB"]);
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
        batter(request, &requests.each_ref().map(|message| &message[..]));
    }

    #[test]
    fn a_descriptor_that_is_understood_is_understood_again() {
        let sddl =
            "O:SYG:BAD:PAI(A;OICI;FA;;;SY)(OA;;FR;bf967a86-0de6-11d0-a285-00aa003049e2;;AN)S:(ML;;0x1;;;ME)";
        let bytes = Descriptor::from_sddl(sddl).unwrap().to_bytes();
        batter(security, &[&bytes, sddl.as_bytes()]);
    }

    #[test]
    fn no_token_makes_the_login_panic() {
        let token = crate::spnego::offer();
        let offer = [&ntlm::MAGIC[..], &[1, 0, 0, 0], &0xe208_8297_u32.to_le_bytes()].concat();
        let answer = [&ntlm::MAGIC[..], &[3, 0, 0, 0], &[0; 48], &[1, 0, 0, 0], &[0; 40]].concat();
        let both = [&[16][..], &offer, &answer].concat();
        batter(spnego, &[&[&[200][..], &token].concat(), &both]);
        batter(super::ntlm, &[&answer]);
    }

    #[test]
    fn nothing_that_is_written_makes_the_pipe_panic() {
        let bind = [&[5, 0, 11, 3, 0x10, 0, 0, 0, 28, 0, 0, 0, 1, 0, 0, 0][..], &[0; 12]].concat();
        let request = [&[5, 0, 0, 3, 0x10, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0][..], &[0; 24]].concat();
        batter(rpc, &[&bind, &request, &[&bind[..], &request].concat()]);
    }
}
