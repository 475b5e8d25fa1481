//! Rounds: each starts a worker on the directory that the last one left, and kills it.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use lazuli_store::embedded::Task;
use rand::Rng;

use crate::child::{AckError, Child, EntryPoint};
use crate::workload::{Acknowledged, CLIENTS, COMMITTED, FAILED, REFUSED, VERIFIED, WRONG};
use crate::{CutMode, Fault, FaultKind, LossyFs, PathFilter, Schedule, Seed, require};

/// Time limit for a worker's verification and for its acknowledgments.
const ACK_TIMEOUT: Duration = Duration::from_secs(60);
/// Capacity of a disk that is not full.
const LARGE_CAPACITY: u64 = 8 << 30;
/// Minimum number of acknowledgments of a worker that lives long.
const MIN_ACKS_OF_LONG_LIFE: usize = 6;
/// How often a worker on a lossy disk is checked for having ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The result of a round.
pub struct Round {
    /// The refusal, if the store refused writes.
    pub refused: Option<String>,
    /// Number of acknowledgments in this round.
    pub acks: u64,
    /// Names of the engine's tasks that failed while commits continued.
    pub failed: Vec<String>,
}

/// Runs one worker on `dir`: waits until it has verified the directory, passes it to `meanwhile`, kills it,
/// and records its acknowledgments. The error is the worker's output when it found something wrong.
pub fn round(
    entry: EntryPoint<'_>,
    dir: &Path,
    acknowledged: &mut Acknowledged,
    meanwhile: impl FnOnce(&mut Child),
) -> Result<Round, String> {
    let dir = dir.to_str().expect("a path in UTF-8");
    let argument = acknowledged.to_argument();
    let mut child = Child::spawn(entry, "work", &[dir, &argument]).expect("a child starts");
    match child.next_ack(ACK_TIMEOUT) {
        Ok(ack) => {
            assert_eq!(ack.number, VERIFIED);
            acknowledged.observe(&ack.detail);
        }
        Err(silence) => {
            let ended = child.kill().expect("the worker can be killed");
            return Err(format!(
                "the worker failed on the directory ({silence:?}, {}):\n{}",
                ended.status, ended.output
            ));
        }
    }
    meanwhile(&mut child);
    let ended = child.kill().expect("the worker can be killed");
    let mut round = Round { refused: None, acks: 0, failed: vec![] };
    let mut failed = vec![];
    for ack in &ended.acks {
        match ack.number {
            COMMITTED => {
                acknowledged.add(&ack.detail);
                round.acks += 1;
            }
            REFUSED => round.refused = Some(ack.detail.clone()),
            FAILED => failed.push((ack.detail.clone(), round.acks)),
            WRONG => return Err(format!("{}\n{}", ack.detail, ended.output)),
            _ => {}
        }
    }
    // Ignore failures caused by the power cut: after it, each client acknowledges at most one commit.
    failed.retain(|(_, acks)| round.acks > acks + CLIENTS as u64);
    round.failed = failed.into_iter().map(|(task, _)| task).collect();
    Ok(round)
}

/// Runs one worker on a disk whose power is cut after `operations` operations, and boots the surviving disk.
pub fn round_until_cut(
    entry: EntryPoint<'_>,
    fs: &LossyFs,
    acknowledged: &mut Acknowledged,
    mode: CutMode,
    operations: u64,
    seed: u64,
) -> Result<Round, String> {
    let done = round(entry, fs.path(), acknowledged, |child| {
        fs.plan_cut(operations, mode, seed);
        while fs.is_cut().is_none() {
            if child.next_ack(POLL_INTERVAL) == Err(AckError::Ended) {
                break;
            }
        }
        fs.cut(mode, seed);
    });
    if done.is_err() {
        // The worker may have failed while it verified on a full disk. Then the planned cut has not happened
        // yet.
        fs.cut(mode, seed);
    }
    fs.boot().expect("the disk boots");
    done
}

/// Additional trouble in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTrouble {
    /// No trouble.
    None,
    /// Some flushes and compactions fail.
    FailingTables,
    /// The disk is full when the worker starts.
    FullDisk,
}

impl RoundTrouble {
    /// Selects the trouble of a round. A disk is full only if a worker can verify without writing, and
    /// something was written.
    pub fn of(round: usize, full_starts: bool, acknowledged: &Acknowledged) -> Self {
        match round % 5 {
            1 => Self::FailingTables,
            3 if full_starts && acknowledged.total > 0 => Self::FullDisk,
            _ => Self::None,
        }
    }

    /// Returns the range of disk operations after which the power is cut. Writes of tables fail only in
    /// rounds that last until tables are written.
    pub fn operations(self, most: u64) -> Range<u64> {
        if self == Self::FailingTables { most / 2..most } else { 1..most }
    }

