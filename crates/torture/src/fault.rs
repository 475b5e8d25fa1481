//! Faults that can be enabled while the disk runs: which calls fail, on which paths, how often.
//!
//! A [`Fault`] is a rule. [`Faults`] checks all rules of the right kind for each call and counts how often
//! they applied, so that a test can distinguish "the fault was survived" from "the fault never happened".
//! [`crate::disk`] implements the effect on the data.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A read fails with `EIO`.
    ReadError,
    /// A write fails with `EIO` and writes nothing.
    WriteError,
    /// A write stores about half of its bytes and reports that.
    ShortWrite,
    /// A sync fails with `EIO`. As on Linux, a later sync does not make the unsynced data durable, unless it
    /// is written again.
    SyncError,
    /// A sync reports success and makes nothing durable.
    LyingSync,
    /// A sync waits until the fault is disabled.
    HeldSync,
}

/// Selects files and directories by their path from the root of the disk, such as `/a/b.log`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathFilter {
    /// Files and directories whose path contains this. An empty text matches all.
    Any(String),
    /// Files whose path contains this.
    Files(String),
    /// Directories whose path contains this.
    Directories(String),
    /// The one file or directory with exactly this path.
    Exactly(String),
}

impl PathFilter {
    pub(crate) fn matches(&self, path: &str, directory: bool) -> bool {
        match self {
            PathFilter::Any(part) => path.contains(part),
            PathFilter::Files(part) => !directory && path.contains(part),
            PathFilter::Directories(part) => directory && path.contains(part),
            PathFilter::Exactly(whole) => path == whole,
        }
    }
}

/// Selects the calls that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Every matching call.
    Always,
    /// After `skip` matching calls, the next `times` calls.
    Calls {
        /// Number of matching calls that succeed first.
        skip: u64,
        /// Number of matching calls that then fail.
        times: u64,
    },
    /// Each matching call with a probability of 1 in `n`.
    OneIn {
        /// The inverse of the probability, at least 1.
        n: u32,
        /// The seed of the random generator.
        seed: u64,
    },
}

/// One rule: a fault of this kind on these paths and calls.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The paths.
    pub on: PathFilter,
    /// The calls.
    pub when: Schedule,
}

impl Fault {
    /// Returns a fault on every matching call.
    pub fn always(kind: FaultKind, on: PathFilter) -> Fault {
        Fault { kind, on, when: Schedule::Always }
    }

    /// Returns a fault on the next matching call only.
    pub fn once(kind: FaultKind, on: PathFilter) -> Fault {
        Fault { kind, on, when: Schedule::Calls { skip: 0, times: 1 } }
    }
}

/// Identifies an enabled rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(u64);

#[derive(Debug)]
struct Rule {
    id: FaultId,
    fault: Fault,
    rng: StdRng,
    calls: u64,
    struck: u64,
}

/// The enabled rules.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
    next: u64,
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) -> FaultId {
        let id = FaultId(self.next);
        self.next += 1;
        let seed = match fault.when {
            Schedule::OneIn { seed, .. } => seed,
            Schedule::Always | Schedule::Calls { .. } => 0,
        };
        self.rules.push(Rule { id, fault, rng: StdRng::seed_from_u64(seed), calls: 0, struck: 0 });
        id
    }

    pub(crate) fn remove(&mut self, id: FaultId) {
        self.rules.retain(|rule| rule.id != id);
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn struck(&self, id: FaultId) -> u64 {
        self.rules.iter().find(|rule| rule.id == id).map_or(0, |rule| rule.struck)
    }

    /// Counts the call and returns whether it meets a fault of this kind.
    pub(crate) fn strikes(&mut self, kind: FaultKind, path: &str, directory: bool) -> bool {
        let mut strikes = false;
        for rule in &mut self.rules {
            // Every matching rule counts the call, even after another rule has applied.
            strikes |= rule.fault.kind == kind && rule.fault.on.matches(path, directory) && rule.strikes();
        }
        strikes
    }
}

impl Rule {
    fn strikes(&mut self) -> bool {
        let call = self.calls;
        self.calls += 1;
        let strikes = match self.fault.when {
            Schedule::Always => true,
            Schedule::Calls { skip, times } => call >= skip && call - skip < times,
            Schedule::OneIn { n, .. } => self.rng.random_ratio(1, n.max(1)),
        };
        self.struck += u64::from(strikes);
        strikes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_of_calls_skips_then_fails_then_succeeds() {
        let mut faults = Faults::default();
        let on = PathFilter::Files("log".into());
        let id = faults.add(Fault {
            kind: FaultKind::WriteError,
            on,
            when: Schedule::Calls { skip: 2, times: 2 },
        });
        let mut write = |path| faults.strikes(FaultKind::WriteError, path, false);
        assert!(!write("/other"), "another path does not count");
        assert_eq!([(); 5].map(|()| write("/a.log")), [false, false, true, true, false]);
        assert!(!faults.strikes(FaultKind::SyncError, "/a.log", false), "another kind");
        assert_eq!(faults.struck(id), 2);
    }

    #[test]
    fn a_random_schedule_repeats_with_its_seed() {
        let draw = |seed| {
            let mut faults = Faults::default();
            let when = Schedule::OneIn { n: 4, seed };
            faults.add(Fault { kind: FaultKind::ReadError, on: PathFilter::Any(String::new()), when });
            (0..64).map(|_| faults.strikes(FaultKind::ReadError, "/x", false)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let struck = draw(3).iter().filter(|struck| **struck).count();
        assert!((4..32).contains(&struck), "{struck} of 64");
    }

    #[test]
    fn path_filters_distinguish_files_from_directories() {
        // (filter, path, directory, matches)
        for (on, path, directory, matches) in [
            (PathFilter::Any(String::new()), "/", true, true),
            (PathFilter::Any("data".into()), "/data/x", false, true),
            (PathFilter::Files("data".into()), "/data", true, false),
            (PathFilter::Files("data".into()), "/data/x", false, true),
            (PathFilter::Directories("data".into()), "/data", true, true),
            (PathFilter::Directories("data".into()), "/data/x", false, false),
            (PathFilter::Exactly("/data".into()), "/data", true, true),
            (PathFilter::Exactly("/data".into()), "/data/x", false, false),
        ] {
            assert_eq!(on.matches(path, directory), matches, "{on:?} {path}");
        }
    }
}
