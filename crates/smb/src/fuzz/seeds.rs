//! Valid inputs for the entry points of [`super`], from which the fuzzer starts: what clients send, written
//! with the same writer as the server's messages.

use lazuli_concurrency::Timestamp;
use lazuli_security::Descriptor;

use super::{NONCES, PASSWORD};
use crate::negotiated::Negotiated;
use crate::ntlm::{self, ChallengedLogin};
use crate::wire::create::{Lease, LeaseV2, oplock, tag, write_contexts};
use crate::wire::cursor::{ByteWriter, utf16};
use crate::wire::header::{HEADER_SIZE, MessageHeader, SmbCommand, flags};
use crate::wire::info::class;
use crate::wire::ioctl::code;
use crate::wire::negotiate::NegotiateRequest;

/// The file id in requests: that of the previous request in the compound.
const RELATED_ID: [u8; 16] = [0xff; 16];
const SDDL: &str = "O:SYG:BAD:PAI(A;OICI;FA;;;SY)(D;;0x1200a9;;;S-1-5-21-1-2-3-4)(A;ID;FR;;;WD)";
/// `EndOfFile` and other information of eight bytes.
const EIGHT: [u8; 8] = [0, 16, 0, 0, 0, 0, 0, 0];

/// Returns the bytes that a function writes.
fn bytes(write: impl FnOnce(&mut ByteWriter)) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    write(&mut writer);
    writer.finish()
}

/// Returns a message with a header.
fn message(command: SmbCommand, body: &[u8]) -> Vec<u8> {
    let header = MessageHeader {
        credit_charge: 1,
        status: 0,
        command: command as u16,
        credits: 31,
        flags: 0,
        next: 0,
        message_id: 5,
        async_id: 0,
        tree_id: 1,
        session_id: 0x0400_0000_0001,
        signature: [0; 16],
    };
    bytes(|writer| {
        header.write(writer);
        writer.put(body);
    })
}

/// Returns messages as one frame.
fn compound(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = vec![];
    for (at, message) in messages.iter().enumerate() {
        let mut message = message.clone();
        if at + 1 < messages.len() {
            message.resize(message.len().next_multiple_of(8), 0);
            let next = (message.len() as u32).to_le_bytes();
            message[20..24].copy_from_slice(&next);
        }
        if at > 0 {
            message[16..20].copy_from_slice(&flags::RELATED.to_le_bytes());
        }
        frame.extend(message);
    }
    frame
}

fn numbers(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Returns a NEGOTIATE request with these dialects.
fn negotiate(dialects: &[u16]) -> Vec<u8> {
    let contexts = [
        (1, [numbers(&[1, 4, 1]), vec![9; 4]].concat()),
        (2, numbers(&[4, 2, 1, 4, 3])),
        (8, numbers(&[3, 2, 1, 0])),
        (3, numbers(&[1, 0, 0, 0, 1])),
        (5, utf16("server")),
    ];
    let count = if dialects.contains(&0x0311) { contexts.len() } else { 0 };
    let offset = (HEADER_SIZE + 36 + 2 * dialects.len()).next_multiple_of(8);
    let body = bytes(|writer| {
        writer.u16(36).u16(dialects.len() as u16).u16(1).u16(0).u32(0x7f).put(&[7; 16]);
        writer
            .u32(if count > 0 { offset as u32 } else { 0 })
            .u16(count as u16)
            .u16(0)
            .put(&numbers(dialects));
        for (kind, content) in &contexts[..count] {
            writer.align(8).u16(*kind).u16(content.len() as u16).u32(0).put(content);
        }
    });
    message(SmbCommand::Negotiate, &body)
}

/// Returns the result of the negotiation that the seed of `FSCTL_VALIDATE_NEGOTIATE_INFO` repeats.
pub(super) fn negotiated() -> Option<Negotiated> {
    let request = NegotiateRequest::parse(&negotiate(&[0x0202, 0x0210, 0x0300, 0x0302])).ok()?;
    Negotiated::choose(&request, false).ok()
}

/// Returns an SMB1 Negotiate that offers these dialects.
fn smb1_negotiate(names: &[&str]) -> Vec<u8> {
    let names: Vec<u8> = names.iter().flat_map(|name| [&[2], name.as_bytes(), &[0]].concat()).collect();
    bytes(|writer| {
        writer.put(b"\xffSMB").u8(0x72).zeros(27).u8(0).u16(names.len() as u16).put(&names);
    })
}

/// Returns a DER element.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = match content.len() {
        short @ ..0x80 => vec![short as u8],
        medium @ ..0x100 => vec![0x81, medium as u8],
        long => vec![0x82, (long >> 8) as u8, long as u8],
    };
    [&[tag][..], &length, content].concat()
}

