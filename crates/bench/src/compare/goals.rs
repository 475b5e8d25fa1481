//! The goals of `lazuli bench compare`: ratios to peers, latencies of blobs, large blobs compared with `dd`
//! and `md5sum`, and files compared with blobs, which shows what the same bytes cost in either service.

use super::super::extents::{DD, MD5SUM};
use super::super::report::{Goal, Measurement, Section};
use super::super::text::{micros, number};
use super::peer::{AZURITE, NGINX};

/// How many times as slow as blobs files may be.
const MAX_FILE_SLOWDOWN: f64 = 1.5;
/// MiB of a large blob or file.
const LARGE_MIB: f64 = 256.0;

/// Workloads of files, the workloads of blobs to compare them with, and how many requests of the latter do
/// the work of one request of the former.
const FILE_AND_BLOB: [(&str, &str, f64); 5] = [
    ("put-range", "put-pages", 1.0),
    ("get-range", "get-pages", 1.0),
    // Both replies have an MD5.
    ("put-file-256m", "put-blob-256m", 1.0),
    ("get-file-256m", "get-blob-256m", 1.0),
    ("list-files-100k", "list-blobs-100k", 1.0),
];

/// Workloads, peers, and the minimum ratio of our rate to the peer's rate.
const MIN_PEER_RATIOS: [(&str, &str, f64); 14] = [
    ("put-blob", AZURITE, 10.0),
    ("get-blob", AZURITE, 15.0),
    ("get-blob", NGINX, 0.4),
    ("get-blob-256m", NGINX, 0.7),
    ("put-blocks-256m", AZURITE, 10.0),
    ("list-blobs-10k", AZURITE, 30.0),
    ("insert-entity", AZURITE, 5.0),
    ("get-entity", AZURITE, 10.0),
    ("insert-batch-100", AZURITE, 10.0),
    ("query-partition-1000", AZURITE, 10.0),
    ("filter-scan-100k", AZURITE, 20.0),
    ("put-message", AZURITE, 10.0),
    ("message-cycle-1k", AZURITE, 20.0),
    ("message-cycle-10k", AZURITE, 200.0),
];

/// Judges the ratios to those peers that were measured.
pub(super) fn peers(services: &Section) -> Vec<Goal> {
    let judge = |(name, peer, at_least): &(&str, &str, f64)| {
        let ratio = measured(services, name)?.series.iter().find(|series| series.contender == *peer)?.ratio?;
        let wanted = format!("{name}: at least {} × {peer}", number(*at_least));
        Some(Goal::judged(wanted, format!("{} ×", number(ratio)), ratio >= *at_least))
    };
    MIN_PEER_RATIOS.iter().filter_map(judge).collect()
}

/// Upper bounds of the p99 latency of workloads, in µs.
const MAX_P99_US: [(&str, f64); 2] = [("put-blob", 10_000.0), ("list-directory-1m", 20_000.0)];

/// Minimum ratio of the rate of Put Blob with a large body to the slower of `dd` and `md5sum`: the blob is
/// synced, and the reply has its MD5.
const MIN_LARGE_PUT_RATIO: f64 = 0.7;

/// Judges the workloads of blobs that were measured.
pub(super) fn blobs(before: &[Section], services: &Section) -> Vec<Goal> {
    let quick = MAX_P99_US.iter().filter_map(|(name, below)| {
        let p99 = measured(services, name)?.series.first()?.latency.as_ref()?.p99_us;
        Some(Goal::judged(format!("{name}: p99 below {}", micros(*below)), micros(p99), p99 < *below))
    });
    let large = || {
        let slower = raw(before, DD)?.min(raw(before, MD5SUM)?);
        let ratio = rate(services, "put-blob-256m")? * LARGE_MIB / slower;
        let wanted =
            format!("put-blob-256m: at least {} × the slower of dd and md5sum", number(MIN_LARGE_PUT_RATIO));
        Some(Goal::judged(wanted, format!("{} ×", number(ratio)), ratio >= MIN_LARGE_PUT_RATIO))
    };
    quick.chain(large()).collect()
}

/// Compares files with blobs and `dd`, as far as both were measured.
pub(super) fn files(before: &[Section], services: &Section) -> Vec<Goal> {
    let mut goals = vec![];
    for (file, blob, times) in FILE_AND_BLOB {
        if let (Some(files), Some(blobs)) = (rate(services, file), rate(services, blob)) {
            let slower = blobs / (files * times);
            let wanted = format!("{file}: at most {} × as long as {blob}", number(MAX_FILE_SLOWDOWN));
            goals.push(Goal::judged(wanted, format!("{} ×", number(slower)), slower <= MAX_FILE_SLOWDOWN));
        }
    }
    let dd = raw(before, DD);
    for file in ["put-file-256m", "get-file-256m"] {
        if let (Some(files), Some(dd)) = (rate(services, file), dd) {
            let mib = files * LARGE_MIB;
            let found = format!("{} MiB/s, {} × dd", number(mib), number(mib / dd));
            goals.push(Goal { wanted: format!("{file}: compared with dd"), found, met: None });
        }
    }
    goals
}

fn measured<'a>(services: &'a Section, name: &str) -> Option<&'a Measurement> {
    services.measurements.iter().find(|measurement| measurement.name == name)
}

/// Returns the requests per second of our server.
fn rate(services: &Section, name: &str) -> Option<f64> {
    measured(services, name)?.series.first().map(|ours| ours.median).filter(|rate| *rate > 0.0)
}

/// Returns the MiB per second of a program, if it was measured.
fn raw(before: &[Section], program: &str) -> Option<f64> {
    let mut series = before.iter().flat_map(|section| &section.measurements).flat_map(|m| &m.series);
    series.find(|series| series.contender == program).map(|series| series.median)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::report::{OURS, Series};
    use super::super::super::round::Round;
    use super::*;

    fn section(measured: &[(&str, &str, f64)]) -> Section {
        let mut section = Section::new("any");
        section.measurements.extend(measured.iter().map(|(name, contender, rate)| {
            Measurement::new(*name, "requests/s", vec![Series::of_values(*contender, vec![*rate])])
        }));
        section
    }

    #[test]
    fn peers_that_were_measured_are_judged_by_the_ratio_of_rounds() {
        let series = |contender: &str, rate| Series::of_values(contender, vec![rate]);
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
    fn blobs_are_judged_by_their_p99_and_large_blobs_by_the_slower_program() {
        let mut services = section(&[("put-blob-256m", OURS, 2.0)]);
        for (name, took) in [("put-blob", 9), ("list-directory-1m", 21)] {
            let mut round = Round::default();
            round.note(Duration::from_millis(took), Ok(()));
            let series = vec![Series::of_rounds(OURS, &[round])];
            services.measurements.push(Measurement::new(name, "requests/s", series));
        }
        let met = |dd, md5sum| {
            let before = section(&[("append", DD, dd), ("digest", MD5SUM, md5sum)]);
            blobs(&[before], &services).iter().map(|goal| goal.met).collect::<Vec<_>>()
        };
        assert_eq!(met(1000.0, 700.0), [Some(true), Some(false), Some(true)]);
        assert_eq!(met(1000.0, 800.0), [Some(true), Some(false), Some(false)]);
        assert_eq!(blobs(&[], &services).len(), 2, "workloads that were not measured are not judged");
    }

    #[test]
    fn files_are_judged_by_blobs_and_shown_next_to_dd() {
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
