//! The cache of one client for a file, and its breaks, which are sent one at a time.

use lazuli_concurrency::Caching;
use tokio::sync::mpsc::UnboundedSender;

use crate::opens::types::{AcknowledgeRefusal, Break, CacheKey};
use crate::tree::spot::FileKey;

/// The cache of one lease or oplock.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) key: CacheKey,
    pub(super) state: Caching,
    pub(super) breaking: Option<Breaking>,
    pub(super) epoch: u16,
    pub(super) breaks: Option<UnboundedSender<Break>>,
}

/// A break that the client has not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Breaking {
    /// Sequence number among the breaks of the file.
    pub(super) number: u64,
    /// The state that the client may keep after this break.
    to: Caching,
    /// The state that the client may keep after all breaks needed so far.
    last: Caching,
}

impl Cache {
    /// Reduces the cache: sends a break and waits for its acknowledgment if one is required.
    pub(super) fn break_to(&mut self, file: FileKey, breaks: &mut u64, to: Caching) {
        let kind = self.key.kind();
        if let Some(breaking) = &mut self.breaking {
            // Only one break is outstanding. The rest is requested after its acknowledgment.
            breaking.last = breaking.last & to;
            return;
        }
        let to = kind.after_break(self.state, to);
        if to == self.state {
            return;
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.send_break(file, breaks, to, to);
    }

    /// Sends a break to `to` and remembers the final state `last`.
    fn send_break(&mut self, file: FileKey, breaks: &mut u64, to: Caching, last: Caching) {
        let acknowledge = self.key.kind().needs_acknowledgment(self.state) && self.breaks.is_some();
        let sent = Break { file, key: self.key, from: self.state, to, acknowledge, epoch: self.epoch };
        let was_received = self.breaks.as_ref().is_some_and(|breaks| breaks.send(sent).is_ok());
        if acknowledge && was_received {
            *breaks += 1;
            self.breaking = Some(Breaking { number: *breaks, to, last });
        } else {
            // No acknowledgment will come, or none is needed.
            self.state = last;
        }
    }

    /// Returns whether this is the last break that was sent, and still unacknowledged if it requires an
    /// acknowledgment. Several breaks can share one epoch.
    pub(super) fn is_last_break(&self, sent: &Break) -> bool {
        let is_step = match &self.breaking {
            Some(breaking) => sent.acknowledge && (self.state, breaking.to) == (sent.from, sent.to),
            None => !sent.acknowledge && self.state == sent.to,
        };
        is_step && (self.key, self.epoch) == (sent.key, sent.epoch)
    }

    pub(super) fn acknowledge(
        &mut self,
        file: FileKey,
        breaks: &mut u64,
        kept: Caching,
    ) -> Result<(), AcknowledgeRefusal> {
        let Breaking { to, last, .. } = self.breaking.ok_or(AcknowledgeRefusal::NotBreaking)?;
        if !to.contains(kept) {
            return Err(AcknowledgeRefusal::KeepsTooMuch);
        }
        (self.breaking, self.state) = (None, kept);
        if !last.contains(kept) {
            // Break handles first if only handles are cached besides reads, then the rest, as one break in
            // two steps.
            let next = if kept.contains(Caching::H) { last | Caching::R } else { last };
            let kind = self.key.kind();
            self.send_break(file, breaks, kind.after_break(kept, next), kind.after_break(kept, last));
        }
        Ok(())
    }
}
