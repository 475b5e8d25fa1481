//! The results of all benchmarks. The text, the JSON and the page are made from them.
//!
//! A [`Measurement`] has one [`Series`] for each contender, ours first. Rounds alternate between the
//! contenders, so round `i` of one contender ran next to round `i` of another. A ratio is the median of the
//! ratios of such pairs, which is robust against noise from other programs.

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

/// The results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of this binary.
    pub(crate) version: &'static str,
    /// The build profile. Numbers of debug builds mean little.
    pub(crate) build: &'static str,
    /// The time at which the run started.
    pub(crate) started: String,
    /// The machine on which the run took place.
    pub(crate) machine: Machine,
    /// The results by subject.
    pub(crate) sections: Vec<Section>,
}

/// Properties of the machine that numbers depend on.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// Processors that this process may use.
    pub(crate) processors: usize,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The load average at the start. Above zero, other programs were busy too.
    pub(crate) load_average: f64,
}

/// The results of one subject.
#[derive(Debug, Serialize)]
pub(crate) struct Section {
    /// The subject.
    pub(crate) title: String,
    /// Conditions that readers of the numbers must know.
    pub(crate) notes: Vec<String>,
    /// The measurements.
    pub(crate) measurements: Vec<Measurement>,
    /// Goals and whether they are met.
    pub(crate) goals: Vec<Goal>,
}

/// One operation, measured for all contenders.
#[derive(Debug, Serialize)]
pub(crate) struct Measurement {
    /// The operation or workload.
    pub(crate) name: String,
    /// The unit of all values.
    pub(crate) unit: &'static str,
    /// The values of each contender, ours first.
    pub(crate) series: Vec<Series>,
}

/// The values of one contender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Series {
    /// The contender's name.
    #[serde(rename = "who")]
    pub(crate) contender: String,
    /// The value of each round.
    pub(crate) rounds: Vec<f64>,
    /// The median of all rounds.
    pub(crate) median: f64,
    /// Our value divided by this contender's value, the median over pairs of rounds. `None` for our own
    /// series.
    pub(crate) ratio: Option<f64>,
    /// Latencies over all rounds, if operations were timed.
    pub(crate) latency: Option<Latency>,
    /// Number of failed operations by reason.
    pub(crate) errors: BTreeMap<String, u64>,
}

/// A goal and the result.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    /// The goal.
    pub(crate) wanted: String,
    /// The result.
    pub(crate) found: String,
    /// Whether the goal is met; `None` if this run cannot judge it.
    pub(crate) met: Option<bool>,
}

impl Report {
    /// Begins an empty report.
    pub(crate) fn begin() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            started: date::iso8601_seconds(SystemClock.now()),
            machine: Machine::this(),
            sections: vec![],
        }
    }

    /// Writes the report as JSON.
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
    /// Returns an empty section.
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), notes: vec![], measurements: vec![], goals: vec![] }
    }
}

impl Measurement {
    /// Computes the ratio of the first series to each of the others.
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, mut series: Vec<Series>) -> Self {
        if let Some((ours, others)) = series.split_first_mut() {
            for other in others {
                other.ratio = ratio(&ours.rounds, &other.rounds);
            }
        }
        Self { name: name.into(), unit, series }
    }

    /// Returns the ratio of our value to that of the first other contender.
    pub(crate) fn ratio(&self) -> Option<f64> {
        self.series.get(1)?.ratio
    }
}

impl Series {
    /// Returns a series of values without latencies.
    pub(crate) fn of_values(contender: impl Into<String>, rounds: Vec<f64>) -> Self {
        let median = median(&rounds).unwrap_or(0.0);
        Self {
            contender: contender.into(),
            median,
            rounds,
            ratio: None,
            latency: None,
            errors: BTreeMap::new(),
        }
    }

    /// Returns a series of operations per second, with latencies and errors.
    pub(crate) fn of_rounds(contender: impl Into<String>, rounds: &[Round]) -> Self {
        let mut all = Histogram::default();
        let mut series = Self::of_values(contender, rounds.iter().map(|round| round.per_s).collect());
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
    /// Returns a goal that this run can judge.
    pub(crate) fn judged(wanted: impl Into<String>, found: impl Into<String>, met: bool) -> Self {
        Self { wanted: wanted.into(), found: found.into(), met: Some(met) }
    }

    /// Returns the verdict as text.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "pass",
            Some(false) => "MISSED",
            None => "not judged",
        }
    }
}

/// Returns the median; `None` without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// Returns the median of the ratios of rounds that ran next to each other. Rounds in which `theirs` is zero
/// are left out; returns `None` if no others remain.
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
            ("contender", Left),
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
                    series.contender.clone(),
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
                    writeln!(
                        f,
                        "  errors: {} on {}: {count} × {reason}",
                        measurement.name, series.contender
                    )?;
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
    fn median_does_not_depend_on_the_order() {
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
    fn ratios_pair_rounds_that_ran_next_to_each_other() {
        // The machine was half as fast in the second round, for both.
        assert_eq!(ratio(&[100.0, 50.0, 100.0], &[50.0, 25.0, 40.0]), Some(2.0));
        assert_eq!(ratio(&[100.0, 50.0], &[0.0, 25.0]), Some(2.0), "a round of zero has no ratio");
        assert_eq!(ratio(&[100.0], &[0.0]), None);
        assert_eq!(ratio(&[], &[]), None);
    }

    #[test]
    fn first_series_is_compared_with_each_other_series() {
        let values = |contender: &str, rounds: &[f64]| Series::of_values(contender, rounds.to_vec());
        let series = vec![values(OURS, &[10.0]), values("a", &[5.0]), values("b", &[20.0])];
        let measurement = Measurement::new("x", "a second", series);
        let ratios: Vec<_> = measurement.series.iter().map(|series| series.ratio).collect();
        assert_eq!(ratios, [None, Some(2.0), Some(0.5)]);
        assert_eq!(measurement.ratio(), Some(2.0));
    }

    #[test]
    fn text_shows_errors_and_missed_goals() {
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
    fn report_is_valid_json_with_medians() {
        let mut report = Report::begin();
        let series = Series::of_values(OURS, vec![1.0, 5.0, 3.0]);
        let measurements = vec![Measurement::new("x", "a second", vec![series])];
        report.sections.push(Section { measurements, ..Section::new("s") });
        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(json["sections"][0]["measurements"][0]["series"][0]["median"], 3.0);
        assert!(json["machine"]["processors"].as_u64().unwrap() >= 1);
    }
}
