//! `lazuli bench` as a program: child processes, servers, results and cleanup.

use std::path::Path;
use std::process::{Command, Output};

fn bench(arguments: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lazuli"));
    command.arg("bench").args(arguments).current_dir(dir).output().expect("lazuli runs")
}

fn results(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).expect("results are written")).expect("results are JSON")
}

/// Returns the names of a section's measurements. Fails if one failed or has no sample.
fn measured(section: &serde_json::Value) -> Vec<&str> {
    let measurements = section["measurements"].as_array().expect("measurements");
    for series in
        measurements.iter().flat_map(|measurement| measurement["series"].as_array().expect("series"))
    {
        assert_eq!(series["errors"], serde_json::json!({}), "{series}");
        assert!(series["median"].as_f64().expect("a median") > 0.0, "{series}");
    }
    measurements.iter().map(|measurement| measurement["name"].as_str().expect("a name")).collect()
}

#[test]
fn store_benchmark_reopens_in_a_new_process_and_cleans_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let arguments = ["store", "--rows", "1000", "--rounds", "1", "--slice", "0.02", "--json", "results.json"];
    let output = bench(&arguments, dir.path());
    assert!(output.status.success(), "{output:?}");
    let results = results(&dir.path().join("results.json"));
    let names = measured(&results["sections"][0]);
    assert_eq!(names.len(), 9, "{names:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a listing").count(), 1, "only the results are left");
}

#[test]
fn compare_starts_a_server_measures_it_and_writes_a_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = bench(&["compare", "--quick", "--no-peers", "--time", "2", "--rounds", "1"], dir.path());
    assert!(output.status.success(), "{output:?}");
    let results = results(&dir.path().join("bench-results/results.json"));
    let titles: Vec<_> =
        results["sections"].as_array().expect("sections").iter().map(|s| &s["title"]).collect();
    assert_eq!(titles, ["store", "extents", "services"]);
    assert!(measured(&results["sections"][2]).contains(&"blob-service-properties"));
    let page = std::fs::read_to_string(dir.path().join("bench-results/index.html")).expect("a page");
    assert!(page.contains("blob-service-properties") && page.contains("<svg"));
    assert_eq!(std::fs::read_dir(dir.path()).expect("a listing").count(), 1, "only the results are left");
}

#[test]
fn two_binaries_are_compared_and_a_failed_start_is_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let ours = env!("CARGO_BIN_EXE_lazuli");
    let options = ["--pairs", "1", "--slice", "0.05", "--workload", "put-blob", "--json", "results.json"];
    let output = bench(&[&["ab", ours, ours][..], &options].concat(), dir.path());
    assert!(output.status.success(), "{output:?}");
    let results = results(&dir.path().join("results.json"));
    assert_eq!(measured(&results["sections"][0]), ["put-blob: throughput", "put-blob: CPU"]);
    let goals = results["sections"][0]["goals"].as_array().expect("goals");
    assert!(goals.iter().all(|goal| goal["met"].is_null()), "one pair is too few to judge: {goals:?}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a listing").count(), 1, "only the results are left");

    let output = bench(&["ab", ours, "/bin/false", "--pairs", "1"], dir.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("lazuli serve: exit status: 1"), "{output:?}");
}

#[test]
fn short_soak_uses_every_service_and_finds_no_wrong_byte() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = bench(&["soak", "1", "--minute", "2", "--rate", "50"], dir.path());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 minutes are too few") && text.contains("every byte is right"), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a listing").count(), 0, "the directory is empty");
}

#[test]
fn steady_load_is_measured_next_to_a_raw_writer() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = ["--minutes", "1", "--minute", "0.3", "--calibrate", "0.2", "--json", "results.json"];
    let output = bench(&[&["steady"][..], &options].concat(), dir.path());
    // Whether the goals are met depends on the machine, but they must be judged.
    let results = results(&dir.path().join("results.json"));
    assert_eq!(measured(&results["sections"][0]), ["puts", "hot reads", "raw writer"], "{output:?}");
    assert_eq!(results["sections"][0]["goals"].as_array().expect("goals").len(), 2);
}

#[test]
fn unreachable_endpoint_is_reported_as_errors() {
    let dir = tempfile::tempdir().expect("a directory");
    let closed =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    let endpoint = format!("http://{closed}/devstoreaccount1");
    let arguments =
        ["load", "account-info", "--endpoint", &endpoint, "--duration", "0.1", "--warm-up", "0.01"];
    let output = bench(&arguments, dir.path());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("connection refused"), "{output:?}");
}
