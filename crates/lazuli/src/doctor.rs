//! `lazuli doctor`: checks the machine and the configuration before or while a server runs. Reads only.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use indicatif::HumanBytes;
use lazuli_account::development_key;
use lazuli_concurrency::{Clock, Span, SystemClock};
use lazuli_front::Tls;
use rustix::process::{Resource, getrlimit};

use crate::Failure;
use crate::account::output::aligned;
use crate::config::{Config, TlsSource};
use crate::control::{self, StatusReply};
use crate::endpoints::{Endpoints, reachable};
use crate::probe::MemoryServer;
use crate::report::{DiskUse, State};
use crate::target::{DataArgs, DataTarget};

/// Timeout for connecting to a port of the running server.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Writes that are timed to measure the disk.
const SYNCS: usize = 21;
/// A sync that takes longer than this makes every write slow.
const SLOW_SYNC: Duration = Duration::from_millis(25);
/// Below this much free space, the disk is nearly full.
const LOW_SPACE: u64 = 1 << 30;
/// A certificate that expires within this time should be renewed.
const RENEW_WITHIN: Span = Span::seconds(14 * 24 * 60 * 60);
/// Type numbers of file systems, as statfs(2) has them.
const TMPFS: u64 = 0x0102_1994;
const NFS: u64 = 0x6969;
const OVERLAY: u64 = 0x794C_7630;

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataArgs,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
struct Finding {
    level: Level,
    /// The subject of the check.
    what: &'static str,
    message: String,
    /// The remedy.
    fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    /// The server works, with a drawback.
    Warning,
    /// The server does not start, or loses data or secrets.
    Problem,
}

fn ok(what: &'static str, message: impl Into<String>) -> Finding {
    Finding { level: Level::Ok, what, message: message.into(), fix: None }
}

fn warning(what: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { level: Level::Warning, what, message: message.into(), fix: Some(fix.into()) }
}

fn problem(what: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { level: Level::Problem, what, message: message.into(), fix: Some(fix.into()) }
}

/// Prints the result of each check. Fails if one found a problem.
pub(crate) fn run(args: DoctorArgs, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    let target = DataTarget::load(args.data, variable)?;
    let running = control::request_status(&target.directory, false);
    let findings = examine(&target, running);
    match args.json {
        true => println!("{:#}", serde_json::json!(findings)),
        false => print!("{}", text(&findings)),
    }
    match findings.iter().filter(|finding| finding.level == Level::Problem).count() {
        0 => Ok(()),
        count => Err(Failure::Failed(format!("{count} {}", if count == 1 { "problem" } else { "problems" }))),
    }
}

fn text(findings: &[Finding]) -> String {
    let row = |finding: &Finding| {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "PROBLEM",
        };
        let fix = finding.fix.as_ref().map_or_else(String::new, |fix| format!(". Fix: {fix}"));
        [level.to_owned(), finding.what.to_owned(), format!("{}{fix}", finding.message)]
    };
    aligned(["RESULT", "CHECK", "FINDING"], findings.iter().map(row).collect())
}

fn examine(target: &DataTarget, running: Result<Option<StatusReply>, Failure>) -> Vec<Finding> {
    let mut findings = vec![];
    let configured = Endpoints::configured(&target.config);
    let endpoints = match &running {
        Ok(Some(Ok(status))) => {
            let message = format!("version {}, process {}", status.version, status.process);
            findings.push(match (status.state, status.reasons.join("; ")) {
                (State::Ready, _) => ok("server", format!("ready: {message}")),
                (State::Degraded, why) => warning("server", format!("degraded: {why}"), "see its log"),
                (State::NotReady, why) => problem("server", format!("not ready: {why}"), "see its log"),
            });
            Some(&status.endpoints)
        }
        Ok(Some(Err(error))) => {
            findings.push(problem("server", error.clone(), "see its log"));
            None
        }
        Ok(None) => match MemoryServer::find(&target.config) {
            Some(MemoryServer { console, readiness }) => {
                findings.push(ok("server", format!("{readiness} (at {console})")));
                Some(&configured)
            }
            None => {
                findings.push(ok("server", "not running"));
                None
            }
        },
        Err(error) => {
            findings.push(problem("server", error.to_string(), "see its log, or restart it"));
            None
        }
    };
    findings.push(data_directory(&target.directory, matches!(running, Ok(Some(_)))));
    findings.push(match endpoints {
        Some(endpoints) => served_ports(endpoints),
        None => free_ports(&configured),
    });
    findings.push(open_files(&target.config));
    findings.push(clock(&target.directory));
    findings.extend(disk(&target.directory));
    findings.push(certificate(&target.config));
    findings.push(exposure(target));
    findings
}

