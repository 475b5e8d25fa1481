//! QUERY_INFO, SET_INFO, QUERY_DIRECTORY, CHANGE_NOTIFY and IOCTL over TCP.

use lazuli_smb::Options;

use crate::SmbTestServer;
use crate::client::*;
use crate::opens::*;

const IOCTL: u16 = 11;
const QUERY_DIRECTORY: u16 = 14;
const CHANGE_NOTIFY: u16 = 15;
const QUERY_INFO: u16 = 16;
const SET_INFO: u16 = 17;

const NOTIFY_CLEANUP: u32 = 0x0000_010b;
const NOTIFY_ENUM_DIR: u32 = 0x0000_010c;
const BUFFER_OVERFLOW: u32 = 0x8000_0005;
const NO_MORE_FILES: u32 = 0x8000_0006;
const INVALID_INFO_CLASS: u32 = 0xc000_0003;
const INFO_LENGTH_MISMATCH: u32 = 0xc000_0004;
const NO_SUCH_FILE: u32 = 0xc000_000f;
const INVALID_DEVICE_REQUEST: u32 = 0xc000_0010;
const INVALID_VIEW_SIZE: u32 = 0xc000_001f;
const BUFFER_TOO_SMALL: u32 = 0xc000_0023;
const OBJECT_NAME_COLLISION: u32 = 0xc000_0035;
const EAS_NOT_SUPPORTED: u32 = 0xc000_004f;
const DELETE_PENDING: u32 = 0xc000_0056;
const DIRECTORY_NOT_EMPTY: u32 = 0xc000_0101;
const CANNOT_DELETE: u32 = 0xc000_0121;

const FILE: u8 = 1;
const VOLUME: u8 = 2;
const SECURITY: u8 = 3;
const DIRECTORY: u32 = 1;
const OWNER_GROUP_DACL: u32 = 7;
const NAMES: u32 = 3;

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Returns the status and the data of a response.
fn data(response: Response) -> (u32, Vec<u8>) {
    let length = u32::from_le_bytes(response.body[4..8].try_into().unwrap()) as usize;
    let data = response.body.get(8..8 + length).unwrap_or_default().to_vec();
    (response.status, data)
}

async fn query(
    client: &mut SmbClient,
    open: Opened,
    kind: u8,
    class: u8,
    parts: u32,
    max_output: u32,
) -> (u32, Vec<u8>) {
    let max_output = max_output.to_le_bytes();
    let body =
        [&[41, 0, kind, class], &max_output[..], &[0; 8], &parts.to_le_bytes(), &[0; 4], &open.id].concat();
    data(client.call(QUERY_INFO, &body).await.unwrap())
}

async fn set(client: &mut SmbClient, open: Opened, kind: u8, class: u8, parts: u32, input: &[u8]) -> u32 {
    let length = (input.len() as u32).to_le_bytes();
    let parts = parts.to_le_bytes();
    let body = [&[33, 0, kind, class], &length[..], &[96, 0, 0, 0], &parts, &open.id, input].concat();
    client.call(SET_INFO, &body).await.unwrap().status
}

async fn rename(client: &mut SmbClient, open: Opened, to: &str, replace: bool) -> u32 {
    let name = utf16(to);
    let length = (name.len() as u32).to_le_bytes();
    let input = [&[replace.into()][..], &[0; 15], &length, &name].concat();
    set(client, open, FILE, 10, 0, &input).await
}

async fn list(
    client: &mut SmbClient,
    open: Opened,
    flags: u8,
    pattern: &str,
    max_output: u32,
) -> Result<Vec<String>, u32> {
    let pattern = utf16(pattern);
    let (length, max_output) = ((pattern.len() as u16).to_le_bytes(), max_output.to_le_bytes());
    let body =
        [&[33, 0, 12, flags, 0, 0, 0, 0], &open.id[..], &[96, 0], &length, &max_output, &pattern].concat();
    let (status, data) = data(client.call(QUERY_DIRECTORY, &body).await.unwrap());
    if status == 0 { Ok(names(&data, 8)) } else { Err(status) }
}

