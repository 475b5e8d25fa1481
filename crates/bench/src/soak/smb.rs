//! A minimal SMB 2.1 client with NTLM: opens, writes, reads, flushes and deletes files.
//!
//! Sends one request at a time, unsigned and unencrypted, which servers allow clients on the same machine.

use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use md4::{Digest, Md4};
use md5::Md5;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::process::HOST;

const NEGOTIATE: u16 = 0;
const SESSION_SETUP: u16 = 1;
const TREE_CONNECT: u16 = 3;
const CREATE: u16 = 5;
const CLOSE: u16 = 6;
const FLUSH: u16 = 7;
const READ: u16 = 8;
const WRITE: u16 = 9;

const SUCCESS: u32 = 0;
const PENDING: u32 = 0x0000_0103;
const MORE_PROCESSING_REQUIRED: u32 = 0xc000_0016;

const DIALECT: u16 = 0x0210;
const HEADER: usize = 64;
/// Timeout of a request, longer than any request should take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum bytes of a response.
const MAX_FRAME: usize = 1 << 20;
/// Access to read, write and delete.
const ACCESS: u32 = 0x0013_019f;
/// Share mode that allows other opens everything.
const SHARE: u32 = 7;
const OPEN_IF: u32 = 3;
const NON_DIRECTORY: u32 = 0x40;
const DELETE_ON_CLOSE: u32 = 0x1000;

/// A connection with a session and a tree connect.
pub(super) struct Smb {
    stream: TcpStream,
    next: u64,
    session: u64,
    tree: u32,
}

/// An open file.
#[derive(Clone, Copy)]
pub(super) struct FileId([u8; 16]);

/// A response.
struct Response {
    status: u32,
    session: u64,
    tree: u32,
    /// The whole message, including the header.
    message: Vec<u8>,
}

impl Smb {
    /// Logs in and connects to a share.
    pub(super) async fn connect(port: u16, user: &str, password: &str, share: &str) -> Result<Self, String> {
        let stream = TcpStream::connect((HOST, port)).await.map_err(|error| format!("SMB: {error}"))?;
        stream.set_nodelay(true).map_err(|error| format!("SMB: {error}"))?;
        let mut smb = Self { stream, next: 0, session: 0, tree: 0 };
        let negotiate =
            [&[36, 0, 1, 0, 1, 0, 0, 0][..], &[0; 4], &[7; 16], &[0; 8], &DIALECT.to_le_bytes()].concat();
        smb.call(NEGOTIATE, &negotiate).await?.expect("negotiate", SUCCESS)?;
        let offer = [b"NTLMSSP\0", &[1, 0, 0, 0, 0x05, 0x02, 0x08, 0x00][..], &[0; 16]].concat();
        let offered = smb.call(SESSION_SETUP, &session_setup(&offer)).await?;
        let offered = offered.expect("session setup", MORE_PROCESSING_REQUIRED)?;
        smb.session = offered.session;
        // The token follows eight bytes of the body. The nonce is at offset 24 of the token.
        let nonce = offered.message.get(HEADER + 8 + 24..HEADER + 8 + 32).ok_or("SMB: a short challenge")?;
        let answer = answer(nonce, user, password)?;
        smb.call(SESSION_SETUP, &session_setup(&answer)).await?.expect("session setup", SUCCESS)?;
        let path = utf16(&format!(r"\\{HOST}\{share}"));
        let connect = [&[9, 0, 0, 0, 72, 0][..], &(path.len() as u16).to_le_bytes(), &path].concat();
        smb.tree = smb.call(TREE_CONNECT, &connect).await?.expect("tree connect", SUCCESS)?.tree;
        Ok(smb)
    }

    /// Opens a file. Creates it if it does not exist.
    pub(super) async fn open(&mut self, name: &str, delete_on_close: bool) -> Result<FileId, String> {
        let name = utf16(name);
        let options = NON_DIRECTORY | if delete_on_close { DELETE_ON_CLOSE } else { 0 };
        let mut body = vec![57, 0, 0, 0];
        body.extend_from_slice(&2u32.to_le_bytes());
        body.extend_from_slice(&[0; 16]);
        for field in [ACCESS, 0x80, SHARE, OPEN_IF, options] {
            body.extend_from_slice(&field.to_le_bytes());
        }
        body.extend_from_slice(&120u16.to_le_bytes());
        body.extend_from_slice(&(name.len() as u16).to_le_bytes());
        body.extend_from_slice(&[0; 8]);
        body.extend_from_slice(&name);
        let opened = self.call(CREATE, &body).await?.expect("create", SUCCESS)?;
        let id = opened.message.get(HEADER + 64..HEADER + 80).and_then(|id| id.try_into().ok());
        id.map(FileId).ok_or_else(|| "SMB create: a short response".into())
    }

    pub(super) async fn close(&mut self, FileId(id): FileId) -> Result<(), String> {
        let body = [&[24, 0, 0, 0, 0, 0, 0, 0][..], &id].concat();
        self.call(CLOSE, &body).await?.expect("close", SUCCESS).map(drop)
    }

    pub(super) async fn flush(&mut self, FileId(id): FileId) -> Result<(), String> {
        let body = [&[24, 0, 0, 0, 0, 0, 0, 0][..], &id].concat();
        self.call(FLUSH, &body).await?.expect("flush", SUCCESS).map(drop)
    }

