//! What one client caches of a file, and how it is told to give that up: one break at a time.

use lazuli_concurrency::Caching;
use tokio::sync::mpsc::UnboundedSender;

use super::types::{AcknowledgeRefusal, Break, CacheKey, FileKey};

/// What one client caches.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) key: CacheKey,
    pub(super) state: Caching,
    pub(super) breaking: Option<Breaking>,
    pub(super) epoch: u16,
    pub(super) breaks: Option<UnboundedSender<Break>>,
}

/// A break that the client has not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Breaking {
    /// The how manieth of the file.
    pub(super) number: u64,
    /// What the client may keep.
    to: Caching,
    /// What it may keep in the end.
    last: Caching,
}

impl Cache {
    /// Has it shrink: tells the client, and waits for its answer if there has to be one.
    pub(super) fn shrink(&mut self, file: FileKey, breaks: &mut u64, to: Caching) {
        let kind = self.key.kind();
        if let Some(breaking) = &mut self.breaking {
            // One break at a time. What more is needed is asked for when this one is answered.
            breaking.last = breaking.last & to;
            return;
        }
        let to = kind.broken_to(self.state, to);
        if to == self.state {
            return;
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.tell(file, breaks, to, to);
    }

    /// Tells the client what it has to give up now, and remembers what it has to in the end.
    fn tell(&mut self, file: FileKey, breaks: &mut u64, to: Caching, last: Caching) {
        let acknowledge = self.key.kind().acknowledges(self.state) && self.breaks.is_some();
        let told = Break { file, key: self.key, from: self.state, to, acknowledge, epoch: self.epoch };
        let heard = self.breaks.as_ref().is_some_and(|breaks| breaks.send(told).is_ok());
        if acknowledge && heard {
            *breaks += 1;
            self.breaking = Some(Breaking { number: *breaks, to, last });
        } else {
            // Nobody is there to answer, or nothing to be answered for.
            self.state = last;
        }
    }

    /// Whether that is what its client was told last, and has not answered if it has to. A break that goes on has several steps
    /// of one epoch.
    pub(super) fn is_told(&self, told: &Break) -> bool {
        let is_step = match &self.breaking {
            Some(breaking) => told.acknowledge && (self.state, breaking.to) == (told.from, told.to),
            None => !told.acknowledge && self.state == told.to,
        };
        is_step && (self.key, self.epoch) == (told.key, told.epoch)
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
            // Handles first, if only they are cached besides reads, then the rest: as one break that goes on.
            let next = if kept.contains(Caching::H) { last | Caching::R } else { last };
            let kind = self.key.kind();
            self.tell(file, breaks, kind.broken_to(kept, next), kind.broken_to(kept, last));
        }
        Ok(())
    }
}
