//! Opens over TCP: sharing, oplocks, locks and durable handles.

use std::time::Duration;

use lazuli_smb::{Limits, Options};

use crate::SmbTestServer;
use crate::client::*;

pub(crate) const CLOSE: u16 = 6;
const READ: u16 = 8;
const WRITE: u16 = 9;
const LOCK: u16 = 10;
pub(crate) const CANCEL: u16 = 12;
const OPLOCK_BREAK: u16 = 18;

pub(crate) const PENDING: u32 = 0x0000_0103;
const END_OF_FILE: u32 = 0xc000_0011;
const OBJECT_NAME_INVALID: u32 = 0xc000_0033;
const OBJECT_NAME_NOT_FOUND: u32 = 0xc000_0034;
pub(crate) const SHARING_VIOLATION: u32 = 0xc000_0043;
const FILE_LOCK_CONFLICT: u32 = 0xc000_0054;
const LOCK_NOT_GRANTED: u32 = 0xc000_0055;
const RANGE_NOT_LOCKED: u32 = 0xc000_007e;
const BAD_IMPERSONATION_LEVEL: u32 = 0xc000_00a5;
const INVALID_OPLOCK_PROTOCOL: u32 = 0xc000_00e3;
const NETWORK_NAME_DELETED: u32 = 0xc000_00c9;
const TOO_MANY_OPENED_FILES: u32 = 0xc000_011f;
pub(crate) const CANCELLED: u32 = 0xc000_0120;
const FILE_CLOSED: u32 = 0xc000_0128;

pub(crate) const ALL: u32 = 0x001f_01ff;
const LEVEL_II: u8 = 1;
const BATCH: u8 = 9;

/// The parameters of a CREATE.
#[derive(Clone)]
pub(crate) struct OpenParameters<'a> {
    pub(crate) name: &'a str,
    pub(crate) access: u32,
    pub(crate) share: u32,
    pub(crate) disposition: u32,
    pub(crate) options: u32,
    pub(crate) oplock: u8,
    pub(crate) impersonation: u32,
    /// Name and data of a create context.
    pub(crate) context: Option<(&'a [u8; 4], Vec<u8>)>,
}

/// Opens or creates a file with full access, and shares all access.
pub(crate) const OPEN_IF: OpenParameters<'_> = OpenParameters {
    name: "f",
    access: ALL,
    share: 7,
    disposition: 3,
    options: 0,
    oplock: 0,
    impersonation: 2,
    context: None,
};

impl OpenParameters<'_> {
    fn body(&self) -> Vec<u8> {
        let name: Vec<u8> = self.name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let mut body = vec![57, 0, 0, self.oplock];
        body.extend(self.impersonation.to_le_bytes());
        body.extend([0; 16]);
        for field in [self.access, 0x80, self.share, self.disposition, self.options] {
            body.extend(field.to_le_bytes());
        }
        let at = 120 + name.len().next_multiple_of(8);
        body.extend(120u16.to_le_bytes());
        body.extend((name.len() as u16).to_le_bytes());
        let context = self.context.as_ref().map_or(vec![], |(tag, data)| {
            let length = (data.len() as u32).to_le_bytes();
            [&[0, 0, 0, 0, 16, 0, 4, 0, 0, 0, 24, 0][..], &length, &tag[..], &[0; 4], data].concat()
        });
        let at = if context.is_empty() { 0 } else { at as u32 };
        body.extend(at.to_le_bytes());
        body.extend((context.len() as u32).to_le_bytes());
        body.extend(&name);
        body.resize(body.len().next_multiple_of(8), 0);
        body.extend(context);
        body
    }
}

/// An open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) id: [u8; 16],
    oplock: u8,
}

pub(crate) async fn open(client: &mut SmbClient, parameters: &OpenParameters<'_>) -> Result<Opened, u32> {
    opened(&client.call(CREATE, &parameters.body()).await.unwrap())
}

fn opened(response: &Response) -> Result<Opened, u32> {
    match response.status {
        0 => Ok(Opened { id: response.body[64..80].try_into().unwrap(), oplock: response.body[2] }),
        status => Err(status),
    }
}

