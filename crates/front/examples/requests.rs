//! Measures how many small requests a second pass the front door, with authentication and an empty service.
//!
//! `cargo run --release -p lazuli-front --example requests [connections] [pipelined] [seconds]`

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::StatusCode;
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_auth::user_delegation::MasterSecret;
use lazuli_auth::{Authenticator, sign};
use lazuli_concurrency::{Clock, SystemClock};
use lazuli_front::{Admission, Endpoint, HttpServer, Limits, Metrics};
use lazuli_protocol::policy::{AccessPolicy, PublicAccess};
use lazuli_protocol::properties::ServiceProperties;
use lazuli_protocol::{
    Account, Accounts, Key, Query, Refusal, Request, Response, Service, ServiceKind, Version, date,
};

const ACCOUNT: &str = "lapis";
const SERVER_THREADS: &str = "server";

struct EchoService;

#[async_trait]
impl Service for EchoService {
    async fn call(&self, mut request: Request) -> Result<Response, Refusal> {
        let body = request.read_body(1 << 20).await?;
        Ok(Response::with_body(StatusCode::OK, "text/plain", body))
    }

    async fn access_policy(&self, _: &Account, _: &str, _: &str) -> Result<Option<AccessPolicy>, Refusal> {
        Ok(None)
    }

    async fn public_access(&self, _: &Account, _: &str) -> Result<PublicAccess, Refusal> {
        Ok(PublicAccess::Container)
    }
}

struct OneAccount(Arc<Account>, Arc<ServiceProperties>);

#[async_trait]
impl Accounts for OneAccount {
    async fn account(&self, _: &str) -> Result<Option<Arc<Account>>, Refusal> {
        Ok(Some(Arc::clone(&self.0)))
    }

    async fn service_properties(
        &self,
        _: &Account,
        _: ServiceKind,
    ) -> Result<Arc<ServiceProperties>, Refusal> {
        Ok(Arc::clone(&self.1))
    }
}

fn key() -> Key {
    Key::from_bytes(vec![7; 64])
}

/// Builds the request that a client library sends for a small download or upload.
fn request(method: &str, authorized: bool, body: &[u8]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut headers = http::HeaderMap::new();
    headers.insert("host", "127.0.0.1:10000".try_into()?);
    headers.insert("user-agent", "azsdk-python-storage-blob/12.19.0 Python/3.11.2 (Linux)".try_into()?);
    headers.insert("accept", "application/xml".try_into()?);
    headers.insert("x-ms-version", "2023-11-03".try_into()?);
    headers.insert("x-ms-date", date::rfc1123(SystemClock.now()).try_into()?);
    headers.insert("x-ms-client-request-id", "0d9f8d2a-5a3c-11ee-8c99-0242ac120002".try_into()?);
    if method == "PUT" {
        headers.insert("content-length", body.len().into());
        headers.insert("content-type", "application/octet-stream".try_into()?);
        headers.insert("x-ms-blob-type", "BlockBlob".try_into()?);
    }
    let path = "/lapis/container/some/blob.txt";
    if authorized {
        let message = Message {
            scheme: Scheme::SharedKey,
            service: ServiceKind::Blob,
            account: ACCOUNT,
            method,
            path,
            query: &Query::default(),
            headers: &headers,
            version: Version::new(2023, 11, 3),
        };
        let authorization = sign::authorization(&message, &key())?;
        headers.insert("authorization", authorization);
    }
    let mut request = format!("{method} {path} HTTP/1.1\r\n");
    for (name, value) in &headers {
        request.push_str(&format!("{name}: {}\r\n", value.to_str()?));
    }
    request.push_str("\r\n");
    Ok([request.as_bytes(), body].concat())
}

/// Sends `request` repeatedly, `pipelined` at a time. Replies have a constant size, which separates them.
fn load(
    address: std::net::SocketAddr,
    request: &[u8],
    pipelined: usize,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.write_all(request)?;
    let mut buffer = vec![0; 1 << 16];
    let reply = stream.read(&mut buffer)?;
    assert!(buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer[..reply]));
    let requests = request.repeat(pipelined);
    let mut replies = vec![0; reply * pipelined];
    while !stop.load(Relaxed) {
        stream.write_all(&requests)?;
        stream.read_exact(&mut replies)?;
        done.fetch_add(pipelined as u64, Relaxed);
    }
    Ok(())
}

/// Returns the processor time that the server's threads have used. Works on Linux only.
fn server_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanoseconds = |task: std::fs::DirEntry| -> Option<u64> {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let used = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        if name.starts_with(SERVER_THREADS) { used.split(' ').next()?.parse().ok() } else { None }
    };
    Duration::from_nanos(tasks.filter_map(nanoseconds).sum())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let connections = arguments.next().transpose()?.unwrap_or(16);
    let pipelined = arguments.next().transpose()?.unwrap_or(1);
    let seconds = arguments.next().transpose()?.unwrap_or(5);

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(SERVER_THREADS)
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    let account = Account {
        name: ACCOUNT.into(),
        generation: 0,
        keys: vec![key()],
        settings: Default::default(),
        roles: vec![],
    };
    let gate = Admission {
        accounts: Arc::new(OneAccount(Arc::new(account), Arc::default())),
        authenticator: Authenticator::new(MasterSecret::new([1; 32]), None),
        clock: Arc::new(SystemClock),
        wall_clock: Arc::new(SystemClock),
        host_suffixes: vec![],
    };
    let endpoint = Endpoint {
        kind: ServiceKind::Blob,
        address: ([127, 0, 0, 1], 0).into(),
        service: Arc::new(EchoService),
    };
    let metrics = Arc::new(Metrics::default());
    let server = HttpServer::start(vec![endpoint], Arc::new(gate), None, Limits::default(), &metrics)?;
    let (_, address) = server.addresses().next().ok_or("no address")?;

    for (what, request) in [
        ("GET anonymous", request("GET", false, b"")?),
        ("GET Shared Key", request("GET", true, b"")?),
        ("PUT Shared Key, 100 bytes", request("PUT", true, &[0; 100])?),
    ] {
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let (started, used) = (Instant::now(), server_time());
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..connections)
                .map(|_| scope.spawn(|| load(address, &request, pipelined, &done, &stop)))
                .collect();
            std::thread::sleep(Duration::from_secs(seconds as u64));
            stop.store(true, Relaxed);
            for client in clients {
                match client.join() {
                    Ok(Ok(())) => {}
                    failed => eprintln!("a client failed: {failed:?}"),
                }
            }
        });
        let done = done.load(Relaxed) as f64;
        let rate = done / started.elapsed().as_secs_f64();
        let micros = (server_time() - used).as_secs_f64() * 1e6 / done;
        println!("{what}: {rate:.0} requests/s, {micros:.1} µs of the server's processor time each");
    }
    Ok(())
}
