//! The metrics on the console port.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use lazuli_account::DEVELOPMENT_ACCOUNT;
use lazuli_protocol::operation::Operation;
use lazuli_protocol::{ErrorCode, ServiceKind};
use support::Server;

/// Series of the engine that exist from the start, with their labels but without `le`.
const SERIES: &[&str] = &[
    "lazuli_build_info{version=\"0.1.0\"}",
    "lazuli_commit_seconds_count",
    "lazuli_commit_group_size_count",
    "lazuli_fsync_seconds_count{what=\"log\"}",
    "lazuli_fsync_seconds_count{what=\"segments\"}",
    "lazuli_transaction_retries_total{service=\"account\"}",
    "lazuli_transaction_retries_total{service=\"blob\"}",
    "lazuli_transaction_retries_total{service=\"queue\"}",
    "lazuli_transaction_retries_total{service=\"table\"}",
    "lazuli_transaction_retries_total{service=\"file\"}",
    "lazuli_transactions_waiting{service=\"account\"}",
    "lazuli_transactions_waiting{service=\"blob\"}",
    "lazuli_transactions_waiting{service=\"queue\"}",
    "lazuli_transactions_waiting{service=\"table\"}",
    "lazuli_transactions_waiting{service=\"file\"}",
    "lazuli_sweep_running",
    "lazuli_sweep_rows",
    "lazuli_sweeps_total",
    "lazuli_sweep_freed_bytes_total",
    "lazuli_rows",
    "lazuli_chore_seconds_count{chore=\"content_sweep\"}",
    "lazuli_chore_seconds_count{chore=\"scrub\"}",
    "lazuli_chore_failing{chore=\"content_sweep\"}",
    "lazuli_chore_failing{chore=\"scrub\"}",
    "lazuli_chore_failures_total{chore=\"content_sweep\"}",
    "lazuli_chore_failures_total{chore=\"scrub\"}",
    "lazuli_memory_bytes{what=\"memtable\"}",
    "lazuli_memory_bytes{what=\"table_blocks\"}",
    "lazuli_memory_bytes{what=\"runs\"}",
    "lazuli_memory_bytes{what=\"pinned\"}",
    "lazuli_memory_bytes{what=\"allocated\"}",
    "lazuli_memory_bytes{what=\"active\"}",
    "lazuli_memory_bytes{what=\"resident\"}",
    "lazuli_memory_bytes{what=\"retained\"}",
    "lazuli_table_versions",
    "lazuli_commit_queue_depth",
    "lazuli_level0_runs",
    "lazuli_sealed_memtables",
    "lazuli_oldest_snapshot_seconds",
    "lazuli_clock_lead_seconds",
    "lazuli_store_stopped",
    "lazuli_store_full",
    "lazuli_content_stopped",
    "lazuli_content_full",
    "lazuli_sweep_incomplete",
    "lazuli_background_failing{task=\"flush\"}",
    "lazuli_background_failing{task=\"compaction\"}",
    "lazuli_background_failures_total{task=\"flush\"}",
    "lazuli_background_failures_total{task=\"compaction\"}",
    "lazuli_damaged_reads_total{what=\"rows\"}",
    "lazuli_damaged_reads_total{what=\"content\"}",
    "lazuli_disk_bytes{what=\"free\"}",
    "lazuli_disk_bytes{what=\"total\"}",
    "lazuli_disk_bytes{what=\"log\"}",
    "lazuli_disk_bytes{what=\"tree\"}",
    "lazuli_disk_bytes{what=\"segments\"}",
    "lazuli_disk_bytes{what=\"live\"}",
    "lazuli_content_appended_bytes",
    "lazuli_content_garbage_bytes",
    "lazuli_accounts",
    "lazuli_pending_copies{service=\"blob\"}",
    "lazuli_pending_copies{service=\"file\"}",
    "lazuli_range_locks",
    "lazuli_unflushed_bytes",
    "lazuli_queue_lines",
    "lazuli_queue_candidates",
    "lazuli_queue_expiry_watched",
    "lazuli_share_usages",
    "lazuli_smb_connections",
    "lazuli_smb_strangers",
    "lazuli_smb_sessions",
    "lazuli_smb_trees",
    "lazuli_smb_opens",
    "lazuli_smb_most_opens_of_account",
    "lazuli_smb_pipes",
    "lazuli_smb_kept_event_bytes",
    "lazuli_smb_throttled",
    "lazuli_smb_strangers_dropped_total",
    "lazuli_smb_failed_logins_total",
    "lazuli_objects_counted_timestamp_seconds",
    "lazuli_chore_failing{chore=\"usage_counts\"}",
];