pub(crate) async fn close(client: &mut SmbClient, open: Opened) -> u32 {
    client.call(CLOSE, &[&[24, 0, 0, 0, 0, 0, 0, 0], &open.id[..]].concat()).await.unwrap().status
}

fn write_body(open: Opened, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_le_bytes();
    [&[49, 0, 112, 0], &length[..], &offset.to_le_bytes(), &open.id, &[0; 16], bytes].concat()
}

pub(crate) async fn write(client: &mut SmbClient, open: Opened, offset: u64, bytes: &[u8]) -> u32 {
    client.call(WRITE, &write_body(open, offset, bytes)).await.unwrap().status
}

pub(crate) async fn read(
    client: &mut SmbClient,
    open: Opened,
    offset: u64,
    length: u32,
) -> Result<Vec<u8>, u32> {
    let length = length.to_le_bytes();
    let body = [&[49, 0, 80, 0], &length[..], &offset.to_le_bytes(), &open.id, &[0; 16], &[0]].concat();
    let response = client.call(READ, &body).await.unwrap();
    if response.status == 0 { Ok(response.body[16..].to_vec()) } else { Err(response.status) }
}

/// Returns the body of a LOCK request with one range.
fn lock(open: Opened, offset: u64, length: u64, flags: u32) -> Vec<u8> {
    let range = [offset.to_le_bytes(), length.to_le_bytes()].concat();
    [&[48, 0, 1, 0, 0, 0, 0, 0], &open.id[..], &range, &flags.to_le_bytes(), &[0; 4]].concat()
}

fn acknowledge(open: Opened, level: u8) -> Vec<u8> {
    [&[24, 0, level, 0, 0, 0, 0, 0], &open.id[..]].concat()
}

/// Returns the next frame as a command and a response.
pub(crate) async fn next(client: &mut SmbClient) -> (u16, Response) {
    let frame = client.receive().await.unwrap();
    let number = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
    (number(12) as u16, Response { status: number(8), body: frame[64..].to_vec() })
}

impl SmbTestServer {
    /// Returns a client with a tree connect to the share.
    async fn connected(&self) -> SmbClient {
        let mut client = self.logged_in_client().await;
        assert_eq!(client.connect_tree("docs").await, 0);
        client
    }
}

#[tokio::test]
async fn the_opens_of_all_sessions_are_bounded() {
    let server = SmbTestServer::start(Options {
        limits: Limits { opens: 1, ..Limits::default() },
        ..Options::default()
    })
    .await;
    let (mut first, mut second) = (server.connected().await, server.connected().await);
    let held = open(&mut first, &OPEN_IF).await.unwrap();
    let other = OpenParameters { name: "g", ..OPEN_IF };
    assert_eq!(open(&mut second, &other).await.unwrap_err(), TOO_MANY_OPENED_FILES);
    assert_eq!(close(&mut first, held).await, 0);
    open(&mut second, &other).await.unwrap();
}

#[tokio::test]
async fn written_data_is_visible_to_other_sessions_and_over_rest() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut first, mut second) = (server.connected().await, server.connected().await);
    let file = open(&mut first, &OPEN_IF).await.unwrap();
    assert_eq!(write(&mut first, file, 2, b"data").await, 0);
    let same = open(&mut second, &OPEN_IF).await.unwrap();
    assert_eq!(read(&mut second, same, 1, 100).await, Ok(b"\0data".to_vec()));
    assert_eq!(read(&mut second, same, 6, 1).await, Err(END_OF_FILE));
    assert_eq!(server.rest.get("/docs/f", "").await.expect(200).body, "\0\0data");
    assert_eq!(close(&mut first, file).await, 0);
    assert_eq!(close(&mut first, file).await, FILE_CLOSED);
    assert_eq!(read(&mut first, file, 0, 1).await, Err(FILE_CLOSED));
}