/// Returns the names of linked entries. `at` is the offset of the length of the name.
fn names(mut data: &[u8], at: usize) -> Vec<String> {
    let mut names = vec![];
    while !data.is_empty() {
        let number = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap()) as usize;
        let name: Vec<u16> = data[at + 4..][..number(at)]
            .chunks(2)
            .map(|unit| u16::from_le_bytes([unit[0], unit[1]]))
            .collect();
        names.push(String::from_utf16(&name).unwrap());
        data = if number(0) == 0 { &[] } else { &data[number(0)..] };
    }
    names
}

fn notify(open: Opened, max_output: u32, filter: u32) -> Vec<u8> {
    let (max_output, filter) = (max_output.to_le_bytes(), filter.to_le_bytes());
    [&[32, 0, 1, 0], &max_output[..], &open.id, &filter, &[0; 4]].concat()
}

async fn control(
    client: &mut SmbClient,
    open: Opened,
    code: u32,
    input: &[u8],
    max_output: u32,
) -> (u32, Vec<u8>) {
    let (code, length, max_output) =
        (code.to_le_bytes(), (input.len() as u32).to_le_bytes(), max_output.to_le_bytes());
    let buffers = [&[120, 0, 0, 0], &length[..], &[0; 12], &max_output, &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
    let body = [&[57, 0, 0, 0], &code[..], &open.id, &buffers, input].concat();
    let response = client.call(IOCTL, &body).await.unwrap();
    (response.status, response.body.get(48..).unwrap_or_default().to_vec())
}

async fn start() -> (SmbTestServer, SmbClient) {
    let server = SmbTestServer::start(Options::default()).await;
    let mut client = server.logged_in_client().await;
    assert_eq!(client.connect_tree("docs").await, 0);
    (server, client)
}

fn directory(name: &str) -> OpenParameters<'_> {
    OpenParameters { name, options: DIRECTORY, ..OPEN_IF }
}

fn file(name: &str) -> OpenParameters<'_> {
    OpenParameters { name, ..OPEN_IF }
}

#[tokio::test]
async fn information_is_returned_completely_truncated_or_not_at_all() {
    let (_server, mut client) = start().await;
    let open = open(&mut client, &file("name.txt")).await.unwrap();
    // The length of the data, and of its fixed part.
    for (kind, class, whole, fixed) in [
        (FILE, 4, 40, 40),
        (FILE, 5, 24, 24),
        (FILE, 18, 118, 104),
        (FILE, 22, 38, 32),
        (FILE, 34, 56, 56),
        (FILE, 35, 8, 8),
        (FILE, 59, 24, 24),
        (VOLUME, 1, 26, 24),
        (VOLUME, 3, 24, 24),
        (VOLUME, 5, 20, 16),
        (VOLUME, 7, 32, 32),
    ] {
        let (status, data) = query(&mut client, open, kind, class, 0, 1000).await;
        assert_eq!((status, data.len()), (0, whole), "{kind} {class}");
        if fixed < whole {
            let (status, cut) = query(&mut client, open, kind, class, 0, fixed as u32).await;
            assert_eq!((status, &cut[..]), (BUFFER_OVERFLOW, &data[..fixed]), "{kind} {class}");
        }
        let (status, _) = query(&mut client, open, kind, class, 0, fixed as u32 - 1).await;
        assert_eq!(status, INFO_LENGTH_MISMATCH, "{kind} {class}");
    }
    assert_eq!(query(&mut client, open, FILE, 200, 0, 1000).await.0, INVALID_INFO_CLASS);
    let blind = OpenParameters { access: 1, ..file("name.txt") };
    let blind = crate::opens::open(&mut client, &blind).await.unwrap();
    assert_eq!(query(&mut client, blind, FILE, 4, 0, 1000).await.0, ACCESS_DENIED);
    assert_eq!(query(&mut client, blind, FILE, 5, 0, 1000).await.0, 0);
}