    /// Runs a round with this trouble, which ends with the round.
    pub fn during<T>(self, fs: &LossyFs, seed: u64, round: impl FnOnce() -> T) -> T {
        match self {
            Self::None => {}
            Self::FailingTables => {
                let when = Schedule::OneIn { n: 3, seed };
                let on = PathFilter::Any("/store/tree/tables".into());
                fs.fault(Fault { kind: FaultKind::WriteError, on, when });
            }
            Self::FullDisk => fs.set_capacity(fs.used()),
        }
        let done = round();
        fs.heal_all();
        fs.set_capacity(LARGE_CAPACITY);
        done
    }
}

/// Counts the rounds in which trouble occurred.
#[derive(Debug, Default)]
pub struct Troubles {
    /// Rounds in which flushes failed.
    pub flushes: usize,
    /// Rounds in which compactions failed.
    pub compactions: usize,
    /// Rounds that began on a full disk.
    pub full_starts: usize,
    /// Full-disk rounds in which a write was refused as full. In the others a sweep freed space first.
    pub refused_as_full: usize,
}

impl Troubles {
    /// Counts a round.
    pub fn add(&mut self, trouble: RoundTrouble, round: &Round) {
        self.flushes += usize::from(round.failed.iter().any(|task| task == Task::Flush.name()));
        self.compactions += usize::from(round.failed.iter().any(|task| task == Task::Compaction.name()));
        self.full_starts += usize::from(trouble == RoundTrouble::FullDisk);
        let is_full = |refused: &String| refused.contains("full") || refused.contains("space");
        self.refused_as_full +=
            usize::from(trouble == RoundTrouble::FullDisk && round.refused.as_ref().is_some_and(is_full));
    }
}

/// Lets a worker live until it is killed. Every other worker first has to acknowledge a few operations, so
/// that enough work is done on a slow machine, too.
pub fn live(child: &mut Child, kill: usize, alive: Duration) {
    if kill % 2 == 1 {
        // The first acknowledgment reports the verification.
        let _ = child.wait_acks(1 + MIN_ACKS_OF_LONG_LIFE, ACK_TIMEOUT);
    }
    std::thread::sleep(alive);
}

/// Kills a worker `kills` times, each time at a random moment within `alive`, and lets a last one verify.
pub fn kill_repeatedly(worker: &str, kills: usize, alive: Duration) {
    let seed = Seed::pick();
    let mut random = seed.rng();
    let dir = tempfile::tempdir().expect("a directory");
    let mut acknowledged = Acknowledged::default();
    for kill in 0..kills {
        let alive = alive.mul_f64(random.random());
        round(EntryPoint::Test(worker), dir.path(), &mut acknowledged, |child| live(child, kill, alive))
            .unwrap_or_else(|wrong| panic!("kill {kill}: {wrong}"));
    }
    round(EntryPoint::Test(worker), dir.path(), &mut acknowledged, |_| ())
        .unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(
        acknowledged.total > kills as u64 * 2,
        "too few operations to be meaningful: {}",
        acknowledged.total
    );
    println!("{} acknowledged over {kills} kills, all true", acknowledged.total);
}

/// Cuts a worker's power `cuts` times, each time after a random number of operations, and lets a last one
/// verify. In some rounds flushes and compactions fail; with `full_starts` some rounds begin on a full disk.
pub fn cut_repeatedly(worker: &str, cuts: usize, full_starts: bool) {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    let mut random = seed.rng();
    let fs = LossyFs::mount_temporary().expect("mounted");
    fs.write_back(50, random.random());
    let (mut acknowledged, mut troubles) = (Acknowledged::default(), Troubles::default());
    for cut in 0..cuts {
        let mode = if cut % 3 == 0 { CutMode::Forget } else { CutMode::Tear };
        let trouble = RoundTrouble::of(cut, full_starts, &acknowledged);
        let (operations, dice) = (random.random_range(trouble.operations(2000)), random.random());
        let done = trouble.during(&fs, dice, || {
            round_until_cut(EntryPoint::Test(worker), &fs, &mut acknowledged, mode, operations, dice)
        });
        let done = done.unwrap_or_else(|wrong| panic!("cut {cut}, {trouble:?}: {wrong}\n{}", fs.report()));
        troubles.add(trouble, &done);
    }
    round(EntryPoint::Test(worker), fs.path(), &mut acknowledged, |_| ())
        .map(drop)
        .unwrap_or_else(|wrong| panic!("{wrong}\n{}", fs.report()));
    assert!(
        acknowledged.total > cuts as u64 * 2,
        "too few operations to be meaningful: {}",
        acknowledged.total
    );
    assert!(troubles.flushes + troubles.compactions > 0, "no table could not be written: {troubles:?}");
    assert!(!full_starts || troubles.full_starts > 0, "{troubles:?}");
    println!("{} acknowledged over {cuts} cuts, all true: {troubles:?}", acknowledged.total);
}