#[tokio::test]
async fn a_failed_lock_request_keeps_earlier_locks() {
    const SHARED: u32 = 0x11;
    const EXCLUSIVE: u32 = 0x12;
    let server = SmbTestServer::start(Options::default()).await;
    let (mut first, mut second) = (server.connected().await, server.connected().await);
    let file = open(&mut first, &OPEN_IF).await.unwrap();
    let same = open(&mut second, &OPEN_IF).await.unwrap();
    assert_eq!(write(&mut first, file, 0, &[7; 200]).await, 0);
    assert_eq!(first.call(LOCK, &lock(file, 0, 10, EXCLUSIVE)).await.unwrap().status, 0);
    assert_eq!(second.call(LOCK, &lock(same, 100, 1, EXCLUSIVE)).await.unwrap().status, 0);
    let (mut both, taken) = (lock(file, 0, 10, SHARED), lock(file, 100, 1, SHARED));
    both[2] = 2;
    both.extend(&taken[24..]);
    assert_eq!(first.call(LOCK, &both).await.unwrap().status, LOCK_NOT_GRANTED);
    assert_eq!(read(&mut second, same, 0, 1).await, Err(FILE_LOCK_CONFLICT));
    assert_eq!(write(&mut first, file, 0, &[8]).await, 0);
}

#[tokio::test]
async fn responses_that_exceed_one_frame_are_sent_in_several_frames() {
    const LENGTH: u32 = 8 << 20;
    const CHARGE: u16 = 128;
    let server = SmbTestServer::start(Options::default()).await;
    let headers = format!("x-ms-type: file\nx-ms-content-length: {LENGTH}");
    server.rest.put("/docs/f", &headers, "").await.expect(201);
    let mut client = server.connected().await;
    let file = open(&mut client, &OPEN_IF).await.unwrap();
    // Each request gains credits.
    for _ in 0..10 {
        assert_eq!(read(&mut client, file, 0, 1).await, Ok(vec![0]));
    }
    let mut frame = vec![];
    for is_last in [false, false, true] {
        let body = [&[49, 0, 80, 0], &LENGTH.to_le_bytes()[..], &[0; 8], &file.id, &[0; 16], &[0]].concat();
        let mut request = client.request(READ, &body);
        request[6..8].copy_from_slice(&CHARGE.to_le_bytes());
        client.next += u64::from(CHARGE) - 1;
        request.resize(120, 0);
        request[20] = if is_last { 0 } else { 120 };
        frame.extend(request);
    }
    assert!(client.send(&frame).await);
    let mut answered = 0;
    while answered < 3 {
        let frame = client.receive().await.unwrap();
        let mut rest = &frame[..];
        loop {
            let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            assert_eq!((&rest[..4], number(8), number(68)), (&b"\xfeSMB"[..], 0, LENGTH));
            answered += 1;
            match number(20) as usize {
                0 => break,
                next => rest = &rest[next..],
            }
        }
    }
    assert_eq!(read(&mut client, file, 0, 1).await, Ok(vec![0]));
}

#[tokio::test]
async fn an_open_is_refused_for_invalid_parameters_and_sharing_violations() {
    let server = SmbTestServer::start(Options::default()).await;
    let mut client = server.connected().await;
    for (parameters, status) in [
        (OpenParameters { impersonation: 4, ..OPEN_IF }, BAD_IMPERSONATION_LEVEL),
        (OpenParameters { name: r"\f", ..OPEN_IF }, INVALID_PARAMETER),
        (OpenParameters { name: "f:stream", ..OPEN_IF }, OBJECT_NAME_INVALID),
        (OpenParameters { disposition: 6, ..OPEN_IF }, INVALID_PARAMETER),
        (OpenParameters { options: 0x41, ..OPEN_IF }, INVALID_PARAMETER),
        (OpenParameters { options: 0x2000, ..OPEN_IF }, NOT_SUPPORTED),
        (OpenParameters { access: 0, ..OPEN_IF }, ACCESS_DENIED),
        (OpenParameters { disposition: 1, ..OPEN_IF }, OBJECT_NAME_NOT_FOUND),
    ] {
        let name = parameters.name;
        assert_eq!(open(&mut client, &parameters).await.unwrap_err(), status, "{name} {status:x}");
    }
    let reads = OpenParameters { access: 0x0012_0089, share: 1, ..OPEN_IF };
    open(&mut client, &reads).await.unwrap();
    assert!(open(&mut client, &reads).await.is_ok());
    assert_eq!(open(&mut client, &OPEN_IF).await.unwrap_err(), SHARING_VIOLATION);
    assert_eq!(
        open(&mut client, &OpenParameters { share: 0, ..reads.clone() }).await.unwrap_err(),
        SHARING_VIOLATION
    );
}