#[tokio::test]
async fn a_listing_continues_at_its_position_until_restarted() {
    let (_server, mut client) = start().await;
    let root = open(&mut client, &directory("d")).await.unwrap();
    for name in ["b.txt", "a.txt", "C.log"] {
        let made = open(&mut client, &file(&format!(r"d\{name}"))).await.unwrap();
        close(&mut client, made).await;
    }
    let listed = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    // One at a time, then the rest.
    assert_eq!(list(&mut client, root, 2, "*", 1000).await, listed(&["."]));
    assert_eq!(list(&mut client, root, 2, "*", 1000).await, listed(&[".."]));
    assert_eq!(list(&mut client, root, 2, "*", 1000).await, listed(&["a.txt"]));
    // An entry deleted meanwhile is not listed.
    let doomed = OpenParameters { options: 0x1000, ..file(r"d\b.txt") };
    let doomed = open(&mut client, &doomed).await.unwrap();
    close(&mut client, doomed).await;
    assert_eq!(list(&mut client, root, 0, "*", 1000).await, listed(&["C.log"]));
    assert_eq!(list(&mut client, root, 0, "*", 1000).await, Err(NO_MORE_FILES));
    // The pattern is kept until a restart.
    assert_eq!(list(&mut client, root, 1, "c*", 1000).await, listed(&["C.log"]));
    assert_eq!(list(&mut client, root, 0, "*", 1000).await, Err(NO_MORE_FILES));
    assert_eq!(list(&mut client, root, 1, "A.TXT", 1000).await, listed(&["a.txt"]));
    assert_eq!(list(&mut client, root, 0, "A.TXT", 1000).await, Err(NO_MORE_FILES));
    assert_eq!(list(&mut client, root, 1, "*.txt", 10).await, Err(INFO_LENGTH_MISMATCH));
    assert_eq!(list(&mut client, root, 0, "", 1000).await, listed(&["a.txt"]));
    let fresh = open(&mut client, &directory("d")).await.unwrap();
    assert_eq!(list(&mut client, fresh, 0, "nothing*", 1000).await, Err(NO_SUCH_FILE));
    assert_eq!(list(&mut client, fresh, 1, r"a\b", 1000).await, Err(0xc000_0033));
}

#[tokio::test]
async fn changes_complete_waiting_requests_and_are_buffered_for_later_ones() {
    let (server, mut client) = start().await;
    let mut other = server.logged_in_client().await;
    other.connect_tree("docs").await;
    let watched = open(&mut client, &OpenParameters { access: 0x1ff, ..directory("d") }).await.unwrap();
    assert_eq!(client.call(CHANGE_NOTIFY, &notify(watched, 1000, NAMES)).await.unwrap().status, PENDING);
    let made = open(&mut other, &file(r"d\new")).await.unwrap();
    let (_, response) = next(&mut client).await;
    assert_eq!((response.status, names(&data(response).1, 8)), (0, vec!["new".to_owned()]));
    // Both names of a rename come together. The write is not reported, because the filter excludes it.
    write(&mut other, made, 0, b"x").await;
    assert_eq!(rename(&mut other, made, r"d\newer", false).await, 0);
    let (status, response) = data(client.call(CHANGE_NOTIFY, &notify(watched, 1000, NAMES)).await.unwrap());
    assert_eq!((status, names(&response, 8)), (0, vec!["new".to_owned(), "newer".to_owned()]));
    // More than fits in the response.
    let third = open(&mut other, &file(r"d\third")).await.unwrap();
    close(&mut other, third).await;
    let response = client.call(CHANGE_NOTIFY, &notify(watched, 4, NAMES)).await.unwrap();
    assert_eq!(response.status, NOTIFY_ENUM_DIR);
    // Closing the handle ends the request.
    assert_eq!(client.call(CHANGE_NOTIFY, &notify(watched, 1000, NAMES)).await.unwrap().status, PENDING);
    let body = [&[24, 0, 0, 0, 0, 0, 0, 0], &watched.id[..]].concat();
    let request = client.request(CLOSE, &body);
    client.send(&request).await;
    let mut answers =
        [next(&mut client).await, next(&mut client).await].map(|(command, answer)| (command, answer.status));
    answers.sort_unstable();
    assert_eq!(answers, [(CLOSE, 0), (CHANGE_NOTIFY, NOTIFY_CLEANUP)]);
    // A file cannot be watched.
    let response = client.call(CHANGE_NOTIFY, &notify(made, 1000, NAMES)).await.unwrap();
    assert_ne!(response.status, PENDING);
}

