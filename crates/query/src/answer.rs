//! The body of a reply, piece by piece: what to send, and when more of the blob is needed.
//!
//! The first record is result data, be it empty: clients look at the first record before they are ready for an error. Of
//! what is found together, data comes before errors. Progress is told every 4 MiB of the blob and at its end.

use bytes::Bytes;
use time::OffsetDateTime;

use crate::Format;
use crate::avro::Container;
use crate::scan::{Scan, Step};
use crate::statement::Query;

/// How often progress is told.
const PROGRESS_INTERVAL: u64 = 4 << 20;

/// What whoever sends the reply has to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Send these bytes.
    Send(Bytes),
    /// Feed the next bytes of the blob, or its end.
    Feed,
    /// Let others have their turn.
    Pause,
    /// Nothing: all is sent.
    Done,
}

/// A reply on its way.
pub struct Answer {
    scan: Scan,
    container: Container,
    /// How long the blob is.
    total: u64,
    /// How much of it the scan was given, and how much of that was told.
    scanned: u64,
    told: Option<u64>,
    /// What was fed and is not scanned.
    unread: Bytes,
    is_last: bool,
    has_begun: bool,
    is_over: bool,
}

impl Answer {
    /// The reply to a statement on a blob of that length. `sync` should be random.
    pub fn new(
        query: Query,
        (input, output): (Format, Format),
        total: u64,
        now: OffsetDateTime,
        sync: [u8; 16],
    ) -> Self {
        Self {
            scan: Scan::new(query, input, output, now),
            container: Container::new(sync),
            total,
            scanned: 0,
            told: None,
            unread: Bytes::new(),
            is_last: false,
            has_begun: false,
            is_over: false,
        }
    }

    /// The next bytes of the blob.
    pub fn feed(&mut self, bytes: Bytes) {
        debug_assert!(self.unread.is_empty(), "nobody asked");
        self.unread = bytes;
    }

    /// That was all of the blob.
    pub fn finish(&mut self) {
        self.is_last = true;
    }

    /// Goes on, and tells what it needs for that.
    pub fn step(&mut self) -> Next {
        loop {
            if self.is_over {
                return Next::Done;
            }
            match self.scan.step() {
                Step::Done => {
                    self.is_over = true;
                    return self.send(true);
                }
                Step::Pause if self.scan.is_loaded() => return self.send(false),
                Step::Pause => return Next::Pause,
                Step::Hungry if self.is_at_milestone() => return self.send(true),
                Step::Hungry if !self.unread.is_empty() => {
                    let until = PROGRESS_INTERVAL - self.scanned % PROGRESS_INTERVAL;
                    let part = self.unread.len().min(until as usize);
                    self.scanned += part as u64;
                    self.scan.feed(&self.unread.split_to(part));
                }
                Step::Hungry if self.is_last => self.scan.finish(),
                Step::Hungry => return Next::Feed,
            }
        }
    }

    fn is_at_milestone(&self) -> bool {
        self.scanned > 0 && self.scanned.is_multiple_of(PROGRESS_INTERVAL) && self.told != Some(self.scanned)
    }

    /// What there is to send, with the progress, and with the end where that is reached.
    fn send(&mut self, with_progress: bool) -> Next {
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
        if with_progress && self.told != Some(self.scanned) {
            self.told = Some(self.scanned);
            self.container.progress(&mut out, self.scanned, self.total);
        }
        if self.is_over {
            self.container.end(&mut out, self.total);
        }
        Next::Send(out.into())
    }
}
