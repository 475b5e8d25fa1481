//! Installs, starts and stops the servers that are compared.
//!
//! All write to the same disk and log no requests. Otherwise they run with their defaults. Azurite
//! acknowledges writes before they are on disk, Lazuli afterwards. Keep that in mind when reading ratios of
//! writes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::ServiceKind;
use tokio::process::Command;
use tokio::time::timeout;

use super::super::BenchError;
use super::super::account::StorageAccount;
use super::super::client::TargetAccount;
use super::super::process::{self, HOST, Process, tail};
use super::super::report::OURS;
use super::super::workload::Workload;

/// How long installing a peer may take.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(300);
pub(super) const NGINX: &str = "nginx";
pub(super) const AZURITE: &str = "azurite";
const AZURITE_ENTRY: &str = "dist/src/azurite.js";
const AZURITE_VERSION: &str = "azurite@3";

/// A server that is compared.
pub(super) struct Peer {
    pub(super) name: String,
    /// A description for the report.
    pub(super) about: String,
    pub(super) target: TargetAccount,
    /// The server serves files and does not know the protocol.
    pub(super) serves_plain_files: bool,
    /// The process, if this program started it.
    process: Option<Process>,
}

/// A running server that the command line names.
#[derive(Clone, Debug)]
pub(super) struct ExternalPeer {
    name: String,
    account: StorageAccount,
}

impl FromStr for ExternalPeer {
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
            return Err("peers are compared over plain HTTP, like Lazuli".into());
        }
        Ok(Self { name: name.into(), account })
    }
}

impl Peer {
    /// Returns whether this server supports a workload.
    pub(super) fn can_do(&self, workload: &dyn Workload) -> bool {
        self.target.account.endpoint(workload.service()).is_some()
            && (!self.serves_plain_files || workload.reads_plain_files())
            && (self.name == OURS || !workload.is_lazuli_only())
    }
}

impl From<ExternalPeer> for Peer {
    fn from(named: ExternalPeer) -> Self {
        let target = TargetAccount { account: Arc::new(named.account), tls: None };
        Self {
            name: named.name,
            about: "named on the command line".into(),
            target,
            serves_plain_files: false,
            process: None,
        }
    }
}

impl Peer {
    /// Returns the resident memory in MB, if this program started the server.
    pub(super) fn resident_mb(&self) -> Option<u64> {
        Some(self.process.as_ref()?.usage().ok()?.resident / 1_000_000)
    }

    /// Stops the server if this program started it.
    pub(super) async fn stop(self) {
        if let Some(process) = self.process {
            process.stop().await;
        }
    }
}

/// Starts this binary, with its data in `scratch`.
pub(super) async fn lazuli(scratch: &Path) -> Result<Peer, BenchError> {
    let failed = |error: std::io::Error| BenchError::Program("lazuli serve", error.to_string());
    let program = std::env::current_exe().map_err(failed)?;
    let ports = free_ports(ServiceKind::ALL).map_err(failed)?;
    let mut command = process::serve(&program, &scratch.join("lazuli"), &ports);
    command.args(["--smb-port", "off", "--console-port", "off"]);
    let about = format!("{}, this binary", env!("CARGO_PKG_VERSION"));
    start(OURS, about, command, ports, scratch).await
}

/// Installs Azurite into `prefix` unless it is installed already. Returns the directory of its package.
pub(super) async fn install_azurite(prefix: &Path) -> Result<PathBuf, BenchError> {
    let prefix = prefix.join(AZURITE);
    let package = prefix.join("node_modules").join(AZURITE);
    if !package.join(AZURITE_ENTRY).is_file() {
        install(&prefix).await?;
    }
    Ok(package)
}

/// Starts Azurite, which has no file service, with its data in `scratch`.
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
        format!("{version}, data on disk, acknowledged before it is on disk"),
        command,
        ports,
        scratch,
    )
    .await
}

/// Starts nginx, which stores uploaded bodies as files and serves them: a bound for the cost of plain reads.
/// nginx does not authenticate and never syncs. Containers exist implicitly.
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
    let output = timeout(INSTALL_TIMEOUT, command.output()).await;
    let output = output.map_err(|_| failed(format!("not done after {} s", INSTALL_TIMEOUT.as_secs())))?;
    let output = output.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(tail(&String::from_utf8_lossy(&output.stderr)))),
    }
}

/// Starts a server of the development account on these ports, and waits until it accepts connections.
async fn start(
    name: &'static str,
    about: String,
    command: Command,
    ports: Vec<(ServiceKind, u16)>,
    scratch: &Path,
) -> Result<Peer, BenchError> {
    let listening: Vec<u16> = ports.iter().map(|(_, port)| *port).collect();
    let process = Process::start(name, command, &listening, &scratch.join(format!("{name}.log"))).await?;
    let account = Arc::new(StorageAccount::development_on(HOST, ports));
    let target = TargetAccount { account, tls: None };
    Ok(Peer { name: name.into(), about, target, serves_plain_files: name == NGINX, process: Some(process) })
}

/// Returns free ports, one for each service.
fn free_ports(services: impl IntoIterator<Item = ServiceKind>) -> std::io::Result<Vec<(ServiceKind, u16)>> {
    let services: Vec<_> = services.into_iter().collect();
    let ports = process::free_ports(services.len())?;
    Ok(services.into_iter().zip(ports).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_peers_are_a_name_and_a_connection_string() {
        let peer: ExternalPeer = "other=UseDevelopmentStorage=true".parse().unwrap();
        assert_eq!(peer.name, "other");
        for text in
            ["other", "=UseDevelopmentStorage=true", "lazuli=UseDevelopmentStorage=true", "x=AccountName=a"]
        {
            assert!(text.parse::<ExternalPeer>().is_err(), "{text}");
        }
        let cloud = "cloud=AccountName=a;AccountKey=AAAA".parse::<ExternalPeer>();
        assert!(cloud.unwrap_err().contains("plain HTTP"));
    }
}
