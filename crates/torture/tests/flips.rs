//! Flips bits of a data directory: each flip is reported or harmless.
//!
//! ```text
//! cargo test -p lazuli-torture --test flips              as many as fit in 30 seconds, chosen by a seed
//! cargo test -p lazuli-torture --test flips -- --all     every bit in use, and one in every 4 KiB of zeros
//! ```

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lazuli_torture::Seed;
use lazuli_torture::flips::run::{Flips, VERIFY_ARGUMENT, verify_and_print};
use rand::seq::SliceRandom;

/// Duration of a run that does not flip all bits.
const SAMPLE: Duration = Duration::from_secs(30);
/// Maximum number of bytes in use.
const MAX_USED: usize = 32 << 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, dir, expected] = &arguments[..]
        && first == VERIFY_ARGUMENT
    {
        verify_and_print(dir.as_ref(), expected.as_ref());
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let all = arguments.iter().any(|argument| argument == "--all");
    let names: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    if !names.is_empty() && !names.iter().any(|name| "flips".contains(name.as_str())) {
        println!("flips: not among the tests that were asked for");
        return ExitCode::SUCCESS;
    }

    let flips = Flips::new();
    assert!(flips.used_bytes() <= MAX_USED, "{} bytes are in use", flips.used_bytes());
    let mut bits: Vec<_> = flips.bits.iter().collect();
    println!("{} bytes in use, {} bits to flip", flips.used_bytes(), bits.len());
    let seed = Seed::pick();
    if !all {
        println!("seed {} (LAZULI_TORTURE_SEED repeats it)", *seed);
        bits.shuffle(&mut seed.rng());
    }
    let report = flips.run(&bits, (!all).then(|| Instant::now() + SAMPLE));
    println!("{report}");
    match report.failures.len() {
        0 => ExitCode::SUCCESS,
        failures => {
            eprintln!("{failures} or more flips led to something else than a report");
            ExitCode::FAILURE
        }
    }
}
