//! `lazuli check`: verifies a data directory that no server has open, and changes nothing in it.
//!
//! Every log frame and every block of every table on the way to the rows, every row by whoever wrote it, every byte of
//! content that a row refers to, and every other byte of content that is there. Damage is listed on stdout; the exit
//! code says whether there was any.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use lazuli_extents::{DamageKind, LocalExtents, Verifier};
use lazuli_store::{OpenError, embedded};

use crate::data::{self, STORE};
use crate::records::{self, Found};
use crate::{Failure, services};

/// Damages that are listed. More are only counted.
const MAX_LISTED: usize = 1000;

/// What is wrong, as it is found.
#[derive(Default)]
struct Findings {
    listed: Vec<String>,
    count: u64,
}

impl Findings {
    fn add(&mut self, damage: String) {
        self.count += 1;
        if self.listed.len() < MAX_LISTED {
            self.listed.push(damage);
        }
    }
}

/// Verifies everything.
pub(crate) fn run(dir: &Path) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::failed)?;
    let findings = runtime.block_on(check(dir))?;
    for damage in &findings.listed {
        println!("{damage}");
    }
    match findings.count {
        0 => {
            println!("no damage found");
            Ok(())
        }
        damaged => Err(Failure::Failed(format!("{} is damaged in {damaged} places", dir.display()))),
    }
}

async fn check(dir: &Path) -> Result<Findings, Failure> {
    let directory = data::lock_to_read(dir)?;
    let mut findings = Findings::default();
    let store = directory.path().join(STORE);
    if !store.is_dir() {
        findings.add(format!("rows: {} is missing", store.display()));
        return Ok(findings);
    }
    let extents = LocalExtents::open_read_only(directory.path()).map_err(Failure::failed)?;
    let tables = check_tables(&store, &mut findings).await?;
    check_rows(&store, tables, extents.verifier(), &mut findings).await?;
    check_content(&extents, &mut findings).await?;
    Ok(findings)
}

/// Whether the tables of rows are sound.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tables {
    Sound,
    Damaged,
}

/// Every byte of every table.
async fn check_tables(store: &Path, findings: &mut Findings) -> Result<Tables, Failure> {
    let progress = spinner("tables");
    let store = store.to_owned();
    let checked = tokio::task::spawn_blocking(move || embedded::damaged_tables(&store)).await;
    progress.finish_and_clear();
    let tables = match checked.map_err(Failure::failed)? {
        Ok(tables) => tables,
        // A manifest that cannot be read: the rows cannot be read either, and will say so.
        Err(OpenError::Damaged { .. }) => vec![],
        Err(error) => return Err(Failure::failed(error)),
    };
    let found = if tables.is_empty() { Tables::Sound } else { Tables::Damaged };
    for (table, what) in tables {
        findings.add(format!("rows: {}: {what}", table.display()));
    }
    Ok(found)
}

/// Rows, and the content that they refer to.
async fn check_rows(
    store: &Path,
    tables: Tables,
    mut verifier: Verifier,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let progress = spinner("rows");
    let rows = Arc::new(AtomicU64::new(0));
    let (store, counter, bar) = (store.to_owned(), rows.clone(), progress.clone());
    let (mut finds, walk) = records::walk(services::readers(), move |visit| {
        embedded::check(&store, |space, partition, row| {
            bar.set_position(counter.fetch_add(1, Ordering::Relaxed) + 1);
            visit(space, partition, row)
        })
    });
    while let Some(found) = finds.next().await {
        match found {
            Found::Content(content) => {
                for (extent, error) in verifier.content(&content).await.map_err(Failure::failed)? {
                    findings.add(format!("content: {:?}: {error}", extent.id));
                }
            }
            Found::Damage(damage) => findings.add(format!("row: {damage}")),
        }
    }
    let walked = walk.await.map_err(Failure::failed)?;
    progress.finish_and_clear();
    match walked {
        // The damaged table is on the list already.
        Err(OpenError::Damaged { .. } | OpenError::Tree(_) | OpenError::Read(_))
            if tables == Tables::Damaged => {}
        Err(error) => findings.add(format!("rows: {error}")),
        Ok(()) => {}
    }
    let verified = verifier.finish();
    println!("rows: {} read", HumanCount(rows.load(Ordering::Relaxed)));
    println!("content of rows: {} in {} rows", HumanBytes(verified.bytes), HumanCount(verified.contents));
    Ok(())
}

/// All content, whether a row refers to it or not.
async fn check_content(extents: &LocalExtents, findings: &mut Findings) -> Result<(), Failure> {
    let progress = ProgressBar::new(0).with_style(style("{bar:40} {pos}/{len} segments, {msg}"));
    let report = extents.scrub(|so_far| {
        progress.set_length(so_far.segments);
        progress.set_position(so_far.segments_done);
        progress.set_message(HumanBytes(so_far.bytes).to_string());
    });
    let report = report.await.map_err(Failure::failed)?;
    progress.finish_and_clear();
    for damage in &report.damage {
        let (segment, offset, length) = (damage.segment, damage.offset, damage.length);
        let place = format!("segment {segment:016x}, {length} bytes at {offset}");
        match damage.kind {
            DamageKind::SegmentHeader => findings.add(format!("{place}: the header is damaged")),
            DamageKind::Chunk => findings.add(format!("{place}: the checksum does not match")),
            // A crash leaves such bytes, and the next sweep frees them. If a row referred to them it would have said so.
            DamageKind::Unclaimed => println!("note: {place}: the remains of an unfinished write"),
        }
    }
    findings.count += report.damaged.saturating_sub(report.damage.len() as u64);
    println!("content in all: {} in {} extents", HumanBytes(report.bytes), HumanCount(report.extents));
    Ok(())
}

/// A sign of life for work of unknown length.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let progress = ProgressBar::new_spinner().with_style(style("{spinner} {msg}: {pos} {elapsed}"));
    progress.set_message(what);
    progress.enable_steady_tick(Duration::from_millis(100));
    progress
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
