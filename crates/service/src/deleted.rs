//! Objects that were deleted and can be restored for a while.

use lazuli_concurrency::time::TICKS_PER_SECOND;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::{date, xml};
use serde::{Deserialize, Serialize};

/// When an object was deleted, and until when it can be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// When it was deleted.
    pub at: Timestamp,
    /// When it can no longer be restored.
    pub until: Timestamp,
}

impl Deleted {
    /// An object that is deleted now and kept for that many days.
    pub fn keep(days: u16, now: Timestamp) -> Self {
        Self { at: now, until: now + Span::seconds(u64::from(days) * 86_400) }
    }

    /// Writes when it was deleted, and for how many whole days it can still be restored.
    pub fn write_xml(&self, xml: &mut xml::Writer, now: Timestamp) {
        const TICKS_PER_DAY: u64 = 86_400 * TICKS_PER_SECOND;
        xml.text("DeletedTime", date::rfc1123(self.at));
        xml.text("RemainingRetentionDays", self.until.since(now).ticks() / TICKS_PER_DAY);
    }
}