/// Returns the directory, or the nearest one above it that exists.
fn existing(directory: &Path) -> &Path {
    let nearest = directory.ancestors().find(|path| !path.as_os_str().is_empty() && path.exists());
    nearest.unwrap_or(Path::new("."))
}

fn data_directory(directory: &Path, is_served: bool) -> Finding {
    let (what, shown) = ("data directory", directory.display());
    let place = existing(directory);
    if let Err(error) = tempfile::tempfile_in(place) {
        let fix = format!("make {} writable for this user, or choose another --data", place.display());
        return problem(what, format!("{}: {error}", place.display()), fix);
    }
    if is_served {
        return ok(what, format!("{shown} is served"));
    }
    if place != directory {
        return ok(what, format!("{shown} does not exist yet; lazuli serve creates it"));
    }
    match lazuli_store::Directory::open_read_only(directory) {
        Ok(_) => ok(what, format!("{shown} is not in use")),
        Err(_) if std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none()) => {
            ok(what, format!("{shown} is empty"))
        }
        Err(error) => problem(what, error.to_string(), "choose another --data, or stop the other process"),
    }
}

/// Returns the ports of a server, with the name of each.
fn ports(endpoints: &Endpoints) -> Vec<(&'static str, SocketAddr)> {
    let services = endpoints.services.iter().map(|(kind, address)| (kind.name(), *address));
    let others = [("smb", endpoints.smb), ("console", endpoints.console)];
    services.chain(others.into_iter().filter_map(|(name, address)| Some((name, address?)))).collect()
}

fn served_ports(endpoints: &Endpoints) -> Finding {
    let refused: Vec<_> = ports(endpoints)
        .into_iter()
        .filter_map(|(name, address)| {
            let error = TcpStream::connect_timeout(&reachable(address), CONNECT_TIME).err()?;
            Some(format!("{name} at {address}: {error}"))
        })
        .collect();
    match refused.is_empty() {
        true => ok("ports", "the server answers on all of them"),
        false => problem("ports", refused.join("; "), "look for a firewall, and see the log of the server"),
    }
}

fn free_ports(endpoints: &Endpoints) -> Finding {
    let mut taken = vec![];
    let mut needs_capability = false;
    for (name, address) in ports(endpoints) {
        if let Err(error) = TcpListener::bind(address) {
            needs_capability |= error.kind() == std::io::ErrorKind::PermissionDenied;
            taken.push((name, format!("{name} at {address}: {error}")));
        }
    }
    let Some((first, _)) = taken.first() else { return ok("ports", "all of them are free") };
    let fix = match needs_capability {
        true => "give the process CAP_NET_BIND_SERVICE, or choose a port above 1023".to_owned(),
        false => format!("stop the other program, or choose another port with --{first}-port"),
    };
    let list: Vec<_> = taken.iter().map(|(_, text)| text.clone()).collect();
    problem("ports", list.join("; "), fix)
}

fn open_files(config: &Config) -> Finding {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let connections = crate::serve::connection_limit(limit, config);
    let usual = lazuli_front::Limits::default().connections;
    let message = format!("each endpoint serves up to {connections} connections at once");
    match connections < usual {
        true => warning(
            "open files",
            format!("at most {limit}, so {message}, not {usual}"),
            "raise the limit: LimitNOFILE= in the systemd unit, --ulimit nofile= of the container, ulimit -n",
        ),
        false => ok("open files", message),
    }
}

fn clock(directory: &Path) -> Finding {
    let newest = ["store", "segments", "scrub", "sweep"]
        .iter()
        .filter_map(|entry| directory.join(entry).metadata().ok()?.modified().ok())
        .max();
    let ahead = newest.and_then(|newest| newest.duration_since(SystemTime::now()).ok());
    if let Some(ahead) = ahead.filter(|ahead| *ahead > Duration::from_secs(60)) {
        let message = format!("the data was changed {} s after the machine's time", ahead.as_secs());
        return problem("clock", message, "set the clock, for example with chronyd or systemd-timesyncd");
    }
    // Both daemons leave a file when the clock is synchronized.
    let is_synchronized = ["/run/systemd/timesync/synchronized", "/run/chrony/chronyd.pid"]
        .iter()
        .any(|p| Path::new(p).exists());
    match is_synchronized {
        true => ok("clock", "it is synchronized"),
        false => warning(
            "clock",
            "no daemon that synchronizes it was found here",
            "run chronyd or systemd-timesyncd, on the host of a container: clients with another time are refused",
        ),
    }
}

