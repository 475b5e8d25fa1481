//! An HTTP server that a test controls. It serves one document, which can change, stall and fail.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify};

/// The document, and how the server answers requests for it.
#[derive(Clone, Default)]
pub struct WebDocument {
    /// The content.
    pub body: Bytes,
    /// Lines of additional headers, among them `ETag`.
    pub headers: Vec<String>,
    /// If set, the status of every reply, without a body.
    pub status: Option<&'static str>,
    /// A wrong `Content-Length` to send.
    pub claimed_length: Option<usize>,
    /// Answers requests for ranges with the whole document.
    pub ignores_ranges: bool,
    /// Makes requests for ranges wait for [`Web::release`].
    pub stalls: bool,
    /// Number of requests for ranges that get half of their body only.
    pub cut_replies: usize,
}

impl WebDocument {
    /// Returns a document with an ETag.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), headers: vec!["ETag: \"v1\"".into()], ..Self::default() }
    }
}

/// The server. It runs until the test's runtime ends.
pub struct Web {
    /// The server's address.
    pub address: SocketAddr,
    /// The document.
    pub page: Arc<Mutex<WebDocument>>,
    /// The heads of all requests so far, in lower case.
    pub requests: Arc<Mutex<Vec<String>>>,
    released: Arc<Notify>,
}

impl Web {
    /// Serves a document on a free port.
    pub async fn serve(page: WebDocument) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let web = Self {
            address: listener.local_addr().unwrap(),
            page: Arc::new(Mutex::new(page)),
            requests: Arc::default(),
            released: Arc::default(),
        };
        let (page, requests, released) = (web.page.clone(), web.requests.clone(), web.released.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, page.clone(), requests.clone(), released.clone()));
            }
        });
        web
    }

    /// Returns the URL of the document.
    pub fn url(&self) -> String {
        format!("http://{}/document", self.address)
    }

    /// Returns the entry of the allow list of copy sources that admits this server.
    pub fn allowed(&self) -> String {
        self.address.to_string()
    }

    /// Answers stalled requests, and stops stalling.
    pub async fn release(&self) {
        self.page.lock().await.stalls = false;
        self.released.notify_waiters();
    }

    /// Changes the document for subsequent requests.
    pub async fn change(&self, change: impl FnOnce(&mut WebDocument)) {
        change(&mut *self.page.lock().await);
    }
}

async fn answer(
    stream: TcpStream,
    page: Arc<Mutex<WebDocument>>,
    requests: Arc<Mutex<Vec<String>>>,
    released: Arc<Notify>,
) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let head = head.to_ascii_lowercase();
    requests.lock().await.push(head.clone());
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let released = released.notified();
    tokio::pin!(released);
    released.as_mut().enable();
    if header("range").is_some() && page.lock().await.stalls {
        released.await;
    }
    let cut_replies = {
        let mut page = page.lock().await;
        let cut_replies = header("range").is_some() && page.cut_replies > 0;
        page.cut_replies -= usize::from(cut_replies);
        cut_replies
    };
    let page = page.lock().await.clone();
    let etag = page.headers.iter().find_map(|line| line.strip_prefix("ETag: "));
    let (status, range, part) = if let Some(status) = page.status {
        (status, String::new(), Bytes::new())
    } else if header("if-match").is_some_and(|sent| Some(sent) != etag) {
        ("412 Precondition Failed", String::new(), Bytes::new())
    } else if header("if-none-match").is_some_and(|sent| Some(sent) == etag) {
        ("304 Not Modified", String::new(), Bytes::new())
    } else if let Some(range) = header("range").filter(|_| !page.ignores_ranges) {
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        let total = page.body.len();
        let range = format!("Content-Range: bytes {first}-{last}/{total}\r\n");
        ("206 Partial Content", range, page.body.slice(first..=last))
    } else {
        ("200 OK", String::new(), page.body.clone())
    };
    let headers: String = page.headers.iter().map(|line| format!("{line}\r\n")).collect();
    let length = page.claimed_length.unwrap_or(part.len());
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{range}{headers}\r\n");
    let part = if cut_replies { part.slice(..part.len() / 2) } else { part };
    // Ignore errors: the client may close the connection once it has read enough.
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(&part).await;
}
