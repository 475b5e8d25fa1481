//! `lazuli import azurite`: starts a server on the data directory and imports through it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, IsTerminal, stderr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lazuli_account::{DEVELOPMENT_ACCOUNT, development_key, random_key};
use lazuli_client::account::StorageAccount;
use lazuli_client::client::TargetAccount;
use lazuli_import::azurite::{Database, Folder};
use lazuli_import::destination::Destination;
use lazuli_import::report::ImportProgress;
use lazuli_protocol::Key;
use rustix::process::{Pid, Signal, kill_process};

use crate::Failure;
use crate::config::{Config, Layer};
use crate::control;

/// How often the progress bar is redrawn.
const REDRAW: Duration = Duration::from_millis(200);

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
    print!("{report}");
    match report.left_out {
        0 => Ok(()),
        left_out => Err(Failure::Failed(format!("{left_out} objects were left out: see above"))),
    }
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

/// A server of this program on the data directory, for the time of the import.
struct ImportServer {
    child: Child,
    /// The addresses of the services by name.
    endpoints: Vec<(String, String)>,
}

impl ImportServer {
    fn start(into: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe().map_err(Failure::failed)?);
        // Variables that are set for another server must not affect this one.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("LAZULI_") || name.starts_with("AZURITE_") {
                command.env_remove(&*name);
            }
        }
        command.args(["serve", "--host", "127.0.0.1", "--log-level", "warn", "--data"]).arg(into);
        command.args(["--blob-port", "0", "--queue-port", "0", "--table-port", "0"]);
        command.args(["--file-port", "off", "--smb-port", "off", "--console-port", "off"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(Failure::failed)?;
        let mut server = Self { endpoints: vec![], child };
        let lines = server.child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        for line in lines.map_while(Result::ok) {
            if let Some((name, value)) = line.trim().split_once(' ') {
                if name == "connect" {
                    return Ok(server);
                }
                // http://127.0.0.1:10000/ACCOUNT, without the account.
                if let Some((address, _)) = value.trim().rsplit_once('/') {
                    server.endpoints.push((name.to_owned(), address.to_owned()));
                }
            }
        }
        Err(Failure::Failed(format!("cannot serve {}: see the message above", into.display())))
    }

    /// Stops the server in an orderly way, so that everything is in tables when it is started next.
    fn stop(&mut self) -> Result<(), Failure> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).map_err(Failure::failed)?;
        let status = self.child.wait().map_err(Failure::failed)?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::Failed(format!("the server ended with {status}")))
        }
    }
}

impl Drop for ImportServer {
    fn drop(&mut self) {
        // Ignore errors: after `stop` the process is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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

/// Returns a bar that shows the number of imported objects on a terminal.
fn progress_bar(progress: &Arc<ImportProgress>) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) =
        ProgressStyle::with_template("{spinner} {human_pos} objects imported, {per_sec}, {elapsed}")
    {
        bar.set_style(style);
    }
    let (progress, shown) = (Arc::downgrade(progress), bar.clone());
    std::thread::spawn(move || {
        while let Some(progress) = progress.upgrade().filter(|_| !shown.is_finished()) {
            shown.set_position(progress.count());
            drop(progress);
            std::thread::sleep(REDRAW);
        }
    });
    bar
}