fn disk(directory: &Path) -> Vec<Finding> {
    let place = existing(directory);
    let DiskUse { free, total, .. } = DiskUse::of_device(place);
    let space = format!("{} free of {}", HumanBytes(free), HumanBytes(total));
    let mut findings = vec![match free < LOW_SPACE || free < total / 20 {
        true => {
            warning("disk space", space, "free space or move the data: writes are refused when it is full")
        }
        false => ok("disk space", space),
    }];
    let kind = rustix::fs::statfs(place).map_or(0, |found| found.f_type as u64);
    findings.extend(match kind {
        TMPFS => Some(problem("file system", "tmpfs: data is lost with the next restart", "choose a disk")),
        NFS => Some(warning(
            "file system",
            "NFS: a lost connection stops the server, and its syncs are slow",
            "use a local disk",
        )),
        OVERLAY => Some(problem(
            "file system",
            "overlay: data is lost with the container",
            "mount a volume at the data directory",
        )),
        _ => None,
    });
    findings.push(match sync_time(place) {
        Ok(time) if time > SLOW_SYNC => warning(
            "disk sync",
            format!("{:.1} ms for 4 KiB: each write waits at least that long", time.as_secs_f64() * 1e3),
            "use a disk with power-loss protection",
        ),
        Ok(time) => ok("disk sync", format!("{:.2} ms for 4 KiB", time.as_secs_f64() * 1e3)),
        Err(error) => problem("disk sync", error.to_string(), "see the log of the operating system"),
    });
    findings
}

/// Returns the median time of a small write that is made durable.
fn sync_time(place: &Path) -> std::io::Result<Duration> {
    let mut file = tempfile::tempfile_in(place)?;
    let mut times = vec![];
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&[0; 4096])?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[SYNCS / 2])
}

fn certificate(config: &Config) -> Finding {
    const WHAT: &str = "TLS";
    let is_local = config.exposed_host().is_none();
    match &config.tls {
        TlsSource::Off if is_local => ok(WHAT, "off, and only this machine can connect"),
        TlsSource::Off => warning(
            WHAT,
            "off: keys of signatures and data travel unencrypted",
            "use --tls-cert and --tls-key, or a proxy with TLS",
        ),
        TlsSource::SelfSigned => ok(WHAT, "self-signed: clients must trust the certificate in DATA/tls"),
        TlsSource::Files { certificate, key } => {
            let names: Vec<_> = config.host_suffixes.iter().map(|suffix| format!("*.{suffix}")).collect();
            let now = SystemClock.now();
            let fix = "replace the files of --tls-cert and --tls-key, then send SIGHUP to the server";
            match Tls::examine(certificate, key, &names, now) {
                Err(error) => problem(WHAT, error.to_string(), fix),
                Ok(problems) if !problems.is_empty() => problem(WHAT, problems.join("; "), fix),
                Ok(_) => match Tls::examine(certificate, key, &names, now + RENEW_WITHIN) {
                    Ok(later) if !later.is_empty() => {
                        warning(WHAT, format!("within 14 days: {}", later.join("; ")), fix)
                    }
                    _ => ok(WHAT, format!("{} is in order", certificate.display())),
                },
            }
        }
    }
}

fn exposure(target: &DataTarget) -> Finding {
    const WHAT: &str = "development key";
    let (config, data) = (&target.config, target.directory.display());
    let accounts = match target.accounts() {
        Ok(accounts) => accounts,
        Err(error) => return warning(WHAT, format!("accounts cannot be read: {error}"), "see above"),
    };
    let known = development_key();
    let Some(account) = accounts.iter().find(|account| account.keys.contains(&known)) else {
        return ok(WHAT, "no account has it");
    };
    let name = &account.name;
    let Some(host) = config.exposed_host() else {
        return ok(WHAT, format!("account {name} has it, and only this machine can connect"));
    };
    let slot = if account.keys.first() == Some(&known) { "" } else { " --key 2" };
    let fix = format!("lazuli account rotate-key {name}{slot} --data {data}");
    match config.insecure_dev_key {
        true => warning(WHAT, format!("every client that reaches {host} can use account {name}"), fix),
        false => problem(WHAT, format!("account {name} has it, so the server refuses to start"), fix),
    }
}
