//! `lazuli bench load`: sends requests to any server that speaks the protocol, on many connections at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::ServiceKind;
use tokio_rustls::TlsConnector;

use super::account::{Endpoint, StorageAccount};
use super::client::{Client, OperationFailure, TargetAccount};
use super::progress::Progress;
use super::report::{Measurement, Section, Series};
use super::round::{Pace, Round, Worker, round};
use super::text::{Align, Table};
use super::workload::{self, Shape, Workload};
use super::{BenchError, seconds};

/// Options of `lazuli bench load`.
#[derive(clap::Args, Debug)]
pub(crate) struct LoadArgs {
    /// The workloads to run; `--list` names them
    #[arg(value_name = "WORKLOAD", required_unless_present = "list")]
    workloads: Vec<String>,
    /// List the workloads
    #[arg(long)]
    list: bool,
    /// The account and its endpoints [default: the development account on 127.0.0.1]
    #[arg(long, value_name = "STRING", env = "LAZULI_BENCH_CONNECTION_STRING", hide_env_values = true)]
    connection_string: Option<String>,
    /// The service's endpoint, such as http://127.0.0.1:10000/devstoreaccount1; for workloads of one service
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// A PEM file with certificates to trust in addition to those of the system
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Number of connections, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    concurrency: u16,
    /// Bytes of a request body, for workloads that have one
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(..=100 << 20))]
    size: u32,
    /// How long to measure each workload
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    duration: Duration,
    /// How long to send requests before measuring
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    warm_up: Duration,
    /// Maximum number of requests per second
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Also write the results to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Runs the workloads one after the other. Returns `None` after listing them with `--list`.
pub(crate) async fn measure(args: &LoadArgs) -> Result<Option<Section>, BenchError> {
    let shape = Shape { body_bytes: args.size as usize };
    if args.list {
        print!("{}", list(shape));
        return Ok(None);
    }
    let named = args.workloads.iter().map(|name| workload::named(name, shape));
    let workloads = named.collect::<Result<Vec<_>, _>>()?;
    let target = target(args, &workloads)?;
    let pace = Pace { warm_up: args.warm_up, time: args.duration, rate: args.rate };
    let mut section = Section::new("load");
    section.notes.push(format!("{} connections, one request at a time each", args.concurrency));
    let progress = Progress::new(workloads.len());
    for workload in workloads {
        progress.step(workload.name());
        let failed = |failure| BenchError::Workload(workload.name(), failure);
        let mut running =
            Running::start(&workload, &target, args.concurrency.into()).await.map_err(failed)?;
        let round = running.round(pace).await?;
        section.notes.extend(
            running
                .finish()
                .await
                .err()
                .map(|failure| format!("{}: its objects could not be removed: {failure}", workload.name())),
        );
        let contender =
            target.account.endpoint(workload.service()).map_or("", |endpoint| &endpoint.authority);
        let series = vec![Series::of_rounds(contender, &[round])];
        section.measurements.push(Measurement::new(workload.name(), "requests/s", series));
    }
    Ok(Some(section))
}

fn list(shape: Shape) -> Table {
    let mut table =
        Table::new(&[("workload", Align::Left), ("service", Align::Left), ("what it does", Align::Left)]);
    for workload in workload::all(shape) {
        table.row([workload.name().into(), workload.service().name().into(), workload.about()]);
    }
    table
}

fn target(args: &LoadArgs, workloads: &[Arc<dyn Workload>]) -> Result<TargetAccount, BenchError> {
    let mut account = match &args.connection_string {
        Some(text) => StorageAccount::from_connection_string(text)?,
        None => StorageAccount::development(),
    };
    if let Some(url) = &args.endpoint {
        let service = one_service(workloads).ok_or(BenchError::SeveralServices)?;
        account = account.only(service, Endpoint::parse(url)?);
    }
    let secure = |service| account.endpoint(service).is_some_and(|endpoint| endpoint.secure);
    let tls = match ServiceKind::ALL.into_iter().any(secure) {
        true => Some(tls(args.ca.as_deref())?),
        false => None,
    };
    Ok(TargetAccount { account: Arc::new(account), tls })
}

fn one_service(workloads: &[Arc<dyn Workload>]) -> Option<ServiceKind> {
    let service = workloads.first()?.service();
    workloads.iter().all(|workload| workload.service() == service).then_some(service)
}

fn tls(ca: Option<&Path>) -> Result<TlsConnector, BenchError> {
    use rustls_pki_types::pem::PemObject;
    let failed = |reason: String| BenchError::Tls(reason);
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca {
        let certificates = rustls_pki_types::CertificateDer::pem_file_iter(path);
        for certificate in certificates.map_err(|error| failed(format!("{}: {error}", path.display())))? {
            let certificate = certificate.map_err(|error| failed(format!("{}: {error}", path.display())))?;
            roots.add(certificate).map_err(|error| failed(error.to_string()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config).into())
}

/// A workload that is prepared on a server.
pub(crate) struct Running {
    workload: Arc<dyn Workload>,
    client: Client,
    workers: Vec<Requester>,
}

impl Running {
    /// Prepares a workload. Connects `concurrency` times unless the workload has a fixed number of
    /// connections.
    pub(crate) async fn start(
        workload: &Arc<dyn Workload>,
        target: &TargetAccount,
        concurrency: usize,
    ) -> Result<Self, OperationFailure> {
        let client = || {
            let absent = || {
                OperationFailure::Request(format!("the account has no {} service", workload.service().name()))
            };
            Client::new(target, workload.service()).ok_or_else(absent)
        };
        let concurrency = workload.connections().unwrap_or(concurrency);
        let mut first = client()?;
        workload.prepare(&mut first).await?;
        let requester =
            |number| Ok(Requester { workload: workload.clone(), client: client()?, number, i: 0 });
        let workers = (0..concurrency).map(requester).collect::<Result<_, OperationFailure>>()?;
        Ok(Self { workload: workload.clone(), client: first, workers })
    }

    /// Tries one operation.
    pub(crate) async fn try_one(&mut self) -> Result<(), OperationFailure> {
        match self.workers.first_mut() {
            Some(worker) => worker.request().await,
            None => Ok(()),
        }
    }

    /// Runs one round on new connections, because the server may have closed idle ones during other turns.
    pub(crate) async fn round(&mut self, pace: Pace) -> Result<Round, BenchError> {
        let mut workers = std::mem::take(&mut self.workers);
        workers.iter_mut().for_each(|worker| worker.client.disconnect());
        let (round, workers) = round(workers, pace).await?;
        self.workers = workers;
        Ok(round)
    }

    /// Removes the objects of the workload.
    pub(crate) async fn finish(mut self) -> Result<(), OperationFailure> {
        self.client.disconnect();
        self.workload.cleanup(&mut self.client).await
    }
}

/// A worker with its own connection.
struct Requester {
    workload: Arc<dyn Workload>,
    client: Client,
    number: usize,
    i: u64,
}

impl Requester {
    async fn request(&mut self) -> Result<(), OperationFailure> {
        let i = self.i;
        self.i += 1;
        self.workload.run_one(&mut self.client, self.number, i).await
    }
}

impl Worker for Requester {
    async fn once(&mut self) -> Result<(), String> {
        self.request().await.map_err(|failure| failure.to_string())
    }
}
