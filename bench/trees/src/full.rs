//! A full disk: what a tree reports, whether reads continue, whether it recovers when space is free again,
//! and whether it can be opened on the full disk.
//!
//! The file system is a tmpfs in a mount namespace of its own, so this needs root. The log would be elsewhere
//! or has a reserve, so it is left out.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::Run;
use crate::rows::{Row, key, value};
use crate::tree::{self, Sizes, Tree};

const VALUE_BYTES: usize = 4200;
/// Rows in a group.
const GROUP: u64 = 256;
/// Size of the file system by default.
const DEFAULT_MIB: usize = 192;
const PATIENCE: Duration = Duration::from_secs(20);
/// Lazuli's delay before the first retry of a failed flush.
const RETRY: Duration = Duration::from_secs(1);

pub fn all(run: &Run) -> Result<()> {
    let data = run.data();
    let mib: usize = run.get("mib", DEFAULT_MIB)?;
    std::fs::create_dir_all(&data)?;
    for name in run.trees() {
        println!("{name}, {mib} MiB:");
        let program = std::env::current_exe()?;
        let script = format!(
            "mount -t tmpfs -o size={mib}m tmpfs '{dir}' && '{program}' full-part {arguments}; '{program}' full-reopen {arguments}; rm '{dir}/ballast'; '{program}' full-reopen {arguments}",
            dir = data.display(),
            program = program.display(),
            arguments = format_args!("--mib {mib} --trees {name} --data '{}'", data.display()),
        );
        let status = Command::new("unshare").args(["-m", "sh", "-c", &script]).status()?;
        ensure!(status.success(), "{name}: {status}");
    }
    Ok(std::fs::remove_dir_all(&data)?)
}

/// Fills the disk, then frees some space, then fills it again.
pub fn part(run: &Run) -> Result<()> {
    let name = run.trees().pop().context("no tree")?;
    // Half of the space is freed later: more than a merge of all tables needs.
    let ballast = run.data().join("ballast");
    let ballast_mib = run.get("mib", DEFAULT_MIB)? / 2;
    std::fs::write(&ballast, vec![1; ballast_mib << 20])?;
    let tree = tree::open(&name, &run.data().join("tree"), Sizes::USUAL)?;
    let (mut next, mut flushed) = (0, 0);
    println!("  fills: {}", fill(&*tree, &mut next, &mut flushed));
    println!("  files: {}", summary(&run.data().join("tree"))?);
    println!("  reads: {}", check(&*tree, flushed));
    println!("  inserts: {}", describe(insert(&*tree, &mut next)));
    println!("  flush again: {}", describe(tree.flush()));
    println!("  files after the retry: {}", summary(&run.data().join("tree"))?);
    std::fs::remove_file(&ballast)?;
    let freed = Instant::now();
    loop {
        let outcome = insert(&*tree, &mut next).and_then(|()| tree.flush());
        if outcome.is_ok() || freed.elapsed() > PATIENCE {
            println!(
                "  {} MiB freed: after {:.1} s {}",
                ballast_mib,
                freed.elapsed().as_secs_f64(),
                describe(outcome)
            );
            break;
        }
        std::thread::sleep(RETRY);
    }
    println!("  reads: {}", check(&*tree, flushed));
    std::fs::write(&ballast, vec![1; 1 << 20])?;
    println!("  fills again: {}", fill(&*tree, &mut next, &mut flushed));
    // Leave nothing free, as other programs on the disk would.
    let mut rest = std::fs::OpenOptions::new().create(true).append(true).open(run.data().join("rest"))?;
    while std::io::Write::write(&mut rest, &[1; 4096]).is_ok_and(|written| written > 0) {}
    // Ends like a crash.
    println!("  killed with {flushed} flushed rows");
    std::process::exit(0)
}

/// Opens the tree that the first part left and reads the rows.
pub fn reopen(run: &Run) -> Result<()> {
    let name = run.trees().pop().context("no tree")?;
    let free = rustix::fs::statvfs(&run.data())?;
    let free = free.f_bavail * free.f_frsize;
    match tree::open(&name, &run.data().join("tree"), Sizes::USUAL) {
        Ok(tree) => println!(
            "  opens with {} KiB free: yes, {} rows",
            free >> 10,
            tree.all().map_or_else(|e| format!("{e:#}"), |rows| rows.len().to_string())
        ),
        Err(error) => println!("  opens with {} KiB free: no: {error:#}", free >> 10),
    }
    Ok(())
}

fn insert(tree: &dyn Tree, next: &mut u64) -> Result<()> {
    let rows: Vec<Row> = (*next..*next + GROUP).map(|i| (key(i), value(i, 0, VALUE_BYTES))).collect();
    tree.insert(&rows)?;
    *next += GROUP;
    Ok(())
}

/// Inserts and flushes until an error. Returns a description of it.
fn fill(tree: &dyn Tree, next: &mut u64, flushed: &mut u64) -> String {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        for _ in 0..8 {
            if let Err(error) = insert(tree, next) {
                return format!("insert fails after {next} rows: {error:#}");
            }
        }
        if let Err(error) = tree.flush() {
            return format!("flush fails after {next} rows: {error:#}");
        }
        *flushed = *next;
        match tree.compact() {
            Ok(_) => {}
            Err(error) => return format!("compaction fails after {next} rows: {error:#}"),
        }
    }
    format!("no error within {} s and {next} rows", PATIENCE.as_secs())
}

fn check(tree: &dyn Tree, rows: u64) -> String {
    for i in 0..rows {
        match tree.get(&key(i)) {
            Ok(found) if found == Some(value(i, 0, VALUE_BYTES)) => {}
            Ok(_) => return format!("row {i} of {rows} is wrong"),
            Err(error) => return format!("row {i} of {rows}: {error:#}"),
        }
    }
    format!("all {rows} rows are right")
}

fn describe(outcome: Result<()>) -> String {
    outcome.map_or_else(|error| format!("error: {error:#}"), |()| "works".into())
}

fn summary(dir: &Path) -> Result<String> {
    let mut stack = vec![dir.to_owned()];
    let (mut count, mut bytes) = (0, 0);
    while let Some(folder) = stack.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            match entry.metadata()? {
                metadata if metadata.is_dir() => stack.push(entry.path()),
                metadata => {
                    count += 1;
                    bytes += metadata.len();
                }
            }
        }
    }
    Ok(format!("{count} files, {} MiB", bytes >> 20))
}
