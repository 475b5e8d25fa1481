//! Server processes that benchmarks start, observe and stop.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::ServiceKind;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::BenchError;
use super::account::StorageAccount;
use super::client::TargetAccount;

pub(crate) const HOST: &str = "127.0.0.1";
/// How long a server may take until it accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// The unit of times in `/proc`, the same on all supported machines.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process that is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process(Child);

/// The resources that a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// User and system time of all threads since the process started.
    pub(crate) cpu: Duration,
    /// Bytes of memory in use.
    pub(crate) resident: u64,
    /// Bytes of memory in use that no file backs: the heap, stacks.
    pub(crate) anonymous: u64,
    pub(crate) threads: u64,
    /// Open file descriptors.
    pub(crate) handles: u64,
}

impl Process {
    /// Starts a program and waits until it accepts connections on all ports.
    pub(crate) async fn start(
        name: &'static str,
        mut command: Command,
        ports: &[u16],
        log: &Path,
    ) -> Result<Self, BenchError> {
        let failed = |reason: String| BenchError::Program(name, reason);
        let file = File::create(log).map_err(BenchError::at(log))?;
        let stderr = file.try_clone().map_err(BenchError::at(log))?;
        command.stdin(Stdio::null()).stdout(file).stderr(stderr).kill_on_drop(true);
        let mut process = command.spawn().map_err(|error| failed(error.to_string()))?;
        let output = || tail(&fs::read_to_string(log).unwrap_or_default());
        let ready = async {
            for port in ports {
                while TcpStream::connect((HOST, *port)).await.is_err() {
                    sleep(Duration::from_millis(20)).await;
                }
            }
        };
        tokio::select! {
            ready = timeout(START_TIMEOUT, ready) => {
                ready.map_err(|_| failed(format!("not ready after {} s: {}", START_TIMEOUT.as_secs(), output())))?;
            }
            ended = process.wait() => {
                let ended = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                return Err(failed(format!("{ended}: {}", output())));
            }
        }
        Ok(Self(process))
    }

    /// Asks the process to stop and waits for it. Kills it if that takes too long.
    pub(crate) async fn stop(mut self) {
        if let Some(pid) = self.0.id().and_then(|id| Pid::from_raw(id as i32)) {
            // Ignore the error: the process may have ended already.
            let _ = kill_process(pid, Signal::TERM);
        }
        if timeout(STOP_TIMEOUT, self.0.wait()).await.is_err() {
            let _ = self.0.kill().await;
        }
    }

    /// Reads the current usage.
    pub(crate) fn usage(&self) -> io::Result<Usage> {
        let gone = || io::Error::other("the process has ended");
        let directory = PathBuf::from(format!("/proc/{}", self.0.id().ok_or_else(gone)?));
        let (stat, status) =
            (fs::read_to_string(directory.join("stat"))?, fs::read_to_string(directory.join("status"))?);
        let mut usage = usage(&stat, &status).ok_or_else(gone)?;
        usage.handles = fs::read_dir(directory.join("fd"))?.count() as u64;
        Ok(usage)
    }
}

/// Parses `/proc/PID/stat` and `/proc/PID/status`.
fn usage(stat: &str, status: &str) -> Option<Usage> {
    // The program's name is in parentheses and may contain any character. The 14th and the 15th field are the
    // 12th and the 13th after it.
    let fields: Vec<_> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let line = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(Usage {
        cpu: Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND),
        resident: line("VmRSS")? << 10,
        anonymous: line("RssAnon")? << 10,
        threads: line("Threads")?,
        handles: 0,
    })
}

/// A Lazuli server with the development account on free ports, all services and SMB.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) target: TargetAccount,
    pub(crate) smb_port: u16,
    pub(crate) data: PathBuf,
}

impl Server {
    /// Starts `program` on a data directory below `scratch`.
    pub(crate) async fn start(
        program: &Path,
        scratch: &Path,
        name: &str,
        options: &[String],
    ) -> Result<Self, BenchError> {
        let failed = |error: io::Error| BenchError::Program("lazuli serve", error.to_string());
        let ports = free_ports(ServiceKind::ALL.len() + 1).map_err(failed)?;
        let (smb_port, data) = (ports[0], scratch.join(name));
        let services: Vec<_> = ServiceKind::ALL.into_iter().zip(ports[1..].iter().copied()).collect();
        let mut command = serve(program, &data, &services);
        command.args(["--console-port", "off", "--smb-port"]).arg(smb_port.to_string()).args(options);
        let log = scratch.join(format!("{name}.log"));
        let process = Process::start("lazuli serve", command, &ports, &log).await?;
        let target =
            TargetAccount { account: Arc::new(StorageAccount::development_on(HOST, services)), tls: None };
        Ok(Self { process, target, smb_port, data })
    }
}

/// Returns the command that serves a data directory on these ports.
pub(crate) fn serve(program: &Path, data: &Path, ports: &[(ServiceKind, u16)]) -> Command {
    let mut command = Command::new(program);
    // Variables that the user has set for another server must not affect this one.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LAZULI_") || name == "AZURITE_ACCOUNTS" {
            command.env_remove(name);
        }
    }
    command.args(["serve", "--host", HOST, "--log-level", "warn", "--data"]).arg(data);
    for (service, port) in ports {
        command.arg(format!("--{}-port", service.name())).arg(port.to_string());
    }
    command
}

/// Returns different ports that were free a moment ago.
pub(crate) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners =
        (0..count).map(|_| TcpListener::bind((HOST, 0))).collect::<io::Result<Vec<TcpListener>>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// Returns the last three lines that are not blank, joined.
pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ() {
        let mut ports = free_ports(4).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 4);
    }

    #[test]
    fn tail_is_the_last_three_lines_that_are_not_blank() {
        assert_eq!(tail("a\nb\n\nc\nd\n"), "b / c / d");
        assert_eq!(tail(""), "");
    }

    #[tokio::test]
    async fn server_that_ends_at_once_is_reported_with_its_output() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such option; exit 3"]);
        let (ports, log) = (free_ports(1).unwrap(), dir.path().join("log"));
        let error = Process::start("sh", command, &ports, &log).await.err().unwrap();
        assert_eq!(error.to_string(), "sh: exit status: 3: no such option");
    }

    #[test]
    fn usage_is_read_past_any_program_name() {
        let stat = "42 (a) b) c) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 1 2 3";
        let status = "Name:\ta\nVmRSS:\t  2048 kB\nRssAnon:\t  1024 kB\nThreads:\t9\n";
        let expected = Usage {
            cpu: Duration::from_secs(2),
            resident: 2 << 20,
            anonymous: 1 << 20,
            threads: 9,
            handles: 0,
        };
        assert_eq!(usage(stat, status), Some(expected));
        assert_eq!(usage("42 (a", status), None);
    }

    #[tokio::test]
    async fn usage_of_a_real_process_is_read() {
        let mut command = Command::new("sleep");
        let process = Process(command.arg("60").kill_on_drop(true).spawn().unwrap());
        let usage = process.usage().unwrap();
        assert!(usage.threads == 1 && usage.handles > 0, "{usage:?}");
        process.stop().await;
    }
}
