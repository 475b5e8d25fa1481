//! The data directory that a command works on, and the accounts and addresses of its server.

use std::path::{Path, PathBuf};

use clap::Args;
use lazuli_account::AccountDirectory;
use lazuli_protocol::{Account, Key};
use lazuli_store::{Directory, DirectoryError, Trust};

use crate::Failure;
use crate::config::{Config, ConfiguredAccount, Layer, Storage};
use crate::control::{self, Command, DevelopmentKey, Reply};
use crate::data::Data;
use crate::endpoints::Endpoints;

/// A small row cache is enough for commands.
const CACHE_BYTES: u64 = 1 << 20;

/// The options by which a command finds its data directory.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DataArgs {
    /// The data directory, as for lazuli serve [default: ./lazuli-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The configuration file of lazuli serve
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The server of a data directory, running or not.
pub(crate) struct DataTarget {
    pub(crate) directory: PathBuf,
    pub(crate) config: Config,
}

impl DataTarget {
    /// Resolves the options with the variables and the configuration file.
    pub(crate) fn load(args: DataArgs, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let layer = Layer { data: args.data, in_memory: Some(false), ..Layer::default() };
        let config = Config::load(layer, args.config.as_deref(), variable)?;
        match config.data.clone() {
            Storage::Directory(directory) => Ok(Self { directory, config }),
            Storage::Memory { .. } => Err(Failure::Usage("this command needs a data directory".into())),
        }
    }

    /// Returns the accounts. Without a data directory, as with data in memory, returns those that a new
    /// server would have.
    pub(crate) fn accounts(&self) -> Result<Vec<Account>, Failure> {
        let done = match control::send_command(&self.directory, &Command::List)? {
            Some(reply) => reply,
            None if self.directory.join("FORMAT").exists() => {
                execute_here(&self.directory, Command::List, MissingDirectory::Refused)?
            }
            None => {
                let configured = match self.config.accounts.as_slice() {
                    [] => vec![ConfiguredAccount::development()],
                    accounts => accounts.to_vec(),
                };
                return Ok(configured.into_iter().map(fresh).collect());
            }
        };
        done.map(|done| done.accounts).map_err(Failure::Failed)
    }

    /// Returns the account of that name. Without a name, returns the only account.
    pub(crate) fn account(&self, name: Option<&str>) -> Result<Account, Failure> {
        let accounts = self.accounts()?;
        let names = || accounts.iter().map(|account| &account.name[..]).collect::<Vec<_>>().join(", ");
        match (name, accounts.as_slice()) {
            (None, []) => {
                Err(Failure::Failed("there is no account: add one with lazuli account add NAME".into()))
            }
            (None, [account]) => Ok(account.clone()),
            (None, _) => Err(Failure::Usage(format!("there are several accounts: name one of {}", names()))),
            (Some(name), _) => {
                let found = accounts.iter().find(|account| account.name == name).cloned();
                found.ok_or_else(|| {
                    let known = if accounts.is_empty() { "none".into() } else { names() };
                    Failure::Failed(format!("there is no account {name:?}; there is: {known}"))
                })
            }
        }
    }

    /// Returns the addresses of the running server, else those that the configuration names.
    pub(crate) fn endpoints(&self) -> Result<Endpoints, Failure> {
        match control::request_status(&self.directory, false)? {
            Some(reply) => reply.map(|status| status.endpoints).map_err(Failure::Failed),
            None => Ok(Endpoints::configured(&self.config)),
        }
    }
}

/// Returns one of the keys of an account.
pub(crate) fn key(account: &Account, number: usize) -> Result<&Key, Failure> {
    let key = number.checked_sub(1).and_then(|index| account.keys.get(index));
    key.ok_or_else(|| Failure::Failed(format!("account {} has no key {number}", account.name)))
}

fn fresh(account: ConfiguredAccount) -> Account {
    let ConfiguredAccount { name, keys } = account;
    Account { name, keys, settings: Default::default(), roles: vec![], generation: 0 }
}

/// The effect of a command if the data directory does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingDirectory {
    /// Refuses: the path may be mistyped.
    Refused,
    /// Creates a data directory.
    Created,
}

/// Carries out a command in a data directory without a server.
pub(crate) fn execute_here(
    path: &Path,
    command: Command,
    missing: MissingDirectory,
) -> Result<Reply, Failure> {
    let is_add = matches!(command, Command::Add { .. });
    let opened = match missing {
        MissingDirectory::Created => Directory::open(path),
        MissingDirectory::Refused => Directory::open_existing(path),
    };
    let directory = opened.map_err(|error| match error {
        DirectoryError::Foreign { .. } if missing == MissingDirectory::Refused => {
            let hint = if is_add { "; --create-data creates one" } else { "" };
            Failure::Failed(format!("{error}. Name the data directory with --data{hint}."))
        }
        DirectoryError::InUse { .. } => {
            Failure::Failed(format!("{error}, and that process does not answer on the control socket"))
        }
        error => Failure::failed(error),
    })?;
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::failed)?;
    runtime.block_on(async {
        let data = Data::open(directory, Some(CACHE_BYTES), Trust::MayBeBehind)?;
        let accounts = AccountDirectory::open(data.store.clone()).await.map_err(Failure::failed)?;
        // The server checks for the development key when it starts.
        Ok(control::execute(&accounts, None, DevelopmentKey::Accepted, command).await)
    })
}
