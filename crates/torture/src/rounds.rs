//! Rounds of work and death: each starts a worker on what the last one left, and ends it.

use std::path::Path;
use std::time::Duration;

use rand::Rng;

use crate::child::{Child, Entry, Silence};
use crate::workload::{Acknowledged, COMMITTED, REFUSED, VERIFIED, WRONG};
use crate::{Fault, FaultKind, LossyFs, Mode, On, Seed, When, require};

/// A worker says that it verified, or acknowledges, within this time.
const SOON: Duration = Duration::from_secs(60);
/// Capacity of a disk that is not full.
const ENOUGH: u64 = 8 << 30;
/// How often a worker on a lossy disk is asked whether it still lives.
const LOOK: Duration = Duration::from_millis(20);

/// How a round ended.
pub struct Round {
    /// What the store said when it took no more writes, if it came to that.
    pub refused: Option<String>,
    /// Acknowledgements in this round.
    pub acks: u64,
}

/// Runs one worker on `dir`: waits until it has verified what is there, hands it to `meanwhile`, kills it, and takes
/// in what it acknowledged. An error is what it said when it found something wrong.
pub fn round(
    entry: Entry<'_>,
    dir: &Path,
    acknowledged: &mut Acknowledged,
    meanwhile: impl FnOnce(&mut Child),
) -> Result<Round, String> {
    let dir = dir.to_str().expect("a path in UTF-8");
    let argument = acknowledged.to_argument();
    let mut child = Child::spawn(entry, "work", &[dir, &argument]).expect("a child starts");
    match child.next_ack(SOON) {
        Ok(ack) => {
            assert_eq!(ack.number, VERIFIED);
            acknowledged.seen(&ack.detail);
        }
        Err(silence) => {
            let ended = child.kill().expect("it can be killed");
            return Err(format!(
                "no worker on what was left ({silence:?}, {}):\n{}",
                ended.status, ended.output
            ));
        }
    }
    meanwhile(&mut child);
    let ended = child.kill().expect("it can be killed");
    let mut round = Round { refused: None, acks: 0 };
    for ack in &ended.acks {
        match ack.number {
            COMMITTED => {
                acknowledged.add(&ack.detail);
                round.acks += 1;
            }
            REFUSED => round.refused = Some(ack.detail.clone()),
            WRONG => return Err(format!("{}\n{}", ack.detail, ended.output)),
            _ => {}
        }
    }
    Ok(round)
}

/// Runs one worker on a disk whose power is cut after so many operations, and boots what survived.
pub fn round_until_cut(
    entry: Entry<'_>,
    fs: &LossyFs,
    acknowledged: &mut Acknowledged,
    mode: Mode,
    operations: u64,
    seed: u64,
) -> Result<Round, String> {
    let done = round(entry, fs.path(), acknowledged, |child| {
        fs.plan_cut(operations, mode, seed);
        while fs.is_cut().is_none() {
            if child.next_ack(LOOK) == Err(Silence::Ended) {
                break;
            }
        }
        fs.cut(mode, seed);
    });
    if done.is_err() {
        // The worker may have met the end of its disk while it was verifying: then this cut is not one of the count.
        fs.cut(mode, seed);
    }
    fs.boot().expect("it boots");
    done
}

/// What makes a round harder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Some flushes and compactions fail.
    FailingTables,
    /// The disk is full when the worker starts.
    FullDisk,
}

impl Trouble {
    /// The trouble of a round. A disk is full only where a worker can verify without writing, and once something is there.
    pub fn of(round: usize, full_starts: bool, acknowledged: &Acknowledged) -> Self {
        match round % 5 {
            1 => Self::FailingTables,
            3 if full_starts && acknowledged.total > 0 => Self::FullDisk,
            _ => Self::None,
        }
    }

    /// Runs a round under this trouble, which ends with it.
    pub fn during<T>(self, fs: &LossyFs, seed: u64, round: impl FnOnce() -> T) -> T {
        match self {
            Self::None => {}
            Self::FailingTables => {
                let when = When::OneIn { n: 3, seed };
                let on = On::Any("/store/tree/tables".into());
                fs.fault(Fault { kind: FaultKind::WriteError, on, when });
            }
            Self::FullDisk => fs.set_capacity(fs.used()),
        }
        let done = round();
        fs.heal_all();
        fs.set_capacity(ENOUGH);
        done
    }
}

/// Kills a worker so many times, each time at some moment within `alive`, and lets one more verify what is left.
pub fn kill_again_and_again(worker: &str, kills: usize, alive: Duration) {
    let seed = Seed::pick();
    let mut random = seed.rng();
    let dir = tempfile::tempdir().expect("a directory");
    let mut acknowledged = Acknowledged::default();
    for kill in 0..kills {
        let alive = alive.mul_f64(random.random());
        round(Entry::Test(worker), dir.path(), &mut acknowledged, |_| std::thread::sleep(alive))
            .unwrap_or_else(|wrong| panic!("kill {kill}: {wrong}"));
    }
    round(Entry::Test(worker), dir.path(), &mut acknowledged, |_| ())
        .unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(acknowledged.total > kills as u64 * 2, "too little was done to tell: {}", acknowledged.total);
    println!("{} acknowledged over {kills} kills, all true", acknowledged.total);
}

/// Cuts a worker's power so many times, each time after some operations, and lets one more verify what is left. In some rounds
/// flushes and compactions fail; with `full_starts` some begin on a full disk.
pub fn cut_again_and_again(worker: &str, cuts: usize, full_starts: bool) {
    if !require() {
        return;
    }
    let seed = Seed::pick();
    let mut random = seed.rng();
    let fs = LossyFs::mount_temporary().expect("mounted");
    fs.write_back(50, random.random());
    let mut acknowledged = Acknowledged::default();
    for cut in 0..cuts {
        let mode = if cut % 3 == 0 { Mode::Forget } else { Mode::Tear };
        let (operations, dice) = (random.random_range(1..2000), random.random());
        let trouble = Trouble::of(cut, full_starts, &acknowledged);
        let done = trouble.during(&fs, dice, || {
            round_until_cut(Entry::Test(worker), &fs, &mut acknowledged, mode, operations, dice)
        });
        done.unwrap_or_else(|wrong| panic!("cut {cut}, {trouble:?}: {wrong}\n{}", fs.report()));
    }
    round(Entry::Test(worker), fs.path(), &mut acknowledged, |_| ())
        .map(drop)
        .unwrap_or_else(|wrong| panic!("{wrong}\n{}", fs.report()));
    assert!(acknowledged.total > cuts as u64 * 2, "too little was done to tell: {}", acknowledged.total);
    println!("{} acknowledged over {cuts} cuts, all true", acknowledged.total);
}
