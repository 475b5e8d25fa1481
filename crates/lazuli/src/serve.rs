//! `lazuli serve`: opens the data, connects the layers, and serves until a signal stops it.

use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazuli_account::{AccountDirectory, ServiceLevel};
use lazuli_auth::Authenticator;
use lazuli_auth::bearer::Issuer;
use lazuli_auth::user_delegation::MasterSecret;
use lazuli_blob::BlobService;
use lazuli_concurrency::{Clock, SystemClock, Timestamp};
use lazuli_console::WebConsole;
use lazuli_content::sweep::ContentSweeper;
use lazuli_copy::{CopySources, LocalServices};
use lazuli_extents::Extents;
use lazuli_file::FileService;
use lazuli_front::{
    Admission, BoundEndpoints, Console, ConsoleSocket, HttpServer, Limits, Metrics, Readiness, Tls, TlsError,
};
use lazuli_outbound::Outbound;
use lazuli_protocol::Service;
use lazuli_queue::QueueService;
use lazuli_store::{Store, scheduling};
use lazuli_table::TableService;
use lazuli_telemetry::{AccessLog, AccessLogWriter, LineFormat, Telemetry, Tracer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::runtime::{self, Handle};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::background::{
    Background, BlobExpiry, Chore, Chores, ContentSweep, DroppedBlocks, GarbageSweep, IdleShares,
    MessageExpiry, RemovedAccounts,
};
use crate::config::{Config, LogFormat, TlsSource, unknown_variables};
use crate::endpoints::{ConsoleLink, Endpoints};
use crate::engine::{self, Engine};
use crate::metrics::Sources;
use crate::ready::Ready;
use crate::report::RunningServer;
use crate::reporter::Reporter;
use crate::services::Services;
use crate::smb::Smb;
use crate::traces::TraceExporter;
use crate::usage_counter::UsageCounter;
use crate::{Failure, azurite, health, logging, oidc, provision, seed, service_manager, web};

/// Time for requests in flight to finish when the server stops.
const DRAIN_TIME: Duration = Duration::from_secs(30);
/// Drain time of the console, which stops last so that it can report that the server is draining.
const CONSOLE_DRAIN_TIME: Duration = Duration::from_secs(1);

/// File descriptors for data: the store and the segments keep up to 256 files open each. The rest is for the
/// log, files being written, listeners and the console.
const FILES_OF_DATA: u64 = 2 * 256 + 128;
/// Connections to copy sources: of pending copies to blobs and to files, and of requests that copy
/// synchronously.
const COPY_CONNECTIONS: usize = 2 * lazuli_copy::MAX_CONNECTIONS + lazuli_outbound::MAX_CONNECTIONS;
/// File descriptors that are not available to clients.
const FILES_RESERVED: u64 = FILES_OF_DATA + COPY_CONNECTIONS as u64;
/// Minimum connection limit of an endpoint, even if there are too few file descriptors.
const FEWEST_CONNECTIONS: u64 = 16;

/// Tasks that a worker runs before it polls for new input. With Tokio's default of 61, a read waited for up
/// to 61 puts.
const TASKS_PER_POLL: u32 = 16;

/// The program whose text the server prints when it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Banner {
    /// Addresses and connection strings.
    Lazuli,
    /// The text of Lazuli, then the lines of Azurite.
    Azurite,
}

/// Serves until a signal says to stop.
pub(crate) fn run(config: Config, banner: Banner) -> Result<(), Failure> {
    let _logs = logging::init(config.log, &config.log_level)?;
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    unknown_variables(variables).iter().for_each(|warning| tracing::warn!("{warning}"));
    let (telemetry, _access_log) = telemetry(&config)?;
    let limits = limits(raise_file_limit(), &config);
    let mut runtime = runtime::Builder::new_multi_thread();
    runtime.enable_all().on_thread_start(scheduling::worker).event_interval(TASKS_PER_POLL);
    let runtime = runtime.build().map_err(Failure::failed)?;
    // Sweeps read many rows at a time, so separate threads keep them from delaying requests.
    let mut background = runtime::Builder::new_multi_thread();
    background.worker_threads(1).thread_name("lazuli-chores").enable_all();
    let background = background.on_thread_start(scheduling::sweeper).build().map_err(Failure::failed)?;
    runtime.block_on(serve(config, banner, limits, telemetry, background.handle()))
}

