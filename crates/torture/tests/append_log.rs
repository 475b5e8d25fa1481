//! Tests of the tester: a small append-only log that syncs correctly never loses what it acknowledged, and
//! every omitted sync is detected.
//!
//! The log is a directory of segments. A record has its number, its length, a checksum and filler. A record
//! is acknowledged after its segment was synced. A new segment is written under another name, synced and
//! renamed, and the directory is synced, before the segment takes records.

use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lazuli_torture::child::{Child, EntryPoint, Parent};
use lazuli_torture::{CutMode, Fault, FaultKind, LossyFs, PathFilter, Schedule, Seed, require};
use rand::Rng;

const RECORDS_PER_SEGMENT: u64 = 16;
const HEADER: usize = 24;
const TIMEOUT: Duration = Duration::from_secs(30);

struct Log {
    directory: PathBuf,
    segment: File,
    /// The number of the next record.
    next: u64,
    /// Ignores an earlier failed sync if a later one succeeds.
    stubborn: bool,
}

fn checksum(number: u64, len: u64, filler: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(number);
    hasher.write_u64(len);
    hasher.write(filler);
    hasher.finish()
}

fn encode(number: u64) -> Vec<u8> {
    // Usually a few hundred bytes, sometimes a few pages.
    let most = if number.is_multiple_of(8) { 9001 } else { 701 };
    let filler = vec![number as u8; (number * 997 % most) as usize];
    let len = filler.len() as u64;
    let mut record = Vec::new();
    for word in [number, len, checksum(number, len, &filler)] {
        record.extend(word.to_le_bytes());
    }
    record.extend(filler);
    record
}

/// Returns the length of the first record if it is complete and has the expected number.
fn decode(bytes: &[u8], expected: u64) -> Option<usize> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (number, len, sum) = (word(0)?, word(8)?, word(16)?);
    let end = HEADER.checked_add(usize::try_from(len).ok()?)?;
    let filler = bytes.get(HEADER..end)?;
    (number == expected && sum == checksum(number, len, filler)).then_some(end)
}

impl Log {
    /// Finds all complete records, cuts off everything after them, and is ready to append.
    fn recover(directory: &Path) -> io::Result<Log> {
        let (mut next, stubborn) = (0_u64, false);
        let directory = directory.to_owned();
        loop {
            let path = directory.join(format!("segment-{next}"));
            let Ok(bytes) = fs::read(&path) else {
                // If only the process was killed, complete records may not be durable.
                if let Some(last) = next.checked_sub(RECORDS_PER_SEGMENT) {
                    File::open(directory.join(format!("segment-{last}")))?.sync_data()?;
                }
                let segment = new_segment(&directory, next)?;
                return Ok(Log { directory, segment, next, stubborn });
            };
            let mut at = 0;
            let end = next + RECORDS_PER_SEGMENT;
            while next < end
                && let Some(len) = decode(&bytes[at..], next)
            {
                at += len;
                next += 1;
            }
            if next < end {
                let segment = OpenOptions::new().append(true).open(path)?;
                segment.set_len(at as u64)?;
                segment.sync_data()?;
                return Ok(Log { directory, segment, next, stubborn });
            }
        }
    }

    fn append(&mut self) -> io::Result<u64> {
        if self.next > 0 && self.next.is_multiple_of(RECORDS_PER_SEGMENT) {
            self.segment = new_segment(&self.directory, self.next)?;
        }
        self.segment.write_all(&encode(self.next))?;
        match self.segment.sync_data() {
            Err(_) if self.stubborn => self.segment.sync_data()?,
            result => result?,
        }
        self.next += 1;
        Ok(self.next)
    }
}

fn new_segment(directory: &Path, first: u64) -> io::Result<File> {
    let (new, path) = (directory.join("new"), directory.join(format!("segment-{first}")));
    let segment = OpenOptions::new().append(true).create(true).open(&new)?;
    segment.set_len(0)?;
    segment.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(directory)?.sync_all()?;
    Ok(segment)
}

