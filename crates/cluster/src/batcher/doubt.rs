//! The outcome of an op in doubt.
//!
//! The op with number *n* compares the stored number with *n - 1* and sets it to *n*. The probe compares with
//! *n - 1* and sets *n + 1*. If the probe takes effect, the op has not, and never will. Otherwise the stored
//! number is *n* if the op has taken effect, or *n + 1* if an earlier probe has.

use lazuli_rados::{Pool, ReadStep, ReadValue, WriteError, WriteOp, WriteStep};

use super::{Batcher, OwnBatch, Sent};
use crate::access::{AccessError, OP_TIMEOUT};
use crate::events::ProtocolEvent;
use crate::token;

/// The fate of an op in doubt, as the stored number shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Applied,
    NotApplied,
    /// Neither the op nor a probe has taken effect.
    Undecided,
    /// Another process has written the number.
    Foreign,
}

/// Judges an op that follows `before`, sets `after`, and whose probe sets `probed`.
fn judge(stored: OwnBatch, before: OwnBatch, after: OwnBatch, probed: OwnBatch) -> Outcome {
    match stored {
        stored if stored == after => Outcome::Applied,
        stored if stored == probed => Outcome::NotApplied,
        stored if stored == before => Outcome::Undecided,
        _ => Outcome::Foreign,
    }
}

impl Batcher {
    /// Learns the outcome of an op in doubt that sets `after`.
    pub(super) async fn resolve(&mut self, after: OwnBatch) -> Sent {
        let before = self.own;
        let probed = OwnBatch { sequence: before.sequence + 2, ..before };
        loop {
            if self.protocol.access.is_fenced() {
                return self.give_up();
            }
            let op = WriteOp::new([
                WriteStep::AssertExists,
                token::equals(&self.own_key, before.encode()),
                WriteStep::SetOmap(vec![(self.own_key.clone(), probed.encode())]),
            ]);
            let probe =
                self.protocol.access.cluster.write(Pool::Meta, &self.name, op.may_exceed_full(), OP_TIMEOUT);
            match probe.await {
                Ok(()) => {
                    self.own = probed;
                    self.protocol.access.count(ProtocolEvent::DoubtNotApplied);
                    return Sent::NotApplied;
                }
                Err(WriteError::Compared(_)) => {}
                Err(WriteError::InDoubt(_)) => continue,
                Err(error) => {
                    if error == WriteError::Fenced {
                        self.protocol.access.note_fenced();
                    }
                    return self.give_up();
                }
            }
            let outcome = match self.read_own().await {
                Ok(Some(stored)) => judge(stored, before, after, probed),
                Ok(None) | Err(AccessError::Fenced | AccessError::Damaged(_)) => return self.give_up(),
                Err(AccessError::Unavailable(_)) => continue,
            };
            match outcome {
                Outcome::Applied => {
                    self.own = after;
                    self.protocol.access.count(ProtocolEvent::DoubtApplied);
                    return Sent::Applied;
                }
                Outcome::NotApplied => {
                    self.own = probed;
                    self.protocol.access.count(ProtocolEvent::DoubtNotAppliedByEarlierProbe);
                    return Sent::NotApplied;
                }
                Outcome::Undecided => {}
                Outcome::Foreign => {
                    self.protocol.access.note_fenced();
                    return self.give_up();
                }
            }
        }
    }

    fn give_up(&self) -> Sent {
        self.protocol.access.count(ProtocolEvent::DoubtUnknown);
        Sent::Unknown
    }

    async fn read_own(&self) -> Result<Option<OwnBatch>, AccessError> {
        let step = ReadStep::Omap(vec![self.own_key.clone()]);
        let Some(reply) = self.protocol.access.read(&self.name, vec![step]).await? else { return Ok(None) };
        let stored = match reply.first() {
            Some(ReadValue::Omap(entries)) => entries.first().map_or(&b""[..], |(_, value)| &value[..]),
            _ => &b""[..],
        };
        let damaged = || AccessError::Damaged(format!("the last batch in shard {} is damaged", self.name));
        OwnBatch::decode(stored).ok_or_else(damaged).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_number_decides_about_an_op_in_doubt() {
        let own = |sequence, added_rows| OwnBatch { sequence, added_rows };
        let (before, after, probed) = (own(6, 10), own(7, 13), own(8, 10));
        for (stored, expected) in [
            (before, Outcome::Undecided),
            (after, Outcome::Applied),
            (probed, Outcome::NotApplied),
            (own(9, 10), Outcome::Foreign),
            (own(7, 10), Outcome::Foreign),
        ] {
            assert_eq!(judge(stored, before, after, probed), expected, "{stored:?}");
        }
        assert_eq!(OwnBatch::decode(&before.encode()), Some(before));
        assert_eq!(OwnBatch::decode(&OwnBatch::default().encode()), Some(OwnBatch::default()));
        assert_eq!(OwnBatch::decode(b"short"), None);
    }
}