/// Opens the receivers of reports about requests.
fn telemetry(config: &Config) -> Result<(Telemetry, Option<AccessLogWriter>), Failure> {
    let tracer = config.traces.as_ref().map(|traces| Tracer::new(traces.share));
    let Some(destination) = config.access_log.clone() else {
        return Ok((Telemetry { access_log: None, tracer }, None));
    };
    let format = match config.log {
        LogFormat::Text => LineFormat::Text,
        LogFormat::Json => LineFormat::Json,
    };
    let opened = AccessLog::open(destination, format);
    let (log, writer) = opened.map_err(|error| Failure::Failed(format!("--access-log: {error}")))?;
    Ok((Telemetry { access_log: Some(log), tracer }, Some(writer)))
}

async fn serve(
    config: Config,
    banner: Banner,
    limits: Limits,
    telemetry: Telemetry,
    background: &Handle,
) -> Result<(), Failure> {
    // A server that cannot listen, or with a configuration that cannot work, creates no data directory.
    let sockets = Sockets::bind(&config).await?;
    let given_tls = given_tls(&config.tls)?;
    let issuer = config.oidc.as_ref().map(oidc::issuer).transpose()?;
    seed::examine(&config)?;
    provision::examine(&config)?;
    let engine = engine::open(&config)?;
    let (store, extents, clock) = (engine.store(), engine.extents(), engine.clock());
    let accounts = AccountDirectory::open(store.clone()).await.map_err(Failure::failed)?;
    let development_key = provision::provision(&accounts, &config).await?;

    let metrics = Arc::new(Metrics::with_telemetry(telemetry.clone()));
    let gate = gate(&config, issuer, store.clone(), &accounts);
    let sources = copy_sources(&config, &gate);
    let services = Services::new(&store, &extents, &accounts, sources, metrics.watch());
    let connections = limits.connections;
    let started = gate.wall_clock.now();
    let tls = match config.tls {
        TlsSource::SelfSigned => Some(self_signed_tls(&config, engine.directory(), started)?),
        TlsSource::Off | TlsSource::Files { .. } => given_tls,
    };
    seed::provide(&config, &accounts, &services, &*gate.clock).await?;
    let service =
        |kind| Arc::new(ServiceLevel::new(kind, accounts.clone(), services.get(kind))) as Arc<dyn Service>;
    let server = HttpServer::serve(sockets.services, service, &gate, tls.as_ref(), limits, &metrics);
    services.local_services.set_ports(server.addresses().map(|(kind, address)| (kind, address.port())));
    let smb = Smb::start(sockets.smb, &config, connections, &services, &accounts, telemetry.clone())?;
    let draining = Arc::new(AtomicBool::new(false));
    let sweeper = Arc::new(engine.sweeper());
    let chores = Chores::new(chores(&extents, &services, &accounts, sweeper.clone()));
    let usage = UsageCounter::new(accounts.clone());
    let own_chores = engine.chores().into_iter().chain([usage.health()]);
    let sources = Sources {
        front: metrics,
        engine: engine.clone(),
        store,
        extents,
        sweeper,
        accounts: accounts.clone(),
        blob: services.blob.clone(),
        file: services.file.clone(),
        queue: services.queue.clone(),
        table: services.table.clone(),
        smb: smb.as_ref().map(Smb::server),
        telemetry: telemetry.clone(),
        chores: chores.health().into_iter().chain(own_chores).collect(),
        usage: usage.clone(),
        clock,
    };
    let readiness = readiness(&sources, &draining);
    let sources = Arc::new(sources);
    let web_console = sockets.console.as_ref().and_then(|socket| {
        let parts = web::Parts {
            config: &config,
            accounts: &accounts,
            services: &services,
            server: &server,
            metrics: sources.clone(),
            readiness: readiness.clone(),
        };
        parts.start(socket.address())
    });
    let reporter =
        Reporter { front: sources.front.clone(), smb: sources.smb.clone(), engine: engine.clone() };
    let console = sockets.console.map(|socket| {
        let readiness = readiness.clone();
        let metrics = Box::new(move || sources.render());
        let pages = web_console.as_ref().map(WebConsole::pages);
        let proxies = config.trusted_proxies.clone().into();
        Console::serve(socket, Box::new(move || readiness()), metrics, pages, tls.as_ref(), proxies)
    });
    let endpoints = Endpoints {
        tls: tls.is_some(),
        services: server.addresses().collect(),
        smb: smb.as_ref().map(Smb::address),
        console: console.as_ref().map(Console::address),
        certificate: self_signed_certificate(&config, engine.directory()),
    };
    let link = web::link(web_console.as_ref(), &endpoints);
    let running = RunningServer {
        endpoints: endpoints.clone(),
        started,
        readiness,
        console_link: link.clone(),
        usage: usage.clone(),
    };
    let control = engine.start_control(&accounts, development_key, &services, running)?;
    let (blob, file) = (services.blob.clone(), services.file.clone());
    tokio::spawn(async move { tokio::join!(blob.resume_copies(), file.resume_copies()) });
    let reports = reporter.start();
    let exporter = telemetry.tracer.clone().zip(config.traces.as_ref());
    let exporter = exporter.map(|(tracer, traces)| TraceExporter::start(tracer, traces.collector.clone()));
    let own_work = engine.start_background(background);
    let counting = usage.start(background);
    let background = Background::start(background, chores);

    // Before this point a signal ends the process like a crash, which loses no acknowledged data.
    let mut signals = Signals::new().map_err(Failure::failed)?;
    announce(banner, engine.directory(), &accounts, &endpoints, link).await?;
    service_manager::ready();
    while signals.next().await == SignalAction::Reload {
        reload(&config.tls, tls.as_ref(), &telemetry);
    }
    tracing::info!("draining; another signal exits at once");
    service_manager::stopping();
    draining.store(true, Ordering::Relaxed);
    tokio::spawn(async move {
        while signals.next().await == SignalAction::Reload {}
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
        tracing::warn!("requests were still in flight after {DRAIN_TIME:?}; canceling them");
    }
    drop(reports);
    if let Some(exporter) = exporter {
        exporter.stop().await;
    }
    services.file.flush_all().await;
    background.stop().await;
    counting.abort();
    let _ = counting.await;
    if let Some(own_work) = own_work {
        own_work.abort();
        let _ = own_work.await;
    }
    services.blob.stop_copies().await;
    services.file.stop_copies().await;
    services.file.release_slices().await;
    if let Some(web_console) = web_console {
        web_console.close();
    }
    if let Some(console) = console {
        console.shutdown(CONSOLE_DRAIN_TIME).await;
    }
    close(engine).await
}

/// Creates the background tasks of the server.
fn chores(
    extents: &Arc<dyn Extents>,
    services: &Services,
    accounts: &AccountDirectory,
    sweeper: Arc<ContentSweeper>,
) -> Vec<Box<dyn Chore>> {
    vec![
        Box::new(GarbageSweep {
            name: "deleted containers",
            service: services.blob.clone(),
            is_due: BlobService::garbage_due,
            sweep: |blob, pace| Box::pin(blob.sweep_garbage(pace)),
        }),
        Box::new(BlobExpiry { blob: services.blob.clone() }),
        Box::new(DroppedBlocks { blob: services.blob.clone() }),
        Box::new(GarbageSweep {
            name: "deleted tables",
            service: services.table.clone(),
            is_due: TableService::sweep_due,
            sweep: |table, pace| Box::pin(table.sweep(pace)),
        }),
        Box::new(GarbageSweep {
            name: "deleted shares",
            service: services.file.clone(),
            is_due: FileService::sweep_due,
            sweep: |file, pace| Box::pin(file.sweep(pace)),
        }),
        Box::new(GarbageSweep {
            name: "deleted and cleared queues",
            service: services.queue.clone(),
            is_due: QueueService::garbage_due,
            sweep: |queue, pace| Box::pin(queue.sweep_garbage(pace)),
        }),
        Box::new(MessageExpiry { queue: services.queue.clone() }),
        Box::new(RemovedAccounts { accounts: accounts.clone() }),
        Box::new(IdleShares { file: services.file.clone() }),
        Box::new(ContentSweep::new(sweeper, extents.clone())),
    ]
}

/// Makes all data durable.
async fn close(engine: Arc<dyn Engine>) -> Result<(), Failure> {
    tokio::task::spawn_blocking(move || engine.close()).await.map_err(Failure::failed)??;
    tracing::info!("stopped");
    Ok(())
}

/// The bound sockets of a server.
struct Sockets {
    services: BoundEndpoints,
    smb: Option<TcpListener>,
    console: Option<ConsoleSocket>,
}

impl Sockets {
    /// Binds all sockets, or none.
    async fn bind(config: &Config) -> Result<Self, Failure> {
        let console = |address| {
            let bound = ConsoleSocket::bind(address);
            bound.map_err(|error| {
                Failure::Failed(format!("cannot listen on {address} for the console: {error}"))
            })
        };
        Ok(Self {
            services: BoundEndpoints::bind(config.services.iter().copied()).map_err(Failure::failed)?,
            smb: Smb::bind(config).await?,
            console: config.console.map(console).transpose()?,
        })
    }
}

/// Creates the admission check: accounts, authentication and clocks.
fn gate(
    config: &Config,
    issuer: Option<Issuer>,
    store: Arc<dyn Store>,
    accounts: &AccountDirectory,
) -> Arc<Admission> {
    Arc::new(Admission {
        accounts: Arc::new(accounts.clone()),
        authenticator: Authenticator::new(MasterSecret::new(accounts.master_secret()), issuer),
        clock: Arc::new(StoreClock(store)),
        wall_clock: Arc::new(SystemClock),
        host_suffixes: config.host_suffixes.clone(),
    })
}

/// Returns the allowed sources of copies.
fn copy_sources(config: &Config, gate: &Arc<Admission>) -> CopySources {
    CopySources {
        access: gate.clone(),
        host_suffixes: config.host_suffixes.clone(),
        outbound: Outbound::new(config.copy_source_allow.clone()),
        local_services: LocalServices::default(),
    }
}

/// Returns the check whether requests can be served.
fn readiness(sources: &Sources, draining: &Arc<AtomicBool>) -> Arc<dyn Fn() -> Readiness + Send + Sync> {
    let (engine, clock, draining) = (sources.engine.clone(), sources.clock.clone(), draining.clone());
    let (sweeper, chores) = (sources.sweeper.clone(), sources.chores.clone());
    Arc::new(move || {
        let readiness = engine.readiness(draining.load(Ordering::Relaxed));
        let alarms = [sweeper.alarm(), engine.alarm(), clock.refused_step().map(health::refused_step)];
        let failing = chores.iter().filter_map(|chore| chore.alarm());
        alarms.into_iter().flatten().chain(failing).fold(readiness, health::with_alarm)
    })
}

/// Returns the path of the self-signed certificate, if the server uses one on disk.
fn self_signed_certificate(config: &Config, directory: Option<&Path>) -> Option<PathBuf> {
    let directory = directory.filter(|_| config.tls == TlsSource::SelfSigned)?;
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    Some(Tls::self_signed_files(&directory.join("tls")).0)
}

/// Reads the configured certificate files, if there are any.
fn given_tls(source: &TlsSource) -> Result<Option<Tls>, Failure> {
    let TlsSource::Files { certificate, key } = source else { return Ok(None) };
    Tls::from_files(certificate, key).map(Some).map_err(|error| {
        let option = match &error {
            TlsError::File { path, .. } | TlsError::Pem { path, .. } if path == certificate => "--tls-cert",
            TlsError::File { .. } | TlsError::Pem { .. } => "--tls-key",
            TlsError::Unusable(_) | TlsError::Generate(_) => "--tls-cert and --tls-key",
        };
        Failure::Failed(format!("{option}: {error}"))
    })
}

/// Returns the self-signed certificate of the data directory, or a new one in memory.
fn self_signed_tls(config: &Config, directory: Option<&Path>, now: Timestamp) -> Result<Tls, Failure> {
    let mut hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    for (_, address) in &config.services {
        let host = address.ip().to_string();
        if !address.ip().is_unspecified() && !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts.extend(config.host_suffixes.iter().map(|suffix| format!("*.{suffix}")));
    let tls = match directory {
        Some(directory) => Tls::self_signed(&directory.join("tls"), &hosts, now),
        None => Tls::self_signed_in_memory(&hosts, now),
    };
    tls.map_err(Failure::failed)
}

/// Opens the access log and the certificate files again. If the certificate is invalid, logs the error and
/// keeps the current one.
fn reload(source: &TlsSource, tls: Option<&Tls>, telemetry: &Telemetry) {
    if let Some(log) = &telemetry.access_log {
        log.reopen();
    }
    let (TlsSource::Files { certificate, key }, Some(tls)) = (source, tls) else {
        if telemetry.access_log.is_none() {
            tracing::info!(
                "ignoring the reload signal: no certificate files and no access log are configured"
            );
        }
        return;
    };
    match tls.reload(certificate, key) {
        Ok(()) => tracing::info!(path = %certificate.display(), "reloaded the certificate"),
        Err(error) => {
            tracing::error!(%error, path = %certificate.display(), "could not reload the certificate; keeping the old one");
        }
    }
}

/// Prints the addresses and a connection string for each account. Shows a key if it is the well-known one, or
/// if stdout is a terminal.
async fn announce(
    banner: Banner,
    data: Option<&Path>,
    accounts: &AccountDirectory,
    endpoints: &Endpoints,
    link: Option<ConsoleLink>,
) -> Result<(), Failure> {
    let accounts = accounts.list().await.map_err(Failure::failed)?;
    let data = data.map(|path| path.canonicalize().unwrap_or_else(|_| path.to_owned()));
    let show_keys = stdout().is_terminal();
    // A log would keep the link, so only a terminal shows it.
    let link = link.filter(|_| show_keys).map(|new_link| new_link());
    let ready =
        Ready { endpoints, data: data.as_deref(), accounts: &accounts, show_keys, console_link: link };
    let mut text = ready.block();
    if banner == Banner::Azurite {
        text += &azurite::listening(&endpoints.services, endpoints.tls);
    }
    let mut stdout = stdout().lock();
    // Serve even if stdout is closed.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    Ok(())
}

/// The store's clock, for layers that do not know the store.
struct StoreClock(Arc<dyn Store>);

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// The signals that the server handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

/// The action that a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalAction {
    /// Stop the server.
    Stop,
    /// Reload the certificate, and reopen the access log.
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

    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.hang_up.recv() => SignalAction::Reload,
        }
    }
}

