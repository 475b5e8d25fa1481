//! `lazuli account`: adds, lists and changes accounts. If a server is running, it carries out the command;
//! otherwise this process changes the data directory. The commands are the same.

mod output;
mod setting;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use lazuli_account::{AccountDirectory, KeySlot, random_key};
use lazuli_protocol::Key;
use lazuli_store::{Directory, DirectoryError, Trust};

use crate::Failure;
use crate::config::Config;
use crate::control::{self, Command, DevelopmentKey, Reply};
use crate::data::Data;
use output::Keys;
use setting::SettingArgs;

/// A small row cache is enough for commands.
const CACHE_BYTES: u64 = 1 << 20;

#[derive(Args)]
pub(crate) struct AccountArgs {
    #[command(subcommand)]
    action: AccountAction,
    /// The data directory, as for lazuli serve [default: ./lazuli-data]
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    /// The configuration file of lazuli serve, to find the data directory
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum AccountAction {
    /// Add an account and print its keys
    Add {
        /// 3 to 24 lower-case letters and digits
        name: String,
        /// A key in Base64, given once or twice [default: two new keys]
        #[arg(long = "key", value_name = "KEY")]
        // Parsed later: an error message of clap would contain the key.
        keys: Vec<String>,
    },
    /// List accounts
    List {
        /// Also show the keys
        #[arg(long)]
        keys: bool,
    },
    /// Change settings of an account; if one setting is invalid, none is changed
    Set {
        /// The account
        name: String,
        #[command(flatten)]
        settings: SettingArgs,
    },
    /// Replace a key of an account by a new one with immediate effect, and print the new key
    RotateKey {
        /// The account
        name: String,
        /// The key to replace
        #[arg(long, value_name = "1|2", default_value = "1", value_parser = parse_slot)]
        key: KeySlot,
    },
    /// Remove an account with its keys and settings
    Remove {
        /// The account
        name: String,
    },
}

/// Carries out a command and prints its result.
pub(crate) fn run(args: AccountArgs, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    let directory = Config::directory(args.data, args.config.as_deref(), variable)?;
    let show = match args.action {
        AccountAction::Add { .. } | AccountAction::RotateKey { .. } | AccountAction::List { keys: true } => {
            Keys::Shown
        }
        AccountAction::List { keys: false } | AccountAction::Set { .. } | AccountAction::Remove { .. } => {
            Keys::Hidden
        }
    };
    let command = command(args.action)?;
    let reply = match control::send_command(&directory, &command)? {
        Some(reply) => reply,
        None => execute_here(&directory, command)?,
    };
    let accounts = reply.map_err(Failure::Failed)?;
    print!("{}", if args.json { output::json(accounts, show) } else { output::table(&accounts, show) });
    Ok(())
}

fn command(action: AccountAction) -> Result<Command, Failure> {
    Ok(match action {
        AccountAction::Add { name, keys } if keys.is_empty() => {
            Command::Add { name, keys: vec![new_key()?, new_key()?] }
        }
        AccountAction::Add { name, keys } => {
            let keys = keys.iter().map(|key| parse_key(key)).collect::<Result<_, _>>()?;
            Command::Add { name, keys }
        }
        AccountAction::List { .. } => Command::List,
        AccountAction::Set { name, settings } => Command::Set { name, changes: settings.into_changes() },
        AccountAction::RotateKey { name, key: slot } => Command::RotateKey { name, slot, key: new_key()? },
        AccountAction::Remove { name } => Command::Remove { name },
    })
}

/// Carries out a command in a data directory without a server. Only `add` creates a missing directory.
fn execute_here(path: &Path, command: Command) -> Result<Reply, Failure> {
    let opened = match command {
        Command::Add { .. } => Directory::open(path),
        _ => Directory::open_existing(path),
    };
    let directory = opened.map_err(|error| match error {
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
        Ok(control::execute(&accounts, DevelopmentKey::Accepted, command).await)
    })
}

fn new_key() -> Result<Key, Failure> {
    random_key().map_err(Failure::failed)
}

fn parse_key(text: &str) -> Result<Key, Failure> {
    Key::from_base64(text).ok_or_else(|| Failure::Usage("--key: not Base64".into()))
}

fn parse_slot(text: &str) -> Result<KeySlot, String> {
    match text {
        "1" => Ok(KeySlot::Key1),
        "2" => Ok(KeySlot::Key2),
        _ => Err("an account has a key 1 and a key 2".into()),
    }
}
