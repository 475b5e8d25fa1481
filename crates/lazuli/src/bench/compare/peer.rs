//! The servers that are compared: how they are installed, started and stopped.
//!
//! Both write to the same disk and log no requests; otherwise they run as they do by default. What Azurite
//! acknowledges is not on disk yet, what we acknowledge is: ratios of writes have to be read with that in mind.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::ServiceKind;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::super::BenchError;
use super::super::account::StorageAccount;
use super::super::client::Target;
use super::super::report::OURS;
use super::super::workload::Workload;

const HOST: &str = "127.0.0.1";
/// How long a server may take until it accepts connections.
const START: Duration = Duration::from_secs(30);
/// How long it may take to stop before it is killed.
const STOP: Duration = Duration::from_secs(10);
/// How long installing a peer may take.
const INSTALL: Duration = Duration::from_secs(300);
pub(super) const NGINX: &str = "nginx";
pub(super) const AZURITE: &str = "azurite";
const AZURITE_ENTRY: &str = "dist/src/azurite.js";
const AZURITE_VERSION: &str = "azurite@3";

/// A server to ask.
pub(super) struct Peer {
    pub(super) name: String,
    /// What it is, for the report.
    pub(super) about: String,
    pub(super) target: Target,
    /// It has files and knows nothing of the protocol.
    pub(super) plain_files: bool,
    /// The process, if it is ours to stop.
    process: Option<Child>,
}

/// A server that somebody else runs.
#[derive(Clone, Debug)]
pub(super) struct Named {
    name: String,
    account: StorageAccount,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, connection) = text.split_once('=').ok_or("not NAME=CONNECTION-STRING")?;
        if name.is_empty() || name == OURS {
            return Err(format!("a peer needs a name that is not {OURS}"));
        }
        let account =
            StorageAccount::from_connection_string(connection).map_err(|error| error.to_string())?;
        let secure = |service| account.endpoint(service).is_some_and(|endpoint| endpoint.secure);
        if ServiceKind::ALL.into_iter().any(secure) {
            return Err("peers are compared over plain HTTP, as ours is".into());
        }
        Ok(Self { name: name.into(), account })
    }
}

impl Peer {
    /// Whether a workload is for this server at all.
    pub(super) fn can_do(&self, workload: &dyn Workload) -> bool {
        self.target.account.endpoint(workload.service()).is_some()
            && (!self.plain_files || workload.reads_plain_files())
            && (self.name == OURS || !workload.is_ours_alone())
    }
}

impl From<Named> for Peer {
    fn from(named: Named) -> Self {
        let target = Target { account: Arc::new(named.account), tls: None };
        Self {
            name: named.name,
            about: "run by somebody else".into(),
            target,
            plain_files: false,
            process: None,
        }
    }
}

impl Peer {
    /// The memory that it has now, in MB, if it is ours to look at.
    pub(super) fn resident_mb(&self) -> Option<u64> {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.as_ref()?.id()?)).ok()?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024 / 1_000_000)
    }

    /// Asks it to stop and waits until it has; kills it if that takes too long.
    pub(super) async fn stop(mut self) {
        let Some(mut process) = self.process.take() else { return };
        if let Some(pid) = process.id().and_then(|id| Pid::from_raw(id as i32)) {
            // It may be gone already.
            let _ = kill_process(pid, Signal::TERM);
        }
        if timeout(STOP, process.wait()).await.is_err() {
            let _ = process.kill().await;
        }
    }
}

/// This very binary, with its data in `scratch`.
pub(super) async fn lazuli(scratch: &Path) -> Result<Peer, BenchError> {
    let failed = |error: std::io::Error| BenchError::Program("lazuli serve", error.to_string());
    let program = std::env::current_exe().map_err(failed)?;
    let ports = free_ports(ServiceKind::ALL).map_err(failed)?;
    let mut command = Command::new(program);
    // Variables that a user has set for a server of their own must not change this one.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LAZULI_") || name == "AZURITE_ACCOUNTS" {
            command.env_remove(name);
        }
    }
    command.args([
        "serve",
        "--host",
        HOST,
        "--smb-port",
        "off",
        "--console-port",
        "off",
        "--log-level",
        "warn",
        "--data",
    ]);
    command.arg(scratch.join("lazuli"));
    for (service, port) in &ports {
        command.arg(format!("--{}-port", service.name())).arg(port.to_string());
    }
    let about = format!("{}, this binary", env!("CARGO_PKG_VERSION"));
    start(OURS, about, command, ports, scratch).await
}

