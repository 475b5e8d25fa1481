//! A place on the web that a test controls: one document, with or without ranges, that can change, stall and fail.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify};

/// What the place serves, and how.
#[derive(Clone, Default)]
pub struct Page {
    /// What it is.
    pub body: Bytes,
    /// Lines of further headers, `ETag` among them.
    pub headers: Vec<String>,
    /// What every request is answered with instead.
    pub status: Option<&'static str>,
    /// The length that it says it has, if that is not the truth.
    pub says_length: Option<usize>,
    /// Whether it sends all of it whatever is asked for.
    pub ignores_ranges: bool,
    /// Requests for ranges wait here until they are let go.
    pub stalls: bool,
    /// So many requests for ranges break off half way.
    pub breaks: usize,
}

impl Page {
    /// A document with a tag.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), headers: vec!["ETag: \"v1\"".into()], ..Self::default() }
    }
}

/// The place. It is served as long as the runtime of the test lives.
pub struct Web {
    /// Where it is.
    pub address: SocketAddr,
    /// What it serves.
    pub page: Arc<Mutex<Page>>,
    /// The heads of all requests.
    pub requests: Arc<Mutex<Vec<String>>>,
    go: Arc<Notify>,
}

impl Web {
    /// Serves a document on a free port.
    pub async fn serve(page: Page) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let web = Self {
            address: listener.local_addr().unwrap(),
            page: Arc::new(Mutex::new(page)),
            requests: Arc::default(),
            go: Arc::default(),
        };
        let (page, requests, go) = (web.page.clone(), web.requests.clone(), web.go.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, page.clone(), requests.clone(), go.clone()));
            }
        });
        web
    }

    /// The URL of the document.
    pub fn url(&self) -> String {
        format!("http://{}/document", self.address)
    }

    /// The entry that allows to copy from here.
    pub fn allowed(&self) -> String {
        self.address.to_string()
    }

    /// Lets requests go that stall, and those that come.
    pub async fn release(&self) {
        self.page.lock().await.stalls = false;
        self.go.notify_waiters();
    }

    /// Changes what is served from now on.
    pub async fn change(&self, change: impl FnOnce(&mut Page)) {
        change(&mut *self.page.lock().await);
    }
}

async fn answer(
    stream: TcpStream,
    page: Arc<Mutex<Page>>,
    requests: Arc<Mutex<Vec<String>>>,
    go: Arc<Notify>,
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
    let released = go.notified();
    tokio::pin!(released);
    released.as_mut().enable();
    if header("range").is_some() && page.lock().await.stalls {
        released.await;
    }
    let breaks = {
        let mut page = page.lock().await;
        let breaks = header("range").is_some() && page.breaks > 0;
        page.breaks -= usize::from(breaks);
        breaks
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
    let length = page.says_length.unwrap_or(part.len());
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{range}{headers}\r\n");
    let part = if breaks { part.slice(..part.len() / 2) } else { part };
    // The other side may have read enough.
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(&part).await;
}
