//! Tests how an engine reacts to a damaged file: a torn end of the log, a flipped bit in the middle of the
//! log, and a flipped bit in a table.
//!
//! A process writes the log and ends by SIGKILL. The test copies the log, damages the copy in one place, and
//! opens it in a new process: once for every page of the last record, and once for every byte of structure
//! (and some of the values) of a record in the middle. A correct engine leaves out a torn last record, and
//! reports damage that intact records follow.

use crate::engine::{self, Engine, ROCKSDB_RECOVERY, Row};
use crate::workload::{VALUE_BYTES, key, load, value};
use anyhow::{Context, Result, ensure};
use memchr::memmem;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BATCHES: u64 = 20;
/// The batch with flipped bits in its record.
const MIDDLE: u64 = 10;
const PAGE: usize = 4096;
/// Enough rows that the LSM engines have flushed most of them to tables.
const TABLE_ROWS: u64 = 300_000;
const PATIENCE: Duration = Duration::from_secs(20);

/// Variants of the last record: many small rows, or one value larger than a page.
const LAST: [&str; 2] = ["64 rows of 500 B", "one row of 32 KiB"];

/// Number of times that each outcome occurred.
type Tally = BTreeMap<String, u64>;

#[derive(Serialize)]
pub struct Damage {
    pub engine: String,
    /// Empty for engines without a log.
    pub torn: Vec<Tally>,
    pub flipped_in_log: Tally,
    pub flipped_in_table: Tally,
    /// One message of each kind, in the engine's words.
    pub messages: Vec<String>,
}

pub fn all(names: &[&str], dir: &Path) -> Result<Vec<Damage>> {
    let mut all = Vec::new();
    for name in names {
        let mut found = Damage {
            engine: (*name).to_owned(),
            torn: Vec::new(),
            flipped_in_log: Tally::new(),
            flipped_in_table: Tally::new(),
            messages: Vec::new(),
        };
        eprintln!("damage {name}");
        damage_table(name, &dir.join(name).join("table"), &mut found)?;
        match *name {
            "redb" | "lmdb" => all.push(found),
            "rocksdb" => {
                for mode in ROCKSDB_RECOVERY {
                    let engine = format!("rocksdb/{mode}");
                    let flipped_in_table = std::mem::take(&mut found.flipped_in_table);
                    let messages = std::mem::take(&mut found.messages);
                    let mut found = Damage {
                        engine,
                        torn: Vec::new(),
                        flipped_in_log: Tally::new(),
                        flipped_in_table,
                        messages,
                    };
                    damage_log(&format!("rocksdb/{mode}"), &dir.join(mode), &mut found)?;
                    all.push(found);
                }
            }
            _ => {
                damage_log(name, &dir.join(name).join("log"), &mut found)?;
                all.push(found);
            }
        }
    }
    Ok(all)
}

// The log.

fn batch(number: u64, variant: u64) -> Vec<Row> {
    let (rows, length) = match (number == BATCHES - 1, variant) {
        (false, _) => (16, VALUE_BYTES),
        (true, 0) => (64, VALUE_BYTES),
        (true, _) => (1, 32 << 10),
    };
    (0..rows).map(|i| number * 1000 + i).map(|i| (key(i), value(i, 0, length))).collect()
}

/// Writes the batches and kills its own process.
pub fn write_log(name: &str, dir: &Path, variant: u64) -> Result<()> {
    let engine = engine::open(name, dir)?;
    for number in 0..BATCHES {
        engine.write(&batch(number, variant))?;
    }
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    Ok(())
}

#[derive(Serialize, Deserialize)]
pub struct Read {
    error: Option<String>,
    /// For each batch: present, absent, or `None` if it is incomplete or has other bytes.
    batches: Vec<Option<bool>>,
}

/// Opens the copy and reads every batch.
pub fn read_log(name: &str, dir: &Path, variant: u64) -> Read {
    let mut read = Read { error: None, batches: Vec::new() };
    let look = |read: &mut Read| -> Result<()> {
        let engine = engine::open(name, dir)?;
        for number in 0..BATCHES {
            read.batches.push(state(&*engine, &batch(number, variant))?);
        }
        Ok(())
    };
    if let Err(error) = look(&mut read) {
        read.error = Some(format!("{error:#}"));
    }
    read
}

fn state(engine: &dyn Engine, rows: &[Row]) -> Result<Option<bool>> {
    let (mut right, mut absent) = (0, 0);
    let mut value = Vec::new();
    for row in rows {
        match engine.get(&row.0, &mut value)? {
            true if value == row.1 => right += 1,
            true => {}
            false => absent += 1,
        }
    }
    Ok(match (right == rows.len(), absent == rows.len()) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    })
}

