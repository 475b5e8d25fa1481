//! A client that sends arbitrary bytes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use md4::{Digest, Md4};
use md5::Md5;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub(crate) const NEGOTIATE: u16 = 0;
pub(crate) const SESSION_SETUP: u16 = 1;
pub(crate) const TREE_CONNECT: u16 = 3;
pub(crate) const CREATE: u16 = 5;
pub(crate) const ECHO: u16 = 13;

pub(crate) const MORE_PROCESSING_REQUIRED: u32 = 0xc000_0016;
pub(crate) const INVALID_PARAMETER: u32 = 0xc000_000d;
pub(crate) const ACCESS_DENIED: u32 = 0xc000_0022;
pub(crate) const LOGON_FAILURE: u32 = 0xc000_006d;
pub(crate) const NOT_SUPPORTED: u32 = 0xc000_00bb;
pub(crate) const INSUFFICIENT_RESOURCES: u32 = 0xc000_009a;
pub(crate) const USER_SESSION_DELETED: u32 = 0xc000_0203;

/// Longer than any response takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) struct SmbClient {
    stream: TcpStream,
    pub(crate) next: u64,
    pub(crate) session: u64,
    pub(crate) tree: u32,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u32,
    pub(crate) body: Vec<u8>,
}

impl SmbClient {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), next: 0, session: 0, tree: 0 }
    }

    /// Sends a frame. Returns whether the connection is open.
    pub(crate) async fn send(&mut self, frame: &[u8]) -> bool {
        let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
        self.send_raw(&[&length, frame].concat()).await
    }

    /// Sends bytes as they are.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Returns the next frame, or `None` if the server has closed the connection.
    pub(crate) async fn receive(&mut self) -> Option<Vec<u8>> {
        timeout(TIMEOUT, async {
            let mut prefix = [0; 4];
            self.stream.read_exact(&mut prefix).await.ok()?;
            let mut frame = vec![0; u32::from_be_bytes(prefix) as usize];
            self.stream.read_exact(&mut frame).await.ok()?;
            Some(frame)
        })
        .await
        .expect("an answer, or the end")
    }

    /// Returns a request with the next message id.
    pub(crate) fn request(&mut self, command: u16, body: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 64];
        header[..6].copy_from_slice(b"\xfeSMB\x40\0");
        header[6] = 1;
        header[12..14].copy_from_slice(&command.to_le_bytes());
        header[14] = 64;
        header[24..32].copy_from_slice(&self.next.to_le_bytes());
        header[36..40].copy_from_slice(&self.tree.to_le_bytes());
        header[40..48].copy_from_slice(&self.session.to_le_bytes());
        self.next += 1;
        [&header, body].concat()
    }

    /// Sends a request and returns its response, or `None` if the server has closed the connection.
    pub(crate) async fn call(&mut self, command: u16, body: &[u8]) -> Option<Response> {
        let request = self.request(command, body);
        self.send(&request).await;
        let frame = self.receive().await?;
        assert_eq!(frame[..4], *b"\xfeSMB");
        let number = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
        if command == SESSION_SETUP {
            self.session = u64::from_le_bytes(frame[40..48].try_into().unwrap());
        }
        if command == TREE_CONNECT {
            self.tree = number(36);
        }
        Some(Response { status: number(8), body: frame[64..].to_vec() })
    }

    /// Negotiates a dialect other than 3.1.1.
    pub(crate) async fn negotiate(&mut self, dialects: &[u16]) -> Option<Response> {
        self.call(NEGOTIATE, &negotiate(dialects)).await
    }

    /// Sends one SESSION_SETUP.
    pub(crate) async fn session_setup(&mut self, token: &[u8]) -> Option<Response> {
        self.call(SESSION_SETUP, &session_setup(token, false)).await
    }

    /// Logs in with NTLM without SPNEGO. Returns the final status.
    pub(crate) async fn log_in(&mut self, user: &str, password: &str) -> u32 {
        let offered = self.session_setup(&ntlm_negotiate()).await.unwrap();
        assert_eq!(offered.status, MORE_PROCESSING_REQUIRED);
        // The token begins after 8 bytes, the nonce after 24 bytes of the token.
        let nonce = &offered.body[8 + 24..][..8];
        let (answer, _) = ntlm_authenticate(nonce, user, password);
        self.session_setup(&answer).await.unwrap().status
    }

    /// Connects to a share. Returns the status.
    pub(crate) async fn connect_tree(&mut self, share: &str) -> u32 {
        self.call(TREE_CONNECT, &tree_connect(share)).await.unwrap().status
    }
}

/// Returns the body of NEGOTIATE.
pub(crate) fn negotiate(dialects: &[u16]) -> Vec<u8> {
    let count = (dialects.len() as u16).to_le_bytes();
    let dialects: Vec<u8> = dialects.iter().flat_map(|dialect| dialect.to_le_bytes()).collect();
    [&[36, 0][..], &count, &[1, 0, 0, 0], &[0; 4], &[7; 16], &[0; 8], &dialects].concat()
}

/// Returns the body of TREE_CONNECT.
pub(crate) fn tree_connect(share: &str) -> Vec<u8> {
    let path = utf16(&format!(r"\\host\{share}"));
    let length = (path.len() as u16).to_le_bytes();
    [&[9, 0, 0, 0, 72, 0][..], &length, &path].concat()
}

/// Returns the body of SESSION_SETUP.
pub(crate) fn session_setup(token: &[u8], is_binding: bool) -> Vec<u8> {
    let length = (token.len() as u16).to_le_bytes();
    [&[25, 0, u8::from(is_binding), 1][..], &[0; 8], &[88, 0], &length, &[0; 8], token].concat()
}

/// Returns an NTLM NEGOTIATE message.
pub(crate) fn ntlm_negotiate() -> Vec<u8> {
    [b"NTLMSSP\0", &[1, 0, 0, 0, 0x05, 0x02, 0x08, 0x00][..], &[0; 16]].concat()
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn hmac_md5(key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    let mut mac = Hmac::<Md5>::new_from_slice(key).unwrap();
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Returns an NTLM AUTHENTICATE message and the session key. Without a user name, the message is anonymous.
pub(crate) fn ntlm_authenticate(nonce: &[u8], user: &str, password: &str) -> (Vec<u8>, [u8; 16]) {
    const FIXED: u32 = 64;
    let name = utf16(user);
    let (response, session_key) = if user.is_empty() {
        (vec![], [0; 16])
    } else {
        let hash: [u8; 16] = Md4::digest(utf16(password)).into();
        let key = hmac_md5(&hash, &[&utf16(&user.to_uppercase())]);
        // Stands for the random bytes of a client: different in each login.
        static LOGINS: AtomicU64 = AtomicU64::new(0);
        let chosen = LOGINS.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let proved = [&[1, 1][..], &[0; 14], &chosen, &[0; 8]].concat();
        let proof = hmac_md5(&key, &[nonce, &proved]);
        ([&proof[..], &proved].concat(), hmac_md5(&key, &[&proof]))
    };
    let field = |length: usize, at: u32| {
        let length = (length as u16).to_le_bytes();
        [&length[..], &length, &at.to_le_bytes()].concat()
    };
    let (none, after) = (field(0, FIXED), FIXED + response.len() as u32);
    let message = [
        b"NTLMSSP\0\x03\0\0\0".to_vec(),
        none.clone(),
        field(response.len(), FIXED),
        none.clone(),
        field(name.len(), after),
        none.clone(),
        none,
        vec![0x05, 0x02, 0x08, 0x00],
        response,
        name,
    ];
    (message.concat(), session_key)
}