#[tokio::test]
async fn a_batch_oplock_is_broken_before_another_open_is_answered() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut first, mut second) = (server.connected().await, server.connected().await);
    let parameters = OpenParameters { oplock: BATCH, ..OPEN_IF };
    let held = open(&mut first, &parameters).await.unwrap();
    assert_eq!(held.oplock, BATCH);
    let unsolicited = first.call(OPLOCK_BREAK, &acknowledge(held, LEVEL_II)).await.unwrap().status;
    assert_eq!(unsolicited, INVALID_OPLOCK_PROTOCOL);
    let request = second.request(CREATE, &parameters.body());
    second.send(&request).await;
    let (command, response) = next(&mut first).await;
    assert_eq!((command, response.body[2], &response.body[8..24]), (OPLOCK_BREAK, LEVEL_II, &held.id[..]));
    assert_eq!(next(&mut second).await.1.status, PENDING);
    assert_eq!(first.call(OPLOCK_BREAK, &acknowledge(held, LEVEL_II)).await.unwrap().status, 0);
    let opened = opened(&next(&mut second).await.1).unwrap();
    assert_eq!(opened.oplock, LEVEL_II);
    // A write breaks both level II oplocks, including the writer's own, in any order.
    let request = first.request(WRITE, &write_body(held, 0, b"x"));
    first.send(&request).await;
    let mut received = [next(&mut first).await.0, next(&mut first).await.0];
    received.sort_unstable();
    assert_eq!(received, [WRITE, OPLOCK_BREAK]);
    let (command, response) = next(&mut second).await;
    assert_eq!((command, response.body[2], &response.body[8..24]), (OPLOCK_BREAK, 0, &opened.id[..]));
}

#[tokio::test]
async fn a_rest_request_waits_for_the_acknowledgment_of_an_oplock_break() {
    let server = SmbTestServer::start(Options::default()).await;
    let mut client = server.connected().await;
    let held = open(&mut client, &OpenParameters { oplock: BATCH, ..OPEN_IF }).await.unwrap();
    let acknowledges = async {
        let (command, _) = next(&mut client).await;
        assert_eq!(command, OPLOCK_BREAK);
        assert_eq!(write(&mut client, held, 0, b"late").await, 0);
        assert_eq!(client.call(OPLOCK_BREAK, &acknowledge(held, LEVEL_II)).await.unwrap().status, 0);
    };
    let (reply, ()) = tokio::join!(server.rest.get("/docs/f", ""), acknowledges);
    assert_eq!(reply.expect(200).body, "late");
}

#[tokio::test]
async fn a_lock_blocks_other_opens_until_unlock_or_cancel() {
    const SHARED: u32 = 1;
    const EXCLUSIVE: u32 = 2;
    const UNLOCK: u32 = 4;
    const AT_ONCE: u32 = 16;
    let server = SmbTestServer::start(Options::default()).await;
    let (mut first, mut second) = (server.connected().await, server.connected().await);
    let (own, other) =
        (open(&mut first, &OPEN_IF).await.unwrap(), open(&mut second, &OPEN_IF).await.unwrap());
    assert_eq!(write(&mut first, own, 0, &[0; 10]).await, 0);
    let taken = first.call(LOCK, &lock(own, 0, 10, EXCLUSIVE | AT_ONCE)).await.unwrap();
    assert_eq!(taken.status, 0);
    assert_eq!(read(&mut second, other, 9, 1).await, Err(FILE_LOCK_CONFLICT));
    assert_eq!(write(&mut second, other, 9, b"x").await, FILE_LOCK_CONFLICT);
    assert_eq!(read(&mut second, other, 9, 0).await, Ok(vec![0]));
    for (flags, status) in [
        (SHARED | AT_ONCE, LOCK_NOT_GRANTED),
        (UNLOCK, RANGE_NOT_LOCKED),
        (UNLOCK | AT_ONCE, INVALID_PARAMETER),
    ] {
        assert_eq!(second.call(LOCK, &lock(other, 5, 1, flags)).await.unwrap().status, status, "{flags}");
    }
    // One waiting request is canceled, another one acquires the lock.
    let request = second.request(LOCK, &lock(other, 5, 1, SHARED));
    second.send(&request).await;
    assert_eq!(next(&mut second).await.1.status, PENDING);
    let mut cancel = request[..64].to_vec();
    cancel[12..14].copy_from_slice(&CANCEL.to_le_bytes());
    second.send(&[&cancel, &[4, 0, 0, 0][..]].concat()).await;
    assert_eq!(next(&mut second).await.1.status, CANCELLED);
    let request = second.request(LOCK, &lock(other, 5, 1, SHARED));
    second.send(&request).await;
    assert_eq!(next(&mut second).await.1.status, PENDING);
    assert_eq!(first.call(LOCK, &lock(own, 0, 10, UNLOCK)).await.unwrap().status, 0);
    assert_eq!(next(&mut second).await.1.status, 0);
    assert_eq!(write(&mut first, own, 5, b"x").await, FILE_LOCK_CONFLICT);
}

