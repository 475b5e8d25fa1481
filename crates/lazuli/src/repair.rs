//! `lazuli repair`: copies all readable data of a damaged data directory to a new one, and lists the losses.
//!
//! The damaged directory is opened read-only, as by `lazuli check`. Rows keep their tokens and content keeps
//! its position, so ETags and versions stay. The new directory gets its name only when it is complete.

mod accounts;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use indicatif::{HumanBytes, HumanCount};
use lazuli_concurrency::Stamp;
use lazuli_extents::LocalExtents;
use lazuli_store::embedded::{Loader, Salvaged};
use lazuli_store::{Directory, SpaceHeader, SpaceId, Token};
use tokio::runtime::Runtime;

use crate::Failure;
use crate::check::bar;
use crate::data::{self, STORE};
use crate::survey::Survey;
use accounts::FoundAccounts;

/// The epoch of a space whose header is lost: above any earlier epoch.
const NEW_EPOCH: u64 = 1 << 32;
/// Suffix of the new directory's name until it is complete.
const UNFINISHED: &str = ".unfinished";
/// The subdirectory of the server's self-signed certificate.
const TLS: &str = "tls";

/// Repairs `dir` into `into`.
pub(crate) fn run(dir: &Path, into: &Path) -> Result<(), Failure> {
    let runtime = Runtime::new().map_err(Failure::failed)?;
    let source = data::lock_to_read(dir)?;
    refuse_taken(source.path(), into)?;
    let unfinished = PathBuf::from(format!("{}{UNFINISHED}", into.display()));
    if unfinished.exists() {
        let path = unfinished.display();
        return Err(Failure::Failed(format!(
            "{path} was left by a repair that was interrupted. Remove it first."
        )));
    }
    let target = Directory::open(&unfinished).map_err(Failure::failed)?;
    let store = target.subdirectory(STORE).map_err(Failure::failed)?;
    let extents = LocalExtents::open_read_only(source.path()).map_err(Failure::failed)?;
    let mut survey = Survey::new(&runtime, &extents);
    survey.findings.names_all = true;
    let loaded = load(&mut survey, &source.path().join(STORE), &store)?;
    copy_content(&survey, target.path())?;
    copy_certificate(source.path(), target.path()).map_err(Failure::failed)?;
    std::fs::rename(&unfinished, into).map_err(Failure::failed)?;
    if let Some(parent) = into.parent() {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(Failure::failed)?;
    }
    report(&survey, &loaded, into);
    Ok(())
}

fn refuse_taken(source: &Path, into: &Path) -> Result<(), Failure> {
    if into.exists() {
        return Err(Failure::Failed(format!("{} exists already", into.display())));
    }
    let parent = into.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (parent, source) = (parent.canonicalize(), source.canonicalize());
    match (parent, source) {
        (Ok(parent), Ok(source)) if parent.starts_with(&source) => {
            Err(Failure::Failed(format!("{} lies in the damaged directory", into.display())))
        }
        (Ok(_), Ok(_)) => Ok(()),
        (Err(error), _) => Err(Failure::Failed(format!("the folder of {}: {error}", into.display()))),
        (_, Err(error)) => Err(Failure::failed(error)),
    }
}

/// Counts of the new directory.
struct LoadCounts {
    rows: u64,
    /// Recreated accounts, whose rows were lost.
    accounts_again: Vec<String>,
}

/// Loads every sound row.
fn load(survey: &mut Survey<'_>, from: &Path, to: &Path) -> Result<LoadCounts, Failure> {
    // The tokens of headers are never read, so any will do.
    const NO_TOKEN: Token = Token(Stamp::from_ticks(0));
    let mut loader = Loader::create(to).map_err(Failure::failed)?;
    let (mut rows, mut headers) = (0, BTreeSet::from([SpaceId::ROOT]));
    let mut accounts = FoundAccounts::default();
    let progress = bar("{bar:40} {pos}/{len} rows {elapsed}");
    survey.run(from, &progress, |found| {
        let is_stale = matches!(found, Salvaged::Stale(..));
        match found {
            Salvaged::Clock(ceiling) => {
                loader.clock(ceiling);
                Ok(())
            }
            Salvaged::Header(space, header) => {
                headers.insert(space);
                loader.header(space, header, NO_TOKEN)
            }
            Salvaged::Row(space, partition, row) | Salvaged::Stale(space, partition, row) => {
                rows += 1;
                match accounts.take(space, &partition, &row, is_stale) {
                    true => Ok(()),
                    false => loader.row(space, &partition, &row),
                }
            }
        }
        .map_err(Failure::failed)
    })?;
    progress.finish_and_clear();
    let accounts_again = accounts.load(&mut loader, |row| survey.findings.may_have_lost(row))?;
    // Spaces that a row names but whose header is lost. The server closes such a space if its row requires
    // it.
    for space in survey.names.spaces().filter(|space| !headers.contains(space)) {
        let header = SpaceHeader { epoch: NEW_EPOCH, open: true };
        loader.header(space, header, NO_TOKEN).map_err(Failure::failed)?;
    }
    loader.finish().map_err(Failure::failed)?;
    Ok(LoadCounts { rows, accounts_again })
}

fn copy_content(survey: &Survey<'_>, target: &Path) -> Result<(), Failure> {
    let progress = bar("{bar:40} {bytes}/{total_bytes} of content {elapsed}");
    progress.set_length(survey.verifier.sound_bytes());
    let copied = survey.verifier.copy_into(target, |bytes| progress.set_position(bytes));
    progress.finish_and_clear();
    copied.map_err(Failure::failed)
}

fn copy_certificate(source: &Path, target: &Path) -> std::io::Result<()> {
    let (from, to) = (source.join(TLS), target.join(TLS));
    if !from.is_dir() {
        return Ok(());
    }
    std::fs::create_dir(&to)?;
    for entry in std::fs::read_dir(&from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
            File::open(to.join(entry.file_name()))?.sync_all()?;
        }
    }
    File::open(&to)?.sync_all()
}

fn report(survey: &Survey<'_>, loaded: &LoadCounts, into: &Path) {
    let findings = &survey.findings;
    let lines = findings.lines(&survey.names);
    for line in &lines {
        println!("lost: {line}");
    }
    if findings.count > lines.len() as u64 {
        println!("lost: and {} more", HumanCount(findings.count - lines.len() as u64));
    }
    for account in &loaded.accounts_again {
        println!(
            "recreated: account {account}: disabled, with a new key; its settings and service properties are lost"
        );
    }
    if findings.unnamed > 0 {
        println!(
            "note: {} rows belong to containers, tables, queues or shares that are gone",
            findings.unnamed
        );
    }
    if findings.count == 0 {
        println!("nothing was lost");
    }
    let bytes = survey.verifier.sound_bytes();
    println!("{}: {} rows, {} of content", into.display(), HumanCount(loaded.rows), HumanBytes(bytes));
}
