//! `lazuli import azurite`: starts a server on the data directory and imports through it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use lazuli_account::{DEVELOPMENT_ACCOUNT, development_key, random_key};
use lazuli_client::account::StorageAccount;
use lazuli_client::client::TargetAccount;
use lazuli_import::azurite::{Database, Folder};
use lazuli_import::destination::Destination;
use lazuli_import::report::ImportProgress;
use lazuli_protocol::Key;

use crate::Failure;
use crate::config::{Config, Layer};
use crate::control;
use crate::transfer::import_server::{ImportServer, finish, progress_bar};

/// Imports the folder of a stopped Azurite into a data directory. Fails if anything was left out.
pub(super) fn import(from: &Path, into: &Path, dry_run: bool) -> Result<(), Failure> {
    let folder = Folder::open(from).map_err(Failure::failed)?;
    let names = lazuli_import::azurite::accounts(&folder).map_err(Failure::failed)?;
    if dry_run {
        return count(&folder);
    }
    let mut server = ImportServer::start(into)?;
    let destination = destination(&server, into, &names)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    let progress = Arc::new(ImportProgress::default());
    let bar = progress_bar(&progress);
    let report = runtime.block_on(lazuli_import::azurite::import(folder, destination, progress));
    bar.finish_and_clear();
    server.stop()?;
    let report = report.map_err(Failure::failed)?;
    finish(&report)
}

/// Prints how many documents each collection has.
fn count(folder: &Folder) -> Result<(), Failure> {
    for database in [Database::Blob, Database::Queue, Database::Table] {
        let mut counts = std::collections::BTreeMap::<String, u64>::new();
        let counted = folder.documents(database, |collection, _| {
            *counts.entry(collection.to_owned()).or_default() += 1;
            true
        });
        counted.map_err(Failure::failed)?;
        for (collection, count) in counts {
            println!("{count:>10}  {collection}");
        }
    }
    Ok(())
}

/// Returns the accounts that the folder needs. Creates those that are missing.
fn destination(server: &ImportServer, into: &Path, names: &BTreeSet<String>) -> Result<Destination, Failure> {
    let ask = |command| match control::send_command(into, &command)? {
        Some(reply) => reply.map_err(Failure::Failed),
        None => Err(Failure::Failed("the server has stopped".into())),
    };
    let known = ask(control::Command::List)?.accounts;
    // Keys are not in the folder. AZURITE_ACCOUNTS may have them.
    let configured = Config::load(Layer::default(), None, |name| std::env::var(name).ok())?.accounts;
    let mut destination = Destination::default();
    for name in names {
        let key = match known.iter().find(|account| account.name == *name) {
            Some(account) => account.keys.first().cloned(),
            None => {
                let configured = configured.iter().find(|account| account.name == *name);
                let keys: Vec<Key> = match configured {
                    Some(account) => account.keys.clone(),
                    None if name == DEVELOPMENT_ACCOUNT => vec![development_key()],
                    None => {
                        vec![random_key().map_err(Failure::failed)?, random_key().map_err(Failure::failed)?]
                    }
                };
                eprintln!("creating account {name}; lazuli account list --keys shows its keys");
                ask(control::Command::Add { name: name.clone(), keys: keys.clone() })?;
                keys.first().cloned()
            }
        };
        let Some(key) = key else { return Err(Failure::Failed(format!("account {name} has no key"))) };
        let mut text = format!("AccountName={name};AccountKey={};", key.to_base64());
        for (service, address) in &server.endpoints {
            if ["blob", "queue", "table"].contains(&service.as_str()) {
                text += &format!("{service}Endpoint={address}/{name};");
            }
        }
        let account = StorageAccount::from_connection_string(&text).map_err(Failure::failed)?;
        destination.0.insert(name.clone(), TargetAccount { account: Arc::new(account), tls: None });
    }
    Ok(destination)
}
