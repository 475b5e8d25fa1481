//! `lazuli check`: verifies a data directory that no server has open, without changing it.
//!
//! Reads every log frame, every table, every row and every byte of content. Damage is listed on stdout with
//! the names of the damaged objects, each damaged place once. The exit code is 1 if there is damage.

use std::path::Path;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use lazuli_extents::{DamageKind, LocalExtents};
use lazuli_store::{OpenError, ReadError, embedded};
use tokio::runtime::Runtime;

use crate::Failure;
use crate::data::{self, STORE};
use crate::survey::{Findings, Survey};

/// Stops a scan that has already answered its question.
const ENOUGH: &str = "enough";

/// The damage that was found.
#[derive(Default)]
struct Damages {
    listed: Vec<String>,
    count: u64,
}

impl Damages {
    fn add(&mut self, damage: String) {
        self.count += 1;
        self.listed.push(damage);
    }
}

/// Verifies everything.
pub(crate) fn run(dir: &Path) -> Result<(), Failure> {
    let runtime = Runtime::new().map_err(Failure::failed)?;
    let damages = check(dir, &runtime)?;
    for damage in &damages.listed {
        println!("{damage}");
    }
    let more = damages.count.saturating_sub(damages.listed.len() as u64);
    if more > 0 {
        println!("and {} more", HumanCount(more));
    }
    match damages.count {
        0 => {
            println!("no damage found");
            Ok(())
        }
        count => Err(Failure::Failed(format!("{} is damaged in {count} places", dir.display()))),
    }
}

fn check(dir: &Path, runtime: &Runtime) -> Result<Damages, Failure> {
    let directory = data::lock_to_read(dir)?;
    let mut damages = Damages::default();
    let store = directory.path().join(STORE);
    if !store.is_dir() {
        damages.add(format!("rows: {} is missing", store.display()));
        return Ok(damages);
    }
    let extents = LocalExtents::open_read_only(directory.path()).map_err(Failure::failed)?;
    let mut survey = Survey::new(runtime, &extents);
    let progress = bar("{bar:40} {pos}/{len} rows {elapsed}");
    survey.run(&store, &progress, |_| Ok(()))?;
    progress.finish_and_clear();
    let Survey { verifier, names, findings, .. } = survey;
    let verified = verifier.finish();
    println!("rows: {} read", HumanCount(findings.rows_read));
    println!("content of rows: {} in {} rows", HumanBytes(verified.bytes), HumanCount(verified.contents));
    damages.count = findings.count;
    damages.listed = findings.lines(&names);
    check_tables(&store, &findings, &mut damages)?;
    check_content(&extents, runtime, &findings, &mut damages)?;
    Ok(damages)
}

/// Verifies every byte of every table, and that the store can be opened.
fn check_tables(store: &Path, findings: &Findings, damages: &mut Damages) -> Result<(), Failure> {
    let progress = bar("{bar:40} {pos}/{len} tables {elapsed}");
    let damaged = embedded::damaged_tables(store, |done, tables| {
        progress.set_length(tables);
        progress.set_position(done);
    });
    let tables = match damaged {
        Ok(tables) => tables,
        // The manifest is already listed.
        Err(OpenError::Damaged { .. }) => vec![],
        Err(error) => return Err(Failure::failed(error)),
    };
    for (table, what) in tables {
        if !findings.lists(&table) {
            damages.add(format!("rows: {}: {what}; all of its rows can be read", table.display()));
        }
    }
    if damages.count == 0 {
        match embedded::check(store, |_, _, _| Err(ReadError::Io(ENOUGH.into()))) {
            Ok(()) => {}
            Err(OpenError::Read(ReadError::Io(what))) if what == ENOUGH => {}
            Err(error) => damages.add(format!("rows: {error}")),
        }
    }
    progress.finish_and_clear();
    Ok(())
}

/// Verifies all content, including content that no row refers to.
fn check_content(
    extents: &LocalExtents,
    runtime: &Runtime,
    findings: &Findings,
    damages: &mut Damages,
) -> Result<(), Failure> {
    let progress = bar("{bar:40} {pos}/{len} segments, {msg}");
    let report = extents.scrub(|so_far| {
        progress.set_length(so_far.segments);
        progress.set_position(so_far.segments_done);
        progress.set_message(HumanBytes(so_far.bytes).to_string());
    });
    let report = runtime.block_on(report).map_err(Failure::failed)?;
    progress.finish_and_clear();
    for damage in report.damage.iter().filter(|damage| !findings.covers(damage)) {
        let (segment, offset, length) = (damage.segment, damage.offset, damage.length);
        let place = format!("segment {segment:016x}, {length} bytes at {offset}");
        match damage.kind {
            DamageKind::SegmentHeader => {
                damages.add(format!("{place}: the header is damaged; no object needs it"))
            }
            DamageKind::Chunk => {
                damages.add(format!("{place}: the checksum does not match; no object refers to it"));
            }
            // A crash leaves such bytes, and the next sweep frees them. A row that refers to them would have
            // been reported above.
            DamageKind::Unclaimed => println!("note: {place}: the remains of an unfinished write"),
        }
    }
    damages.count += report.damaged.saturating_sub(report.damage.len() as u64);
    println!("content in all: {} in {} extents", HumanBytes(report.bytes), HumanCount(report.extents));
    Ok(())
}

/// Creates a spinner for work of unknown length.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let progress = ProgressBar::new_spinner().with_style(style("{spinner} {msg}: {pos} {elapsed}"));
    progress.set_message(what);
    progress.enable_steady_tick(Duration::from_millis(100));
    progress
}

/// Creates a progress bar; the caller sets its length.
pub(crate) fn bar(template: &str) -> ProgressBar {
    ProgressBar::new(0).with_style(style(template))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
