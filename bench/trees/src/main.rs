//! Compares two LSM trees under one log of our own: `lsm-tree`, which Lazuli uses, and RocksDB with its log
//! turned off. Decision 0042 has the results.
//!
//! ```text
//! cargo run --release -- stalls   # alternating minutes of both trees and of a raw writer
//! cargo run --release -- damage   # one flipped bit in every kind of file
//! cargo run --release -- full     # a full disk: root, in a mount namespace of its own
//! ```
//!
//! Each measurement of each tree runs in a process of its own.

mod damage;
mod full;
mod log;
mod rows;
mod stalls;
mod tree;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

const HELP: &str = "\
trees stalls [--rounds 3] [--seconds 60] [--rate 4500] [--trees A,B] [--data DIR]
trees damage [--flips 4000] [--seed 1] [--trees A,B] [--data DIR]
trees full [--mib 192] [--trees A,B] [--data DIR]

  --rounds, --seconds   number and length of the measurements of each tree
  --rate                puts of 4 KiB per second
  --flips               flipped bits for each tree, spread over all kinds of file
  --mib                 size of the small file system
  --trees               lsm-tree (as Lazuli uses it), lsm-tree-locked (reads take the tree's lock), rocksdb
  --data                scratch directory, deleted afterwards (/tmp/trees-data)";

/// The arguments of one run.
pub struct Run {
    options: HashMap<String, String>,
}

impl Run {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<(String, Self)> {
        let command = arguments.next().ok_or_else(|| anyhow!("{HELP}"))?;
        let mut options = HashMap::new();
        while let Some(name) = arguments.next() {
            let name = name.strip_prefix("--").ok_or_else(|| anyhow!("{HELP}"))?.to_owned();
            options.insert(name, arguments.next().ok_or_else(|| anyhow!("{HELP}"))?);
        }
        Ok((command, Self { options }))
    }

    /// Returns an option's value, or its default.
    fn get<T: FromStr>(&self, name: &str, default: T) -> Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        self.options
            .get(name)
            .map_or(Ok(default), |text| text.parse().with_context(|| format!("--{name} {text}")))
    }

    fn data(&self) -> PathBuf {
        self.options.get("data").map_or_else(|| "/tmp/trees-data".into(), PathBuf::from)
    }

    fn trees(&self) -> Vec<String> {
        match self.options.get("trees") {
            Some(list) => list.split(',').map(str::to_owned).collect(),
            None => tree::NAMES.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn seconds(&self) -> Result<Duration> {
        Ok(Duration::from_secs(self.get("seconds", 60)?))
    }

    /// Returns the command that runs one part of this program in a process of its own.
    fn part(&self, part: &str, tree: &str, dir: &Path) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(part);
        for (name, value) in
            self.options.iter().filter(|(name, _)| !["data", "trees"].contains(&name.as_str()))
        {
            command.arg(format!("--{name}")).arg(value);
        }
        command.arg("--trees").arg(tree).arg("--data").arg(dir);
        Ok(command)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let (command, run) = Run::parse(std::env::args().skip(1))?;
    match command.as_str() {
        "stalls" => stalls::all(&run)?,
        "damage" => damage::all(&run)?,
        "full" => full::all(&run)?,
        // The parts.
        "stalls-part" => stalls::part(&run)?,
        "damage-write" => damage::write(&run)?,
        "damage-read" => return damage::read(&run),
        "full-part" => full::part(&run)?,
        "full-reopen" => full::reopen(&run)?,
        _ => bail!("{HELP}"),
    }
    Ok(ExitCode::SUCCESS)
}
