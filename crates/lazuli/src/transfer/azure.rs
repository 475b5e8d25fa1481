//! `lazuli import azure`: imports a running store into a data directory, through the server that is running
//! on it, or else through one that this command starts.

use std::io::BufRead;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use http::Method;
use lazuli_client::account::StorageAccount;
use lazuli_client::client::{Call, Client, TargetAccount};
use lazuli_import::azure::{AzureImport, Journal};
use lazuli_import::report::ImportProgress;
use lazuli_protocol::{Account, ServiceKind};

use super::import_server::{ImportServer, finish, progress_bar};
use crate::Failure;
use crate::control;
use crate::endpoints::Endpoints;

#[derive(Args)]
pub(crate) struct AzureArgs {
    /// The connection string of the source, with its account key; or - to read it from standard input
    #[arg(long, value_name = "CONNECTION")]
    // Parsed later: an error message of clap would contain the key.
    from: String,
    /// The data directory, of a running or stopped server
    #[arg(long, value_name = "DATA", required_unless_present = "dry_run")]
    into: Option<PathBuf>,
    /// The account to import into [default: the name of the source's account]
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// The services to import [default: all that the connection string names]
    #[arg(long, value_name = "SERVICE", value_delimiter = ',', value_parser = parse_service)]
    services: Vec<ServiceKind>,
    /// Receive messages, which hides them at the source for an hour, instead of peeking at the first 32
    #[arg(long)]
    receive_messages: bool,
    /// Remembers verified objects, so that a later run does not read them again [default: DATA.import-NAME]
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Count what would be imported, but import nothing
    #[arg(long)]
    dry_run: bool,
}

fn parse_service(text: &str) -> Result<ServiceKind, String> {
    let found = ServiceKind::ALL.into_iter().find(|kind| kind.name() == text);
    found.ok_or_else(|| "expected blob, queue, table or file".into())
}

/// Imports an account. Fails if anything was left out.
pub(super) fn import(args: AzureArgs) -> Result<(), Failure> {
    let from = match args.from.as_str() {
        "-" => {
            std::io::stdin().lock().lines().next().transpose().map_err(Failure::failed)?.unwrap_or_default()
        }
        from => from.to_owned(),
    };
    let account = StorageAccount::from_connection_string(&from)
        .map_err(|error| Failure::Usage(format!("--from: {error}")))?;
    let services = services(&account, &args.services)?;
    let source = TargetAccount { account: Arc::new(account), tls: Some(tls(None)?) };
    let progress = Arc::new(ImportProgress::default());
    let import = |target, versioning, journal| AzureImport {
        source: source.clone(),
        target,
        versioning,
        services: services.clone(),
        receive_messages: args.receive_messages,
        journal,
    };
    let into = match args.into.as_deref() {
        Some(into) if !args.dry_run => into,
        _ => {
            progress.only_count();
            return run(import(None, false, Journal::in_memory()), &progress);
        }
    };
    let name = args.account.as_deref().unwrap_or(&source.account.name);
    let journal = open_journal(args.journal.as_deref(), into, &source.account.name, name)?;
    let (mut server, endpoints) = match control::request_status(into, false)? {
        Some(status) => (None, ImportTarget::Running(status.map_err(Failure::Failed)?.endpoints)),
        None => {
            let server = ImportServer::start(into)?;
            let endpoints = server.endpoints.clone();
            (Some(server), ImportTarget::Started(endpoints))
        }
    };
    refuse_same(&source.account, name, &endpoints)?;
    let account = find_account(into, name, &source.account)?;
    let target = endpoints.account(&account)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    for service in &services {
        runtime.block_on(check(&target, *service)).map_err(|reason| {
            Failure::Failed(format!("the {} service of {}: {reason}", service.name(), into.display()))
        })?;
    }
    drop(runtime);
    let done = run(import(Some(target), account.settings.blob_versioning, journal), &progress);
    if let Some(server) = &mut server {
        server.stop()?;
    }
    done
}

fn run(import: AzureImport, progress: &Arc<ImportProgress>) -> Result<(), Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let bar = progress_bar(progress);
    let report = runtime.block_on(lazuli_import::azure::import(import, progress.clone()));
    bar.finish_and_clear();
    finish(&report.map_err(Failure::Failed)?)
}

fn tls(trusted: Option<&Path>) -> Result<lazuli_outbound::TlsConnector, Failure> {
    lazuli_outbound::tls_connector(trusted).map_err(Failure::failed)
}

/// Returns the services to import.
fn services(account: &StorageAccount, wanted: &[ServiceKind]) -> Result<Vec<ServiceKind>, Failure> {
    if let Some(missing) = wanted.iter().find(|service| account.endpoint(**service).is_none()) {
        return Err(Failure::Usage(format!("the connection string names no {} service", missing.name())));
    }
    let named = ServiceKind::ALL.into_iter().filter(|service| account.endpoint(*service).is_some());
    Ok(named.filter(|service| wanted.is_empty() || wanted.contains(service)).collect())
}

