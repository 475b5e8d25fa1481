//! Flips bits one at a time. Each flip is verified in its own process.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::TempDir;

use super::layout::{self, Bit, BitKind, Files};
use super::verify::{Expected, VerifyOutcome, record, verify};
use super::{template, verify};

/// First argument of the verifying process, followed by the directory and the file of expected rows.
pub const VERIFY_ARGUMENT: &str = "--look";
/// Number of verifications of the unchanged template. All must keep the same files, else a removed file
/// proves nothing.
const TEMPLATE_CHECKS: usize = 10;
/// Maximum number of recorded failures.
const MAX_FAILURES: usize = 50;
/// Folders whose files are renamed at each start: the segments of the log, and the manifest of the tree.
const REPLACED_FOLDERS: [&str; 2] = ["store/log", "store/tree"];

/// A template and its bits.
pub struct Flips {
    folder: TempDir,
    expected: PathBuf,
    files: Files,
    /// Names of the template's files after it was opened and closed.
    files_after_open: Vec<PathBuf>,
    /// All bits to flip.
    pub bits: Vec<Bit>,
}

/// The results of flips of one kind of bit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// The directory was not opened.
    pub refused: u64,
    /// A check or a read reported damage.
    pub reported: u64,
    /// Nothing was different.
    pub harmless: u64,
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Counts by kind of bit.
    pub counts: BTreeMap<BitKind, Count>,
    /// The first failures.
    pub failures: Vec<String>,
    /// Number of flips.
    pub flips: usize,
    /// Duration of the run.
    pub took: Duration,
}

