//! Judges a soak: whether memory and disk stay constant from [`Minute`] to minute.

use super::super::report::{Goal, median};
use super::super::text::number;

/// The base of the comparison of memory in a run that is long enough: minutes counted from 1.
const BASE_MINUTES: std::ops::RangeInclusive<usize> = 9..=11;
/// Number of minutes at the end that are compared with the base.
const LAST_MINUTES: usize = 3;
/// Minimum number of minutes for a verdict.
const MIN_MINUTES: usize = 2 * LAST_MINUTES;
/// Maximum ratio of the memory at the end to the base.
const MAX_MEMORY_RATIO: f64 = 1.05;
/// Maximum ratio of the bytes on disk to the live bytes and the log.
const MAX_DISK_RATIO: f64 = 1.5;

/// The measurements of one minute.
#[derive(Clone, Debug, Default)]
pub(super) struct Minute {
    /// Samples of the bytes of memory that no file backs.
    pub(super) anonymous: Vec<f64>,
    /// Bytes on disk of the data directory, including the log.
    pub(super) disk: u64,
    /// Bytes on disk of the store's log.
    pub(super) log: u64,
}

/// Returns the base of the comparison of memory, counted from 0; `None` if the run is too short. In runs of
/// less than 14 minutes the base is the three minutes before the last three.
fn base(minutes: usize) -> Option<std::ops::Range<usize>> {
    let end = BASE_MINUTES.end().min(&minutes.checked_sub(LAST_MINUTES)?).to_owned();
    (minutes >= MIN_MINUTES).then(|| end - LAST_MINUTES..end)
}

/// Returns the median of all samples of some minutes.
fn memory(minutes: &[Minute]) -> Option<f64> {
    median(&minutes.iter().flat_map(|minute| minute.anonymous.iter().copied()).collect::<Vec<_>>())
}

/// Judges a run whose working set has `live` bytes.
pub(super) fn judge(minutes: &[Minute], live: u64) -> Vec<Goal> {
    let (mib, count) = (|bytes: f64| number(bytes / f64::from(1 << 20)), minutes.len());
    let wanted = format!(
        "RssAnon of the last {LAST_MINUTES} minutes at most {MAX_MEMORY_RATIO} × that of minutes 9 to 11"
    );
    let Some(base) = base(count) else {
        return vec![Goal { wanted, found: format!("{count} minutes are too few"), met: None }];
    };
    let mut goals = vec![];
    if let (Some(before), Some(after)) =
        (memory(&minutes[base.clone()]), memory(&minutes[count - LAST_MINUTES..]))
    {
        let found = format!(
            "{} × ({} MiB in minutes {} to {}, {} MiB at the end)",
            number(after / before),
            mib(before),
            base.start + 1,
            base.end,
            mib(after)
        );
        goals.push(Goal::judged(wanted, found, after <= before * MAX_MEMORY_RATIO));
    }
    let worst = minutes[base.start..].iter().max_by(|a, b| {
        let ratio = |minute: &Minute| minute.disk as f64 / (live + minute.log) as f64;
        ratio(a).total_cmp(&ratio(b))
    });
    if let Some(worst) = worst {
        let ratio = worst.disk as f64 / (live + worst.log).max(1) as f64;
        let found = format!(
            "{} × ({} MiB; {} MiB live, {} MiB log)",
            number(ratio),
            mib(worst.disk as f64),
            mib(live as f64),
            mib(worst.log as f64)
        );
        goals.push(Goal::judged(
            format!("disk at most {MAX_DISK_RATIO} × live bytes and log"),
            found,
            ratio <= MAX_DISK_RATIO,
        ));
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_is_minutes_9_to_11_or_the_three_before_the_last_three() {
        for (minutes, expected) in [
            (60, Some(8..11)),
            (15, Some(8..11)),
            (14, Some(8..11)),
            (10, Some(4..7)),
            (6, Some(0..3)),
            (5, None),
            (0, None),
        ] {
            assert_eq!(base(minutes), expected, "{minutes}");
        }
    }

    fn run(memory: impl Fn(usize) -> f64, disk: impl Fn(usize) -> u64) -> Vec<Option<bool>> {
        let minute =
            |n: usize| Minute { anonymous: vec![memory(n), 0.0, memory(n)], disk: disk(n), log: 100 };
        let minutes: Vec<_> = (1..=60).map(minute).collect();
        judge(&minutes, 1000).iter().map(|goal| goal.met).collect()
    }

    #[test]
    fn growth_after_the_first_minutes_fails_and_growth_within_them_passes() {
        let flat = |_: usize| 1000;
        assert_eq!(run(|_| 100.0, flat), [Some(true), Some(true)]);
        assert_eq!(run(|n| if n < 9 { n as f64 } else { 100.0 }, flat), [Some(true), Some(true)]);
        assert_eq!(run(|n| 100.0 + n as f64 / 4.0, flat), [Some(false), Some(true)], "a quarter each minute");
        assert_eq!(run(|n| if n < 58 { 100.0 } else { 105.1 }, flat), [Some(false), Some(true)]);
    }

    #[test]
    fn disk_is_judged_by_its_worst_minute() {
        let memory = |_: usize| 100.0;
        assert_eq!(run(memory, |_| 1650), [Some(true), Some(true)]);
        assert_eq!(run(memory, |n| if n == 30 { 1651 } else { 1000 }), [Some(true), Some(false)]);
        assert_eq!(run(memory, |n| if n == 2 { 9999 } else { 1000 }), [Some(true), Some(true)], "filling");
    }

    #[test]
    fn short_runs_are_not_judged() {
        let minutes = vec![Minute::default(); 5];
        assert_eq!(judge(&minutes, 1).iter().map(|goal| goal.met).collect::<Vec<_>>(), [None]);
    }
}