fn open_journal(path: Option<&Path>, into: &Path, source: &str, target: &str) -> Result<Journal, Failure> {
    let path = match path {
        Some(path) => path.to_owned(),
        None => {
            let (folder, name) = (into.parent(), into.file_name());
            let (Some(folder), Some(name)) = (folder, name) else {
                return Err(Failure::Usage("--journal is missing: --into has no name of its own".into()));
            };
            folder.join(format!("{}.import-{source}", name.to_string_lossy()))
        }
    };
    Journal::open(&path, &format!("{source} to {target}"))
        .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
}

/// The addresses of the destination.
enum ImportTarget {
    Running(Endpoints),
    /// The URLs of services by name.
    Started(Vec<(String, String)>),
}

impl ImportTarget {
    /// Returns how to reach an account.
    fn account(&self, account: &Account) -> Result<TargetAccount, Failure> {
        let key = account
            .keys
            .first()
            .ok_or_else(|| Failure::Failed(format!("account {} has no key", account.name)))?;
        let key = key.to_base64();
        let (text, tls) = match self {
            Self::Running(endpoints) => {
                let tls = if endpoints.tls { Some(tls(endpoints.certificate.as_deref())?) } else { None };
                (endpoints.connection_string(&account.name, &key), tls)
            }
            Self::Started(services) => {
                let mut text = format!("AccountName={};AccountKey={key};", account.name);
                for (service, address) in services {
                    if ServiceKind::ALL.into_iter().any(|kind| kind.name() == service) {
                        text += &format!("{service}Endpoint={address}/{};", account.name);
                    }
                }
                (text, None)
            }
        };
        let account = StorageAccount::from_connection_string(&text).map_err(Failure::failed)?;
        Ok(TargetAccount { account: Arc::new(account), tls })
    }
}

/// Fails if the source is the destination.
fn refuse_same(source: &StorageAccount, name: &str, target: &ImportTarget) -> Result<(), Failure> {
    let ImportTarget::Running(endpoints) = target else { return Ok(()) };
    for (kind, address) in &endpoints.services {
        let Some(endpoint) = source.endpoint(*kind).filter(|_| source.name == name) else { continue };
        let resolved = (endpoint.host.as_str(), endpoint.port).to_socket_addrs();
        let own = crate::endpoints::reachable(*address);
        if resolved.into_iter().flatten().any(|found| found == own) {
            return Err(Failure::Usage("the source and the destination are the same account".into()));
        }
    }
    Ok(())
}

/// Returns the account of the destination. Creates a missing one with the key of the source, so that clients
/// only have to change the address.
fn find_account(into: &Path, name: &str, source: &StorageAccount) -> Result<Account, Failure> {
    let ask = |command| match control::send_command(into, &command)? {
        Some(reply) => reply.map_err(Failure::Failed),
        None => Err(Failure::Failed("the server has stopped".into())),
    };
    let find = || -> Result<Option<Account>, Failure> {
        Ok(ask(control::Command::List)?.accounts.into_iter().find(|account| account.name == name))
    };
    if let Some(account) = find()? {
        return Ok(account);
    }
    eprintln!("creating account {name} with the key of the source");
    ask(control::Command::Add { name: name.to_owned(), keys: vec![source.key.clone()] })?;
    find()?.ok_or_else(|| Failure::Failed(format!("account {name} was not created")))
}

/// Checks that the destination serves a service.
async fn check(target: &TargetAccount, service: ServiceKind) -> Result<(), String> {
    let Some(mut client) = Client::new(target, service) else { return Err("it is not served".into()) };
    let reply = client.send(Call::new(Method::GET, "", "restype=service&comp=properties")).await;
    let reply = reply.map_err(|failure| failure.to_string())?;
    reply.expect(http::StatusCode::OK).map(drop).map_err(|failure| failure.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "c2VjcmV0";

    #[test]
    fn only_services_of_the_connection_string_are_imported() {
        let text = format!("AccountName=a;AccountKey={KEY};BlobEndpoint=http://h/a;TableEndpoint=http://h/b");
        let account = StorageAccount::from_connection_string(&text).unwrap();
        let chosen = |wanted: &[ServiceKind]| services(&account, wanted).ok();
        assert_eq!(chosen(&[]), Some(vec![ServiceKind::Blob, ServiceKind::Table]));
        assert_eq!(chosen(&[ServiceKind::Table]), Some(vec![ServiceKind::Table]));
        assert_eq!(chosen(&[ServiceKind::Queue]), None);
    }

    #[test]
    fn source_that_is_the_destination_is_refused() {
        let text = format!("AccountName=acme;AccountKey={KEY};BlobEndpoint=http://localhost:11000/acme");
        let source = StorageAccount::from_connection_string(&text).unwrap();
        let target = |port: u16| {
            ImportTarget::Running(Endpoints {
                tls: false,
                services: vec![(ServiceKind::Blob, ([0, 0, 0, 0], port).into())],
                smb: None,
                console: None,
                certificate: None,
            })
        };
        assert!(refuse_same(&source, "acme", &target(11_000)).is_err());
        assert!(refuse_same(&source, "other", &target(11_000)).is_ok());
        assert!(refuse_same(&source, "acme", &target(11_001)).is_ok());
    }

    #[test]
    fn journal_is_next_to_the_data_directory() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open_journal(None, &folder.path().join("data/"), "acme", "acme").is_ok());
        assert!(folder.path().join("data.import-acme").exists());
        assert!(open_journal(None, Path::new("/"), "acme", "acme").is_err());
    }
}