/// Values of the label `chore`.
const CHORES: &[&str] = &[
    "deleted_containers",
    "blob_expiry",
    "dropped_blocks",
    "quotas_of_idle_shares",
    "deleted_tables",
    "deleted_shares",
    "deleted_and_cleared_queues",
    "message_expiry",
    "removed_accounts",
    "content_sweep",
    "scrub",
    "usage_counts",
];

/// Values of the label `what`.
const WHAT: &[&str] = &[
    "free",
    "total",
    "log",
    "tree",
    "segments",
    "live",
    "rows",
    "content",
    "memtable",
    "table_blocks",
    "runs",
    "pinned",
    "allocated",
    "active",
    "resident",
    "retained",
];

/// Values of the label `structure`, with the limit if it is a constant.
const STRUCTURES: &[(&str, Option<f64>)] = &[
    ("space_headers", Some(4096.0)),
    ("published_space_headers", Some(1024.0)),
    ("recent_changes", Some(65_536.0)),
    ("tombstones", Some(65_536.0)),
    ("engine_snapshots", None),
    ("replaced_views", None),
    ("replaced_tables", None),
    ("ended_log_segments", None),
    ("content_holds", None),
    ("content_writers", None),
    ("segments", None),
    ("open_segments", Some(256.0)),
    ("unsynced_segments", None),
    ("huge_pages", Some(8.0)),
    ("idle_buffers", Some(8.0)),
    ("dropped_block_partitions", Some(4096.0)),
    ("incoming_spaces", None),
    ("reserved_accounts", None),
    ("open_files", None),
    ("directory_moves", None),
    ("smb_watches", None),
    ("smb_peers", None),
    ("smb_ending_sessions", None),
];

/// Parses the series with their values, and the families that have HELP and TYPE.
fn parse(text: &str) -> (BTreeMap<String, f64>, BTreeSet<String>) {
    let (mut series, mut help, mut types) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, text] if !text.is_empty() => assert!(help.insert(name.to_owned()), "{line}"),
            ["#", "TYPE", name, kind] => {
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(types.insert(name.to_owned()), "{line}");
            }
            _ => {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let before = series.insert(name.to_owned(), value.parse().unwrap());
                assert!(before.is_none(), "{line} occurs twice");
            }
        }
    }
    assert_eq!(help, types);
    (series, types)
}

fn family(series: &str) -> &str {
    let name = series.split('{').next().unwrap();
    ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

fn is_bounded(label: &str, value: &str) -> bool {
    match label {
        "service" => value == "account" || ServiceKind::ALL.iter().any(|kind| kind.name() == value),
        "operation" => value.is_empty() || Operation::ALL.iter().any(|operation| operation.name() == value),
        "status" => {
            ["other", "aborted", "SUCCESS", "MORE_PROCESSING_REQUIRED"].contains(&value)
                || value.parse().is_ok_and(|status: u16| (200..600).contains(&status))
        }
        "code" => ErrorCode::ALL.iter().any(|code| code.name() == value),
        "reason" => ["slow", "failed"].contains(&value),
        "account" => value == DEVELOPMENT_ACCOUNT,
        "le" => value == "+Inf" || value.parse::<f64>().is_ok(),
        "task" => ["flush", "compaction"].contains(&value),
        "what" => WHAT.contains(&value),
        "chore" => CHORES.contains(&value),
        "version" => value == "0.1.0",
        "structure" => STRUCTURES.iter().any(|(structure, _)| *structure == value),
        _ => false,
    }
}

#[test]
fn every_series_has_help_and_labels_have_fixed_values() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert_eq!(server.call(ServiceKind::Queue, "PUT", "/some-name", "").status, 201);
    assert_eq!(server.call(ServiceKind::Queue, "GET", "/other-name/messages", "").status, 404);
    let (status, text) = server.console("/metrics");
    assert_eq!(status, 200);
    let (series, families) = parse(&text);
    for name in SERIES {
        assert!(series.contains_key(*name), "{name} is missing:\n{text}");
    }
    for name in series.keys() {
        assert!(families.contains(family(name)), "{name} has no HELP and TYPE");
        let labels = name.split_once('{').map_or("", |(_, labels)| labels.strip_suffix('}').unwrap());
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            let (label, value) = label.split_once('=').unwrap();
            assert!(is_bounded(label, value.trim_matches('"')), "{name}");
        }
    }
    assert!(!text.contains("some-name") && !text.contains("other-name"), "{text}");
    for used in [
        "lazuli_commit_seconds_count",
        "lazuli_commit_group_size_count",
        "lazuli_fsync_seconds_count{what=\"log\"}",
        "lazuli_disk_bytes{what=\"free\"}",
        "lazuli_disk_bytes{what=\"total\"}",
        "lazuli_disk_bytes{what=\"log\"}",
        "lazuli_memory_bytes{what=\"memtable\"}",
        "lazuli_memory_bytes{what=\"allocated\"}",
        "lazuli_rows",
        "lazuli_accounts",
        "lazuli_requests_total{service=\"queue\",operation=\"Create Queue\",status=\"201\"}",
        "lazuli_requests_total{service=\"queue\",operation=\"Get Messages\",status=\"404\"}",
        "lazuli_errors_total{service=\"queue\",operation=\"Get Messages\",code=\"QueueNotFound\"}",
    ] {
        assert!(series[used] > 0.0, "{used}:\n{text}");
    }
}

