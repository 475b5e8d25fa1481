//! Files over a real port: who may open what, what is broken and given back, and who waits for whom.

use std::time::Duration;

use lazuli_smb::{Limits, Options};

use crate::Server;
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

/// What is asked for when something is opened.
#[derive(Clone)]
pub(crate) struct Asked<'a> {
    pub(crate) name: &'a str,
    pub(crate) access: u32,
    pub(crate) share: u32,
    pub(crate) disposition: u32,
    pub(crate) options: u32,
    pub(crate) oplock: u8,
    pub(crate) impersonation: u32,
    /// Name and data.
    pub(crate) context: Option<(&'a [u8; 4], Vec<u8>)>,
}

/// Opens, or makes, with everything, and lets others do everything.
pub(crate) const OPEN_IF: Asked<'_> = Asked {
    name: "f",
    access: ALL,
    share: 7,
    disposition: 3,
    options: 0,
    oplock: 0,
    impersonation: 2,
    context: None,
};

impl Asked<'_> {
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

/// What was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) id: [u8; 16],
    oplock: u8,
}

pub(crate) async fn open(client: &mut Client, asked: &Asked<'_>) -> Result<Opened, u32> {
    opened(&client.call(CREATE, &asked.body()).await.unwrap())
}

fn opened(response: &Response) -> Result<Opened, u32> {
    match response.status {
        0 => Ok(Opened { id: response.body[64..80].try_into().unwrap(), oplock: response.body[2] }),
        status => Err(status),
    }
}

pub(crate) async fn close(client: &mut Client, open: Opened) -> u32 {
    client.call(CLOSE, &[&[24, 0, 0, 0, 0, 0, 0, 0], &open.id[..]].concat()).await.unwrap().status
}

fn write_body(open: Opened, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_le_bytes();
    [&[49, 0, 112, 0], &length[..], &offset.to_le_bytes(), &open.id, &[0; 16], bytes].concat()
}

pub(crate) async fn write(client: &mut Client, open: Opened, offset: u64, bytes: &[u8]) -> u32 {
    client.call(WRITE, &write_body(open, offset, bytes)).await.unwrap().status
}

pub(crate) async fn read(
    client: &mut Client,
    open: Opened,
    offset: u64,
    length: u32,
) -> Result<Vec<u8>, u32> {
    let length = length.to_le_bytes();
    let body = [&[49, 0, 80, 0], &length[..], &offset.to_le_bytes(), &open.id, &[0; 16], &[0]].concat();
    let response = client.call(READ, &body).await.unwrap();
    if response.status == 0 { Ok(response.body[16..].to_vec()) } else { Err(response.status) }
}

/// The body of a request about one range.
fn lock(open: Opened, offset: u64, length: u64, flags: u32) -> Vec<u8> {
    let range = [offset.to_le_bytes(), length.to_le_bytes()].concat();
    [&[48, 0, 1, 0, 0, 0, 0, 0], &open.id[..], &range, &flags.to_le_bytes(), &[0; 4]].concat()
}

fn acknowledge(open: Opened, level: u8) -> Vec<u8> {
    [&[24, 0, level, 0, 0, 0, 0, 0], &open.id[..]].concat()
}

/// The next frame as a command, a status and a body.
pub(crate) async fn next(client: &mut Client) -> (u16, Response) {
    let frame = client.receive().await.unwrap();
    let number = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
    (number(12) as u16, Response { status: number(8), body: frame[64..].to_vec() })
}

impl Server {
    /// A client that is connected to the share.
    async fn connected(&self) -> Client {
        let mut client = self.known_client().await;
        assert_eq!(client.connect_tree("docs").await, 0);
        client
    }
}

#[tokio::test]
async fn opens_of_all_sessions_together_are_bounded() {
    let server =
        Server::start(Options { limits: Limits { opens: 1, ..Limits::default() }, ..Options::default() })
            .await;
    let (mut first, mut second) = (server.connected().await, server.connected().await);
    let held = open(&mut first, &OPEN_IF).await.unwrap();
    let other = Asked { name: "g", ..OPEN_IF };
    assert_eq!(open(&mut second, &other).await.unwrap_err(), TOO_MANY_OPENED_FILES);
    assert_eq!(close(&mut first, held).await, 0);
    open(&mut second, &other).await.unwrap();
}

