//! Deleted objects that can be restored during their retention.

use lazuli_concurrency::time::TICKS_PER_SECOND;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::{date, xml};
use serde::{Deserialize, Serialize};

/// The time of an object's deletion, and the end of its retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// Time of the deletion.
    pub at: Timestamp,
    /// End of the retention.
    pub until: Timestamp,
}

impl Deleted {
    /// Returns a deletion at `now` with a retention of `days`.
    pub fn keep(days: u16, now: Timestamp) -> Self {
        Self { at: now, until: now + Span::seconds(u64::from(days) * 86_400) }
    }

    /// Writes the deletion time and the remaining whole days of retention.
    pub fn write_xml(&self, xml: &mut xml::Writer, now: Timestamp) {
        const TICKS_PER_DAY: u64 = 86_400 * TICKS_PER_SECOND;
        xml.text("DeletedTime", date::rfc1123(self.at));
        xml.text("RemainingRetentionDays", self.until.since(now).ticks() / TICKS_PER_DAY);
    }
}
