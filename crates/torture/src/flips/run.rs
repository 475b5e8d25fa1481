//! Flips bits, one at a time, each looked at by a process of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::TempDir;

use super::layout::{self, Bit, Files, Kind};
use super::verify::{Expected, Outcome, record, verify};
use super::{template, verify};

/// The first argument of the process that looks at a directory; then the directory and the file of what is expected.
pub const LOOK: &str = "--look";
/// The template itself is looked at so often: each time the same files must stay, or a removed file would prove nothing.
const SOUND_LOOKS: usize = 10;
/// Maximum number of failures that are kept.
const MAX_FAILURES: usize = 50;
/// Files whose names change with each start: the log's segments, and the tree's manifest.
const REPLACED: [&str; 2] = ["store/log", "store/tree"];

/// A template with its bits.
pub struct Flips {
    folder: TempDir,
    expected: PathBuf,
    files: Files,
    /// The names of its files after it was opened and closed.
    afterwards: Vec<PathBuf>,
    /// All bits to flip.
    pub bits: Vec<Bit>,
}

/// How many flips of one kind of bit ended in which way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// The directory was not opened.
    pub refused: u64,
    /// A check or a read reported damage.
    pub reported: u64,
    /// Nothing was different.
    pub harmless: u64,
}

/// What came of many flips.
#[derive(Debug, Default)]
pub struct Report {
    /// By kind of bit.
    pub counts: BTreeMap<Kind, Count>,
    /// The first failures.
    pub failures: Vec<String>,
    /// How many flips were done.
    pub flips: usize,
    /// How long they took.
    pub took: Duration,
}

/// Looks at a directory and prints the outcome. Does not return if any thread panics.
pub fn look(dir: &Path, expected: &Path) {
    verify::confine();
    let expected: Vec<Expected> =
        serde_json::from_slice(&std::fs::read(expected).expect("read")).expect("what is expected");
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
    /// Makes a template, in memory if there is a place for that.
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
        let mut flips = Self { folder, expected, files, afterwards: vec![], bits };
        flips.afterwards = flips.look_at_sound();
        for _ in 1..SOUND_LOOKS {
            assert_eq!(flips.look_at_sound(), flips.afterwards, "which files stay is a matter of chance");
        }
        flips
    }

    /// Looks at the template itself. Returns the names of the files that stay.
    fn look_at_sound(&self) -> Vec<PathBuf> {
        let sound = self.folder.path().join("sound");
        self.restore(&sound, None);
        let outcome = self.look_at(&sound).expect("it is sound");
        assert!(!outcome.is_reported() && outcome.wrong.is_none(), "it is sound: {outcome:?}");
        names(&sound)
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.bits.iter().filter(|bit| bit.kind != Kind::Zeros).count() / 8
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
                    // One flip at least, however late it is.
                    while let Some(bit) = bits.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let ended = self.flip(&dir, bit);
                        let mut report = report.lock();
                        report.add(bit, ended);
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

    /// Flips one bit. Fails with what must not happen.
    fn flip(&self, dir: &Path, bit: &Bit) -> Result<Ended, String> {
        self.restore(dir, Some(bit));
        let outcome = self.look_at(dir)?;
        if let Some(wrong) = &outcome.wrong {
            return Err(format!("{wrong}; {outcome:?}"));
        }
        let left = names(dir);
        if outcome.refused.is_some() {
            if let Some((file, _)) = self.files.iter().find(|(file, _)| !left.contains(file)) {
                return Err(format!("{} was removed, though it was refused: {outcome:?}", file.display()));
            }
            return Ok(Ended::Refused);
        }
        let replaced =
            |file: &PathBuf| REPLACED.iter().any(|folder| file.parent() == Some(Path::new(folder)));
        if let Some(file) = self.afterwards.iter().find(|file| !replaced(file) && !left.contains(file)) {
            return Err(format!("{} was removed: {outcome:?}", file.display()));
        }
        Ok(if outcome.is_reported() { Ended::Reported } else { Ended::Harmless })
    }

    /// Puts the template there, with one bit flipped.
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

    fn look_at(&self, dir: &Path) -> Result<Outcome, String> {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(LOOK).arg(dir).arg(&self.expected).stdin(Stdio::null());
        // One heap: each thread's own would take 64 MiB of the address space.
        command.env("MALLOC_ARENA_MAX", "1").env("TMPDIR", self.folder.path());
        let output = command.output().expect("it ran");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the process ended with {}: {said}", output.status));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }
}

impl Outcome {
    fn is_reported(&self) -> bool {
        self.check.is_some() || self.refused.is_some() || self.read.is_some()
    }
}

enum Ended {
    Refused,
    Reported,
    Harmless,
}

impl Report {
    fn add(&mut self, bit: &Bit, ended: Result<Ended, String>) {
        self.flips += 1;
        let count = self.counts.entry(bit.kind).or_default();
        match ended {
            Ok(Ended::Refused) => count.refused += 1,
            Ok(Ended::Reported) => count.reported += 1,
            Ok(Ended::Harmless) => count.harmless += 1,
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
