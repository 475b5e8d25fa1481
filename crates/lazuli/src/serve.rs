//! `lazuli serve`: opens the data directory, wires the layers together, and serves until it is told to stop.

use std::io::{IsTerminal, Write, stdout};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazuli_account::{AccountDirectory, ServiceLevel, development_key};
use lazuli_auth::Authenticator;
use lazuli_auth::user_delegation::MasterSecret;
use lazuli_blob::BlobService;
use lazuli_concurrency::{Clock, SystemClock, Timestamp};
use lazuli_copy::{CopySources, Neighbours};
use lazuli_extents::Extents;
use lazuli_file::FileService;
use lazuli_front::{Console, Endpoint, Gate, Limits, Metrics, Server, Tls};
use lazuli_generations::content::ContentSweeper;
use lazuli_outbound::Outbound;
use lazuli_queue::QueueService;
use lazuli_store::{Directory, Embedded, Store, Trust};
use lazuli_table::TableService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::background::{Background, BlobExpiry, Chore, ContentSweep, GarbageSweep, MessageExpiry};
use crate::config::{Config, TlsSource};
use crate::control::{Control, Intakes};
use crate::data::Data;
use crate::metrics::Sources;
use crate::ready::Ready;
use crate::scrub::Scrub;
use crate::services::Services;
use crate::smb::Smb;
use crate::{Failure, health, logging, oidc, provision, services};

/// How long requests under way may take to finish when the server stops.
const DRAIN_TIME: Duration = Duration::from_secs(30);
/// The same for the console, which stays to the end to say that the server is draining.
const CONSOLE_DRAIN_TIME: Duration = Duration::from_secs(1);

/// File descriptors of the store and of content, of which each keeps up to 256 files open, and of all else that there are
/// few of: the log, what is being written, listeners, the console.
const FILES_OF_DATA: u64 = 2 * 256 + 128;
/// Connections to sources of copies: of those that go on after their requests, to blobs and to files, and of requests that wait
/// for theirs.
const COPY_CONNECTIONS: usize = 2 * lazuli_copy::MAX_CONNECTIONS + lazuli_outbound::MAX_CONNECTIONS;
/// File descriptors that are not for clients.
const FILES_RESERVED: u64 = FILES_OF_DATA + COPY_CONNECTIONS as u64;
/// Connections of an endpoint that are let in even where there are fewer.
const FEWEST_CONNECTIONS: u64 = 16;

/// Serves until a signal says to stop.
pub(crate) fn run(config: Config) -> Result<(), Failure> {
    let _logs = logging::init(config.log, &config.log_level)?;
    let limits = limits(raise_file_limit(), &config);
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::failed)?;
    runtime.block_on(serve(config, limits))
}

async fn serve(config: Config, limits: Limits) -> Result<(), Failure> {
    let directory = Directory::open(&config.data).map_err(Failure::failed)?;
    let trust = if config.accept_time { Trust::Any } else { Trust::Checked };
    let data = Data::open(directory, config.cache_bytes, trust)?;
    let accounts = AccountDirectory::open(data.store.clone()).await.map_err(Failure::failed)?;
    let development_key = provision::provision(&accounts, &config).await?;

    health::log_failures(&data.store);
    let metrics = Arc::new(Metrics::default());
    let gate = gate(&config, &data, &accounts)?;
    let services = Services::new(&data, &accounts, copy_sources(&config, &gate));
    let connections = limits.connections;
    let tls = tls(&config, data.directory.path(), gate.machine.now())?;
    let server = start_services(&config, limits, tls.as_ref(), &services, &accounts, gate, &metrics)?;
    services.neighbours.listen_on(server.addresses().map(|(kind, address)| (kind, address.port())));
    let smb = Smb::start(&config, connections, &services, &accounts).await?;
    let draining = Arc::new(AtomicBool::new(false));
    let sweeper = Arc::new(data.sweeper());
    let scrub = Arc::new(Scrub::new(&data, data.clock.clone(), config.scrub_rate));
    let sources = Sources {
        front: metrics,
        store: data.store.clone(),
        extents: data.extents.clone(),
        sweeper: sweeper.clone(),
        scrub: scrub.clone(),
        accounts: accounts.clone(),
        blob: services.blob.clone(),
        file: services.file.clone(),
        queue: services.queue.clone(),
        table: services.table.clone(),
        smb: smb.as_ref().map(Smb::server),
        clock: data.clock.clone(),
        data: data.directory.path().to_owned(),
    };
    let console = start_console(&config, &data, sources, &draining)?;
    let intakes =
        Intakes::new(data.store.clone(), Arc::new(data.extents.clone()), accounts.clone(), &services);
    let control = Control::start(
        data.directory.path(),
        data.extents.clone(),
        accounts.clone(),
        development_key,
        Some(intakes),
    )
    .map_err(|error| Failure::Failed(format!("control socket: {error}")))?;
    let (blob, file) = (services.blob.clone(), services.file.clone());
    tokio::spawn(async move { tokio::join!(blob.resume_copies(), file.resume_copies()) });
    let background = Background::start(chores(&data, &services, sweeper));
    let scrubbing = tokio::spawn(async move { scrub.run().await });

    // Before this a signal simply ends the process, which is no worse than a crash, and those are prepared for.
    let mut signals = Signals::new().map_err(Failure::failed)?;
    let smb_address = smb.as_ref().map(Smb::address);
    announce(&config, &data, &accounts, &server, smb_address, console.as_ref()).await?;
    while signals.next().await == Asked::Reload {
        reload(&config.tls, tls.as_ref());
    }
    tracing::info!("draining; another signal exits at once");
    draining.store(true, Ordering::Relaxed);
    tokio::spawn(async move {
        while signals.next().await == Asked::Reload {}
        std::process::exit(1);
    });
    drop(control);
    let smb_stopped = async {
        if let Some(smb) = smb {
            smb.stop().await;
        }
    };
    let (finished, ()) = tokio::join!(server.shutdown(DRAIN_TIME), smb_stopped);
    if !finished {
        tracing::warn!("requests were still under way after {DRAIN_TIME:?}");
    }
    services.file.flush_all().await;
    background.stop().await;
    scrubbing.abort();
    let _ = scrubbing.await;
    services.blob.stop_copies().await;
    services.file.stop_copies().await;
    services.file.release_slices().await;
    if let Some(console) = console {
        console.shutdown(CONSOLE_DRAIN_TIME).await;
    }
    close(data).await
}