    pub(super) async fn write(&mut self, FileId(id): FileId, at: u64, data: &[u8]) -> Result<(), String> {
        let mut body = vec![49, 0];
        body.extend_from_slice(&((HEADER + 48) as u16).to_le_bytes());
        body.extend_from_slice(&(data.len() as u32).to_le_bytes());
        body.extend_from_slice(&at.to_le_bytes());
        body.extend_from_slice(&id);
        body.extend_from_slice(&[0; 16]);
        body.extend_from_slice(data);
        self.call(WRITE, &body).await?.expect("write", SUCCESS).map(drop)
    }

    pub(super) async fn read(&mut self, FileId(id): FileId, at: u64, length: u32) -> Result<Bytes, String> {
        let mut body = vec![49, 0, 0x50, 0];
        body.extend_from_slice(&length.to_le_bytes());
        body.extend_from_slice(&at.to_le_bytes());
        body.extend_from_slice(&id);
        body.extend_from_slice(&[0; 17]);
        let read = self.call(READ, &body).await?.expect("read", SUCCESS)?;
        let short = || "SMB read: a short response".to_owned();
        let (start, count) =
            (read.message.get(HEADER + 2).ok_or_else(short)?, number(&read.message, HEADER + 4));
        let start = usize::from(*start);
        let data = read.message.get(start..start + count as usize).ok_or_else(short)?;
        Ok(Bytes::copy_from_slice(data))
    }

    /// Sends a request and returns its response. Skips other messages.
    async fn call(&mut self, command: u16, body: &[u8]) -> Result<Response, String> {
        let id = self.next;
        self.next += 1;
        let mut frame = vec![0; 4 + HEADER];
        let length = u32::try_from(HEADER + body.len()).map_err(|_| "SMB: too long")?;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        let header = &mut frame[4..];
        header[..6].copy_from_slice(b"\xfeSMB\x40\0");
        header[6] = 1;
        header[12..14].copy_from_slice(&command.to_le_bytes());
        header[14] = 64;
        header[24..32].copy_from_slice(&id.to_le_bytes());
        header[36..40].copy_from_slice(&self.tree.to_le_bytes());
        header[40..48].copy_from_slice(&self.session.to_le_bytes());
        frame.extend_from_slice(body);
        let exchange = async {
            self.stream.write_all(&frame).await?;
            loop {
                let mut prefix = [0; 4];
                self.stream.read_exact(&mut prefix).await?;
                let length = u32::from_be_bytes(prefix) as usize;
                if !(HEADER..=MAX_FRAME).contains(&length) {
                    return Err(std::io::Error::other("a frame of an invalid length"));
                }
                let mut message = vec![0; length];
                self.stream.read_exact(&mut message).await?;
                let status = number(&message, 8);
                if status != PENDING && long(&message, 24) == id {
                    let (tree, session) = (number(&message, 36), long(&message, 40));
                    return Ok(Response { status, session, tree, message });
                }
            }
        };
        match timeout(TIMEOUT, exchange).await {
            Ok(done) => done.map_err(|error| format!("SMB: {error}")),
            Err(_) => Err(format!("SMB: no answer within {} s", TIMEOUT.as_secs())),
        }
    }
}

impl Response {
    /// Returns an error if the status is another one.
    fn expect(self, what: &str, status: u32) -> Result<Self, String> {
        match self.status == status {
            true => Ok(self),
            false => Err(format!("SMB {what}: {:#010x}", self.status)),
        }
    }
}

fn number(message: &[u8], at: usize) -> u32 {
    message.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn long(message: &[u8], at: usize) -> u64 {
    message.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn session_setup(token: &[u8]) -> Vec<u8> {
    [&[25, 0, 0, 1][..], &[0; 8], &[88, 0], &(token.len() as u16).to_le_bytes(), &[0; 8], token].concat()
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn hmac_md5(key: &[u8], parts: &[&[u8]]) -> Result<[u8; 16], String> {
    let mut mac = Hmac::<Md5>::new_from_slice(key).map_err(|error| error.to_string())?;
    parts.iter().for_each(|part| mac.update(part));
    Ok(mac.finalize().into_bytes().into())
}

/// Returns the NTLMv2 response to a challenge.
fn answer(nonce: &[u8], user: &str, password: &str) -> Result<Vec<u8>, String> {
    const FIXED: u32 = 64;
    let hash: [u8; 16] = Md4::digest(utf16(password)).into();
    let key = hmac_md5(&hash, &[&utf16(&user.to_uppercase())])?;
    let proved = [&[1, 1][..], &[0; 26], &[0; 4]].concat();
    let response = [&hmac_md5(&key, &[nonce, &proved])?[..], &proved].concat();
    let name = utf16(user);
    let field = |length: usize, at: u32| {
        let length = (length as u16).to_le_bytes();
        [&length[..], &length, &at.to_le_bytes()].concat()
    };
    let (none, after) = (field(0, FIXED), FIXED + response.len() as u32);
    let head = b"NTLMSSP\0\x03\0\0\0".to_vec();
    let (proof, named) = (field(response.len(), FIXED), field(name.len(), after));
    let flags = vec![0x05, 0x02, 0x08, 0x00];
    Ok([head, none.clone(), proof, none.clone(), named, none.clone(), none, flags, response, name].concat())
}
