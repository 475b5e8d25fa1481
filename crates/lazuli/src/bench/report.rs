//! What was measured, in one shape for everything: the text, the JSON and the page are all made of it.
//!
//! A [`Measurement`] has one [`Series`] for each contender, ours first. Rounds of one measurement alternate between the
//! contenders, so round `i` of one and round `i` of another ran side by side: a ratio is the median of the ratios of
//! such pairs, which a noisy neighbour disturbs least.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use lazuli_concurrency::{Clock, SystemClock};
use lazuli_protocol::date;
use serde::{Deserialize, Serialize};

use super::BenchError;
use super::histogram::{Histogram, Latency};
use super::round::Round;
use super::text::{Align, Table, micros, number};

/// The name of our own series.
pub(crate) const OURS: &str = "lazuli";

/// Everything that one run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of this binary.
    pub(crate) version: &'static str,
    /// How it was built: numbers of a debug build mean little.
    pub(crate) build: &'static str,
    /// When it started.
    pub(crate) started: String,
    /// Where it ran.
    pub(crate) machine: Machine,
    /// What it measured.
    pub(crate) sections: Vec<Section>,
}

/// The machine, as far as numbers depend on it.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// Processors that we may use.
    pub(crate) processors: usize,
    /// Its memory.
    pub(crate) memory_mib: u64,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// Work that was waiting when we started: above zero, others were busy too.
    pub(crate) load_average: f64,
}

/// One subject.
#[derive(Debug, Serialize)]
pub(crate) struct Section {
    /// Its title.
    pub(crate) title: String,
    /// What one has to know to read the numbers.
    pub(crate) notes: Vec<String>,
    /// The numbers.
    pub(crate) measurements: Vec<Measurement>,
    /// What they were hoped to be.
    pub(crate) goals: Vec<Goal>,
}

/// One thing that all contenders did.
#[derive(Debug, Serialize)]
pub(crate) struct Measurement {
    /// What they did.
    pub(crate) name: String,
    /// In what it is measured.
    pub(crate) unit: &'static str,
    /// What came of it.
    pub(crate) series: Vec<Series>,
}

/// What one contender did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    /// Its name.
    pub(crate) who: String,
    /// The value of each round.
    pub(crate) rounds: Vec<f64>,
    /// Their median.
    pub(crate) median: f64,
    /// How many times as much we did: the median over pairs of rounds. Not for our own series.
    pub(crate) ratio: Option<f64>,
    /// Latencies over all rounds, where single operations were timed.
    pub(crate) latency: Option<Latency>,
    /// How many operations failed, by reason.
    pub(crate) errors: BTreeMap<String, u64>,
}

/// What a number was hoped to be.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    /// What was hoped for.
    pub(crate) wanted: String,
    /// What was found.
    pub(crate) found: String,
    /// Whether it is met; `None` if this run cannot tell.
    pub(crate) met: Option<bool>,
}

impl Report {
    /// An empty one that starts now.
    pub(crate) fn begin() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            started: date::iso8601_seconds(SystemClock.now()),
            machine: Machine::this(),
            sections: vec![],
        }
    }

    /// Writes it as JSON.
    pub(crate) fn write_json(&self, path: &Path) -> Result<(), BenchError> {
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        std::fs::write(path, json).map_err(BenchError::at(path))
    }
}

impl Machine {
    fn this() -> Self {
        let word = |file, line: usize, word: usize| {
            let text = std::fs::read_to_string(file).ok()?;
            Some(text.lines().nth(line)?.split_whitespace().nth(word)?.to_owned())
        };
        let memory_kib: u64 = word("/proc/meminfo", 0, 1).and_then(|kib| kib.parse().ok()).unwrap_or(0);
        Self {
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_mib: memory_kib >> 10,
            kernel: word("/proc/sys/kernel/osrelease", 0, 0).unwrap_or_default(),
            load_average: word("/proc/loadavg", 0, 0).and_then(|load| load.parse().ok()).unwrap_or(0.0),
        }
    }
}

impl Section {
    /// One with nothing in it yet.
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), notes: vec![], measurements: vec![], goals: vec![] }
    }
}

impl Measurement {
    /// Compares the first series with each of the others.
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, mut series: Vec<Series>) -> Self {
        if let Some((ours, others)) = series.split_first_mut() {
            for other in others {
                other.ratio = ratio(&ours.rounds, &other.rounds);
            }
        }
        Self { name: name.into(), unit, series }
    }

    /// How many times as much we did as the first other one.
    pub(crate) fn ratio(&self) -> Option<f64> {
        self.series.get(1)?.ratio
    }
}

impl Series {
    /// Values alone.
    pub(crate) fn of_values(who: impl Into<String>, rounds: Vec<f64>) -> Self {
        let median = median(&rounds).unwrap_or(0.0);
        Self { who: who.into(), median, rounds, ratio: None, latency: None, errors: BTreeMap::new() }
    }

    /// Operations a second.
    pub(crate) fn of_rounds(who: impl Into<String>, rounds: &[Round]) -> Self {
        let mut all = Histogram::default();
        let mut series = Self::of_values(who, rounds.iter().map(|round| round.per_s).collect());
        for round in rounds {
            all.add(&round.latency);
            for (reason, count) in &round.errors {
                *series.errors.entry(reason.clone()).or_default() += count;
            }
        }
        series.latency = all.latency();
        series
    }
}

