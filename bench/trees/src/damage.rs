//! One flipped bit in a store of some KiB, in every kind of file.
//!
//! Each flip is made in a fresh copy, which a child process with little address space opens and reads
//! completely. A right reaction is an error, or the right rows.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::Run;
use crate::rows::{Row, key, scatter, value};
use crate::tree::{self, Sizes, Tree};

const ROWS: u64 = 120;
const VERSIONS: u64 = 4;
const VALUE_BYTES: usize = 60;
/// Address space of the process that opens a damaged store.
const MAX_MEMORY: u64 = 1 << 30;
const PATIENCE: Duration = Duration::from_secs(20);
const WRONG_ROWS: u8 = 3;
const REPORTED: u8 = 4;

/// Number of flips by outcome, for each kind of file.
type Table = BTreeMap<String, (u64, BTreeMap<&'static str, u64>)>;

pub fn all(run: &Run) -> Result<()> {
    let (flips, seed) = (run.get("flips", 4000)?, run.get("seed", 1)?);
    let data = run.data();
    println!("| tree | kind of file | bytes | flips | outcomes |\n|---|---|---:|---:|---|");
    for name in run.trees() {
        let origin = data.join("origin");
        remove(&origin)?;
        ensure!(run.part("damage-write", &name, &origin)?.status()?.success(), "{name} could not be written");
        let mut files = files(&origin)?;
        files.retain(|(_, bytes)| *bytes > 0);
        let whole = open(run, &name, &origin, &data.join("copy"), None)?;
        ensure!(whole == "harmless", "{name}: the undamaged store is {whole}");
        let mut kinds: BTreeMap<String, Vec<(PathBuf, u64)>> = BTreeMap::new();
        for (path, bytes) in files {
            kinds.entry(kind(&path)).or_default().push((path, bytes));
        }
        let mut table = Table::new();
        let share = flips / kinds.len() as u64;
        for (kind, files) in kinds {
            let bits: u64 = files.iter().map(|(_, bytes)| bytes * 8).sum();
            let count = share.min(bits);
            let (_, outcomes) = table.entry(kind.clone()).or_insert((bits / 8, BTreeMap::new()));
            for n in 0..count {
                // One bit in each of `count` equal parts.
                let part = bits / count;
                let mut bit = n * part + scatter(seed ^ n) % part;
                let mut places = files.iter();
                let (path, at) = loop {
                    let (path, bytes) = places.next().context("a file")?;
                    match bit.checked_sub(bytes * 8) {
                        Some(rest) => bit = rest,
                        None => break (path, bit),
                    }
                };
                let outcome = open(run, &name, &origin, &data.join("copy"), Some((path, at)))?;
                *outcomes.entry(outcome).or_default() += 1;
                if std::env::var_os("TREES_VERBOSE").is_some() {
                    eprintln!("{name} {} bit {at}: {outcome}", path.display());
                }
            }
        }
        for (kind, (bytes, outcomes)) in table {
            let flips: u64 = outcomes.values().sum();
            let outcomes: Vec<_> =
                outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
            println!("| {name} | {kind} | {bytes} | {flips} | {} |", outcomes.join(", "));
        }
    }
    remove(&data)
}

fn remove(dir: &Path) -> Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir)?;
    }
    Ok(())
}

/// Returns a name for files of the same format: without numbers.
fn kind(path: &Path) -> String {
    let name: String =
        path.to_string_lossy().chars().map(|c| if c.is_ascii_digit() { 'N' } else { c }).collect();
    let mut kind = String::new();
    for c in name.chars() {
        if !(c == 'N' && kind.ends_with('N')) {
            kind.push(c);
        }
    }
    kind
}

/// Returns all files below a directory with their lengths, by relative paths, in order.
fn files(dir: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let (mut found, mut folders) = (vec![], vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            match metadata.is_dir() {
                true => folders.push(entry.path()),
                false => found.push((entry.path().strip_prefix(dir)?.to_owned(), metadata.len())),
            }
        }
    }
    found.sort();
    Ok(found)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => _ = std::fs::copy(entry.path(), target)?,
        }
    }
    Ok(())
}

/// Opens a copy with a flipped bit. Returns the outcome.
fn open(
    run: &Run,
    name: &str,
    origin: &Path,
    dir: &Path,
    flip: Option<(&PathBuf, u64)>,
) -> Result<&'static str> {
    remove(dir)?;
    copy(origin, dir)?;
    if let Some((path, bit)) = flip {
        let file = OpenOptions::new().read(true).write(true).open(dir.join(path))?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, bit / 8)?;
        file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], bit / 8)?;
    }
    let before = files(dir)?;
    let mut child = run.part("damage-read", name, dir)?;
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok("**hangs**");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let mut bytes = vec![];
        std::io::Read::read_to_end(&mut stderr, &mut bytes)?;
        said = String::from_utf8_lossy(&bytes).into_owned();
    }
    let allocates =
        ["memory allocation of", "bad_alloc", "length_error"].iter().any(|text| said.contains(text));
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(match code {
        _ if allocates => "**huge allocation**",
        None => {
            eprintln!("{name} {flip:?}: signal {:?}: {said}", status.signal());
            "**crash**"
        }
        Some(WRONG_ROWS) => "**wrong rows**",
        Some(REPORTED) => "reported",
        Some(0) => {
            // A table that was removed is lost, even if this open did not need it.
            let after = files(dir)?;
            let is_table = |path: &Path| kind(path).ends_with(".sst") || path.starts_with("tables");
            let lost =
                before.iter().any(|(path, _)| is_table(path) && !after.iter().any(|(kept, _)| kept == path));
            if lost { "**removes a table**" } else { "harmless" }
        }
        Some(_) => {
            eprintln!("{name} {flip:?}: {status}: {said}");
            "**crash**"
        }
    })
}

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = (0..ROWS).map(|i| (key(i), value(i, i % VERSIONS, VALUE_BYTES))).collect();
    rows.sort();
    rows
}

/// Writes a store: several flushes, each of which overwrites some rows, with one compaction between them.
pub fn write(run: &Run) -> Result<()> {
    let name = run.trees().pop().context("no tree")?;
    let tree = tree::open(&name, &run.data(), Sizes::SMALL)?;
    for version in 0..VERSIONS {
        // Row `i` gets its last version in round `i % VERSIONS`.
        let rows = (0..ROWS).filter(|i| version <= i % VERSIONS);
        let rows: Vec<Row> = rows.map(|i| (key(i), value(i, version, VALUE_BYTES))).collect();
        tree.insert(&rows)?;
        tree.flush()?;
        if version == 1 {
            tree.compact_all()?;
        }
    }
    Ok(())
}

/// Opens a store and reads all rows. The exit status is the outcome.
pub fn read(run: &Run) -> Result<ExitCode> {
    let name = run.trees().pop().context("no tree")?;
    setrlimit(Resource::As, Rlimit { current: Some(MAX_MEMORY), maximum: Some(MAX_MEMORY) })?;
    let look = || -> Result<bool> {
        let tree: Box<dyn Tree> = tree::open(&name, &run.data(), Sizes::SMALL)?;
        let rows = rows();
        for (key, value) in &rows {
            if tree.get(key)?.as_ref() != Some(value) {
                return Ok(false);
            }
        }
        Ok(tree.all()? == rows)
    };
    Ok(match look() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => WRONG_ROWS.into(),
        Err(error) => {
            println!("{error:#}");
            REPORTED.into()
        }
    })
}