/// Returns the first SPNEGO token of a client that offers these mechanisms.
fn init_token(mechanisms: &[&[u8]], token: Option<&[u8]>) -> Vec<u8> {
    let spnego = b"\x06\x06\x2b\x06\x01\x05\x05\x02";
    let list = der(0xa0, &der(0x30, &mechanisms.concat()));
    let token = token.map(|token| der(0xa2, &der(0x04, token))).unwrap_or_default();
    let init = der(0xa0, &der(0x30, &[list, token].concat()));
    der(0x60, &[&spnego[..], &init].concat())
}

/// Returns a later SPNEGO token of a client.
fn response_token(token: &[u8]) -> Vec<u8> {
    let state = der(0xa0, &[0x0a, 1, 1]);
    der(0xa1, &der(0x30, &[state, der(0xa2, &der(0x04, token))].concat()))
}

const NTLM: &[u8] = b"\x06\x0a\x2b\x06\x01\x04\x01\x82\x37\x02\x02\x0a";
const KERBEROS: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";

fn session_setup(token: &[u8]) -> Vec<u8> {
    let body = bytes(|writer| {
        writer.u16(25).u8(0).u8(1).u32(0x7f).u32(0).u16(88).u16(token.len() as u16).u64(77).put(token);
    });
    message(SmbCommand::SessionSetup, &body)
}