#[test]
fn every_structure_has_a_size_and_its_limit_and_both_are_in_the_book() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert_eq!(server.call(ServiceKind::Queue, "PUT", "/some-name", "").status, 201);
    let (series, _) = parse(&server.console("/metrics").1);
    let book = include_str!("../../../docs/monitoring.md");
    for (structure, limit) in STRUCTURES {
        let size = series[&format!("lazuli_structure_entries{{structure=\"{structure}\"}}")];
        let shown = series.get(&format!("lazuli_structure_limit{{structure=\"{structure}\"}}")).copied();
        assert_eq!(shown, *limit, "{structure}");
        assert!(limit.is_none_or(|limit| size <= limit), "{structure}: {size}");
        assert!(book.contains(&format!("| `{structure}` |")), "docs/monitoring.md lacks {structure}");
    }
    for used in ["space_headers", "recent_changes", "engine_snapshots"] {
        assert!(series[&format!("lazuli_structure_entries{{structure=\"{used}\"}}")] > 0.0, "{used}");
    }
    let shown = series.keys().filter(|name| name.starts_with("lazuli_structure_entries"));
    assert_eq!(shown.count(), STRUCTURES.len(), "a structure is missing in this test");
}

#[test]
fn unauthenticated_smb_client_is_counted_until_it_disconnects() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let strangers = || parse(&server.console("/metrics").1).0["lazuli_smb_strangers"];
    assert_eq!(strangers(), 0.0);
    let stream = std::net::TcpStream::connect(server.address("smb")).unwrap();
    support::eventually("the connection is counted", || strangers() == 1.0);
    drop(stream);
    support::eventually("the connection is no longer counted", || strangers() == 0.0);
}

#[test]
fn every_series_of_the_dashboard_and_the_alert_rules_exists() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("access.log");
    let server = Server::start_with(
        &dir.path().join("data"),
        &["--access-log", log.to_str().unwrap(), "--otlp-endpoint", "http://127.0.0.1:1"],
        &[],
    );
    // Operations have series after their first request.
    assert_eq!(server.call(ServiceKind::Queue, "PUT", "/some-name", "").status, 201);
    let (_, families) = parse(&server.console("/metrics").1);
    let packaging = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
    for file in ["grafana/lazuli.json", "prometheus/alerts.yml"] {
        let text = std::fs::read_to_string(format!("{packaging}/{file}")).unwrap();
        let names = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names: BTreeSet<_> = names.filter(|name| name.starts_with("lazuli_")).collect();
        assert!(names.len() > 8, "{file}: {names:?}");
        for name in names {
            assert!(families.contains(family(name)), "{file}: {name} does not exist");
        }
    }
}

#[test]
fn accounts_are_counted_by_service_in_the_background() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    assert_eq!(server.call(ServiceKind::Queue, "PUT", "/jobs", "").status, 201);
    let message = "<QueueMessage><MessageText>x</MessageText></QueueMessage>";
    assert_eq!(server.call(ServiceKind::Queue, "POST", "/jobs/messages", message).status, 201);
    let series = |name: &str| {
        let labels = format!("{{account=\"{DEVELOPMENT_ACCOUNT}\",service=\"queue\"}}");
        parse(&server.console("/metrics").1).0.get(&format!("{name}{labels}")).copied()
    };
    support::eventually("the message is counted", || series("lazuli_objects") == Some(1.0));
    assert_eq!(series("lazuli_resources"), Some(1.0));
    assert!(series("lazuli_object_bytes") > Some(0.0));
}