/// What the server does on its own.
fn chores(data: &Data, services: &Services, sweeper: Arc<ContentSweeper>) -> Vec<Box<dyn Chore>> {
    let extents: Arc<dyn Extents> = Arc::new(data.extents.clone());
    vec![
        Box::new(GarbageSweep {
            what: "deleted containers",
            service: services.blob.clone(),
            is_due: BlobService::garbage_due,
            sweep: |blob, pace| Box::pin(blob.sweep_garbage(pace)),
        }),
        Box::new(BlobExpiry { blob: services.blob.clone() }),
        Box::new(GarbageSweep {
            what: "deleted tables",
            service: services.table.clone(),
            is_due: TableService::sweep_due,
            sweep: |table, pace| Box::pin(table.sweep(pace)),
        }),
        Box::new(GarbageSweep {
            what: "deleted shares",
            service: services.file.clone(),
            is_due: FileService::sweep_due,
            sweep: |file, pace| Box::pin(file.sweep(pace)),
        }),
        Box::new(GarbageSweep {
            what: "deleted and cleared queues",
            service: services.queue.clone(),
            is_due: QueueService::garbage_due,
            sweep: |queue, pace| Box::pin(queue.sweep_garbage(pace)),
        }),
        Box::new(MessageExpiry { queue: services.queue.clone() }),
        Box::new(ContentSweep::new(sweeper, extents)),
    ]
}

/// Writes out what is in memory and gives the directory back.
async fn close(data: Data) -> Result<(), Failure> {
    tokio::task::spawn_blocking(move || {
        data.store.close();
        if data.store.is_healthy() {
            tracing::info!("stopped");
            Ok(())
        } else {
            Err(Failure::Failed("the store had stopped after a disk failure".into()))
        }
    })
    .await
    .map_err(Failure::failed)?
}

fn start_services(
    config: &Config,
    limits: Limits,
    tls: Option<&Tls>,
    services: &Services,
    accounts: &AccountDirectory,
    gate: Arc<Gate>,
    metrics: &Arc<Metrics>,
) -> Result<Server, Failure> {
    let endpoint = |(kind, port)| {
        let service = services::behind(kind, services);
        let service = Arc::new(ServiceLevel::new(kind, accounts.clone(), service));
        Endpoint { kind, address: SocketAddr::new(config.host, port), service }
    };
    let endpoints = config.services.iter().copied().map(endpoint).collect();
    Server::start(endpoints, gate, tls, limits, metrics).map_err(Failure::failed)
}

/// Who is let in.
fn gate(config: &Config, data: &Data, accounts: &AccountDirectory) -> Result<Arc<Gate>, Failure> {
    let issuer = config.oidc.as_ref().map(oidc::issuer).transpose()?;
    Ok(Arc::new(Gate {
        accounts: Arc::new(accounts.clone()),
        authenticator: Authenticator::new(MasterSecret::new(accounts.master_secret()), issuer),
        clock: Arc::new(StoreClock(data.store.clone())),
        machine: Arc::new(SystemClock),
        host_suffixes: config.host_suffixes.clone(),
    }))
}

/// What copies may come from.
fn copy_sources(config: &Config, gate: &Arc<Gate>) -> CopySources {
    CopySources {
        access: gate.clone(),
        host_suffixes: config.host_suffixes.clone(),
        outbound: Outbound::new(config.copy_source_allow.clone()),
        neighbours: Neighbours::default(),
    }
}

