//! Files beside blobs: what the same bytes cost in either service, and large ones beside `dd`.

use super::super::report::{Goal, Measurement, Section};
use super::super::text::number;

/// How many times as slow as blobs files may be.
const AT_MOST: f64 = 1.5;
/// MiB of a large blob or file.
const LARGE_MIB: f64 = 256.0;

/// What is done to files and to blobs, and how much one request of the former does for one of the latter.
const PAIRS: [(&str, &str, f64); 5] = [
    ("put-range", "put-pages", 1.0),
    ("get-range", "get-pages", 1.0),
    // Both are answered with an MD5.
    ("put-file-256m", "put-blob-256m", 1.0),
    ("get-file-256m", "get-blob-256m", 1.0),
    ("list-files-100k", "list-blobs-100k", 1.0),
];

/// How files compare, as far as both were measured.
pub(super) fn files(before: &[Section], services: &Section) -> Vec<Goal> {
    let mut goals = vec![];
    for (file, blob, times) in PAIRS {
        if let (Some(files), Some(blobs)) = (rate(services, file), rate(services, blob)) {
            let slower = blobs / (files * times);
            let wanted = format!("{file}: at most {} × as long as {blob}", number(AT_MOST));
            goals.push(Goal::judged(wanted, format!("{} ×", number(slower)), slower <= AT_MOST));
        }
    }
    let dd = before.iter().flat_map(|section| &section.measurements).find_map(dd);
    for file in ["put-file-256m", "get-file-256m"] {
        if let (Some(files), Some(dd)) = (rate(services, file), dd) {
            let mib = files * LARGE_MIB;
            let found = format!("{} MiB/s, {} × dd", number(mib), number(mib / dd));
            goals.push(Goal { wanted: format!("{file}: beside dd"), found, met: None });
        }
    }
    goals
}

/// Requests a second of our server.
fn rate(services: &Section, name: &str) -> Option<f64> {
    let measured = services.measurements.iter().find(|measurement| measurement.name == name)?;
    measured.series.first().map(|ours| ours.median).filter(|rate| *rate > 0.0)
}

/// MiB a second of `dd`, where it was measured.
fn dd(measurement: &Measurement) -> Option<f64> {
    measurement.series.iter().find(|series| series.who == "dd").map(|series| series.median)
}

#[cfg(test)]
mod tests {
    use super::super::super::report::{OURS, Series};
    use super::*;

    fn section(measured: &[(&str, &str, f64)]) -> Section {
        let mut section = Section::new("any");
        section.measurements.extend(measured.iter().map(|(name, who, rate)| {
            Measurement::new(*name, "requests/s", vec![Series::of_values(*who, vec![*rate])])
        }));
        section
    }

    #[test]
    fn files_are_judged_by_blobs_and_shown_beside_dd() {
        let services = section(&[
            ("put-range", OURS, 1000.0),
            ("put-pages", OURS, 1500.0),
            ("get-range", OURS, 1000.0),
            ("get-pages", OURS, 1501.0),
            ("list-files-100k", OURS, 1.0),
            ("list-blobs-100k", OURS, 1.2),
            ("put-file-256m", OURS, 2.0),
        ]);
        let goals = files(&[section(&[("append", "dd", 1024.0)])], &services);
        let judged: Vec<_> = goals.iter().map(|goal| (goal.found.as_str(), goal.met)).collect();
        assert_eq!(
            judged,
            [
                ("1.50 ×", Some(true)),
                ("1.50 ×", Some(false)),
                ("1.20 ×", Some(true)),
                ("512 MiB/s, 0.50 × dd", None)
            ]
        );
    }
}
