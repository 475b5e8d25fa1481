//! What is to be reached beside peers; and files beside blobs: what the same bytes cost in either service, and large ones
//! beside `dd`.

use super::super::report::{Goal, Measurement, Section};
use super::super::text::number;
use super::peer::{AZURITE, NGINX};

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

/// How many times as much as a peer we do, at least.
const AT_LEAST: [(&str, &str, f64); 15] = [
    ("put-blob", AZURITE, 10.0),
    ("get-blob", AZURITE, 15.0),
    ("get-blob", NGINX, 0.4),
    ("get-blob-256m", NGINX, 0.7),
    ("put-blocks-256m", AZURITE, 10.0),
    ("list-blobs-10k", AZURITE, 30.0),
    ("list-blobs-100k", AZURITE, 30.0),
    ("insert-entity", AZURITE, 5.0),
    ("get-entity", AZURITE, 10.0),
    ("insert-batch-100", AZURITE, 10.0),
    ("query-partition-1000", AZURITE, 10.0),
    ("filter-scan-100k", AZURITE, 20.0),
    ("put-message", AZURITE, 10.0),
    ("message-cycle-1k", AZURITE, 20.0),
    ("message-cycle-10k", AZURITE, 200.0),
];

/// How we compare with peers, as far as they were measured.
pub(super) fn peers(services: &Section) -> Vec<Goal> {
    let judge = |(name, peer, at_least): &(&str, &str, f64)| {
        let ratio = measured(services, name)?.series.iter().find(|series| series.who == *peer)?.ratio?;
        let wanted = format!("{name}: at least {} × {peer}", number(*at_least));
        Some(Goal::judged(wanted, format!("{} ×", number(ratio)), ratio >= *at_least))
    };
    AT_LEAST.iter().filter_map(judge).collect()
}

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

fn measured<'a>(services: &'a Section, name: &str) -> Option<&'a Measurement> {
    services.measurements.iter().find(|measurement| measurement.name == name)
}

/// Requests a second of our server.
fn rate(services: &Section, name: &str) -> Option<f64> {
    measured(services, name)?.series.first().map(|ours| ours.median).filter(|rate| *rate > 0.0)
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
    fn only_peers_that_were_measured_are_judged_and_by_the_ratio_of_rounds() {
        let series = |who: &str, rate| Series::of_values(who, vec![rate]);
        let mut services = Section::new("any");
        let ours = |rate| series(OURS, rate);
        services.measurements.push(Measurement::new(
            "get-blob",
            "requests/s",
            vec![ours(30.0), series(AZURITE, 2.0), series(NGINX, 80.0)],
        ));
        services.measurements.push(Measurement::new("put-blob", "requests/s", vec![ours(30.0)]));
        let goals = peers(&services);
        let judged: Vec<_> = goals.iter().map(|goal| (goal.wanted.as_str(), goal.met)).collect();
        assert_eq!(
            judged,
            [
                ("get-blob: at least 15.0 × azurite", Some(true)),
                ("get-blob: at least 0.40 × nginx", Some(false))
            ]
        );
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