#[tokio::test]
async fn waiting_requests_of_a_connection_are_limited_in_number_and_length() {
    const MAX_ASYNC: usize = 512;
    const EXCLUSIVE: u32 = 2;
    let server = SmbTestServer::start(Options::default()).await;
    let (mut first, mut second) = (server.connected().await, server.connected().await);
    let (own, other) =
        (open(&mut first, &OPEN_IF).await.unwrap(), open(&mut second, &OPEN_IF).await.unwrap());
    assert_eq!(first.call(LOCK, &lock(own, 0, 10, EXCLUSIVE)).await.unwrap().status, 0);
    let lock_request = lock(other, 5, 1, EXCLUSIVE);
    let mut first_to_wait = second.request(LOCK, &lock_request);
    second.send(&first_to_wait).await;
    assert_eq!(next(&mut second).await.1.status, PENDING);
    for _ in 1..MAX_ASYNC {
        assert_eq!(second.call(LOCK, &lock_request).await.unwrap().status, PENDING);
    }
    for _ in 0..2 {
        assert_eq!(second.call(LOCK, &lock_request).await.unwrap().status, INSUFFICIENT_RESOURCES);
    }
    // A canceled request frees its slot.
    first_to_wait[12..14].copy_from_slice(&CANCEL.to_le_bytes());
    second.send(&[&first_to_wait[..64], &[4, 0, 0, 0][..]].concat()).await;
    assert_eq!(next(&mut second).await.1.status, CANCELLED);
    assert_eq!(second.call(LOCK, &lock_request).await.unwrap().status, PENDING);
    assert_eq!(second.call(LOCK, &lock_request).await.unwrap().status, INSUFFICIENT_RESOURCES);
    // Requests that do not wait are still served.
    assert_eq!(read(&mut second, other, 20, 1).await, Err(END_OF_FILE));

    let mut third = server.connected().await;
    let other = open(&mut third, &OPEN_IF).await.unwrap();
    let long = [lock(other, 5, 1, EXCLUSIVE), vec![0; 1 << 20]].concat();
    assert_eq!(third.call(LOCK, &long).await.unwrap().status, INVALID_PARAMETER);
}

/// Requests a version 1 durable handle.
fn durable() -> OpenParameters<'static> {
    OpenParameters { oplock: BATCH, context: Some((b"DHnQ", vec![0; 16])), ..OPEN_IF }
}

/// Requests to reconnect a durable handle.
fn reconnect(open: Opened) -> OpenParameters<'static> {
    OpenParameters { context: Some((b"DHnC", open.id.to_vec())), ..OPEN_IF }
}

/// Repeats the reconnect until the server has noticed the lost connection.
async fn reconnect_when_disconnected(client: &mut SmbClient, old: Opened) -> Result<Opened, u32> {
    for _ in 0..200 {
        match open(client, &reconnect(old)).await {
            Err(OBJECT_NAME_NOT_FOUND) => tokio::time::sleep(Duration::from_millis(10)).await,
            done => return done,
        }
    }
    Err(OBJECT_NAME_NOT_FOUND)
}