/// Installs Azurite into `prefix` if it is not there. Returns the directory of its package.
pub(super) async fn install_azurite(prefix: &Path) -> Result<PathBuf, BenchError> {
    let prefix = prefix.join(AZURITE);
    let package = prefix.join("node_modules").join(AZURITE);
    if !package.join(AZURITE_ENTRY).is_file() {
        install(&prefix).await?;
    }
    Ok(package)
}

/// Azurite, with its data in `scratch`. It has no file service.
pub(super) async fn azurite(package: &Path, scratch: &Path) -> Result<Peer, BenchError> {
    let failed = |reason: String| BenchError::Program(AZURITE, reason);
    let manifest = std::fs::read(package.join("package.json")).map_err(|error| failed(error.to_string()))?;
    let manifest: serde_json::Value = serde_json::from_slice(&manifest)?;
    let version = manifest["version"].as_str().unwrap_or("unknown version").to_owned();

    let services = [ServiceKind::Blob, ServiceKind::Queue, ServiceKind::Table];
    let ports = free_ports(services).map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new("node");
    command.arg(package.join(AZURITE_ENTRY)).args([
        "--silent",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--location",
    ]);
    command.arg(scratch.join(AZURITE)).env_remove("AZURITE_ACCOUNTS");
    for (service, port) in &ports {
        command.args([format!("--{}Host", service.name()), HOST.into()]);
        command.args([format!("--{}Port", service.name()), port.to_string()]);
    }
    start(
        AZURITE,
        format!("{version}, data on disk, acknowledged before it is there"),
        command,
        ports,
        scratch,
    )
    .await
}

/// nginx, which keeps what it is put as files and serves those: what plain reads could cost. It knows no accounts and
/// syncs nothing; containers exist as soon as they are named.
pub(super) async fn nginx(scratch: &Path) -> Result<Peer, BenchError> {
    let failed = |error: std::io::Error| BenchError::Program(NGINX, error.to_string());
    let ports = free_ports([ServiceKind::Blob]).map_err(failed)?;
    let directory = std::path::absolute(scratch.join(NGINX)).map_err(failed)?;
    for name in ["files", "temporary"] {
        std::fs::create_dir_all(directory.join(name)).map_err(failed)?;
    }
    let configuration = directory.join("nginx.conf");
    let text = nginx_configuration(&directory, ports[0].1);
    std::fs::write(&configuration, text).map_err(BenchError::at(&configuration))?;
    let mut command = Command::new(NGINX);
    command.arg("-c").arg(&configuration).arg("-p").arg(&directory);
    start(NGINX, "plain files, no authentication, nothing synced".into(), command, ports, scratch).await
}

fn nginx_configuration(directory: &Path, port: u16) -> String {
    let directory = directory.display();
    format!(
        "daemon off; user root; pid {directory}/pid; error_log {directory}/error.log; worker_processes auto;
        events {{ worker_connections 1024; }}
        http {{
            access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; client_max_body_size 0;
            client_body_temp_path {directory}/temporary;
            proxy_temp_path {directory}/temporary; fastcgi_temp_path {directory}/temporary;
            uwsgi_temp_path {directory}/temporary; scgi_temp_path {directory}/temporary;
            server {{
                listen {HOST}:{port} default_server;
                root {directory}/files;
                location ~ ^/[^/]+/[^/]+$ {{
                    if ($request_method = PUT) {{ return 201; }}
                    return 202;
                }}
                location / {{ dav_methods PUT; create_full_put_path on; }}
            }}
        }}"
    )
}

