//! Faults that are switched on while the disk runs: which calls fail, on which paths, how often.
//!
//! A [`Fault`] is a rule; [`Faults`] asks each rule of the right kind in turn and counts how often it struck,
//! so a test can tell "the fault was survived" from "the fault never happened". What a fault does to the
//! data is up to [`crate::disk`].

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A read fails with `EIO`.
    ReadError,
    /// A write fails with `EIO` and writes nothing.
    WriteError,
    /// A write stores about half of its bytes and says so.
    ShortWrite,
    /// A sync fails with `EIO`. What was unsynced is never made durable by a later sync, as on Linux, unless
    /// it is written again.
    SyncError,
    /// A sync reports success and makes nothing durable: as if the program had not called it.
    LyingSync,
}

/// Which files and directories, by a part of the path from the root of the disk (`/a/b.log`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    /// Files and directories whose path contains this. The empty text matches all.
    Any(String),
    /// Files whose path contains this.
    Files(String),
    /// Directories whose path contains this.
    Directories(String),
    /// The one file or directory with exactly this path.
    Exactly(String),
}

impl On {
    pub(crate) fn matches(&self, path: &str, directory: bool) -> bool {
        match self {
            On::Any(part) => path.contains(part),
            On::Files(part) => !directory && path.contains(part),
            On::Directories(part) => directory && path.contains(part),
            On::Exactly(whole) => path == whole,
        }
    }
}

/// How often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Every matching call.
    Always,
    /// After `skip` matching calls the next `times`.
    Calls {
        /// Matching calls that go well first.
        skip: u64,
        /// Matching calls that then fail.
        times: u64,
    },
    /// Each matching call with a chance of one in `n`.
    OneIn {
        /// At least 1.
        n: u32,
        /// Where the randomness comes from.
        seed: u64,
    },
}

/// One rule: `kind` strikes `on` these paths, `when` it says.
#[derive(Debug, Clone)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// Where.
    pub on: On,
    /// How often.
    pub when: When,
}

impl Fault {
    /// A fault on every matching call.
    pub fn always(kind: FaultKind, on: On) -> Fault {
        Fault { kind, on, when: When::Always }
    }

    /// A fault on the next matching call only.
    pub fn once(kind: FaultKind, on: On) -> Fault {
        Fault { kind, on, when: When::Calls { skip: 0, times: 1 } }
    }
}

/// Names a rule that was switched on.
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

/// The rules in force.
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
            When::OneIn { seed, .. } => seed,
            When::Always | When::Calls { .. } => 0,
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

    /// Whether this call meets a fault of this kind. Counts the call.
    pub(crate) fn strikes(&mut self, kind: FaultKind, path: &str, directory: bool) -> bool {
        let mut strikes = false;
        for rule in &mut self.rules {
            // Every matching rule counts the call, also after one has struck.
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
            When::Always => true,
            When::Calls { skip, times } => call >= skip && call - skip < times,
            When::OneIn { n, .. } => self.rng.random_ratio(1, n.max(1)),
        };
        self.struck += u64::from(strikes);
        strikes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_skips_then_strikes_then_stops() {
        let mut faults = Faults::default();
        let on = On::Files("log".into());
        let id =
            faults.add(Fault { kind: FaultKind::WriteError, on, when: When::Calls { skip: 2, times: 2 } });
        let mut write = |path| faults.strikes(FaultKind::WriteError, path, false);
        assert!(!write("/other"), "another path does not count");
        assert_eq!([(); 5].map(|()| write("/a.log")), [false, false, true, true, false]);
        assert!(!faults.strikes(FaultKind::SyncError, "/a.log", false), "another kind");
        assert_eq!(faults.struck(id), 2);
    }

    #[test]
    fn one_in_n_repeats_with_its_seed() {
        let draw = |seed| {
            let mut faults = Faults::default();
            let when = When::OneIn { n: 4, seed };
            faults.add(Fault { kind: FaultKind::ReadError, on: On::Any(String::new()), when });
            (0..64).map(|_| faults.strikes(FaultKind::ReadError, "/x", false)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let struck = draw(3).iter().filter(|struck| **struck).count();
        assert!((4..32).contains(&struck), "{struck} of 64");
    }

    #[test]
    fn predicates_tell_files_from_directories() {
        // (predicate, path, directory, matches)
        for (on, path, directory, matches) in [
            (On::Any(String::new()), "/", true, true),
            (On::Any("data".into()), "/data/x", false, true),
            (On::Files("data".into()), "/data", true, false),
            (On::Files("data".into()), "/data/x", false, true),
            (On::Directories("data".into()), "/data", true, true),
            (On::Directories("data".into()), "/data/x", false, false),
            (On::Exactly("/data".into()), "/data", true, true),
            (On::Exactly("/data".into()), "/data/x", false, false),
        ] {
            assert_eq!(on.matches(path, directory), matches, "{on:?} {path}");
        }
    }
}
