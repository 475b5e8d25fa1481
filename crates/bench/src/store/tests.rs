use super::*;

fn tiny(dir: &Path) -> StorePlan {
    StorePlan {
        dir: dir.into(),
        rows: 1000,
        load_limit: Duration::MAX,
        committers: vec![1, 16, 64],
        rounds: 2,
        slice: Duration::from_millis(20),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn small_run_measures_everything_without_errors_and_removes_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let section = measure(&tiny(dir.path()), &Progress::new(1), reopen::in_this_process).await.unwrap();
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
async fn loading_stops_in_time_and_returns_the_number_of_rows() {
    let dir = tempfile::tempdir().unwrap();
    let plan = StorePlan { load_limit: Duration::from_millis(20), rows: 100_000_000, ..tiny(dir.path()) };
    let (space, rows) = load(dir.path(), &plan).await.unwrap();
    assert!(rows < plan.rows && rows % PARTITION_ROWS == 0);
    let reading = Reading { rounds: 1, slice: Duration::from_millis(20) };
    let found = reopen::in_this_process(dir.path(), space, rows, reading).await.unwrap();
    assert!(found.gets.errors.is_empty() && found.scans.errors.is_empty(), "{found:?}");
    // Rows beyond the last one are missing, and reads of them fail.
    let found = reopen::in_this_process(dir.path(), space, rows * 1000, reading).await.unwrap();
    assert!(found.gets.errors["a missing row"] > 0);
}

#[test]
fn commit_goals_are_judged_by_ratio_or_tail() {
    let measurement = |ours: f64, raw: f64| {
        let series = vec![Series::of_values(OURS, vec![ours]), Series::of_values("fdatasync", vec![raw])];
        Measurement::new("commits", "commits/s", series)
    };
    for (committers, ours, raw, tail, met) in [
        (1, 70.0, 100.0, 0.0, Some(true)),
        (1, 69.0, 100.0, 0.0, Some(false)),
        (64, 800.0, 100.0, 0.0, Some(true)),
        (64, 799.0, 100.0, 0.0, Some(false)),
        (16, 1.0, 100.0, 5.0, Some(true)),
        (16, 1.0, 100.0, 5.1, Some(false)),
        (256, 1.0, 100.0, 0.0, None),
    ] {
        let goal = commit_goal(committers, &measurement(ours, raw), Some(tail));
        assert_eq!(goal.and_then(|goal| goal.met), met, "{committers} committers: {ours} and {raw}");
    }
}

#[test]
fn tail_is_the_median_over_rounds_that_ran_next_to_each_other() {
    let round = |took: &[u64]| {
        let mut round = Round::default();
        for micros in took {
            round.note(Duration::from_micros(*micros), Ok(()));
        }
        round.finish(Duration::from_micros(took.iter().sum()));
        round
    };
    // A hundred operations of 100 µs, and two slow ones.
    let slow = |micros| round(&[vec![100; 100], vec![micros; 2]].concat());
    let found = tail(&[slow(400), slow(9000), slow(600)], &[round(&[50, 150]), round(&[300]), round(&[300])]);
    assert!(found.is_some_and(|found| (3.8..4.2).contains(&found)), "{found:?}");
    assert_eq!(tail(&[], &[]), None);
}

#[test]
fn opening_few_rows_is_judged_only_if_it_is_too_slow() {
    for (rows, open_ms, met) in [
        (MANY_ROWS, 999.0, Some(true)),
        (MANY_ROWS, 1000.0, Some(false)),
        (MANY_ROWS - 1, 999.0, None),
        (1, 1000.0, Some(false)),
    ] {
        assert_eq!(open_goal(rows, open_ms).met, met, "{rows} rows in {open_ms} ms");
    }
}