fn start_console(
    config: &Config,
    data: &Data,
    sources: Sources,
    draining: &Arc<AtomicBool>,
) -> Result<Option<Console>, Failure> {
    let Some(port) = config.console_port else { return Ok(None) };
    let address = SocketAddr::new(config.host, port);
    let (store, extents, draining) = (data.store.clone(), data.extents.clone(), draining.clone());
    let (sweeper, scrub) = (sources.sweeper.clone(), sources.scrub.clone());
    let clock = data.clock.clone();
    let readiness = move || {
        let draining = draining.load(Ordering::Relaxed);
        let readiness = health::readiness(draining, extents.is_stopped(), &store.health());
        let alarms = [sweeper.alarm(), scrub.alarm(), clock.refused_step().map(health::refused_step)];
        alarms.into_iter().flatten().fold(readiness, health::with_alarm)
    };
    let console = Console::start(address, Box::new(readiness), Box::new(move || sources.render()));
    console
        .map(Some)
        .map_err(|error| Failure::Failed(format!("cannot listen on {address} for the console: {error}")))
}

fn tls(config: &Config, directory: &Path, now: Timestamp) -> Result<Option<Tls>, Failure> {
    match &config.tls {
        TlsSource::Off => Ok(None),
        TlsSource::Files { certificate, key } => Tls::from_files(certificate, key).map(Some),
        TlsSource::SelfSigned => {
            let mut hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
            if !config.host.is_unspecified() && !hosts.contains(&config.host.to_string()) {
                hosts.push(config.host.to_string());
            }
            hosts.extend(config.host_suffixes.iter().map(|suffix| format!("*.{suffix}")));
            Tls::self_signed(&directory.join("tls"), &hosts, now).map(Some)
        }
    }
    .map_err(Failure::failed)
}

/// Reads the files of the certificate again. What cannot be used is said, and the server goes on with what it has.
fn reload(source: &TlsSource, tls: Option<&Tls>) {
    let (TlsSource::Files { certificate, key }, Some(tls)) = (source, tls) else {
        return tracing::info!("there is no certificate to read again");
    };
    match tls.reload(certificate, key) {
        Ok(()) => tracing::info!("the certificate was read again"),
        Err(error) => tracing::error!(%error, "the certificate stays as it was"),
    }
}

/// Says where everything is. A key is shown if everybody knows it anyway, or if only a person reads it.
async fn announce(
    config: &Config,
    data: &Data,
    accounts: &AccountDirectory,
    server: &Server,
    smb: Option<SocketAddr>,
    console: Option<&Console>,
) -> Result<(), Failure> {
    let accounts = accounts.list().await.map_err(Failure::failed)?;
    let account = accounts.iter().find(|account| !account.settings.disabled).or(accounts.first());
    let public = account.is_some_and(|account| account.keys.first() == Some(&development_key()));
    let path = data.directory.path();
    let ready = Ready {
        tls: config.tls != TlsSource::Off,
        services: &server.addresses().collect::<Vec<_>>(),
        smb,
        console: console.map(Console::address),
        data: &path.canonicalize().unwrap_or_else(|_| path.to_owned()),
        account: account.map(|account| &**account),
        show_key: public || stdout().is_terminal(),
    };
    let mut stdout = stdout().lock();
    // Nobody may be listening, which is no reason not to serve.
    let _ = stdout.write_all(ready.block().as_bytes()).and_then(|()| stdout.flush());
    Ok(())
}

/// The store's clock, for those who know no store.
struct StoreClock(Arc<Embedded>);

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// The signals that ask something of the server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// To stop.
    Stop,
    /// To read the certificate again.
    Reload,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hang_up.recv() => Asked::Reload,
        }
    }
}

/// Thousands of connections need thousands of file descriptors. What cannot be had is left as it is. Returns how many
/// there may be.
fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files");
            limit.current
        }
    };
    current.unwrap_or(u64::MAX)
}

/// The bounds of the endpoints, where the process may have so many open files.
fn limits(files: u64, config: &Config) -> Limits {
    let endpoints = config.services.len() + usize::from(config.smb_port.is_some());
    let usual = Limits::default();
    let connections = connections(files, endpoints as u64).min(usual.connections);
    if connections < usual.connections {
        tracing::warn!(
            "with at most {files} open files, an endpoint serves {connections} connections at once, not {}",
            usual.connections
        );
    }
    Limits { connections, ..usual }
}

/// How many connections each of some endpoints can have without taking the files of the store. All have the same share, so
/// that none can take another's.
fn connections(files: u64, endpoints: u64) -> usize {
    let each = files.saturating_sub(FILES_RESERVED) / endpoints.max(1);
    usize::try_from(each.max(FEWEST_CONNECTIONS)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_the_store_its_files() {
        for (files, endpoints, expected) in
            [(1 << 20, 5, 209_542), (100_000, 5, 19_827), (4096, 4, 808), (1024, 5, 32), (256, 5, 16)]
        {
            assert_eq!(connections(files, endpoints), expected, "{files} {endpoints}");
        }
    }
}
