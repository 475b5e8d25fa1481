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
    /// Number of objects by kind that were equal on both sides already.
    pub unchanged: BTreeMap<&'static str, u64>,
    /// Facts about the result, and how often each applies.
    pub notes: BTreeMap<String, u64>,
    /// Whether objects were only counted.
    pub is_dry_run: bool,
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

    /// Counts an object that was equal on both sides already.
    pub fn unchanged(&self, kind: &'static str) {
        *self.0.lock().unchanged.entry(kind).or_default() += 1;
    }

    /// Takes back the count of objects that were removed again.
    pub fn retract(&self, kind: &'static str, count: u64) {
        let mut report = self.0.lock();
        if let Some(imported) = report.imported.get_mut(kind) {
            *imported = imported.saturating_sub(count);
        }
    }

    /// Adds a fact about the result.
    pub fn note(&self, fact: impl Into<String>, count: u64) {
        *self.0.lock().notes.entry(fact.into()).or_default() += count;
    }

    /// Marks the report as one of objects that were only counted.
    pub fn only_count(&self) {
        self.0.lock().is_dry_run = true;
    }

    /// Returns the number of objects of a kind that are known to be at the destination.
    pub fn verified(&self, kind: &str) -> u64 {
        let report = self.0.lock();
        let count = |counts: &BTreeMap<&'static str, u64>| counts.get(kind).copied().unwrap_or_default();
        count(&report.imported) + count(&report.unchanged)
    }

    /// Compares the number of objects at the destination with the number of verified objects.
    pub fn compare_counts(&self, object: impl fmt::Display, kind: &str, found: u64, wanted: u64) {
        if found < wanted {
            self.left_out(object, format_args!("the destination has {found} of {wanted} {kind}"));
        } else if found > wanted {
            self.note(format!("{kind} at the destination that this run did not verify"), found - wanted);
        }
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

    /// Returns the number of imported bytes.
    pub fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }

    /// Returns the number of objects of all kinds that are at the destination.
    pub fn count(&self) -> u64 {
        let report = self.0.lock();
        report.imported.values().chain(report.unchanged.values()).sum()
    }

    /// Returns the report as it is now.
    pub fn report(&self) -> ImportReport {
        self.0.lock().clone()
    }
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", if self.is_dry_run { "To import:" } else { "Imported:" })?;
        for (kind, count) in &self.imported {
            writeln!(f, "  {count:>10}  {kind}")?;
        }
        writeln!(f, "  {:>10}  bytes of content", self.bytes)?;
        if !self.unchanged.is_empty() {
            writeln!(f, "Equal already:")?;
        }
        for (kind, count) in &self.unchanged {
            writeln!(f, "  {count:>10}  {kind}")?;
        }
        for (fact, count) in &self.notes {
            writeln!(f, "Note: {count} {fact}")?;
        }
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

    #[test]
    fn missing_objects_are_left_out_and_further_objects_are_noted() {
        let progress = ImportProgress::default();
        progress.imported("blobs", 1);
        progress.unchanged("blobs");
        assert_eq!(progress.verified("blobs"), 2);
        progress.compare_counts("container a", "blobs", 5, progress.verified("blobs"));
        progress.compare_counts("container b", "blobs", 1, progress.verified("blobs"));
        progress.retract("blobs", 1);
        let text = progress.report().to_string();
        assert!(
            text.contains("         0  blobs\n") && text.contains("Equal already:\n           1  blobs\n"),
            "{text}"
        );
        assert!(text.contains("Note: 3 blobs at the destination that this run did not verify"), "{text}");
        assert!(text.contains("container b: the destination has 1 of 2 blobs"), "{text}");
    }
}