/// Appends through `cuts` power cuts at random operations. The error says what was lost.
fn run(fs: &LossyFs, cuts: u64, stubborn: bool, rng: &mut impl Rng) -> Result<(), String> {
    let mut acknowledged = 0;
    for cut in 0..cuts {
        let mode = if rng.random() { CutMode::Tear } else { CutMode::Forget };
        fs.plan_cut(rng.random_range(0..60), mode, rng.random());
        while fs.is_cut().is_none() {
            let Ok(mut log) = Log::recover(fs.path()) else { continue };
            // One more record than acknowledged may be durable.
            if !(acknowledged..=acknowledged + 1).contains(&log.next) {
                let found = log.next;
                return Err(format!(
                    "cut {cut}: {acknowledged} acknowledged, {found} found\n{}",
                    fs.report()
                ));
            }
            acknowledged = log.next;
            log.stubborn = stubborn;
            while let Ok(next) = log.append() {
                acknowledged = next;
            }
        }
        fs.boot().map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[test]
fn a_correct_log_loses_nothing_in_200_cuts() {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    let fs = LossyFs::mount_temporary().unwrap();
    fs.write_back(4, *seed);
    run(&fs, 200, false, &mut seed.rng()).unwrap();
    assert!(fs.counters(&PathFilter::Files("segment".into())).bytes_written > 1 << 19, "the log was written");
}

#[test]
fn every_kind_of_omitted_sync_is_detected() {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    for on in [PathFilter::Files("segment".into()), PathFilter::Directories("".into())] {
        for when in [Schedule::Always, Schedule::OneIn { n: 3, seed: *seed }] {
            let fs = LossyFs::mount_temporary().unwrap();
            let lie = fs.fault(Fault { kind: FaultKind::LyingSync, on: on.clone(), when });
            let noticed = run(&fs, 200, false, &mut seed.rng());
            assert!(fs.struck(lie) > 0);
            assert!(noticed.is_err(), "{on:?} {when:?}");
        }
    }
}

#[test]
fn ignoring_a_failed_sync_is_detected() {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    let fs = LossyFs::mount_temporary().unwrap();
    let when = Schedule::OneIn { n: 20, seed: *seed };
    fs.fault(Fault { kind: FaultKind::SyncError, on: PathFilter::Files("segment".into()), when });
    assert!(run(&fs, 200, true, &mut seed.rng()).is_err());
}

#[test]
fn the_log_loses_nothing_after_failed_and_short_writes() {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    let fs = LossyFs::mount_temporary().unwrap();
    for kind in [FaultKind::ShortWrite, FaultKind::WriteError] {
        fs.fault(Fault {
            kind,
            on: PathFilter::Files("segment".into()),
            when: Schedule::OneIn { n: 10, seed: *seed },
        });
    }
    run(&fs, 100, false, &mut seed.rng()).unwrap();
}

// Not a test: the entry point of the child of the test below.
#[test]
fn worker() {
    let Some(parent) = Parent::connect().unwrap() else { return };
    let mut log = Log::recover(Path::new(&parent.arguments()[0])).unwrap();
    parent.ack(log.next, "recovered").unwrap();
    while let Ok(next) = log.append() {
        parent.ack(next, "").unwrap();
    }
}

#[test]
fn a_log_in_another_process_survives_kills_and_power_cuts() {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    let mut rng = seed.rng();
    let fs = LossyFs::mount_temporary().unwrap();
    let path = fs.path().to_str().unwrap();
    let mut acknowledged = 0;
    for round in 0..20 {
        let mut child = Child::spawn(EntryPoint::Test("worker"), "log", &[path]).unwrap();
        child.wait_acks(rng.random_range(1..100), TIMEOUT).unwrap();
        // In half of the rounds the process is killed first while the power stays on.
        if round % 2 == 0 {
            fs.cut(CutMode::Tear, rng.random());
        }
        let ended = child.kill().unwrap();
        let recovered = ended.acks[0].number;
        assert!(
            (acknowledged..=acknowledged + 1).contains(&recovered),
            "round {round}: {acknowledged} acknowledged, {recovered} found\n{}\n{}",
            fs.report(),
            ended.output
        );
        acknowledged = ended.acks.last().unwrap().number;
        if fs.is_cut().is_some() {
            fs.boot().unwrap();
        }
    }
}