impl Goal {
    /// One that this run can judge.
    pub(crate) fn judged(wanted: impl Into<String>, found: impl Into<String>, met: bool) -> Self {
        Self { wanted: wanted.into(), found: found.into(), met: Some(met) }
    }

    /// How the judgement reads.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "pass",
            Some(false) => "MISSED",
            None => "not judged",
        }
    }
}

/// The value in the middle, or the mean of the two there.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// The median of the ratios of rounds that ran side by side. Rounds in which the other one did nothing count for
/// nothing; if that is all of them, there is no ratio.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let pairs = ours.iter().zip(theirs).filter(|(_, theirs)| **theirs > 0.0);
    median(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processors, memory_mib, kernel, load_average } = &self.machine;
        writeln!(
            f,
            "lazuli {}, {} build, {}; {processors} processors, {memory_mib} MiB, Linux {kernel}, load average {load_average}",
            self.version, self.build, self.started
        )?;
        self.sections.iter().try_for_each(|section| write!(f, "\n{section}"))
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))?;
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("what", Left),
            ("who", Left),
            ("median", Right),
            ("", Left),
            ("p50", Right),
            ("p99", Right),
            ("p99.9", Right),
            ("errors", Right),
            ("ours ÷ this", Right),
        ]);
        for measurement in &self.measurements {
            for (at, series) in measurement.series.iter().enumerate() {
                let latency = |of: fn(&Latency) -> f64| {
                    series.latency.as_ref().map(|latency| micros(of(latency))).unwrap_or_default()
                };
                table.row([
                    if at == 0 { measurement.name.clone() } else { String::new() },
                    series.who.clone(),
                    number(series.median),
                    measurement.unit.into(),
                    latency(|latency| latency.p50_us),
                    latency(|latency| latency.p99_us),
                    latency(|latency| latency.p999_us),
                    series.errors.values().sum::<u64>().to_string(),
                    series.ratio.map(number).unwrap_or_default(),
                ]);
            }
        }
        if !self.measurements.is_empty() {
            write!(f, "{table}")?;
        }
        for measurement in &self.measurements {
            for series in &measurement.series {
                for (reason, count) in &series.errors {
                    writeln!(f, "  errors: {} on {}: {count} × {reason}", measurement.name, series.who)?;
                }
            }
        }
        let mut goals = Table::new(&[("goal", Left), ("found", Right), ("", Left)]);
        for goal in &self.goals {
            goals.row([goal.wanted.clone(), goal.found.clone(), goal.verdict().into()]);
        }
        if !self.goals.is_empty() {
            write!(f, "{goals}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        for (values, expected) in [
            (&[][..], None),
            (&[3.0], Some(3.0)),
            (&[9.0, 1.0], Some(5.0)),
            (&[9.0, 1.0, 2.0], Some(2.0)),
            (&[4.0, 1.0, 3.0, 100.0], Some(3.5)),
        ] {
            assert_eq!(median(values), expected, "{values:?}");
        }
    }

    #[test]
    fn a_ratio_pairs_rounds_that_ran_side_by_side() {
        // The machine was half as fast in the second round, for both.
        assert_eq!(ratio(&[100.0, 50.0, 100.0], &[50.0, 25.0, 40.0]), Some(2.0));
        assert_eq!(ratio(&[100.0, 50.0], &[0.0, 25.0]), Some(2.0), "a round without anything has no ratio");
        assert_eq!(ratio(&[100.0], &[0.0]), None);
        assert_eq!(ratio(&[], &[]), None);
    }

    #[test]
    fn the_first_series_is_compared_with_each_other() {
        let values = |who: &str, rounds: &[f64]| Series::of_values(who, rounds.to_vec());
        let series = vec![values(OURS, &[10.0]), values("a", &[5.0]), values("b", &[20.0])];
        let measurement = Measurement::new("x", "a second", series);
        let ratios: Vec<_> = measurement.series.iter().map(|series| series.ratio).collect();
        assert_eq!(ratios, [None, Some(2.0), Some(0.5)]);
        assert_eq!(measurement.ratio(), Some(2.0));
    }

    #[test]
    fn errors_and_missed_goals_stand_in_the_text() {
        let mut round = Round { per_s: 1234.0, ..Round::default() };
        round.note(std::time::Duration::from_micros(50), Ok(()));
        round.note(std::time::Duration::ZERO, Err("503 ServerBusy".into()));
        let mut section = Section::new("services");
        section.measurements.push(Measurement::new(
            "get",
            "a second",
            vec![Series::of_rounds(OURS, &[round])],
        ));
        section.goals.push(Goal::judged("≥ 2,000", "1,234", false));
        let text = section.to_string();
        for part in ["1,234  a second", "50.0 µs", "get on lazuli: 1 × 503 ServerBusy", "MISSED"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn a_report_is_valid_json_with_its_medians() {
        let mut report = Report::begin();
        let series = Series::of_values(OURS, vec![1.0, 5.0, 3.0]);
        let measurements = vec![Measurement::new("x", "a second", vec![series])];
        report.sections.push(Section { measurements, ..Section::new("s") });
        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(json["sections"][0]["measurements"][0]["series"][0]["median"], 3.0);
        assert!(json["machine"]["processors"].as_u64().unwrap() >= 1);
    }
}