fn damage_log(name: &str, dir: &Path, found: &mut Damage) -> Result<()> {
    for variant in [0, 1] {
        let origin = dir.join(format!("origin-{variant}"));
        std::fs::create_dir_all(&origin)?;
        // Ends by SIGKILL.
        child("log-write", name, &origin, variant)?.status()?;
        let file = file_with(&origin, &key(0), |_| true)?.context("the log")?;
        let bytes = std::fs::read(origin.join(&file))?;
        let start = position(&bytes, &batch(BATCHES - 1, variant)[0].0)?;
        let end = tail(&bytes, BATCHES - 1, variant)?;

        let mut torn = Tally::new();
        let first = start.next_multiple_of(PAGE);
        for page in (first..).step_by(PAGE).take_while(|page| page + PAGE < end) {
            let outcome = open_damaged(name, &origin, &file, page, &[0; PAGE], variant, found)?;
            *torn.entry(judge_tear(outcome.as_ref())).or_default() += 1;
        }
        found.torn.push(torn);

        if variant == 0 {
            let from = tail(&bytes, MIDDLE - 1, variant)?;
            let to = position(&bytes, &batch(MIDDLE + 1, variant)[0].0)?;
            for at in structure(&bytes, from, to)? {
                let flipped = bytes[at] ^ (1 << (at % 8));
                let outcome = open_damaged(name, &origin, &file, at, &[flipped], variant, found)?;
                *found.flipped_in_log.entry(judge_flip(outcome.as_ref())).or_default() += 1;
            }
        }
    }
    Ok(())
}

/// Returns the bytes to flip: all bytes near some of the keys and near the ends of the record, and every
/// 128th of the rest.
fn structure(bytes: &[u8], from: usize, to: usize) -> Result<Vec<usize>> {
    let mut near = vec![from, to];
    for row in batch(MIDDLE, 0).iter().step_by(7) {
        near.push(position(bytes, &row.0)?);
    }
    Ok((from..to).filter(|at| at % 128 == 0 || near.iter().any(|n| at.abs_diff(*n) < 32)).collect())
}

fn position(bytes: &[u8], needle: &[u8]) -> Result<usize> {
    memmem::find(bytes, needle).context("the log does not hold a row that was written")
}

/// Returns where the last value of a batch ends.
fn tail(bytes: &[u8], number: u64, variant: u64) -> Result<usize> {
    let rows = batch(number, variant);
    let value = &rows[rows.len() - 1].1;
    Ok(position(bytes, &value[value.len() - 16..])? + 16)
}

/// Copies the files, writes `bytes` at `at`, and opens the copy in a new process. Returns `None` if that
/// process died or hung.
fn open_damaged(
    name: &str,
    origin: &Path,
    file: &Path,
    at: usize,
    bytes: &[u8],
    variant: u64,
    found: &mut Damage,
) -> Result<Option<Read>> {
    let copy = origin.with_file_name("copy");
    if copy.exists() {
        std::fs::remove_dir_all(&copy)?;
    }
    let copied = Command::new("cp").args(["-r", "--sparse=always"]).arg(origin).arg(&copy).status()?;
    ensure!(copied.success(), "cp failed");
    OpenOptions::new().write(true).open(copy.join(file))?.write_all_at(bytes, at as u64)?;
    let read: Option<Read> = answer(child("log-read", name, &copy, variant)?)?;
    if let Some(message) = read.as_ref().and_then(|read| read.error.clone()) {
        remember(&mut found.messages, message);
    }
    Ok(read)
}

fn judge_tear(read: Option<&Read>) -> String {
    let Some(read) = read else { return "process died".into() };
    let (last, others) = match read.batches.split_last() {
        _ if read.error.is_some() => return "refused to open".into(),
        Some(split) => split,
        None => return "refused to open".into(),
    };
    match (others.iter().all(|b| *b == Some(true)), last) {
        (true, Some(false)) => "opened without it",
        (true, Some(true)) => "opened, whole",
        (true, None) => "opened, part of it visible",
        (false, _) => "opened, other batches lost",
    }
    .into()
}

fn judge_flip(read: Option<&Read>) -> String {
    let Some(read) = read else { return "process died".into() };
    if read.error.is_some() {
        return "reported".into();
    }
    let lost: Vec<usize> = (0..read.batches.len()).filter(|b| read.batches[*b] == Some(false)).collect();
    if read.batches.iter().any(Option::is_none) {
        "silent: wrong or partial rows".into()
    } else if lost.is_empty() {
        "harmless: all rows right".into()
    } else if lost.last() == Some(&(BATCHES as usize - 1)) {
        "silent: this and all later batches lost".into()
    } else {
        "silent: one batch lost".into()
    }
}

