//! Tests with the bytes of a client.

use super::*;
use crate::crypto::hex;
use crate::wire::cursor::{ByteReader, ByteWriter, utf16};

const SRVSVC: &str = "c84f324b7016d30112785a47bf6ee188 03000000";
const NDR: &str = "045d888aeb1cc9119fe808002b104860 02000000";
const WKSSVC: &str = "98d0ff6b12a110369833 46c3f87e345a 01000000";

fn fragment(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.put(&[5, 0, kind, flags, 0x10, 0, 0, 0]).u16(16 + body.len() as u16).u16(0).u32(7).put(body);
    writer.finish()
}

fn bind(interface: &str, encoding: &str, max: u16) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u16(max).u16(max).u32(0).put(&[1, 0, 0, 0]).u16(3).put(&[1, 0]);
    writer.put(&hex(interface)).put(&hex(encoding));
    fragment(11, 3, &writer.finish())
}

fn request(operation: u16, arguments: &[u8]) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u32(0).u16(3).u16(operation).put(arguments);
    fragment(0, 3, &writer.finish())
}

fn string(text: &str) -> Vec<u8> {
    let mut units = utf16(text);
    units.extend([0, 0]);
    let count = (units.len() / 2) as u32;
    let mut writer = ByteWriter::new();
    writer.u32(count).u32(0).u32(count).put(&units).align(4);
    writer.finish()
}

/// Returns the arguments of ShareEnum.
fn enumerate(level: u32, resume: Option<u32>) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u32(1).put(&string(r"\\host")).u32(level).u32(level).u32(1).u32(0).u32(0).u32(u32::MAX);
    match resume {
        Some(at) => writer.u32(1).u32(at),
        None => writer.u32(0),
    };
    writer.finish()
}

fn bound(shares: Vec<String>, max: u16) -> Pipe {
    let mut pipe = Pipe::new(shares);
    pipe.write(&bind(SRVSVC, NDR, max)).expect("bound");
    let answer = pipe.read(4096).expect("an answer").bytes;
    assert_eq!((answer[2], &answer[26..39]), (12, &b"\\PIPE\\srvsvc\0"[..]));
    assert_eq!(answer[answer.len() - 24..answer.len() - 20], [0; 4], "accepted");
    pipe
}

/// Makes a call and returns its results.
fn call(pipe: &mut Pipe, request: &[u8]) -> Vec<u8> {
    pipe.write(request).expect("taken");
    let mut results = vec![];
    loop {
        let fragment = pipe.read(usize::MAX).expect("a fragment").bytes;
        assert_eq!(fragment[2], 2, "a response");
        results.extend(&fragment[24..]);
        if fragment[3] & 2 != 0 {
            return results;
        }
    }
}

/// Finds all strings in the results.
fn strings(results: &[u8]) -> Vec<String> {
    let mut found = vec![];
    let mut at = 0;
    while at + 12 <= results.len() {
        let mut reader = ByteReader::from(results, at);
        let counts = [reader.u32(), reader.u32(), reader.u32()].map(|number| number.unwrap_or(u32::MAX));
        let length = counts[0] as usize;
        let text = (counts[0] == counts[2] && counts[1] == 0 && length > 0)
            .then(|| results.get(at + 12..at + 12 + 2 * length).and_then(crate::wire::cursor::text))
            .flatten()
            .filter(|text| text.ends_with('\0'));
        match text {
            Some(text) => {
                found.push(text.trim_end_matches('\0').to_owned());
                at = (at + 12 + 2 * length).next_multiple_of(4);
            }
            None => at += 4,
        }
    }
    found
}

fn last(results: &[u8]) -> u32 {
    u32::from_le_bytes(results[results.len() - 4..].try_into().expect("four bytes"))
}

#[test]
fn pipe_can_be_opened_by_several_names() {
    for name in ["srvsvc", r"\srvsvc", "SRVSVC", r"\pipe\srvsvc", r"PIPE\srvsvc"] {
        assert!(Pipe::exists(name), "{name}");
    }
    for name in ["", "wkssvc", "srvsvc2", r"pipe\", "éé"] {
        assert!(!Pipe::exists(name), "{name}");
    }
}

#[test]
fn shares_are_listed_in_every_level() {
    let mut pipe = bound(vec!["alpha".into(), "beta".into()], 4280);
    for (level, first) in [(0, "alpha,beta,IPC$"), (1, "alpha,,beta,,IPC$,Remote IPC")] {
        let results = call(&mut pipe, &request(15, &enumerate(level, None)));
        assert_eq!(strings(&results).join(","), first);
        assert_eq!(last(&results), 0);
    }
    for level in [2, 501, 502, 503] {
        let results = call(&mut pipe, &request(15, &enumerate(level, None)));
        let strings = strings(&results);
        assert!(["alpha", "beta", "IPC$"].iter().all(|name| strings.iter().any(|s| s == name)), "{level}");
        assert_eq!(last(&results), 0);
    }
    assert_eq!(last(&call(&mut pipe, &request(15, &enumerate(77, None)))), 124);
}

