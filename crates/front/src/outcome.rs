//! Outcomes of requests as rows of counters: the status, or that the client disconnected first; and the error
//! code.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::StatusCode;
use lazuli_protocol::error::ErrorCode;

/// The statuses of replies. All others, of which there should be none, count as one.
const STATUSES: [u16; 27] = [
    200, 201, 202, 204, 206, 304, 307, 400, 401, 403, 404, 405, 406, 408, 409, 411, 412, 413, 414, 415, 416,
    429, 500, 501, 502, 503, 504,
];
/// Row of a request whose status is not in the table.
const OTHER: usize = STATUSES.len();
/// Row of a request whose client disconnected before it had the reply.
const ABORTED: usize = STATUSES.len() + 1;
/// Classes of outcomes, for summaries.
pub(crate) const CLASSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "aborted"];

/// Number of requests by outcome.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    statuses: [AtomicU64; STATUSES.len() + 2],
    /// In the order of [`ErrorCode::ALL`]. Allocated with the first error.
    errors: OnceLock<Box<[AtomicU64]>>,
}

impl Outcomes {
    /// Counts a request. Without a status its client disconnected first.
    pub(crate) fn count(&self, status: Option<StatusCode>, error: Option<ErrorCode>) {
        let row = match status {
            Some(status) => STATUSES.binary_search(&status.as_u16()).unwrap_or(OTHER),
            None => ABORTED,
        };
        self.statuses[row].fetch_add(1, Relaxed);
        if let Some(error) = error {
            let errors =
                self.errors.get_or_init(|| ErrorCode::ALL.iter().map(|_| AtomicU64::new(0)).collect());
            if let Some(count) = errors.get(error as usize) {
                count.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns the values of the label `status` with a request, and their number.
    pub(crate) fn by_status(&self) -> impl Iterator<Item = (String, u64)> {
        let labels = STATUSES.iter().map(u16::to_string).chain(["other".to_owned(), "aborted".to_owned()]);
        let counted = labels.zip(&self.statuses).map(|(label, count)| (label, count.load(Relaxed)));
        counted.filter(|(_, count)| *count > 0)
    }

    /// Returns the error codes of requests, and their number.
    pub(crate) fn by_error(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.errors.get().into_iter().flatten();
        let counted =
            ErrorCode::ALL.iter().zip(counts).map(|(code, count)| (code.name(), count.load(Relaxed)));
        counted.filter(|(_, count)| *count > 0)
    }

    /// Returns the number of requests in each of [`CLASSES`].
    pub(crate) fn by_class(&self) -> [u64; CLASSES.len()] {
        let mut classes = [0; CLASSES.len()];
        for (row, count) in self.statuses.iter().enumerate() {
            let class = match STATUSES.get(row) {
                Some(status) => usize::from(status / 100).clamp(2, 5) - 2,
                None if row == OTHER => 3,
                None => CLASSES.len() - 1,
            };
            classes[class] += count.load(Relaxed);
        }
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_every_status_of_an_error_and_codes_are_counted_by_their_row() {
        assert!(STATUSES.is_sorted());
        for (row, code) in ErrorCode::ALL.iter().enumerate() {
            assert!(STATUSES.contains(&code.status().as_u16()), "{code:?}");
            assert_eq!(*code as usize, row);
        }
        let outcomes = Outcomes::default();
        outcomes.count(Some(StatusCode::CREATED), None);
        outcomes.count(Some(StatusCode::CONFLICT), Some(ErrorCode::BlobAlreadyExists));
        outcomes.count(Some(StatusCode::IM_A_TEAPOT), None);
        outcomes.count(None, None);
        let statuses: Vec<_> = outcomes.by_status().collect();
        let expected = [("201", 1), ("409", 1), ("other", 1), ("aborted", 1)];
        assert_eq!(statuses, expected.map(|(label, count)| (label.to_owned(), count)));
        assert_eq!(outcomes.by_error().collect::<Vec<_>>(), [("BlobAlreadyExists", 1)]);
        assert_eq!(outcomes.by_class(), [1, 0, 1, 1, 1]);
    }
}