/// Returns a CREATE request.
fn create(name: &str, contexts: &[(&'static [u8], Vec<u8>)]) -> Vec<u8> {
    let (name, contexts) = (utf16(name), write_contexts(contexts));
    let name_at = HEADER_SIZE + 56;
    let contexts_at = if contexts.is_empty() { 0 } else { (name_at + name.len()).next_multiple_of(8) };
    let body = bytes(|writer| {
        writer.u16(57).u8(0).u8(oplock::LEASE).u32(2).u64(0).u64(0);
        writer.u32(0x12_0089).u32(0x80).u32(7).u32(1).u32(0x40);
        writer.u16(name_at as u16).u16(name.len() as u16);
        writer.u32(contexts_at as u32).u32(contexts.len() as u32).put(&name).align(8).put(&contexts);
    });
    message(SmbCommand::Create, &body)
}

fn creates() -> Vec<Vec<u8>> {
    let lease = Lease { key: 7, state: 7, flags: Lease::HAS_PARENT, v2: None };
    let v2 = Lease { v2: Some(LeaseV2 { parent_key: 9, epoch: 5 }), ..lease };
    let durable_v2 = bytes(|writer| {
        writer.u32(60_000).u32(0).zeros(8).u128(77);
    });
    let reconnect_v2 = bytes(|writer| {
        writer.u64(5).u64(6).u128(77).u32(0);
    });
    let descriptor = Descriptor::from_sddl(SDDL).map(|descriptor| descriptor.to_bytes()).unwrap_or_default();
    vec![
        create("dir\\file.txt", &[]),
        create("@GMT-2021.04.20-15.54.52\\a\\..\\b::$DATA", &[(tag::TIMEWARP, vec![1; 8])]),
        create(
            "a",
            &[
                (tag::MAXIMAL_ACCESS, vec![]),
                (tag::ON_DISK_ID, vec![]),
                (tag::LEASE, v2.write()),
                (tag::DURABLE_REQUEST_V2, durable_v2),
                (tag::APP_INSTANCE, vec![1; 20]),
            ],
        ),
        create(
            "b",
            &[
                (tag::DURABLE_REQUEST, vec![0; 16]),
                (tag::LEASE, lease.write()),
                (tag::ALLOCATION_SIZE, EIGHT.to_vec()),
                (tag::SECURITY_DESCRIPTOR, descriptor),
                (tag::MAXIMAL_ACCESS, vec![1; 8]),
            ],
        ),
        create("b", &[(tag::DURABLE_RECONNECT, vec![5; 16]), (tag::LEASE, lease.write())]),
        create("a", &[(tag::DURABLE_RECONNECT_V2, reconnect_v2), (tag::LEASE, v2.write())]),
    ]
}

fn set_info(kind: u8, class: u8, input: &[u8]) -> Vec<u8> {
    let body = bytes(|writer| {
        writer
            .u16(33)
            .u8(kind)
            .u8(class)
            .u32(input.len() as u32)
            .u16(96)
            .u16(0)
            .u32(7)
            .put(&RELATED_ID)
            .put(input);
    });
    message(SmbCommand::SetInfo, &body)
}

fn control(code: u32, input: &[u8]) -> Vec<u8> {
    let body = bytes(|writer| {
        writer.u16(57).u16(0).u32(code).put(&RELATED_ID);
        writer.u32(120).u32(input.len() as u32).u32(0).u32(0).u32(0).u32(4096).u32(1).u32(0).put(input);
    });
    message(SmbCommand::Ioctl, &body)
}

fn close() -> Vec<u8> {
    let body = bytes(|writer| {
        writer.u16(24).u16(1).u32(0).put(&RELATED_ID);
    });
    message(SmbCommand::Close, &body)
}

fn query_directory(class: u8, pattern: &str) -> Vec<u8> {
    let pattern = utf16(pattern);
    let body = bytes(|writer| {
        writer.u16(33).u8(class).u8(1).u32(0).put(&RELATED_ID);
        writer.u16(96).u16(pattern.len() as u16).u32(4096).put(&pattern);
    });
    message(SmbCommand::QueryDirectory, &body)
}

fn query_info(kind: u8, class: u8) -> Vec<u8> {
    let body = bytes(|writer| {
        writer.u16(41).u8(kind).u8(class).u32(4096).u16(0).u16(0).u32(0).u32(7).u32(0).put(&RELATED_ID);
    });
    message(SmbCommand::QueryInfo, &body)
}

/// Seeds of [`super::frame`].
pub fn frame() -> Vec<Vec<u8>> {
    let encrypted = bytes(|writer| {
        writer
            .put(b"\xfdSMB")
            .zeros(16)
            .put(&[5; 16])
            .u32(80)
            .u16(0)
            .u16(1)
            .u64(0x0400_0000_0001)
            .put(&[6; 80]);
    });
    let login = session_setup(&init_token(&[NTLM], Some(&ntlm::fuzz::negotiate())));
    let related = compound(&[create("dir", &[]), query_directory(37, "*"), query_info(2, 7), close()]);
    vec![
        smb1_negotiate(&["NT LM 0.12", "SMB 2.002", "SMB 2.???"]),
        smb1_negotiate(&["SMB 2.002"]),
        negotiate(&[0x0202, 0x0210, 0x0300, 0x0302, 0x0311]),
        negotiate(&[0x0300]),
        login,
        related,
        encrypted,
    ]
}

/// Seeds of [`super::request`].
pub fn request() -> Vec<Vec<u8>> {
    let file = |command, write: &dyn Fn(&mut ByteWriter)| message(command, &bytes(|writer| write(writer)));
    let path = utf16(r"\\server\share");
    let tree_connect = bytes(|writer| {
        writer.u16(9).u16(0).u16(72).u16(path.len() as u16).put(&path);
    });
    let basic = bytes(|writer| {
        writer.u64(0).u64(u64::MAX).u64(u64::MAX - 1).u64(132_000_000_000_000_000).u32(0x21).u32(0);
    });
    let rename = bytes(|writer| {
        let name = utf16("dir\\new");
        writer.u8(1).zeros(7).u64(0).u32(name.len() as u32).put(&name);
    });
    let copy = bytes(|writer| {
        writer.put(&[7; 24]).u32(2).u32(0);
        writer.u64(1).u64(2).u32(3).u32(0).u64(4).u64(5).u32(6).u32(0);
    });
    let validate = bytes(|writer| {
        writer.u32(0x7f).put(&[7; 16]).u16(1).u16(4).put(&numbers(&[0x0202, 0x0210, 0x0300, 0x0302]));
    });
    let descriptor = Descriptor::from_sddl(SDDL).map(|descriptor| descriptor.to_bytes()).unwrap_or_default();
    let mut seeds = creates();
    seeds.extend([
        negotiate(&[0x0311]),
        session_setup(&init_token(&[KERBEROS, NTLM], Some(b"a ticket"))),
        session_setup(&ntlm::fuzz::negotiate()),
        message(SmbCommand::TreeConnect, &tree_connect),
        message(SmbCommand::Logoff, &[4, 0, 0, 0]),
        message(SmbCommand::TreeDisconnect, &[4, 0, 0, 0]),
        message(SmbCommand::Echo, &[4, 0, 0, 0]),
        message(SmbCommand::Cancel, &[4, 0, 0, 0]),
        close(),
        file(SmbCommand::Flush, &|writer| _ = writer.u16(24).zeros(6).put(&RELATED_ID)),
        file(SmbCommand::Read, &|writer| {
            writer.u16(49).u8(0x50).u8(0).u32(65_536).u64(20).put(&RELATED_ID).u32(5).zeros(12).u8(0);
        }),
        file(SmbCommand::Write, &|writer| {
            writer.u16(49).u16(112).u32(4).u64(20).put(&RELATED_ID).zeros(12).u32(1).put(b"data");
        }),
        file(SmbCommand::Lock, &|writer| {
            writer.u16(48).u16(2).u32(0x21).put(&RELATED_ID);
            writer.u64(0).u64(10).u32(0x12).u32(0).u64(10).u64(u64::MAX).u32(4).u32(0);
        }),
        file(SmbCommand::OplockBreak, &|writer| _ = writer.u16(24).u8(1).zeros(5).put(&RELATED_ID)),
        file(SmbCommand::OplockBreak, &|writer| _ = writer.u16(36).zeros(6).u128(7).u32(3).zeros(8)),
        file(SmbCommand::ChangeNotify, &|writer| {
            writer.u16(32).u16(1).u32(1000).put(&RELATED_ID).u32(0x17).u32(0);
        }),
        query_directory(37, "*"),
        query_directory(60, "<.t>?\"x"),
        query_info(1, class::ALL),
        query_info(2, 7),
        query_info(3, 0),
        set_info(1, class::BASIC, &basic),
        set_info(1, class::RENAME, &rename),
        set_info(1, class::DISPOSITION_EX, &EIGHT),
        set_info(1, class::END_OF_FILE, &EIGHT),
        set_info(3, 0, &descriptor),
        control(code::SRV_COPYCHUNK, &copy),
        control(code::VALIDATE_NEGOTIATE_INFO, &validate),
        control(code::PIPE_TRANSCEIVE, &bind(SRVSVC, NDR, 4280)),
        control(code::SET_ZERO_DATA, &[1; 16]),
        control(code::QUERY_ALLOCATED_RANGES, &[0; 16]),
        control(code::SRV_REQUEST_RESUME_KEY, &[]),
        control(code::SET_SPARSE, &[1]),
    ]);
    seeds
}

/// Seeds of [`super::security`].
pub fn security() -> Vec<Vec<u8>> {
    let texts = [
        SDDL,
        "O:SYG:BAD:PAI(A;OICI;FA;;;SY)(OA;;FR;bf967a86-0de6-11d0-a285-00aa003049e2;;AN)S:(ML;;0x1;;;ME)",
        "O:S-1-5-21-1-2-3-4G:DUD:ARP(A;OICIIONP;RCSDWDWO;;;CO)(D;ID;CCDCLCSWRPWPDTLOCR;;;BU)S:AI(AU;SAFA;GA;;;WD)",
        "D:NO_ACCESS_CONTROL",
        "O:SY G:SY D:P (OD; OICI ;010;;bf967a86-0de6-11d0-a285-00aa003049e2;BA)",
    ];
    let conditional = [
        r#"O:SYG:SYD:P(A;;FA;;;BA)(XA;;FX;;;WD;(@User.Title=="PM" && (@User.D=="F:)" || Member_of {SID(BA)})))"#,
        r#"S:(RA;;;;;WD;("Project",TS,0,"Windows","SQL"))(XU;;FX;;;WD;(a))(ML;;NW;;;HI)"#,
    ];
    let binary = texts.iter().filter_map(|text| Descriptor::from_sddl(text).ok());
    let mut seeds: Vec<_> = binary.map(|descriptor| descriptor.to_bytes()).collect();
    seeds.extend(texts.iter().chain(&conditional).map(|text| text.as_bytes().to_vec()));
    seeds
}

/// Returns the login after the server's challenge to the seeds' first message.
fn challenged() -> Option<ChallengedLogin> {
    ChallengedLogin::new(&ntlm::fuzz::negotiate(), NONCES[0], Timestamp::default()).ok()
}

/// Returns the AUTHENTICATE message of an anonymous login.
fn anonymous() -> Vec<u8> {
    [&ntlm::MAGIC[..], &[3, 0, 0, 0], &[0; 48], &[1, 0, 0, 0]].concat()
}

/// Seeds of [`super::spnego`].
pub fn spnego() -> Vec<Vec<u8>> {
    let offer = ntlm::fuzz::negotiate();
    let proof = challenged().map(|login| ntlm::fuzz::authenticate(&login, "alice", PASSWORD));
    let proof = proof.unwrap_or_default();
    let init = init_token(&[NTLM, KERBEROS], Some(&offer));
    let logins = [
        (&init, response_token(&proof)),
        (&init, response_token(&anonymous())),
        (&offer, proof),
        (&offer, anonymous()),
    ];
    logins.map(|(first, second)| [&[first.len() as u8], &first[..], &second].concat()).to_vec()
}

/// Seeds of [`super::ntlm`].
pub fn ntlm() -> Vec<Vec<u8>> {
    let proof = |user: &str| challenged().map(|login| ntlm::fuzz::authenticate(&login, user, PASSWORD));
    let proofs = [proof("alice"), proof("Élodie")];
    proofs.into_iter().flatten().chain([anonymous()]).collect()
}

const SRVSVC: &[u8; 20] = b"\xc8\x4f\x32\x4b\x70\x16\xd3\x01\x12\x78\x5a\x47\xbf\x6e\xe1\x88\x03\0\0\0";
const NDR: &[u8; 20] = b"\x04\x5d\x88\x8a\xeb\x1c\xc9\x11\x9f\xe8\x08\x00\x2b\x10\x48\x60\x02\0\0\0";
const FEATURES: &[u8; 20] = b"\x2c\x1c\xb7\x6c\x12\x98\x40\x45\x03\0\0\0\0\0\0\0\x01\0\0\0";

fn fragment(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    bytes(|writer| {
        writer.put(&[5, 0, kind, flags, 0x10, 0, 0, 0]).u16(16 + body.len() as u16).u16(0).u32(7).put(body);
    })
}

fn bind(interface: &[u8], encoding: &[u8], max: u16) -> Vec<u8> {
    let body = bytes(|writer| {
        writer.u16(max).u16(max).u32(0).put(&[1, 0, 0, 0]).u16(3).put(&[1, 0]).put(interface).put(encoding);
    });
    fragment(11, 3, &body)
}

fn call(operation: u16, arguments: &[u8]) -> Vec<u8> {
    let body = bytes(|writer| {
        writer.u32(0).u16(3).u16(operation).put(arguments);
    });
    fragment(0, 3, &body)
}

/// Returns a string as an argument.
fn string(text: &str) -> Vec<u8> {
    let units = [utf16(text), vec![0, 0]].concat();
    let count = (units.len() / 2) as u32;
    bytes(|writer| {
        writer.u32(count).u32(0).u32(count).put(&units).align(4);
    })
}

/// Seeds of [`super::rpc`].
pub fn rpc() -> Vec<Vec<u8>> {
    let enumerate = |level: u32, resume: &[u32]| {
        bytes(|writer| {
            writer.u32(1).put(&string(r"\\host")).u32(level).u32(level).u32(1).u32(0).u32(0).u32(u32::MAX);
            resume.iter().for_each(|number| _ = writer.u32(*number));
        })
    };
    let share = |name: &str, level: u32| {
        bytes(|writer| {
            writer.u32(0).put(&string(name)).u32(level);
        })
    };
    let bound = bind(SRVSVC, NDR, 4280);
    let calls = [
        call(15, &enumerate(1, &[0])),
        call(36, &enumerate(503, &[1, 1])),
        call(15, &enumerate(77, &[0])),
        call(16, &share("ALPHA", 502)),
        call(16, &share("IPC$", 2)),
        call(21, &[0, 0, 0, 0, 101, 0, 0, 0]),
        call(99, &[]),
        // A request in two fragments.
        [
            fragment(0, 1, &[&[0; 4][..], &[3, 0, 21, 0], &[0; 4]].concat()),
            fragment(0, 2, &[&[0; 4][..], &[3, 0, 21, 0], &[100, 0, 0, 0]].concat()),
        ]
        .concat(),
    ];
    let mut seeds: Vec<_> = calls.iter().map(|call| [&bound[..], call].concat()).collect();
    seeds.extend([bind(SRVSVC, FEATURES, 1024), bind(NDR, NDR, 9000)]);
    seeds
}
