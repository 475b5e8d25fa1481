use super::*;

fn tiny(dir: &Path) -> Plan {
    Plan {
        dir: dir.into(),
        rows: 1000,
        load_limit: Duration::MAX,
        committers: vec![1, 16, 64],
        rounds: 2,
        slice: Duration::from_millis(20),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_run_measures_everything_without_an_error_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let section = measure(&tiny(dir.path()), &Progress::new(1), reopen::here).await.unwrap();
    let names: Vec<_> = section.measurements.iter().map(|measurement| measurement.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "commits, 1 at a time",
            "commits, 16 at a time",
            "commits, 64 at a time",
            "first gets",
            "gets",
            "scans of 100 rows",
            "open after a clean stop",
            "memory after opening",
        ]
    );
    for series in section.measurements.iter().flat_map(|measurement| &measurement.series) {
        assert!(series.median > 0.0 && series.errors.is_empty(), "{series:?}");
    }
    assert_eq!(section.goals.len(), 6);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn loading_stops_in_time_and_says_how_far_it_got() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { load_limit: Duration::from_millis(20), rows: 100_000_000, ..tiny(dir.path()) };
    let (space, rows) = load(dir.path(), &plan).await.unwrap();
    assert!(rows < plan.rows && rows % PARTITION_ROWS == 0);
    let reading = Reading { rounds: 1, slice: Duration::from_millis(20) };
    let found = reopen::here(dir.path(), space, rows, reading).await.unwrap();
    assert!(found.gets.errors.is_empty() && found.scans.errors.is_empty(), "{found:?}");
    // Rows beyond the last one are missing, and that does not pass for a read.
    let found = reopen::here(dir.path(), space, rows * 1000, reading).await.unwrap();
    assert!(found.gets.errors["a missing row"] > 0);
}

#[test]
fn goals_are_judged_by_what_was_measured() {
    let measurement = |ours: f64, raw: f64, p99_us: f64| {
        let latency =
            |p50_us, p99_us| super::super::histogram::Latency { p50_us, p99_us, p999_us: 0.0, max_us: 0.0 };
        let mut series = vec![Series::of_values(OURS, vec![ours]), Series::of_values("fdatasync", vec![raw])];
        series[0].latency = Some(latency(0.0, p99_us));
        series[1].latency = Some(latency(100.0, 0.0));
        Measurement::new("commits", "commits/s", series)
    };
    for (committers, ours, raw, p99_us, met) in [
        (1, 70.0, 100.0, 0.0, Some(true)),
        (1, 69.0, 100.0, 0.0, Some(false)),
        (64, 800.0, 100.0, 0.0, Some(true)),
        (64, 799.0, 100.0, 0.0, Some(false)),
        (16, 1.0, 100.0, 500.0, Some(true)),
        (16, 1.0, 100.0, 501.0, Some(false)),
        (256, 1.0, 100.0, 0.0, None),
    ] {
        let goal = commit_goal(committers, &measurement(ours, raw, p99_us));
        assert_eq!(goal.and_then(|goal| goal.met), met, "{committers} committers: {ours} and {raw}");
    }
}

#[test]
fn few_rows_do_not_tell_how_long_opening_many_takes_unless_they_took_too_long() {
    for (rows, open_ms, met) in [
        (MANY_ROWS, 999.0, Some(true)),
        (MANY_ROWS, 1000.0, Some(false)),
        (MANY_ROWS - 1, 999.0, None),
        (1, 1000.0, Some(false)),
    ] {
        assert_eq!(open_goal(rows, open_ms).met, met, "{rows} rows in {open_ms} ms");
    }
}
