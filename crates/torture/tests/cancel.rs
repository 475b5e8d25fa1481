//! Clients that disconnect in the middle of a request leave nothing half done.
//!
//! ```text
//! cargo test -p lazuli-torture --test cancel                                20 seconds, chosen by a seed
//! LAZULI_CANCEL_SECONDS=600 cargo test -p lazuli-torture --test cancel      longer
//! LAZULI_CANCEL_SECONDS=all cargo test -p lazuli-torture --test cancel      every point of every operation
//! LAZULI_CANCEL_CASE="put a blob" …                                       only cases with that in their name
//! ```

use std::time::Duration;

use lazuli_torture::Seed;
use lazuli_torture::cancel::{Bound, missing_operations, run};

/// Default duration of a run.
const SAMPLE: Duration = Duration::from_secs(20);

#[test]
fn dropped_requests_happen_completely_or_not_at_all() {
    let seed = Seed::pick();
    let bound = match std::env::var("LAZULI_CANCEL_SECONDS").as_deref() {
        Ok("all") => Bound::All,
        Ok(seconds) => Bound::For(Duration::from_secs(seconds.parse().expect("a number of seconds"))),
        Err(_) => Bound::For(SAMPLE),
    };
    println!("seed {} (LAZULI_TORTURE_SEED repeats it)", *seed);
    let report = run(*seed, bound, &std::env::var("LAZULI_CANCEL_CASE").unwrap_or_default());
    println!("{report}");
    assert!(report.failures.is_empty(), "{report}");
}

#[test]
fn every_writing_operation_has_a_case() {
    assert_eq!(missing_operations(), [""; 0]);
}