#[tokio::test]
async fn marking_a_watched_directory_for_deletion_completes_the_request() {
    let (server, mut client) = start().await;
    let mut other = server.logged_in_client().await;
    other.connect_tree("docs").await;
    let watched = open(&mut client, &directory("d")).await.unwrap();
    assert_eq!(client.call(CHANGE_NOTIFY, &notify(watched, 1000, NAMES)).await.unwrap().status, PENDING);
    let doomed = open(&mut other, &directory("d")).await.unwrap();
    assert_eq!(set(&mut other, doomed, FILE, 13, 0, &[1]).await, 0);
    assert_eq!(next(&mut client).await.1.status, DELETE_PENDING);
    let again = client.call(CHANGE_NOTIFY, &notify(watched, 1000, NAMES)).await.unwrap();
    assert_eq!(again.status, DELETE_PENDING);
}

#[tokio::test]
async fn closing_a_handle_by_force_or_with_its_share_completes_change_notify() {
    let (server, mut client) = start().await;
    for with_share in [false, true] {
        let watched = open(&mut client, &directory("d")).await.unwrap();
        assert_eq!(client.call(CHANGE_NOTIFY, &notify(watched, 1000, NAMES)).await.unwrap().status, PENDING);
        if with_share {
            server.rest.delete("/docs?restype=share", "").await.expect(202);
        } else {
            let forced = server.rest.put("/docs/d?comp=forceclosehandles", "x-ms-handle-id: *", "").await;
            assert_eq!(forced.expect(200).header("x-ms-number-of-handles-closed"), Some("1"));
        }
        let (command, response) = next(&mut client).await;
        assert_eq!(
            (command, response.status),
            (CHANGE_NOTIFY, NOTIFY_CLEANUP),
            "with its share: {with_share}"
        );
    }
}

#[tokio::test]
async fn times_and_attributes_set_over_smb_are_visible_over_rest() {
    let (server, mut client) = start().await;
    let file = open(&mut client, &file("f")).await.unwrap();
    // 2021-04-20T15:54:52.9740791Z
    let time = 132_634_076_929_740_791_u64.to_le_bytes();
    let input = |time: [u8; 8], attributes: u32| {
        [&[0; 16], &time[..], &[0; 8], &attributes.to_le_bytes(), &[0; 4]].concat()
    };
    assert_eq!(set(&mut client, file, FILE, 4, 0, &input(time, 0x22)).await, 0);
    // A later write does not change a time that was set.
    write(&mut client, file, 0, b"x").await;
    close(&mut client, file).await;
    let shown = server.rest.call("HEAD", "/docs/f", "", "").await.expect(200);
    assert_eq!(shown.header("x-ms-file-last-write-time"), Some("2021-04-20T15:54:52.9740791Z"));
    assert_eq!(shown.header("x-ms-file-attributes"), Some("Hidden | Archive"));
    let file = open(&mut client, &crate::info::file("f")).await.unwrap();
    let minus_three = (u64::MAX - 2).to_le_bytes();
    assert_eq!(set(&mut client, file, FILE, 4, 0, &input(minus_three, 0)).await, INVALID_PARAMETER);
    assert_eq!(set(&mut client, file, FILE, 4, 0, &input([0; 8], 0x10)).await, INVALID_PARAMETER);
    assert_eq!(set(&mut client, file, FILE, 4, 0, &[0; 35]).await, INFO_LENGTH_MISMATCH);
    assert_eq!(set(&mut client, file, FILE, 15, 0, &[0; 35]).await, EAS_NOT_SUPPORTED);
    // A write sets the archive attribute, until a client clears it.
    for (attributes, shown) in [(0x80, 0x80), (0x2, 0x2)] {
        write(&mut client, file, 0, b"x").await;
        assert_eq!(query(&mut client, file, FILE, 35, 0, 8).await.1[0] & 0xa0, 0x20);
        assert_eq!(set(&mut client, file, FILE, 4, 0, &input(time, attributes)).await, 0);
        assert_eq!(query(&mut client, file, FILE, 35, 0, 8).await.1[0], shown);
    }
    // A read-only file cannot be deleted.
    assert_eq!(set(&mut client, file, FILE, 4, 0, &input([0; 8], 1)).await, 0);
    assert_eq!(set(&mut client, file, FILE, 13, 0, &[1]).await, CANNOT_DELETE);
}

