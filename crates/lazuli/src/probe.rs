//! `lazuli health`: asks a server whether it is ready, for `HEALTHCHECK` and scripts.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use clap::Args;

use crate::Failure;
use crate::config::Config;
use crate::control;
use crate::endpoints::{Endpoints, reachable};
use crate::health::{IN_MEMORY, NO_MEMORY};
use crate::target::{DataArgs, DataTarget};

/// Timeout for connecting, and for each part of the reply.
const TIME: Duration = Duration::from_secs(5);
/// Maximum length of the reply in bytes.
const MAX_REPLY: u64 = 64 << 10;

#[derive(Args)]
pub(crate) struct HealthArgs {
    /// The address of the console, as HOST:PORT [default: that of the server of the data directory]
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Only ask whether the process answers, not whether it is ready
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    data: DataArgs,
}

/// Prints what the server answers. Fails unless the server is ready, possibly degraded.
pub(crate) fn run(args: HealthArgs, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    let address = match args.address {
        Some(address) => address,
        None => console_address(args.data, variable)?.to_string(),
    };
    let path = if args.live { "/healthz" } else { "/readyz" };
    let (status, body) = get(&address, path)
        .map_err(|error| Failure::Failed(format!("{address} does not answer: {error}")))?;
    match status {
        200 => {
            print!("{body}");
            Ok(())
        }
        _ => Err(Failure::Failed(body.trim_end().to_owned())),
    }
}

fn console_address(data: DataArgs, variable: impl Fn(&str) -> Option<String>) -> Result<SocketAddr, Failure> {
    let target = DataTarget::load(data, variable)?;
    // A server with data in memory has no directory to be found in.
    let endpoints = match control::request_status(&target.directory, false) {
        Ok(Some(Ok(status))) => status.endpoints,
        Ok(_) | Err(_) => Endpoints::configured(&target.config),
    };
    let console = endpoints.console.map(reachable).filter(|address| address.port() != 0);
    console.ok_or_else(|| {
        Failure::Failed("the console is off, or its port is not known: name it with --address".into())
    })
}

/// A server whose data is in memory. It has no directory in which commands find it.
pub(crate) struct MemoryServer {
    pub(crate) console: SocketAddr,
    /// The answer to the question whether the server is ready.
    pub(crate) readiness: String,
}

impl MemoryServer {
    /// Finds a server with data in memory by the console's address in the configuration.
    pub(crate) fn find(config: &Config) -> Option<Self> {
        let console = Endpoints::configured(config).console.map(reachable)?;
        let (_, readiness) = get(&console.to_string(), "/readyz").ok().filter(|_| console.port() != 0)?;
        let readiness = readiness.trim_end().to_owned();
        let is_in_memory = [IN_MEMORY, NO_MEMORY].iter().any(|remark| readiness.contains(remark));
        is_in_memory.then_some(Self { console, readiness })
    }
}

/// Sends a request and returns the status and the body of the reply.
fn get(address: &str, path: &str) -> std::io::Result<(u16, String)> {
    let unreachable = || std::io::Error::other("the name has no address");
    let resolved = address.to_socket_addrs()?.next().ok_or_else(unreachable)?;
    let mut stream = TcpStream::connect_timeout(&resolved, TIME)?;
    stream.set_read_timeout(Some(TIME))?;
    stream.set_write_timeout(Some(TIME))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut reply = Vec::new();
    stream.take(MAX_REPLY).read_to_end(&mut reply)?;
    let reply = String::from_utf8_lossy(&reply);
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| std::io::Error::other("not an HTTP reply"))?, body.to_owned()))
}