/// Verifies a directory and prints the outcome. Does not return if a thread panics.
pub fn verify_and_print(dir: &Path, expected: &Path) {
    verify::limit_process();
    let expected: Vec<Expected> =
        serde_json::from_slice(&std::fs::read(expected).expect("read")).expect("the expected rows");
    let outcome = runtime().block_on(verify(dir, &expected));
    println!("{}", serde_json::to_string(&outcome).expect("encoded"));
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

impl Default for Flips {
    fn default() -> Self {
        Self::new()
    }
}

impl Flips {
    /// Creates a template, in memory if possible.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let folder = folder.expect("a folder");
        let (dir, scratch) = (folder.path().join("template"), folder.path().join("scratch"));
        std::fs::create_dir(&scratch).expect("made");
        runtime().block_on(template::make(&dir, &scratch));
        let expected = folder.path().join("expected");
        let rows = runtime().block_on(record(&dir));
        std::fs::write(&expected, serde_json::to_vec(&rows).expect("encoded")).expect("written");
        let files = layout::files(&dir);
        let bits = layout::bits(&files);
        let mut flips = Self { folder, expected, files, files_after_open: vec![], bits };
        flips.files_after_open = flips.verify_template();
        for _ in 1..TEMPLATE_CHECKS {
            assert_eq!(flips.verify_template(), flips.files_after_open, "the set of kept files is random");
        }
        flips
    }

    /// Verifies the unchanged template. Returns the names of the files that are kept.
    fn verify_template(&self) -> Vec<PathBuf> {
        let sound = self.folder.path().join("sound");
        self.restore(&sound, None);
        let outcome = self.verify_directory(&sound).expect("the template is sound");
        assert!(!outcome.is_reported() && outcome.wrong.is_none(), "the template is sound: {outcome:?}");
        names(&sound)
    }

    /// Returns the number of bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.bits.iter().filter(|bit| bit.kind != BitKind::Zeros).count() / 8
    }

    /// Flips these bits one at a time, in order, until `deadline`.
    pub fn run(&self, bits: &[&Bit], deadline: Option<Instant>) -> Report {
        let (next, report, begun) = (AtomicUsize::new(0), Mutex::new(Report::default()), Instant::now());
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for worker in 0..workers {
                let (next, report) = (&next, &report);
                scope.spawn(move || {
                    let dir = self.folder.path().join(format!("flipped{worker}"));
                    // Flip at least one bit, even if the deadline has passed.
                    while let Some(bit) = bits.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = self.flip(&dir, bit);
                        let mut report = report.lock();
                        report.add(bit, result);
                        if report.flips % 10_000 == 0 {
                            println!("{} of {} flips in {:?}", report.flips, bits.len(), begun.elapsed());
                        }
                        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                            break;
                        }
                    }
                });
            }
        });
        Report { took: begun.elapsed(), ..report.into_inner() }
    }

    /// Flips one bit. Fails if something happens that must not.
    fn flip(&self, dir: &Path, bit: &Bit) -> Result<FlipResult, String> {
        self.restore(dir, Some(bit));
        let outcome = self.verify_directory(dir)?;
        if let Some(wrong) = &outcome.wrong {
            return Err(format!("{wrong}; {outcome:?}"));
        }
        let left = names(dir);
        if outcome.refused.is_some() {
            if let Some((file, _)) = self.files.iter().find(|(file, _)| !left.contains(file)) {
                return Err(format!(
                    "{} was removed although the open was refused: {outcome:?}",
                    file.display()
                ));
            }
            return Ok(FlipResult::Refused);
        }
        let replaced =
            |file: &PathBuf| REPLACED_FOLDERS.iter().any(|folder| file.parent() == Some(Path::new(folder)));
        if let Some(file) = self.files_after_open.iter().find(|file| !replaced(file) && !left.contains(file))
        {
            return Err(format!("{} was removed: {outcome:?}", file.display()));
        }
        Ok(if outcome.is_reported() { FlipResult::Reported } else { FlipResult::Harmless })
    }

    /// Restores the template in `dir`, with one bit flipped.
    fn restore(&self, dir: &Path, flipped: Option<&Bit>) {
        if dir.exists() {
            std::fs::remove_dir_all(dir).expect("removed");
        }
        for (file, bytes) in &self.files {
            let path = dir.join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            match flipped.filter(|bit| bit.file == *file) {
                Some(flipped) => {
                    let mut bytes = bytes.clone();
                    bytes[flipped.byte] ^= 1 << flipped.bit;
                    std::fs::write(path, bytes).expect("written");
                }
                None => std::fs::write(path, bytes).expect("written"),
            }
        }
    }

    fn verify_directory(&self, dir: &Path) -> Result<VerifyOutcome, String> {
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        command.arg(VERIFY_ARGUMENT).arg(dir).arg(&self.expected).stdin(Stdio::null());
        // Use one heap: a heap for each thread would take 64 MiB of address space.
        command.env("MALLOC_ARENA_MAX", "1").env("TMPDIR", self.folder.path());
        let output = command.output().expect("the verifier ran");
        if !output.status.success() {
            let output_text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the process ended with {}: {output_text}", output.status));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }
}

impl VerifyOutcome {
    fn is_reported(&self) -> bool {
        self.check.is_some() || self.refused.is_some() || self.read.is_some()
    }
}

enum FlipResult {
    Refused,
    Reported,
    Harmless,
}

impl Report {
    fn add(&mut self, bit: &Bit, result: Result<FlipResult, String>) {
        self.flips += 1;
        let count = self.counts.entry(bit.kind).or_default();
        match result {
            Ok(FlipResult::Refused) => count.refused += 1,
            Ok(FlipResult::Reported) => count.reported += 1,
            Ok(FlipResult::Harmless) => count.harmless += 1,
            Err(failure) if self.failures.len() < MAX_FAILURES => {
                let failure = format!("{} byte {} bit {}: {failure}", bit.file.display(), bit.byte, bit.bit);
                println!("{failure}");
                self.failures.push(failure);
            }
            Err(_) => {}
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| kind of bit | refused | reported | harmless |\n|---|---|---|---|")?;
        for (kind, count) in &self.counts {
            writeln!(f, "| {kind:?} | {} | {} | {} |", count.refused, count.reported, count.harmless)?;
        }
        write!(f, "{} flips in {:.0?}", self.flips, self.took)
    }
}

fn names(dir: &Path) -> Vec<PathBuf> {
    layout::files(dir).into_iter().map(|(file, _)| file).collect()
}
