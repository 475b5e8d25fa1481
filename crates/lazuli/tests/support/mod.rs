//! Runs the real program on free ports with its own directory, and sends it HTTP requests.

#![allow(clippy::unwrap_used, dead_code)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue};
use lazuli_account::DEVELOPMENT_KEY;
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_auth::sign;
use lazuli_concurrency::{Clock, SystemClock};
use lazuli_protocol::{Key, Query, ServiceKind, Version, date};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) const DEVELOPMENT_ACCOUNT: &str = "devstoreaccount1";
/// Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const FREE_PORTS: [&str; 6] = [
    "--blob-port=0",
    "--queue-port=0",
    "--table-port=0",
    "--file-port=0",
    "--smb-port=0",
    "--console-port=0",
];

/// Returns pseudorandom bytes, which neither compression nor deduplication shortens.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Returns a command for the program with an empty environment.
pub(crate) fn lazuli() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lazuli"));
    command.env_clear().stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    lazuli().args(arguments).output().unwrap()
}

/// Runs a command that must succeed. Returns its standard output.
pub(crate) fn succeed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command that must fail with this exit code. Returns its standard error.
pub(crate) fn fail(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stderr)
}

/// Starts a server on free ports, which has to fail with exit code 1; what it said.
pub(crate) fn fail_to_serve(arguments: &[&str]) -> String {
    let all: Vec<_> = ["serve"].iter().chain(&FREE_PORTS).chain(arguments).copied().collect();
    fail(&all, 1)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server that is ready.
pub(crate) struct Server {
    child: Child,
    /// The lines of the ready block by their first word.
    pub(crate) ready: HashMap<String, String>,
}

impl Server {
    /// Serves a directory on free ports.
    pub(crate) fn start(data: &Path) -> Self {
        Self::start_with(data, &[], &[])
    }

    pub(crate) fn start_with(data: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = lazuli();
        command.arg("serve").arg("--data").arg(data).args(FREE_PORTS).args(arguments);
        Self::spawn(command.envs(variables.iter().copied()))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut ready = HashMap::new();
        while !ready.contains_key("connect") && !ready.contains_key("accounts") {
            let Some(Ok(line)) = lines.next() else {
                let mut said = String::new();
                child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("not ready: {said}");
            };
            let (name, value) = line.trim().split_once(' ').unwrap();
            ready.insert(name.to_owned(), value.trim().to_owned());
        }
        Self { child, ready }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the server ends. Returns its exit status and log.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let mut log = String::new();
                self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
                return (status, log);
            }
            assert!(Instant::now() < deadline, "the server does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Stops the server cleanly and returns its log.
    pub(crate) fn stop(self) -> String {
        self.signal(Signal::TERM);
        let (status, log) = self.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }

    /// Returns the `host:port` in a line of the ready block.
    pub(crate) fn address(&self, line: &str) -> &str {
        let url = &self.ready[line];
        let address = url.split_once("://").unwrap().1;
        address.split('/').next().unwrap()
    }

    pub(crate) fn console(&self, path: &str) -> (u16, String) {
        let reply = http(self.address("console"), &format!("GET {path} HTTP/1.1\r\n"), b"");
        (reply.status, text(&reply.body))
    }

    /// Sends a request signed with the key of the development account.
    pub(crate) fn call(&self, service: ServiceKind, method: &str, target: &str, body: &str) -> Reply {
        self.call_as(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, service, method, target, body)
    }

    /// Sends a request with any headers, one per line, with a shared access signature of the development
    /// account.
    pub(crate) fn send(
        &self,
        service: ServiceKind,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Reply {
        self.send_as((DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY), service, method, path, headers, body)
    }

    /// Sends a request like [`Self::send`], for another account and its key.
    pub(crate) fn send_as(
        &self,
        (account, key): (&str, &str),
        service: ServiceKind,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Reply {
        let fields = [
            ("sv", "2021-12-02"),
            ("ss", "bqtf"),
            ("srt", "sco"),
            ("sp", "rwdlacupt"),
            ("se", "2099-12-31T00:00:00Z"),
        ];
        let key = Key::from_base64(key).unwrap();
        let sas = sign::account_sas(account, &key, &fields);
        let separator = if path.contains('?') { '&' } else { '?' };
        let lines: String = headers.lines().map(|line| format!("{}\r\n", line.trim())).collect();
        let length = body.len();
        let head = format!(
            "{method} /{account}{path}{separator}{sas} HTTP/1.1\r\n\
             x-ms-version: 2021-12-02\r\nContent-Length: {length}\r\n{lines}"
        );
        http(self.address(service.name()), &head, body)
    }

    pub(crate) fn call_as(
        &self,
        account: &str,
        key: &str,
        service: ServiceKind,
        method: &str,
        target: &str,
        body: &str,
    ) -> Reply {
        let target = format!("/{account}{target}");
        let head = signed_head(account, key, service, method, &target, body.len());
        http(self.address(service.name()), &head, body.as_bytes())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Formats the request line and headers of a signed request, without the empty line that ends the head.
pub(crate) fn signed_head(
    account: &str,
    key: &str,
    service: ServiceKind,
    method: &str,
    target: &str,
    length: usize,
) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut headers = HeaderMap::new();
    headers.insert("x-ms-date", HeaderValue::try_from(date::rfc1123(SystemClock.now())).unwrap());
    headers.insert("x-ms-version", HeaderValue::from_static("2021-12-02"));
    if method != "GET" {
        headers.insert("content-length", HeaderValue::from(length));
    }
    let query = Query::parse(query).unwrap();
    let message = Message {
        scheme: Scheme::SharedKey,
        service,
        account,
        method,
        path,
        query: &query,
        headers: &headers,
        version: Version::parse("2021-12-02").unwrap(),
    };
    let authorization = sign::authorization(&message, &Key::from_base64(key).unwrap()).unwrap();
    headers.insert("authorization", authorization);
    let lines = headers.iter().map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()));
    format!("{method} {target} HTTP/1.1\r\n{}", lines.collect::<String>())
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        text(&self.body)
    }
}

/// Sends one request on a new connection.
pub(crate) fn http(address: &str, head: &str, body: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{head}Host: {address}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    read_reply(stream)
}

/// Reads a reply up to the end of the connection.
pub(crate) fn read_reply(mut stream: impl Read) -> Reply {
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let end = reply.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| panic!("{}", text(&reply)));
    let head = text(&reply[..end]);
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head, body: reply[end + 4..].to_vec() }
}

/// Waits until a condition holds. `what` describes it.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
