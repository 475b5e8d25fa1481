//! The result of an import.

use std::collections::BTreeMap;
use std::fmt;

use parking_lot::Mutex;

/// Maximum number of left-out objects that are listed. All are counted.
const MAX_LISTED: usize = 1000;

/// Counts what is imported while workers run.
#[derive(Debug, Default)]
pub struct ImportProgress(Mutex<ImportReport>);

/// Counts of imported objects, and a list of those that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Number of imported objects by kind.
    pub imported: BTreeMap<&'static str, u64>,
    /// Bytes of imported content.
    pub bytes: u64,
    /// Properties that the protocol cannot set, and on how many objects they were lost.
    pub lost: BTreeMap<&'static str, u64>,
    /// Number of objects that were left out.
    pub left_out: u64,
    /// The first of these objects, each with the reason.
    pub listed: Vec<String>,
}

impl ImportProgress {
    /// Counts an imported object.
    pub fn imported(&self, kind: &'static str, bytes: u64) {
        let mut report = self.0.lock();
        *report.imported.entry(kind).or_default() += 1;
        report.bytes += bytes;
    }

    /// Counts an object that lost a property.
    pub fn lost(&self, property: &'static str) {
        *self.0.lock().lost.entry(property).or_default() += 1;
    }

    /// Records an object that was left out.
    pub fn left_out(&self, object: impl fmt::Display, reason: impl fmt::Display) {
        let mut report = self.0.lock();
        report.left_out += 1;
        if report.listed.len() < MAX_LISTED {
            report.listed.push(format!("{object}: {reason}"));
        }
    }

    /// Returns the number of imported objects of all kinds.
    pub fn count(&self) -> u64 {
        self.0.lock().imported.values().sum()
    }

    /// Returns the report as it is now.
    pub fn report(&self) -> ImportReport {
        self.0.lock().clone()
    }
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Imported:")?;
        for (kind, count) in &self.imported {
            writeln!(f, "  {count:>10}  {kind}")?;
        }
        writeln!(f, "  {:>10}  bytes of content", self.bytes)?;
        for (property, count) in &self.lost {
            writeln!(f, "Not imported for {count} of these: {property}")?;
        }
        if self.left_out == 0 {
            return writeln!(f, "Nothing was left out.");
        }
        writeln!(f, "LEFT OUT: {}", self.left_out)?;
        for object in &self.listed {
            writeln!(f, "  {object}")?;
        }
        if self.left_out > self.listed.len() as u64 {
            writeln!(f, "  and {} more", self.left_out - self.listed.len() as u64)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_counts_everything_and_lists_the_first_thousand_losses() {
        let progress = ImportProgress::default();
        progress.imported("blobs", 7);
        progress.lost("dequeue count");
        for number in 0..1005 {
            progress.left_out(format_args!("blob {number}"), "no content");
        }
        let text = progress.report().to_string();
        assert!(text.contains("         1  blobs\n"), "{text}");
        assert!(text.contains("Not imported for 1 of these: dequeue count"), "{text}");
        assert!(text.contains("LEFT OUT: 1005") && text.contains("blob 999: no content"), "{text}");
        assert!(!text.contains("blob 1000") && text.contains("and 5 more"), "{text}");
    }
}