#[tokio::test]
async fn a_durable_handle_and_its_locks_survive_a_reconnect() {
    let server = SmbTestServer::start(Options::default()).await;
    let mut client = server.connected().await;
    let held = open(&mut client, &durable()).await.unwrap();
    assert_eq!(write(&mut client, held, 0, b"kept").await, 0);
    assert_eq!(client.call(LOCK, &lock(held, 0, 1, 2)).await.unwrap().status, 0);
    // No other client can reconnect it while its client is connected.
    let mut other = server.connected().await;
    assert_eq!(open(&mut other, &reconnect(held)).await.unwrap_err(), OBJECT_NAME_NOT_FOUND);
    drop(client);
    let again = reconnect_when_disconnected(&mut other, held).await.unwrap();
    assert_eq!((again.oplock, &again.id[..8]), (BATCH, &held.id[..8]));
    assert_eq!(read(&mut other, again, 0, 9).await, Ok(b"kept".to_vec()));
    assert_eq!(other.call(LOCK, &lock(again, 0, 1, 4)).await.unwrap().status, 0);
    assert_eq!(close(&mut other, again).await, 0);
    assert_eq!(open(&mut other, &reconnect(held)).await.unwrap_err(), OBJECT_NAME_NOT_FOUND);
}

#[tokio::test]
async fn a_durable_handle_of_a_disconnected_client_blocks_no_other_client() {
    let server = SmbTestServer::start(Options::default()).await;
    for over_rest in [false, true] {
        let mut client = server.connected().await;
        let held = open(&mut client, &OpenParameters { share: 0, ..durable() }).await.unwrap();
        drop(client);
        let mut other = server.connected().await;
        if over_rest {
            server.rest.delete("/docs/f", "").await.expect(202);
        } else {
            // Succeeds whether or not the server has noticed the disconnect yet.
            let request = other.request(CREATE, &OPEN_IF.body());
            other.send(&request).await;
            let mut answer = next(&mut other).await.1;
            if answer.status == PENDING {
                answer = next(&mut other).await.1;
            }
            let opened = opened(&answer).unwrap();
            assert_eq!(close(&mut other, opened).await, 0);
        }
        assert_eq!(open(&mut other, &reconnect(held)).await.unwrap_err(), OBJECT_NAME_NOT_FOUND);
    }
}

#[tokio::test]
async fn a_disconnected_durable_handle_does_not_block_a_directory_rename() {
    let server = SmbTestServer::start(Options::default()).await;
    server.rest.put("/docs/d?restype=directory", "", "").await.expect(201);
    let mut client = server.connected().await;
    let held = open(&mut client, &OpenParameters { name: r"d\f", ..durable() }).await.unwrap();
    drop(client);
    let source = format!("http://{}/{}/docs/d", server.rest.address, lazuli_testing::ACCOUNT);
    let source = format!("x-ms-file-rename-source: {source}");
    server.rest.put("/docs/e?restype=directory&comp=rename", &source, "").await.expect(200);
    let mut other = server.connected().await;
    assert_eq!(open(&mut other, &reconnect(held)).await.unwrap_err(), OBJECT_NAME_NOT_FOUND);
    assert!(open(&mut other, &OpenParameters { name: r"e\f", disposition: 1, ..OPEN_IF }).await.is_ok());
}

#[tokio::test]
async fn deleting_a_share_closes_its_opens() {
    let server = SmbTestServer::start(Options::default()).await;
    let mut client = server.connected().await;
    let held = open(&mut client, &OPEN_IF).await.unwrap();
    assert_eq!(write(&mut client, held, 0, b"lost").await, 0);
    server.rest.delete("/docs?restype=share", "").await.expect(202);
    assert_eq!(write(&mut client, held, 0, b"late").await, FILE_CLOSED);
    assert_eq!(read(&mut client, held, 0, 9).await, Err(FILE_CLOSED));
    assert_eq!(open(&mut client, &OPEN_IF).await.unwrap_err(), NETWORK_NAME_DELETED);
}
