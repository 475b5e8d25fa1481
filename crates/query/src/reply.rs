//! The body of a reply in parts, and when more of the blob is needed.
//!
//! The first record is result data, even if it is empty: clients expect an error only after the first record.
//! Within one part, data precedes errors. Progress is reported every 4 MiB of the blob and at its end.

use bytes::Bytes;
use time::OffsetDateTime;

use crate::Format;
use crate::avro::Container;
use crate::scan::{QueryScan, ScanStep};
use crate::statement::Query;

/// Bytes of the blob between two progress records.
const PROGRESS_INTERVAL: u64 = 4 << 20;

/// The next action of the caller that sends the reply.
#[derive(Debug, PartialEq, Eq)]
pub enum ReplyStep {
    /// Send these bytes.
    Send(Bytes),
    /// Feed the next bytes of the blob, or its end.
    Feed,
    /// Yield to other tasks.
    Pause,
    /// Stop: the reply is complete.
    Done,
}

/// A reply in progress.
pub struct QueryReply {
    scan: QueryScan,
    container: Container,
    /// Length of the blob in bytes.
    total: u64,
    /// Bytes that were passed to the scan.
    scanned: u64,
    /// Last value of `scanned` that was reported as progress.
    reported: Option<u64>,
    /// Bytes that were fed and not passed to the scan yet.
    unread: Bytes,
    is_last: bool,
    has_begun: bool,
    is_over: bool,
}

impl QueryReply {
    /// Creates the reply to a query of a blob of `total` bytes. `sync` should be random.
    pub fn new(
        query: Query,
        (input, output): (Format, Format),
        total: u64,
        now: OffsetDateTime,
        sync: [u8; 16],
    ) -> Self {
        Self {
            scan: QueryScan::new(query, input, output, now),
            container: Container::new(sync),
            total,
            scanned: 0,
            reported: None,
            unread: Bytes::new(),
            is_last: false,
            has_begun: false,
            is_over: false,
        }
    }

    /// Adds the next bytes of the blob, after [`ReplyStep::Feed`].
    pub fn feed(&mut self, bytes: Bytes) {
        debug_assert!(self.unread.is_empty(), "bytes were fed before they were requested");
        self.unread = bytes;
    }

    /// Marks the end of the blob.
    pub fn finish(&mut self) {
        self.is_last = true;
    }

    /// Continues until the caller has to act.
    pub fn step(&mut self) -> ReplyStep {
        loop {
            if self.is_over {
                return ReplyStep::Done;
            }
            match self.scan.step() {
                ScanStep::Done => {
                    self.is_over = true;
                    return self.send(true);
                }
                ScanStep::Pause if self.scan.is_loaded() => return self.send(false),
                ScanStep::Pause => return ReplyStep::Pause,
                ScanStep::Hungry if self.is_at_milestone() => return self.send(true),
                ScanStep::Hungry if !self.unread.is_empty() => {
                    let until = PROGRESS_INTERVAL - self.scanned % PROGRESS_INTERVAL;
                    let part = self.unread.len().min(until as usize);
                    self.scanned += part as u64;
                    self.scan.feed(&self.unread.split_to(part));
                }
                ScanStep::Hungry if self.is_last => self.scan.finish(),
                ScanStep::Hungry => return ReplyStep::Feed,
            }
        }
    }

    fn is_at_milestone(&self) -> bool {
        self.scanned > 0
            && self.scanned.is_multiple_of(PROGRESS_INTERVAL)
            && self.reported != Some(self.scanned)
    }

    /// Encodes the pending results and errors, the progress if requested, and the end if it was reached.
    fn send(&mut self, with_progress: bool) -> ReplyStep {
        let mut out = vec![];
        if !self.has_begun {
            self.container.begin(&mut out);
        }
        let data = self.scan.take_output();
        if !data.is_empty() || !self.has_begun {
            self.container.result_data(&mut out, &data);
        }
        self.has_begun = true;
        for error in self.scan.take_errors() {
            self.container.error(&mut out, &error);
        }
        if with_progress && self.reported != Some(self.scanned) {
            self.reported = Some(self.scanned);
            self.container.progress(&mut out, self.scanned, self.total);
        }
        if self.is_over {
            self.container.end(&mut out, self.total);
        }
        ReplyStep::Send(out.into())
    }
}
