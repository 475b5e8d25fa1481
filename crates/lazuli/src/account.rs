//! `lazuli account`: adds, lists and changes accounts, by way of the running server or, if there is none, in the data
//! directory itself. Both carry out the same commands.

mod output;
mod setting;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use lazuli_account::{AccountDirectory, KeySlot, random_key};
use lazuli_protocol::Key;
use lazuli_store::{Directory, DirectoryError, Trust};

use crate::Failure;
use crate::config::{Config, Layer};
use crate::control::{self, Command, DevelopmentKey, Reply};
use crate::data::Data;
use output::Keys;
use setting::SettingArgs;

/// Memory for rows is not needed here.
const CACHE_BYTES: u64 = 1 << 20;

#[derive(Args)]
pub(crate) struct AccountArgs {
    #[command(subcommand)]
    action: Action,
    /// The data directory, as for lazuli serve [default: ./lazuli-data]
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    /// The configuration of lazuli serve, which says where the data directory is
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Add an account and print its keys
    Add {
        /// 3 to 24 lower-case letters and digits
        name: String,
        /// A key in Base64, given once or twice [default: two new keys]
        #[arg(long = "key", value_name = "KEY")]
        // Parsed later: a refusal of clap's would repeat the key.
        keys: Vec<String>,
    },
    /// List accounts
    List {
        /// Show their keys too
        #[arg(long)]
        keys: bool,
    },
    /// Change settings of an account; all of them, or none
    Set {
        /// The account
        name: String,
        #[command(flatten)]
        settings: SettingArgs,
    },
    /// Replace a key of an account by a new one, at once, and print it
    RotateKey {
        /// The account
        name: String,
        /// Which of the two
        #[arg(long, value_name = "1|2", default_value = "1", value_parser = parse_slot)]
        key: KeySlot,
    },
    /// Remove an account with its keys and settings
    Remove {
        /// The account
        name: String,
    },
}

/// Carries out a command and prints what came of it.
pub(crate) fn run(args: AccountArgs, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    let layer = Layer { data: args.data, ..Layer::default() };
    let directory = Config::load(layer, args.config.as_deref(), variable)?.data;
    let show = match args.action {
        Action::Add { .. } | Action::RotateKey { .. } | Action::List { keys: true } => Keys::Shown,
        Action::List { keys: false } | Action::Set { .. } | Action::Remove { .. } => Keys::Hidden,
    };
    let command = command(args.action)?;
    let reply = match control::ask(&directory, &command)? {
        Some(reply) => reply,
        None => execute_here(&directory, command)?,
    };
    let accounts = reply.map_err(Failure::Failed)?;
    print!("{}", if args.json { output::json(accounts, show) } else { output::table(&accounts, show) });
    Ok(())
}

fn command(action: Action) -> Result<Command, Failure> {
    Ok(match action {
        Action::Add { name, keys } if keys.is_empty() => {
            Command::Add { name, keys: vec![new_key()?, new_key()?] }
        }
        Action::Add { name, keys } => {
            let keys = keys.iter().map(|key| parse_key(key)).collect::<Result<_, _>>()?;
            Command::Add { name, keys }
        }
        Action::List { .. } => Command::List,
        Action::Set { name, settings } => Command::Set { name, changes: settings.into_changes() },
        Action::RotateKey { name, key: slot } => Command::RotateKey { name, slot, key: new_key()? },
        Action::Remove { name } => Command::Remove { name },
    })
}

/// Carries out a command in a data directory without a server. Only adding an account makes a new directory.
fn execute_here(path: &Path, command: Command) -> Result<Reply, Failure> {
    let opened = match command {
        Command::Add { .. } => Directory::open(path),
        _ => Directory::open_existing(path),
    };
    let directory = opened.map_err(|error| match error {
        DirectoryError::InUse { .. } => Failure::Failed(format!("{error}, which cannot be asked")),
        error => Failure::failed(error),
    })?;
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::failed)?;
    runtime.block_on(async {
        let data = Data::open(directory, Some(CACHE_BYTES), Trust::MayBeBehind)?;
        let accounts = AccountDirectory::open(data.store.clone()).await.map_err(Failure::failed)?;
        // Whether the server can be reached by others is known when it starts.
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