/// Raises the limit of open files as far as permitted, because each connection needs a file descriptor.
/// Returns the resulting limit.
fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "could not raise the limit of open files");
            limit.current
        }
    };
    current.unwrap_or(u64::MAX)
}

/// Returns the limits of the endpoints, given the limit of open files.
fn limits(files: u64, config: &Config) -> Limits {
    let usual = Limits::default();
    let connections = connection_limit(files, config);
    if connections < usual.connections {
        tracing::warn!(
            "with at most {files} open files, an endpoint serves {connections} connections at once, not {}",
            usual.connections
        );
    }
    Limits { connections, trusted_proxies: config.trusted_proxies.clone().into(), ..usual }
}

/// Returns the connection limit of each endpoint, given the limit of open files.
pub(crate) fn connection_limit(files: u64, config: &Config) -> usize {
    let endpoints = config.services.len() + usize::from(config.smb.is_some());
    connections(files, endpoints as u64).min(Limits::default().connections)
}

/// Returns the connection limit of each endpoint. All endpoints get an equal share of the file descriptors
/// that the store does not need.
fn connections(files: u64, endpoints: u64) -> usize {
    let each = files.saturating_sub(FILES_RESERVED) / endpoints.max(1);
    usize::try_from(each.max(FEWEST_CONNECTIONS)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_limit_reserves_file_descriptors_for_the_store() {
        for (files, endpoints, expected) in
            [(1 << 20, 5, 209_542), (100_000, 5, 19_827), (4096, 4, 808), (1024, 5, 32), (256, 5, 16)]
        {
            assert_eq!(connections(files, endpoints), expected, "{files} {endpoints}");
        }
    }
}