async fn install(prefix: &Path) -> Result<(), BenchError> {
    let failed = |reason: String| BenchError::Program("npm", reason);
    std::fs::create_dir_all(prefix).map_err(BenchError::at(prefix))?;
    let mut command = Command::new("npm");
    command.args(["install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"]).arg(prefix);
    command.arg(AZURITE_VERSION).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(INSTALL, command.output()).await;
    let output = output.map_err(|_| failed(format!("not done after {} s", INSTALL.as_secs())))?;
    let output = output.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(tail(&String::from_utf8_lossy(&output.stderr)))),
    }
}

/// Starts a server that serves the development account on these ports, and waits until it accepts connections.
async fn start(
    name: &'static str,
    about: String,
    mut command: Command,
    ports: Vec<(ServiceKind, u16)>,
    scratch: &Path,
) -> Result<Peer, BenchError> {
    let failed = |reason: String| BenchError::Program(name, reason);
    let log = scratch.join(format!("{name}.log"));
    let output = || File::create(&log).map_err(BenchError::at(&log));
    let file = output()?;
    let same = file.try_clone().map_err(BenchError::at(&log))?;
    command.stdin(Stdio::null()).stdout(file).stderr(same).kill_on_drop(true);
    let mut process = command.spawn().map_err(|error| failed(error.to_string()))?;
    let said = |log: &PathBuf| tail(&std::fs::read_to_string(log).unwrap_or_default());
    let ready = async {
        for (_, port) in &ports {
            while TcpStream::connect((HOST, *port)).await.is_err() {
                sleep(Duration::from_millis(50)).await;
            }
        }
    };
    tokio::select! {
        ready = timeout(START, ready) => {
            ready.map_err(|_| failed(format!("not ready after {} s: {}", START.as_secs(), said(&log))))?;
        }
        ended = process.wait() => {
            let ended = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            return Err(failed(format!("{ended}: {}", said(&log))));
        }
    }
    let account = Arc::new(StorageAccount::development_on(HOST, ports));
    let target = Target { account, tls: None };
    Ok(Peer { name: name.into(), about, target, plain_files: name == NGINX, process: Some(process) })
}

/// Ports that were free a moment ago, each a different one.
fn free_ports(services: impl IntoIterator<Item = ServiceKind>) -> std::io::Result<Vec<(ServiceKind, u16)>> {
    let bind = |service| Ok((service, TcpListener::bind((HOST, 0))?));
    let listeners = services.into_iter().map(bind).collect::<std::io::Result<Vec<_>>>()?;
    listeners.iter().map(|(service, listener)| Ok((*service, listener.local_addr()?.port()))).collect()
}

/// The last lines that a program wrote.
fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ() {
        let ports = free_ports(ServiceKind::ALL).unwrap();
        let mut numbers: Vec<_> = ports.iter().map(|(_, port)| *port).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 4);
    }

    #[test]
    fn a_named_peer_is_a_name_and_a_connection_string() {
        let peer: Named = "other=UseDevelopmentStorage=true".parse().unwrap();
        assert_eq!(peer.name, "other");
        for text in
            ["other", "=UseDevelopmentStorage=true", "lazuli=UseDevelopmentStorage=true", "x=AccountName=a"]
        {
            assert!(text.parse::<Named>().is_err(), "{text}");
        }
        let cloud = "cloud=AccountName=a;AccountKey=AAAA".parse::<Named>();
        assert!(cloud.unwrap_err().contains("plain HTTP"));
    }

    #[test]
    fn the_tail_is_the_last_three_lines_with_something_in_them() {
        assert_eq!(tail("a\nb\n\nc\nd\n"), "b / c / d");
        assert_eq!(tail(""), "");
    }

    #[tokio::test]
    async fn a_server_that_ends_at_once_is_reported_with_what_it_said() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such option; exit 3"]);
        let ports = free_ports([ServiceKind::Blob]).unwrap();
        let error = start("sh", String::new(), command, ports, dir.path()).await.err().unwrap();
        assert_eq!(error.to_string(), "sh: exit status: 3: no such option");
    }
}