#[test]
fn level_1_has_the_specified_layout() {
    let mut pipe = bound(vec![], 4280);
    let results = call(&mut pipe, &request(15, &enumerate(1, None)));
    let expected = hex("01000000 01000000 04000200 01000000 08000200 01000000
         0c000200 03000080 10000200
         05000000 00000000 05000000 490050004300240000000000
         0b000000 00000000 0b000000 520065006d006f00740065002000490050004300000000000000
         01000000 00000000 00000000");
    assert_eq!(results[..24], expected[..24]);
    assert_eq!(results[24..36], expected[24..36]);
    assert_eq!(strings(&results), ["IPC$", "Remote IPC"]);
    assert_eq!(results[results.len() - 12..], expected[expected.len() - 12..]);
}

#[test]
fn long_lists_are_fragmented_and_can_be_resumed() {
    let names: Vec<String> = (0..5000).map(|index| format!("share{index:04}")).collect();
    let mut pipe = bound(names.clone(), 1024);
    let results = call(&mut pipe, &request(15, &enumerate(0, Some(0))));
    let (mut listed, outcome) = (strings(&results), last(&results));
    assert_eq!(outcome, 234);
    let resume = u32::from_le_bytes(results[results.len() - 8..][..4].try_into().expect("four bytes"));
    let rest = call(&mut pipe, &request(15, &enumerate(0, Some(resume))));
    listed.extend(strings(&rest));
    assert_eq!(last(&rest), 0);
    assert_eq!(listed.len(), 5001);
    assert_eq!(listed[..5000], names);
}

#[test]
fn share_info_and_server_info_are_returned() {
    let mut pipe = bound(vec!["alpha".into()], 4280);
    let ask = |name: &str, level: u32| {
        let mut writer = ByteWriter::new();
        writer.u32(0).put(&string(name)).u32(level);
        request(16, &writer.finish())
    };
    let results = call(&mut pipe, &ask("ALPHA", 1));
    assert_eq!((strings(&results), last(&results)), (vec!["alpha".into(), String::new()], 0));
    assert_eq!(last(&call(&mut pipe, &ask("gamma", 1))), 2310);
    assert_eq!(last(&call(&mut pipe, &ask("alpha", 9))), 124);
    let server = call(&mut pipe, &request(21, &[0, 0, 0, 0, 101, 0, 0, 0]));
    assert_eq!((strings(&server), last(&server)), (vec!["LAZULI".into(), String::new()], 0));
}

#[test]
fn other_interfaces_and_encodings_are_refused_in_the_bind_acknowledgment() {
    for (interface, encoding, reason) in [(WKSSVC, NDR, 1), (SRVSVC, SRVSVC, 2)] {
        let mut pipe = Pipe::new(vec![]);
        pipe.write(&bind(interface, encoding, 4280)).expect("taken");
        let answer = pipe.read(4096).expect("an answer").bytes;
        assert_eq!(answer[answer.len() - 24..][..4], [2, 0, reason, 0]);
        pipe.write(&request(15, &enumerate(1, None))).expect("taken");
        let fault = pipe.read(4096).expect("an answer").bytes;
        assert_eq!((fault[2], &fault[24..28]), (3, &hex("0300011c")[..]));
    }
}

#[test]
fn unknown_operations_and_broken_arguments_are_faults() {
    let mut pipe = bound(vec![], 4280);
    for (operation, arguments, code) in [(99, vec![], "0200011c"), (15, vec![1, 0, 0], "f7060000")] {
        pipe.write(&request(operation, &arguments)).expect("taken");
        let fault = pipe.read(4096).expect("an answer").bytes;
        assert_eq!((fault[2], &fault[24..28]), (3, &hex(code)[..]));
    }
}

#[test]
fn fragmented_and_split_requests_are_reassembled() {
    let mut pipe = bound(vec!["alpha".into()], 4280);
    let arguments = enumerate(0, None);
    let mut head = ByteWriter::new();
    head.u32(0).u16(3).u16(15);
    let head = head.finish();
    let first = fragment(0, 1, &[&head, &arguments[..20]].concat());
    let second = fragment(0, 2, &[&head, &arguments[20..]].concat());
    for byte in [first, second].concat() {
        pipe.write(&[byte]).expect("taken");
    }
    let answer = pipe.read(10).expect("a part");
    assert!(answer.is_more && answer.bytes.len() == 10);
    let rest = pipe.read(4096).expect("the rest");
    assert!(!rest.is_more);
    assert_eq!(strings(&rest.bytes[14..]), ["alpha", "IPC$"]);
    assert_eq!(pipe.read(4096), None);
}

#[test]
fn invalid_fragments_and_unread_responses_are_refused() {
    let mut pipe = Pipe::new(vec![]);
    assert_eq!(pipe.write(&[9; 16]), Err(MalformedRpc));
    let mut pipe = Pipe::new(vec![]);
    assert_eq!(pipe.write(&vec![0; MAX_REQUEST + 1]), Err(MalformedRpc));
    let mut pipe = bound((0..5000).map(|index| format!("share{index}")).collect(), 4280);
    let refused = (0..1000).any(|_| pipe.write(&request(15, &enumerate(502, None))).is_err());
    assert!(refused, "the unread responses are too long");
}