/// Keeps one message of each kind. Messages that differ in numbers or paths are of the same kind.
fn remember(messages: &mut Vec<String>, message: String) {
    let kind = |m: &str| {
        m.split(|c: char| !c.is_alphabetic()).filter(|w| w.len() > 3).take(6).collect::<Vec<_>>().join(" ")
    };
    if messages.len() < 8 && messages.iter().all(|m| kind(m) != kind(&message)) {
        messages.push(message);
    }
}

// The tables.

/// Loads rows, waits for background work to finish, and closes the engine.
pub fn write_table(name: &str, dir: &Path) -> Result<()> {
    let engine = engine::open(name, dir)?;
    load(&*engine, TABLE_ROWS, Duration::MAX)?;
    engine.settle()
}

#[derive(Serialize, Deserialize)]
pub struct Looked(String, String);

/// Opens the engine and reads one row.
pub fn read_table(name: &str, dir: &Path, i: u64) -> Looked {
    let look = || -> Result<&str> {
        let engine = engine::open(name, dir)?;
        let mut found = Vec::new();
        let present = engine.get(&key(i), &mut found)?;
        Ok(match (present, found == value(i, 0, VALUE_BYTES)) {
            (true, true) => "right bytes",
            (true, false) => "silent: wrong bytes returned",
            (false, _) => "silent: row missing",
        })
    };
    match look() {
        Ok(outcome) => Looked(outcome.to_owned(), String::new()),
        Err(error) => Looked("reported".to_owned(), format!("{error:#}")),
    }
}

fn damage_table(name: &str, dir: &Path, found: &mut Damage) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    ensure!(child("table-write", name, dir, 0)?.status()?.success(), "loading failed");
    let is_table = |path: &Path| path.extension().is_none_or(|e| e != "log" && e != "jnl");
    for i in (0..TABLE_ROWS).step_by(TABLE_ROWS as usize / 20) {
        let value = value(i, 0, VALUE_BYTES);
        let Some(file) = file_with(dir, &value, is_table)? else { continue };
        let path = dir.join(file);
        let bytes = std::fs::read(&path)?;
        let handle = OpenOptions::new().write(true).open(&path)?;
        // A copy-on-write tree may hold older copies of the page.
        let places: Vec<usize> = memmem::find_iter(&bytes, &value).map(|at| at + VALUE_BYTES / 2).collect();
        for at in &places {
            handle.write_all_at(&[bytes[*at] ^ 1], *at as u64)?;
        }
        let looked = answer::<Looked>(child("table-read", name, dir, i)?)?;
        let Looked(outcome, message) = looked.unwrap_or_else(|| Looked("process died".into(), String::new()));
        *found.flipped_in_table.entry(outcome).or_default() += 1;
        if !message.is_empty() {
            remember(&mut found.messages, message);
        }
        if !path.exists() {
            continue;
        }
        for at in &places {
            handle.write_all_at(&[bytes[*at]], *at as u64)?;
        }
    }
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

// Files and processes.

/// Returns the file under `dir` that contains `needle`, relative to `dir`.
fn file_with(dir: &Path, needle: &[u8], admit: impl Fn(&Path) -> bool) -> Result<Option<PathBuf>> {
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if admit(&path) && memmem::find(&std::fs::read(&path)?, needle).is_some() {
                return Ok(Some(path.strip_prefix(dir)?.to_owned()));
            }
        }
    }
    Ok(None)
}

fn child(phase: &str, name: &str, dir: &Path, variant: u64) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--phase", phase, "--engine", name, "--variant", &variant.to_string(), "--data"]).arg(dir);
    command.stderr(Stdio::null());
    Ok(command)
}

/// Runs the command and returns its result, or `None` if it died or took too long.
fn answer<T: serde::de::DeserializeOwned>(mut command: Command) -> Result<Option<T>> {
    let mut process = command.stdout(Stdio::piped()).spawn()?;
    let start = Instant::now();
    while process.try_wait()?.is_none() {
        if start.elapsed() > PATIENCE {
            process.kill()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = process.wait_with_output()?;
    Ok(serde_json::from_slice(&output.stdout).ok())
}

/// Returns the description of a variant of the last record, for the report.
pub fn last_record(variant: usize) -> &'static str {
    LAST[variant]
}