#[tokio::test]
async fn a_security_descriptor_set_over_smb_is_visible_over_rest() {
    let (server, mut client) = start().await;
    let file = open(&mut client, &file("f")).await.unwrap();
    let (status, descriptor) = query(&mut client, file, SECURITY, 0, OWNER_GROUP_DACL, 1000).await;
    assert_eq!(status, 0);
    let needed = (descriptor.len() as u32).to_le_bytes().to_vec();
    let refused = query(&mut client, file, SECURITY, 0, OWNER_GROUP_DACL, 8).await;
    assert_eq!(refused, (BUFFER_TOO_SMALL, needed));
    // `D:(A;;FA;;;WD)`: full access for the group `Everyone`.
    let group = [1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let entry = [&[0, 0, 20, 0, 0xff, 1, 0x1f, 0][..], &group].concat();
    let list = [&[2, 0, 28, 0, 1, 0, 0, 0][..], &entry].concat();
    let sent = [&[1, 0, 4, 0x80][..], &[0; 12], &[20, 0, 0, 0], &list].concat();
    assert_eq!(set(&mut client, file, SECURITY, 0, 4, &sent).await, 0);
    assert_eq!(query(&mut client, file, SECURITY, 0, 4, 1000).await, (0, sent));
    let (_, changed) = query(&mut client, file, SECURITY, 0, OWNER_GROUP_DACL, 1000).await;
    assert_ne!(changed, descriptor);
    close(&mut client, file).await;
    let shown = server.rest.call("HEAD", "/docs/f", "", "").await.expect(200);
    let key = format!("x-ms-file-permission-key: {}", shown.header("x-ms-file-permission-key").unwrap());
    let permission = server.rest.get("/docs?restype=share&comp=filepermission", &key).await.expect(200);
    assert_eq!(permission.text(), r#"{"permission":"O:SYG:SYD:(A;;FA;;;WD)","format":"sddl"}"#);
}

#[tokio::test]
async fn a_rename_respects_existing_files_and_opens_of_the_directory() {
    let (server, mut client) = start().await;
    let directory_open = open(&mut client, &OpenParameters { access: 0x81, ..directory("d") }).await.unwrap();
    let existing = open(&mut client, &file(r"d\there")).await.unwrap();
    close(&mut client, existing).await;
    let moved = open(&mut client, &file("moved")).await.unwrap();
    assert_eq!(rename(&mut client, moved, r"d\there", false).await, OBJECT_NAME_COLLISION);
    assert_eq!(rename(&mut client, moved, r"d\there", true).await, 0);
    server.rest.call("HEAD", "/docs/d/there", "", "").await.expect(200);
    server.rest.call("HEAD", "/docs/moved", "", "").await.expect(404);
    // Another open has requested delete access to the directory.
    let doomed = open(&mut client, &directory("d")).await.unwrap();
    assert_eq!(rename(&mut client, moved, r"d\elsewhere", false).await, SHARING_VIOLATION);
    assert_eq!(set(&mut client, doomed, FILE, 13, 0, &[1]).await, DIRECTORY_NOT_EMPTY);
    close(&mut client, doomed).await;
    assert_eq!(rename(&mut client, moved, "moved again", false).await, 0);
    close(&mut client, directory_open).await;
}

#[tokio::test]
async fn server_side_copy_reports_how_much_was_copied_before_a_failure() {
    let (_server, mut client) = start().await;
    let (from, to) =
        (open(&mut client, &file("from")).await.unwrap(), open(&mut client, &file("to")).await.unwrap());
    write(&mut client, from, 0, b"0123456789").await;
    let (status, key) = control(&mut client, from, 0x0014_0078, &[], 32).await;
    assert_eq!((status, key.len()), (0, 32));
    let chunks = |chunks: &[(u64, u64, u32)]| {
        let mut input = [&key[..24], &(chunks.len() as u32).to_le_bytes(), &[0; 4]].concat();
        for (from, to, length) in chunks {
            input.extend(
                [&from.to_le_bytes()[..], &to.to_le_bytes(), &length.to_le_bytes(), &[0; 4]].concat(),
            );
        }
        input
    };
    let result = |chunks: u32, bytes: u32, total: u32| [chunks, bytes, total].map(u32::to_le_bytes).concat();
    let copied = control(&mut client, to, 0x0014_40f2, &chunks(&[(8, 0, 2), (0, 2, 3)]), 12).await;
    assert_eq!(copied, (0, result(2, 0, 5)));
    assert_eq!(read(&mut client, to, 0, 100).await, Ok(b"89012".to_vec()));
    let failed = control(&mut client, to, 0x0014_40f2, &chunks(&[(0, 5, 5), (8, 10, 5)]), 12).await;
    assert_eq!(failed, (INVALID_VIEW_SIZE, result(1, 0, 5)));
    let limits = control(&mut client, to, 0x0014_40f2, &chunks(&[(0, 0, 2 << 20)]), 12).await;
    assert_eq!(limits, (INVALID_PARAMETER, result(256, 1 << 20, 16 << 20)));
    assert_eq!(control(&mut client, to, 0x0009_beef, &[], 12).await.0, INVALID_DEVICE_REQUEST);
}

#[tokio::test]
async fn allocated_ranges_are_returned_as_many_as_fit() {
    const SET_SPARSE: u32 = 0x0009_00c4;
    const ALLOCATED_RANGES: u32 = 0x0009_40cf;
    let (_server, mut client) = start().await;
    let open = open(&mut client, &file("f")).await.unwrap();
    assert_eq!(control(&mut client, open, SET_SPARSE, &[], 0).await.0, 0);
    let mut whole = vec![];
    for offset in [0u64, 1 << 20, 2 << 20] {
        write(&mut client, open, offset, &[1; 64 << 10]).await;
        whole.extend([offset, 64 << 10].map(u64::to_le_bytes).concat());
    }
    let parameters = [0, 4u64 << 20].map(u64::to_le_bytes).concat();
    for (max_output, expected) in [
        (100, (0, &whole[..])),
        (48, (0, &whole[..])),
        (47, (BUFFER_OVERFLOW, &whole[..32])),
        (16, (BUFFER_OVERFLOW, &whole[..16])),
    ] {
        let (status, response) = control(&mut client, open, ALLOCATED_RANGES, &parameters, max_output).await;
        assert_eq!((status, &response[..]), expected, "max_output {max_output}");
    }
    assert_eq!(control(&mut client, open, ALLOCATED_RANGES, &parameters, 15).await.0, BUFFER_TOO_SMALL);
}

#[tokio::test]
async fn maximum_allowed_on_a_read_only_file_excludes_writing_over_smb() {
    const MAXIMUM_ALLOWED: u32 = 0x0200_0000;
    let (_server, mut client) = start().await;
    let made = open(&mut client, &file("f")).await.unwrap();
    let read_only = [&[0; 32][..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(set(&mut client, made, FILE, 4, 0, &read_only).await, 0);
    close(&mut client, made).await;
    for access in [ALL, MAXIMUM_ALLOWED | 2, MAXIMUM_ALLOWED | 0x4000_0000] {
        let named = OpenParameters { access, ..file("f") };
        assert_eq!(open(&mut client, &named).await.unwrap_err(), ACCESS_DENIED, "{access:x}");
    }
    let maximum = OpenParameters { access: MAXIMUM_ALLOWED, ..file("f") };
    let maximum = open(&mut client, &maximum).await.unwrap();
    assert_eq!(query(&mut client, maximum, FILE, 8, 0, 4).await, (0, 0x001f_01b9_u32.to_le_bytes().to_vec()));
    assert_eq!(write(&mut client, maximum, 0, b"x").await, ACCESS_DENIED);
    // This open does not conflict with opens that deny writing.
    let reads = OpenParameters { access: 1, share: 5, ..file("f") };
    assert!(open(&mut client, &reads).await.is_ok());
}