#[tokio::test]
async fn what_is_written_is_read_by_all_and_over_rest() {
    let server = Server::start(Options::default()).await;
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
async fn locks_that_are_refused_together_leave_what_was_locked_before() {
    const SHARED: u32 = 0x11;
    const EXCLUSIVE: u32 = 0x12;
    let server = Server::start(Options::default()).await;
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
async fn a_compound_that_reads_more_than_a_frame_can_hold_is_answered_in_several() {
    const LENGTH: u32 = 8 << 20;
    const CHARGE: u16 = 128;
    let server = Server::start(Options::default()).await;
    let headers = format!("x-ms-type: file\nx-ms-content-length: {LENGTH}");
    server.rest.put("/docs/f", &headers, "").await.expect(201);
    let mut client = server.connected().await;
    let file = open(&mut client, &OPEN_IF).await.unwrap();
    // Each time there are more credits.
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
async fn an_open_is_refused_for_what_it_asks_and_for_what_others_have() {
    let server = Server::start(Options::default()).await;
    let mut client = server.connected().await;
    for (asked, status) in [
        (Asked { impersonation: 4, ..OPEN_IF }, BAD_IMPERSONATION_LEVEL),
        (Asked { name: r"\f", ..OPEN_IF }, INVALID_PARAMETER),
        (Asked { name: "f:stream", ..OPEN_IF }, OBJECT_NAME_INVALID),
        (Asked { disposition: 6, ..OPEN_IF }, INVALID_PARAMETER),
        (Asked { options: 0x41, ..OPEN_IF }, INVALID_PARAMETER),
        (Asked { options: 0x2000, ..OPEN_IF }, NOT_SUPPORTED),
        (Asked { access: 0, ..OPEN_IF }, ACCESS_DENIED),
        (Asked { disposition: 1, ..OPEN_IF }, OBJECT_NAME_NOT_FOUND),
    ] {
        let name = asked.name;
        assert_eq!(open(&mut client, &asked).await.unwrap_err(), status, "{name} {status:x}");
    }
    let reads = Asked { access: 0x0012_0089, share: 1, ..OPEN_IF };
    open(&mut client, &reads).await.unwrap();
    assert!(open(&mut client, &reads).await.is_ok());
    assert_eq!(open(&mut client, &OPEN_IF).await.unwrap_err(), SHARING_VIOLATION);
    assert_eq!(open(&mut client, &Asked { share: 0, ..reads.clone() }).await.unwrap_err(), SHARING_VIOLATION);
}

#[tokio::test]
async fn a_batch_oplock_is_broken_before_another_open_is_answered() {
    let server = Server::start(Options::default()).await;
    let (mut first, mut second) = (server.connected().await, server.connected().await);
    let asked = Asked { oplock: BATCH, ..OPEN_IF };
    let held = open(&mut first, &asked).await.unwrap();
    assert_eq!(held.oplock, BATCH);
    let unasked = first.call(OPLOCK_BREAK, &acknowledge(held, LEVEL_II)).await.unwrap().status;
    assert_eq!(unasked, INVALID_OPLOCK_PROTOCOL);
    let request = second.request(CREATE, &asked.body());
    second.send(&request).await;
    let (command, told) = next(&mut first).await;
    assert_eq!((command, told.body[2], &told.body[8..24]), (OPLOCK_BREAK, LEVEL_II, &held.id[..]));
    assert_eq!(next(&mut second).await.1.status, PENDING);
    assert_eq!(first.call(OPLOCK_BREAK, &acknowledge(held, LEVEL_II)).await.unwrap().status, 0);
    let opened = opened(&next(&mut second).await.1).unwrap();
    assert_eq!(opened.oplock, LEVEL_II);
    // And a write breaks both, its own too, in whichever order that is told.
    let request = first.request(WRITE, &write_body(held, 0, b"x"));
    first.send(&request).await;
    let mut heard = [next(&mut first).await.0, next(&mut first).await.0];
    heard.sort_unstable();
    assert_eq!(heard, [WRITE, OPLOCK_BREAK]);
    let (command, told) = next(&mut second).await;
    assert_eq!((command, told.body[2], &told.body[8..24]), (OPLOCK_BREAK, 0, &opened.id[..]));
}

#[tokio::test]
async fn a_request_over_rest_waits_for_a_client_to_give_up_its_oplock() {
    let server = Server::start(Options::default()).await;
    let mut client = server.connected().await;
    let held = open(&mut client, &Asked { oplock: BATCH, ..OPEN_IF }).await.unwrap();
    let gives_up = async {
        let (command, _) = next(&mut client).await;
        assert_eq!(command, OPLOCK_BREAK);
        assert_eq!(write(&mut client, held, 0, b"late").await, 0);
        assert_eq!(client.call(OPLOCK_BREAK, &acknowledge(held, LEVEL_II)).await.unwrap().status, 0);
    };
    let (reply, ()) = tokio::join!(server.rest.get("/docs/f", ""), gives_up);
    assert_eq!(reply.expect(200).body, "late");
}

#[tokio::test]
async fn a_lock_keeps_others_out_and_waiting_until_it_is_given_up_or_they_do_not_want_it_any_more() {
    const SHARED: u32 = 1;
    const EXCLUSIVE: u32 = 2;
    const UNLOCK: u32 = 4;
    const AT_ONCE: u32 = 16;
    let server = Server::start(Options::default()).await;
    let (mut first, mut second) = (server.connected().await, server.connected().await);
    let (mine, theirs) =
        (open(&mut first, &OPEN_IF).await.unwrap(), open(&mut second, &OPEN_IF).await.unwrap());
    assert_eq!(write(&mut first, mine, 0, &[0; 10]).await, 0);
    let taken = first.call(LOCK, &lock(mine, 0, 10, EXCLUSIVE | AT_ONCE)).await.unwrap();
    assert_eq!(taken.status, 0);
    assert_eq!(read(&mut second, theirs, 9, 1).await, Err(FILE_LOCK_CONFLICT));
    assert_eq!(write(&mut second, theirs, 9, b"x").await, FILE_LOCK_CONFLICT);
    assert_eq!(read(&mut second, theirs, 9, 0).await, Ok(vec![0]));
    for (flags, status) in [
        (SHARED | AT_ONCE, LOCK_NOT_GRANTED),
        (UNLOCK, RANGE_NOT_LOCKED),
        (UNLOCK | AT_ONCE, INVALID_PARAMETER),
    ] {
        assert_eq!(second.call(LOCK, &lock(theirs, 5, 1, flags)).await.unwrap().status, status, "{flags}");
    }
    // One that waits is cancelled, another gets it.
    let request = second.request(LOCK, &lock(theirs, 5, 1, SHARED));
    second.send(&request).await;
    assert_eq!(next(&mut second).await.1.status, PENDING);
    let mut cancel = request[..64].to_vec();
    cancel[12..14].copy_from_slice(&CANCEL.to_le_bytes());
    second.send(&[&cancel, &[4, 0, 0, 0][..]].concat()).await;
    assert_eq!(next(&mut second).await.1.status, CANCELLED);
    let request = second.request(LOCK, &lock(theirs, 5, 1, SHARED));
    second.send(&request).await;
    assert_eq!(next(&mut second).await.1.status, PENDING);
    assert_eq!(first.call(LOCK, &lock(mine, 0, 10, UNLOCK)).await.unwrap().status, 0);
    assert_eq!(next(&mut second).await.1.status, 0);
    assert_eq!(write(&mut first, mine, 5, b"x").await, FILE_LOCK_CONFLICT);
}

#[tokio::test]
async fn only_so_many_requests_of_a_connection_wait_at_once_and_none_that_is_long() {
    const PLACES: usize = 512;
    const EXCLUSIVE: u32 = 2;
    let server = Server::start(Options::default()).await;
    let (mut first, mut second) = (server.connected().await, server.connected().await);
    let (mine, theirs) =
        (open(&mut first, &OPEN_IF).await.unwrap(), open(&mut second, &OPEN_IF).await.unwrap());
    assert_eq!(first.call(LOCK, &lock(mine, 0, 10, EXCLUSIVE)).await.unwrap().status, 0);
    let wanted = lock(theirs, 5, 1, EXCLUSIVE);
    let mut first_to_wait = second.request(LOCK, &wanted);
    second.send(&first_to_wait).await;
    assert_eq!(next(&mut second).await.1.status, PENDING);
    for _ in 1..PLACES {
        assert_eq!(second.call(LOCK, &wanted).await.unwrap().status, PENDING);
    }
    for _ in 0..2 {
        assert_eq!(second.call(LOCK, &wanted).await.unwrap().status, INSUFFICIENT_RESOURCES);
    }
    // Whoever gives up makes room for another.
    first_to_wait[12..14].copy_from_slice(&CANCEL.to_le_bytes());
    second.send(&[&first_to_wait[..64], &[4, 0, 0, 0][..]].concat()).await;
    assert_eq!(next(&mut second).await.1.status, CANCELLED);
    assert_eq!(second.call(LOCK, &wanted).await.unwrap().status, PENDING);
    assert_eq!(second.call(LOCK, &wanted).await.unwrap().status, INSUFFICIENT_RESOURCES);
    // What does not wait goes on.
    assert_eq!(read(&mut second, theirs, 20, 1).await, Err(END_OF_FILE));

    let mut third = server.connected().await;
    let theirs = open(&mut third, &OPEN_IF).await.unwrap();
    let long = [lock(theirs, 5, 1, EXCLUSIVE), vec![0; 1 << 20]].concat();
    assert_eq!(third.call(LOCK, &long).await.unwrap().status, INVALID_PARAMETER);
}

/// Asks for a durable handle of the first version.
fn durable() -> Asked<'static> {
    Asked { oplock: BATCH, context: Some((b"DHnQ", vec![0; 16])), ..OPEN_IF }
}

/// Asks for it back.
fn back(open: Opened) -> Asked<'static> {
    Asked { context: Some((b"DHnC", open.id.to_vec())), ..OPEN_IF }
}

/// Asks until the server has noticed that the first connection is gone.
async fn come_back(client: &mut Client, old: Opened) -> Result<Opened, u32> {
    for _ in 0..200 {
        match open(client, &back(old)).await {
            Err(OBJECT_NAME_NOT_FOUND) => tokio::time::sleep(Duration::from_millis(10)).await,
            done => return done,
        }
    }
    Err(OBJECT_NAME_NOT_FOUND)
}

#[tokio::test]
async fn a_durable_handle_waits_for_its_client_with_its_locks() {
    let server = Server::start(Options::default()).await;
    let mut client = server.connected().await;
    let held = open(&mut client, &durable()).await.unwrap();
    assert_eq!(write(&mut client, held, 0, b"kept").await, 0);
    assert_eq!(client.call(LOCK, &lock(held, 0, 1, 2)).await.unwrap().status, 0);
    // While its client is there nobody else gets it.
    let mut other = server.connected().await;
    assert_eq!(open(&mut other, &back(held)).await.unwrap_err(), OBJECT_NAME_NOT_FOUND);
    drop(client);
    let again = come_back(&mut other, held).await.unwrap();
    assert_eq!((again.oplock, &again.id[..8]), (BATCH, &held.id[..8]));
    assert_eq!(read(&mut other, again, 0, 9).await, Ok(b"kept".to_vec()));
    assert_eq!(other.call(LOCK, &lock(again, 0, 1, 4)).await.unwrap().status, 0);
    assert_eq!(close(&mut other, again).await, 0);
    assert_eq!(open(&mut other, &back(held)).await.unwrap_err(), OBJECT_NAME_NOT_FOUND);
}

#[tokio::test]
async fn a_durable_handle_whose_client_is_gone_is_in_nobodys_way() {
    let server = Server::start(Options::default()).await;
    for over_rest in [false, true] {
        let mut client = server.connected().await;
        let held = open(&mut client, &Asked { share: 0, ..durable() }).await.unwrap();
        drop(client);
        let mut other = server.connected().await;
        if over_rest {
            server.rest.delete("/docs/f", "").await.expect(202);
        } else {
            // Whether or not the server has noticed yet.
            let request = other.request(CREATE, &OPEN_IF.body());
            other.send(&request).await;
            let mut answer = next(&mut other).await.1;
            if answer.status == PENDING {
                answer = next(&mut other).await.1;
            }
            let opened = opened(&answer).unwrap();
            assert_eq!(close(&mut other, opened).await, 0);
        }
        assert_eq!(open(&mut other, &back(held)).await.unwrap_err(), OBJECT_NAME_NOT_FOUND);
    }
}

#[tokio::test]
async fn a_directory_is_renamed_although_a_durable_handle_below_it_waits_for_its_client() {
    let server = Server::start(Options::default()).await;
    server.rest.put("/docs/d?restype=directory", "", "").await.expect(201);
    let mut client = server.connected().await;
    let held = open(&mut client, &Asked { name: r"d\f", ..durable() }).await.unwrap();
    drop(client);
    let source = format!("http://{}/{}/docs/d", server.rest.address, lazuli_testing::ACCOUNT);
    let source = format!("x-ms-file-rename-source: {source}");
    server.rest.put("/docs/e?restype=directory&comp=rename", &source, "").await.expect(200);
    let mut other = server.connected().await;
    assert_eq!(open(&mut other, &back(held)).await.unwrap_err(), OBJECT_NAME_NOT_FOUND);
    assert!(open(&mut other, &Asked { name: r"e\f", disposition: 1, ..OPEN_IF }).await.is_ok());
}

#[tokio::test]
async fn what_is_open_of_a_share_is_closed_when_the_share_is_deleted() {
    let server = Server::start(Options::default()).await;
    let mut client = server.connected().await;
    let held = open(&mut client, &OPEN_IF).await.unwrap();
    assert_eq!(write(&mut client, held, 0, b"lost").await, 0);
    server.rest.delete("/docs?restype=share", "").await.expect(202);
    assert_eq!(write(&mut client, held, 0, b"late").await, FILE_CLOSED);
    assert_eq!(read(&mut client, held, 0, 9).await, Err(FILE_CLOSED));
    assert_eq!(open(&mut client, &OPEN_IF).await.unwrap_err(), NETWORK_NAME_DELETED);
}
