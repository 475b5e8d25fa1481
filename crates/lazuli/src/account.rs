//! `lazuli account`: adds, lists and changes accounts. If a server is running, it carries out the command;
//! otherwise this process changes the data directory. The commands are the same.

pub(crate) mod output;
mod setting;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lazuli_account::{KeySlot, random_key};
use lazuli_protocol::Key;

use crate::Failure;
use crate::config::Config;
use crate::connect::{self, ClientTool};
use crate::control::{self, Command};
use crate::target::{self, DataArgs, DataTarget, MissingDirectory, execute_here};
use output::Keys;
use setting::SettingArgs;

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
        /// Create the data directory if it does not exist
        #[arg(long)]
        create_data: bool,
    },
    /// List accounts
    List {
        /// Also show the keys
        #[arg(long, conflicts_with = "removed")]
        keys: bool,
        /// List removed accounts that can be restored instead
        #[arg(long)]
        removed: bool,
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
    /// Remove an account; for seven days it can be restored with its keys, settings and data
    Remove {
        /// The account
        name: String,
        /// Remove the account even if it holds data
        #[arg(long)]
        delete_data: bool,
        /// Free the space of the data at once: the account cannot be restored
        #[arg(long, requires = "delete_data")]
        immediately: bool,
    },
    /// Restore a removed account with its keys, settings and data
    Restore {
        /// The account
        name: String,
        /// When it was removed, as account list --removed shows; needed if several of the name can be
        /// restored
        #[arg(long, value_name = "TIME")]
        removed: Option<String>,
    },
    /// Print what to paste into a client; contains a key
    ConnectionString {
        /// The account [default: the only one]
        name: Option<String>,
        /// The client [default: any that takes a connection string]
        #[arg(long = "for", value_name = "CLIENT", value_enum)]
        client: Option<ClientTool>,
        /// Which of the account's keys to use
        #[arg(long, value_name = "1|2", default_value = "1", value_parser = parse_slot)]
        key: KeySlot,
    },
}

/// Carries out a command and prints its result.
pub(crate) fn run(args: AccountArgs, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    if let AccountAction::ConnectionString { name, client, key } = &args.action {
        let data = DataArgs { data: args.data, config: args.config };
        let target = DataTarget::load(data, variable)?;
        let account = target.account(name.as_deref())?;
        let key = target::key(&account, *key as usize + 1)?;
        let text = connect::text(*client, &target.endpoints()?, &account.name, key)?;
        match args.json {
            true => println!("{}", serde_json::json!(text.trim_end())),
            false => print!("{text}"),
        }
        return Ok(());
    }
    let directory = Config::directory(args.data, args.config.as_deref(), variable)?;
    let show = match args.action {
        AccountAction::Add { .. }
        | AccountAction::RotateKey { .. }
        | AccountAction::List { keys: true, .. } => Keys::Shown,
        AccountAction::List { keys: false, .. }
        | AccountAction::Set { .. }
        | AccountAction::Remove { .. }
        | AccountAction::Restore { .. }
        | AccountAction::ConnectionString { .. } => Keys::Hidden,
    };
    let missing = match &args.action {
        AccountAction::Add { create_data: true, .. } => MissingDirectory::Created,
        _ => MissingDirectory::Refused,
    };
    let command = command(args.action)?;
    let is_removed_list = command == Command::ListRemoved;
    let reply = match control::send_command(&directory, &command)? {
        Some(reply) => reply,
        None => execute_here(&directory, command, missing)?,
    };
    let done = reply.map_err(Failure::Failed)?;
    if let Some(note) = &done.note {
        eprintln!("{note}");
    }
    print!(
        "{}",
        match (is_removed_list, args.json) {
            (true, true) => output::removed_json(&done.removed),
            (true, false) => output::removed_table(&done.removed),
            (false, true) => output::json(done.accounts, show),
            (false, false) => output::table(&done.accounts, show),
        }
    );
    Ok(())
}

fn command(action: AccountAction) -> Result<Command, Failure> {
    Ok(match action {
        AccountAction::Add { name, keys, .. } if keys.is_empty() => {
            Command::Add { name, keys: vec![new_key()?, new_key()?] }
        }
        AccountAction::Add { name, keys, .. } => {
            let keys = keys.iter().map(|key| parse_key(key)).collect::<Result<_, _>>()?;
            Command::Add { name, keys }
        }
        AccountAction::List { removed: true, .. } => Command::ListRemoved,
        // The caller has handled connection strings.
        AccountAction::List { .. } | AccountAction::ConnectionString { .. } => Command::List,
        AccountAction::Set { name, settings } => Command::Set { name, changes: settings.into_changes() },
        AccountAction::RotateKey { name, key: slot } => Command::RotateKey { name, slot, key: new_key()? },
        AccountAction::Remove { name, delete_data, immediately } => {
            Command::Remove { name, delete_data, immediately }
        }
        AccountAction::Restore { name, removed } => Command::RestoreRemoved { name, removed },
    })
}

fn new_key() -> Result<Key, Failure> {
    random_key().map_err(Failure::failed)
}

fn parse_key(text: &str) -> Result<Key, Failure> {
    Key::from_base64(text).ok_or_else(|| Failure::Usage("--key: not Base64".into()))
}

pub(crate) fn parse_slot(text: &str) -> Result<KeySlot, String> {
    match text {
        "1" => Ok(KeySlot::Key1),
        "2" => Ok(KeySlot::Key2),
        _ => Err("an account has a key 1 and a key 2".into()),
    }
}
