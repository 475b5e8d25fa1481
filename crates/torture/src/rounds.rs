//! Rounds of work and death: each starts a worker on what the last one left, and ends it.

use std::path::Path;
use std::time::Duration;

use crate::child::{Child, Entry};
use crate::workload::{Acknowledged, COMMITTED, REFUSED, VERIFIED};

/// A worker says that it verified, or acknowledges, within this time.
const SOON: Duration = Duration::from_secs(60);

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
            _ => {}
        }
    }
    Ok(round)
}
