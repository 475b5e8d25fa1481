//! The reaction to a batch that the cluster has refused: which of its commits can still take effect.

use std::collections::BTreeMap;

use bytes::Bytes;
use lazuli_rados::{ReadStep, ReadValue, WriteError};
use lazuli_store::CommitError;

use super::{Answer, Batcher, OwnBatch, WaitingCommit};
use crate::access::AccessError;
use crate::batch::{NormalCommit, Verdict, judge, keys_of, same_digest};
use crate::events::ProtocolEvent;
use crate::keys::DEADLINE_FENCE;
use crate::rows::{range_of_partition, read_range};
use crate::token;

impl Batcher {
    /// Reacts to a batch that was refused as a whole.
    pub(super) async fn react(
        &mut self,
        batch: Vec<WaitingCommit>,
        error: WriteError,
    ) -> Result<(), AccessError> {
        match error {
            WriteError::Compared(_) => self.judge_again(batch).await,
            WriteError::NoObject => {
                self.seen = None;
                self.put_back(batch);
                Ok(())
            }
            WriteError::Full => {
                self.refuse_growth(batch);
                Ok(())
            }
            WriteError::TooLarge => {
                // Batches of several commits are far below the limit.
                for waiting in batch {
                    _ = waiting.reply.send(Answer::Decided(Err(CommitError::TooLarge)));
                }
                Ok(())
            }
            WriteError::Fenced => {
                self.put_back(batch);
                Err(AccessError::Fenced)
            }
            WriteError::Exists | WriteError::InDoubt(_) => {
                self.put_back(batch);
                Err(AccessError::Unavailable(error.to_string()))
            }
        }
    }

    /// Refuses the commits of a batch that need space, and keeps the others.
    fn refuse_growth(&mut self, batch: Vec<WaitingCommit>) {
        let (kept, refused): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|waiting| waiting.commit.only_removes());
        for waiting in refused {
            _ = waiting.reply.send(Answer::Decided(Err(CommitError::Full)));
        }
        self.put_back(kept);
    }

    /// Finds out why a comparison failed, from one read of everything that the batch depends on. Answers the
    /// commits that cannot take effect, and keeps the rest.
    async fn judge_again(&mut self, batch: Vec<WaitingCommit>) -> Result<(), AccessError> {
        let commits: Vec<_> = batch.iter().map(|waiting| &waiting.commit).collect();
        let mut keys = keys_of(&commits);
        keys.extend([DEADLINE_FENCE, self.own_key.clone()]);
        let read = self.protocol.access.read_with_header(&self.name, vec![ReadStep::Omap(keys)]).await;
        let found = match read {
            Ok(found) => found,
            Err(error) => {
                self.put_back(batch);
                return Err(error);
            }
        };
        let before = self.seen.take();
        let Some((seen, reply)) = found else {
            self.put_back(batch);
            return Ok(());
        };
        let stored: BTreeMap<Bytes, Bytes> = match reply.into_iter().next() {
            Some(ReadValue::Omap(entries)) => entries.into_iter().collect(),
            _ => BTreeMap::new(),
        };
        if OwnBatch::decode(stored.get(&self.own_key).map_or(&b""[..], |own| &own[..])) != Some(self.own) {
            // Only an instance of the same name can have written the row.
            self.protocol.access.note_fenced();
            self.put_back(batch);
            return Err(AccessError::Fenced);
        }
        let header_changed = before.is_some_and(|before| before.generation != seen.generation);
        self.protocol.access.count(if header_changed {
            ProtocolEvent::RefusedByHeader
        } else {
            ProtocolEvent::RefusedByCondition
        });
        self.seen = Some(seen);
        for value in stored.values() {
            token::decode(value).into_iter().for_each(|stamp| self.protocol.access.clock.observe(stamp));
        }
        self.fence = stored.get(&DEADLINE_FENCE).and_then(|stored| token::decode(stored));
        self.counters.clear();
        if header_changed {
            // Rows outside of the new bounds say nothing. Commits are routed first.
            self.put_back(batch);
            return Ok(());
        }
        self.keep_valid(batch, &stored).await
    }

    async fn keep_valid(
        &mut self,
        batch: Vec<WaitingCommit>,
        stored: &BTreeMap<Bytes, Bytes>,
    ) -> Result<(), AccessError> {
        let mut kept = vec![];
        for mut waiting in batch {
            let verdict = match judge(&waiting.commit, stored) {
                Verdict::CheckRanges => self.check_ranges(&mut waiting.commit).await,
                verdict => Ok(verdict),
            };
            let refusal = match verdict {
                Ok(Verdict::Conflict) => CommitError::Conflict,
                Ok(Verdict::Expired) => CommitError::Expired,
                Ok(Verdict::Keep | Verdict::CheckRanges) => {
                    kept.push(waiting);
                    continue;
                }
                Err(error) => error.into(),
            };
            _ = waiting.reply.send(Answer::Decided(Err(refusal)));
        }
        self.put_back(kept);
        Ok(())
    }

    /// Reads the ranges of a commit again, and adopts their tokens if only other rows of the bucket changed.
    async fn check_ranges(&self, commit: &mut NormalCommit) -> Result<Verdict, AccessError> {
        for requirement in &mut commit.ranges {
            let range = range_of_partition(&commit.partition, &requirement.range);
            let Some(token) = read_range(&self.protocol.access, &self.name, &commit.bucket, range).await?
            else {
                return Ok(Verdict::CheckRanges);
            };
            if !same_digest(token, requirement.token) {
                return Ok(Verdict::Conflict);
            }
            self.protocol.access.count(ProtocolEvent::RangeConfirmed);
            requirement.token = token;
        }
        Ok(Verdict::Keep)
    }
}
